package health

import (
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
)

// Watchdog is the command interface as the monitor sees it: *cmdif.Conn. Both
// methods must return at once, whatever the device does.
type Watchdog interface {
	Signals() cmdif.Signals
	// Err is why no command can be sent any more, or nil.
	Err() error
}

var _ Watchdog = (*cmdif.Conn)(nil)

// commandWatch turns the signals of the command interface into conditions. Counts
// from before the monitor started are not held against the device.
type commandWatch struct {
	w      Watchdog
	looked bool
	base   cmdif.Signals // at the first look
	last   cmdif.Signals
	// When the last signal of a kind was seen; they count for a while (hold).
	late, lost, foreign seenAt
	ended               bool // the interface was closed or declared dead: no signal
	dead                bool
}

// seenAt is a moment, if there was one.
type seenAt struct {
	at  time.Duration
	set bool
}

func (s *seenAt) mark(now time.Duration) { s.at, s.set = now, true }

func (s *seenAt) holds(now, hold time.Duration) bool { return s.set && now-s.at < hold }

// look takes the signals of this moment: now is the monitor's time, wall the clock
// of the signals.
func (c *commandWatch) look(now time.Duration, wall time.Time, stall time.Duration) {
	if c.w == nil {
		return
	}
	c.ended = c.w.Err() != nil
	c.dead = false
	if c.ended {
		return
	}
	g := c.w.Signals()
	if !c.looked {
		c.looked, c.base, c.last = true, g, g
	}
	if g.Late > c.last.Late {
		c.late.mark(now)
	}
	if g.Recovered > c.last.Recovered || g.LostInterrupts > c.last.LostInterrupts {
		c.lost.mark(now)
	}
	if g.Foreign > c.last.Foreign {
		c.foreign.mark(now)
	}
	c.last = g
	// Dead: the device holds a command past its deadline, has answered none since
	// that one was sent, and the deadline was not just an impatient caller's.
	c.dead = g.Overdue > 0 && g.OverduePosted.After(g.AnsweredAt) && wall.Sub(g.OverduePosted) >= stall
}

// condition is what the commands say, OK for nothing.
func (c *commandWatch) condition(now, hold time.Duration) Condition {
	switch {
	case c.w == nil || c.ended:
		return OK
	case c.dead:
		return CommandsDead
	case c.last.Overdue > 0:
		return OverdueCommands
	case c.late.holds(now, hold):
		return LateCompletions
	case c.lost.holds(now, hold):
		return LostInterrupts
	case c.foreign.holds(now, hold):
		return ForeignReplies
	}
	return OK
}

// overdue says which command is held.
func (c *commandWatch) overdue(wall time.Time) string {
	g := &c.last
	return fmt.Sprintf("%v in slot %d was sent %v ago, its deadline was %v ago (%d overdue, %d given up, %d in flight, %d waiting for a slot)",
		g.OverdueOpcode, g.OverdueSlot, wall.Sub(g.OverduePosted).Round(time.Millisecond),
		wall.Sub(g.OverdueDeadline).Round(time.Millisecond), g.Overdue, g.Quarantined, g.Active, g.Waiting)
}

// CommandReport is what the watchdog saw of the command interface. The counts of
// signals run since the monitor started.
type CommandReport struct {
	// Ended is why no command can be sent any more; empty while they can.
	Ended          string    `json:"ended,omitempty"`
	Answered       uint64    `json:"answered"`
	AnsweredAt     time.Time `json:"answered_at,omitzero"`
	Overdue        int       `json:"overdue"`
	Quarantined    int       `json:"quarantined"`
	InFlight       int       `json:"in_flight"`
	Waiting        int       `json:"waiting"`
	Late           uint64    `json:"late"`
	Recovered      uint64    `json:"recovered_by_polling"`
	LostInterrupts uint64    `json:"lost_interrupts"`
	Foreign        uint64    `json:"foreign_replies"`
}

// report is nil without a watchdog.
func (c *commandWatch) report() *CommandReport {
	if c.w == nil {
		return nil
	}
	r := &CommandReport{
		Answered: c.last.Answered - c.base.Answered, AnsweredAt: c.last.AnsweredAt,
		Overdue: c.last.Overdue, Quarantined: c.last.Quarantined, InFlight: c.last.Active, Waiting: c.last.Waiting,
		Late: c.last.Late - c.base.Late, Recovered: c.last.Recovered - c.base.Recovered,
		LostInterrupts: c.last.LostInterrupts - c.base.LostInterrupts, Foreign: c.last.Foreign - c.base.Foreign,
	}
	if err := c.w.Err(); err != nil {
		r.Ended = err.Error()
	}
	return r
}
