package capture_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// TestTimeline: a clock of 156.25 MHz that starts shortly before the wrap and drifts.
func TestTimeline(t *testing.T) {
	const hz, start = 156.25e6, uint64(1<<53 - 400e6)
	host := time.Unix(1700000000, 0)
	ticks := func(at float64) uint64 { // with a drift of 10 ppm that grows
		return (start + uint64(hz*(at+at*at*1e-7))) & trace.TimeMask
	}
	var tl capture.Timeline
	_, _, ok := tl.At(start)
	require.False(t, ok)
	tl.Add(&capture.Clock{Host: host})
	require.Zero(t, tl.Samples(), "without ticks it is no sample")
	for i := range 100 {
		at := float64(i)
		tl.Add(&capture.Clock{Host: host.Add(seconds(at)), Mono: seconds(at), Ticks: ticks(at), HaveTicks: true, Error: 10 * time.Microsecond})
	}
	require.Equal(t, 100, tl.Samples())
	rate, rateErr, ok := tl.Rate()
	require.True(t, ok)
	require.InDelta(t, hz*(1+99e-7), rate, hz*1e-8)
	require.InDelta(t, hz*20e-6/99, rateErr, hz*1e-8)
	for _, at := range []float64{0, 0.25, 2.5, 2.6, 50.5, 98.9, 99} {
		got, err, ok := tl.At(ticks(at))
		require.True(t, ok)
		require.InDelta(t, float64(seconds(at)), float64(got.Sub(host)), 200, "at %v s", at)
		require.Equal(t, 10*time.Microsecond, err)
	}
	// Outside of the samples the error grows.
	got, err, _ := tl.At((ticks(99) + uint64(hz*10)) & trace.TimeMask)
	require.InDelta(t, float64(109*time.Second), float64(got.Sub(host)), 1e6)
	require.Greater(t, err, 11*time.Microsecond)
	got, _, _ = tl.At((start - uint64(hz)) & trace.TimeMask)
	require.InDelta(t, float64(-time.Second), float64(got.Sub(host)), 1e5)
	d, err, ok := tl.Span(hz)
	require.True(t, ok)
	require.InDelta(t, float64(time.Second), float64(d), 1e5)
	require.InDelta(t, 202, float64(err), 5, "20 µs in 99 s")
	// A clock that goes back is no sample.
	tl.Add(&capture.Clock{Host: host, Mono: 200 * time.Second, Ticks: start, HaveTicks: true})
	require.Equal(t, 100, tl.Samples())
}

// TestTimelineOfAMoment: two samples so near that they say nothing about the rate: the
// error of a time is without bound then, and never negative.
func TestTimelineOfAMoment(t *testing.T) {
	var tl capture.Timeline
	add := func(mono time.Duration, ticks uint64) {
		tl.Add(&capture.Clock{Host: time.Unix(1, 0).Add(mono), Mono: mono, Ticks: ticks, HaveTicks: true, Error: 60 * time.Microsecond})
	}
	add(0, 1000)
	add(0, 1500) // at the same time: no sample
	add(100*time.Microsecond, 2000)
	require.Equal(t, 2, tl.Samples())
	hz, err, ok := tl.Rate()
	require.True(t, ok)
	require.InDelta(t, 1e7, hz, 1)
	require.True(t, math.IsInf(err, 1))
	for _, u := range []uint64{0, 999, 2000, 2001, 1 << 50} {
		_, e, ok := tl.Since(u)
		require.True(t, ok)
		if u == 2000 {
			require.Equal(t, 60*time.Microsecond, e)
		} else {
			require.Equal(t, time.Duration(math.MaxInt64), e, "%d", u)
		}
	}
	_, e, _ := tl.Span(10)
	require.Equal(t, time.Duration(math.MaxInt64), e)
	_, e, _ = tl.Span(0)
	require.Zero(t, e)
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

// TestTimelineIsBounded: a day of samples keeps its ends and its rate.
func TestTimelineIsBounded(t *testing.T) {
	var tl capture.Timeline
	host := time.Unix(0, 0)
	for i := range 86400 {
		tl.Add(&capture.Clock{Host: host.Add(time.Duration(i) * time.Second), Mono: time.Duration(i) * time.Second, Ticks: uint64(i) * 1e6, HaveTicks: true})
		require.Less(t, tl.Samples(), 4096)
	}
	require.Greater(t, tl.Samples(), 1000)
	hz, _, _ := tl.Rate()
	require.InDelta(t, 1e6, hz, 1e-3)
	at, _, _ := tl.At(86000 * 1e6)
	require.InDelta(t, 86000, at.Sub(host).Seconds(), 1e-6)
}
