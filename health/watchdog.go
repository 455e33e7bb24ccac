package health

import (
	"errors"
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
	since  time.Time     // of the first look
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
		c.looked, c.base, c.last, c.since = true, g, g, wall
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

// CommandReport is what the watchdog saw of the command interface.
type CommandReport struct {
	// Ended is why no command can be sent any more; empty while they can.
	Ended string `json:"ended,omitempty"`
	// Answered are all commands that the device has handed back since the interface
	// was opened, those of the bring-up included.
	Answered   uint64    `json:"answered"`
	AnsweredAt time.Time `json:"answered_at,omitzero"`
	// Overdue, Quarantined, InFlight and Waiting are of this moment.
	Overdue     int `json:"overdue"`
	Quarantined int `json:"quarantined"`
	InFlight    int `json:"in_flight"`
	Waiting     int `json:"waiting"`
	// Late, Recovered, LostInterrupts and Foreign are counted since SignalsSince, when
	// the monitor first looked at this interface; zero before it has.
	SignalsSince   time.Time `json:"signals_since,omitzero"`
	Late           uint64    `json:"late"`
	Recovered      uint64    `json:"recovered_by_polling"`
	LostInterrupts uint64    `json:"lost_interrupts"`
	Foreign        uint64    `json:"foreign_replies"`
}

// report is nil without a watchdog. An interface that no look has met yet is asked
// now: it does not wait, and what it answered so far is no nothing.
func (c *commandWatch) report() *CommandReport {
	if c.w == nil {
		return nil
	}
	g, base := c.last, c.base
	if !c.looked {
		g = c.w.Signals()
		base = g
	}
	r := &CommandReport{
		Answered: g.Answered, AnsweredAt: g.AnsweredAt,
		Overdue: g.Overdue, Quarantined: g.Quarantined, InFlight: g.Active, Waiting: g.Waiting, SignalsSince: c.since,
		Late: g.Late - base.Late, Recovered: g.Recovered - base.Recovered,
		LostInterrupts: g.LostInterrupts - base.LostInterrupts, Foreign: g.Foreign - base.Foreign,
	}
	if err := c.w.Err(); err != nil {
		r.Ended = oneLine(err)
		var v *VerdictError
		if errors.As(err, &v) { // the report has it, with its remedy
			r.Ended = fmt.Sprintf("health was %v (%s)", v.Verdict.State, v.Verdict.Condition)
		}
	}
	return r
}
