package queues

import (
	"encoding/binary"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// A WQE is stored in words of 8 bytes. The first control word is read back for
// the doorbell, and two 4-byte stores read back as 8 bytes would stall. Values are
// swapped before they are stored: of a big-endian store of a value that is partly
// constant the compiler makes byte stores.

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

// put32 stores a big-endian dword at byte off of a block.
func put32(w *[WQEBB]byte, off int, v uint32) {
	binary.LittleEndian.PutUint32(w[off:off+4], bits.ReverseBytes32(v))
}

// put64 stores a big-endian quadword at byte off of a block.
func put64(w *[WQEBB]byte, off int, v uint64) {
	binary.LittleEndian.PutUint64(w[off:off+8], bits.ReverseBytes64(v))
}

// zero64 stores 8 bytes of zeros; of put64 the compiler would swap them first.
func zero64(w *[WQEBB]byte, off int) { binary.LittleEndian.PutUint64(w[off:off+8], 0) }

// put32s stores two big-endian dwords at byte off of a block.
func put32s(w *[WQEBB]byte, off int, a, b uint32) {
	binary.LittleEndian.PutUint64(w[off:off+8], bits.ReverseBytes64(uint64(a)<<32|uint64(b)))
}

// ctrl0 is the first control word; the caller adds opmod, opcode and ds.
func (q *SendQueue) ctrl0(pi uint32) uint64 { return uint64(uint16(pi))<<40 | uint64(q.qpn8) }

// putCtrl stores a control segment.
func putCtrl(w *[WQEBB]byte, c0 uint64, f Flags, imm uint32) {
	put64(w, 0, c0)
	put32s(w, 8, uint32(f&ctrlFlags), imm)
}

// putRemote stores a remote address segment.
func putRemote(w *[WQEBB]byte, r Remote) {
	put64(w, 16, r.Addr)
	put32s(w, 24, r.RKey, 0)
}

// putSGE stores a data segment of n bytes.
func putSGE(w *[WQEBB]byte, off int, n uint32, l SGE) {
	put32s(w, off, n, l.LKey)
	put64(w, off+8, l.Addr)
}
