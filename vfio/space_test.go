package vfio_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

const mib = 1 << 20

func newSpace(t testing.TB, m vfio.Mapper, o vfio.SpaceOptions) *vfio.AddressSpace {
	t.Helper()
	s, err := vfio.NewAddressSpace(m, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func memfds(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := strings.Count(string(b), "memfd:mlxvfio-dma")
	for _, e := range list {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(link, "mlxvfio-dma") {
			n++
		}
	}
	return n
}

// What the device sees at the buffer's IOVA is the buffer, on every kind of
// memory; it begins at zero, also where another buffer was before.
func TestBuffer(t *testing.T) {
	for _, kind := range []vfio.MemoryKind{vfio.MemoryAuto, vfio.MemoryMemFD, vfio.MemoryHeap} {
		m := vfiotest.NewMapper(vfio.DMALimits{})
		s := newSpace(t, m, vfio.SpaceOptions{Memory: kind})
		require.NotEqual(t, vfio.MemoryAuto, s.Memory())
		for round := range 2 {
			b, err := s.Alloc(10000, vfio.BufferOptions{Name: "test"})
			require.NoError(t, err)
			require.Equal(t, 10000, b.Size())
			require.Equal(t, 10000, b.Len())
			require.Zero(t, b.IOVA()%4096)
			require.Equal(t, make([]byte, 10000), b.Bytes(), "round %d", round)
			b.StoreBE32(8, 0x01020304)
			var p [4]byte
			require.NoError(t, m.Access(b.IOVA()+8, p[:], false))
			require.Equal(t, [4]byte{1, 2, 3, 4}, p)
			require.NoError(t, m.Access(b.IOVA()+9996, []byte{5, 6, 7, 8}, true))
			require.Equal(t, uint32(0x05060708), b.LoadBE32(9996))
			require.NoError(t, b.Free())
			require.Zero(t, b.Len(), "the view is dead")
			err = b.Free()
			require.ErrorIs(t, err, vfio.ErrClosed)
			require.ErrorContains(t, err, "test")
		}
	}
}

func TestDefaultAlignment(t *testing.T) {
	s := newSpace(t, vfiotest.NewMapper(vfio.DMALimits{}), vfio.SpaceOptions{})
	for size, align := range map[int]uint64{1: 64, 64: 64, 65: 128, 576: 1024, 1025: 2048, 4095: 4096, 4096: 4096, 5000: 4096, 64 << 10: 4096} {
		for range 3 {
			b, err := s.Alloc(size, vfio.BufferOptions{})
			require.NoError(t, err)
			require.Zero(t, b.IOVA()%align, "%d bytes at %#x", size, b.IOVA())
			if size <= 4096 {
				require.Equal(t, b.IOVA()/4096, (b.IOVA()+uint64(size)-1)/4096, "%d bytes cross a page", size)
			}
			t.Cleanup(func() { require.NoError(t, b.Free()) })
		}
	}
	b, err := s.Alloc(64, vfio.BufferOptions{Align: 64 << 10})
	require.NoError(t, err)
	require.Zero(t, b.IOVA()%(64<<10))
	require.NoError(t, b.Free())
}

func TestAllocArguments(t *testing.T) {
	s := newSpace(t, vfiotest.NewMapper(vfio.DMALimits{}), vfio.SpaceOptions{})
	for _, x := range [][2]int{{0, 0}, {-1, 0}, {64, 3}, {64, -64}, {64, 4 * mib}, {1 << 50, 0}} {
		_, err := s.Alloc(x[0], vfio.BufferOptions{Align: x[1]})
		require.ErrorIs(t, err, vfio.ErrRange, "size %d, alignment %d", x[0], x[1])
	}
	require.Zero(t, s.Stats().MapCalls)
}

// Slabs grow, so that 12,868 pages, which a ConnectX-4 asks for, are five
// mappings; each begins at a 2 MiB boundary, and none at 0.
func TestSlabsGrow(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s := newSpace(t, m, vfio.SpaceOptions{Memory: vfio.MemoryMemFD})
	seen := map[uint64]bool{}
	var pages []*vfio.Buffer
	for range 12868 {
		b, err := s.Alloc(4096, vfio.BufferOptions{Name: "page"})
		require.NoError(t, err)
		require.False(t, seen[b.IOVA()], "handed out twice")
		seen[b.IOVA()] = true
		pages = append(pages, b)
	}
	var sizes []int
	for _, x := range m.Mappings() {
		require.NotZero(t, x.IOVA)
		require.Zero(t, x.IOVA%(2*mib))
		require.NotEqual(t, -1, x.FD)
		sizes = append(sizes, len(x.Bytes)/mib)
	}
	require.Equal(t, []int{2, 4, 8, 16, 32}, sizes)
	require.Equal(t, vfio.SpaceStats{Mappings: 5, MapCalls: 5, MappedBytes: 62 * mib, LiveBuffers: 12868, LiveBytes: 12868 * 4096}, s.Stats())
	for _, b := range pages {
		require.NoError(t, b.Free())
	}
	require.Equal(t, 5, s.Stats().Mappings, "slabs stay for the next life")
	require.NoError(t, s.Trim())
	require.Equal(t, vfio.SpaceStats{MapCalls: 5, UnmapCalls: 5}, s.Stats())
	require.Zero(t, memfds(t))
}

// What is larger than the largest slab gets a mapping of its own, which goes with
// it.
func TestLargeBuffer(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s := newSpace(t, m, vfio.SpaceOptions{SlabMax: 4 * mib})
	b, err := s.Alloc(5*mib, vfio.BufferOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, s.Stats().Mappings)
	require.Equal(t, uint64(6*mib), s.Stats().MappedBytes)
	small, err := s.Alloc(64, vfio.BufferOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, s.Stats().Mappings, "nothing else lives in it")
	require.NoError(t, b.Free())
	require.Equal(t, 1, s.Stats().Mappings)
	require.NoError(t, small.Free())
}

func TestReadOnly(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s := newSpace(t, m, vfio.SpaceOptions{})
	ro, err := s.Alloc(4096, vfio.BufferOptions{ReadOnly: true})
	require.NoError(t, err)
	rw, err := s.Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	ro.CopyIn(0, []byte("fixed"))
	p := make([]byte, 5)
	require.NoError(t, m.Access(ro.IOVA(), p, false))
	require.Equal(t, "fixed", string(p))
	require.ErrorIs(t, m.Access(ro.IOVA(), p, true), vfio.ErrNotSupported)
	require.NoError(t, m.Access(rw.IOVA(), p, true))
	require.Equal(t, uint64(4*mib), s.Stats().MappedBytes, "either kind grows by itself")
	require.NoError(t, ro.Free())
	require.NoError(t, rw.Free())
}

// IOVA 0 and the interrupt window are never handed out, reported usable or not.
func TestForbiddenIOVA(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0, Last: 4*4096 - 1}}})
	s := newSpace(t, m, vfio.SpaceOptions{SlabMin: 4096, SlabMax: 4096})
	var got []uint64
	for {
		b, err := s.Alloc(4096, vfio.BufferOptions{})
		if err != nil {
			require.ErrorIs(t, err, vfio.ErrNoSpace)
			break
		}
		got = append(got, b.IOVA())
		t.Cleanup(func() { require.NoError(t, b.Free()) })
	}
	require.Equal(t, []uint64{0x1000, 0x2000, 0x3000}, got)

	m = vfiotest.NewMapper(vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0xfedff000, Last: 0xfef00fff}}})
	s = newSpace(t, m, vfio.SpaceOptions{SlabMin: 4096, SlabMax: 4096})
	got = nil
	for range 2 {
		b, err := s.Alloc(4096, vfio.BufferOptions{})
		require.NoError(t, err)
		got = append(got, b.IOVA())
		t.Cleanup(func() { require.NoError(t, b.Free()) })
	}
	require.Equal(t, []uint64{0xfedff000, 0xfef00000}, got)
	_, err := s.Alloc(4096, vfio.BufferOptions{})
	require.ErrorIs(t, err, vfio.ErrNoSpace)
}

// Where the next doubling does not fit, what fits is taken.
func TestSmallerSlab(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 2 * mib, Last: 7*mib - 1}}})
	s := newSpace(t, m, vfio.SpaceOptions{})
	var n int
	for {
		b, err := s.Alloc(mib, vfio.BufferOptions{})
		if err != nil {
			require.ErrorIs(t, err, vfio.ErrNoSpace)
			break
		}
		n++
		t.Cleanup(func() { require.NoError(t, b.Free()) })
	}
	require.Equal(t, 5, n, "2 MiB, then 2 of the 4 wanted, then the last one")
}

// Slabs that came out smaller than wanted, and not at a 2 MiB boundary, still give
// every buffer the bus alignment that was asked for.
func TestSmallSlabsAreAligned(t *testing.T) {
	f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: vfio.VerbMapDMA, Times: -1, Err: vfio.ErrNoSpace,
		Match: func(c vfio.Call) bool { return c.Len > 64<<10 }}})
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	s := newSpace(t, f.DMA(), vfio.SpaceOptions{})
	for _, x := range []struct{ size, align int }{
		{4096, 4096}, {8192, 8192}, {4096, 0}, {16 << 10, 16 << 10}, {4096, 64 << 10}, {8192, 8192}, {64, 2 * mib}, {32 << 10, 32 << 10}, {64, 64 << 10},
	} {
		b, err := s.Alloc(x.size, vfio.BufferOptions{Align: x.align})
		require.NoError(t, err)
		require.Zero(t, b.IOVA()%uint64(max(x.align, 64)), "%d bytes at %#x, aligned to %#x", x.size, b.IOVA(), x.align)
		t.Cleanup(func() { require.NoError(t, b.Free()) })
	}
}

// A space that takes no more mappings says so, and what is there can be used on.
func TestMappingsRunOut(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{MaxMappings: 2})
	s := newSpace(t, m, vfio.SpaceOptions{SlabMin: 4096, SlabMax: 4096})
	a, err := s.Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	_, err = s.Alloc(4096, vfio.BufferOptions{Name: "one more"})
	require.ErrorIs(t, err, vfio.ErrNoSpace)
	require.ErrorContains(t, err, "2 mappings")
	require.NoError(t, a.Free())
	a, err = s.Alloc(64, vfio.BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, a.Free())
	require.NoError(t, b.Free())
}

func TestBadLimits(t *testing.T) {
	for name, l := range map[string]vfio.DMALimits{
		"huge pages only": {PageSizes: 1 << 30},
		"memory kind":     {NeedsFile: true},
	} {
		_, err := vfio.NewAddressSpace(vfiotest.NewMapper(l), vfio.SpaceOptions{Memory: vfio.MemoryHeap})
		require.ErrorIs(t, err, vfio.ErrNotSupported, name)
	}
	closed := vfiotest.NewMapper(vfio.DMALimits{})
	closed.Close()
	_, err := vfio.NewAddressSpace(closed, vfio.SpaceOptions{})
	require.ErrorIs(t, err, vfio.ErrClosed)
}

// Close names what was not freed, and frees it.
func TestCloseNamesLeaks(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s, err := vfio.NewAddressSpace(m, vfio.SpaceOptions{Memory: vfio.MemoryMemFD})
	require.NoError(t, err)
	var left *vfio.Buffer
	for i := range 12 {
		name := "mailbox"
		if i >= 3 {
			name = fmt.Sprint("queue ", i)
		}
		left, err = s.Alloc(4096, vfio.BufferOptions{Name: name})
		require.NoError(t, err)
	}
	err = s.Close()
	var e *vfio.Error
	require.ErrorAs(t, err, &e)
	require.ErrorContains(t, err, "12 buffers (49152 bytes)")
	require.ErrorContains(t, err, "mailbox ×3")
	require.ErrorContains(t, err, "…")
	require.Empty(t, m.Mappings())
	require.Zero(t, memfds(t))
	require.Equal(t, vfio.SpaceStats{MapCalls: 1, UnmapCalls: 1}, s.Stats())
	require.ErrorIs(t, left.Free(), vfio.ErrClosed)
	_, err = s.Alloc(64, vfio.BufferOptions{})
	require.ErrorIs(t, err, vfio.ErrClosed)
	require.NoError(t, s.Close(), "second Close")
}

// A Map that fails leaves nothing: no memory, no IOVA, no count.
func TestMapFails(t *testing.T) {
	boom := errors.New("boom")
	f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: vfio.VerbMapDMA, Err: boom}})
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	s, err := vfio.NewAddressSpace(f.DMA(), vfio.SpaceOptions{Memory: vfio.MemoryMemFD})
	require.NoError(t, err)
	_, err = s.Alloc(4096, vfio.BufferOptions{Name: "command page"})
	require.ErrorIs(t, err, boom)
	require.ErrorContains(t, err, "command page")
	require.Zero(t, memfds(t))
	require.Equal(t, vfio.SpaceStats{}, s.Stats())
	b, err := s.Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	require.Equal(t, uint64(2*mib), b.IOVA(), "the IOVA of the failed attempt")
	require.NoError(t, b.Free())
	require.NoError(t, s.Close())
}

// Memory whose mapping cannot be removed is kept until it can: a device could
// still write to it.
func TestUnmapFails(t *testing.T) {
	boom := errors.New("boom")
	f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: vfio.VerbUnmapDMA, Err: boom, Times: 2}})
	s, err := vfio.NewAddressSpace(f.DMA(), vfio.SpaceOptions{Memory: vfio.MemoryMemFD, SlabMax: 2 * mib})
	require.NoError(t, err)
	b, err := s.Alloc(3*mib, vfio.BufferOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, b.Free(), boom)
	require.NotZero(t, memfds(t))
	require.ErrorIs(t, s.Close(), boom)
	require.NotZero(t, memfds(t))
	require.Equal(t, 1, s.Stats().Mappings)
	require.NoError(t, s.Close(), "the third attempt works")
	require.Zero(t, memfds(t))
	require.Zero(t, s.Stats().Mappings)
	require.NoError(t, f.Close())
}

// With the transport closed first its mappings are gone, and the memory can go.
func TestUnmapAfterClose(t *testing.T) {
	ram := vfiotest.NewRAM(vfiotest.RAMOptions{})
	s, err := vfio.NewAddressSpace(ram.DMA(), vfio.SpaceOptions{Memory: vfio.MemoryMemFD})
	require.NoError(t, err)
	b, err := s.Alloc(64, vfio.BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, b.Free())
	require.NoError(t, ram.Close())
	require.NoError(t, s.Close())
	require.Zero(t, memfds(t))
}

// Buffers of any size and alignment, allocated and freed in any order by several
// goroutines, never overlap, are zero at first, and all go.
func TestConcurrentAlloc(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s := newSpace(t, m, vfio.SpaceOptions{SlabMax: 8 * mib})
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for g := range 4 {
		wg.Go(func() { errs <- churn(s, uint64(g)) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	st := s.Stats()
	require.Zero(t, st.LiveBuffers)
	require.Zero(t, st.LiveBytes)
	require.NoError(t, s.Trim())
	require.Empty(t, m.Mappings())
}

// churn allocates and frees, with each buffer full of its owner's mark.
func churn(s *vfio.AddressSpace, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	var live []*vfio.Buffer
	marks := map[*vfio.Buffer]byte{}
	free := func(i int) error {
		b := live[i]
		for _, x := range b.Bytes() {
			if x != marks[b] {
				return fmt.Errorf("buffer at %#x holds %#x of another", b.IOVA(), x)
			}
		}
		live = append(live[:i], live[i+1:]...)
		return b.Free()
	}
	for n := range 400 {
		if len(live) > 20 || len(live) > 0 && r.IntN(3) == 0 {
			if err := free(r.IntN(len(live))); err != nil {
				return err
			}
			continue
		}
		size := 1 + r.IntN(20000)
		b, err := s.Alloc(size, vfio.BufferOptions{Align: 64 << r.IntN(8), ReadOnly: r.IntN(4) == 0})
		if err != nil {
			return err
		}
		for i, x := range b.Bytes() {
			if x != 0 {
				return fmt.Errorf("byte %d of a new buffer is %#x", i, x)
			}
		}
		mark := byte(seed*64) + byte(n%63) + 1
		for i := range b.Bytes() {
			b.Bytes()[i] = mark
		}
		live, marks[b] = append(live, b), mark
	}
	for len(live) > 0 {
		if err := free(0); err != nil {
			return err
		}
	}
	return nil
}

func BenchmarkAllocFree(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := newSpace(b, vfiotest.NewMapper(vfio.DMALimits{}), vfio.SpaceOptions{})
			hold, err := s.Alloc(64, vfio.BufferOptions{})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				x, err := s.Alloc(size, vfio.BufferOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if err := x.Free(); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, hold.Free())
		})
	}
}

// Memory that a device can reach stays where it is until the last one who holds
// it lets go.
func TestHold(t *testing.T) {
	s := newSpace(t, vfiotest.NewMapper(vfio.DMALimits{}), vfio.SpaceOptions{})
	b, err := s.Alloc(4096, vfio.BufferOptions{Name: "held"})
	require.NoError(t, err)
	require.NoError(t, b.Hold())
	require.NoError(t, b.Hold())
	for range 2 {
		err = b.Free()
		require.ErrorIs(t, err, vfio.ErrInUse)
		require.ErrorContains(t, err, "held")
		require.Equal(t, 4096, b.Len(), "nothing was done")
		b.Unhold()
	}
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Free(), vfio.ErrClosed)
	require.ErrorIs(t, b.Hold(), vfio.ErrClosed)
	require.Panics(t, b.Unhold)
}
