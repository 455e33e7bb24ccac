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
	return inlined(func() (int, error) {
		if len(work) != 1 {
			return q.postMany(work)
		}
		return q.postSingle(&work[0])
	})
}

// postMany is Post with a list of any other length than one. What it calls checks the
// stack, which is enough.
//
//go:nosplit
func (q *SendQueue) postMany(work []WorkRequest) (n int, err error) {
	if len(work) == 0 {
		return q.postRest(work, 0, 0, 0)
	}
	var pi uint64
	var first8 uint64
	switch r := &work[0]; {
	case r.Op == prm.WQERdmaWrite && q.plainWrite == 0:
		n, pi, first8 = q.runInRule(work)
	case r.Op == prm.WQERdmaWrite && len(r.Inline) != 0:
		n, pi, first8 = q.runInline(work)
	case r.Op == prm.WQERdmaWrite, r.Op == prm.WQERdmaRead:
		n, pi, first8 = q.runRDMA(work)
	case r.Op == prm.WQEAtomicFA:
		n, pi, first8 = q.runFetchAdd(work)
	case r.Op == prm.WQEAtomicMaskedCS && r.Local.Len == 4:
		n, pi, first8 = q.runMaskedCS4(work)
	case r.Op == prm.WQEAtomicMaskedCS:
		n, pi, first8 = q.runMaskedCS8(work)
	case r.Op == prm.WQESend:
		n, pi, first8 = q.runSend(work)
	default:
		return q.postRest(work, 0, 0, 0)
	}
	if n < len(work) || !q.bell.Direct() {
		return q.postRest(work, n, pi, first8)
	}
	q.pi, q.rung = pi, uint32(pi)
	q.bell.Store(wireCount(pi), first8)
	return len(work), nil
}

// postSingle posts one request, of a plain form, with room: every instruction counts.
// Nothing is written before it is known that the request is right; what is not plain
// takes the way of a list. Comparing one after the other, what is posted most first,
// is faster than the search that a switch over Op would be. It checks no stack either.
//
//go:nosplit
func (q *SendQueue) postSingle(r *WorkRequest) (int, error) {
	slots, pi := q.slots, q.pi
	if !q.room(1) {
		return q.postAny(r)
	}
	s := &slots[uint(pi)&uint(len(slots)-1)]
	w, head, end := s.line, uint64(uint16(pi))<<40|q.qpn8, pi+1
	var c0 uint64
	switch op := r.Op; {
	case op == prm.WQERdmaWrite:
		if len(r.Inline) == 16 && (q.plainWrite != 0 || r.inRule(16, q.atomicMax)) {
			c0 = c0Write | 4
			putInline16(w, (*[16]byte)(r.Inline))
		} else if r.onePiece(q.plainWrite) || r.onePiece(maxLen) && r.inRule(r.Local.Len, q.atomicMax) {
			c0 = c0Write | 3
			putSGE(w, 4, r.Local)
		} else {
			return q.postAny(r)
		}
	case op == prm.WQEAtomicFA:
		if !r.fetchAdd8() {
			return q.postAny(r)
		}
		c0 = c0FA | 4
		put64(w, 4, r.Swap)
		w[5] = 0
		putSGE(w, 6, r.Local)
	case op == prm.WQEAtomicMaskedCS && r.Local.Len == 4:
		if !r.maskedCS4() {
			return q.postAny(r)
		}
		c0 = c0MCS | c0Size4 | 4
		put64(w, 4, r.Swap<<32|r.Compare)
		put64(w, 5, r.SwapMask<<32|r.CompareMask)
		putSGE(w, 6, r.Local)
	case op == prm.WQEAtomicMaskedCS:
		if !r.maskedCS8() || !q.room(2) {
			return q.postAny(r)
		}
		c0 = c0MCS | c0Size8 | 5
		put64(w, 4, r.Swap)
		put64(w, 5, r.Compare)
		put64(w, 6, r.SwapMask)
		put64(w, 7, r.CompareMask)
		putSGE(slots[uint(end)&uint(len(slots)-1)].line, 0, r.Local) // the ring may end between the two blocks
		end++
	case op == prm.WQERdmaRead && r.onePiece(maxLen):
		c0 = c0Read | 3
		putSGE(w, 4, r.Local)
	default:
		return q.postAny(r)
	}
	first8 := putHead(w, head|c0, r)
	s.wrid = r.WRID
	s.end, q.pi = end, end
	if !q.bell.Direct() {
		q.first8 = first8
		q.ring()
		return 1, nil
	}
	q.rung = uint32(end)
	q.bell.Store(wireCount(end), first8)
	return 1, nil
}

// postAny posts one request of any form.
//
//go:noinline
func (q *SendQueue) postAny(r *WorkRequest) (int, error) {
	err := q.postOne(r)
	q.Ring()
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// postRest goes on behind the first n requests, which were written: pi is where
// the ring is now, first8 the beginning of the last.
//
//go:noinline
func (q *SendQueue) postRest(work []WorkRequest, n int, pi uint64, first8 uint64) (int, error) {
	var err error
	if n > 0 {
		q.pi, q.first8 = pi, first8
	}
	for n < len(work) {
		if k, pi, first8 := q.run(work[n:]); k > 0 {
			n += k
			q.pi, q.first8 = pi, first8
			continue
		}
		if err = q.postOne(&work[n]); err != nil {
			break
		}
		n++
	}
	q.Ring()
	return n, err
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
		if len(r.More) == 0 {
			return q.sendOne(r.Op, uint64(r.Op)<<32, r.WRID, r.Flags, imm, r.Local)
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
