package queues

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Atomics return the old value of the target in the local piece l, whose length
// must be the size of the operation. Operands are numbers; in which order they
// lie in the peer's memory, and the old value in ours, package atomics knows.

// CompareSwap posts the standard 8-byte compare-and-swap (opcode 0x11): if the
// target equals compare it becomes swap.
func (q *SendQueue) CompareSwap(wrid uint64, f Flags, l SGE, r Remote, compare, swap uint64) error {
	pi := q.pi
	if l.Len != 8 || r.Addr&7 != 0 {
		return q.badAtomic(prm.WQEAtomicCS, l, r, 8)
	}
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0CS | 4
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	put64(w, 4, swap)
	put64(w, 5, compare)
	putSGE(w, 6, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// FetchAdd posts the standard 8-byte fetch-and-add (opcode 0x12).
func (q *SendQueue) FetchAdd(wrid uint64, f Flags, l SGE, r Remote, add uint64) error {
	pi := q.pi
	if l.Len != 8 || r.Addr&7 != 0 {
		return q.badAtomic(prm.WQEAtomicFA, l, r, 8)
	}
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0FA | 4
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	put64(w, 4, add)
	w[5] = 0
	putSGE(w, 6, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// MaskedCS are the operands of a masked compare-and-swap of 4 or 8 bytes: if the
// target equals Compare where CompareMask has ones, it takes Swap where SwapMask
// has ones.
type MaskedCS struct {
	Swap, Compare, SwapMask, CompareMask uint64
}

// MaskedFA are the operands of a masked fetch-and-add of 4 or 8 bytes: a carry
// out of a bit that is set in Boundary is dropped, so that a set bit is the top
// of a field.
type MaskedFA struct {
	Add, Boundary uint64
}

// MaskedCompareSwap posts a masked compare-and-swap (opcode 0x14) of 4 or 8
// bytes; the length of l says which. The operands are only read.
func (q *SendQueue) MaskedCompareSwap(wrid uint64, f Flags, l SGE, r Remote, op *MaskedCS) error {
	pi := q.pi
	if l.Len == 4 && r.Addr&3 == 0 {
		if (op.Swap|op.Compare|op.SwapMask|op.CompareMask)>>32 != 0 {
			return q.wideOperand(prm.WQEAtomicMaskedCS)
		}
		if !q.room(1) {
			return q.full()
		}
		w, s := q.place(pi)
		c0 := q.ctrl0(pi) | c0MCS | c0Size4 | 4
		putCtrl(w, c0, f, 0)
		putRemote(w, r)
		put32s(w, 4, uint32(op.Swap), uint32(op.Compare))
		put32s(w, 5, uint32(op.SwapMask), uint32(op.CompareMask))
		putSGE(w, 6, l)
		q.commit(s, pi, 1, c0, wrid)
		return nil
	}
	if l.Len != 8 || r.Addr&7 != 0 {
		return q.badAtomic(prm.WQEAtomicMaskedCS, l, r, 4, 8)
	}
	if !q.room(2) {
		return q.full()
	}
	w, s := q.place(pi)
	x, _ := q.place(pi + 1) // the ring may end between the two blocks
	c0 := q.ctrl0(pi) | c0MCS | c0Size8 | 5
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	put64(w, 4, op.Swap)
	put64(w, 5, op.Compare)
	put64(w, 6, op.SwapMask)
	put64(w, 7, op.CompareMask)
	putSGE(x, 0, l)
	q.commit(s, pi, 2, c0, wrid)
	return nil
}

// MaskedFetchAdd posts a masked fetch-and-add (opcode 0x15) of 4 or 8 bytes; the
// length of l says which. The operands are only read.
func (q *SendQueue) MaskedFetchAdd(wrid uint64, f Flags, l SGE, r Remote, op *MaskedFA) error {
	pi := q.pi
	var c0, hi, lo uint64
	switch {
	case l.Len == 4 && r.Addr&3 == 0:
		if (op.Add|op.Boundary)>>32 != 0 {
			return q.wideOperand(prm.WQEAtomicMaskedFA)
		}
		c0, hi = c0Size4, op.Add<<32|op.Boundary
	case l.Len == 8 && r.Addr&7 == 0:
		c0, hi, lo = c0Size8, op.Add, op.Boundary
	default:
		return q.badAtomic(prm.WQEAtomicMaskedFA, l, r, 4, 8)
	}
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 |= q.ctrl0(pi) | c0MFA | 4
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	put64(w, 4, hi)
	put64(w, 5, lo)
	putSGE(w, 6, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// Largest operands a WQE can hold (ruling W4).
const (
	MaxMaskedCS = 128
	MaxMaskedFA = 256
)

// MaskedCSWide are the operands of a masked compare-and-swap of 8 bytes and more,
// in 8-byte words of ascending address. It is one compare over all of them:
// everything is swapped or nothing (ruling A5).
type MaskedCSWide struct {
	Swap, Compare, SwapMask, CompareMask []uint64
}

// MaskedFAWide are the operands of a masked fetch-and-add of 8 bytes and more, in
// 8-byte words of ascending address, each an adder of its own (ruling A6).
type MaskedFAWide struct {
	Add, Boundary []uint64
}

// MaskedCompareSwapWide posts a masked compare-and-swap of l.Len bytes: 8, 16, 32,
// 64 or 128. Every operand has l.Len/8 words.
func (q *SendQueue) MaskedCompareSwapWide(wrid uint64, f Flags, l SGE, r Remote, op *MaskedCSWide) error {
	return q.wide(prm.WQEAtomicMaskedCS, MaxMaskedCS, wrid, f, l, r, op.Swap, op.Compare, op.SwapMask, op.CompareMask)
}

// MaskedFetchAddWide posts a masked fetch-and-add of l.Len bytes: 8, 16, 32, 64,
// 128 or 256. Both operands have l.Len/8 words.
func (q *SendQueue) MaskedFetchAddWide(wrid uint64, f Flags, l SGE, r Remote, op *MaskedFAWide) error {
	return q.wide(prm.WQEAtomicMaskedFA, MaxMaskedFA, wrid, f, l, r, op.Add, op.Boundary)
}

func (q *SendQueue) wide(op prm.WQEOpcode, most uint32, wrid uint64, f Flags, l SGE, r Remote, args ...[]uint64) error {
	size := l.Len
	if size < 8 || size > most || size&(size-1) != 0 || r.Addr&uint64(size-1) != 0 {
		return q.badAtomic(op, l, r, 8, int(most))
	}
	words := int(size / 8)
	for _, a := range args {
		if len(a) != words {
			return q.refuse(op, ErrOperand, "an operand has %d words of 8 bytes; %d bytes need %d", len(a), size, words)
		}
	}
	b, err := q.begin(op, 2+len(args)*words/2+1)
	if err != nil {
		return err
	}
	b.unit(1, r.Addr, uint64(r.RKey)<<32)
	// Two words make a unit: with 8-byte operands it takes two of these.
	for i := 0; i < len(args)*words; i += 2 {
		b.unit(2+i/2, args[i/words][i%words], args[(i+1)/words][(i+1)%words])
	}
	b.unit(b.ds-1, uint64(size)<<32|uint64(l.LKey), l.Addr)
	b.finish(8+uint8(bits.TrailingZeros32(size))-2, f, 0, wrid)
	return nil
}

// badAtomic says what is wrong with the size or alignment of an atomic.
//
//go:noinline
func (q *SendQueue) badAtomic(op prm.WQEOpcode, l SGE, r Remote, sizes ...int) error {
	lo, hi := sizes[0], sizes[len(sizes)-1]
	n := int64(l.Len)
	if n < int64(lo) || n > int64(hi) || n&(n-1) != 0 {
		if lo == hi {
			return q.refuse(op, ErrOperand, "the result has %d bytes and must have %d", n, lo)
		}
		return q.refuse(op, ErrOperand, "the result has %d bytes; it must have a power of two from %d to %d", n, lo, hi)
	}
	return q.refuse(op, ErrUnaligned, "%d bytes at %#x", n, r.Addr)
}

//go:noinline
func (q *SendQueue) wideOperand(op prm.WQEOpcode) error {
	return q.refuse(op, ErrOperand, "an operand has more than the 32 bits of the operation")
}
