package queues

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// WorkRequest is a send WQE in memory, for Post. Fields that its operation does
// not have are not looked at.
type WorkRequest struct {
	// WRID comes back in the completion.
	WRID uint64
	// Op is the operation: NOP, SEND, SEND_IMM, SEND_INVAL, RDMA_WRITE,
	// RDMA_WRITE_IMM, RDMA_READ or one of the four atomics.
	Op    prm.WQEOpcode
	Flags Flags
	// Imm is the immediate data of SEND_IMM and RDMA_WRITE_IMM, or the memory key
	// that SEND_INVAL invalidates.
	Imm uint32
	// Local is the first piece of local memory. Of atomics it is the only one, and
	// its length is the size: 4 or 8 bytes.
	Local  SGE
	Remote Remote
	// Swap and Compare are the operands of a compare-and-swap, SwapMask and
	// CompareMask its masks. A fetch-and-add adds Swap; its boundary is SwapMask.
	Swap, Compare, SwapMask, CompareMask uint64
	// More are the pieces behind Local.
	More []SGE
	// Inline are the data of a SEND or WRITE that travel inside the WQE; if there
	// are any, Local and More are not looked at.
	Inline []byte
}

// Post writes the WQEs of a list of requests, in order, and rings once for them
// and for whatever was written before. It returns how many were posted. The first
// that cannot be ends the list with the error that its own method would give. A
// list costs less per WQE than as many calls, most of all where neighbours have
// the same operation.
func (q *SendQueue) Post(work []WorkRequest) (n int, err error) {
	if len(work) > 0 {
		switch r := &work[0]; r.Op {
		case prm.WQERdmaWrite, prm.WQERdmaRead:
			if len(r.Inline) == 0 {
				n = q.runRDMA(work, r.Op)
			} else {
				n = q.runInline(work)
			}
		case prm.WQEAtomicFA:
			n = q.runFetchAdd(work)
		case prm.WQEAtomicMaskedCS:
			if r.Local.Len == 4 {
				n = q.runMaskedCS4(work)
			} else {
				n = q.runMaskedCS8(work)
			}
		}
		if n < len(work) {
			n, err = q.postRest(work, n)
		}
	}
	// The doorbell: WQEs, then the record, then the register (docs/ordering.md).
	pi := q.pi
	if pi == q.rung {
		return n, err
	}
	toDevice()
	q.rec.store(recordSend, pi&0xffff)
	toDevice()
	if q.blueFlame && q.ringBlueFlame() {
		return n, err
	}
	q.rung = pi
	at := q.reg
	q.reg = at ^ q.bfSize
	q.db.ring(at, q.first8)
	return n, err
}

// postRest goes on where the first hot loop ended.
//
//go:noinline
func (q *SendQueue) postRest(work []WorkRequest, n int) (int, error) {
	for n < len(work) {
		k := 0
		switch r := &work[n]; {
		case (r.Op == prm.WQERdmaWrite || r.Op == prm.WQERdmaRead) && len(r.Inline) == 0:
			k = q.runRDMA(work[n:], r.Op)
		case r.Op == prm.WQEAtomicFA:
			k = q.runFetchAdd(work[n:])
		}
		if k == 0 {
			if err := q.postOne(&work[n]); err != nil {
				return n, err
			}
			k = 1
		}
		n += k
	}
	return n, nil
}

// The run functions are hot loops: each posts neighbours of one plain form, and
// ends before the first request that has another, is wrong, or has no room. They
// call nothing, so that their state stays in registers.

// runRDMA posts WRITEs or READs of one piece.
func (q *SendQueue) runRDMA(work []WorkRequest, op prm.WQEOpcode) int {
	pi, slots := q.pi, q.slots
	if len(slots) == 0 || q.atomicMax != 0 && op == prm.WQERdmaWrite {
		return 0
	}
	work = work[:min(len(work), len(slots)-int(pi-q.ci))]
	head := uint64(op)<<32 | uint64(q.qpn8) | 3
	n := 0
	for n < len(work) {
		r := &work[n]
		if r.Op != op || r.Local.Len-1 >= maxLen || len(r.More)|len(r.Inline) != 0 {
			break
		}
		w, s := placeIn(q.buf, slots, pi)
		c0 := uint64(uint16(pi))<<40 | head
		q.first8 = c0
		s.wrid, s.end = r.WRID, pi+1
		putCtrl(w, c0, r.Flags, 0)
		putRemote(w, r.Remote)
		putSGE(w, 32, r.Local.Len, r.Local)
		n++
		pi++
	}
	q.pi = pi
	return n
}

// runInline posts WRITEs of 16 bytes of inline data, the smallest message that
// carries a header of its own; other sizes go one by one.
func (q *SendQueue) runInline(work []WorkRequest) int {
	pi, slots := q.pi, q.slots
	if len(slots) == 0 || q.atomicMax != 0 {
		return 0
	}
	work = work[:min(len(work), len(slots)-int(pi-q.ci))]
	head := c0Write | uint64(q.qpn8) | 4
	n := 0
	for n < len(work) {
		r := &work[n]
		p := r.Inline
		if r.Op != prm.WQERdmaWrite || len(p) != 16 {
			break
		}
		w, s := placeIn(q.buf, slots, pi)
		c0 := uint64(uint16(pi))<<40 | head
		q.first8 = c0
		s.wrid, s.end = r.WRID, pi+1
		putCtrl(w, c0, r.Flags, 0)
		putRemote(w, r.Remote)
		putInline16(w, (*[16]byte)(p))
		n++
		pi++
	}
	q.pi = pi
	return n
}

// runFetchAdd posts standard fetch-and-adds.
func (q *SendQueue) runFetchAdd(work []WorkRequest) int {
	pi, slots := q.pi, q.slots
	if len(slots) == 0 {
		return 0
	}
	work = work[:min(len(work), len(slots)-int(pi-q.ci))]
	head := c0FA | uint64(q.qpn8) | 4
	n := 0
	for n < len(work) {
		r := &work[n]
		if r.Op != prm.WQEAtomicFA || r.Local.Len != 8 || r.Remote.Addr&7 != 0 {
			break
		}
		w, s := placeIn(q.buf, slots, pi)
		c0 := uint64(uint16(pi))<<40 | head
		q.first8 = c0
		s.wrid, s.end = r.WRID, pi+1
		putCtrl(w, c0, r.Flags, 0)
		putRemote(w, r.Remote)
		put64(w, 32, r.Swap)
		zero64(w, 40)
		putSGE(w, 48, 8, r.Local)
		n++
		pi++
	}
	q.pi = pi
	return n
}

// runMaskedCS4 posts masked compare-and-swaps of 4 bytes.
func (q *SendQueue) runMaskedCS4(work []WorkRequest) int {
	pi, slots := q.pi, q.slots
	if len(slots) == 0 {
		return 0
	}
	work = work[:min(len(work), len(slots)-int(pi-q.ci))]
	head := c0MCS | c0Size4 | uint64(q.qpn8) | 4
	n := 0
	for n < len(work) {
		r := &work[n]
		if r.Op != prm.WQEAtomicMaskedCS || r.Local.Len != 4 || r.Remote.Addr&3 != 0 ||
			(r.Swap|r.Compare|r.SwapMask|r.CompareMask)>>32 != 0 {
			break
		}
		w, s := placeIn(q.buf, slots, pi)
		c0 := uint64(uint16(pi))<<40 | head
		q.first8 = c0
		s.wrid, s.end = r.WRID, pi+1
		putCtrl(w, c0, r.Flags, 0)
		putRemote(w, r.Remote)
		put64(w, 32, r.Swap<<32|r.Compare)
		put64(w, 40, r.SwapMask<<32|r.CompareMask)
		putSGE(w, 48, 4, r.Local)
		n++
		pi++
	}
	q.pi = pi
	return n
}

// runMaskedCS8 posts masked compare-and-swaps of 8 bytes, which take two blocks;
// the ring may end between them.
func (q *SendQueue) runMaskedCS8(work []WorkRequest) int {
	pi, slots := q.pi, q.slots
	if len(slots) == 0 {
		return 0
	}
	work = work[:min(len(work), (len(slots)-int(pi-q.ci))/2)]
	head := c0MCS | c0Size8 | uint64(q.qpn8) | 5
	n := 0
	for n < len(work) {
		r := &work[n]
		if r.Op != prm.WQEAtomicMaskedCS || r.Local.Len != 8 || r.Remote.Addr&7 != 0 {
			break
		}
		w, s := placeIn(q.buf, slots, pi)
		x, _ := placeIn(q.buf, slots, pi+1)
		c0 := uint64(uint16(pi))<<40 | head
		q.first8 = c0
		s.wrid, s.end = r.WRID, pi+2
		putCtrl(w, c0, r.Flags, 0)
		putRemote(w, r.Remote)
		put64(w, 32, r.Swap)
		put64(w, 40, r.Compare)
		put64(w, 48, r.SwapMask)
		put64(w, 56, r.CompareMask)
		putSGE(x, 0, 8, r.Local)
		n++
		pi += 2
	}
	q.pi = pi
	return n
}

// postOne writes one request of any form through the method for it.
//
//go:noinline
func (q *SendQueue) postOne(r *WorkRequest) error {
	switch r.Op {
	case prm.WQENop:
		return q.Nop(r.WRID, r.Flags)
	case prm.WQESend, prm.WQESendImm, prm.WQESendInval:
		imm := r.Imm
		if r.Op == prm.WQESend {
			imm = 0
		}
		if len(r.Inline) > 0 {
			return q.sendInline(r.Op, r.WRID, r.Flags, imm, nil, r.Inline)
		}
		return q.send(r.Op, r.WRID, r.Flags, imm, nil, r.Local, r.More)
	case prm.WQERdmaWrite, prm.WQERdmaWriteImm:
		imm := r.Imm
		if r.Op == prm.WQERdmaWrite {
			imm = 0
		}
		if len(r.Inline) > 0 {
			return q.writeInline(r.Op, r.WRID, r.Flags, imm, r.Inline, r.Remote)
		}
		return q.write(r.Op, r.WRID, r.Flags, imm, r.Local, r.More, r.Remote)
	case prm.WQERdmaRead:
		return q.rdma(r.Op, r.WRID, r.Flags, 0, r.Local, r.More, r.Remote)
	case prm.WQEAtomicCS:
		return q.CompareSwap(r.WRID, r.Flags, r.Local, r.Remote, r.Compare, r.Swap)
	case prm.WQEAtomicFA:
		return q.FetchAdd(r.WRID, r.Flags, r.Local, r.Remote, r.Swap)
	case prm.WQEAtomicMaskedCS:
		return q.MaskedCompareSwap(r.WRID, r.Flags, r.Local, r.Remote,
			&MaskedCS{Swap: r.Swap, Compare: r.Compare, SwapMask: r.SwapMask, CompareMask: r.CompareMask})
	case prm.WQEAtomicMaskedFA:
		return q.MaskedFetchAdd(r.WRID, r.Flags, r.Local, r.Remote, &MaskedFA{Add: r.Swap, Boundary: r.SwapMask})
	}
	return q.refuse(r.Op, ErrOperand, "a list takes NOP, SEND, RDMA and atomic operations; use the method of this one")
}
