package sim

import (
	"math/rand/v2"
	"strings"
	"sync"
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

	_, err := r.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)
	before := r.chip.tracer.strings.pointers[msgLoad]
	r.fault("trace-strings-update", "")
	r.chip.Advance(1)
	require.Equal(t, []prm.TracerEventSubtype{prm.TracerEventStringsDbUpdate}, r.tracerEvents())
	require.NotEqual(t, good, r.section(sectLoad))
	require.NotEqual(t, before, r.chip.tracer.strings.pointers[msgLoad])
	r.drain()
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

// TestTracerLoad: a rate is a rate, in the trace's own time, and numbers go on.
func TestTracerLoad(t *testing.T) {
	r := newTracer(newFlow(t, Options{}), 12, nil)
	r.chip.KeepTrace(1 << 16)
	r.chip.SetTraceLoad(10_000)
	require.True(t, r.acquire())
	r.chip.Advance(time.Second)
	require.Zero(t, r.chip.TraceStats().Load, "nobody traces")
	r.start()
	r.chip.Advance(time.Second)
	require.EqualValues(t, 10_000, r.chip.TraceStats().Load)
	r.chip.Advance(5 * time.Millisecond)
	var last uint64
	n := uint64(0)
	for _, m := range r.chip.KeptTrace().Messages {
		if !m.Load {
			continue
		}
		require.Equal(t, n, m.Number)
		if n > 0 {
			require.InDelta(t, 15625, m.Time-last, 2, "ticks of 156.25 MHz between messages %d and %d", n-1, n)
		}
		last, n = m.Time, n+1
		_, text := LoadMessage(TracePlain, m.Number)
		require.Equal(t, text, m.Text)
	}
	require.GreaterOrEqual(t, n, uint64(10_040))
	r.chip.SetTraceLoad(0)
	at := r.chip.TraceStats().Load
	r.chip.Advance(time.Second)
	require.Equal(t, at, r.chip.TraceStats().Load)

	// Slower than the tick of the generator, and edges.
	s := newTracing(t, Options{Faults: []FaultSpec{{"trace-edges", ""}}}, 0)
	s.chip.SetTraceLoad(3)
	s.chip.Advance(10*time.Second + time.Millisecond)
	require.EqualValues(t, 30, s.chip.TraceStats().Load)
	s.chip.Advance(10 * time.Millisecond)
	last30 := s.chip.KeptTrace().Messages
	require.Contains(t, last30[len(last30)-1].Text, "load 29")
}

// TestTracerEdges: the texts of the edge load, by the rules.
func TestTracerEdges(t *testing.T) {
	all := map[string]bool{}
	for n := range uint64(len(plainLoad) + len(edgeLoad)) {
		_, text := LoadMessage(TraceEdge, n)
		all[text] = true
		require.Regexp(t, `^[\x20-\x7e]+$`, text)
		if !strings.HasPrefix(text, "BAD_FORMAT: ") {
			require.NotContains(t, text, "%!", "the model's own notation is right")
		}
		if f := &traceFormats[msgLoad+int(n)]; f.text != "" {
			require.Equal(t, strings.Count(strings.ReplaceAll(f.c[f.skip:], "%%", ""), "%"), len(f.kinds), f.c)
		}
		require.LessOrEqual(t, traceFormats[msgLoad+int(n)].words(), traceWords)
	}
	for _, want := range []string{
		"load 18: 100%",
		`load 19:\ttab, "quotes", back\\slash and two line ends`,
		`load 20: beyond ASCII \xe9\x80\x01\x7f`,
		"BAD_FORMAT: load %u: name %s",
		"load 25 is a tail",
	} {
		require.Contains(t, all, want)
	}
}

// TestTracerGaps: whatever a slow reader misses, it can say how many blocks: the
// places tell.
func TestTracerGaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	r := newTracing(t, Options{}, 0)
	r.chip.KeepTrace(1 << 14)
	read, overruns := map[uint64]bool{}, 0
	for range 300 {
		_, err := r.chip.EmitTrace(1+rng.IntN(400), TracePlain)
		require.NoError(t, err)
		for range rng.IntN(30) {
			b, overrun, ok := r.next()
			if !ok {
				break
			}
			if overrun {
				overruns++
			}
			read[b.time()] = true
		}
	}
	for {
		b, _, ok := r.next()
		if !ok {
			break
		}
		read[b.time()] = true
	}
	truth := r.chip.KeptTrace().Blocks
	missed := 0
	for i, b := range truth {
		require.EqualValues(t, i, b.N)
		require.Equal(t, i%16, b.Slot)
		if !read[b.Time] {
			missed++
		}
		delete(read, b.Time)
	}
	require.Empty(t, read, "nothing was read that was not written")
	require.Positive(t, missed)
	require.Positive(t, overruns)
}

// TestTracerConcurrent: for a reader in another goroutine a block is whole if its
// closing timestamp is the same before and after the copy and the block before
// it still holds what was seen.
func TestTracerConcurrent(t *testing.T) {
	r := newTracer(newRaw(t, Options{}).to(phaseInit), 6, nil)
	require.True(t, r.acquire())
	r.start()
	_, err := r.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)
	require.Len(t, r.drain(), 1)
	const messages = 60_000
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for range messages / 500 {
			if _, err := r.chip.EmitTrace(500, TracePlain); err != nil {
				return
			}
		}
	})
	// The messages of a block are the load's, one after the other.
	numbers := func(b *rawBlock) {
		var next uint32
		for _, w := range b {
			if w>>48&0xff == traceStamp || w>>32&7 != 1 {
				continue
			}
			if next != 0 && uint32(w) != next {
				t.Errorf("message %d follows %d", uint32(w), next-1)
			}
			next = uint32(w) + 1
		}
	}
	blocks, torn := 0, 0
	n := r.buf.n / traceBlock
	at, last := r.at, r.last
	for end := false; !end; {
		select {
		case <-stop:
			end = true
		default:
		}
		for {
			// The closing timestamp before the copy and after it, then the block before.
			closing := r.closing(at)
			if closing>>48&0xff != traceStamp || !newer(word53(closing), last) {
				break
			}
			b := r.load(at)
			whole := r.closing(at) == closing && word53(r.closing((at+n-1)%n)) == last
			if whole {
				numbers(&b)
				blocks++
			} else {
				torn++
			}
			last, at = word53(closing), (at+1)%n
		}
	}
	wg.Wait()
	require.Positive(t, blocks)
	t.Logf("%d blocks whole, %d overrun or torn", blocks, torn)
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
