package tracer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The control goroutine says everything that is to be said to the device: it arms
// events, looks after the ownership, reads clocks and new strings, and ends the
// capture.

func putNative(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

func (c *Capture) firstDB() *trace.DB {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

func (c *Capture) run() {
	defer close(c.done)
	defer c.cancel()
	err := c.guard(c.loop)
	if err := c.guard(func() error { return c.finish(err) }); err != nil {
		c.fail(err)
		// The reader must end in any case.
		c.read.request(requestEnd)
	}
}

// guard makes an error of a panic.
func (c *Capture) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return f()
}

// loop runs until the capture is to end: nil if that was asked for.
func (c *Capture) loop() error {
	owner := time.NewTicker(c.o.OwnerPoll)
	defer owner.Stop()
	var clock <-chan time.Time
	if c.o.ClockPoll > 0 {
		t := time.NewTicker(c.o.ClockPoll)
		defer t.Stop()
		clock = t.C
	}
	events := c.events
	for {
		select {
		case <-c.stopped.Done():
			return nil
		case <-c.read.done:
			return c.read.failure
		case e, ok := <-events:
			if !ok {
				events = nil // the function is being closed; the clock serves as well
				continue
			}
			if err := c.event(e); err != nil {
				return c.stopping(err)
			}
		case late := <-c.read.quiet:
			if c.armed && !late {
				continue
			}
			if err := arm(c.stopped, c.d.Port); err != nil {
				return c.stopping(err)
			}
			c.armed = true
			c.stats.armed.Add(1)
		case <-owner.C:
			if err := c.look("poll"); err != nil {
				return c.stopping(err)
			}
		case <-clock:
			c.sample()
		}
	}
}

// stopping drops an error that comes of the capture's being stopped meanwhile.
func (c *Capture) stopping(err error) error {
	if c.stopped.Err() != nil && !errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// event handles one tracer event.
func (c *Capture) event(e Event) error {
	switch e {
	case prm.TracerEventOwnershipChange:
		c.stats.ownerEvents.Add(1)
		return c.look("event")
	case prm.TracerEventTracesAvailable:
		c.stats.events.Add(1)
		c.armed = false
		poke(c.read.wake)
	case prm.TracerEventStringsDbUpdate:
		return c.restart("firmware told that its strings changed")
	}
	return nil
}

// look asks whether the tracer is still ours, and whether the strings have moved.
func (c *Capture) look(by string) error {
	c.stats.checks.Add(1)
	now, err := c.owner.Check(c.stopped, by)
	if err != nil {
		return err
	}
	was := c.Caps()
	if !now.sameStrings(&was) {
		return c.restart("the strings moved, of which no event told")
	}
	return nil
}

// restart takes new strings: it stops the device, reads them, and begins anew (Linux
// fw_tracer.c). What is in the ring now was written with the old strings; what comes
// until the device stops was written after the update, and is handed out behind the
// new ones. Strings that change meanwhile are read again.
func (c *Capture) restart(why string) error {
	c.o.Logger.Info("reading the strings again", "op", "tracer", "why", why)
	begin := time.Now()
	if !c.read.request(requestDrain) {
		return c.read.failure
	}
	if err := c.off(c.stopped); err != nil {
		return err
	}
	for again := true; again; {
		now, err := c.owner.Check(c.stopped, "read-back")
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.caps = now
		c.mu.Unlock()
		if err := c.readStrings(c.stopped, true); err != nil {
			return err
		}
		again = c.changedAgain()
	}
	db, _ := c.DB()
	c.note("%s: they were read again, for which the device was stopped for %v", why, time.Since(begin).Round(time.Microsecond))
	c.read.feed.add(&capture.Record{Kind: capture.KindStrings, DB: db})
	if !c.read.request(requestDrain) {
		return c.read.failure
	}
	c.buf.Mem.Zero()
	if !c.read.request(requestRestart) {
		return c.read.failure
	}
	c.stats.restarts.Add(1)
	return c.begin(c.stopped)
}

// changedAgain takes the events that came meanwhile.
func (c *Capture) changedAgain() (again bool) {
	for {
		select {
		case e, ok := <-c.events:
			if !ok {
				return again
			}
			again = again || e == prm.TracerEventStringsDbUpdate
		default:
			return again
		}
	}
}

func (c *Capture) note(format string, args ...any) {
	c.read.feed.add(&capture.Record{Kind: capture.KindNote, Note: capture.Note{Time: time.Now(), Text: fmt.Sprintf(format, args...)}})
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = join(c.err, err)
	if c.reason == capture.ReasonStopped {
		c.reason = reasonOf(err)
	}
}

func (c *Capture) endedBy() capture.Reason {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// reasonOf is what ended a capture.
func reasonOf(err error) capture.Reason {
	switch {
	case err == nil:
		return capture.ReasonStopped
	case errors.Is(err, ErrLost):
		return capture.ReasonLost
	case errors.Is(err, vfio.ErrGone), errors.Is(err, cmdif.ErrDead), errors.Is(err, cmdif.ErrQuarantined), cmdif.Unanswered(err):
		return capture.ReasonDevice
	}
	return capture.ReasonFailed
}

// finish ends the capture, whatever became of it: off, read the rest, give the tracer
// back; then the reader goes on for whoever takes the rest in his own time.
func (c *Capture) finish(err error) error {
	if err != nil {
		c.fail(err)
	}
	if err == nil || !errors.Is(err, ErrLost) && reasonOf(err) != capture.ReasonDevice {
		c.sample()
	}
	off := c.stillOurs()
	if off == nil {
		off = c.off(c.ctx)
	}
	if errors.Is(off, ErrLost) { // before it was to end, and nobody had noticed
		c.fail(off)
		off = nil
	}
	c.read.request(requestDrain)
	undone := join(off, c.owner.Release(c.ctx))
	c.mu.Lock()
	c.undone = undone
	c.mu.Unlock()
	c.stop()
	c.read.request(requestEnd)
	return nil
}

// stillOurs looks once more, so that a capture that lost the tracer unnoticed does not
// say that it stopped as asked, and nothing is written to somebody else's tracer. Only
// a loss is an error; what else is wrong, switching off will tell.
func (c *Capture) stillOurs() error {
	if c.owner.State() != OwnerHeld || c.endedBy() == capture.ReasonDevice {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), stopLimit)
	defer cancel()
	if _, err := c.owner.Check(ctx, "read-back"); errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// clockTries is how often the clocks are read for one sample: the quickest counts.
const clockTries = 2

// sample reads the clocks. A sample that cannot be had is left out.
func (c *Capture) sample() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), time.Second)
	defer cancel()
	best := capture.Clock{Error: -1}
	for range clockTries {
		from := time.Now()
		s, err := readCtrl(ctx, c.d.Port)
		to := time.Now()
		if err != nil {
			c.stats.badClocks.Add(1)
			return
		}
		if e := to.Sub(from)/2 + time.Nanosecond; best.Error < 0 || e < best.Error {
			best = c.clockAt(from, to)
			best.Ticks, best.HaveTicks, best.Error = s.now, s.now != 0, e
		}
	}
	if c.d.RealTime != nil {
		best.RealSeconds, best.RealNanoseconds = c.d.RealTime()
	}
	c.read.feed.add(&capture.Record{Kind: capture.KindClock, Clock: best})
	if c.d.Timer == nil {
		return
	}
	best = capture.Clock{TimerError: -1}
	for range clockTries {
		from := time.Now()
		v := c.d.Timer()
		to := time.Now()
		if e := to.Sub(from)/2 + time.Nanosecond; best.TimerError < 0 || e < best.TimerError {
			best = c.clockAt(from, to)
			best.Timer, best.HaveTimer, best.TimerError = v, true, e
		}
	}
	c.read.feed.add(&capture.Record{Kind: capture.KindClock, Clock: best})
}

// clockAt is a sample in the middle of two times.
func (c *Capture) clockAt(from, to time.Time) capture.Clock {
	mid := from.Add(to.Sub(from) / 2)
	return capture.Clock{Host: mid.Round(0), Mono: mid.Sub(c.start)}
}
