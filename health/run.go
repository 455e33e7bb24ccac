package health

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// EventKind says what an Event is about.
type EventKind string

// Kinds of events.
const (
	// EventVerdict: the verdict changed.
	EventVerdict EventKind = "verdict"
	// EventSyndrome: the health buffer shows another error than before, or none.
	EventSyndrome EventKind = "syndrome"
	// EventGap: nothing was looked at for a stall limit or longer: the process or
	// the machine stood still. The stall clock was restarted.
	EventGap EventKind = "gap"
	// EventClock: the wall clock was set, or the machine slept. No judgement is
	// made by the wall clock.
	EventClock EventKind = "clock-step"
)

// Event is something that happened while watching.
type Event struct {
	// Seq counts events from 1; a number that is missing was dropped because the
	// channel was full.
	Seq      uint64    `json:"seq"`
	Kind     EventKind `json:"kind"`
	At       time.Time `json:"at"`
	Previous State     `json:"previous"`
	Verdict  Verdict   `json:"verdict"`
	Sample   Sample    `json:"sample"`
	// Buffer is the health buffer if it shows an error.
	Buffer *Buffer `json:"buffer,omitempty"`
	Detail string  `json:"detail,omitempty"`
}

// Events is the channel of events. It is bounded: an event that finds no room is
// dropped and counted. It is closed when the monitor has ended.
func (m *Monitor) Events() <-chan Event { return m.events }

// clockStep is how far the wall clock may go off the monotonic one between two
// samples before it is called a step.
const clockStep = time.Second

// run is the monitor's goroutine.
func (m *Monitor) run(ctx context.Context) {
	start := m.mono()
	next := start
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-m.control:
			f()
			continue
		case <-t.C:
		}
		var due time.Duration
		if !m.recovering() {
			due = m.tick()
		}
		now := m.mono()
		// The grid of periods, without the looks that were missed.
		if next += m.o.Period; next <= now {
			next = now - (now-start)%m.o.Period + m.o.Period
		}
		wait := next - now
		if due > now && due < next {
			// The end of the stall limit lies between two looks: look then, too.
			wait, next = due-now, next-m.o.Period
		}
		t.Reset(wait)
	}
}

// tick takes one sample and judges it. It answers when the stall limit ends, 0 for
// not. In a healthy period it reads four dwords and allocates nothing.
func (m *Monitor) tick() (due time.Duration) {
	var s Sample
	var l look
	l.s = &s
	m.smp.Read(&s)
	if s.Ones() > 0 {
		// Look again before believing it: a read may have failed on the bus.
		m.smp.Read(&s)
		l.glitch = s.Ones() == 0
	}
	s.At, s.Elapsed = m.wall(), m.mono()
	if s.Ones() == 0 && s.Syndrome() != 0 {
		l.buf = new(Buffer)
		m.smp.ReadBuffer(l.buf)
	}
	m.mu.Lock()
	v, changed := m.judgeLocked(l)
	due = m.j.due()
	m.mu.Unlock()
	if changed && m.o.OnVerdict != nil {
		m.o.OnVerdict(v)
	}
	if m.o.OnSample != nil {
		m.o.OnSample(s, v)
	}
	return due
}

func (m *Monitor) judgeLocked(l look) (Verdict, bool) {
	j, s := m.j, l.s
	gaps, had, old, oldMoving := j.gaps, j.hasBuffer, j.buffer, j.moving
	overdue := j.cmds.last.Overdue
	j.cmds.look(s.Elapsed, s.At, j.lim.stall)
	changed := j.step(l)
	was := m.last
	m.last = *s
	m.history.add(*s)
	if j.cmds.last.Overdue > overdue {
		select { // is it this command, or all?
		case m.kick <- struct{}{}:
		default:
		}
	}
	if j.gaps != gaps {
		m.offerLocked(EventGap, m.v.State, fmt.Sprintf("no look for %v", (s.Elapsed-was.Elapsed).Round(time.Millisecond)))
	}
	if skew := s.At.Round(0).Sub(m.started.Round(0)) - s.Elapsed; m.sampled && (skew-m.skew).Abs() >= clockStep {
		m.offerLocked(EventClock, m.v.State, fmt.Sprintf("the wall clock went %v off the monotonic one", (skew-m.skew).Round(time.Millisecond)))
		m.skew = skew
	} else if !m.sampled {
		m.skew, m.sampled = skew, true
	}
	if changed {
		m.changeLocked(s.At)
	}
	other := had != j.hasBuffer || had && j.buffer.differs(&old)
	if other {
		detail := "cleared"
		if j.hasBuffer {
			detail = j.buffer.sentence()
		}
		m.offerLocked(EventSyndrome, m.v.State, detail)
	}
	if !changed && j.hasBuffer && (other || j.moving != oldMoving) {
		// The verdict stands; what it says of the buffer and its age does not.
		m.v.Explanation = j.explain(m.smp.Err(), s, s.At)
	}
	if !m.isKnown && (j.moving || m.v.State >= Stalled) {
		m.isKnown = true
		close(m.known)
	}
	return m.v, changed
}

// changeLocked makes the judge's condition the verdict.
func (m *Monitor) changeLocked(at time.Time) {
	was := m.v
	if m.j.cond == CounterStopped {
		// Kept as evidence: it explains nothing.
		m.evidence = new(Buffer)
		m.smp.ReadBuffer(m.evidence)
	}
	m.v = verdictOf(m.j.cond, m.j.explain(m.smp.Err(), &m.last, at), at)
	m.verdicts.add(m.v)
	m.logLocked(was)
	m.offerLocked(EventVerdict, was.State, "")
}

// offerLocked puts an event on the channel if it has room.
func (m *Monitor) offerLocked(k EventKind, previous State, detail string) {
	m.seq++
	e := Event{Seq: m.seq, Kind: k, At: m.last.At, Previous: previous, Verdict: m.v, Sample: m.last, Detail: detail}
	if m.j.hasBuffer {
		b := m.j.buffer
		e.Buffer = &b
	}
	select {
	case m.events <- e:
	default:
		m.dropped++
	}
}

func (m *Monitor) logLocked(was Verdict) {
	level := slog.LevelInfo
	switch m.v.State {
	case Degraded, Recovering:
		level = slog.LevelWarn
	case Stalled, Fatal, Gone:
		level = slog.LevelError
	}
	m.o.Logger.Log(context.Background(), level, "health", "op", "monitor",
		"state", m.v.State.String(), "condition", string(m.v.Condition), "previous", was.State.String(),
		"counter", m.last.Counter(), "synd", uint8(m.last.Syndrome()), "explanation", m.v.Explanation)
}

// Verdict is what holds now.
func (m *Monitor) Verdict() Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.v
}

// Wait waits until it is known how the function is: its counter has moved, the
// stall limit is over, or it is lost. Errors are the cause of ctx, or that the
// monitor ended before.
func (m *Monitor) Wait(ctx context.Context) (Verdict, error) {
	select {
	case <-m.known:
		return m.Verdict(), nil
	default:
	}
	select {
	case <-m.known:
		return m.Verdict(), nil
	case <-ctx.Done():
		return m.Verdict(), fmt.Errorf("wait for a verdict on health: %w", context.Cause(ctx))
	case <-m.done:
		return m.Verdict(), &OptionError{"Wait", "the monitor has ended without a verdict"}
	}
}
