package vfio

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Mem is memory that host and device both see: DMA memory of the driver, or the
// same memory as the model sees it. Offsets are bytes. Words are loaded and
// stored as single aligned accesses in big-endian (BE) or host order (plain
// names); an offset that is out of bounds or not aligned panics, as a slice
// would. Atomic methods synchronise as sync/atomic does, so an ownership word
// accessed with them orders the plain copies around it for the race detector as
// well as for the CPU; toward a real device the barriers of package mmio are
// needed in addition (docs/ordering.md).
//
// Mem is a view without ownership; it is valid as long as the Buffer or the
// mapping behind it.
type Mem struct{ b []byte }

// Line is 64 bytes as words in host order: a block of a WQE, or a CQE.
type Line [8]uint64

// Bytes are the same 64 bytes, for what does not lie in whole words.
func (l *Line) Bytes() *[LineSize]byte { return (*[LineSize]byte)(unsafe.Pointer(l)) }

// LineSize is the number of bytes of a Line.
const LineSize = 64

// MemOf views bytes as Mem. The first byte must be 8-byte aligned for 64-bit
// access, as every mapping is.
func MemOf(b []byte) Mem { return Mem{b} }

// Len is the size in bytes.
func (m Mem) Len() int { return len(m.b) }

// Bytes is the memory itself, for bulk access and for the views of internal/prm.
func (m Mem) Bytes() []byte { return m.b }

// Lines is the memory as whole Lines. It must be 8-byte aligned.
func (m Mem) Lines() []Line {
	p := unsafe.Pointer(unsafe.SliceData(m.b))
	if uintptr(p)&7 != 0 {
		panic("vfio: lines of unaligned memory")
	}
	return unsafe.Slice((*Line)(p), len(m.b)/LineSize)
}

// Aligned tells whether the first byte lies at a multiple of n, a power of two, so
// that words of n bytes can be accessed. Of no memory it is true.
func (m Mem) Aligned(n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))&uintptr(n-1) == 0
}

// Slice is the view of n bytes at off.
func (m Mem) Slice(off, n int) Mem { return Mem{m.b[off : off+n : off+n]} }

// CopyIn copies p to off; CopyOut copies from off to p. Neither is atomic.
func (m Mem) CopyIn(off int, p []byte) { copy(m.b[off:off+len(p)], p) }

// CopyOut copies len(p) bytes at off to p.
func (m Mem) CopyOut(off int, p []byte) { copy(p, m.b[off:off+len(p)]) }

// Zero clears the memory.
func (m Mem) Zero() { clear(m.b) }

func (m Mem) p32(off int) *uint32 {
	w := m.b[off : off+4 : off+4]
	p := unsafe.Pointer(&w[0])
	if uintptr(p)&3 != 0 {
		panic("vfio: unaligned 32-bit access to DMA memory")
	}
	return (*uint32)(p)
}

func (m Mem) p64(off int) *uint64 {
	w := m.b[off : off+8 : off+8]
	p := unsafe.Pointer(&w[0])
	if uintptr(p)&7 != 0 {
		panic("vfio: unaligned 64-bit access to DMA memory")
	}
	return (*uint64)(p)
}

// Load32 and its kin are atomic accesses to one aligned word in host order.
func (m Mem) Load32(off int) uint32     { return atomic.LoadUint32(m.p32(off)) }
func (m Mem) Store32(off int, v uint32) { atomic.StoreUint32(m.p32(off), v) }
func (m Mem) Load64(off int) uint64     { return atomic.LoadUint64(m.p64(off)) }
func (m Mem) Store64(off int, v uint64) { atomic.StoreUint64(m.p64(off), v) }

// LoadBE32 and its kin are atomic accesses to one aligned big-endian word.
func (m Mem) LoadBE32(off int) uint32     { return be32(m.Load32(off)) }
func (m Mem) StoreBE32(off int, v uint32) { m.Store32(off, be32(v)) }
func (m Mem) LoadBE64(off int) uint64     { return be64(m.Load64(off)) }
func (m Mem) StoreBE64(off int, v uint64) { m.Store64(off, be64(v)) }

// CompareAndSwap32 and CompareAndSwap64 are atomic read-modify-writes in host order.
func (m Mem) CompareAndSwap32(off int, was, now uint32) bool {
	return atomic.CompareAndSwapUint32(m.p32(off), was, now)
}

// CompareAndSwap64 is the 64-bit form of CompareAndSwap32.
func (m Mem) CompareAndSwap64(off int, was, now uint64) bool {
	return atomic.CompareAndSwapUint64(m.p64(off), was, now)
}

// hostLE is decided once; the compiler does not know it.
var hostLE = func() bool {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], 1)
	return b[0] == 1
}()

func be32(v uint32) uint32 {
	if hostLE {
		return bits.ReverseBytes32(v)
	}
	return v
}

func be64(v uint64) uint64 {
	if hostLE {
		return bits.ReverseBytes64(v)
	}
	return v
}
