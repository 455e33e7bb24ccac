package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Completions: good ones, failed ones, and the flush of a queue in error.

// vendorSynd is the vendor's own syndrome beside each: the model's choice, the
// syndrome's number with bit 7.
const vendorSynd = 0x80

// finish completes the outstanding operations that are done, in order. One that
// failed ends the queue.
func (f *function) finish(q *qp) {
	fl := &q.flow
	for fl.ops.n > 0 {
		o := fl.ops.at(0)
		if o.failed != 0 {
			f.finishFailed(q, o)
			return
		}
		if !o.done {
			return
		}
		fl.ops.pop()
		fl.cur = max(0, fl.cur-1)
		if o.ce >= prm.CompletionModeAlways {
			f.completeSend(q, o)
		}
		f.chip.fabric.dropOp(o)
	}
	f.drained(q)
}

// drained tells that a queue in SQD has nothing outstanding any more.
func (f *function) drained(q *qp) {
	if fl := &q.flow; fl.draining && fl.ops.n == 0 {
		fl.draining = false
		f.qpEvent(q, prm.EventSQDrained)
	}
}

// fail ends an operation with a syndrome as soon as those before it are complete.
func (f *function) fail(q *qp, o *sendOp, s prm.CQESyndrome) {
	o.failed = s
	q.flow.failing = true
	f.finish(q)
}

// finishFailed completes the failed operation at the head of the queue. The QP
// is in error then; one without a connection only its send queue (IBTA's SQEr).
func (f *function) finishFailed(q *qp, o *sendOp) {
	fl := &q.flow
	fl.ops.pop()
	fl.cur = max(0, fl.cur-1)
	q.tally(tallyOfSend[o.failed])
	q.tally(qReqCQE)
	f.completeError(q, q.sendCQ, prm.CQEReqErr, o.failed, o.opcode, o.index, f.cqeIndex(q))
	f.chip.fabric.dropOp(o)
	to := prm.QPStateErr
	if !q.reliable() {
		to = prm.QPStateSqer
	}
	f.setState(q, to)
}

// tallyOfSend is the counter of each way a send fails.
var tallyOfSend = map[prm.CQESyndrome]qCounter{
	prm.CQESyndLocalLengthErr:       qReqLocalLength,
	prm.CQESyndLocalQPOpErr:         qLocalOperation,
	prm.CQESyndLocalProtErr:         qReqLocalProtection,
	prm.CQESyndBadRespErr:           qReqBadResponse,
	prm.CQESyndRemoteInvalReqErr:    qReqRemoteInvalidRequest,
	prm.CQESyndRemoteAccessErr:      qReqRemoteAccess,
	prm.CQESyndRemoteOpErr:          qReqRemoteOperation,
	prm.CQESyndTransportRetryExcErr: qReqTransportRetries,
	prm.CQESyndRNRRetryExcErr:       qReqRNRRetriesExceeded,
}

// flushSend completes everything in a send queue in error with the flush
// syndrome, in order.
func (f *function) flushSend(q *qp) {
	fl, b := &q.flow, f.chip.fabric
	f.unwait(q)
	for fl.ops.n > 0 {
		f.flushOp(q, fl.ops.pop())
	}
	if o := fl.pending; o != nil {
		fl.pending = nil
		f.flushOp(q, o)
	}
	fl.cur, fl.reads, fl.failing, fl.rnrWait = 0, 0, false, false
	fl.acked = fl.next
	for fl.head != fl.posted {
		o := b.op()
		if !f.fetchWQE(q, o, fl.head, fl.posted) {
			b.dropOp(o)
			fl.head = fl.posted // it cannot be read: nothing names what is lost
			return
		}
		o.parse(f, q, fl.posted)
		fl.head += min(o.blocks, fl.posted-fl.head)
		f.flushOp(q, o)
	}
}

// flushOp completes one entry as flushed. An entry that asked for a completion
// with the first error only has none here.
func (f *function) flushOp(q *qp, o *sendOp) {
	if o.ce != prm.CompletionModeOnFirstError {
		q.tally(qReqCQEFlush)
		f.completeError(q, q.sendCQ, prm.CQEReqErr, prm.CQESyndWrFlushErr, o.opcode, o.index, f.cqeIndex(q))
	}
	f.chip.fabric.dropOp(o)
}

// flushRecv completes everything in a receive queue in error.
func (f *function) flushRecv(q *qp) {
	fl := &q.flow
	if fl.msg.recv {
		fl.msg.recv = false
		f.failRecv(q, prm.CQESyndWrFlushErr)
	}
	fl.msg = message{}
	if !q.rq.some {
		return
	}
	posted, ok := f.postedRecv(q)
	if !ok || uint32(posted-fl.taken) > q.rq.entries() {
		return
	}
	for ; fl.taken != posted; fl.taken++ {
		q.tally(qRespCQEFlush)
		f.completeError(q, q.recvCQ, prm.CQERespErr, prm.CQESyndWrFlushErr, 0, fl.taken, f.cqeIndex(q))
	}
}

// How often a receive queue in error is looked at: there is no doorbell, and
// drivers drain a queue by posting to it after it went to error.
const (
	flushLookFirst = 50 * time.Microsecond
	flushLookMost  = 100 * time.Millisecond
)

func (f *function) watchFlush(q *qp, d time.Duration) {
	f.afterward(q, d, func() {
		if q.state == prm.QPStateErr {
			f.flushRecv(q)
			f.watchFlush(q, min(2*d, flushLookMost))
		}
	})
}

// completeSend writes the completion of a send queue's entry.
func (f *function) completeSend(q *qp, o *sendOp) {
	var e prm.CQE64
	e.SetOpcode(prm.CQEReq)
	e.SetSWQEOpcode(o.opcode)
	e.SetQPN(q.n)
	e.SetWQECounter(o.index)
	e.SetUserIndex(f.cqeIndex(q))
	if o.outbound() {
		e.SetByteCnt(uint32(o.length))
	}
	if o.inCQE {
		f.inline(q.sendCQ, &e, o.answer[:o.length])
	}
	f.completion(q.sendCQ, q, &e, o.ce == prm.CompletionModeAlwaysAndEQE)
}

// completeError writes the completion of an entry that failed.
func (f *function) completeError(q *qp, c *cq, op prm.CQEOpcode, s prm.CQESyndrome, wqe prm.WQEOpcode, index uint16, srqn uint32) {
	if c == nil {
		return
	}
	var e prm.CQE64
	x := prm.AsErrCQE(e[:])
	x.SetOpcode(op)
	x.SetSyndrome(s)
	x.SetVendorErrSynd(vendorSynd | uint8(s))
	x.SetSWQEOpcode(wqe)
	x.SetQPN(q.n)
	x.SetWQECounter(index)
	x.SetSRQN(srqn)
	f.completion(c, q, &e, true)
}

// cqeIndex is what a completion says beside the QPN: the user's index where
// cqe_version is 1, else the shared receive queue.
func (f *function) cqeIndex(q *qp) uint32 {
	switch {
	case f.general().CQEVersion() == 1:
		return q.index
	case q.srq != nil:
		return q.srq.n
	}
	return 0
}

// completion gives a completion its time and writes it. A queue that is lost takes
// its QPs with it.
func (f *function) completion(c *cq, q *qp, e *prm.CQE64, solicited bool) {
	if c == nil || c.failed {
		return
	}
	b := f.chip.fabric
	if op := e.Opcode(); op != prm.CQEReqErr && op != prm.CQERespErr {
		e.SetTimestamp(f.internalTimer()) // of an error the syndrome lies there
	}
	if !f.postCQE(c, e, solicited) {
		q.tally(qCQOverflow)
		b.lostCQs = append(b.lostCQs, c)
		return
	}
	if len(b.waiters) > 0 {
		b.wakeWaiters(c)
	}
}

// stopUsers ends the QPs that complete in a queue that is lost.
func (b *fabric) stopUsers(c *cq) {
	for _, f := range b.chip.funcs {
		if g, ok := f.cqs.get(c.n); !ok || g != c {
			continue
		}
		var users []*qp
		for _, q := range f.qps.objs {
			if (q.sendCQ == c || q.recvCQ == c) && q.state != prm.QPStateRst {
				users = append(users, q)
			}
		}
		slices.SortFunc(users, func(x, y *qp) int { return cmp.Compare(x.n, y.n) })
		for _, q := range users {
			q.flow.f = f
			f.catastrophe(q)
		}
	}
}

// intoCQE tells whether data of this length goes into the completion: code is 1
// for up to 32 bytes, 2 for up to 64, which need entries of 128.
func (f *function) intoCQE(c *cq, code uint8, length uint64) bool {
	switch {
	case length == 0 || code == 0 || c == nil:
		return false
	case length <= 32:
		return true
	}
	return code == 2 && length <= 64 && c.entry == 128
}

// inline puts data into a completion: the first half of the entry, or the 64
// bytes before it.
func (f *function) inline(c *cq, e *prm.CQE64, data []byte) {
	if len(data) <= 32 {
		e.SetFormat(prm.CQEFormatInline32)
		copy(e[:], data)
		return
	}
	e.SetFormat(prm.CQEFormatInline64)
	if ci, ok := f.readRecord(c.dbr + cqRecordCI); !ok || (c.producer-ci)&counterCQ >= c.size() && !c.ctx.Oi() {
		return // no room: the queue is about to be lost, its entries are not
	}
	f.writeBuffer(&c.buf, uint64(c.producer&(c.size()-1))*c.entry, data)
}
