package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The requester: takes entries from the send queue, sends their packets, and
// completes them in order when the peer has answered. What is not answered is
// sent again from the oldest packet on (go back N).

const (
	maxOutstanding = 256 // operations
	maxWindow      = 512 // packets without acknowledgement
	ackEvery       = 64  // packets of a long message
)

// sendStep sends one packet, or carries out one local operation. It tells whether
// there may be more.
func (f *function) sendStep(q *qp) bool {
	fl := &q.flow
	if fl.rnrWait || fl.waits || !q.sending() || fl.cur == fl.ops.n && !f.nextOp(q) {
		return false
	}
	o := fl.ops.at(fl.cur)
	switch {
	case o.failed != 0:
		return false
	case o.done: // begun again, the cursor passes over it
		fl.cur++
	case o.kind == kindLocal:
		if !f.local(q, o) {
			return false
		}
	case o.kind == kindDatagram:
		f.sendDatagram(q, o)
	case !f.sendPacket(q, o):
		return false
	}
	return fl.more()
}

// sending tells the states in which packets are sent and answers awaited.
func (q *qp) sending() bool { return q.state == prm.QPStateRts || q.state == prm.QPStateSqd }

// more tells whether there is something that could be sent.
func (fl *qpFlow) more() bool {
	return fl.cur < fl.ops.n || fl.pending != nil || fl.head != fl.posted
}

// nextOp makes the next entry an outstanding operation; false when there is none
// or it must wait. What it waits for wakes the QP.
func (f *function) nextOp(q *qp) bool {
	fl := &q.flow
	if q.state != prm.QPStateRts || fl.failing || fl.pending == nil && !f.fetch(q) {
		return false
	}
	o := fl.pending
	if !f.chip.faults.fenceless() {
		switch o.fence {
		case prm.FenceReads, prm.FenceSmallAndReads:
			if fl.reads > 0 {
				return false
			}
		case prm.FenceStrongOrdering:
			if fl.ops.n > 0 {
				return false
			}
		}
	}
	if o.outbound() {
		if fl.reads >= q.reads {
			return false
		}
		fl.reads++
	}
	o.psn, o.psns = fl.next, f.packets(q, o)
	fl.next = (fl.next + o.psns) & counter24
	if o.psns > 0 {
		fl.ssn = (fl.ssn + 1) & counter24
	}
	fl.pending = nil
	fl.ops.push(o)
	return true
}

// packets is how many PSNs an operation takes: a READ as many as its answer.
func (f *function) packets(q *qp, o *sendOp) uint32 {
	switch o.kind {
	case kindMessage, kindRead:
		return packetsOf(o.length, q.mtu)
	case kindAtomic:
		return 1
	}
	return 0
}

func packetsOf(length uint64, mtu uint32) uint32 {
	return uint32(max(1, (length+uint64(mtu)-1)/uint64(mtu)))
}

// fetch reads the next entry into pending. One that makes no sense fails in its
// turn; a ring that cannot be read is the end of the QP.
func (f *function) fetch(q *qp) bool {
	fl, b := &q.flow, f.chip.fabric
	if fl.head == fl.posted || fl.ops.n >= maxOutstanding ||
		q.ctx.CdSlaveSend() && int16(fl.enabled-fl.head) <= 0 {
		return false
	}
	o := b.op()
	if !f.fetchWQE(q, o, fl.head, fl.posted) {
		b.dropOp(o)
		f.catastrophe(q)
		return false
	}
	bad := o.parse(f, q, fl.posted)
	o.blocks = min(o.blocks, fl.posted-fl.head)
	fl.head += o.blocks
	if bad != 0 {
		o.psn, o.psns = fl.next, 0
		fl.ops.push(o)
		f.fail(q, o, bad)
		return false
	}
	fl.pending = o
	return true
}

// local carries out an operation without packets; false when it must wait.
func (f *function) local(q *qp, o *sendOp) bool {
	b, fl := f.chip.fabric, &q.flow
	switch o.opcode {
	case prm.WQEWait:
		c, ok := f.cqs.get(o.number)
		if !ok {
			f.fail(q, o, prm.CQESyndLocalQPOpErr)
			return false
		}
		if !reached(c, o.max) {
			if !fl.waits {
				fl.waits = true
				b.waiters = append(b.waiters, q)
			}
			return false
		}
	case prm.WQESendEn, prm.WQERecvEn:
		t, ok := f.qps.get(o.number)
		if !ok || o.opcode == prm.WQESendEn && !t.ctx.CdSlaveSend() || o.opcode == prm.WQERecvEn && !t.ctx.CdSlaveReceive() {
			f.fail(q, o, prm.CQESyndLocalQPOpErr)
			return false
		}
		t.flow.f = f
		if o.opcode == prm.WQESendEn {
			t.flow.enabled = uint16(o.max)
			b.wakeSender(t)
		} else {
			t.flow.allowed = uint16(o.max)
		}
	}
	o.done = true
	fl.cur++
	f.finish(q)
	return true
}

// reached tells whether a completion queue has been given as many entries as a
// WAIT asks for, in the serial arithmetic of its 24-bit counter.
func reached(c *cq, count uint32) bool { return (c.producer-count)&counterCQ < 1<<23 }

// wakeWaiters looks whether a WAIT is satisfied now that c has one more entry.
func (b *fabric) wakeWaiters(c *cq) {
	kept := b.waiters[:0]
	for _, q := range b.waiters {
		o := q.flow.ops.at(q.flow.cur)
		if w, ok := q.flow.f.cqs.get(o.number); ok && w == c && reached(c, o.max) {
			q.flow.waits = false
			b.wakeSender(q)
			continue
		}
		kept = append(kept, q)
	}
	clear(b.waiters[len(kept):])
	b.waiters = kept
}

func (f *function) unwait(q *qp) {
	if !q.flow.waits {
		return
	}
	q.flow.waits = false
	b := f.chip.fabric
	for i, w := range b.waiters {
		if w == q {
			b.waiters = append(b.waiters[:i], b.waiters[i+1:]...)
			return
		}
	}
}

// sendPacket sends the next packet of an operation with a peer; false when the
// window is full or the data could not be read.
func (f *function) sendPacket(q *qp, o *sendOp) bool {
	b, fl := f.chip.fabric, &q.flow
	psn := (o.psn + o.sent) & counter24
	if q.reliable() && psnDiff(psn, fl.acked) >= maxWindow {
		return false
	}
	var p *packet
	switch o.kind {
	case kindRead:
		// Begun again, it asks for what is missing.
		skip := uint64(o.got) * uint64(q.mtu)
		p = b.packet(pktRead)
		p.vaddr, p.rkey, p.length = o.raddr+skip, o.rkey, uint32(o.length-skip)
		psn = (o.psn + o.got) & counter24
		o.sent = o.psns
	case kindAtomic:
		p = b.packet(pktAtomic)
		p.vaddr, p.rkey, p.atom, p.size = o.raddr, o.rkey, o.atom, uint16(o.size)
		p.n = copy(p.data[:], o.raw[o.args:o.args+atomicArgs(o.atom, o.size)])
		o.sent = 1
	default:
		if p = f.messagePacket(q, o); p == nil {
			return false
		}
	}
	o.begun = true
	if o.sent == o.psns {
		fl.cur++
		p.flags |= flagAckReq
	}
	p.psn, p.xsrq = psn, o.xsrq
	if psn%ackEvery == ackEvery-1 {
		p.flags |= flagAckReq
	}
	f.address(q, p)
	f.send(p)
	if q.reliable() {
		b.watch(q)
	} else if o.sent == o.psns {
		o.done = true
		f.finish(q)
	}
	return true
}

// messagePacket makes the next packet of a SEND or WRITE; nil when its data
// cannot be read.
func (f *function) messagePacket(q *qp, o *sendOp) *packet {
	b := f.chip.fabric
	off := uint64(o.sent) * uint64(q.mtu)
	n := int(min(uint64(q.mtu), o.length-off))
	p := b.packet(pktSend)
	if o.opcode == prm.WQERdmaWrite || o.opcode == prm.WQERdmaWriteImm {
		p.kind = pktWrite
	}
	if n > 0 {
		if f.moveList(q.accessor(), o.segs(), o.raw[:o.n], off, p.data[:n], false) != memOK {
			b.drop(p)
			f.fail(q, o, prm.CQESyndLocalProtErr)
			return nil
		}
	}
	p.n = n
	if o.sent == 0 {
		p.flags |= flagFirst
		p.vaddr, p.rkey, p.length = o.raddr, o.rkey, uint32(o.length)
	}
	if o.sent++; o.sent == o.psns {
		p.flags |= flagLast
		p.finish(o)
	}
	return p
}

// finish marks the last packet of a message.
func (p *packet) finish(o *sendOp) {
	if o.se {
		p.flags |= flagSolicited
	}
	switch o.opcode {
	case prm.WQESendImm, prm.WQERdmaWriteImm:
		p.flags |= flagImm
		p.imm = o.imm
	case prm.WQESendInval:
		p.flags |= flagInval
		p.imm = o.imm
	}
}

// sendDatagram sends a datagram, which completes with it.
func (f *function) sendDatagram(q *qp, o *sendOp) {
	b, fl := f.chip.fabric, &q.flow
	p := b.packet(pktDatagram)
	p.n = int(o.length)
	if p.n > 0 && f.moveList(q.accessor(), o.segs(), o.raw[:o.n], 0, p.data[:p.n], false) != memOK {
		b.drop(p)
		f.fail(q, o, prm.CQESyndLocalProtErr)
		return
	}
	p.flags = flagFirst | flagLast
	p.finish(o)
	p.psn = fl.next
	fl.next = (fl.next + 1) & counter24
	f.addressAV(q, p, o.raw[o.av:o.n])
	f.send(p)
	o.done = true
	fl.cur++
	f.finish(q)
}
