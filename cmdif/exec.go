package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	entryType = 7    // transport PCIe (Linux MLX5_PCI_CMD_XPORT)
	offOwner  = 0x3c // token, signature, reserved, delivery status and ownership
	minOut    = 8    // status and syndrome

	// Polled commands: this many looks at the entry at once, then sleeps that
	// double up to the longest, with a look at the device itself now and then.
	spinLoads    = 256
	firstSleep   = 5 * time.Microsecond
	longestSleep = time.Millisecond
	polledPulse  = 100 * time.Millisecond
	// Event mode: how often a waiting command looks whether its event got lost
	// or the device died.
	eventPulse = time.Second

	firstRetry   = 10 * time.Millisecond
	longestRetry = 500 * time.Millisecond
)

// Exec sends one command and waits for its reply. in begins with the 8-byte
// header (opcode, uid, op_mod) and is sent as it is; out, at least 8 bytes, says
// how long a reply is accepted and receives it, also when firmware refuses the
// command. Both are the caller's again when Exec returns; if it returns an error
// other than *CommandError, out is unchanged. Of a reply that says NOT_READY out gets
// only status and syndrome, zeros behind them.
//
// Errors: *CommandError, *DeliveryError, *ReplyError, *TimeoutError,
// *CanceledError, *DeadError, *MessageError, and ErrQuarantined, ErrClosed or
// memory errors, wrapped. An inline command (up to 16 bytes each way) that
// succeeds in polled mode allocates nothing.
func (c *Conn) Exec(ctx context.Context, in, out []byte) error {
	return c.exec(ctx, in, out, c.timeout, false)
}

// ExecTimeout is Exec with a deadline of its own instead of the Conn's.
func (c *Conn) ExecTimeout(ctx context.Context, in, out []byte, limit time.Duration) error {
	return c.exec(ctx, in, out, limit, false)
}

// ExecPolled is Exec for a command after which no event will come any more: it
// looks at the entry even in event mode (Linux mlx5_cmd_exec_polling).
func (c *Conn) ExecPolled(ctx context.Context, in, out []byte) error {
	return c.exec(ctx, in, out, c.timeout, true)
}

func (c *Conn) exec(ctx context.Context, in, out []byte, limit time.Duration, polled bool) error {
	if len(in) < prm.CmdInSize || len(out) < minOut {
		return &MessageError{Opcode: opcodeOf(in), Rule: fmt.Sprintf("input of %d and output of %d bytes; each has an 8-byte header", len(in), len(out))}
	}
	start := time.Now()
	deadline := start.Add(limit)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	retryUntil := start.Add(c.retry)
	if deadline.Before(retryUntil) {
		retryUntil = deadline
	}
	for pause := firstRetry; ; pause = min(2*pause, longestRetry) {
		err := c.once(ctx, in, out, start, deadline, polled)
		if err == nil {
			return nil
		}
		var ce *CommandError
		if !errors.As(err, &ce) || ce.Status != prm.StatusNotReady {
			return err
		}
		if !time.Now().Add(pause).Before(retryUntil) {
			return notReady(ce, err, out)
		}
		c.mu.Lock()
		c.opLocked(ce.Opcode).Retries++
		c.mu.Unlock()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-c.ended:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil || c.end.Load() != nil {
			return notReady(ce, err, out)
		}
	}
}

// notReady gives the caller the reply that was held back while the command might be
// sent again, and end in another way.
func notReady(ce *CommandError, err error, out []byte) error {
	clear(out)
	h := prm.AsCmdOut(out)
	h.SetStatus(ce.Status)
	h.SetSyndrome(ce.Syndrome)
	return err
}

func opcodeOf(in []byte) prm.Opcode {
	if len(in) < 2 {
		return 0
	}
	return prm.Opcode(binary.BigEndian.Uint16(in))
}

// once sends a command one time.
func (c *Conn) once(ctx context.Context, in, out []byte, start, deadline time.Time, polled bool) error {
	h := prm.AsCmdIn(in)
	op, opMod := h.Opcode(), h.OpMod()
	s, err := c.admit(ctx, op, opMod, start, deadline)
	if err != nil {
		return err
	}
	s.rec.Opcode, s.rec.OpMod = op, opMod
	owner, err := c.build(s, in, len(out))
	if err != nil {
		c.withdraw(s)
		return fmt.Errorf("%s: not sent: %w", name(op, opMod), err)
	}
	// Building may have taken its time.
	if c.end.Load() != nil {
		c.withdraw(s)
		return c.endError(op, opMod, -1)
	}
	if ctx.Err() != nil {
		c.withdraw(s)
		return c.abandoned(ctx, op, opMod, -1, start, deadline)
	}
	ev := c.events.Load()
	if polled {
		ev = nil
	}
	s.deadline = deadline
	c.post(s, owner)

	var o Outcome
	if ev == nil {
		o = c.waitPolled(ctx, s, deadline)
	} else {
		o = c.waitEvent(ctx, s, *ev, deadline)
	}
	if o != OutcomeDone && c.quarantine(s, o) {
		return c.gaveUp(ctx, s.index, o, op, opMod, start, deadline)
	}
	return c.finish(s, out)
}

// build fills the entry and the mailboxes and returns the dword that hands the
// entry over.
func (c *Conn) build(s *slot, in []byte, outLen int) (owner uint32, err error) {
	if s.in, err = c.boxes.take(s.in, boxes(len(in))); err != nil {
		return 0, err
	}
	if s.out, err = c.boxes.take(s.out, boxes(outLen)); err != nil {
		return 0, err
	}
	r := &s.rec
	r.InLen, r.OutLen = len(in), outLen
	n := copy(r.In[:], in)

	b := s.mem.Bytes()
	clear(b[:offOwner])
	e := prm.AsCmdQueueEntry(b)
	e.SetType(entryType)
	e.SetInputLength(uint32(len(in)))
	copy(e.CommandInputInlineData(), in[:n])
	e.SetOutputLength(uint32(outLen))
	if len(s.in) > 0 {
		link(s.in, r.Token, in[n:])
		e.SetInputMailboxPointer63_32(uint32(s.in[0].iova >> 32))
		e.SetInputMailboxPointer31_9(uint32(s.in[0].iova) >> 9)
	}
	if len(s.out) > 0 {
		link(s.out, r.Token, nil)
		e.SetOutputMailboxPointer63_32(uint32(s.out[0].iova >> 32))
		e.SetOutputMailboxPointer31_9(uint32(s.out[0].iova) >> 9)
	}
	// The signature covers the entry as the device finds it: owned by it.
	const owned = 1
	sum := ^(xor8(b[:offOwner]) ^ r.Token ^ owned)
	return uint32(r.Token)<<24 | uint32(sum)<<16 | owned, nil
}

// post hands the entry to the device.
func (c *Conn) post(s *slot, owner uint32) {
	select {
	case <-s.done: // a hint for the previous command
	default:
	}
	s.mem.StoreBE32(offOwner, owner)
	if t := c.trace.Load(); t != nil {
		c.traceSlot(*t, s, false)
	}
	s.rec.Posted = time.Now()
	s.state.Store(slotBusy)
	mmio.ToDevice()
	c.seg.RingDoorbell(s.bit())
	c.checkWindow() // a doorbell that could not be rung
}

// waitPolled looks at the entry until the device hands it back.
func (c *Conn) waitPolled(ctx context.Context, s *slot, deadline time.Time) Outcome {
	for i := range spinLoads {
		if s.mem.LoadBE32(offOwner)&1 == 0 {
			return OutcomeDone
		}
		if i%16 == 15 {
			runtime.Gosched()
		}
	}
	pulse := time.Now().Add(polledPulse)
	for pause := firstSleep; ; pause = min(2*pause, longestSleep) {
		if c.end.Load() != nil {
			return OutcomeDead
		}
		if err := ctx.Err(); err != nil {
			if outcomeOf(err) == OutcomeTimeout {
				return c.timedOut()
			}
			return OutcomeCanceled
		}
		now := time.Now()
		left := deadline.Sub(now)
		if left <= 0 {
			return c.timedOut()
		}
		if now.After(pulse) {
			c.checkAlive()
			pulse = now.Add(polledPulse)
		}
		time.Sleep(min(pause, left))
		if s.mem.LoadBE32(offOwner)&1 == 0 {
			return OutcomeDone
		}
	}
}

// waitEvent sleeps until Complete reports the slot.
func (c *Conn) waitEvent(ctx context.Context, s *slot, ev EventQueue, deadline time.Time) Outcome {
	if s.timer == nil {
		s.timer = time.NewTimer(eventPulse)
	}
	defer s.timer.Stop()
	for {
		left := time.Until(deadline)
		s.timer.Reset(min(max(left, 0), eventPulse))
		o := OutcomeDone
		select {
		case <-s.done:
			if s.mem.LoadBE32(offOwner)&1 == 0 {
				return OutcomeDone
			}
			continue // a hint too many
		case <-c.ended:
			return OutcomeDead
		case <-ctx.Done():
			o = outcomeOf(ctx.Err())
		case <-s.timer.C:
			if time.Until(deadline) <= 0 {
				o = OutcomeTimeout
			}
		}
		// Nobody woke us. Look whether the event waits in the queue, or whether
		// the entry came back without one, before believing that it is lost.
		if o != OutcomeDone || s.mem.LoadBE32(offOwner)&1 == 0 {
			if c.recover(s, ev) {
				return OutcomeDone
			}
		}
		if o == OutcomeTimeout {
			return c.timedOut()
		}
		if o != OutcomeDone {
			return o
		}
		c.checkAlive()
	}
}

// recover looks for a completion whose event or interrupt got lost.
func (c *Conn) recover(s *slot, ev EventQueue) bool {
	n := ev.Poll()
	if s.mem.LoadBE32(offOwner)&1 != 0 {
		return false
	}
	c.recovered.Add(1)
	if n > 0 {
		c.lost.Add(1)
	}
	c.log.Warn("completion found by polling", "op", s.rec.Opcode, "slot", s.index, "events", n)
	return true
}

// timedOut tells a device that is dead from one that is slow: a deadline may be
// shorter than a pulse.
func (c *Conn) timedOut() Outcome {
	if c.checkAlive(); c.end.Load() != nil {
		return OutcomeDead
	}
	return OutcomeTimeout
}

func outcomeOf(ctxErr error) Outcome {
	if errors.Is(ctxErr, context.DeadlineExceeded) {
		return OutcomeTimeout
	}
	return OutcomeCanceled
}

// gaveUp is the error of a command that was given up. The slot is no longer ours
// to read.
func (c *Conn) gaveUp(ctx context.Context, slot int, o Outcome, op prm.Opcode, opMod uint16, start, deadline time.Time) error {
	c.log.Warn("command given up", "op", op, "slot", slot, "outcome", o)
	if o == OutcomeDead {
		return c.endError(op, opMod, slot)
	}
	return c.abandoned(ctx, op, opMod, slot, start, deadline)
}

// abandoned is the error of a command whose time is up or whose caller left.
func (c *Conn) abandoned(ctx context.Context, op prm.Opcode, opMod uint16, slot int, start, deadline time.Time) error {
	age := time.Since(start)
	if err := ctx.Err(); err != nil && outcomeOf(err) == OutcomeCanceled {
		return &CanceledError{Opcode: op, OpMod: opMod, Slot: slot, Age: age, Err: context.Cause(ctx)}
	}
	return &TimeoutError{Opcode: op, OpMod: opMod, Slot: slot, Age: age, Limit: deadline.Sub(start)}
}

// endError is the error of a command on a dead device or a closed Conn.
func (c *Conn) endError(op prm.Opcode, opMod uint16, slot int) error {
	err := c.Err()
	if slot < 0 && errors.Is(err, ErrClosed) {
		return fmt.Errorf("%s: not sent: %w", name(op, opMod), ErrClosed)
	}
	return &DeadError{Device: c.dev.Info().Name, Opcode: op, OpMod: opMod, Slot: slot, Err: err}
}
