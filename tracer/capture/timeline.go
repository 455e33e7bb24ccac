package capture

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Timeline turns the device's ticks into the host's time, from the clock samples of a
// capture. Between two samples it interpolates, so that a drift of the clocks does not
// add up; outside of them it goes on with the rate of all of them. Ticks are compared
// modulo 2^53: those of one capture lie within half the circle of its samples. It
// keeps at most maxSamples samples, evenly thinned out.
type Timeline struct {
	s      []tick
	start  time.Time // host time of Mono 0
	stride int       // of the samples that come, one in stride is kept
	seen   int
}

// tick is a sample: ticks beyond 53 bits, host time since the start, and how far that
// may be off.
type tick struct {
	u       int64
	at, err time.Duration
}

const maxSamples = 4096

// signed is a − b in serial arithmetic: −2^52 … 2^52−1.
func signed(a, b uint64) int64 {
	d := int64(trace.Elapsed(a, b))
	if d >= 1<<(trace.TimeBits-1) {
		d -= 1 << trace.TimeBits
	}
	return d
}

// Add takes a sample. One without the tracer's clock, and one whose clock has not
// moved on, is left out.
func (t *Timeline) Add(c *Clock) {
	if !c.HaveTicks {
		return
	}
	n := tick{u: int64(c.Ticks), at: c.Mono, err: max(c.Error, 0)}
	if len(t.s) == 0 {
		t.start, t.stride = c.Host.Add(-c.Mono), 1
	} else {
		l := t.s[len(t.s)-1]
		d := signed(c.Ticks, uint64(l.u)&trace.TimeMask)
		if d <= 0 || n.at <= l.at {
			return
		}
		n.u = l.u + d
	}
	if t.seen++; (t.seen-1)%t.stride != 0 {
		return
	}
	if t.s = append(t.s, n); len(t.s) < maxSamples {
		return
	}
	for i := range maxSamples / 2 {
		t.s[i] = t.s[2*i]
	}
	t.s = slices.Delete(t.s, maxSamples/2, len(t.s))
	t.stride *= 2
	t.seen = 0
}

// Samples is the number of samples it goes by.
func (t *Timeline) Samples() int { return len(t.s) }

// Rate is the device's rate in ticks a second, and how far that may be off: the first
// and the last sample bound it. ok is false with less than two samples.
func (t *Timeline) Rate() (hz, err float64, ok bool) {
	if len(t.s) < 2 {
		return 0, 0, false
	}
	a, b := t.s[0], t.s[len(t.s)-1]
	d := (b.at - a.at).Seconds()
	hz = float64(b.u-a.u) / d
	e := (a.err + b.err).Seconds()
	if e >= d {
		return hz, math.Inf(1), true
	}
	return hz, float64(b.u-a.u)/(d-e) - hz, true
}

// At is the host's time of a tick and how far that may be off. ok is false with less
// than two samples.
func (t *Timeline) At(ticks uint64) (at time.Time, err time.Duration, ok bool) {
	mono, err, ok := t.Since(ticks)
	if !ok {
		return time.Time{}, 0, false
	}
	return t.start.Add(mono), err, true
}

// Since is At as the time since the capture began; negative before it.
func (t *Timeline) Since(ticks uint64) (mono, err time.Duration, ok bool) {
	hz, hzErr, ok := t.Rate()
	if !ok {
		return 0, 0, false
	}
	l := t.s[len(t.s)-1]
	u := l.u + signed(ticks, uint64(l.u)&trace.TimeMask)
	i := sort.Search(len(t.s), func(i int) bool { return t.s[i].u > u })
	if i == 0 || i == len(t.s) {
		edge := t.s[max(i-1, 0)]
		sec := float64(u-edge.u) / hz
		return edge.at + seconds(sec), wider(edge.err, math.Abs(sec)*hzErr/hz), true
	}
	a, b := t.s[i-1], t.s[i]
	f := float64(u-a.u) / float64(b.u-a.u)
	return a.at + time.Duration(f*float64(b.at-a.at)), max(a.err, b.err), true
}

// Span is how long so many ticks take, and how far that may be off. ok is false with
// less than two samples.
func (t *Timeline) Span(ticks float64) (d, err time.Duration, ok bool) {
	hz, hzErr, ok := t.Rate()
	if !ok {
		return 0, 0, false
	}
	return seconds(ticks / hz), wider(0, math.Abs(ticks)/hz*hzErr/hz), true
}

// wider is an error with some seconds more, none for the product of no time and a rate
// that is not known at all.
func wider(err time.Duration, s float64) time.Duration {
	if math.IsNaN(s) {
		return err
	}
	more := seconds(s)
	if more > math.MaxInt64-err {
		return math.MaxInt64
	}
	return err + more
}

// seconds is a float of seconds as a duration, at the bounds where it does not fit.
func seconds(s float64) time.Duration {
	switch ns := s * 1e9; {
	case ns >= math.MaxInt64:
		return math.MaxInt64
	case ns <= math.MinInt64:
		return math.MinInt64
	default:
		return time.Duration(ns)
	}
}
