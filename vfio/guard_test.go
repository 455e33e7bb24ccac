package vfio

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// lentMemory is a mapped file of n pages and how to truncate it.
func lentMemory(t testing.TB, pages int) (Mem, func(pages int)) {
	t.Helper()
	fd, err := unix.MemfdCreate("guard-test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, int64(pages)*4096))
	b, err := unix.Mmap(fd, 0, pages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Munmap(b))
		require.NoError(t, unix.Close(fd))
	})
	return MemOf(b), func(pages int) { require.NoError(t, unix.Ftruncate(fd, int64(pages)*4096)) }
}

// TestGuarded: every way of touching memory that its owner has truncated away
// fails, and memory that is there does not.
func TestGuarded(t *testing.T) {
	m, truncate := lentMemory(t, 2)
	big := make([]byte, 8192)
	for name, access := range map[string]func(Mem, int){
		"load":         func(m Mem, at int) { _ = m.Load64(at) },
		"load32":       func(m Mem, at int) { _ = m.LoadBE32(at) },
		"store":        func(m Mem, at int) { m.Store64(at, 1) },
		"swap":         func(m Mem, at int) { m.CompareAndSwap64(at, 0, 1) },
		"copy in":      func(m Mem, at int) { m.CopyIn(at, big[:64]) },
		"copy out":     func(m Mem, at int) { m.CopyOut(at, big[:64]) },
		"copy all in":  func(m Mem, _ int) { m.CopyIn(0, big) },
		"copy all out": func(m Mem, _ int) { m.CopyOut(0, big) },
		"zero":         func(m Mem, at int) { m.Slice(at, 128).Zero() },
		"byte":         func(m Mem, at int) { m.Bytes()[at]++ },
	} {
		truncate(2)
		require.True(t, Guarded(m, 4096, access), name)
		truncate(1)
		require.False(t, Guarded(m, 4096, access), name)
		require.True(t, Guarded(m, 64, func(m Mem, at int) { m.Store64(at, 7) }), name)
	}
}

// TestGuardedPassesBugsOn: a panic that is no fault of the memory is not hidden.
func TestGuardedPassesBugsOn(t *testing.T) {
	m := MemOf(make([]byte, 64))
	require.Panics(t, func() { Guarded(m, 0, func(m Mem, _ int) { m.Load64(64) }) })
	require.PanicsWithValue(t, "a bug", func() { Guarded(m, 0, func(Mem, int) { panic("a bug") }) })
	require.Panics(t, func() { Guarded(m, 0, func(Mem, int) { _ = *(*int)(nil) }) })
}

func TestGuardedAllocatesNothing(t *testing.T) {
	m := MemOf(make([]byte, 64))
	var b [64]byte
	require.Zero(t, testing.AllocsPerRun(100, func() { Guarded(m, 0, func(m Mem, at int) { m.CopyOut(at, b[:]) }) }))
}

// BenchmarkGuarded prints what the guard adds to a copy of 64 bytes.
func BenchmarkGuarded(b *testing.B) {
	m := MemOf(make([]byte, 64))
	var p [64]byte
	access := func(m Mem, at int) { m.CopyOut(at, p[:]) }
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			access(m, 0)
		}
	})
	b.Run("guarded", func(b *testing.B) {
		for b.Loop() {
			Guarded(m, 0, access)
		}
	})
}
