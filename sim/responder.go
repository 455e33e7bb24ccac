package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The responder: takes requests in the order of their PSNs, carries them out and
// answers. A request that may not be carried out is refused with a NAK; then the
// QP is in error, after the NAK is out.

// request takes a request or datagram, which belongs to it from then on.
func (f *function) request(q *qp, p *packet) {
	fl := &q.flow
	switch {
	case !q.receiving() || fl.stopping:
	case p.kind == pktDatagram:
		if q.datagrams() {
			f.established(q)
			f.datagram(q, p)
		}
	case !q.connected() || !f.fromPeer(q, p) || q.mtu == 0:
	case q.st == prm.QPTypeUC:
		f.established(q)
		if !f.unreliable(q, p) {
			return
		}
	default:
		f.established(q)
		if f.ordered(q, p) && !f.perform(q, p) {
			return // it goes on later
		}
	}
	f.chip.fabric.drop(p)
}

// receiving tells the states in which requests are taken.
func (q *qp) receiving() bool {
	switch q.state {
	case prm.QPStateRtr, prm.QPStateRts, prm.QPStateSqd, prm.QPStateSqer:
		return true
	}
	return false
}

// established raises COMM_EST for the first packet in RTR.
func (f *function) established(q *qp) {
	if q.state == prm.QPStateRtr && !q.flow.told {
		q.flow.told = true
		f.qpEvent(q, prm.EventCommEst)
	}
}

// ordered lets the expected packet through. One too early is answered with a
// sequence NAK, once; one that came before is answered again.
func (f *function) ordered(q *qp, p *packet) bool {
	fl := &q.flow
	switch d := psnDiff(p.psn, fl.expected); {
	case d > 0:
		q.tally(qOutOfSequence)
		if !fl.nakked {
			fl.nakked = true
			f.acknowledge(q, fl.expected, aethSeq)
		}
		return false
	case d < 0:
		q.tally(qDuplicateRequest)
		f.duplicate(q, p)
		return false
	}
	fl.nakked = false
	return true
}

// duplicate answers a request that was carried out before: it is not carried out
// again, but for a READ, whose data is read anew.
func (f *function) duplicate(q *qp, p *packet) {
	fl := &q.flow
	switch p.kind {
	case pktSend, pktWrite:
		f.acknowledge(q, (fl.expected-1)&counter24, aethAck)
	case pktRead:
		n := packetsOf(uint64(p.length), q.mtu)
		if psnDiff((p.psn+n)&counter24, fl.expected) > 0 || !q.rre {
			return
		}
		if p.length > 0 {
			if _, r := f.keyFor(q.accessor(), p.rkey, needRemoteRead, p.vaddr, uint64(p.length)); r != memOK {
				f.refuse(q, p, aethAccess)
				return
			}
		}
		f.cutAnswers(q, p.psn)
		f.owe(q, answer{psn: p.psn, va: p.vaddr, rkey: p.rkey, length: p.length, psns: n})
	case pktAtomic:
		for i := range fl.saved {
			if s := &fl.saved[i]; s.psn == p.psn && s.n == int(p.size) {
				f.owe(q, answer{pkt: f.atomicAnswer(q, s)})
				return
			}
		}
	}
}

// perform carries out the expected request; false when it goes on later, and the
// packet with it.
func (f *function) perform(q *qp, p *packet) bool {
	fl := &q.flow
	if fl.msg.kind != pktNone && (p.kind != fl.msg.kind || p.has(flagFirst)) ||
		fl.msg.kind == pktNone && (p.kind == pktSend || p.kind == pktWrite) && !p.has(flagFirst) {
		f.refuse(q, p, aethInval) // packets of a message do not follow one another
		return true
	}
	switch p.kind {
	case pktSend:
		f.receive(q, p)
	case pktWrite:
		return f.write(q, p)
	case pktRead:
		f.read(q, p)
	case pktAtomic:
		return f.atomic(q, p)
	}
	return true
}

// accept moves on behind a request that was carried out; last says that it ends a
// message. The acknowledgement goes out where the packet asks for one.
func (f *function) accept(q *qp, p *packet, last bool) {
	fl := &q.flow
	fl.expected = (p.psn + 1) & counter24
	if last {
		fl.msn = (fl.msn + 1) & counter24
		fl.msg = message{}
	}
	if p.has(flagAckReq) && q.reliable() {
		f.acknowledge(q, p.psn, aethAck)
	}
}

// acknowledge answers with an ACK or NAK of a packet.
func (f *function) acknowledge(q *qp, psn uint32, a aeth) {
	p := f.chip.fabric.packet(pktAck)
	p.psn, p.msn, p.aeth = psn, q.flow.msn, a
	f.owe(q, answer{pkt: p})
}

// owe sends an answer, or puts it behind those that are due before it.
func (f *function) owe(q *qp, a answer) {
	fl := &q.flow
	if a.pkt != nil && fl.answers.len() == 0 {
		f.address(q, a.pkt)
		f.send(a.pkt)
		return
	}
	fl.answers.push(a)
	f.chip.fabric.wakeAnswers(q)
}

// answerStep sends one packet of the answers that are due, and tells whether there
// are more.
func (f *function) answerStep(q *qp) bool {
	fl, b := &q.flow, f.chip.fabric
	if fl.answers.len() == 0 || !q.receiving() {
		return false
	}
	a := fl.answers.first()
	p := a.pkt
	if p == nil {
		p = b.packet(pktReadResponse)
		off := uint64(a.sent) * uint64(q.mtu)
		p.n = int(min(uint64(q.mtu), uint64(a.length)-off))
		p.psn = (a.psn + a.sent) & counter24
		p.msn = fl.msn
		if b.chip.faults.has("bad-response") {
			p.kind = pktAtomicResponse
		}
		if r := f.copyMem(q.accessor(), a.rkey, needRemoteRead, a.va+off, p.data[:p.n], 0); r != memOK {
			f.readFailed(q, p, r)
			return fl.answers.len() > 0
		}
		if a.sent++; a.sent == a.psns {
			p.flags |= flagLast
		}
	}
	if a.pkt != nil || a.sent == a.psns {
		a.pkt = nil
		fl.answers.pop()
	}
	f.address(q, p)
	f.send(p)
	return fl.answers.len() > 0
}

// readFailed turns the answer of a READ into a refusal: its key is gone by now,
// or its memory.
func (f *function) readFailed(q *qp, p *packet, r memResult) {
	p.kind, p.n, p.aeth = pktAck, 0, aethOp
	if r != memDMA {
		p.aeth = aethAccess
	}
	f.dropAnswers(q)
	f.address(q, p)
	aeth := p.aeth
	f.send(p)
	f.stop(q, aeth, false)
}

// refuse answers a request with a NAK that ends the QP, behind the answers that
// are due before it.
func (f *function) refuse(q *qp, p *packet, a aeth) { f.refuseRecv(q, p, a, false) }

// refuseRecv is refuse of a request whose receive entry has been completed with
// the error, which is then the news of it; otherwise an event is.
func (f *function) refuseRecv(q *qp, p *packet, a aeth, completed bool) {
	if !q.reliable() {
		// Nobody is told: the message is lost, or with it the receive queue.
		if completed {
			f.stop(q, a, completed)
			return
		}
		q.flow.spare = q.flow.msg.recv
		q.flow.msg = message{}
		q.flow.expected = (p.psn + 1) & counter24
		return
	}
	for q.flow.answers.len() > 0 {
		f.answerStep(q)
		if q.flow.stopping {
			return // one of them failed
		}
	}
	switch a {
	case aethInval:
		q.tally(qRespRemoteInvalid)
	case aethAccess:
		q.tally(qRespRemoteAccess)
	}
	f.acknowledge(q, p.psn, a)
	f.stop(q, a, completed)
}

// stop ends a QP after what it has answered is out: the peer hears of the error
// first, even if the peer is the QP itself.
func (f *function) stop(q *qp, a aeth, completed bool) {
	q.flow.stopping = true
	if !completed {
		switch a {
		case aethInval:
			f.qpEvent(q, prm.EventWQInvalReqError)
		case aethAccess:
			f.qpEvent(q, prm.EventWQAccessError)
		default:
			f.qpEvent(q, prm.EventWQCatasError)
		}
	}
	p := f.chip.fabric.packet(pktStop)
	p.dqpn, p.to = q.n, f
	f.chip.fabric.wire.push(p)
}

func (f *function) stopped(q *qp) {
	if q.flow.stopping && q.state != prm.QPStateRst {
		f.setState(q, prm.QPStateErr)
	}
}

// read takes a READ: the data is read when the answer is sent, which may be after
// later requests were carried out, unless the requester fences.
func (f *function) read(q *qp, p *packet) {
	fl := &q.flow
	n := packetsOf(uint64(p.length), q.mtu)
	switch {
	case !q.rre, fl.answers.readsOwed() >= q.readsIn, uint64(p.length) > q.maxMsg:
		f.refuse(q, p, aethInval)
		return
	case p.length > 0:
		if _, r := f.keyFor(q.accessor(), p.rkey, needRemoteRead, p.vaddr, uint64(p.length)); r != memOK {
			f.refuse(q, p, aethAccess)
			return
		}
	}
	q.tally(qRxReadRequests)
	fl.expected = (p.psn + n) & counter24
	fl.msn = (fl.msn + 1) & counter24
	f.owe(q, answer{psn: p.psn, va: p.vaddr, rkey: p.rkey, length: p.length, psns: n})
}

// atomicSize tells whether a QP's atomic_mode allows an atomic (Linux
// mlx5_ifc.h and driver.h name the modes).
func (q *qp) atomicSize(size int, masked bool) bool {
	switch q.atomicMode {
	case prm.AtomicModeNone:
		return false
	case prm.AtomicModeIBSpec:
		return size == 8 && !masked
	case prm.AtomicModeOnly8B:
		return size == 8
	}
	return size <= q.largestAtomic()
}

// largestAtomic is the largest operand that a QP's atomic_mode allows, in bytes.
func (q *qp) largestAtomic() int {
	switch m := q.atomicMode; {
	case m == prm.AtomicModeNone:
		return 0
	case m <= prm.AtomicModeUpTo8B:
		return 8
	default:
		return 8 << (m - prm.AtomicModeUpTo8B)
	}
}

// atomic takes an atomic; false when it goes on later (a fault).
func (f *function) atomic(q *qp, p *packet) bool {
	size := int(p.size)
	caps := prm.AsAtomicCaps(f.caps.current(prm.CapAtomic))
	switch {
	case !q.rae || !q.atomicSize(size, p.atom&atomMasked != 0) || int(caps.AtomicSizeQP())&size == 0,
		p.vaddr&uint64(size-1) != 0, q.flow.answers.readsOwed() >= q.readsIn:
		f.refuse(q, p, aethInval)
		return true
	}
	k, r := f.keyFor(q.accessor(), p.rkey, needRemoteAtomic, p.vaddr, uint64(size))
	var iova uint64
	if r == memOK {
		iova, r = f.place(q.accessor(), k, needRemoteAtomic, p.vaddr, uint64(size))
	}
	if r != memOK {
		f.refuse(q, p, aethAccess)
		return true
	}
	q.tally(qRxAtomicRequests)
	return f.runAtomic(q, p, iova)
}

// atomicDone keeps and sends the answer of an atomic.
func (f *function) atomicDone(q *qp, p *packet, old *atomicWords) {
	fl := &q.flow
	if uint32(len(fl.saved)) < q.readsIn {
		fl.saved = append(fl.saved, savedAtomic{})
		fl.oldest = len(fl.saved) - 1
	}
	s := &fl.saved[fl.oldest]
	fl.oldest = (fl.oldest + 1) % int(q.readsIn)
	s.psn, s.n = p.psn, int(p.size)
	putWords(s.data[:], old, s.n)
	fl.expected = (p.psn + 1) & counter24
	fl.msn = (fl.msn + 1) & counter24
	f.owe(q, answer{pkt: f.atomicAnswer(q, s)})
}

func (f *function) atomicAnswer(q *qp, s *savedAtomic) *packet {
	a := f.chip.fabric.packet(pktAtomicResponse)
	a.psn, a.msn = s.psn, q.flow.msn
	a.n = copy(a.data[:], s.data[:s.n])
	if f.chip.faults.has("bad-response") {
		a.kind = pktReadResponse
	}
	return a
}
