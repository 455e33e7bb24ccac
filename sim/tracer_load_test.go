package sim

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	require.NotEmpty(t, r.drain()) // two on a slow machine, where time closes the first
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

// TestTracerChaos: whatever drivers and a tool do, in any order, memory holds
// only whole blocks of the buffer that was configured, and one side owns the
// tracer.
func TestTracerChaos(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r0 := newFlow(t, Options{Functions: 2, Seed: seed})
		drivers := []*rawTracer{newTracer(r0, 1, nil), newTracer(onFunction(t, r0.chip, 1).to(phaseInit), 0, nil)}
		c := r0.chip
		names := []string{}
		for _, k := range tracerFaults() {
			if k.Name != "trace-mkey" && k.Name != "trace-version" && k.Name != "trace-torn" && k.Name != "trace-no-memory" {
				names = append(names, k.Name)
			}
		}
		for range 400 {
			d := drivers[rng.IntN(2)]
			switch rng.IntN(14) {
			case 0:
				d.acquire()
			case 1:
				d.release()
			case 2:
				require.Equal(t, syndOK, d.conf())
			case 3, 4:
				d.ctrl(1, rng.IntN(2) == 0)
			case 5:
				d.ctrl(0, false)
			case 6:
				d.armTrace()
			case 7:
				d.tracerEvents()
			case 8:
				c.TakeTracer(rng.IntN(2) == 0)
			case 9:
				c.GiveTracer()
			case 10:
				name := names[rng.IntN(len(names))]
				require.NoError(t, c.SetFault(name, ""))
			case 11:
				require.NoError(t, c.ClearFault(""))
			case 12:
				c.SetTraceLoad(float64(rng.IntN(3) * 20_000))
			default:
				_, _ = c.EmitTrace(rng.IntN(60), TraceEdge) // it may be off
			}
			c.Advance(time.Duration(rng.IntN(3_000_000)))
			owners := c.State(0).TracerOwned + c.State(1).TracerOwned
			require.LessOrEqual(t, owners, 1)
			require.Equal(t, owners == 1, strings.HasPrefix(c.TraceStats().Owner, "function"))
		}
		for i, d := range drivers {
			for b := range d.buf.n / traceBlock {
				p := d.load(b)
				require.True(t, p == rawBlock{} || p[traceEvents-1]>>48&0xff == traceStamp, "seed %d, block %d", seed, b)
			}
			require.Zero(t, c.Counters(i).DMAFaults)
		}
	}
}
