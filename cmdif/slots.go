package cmdif

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// States of a slot, read without the lock by Complete.
const (
	slotFree uint32 = iota
	slotBusy
	slotQuarantined
)

// slot is one entry of the command queue and the command in it. The command
// owns it from grant to release; in quarantine Conn.mu guards it.
type slot struct {
	index int
	mem   vfio.Mem // the 64 bytes of the entry
	state atomic.Uint32
	done  chan struct{} // a hint that the ownership bit is worth a look
	timer *time.Timer
	// deadline of the command, set before it is sent.
	deadline time.Time

	in, out   []*box
	rec       Record
	throttled bool
	waiter    *waiter // what the command waited with, if it had to
}

func (s *slot) bit() uint32 { return 1 << s.index }

// leaveLocked takes a command out of flight.
func (c *Conn) leaveLocked() {
	if c.active--; c.active == 0 && c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// freeLocked makes the slot available again.
func (c *Conn) freeLocked(s *slot) {
	s.state.Store(slotFree)
	if s.throttled {
		s.throttled = false
		c.throttled--
	}
	if s.waiter != nil {
		c.spareLocked(s.waiter)
		s.waiter = nil
	}
	t := s.rec.Token
	c.tokens[t>>6] &^= 1 << (t & 63)
	c.free |= s.bit()
	c.dispatchLocked()
}

// release ends a command whose slot the device has handed back.
func (c *Conn) release(s *slot) {
	c.boxes.give(s.in)
	c.boxes.give(s.out)
	s.in, s.out = s.in[:0], s.out[:0]
	c.mu.Lock()
	c.accountLocked(&s.rec)
	c.leaveLocked()
	c.freeLocked(s)
	c.mu.Unlock()
}

// withdraw ends a command that was never handed to the device.
func (c *Conn) withdraw(s *slot) {
	c.boxes.give(s.in)
	c.boxes.give(s.out)
	s.in, s.out = s.in[:0], s.out[:0]
	c.mu.Lock()
	c.leaveLocked()
	c.freeLocked(s)
	c.mu.Unlock()
}

// quarantine keeps the slot and the memory of a command that is given up. It
// answers false, and does nothing, if the device has handed the entry back.
func (c *Conn) quarantine(s *slot, o Outcome) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o != OutcomeBadReply && s.mem.LoadBE32(offOwner)&1 == 0 {
		return false
	}
	s.rec.Outcome = o
	s.rec.Latency = time.Since(s.rec.Posted)
	s.state.Store(slotQuarantined)
	c.quarantined |= s.bit()
	c.accountLocked(&s.rec)
	c.leaveLocked()
	c.dispatchLocked() // the last usable slot may be gone
	c.watchLocked()
	return true
}

// accountLocked enters an ended command into statistics and history.
func (c *Conn) accountLocked(r *Record) {
	o := c.opLocked(r.Opcode)
	switch r.Outcome {
	case OutcomeDone:
		o.completed(r.Latency)
	case OutcomeRefused, OutcomeBadReply:
		o.Failures++
		o.completed(r.Latency)
	case OutcomeTimeout, OutcomeCanceled:
		o.Failures++
		o.Timeouts++
	case OutcomeDead:
		o.Failures++
	}
	if r.Outcome != OutcomeLate {
		o.Count++
	}
	switch r.Outcome {
	case OutcomeDone, OutcomeRefused, OutcomeBadReply, OutcomeLate:
		c.answeredLocked(r)
	}
	c.history.add(r)
}

func (c *Conn) opLocked(op prm.Opcode) *OpStats {
	o := c.ops[op]
	if o == nil {
		o = &OpStats{Opcode: op}
		c.ops[op] = o
	}
	return o
}

// reap recovers the quarantined slots the device has handed back.
func (c *Conn) reap() {
	c.mu.Lock()
	c.unlockAndTell(c.reapLocked())
}

// reaped is what reapLocked leaves to be done without the lock.
type reaped struct {
	lates []Late
	boxes []*box
}

func (c *Conn) reapLocked() reaped {
	var r reaped
	if c.end.Load() != nil {
		return r // dead: nothing is reused before the reset
	}
	for q := c.quarantined; q != 0; q &= q - 1 {
		s := &c.slots[bits.TrailingZeros32(q)]
		w := s.mem.LoadBE32(offOwner)
		if w&1 != 0 || uint8(w>>24) != s.rec.Token {
			continue
		}
		late := c.lateLocked(s, w)
		r.lates = append(r.lates, late)
		r.boxes = append(r.boxes, s.in...)
		r.boxes = append(r.boxes, s.out...)
		s.in, s.out = s.in[:0], s.out[:0]
		c.quarantined &^= s.bit()
		c.late++
		c.accountLocked(&late.Record)
		c.freeLocked(s)
	}
	return r
}

// unlockAndTell gives up the lock and does what must not be done under it.
func (c *Conn) unlockAndTell(r reaped) {
	c.mu.Unlock()
	c.boxes.give(r.boxes)
	for i := range r.lates {
		l := &r.lates[i]
		c.log.Warn("command completed after it was given up", "op", l.Opcode, "slot", l.Slot,
			"age", l.Latency, "status", l.Status, "syndrome", l.Syndrome)
		if c.onLate != nil {
			c.onLate(*l)
		}
	}
}
