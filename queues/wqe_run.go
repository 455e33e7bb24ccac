package queues

import "github.com/mlxvfio/mlxvfio/internal/prm"

// The plain forms: what the hot paths post themselves. The other fields of such
// a request are right whatever they are.

// onePiece tells a SEND or an RDMA operation of one piece of 1 … most bytes.
func (r *WorkRequest) onePiece(most uint32) bool {
	return r.Local.Len-1 < most && len(r.More)|len(r.Inline) == 0
}

// inRule tells a write of n bytes that the write rule with this limit allows. Without
// a rule, limit 0, what it tells means nothing: plainWrite has the answer then.
func (r *WorkRequest) inRule(n uint32, limit uint64) bool {
	return r.Remote.Addr&(limit-1)+uint64(n) <= limit
}

func (r *WorkRequest) fetchAdd8() bool { return r.Local.Len == 8 && r.Remote.Addr&7 == 0 }

func (r *WorkRequest) maskedCS4() bool {
	return r.Local.Len == 4 && r.Remote.Addr&3 == 0 && (r.Swap|r.Compare|r.SwapMask|r.CompareMask)>>32 == 0
}

func (r *WorkRequest) maskedCS8() bool { return r.Local.Len == 8 && r.Remote.Addr&7 == 0 }

// The run functions are hot loops: each writes neighbours of one plain form, and
// ends before the first request that has another, is wrong, or has no room. They
// change nothing of the queue but blocks and slots, and call nothing: what they
// have stays in registers, and what the doorbell needs is returned in them. They
// ask first whether there are slots, and the compiler checks no masked index again.

// run writes what it can of the first requests, which have the same form. It gives
// how many that were, and if there were any, pi behind the last and its first 8
// bytes as they lie in memory. Post chooses in the same way itself, which saves
// every list a call.
//
//go:noinline
func (q *SendQueue) run(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	if len(work) == 0 {
		return 0, 0, 0
	}
	switch r := &work[0]; r.Op {
	case prm.WQERdmaRead:
		return q.runRDMA(work)
	case prm.WQERdmaWrite:
		if q.plainWrite == 0 {
			return q.runInRule(work)
		}
		if len(r.Inline) == 0 {
			return q.runRDMA(work)
		}
		return q.runInline(work)
	case prm.WQEAtomicFA:
		return q.runFetchAdd(work)
	case prm.WQEAtomicMaskedCS:
		if r.Local.Len == 4 {
			return q.runMaskedCS4(work)
		}
		return q.runMaskedCS8(work)
	case prm.WQESend:
		return q.runSend(work)
	}
	return 0, 0, 0
}

// runRDMA posts READs, or WRITEs without a rule, of one piece.
func (q *SendQueue) runRDMA(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(work) == 0 || len(slots) == 0 {
		return 0, pi, 0
	}
	head := q.qpn8 + uint64(work[0].Op)<<32 + 3
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		if r.Op != work[0].Op || !r.onePiece(maxLen) {
			break
		}
		w := s.line
		first8 = putHead(w, uint64(uint16(pi))<<40|head, r)
		putSGE(w, 4, r.Local)
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runInline posts WRITEs, without a rule, of 16 bytes of inline data, the smallest
// message that carries a header of its own; other sizes go one by one.
func (q *SendQueue) runInline(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	head := q.qpn8 + (c0Write | 4)
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		data := r.Inline
		if r.Op != prm.WQERdmaWrite || len(data) != 16 {
			break
		}
		w := s.line
		first8 = putHead(w, uint64(uint16(pi))<<40|head, r)
		putInline16(w, (*[16]byte)(data))
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runInRule posts what runRDMA and runInline do, of WRITEs while the write rule holds.
func (q *SendQueue) runInRule(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	head, limit := q.qpn8+c0Write, q.atomicMax
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		data, w := r.Inline, s.line
		if r.Op != prm.WQERdmaWrite {
			break
		}
		if len(data) == 16 && r.inRule(16, limit) {
			first8 = putHead(w, uint64(uint16(pi))<<40|head|4, r)
			putInline16(w, (*[16]byte)(data))
		} else if r.onePiece(maxLen) && r.inRule(r.Local.Len, limit) {
			first8 = putHead(w, uint64(uint16(pi))<<40|head|3, r)
			putSGE(w, 4, r.Local)
		} else {
			break
		}
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runFetchAdd posts standard fetch-and-adds.
func (q *SendQueue) runFetchAdd(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	head := q.qpn8 + (c0FA | 4)
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		if r.Op != prm.WQEAtomicFA || !r.fetchAdd8() {
			break
		}
		w := s.line
		first8 = putHead(w, uint64(uint16(pi))<<40|head, r)
		put64(w, 4, r.Swap)
		w[5] = 0
		putSGE(w, 6, r.Local)
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runMaskedCS4 posts masked compare-and-swaps of 4 bytes.
func (q *SendQueue) runMaskedCS4(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	head := q.qpn8 + (c0MCS | c0Size4 | 4)
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		if r.Op != prm.WQEAtomicMaskedCS || !r.maskedCS4() {
			break
		}
		w := s.line
		first8 = putHead(w, uint64(uint16(pi))<<40|head, r)
		put64(w, 4, r.Swap<<32|r.Compare)
		put64(w, 5, r.SwapMask<<32|r.CompareMask)
		putSGE(w, 6, r.Local)
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runMaskedCS8 posts masked compare-and-swaps of 8 bytes, which take two blocks.
func (q *SendQueue) runMaskedCS8(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free() / 2; free < len(work) {
		work = work[:free]
	}
	head := q.qpn8 + (c0MCS | c0Size8 | 5)
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		if r.Op != prm.WQEAtomicMaskedCS || !r.maskedCS8() {
			break
		}
		w := s.line
		first8 = putHead(w, uint64(uint16(pi))<<40|head, r)
		put64(w, 4, r.Swap)
		put64(w, 5, r.Compare)
		put64(w, 6, r.SwapMask)
		put64(w, 7, r.CompareMask)
		putSGE(slots[uint(pi+1)&uint(len(slots)-1)].line, 0, r.Local) // the ring may end between the two
		pi += 2
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}

// runSend posts SENDs of one piece.
func (q *SendQueue) runSend(work []WorkRequest) (n int, pi uint64, first8 uint64) {
	slots, pi := q.slots, q.pi
	if len(slots) == 0 {
		return 0, pi, 0
	}
	if free := q.Free(); free < len(work) {
		work = work[:free]
	}
	head := q.qpn8 + (c0Send | 2)
	for n < len(work) {
		r, s := &work[n], &slots[uint(pi)&uint(len(slots)-1)]
		if r.Op != prm.WQESend || !r.onePiece(maxLen) {
			break
		}
		w := s.line
		first8 = putCtrl0(w, uint64(uint16(pi))<<40|head, r)
		putSGE(w, 2, r.Local)
		pi++
		s.wrid, s.end = r.WRID, pi
		n++
	}
	return n, pi, first8
}
