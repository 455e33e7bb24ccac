package queues

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The plain forms: what the hot paths post themselves. The other fields of such
// a request are right whatever they are.

// onePiece tells an RDMA operation of one piece of 1 … most bytes.
func (r *WorkRequest) onePiece(most uint32) bool {
	return r.Local.Len-1 < most && len(r.More)|len(r.Inline) == 0
}

func (r *WorkRequest) fetchAdd8() bool { return r.Local.Len == 8 && r.Remote.Addr&7 == 0 }

func (r *WorkRequest) maskedCS4() bool {
	return r.Local.Len == 4 && r.Remote.Addr&3 == 0 && (r.Swap|r.Compare|r.SwapMask|r.CompareMask)>>32 == 0
}

func (r *WorkRequest) maskedCS8() bool { return r.Local.Len == 8 && r.Remote.Addr&7 == 0 }

// The run functions are hot loops: each posts neighbours of one plain form, and
// ends before the first request that has another, is wrong, or has no room before
// the ring ends. They call nothing, so that their state stays in registers.

// run posts what it can of the first requests, which have the same form.
func (q *SendQueue) run(work []WorkRequest) int {
	switch r := &work[0]; r.Op {
	case prm.WQERdmaWrite, prm.WQERdmaRead:
		if len(r.Inline) == 0 {
			return q.runRDMA(work, r.Op)
		}
		return q.runInline(work)
	case prm.WQEAtomicFA:
		return q.runFetchAdd(work)
	case prm.WQEAtomicMaskedCS:
		if r.Local.Len == 4 {
			return q.runMaskedCS4(work)
		}
		return q.runMaskedCS8(work)
	}
	return 0
}

// ahead gives the blocks, and their slots, from pi on, as many as can be written
// before the ring is full or ends, at most n.
func (q *SendQueue) ahead(n int) (blocks []vfio.Line, slots []sqSlot) {
	i := q.index(q.pi)
	if i >= len(q.blocks) || i >= len(q.slots) { // nothing: a closed queue
		return nil, nil
	}
	// Limits that the compiler knows to be above i spare it a mask.
	blocks, slots = q.blocks[:len(q.blocks):len(q.blocks)][i:], q.slots[:len(q.slots):len(q.slots)][i:]
	n = min(n, q.Free(), len(slots), len(blocks))
	return blocks[:n], slots[:n]
}

// ran makes the first n blocks ahead part of the queue; WQEs have size blocks.
func (q *SendQueue) ran(blocks []vfio.Line, n, size int) {
	if n > 0 {
		q.first8 = blocks[n-size][0]
		q.pi += uint32(n)
	}
}

// runRDMA posts WRITEs or READs of one piece.
func (q *SendQueue) runRDMA(work []WorkRequest, op prm.WQEOpcode) (n int) {
	blocks, slots := q.ahead(len(work))
	work, blocks = work[:len(slots)], blocks[:len(slots)]
	pi, head, most := q.pi, uint64(op)<<32|q.qpn8|3, q.plainWrite
	for n < len(work) {
		r, w, s := &work[n], &blocks[n], &slots[n]
		if r.Op != op || !r.onePiece(most) {
			break
		}
		first8 := bits.ReverseBytes64(uint64(uint16(pi))<<40 | head)
		pi++
		putHead(w, first8, r)
		putSGE(w, 4, r.Local)
		s.wrid, s.end = r.WRID, pi
		n++
	}
	q.ran(blocks, n, 1)
	return n
}

// runInline posts WRITEs of 16 bytes of inline data, the smallest message that
// carries a header of its own; other sizes go one by one.
func (q *SendQueue) runInline(work []WorkRequest) (n int) {
	if q.plainWrite == 0 {
		return 0
	}
	blocks, slots := q.ahead(len(work))
	work, blocks = work[:len(slots)], blocks[:len(slots)]
	pi, head := q.pi, c0Write|q.qpn8|4
	for n < len(work) {
		r, w, s := &work[n], &blocks[n], &slots[n]
		if r.Op != prm.WQERdmaWrite || len(r.Inline) != 16 {
			break
		}
		first8 := bits.ReverseBytes64(uint64(uint16(pi))<<40 | head)
		pi++
		putHead(w, first8, r)
		putInline16(w, (*[16]byte)(r.Inline))
		s.wrid, s.end = r.WRID, pi
		n++
	}
	q.ran(blocks, n, 1)
	return n
}

// runFetchAdd posts standard fetch-and-adds.
func (q *SendQueue) runFetchAdd(work []WorkRequest) (n int) {
	blocks, slots := q.ahead(len(work))
	work, blocks = work[:len(slots)], blocks[:len(slots)]
	pi, head := q.pi, c0FA|q.qpn8|4
	for n < len(work) {
		r, w, s := &work[n], &blocks[n], &slots[n]
		if r.Op != prm.WQEAtomicFA || !r.fetchAdd8() {
			break
		}
		first8 := bits.ReverseBytes64(uint64(uint16(pi))<<40 | head)
		pi++
		putHead(w, first8, r)
		put64(w, 4, r.Swap)
		w[5] = 0
		putSGE(w, 6, r.Local)
		s.wrid, s.end = r.WRID, pi
		n++
	}
	q.ran(blocks, n, 1)
	return n
}

// runMaskedCS4 posts masked compare-and-swaps of 4 bytes.
func (q *SendQueue) runMaskedCS4(work []WorkRequest) (n int) {
	blocks, slots := q.ahead(len(work))
	work, blocks = work[:len(slots)], blocks[:len(slots)]
	pi, head := q.pi, c0MCS|c0Size4|q.qpn8|4
	for n < len(work) {
		r, w, s := &work[n], &blocks[n], &slots[n]
		if r.Op != prm.WQEAtomicMaskedCS || !r.maskedCS4() {
			break
		}
		first8 := bits.ReverseBytes64(uint64(uint16(pi))<<40 | head)
		pi++
		putHead(w, first8, r)
		put64(w, 4, r.Swap<<32|r.Compare)
		put64(w, 5, r.SwapMask<<32|r.CompareMask)
		putSGE(w, 6, r.Local)
		s.wrid, s.end = r.WRID, pi
		n++
	}
	q.ran(blocks, n, 1)
	return n
}

// runMaskedCS8 posts masked compare-and-swaps of 8 bytes, which take two blocks;
// one between which the ring ends goes by itself.
func (q *SendQueue) runMaskedCS8(work []WorkRequest) (n int) {
	blocks, slots := q.ahead(2 * len(work))
	blocks = blocks[:len(slots)]
	pi, head := q.pi, c0MCS|c0Size8|q.qpn8|5
	for i := 0; i+1 < len(slots) && n < len(work); i += 2 {
		r, w, x, s := &work[n], &blocks[i], &blocks[i+1], &slots[i]
		if r.Op != prm.WQEAtomicMaskedCS || !r.maskedCS8() {
			break
		}
		first8 := bits.ReverseBytes64(uint64(uint16(pi))<<40 | head)
		pi += 2
		n++
		putHead(w, first8, r)
		put64(w, 4, r.Swap)
		put64(w, 5, r.Compare)
		put64(w, 6, r.SwapMask)
		put64(w, 7, r.CompareMask)
		putSGE(x, 0, r.Local)
		s.wrid, s.end = r.WRID, pi
	}
	q.ran(blocks, 2*n, 2)
	return n
}
