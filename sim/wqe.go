package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Entries of work queues: reading them from their ring and taking them apart.

const (
	wqeUnit     = 16 // ctrl.ds counts these
	maxWQE      = 63 * wqeUnit
	maxRecvWQE  = 16 << 7 // log_rq_stride has 3 bits
	maxSGEs     = maxRecvWQE / wqeUnit
	inlineBit   = 1 << 31
	wholeSeg    = 1 << 31 // what a data segment of length 0 means, see Rulings
	avBytes     = 48
	baseAVBytes = 16
	avExtended  = 1 << 31 // of the dword with the remote QPN
)

// opKind groups the operations of a send queue by how they are carried out.
type opKind uint8

const (
	kindBad opKind = iota
	kindLocal
	kindMessage  // SEND and WRITE
	kindRead     // RDMA READ
	kindAtomic   // all atomics
	kindDatagram // SEND of UD
)

// sendOp is one entry of a send queue, from its fetch to its completion.
type sendOp struct {
	index  uint16 // WQEBB counter of its first block
	blocks uint16
	opcode prm.WQEOpcode
	opmod  uint8
	ce     prm.CompletionMode
	fence  prm.FenceMode
	se     bool
	kind   opKind

	imm    uint32
	raddr  uint64
	rkey   uint32
	xsrq   uint32
	av     int // byte at which the address vector lies
	max    uint32
	number uint32 // of the queue that WAIT and its kin name
	atom   uint8
	size   int // of an atomic's operand
	args   int // byte at which an atomic's operands lie
	list   [maxWQE / wqeUnit]sge
	sges   int
	length uint64 // bytes of the message

	psn    uint32 // of the first packet
	psns   uint32 // how many it takes
	sent   uint32 // request packets sent, since it was begun again
	begun  bool   // one has been sent
	got    uint32 // response packets taken
	done   bool
	failed prm.CQESyndrome // 0: not
	inCQE  bool            // the answer goes into the completion
	answer [64]byte        // the answer that does

	n    int // bytes of the entry
	raw  [1024]byte
	next *sendOp // in the pool
}

func (o *sendOp) segs() []sge { return o.list[:o.sges] }

// lastPSN is the number of the last packet.
func (o *sendOp) lastPSN() uint32 { return (o.psn + o.psns - 1) & counter24 }

// outbound tells reads and atomics: operations that the peer answers with data.
func (o *sendOp) outbound() bool { return o.kind == kindRead || o.kind == kindAtomic }

// fetchWQE reads the entry at the queue's head into o: its control segment, and
// the rest as far as it was posted. False when host memory could not be read.
func (f *function) fetchWQE(q *qp, o *sendOp, head, posted uint16) bool {
	block := uint64(wqeBlock)
	if !f.dmaRead(q.sq.buf.addr(q.sq.at(uint32(head))), o.raw[:block]) {
		return false
	}
	ds := int(o.raw[7] & 0x3f)
	o.index, o.blocks = head, uint16(max(1, (ds+3)/4))
	o.n = ds * wqeUnit
	for i := uint16(1); i < min(o.blocks, posted-head); i++ {
		at := q.sq.buf.addr(q.sq.at(uint32(head + i)))
		if !f.dmaRead(at, o.raw[uint64(i)*block:uint64(i+1)*block]) {
			return false
		}
	}
	return true
}

// parse takes an entry apart. What it answers is the syndrome with which the
// entry fails, or 0.
func (o *sendOp) parse(f *function, q *qp, posted uint16) prm.CQESyndrome {
	be := binary.BigEndian
	w0, w1, w2 := be.Uint32(o.raw[0:]), be.Uint32(o.raw[4:]), be.Uint32(o.raw[8:])
	o.opcode, o.opmod = prm.WQEOpcode(w0), uint8(w0>>24)
	o.ce, o.se = prm.CompletionMode(w2>>2&3), w2>>1&1 != 0
	o.fence = prm.FenceMode(w2 >> 5 & 7)
	o.imm = be.Uint32(o.raw[12:])
	o.kind, o.av, o.sges, o.length, o.size, o.atom, o.xsrq = kindBad, 0, 0, 0, 0, 0, 0
	o.psns, o.sent, o.got, o.begun, o.done, o.failed, o.inCQE = 0, 0, 0, false, false, 0, false
	const bad = prm.CQESyndLocalQPOpErr
	switch {
	case o.n == 0, o.blocks > posted-o.index, w1>>8 != q.n, uint16(w0>>8) != o.index:
		return bad
	case o.n > int(f.general().MaxWQESzSQ()):
		return bad
	case q.signs && xorBytes(o.raw[:o.n]) != 0xff:
		return bad
	case o.fence > prm.FenceSmallAndReads:
		return bad
	}
	if o.opmod != 0 && o.opcode != prm.WQEAtomicMaskedCS && o.opcode != prm.WQEAtomicMaskedFA {
		return bad
	}
	switch o.opcode {
	case prm.WQENop:
		o.kind = kindLocal
		return 0
	case prm.WQEWait, prm.WQESendEn, prm.WQERecvEn:
		return o.parseCross(q)
	case prm.WQESend, prm.WQESendImm, prm.WQESendInval:
		return o.parseSend(q)
	case prm.WQERdmaWrite, prm.WQERdmaWriteImm, prm.WQERdmaRead,
		prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA:
		return o.parseRemote(f, q)
	}
	return bad
}

func xorBytes(b []byte) (x byte) {
	for _, c := range b {
		x ^= c
	}
	return x
}

// connected tells the services that have one peer.
func (q *qp) connected() bool {
	return q.st == prm.QPTypeRC || q.st == prm.QPTypeUC || q.st == prm.QPTypeXRC
}

// reliable tells the services that acknowledge.
func (q *qp) reliable() bool { return q.st == prm.QPTypeRC || q.st == prm.QPTypeXRC }

// datagrams tells the services whose every message has an address of its own.
func (q *qp) datagrams() bool { return q.st == prm.QPTypeUD || q.st == prm.QPTypeQP1 }

func (o *sendOp) parseCross(q *qp) prm.CQESyndrome {
	if o.n < 2*wqeUnit || o.opcode != prm.WQEWait && !q.ctx.CdMaster() {
		return prm.CQESyndLocalQPOpErr
	}
	o.kind = kindLocal
	o.max = binary.BigEndian.Uint32(o.raw[wqeUnit+8:])
	o.number = binary.BigEndian.Uint32(o.raw[wqeUnit+12:]) & counter24
	return 0
}

// parseXRC takes the XRC segment that follows the control segment on XRC QPs.
func (o *sendOp) parseXRC(q *qp, at int) int {
	if q.st != prm.QPTypeXRC {
		return at
	}
	o.xsrq = binary.BigEndian.Uint32(o.raw[at:]) & counter24
	return at + wqeUnit
}

func (o *sendOp) parseSend(q *qp) prm.CQESyndrome {
	at := wqeUnit
	o.kind = kindMessage
	switch {
	case !q.connected():
		if !q.datagrams() || o.opcode == prm.WQESendInval || o.n < at+baseAVBytes {
			return prm.CQESyndLocalQPOpErr
		}
		o.kind, o.av = kindDatagram, at
		at += baseAVBytes
		if binary.BigEndian.Uint32(o.raw[o.av+8:])&avExtended != 0 {
			at = wqeUnit + avBytes
		}
	default:
		at = o.parseXRC(q, at)
	}
	if at > o.n {
		return prm.CQESyndLocalQPOpErr
	}
	if s := o.parseData(at, true); s != 0 {
		return s
	}
	return o.checkLength(q)
}

// checkLength refuses messages longer than the queue may send.
func (o *sendOp) checkLength(q *qp) prm.CQESyndrome {
	if o.length > q.maxMsg || o.kind == kindDatagram && o.length > uint64(q.mtu) {
		return prm.CQESyndLocalLengthErr
	}
	return 0
}

func (o *sendOp) parseRemote(f *function, q *qp) prm.CQESyndrome {
	const bad = prm.CQESyndLocalQPOpErr
	if !q.connected() {
		return bad
	}
	at := o.parseXRC(q, wqeUnit)
	if o.n < at+wqeUnit {
		return bad
	}
	o.raddr = binary.BigEndian.Uint64(o.raw[at:])
	o.rkey = binary.BigEndian.Uint32(o.raw[at+8:])
	at += wqeUnit
	switch o.opcode {
	case prm.WQERdmaWrite, prm.WQERdmaWriteImm:
		o.kind = kindMessage
		if s := o.parseData(at, true); s != 0 {
			return s
		}
	case prm.WQERdmaRead:
		if !q.reliable() {
			return bad
		}
		o.kind = kindRead
		if s := o.parseData(at, false); s != 0 {
			return s
		}
	default:
		return o.parseAtomic(f, q, at)
	}
	return o.checkLength(q)
}

func (o *sendOp) parseAtomic(f *function, q *qp, at int) prm.CQESyndrome {
	const bad = prm.CQESyndLocalQPOpErr
	if !q.reliable() {
		return bad
	}
	o.kind, o.args, o.size = kindAtomic, at, 8
	bit := uint(0) // of atomic_operations
	room := wqeUnit
	switch o.opcode {
	case prm.WQEAtomicCS:
		o.atom = atomCS
	case prm.WQEAtomicFA:
		o.atom, bit = 0, 1
	default:
		if o.opmod&^7 != 8 || o.opmod > 8+6 {
			return bad
		}
		o.size = 4 << (o.opmod & 7)
		o.atom, bit = atomMasked, 3
		if o.opcode == prm.WQEAtomicMaskedCS {
			o.atom, bit = atomMasked|atomCS, 2
		}
		room = (atomicArgs(o.atom, o.size) + wqeUnit - 1) &^ (wqeUnit - 1)
	}
	a := prm.AsAtomicCaps(f.caps.current(prm.CapAtomic))
	if !f.hasAtomics() || a.AtomicOperations()>>bit&1 == 0 || int(a.AtomicSizeQP())&o.size == 0 || o.n < at+room {
		return bad
	}
	if s := o.parseData(at+room, false); s != 0 {
		return s
	}
	if o.length != uint64(o.size) {
		return prm.CQESyndLocalLengthErr
	}
	return 0
}

// parseData takes the data segments from byte at to the end of the entry.
// Inline data is for what is sent only.
func (o *sendOp) parseData(at int, inline bool) prm.CQESyndrome {
	for at < o.n {
		head := binary.BigEndian.Uint32(o.raw[at:])
		s := &o.list[o.sges]
		if head&inlineBit != 0 {
			n := int(head &^ inlineBit)
			if !inline || n > o.n-at-4 {
				return prm.CQESyndLocalQPOpErr
			}
			*s = sge{addr: uint64(at + 4), n: uint32(n), inline: true}
			at = (at + 4 + n + wqeUnit - 1) &^ (wqeUnit - 1)
		} else {
			if o.n-at < wqeUnit {
				return prm.CQESyndLocalQPOpErr
			}
			*s = dataSeg(o.raw[at:])
			at += wqeUnit
		}
		o.length += uint64(s.n)
		o.sges++
	}
	return 0
}

// dataSeg reads a pointer segment.
func dataSeg(b []byte) sge {
	s := sge{n: binary.BigEndian.Uint32(b), key: binary.BigEndian.Uint32(b[4:]), addr: binary.BigEndian.Uint64(b[8:])}
	if s.n == 0 {
		s.n = wholeSeg
	}
	return s
}

// recvWQE is one entry of a receive queue, while a message lands in it.
type recvWQE struct {
	index  uint16
	shared *srq // nil: of the QP's own queue
	list   [maxSGEs]sge
	sges   int
	room   uint64
	raw    [maxRecvWQE]byte
}

func (r *recvWQE) segs() []sge { return r.list[:r.sges] }

// parse takes the scatter list of n bytes of entry, from byte at on. A segment
// with the terminating key and no length ends it.
func (r *recvWQE) parse(n, at int) {
	r.sges, r.room = 0, 0
	for ; at+wqeUnit <= n; at += wqeUnit {
		b := r.raw[at:]
		if binary.BigEndian.Uint32(b) == 0 && binary.BigEndian.Uint32(b[4:]) == terminateMKey {
			return
		}
		s := dataSeg(b)
		s.n &^= inlineBit
		if s.n == 0 {
			s.n = wholeSeg
		}
		r.list[r.sges] = s
		r.sges++
		r.room += uint64(s.n)
	}
}
