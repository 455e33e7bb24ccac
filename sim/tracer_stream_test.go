package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestTracerStream: every message of a load comes with its own time and text, in
// blocks that keep the invariants, whatever the device's way and wherever the
// clock stands; Linux's rule agrees where the device is tidy.
func TestTracerStream(t *testing.T) {
	for name, faults := range map[string][]FaultSpec{
		"tidy":    nil,
		"awkward": {{"trace-awkward", ""}},
		"wrap":    {{"trace-clock-wrap", "30000"}},
		"torn":    {{"trace-torn", ""}},
		"both":    {{"trace-awkward", ""}, {"trace-clock-wrap", "70000"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTracer(newFlow(t, Options{Faults: faults}), 6, nil)
			r.chip.KeepTrace(1 << 20)
			require.True(t, r.acquire())
			r.start()
			rng := rand.New(rand.NewPCG(1, 2))
			var all []rawBlock
			n := 0
			for range 400 {
				k := rng.IntN(20)
				_, err := r.chip.EmitTrace(k, TracePlain)
				require.NoError(t, err)
				n += k
				r.chip.Advance(time.Duration(rng.IntN(5000))) // up to 781 ticks
				all = append(all, r.drain()...)
			}
			r.ctrl(0, false)
			all = append(all, r.drain()...)
			got := r.decode(all)
			r.truth(got)
			require.Len(t, got, n+1, "and the one that says that the tracer is on")
			last, early := all[0].time()-1, 0
			for _, b := range all {
				require.True(t, newer(b.time(), last&traceMask))
				last = b.time()
			}
			for _, m := range got {
				if m.at != m.linux {
					early++
				}
			}
			require.Equal(t, name == "awkward" || name == "both", early > 0, "Linux computes %d other times", early)
			if strings.Contains(name, "wrap") || name == "both" {
				require.Greater(t, all[0].time(), all[len(all)-1].time(), "the clock went round")
			}
			kept := r.chip.KeptTrace().Blocks
			require.Equal(t, len(all), len(kept))
			for i, b := range all {
				require.Equal(t, TraceBlock{uint64(i), i % (r.buf.n / traceBlock), b.time(), true}, kept[i])
			}
		})
	}
}

// TestTracerDates: between a message and the timestamp event that dates it lie 1
// to 128 ticks, for any spacing.
func TestTracerDates(t *testing.T) {
	for _, awkward := range []bool{false, true} {
		o := Options{}
		if awkward {
			o.Faults = []FaultSpec{{"trace-awkward", ""}}
		}
		r := newTracing(t, o, 8)
		x := &r.chip.tracer
		rng := rand.New(rand.NewPCG(3, 4))
		var want []uint64
		at := x.ticks() + 1
		for range 5000 {
			at = max(at+uint64(rng.IntN(300)), x.stream.last+1)
			x.message(traceFirst, x.strings.pointers[msgLoad], []uint32{7}, at, &logged{})
			want = append(want, at)
		}
		x.close(at)
		var headers []uint64
		longest := uint64(0)
		for _, b := range r.drain() {
			for _, w := range b {
				switch {
				case w>>48&0xff == traceStamp:
					for _, h := range headers {
						d := word53(w) - h
						require.True(t, d >= 1 && d <= 128, "%d ticks", d)
						longest = max(longest, d)
					}
					headers = nil
				case w>>32&7 == 0 && uint32(w) == x.strings.pointers[msgLoad]:
					require.Equal(t, want[0]&127, w>>56&127)
					headers, want = append(headers, want[0]), want[1:]
				}
			}
		}
		require.Empty(t, want)
		require.EqualValues(t, 128, longest, "the limit is reached")
	}
}

// TestTracerOneBlock: a message lies in one block whatever its length and spacing, but
// for the awkward device.
func TestTracerOneBlock(t *testing.T) {
	for _, awkward := range []bool{false, true} {
		o := Options{}
		if awkward {
			o.Faults = []FaultSpec{{"trace-awkward", ""}}
		}
		r := newTracing(t, o, 8)
		x := &r.chip.tracer
		rng := rand.New(rand.NewPCG(5, 6))
		at := x.ticks() + 1
		for range 4000 {
			at = max(at+uint64(rng.IntN(300)), x.stream.last+1)
			x.message(traceFirst, x.strings.pointers[msgLoad], make([]uint32, rng.IntN(traceWords+1)), at, &logged{})
		}
		x.close(at)
		across := 0
		for _, b := range r.drain() {
			for _, w := range b {
				if w>>48&0xff == traceStamp {
					continue
				}
				if w>>32&7 != 0 {
					across++
				}
				break
			}
		}
		if awkward {
			require.Positive(t, across)
		} else {
			require.Zero(t, across, "blocks that begin with a parameter")
		}
	}
}

// TestTracerArm: one event for what was written since the last one.
func TestTracerArm(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	emit := func() {
		_, err := r.chip.EmitTrace(100, TracePlain)
		require.NoError(t, err)
	}
	available := []prm.TracerEventSubtype{prm.TracerEventTracesAvailable}
	emit()
	require.Empty(t, r.tracerEvents(), "not armed")
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "there were blocks already")
	emit()
	require.Empty(t, r.tracerEvents(), "one event for each arming")
	r.drain()
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "blocks that no event told of")
	r.armTrace()
	require.Empty(t, r.tracerEvents())
	emit()
	require.Equal(t, available, r.tracerEvents())
	// Arming and reading registers leaves no trace of its own.
	r.chip.Advance(5 * time.Millisecond)
	r.drain()
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "more than one block was written")
	for range 5 {
		r.armTrace()
		r.owns()
		r.chip.Advance(5 * time.Millisecond)
		require.Empty(t, r.tracerEvents())
		require.Empty(t, r.drain())
	}
	r.fault("trace-lost-event", "")
	emit()
	require.Empty(t, r.tracerEvents())
	require.NotEmpty(t, r.drain(), "polling finds them")
}

// TestTracerKeys: a key that breaks a rule is accepted, and nothing is written.
func TestTracerKeys(t *testing.T) {
	broken := map[string]func(*prm.MKC){
		"remote read":     func(m *prm.MKC) { m.SetRr(true) },
		"remote write":    func(m *prm.MKC) { m.SetRw(true) },
		"remote atomic":   func(m *prm.MKC) { m.SetA(true) },
		"no local write":  func(m *prm.MKC) { m.SetLw(false) },
		"UMR":             func(m *prm.MKC) { m.SetUMREn(true) },
		"a QP of its own": func(m *prm.MKC) { m.SetQPN(5) },
		"too short":       func(m *prm.MKC) { m.SetLen(m.Len() - 1) },
		"free":            func(m *prm.MKC) { m.SetFree(true) },
		"indirect":        func(m *prm.MKC) { m.SetAccessMode1_0(modeKLMs) },
		"unaligned":       func(m *prm.MKC) { m.SetStartAddr(m.StartAddr() + 256); m.SetLen(m.Len() - 256) },
		"physical":        func(m *prm.MKC) { m.SetAccessMode1_0(modePA); m.SetLength64(true) },
	}
	for name, key := range broken {
		r := newTracer(newFlow(t, Options{}), 0, key)
		require.True(t, r.acquire())
		r.start()
		_, err := r.chip.EmitTrace(500, TracePlain)
		require.NoError(t, err)
		require.Equal(t, make([]byte, r.buf.n), r.buf.bytes(), name)
		s := r.chip.TraceStats()
		require.Zero(t, s.Blocks, name)
		require.Positive(t, s.BlocksUnwritten, name)
		require.Zero(t, r.chip.Counters(0).DMAFaults, name)

		// The same with a device that says so, and one that does not mind.
		r.fault("trace-mkey", "refused")
		require.Equal(t, syndTraceKey, r.conf(), name)
		r.fault("trace-mkey", "tolerated")
		require.Equal(t, syndOK, r.conf())
		_, err = r.chip.EmitTrace(10, TracePlain)
		require.NoError(t, err)
		if name != "free" && name != "indirect" && name != "physical" {
			require.Positive(t, r.chip.TraceStats().Blocks, name)
		}
	}
	// A start address of 0 is as good as the bus address.
	r := newTracer(newFlow(t, Options{}), 2, func(m *prm.MKC) { m.SetStartAddr(0) })
	require.True(t, r.acquire())
	r.start()
	_, err := r.chip.EmitTrace(100, TracePlain)
	require.NoError(t, err)
	require.Len(t, r.decode(r.drain()), 101)
}

// TestTracerLost: blocks that could not be written leave a mark, and so does
// what firmware itself lost.
func TestTracerLost(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	emit := func(n int) {
		_, err := r.chip.EmitTrace(n, TracePlain)
		require.NoError(t, err)
	}
	emit(50)
	r.busMaster(false)
	emit(50)
	r.busMaster(true)
	emit(50)
	got := r.decode(r.drain())
	r.truth(got)
	var marks []string
	for _, m := range got {
		if m.lost {
			marks = append(marks, m.text)
		}
	}
	require.Len(t, marks, 1)
	require.Contains(t, marks[0], "load 100")
	require.Positive(t, r.chip.TraceStats().BlocksUnwritten)

	r.fault("trace-drop", "5")
	emit(100)
	got = r.decode(r.drain())
	lost := 0
	for _, m := range got {
		if m.lost {
			lost++
		}
	}
	require.Len(t, got, 80)
	require.InDelta(t, 20, lost, 1)
	require.EqualValues(t, 20, r.chip.TraceStats().Dropped)
}

// TestTracerFirmware: the trace says what firmware did.
func TestTracerFirmware(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	s, y := r.status(cmd(prm.OpNop, 3, 16), 16)
	require.Equal(t, prm.StatusBadOp, s)
	n := r.createQP(prm.QPTypeRC, nil)
	r.qpTo(n, prm.QPStateRts)
	r.chip.RequestPages(0, -3)
	r.chip.SetLink(0, false)
	r.fault("syndrome", "HIGH_TEMP_ERR")
	r.chip.Advance(5 * time.Millisecond)
	got := r.decode(r.drain())
	r.truth(got)
	var text []string
	for _, m := range got {
		text = append(text, m.text)
	}
	all := strings.Join(text, "\n")
	require.Equal(t, "function 0: the tracer is on, 256 blocks", text[0])
	for _, want := range []string{
		"function 0: command 0x080d op_mod 0x0 status 0x00 syndrome 0x00000000",
		fmt.Sprintf("function 0: command 0x080d op_mod 0x3 status 0x02 syndrome 0x%08x", uint32(y)),
		fmt.Sprintf("function 0: QP 0x%06x goes from state 0 to 1", n),
		fmt.Sprintf("function 0: QP 0x%06x goes from state 2 to 3", n),
		"function 0: -3 pages wanted",
		"function 0: link state 0",
		"health syndrome 0x10, extended 0x0000, severity",
	} {
		require.Contains(t, all, want)
	}
	// A fatal error is the last word.
	r.fault("fatal", "")
	got = r.decode(r.drain())
	require.Contains(t, got[len(got)-1].text, "health syndrome")
	_, err := r.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)
}

// TestTracerOther: the trace of one function tells of the others, too.
func TestTracerOther(t *testing.T) {
	r := newTracing(t, Options{Functions: 2}, 4)
	other := onFunction(t, r.chip, 1).to(phaseInit)
	require.NoError(t, other.dev.Reset())
	r.chip.Advance(5 * time.Millisecond)
	var text []string
	for _, m := range r.decode(r.drain()) {
		text = append(text, m.text)
	}
	require.Contains(t, text, "function 1: command 0x0104 op_mod 0x0 status 0x00 syndrome 0x00000000")
	require.Contains(t, text, "function 1: reset")
	require.Contains(t, strings.Join(text, "\n"), "function 1: up, ")
}
