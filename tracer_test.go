package mlxvfio_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// traced is what came out of a capture.
type traced struct {
	blocks   []uint64 // closing times
	gaps     []capture.Gap
	missing  uint64
	messages []string // "block time id lost text"
	counters trace.Counters
	end      *capture.End
	strings  int
	since    int    // blocks when the newest strings came
	unknown  uint64 // messages without a string by then
}

func line(block, time uint64, id uint8, lost bool, text string) string {
	return fmt.Sprintf("%d 0x%x %d %v %s", block, time, id, lost, text)
}

// follow takes a capture until its end, or until enough says so; then it is stopped,
// and the rest is taken.
func follow(t *testing.T, c *tracer.Capture, pause time.Duration, enough func(*traced) bool) *traced {
	t.Helper()
	out := &traced{}
	var p capture.Player
	deadline := time.Now().Add(60 * time.Second)
	err := p.Play(t.Context(), c, func(r *capture.Record) error {
		switch r.Kind {
		case capture.KindBlock:
			tm, closed := trace.ClosedTime(r.Data[:])
			if !closed {
				return errors.New("a block without an end")
			}
			require.EqualValues(t, len(out.blocks)+int(out.missing), r.Index)
			out.blocks = append(out.blocks, tm)
			time.Sleep(pause)
		case capture.KindGap:
			require.EqualValues(t, len(out.blocks)+int(out.missing), r.Gap.First)
			out.gaps = append(out.gaps, r.Gap)
			out.missing += r.Gap.Blocks
		case capture.KindStrings:
			out.strings++
			out.since, out.unknown = len(out.blocks), p.Counters().UnknownStrings
		}
		if enough != nil && enough(out) {
			c.Stop()
		}
		if time.Now().After(deadline) {
			return errors.New("this takes too long")
		}
		return nil
	}, func(m *trace.Message) {
		out.messages = append(out.messages, line(m.Block, m.Time, m.EventID, m.Lost, m.Text()))
	})
	require.NoError(t, err)
	out.counters, out.end = p.Counters(), p.End()
	require.NoError(t, out.counters.Check())
	return out
}

func blocks(n int) func(*traced) bool { return func(o *traced) bool { return len(o.blocks) >= n } }

// against compares with what the model wrote: every block is there or in a gap that
// says so, and the messages of blocks beside no gap are word for word those.
func against(t *testing.T, truth sim.TraceTruth, got *traced, ring int) {
	t.Helper()
	at, more := 0, 0 // more: missing beyond what gaps say that say "at least"
	gaps := got.gaps
	for _, tm := range got.blocks {
		for len(gaps) > 0 && int(gaps[0].First)+more == at {
			g := gaps[0]
			gaps = gaps[1:]
			if g.HaveFrom {
				require.Equal(t, truth.Blocks[at-1].Time, g.From)
			}
			require.True(t, g.HaveTo)
			at += int(g.Blocks)
			for g.AtLeast && truth.Blocks[at].Time != g.To {
				at, more = at+ring, more+ring // it came around once more
				require.Less(t, at, len(truth.Blocks))
			}
			require.Equal(t, truth.Blocks[at].Time, g.To, "%v", &g)
		}
		require.Equal(t, truth.Blocks[at].Time, tm, "block %d", at)
		at++
	}
	require.Equal(t, len(truth.Blocks), len(got.blocks)+int(got.missing)+more, "blocks written, and taken or missing")
	if len(got.gaps) > 0 {
		return // messages across a gap are pending or orphans
	}
	var want []string
	for _, m := range truth.Messages {
		if m.Reliable {
			want = append(want, line(m.Block, m.Time, m.EventID, m.Lost, m.Text))
		}
	}
	require.Equal(t, len(want), len(got.messages))
	for i := range want {
		require.Equal(t, want[i], got.messages[i])
	}
}

// TestTracerLive: at a rate beyond what firmware does, nothing is lost and each
// message is what the model said, whatever the device's habits.
func TestTracerLive(t *testing.T) {
	for _, words := range []string{
		"sim:cx5,load=100000", "sim:cx5,load=1e6", "sim:cx5,load=20000,fault=trace-awkward,fault=trace-edges",
		"sim:cx5,load=50000,fault=trace-clock-wrap@3000000", "sim:cx5,load=50000,fault=trace-unreliable@7",
		"sim:cx5,load=50000,fault=trace-torn", "sim:cx5,load=50000,fault=trace-lost-event", "sim:cx5,load=50000,fault=trace-drop,fault=trace-raw",
	} {
		for _, o := range []tracer.Options{{}, {Polled: true}} {
			t.Run(fmt.Sprintf("%s polled=%v", words, o.Polled), func(t *testing.T) {
				n := 300
				switch fast := strings.Contains(words, "1e6"); {
				case raceBuild && fast:
					t.Skip("the model under the race detector does not reach this rate")
				case raceBuild:
					words, n = strings.Replace(words, "0000", "000", 1), 50
				case fast:
					n = 10000
				}
				h, c := opened(t, words, mlxvfio.Options{Memory: vfio.MemoryHeap})
				c.KeepTrace(1 << 20)
				tr, err := h.OpenTracer(t.Context(), o)
				require.NoError(t, err)
				got := follow(t, tr, 0, blocks(n))
				require.Equal(t, capture.ReasonStopped, got.end.Reason)
				require.Empty(t, got.gaps)
				require.NoError(t, tr.Close(t.Context()))
				against(t, c.KeptTrace(), got, int(tr.Meta().RingBlocks))
				s := tr.Stats()
				require.Zero(t, s.Laps)
				if strings.Contains(words, "lost-event") && !o.Polled {
					require.Zero(t, s.Events)
					require.Positive(t, s.FoundByPoll)
				}
				closed(t, h, c)
			})
		}
	}
}

// TestTracerSlow: one who takes blocks too slowly costs blocks, each accounted for;
// the ring itself is always read in time.
func TestTracerSlow(t *testing.T) {
	words := "sim:cx5,load=200000"
	if raceBuild {
		words = "sim:cx5,load=40000"
	}
	h, c := opened(t, words, mlxvfio.Options{Memory: vfio.MemoryHeap})
	c.KeepTrace(1 << 20)
	tr, err := h.OpenTracer(t.Context(), tracer.Options{Queue: 64})
	require.NoError(t, err)
	got := follow(t, tr, time.Millisecond, blocks(400))
	require.NoError(t, tr.Close(t.Context()))
	require.NotEmpty(t, got.gaps)
	against(t, c.KeptTrace(), got, int(tr.Meta().RingBlocks))
	require.EqualValues(t, got.missing, tr.Stats().BackPressure+tr.Stats().Overwritten)
	require.Positive(t, tr.Stats().BackPressure)
	closed(t, h, c)
}

// TestTracerWrap: the device goes around before anyone can look. What is missing is
// counted to the block.
func TestTracerWrap(t *testing.T) {
	for _, more := range []int{1, 2, 7, 14} {
		h, c := opened(t, fmt.Sprintf("sim:cx5,load=20000,fault=trace-wrap@%d", more), mlxvfio.Options{})
		c.KeepTrace(1 << 20)
		tr, err := h.OpenTracer(t.Context(), tracer.Options{BufferSize: 4096})
		require.NoError(t, err)
		got := follow(t, tr, 0, blocks(200))
		require.NoError(t, tr.Close(t.Context()))
		require.NotEmpty(t, got.gaps)
		for _, g := range got.gaps {
			require.Equal(t, capture.CauseOverwritten, g.Cause&capture.CauseOverwritten)
		}
		against(t, c.KeptTrace(), got, int(tr.Meta().RingBlocks))
		require.Positive(t, tr.Stats().Laps)
		closed(t, h, c)
	}
}

func TestTracerTheft(t *testing.T) {
	for _, silent := range []bool{false, true} {
		h, c := opened(t, "sim:cx5,load=20000", mlxvfio.Options{})
		tr, err := h.OpenTracer(t.Context(), tracer.Options{OwnerPoll: 50 * time.Millisecond})
		require.NoError(t, err)
		taken := false
		got := follow(t, tr, 0, func(o *traced) bool {
			if len(o.blocks) == 100 && !taken {
				taken = true
				c.TakeTracer(silent)
			}
			return false
		})
		require.Equal(t, capture.ReasonLost, got.end.Reason)
		require.ErrorIs(t, tr.Err(), tracer.ErrLost)
		require.GreaterOrEqual(t, len(got.blocks), 100)
		require.Equal(t, "tool", c.TraceStats().Owner)
		require.NoError(t, tr.Close(t.Context()))
		require.Equal(t, "tool", c.TraceStats().Owner, "what was lost is not given back")

		_, err = h.OpenTracer(t.Context(), tracer.Options{})
		require.ErrorIs(t, err, tracer.ErrBusy)
		go func() { time.Sleep(20 * time.Millisecond); c.GiveTracer() }()
		tr, err = h.OpenTracer(t.Context(), tracer.Options{Wait: 10 * time.Second})
		require.NoError(t, err, "the tool has gone")
		require.NoError(t, tr.Close(t.Context()))
		require.Equal(t, "nobody", c.TraceStats().Owner)
		closed(t, h, c)
	}
}

// TestTracerStrings: firmware replaces its strings while it traces.
func TestTracerStrings(t *testing.T) {
	h, c := opened(t, "sim:cx5,load=20000,fault=trace-strings-update@20ms", mlxvfio.Options{})
	dir := t.TempDir()
	tr, err := h.OpenTracer(t.Context(), tracer.Options{CacheDir: dir})
	require.NoError(t, err)
	// A slow machine writes much with the new strings before they are read: enough is
	// taken behind them that it is little.
	got := follow(t, tr, 0, func(o *traced) bool {
		return o.strings == 2 && len(o.blocks) > max(200, o.since+100) && o.unknown < uint64(len(o.messages))/10
	})
	require.NoError(t, tr.Close(t.Context()))
	require.Empty(t, got.gaps)
	require.Equal(t, 2, got.strings)
	require.Equal(t, got.unknown, got.counters.UnknownStrings, "what is read behind the new strings has them")
	require.Less(t, got.counters.UnknownStrings, got.counters.Messages/10)
	require.Zero(t, got.counters.BadFormats)
	_, info := tr.DB()
	require.NotEmpty(t, info.Path)

	tr, err = h.OpenTracer(t.Context(), tracer.Options{CacheDir: dir})
	require.NoError(t, err)
	_, info = tr.DB()
	require.True(t, info.Cached)
	require.Less(t, info.Commands, 20)
	require.NoError(t, tr.Close(t.Context()))
	closed(t, h, c)
}

// TestTracerTakenUp: firmware still counts the tracer as ours, though the run that
// took it is gone.
func TestTracerTakenUp(t *testing.T) {
	h, c := opened(t, "sim:cx5,fault=trace-kept", mlxvfio.Options{})
	tr, err := h.OpenTracer(t.Context(), tracer.Options{})
	require.NoError(t, err)
	require.False(t, tr.Meta().TakenUp)
	h.Conn().Dead(vfio.ErrGone) // killed: nothing more is said to the device, which is opened anew
	require.Error(t, tr.Close(t.Context()))
	require.Error(t, h.Close(t.Context()))
	require.Equal(t, "function 0", c.TraceStats().Owner)
	h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	tr, err = h.OpenTracer(t.Context(), tracer.Options{})
	require.NoError(t, err)
	require.True(t, tr.Meta().TakenUp)
	require.NoError(t, tr.Close(t.Context()))
	require.Equal(t, "nobody", c.TraceStats().Owner)
	require.NoError(t, h.Close(t.Context()))
}

// TestTracerRefusals: what a device or its state does not allow is said by name, and
// nothing is left.
func TestTracerRefusals(t *testing.T) {
	h, c := opened(t, "sim:cx5,fault=trace-no-memory", mlxvfio.Options{})
	_, err := h.OpenTracer(t.Context(), tracer.Options{})
	var ce *tracer.CapabilityError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, "MTRC_CAP.trace_to_memory", ce.Bit)
	closed(t, h, c)

	h, c = opened(t, "sim:cx4", mlxvfio.Options{})
	_, err = h.OpenTracer(t.Context(), tracer.Options{})
	require.ErrorAs(t, err, &ce)
	require.Contains(t, []string{"mcam_reg", "MCAM.tracer_registers"}, ce.Bit)
	require.ErrorIs(t, err, vfio.ErrNotSupported)
	_, err = h.TracerCaps(t.Context())
	require.ErrorAs(t, err, &ce)
	closed(t, h, c)

	h, c = opened(t, "sim:cx5", mlxvfio.Options{})
	before := h.Stats().DMA.LiveBuffers
	caps, err := h.TracerCaps(t.Context())
	require.NoError(t, err)
	_, err = h.OpenTracer(t.Context(), tracer.Options{BufferSize: int(2 * caps.MaxBuffer())})
	var be *tracer.BufferError
	require.ErrorAs(t, err, &be)
	for _, size := range []int{4096, int(caps.MaxBuffer())} {
		tr, err := h.OpenTracer(t.Context(), tracer.Options{BufferSize: size})
		require.NoError(t, err, "%d bytes", size)
		_, err = h.OpenTracer(t.Context(), tracer.Options{})
		require.ErrorIs(t, err, mlxvfio.ErrTracerOpen)
		_, err = h.TracerOwner(t.Context(), tracer.OwnerOptions{})
		require.ErrorIs(t, err, mlxvfio.ErrTracerOpen)
		require.NoError(t, tr.Close(t.Context()))
		require.Equal(t, before, h.Stats().DMA.LiveBuffers)
		require.Zero(t, c.State(0).MKeys)
	}
	closed(t, h, c)
}

// TestTracerHold: ownership alone.
func TestTracerHold(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{})
	o, err := h.TracerOwner(t.Context(), tracer.OwnerOptions{})
	require.NoError(t, err)
	require.Equal(t, "function 0", c.TraceStats().Owner)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.NoError(t, o.Hold(ctx))
	require.NoError(t, o.Release(t.Context()))
	require.Equal(t, "nobody", c.TraceStats().Owner)
	o, err = h.TracerOwner(t.Context(), tracer.OwnerOptions{})
	require.NoError(t, err)
	go func() { time.Sleep(20 * time.Millisecond); c.TakeTracer(false) }()
	require.ErrorIs(t, o.Hold(t.Context()), tracer.ErrLost)
	closed(t, h, c) // and what is held is released by the close
	c.GiveTracer()
}

// TestTracerClosedWithFunction: a function that is closed gives its tracer back, by
// every kind of teardown and after a death.
func TestTracerClosedWithFunction(t *testing.T) {
	for _, k := range []mlxvfio.TeardownKind{mlxvfio.TeardownRegular, mlxvfio.TeardownFast, mlxvfio.TeardownForced} {
		base := drivertest.Now()
		h, c := opened(t, "sim:cx5,load=20000", mlxvfio.Options{Teardown: k})
		tr, err := h.OpenTracer(t.Context(), tracer.Options{})
		require.NoError(t, err)
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, h.Close(t.Context()))
		require.Equal(t, "nobody", c.TraceStats().Owner)
		spotless(c, 0)(t)
		got := follow(t, tr, 0, nil)
		require.NotEmpty(t, got.blocks, "what was in the queue still comes")
		require.Equal(t, capture.ReasonStopped, got.end.Reason)
		base.Check(t)
	}
	base := drivertest.Now()
	h, c := opened(t, "sim:cx5,load=20000", mlxvfio.Options{})
	tr, err := h.OpenTracer(t.Context(), tracer.Options{OwnerPoll: 10 * time.Millisecond})
	require.NoError(t, err)
	h.Conn().Dead(vfio.ErrGone)
	got := follow(t, tr, 0, nil)
	require.Equal(t, capture.ReasonDevice, got.end.Reason)
	require.Error(t, tr.Close(t.Context()))
	require.Error(t, h.Close(t.Context()))
	require.Equal(t, "nobody", c.TraceStats().Owner, "the reset saw to it")
	spotless(c, 0)(t)
	base.Check(t)
}

// TestTracerFile records to a file and decodes it to the same.
func TestTracerFile(t *testing.T) {
	h, c := opened(t, "sim:cx5,load=50000", mlxvfio.Options{})
	c.KeepTrace(1 << 20)
	tr, err := h.OpenTracer(t.Context(), tracer.Options{ClockPoll: 10 * time.Millisecond})
	require.NoError(t, err)
	path := t.TempDir() + "/a.mlxt"
	w, err := capture.Create(path, tr.Meta(), false)
	require.NoError(t, err)
	var tl capture.Timeline
	n := 0
	end, err := capture.Pump(t.Context(), w, tr, func(r *capture.Record) error {
		if n++; n == 400 {
			tr.Stop()
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, w.Close(end))
	require.NoError(t, tr.Close(t.Context()))
	rd, err := capture.Open(path, capture.ReaderOptions{})
	require.NoError(t, err)
	defer rd.Close()
	got := &traced{}
	var p capture.Player
	require.NoError(t, p.Play(t.Context(), rd, func(r *capture.Record) error {
		switch r.Kind {
		case capture.KindBlock:
			tm, _ := trace.ClosedTime(r.Data[:])
			got.blocks = append(got.blocks, tm)
		case capture.KindClock:
			tl.Add(&r.Clock)
		}
		return nil
	}, func(m *trace.Message) {
		got.messages = append(got.messages, line(m.Block, m.Time, m.EventID, m.Lost, m.Text()))
	}))
	require.True(t, end.Time.Equal(p.End().Time))
	end.Time = p.End().Time
	require.Equal(t, end, p.End())
	require.EqualValues(t, len(got.blocks), end.Blocks)
	against(t, c.KeptTrace(), got, int(tr.Meta().RingBlocks))
	require.Equal(t, h.Info().Firmware, p.Meta().Firmware)
	hz, hzErr, ok := tl.Rate()
	require.True(t, ok)
	require.InDelta(t, float64(p.Meta().ClockKHz)*1e3, hz, hzErr+1, "the model's traces tick with its timer")
	at, _, ok := tl.At(got.blocks[len(got.blocks)-1])
	require.True(t, ok)
	require.WithinDuration(t, end.Time, at, time.Second)
	var r capture.Record
	require.ErrorIs(t, rd.Next(t.Context(), &r), io.EOF)
	closed(t, h, c)
}
