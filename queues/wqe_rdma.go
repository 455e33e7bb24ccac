package queues

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// maxLen: bit 31 of a data segment's byte count means inline data.
const maxLen = 1<<31 - 1

// Write posts an RDMA WRITE of one piece of memory (opcode 0x08).
func (q *SendQueue) Write(wrid uint64, f Flags, l SGE, r Remote) error {
	if q.breaksRule(f, l.Len, r) || l.Len-1 >= maxLen {
		return q.writeSlow(wrid, f, l, r)
	}
	pi := q.pi
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0Write | 3
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	putSGE(w, 4, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// writeSlow is Write of nothing, of too much, or against the rule.
//
//go:noinline
func (q *SendQueue) writeSlow(wrid uint64, f Flags, l SGE, r Remote) error {
	return q.write(prm.WQERdmaWrite, wrid, f, 0, l, nil, r)
}

// WriteImm is Write with immediate data (opcode 0x09): it takes a receive WQE of
// the peer and completes there.
func (q *SendQueue) WriteImm(wrid uint64, f Flags, imm uint32, l SGE, r Remote) error {
	return q.write(prm.WQERdmaWriteImm, wrid, f, imm, l, nil, r)
}

// Read posts an RDMA READ into one piece of memory (opcode 0x10).
func (q *SendQueue) Read(wrid uint64, f Flags, l SGE, r Remote) error {
	if l.Len-1 >= maxLen { // empty, or too long
		return q.readSlow(wrid, f, l, r)
	}
	pi := q.pi
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0Read | 3
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	putSGE(w, 4, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

//go:noinline
func (q *SendQueue) readSlow(wrid uint64, f Flags, l SGE, r Remote) error {
	return q.rdma(prm.WQERdmaRead, wrid, f, 0, l, nil, r)
}

// breaksRule tells whether a write is not atomic at the peer, and had to be.
func (q *SendQueue) breaksRule(f Flags, n uint32, r Remote) bool {
	return q.atomicMax != 0 && r.Addr&(q.atomicMax-1)+uint64(n) > q.atomicMax && f&NonAtomic == 0
}

// WriteV is Write of several pieces, gathered in order.
func (q *SendQueue) WriteV(wrid uint64, f Flags, l []SGE, r Remote) error {
	return q.write(prm.WQERdmaWrite, wrid, f, 0, SGE{}, l, r)
}

// WriteImmV is WriteImm of several pieces.
func (q *SendQueue) WriteImmV(wrid uint64, f Flags, imm uint32, l []SGE, r Remote) error {
	return q.write(prm.WQERdmaWriteImm, wrid, f, imm, SGE{}, l, r)
}

// write is the general form of writes.
func (q *SendQueue) write(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, first SGE, more []SGE, r Remote) error {
	if q.atomicMax != 0 && f&NonAtomic == 0 {
		n := uint64(first.Len)
		for i := range more {
			n += uint64(more[i].Len)
		}
		if r.Addr&(q.atomicMax-1)+n > q.atomicMax {
			return q.notAtomic(op, n, r)
		}
	}
	return q.rdma(op, wrid, f, imm, first, more, r)
}

// ReadV is Read scattered over several pieces, in order.
func (q *SendQueue) ReadV(wrid uint64, f Flags, l []SGE, r Remote) error {
	return q.rdma(prm.WQERdmaRead, wrid, f, 0, SGE{}, l, r)
}

// rdma is the general form: any number of pieces, empty ones among them.
func (q *SendQueue) rdma(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, first SGE, more []SGE, r Remote) error {
	n, err := q.countSGEs(op, first, more)
	if err != nil {
		return err
	}
	b, err := q.begin(op, 2+n)
	if err != nil {
		return err
	}
	b.unit(1, r.Addr, uint64(r.RKey)<<32)
	b.sges(2, first, more)
	b.finish(0, f, imm, wrid)
	return nil
}

// WriteInline is an RDMA WRITE whose data travel inside the WQE: p is copied and
// free again when the method returns.
func (q *SendQueue) WriteInline(wrid uint64, f Flags, p []byte, r Remote) error {
	n := uint64(len(p))
	if n-1 >= oneBlockInline || q.breaksRule(f, uint32(n), r) { // empty, more than one block, or against the rule
		return q.writeInline(prm.WQERdmaWrite, wrid, f, 0, p, r)
	}
	pi := q.pi
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0Write | ((4+n+15)/16 + 2)
	putCtrl(w, c0, f, 0)
	putRemote(w, r)
	if len(p) == 16 {
		putInline16(w, (*[16]byte)(p))
	} else {
		putInline(q.block(pi), p)
	}
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// WriteImmInline is WriteInline with immediate data.
func (q *SendQueue) WriteImmInline(wrid uint64, f Flags, imm uint32, p []byte, r Remote) error {
	return q.writeInline(prm.WQERdmaWriteImm, wrid, f, imm, p, r)
}

// writeInline is the general form of inline writes.
func (q *SendQueue) writeInline(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, p []byte, r Remote) error {
	b, err := q.begin(op, 2+inlineUnits(len(p)))
	if err != nil {
		return err
	}
	if q.breaksRule(f, uint32(len(p)), r) {
		return q.notAtomic(op, uint64(len(p)), r)
	}
	b.unit(1, r.Addr, uint64(r.RKey)<<32)
	b.inline(2, p)
	b.finish(0, f, imm, wrid)
	return nil
}

// oneBlockInline is the most inline data that one block holds behind control and
// remote address segment.
const oneBlockInline = WQEBB - 2*wqeUnit - 4

// putInline writes 1 … 28 bytes of inline data and zero padding (ruling W2) into
// the last two units of a block.
func putInline(w *[WQEBB]byte, p []byte) {
	binary.BigEndian.PutUint32(w[32:36], inlineBit|uint32(len(p)))
	n := 36 + copy(w[36:], p)
	clear(w[n : (n+15)&^15])
}

// notAtomic is the refusal of the write rule.
//
//go:noinline
func (q *SendQueue) notAtomic(op prm.WQEOpcode, n uint64, r Remote) error {
	m := q.atomicMax
	why := "crosses a boundary of that size"
	if n > m {
		why = "is longer than that"
	}
	return q.refuse(op, ErrNotAtomicWrite, "%d bytes at %#x: the peer writes up to %d bytes atomically and this one %s; split or align it, or post it with NonAtomic", n, r.Addr, m, why)
}
