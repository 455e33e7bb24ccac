package vfiotest

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The contract of vfio.PhysicalMapper: nothing translates, so that memory decides
// its own bus address.

// either runs the part that fits the device's Mapper.
func (c *contract) either(mapped, physical func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		tr := c.open(t)
		l, err := tr.DMA().Limits()
		require.NoError(t, err)
		require.NoError(t, tr.Close())
		if _, ok := tr.DMA().(vfio.PhysicalMapper); l.Physical {
			require.True(t, ok, "a Mapper with physical addresses has no memory")
			physical(t)
			return
		}
		mapped(t)
	}
}

// page is the smallest memory of a physical Mapper.
func page(t *testing.T, l vfio.DMALimits) int {
	t.Helper()
	size := l.PageSizes & -l.PageSizes
	require.NotZero(t, size)
	return int(size)
}

// supplied is memory of a physical Mapper that is freed with the test.
func supplied(t *testing.T, m vfio.Mapper, size int) vfio.Mapping {
	t.Helper()
	b, at, err := m.(vfio.PhysicalMapper).Supply(size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.Len(t, b.Bytes(), size)
	require.Equal(t, make([]byte, size), b.Bytes(), "memory begins at zero")
	return vfio.Mapping{IOVA: at, Bytes: b.Bytes(), FD: b.FD()}
}

func (c *contract) mapPhysical(t *testing.T) {
	tr := c.device(t)
	m := tr.DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	size := page(t, l)
	x, y := supplied(t, m, size), supplied(t, m, size)
	for range 2 {
		require.NoError(t, m.Map(x))
		require.NoError(t, m.Map(y))
		require.NoError(t, m.Unmap(x.IOVA, uint64(size)))
		require.NoError(t, m.Map(x))
		require.NoError(t, m.Unmap(y.IOVA, uint64(size)))
		require.NoError(t, m.Unmap(x.IOVA, uint64(size)))
	}
}

func (c *contract) refusePhysical(t *testing.T) {
	tr := c.device(t)
	m := tr.DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	size := page(t, l)
	for _, n := range []int{0, -size, size - 1, size + 4096} {
		_, _, err := m.(vfio.PhysicalMapper).Supply(n)
		refused(t, err, vfio.ErrRange, "memory of %d bytes", n)
	}
	b, at, err := m.(vfio.PhysicalMapper).Supply(size)
	require.NoError(t, err)
	mapping := func(iova uint64, bytes []byte) vfio.Mapping {
		return vfio.Mapping{IOVA: iova, Bytes: bytes, FD: b.FD()}
	}
	refused(t, m.Map(mapping(at, nil)), vfio.ErrRange, "empty mapping")
	refused(t, m.Map(mapping(at+uint64(size), b.Bytes())), vfio.ErrRange, "where the memory is not")
	refused(t, m.Map(mapping(at+1, b.Bytes())), vfio.ErrRange, "misaligned address")
	refused(t, m.Map(mapping(at, b.Bytes()[:size-1])), vfio.ErrRange, "misaligned size")
	foreign, err := hostmem.Heap(size)
	require.NoError(t, err)
	refused(t, m.Map(mapping(at, foreign.Bytes())), vfio.ErrNotSupported, "memory of somebody else")
	require.NoError(t, foreign.Close())
	refused(t, m.Unmap(at, uint64(size)), vfio.ErrNotFound, "unmap of nothing")
	require.NoError(t, m.Map(mapping(at, b.Bytes())))
	refused(t, m.Map(mapping(at, b.Bytes())), vfio.ErrExists, "the same again")
	refused(t, b.Close(), vfio.ErrInUse, "free of mapped memory")
	refused(t, m.Unmap(at, uint64(size)-4096), vfio.ErrNotFound, "unmap of a part")
	require.NoError(t, m.Unmap(at, uint64(size)))
	refused(t, m.Unmap(at, uint64(size)), vfio.ErrNotFound, "second unmap")
	require.NoError(t, b.Close())
}

// reachPhysical lets the device use memory where it is. What is not mapped is
// within its reach, too: nothing is asserted about that.
func (c *contract) reachPhysical(t *testing.T) {
	if c.o.Access == nil {
		t.Skip("this device cannot be told to access memory")
	}
	tr := c.device(t)
	m := tr.DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	size := page(t, l)
	x := supplied(t, m, size)
	require.NoError(t, m.Map(x))
	host := vfio.MemOf(x.Bytes)
	for _, off := range []int{0x1008, size - 64} {
		host.CopyIn(off, []byte("from the host"))
		p := make([]byte, 13)
		require.NoError(t, c.o.Access(tr, x.IOVA+uint64(off), p, false))
		require.Equal(t, "from the host", string(p))
		require.NoError(t, c.o.Access(tr, x.IOVA+uint64(off), []byte("by the device"), true))
		host.CopyOut(off, p)
		require.Equal(t, "by the device", string(p))
	}
	require.NoError(t, m.Unmap(x.IOVA, uint64(size)))
}

func (c *contract) concurrentPhysical(t *testing.T) {
	tr := c.device(t)
	m := tr.DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	size := page(t, l)
	errs := make(chan error, 4)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				b, at, err := m.(vfio.PhysicalMapper).Supply(size)
				if err == nil {
					err = errors.Join(m.Map(vfio.Mapping{IOVA: at, Bytes: b.Bytes(), FD: b.FD()}),
						tr.ReadRegion(vfio.RegionBAR0, 0, make([]byte, 8)), m.Unmap(at, uint64(size)), b.Close())
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

// space cuts buffers out of whatever memory the device's Mapper takes: zeroed, apart
// from each other, aligned, and where the device finds them.
func (c *contract) space(t *testing.T) {
	tr := c.device(t)
	s, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{})
	require.NoError(t, err)
	var bufs []*vfio.Buffer
	end := map[uint64]uint64{} // last byte → first
	for i, size := range []int{1, 64, 100, 4096, 5000, 64 << 10, 1 << 20, 2 << 20, 4096} {
		b, err := s.Alloc(size, vfio.BufferOptions{Name: "contract", ReadOnly: i%3 == 2})
		require.NoError(t, err, "%d bytes", size)
		bufs = append(bufs, b)
		require.Equal(t, size, b.Len())
		require.Equal(t, make([]byte, size), b.Bytes(), "%d bytes", size)
		require.NotZero(t, b.IOVA())
		require.Zero(t, b.IOVA()%64, "%d bytes", size)
		for last, first := range end {
			require.False(t, b.IOVA() <= last && first <= b.IOVA()+uint64(size)-1, "%d bytes at %#x lie over %#x", size, b.IOVA(), first)
		}
		end[b.IOVA()+uint64(size)-1] = b.IOVA()
		b.Bytes()[size-1] = 0xa5
		if c.o.Access != nil {
			p := []byte{0}
			require.NoError(t, c.o.Access(tr, b.IOVA()+uint64(size)-1, p, false))
			require.Equal(t, byte(0xa5), p[0], "%d bytes", size)
		}
	}
	for _, b := range bufs {
		require.NoError(t, b.Free())
	}
	again, err := s.Alloc(4096, vfio.BufferOptions{})
	require.NoError(t, err)
	require.Equal(t, make([]byte, 4096), again.Bytes(), "memory that was used before")
	require.NoError(t, again.Free())
	require.NoError(t, s.Close())
	require.Zero(t, s.Stats().Mappings)
}
