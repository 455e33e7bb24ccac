package analyze_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

var (
	fmtA = trace.NewFormat([]byte("alpha %u\n"))
	fmtB = trace.NewFormat([]byte("beta"))
)

func message(f *trace.Format, id uint8, t uint64) *trace.Message {
	return &trace.Message{Time: t & trace.TimeMask, EventID: id, Format: f}
}

func group(t *testing.T, gs []analyze.Group, name string) analyze.Group {
	t.Helper()
	for _, g := range gs {
		if g.Name == name {
			return g
		}
	}
	require.Fail(t, "no group", name)
	return analyze.Group{}
}

// TestStats counts a trace that is known, across the wrap of the clock, with a gap and
// a message out of order.
func TestStats(t *testing.T) {
	s := analyze.New(analyze.Options{})
	base := uint64(1<<53 - 500)
	for i := range uint64(11) { // 0 … 1000: wraps in the middle
		s.Message(message(fmtA, 0x10, base+100*i))
	}
	s.Message(message(fmtB, 0x11, base+1010))
	s.Message(message(fmtA, 0x10, base+950)) // earlier than the one before
	b := make([]byte, trace.BlockSize)
	closed := uint64(trace.TimestampEvent((base+1100)&trace.TimeMask, 0))
	for i := range 8 {
		b[trace.BlockSize-8+i] = byte(closed >> (56 - 8*i))
	}
	s.Block(b) // watched until 1100
	s.Record(&capture.Record{Kind: capture.KindGap, Gap: capture.Gap{Blocks: 7, AtLeast: true}})
	s.Message(message(fmtA, 0x10, base+5000))
	s.Message(message(fmtA, 0x12, base+5400))
	lost := message(nil, 0x12, base+5500)
	lost.Kind, lost.Lost = trace.KindOrphan, true
	s.Message(lost)

	r := s.Result()
	require.EqualValues(t, 16, r.Messages)
	require.Equal(t, base, r.First)
	require.Equal(t, (base+5500)&trace.TimeMask, r.Last)
	require.EqualValues(t, 1100+500, r.Observed, "the gap is not watched")
	require.EqualValues(t, 1, r.Gaps)
	require.EqualValues(t, 7, r.Missing)
	require.True(t, r.AtLeast)
	require.Nil(t, r.Clock)

	a := group(t, r.Formats, "alpha %u")
	require.EqualValues(t, 14, a.Count)
	require.EqualValues(t, 1, a.Reordered)
	require.EqualValues(t, 11, a.Intervals, "10 before the gap, none across it, 1 after")
	require.True(t, a.Exact)
	require.Equal(t, analyze.Spread{Min: 100, Mean: 1400.0 / 11, Median: 100, P99: 400, Max: 400}, a.Ticks)
	require.Equal(t, []int{0x10, 0x12}, a.IDs)
	require.InDelta(t, 14e6/1600, a.PerMtick, 1e-9)
	require.Zero(t, a.Rate)
	require.Nil(t, a.Time)
	o := group(t, r.Formats, analyze.NameOrphan)
	require.Equal(t, "orphan", o.Kind)
	require.EqualValues(t, 1, o.Lost)
	require.Equal(t, "alpha %u", r.Formats[0].Name, "the most frequent first")

	require.Len(t, r.IDs, 3)
	require.Equal(t, "0x10", r.IDs[0].Name)
	require.Equal(t, 0x10, *r.IDs[0].EventID)
	require.EqualValues(t, 13, r.IDs[0].Count)
	require.EqualValues(t, 16, r.All.Count)
}

// TestClock: two samples calibrate, and their error is that of every time.
func TestClock(t *testing.T) {
	s := analyze.New(analyze.Options{Hz: 1})
	for i := range uint64(101) {
		s.Message(message(fmtA, 1, 1000*i))
	}
	require.Equal(t, &analyze.Clock{Hz: 1}, s.Result().Clock, "as given")
	for i, at := range []time.Duration{0, 10 * time.Second} {
		s.Record(&capture.Record{Kind: capture.KindClock, Clock: capture.Clock{
			Host: time.Unix(100, 0).Add(at), Mono: at, Ticks: uint64(i) * 1e9, HaveTicks: true, Error: 50 * time.Microsecond}})
	}
	r := s.Result()
	require.InDelta(t, 1e8, r.Clock.Hz, 1)
	require.InEpsilon(t, 1e-5, r.Clock.Relative(), 1e-3, "100 µs in 10 s")
	require.Equal(t, 2, r.Clock.Samples)
	g := r.Formats[0]
	require.InEpsilon(t, 10000, g.Time.Median, 1e-9, "1000 ticks of 10 ns")
	require.InEpsilon(t, 0.1, g.TimeError.Median, 1e-3)
	require.InEpsilon(t, 101e3, g.Rate, 1e-3)
	require.InEpsilon(t, 1.01, g.RateError, 1e-2)
}

// TestGroupsAreBounded: a damaged trace may have any number of formats.
func TestGroupsAreBounded(t *testing.T) {
	s := analyze.New(analyze.Options{MaxFormats: 10})
	for i := range uint64(1000) {
		s.Message(message(trace.NewFormat(fmt.Appendf(nil, "format %d", i)), 1, i))
	}
	r := s.Result()
	require.Len(t, r.Formats, 11)
	require.EqualValues(t, 990, group(t, r.Formats, analyze.NameOther).Count)
	require.EqualValues(t, 1000, r.All.Count)
	require.NotPanics(t, func() {
		f := s.Finder()
		f.Message(message(fmtA, 1, 5000))
		f.Findings()
	})
}

func TestNoAllocationForAMessage(t *testing.T) {
	s := analyze.New(analyze.Options{})
	n := uint64(0)
	for range 3 * analyze.ExactIntervals {
		n++
		s.Message(message(fmtA, 1, 100*n))
	}
	m := message(fmtA, 1, 0)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		n++
		m.Time = 100 * n
		s.Message(m)
	}))
	f := s.Finder()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		n++
		m.Time = 100 * n
		f.Message(m)
	}))
}

// twoPasses runs both passes over the times.
func twoPasses(times []uint64) *analyze.Findings {
	s := analyze.New(analyze.Options{})
	for _, t := range times {
		s.Message(message(fmtA, 1, t))
	}
	f := s.Finder()
	for _, t := range times {
		f.Message(message(fmtA, 1, t))
	}
	return f.Findings()
}

// byChance are times of independent messages.
func byChance(seed uint64, n int, mean float64) []uint64 {
	rng := rand.New(rand.NewPCG(seed, 9))
	var l []uint64
	at := 0.0
	for range n {
		at += rng.ExpFloat64() * mean
		l = append(l, uint64(at))
	}
	return l
}

// TestChanceIsNotFound: messages that come by chance have no bursts and no silences,
// whatever their number; of outliers they have about the share that the manual says.
func TestChanceIsNotFound(t *testing.T) {
	var outliers, intervals float64
	for seed := range uint64(100) {
		times := byChance(seed, 50+int(seed)*100, 1e5)
		f := twoPasses(times)
		require.Zero(t, f.Bursts, "seed %d: %v", seed, f.List)
		require.Zero(t, f.Silences, "seed %d: %v", seed, f.List)
		require.Equal(t, 2, f.Judged)
		outliers += float64(f.Outliers) / 2 // the format, and all messages
		intervals += float64(len(times) - 1)
	}
	require.InEpsilon(t, 0.009, outliers/intervals, 0.1)
}

// TestPlanted: a burst and a silence that were put in are found where they are.
func TestPlanted(t *testing.T) {
	var times []uint64
	at := uint64(1<<53 - 5e6)
	start := at
	put := func(n int, every uint64) {
		for range n {
			at += every
			times = append(times, at&trace.TimeMask)
		}
	}
	put(200, 10000)
	burst := at
	put(30, 500)
	burstEnd := at
	put(200, 10000)
	silence := at
	put(1, 900000)
	put(200, 10001) // jitter
	f := twoPasses(times)
	require.EqualValues(t, 2, f.Bursts, "of the format and of all messages")
	require.EqualValues(t, 2, f.Silences)
	require.EqualValues(t, 2*31, f.Outliers, "the intervals of the burst and the silence, not the jitter")
	x := f.List[0]
	require.Equal(t, analyze.Burst, x.Kind)
	require.Equal(t, burst&trace.TimeMask, x.From)
	require.Equal(t, burstEnd&trace.TimeMask, x.To)
	require.EqualValues(t, 31, x.Messages)
	require.InEpsilon(t, 20, x.Factor, 1e-9)
	x = f.List[2]
	require.Equal(t, analyze.Silence, x.Kind)
	require.Equal(t, silence&trace.TimeMask, x.From)
	require.EqualValues(t, 900000, x.Ticks)
	require.InEpsilon(t, 90, x.Factor, 1e-9)
	require.Greater(t, at, start)

	few := twoPasses(times[:analyze.MinIntervals])
	require.Zero(t, few.Judged)
	require.Equal(t, 2, few.TooFew)
}

// TestFindingsAreBounded keeps the most severe ones of very many.
func TestFindingsAreBounded(t *testing.T) {
	var times []uint64
	at := uint64(0)
	for i := range uint64(200000) {
		at += 1000
		if i%100 == 99 {
			at += 100000 + i
		}
		times = append(times, at)
	}
	f := twoPasses(times)
	require.EqualValues(t, 2*2000, f.Silences)
	require.LessOrEqual(t, len(f.List), 300)
	require.EqualValues(t, 1000+100000+199999, f.List[0].Ticks, "the longest is kept")
}
