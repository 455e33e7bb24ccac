package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Messages that land in receive entries: SENDs, datagrams, and WRITEs with
// immediate.

// recvState says how taking a receive entry went.
type recvState uint8

const (
	recvTaken  recvState = iota
	recvNone             // none is posted
	recvBroken           // the queue cannot be read; its event is out
)

// takeRecv takes the next receive entry for a message of the QP into flow.recv.
func (f *function) takeRecv(q *qp, xsrq uint32) recvState {
	fl := &q.flow
	if fl.recv == nil {
		fl.recv = new(recvWQE)
	}
	if fl.spare {
		fl.spare = false
		return recvTaken
	}
	s := q.srq
	if q.st == prm.QPTypeXRC {
		var ok bool
		if s, ok = f.srqs.get(xsrq); !ok || s.kind != kindXRC || s.domain != q.xrcd {
			return recvBroken
		}
	}
	if s != nil {
		return f.takeShared(q, s)
	}
	if !q.rq.some {
		return recvNone
	}
	posted, ok := f.postedRecv(q)
	if q.ctx.CdSlaveReceive() && int16(posted-fl.allowed) > 0 {
		posted = fl.allowed
	}
	switch n := uint32(posted - fl.taken); {
	case !ok || n > q.rq.entries() && n < 1<<15:
		f.catastrophe(q)
		return recvBroken
	case n == 0 || n >= 1<<15:
		return recvNone
	}
	stride := 1 << q.rq.shift
	if !f.readBuffer(&q.rq.buf, q.rq.at(uint32(fl.taken)), fl.recv.raw[:stride]) {
		f.catastrophe(q)
		return recvBroken
	}
	at := 0
	if q.signs {
		at = wqeUnit // a signature segment comes first (rdma-core)
	}
	fl.recv.index, fl.recv.shared = fl.taken, nil
	fl.recv.parse(stride, at)
	fl.taken++
	return recvTaken
}

// takeShared takes the next entry of a shared receive queue: the one that the
// last one named, or the next in order.
func (f *function) takeShared(q *qp, s *srq) recvState {
	r := q.flow.recv
	if s.failed {
		return recvNone
	}
	posted, ok := f.postedSRQ(s)
	n := uint32(posted - s.taken)
	if ok && n == 0 {
		return recvNone
	}
	stride := 1 << s.wq.shift
	index := s.taken & uint16(s.wq.entries()-1)
	if s.linked {
		index = s.next
	}
	if !ok || n > s.wq.entries() || uint32(index) >= s.wq.entries() ||
		!f.readBuffer(&s.wq.buf, s.wq.at(uint32(index)), r.raw[:stride]) {
		s.failed = true
		f.srqEvent(s, prm.EventSRQCatasError)
		f.catastrophe(q)
		return recvBroken
	}
	at := 0
	if s.linked {
		s.next = binary.BigEndian.Uint16(r.raw[2:])
		at = wqeUnit
	}
	r.index, r.shared = index, s
	r.parse(stride, at)
	s.taken++
	if s.limit != 0 && n-1 < uint32(s.limit) {
		s.limit = 0
		f.srqEvent(s, prm.EventSRQRQLimit)
	}
	return recvTaken
}

// recvAccessor is in whose name the entry's pieces are accessed.
func (r *recvWQE) accessor(q *qp) accessor {
	a := q.accessor()
	if r.shared != nil {
		a.pd, a.rlkey = r.shared.pd, r.shared.rlkey
	}
	return a
}

// recvCQ is where the entry completes, and what the completion says beside the
// QPN.
func (f *function) recvCQ(q *qp, r *recvWQE) (*cq, uint32) {
	if s := r.shared; s != nil && s.kind == kindXRC {
		if f.general().CQEVersion() == 1 {
			return s.cq, s.index
		}
		return s.cq, s.n
	}
	return q.recvCQ, f.cqeIndex(q)
}

// failRecv completes the receive entry in use with an error.
func (f *function) failRecv(q *qp, s prm.CQESyndrome) {
	switch s {
	case prm.CQESyndWrFlushErr:
		q.tally(qRespCQEFlush)
	case prm.CQESyndLocalLengthErr:
		q.tally(qRespLocalLength)
	case prm.CQESyndLocalProtErr, prm.CQESyndLocalAccessErr:
		q.tally(qRespLocalProtection)
	}
	if s != prm.CQESyndWrFlushErr {
		q.tally(qRespCQE)
	}
	r := q.flow.recv
	c, n := f.recvCQ(q, r)
	f.completeError(q, c, prm.CQERespErr, s, 0, r.index, n)
}

// notPosted answers a message for which no receive entry is there: try again
// later. What follows it is not looked at until it comes again.
func (f *function) notPosted(q *qp, p *packet, st recvState) {
	if st == recvBroken {
		f.refuseRecv(q, p, aethOp, true)
		return
	}
	q.tally(qOutOfBuffer)
	if !q.reliable() {
		q.flow.expected = (p.psn + 1) & counter24
		return
	}
	q.flow.nakked = true
	f.acknowledge(q, p.psn, aethRNR|aeth(q.minRNR&0x1f))
}

// receive takes a packet of a SEND.
func (f *function) receive(q *qp, p *packet) {
	fl := &q.flow
	if p.has(flagFirst) {
		if st := f.takeRecv(q, p.xsrq); st != recvTaken {
			f.notPosted(q, p, st)
			return
		}
		fl.msg = message{kind: pktSend, recv: true}
	}
	r, m := fl.recv, &fl.msg
	c, _ := f.recvCQ(q, r)
	last := p.has(flagLast)
	whole := last && p.has(flagFirst)
	switch {
	case m.got+uint64(p.n) > r.room || m.got+uint64(p.n) > q.maxMsg:
		f.endRecv(q, p, prm.CQESyndLocalLengthErr, aethInval)
		return
	case !last && p.n != int(q.mtu):
		f.endRecv(q, p, prm.CQESyndRemoteInvalReqErr, aethInval)
		return
	case whole && f.intoCQE(c, uint8(q.ctx.CsRes()), uint64(p.n)):
		// The data goes into the completion.
	case p.n > 0 && f.moveList(r.accessor(q), r.segs(), nil, m.got, p.payload(), true) != memOK:
		f.endRecv(q, p, prm.CQESyndLocalProtErr, aethOp)
		return
	}
	m.got += uint64(p.n)
	if last {
		if p.has(flagInval) && !f.invalidate(q, p.imm) {
			f.endRecv(q, p, prm.CQESyndRemoteInvalReqErr, aethInval)
			return
		}
		f.received(q, p, uint32(m.got), whole)
	}
	f.accept(q, p, last)
}

// endRecv completes the entry in use with an error and refuses the request.
func (f *function) endRecv(q *qp, p *packet, s prm.CQESyndrome, a aeth) {
	q.flow.msg.recv = false
	f.failRecv(q, s)
	f.refuseRecv(q, p, a, true)
}

// received completes a receive entry. whole says that the packet is the whole
// message, which then may lie in the completion.
func (f *function) received(q *qp, p *packet, n uint32, whole bool) {
	r := q.flow.recv
	q.flow.msg.recv = false
	var e prm.CQE64
	switch {
	case p.kind == pktWrite:
		e.SetOpcode(prm.CQERespWrImm)
	case p.has(flagImm):
		e.SetOpcode(prm.CQERespSendImm)
	case p.has(flagInval):
		e.SetOpcode(prm.CQERespSendInv)
	default:
		e.SetOpcode(prm.CQERespSend)
	}
	if p.has(flagImm | flagInval) {
		e.SetImmediate(p.imm)
	}
	c, index := f.recvCQ(q, r)
	e.SetUserIndex(index)
	e.SetByteCnt(n)
	e.SetQPN(q.n)
	e.SetWQECounter(r.index)
	f.sender(q, p, &e)
	if p.kind != pktWrite && whole && f.intoCQE(c, uint8(q.ctx.CsRes()), uint64(p.n)) {
		f.inline(c, &e, p.payload())
	}
	e.SetSe(p.has(flagSolicited))
	f.completion(c, q, &e, p.has(flagSolicited))
}

// sender says in a completion who sent.
func (f *function) sender(q *qp, p *packet, e *prm.CQE64) {
	e.SetRqpn(p.sqpn)
	e.SetMlPath(p.path)
	e.SetSlid(p.slid)
	e.SetSl(p.sl)
	if f.chip.port == PortEth {
		e.SetSlid(uint16(p.smac))
		e.SetSl(p.l3) // RoCE packet type
	}
	if p.has(flagGRH) {
		e.SetGrh(1)
	}
}

// invalidate takes a key away from those that could use it, as a SEND with
// invalidate asks; false when it may not be.
func (f *function) invalidate(q *qp, key uint32) bool {
	k, ok := f.mkeys.get(key >> 8)
	if !ok || k.key != key || k.free || k.pd != q.pd || !k.ctx.EnRinval() {
		return false
	}
	k.free = true
	k.ctx.SetFree(true)
	return true
}

// grhBytes come before the data of a datagram (IBTA 11.4.1.1).
const grhBytes = 40

// datagram takes a datagram. What nobody waits for is lost, as the service
// allows.
func (f *function) datagram(q *qp, p *packet) {
	fl := &q.flow
	if p.qkey != q.qkey {
		return
	}
	if st := f.takeRecv(q, 0); st != recvTaken {
		if st == recvNone {
			q.tally(qOutOfBuffer)
		}
		return
	}
	r := fl.recv
	a := r.accessor(q)
	fl.msg.recv = true
	fail := func(s prm.CQESyndrome) {
		fl.msg.recv = false
		f.failRecv(q, s)
		f.stop(q, aethOp, true)
	}
	if uint64(grhBytes+p.n) > r.room {
		fail(prm.CQESyndLocalLengthErr)
		return
	}
	if p.has(flagGRH) {
		h := p.globalHeader()
		if f.moveList(a, r.segs(), nil, 0, h[:], true) != memOK {
			fail(prm.CQESyndLocalProtErr)
			return
		}
	}
	if p.n > 0 && f.moveList(a, r.segs(), nil, grhBytes, p.payload(), true) != memOK {
		fail(prm.CQESyndLocalProtErr)
		return
	}
	f.received(q, p, uint32(grhBytes+p.n), false)
}

// What a datagram has behind its route header beside the data (IBTA 5.2.1, RoCEv2
// annex A17): the transport's headers and checksum, and in RoCEv2 UDP's header.
const (
	transportBytes = 12 + 8 + 4 // BTH, DETH, ICRC
	immediateBytes = 4
	udpBytes       = 8
	ipv4Bytes      = 20
)

// globalHeader is the header as it lies before the data: an IPv6 header, or an
// IPv4 one in the last 20 bytes. Its length counts what follows it up to the ICRC, an
// IPv4 one's itself too.
func (p *packet) globalHeader() (h [grhBytes]byte) {
	be := binary.BigEndian
	n := uint16(transportBytes + (p.n+3)&^3)
	if p.has(flagImm) {
		n += immediateBytes
	}
	if p.l3 == roceIPv4 {
		b := h[20:]
		b[0], b[1], b[8], b[9] = 0x45, p.tclass, p.hops, 17
		be.PutUint16(b[2:], ipv4Bytes+udpBytes+n)
		copy(b[12:], p.sgid[12:])
		copy(b[16:], p.dgid[12:])
		return h
	}
	be.PutUint32(h[0:], 6<<28|uint32(p.tclass)<<20|p.flow&0xfffff)
	h[6], h[7] = 0x1b, p.hops
	if p.l3 == roceIPv6 {
		h[6] = 17
		n += udpBytes
	}
	be.PutUint16(h[4:], n)
	copy(h[8:], p.sgid[:])
	copy(h[24:], p.dgid[:])
	return h
}

// unreliable takes a packet of UC: what is missing takes its message with it.
// False when it goes on later.
func (f *function) unreliable(q *qp, p *packet) bool {
	fl := &q.flow
	if p.kind != pktSend && p.kind != pktWrite {
		return true
	}
	if p.psn != fl.expected || p.has(flagFirst) && fl.msg.kind != pktNone {
		fl.spare = fl.msg.recv // its entry is for the next message
		fl.msg = message{}
		fl.expected = p.psn
	}
	if fl.msg.kind == pktNone && !p.has(flagFirst) {
		fl.expected = (p.psn + 1) & counter24
		return true
	}
	return f.perform(q, p)
}
