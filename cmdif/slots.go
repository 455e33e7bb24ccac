package cmdif

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
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
}

func (s *slot) bit() uint32 { return 1 << s.index }

// class says which slots a command may use.
type class uint8

const (
	classNormal class = iota
	classThrottled
	classPage
)

// classOf sorts opcodes as Linux does (cmd.c, mlx5_cmd_is_throttle_opcode and
// the page queue).
func classOf(op prm.Opcode) class {
	switch op {
	case prm.OpQueryPages, prm.OpManagePages:
		return classPage
	case prm.OpCreateGeneralObject, prm.OpModifyGeneralObject, prm.OpQueryGeneralObject,
		prm.OpDestroyGeneralObject, prm.OpSyncCrypto:
		return classThrottled
	}
	return classNormal
}

// gate says which commands are let in while the mode changes.
type gate uint8

const (
	gateOpen   gate = iota
	gateShut        // draining: nothing
	gateCreate      // the command EQ is being made: CREATE_EQ, and DESTROY_EQ to undo it
)

func (g gate) admits(op prm.Opcode) bool {
	return g == gateOpen || g == gateCreate && (op == prm.OpCreateEQ || op == prm.OpDestroyEQ)
}

// waiter is a command that waits for a slot; first in, first out in its class.
type waiter struct {
	op    prm.Opcode
	class class
	ready chan grant
}

type grant struct {
	s   *slot
	err error
}

// reapEvery is how often a command that waits for a slot looks whether a
// quarantined one has come back.
const reapEvery = 10 * time.Millisecond

// admit gives the command a slot, waiting for one if need be.
func (c *Conn) admit(ctx context.Context, op prm.Opcode, opMod uint16, start, deadline time.Time) (*slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, late(c.abandoned(ctx, op, opMod, -1, start, deadline))
	}
	cl := classOf(op)
	c.mu.Lock()
	if c.end.Load() != nil {
		c.mu.Unlock()
		return nil, c.endError(op, opMod, -1)
	}
	if c.quarantined != 0 {
		c.unlockAndTell(c.reapLocked())
		c.mu.Lock()
	}
	if !c.queuedLocked(cl) {
		if s := c.grantLocked(op, cl); s != nil {
			c.mu.Unlock()
			return s, nil
		}
	}
	if c.stalledLocked(cl) {
		c.mu.Unlock()
		return nil, stalledError(op, opMod)
	}
	w := &waiter{op: op, class: cl, ready: make(chan grant, 1)}
	c.waiters = append(c.waiters, w)
	if c.end.Load() != nil { // died while the lock was given up
		c.dispatchLocked()
	}
	c.mu.Unlock()
	return c.await(ctx, w, opMod, start, deadline)
}

// await waits until w is granted a slot.
func (c *Conn) await(ctx context.Context, w *waiter, opMod uint16, start, deadline time.Time) (*slot, error) {
	timer := time.NewTimer(min(reapEvery, time.Until(deadline)))
	defer timer.Stop()
	for {
		select {
		case g := <-w.ready:
			return c.granted(g, w.op, opMod)
		case <-ctx.Done():
		case <-timer.C:
			c.reap()
			if left := time.Until(deadline); left > 0 {
				timer.Reset(min(reapEvery, left))
				continue
			}
		}
		c.mu.Lock()
		i := slices.Index(c.waiters, w)
		if i >= 0 {
			c.waiters = slices.Delete(c.waiters, i, i+1)
		}
		rs := c.inFlightLocked()
		c.mu.Unlock()
		if i < 0 { // granted in the meantime
			return c.granted(<-w.ready, w.op, opMod)
		}
		err := c.abandoned(ctx, w.op, opMod, -1, start, deadline)
		var te *TimeoutError
		if errors.As(err, &te) {
			te.InFlight = rs
		}
		return nil, err
	}
}

// late marks the time-out of a command that did not even begin.
func late(err error) error {
	var te *TimeoutError
	if errors.As(err, &te) {
		te.Late = true
	}
	return err
}

func (c *Conn) granted(g grant, op prm.Opcode, opMod uint16) (*slot, error) {
	switch {
	case g.s != nil:
		return g.s, nil
	case g.err != nil:
		return nil, fmt.Errorf("%s: not sent: %w", name(op, opMod), g.err)
	}
	return nil, c.endError(op, opMod, -1)
}

// queuedLocked tells whether someone waits who goes before a new command. Whoever
// the gate keeps out does not.
func (c *Conn) queuedLocked(cl class) bool {
	for _, w := range c.waiters {
		if c.gate.admits(w.op) && (w.class == cl || cl == classThrottled && w.class == classNormal) {
			return true
		}
	}
	return false
}

// grantLocked gives a free slot the command may use, or nil.
func (c *Conn) grantLocked(op prm.Opcode, cl class) *slot {
	if !c.gate.admits(op) {
		return nil
	}
	usable := c.free &^ c.reserved
	if cl == classPage && c.quarantined&c.reserved == 0 {
		// One page command at a time in the slot kept for them. Only when that
		// is lost do they compete with the others.
		usable = c.free
		if c.reserved != 0 {
			usable &= c.reserved
		}
	}
	if usable == 0 || cl == classThrottled && c.throttled >= c.maxThrottled {
		return nil
	}
	s := &c.slots[bits.TrailingZeros32(usable)]
	c.free &^= s.bit()
	c.active++
	if s.throttled = cl == classThrottled; s.throttled {
		c.throttled++
	}
	c.token = c.token%255 + 1 // 1 … 255
	s.rec = Record{Slot: s.index, Token: c.token}
	return s
}

// stalledLocked tells whether every slot of the class is in quarantine.
func (c *Conn) stalledLocked(cl class) bool {
	usable := uint32(1<<len(c.slots) - 1)
	if cl != classPage {
		usable &^= c.reserved
	}
	if usable&^c.quarantined == 0 {
		return true
	}
	if cl != classThrottled {
		return false
	}
	n := 0
	for q := c.quarantined; q != 0; q &= q - 1 {
		if c.slots[bits.TrailingZeros32(q)].throttled {
			n++
		}
	}
	return n >= c.maxThrottled
}

func stalledError(op prm.Opcode, opMod uint16) error {
	return fmt.Errorf("%s: not sent: %w; reset the function", name(op, opMod), ErrQuarantined)
}

// dispatchLocked serves the waiters after something changed.
func (c *Conn) dispatchLocked() {
	if len(c.waiters) == 0 {
		return
	}
	dead := c.end.Load() != nil
	keep := c.waiters[:0]
	for _, w := range c.waiters {
		switch {
		case dead:
			w.ready <- grant{}
			continue
		case c.stalledLocked(w.class):
			w.ready <- grant{err: ErrQuarantined}
			continue
		}
		if s := c.grantLocked(w.op, w.class); s != nil {
			w.ready <- grant{s: s}
			continue
		}
		keep = append(keep, w)
	}
	clear(c.waiters[len(keep):])
	c.waiters = keep
}

// leaveLocked takes a command out of flight.
func (c *Conn) leaveLocked() {
	if c.active--; c.active == 0 {
		for _, ch := range c.idle {
			close(ch)
		}
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
