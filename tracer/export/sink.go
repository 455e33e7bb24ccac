package export

import (
	"bufio"
	"io"
	"math"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Sink takes a trace in the order in which it was written, for one goroutine. What it
// is given is valid during the call only. Close writes the end, not more: the
// io.Writer below stays the caller's.
type Sink interface {
	Message(m *trace.Message) error
	Gap(g *capture.Gap) error
	Close(e *End) error
}

// End is what is known when everything was decoded.
type End struct {
	Counters trace.Counters
	// Of a capture: its gaps, the blocks that they lack, and whether there may be more.
	Gaps, Missing uint64
	AtLeast       bool
	// Stopped says where and why reading stopped before the end; empty if it did not.
	Stopped string
}

// Info is what a Sink knows of the trace before its first message.
type Info struct {
	Source string // file
	// Meta is what a capture says of its device; nil for other traces.
	Meta *capture.Meta
	// Timeline has the clock samples; Hz is the clock's rate where there are none, and
	// 0 if that is not known either.
	Timeline *capture.Timeline
	Hz       float64
	// Base is the tick at which relative times begin.
	Base uint64
}

// Device is the name of the function; empty if it is not known.
func (i *Info) Device() string {
	if i.Meta == nil {
		return ""
	}
	return i.Meta.Device
}

// At is the host's time of a tick, and how far it may be off. ok is false without
// clock samples.
func (i *Info) At(ticks uint64) (at time.Time, err time.Duration, ok bool) {
	if i.Timeline == nil {
		return time.Time{}, 0, false
	}
	at, err, ok = i.Timeline.At(ticks)
	return at, err, ok && err != math.MaxInt64
}

// Nanoseconds is the time of a tick since Base, in ns. Without any rate a tick is
// taken for a nanosecond: see Calibrated.
func (i *Info) Nanoseconds(ticks uint64) float64 {
	d := float64(signed(ticks, i.Base))
	if i.Timeline != nil && i.Timeline.Samples() > 1 {
		t, _, _ := i.Timeline.Since(ticks)
		b, _, _ := i.Timeline.Since(i.Base)
		return float64(t - b)
	}
	if i.Hz > 0 {
		return d / i.Hz * 1e9
	}
	return d
}

// Calibrated says what Nanoseconds goes by: "clock samples", "given rate" or "ticks".
func (i *Info) Calibrated() string {
	switch {
	case i.Timeline != nil && i.Timeline.Samples() > 1:
		return "clock samples"
	case i.Hz > 0:
		return "given rate"
	}
	return "ticks"
}

// signed is a − b in serial arithmetic.
func signed(a, b uint64) int64 {
	d := int64(trace.Elapsed(a, b))
	if d >= 1<<(trace.TimeBits-1) {
		d -= 1 << trace.TimeBits
	}
	return d
}

// lines is the part that text forms share: a buffer for a line, used again.
type lines struct {
	w   *bufio.Writer
	buf []byte
}

func newLines(w io.Writer) lines { return lines{w: bufio.NewWriterSize(w, 64<<10)} }

// put writes the line in buf, which must not have its newline yet.
func (l *lines) put(b []byte) error {
	l.buf = append(b, '\n')
	_, err := l.w.Write(l.buf)
	return err
}
