package sim

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

var ownershipChanged = []prm.TracerEventSubtype{prm.TracerEventOwnershipChange}

// TestTracerTheft: a tool takes the tracer from whoever uses it, now or later,
// heard or not.
func TestTracerTheft(t *testing.T) {
	for _, silent := range []bool{false, true} {
		name := "trace-theft"
		if silent {
			name = "trace-silent-theft"
		}
		events := func(r *rawTracer) {
			t.Helper()
			if got := r.tracerEvents(); silent {
				require.Empty(t, got)
			} else {
				require.Equal(t, ownershipChanged, got)
			}
		}
		r := newTracing(t, Options{Faults: []FaultSpec{{name, "10ms"}}}, 0)
		r.chip.Advance(9 * time.Millisecond)
		require.True(t, r.owns())
		r.chip.Advance(2 * time.Millisecond)
		require.False(t, r.owns())
		events(r)
		require.False(t, r.acquire())
		_, err := r.chip.EmitTrace(1, TracePlain)
		require.ErrorIs(t, err, ErrNotTracing)
		require.NoError(t, r.chip.ClearFault(name))
		events(r)
		require.True(t, r.acquire())
		r.start()
		r.chip.Advance(time.Second)
		require.True(t, r.owns(), "once")
		r.fault(name, "")
		r.chip.Advance(1)
		require.False(t, r.owns(), "at once")
		require.NoError(t, r.chip.ClearFault(""))
	}
	// A start that was given up does not use the fault up.
	r := newTracing(t, Options{Faults: []FaultSpec{{"trace-theft", "10ms"}}}, 0)
	r.ctrl(0, false)
	r.chip.Advance(time.Second)
	require.True(t, r.owns())
	r.ctrl(1, false)
	r.chip.Advance(11 * time.Millisecond)
	require.False(t, r.owns())
}

// TestTracerBusy: a tool has it, and gives it up after some tries.
func TestTracerBusy(t *testing.T) {
	r := newTracer(newFlow(t, Options{Faults: []FaultSpec{{"trace-busy", "3"}}}), 0, nil)
	require.Equal(t, "tool", r.chip.TraceStats().Owner)
	for range 3 {
		require.Empty(t, r.tracerEvents())
		require.False(t, r.acquire())
	}
	require.Equal(t, ownershipChanged, r.tracerEvents())
	require.True(t, r.acquire())

	r = newTracer(newFlow(t, Options{Faults: []FaultSpec{{"trace-busy", ""}}}), 0, nil)
	for range 100 {
		require.False(t, r.acquire())
	}
	require.NoError(t, r.chip.ClearFault("trace-busy"))
	require.Equal(t, ownershipChanged, r.tracerEvents())
	require.True(t, r.acquire())
	// Clearing another fault is not the tool's business.
	r.chip.TakeTracer(false)
	require.NoError(t, r.chip.ClearFault(""))
	require.Equal(t, "tool", r.chip.TraceStats().Owner)
}

// TestTracerUnreliable: the bit lies where trc_ver says.
func TestTracerUnreliable(t *testing.T) {
	for version, bit := range []uint64{1 << 47, 1 << 45, 1 << 46, 1 << 46} {
		o := Options{Faults: []FaultSpec{{"trace-version", string(rune('0' + version))}, {"trace-unreliable", "3"}}}
		r := newTracing(t, o, 4)
		b, _ := r.reg(prm.RegMtrcCap, nil, false)
		require.EqualValues(t, version, prm.AsMtrcCap(b).TrcVer())
		for range 100 {
			_, err := r.chip.EmitTrace(5, TracePlain)
			require.NoError(t, err)
			r.chip.Advance(time.Microsecond)
		}
		blocks, truth := r.drain(), r.chip.KeptTrace()
		marked, dropped := 0, 0
		for i, b := range blocks {
			for _, w := range b {
				if w>>48&0xff == traceStamp {
					require.Contains(t, []uint64{0, bit}, w&(7<<45))
				}
			}
			require.Equal(t, b[traceEvents-1]&bit == 0, truth.Blocks[i].Reliable)
			if !truth.Blocks[i].Reliable {
				marked++
			}
		}
		for _, m := range truth.Messages {
			if !m.Reliable {
				dropped++
			}
		}
		require.Positive(t, marked)
		require.Less(t, marked, len(blocks))
		require.Positive(t, dropped)
	}
}

// TestTracerTorn: over a full buffer, half a block of the new round lies in front of the
// closing timestamp of the old one.
func TestTracerTorn(t *testing.T) {
	r := newTracing(t, Options{Faults: []FaultSpec{{"trace-torn", ""}}}, 0)
	for r.chip.TraceStats().Blocks < 16 {
		_, err := r.chip.EmitTrace(1, TracePlain)
		require.NoError(t, err)
	}
	was := r.load(0)
	x := &r.chip.tracer
	r.chip.mu.Lock()
	for x.stream.used < 20 {
		x.loadOne(false, x.ticks())
	}
	r.chip.mu.Unlock()
	now := r.load(0)
	require.Equal(t, was.time(), now.time())
	require.NotEqual(t, was[:16], now[:16])
	require.Equal(t, was[16:], now[16:])
	_, overrun, ok := r.next()
	require.True(t, ok && overrun, "the block before it gives it away")
}

// TestTracerWrap: the writer goes round between the event and the reader.
func TestTracerWrap(t *testing.T) {
	r := newTracing(t, Options{}, 0)
	_, err := r.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)
	require.Len(t, r.drain(), 1)
	r.armTrace()
	r.tracerEvents()
	r.fault("trace-wrap", "5")
	require.Len(t, r.chip.KeptTrace().Blocks, 1+16+5, "now")
	b, overrun, ok := r.next()
	require.True(t, ok && overrun)
	truth := r.chip.KeptTrace().Blocks
	require.Equal(t, truth[1+16].Time, b.time(), "the first place that was free has the block of the next round")
	before := len(truth)
	r.armTrace()
	require.Equal(t, []prm.TracerEventSubtype{prm.TracerEventTracesAvailable}, r.tracerEvents())
	require.Equal(t, 16+5, len(r.chip.KeptTrace().Blocks)-before, "the event let it go round again")
}

// TestTracerStringsFaults: what reads back is damaged, or moves.
func TestTracerStringsFaults(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	good := r.section(sectLoad)
	for _, how := range []string{"", "garbage", "format", "unterminated"} {
		r.fault("trace-strings", how)
		bad := r.section(sectLoad)
		require.Len(t, bad, len(good))
		require.NotEqual(t, good, bad, how)
		require.Equal(t, bad, r.section(sectLoad), "the same each time")
		switch how {
		case "format":
			require.Regexp(t, `%[snp*]`, string(bad))
		case "unterminated":
			require.NotContains(t, string(bad), "\x00")
		}
	}
	require.NoError(t, r.chip.ClearFault(""))
	require.Equal(t, good, r.section(sectLoad))

	r.drain()
	r.chip.mu.Lock()
	r.chip.tracer.loadOne(false, r.chip.tracer.ticks())
	r.chip.mu.Unlock()
	before := r.chip.tracer.strings.pointers[msgLoad]
	r.fault("trace-strings-update", "")
	r.chip.Advance(1)
	require.Equal(t, []prm.TracerEventSubtype{prm.TracerEventStringsDbUpdate}, r.tracerEvents())
	require.NotEqual(t, good, r.section(sectLoad))
	require.NotEqual(t, before, r.chip.tracer.strings.pointers[msgLoad])
	require.Len(t, r.drain(), 1, "the open block was closed")
	first, err := r.chip.EmitTrace(7, TracePlain)
	require.NoError(t, err)
	for i, m := range r.decode(r.drain()) {
		_, text := LoadMessage(TracePlain, first+uint64(i))
		require.Equal(t, text, m.text)
	}
}

// TestTracerOddEvents: events that are no messages, and pointers to nowhere.
func TestTracerOddEvents(t *testing.T) {
	r := newTracing(t, Options{Faults: []FaultSpec{{"trace-raw", "2"}, {"trace-pointer", "3"}}}, 4)
	_, err := r.chip.EmitTrace(60, TracePlain)
	require.NoError(t, err)
	empty, odd := 0, 0
	for _, b := range r.drain() {
		for _, w := range b {
			switch id := w >> 48 & 0xff; {
			case w&^(127<<56) == 0:
				empty++
			case id != traceStamp && (id < traceFirst || id >= traceFirst+traceIDs):
				odd++
			}
		}
	}
	require.Equal(t, 30, empty)
	require.Equal(t, 60, odd)
	raw := 0
	for _, m := range r.chip.KeptTrace().Messages {
		if strings.HasPrefix(m.Text, "0x") {
			raw++
		}
	}
	require.Greater(t, raw, 20, "pointers and their parameters")
}

// TestTracerFaultsComeAndGo: each fault of the tracer, from the start and at run
// time, leaves a device that traces again when it is cleared.
func TestTracerFaultsComeAndGo(t *testing.T) {
	args := map[string]string{"trace-mkey": "tolerated", "trace-version": "1"}
	for _, k := range tracerFaults() {
		for _, early := range []bool{true, false} {
			o := Options{Seed: 4}
			if early {
				o.Faults = []FaultSpec{{k.Name, args[k.Name]}}
			}
			r := newTracer(newFlow(t, o), 2, nil)
			use := func() {
				if !r.acquire() || r.conf() != syndOK {
					return
				}
				r.ctrl(1, true)
				for range 10 {
					_, _ = r.chip.EmitTrace(20, TraceEdge) // a fault may have taken it
					r.chip.Advance(time.Millisecond)
				}
			}
			use()
			if !early {
				r.fault(k.Name, args[k.Name])
				use()
			}
			require.NoError(t, r.chip.ClearFault(""))
			require.True(t, r.acquire(), k.Name)
			r.ctrl(0, false)
			r.start()
			r.buf.clear()
			_, err := r.chip.EmitTrace(20, TracePlain)
			require.NoError(t, err, k.Name)
			require.GreaterOrEqual(t, len(r.decode(r.drain())), 20, k.Name)
		}
	}
	for _, bad := range []FaultSpec{
		{"trace-mkey", ""}, {"trace-mkey", "no"}, {"trace-version", "4"}, {"trace-strings", "x"}, {"trace-drop", "0"},
		{"trace-theft", "soon"}, {"trace-clock-wrap", "0x10000000000000"}, {"trace-kept", "1"}, {"trace-lost-event", "7"},
	} {
		_, err := New(Options{Faults: []FaultSpec{bad}})
		var u *UsageError
		require.ErrorAs(t, err, &u, bad.String())
	}
}

func (m *region) clear() { clear(m.bytes()) }
