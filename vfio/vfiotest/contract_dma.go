package vfiotest

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

func (c *contract) limits(t *testing.T) {
	l, err := c.device(t).DMA().Limits()
	require.NoError(t, err)
	require.NotEmpty(t, l.Ranges)
	require.NotZero(t, l.PageSizes)
	for i, r := range l.Ranges {
		require.Less(t, r.First, r.Last)
		if i > 0 {
			require.Greater(t, r.First, l.Ranges[i-1].Last, "ranges overlap or descend")
		}
	}
}

func (c *contract) mapDMA(t *testing.T) {
	m := c.device(t).DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	a := memory(t, l, 4<<20)
	at := place(t, l, 4<<20)
	x := vfio.Mapping{IOVA: at, Bytes: a.Bytes()[:2<<20], FD: a.FD()}
	y := vfio.Mapping{IOVA: at + 2<<20, Bytes: a.Bytes()[2<<20:], FD: a.FD(), Offset: 2 << 20}
	// Neighbours touch; the same place can be used again after unmapping; order is free.
	for range 2 {
		require.NoError(t, m.Map(x))
		require.NoError(t, m.Map(y))
		require.NoError(t, m.Unmap(x.IOVA, 2<<20))
		require.NoError(t, m.Map(x))
		require.NoError(t, m.Unmap(y.IOVA, 2<<20))
		require.NoError(t, m.Unmap(x.IOVA, 2<<20))
	}
}

func (c *contract) refuseDMA(t *testing.T) {
	m := c.device(t).DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	const size = 2 << 20
	a := memory(t, l, size)
	at := place(t, l, 4*size)
	at += size
	page := 1 << bits.TrailingZeros64(l.PageSizes)
	mapping := func(iova uint64, n int) vfio.Mapping {
		return vfio.Mapping{IOVA: iova, Bytes: a.Bytes()[:n], FD: a.FD()}
	}
	refused(t, m.Map(mapping(at, 0)), vfio.ErrRange, "empty mapping")
	refused(t, m.Map(mapping(at+1, page)), vfio.ErrRange, "misaligned IOVA")
	refused(t, m.Map(mapping(at+uint64(page)/2, page)), vfio.ErrRange, "IOVA at half a page")
	refused(t, m.Map(mapping(at, page-1)), vfio.ErrRange, "misaligned size")
	refused(t, m.Map(mapping(^uint64(0)&^uint64(page-1), 2*page)), vfio.ErrRange, "wrap around 64 bits")
	if last := l.Ranges[len(l.Ranges)-1].Last; last < 1<<63 {
		refused(t, m.Map(mapping((last+uint64(page))&^uint64(page-1), page)), vfio.ErrRange, "behind the last range")
	}
	refused(t, m.Unmap(at, size), vfio.ErrNotFound, "unmap of nothing")

	require.NoError(t, m.Map(mapping(at, size)))
	refused(t, m.Map(mapping(at, size)), vfio.ErrExists, "the same again")
	refused(t, m.Map(mapping(at-uint64(page), 2*page)), vfio.ErrExists, "overlap from below")
	refused(t, m.Map(mapping(at+size-uint64(page), 2*page)), vfio.ErrExists, "overlap from above")
	refused(t, m.Map(mapping(at+uint64(page), page)), vfio.ErrExists, "overlap inside")
	refused(t, m.Unmap(at, size-uint64(page)), vfio.ErrNotFound, "unmap of a part")
	refused(t, m.Unmap(at+uint64(page), size-uint64(page)), vfio.ErrNotFound, "unmap of another part")
	require.NoError(t, m.Unmap(at, size))
	refused(t, m.Unmap(at, size), vfio.ErrNotFound, "second unmap")
	if l.NeedsFile {
		x := mapping(at, size)
		x.FD = -1
		refused(t, m.Map(x), vfio.ErrNotSupported, "memory without a file")
	}
}

// reachDMA lets the device read and write what is mapped, and nothing else.
func (c *contract) reachDMA(t *testing.T) {
	if c.o.Access == nil {
		t.Skip("this device cannot be told to access memory")
	}
	tr := c.device(t)
	m := tr.DMA()
	l, err := m.Limits()
	require.NoError(t, err)
	a := memory(t, l, 4<<20)
	at := place(t, l, 8<<20)
	host := vfio.MemOf(a.Bytes())
	require.NoError(t, m.Map(vfio.Mapping{IOVA: at, Bytes: a.Bytes()[:2<<20], FD: a.FD()}))
	require.NoError(t, m.Map(vfio.Mapping{IOVA: at + 4<<20, Bytes: a.Bytes()[2<<20:], FD: a.FD(), Offset: 2 << 20, ReadOnly: true}))

	host.CopyIn(0x1008, []byte("from the host"))
	p := make([]byte, 13)
	require.NoError(t, c.o.Access(tr, at+0x1008, p, false))
	require.Equal(t, "from the host", string(p))
	require.NoError(t, c.o.Access(tr, at+0x2008, []byte("from the device"), true))
	q := make([]byte, 15)
	host.CopyOut(0x2008, q)
	require.Equal(t, "from the device", string(q))

	host.CopyIn(2<<20, []byte("read-only"))
	p = p[:9]
	require.NoError(t, c.o.Access(tr, at+4<<20, p, false))
	require.Equal(t, "read-only", string(p), "offset of the file")
	require.Error(t, c.o.Access(tr, at+4<<20, []byte("x"), true), "write to a read-only mapping")
	host.CopyOut(2<<20, p)
	require.Equal(t, "read-only", string(p))

	require.Error(t, c.o.Access(tr, at+2<<20, p, false), "read between the mappings")
	require.NoError(t, m.Unmap(at, 2<<20))
	require.Error(t, c.o.Access(tr, at+0x1008, p, false), "read after unmap")
	require.NoError(t, m.Unmap(at+4<<20, 2<<20))
}
