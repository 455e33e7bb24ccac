package sim

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The requester's other half: what the peer answers, and what happens when it does
// not.

// response takes an answer of the peer. The caller puts the packet back.
func (f *function) response(q *qp, p *packet) {
	fl := &q.flow
	if !q.sending() || !q.reliable() || !f.fromPeer(q, p) ||
		psnDiff(p.psn, fl.acked) < 0 || psnDiff(p.psn, fl.next) >= 0 {
		return // late: of a QP that has moved on, or answered already
	}
	f.chip.fabric.watch(q)
	switch p.kind {
	case pktAck:
		f.acknowledged(q, p)
	case pktReadResponse, pktAtomicResponse:
		f.answered(q, p)
	}
	if q.sending() {
		f.finish(q)
	}
	if q.sending() && fl.more() {
		f.chip.fabric.wakeSender(q)
	}
}

// acknowledged takes an ACK or NAK.
func (f *function) acknowledged(q *qp, p *packet) {
	fl := &q.flow
	if p.aeth == aethAck {
		f.through(q, p.psn)
		return
	}
	// Everything before the packet that is refused has arrived.
	if !f.through(q, (p.psn-1)&counter24) {
		return
	}
	i := f.opAt(q, p.psn)
	if i < 0 {
		return
	}
	o := fl.ops.at(i)
	switch {
	case p.aeth == aethSeq:
		q.tally(qPacketSeqErr)
		f.again(q, p.psn)
	case p.aeth.rnr():
		f.notReady(q, o, p)
	case p.aeth == aethInval:
		f.fail(q, o, prm.CQESyndRemoteInvalReqErr)
	case p.aeth == aethAccess:
		f.fail(q, o, prm.CQESyndRemoteAccessErr)
	case p.aeth == aethOp:
		f.fail(q, o, prm.CQESyndRemoteOpErr)
	default:
		f.fail(q, o, prm.CQESyndBadRespErr)
	}
}

// opAt finds the outstanding operation that a PSN belongs to; −1 if none does.
func (f *function) opAt(q *qp, psn uint32) int {
	fl := &q.flow
	for i := range fl.ops.n {
		if o := fl.ops.at(i); o.psns > 0 && psnDiff(psn, o.psn) >= 0 && psnDiff(psn, o.lastPSN()) <= 0 {
			return i
		}
	}
	return -1
}

// through takes everything up to psn as arrived. A read or atomic among it whose
// answer has not come was answered in vain: it is asked for again, and through
// answers false (implied NAK).
func (f *function) through(q *qp, psn uint32) bool {
	fl := &q.flow
	if psnDiff(psn, fl.acked) < 0 {
		return true
	}
	for i := range fl.ops.n {
		o := fl.ops.at(i)
		switch {
		case o.psns == 0 || o.done:
			continue
		case psnDiff(psn, o.psn) < 0:
			fl.progress(psn)
			return true
		case o.outbound():
			if at := (o.psn + o.got) & counter24; psnDiff(psn, at) >= 0 {
				fl.progress((at - 1) & counter24)
				if !fl.asked { // once for all that comes behind the gap
					fl.asked = true
					q.tally(qImpliedNakSeqErr)
					f.again(q, at)
				}
				return false
			}
			fl.progress(psn)
			return true
		case psnDiff(psn, o.lastPSN()) < 0:
			fl.progress(psn)
			return true
		}
		o.done = true
	}
	fl.progress(psn)
	return true
}

// progress: the peer has everything up to psn.
func (fl *qpFlow) progress(psn uint32) {
	if at := (psn + 1) & counter24; psnDiff(at, fl.acked) > 0 {
		fl.acked = at
		fl.retries, fl.rnrs, fl.asked = 0, 0, false
	}
}

// answered takes the data of a read or atomic.
func (f *function) answered(q *qp, p *packet) {
	fl := &q.flow
	if !f.through(q, (p.psn-1)&counter24) {
		return
	}
	i := f.opAt(q, p.psn)
	if i < 0 {
		return
	}
	o := fl.ops.at(i)
	want := pktReadResponse
	if o.kind == kindAtomic {
		want = pktAtomicResponse
	}
	off := uint64(o.got) * uint64(q.mtu)
	n := int(min(uint64(q.mtu), o.length-off))
	if p.kind != want || p.n != n || !o.begun {
		f.fail(q, o, prm.CQESyndBadRespErr)
		return
	}
	if o.kind == kindAtomic && o.size == 8 && f.hostOrderReplies() {
		reverse8(p.data[:8])
	}
	if f.intoCQE(q.sendCQ, uint8(q.ctx.CsReq())>>4, o.length) {
		o.inCQE = true
		copy(o.answer[:], p.payload())
	} else if n > 0 && f.moveList(q.accessor(), o.segs(), nil, off, p.payload(), true) != memOK {
		f.fail(q, o, prm.CQESyndLocalProtErr)
		return
	}
	fl.progress(p.psn)
	if o.got++; o.got == o.psns {
		o.done = true
		fl.reads--
	}
}

// hostOrderReplies: the order of 8-byte answers is a choice of the requester's
// driver (Linux main.c, handle_hca_cap_atomic).
func (f *function) hostOrderReplies() bool {
	return prm.AsAtomicCaps(f.caps.current(prm.CapAtomic)).AtomicReq8BEndiannessMode() == 1
}

func reverse8(b []byte) {
	for i := range 4 {
		b[i], b[7-i] = b[7-i], b[i]
	}
}

// again sends everything from psn on once more, or gives up: the peer does not
// answer as it should.
func (f *function) again(q *qp, psn uint32) {
	fl := &q.flow
	i := f.opAt(q, psn)
	if i < 0 {
		return
	}
	if fl.retries >= q.retry {
		f.fail(q, fl.ops.at(i), prm.CQESyndTransportRetryExcErr)
		return
	}
	fl.retries++
	f.rewind(q, i, psn)
}

// rewind makes the packet psn, of operation i, the next to send.
func (f *function) rewind(q *qp, i int, psn uint32) {
	fl := &q.flow
	if i > fl.cur {
		return // it has not been sent yet
	}
	fl.cur = i
	for j := i; j < fl.ops.n; j++ {
		o := fl.ops.at(j)
		if !o.done {
			o.sent = 0
		}
	}
	if o := fl.ops.at(i); o.kind == kindMessage {
		o.sent = (psn - o.psn) & counter24
	}
	f.chip.fabric.wakeSender(q)
}

// rnrDelay is the time of an RNR NAK timer code in units of 10 µs (IBTA table
// "RNR NAK timer").
var rnrDelay = [32]uint32{65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
	2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152}

// rnrForever is the retry count that never ends.
const rnrForever = 7

// notReady waits for the peer's timer and tries again, as often as rnr_retry
// says.
func (f *function) notReady(q *qp, o *sendOp, p *packet) {
	fl := &q.flow
	if q.rnrRetry != rnrForever {
		if fl.rnrs >= q.rnrRetry {
			f.fail(q, o, prm.CQESyndRNRRetryExcErr)
			return
		}
		fl.rnrs++
	}
	f.rewind(q, f.opAt(q, p.psn), p.psn)
	fl.rnrWait = true
	d := time.Duration(rnrDelay[p.aeth&0x1f]) * 10 * time.Microsecond
	f.afterward(q, d, func() {
		fl.rnrWait = false
		f.chip.fabric.wakeSender(q)
	})
}

// ackTime is the time of an ack_timeout code: 4.096 µs << n.
func ackTime(code uint8) time.Duration { return 4096 * time.Nanosecond << code }

// idled is called when all work is done for now: what is outstanding then waits
// for the peer, and the timer says how long.
func (f *function) idled(q *qp) {
	fl := &q.flow
	if q.ackTimeout == 0 || !f.unanswered(q) {
		return
	}
	fl.deadline = f.chip.now() + ackTime(q.ackTimeout)
	if !fl.timer {
		fl.timer = true
		f.afterward(q, ackTime(q.ackTimeout), func() { f.timedOut(q) })
	}
}

// unanswered tells whether the oldest operation waits for the peer.
func (f *function) unanswered(q *qp) bool {
	fl := &q.flow
	if fl.rnrWait || !q.sending() || fl.ops.n == 0 {
		return false
	}
	o := fl.ops.at(0)
	return o.psns > 0 && !o.done && o.sent > 0
}

func (f *function) timedOut(q *qp) {
	fl := &q.flow
	fl.timer = false
	if !f.unanswered(q) {
		return
	}
	if left := fl.deadline - f.chip.now(); left > 0 {
		fl.timer = true
		f.afterward(q, left, func() { f.timedOut(q) })
		return
	}
	q.tally(qLocalAckTimeoutErr)
	f.again(q, fl.acked)
	f.chip.fabric.watch(q)
}
