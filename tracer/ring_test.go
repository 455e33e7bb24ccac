package tracer

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// taken is a sink that checks: blocks come in order, whole, and what is missing is
// what the writer wrote in between.
type taken struct {
	t       *testing.T
	buf     [trace.BlockSize]byte
	written func(n uint64) (time uint64) // of block n of the truth
	ring    uint64
	next    uint64 // by the reader's count
	more    uint64 // by which the truth is ahead, for gaps that are "at least"
	least   bool   // such a gap is open
	blocks  int
	lost    map[capture.Cause]uint64
	atLeast int
	open    int // blocks without an end
}

func newTaken(t *testing.T, ring uint64, written func(uint64) uint64) *taken {
	return &taken{t: t, ring: ring, written: written, lost: map[capture.Cause]uint64{}}
}

func (k *taken) target() *[trace.BlockSize]byte { return &k.buf }

func (k *taken) block(n, tm uint64, closed bool, data *[trace.BlockSize]byte) {
	require.Equal(k.t, k.next, n)
	k.next++
	k.blocks++
	if !closed {
		k.open++
		return
	}
	for k.least && k.written(n+k.more) != tm {
		k.more += k.ring
		require.Less(k.t, k.more, uint64(1<<40))
	}
	k.least = false
	want := blockAt(n+k.more, tm)
	if want != *data {
		k.t.Fatalf("block %d (time %#x) is not whole:\n%x\nwant\n%x", n+k.more, tm, *data, want)
	}
	if got := k.written(n + k.more); got != tm {
		k.t.Fatalf("block %d has the time %#x, it was written with %#x", n+k.more, tm, got)
	}
}

func (k *taken) lose(first, n uint64, atLeast bool, why capture.Cause) {
	require.Equal(k.t, k.next, first)
	require.Positive(k.t, n)
	k.next += n
	k.lost[why] += n
	k.least = k.least || atLeast
	if atLeast {
		k.atLeast++
	}
}

// writer is the device.
type writer struct {
	mem   vfio.Mem
	n     uint64
	ring  uint64
	times []uint64
	time  uint64
	step  func() uint64
}

func newWriter(blocks int, start uint64) *writer {
	return &writer{mem: vfio.MemOf(make([]byte, blocks*trace.BlockSize)), ring: uint64(blocks), time: start, step: func() uint64 { return 5 }}
}

func (w *writer) write(n int) {
	for range n {
		b := blockAt(w.n, w.time)
		put(w.mem, w.n%w.ring, &b)
		w.times = append(w.times, w.time)
		w.n++
		w.time = (w.time + w.step()) & trace.TimeMask
	}
}

func (w *writer) at(n uint64) uint64 { return w.times[n] }

// TestRingAnyPace: writer and reader take turns of any length. Every block is taken or
// counted, and the count is exact unless it says that it is the least.
func TestRingAnyPace(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		blocks := 16 << rng.IntN(3)
		start := []uint64{0, 1, 1<<53 - 100, 1<<52 - 50, 0x1234567}[rng.IntN(5)]
		w := newWriter(blocks, start)
		w.step = func() uint64 { return 1 + rng.Uint64N(1000) }
		k := newTaken(t, uint64(blocks), w.at)
		r := newRing(w.mem, k)
		for range 100 {
			switch rng.IntN(4) {
			case 0:
				w.write(rng.IntN(4))
			case 1:
				w.write(rng.IntN(blocks))
			case 2:
				if rng.IntN(5) == 0 {
					w.write(rng.IntN(3 * blocks))
				}
			}
			r.drain(rng.IntN(blocks))
		}
		for r.drain(1) > 0 {
		}
		require.Equal(t, w.n, k.next+k.more, "seed %d", seed)
		require.Equal(t, k.more%uint64(blocks), uint64(0))
		require.Zero(t, k.lost[capture.CauseOrder])
		if k.more > 0 {
			require.Positive(t, k.atLeast)
		}
	}
}

// TestRingCounts: exactly how many are missing when the device came around once,
// and that it may have been more often only where nobody can know.
func TestRingCounts(t *testing.T) {
	const n = 16
	for _, c := range []struct {
		backlog, read, then int // written and seen to be there; read of them; written then
		lost                uint64
		least               bool
	}{
		{0, 0, n - 1, 0, false},
		{0, 0, n, 1, true}, // the oldest is the next to be overwritten
		{0, 0, n + 5, 6, true},
		{10, 10, n - 1, 0, false},
		{10, 10, n + 3, 4, true},
		{10, 1, n - 10, 0, false},
		{10, 1, n - 9, 1, false},
		{10, 1, n - 1, 9, false}, // the newest of those that were known to be there still is
		{10, 1, n, 10, true},
		{10, 1, n + 9, 3, true}, // 19 in fact
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w := newWriter(n, 100)
			k := newTaken(t, n, w.at)
			r := newRing(w.mem, k)
			w.write(c.backlog)
			r.drain(c.read)
			w.write(c.then)
			for r.drain(1) > 0 {
			}
			require.Equal(t, c.lost, k.lost[capture.CauseOverwritten])
			require.Equal(t, c.least, k.atLeast > 0)
			require.Equal(t, w.n, k.next+k.more)
		})
	}
}

// TestRingTorn: the device writes while blocks are copied. What is handed out is whole.
func TestRingTorn(t *testing.T) {
	const blocks = 16
	w := newWriter(blocks, 1<<53-500)
	times := make([]uint64, 400000)
	for i := range times {
		times[i] = (w.time + 3*uint64(i)) & trace.TimeMask
	}
	k := newTaken(t, blocks, func(n uint64) uint64 { return times[n] })
	r := newRing(w.mem, k)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n, tm := range times {
			b := blockAt(uint64(n), tm)
			put(w.mem, uint64(n)%blocks, &b)
			if n%(blocks/2) == 0 {
				runtime.Gosched() // so that the reader is near, also on one core
			}
		}
	})
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; ; {
		n := r.drain(64)
		if n > 0 {
			continue
		}
		if over {
			break
		}
		select {
		case <-done:
			over = true
		default:
		}
	}
	require.Equal(t, uint64(len(times)), k.next+k.more)
	t.Logf("%d taken, %v missing, %d copies torn, %d times around", k.blocks, k.lost, r.stats.torn, r.stats.laps)
}

// meddler is a sink during whose copies the device writes.
type meddler struct {
	*taken
	during func()
}

func (m *meddler) target() *[trace.BlockSize]byte {
	if f := m.during; f != nil {
		m.during = nil
		f()
	}
	return m.taken.target()
}

// TestRingOvertaken: the device writes between the look at a block and the end of its
// copy, which is then not handed out.
func TestRingOvertaken(t *testing.T) {
	const blocks = 16
	for _, more := range []int{blocks - 4, blocks - 3, blocks - 2, blocks - 1, blocks, blocks + 3} {
		w := newWriter(blocks, 100)
		m := &meddler{taken: newTaken(t, blocks, w.at)}
		r := newRing(w.mem, m)
		w.write(5)
		require.Equal(t, 3, r.drain(3))
		m.during = func() { w.write(more) } // while block 3 is copied
		for r.drain(1) > 0 {
		}
		require.Equal(t, w.n, m.next+m.more)
		// Block 3 is good until the place in front of it is written again.
		lost := max(0, int(w.n)-(3-1+blocks))
		if lost > 0 {
			lost = int(w.n) - blocks + 1 - 3
		}
		require.EqualValues(t, lost, m.lost[capture.CauseOverwritten], "%d more", more)
		require.EqualValues(t, min(lost, 1), r.stats.torn)
	}
	// The block alone is written again, as no device should: the copy is made anew.
	w := newWriter(blocks, 100)
	m := &meddler{taken: newTaken(t, blocks, w.at)}
	r := newRing(w.mem, m)
	w.write(4)
	require.Equal(t, 3, r.drain(3))
	m.during = func() {
		w.times[3]++
		b := blockAt(3, w.times[3])
		put(w.mem, 3, &b)
	}
	r.drain(5)
	require.Equal(t, 4, m.blocks)
	require.Empty(t, m.lost)
	require.EqualValues(t, 1, r.stats.torn)
}

// TestFeederGap: what a gap record says is all that was missing since the last block.
func TestFeederGap(t *testing.T) {
	q := newQueue(4)
	f := &feeder{q: q}
	give := func(n, tm uint64) {
		d := f.target()
		*d = blockAt(n, tm)
		f.block(n, tm, true, d)
	}
	give(0, 10)
	f.lose(1, 2, false, capture.CauseOrder)
	f.lose(3, 4, true, capture.CauseOverwritten)
	give(7, 20)
	give(8, 30)
	require.Zero(t, q.space())
	give(9, 40)
	give(10, 50)
	var rs []capture.Record
	var r capture.Record
	for q.pop(&r) {
		rs = append(rs, r)
	}
	give(11, 60)
	for q.pop(&r) {
		rs = append(rs, r)
	}
	require.Len(t, rs, 6)
	require.Equal(t, capture.Gap{From: 10, HaveFrom: true, To: 20, HaveTo: true, First: 1, Blocks: 6, AtLeast: true, Cause: capture.CauseOrder | capture.CauseOverwritten}, rs[1].Gap)
	require.Equal(t, capture.Gap{From: 30, HaveFrom: true, To: 60, HaveTo: true, First: 9, Blocks: 2, Cause: capture.CauseBackPressure}, rs[4].Gap)
	require.EqualValues(t, 11, rs[5].Index)
	require.Equal(t, blockAt(11, 60), rs[5].Data)
}

// TestFeederOthers: clocks and notes that nobody takes are bounded, string databases
// are never dropped.
func TestFeederOthers(t *testing.T) {
	f := &feeder{q: newQueue(4)}
	for range 2 * maxOthers {
		f.add(&capture.Record{Kind: capture.KindClock})
	}
	f.add(&capture.Record{Kind: capture.KindStrings})
	f.add(&capture.Record{Kind: capture.KindNote})
	l := f.rest()
	require.Len(t, l, maxOthers+1)
	require.Equal(t, capture.KindStrings, l[maxOthers].Kind)
}

// TestRingHalfWritten: half a block lies over an old one, whose closing time is still
// there. Neither is handed out.
func TestRingHalfWritten(t *testing.T) {
	const blocks = 16
	w := newWriter(blocks, 100)
	k := newTaken(t, blocks, w.at)
	r := newRing(w.mem, k)
	w.write(blocks) // around: the first is the next to be written
	b := blockAt(99, 9999)
	for i := 0; i < trace.BlockSize/2; i += 8 {
		w.mem.StoreBE64(i, uint64(trace.EventAt(b[i:])))
	}
	r.drain(100)
	require.EqualValues(t, 1, k.lost[capture.CauseOverwritten], "the first cannot be trusted")
	require.Equal(t, blocks-1, k.blocks)
}

func TestRingOddBlocks(t *testing.T) {
	const blocks = 16
	w := newWriter(blocks, 100)
	k := newTaken(t, blocks, w.at)
	r := newRing(w.mem, k)
	w.write(3)
	require.Equal(t, 3, r.drain(100))
	require.Zero(t, r.drain(100), "nothing new")
	// Not closed, and passed over.
	put(w.mem, 3, &[trace.BlockSize]byte{1, 2, 3})
	w.n++
	w.times = append(w.times, 0)
	require.Zero(t, r.drain(100), "the device may be at it")
	w.write(2)
	require.Equal(t, 3, r.drain(100))
	require.Equal(t, 1, k.open)
	// Closed with a time that is not after the last one.
	w.time -= 5
	w.write(1)
	require.Zero(t, r.drain(100))
	w.time += 5
	w.write(1)
	require.Equal(t, 2, r.drain(100))
	require.EqualValues(t, 1, k.lost[capture.CauseOrder])
	require.Equal(t, w.n, k.next)
	// And all goes on.
	for range 50 {
		w.write(5)
		require.Equal(t, 5, r.drain(100))
	}
	require.Zero(t, k.lost[capture.CauseOverwritten])
}

// TestRingElsewhere: the device does not begin at the first place.
func TestRingElsewhere(t *testing.T) {
	const blocks = 16
	for place := range uint64(blocks) {
		w := newWriter(blocks, 100)
		k := newTaken(t, blocks, func(n uint64) uint64 { return w.times[n] })
		r := newRing(w.mem, k)
		require.False(t, r.lost(), "nothing was written yet")
		for i := range 40 {
			b := blockAt(uint64(i), w.time)
			put(w.mem, (place+uint64(i))%blocks, &b)
			w.times = append(w.times, w.time)
			w.time += 5
			if i%3 == 2 {
				if i > 2 || place < blocks-2 { // with the first place written, drain sees it itself
					require.Equal(t, place != 0 && i < 3, r.lost())
				}
				require.Equal(t, 3, r.drain(100), "place %d, block %d", place, i)
			}
		}
	}
}

// TestRingMargin: one who is overtaken again and again leaves out more each time, and
// less when it is over.
func TestRingMargin(t *testing.T) {
	const blocks = 64
	w := newWriter(blocks, 100)
	k := newTaken(t, blocks, w.at)
	r := newRing(w.mem, k)
	for range 20 {
		w.write(2 * blocks)
		r.drain(1)
	}
	require.EqualValues(t, blocks/2, r.margin)
	for range 20 * blocks {
		w.write(1)
		r.drain(4 * blocks)
	}
	require.Zero(t, r.margin)
	require.Equal(t, w.n, k.next+k.more)
}

// TestNoAllocations: from the ring to the hands of whoever takes it.
func TestNoAllocations(t *testing.T) {
	w := newWriter(64, 100)
	w.times = make([]uint64, 0, 1<<20)
	q := newQueue(16)
	f := &feeder{q: q}
	r := newRing(w.mem, f)
	var rec capture.Record
	n := 0
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		w.write(7)
		r.drain(100)
		for q.pop(&rec) {
			n++
		}
		w.write(30) // more than the queue takes
		r.drain(100)
		w.write(100) // more than the ring holds
		r.drain(100)
		for q.pop(&rec) {
			n++
		}
	}))
	require.Greater(t, n, 10000)
	require.Positive(t, f.backPressure.Load())
	require.Positive(t, f.overwritten.Load())
}

// BenchmarkRing is a block from the ring through the queue, against copying 256 bytes
// twice, which is the least it can be.
func BenchmarkRing(b *testing.B) {
	w := newWriter(4096, 100)
	w.times = make([]uint64, 0, 4096)
	q := newQueue(4096)
	f := &feeder{q: q}
	r := newRing(w.mem, f)
	var rec capture.Record
	b.SetBytes(trace.BlockSize)
	for range b.N {
		if q.ready() == 0 {
			b.StopTimer()
			w.times = w.times[:0]
			w.write(2048)
			b.StartTimer()
			r.drain(2048)
		}
		q.pop(&rec)
	}
	one := b.Elapsed().Seconds() / float64(b.N)
	b.StopTimer()
	src, mid, dst := make([]byte, 1<<20), make([]byte, 1<<20), [trace.BlockSize]byte{}
	begin := time.Now()
	for i := range b.N {
		at := i % 4096 * trace.BlockSize
		copy(mid[at:at+trace.BlockSize], src[at:])
		copy(dst[:], mid[at:])
	}
	ref := time.Since(begin).Seconds() / float64(b.N)
	b.ReportMetric(one/ref, "x_of_two_copies")
}

// TestRingStoodStill: a clock that stands still or goes back for several blocks, a time
// far ahead, and several places in a row that were not closed: all is counted at once,
// not when the device comes around, and the reader goes on as soon as times do.
func TestRingStoodStill(t *testing.T) {
	const blocks = 16
	for laps := range 3 {
		w := newWriter(blocks, 1000)
		k := newTaken(t, blocks, w.at)
		r := newRing(w.mem, k)
		for range laps*blocks + 3 {
			w.write(1)
			r.drain(2)
		}
		require.EqualValues(t, w.n, k.next)
		// Still, for four blocks.
		w.time -= 5
		w.step = func() uint64 { return 0 }
		w.write(4)
		w.time += 5
		w.step = func() uint64 { return 5 }
		r.drain(100)
		require.EqualValues(t, 3, k.lost[capture.CauseOrder], "the last may be open")
		w.write(3)
		r.drain(100)
		require.EqualValues(t, 4, k.lost[capture.CauseOrder])
		require.EqualValues(t, w.n, k.next)
		// One time far ahead, then times that are not.
		now := w.time
		w.time += 1 << 51
		w.write(1)
		w.time = now
		for range 5 * blocks {
			w.write(1)
			r.drain(100)
		}
		require.EqualValues(t, 4+5*blocks-1, k.lost[capture.CauseOrder])
		require.EqualValues(t, w.n-1, k.next)
		// Nothing is taken twice when they come to it again.
		w.time = now + 1<<51 + 5
		w.write(3)
		r.drain(100)
		require.EqualValues(t, w.n, k.next)
		// Three places not closed.
		for i := range byte(3) {
			put(w.mem, w.n%blocks, &[trace.BlockSize]byte{1, closingWord + 1: 1 + i})
			w.n++
			w.times = append(w.times, 0)
		}
		w.write(2)
		r.drain(100)
		require.EqualValues(t, w.n, k.next)
		require.Equal(t, 3, k.open)
		require.Zero(t, k.lost[capture.CauseOverwritten])
	}
}

// TestRingNewMemory: what was read before the memory was zeroed says nothing about it.
func TestRingNewMemory(t *testing.T) {
	const blocks = 16
	w := newWriter(blocks, 100)
	k := newTaken(t, blocks, w.at)
	r := newRing(w.mem, k)
	w.write(blocks - 3)
	r.drain(100)
	require.EqualValues(t, w.n, k.next)
	w.mem.Zero()
	r.restart()
	// The writer begins at the first place again, the numbers go on.
	for range 2 * blocks {
		b := blockAt(w.n, w.time)
		put(w.mem, (w.n-(blocks-3))%blocks, &b)
		w.times = append(w.times, w.time)
		w.n, w.time = w.n+1, w.time+5
		require.Equal(t, 1, r.drain(100))
	}
	require.Zero(t, k.open)
	require.EqualValues(t, w.n, k.next)
}

// TestRingOpenAfterALap: a place that was passed without being closed lies among those
// that are read after the device came around.
func TestRingOpenAfterALap(t *testing.T) {
	const blocks = 16
	w := newWriter(blocks, 100)
	k := newTaken(t, blocks, w.at)
	r := newRing(w.mem, k)
	w.write(3)
	r.drain(100)
	w.write(12)
	put(w.mem, w.n%blocks, &[trace.BlockSize]byte{1, 2, 3})
	w.n++
	w.times = append(w.times, 0)
	w.write(7)
	r.drain(100)
	require.EqualValues(t, w.n, k.next)
	require.Equal(t, 1, k.open)
	require.Positive(t, k.lost[capture.CauseOverwritten])
}
