package cmdif

import (
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Signals are the numbers by which a watchdog judges a command interface. The
// counts run since Open.
type Signals struct {
	// Answered counts the commands the device handed back, late ones included;
	// AnsweredAt is when it did so last, zero if never.
	Answered   uint64
	AnsweredAt time.Time

	Late           uint64 // completed after they were given up
	Recovered      uint64 // completions found by polling in event mode
	LostInterrupts uint64 // of these, the event was in the EQ: nobody woke up
	Foreign        uint64 // entries handed back with another command's token

	Active      int // commands in flight
	Quarantined int // slots whose command was given up
	Waiting     int // callers waiting for a slot

	// Overdue counts the commands, waited for or given up, that the device still
	// holds past their deadline. The rest is about the one of them that was sent
	// last.
	Overdue         int
	OverdueSlot     int
	OverdueOpcode   prm.Opcode
	OverduePosted   time.Time
	OverdueDeadline time.Time
}

// Signals takes a snapshot. It neither waits for the device nor allocates, unless
// a command that was given up has completed: that is taken back, so OnLate may run.
func (c *Conn) Signals() Signals {
	now := time.Now()
	c.reap()
	c.mu.Lock()
	defer c.mu.Unlock()
	g := Signals{
		Answered: c.answered, AnsweredAt: c.answeredAt, Late: c.late,
		Recovered: c.recovered.Load(), LostInterrupts: c.lost.Load(), Foreign: c.foreign,
		Active: c.active, Quarantined: bits.OnesCount32(c.quarantined), Waiting: c.waiting,
	}
	for i := range c.slots {
		// A slot that is busy stays so under the lock; a quarantined one is ours, and
		// what was never completed is still told after Close.
		s := &c.slots[i]
		if s.state.Load() == slotFree && c.quarantined>>i&1 == 0 || s.deadline.After(now) {
			continue
		}
		g.Overdue++
		if g.Overdue == 1 || s.rec.Posted.After(g.OverduePosted) {
			g.OverdueSlot, g.OverdueOpcode = s.index, s.rec.Opcode
			g.OverduePosted, g.OverdueDeadline = s.rec.Posted, s.deadline
		}
	}
	return g
}

// answeredLocked notes that the device handed r back.
func (c *Conn) answeredLocked(r *Record) {
	c.answered++
	if at := r.Posted.Add(r.Latency); at.After(c.answeredAt) {
		c.answeredAt = at
	}
}
