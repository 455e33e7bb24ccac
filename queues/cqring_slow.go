package queues

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// What a *CQError is about, found with errors.Is; vfio.ErrClosed is another.
var (
	// ErrCQOverrun: the device wrote entries nobody had made room for.
	ErrCQOverrun = errors.New("completions are lost: the CQ was overrun")
	// ErrCQE: an entry this driver cannot use.
	ErrCQE = errors.New("the completion cannot be used")
	// ErrUnknownQueue: an entry names a queue pair that is not attached.
	ErrUnknownQueue = errors.New("the completion is of a queue pair that is not attached to this CQ")
	// ErrNotOutstanding: an entry names a WQE that is not outstanding. The success
	// of a send WQE is looked up by the bits of its counter that name a block of the
	// ring, as drivers do; the bits above, the pass, are compared for all others.
	ErrNotOutstanding = errors.New("the completion is of a WQE that is not outstanding")
)

// CQError says what is wrong with a completion queue, as opposed to a WQE that
// failed.
type CQError struct {
	Name     string
	CQN      uint32
	Consumer uint32 // running index of the entry
	Err      error  // one of the sentinels above
	Detail   string // what exactly, and the remedy
	CQE      []byte // the entry, if one is to blame
}

// Error gives queue, cause, entry and remedy in one line.
func (e *CQError) Error() string {
	s := fmt.Sprintf("CQ %s (CQN %#x), consumer index %#x: %v", e.Name, e.CQN, e.Consumer, e.Err)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.CQE != nil {
		s += "; CQE " + hex.EncodeToString(e.CQE)
	}
	return s
}

// Unwrap gives the sentinel to errors.Is.
func (e *CQError) Unwrap() error { return e.Err }

func (r *CQRing) fail(ci uint32, err error, e *prm.CQE64, format string, a ...any) *CQError {
	x := &CQError{Name: r.name, CQN: r.cqn, Consumer: ci, Err: err, Detail: fmt.Sprintf(format, a...)}
	if e != nil {
		x.CQE = append(x.CQE, e[:]...)
	}
	return x
}

// other handles the entry at the consumer index, whatever it is, and steps over
// it unless the queue cannot go on.
//
//go:noinline
func (r *CQRing) other(c *Completion, e *prm.CQE64) error {
	ci, p := r.ci(), r.last
	if f := e.Format(); f != prm.CQEFormatNoInline {
		return r.fail(ci, ErrCQE, e, "format %d (%s) is not supported; create the CQ without compression and the queue pairs without inline scatter", f, f)
	}
	r.at++
	r.rec.store(recordConsumer, r.ci()&ciMask)
	if p == &nobody {
		return r.fail(ci, ErrUnknownQueue, e, "QP %#x; attach a queue pair before it posts, and detach it after it is destroyed", e.QPN())
	}
	op, index := e.Opcode(), e.WQECounter()
	failed := op == prm.CQEReqErr || op == prm.CQERespErr
	// Only the first failure of a queue pair is shown with its WQE.
	keep := failed && p.first == nil && prm.AsErrCQE(e[:]).Syndrome() != prm.CQESyndWrFlushErr
	var wqe []byte
	var wrid uint64
	var ok bool
	switch op {
	case prm.CQEReq, prm.CQEReqErr:
		if keep {
			wqe = p.sq.snapshot(index)
		}
		wrid, ok = p.sq.retire(index)
	case prm.CQERespWrImm, prm.CQERespSend, prm.CQERespSendImm, prm.CQERespSendInv, prm.CQERespErr:
		switch {
		case p.srq != nil:
			if keep {
				wqe = p.srq.snapshot(index)
			}
			wrid, ok = p.srq.retire(index)
		case p.rq != nil:
			if keep {
				wqe = p.rq.snapshot(index)
			}
			wrid, ok = p.rq.retire(index)
		}
	default:
		return r.fail(ci, ErrCQE, e, "opcode %#x (%s) is not supported", uint8(op), op)
	}
	if !ok {
		return r.fail(ci, ErrNotOutstanding, e, "QP %#x has no WQE %#x under way; queue pair and CQ do not agree, reset the queue pair", p.qpn, index)
	}
	*c = Completion{WRID: wrid, QPN: p.qpn, Opcode: op, SendOpcode: e.SWQEOpcode()}
	if failed {
		r.failed(c, prm.AsErrCQE(e[:]), p, wqe)
		return nil
	}
	c.ByteLen = e.ByteCnt()
	if op != prm.CQEReq {
		c.Imm, c.RemoteQPN, c.RemoteLID = e.Immediate(), e.Rqpn(), e.Slid()
		if e.Grh() != 0 {
			c.Bits |= HasGRH
		}
		if e.Se() {
			c.Bits |= WasSolicited
		}
	}
	return nil
}

// failed notes a WQE that failed. Only the first failure of a queue pair is kept
// whole; those flushed behind it are counted.
func (r *CQRing) failed(c *Completion, e *prm.ErrCQE, p *peer, wqe []byte) {
	c.Syndrome, c.Vendor = e.Syndrome(), e.VendorErrSynd()
	if c.Syndrome == 0 {
		// An error CQE without a reason must not pass for success.
		c.Syndrome = unknownSyndrome
	}
	switch {
	case c.Flushed():
		p.flushed++
	case p.first == nil:
		p.first = newCompletionError(c)
		p.first.HWSyndrome, p.first.HWSyndromeType = e.HwErrSynd(), e.HwSyndType()
		p.first.Index, p.first.WQE = e.WQECounter(), wqe
	}
}

// unknownSyndrome stands for an error CQE whose syndrome is 0.
const unknownSyndrome prm.CQESyndrome = 0xff

func newCompletionError(c *Completion) *CompletionError {
	return &CompletionError{
		QPN: c.QPN, WRID: c.WRID, Recv: c.Recv(), Opcode: c.SendOpcode,
		Syndrome: c.Syndrome, VendorError: c.Vendor,
	}
}

// Err explains a completion of this CQ that failed, as a *CompletionError: with
// the WQE itself for the first failure of a queue pair, with that failure for
// those flushed behind it. It is nil if c is OK.
func (r *CQRing) Err(c *Completion) error {
	if c.OK() {
		return nil
	}
	e := newCompletionError(c)
	p := r.peers.find(c.QPN)
	if p.first == nil {
		return e
	}
	first := *p.first
	first.Flushed = p.flushed
	switch {
	case c.Flushed():
		e.First = &first
	case c.WRID == first.WRID && c.Syndrome == first.Syndrome && e.Recv == first.Recv:
		return &first
	}
	return e
}

// idle is why there may be nothing to poll, after the next entry was found not to
// have arrived.
func (r *CQRing) idle() error {
	if e := r.broken.Load(); e != nil {
		return e
	}
	// A lapped entry has the owner bit of the next pass, so it looks as if it had
	// not arrived, while the last entry of this pass has. In a ring that the device
	// fills in order that cannot be otherwise. Poll had the first look; the one
	// after the other excludes that both arrived in between.
	if ci := r.ci(); r.log > 0 && r.ready(ci+r.mask) && !r.ready(ci) {
		e := r.fail(ci, ErrCQOverrun, nil, "its queue pairs go to error; make it as large as all WQEs that can be outstanding, and reset them")
		r.broken.CompareAndSwap(nil, e)
		return e
	}
	return nil
}

// Break makes Poll answer err once the ring is empty: for whoever learns from an
// event that the device has given the CQ up. The first one stays. It is safe for
// concurrent use.
func (r *CQRing) Break(err error, detail string) {
	r.broken.CompareAndSwap(nil, &CQError{Name: r.name, CQN: r.cqn, Err: err, Detail: detail})
}

// close makes Poll answer vfio.ErrClosed; the ring's memory may then go.
func (r *CQRing) close() {
	e := make([]byte, cqeSize)
	e[cqeSize-1] = cqeNever
	r.mem, r.buf, r.mask, r.log = vfio.MemOf(e), e, 0, 0
	r.lines = r.mem.Lines()
	r.seek(0)
	r.follow(&nobody)
	r.rec.close()
	r.bell = newDoorbell(nil, r.rec, recordArm, UARCQDoorbell)
	r.broken.Store(&CQError{Name: r.name, CQN: r.cqn, Err: vfio.ErrClosed})
}

// AttachSend makes the send WQEs of a queue complete here. A queue that is
// attached again replaces the old one of the same number.
func (r *CQRing) AttachSend(q *SendQueue) {
	p := r.peers.get(q.QPN())
	p.sq = q
	if p == r.last {
		r.follow(p)
	}
}

// AttachRecv makes the receive WQEs of queue pair qpn complete here.
func (r *CQRing) AttachRecv(qpn uint32, q *RecvQueue) { r.peers.get(qpn).rq = q }

// AttachShared makes the receive WQEs that queue pair qpn takes from a shared
// queue complete here.
func (r *CQRing) AttachShared(qpn uint32, q *SRQRing) { r.peers.get(qpn).srq = q }

// Detach is Forget for a queue pair that is destroyed: later completions of this
// number are ErrUnknownQueue.
func (r *CQRing) Detach(qpn uint32) {
	r.Forget(qpn)
	r.peers.drop(qpn)
	if r.last.qpn == qpn {
		r.follow(&nobody)
	}
}

// Forget drops the completions of a queue pair that nobody has polled, and its
// failure. The device must not write any more of them: the queue pair is in state
// RESET or destroyed. Entries of others move up in its place (Linux
// mlx5_ib_cq_clean).
func (r *CQRing) Forget(qpn uint32) {
	p := r.peers.find(qpn)
	if p == &nobody {
		return
	}
	p.first, p.flushed = nil, 0
	ci := r.ci()
	end := ci
	for end-ci <= r.mask && r.ready(end) {
		end++
	}
	fromDevice()
	gone := uint32(0)
	for i := end; i != ci; {
		i--
		e := r.entry(i)
		switch {
		case e.QPN() == qpn:
			if p.srq != nil && e.Opcode() != prm.CQEReq && e.Opcode() != prm.CQEReqErr {
				p.srq.retire(e.WQECounter())
			}
			gone++
		case gone > 0:
			d := r.entry(i + gone)
			owner := r.own(i+gone) & 1
			copy(d[:cqeOwn], e[:cqeOwn])
			r.mem.StoreBE32(int((i+gone)&r.mask)*cqeSize+cqeOwn, r.own(i)&^1|owner)
		}
	}
	if gone > 0 {
		r.seek(ci + gone)
		toDevice()
		r.rec.store(recordConsumer, r.ci()&ciMask)
	}
}

func (r *CQRing) entry(ci uint32) *prm.CQE64 {
	return prm.AsCQE64(r.buf[int(ci&r.mask)*cqeSize:])
}

// Arm words (Linux cq.h, mlx5_cq_arm).
const (
	armSolicited = 1 << 24
	armInitial   = 2 << 28 // what Linux puts in the record before CREATE_CQ
)

// Arm asks for one completion event: with the next completion, or the next
// solicited or failed one. Arming is level-triggered, for which
// the doorbell bears the consumer index (Linux cq.h, mlx5_cq_arm): if there are
// completions nobody has polled, the event comes at once.
func (r *CQRing) Arm(solicitedOnly bool) {
	v := r.sn.Load()&3<<28 | r.ci()&ciMask
	if solicitedOnly {
		v |= armSolicited
	}
	r.bell.Ring(bits.ReverseBytes32(v), bits.ReverseBytes64(uint64(v)<<32|uint64(r.cqn)))
}

// Notified counts a completion event of this CQ: the next Arm bears the next
// sequence number. It is safe for concurrent use.
func (r *CQRing) Notified() { r.sn.Add(1) }

// Consumer is the running index of the next entry to be polled.
func (r *CQRing) Consumer() uint32 { return r.ci() }

// Entries is the number of entries of the ring.
func (r *CQRing) Entries() int { return int(r.mask) + 1 }
