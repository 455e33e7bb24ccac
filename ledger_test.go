package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// heapMapper is an I/O address space that maps everything and counts.
type heapMapper struct {
	mu    sync.Mutex
	bytes uint64
	most  uint64 // refuse to map more; 0 is no bound
}

func (m *heapMapper) Map(x vfio.Mapping) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.most > 0 && m.bytes+uint64(len(x.Bytes)) > m.most {
		return &vfio.Error{Op: "map", Err: vfio.ErrNoSpace}
	}
	m.bytes += uint64(len(x.Bytes))
	return nil
}

func (m *heapMapper) Unmap(_, size uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes -= size
	return nil
}

func (m *heapMapper) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0, Last: 1<<40 - 1}}, PageSizes: 4096}, nil
}

func testSpace(t *testing.T, m *heapMapper) *vfio.AddressSpace {
	t.Helper()
	s, err := vfio.NewAddressSpace(m, vfio.SpaceOptions{Memory: vfio.MemoryHeap, SlabMin: 1 << 20, SlabMax: 4 << 20})
	require.NoError(t, err)
	return s
}

// balanced checks the invariant of the account.
func balanced(t *testing.T, l *ledger) PageLedger {
	t.Helper()
	s := l.snapshot()
	require.Equal(t, s.Outstanding, s.Given-s.Returned-s.Dropped)
	sum := 0
	for _, f := range s.Functions {
		sum += f.Pages
	}
	require.Equal(t, s.Outstanding, sum)
	require.Equal(t, s.ChunkBytes/fwPageSize, s.Outstanding+l.nfree)
	return s
}

// Random giving, returning and dropping by several functions: the account
// balances at every step, no page has two owners, and the memory is free at the
// end.
func TestLedgerBalances(t *testing.T) {
	m := &heapMapper{}
	space := testSpace(t, m)
	l := newLedger(space, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	fns := []Function{{}, {ID: 1}, {ID: 1, EmbeddedCPU: true}, {ID: 0xffff}}
	held := map[Function][]uint64{}
	seen := map[uint64]bool{}
	for range 2000 {
		f := fns[rng.IntN(len(fns))]
		switch op := rng.IntN(10); {
		case op < 5:
			pas := make([]uint64, rng.IntN(300))
			require.NoError(t, l.ensure(t.Context(), len(pas)))
			l.take(f, pas)
			for _, pa := range pas {
				require.Zero(t, pa%fwPageSize)
				require.False(t, seen[pa], "page %#x given twice", pa)
				seen[pa] = true
			}
			held[f] = append(held[f], pas...)
		case op < 9:
			h := held[f]
			rng.Shuffle(len(h), func(i, j int) { h[i], h[j] = h[j], h[i] })
			n := rng.IntN(len(h) + 1)
			require.NoError(t, l.returned(f, h[:n]))
			for _, pa := range h[:n] {
				delete(seen, pa)
			}
			held[f] = slices.Clone(h[n:])
			require.NoError(t, l.trim(rng.IntN(1000)))
		default:
			require.Equal(t, len(held[f]), l.drop(f))
			for _, pa := range held[f] {
				delete(seen, pa)
			}
			held[f] = nil
		}
		require.Equal(t, len(seen), balanced(t, l).Outstanding)
	}
	l.dropAll()
	require.NoError(t, l.trim(0))
	require.Zero(t, balanced(t, l).Chunks)
	require.NoError(t, space.Close())
	require.Zero(t, m.bytes)
}

// What firmware returns is checked: an address nobody gave, one of another
// function, and one twice.
func TestLedgerStrays(t *testing.T) {
	l := newLedger(testSpace(t, &heapMapper{}), 0)
	a, b := make([]uint64, 3), make([]uint64, 3)
	require.NoError(t, l.ensure(t.Context(), 6))
	l.take(Function{}, a)
	l.take(Function{ID: 2}, b)
	for _, bad := range [][]uint64{{0x1234000}, {a[0] + 8}, {b[0]}, {a[0], a[0]}} {
		before := l.snapshot()
		err := l.returned(Function{}, bad)
		require.ErrorContains(t, err, "reset the function")
		require.Equal(t, before.Strays+1, balanced(t, l).Strays)
	}
	require.Equal(t, 5, l.snapshot().Outstanding, "the first of the pair was good")
}

// The pages of a real ConnectX-4 come in one mapping beside the first slab.
func TestLedgerFewMappings(t *testing.T) {
	space := testSpace(t, &heapMapper{})
	l := newLedger(space, 0)
	require.NoError(t, l.ensure(t.Context(), 6))
	require.NoError(t, l.ensure(t.Context(), 12868))
	require.LessOrEqual(t, space.Stats().Mappings, 2)
	require.Less(t, space.Stats().MappedBytes, uint64(12868*fwPageSize+4<<20), "little more is mapped than was asked for")
}

// A host that is short of room for one large piece gives many small ones; one
// that has no room at all says how much is missing and keeps nothing half done.
func TestLedgerShortOfMemory(t *testing.T) {
	m := &heapMapper{most: 12 << 20}
	l := newLedger(testSpace(t, m), 0)
	err := l.ensure(t.Context(), 4096)
	require.ErrorIs(t, err, vfio.ErrNoSpace)
	require.ErrorContains(t, err, "for firmware")
	balanced(t, l)
	require.NoError(t, l.ensure(t.Context(), 1024), "a smaller request still fits")

	l = newLedger(testSpace(t, &heapMapper{}), 100)
	require.NoError(t, l.ensure(t.Context(), 100))
	require.ErrorContains(t, l.ensure(t.Context(), 101), "Options.PageLimit")
}

// fakeFirmware answers page commands from memory.
type fakeFirmware struct {
	mu       sync.Mutex
	held     map[Function][]uint64
	refuse   error // for the next give
	withhold int   // reclaims that return nothing
	batches  []int
	cannot   []Function
	busy     int
	overlap  bool
	pause    time.Duration
}

func (f *fakeFirmware) enter() func() {
	f.mu.Lock()
	if f.busy++; f.busy > 1 {
		f.overlap = true
	}
	f.mu.Unlock()
	time.Sleep(f.pause)
	f.mu.Lock()
	return func() { f.busy--; f.mu.Unlock() }
}

func (f *fakeFirmware) QueryPages(context.Context, prm.QueryPagesOpMod) (cmdif.PageRequest, error) {
	return cmdif.PageRequest{}, nil
}

func (f *fakeFirmware) GivePages(_ context.Context, fn Function, pas []uint64) (int, error) {
	defer f.enter()()
	if f.refuse != nil {
		err := f.refuse
		f.refuse = nil
		return 0, err
	}
	f.batches = append(f.batches, len(pas))
	f.held[fn] = append(f.held[fn], pas...)
	return len(pas), nil
}

func (f *fakeFirmware) ReclaimPages(_ context.Context, fn Function, most int) ([]uint64, error) {
	defer f.enter()()
	if f.withhold > 0 {
		f.withhold--
		return nil, nil
	}
	n := min(most, len(f.held[fn]))
	out := slices.Clone(f.held[fn][:n])
	f.held[fn] = f.held[fn][n:]
	return out, nil
}

func (f *fakeFirmware) CannotGive(_ context.Context, fn Function) error {
	defer f.enter()()
	f.cannot = append(f.cannot, fn)
	return nil
}

func testWorker(t *testing.T, limit int) (*pageWorker, *fakeFirmware) {
	t.Helper()
	fw := &fakeFirmware{held: map[Function][]uint64{}}
	w := newPageWorker(fw, newLedger(testSpace(t, &heapMapper{}), limit), slog.New(slog.DiscardHandler), func() time.Duration { return 5 * time.Second })
	return w, fw
}

// settled waits until the worker has served what was posted before.
func settled(t *testing.T, w *pageWorker) {
	require.NoError(t, w.do(t.Context(), func() error { return nil }))
}

// Any number of requests may be in flight, positive and negative, of several
// functions; one goroutine serves them in order.
func TestPageWorkerServesRequests(t *testing.T) {
	w, fw := testWorker(t, 0)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			f := Function{ID: uint16(i % 3)}
			w.post(pageRequest{fn: f, pages: 100})
			w.post(pageRequest{fn: f, pages: -60})
		})
	}
	wg.Wait()
	settled(t, w)
	s := w.ledger.snapshot()
	require.Equal(t, 50*40, s.Outstanding)
	require.Equal(t, 50, s.Requests)
	require.Equal(t, 50, s.Reclaims)
	require.False(t, fw.overlap, "only one page command at a time")
	require.NoError(t, w.do(t.Context(), func() error { return w.reclaim(t.Context()) }))
	require.Zero(t, balanced(t, w.ledger).Outstanding)
	w.stop(false)
	require.ErrorIs(t, w.do(t.Context(), func() error { return nil }), ErrClosed)
}

func TestPageWorkerBatches(t *testing.T) {
	w, fw := testWorker(t, 0)
	defer w.stop(false)
	w.post(pageRequest{pages: 12868})
	settled(t, w)
	require.Equal(t, []int{4096, 4096, 4096, 580}, fw.batches)
}

// A request the host cannot meet is refused as a whole: nothing is given, and
// firmware is told.
func TestPageWorkerCannotGive(t *testing.T) {
	w, fw := testWorker(t, 50)
	defer w.stop(false)
	w.post(pageRequest{fn: Function{ID: 4}, pages: 40})
	w.post(pageRequest{fn: Function{ID: 4}, pages: 11})
	settled(t, w)
	require.Equal(t, []Function{{ID: 4}}, fw.cannot)
	require.Equal(t, []int{40}, fw.batches)
	require.Equal(t, 1, w.ledger.snapshot().Refused)
}

// Pages that firmware refused are the host's; pages of a command without an
// answer stay booked until firmware returns them or is reset.
func TestPageWorkerRefusedAndUnknown(t *testing.T) {
	w, fw := testWorker(t, 0)
	defer w.stop(false)
	fw.refuse = &cmdif.CommandError{Opcode: prm.OpManagePages, Status: prm.StatusBadParam}
	require.ErrorIs(t, w.do(t.Context(), func() error { return w.give(t.Context(), Function{}, 10) }), cmdif.Status(prm.StatusBadParam))
	require.Zero(t, balanced(t, w.ledger).Outstanding)
	fw.refuse = &cmdif.TimeoutError{Opcode: prm.OpManagePages}
	require.Error(t, w.do(t.Context(), func() error { return w.give(t.Context(), Function{}, 10) }))
	require.Equal(t, 10, balanced(t, w.ledger).Outstanding)
	w.ledger.dropAll()

	// What was never sent firmware does not have.
	for _, err := range []error{
		&cmdif.TimeoutError{Opcode: prm.OpManagePages, Slot: -1},
		&cmdif.CanceledError{Opcode: prm.OpManagePages, Slot: -1, Err: context.Canceled},
		&cmdif.MessageError{Opcode: prm.OpManagePages},
		&cmdif.DeadError{Opcode: prm.OpManagePages, Slot: -1, Err: cmdif.ErrDead},
		cmdif.ErrClosed, cmdif.ErrQuarantined,
	} {
		fw.refuse = err
		require.ErrorIs(t, w.do(t.Context(), func() error { return w.give(t.Context(), Function{}, 10) }), err)
		require.Zero(t, balanced(t, w.ledger).Outstanding, "%v", err)
	}
	for err, want := range map[error]bool{
		&cmdif.TimeoutError{Slot: -1}: false, &cmdif.TimeoutError{Slot: 3}: true,
		&cmdif.CanceledError{Slot: -1}: false, &cmdif.CanceledError{Slot: 3}: true,
		cmdif.ErrClosed: false, cmdif.ErrQuarantined: true, vfio.ErrGone: true,
	} {
		require.Equal(t, want, lost(err), "%v", err)
	}
}

// A request that cannot be met leaves no memory behind, and looking for it ends
// with the caller's time.
func TestPageWorkerRefusalFrees(t *testing.T) {
	m := &heapMapper{most: 256 << 20}
	space := testSpace(t, m)
	fw := &fakeFirmware{held: map[Function][]uint64{}}
	w := newPageWorker(fw, newLedger(space, 0), discard(), func() time.Duration { return time.Second })
	defer w.stop(false)
	w.post(pageRequest{pages: 10})
	settled(t, w)
	w.post(pageRequest{pages: 1 << 20})
	settled(t, w)
	require.Equal(t, 1, w.ledger.snapshot().Refused)
	require.LessOrEqual(t, w.ledger.snapshot().ChunkBytes, (sparePages+maxChunk)*fwPageSize)
	require.Less(t, space.Stats().MappedBytes, uint64(128<<20))
	balanced(t, w.ledger)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	chunks := w.ledger.snapshot().Chunks
	err := w.ledger.ensure(ctx, 1<<20)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, chunks, w.ledger.snapshot().Chunks)

	// Who waits for the worker does not outwait his time.
	busy, begun := make(chan struct{}), make(chan struct{})
	go func() { _ = w.do(context.Background(), func() error { close(begun); <-busy; return nil }) }()
	<-begun
	require.ErrorIs(t, w.do(ctx, func() error { return nil }), context.Canceled)
	close(busy)
}

// The default limit is half of the memory that is available.
func TestPageLimit(t *testing.T) {
	require.Equal(t, 7, pageLimit(7))
	require.Zero(t, pageLimit(-1), "no bound")
	require.GreaterOrEqual(t, pageLimit(0), leastPageLimit)
	require.Equal(t, 1<<20, defaultPageLimit("MemTotal:       16384000 kB\nMemFree:          1000 kB\nMemAvailable:    8388608 kB\n"))
	require.Equal(t, leastPageLimit, defaultPageLimit("MemAvailable: 1000 kB\n"))
	require.Equal(t, unknownPageLimit, defaultPageLimit("MemTotal: 1000 kB\n"))
}

// A cause is told once.
func TestDistinct(t *testing.T) {
	gone := fmt.Errorf("read: %w", vfio.ErrGone)
	require.Equal(t, "free: busy", distinct(gone, []error{fmt.Errorf("undo x: %w", gone), errors.New("free: busy"), errors.New("busy")}))
	require.Equal(t, "undo x: read: device reads all ones", distinct(nil, []error{fmt.Errorf("undo x: %w", gone), fmt.Errorf("undo y: %w", gone)}))
	require.Empty(t, distinct(gone, []error{gone}))
}

func TestPageWorkerReleaseAll(t *testing.T) {
	w, fw := testWorker(t, 0)
	defer w.stop(false)
	w.post(pageRequest{fn: Function{ID: 1}, pages: 30})
	w.post(pageRequest{fn: Function{ID: 2}, pages: 5})
	w.post(pageRequest{fn: Function{ID: 1}, releaseAll: true})
	settled(t, w)
	s := balanced(t, w.ledger)
	require.Equal(t, 5, s.Outstanding)
	require.Equal(t, 30, s.Dropped)
	require.Len(t, fw.batches, 2, "no command answers a release-all")
}

// A slow reclaim is waited for while it makes progress; one without progress
// ends at the limit with the counts.
func TestPageWorkerReclaimLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, fw := testWorker(t, 0)
		defer w.stop(false)
		w.post(pageRequest{pages: 2000})
		settled(t, w)
		fw.withhold = 300
		start := time.Now()
		require.NoError(t, w.do(t.Context(), func() error { return w.reclaim(t.Context()) }))
		require.Equal(t, 3*time.Second, time.Since(start))

		w.post(pageRequest{pages: 7})
		settled(t, w)
		fw.withhold = 1 << 30
		err := w.do(t.Context(), func() error { return w.reclaim(t.Context()) })
		var le *LedgerError
		require.ErrorAs(t, err, &le)
		require.Equal(t, 7, le.Ledger.Outstanding)
		require.ErrorContains(t, err, "2007 given, 2000 returned, 0 dropped, 7 outstanding (function 0: 7)")
	})
}

// Stopping for good does not wait for a command that will never return.
func TestPageWorkerStopNow(t *testing.T) {
	w, _ := testWorker(t, 0)
	blocked := make(chan struct{})
	go func() {
		_ = w.do(t.Context(), func() error { close(blocked); <-w.ctx.Done(); return errors.New("cancelled") })
	}()
	<-blocked
	w.stop(true)
	w.post(pageRequest{pages: 5})
	require.Zero(t, w.pending(), "a stopped worker takes nothing")
}
