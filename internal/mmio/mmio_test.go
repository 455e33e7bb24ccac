package mmio

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// guarded is memory with a pattern on both sides of the words that are stored to.
func guarded() []uint64 {
	b := make([]uint64, 40)
	for i := range b {
		b[i] = 0xa5a5a5a5a5a5a5a5
	}
	return b
}

// A store writes its word and not a bit beside it.
func TestStoreWidth(t *testing.T) {
	b := guarded()
	p := unsafe.Pointer(&b[1])
	Store32(p, 0x01020304)
	require.Equal(t, uint32(0x01020304), Load32(p))
	require.Equal(t, uint32(0xa5a5a5a5), Load32(unsafe.Add(p, 4)), "the neighbour above")
	Store32(unsafe.Add(p, 4), 0xfffffffe)
	require.Equal(t, uint32(0x01020304), Load32(p), "the neighbour below")
	require.Equal(t, uint32(0xfffffffe), Load32(unsafe.Add(p, 4)))
	Store64(unsafe.Add(p, 8), 0x0102030405060708)
	require.Equal(t, uint64(0x0102030405060708), Load64(unsafe.Add(p, 8)))
	require.Equal(t, uint64(0x0102030405060708), b[2], "host order")
	for i, v := range b {
		if i != 1 && i != 2 {
			require.Equal(t, uint64(0xa5a5a5a5a5a5a5a5), v, "word %d", i)
		}
	}
}

// A doorbell writes its two words and not a bit beside them.
func TestDoorbell(t *testing.T) {
	b := guarded()
	Doorbell((*uint32)(unsafe.Pointer(&b[1])), 0x01020304, unsafe.Pointer(&b[20]), 0x1112131415161718)
	for i, v := range b {
		switch i {
		case 1:
			require.Equal(t, uint32(0x01020304), Load32(unsafe.Pointer(&b[1])), "the record")
			require.Equal(t, uint32(0xa5a5a5a5), Load32(unsafe.Add(unsafe.Pointer(&b[1]), 4)), "its neighbour")
		case 20:
			require.Equal(t, uint64(0x1112131415161718), v, "the register")
		default:
			require.Equal(t, uint64(0xa5a5a5a5a5a5a5a5), v, "word %d", i)
		}
	}
}

func TestCopy64(t *testing.T) {
	for _, n := range []int{0, 64, 128, 256} {
		src := make([]byte, 256)
		for i := range src {
			src[i] = byte(i*7 + 1)
		}
		b := guarded()
		Copy64(unsafe.Pointer(&b[4]), unsafe.Pointer(&src[0]), uintptr(n))
		got := unsafe.Slice((*byte)(unsafe.Pointer(&b[4])), 256)
		require.Equal(t, src[:n], got[:n])
		for i := n; i < 256; i++ {
			require.Equal(t, byte(0xa5), got[i], "behind %d bytes", n)
		}
		require.Equal(t, uint64(0xa5a5a5a5a5a5a5a5), b[3])
	}
}

// The barriers are called on both sides of a hand-over between two goroutines;
// what they order in hardware no test on write-back memory can show, but the
// values must arrive, and the calls must return.
func TestHandOver(t *testing.T) {
	type line struct {
		data  [7]uint64
		owner uint32
		_     uint32
	}
	x := new(line)
	owner := unsafe.Pointer(&x.owner)
	const rounds = 2000
	done := make(chan uint64)
	go func() {
		var sum uint64
		for i := uint32(1); i <= rounds; i++ {
			for Load32(owner) != 2*i-1 {
				runtime.Gosched()
			}
			FromDevice()
			sum += Load64(unsafe.Pointer(&x.data[3]))
			Store32(owner, 2*i)
		}
		done <- sum
	}()
	var want uint64
	for i := uint32(1); i <= rounds; i++ {
		Store64(unsafe.Pointer(&x.data[3]), uint64(i)*3)
		ToDevice()
		FlushWC()
		Store32(owner, 2*i-1)
		for Load32(owner) != 2*i {
			runtime.Gosched()
		}
		want += uint64(i) * 3
	}
	require.Equal(t, want, <-done)
}

func BenchmarkStore32(b *testing.B) {
	var w uint64
	for b.Loop() {
		Store32(unsafe.Pointer(&w), 1)
	}
}

func BenchmarkStore64(b *testing.B) {
	var w uint64
	for b.Loop() {
		Store64(unsafe.Pointer(&w), 1)
	}
}

func BenchmarkCopy64(b *testing.B) {
	dst, src := make([]uint64, 8), make([]uint64, 8)
	b.SetBytes(64)
	for b.Loop() {
		Copy64(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), 64)
	}
}

func BenchmarkFlushWC(b *testing.B) {
	for b.Loop() {
		FlushWC()
	}
}
