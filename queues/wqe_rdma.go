package queues

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Opcode and ds as they stand in the first quadword of a control segment.
const (
	c0Write    = uint64(prm.WQERdmaWrite) << 32
	c0WriteImm = uint64(prm.WQERdmaWriteImm) << 32
	c0Read     = uint64(prm.WQERdmaRead) << 32
)

// maxLen: bit 31 of a data segment's byte count means inline data.
const maxLen = 1<<31 - 1

// Write posts an RDMA WRITE of one piece of memory (opcode 0x08).
func (q *SendQueue) Write(wrid uint64, f Flags, l SGE, r Remote) error {
	pi := q.pi
	if q.atomicMax != 0 && r.Addr&(q.atomicMax-1)+uint64(l.Len) > q.atomicMax && f&NonAtomic == 0 {
		return q.notAtomic(prm.WQERdmaWrite, uint64(l.Len), r)
	}
	if l.Len-1 >= maxLen { // empty, or too long
		return q.rdma(prm.WQERdmaWrite, wrid, f, 0, []SGE{l}, r)
	}
	if pi-q.ci >= q.size {
		return q.full()
	}
	w := q.block(pi)
	c0 := q.ctrl0(pi) | c0Write | 3
	put64(w, 0, c0)
	put64(w, 8, uint64(f&ctrlFlags)<<32)
	put64(w, 16, r.Addr)
	put64(w, 24, uint64(r.RKey)<<32)
	put64(w, 32, uint64(l.Len)<<32|uint64(l.LKey))
	put64(w, 40, l.Addr)
	q.commit(pi, 1, c0, wrid)
	return nil
}

// WriteImm is Write with immediate data (opcode 0x09): it takes a receive WQE of
// the peer and completes there.
func (q *SendQueue) WriteImm(wrid uint64, f Flags, imm uint32, l SGE, r Remote) error {
	pi := q.pi
	if q.atomicMax != 0 && r.Addr&(q.atomicMax-1)+uint64(l.Len) > q.atomicMax && f&NonAtomic == 0 {
		return q.notAtomic(prm.WQERdmaWriteImm, uint64(l.Len), r)
	}
	if l.Len-1 >= maxLen {
		return q.rdma(prm.WQERdmaWriteImm, wrid, f, imm, []SGE{l}, r)
	}
	if pi-q.ci >= q.size {
		return q.full()
	}
	w := q.block(pi)
	c0 := q.ctrl0(pi) | c0WriteImm | 3
	put64(w, 0, c0)
	put64(w, 8, uint64(f&ctrlFlags)<<32|uint64(imm))
	put64(w, 16, r.Addr)
	put64(w, 24, uint64(r.RKey)<<32)
	put64(w, 32, uint64(l.Len)<<32|uint64(l.LKey))
	put64(w, 40, l.Addr)
	q.commit(pi, 1, c0, wrid)
	return nil
}

// Read posts an RDMA READ into one piece of memory (opcode 0x10).
func (q *SendQueue) Read(wrid uint64, f Flags, l SGE, r Remote) error {
	pi := q.pi
	if l.Len-1 >= maxLen {
		return q.rdma(prm.WQERdmaRead, wrid, f, 0, []SGE{l}, r)
	}
	if pi-q.ci >= q.size {
		return q.full()
	}
	w := q.block(pi)
	c0 := q.ctrl0(pi) | c0Read | 3
	put64(w, 0, c0)
	put64(w, 8, uint64(f&ctrlFlags)<<32)
	put64(w, 16, r.Addr)
	put64(w, 24, uint64(r.RKey)<<32)
	put64(w, 32, uint64(l.Len)<<32|uint64(l.LKey))
	put64(w, 40, l.Addr)
	q.commit(pi, 1, c0, wrid)
	return nil
}

// WriteV is Write of several pieces, gathered in order.
func (q *SendQueue) WriteV(wrid uint64, f Flags, l []SGE, r Remote) error {
	return q.writeV(prm.WQERdmaWrite, wrid, f, 0, l, r)
}

// WriteImmV is WriteImm of several pieces.
func (q *SendQueue) WriteImmV(wrid uint64, f Flags, imm uint32, l []SGE, r Remote) error {
	return q.writeV(prm.WQERdmaWriteImm, wrid, f, imm, l, r)
}

func (q *SendQueue) writeV(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, l []SGE, r Remote) error {
	if q.atomicMax != 0 && f&NonAtomic == 0 {
		n := uint64(0)
		for i := range l {
			n += uint64(l[i].Len)
		}
		if r.Addr&(q.atomicMax-1)+n > q.atomicMax {
			return q.notAtomic(op, n, r)
		}
	}
	return q.rdma(op, wrid, f, imm, l, r)
}

// ReadV is Read scattered over several pieces, in order.
func (q *SendQueue) ReadV(wrid uint64, f Flags, l []SGE, r Remote) error {
	return q.rdma(prm.WQERdmaRead, wrid, f, 0, l, r)
}

// rdma is the general form: any number of pieces, empty ones among them.
func (q *SendQueue) rdma(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, l []SGE, r Remote) error {
	n, err := q.countSGEs(op, l)
	if err != nil {
		return err
	}
	b, err := q.begin(op, 2+n)
	if err != nil {
		return err
	}
	b.unit(1, r.Addr, uint64(r.RKey)<<32)
	b.sges(2, l)
	b.finish(0, f, imm, wrid)
	return nil
}

// WriteInline is an RDMA WRITE whose data travel inside the WQE: p is copied and
// free again when the method returns.
func (q *SendQueue) WriteInline(wrid uint64, f Flags, p []byte, r Remote) error {
	pi := q.pi
	n := uint64(len(p))
	if q.atomicMax != 0 && r.Addr&(q.atomicMax-1)+n > q.atomicMax && f&NonAtomic == 0 {
		return q.notAtomic(prm.WQERdmaWrite, n, r)
	}
	if n-1 >= oneBlockInline { // empty, or more than one block
		return q.rdmaInline(prm.WQERdmaWrite, wrid, f, 0, p, r)
	}
	if pi-q.ci >= q.size {
		return q.full()
	}
	w := q.block(pi)
	c0 := q.ctrl0(pi) | c0Write | (4+n+15)/16 + 2
	put64(w, 0, c0)
	put64(w, 8, uint64(f&ctrlFlags)<<32)
	put64(w, 16, r.Addr)
	put64(w, 24, uint64(r.RKey)<<32)
	putInline(w, p)
	q.commit(pi, 1, c0, wrid)
	return nil
}

// WriteImmInline is WriteInline with immediate data.
func (q *SendQueue) WriteImmInline(wrid uint64, f Flags, imm uint32, p []byte, r Remote) error {
	n := uint64(len(p))
	if q.atomicMax != 0 && r.Addr&(q.atomicMax-1)+n > q.atomicMax && f&NonAtomic == 0 {
		return q.notAtomic(prm.WQERdmaWriteImm, n, r)
	}
	return q.rdmaInline(prm.WQERdmaWriteImm, wrid, f, imm, p, r)
}

// rdmaInline is the general form of inline writes.
func (q *SendQueue) rdmaInline(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, p []byte, r Remote) error {
	b, err := q.begin(op, 2+inlineUnits(len(p)))
	if err != nil {
		return err
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
// the last two units of a block. Whole words move first, the rest byte by byte.
func putInline(w *[WQEBB]byte, p []byte) {
	binary.BigEndian.PutUint32(w[32:36], inlineBit|uint32(len(p)))
	d := (*[oneBlockInline]byte)(w[36:])
	switch {
	case len(p) == 16:
		s := (*[16]byte)(p)
		a, b := binary.LittleEndian.Uint64(s[0:8]), binary.LittleEndian.Uint64(s[8:16])
		binary.LittleEndian.PutUint64(d[0:8], a)
		binary.LittleEndian.PutUint64(d[8:16], b)
		binary.LittleEndian.PutUint64(d[16:24], 0)
		binary.LittleEndian.PutUint32(d[24:28], 0)
	case len(p) == 8:
		a := binary.LittleEndian.Uint64((*[8]byte)(p)[:])
		binary.LittleEndian.PutUint64(d[0:8], a)
		binary.LittleEndian.PutUint32(d[8:12], 0)
	default:
		clear(d[len(p)&^3 : min((len(p)+4+15)&^15-4, len(d))])
		copy(d[:], p)
	}
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
