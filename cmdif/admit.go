package cmdif

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// class says which slots a command may use.
type class uint8

const (
	classNormal class = iota
	classThrottled
	classPage
	classes
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

// waiter is a command that waits for a slot.
type waiter struct {
	op     prm.Opcode
	class  class
	ticket uint64     // the order in which commands came
	ready  chan grant // one answer, unless the waiter leaves the line itself
	timer  *time.Timer

	prev, next *waiter
	queued     bool // in its line
}

type grant struct {
	s   *slot
	err error
}

// line is the waiters of a class, the first in front.
type line struct{ first, last *waiter }

func (l *line) push(w *waiter) {
	w.prev, w.next, w.queued = l.last, nil, true
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
}

func (l *line) remove(w *waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
}

// admit gives the command a slot, waiting for one if need be. Whoever may have a
// slot that becomes free gets it at once, under the same lock and in the order of
// arrival (dispatchLocked): so a slot that is free here is one that nobody who came
// earlier may use, and taking it overtakes no one.
func (c *Conn) admit(ctx context.Context, op prm.Opcode, opMod uint16, start, deadline time.Time) (*slot, error) {
	if ctx.Err() != nil {
		return nil, late(c.abandoned(ctx, op, opMod, -1, start, deadline))
	}
	cl := classOf(op)
	c.mu.Lock()
	if c.quarantined != 0 {
		c.unlockAndTell(c.reapLocked())
		c.mu.Lock()
	}
	// Now, and not before the lock was given up in between: the Conn may have been
	// closed meanwhile, and then there is no queue any more.
	if c.end.Load() != nil {
		c.mu.Unlock()
		return nil, c.endError(op, opMod, -1)
	}
	if c.gate.admits(op) {
		if s := c.grantLocked(cl); s != nil {
			c.mu.Unlock()
			return s, nil
		}
	}
	if c.stalledLocked(cl) {
		c.mu.Unlock()
		return nil, stalledError(op, opMod)
	}
	w := c.spare.first
	if w == nil {
		w = &waiter{ready: make(chan grant, 1)}
	} else {
		c.spare.remove(w)
		c.spares--
	}
	c.tickets++
	w.op, w.class, w.ticket = op, cl, c.tickets
	c.lines[cl].push(w)
	c.waiting++
	c.watchLocked()
	c.mu.Unlock()
	return c.await(ctx, w, opMod, start, deadline)
}

// await waits until w is granted a slot.
func (c *Conn) await(ctx context.Context, w *waiter, opMod uint16, start, deadline time.Time) (*slot, error) {
	op := w.op
	if w.timer == nil {
		w.timer = time.NewTimer(time.Until(deadline))
	} else {
		w.timer.Reset(time.Until(deadline))
	}
	var g grant
	answered := true
	select {
	case g = <-w.ready:
	case <-ctx.Done():
		answered = false
	case <-w.timer.C:
		answered = false
	}
	w.timer.Stop()
	var rs []Record
	if !answered {
		c.mu.Lock()
		if answered = !w.queued; !answered {
			c.leaveLineLocked(w)
			c.spareLocked(w)
			rs = c.inFlightLocked()
		}
		c.mu.Unlock()
		if answered { // in the meantime
			g = <-w.ready
		}
	}
	switch {
	case g.err != nil:
		return nil, fmt.Errorf("%s: not sent: %w", name(op, opMod), g.err)
	case answered && g.s == nil:
		return nil, c.endError(op, opMod, -1)
	case g.s != nil && ctx.Err() == nil && time.Now().Before(deadline):
		return g.s, nil
	case g.s != nil:
		// The slot came as the time was over: the next one may have it.
		c.withdraw(g.s)
		rs = c.InFlight()
	}
	err := c.abandoned(ctx, op, opMod, -1, start, deadline)
	var te *TimeoutError
	if errors.As(err, &te) {
		te.InFlight = rs
	}
	return nil, err
}

// late marks the time-out of a command that did not even begin.
func late(err error) error {
	var te *TimeoutError
	if errors.As(err, &te) {
		te.Late = true
	}
	return err
}

// leaveLineLocked takes a waiter out of its line.
func (c *Conn) leaveLineLocked(w *waiter) {
	c.lines[w.class].remove(w)
	c.waiting--
}

// mostSpares is how many waiters are kept for those to come.
const mostSpares = 1024

// spareLocked keeps a waiter that nobody needs any more.
func (c *Conn) spareLocked(w *waiter) {
	if c.spares < mostSpares {
		c.spare.push(w)
		c.spares++
	}
}

// usableLocked are the free slots a command of the class may have now.
func (c *Conn) usableLocked(cl class) uint32 {
	switch {
	case cl == classThrottled && c.throttled >= c.maxThrottled:
		return 0
	case cl != classPage:
		return c.free &^ c.reserved
	case c.reserved == 0 || c.quarantined&c.reserved != 0:
		// Without a slot of their own, page commands compete with the others.
		return c.free
	}
	return c.free & c.reserved // one at a time
}

// grantLocked gives a free slot a command of the class may use, or nil.
func (c *Conn) grantLocked(cl class) *slot {
	usable := c.usableLocked(cl)
	if usable == 0 {
		return nil
	}
	s := &c.slots[bits.TrailingZeros32(usable)]
	c.free &^= s.bit()
	c.active++
	if s.throttled = cl == classThrottled; s.throttled {
		c.throttled++
	}
	s.rec = Record{Slot: s.index, Token: c.tokenLocked(s.rec.Token)}
	return s
}

// tokenLocked gives the token of a command whose slot had last before: 1 … 255,
// neither that one nor the token of any command in flight or given up. So whatever a
// device mixes up, an answer with the right token is that of this command.
func (c *Conn) tokenLocked(last uint8) uint8 {
	for {
		c.token = c.token%255 + 1
		if t := c.token; t != last && c.tokens[t>>6]>>(t&63)&1 == 0 {
			c.tokens[t>>6] |= 1 << (t & 63)
			return t
		}
	}
}

// stalledLocked tells whether every slot of the class is held by a command that
// the device has not completed in all the time a command may take. A command that
// was given up earlier is expected to come back: its slot is worth waiting for.
func (c *Conn) stalledLocked(cl class) bool {
	usable := c.all
	if cl != classPage {
		usable &^= c.reserved
	}
	if usable&^c.quarantined != 0 && (cl != classThrottled || c.throttled < c.maxThrottled) {
		return false
	}
	now := time.Now()
	overdue, throttled := uint32(0), 0
	for q := c.quarantined; q != 0; q &= q - 1 {
		s := &c.slots[bits.TrailingZeros32(q)]
		if now.Before(s.rec.Posted.Add(c.timeout)) || now.Before(s.deadline) {
			continue
		}
		overdue |= s.bit()
		if s.throttled {
			throttled++
		}
	}
	return usable&^overdue == 0 || cl == classThrottled && throttled >= c.maxThrottled
}

func stalledError(op prm.Opcode, opMod uint16) error {
	return fmt.Errorf("%s: not sent: %w; reset the function", name(op, opMod), ErrQuarantined)
}

// dispatchLocked serves the waiters after something changed: of those that may have
// a free slot now, the one that came first. Nobody is overtaken by a later command of
// its class; by one of another class only while its own is at its limit.
func (c *Conn) dispatchLocked() {
	if c.waiting == 0 {
		return
	}
	dead := c.end.Load() != nil
	for cl := range classes {
		switch {
		case dead:
			c.dismissLocked(cl, nil)
		case c.lines[cl].first != nil && c.stalledLocked(cl):
			c.dismissLocked(cl, ErrQuarantined)
		}
	}
	for {
		var next *waiter
		for cl := range classes {
			w := c.lines[cl].first
			for w != nil && !c.gate.admits(w.op) {
				w = w.next
			}
			if w != nil && (next == nil || w.ticket < next.ticket) && c.usableLocked(cl) != 0 {
				next = w
			}
		}
		if next == nil {
			return
		}
		c.leaveLineLocked(next)
		s := c.grantLocked(next.class)
		s.waiter = next
		next.ready <- grant{s: s}
	}
}

// dismissLocked ends the waiting of a whole class.
func (c *Conn) dismissLocked(cl class, err error) {
	for w := c.lines[cl].first; w != nil; w = c.lines[cl].first {
		c.leaveLineLocked(w)
		w.ready <- grant{err: err}
	}
}

// reapEvery is how often somebody looks whether a quarantined slot has come back,
// while commands wait for one.
const reapEvery = 10 * time.Millisecond

// watchLocked sees to it that somebody looks, for all waiters together.
func (c *Conn) watchLocked() {
	if c.watched || c.waiting == 0 || c.quarantined == 0 || c.end.Load() != nil {
		return
	}
	c.watched = true
	c.watchers.Add(1)
	if c.watcher == nil {
		c.watcher = time.AfterFunc(reapEvery, c.look)
	} else {
		c.watcher.Reset(reapEvery)
	}
}

// look takes back what has come back, and finds out that nothing ever will.
func (c *Conn) look() {
	defer c.watchers.Done()
	c.mu.Lock()
	r := c.reapLocked()
	c.dispatchLocked() // time has passed for the others
	c.watched = false
	c.watchLocked()
	alone := c.active == 0 && c.end.Load() == nil
	c.unlockAndTell(r)
	if alone { // no command in flight asks
		c.checkAlive()
	}
}

// endWatchLocked ends the looking. Wait for c.watchers without the lock.
func (c *Conn) endWatchLocked() {
	if c.watched && c.watcher.Stop() {
		c.watched = false
		c.watchers.Done()
	}
}
