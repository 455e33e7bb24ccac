package queues

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A WQE is stored in words of 8 bytes: the first control word is read back for the
// doorbell, and two 4-byte stores read back as 8 bytes would stall. Words are in
// host order, which is little-endian wherever package mmio is, so each is swapped
// once. Indexes count words of the block.

// Opcode and opmod as they stand in the first control word.
const (
	c0Nop       = uint64(prm.WQENop) << 32
	c0SendInval = uint64(prm.WQESendInval) << 32
	c0Send      = uint64(prm.WQESend) << 32
	c0SendImm   = uint64(prm.WQESendImm) << 32
	c0Write     = uint64(prm.WQERdmaWrite) << 32
	c0WriteImm  = uint64(prm.WQERdmaWriteImm) << 32
	c0Read      = uint64(prm.WQERdmaRead) << 32
	c0CS        = uint64(prm.WQEAtomicCS) << 32
	c0FA        = uint64(prm.WQEAtomicFA) << 32
	c0MCS       = uint64(prm.WQEAtomicMaskedCS) << 32
	c0MFA       = uint64(prm.WQEAtomicMaskedFA) << 32
	c0Size4     = uint64(8) << 56 // opmod of masked atomics is 8 + log2(size) − 2 (ruling A4)
	c0Size8     = uint64(9) << 56
)

// put64 stores a big-endian quadword.
func put64(w *vfio.Line, i int, v uint64) { w[i] = bits.ReverseBytes64(v) }

// put32s stores two big-endian dwords.
func put32s(w *vfio.Line, i int, a, b uint32) {
	w[i] = bits.ReverseBytes64(uint64(a)<<32 | uint64(b))
}

// ctrl0 is the first control word; the caller adds opmod, opcode and ds.
func (q *SendQueue) ctrl0(pi uint64) uint64 { return uint64(uint16(pi))<<40 | q.qpn8 }

// putCtrl stores a control segment.
func putCtrl(w *vfio.Line, c0 uint64, f Flags, imm uint32) {
	put64(w, 0, c0)
	put32s(w, 1, uint32(f&ctrlFlags), imm)
}

// putRemote stores a remote address segment.
func putRemote(w *vfio.Line, r Remote) {
	put64(w, 2, r.Addr)
	put32s(w, 3, r.RKey, 0)
}

// putSGE stores a data segment. The compiler loads the two halves of its first
// word at once.
func putSGE(w *vfio.Line, i int, l SGE) {
	w[i] = bits.RotateLeft64(bits.ReverseBytes64(uint64(l.LKey)<<32|uint64(l.Len)), 32)
	w[i+1] = bits.ReverseBytes64(l.Addr)
}

// putCtrl0 stores the control segment of a request without immediate data. It returns
// the first control word as it lies in memory.
func putCtrl0(w *vfio.Line, c0 uint64, r *WorkRequest) uint64 {
	first8 := bits.ReverseBytes64(c0)
	w[0] = first8
	w[1] = uint64(r.Flags&ctrlFlags) << 24 // byte 11
	return first8
}

// putHead is putCtrl0, and stores the remote address segment.
func putHead(w *vfio.Line, c0 uint64, r *WorkRequest) uint64 {
	first8 := putCtrl0(w, c0, r)
	w[2] = bits.ReverseBytes64(r.Remote.Addr)
	w[3] = uint64(bits.ReverseBytes32(r.Remote.RKey))
	return first8
}

// putInline16 stores an inline segment of 16 bytes, padded with zeros (ruling W2),
// behind control and remote address segment.
func putInline16(w *vfio.Line, p *[16]byte) {
	w[4] = 16<<24 | 0x80 // bytes in host order; the data begin inside this word
	*(*[16]byte)(w.Bytes()[36:52]) = *p
	*(*[12]byte)(w.Bytes()[52:64]) = [12]byte{}
}
