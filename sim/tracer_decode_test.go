package sim_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// database reads the string database of a device as the decoder wants it.
func database(x *sim.Tracing) (trace.Geometry, *trace.Strings) {
	c := x.Caps()
	g := trace.Geometry{TrcVer: c.TrcVer(), FirstString: c.FirstStringTrace(), NumString: c.NumStringTrace()}
	var s []trace.Section
	for i := range int(c.NumStringDb()) {
		s = append(s, trace.Section{Base: uint64(c.StringDbParam(i).StringDbBaseAddress()), Data: x.Section(i)})
	}
	return g, trace.NewStrings(s)
}

// row is what the model knows and the decoder says of a message.
type row struct {
	time, block uint64
	id          uint8
	lost        bool
	text        string
}

// TestDecoderAgrees: the decoder gives every message that the model wrote, with
// its time, marks and text, whatever the device's habits.
func TestDecoderAgrees(t *testing.T) {
	cases := map[string][]sim.FaultSpec{
		"tidy":            nil,
		"awkward":         {{Name: "trace-awkward"}},
		"wrap":            {{Name: "trace-clock-wrap", Arg: "200000"}, {Name: "trace-awkward"}},
		"drop":            {{Name: "trace-drop", Arg: "7"}, {Name: "trace-awkward"}},
		"raw":             {{Name: "trace-raw", Arg: "3"}},
		"raw awkward":     {{Name: "trace-raw", Arg: "2"}, {Name: "trace-awkward"}},
		"pointer":         {{Name: "trace-pointer", Arg: "4"}},
		"pointer awkward": {{Name: "trace-pointer", Arg: "3"}, {Name: "trace-awkward"}},
		"torn":            {{Name: "trace-torn"}},
	}
	for v := range 4 {
		cases[fmt.Sprintf("unreliable %d", v)] = []sim.FaultSpec{{Name: "trace-version", Arg: fmt.Sprint(v)}, {Name: "trace-unreliable", Arg: "3"}}
		cases[fmt.Sprintf("unreliable awkward %d", v)] = []sim.FaultSpec{{Name: "trace-version", Arg: fmt.Sprint(v)}, {Name: "trace-unreliable", Arg: "2"}, {Name: "trace-awkward"}}
	}
	cases["everything"] = []sim.FaultSpec{
		{Name: "trace-awkward"}, {Name: "trace-raw", Arg: "5"}, {Name: "trace-pointer", Arg: "7"}, {Name: "trace-drop", Arg: "11"},
		{Name: "trace-unreliable", Arg: "4"}, {Name: "trace-clock-wrap", Arg: "100000"},
	}
	for name, faults := range cases {
		t.Run(name, func(t *testing.T) {
			x := sim.NewTracing(t, sim.Options{Faults: faults}, 6)
			g, strs := database(x)
			d, err := trace.NewDecoder(g, strs)
			require.NoError(t, err)
			rng := rand.New(rand.NewPCG(1, uint64(len(name))))
			var got []row
			n := uint64(0)
			read := func() {
				for _, b := range x.Drain() {
					require.NoError(t, d.Block(n, b, func(m *trace.Message) {
						got = append(got, row{m.Time, m.Block, m.EventID, m.Lost, m.Text()})
					}))
					n++
				}
			}
			for range 300 {
				kind := sim.TraceEdge
				if rng.IntN(3) == 0 {
					kind = sim.TracePlain
				}
				_, err := x.Chip().EmitTrace(rng.IntN(20), kind)
				require.NoError(t, err)
				if rng.IntN(4) == 0 {
					x.NOP(rng.IntN(2) == 0)
				}
				x.Chip().Advance(time.Duration(rng.IntN(3000)))
				read()
			}
			x.Stop()
			read()
			d.Flush()
			c := d.Counters()
			require.NoError(t, c.Check())
			require.Zero(t, c.SkippedBlocks)
			require.Zero(t, c.IncompleteMessages)

			var want []row
			dropped := 0
			for _, m := range x.Chip().KeptTrace().Messages {
				if !m.Reliable {
					dropped++
					continue
				}
				want = append(want, row{m.Time, m.Block, m.EventID, m.Lost, m.Text})
			}
			require.Equal(t, len(want), len(got))
			for i := range want {
				require.Equal(t, want[i], got[i], "message %d", i)
			}
			stats := x.Chip().TraceStats()
			require.Equal(t, stats.Blocks, c.Blocks)
			require.Equal(t, stats.Events, c.Events)
			require.Equal(t, stats.Stamps, c.Timestamps)
			require.Equal(t, strings.Contains(name, "unreliable") || name == "everything", dropped > 0)
			require.Equal(t, dropped > 0, c.UnreliableEventsDropped > 0)
			require.Equal(t, strings.Contains(name, "raw") || name == "everything", c.RawEvents > 0)
			require.Equal(t, strings.Contains(name, "pointer") || name == "everything", c.UnknownStrings > 0 && c.OrphanParams > 0)
			require.Equal(t, stats.Dropped > 0, c.LostMarks > 0)
			require.Positive(t, c.BadFormats)
		})
	}
}

// TestRingAgrees: an image of a buffer that the writer has gone round more than
// once decodes from its oldest block on, also where the clock went round.
func TestRingAgrees(t *testing.T) {
	for _, faults := range [][]sim.FaultSpec{nil, {{Name: "trace-clock-wrap", Arg: "5000"}}} {
		x := sim.NewTracing(t, sim.Options{Faults: faults}, 2)
		g, strs := database(x)
		for range 50 {
			_, err := x.Chip().EmitTrace(33, sim.TraceEdge)
			require.NoError(t, err)
			x.Chip().Advance(time.Microsecond)
		}
		blocks := x.Chip().KeptTrace().Blocks
		require.Greater(t, len(blocks), 100, "more than the 64 blocks of the buffer")
		oldest := blocks[len(blocks)-64]
		m, err := x.Chip().TraceMemory()
		require.NoError(t, err)
		require.Equal(t, x.Image(), m.Ring)
		require.Equal(t, g, trace.Geometry{TrcVer: m.Version, FirstString: m.FirstString, NumString: m.NumString})
		for i, s := range m.Sections {
			require.Equal(t, strs.Sections()[i], trace.Section{Base: uint64(s.Base), Data: append([]byte(nil), s.Data...)})
		}
		r := trace.NewRing(m.Ring)
		require.Equal(t, oldest.Slot, r.Oldest())
		d, err := trace.NewDecoder(g, strs)
		require.NoError(t, err)
		var got, want []string
		require.NoError(t, r.Decode(d, -1, func(m *trace.Message) { got = append(got, fmt.Sprint(m.Time, m.Text())) }))
		for _, m := range x.Chip().KeptTrace().Messages {
			if m.Block >= oldest.N {
				want = append(want, fmt.Sprint(m.Time, m.Text))
			}
		}
		require.Equal(t, want, got)
	}
}
