package vfio_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Memory of at least 8 bytes from the allocator is aligned to 8.
func TestMemAligned(t *testing.T) {
	b := make([]byte, 24)
	for off := range 9 {
		for _, n := range []int{1, 2, 4, 8} {
			require.Equal(t, off%n == 0, vfio.MemOf(b[off:]).Aligned(n), "%d bytes from byte %d on", n, off)
		}
	}
	require.True(t, vfio.Mem{}.Aligned(8))
}

// Every accessor touches its bytes, in its order, and no others.
func TestMemWords(t *testing.T) {
	fresh := func() vfio.Mem {
		m := vfio.MemOf(make([]byte, 32))
		for i := range m.Bytes() {
			m.Bytes()[i] = 0xee
		}
		return m
	}
	for name, x := range map[string]struct {
		store func(m vfio.Mem)
		want  []byte
	}{
		"StoreBE32": {func(m vfio.Mem) { m.StoreBE32(8, 0x01020304) }, []byte{1, 2, 3, 4}},
		"StoreBE64": {func(m vfio.Mem) { m.StoreBE64(8, 0x0102030405060708) }, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
		"CopyIn":    {func(m vfio.Mem) { m.CopyIn(8, []byte{9, 8, 7}) }, []byte{9, 8, 7}},
		"Slice":     {func(m vfio.Mem) { m.Slice(8, 8).StoreBE32(0, 0x01020304) }, []byte{1, 2, 3, 4}},
		"Zero":      {func(m vfio.Mem) { m.Slice(8, 5).Zero() }, []byte{0, 0, 0, 0, 0}},
	} {
		m := fresh()
		x.store(m)
		want := fresh().Bytes()
		copy(want[8:], x.want)
		require.Equal(t, want, m.Bytes(), name)
	}
	m := fresh()
	m.StoreBE64(16, 0x0102030405060708)
	require.Equal(t, uint64(0x0102030405060708), m.LoadBE64(16))
	require.Equal(t, uint32(0x05060708), m.LoadBE32(20))
	m.Store64(16, 42)
	require.Equal(t, uint64(42), m.Load64(16))
	require.False(t, m.CompareAndSwap64(16, 41, 1))
	require.True(t, m.CompareAndSwap64(16, 42, 43))
	require.Equal(t, uint64(43), m.Load64(16))
	m.Store32(4, 5)
	require.False(t, m.CompareAndSwap32(4, 4, 1))
	require.True(t, m.CompareAndSwap32(4, 5, 6))
	require.Equal(t, uint32(6), m.Load32(4))
	p := make([]byte, 3)
	m.CopyIn(1, []byte{7, 8, 9})
	m.CopyOut(1, p)
	require.Equal(t, []byte{7, 8, 9}, p)
}

func TestMemPanics(t *testing.T) {
	m := vfio.MemOf(make([]byte, 32))
	for name, f := range map[string]func(){
		"32 bits unaligned": func() { m.Load32(2) },
		"64 bits unaligned": func() { m.StoreBE64(4, 1) },
		"32 bits behind":    func() { m.Load32(32) },
		"64 bits over":      func() { m.Load64(28) },
		"negative":          func() { m.Load32(-4) },
		"copy over":         func() { m.CopyIn(30, make([]byte, 3)) },
		"slice over":        func() { m.Slice(8, 25) },
		"past a slice":      func() { m.Slice(0, 8).Load32(8) },
	} {
		require.Panics(t, f, name)
	}
}

// Additions by compare-and-swap from several goroutines are all there.
func TestMemAtomic(t *testing.T) {
	m := vfio.MemOf(make([]byte, 16))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				for v := m.Load64(8); !m.CompareAndSwap64(8, v, v+1); v = m.Load64(8) {
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, uint64(4000), m.Load64(8))
}

// What was stored before an ownership word is seen after it, also by the race
// detector.
func TestMemHandOver(t *testing.T) {
	m := vfio.MemOf(make([]byte, 128))
	done := make(chan []byte)
	go func() {
		for m.LoadBE32(64) != 1 {
			runtime.Gosched()
		}
		p := make([]byte, 5)
		m.CopyOut(0, p)
		done <- p
	}()
	m.CopyIn(0, []byte("entry"))
	m.StoreBE32(64, 1)
	require.Equal(t, "entry", string(<-done))
}
