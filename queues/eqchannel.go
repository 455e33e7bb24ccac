package queues

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// EventChannelOptions describe an EventChannel.
type EventChannelOptions struct {
	// Name appears in messages; "" is "completion".
	Name string
	// LogSize is log2 of the entries of the event queue; 0 is 8. An armed CQ
	// takes one entry, so leave UpdateEvery more than there are CQs.
	LogSize uint8
	// Vector is the interrupt, and Index its number; HCA.CompletionVectors offers
	// them. Without one, Wait looks every Interval.
	Vector *vfio.Vector
	Index  uint16
	// Interval is the pause between two looks without an interrupt; 0 is 50 µs.
	Interval time.Duration
	// UAR carries the doorbell of the event queue. It cannot be freed before the
	// channel is closed.
	UAR *UAR
}

const (
	defaultLogChannel = 8
	defaultInterval   = 50 * time.Microsecond
)

// EventChannel waits for completion queues: an event queue that takes nothing but
// completion events, and the interrupt it raises. The CQs created with its EQ
// report here once they are armed.
//
//	for {
//	    n, err := ch.Completions(ctx, cq, dst)
//	}
//
// It belongs to one caller at a time.
type EventChannel struct {
	eq    *EQ
	dev   *Dev
	o     EventChannelOptions
	fired []*CQ
	sink  func(*prm.EQE)
	stray uint64
}

// NewEventChannel creates the event queue.
func (d *Dev) NewEventChannel(ctx context.Context, o EventChannelOptions) (*EventChannel, error) {
	if o.Name == "" {
		o.Name = "completion"
	}
	if o.LogSize == 0 {
		o.LogSize = defaultLogChannel
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if err := o.UAR.check(d, fmt.Sprintf("create the %s event channel", o.Name)); err != nil {
		return nil, err
	}
	eq, err := d.CreateEQ(ctx, EQOptions{Name: o.Name, LogSize: o.LogSize, Vector: o.Index, UAR: o.UAR})
	if err != nil {
		return nil, err
	}
	c := &EventChannel{eq: eq, dev: d, o: o}
	c.sink = c.take
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiters == nil {
		d.waiters = map[uint8]*vfio.Vector{}
	}
	d.waiters[eq.eqn] = o.Vector
	return c, nil
}

// EQ is the event queue to create CQs with.
func (c *EventChannel) EQ() *EQ { return c.eq }

// Stray is the number of events of CQs that are gone: harmless, they were on
// their way when the CQ was destroyed.
func (c *EventChannel) Stray() uint64 { return c.stray }

// take notes one completion event.
func (c *EventChannel) take(e *prm.EQE) {
	q := c.dev.cq(e.EventData().CompEvent().CQNumber())
	if e.EventType() != prm.EventCompletion || q == nil || q.eq != c.eq {
		c.stray++
		return
	}
	q.Notified()
	c.fired = append(c.fired, q)
}

// Ready gives the CQs that have fired or failed since the last look, without
// waiting. The slice is valid until the next call. It allocates nothing once it has held as
// many CQs as ever fire together. The error is an *OverrunError.
func (c *EventChannel) Ready() ([]*CQ, error) {
	c.fired = c.fired[:0]
	_, err := c.eq.Poll(c.sink)
	c.eq.Update()
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	c.dev.failed = slices.DeleteFunc(c.dev.failed, func(q *CQ) bool {
		if q.eq == c.eq {
			c.fired = append(c.fired, q)
		}
		return q.eq == c.eq
	})
	return c.fired, err
}

// Wait blocks until a CQ that was armed fires, or one fails (its Poll then says
// why, see Dev.HandleEvent), and gives all that have. Poll each
// of them until it is empty, arm it, and poll it once more, before waiting again
// (arming is level-triggered, so the second poll saves an interrupt, not a
// completion). The slice is valid until the next call. Errors: the context's,
// vfio.ErrClosed when the interrupt is taken away, an *OverrunError.
func (c *EventChannel) Wait(ctx context.Context) ([]*CQ, error) {
	for {
		if !c.eq.life.alive() {
			return nil, fmt.Errorf("wait for completions: the %s EQ is gone: %w", c.o.Name, vfio.ErrClosed)
		}
		fired, err := c.Ready()
		if len(fired) > 0 || err != nil {
			return fired, err
		}
		c.eq.Arm()
		if err := c.sleep(ctx); err != nil {
			if cause := c.dev.BAR.Err(); cause != nil { // a doorbell that got lost tells nobody else
				err = fmt.Errorf("%w; before that an access to BAR 0 had failed: %w", err, cause)
			}
			return nil, fmt.Errorf("wait for completions on EQN %d: %w", c.eq.eqn, err)
		}
	}
}

// sleep waits for the interrupt, or for the next look.
func (c *EventChannel) sleep(ctx context.Context) error {
	if c.o.Vector != nil {
		return c.o.Vector.Wait(ctx)
	}
	t := time.NewTimer(c.o.Interval)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Completions polls q, and waits while there is nothing: it returns at least one
// completion or an error. Other CQs of the channel that fire meanwhile are not
// lost, since arming is level-triggered: arm them again.
func (c *EventChannel) Completions(ctx context.Context, q *CQ, dst []Completion) (int, error) {
	if len(dst) == 0 {
		return 0, refuse("wait for completions", "dst", vfio.ErrRange, "there is no room for one")
	}
	for {
		if n, err := q.Poll(dst); n > 0 || err != nil {
			return n, err
		}
		q.Arm(false)
		if _, err := c.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Close destroys the event queue. CQs that report here must be destroyed before:
// ErrInUse.
func (c *EventChannel) Close(ctx context.Context) error {
	err := c.eq.Destroy(ctx)
	if err == nil {
		c.forget()
	}
	return err
}

// Release frees the event queue's memory without telling firmware (see
// EQ.Release).
func (c *EventChannel) Release() error {
	c.forget()
	return c.eq.Release()
}

func (c *EventChannel) forget() {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	delete(c.dev.waiters, c.eq.eqn)
}
