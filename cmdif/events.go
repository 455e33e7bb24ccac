package cmdif

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
)

// EventQueue is what the command interface needs of the event queue that
// carries command completions (EQE type 0x0a).
type EventQueue interface {
	// Poll handles the events that are there now, as an interrupt would, and
	// tells how many there were. Completions among them have reached
	// Conn.Complete when it returns. It must not block and must be safe beside
	// the goroutine that owns the queue.
	Poll() int
}

// Complete takes the vector of a command completion event: bit i says that the
// command in slot i has completed. The goroutine of the command EQ calls it. It
// never waits for the device or a command. Bits of slots that hold no completed
// command are counted and ignored: the completion was found by polling before,
// or the event came twice.
func (c *Conn) Complete(vector uint32) {
	if c.end.Load() != nil {
		return // nobody waits, and the memory of the queue may be gone
	}
	late := false
	for v := vector; v != 0; v &= v - 1 {
		i := bits.TrailingZeros32(v)
		if i >= len(c.slots) {
			c.spurious.Add(1)
			continue
		}
		s := &c.slots[i]
		state := s.state.Load()
		if state == slotFree || s.mem.LoadBE32(offOwner)&1 != 0 {
			c.spurious.Add(1)
			continue
		}
		if state == slotQuarantined {
			late = true
			continue
		}
		select {
		case s.done <- struct{}{}:
		default: // a hint is there already
		}
	}
	if late {
		c.reap()
	}
}

// SwitchToEvents leaves polled mode: it waits until no command is in flight,
// lets create make the command EQ and from then on expects completions through
// Complete (Linux eq.c and cmd.c). create may send CREATE_EQ, and DESTROY_EQ to
// undo it, polled; any other command, from whatever goroutine, waits until the
// switch is over. If create fails, polled mode stays and its error is returned.
// Commands that were given up do not hold the switch up. In event mode it is refused.
func (c *Conn) SwitchToEvents(ctx context.Context, create func(context.Context) (EventQueue, error)) error {
	if c.EventMode() {
		return errors.New("switch commands to events: they come by events already; switch to polling first")
	}
	if err := c.drain(ctx, "switch commands to events", gateCreate); err != nil {
		return err
	}
	eq, err := create(ctx)
	if err == nil && eq == nil {
		err = errors.New("switch commands to events: no event queue was made")
	}
	c.mu.Lock()
	if err == nil {
		c.events.Store(&eq)
	}
	c.openLocked()
	c.mu.Unlock()
	return err
}

// SwitchToPolling goes back to polled mode, for the time before the command EQ
// is destroyed: it waits until no command is in flight. Events that still arrive
// are ignored. On a dead device it succeeds at once.
func (c *Conn) SwitchToPolling(ctx context.Context) error {
	if c.events.Load() == nil {
		return nil
	}
	if err := c.drain(ctx, "switch commands to polling", gateShut); err != nil && c.Err() == nil {
		return err
	}
	c.mu.Lock()
	c.events.Store(nil)
	c.openLocked()
	c.mu.Unlock()
	return nil
}

// EventMode tells whether completions come through events.
func (c *Conn) EventMode() bool { return c.events.Load() != nil }

// drain keeps new commands out, waits until none is in flight and then sets the
// gate to next.
func (c *Conn) drain(ctx context.Context, what string, next gate) error {
	c.mu.Lock()
	if err := c.Err(); err != nil {
		c.mu.Unlock()
		return fmt.Errorf("%s: %w", what, err)
	}
	if c.gate != gateOpen {
		c.mu.Unlock()
		return fmt.Errorf("%s: another switch is going on; wait for it", what)
	}
	c.gate = gateShut
	idle := c.idleLocked()
	c.mu.Unlock()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = c.Err()
	}
	if err != nil {
		rs := c.inFlightLocked()
		c.openLocked()
		if len(rs) == 0 {
			return fmt.Errorf("%s: %w", what, err)
		}
		return fmt.Errorf("%s: wait for the commands in flight (%s): %w", what, inFlight(rs), err)
	}
	c.gate = next
	c.dispatchLocked()
	return nil
}

func (c *Conn) openLocked() {
	c.gate = gateOpen
	c.dispatchLocked()
}
