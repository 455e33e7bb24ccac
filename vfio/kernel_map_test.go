package vfio

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapCalls are the calls of each backend that map.
var mapCalls = map[string]string{BackendType1: "VFIO_IOMMU_MAP_DMA", BackendIOMMUFD: "IOMMU_IOAS_MAP"}

// mapSpace is an address space of memfds over a function opened through a backend,
// with no limit of locked memory. done closes it all.
func mapSpace(t *testing.T, backend string) (k *fakeKernel, s *AddressSpace, done func()) {
	k = newFakeCDevs(t)
	o := k.options()
	o.Backend = backend
	tr, err := Open("0000:01:00.0", o)
	require.NoError(t, err)
	s, err = NewAddressSpace(tr.DMA(), SpaceOptions{Memory: MemoryMemFD})
	require.NoError(t, err)
	s.lock.exempt = func() bool { return true }
	return k, s, func() {
		require.NoError(t, s.Close())
		require.NoError(t, tr.Close())
		k.requireClean(t)
	}
}

// Mapping errors name what to do; the memory that was to be mapped is freed.
func TestMapErrors(t *testing.T) {
	for _, x := range []struct {
		backend string
		errno   unix.Errno
		is      error
		remedy  string
	}{
		{BackendType1, unix.ENOMEM, ErrNoSpace, "memory"},
		{BackendType1, unix.ENOSPC, ErrNoSpace, "dma_entry_limit"},
		{BackendType1, unix.EEXIST, ErrExists, ""},
		{BackendType1, unix.EINVAL, ErrRange, "multiples"},
		{BackendType1, unix.EFAULT, unix.EFAULT, "pinned"},
		{BackendIOMMUFD, unix.ENOMEM, ErrNoSpace, "memory"},
		{BackendIOMMUFD, unix.ENOSPC, ErrNoSpace, "free DMA memory"},
		{BackendIOMMUFD, unix.EEXIST, ErrExists, ""},
		{BackendIOMMUFD, unix.EINVAL, ErrRange, "multiples"},
		{BackendIOMMUFD, unix.EOVERFLOW, ErrRange, ""},
		{BackendIOMMUFD, unix.EFAULT, unix.EFAULT, "pinned"},
	} {
		t.Run(x.backend+"/"+unix.ErrnoName(x.errno), func(t *testing.T) {
			k, s, done := mapSpace(t, x.backend)
			memfds := openFiles(t, "mlxvfio-dma")
			k.hook = func(name string) unix.Errno {
				if name == mapCalls[x.backend] {
					return x.errno
				}
				return 0
			}
			_, err := s.Alloc(4096, BufferOptions{})
			require.ErrorIs(t, err, x.is)
			require.ErrorIs(t, err, x.errno)
			require.Contains(t, err.Error(), x.remedy)
			require.Equal(t, memfds, openFiles(t, "mlxvfio-dma"))
			require.Zero(t, s.Stats().Mappings)
			k.hook = nil
			b, err := s.Alloc(4096, BufferOptions{})
			require.NoError(t, err, "a failure must not use anything up")
			require.Equal(t, uint64(2<<20), b.IOVA())
			require.NoError(t, b.Free())
			done()
		})
	}
}

// A mapping that could not be taken back is kept until it is known to be gone.
func TestUnmapErrors(t *testing.T) {
	for _, x := range []struct {
		backend, call string
		errno         unix.Errno
		is            error
	}{
		{BackendType1, "VFIO_IOMMU_UNMAP_DMA", unix.EINVAL, unix.EINVAL},
		{BackendIOMMUFD, "IOMMU_IOAS_UNMAP", unix.ENOENT, ErrNotFound},
	} {
		t.Run(x.backend, func(t *testing.T) {
			k, s, done := mapSpace(t, x.backend)
			b, err := s.Alloc(4096, BufferOptions{})
			require.NoError(t, err)
			require.NoError(t, b.Free())
			k.failCall(x.call, 1, x.errno)
			require.ErrorIs(t, s.Trim(), x.is)
			require.Equal(t, 1, s.Stats().Mappings)
			done()
		})
	}
}
