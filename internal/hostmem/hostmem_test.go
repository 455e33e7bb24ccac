package hostmem

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mapped counts the mappings of this process that name a memfd.
func mapped(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "/memfd:"+name)
}

func open(t *testing.T, name string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range list {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(link, name) {
			n++
		}
	}
	return n
}

func TestMemFD(t *testing.T) {
	for _, size := range []int{4096, 12288, HugeSize, 3 * HugeSize} {
		a, err := MemFD("mlxvfio-hm", size)
		require.NoError(t, err)
		b := a.Bytes()
		require.Len(t, b, size)
		require.Equal(t, size, cap(b))
		require.Zero(t, uintptr(unsafe.Pointer(&b[0]))%HugeSize, "address")
		require.Equal(t, make([]byte, size), b, "memory begins at zero")
		// The file is the memory: what one shows the other has.
		b[size-1] = 0x5a
		p := make([]byte, 1)
		_, err = unix.Pread(a.FD(), p, int64(size-1))
		if !a.Huge() { // hugetlbfs reads only through the page cache of huge pages
			require.NoError(t, err)
			require.Equal(t, byte(0x5a), p[0])
		}
		require.Equal(t, 1, mapped(t, "mlxvfio-hm"))
		require.NoError(t, a.Close())
		require.NoError(t, a.Close(), "second Close")
		require.Equal(t, -1, a.FD())
		require.Nil(t, a.Bytes())
		require.Zero(t, mapped(t, "mlxvfio-hm"))
		require.Zero(t, open(t, "mlxvfio-hm"))
	}
}

// The reservation around the mapping is given back: address space does not grow.
func TestNoAddressSpaceLeak(t *testing.T) {
	lines := func() int {
		b, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Count(string(b), "\n")
	}
	a, err := MemFD("mlxvfio-hm", 4096)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	before := lines()
	for range 50 {
		a, err := MemFD("mlxvfio-hm", HugeSize+4096)
		require.NoError(t, err)
		require.NoError(t, a.Close())
	}
	require.InDelta(t, before, lines(), 10)
}

// Huge pages are used when the machine has them, and nothing is left of the
// attempt when it has not.
func TestHuge(t *testing.T) {
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	a, aerr := MemFD("mlxvfio-hm", HugeSize)
	require.NoError(t, aerr)
	if err != nil || strings.TrimSpace(string(b)) == "0" {
		require.False(t, a.Huge())
	} else {
		require.True(t, a.Huge())
	}
	require.Equal(t, 1, open(t, "mlxvfio-hm"))
	require.NoError(t, a.Close())
}

func TestHeap(t *testing.T) {
	for _, size := range []int{4096, HugeSize} {
		a, err := Heap(size)
		require.NoError(t, err)
		require.Len(t, a.Bytes(), size)
		require.Equal(t, size, cap(a.Bytes()))
		require.Zero(t, uintptr(unsafe.Pointer(&a.Bytes()[0]))%4096)
		require.Equal(t, -1, a.FD())
		require.False(t, a.Huge())
		view := a.Bytes()
		require.NoError(t, a.Close())
		view[size-1] = 1 // a view outlives the arena: it is Go memory
		require.Nil(t, a.Bytes())
	}
}

func TestSizes(t *testing.T) {
	for _, size := range []int{0, -4096, 1, 4095, 4097} {
		_, err := MemFD("mlxvfio-hm", size)
		require.ErrorIs(t, err, ErrSize, "%d", size)
		_, err = Heap(size)
		require.ErrorIs(t, err, ErrSize, "%d", size)
	}
	require.Zero(t, open(t, "mlxvfio-hm"))
}

// More than an address space holds: an error, and no file left.
func TestTooLarge(t *testing.T) {
	_, err := MemFD("mlxvfio-hm", 1<<50)
	require.Error(t, err)
	require.Zero(t, open(t, "mlxvfio-hm"))
}
