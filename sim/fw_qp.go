package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func init() {
	handle(prm.OpCreateQP, onlyInit, 1, createQP).needs(createQPMin).refuses(syndNoPD, syndQPSize)
	handle(prm.OpQueryQP, onlyInit, 1, queryQP).refuses(syndNoQP, syndOK)
	handle(prm.OpDestroyQP, onlyInit, 1, destroyQP).refuses(syndNoQP, syndOK)
	for _, t := range transitions {
		h := handle(t.op, onlyInit, 1, modifyQP).refuses(syndNoQP, syndOK)
		switch t.op {
		case prm.OpRst2InitQP:
			h.above = syndQPPath
		case prm.OpInit2RtrQP:
			h.above = syndQPMTU
		case prm.OpRtr2RtsQP:
			h.above = syndQPDepth
		}
	}
}

// Sizes of a QP's parts in its buffer: the receive queue comes first
// (Linux mlx5_ib qp.c).
const wqeBlock = 64

func rqBytes(c *prm.QPC) uint64 {
	if c.RQType() != prm.RQTypeRQ {
		return 0
	}
	return 16 << c.LogRQStride() << c.LogRQSize()
}

func sqBytes(c *prm.QPC) uint64 {
	if c.NoSQ() {
		return 0
	}
	return wqeBlock << c.LogSQSize()
}

func qpPages(c *prm.QPC) uint64 {
	size := rqBytes(c) + sqBytes(c)
	if size == 0 {
		return 0
	}
	return min(queuePages(pageOffset(c.PageOffset(), c.LogPageSize()), size, 12+uint(c.LogPageSize())), maxPages)
}

// tooLarge tells whether a queue is larger than the device can have.
func (f *function) tooLarge(c *prm.QPC) bool {
	g := f.general()
	return !c.NoSQ() && c.LogSQSize() > g.LogMaxQPSz() ||
		c.RQType() == prm.RQTypeRQ && (c.LogRQSize() > g.LogMaxQPSz() || 16<<c.LogRQStride() > int(g.MaxWQESzRQ()))
}

// createQPMin: what will be refused for other reasons needs no page list.
func createQPMin(f *function, c *call) (in, out int) {
	q := prm.AsCreateQPIn(c.in)
	if q.WQUMEMValid() || q.QPCExt() || f.tooLarge(q.QPC()) {
		return prm.CreateQPInSize, prm.CreateQPOutSize
	}
	return prm.CreateQPInSize + int(qpPages(q.QPC()))*8, prm.CreateQPOutSize
}

// hasType tells whether the device has a service type and the model carries it.
// QP0, QP1 and the UMR queue are there for drivers that insist on creating them:
// no management datagram ever arrives, and UMR the model does not carry out.
func (f *function) hasType(t prm.QPServiceType) bool {
	g := f.general()
	switch t {
	case prm.QPTypeRC:
		return g.Rc()
	case prm.QPTypeUC:
		return g.Uc()
	case prm.QPTypeUD:
		return g.Ud()
	case prm.QPTypeXRC:
		return g.XRC()
	case prm.QPTypeQP0, prm.QPTypeQP1, prm.QPTypeRegUMR:
		return true
	}
	return false
}

// checkNewQP looks at what a context asks for that holds for the QP's life.
func (f *function) checkNewQP(in *prm.CreateQPIn) synd {
	g, c := f.general(), in.QPC()
	switch {
	case in.QPCExt() && !g.QPCExtension():
		return syndQPField
	case !f.hasType(c.St()):
		return syndQPType
	case c.RQType() > prm.RQTypeSRQ && c.RQType() != prm.RQTypeZeroLength,
		c.St() == prm.QPTypeXRC && c.RQType() != prm.RQTypeZeroLength:
		return syndQPQueue
	case f.tooLarge(c):
		return syndQPSize
	case c.WQSignature() && !g.WQSignature(),
		(c.CsReq() != 0 || c.CsRes() != 0) && !g.SctrDataCQE(),
		(c.CdMaster() || c.CdSlaveSend() || c.CdSlaveReceive()) && !g.Cd(),
		c.TsFormat() > prm.TSFormatDefault:
		return syndQPField
	}
	return syndOK
}

// qpBuffer places a QP's queues.
func (f *function) qpBuffer(c *call) (b buffer, u *umem, s synd) {
	in := prm.AsCreateQPIn(c.in)
	x := in.QPC()
	size := rqBytes(x) + sqBytes(x)
	if size == 0 {
		return b, nil, syndOK
	}
	if in.WQUMEMValid() {
		u, ok := f.umems.get(in.WQUMEMID())
		if !ok {
			return b, nil, syndNoUMEM
		}
		if b, ok = u.buffer(in.WQUMEMOffset(), size); !ok {
			return b, nil, syndQueuePage
		}
		return b, u, syndOK
	}
	b = buffer{shift: 12 + uint(x.LogPageSize()), offset: pageOffset(x.PageOffset(), x.LogPageSize())}
	var ok bool
	if b.pages, ok = pageList(c.in[prm.CreateQPInSize:], qpPages(x), b.shift, false); !ok {
		return b, nil, syndQueuePage
	}
	return b, nil, syndOK
}

// attach finds the objects that a QP works with.
func (f *function) attach(q *qp, c *prm.QPC) synd {
	var ok bool
	if q.sq.some {
		if q.sendCQ, ok = f.cqs.get(c.CQNSnd()); !ok {
			return syndNoCQ
		}
	}
	if q.rq.some || c.RQType() == prm.RQTypeSRQ {
		if q.recvCQ, ok = f.cqs.get(c.CQNRcv()); !ok {
			return syndNoCQ
		}
	}
	if c.RQType() == prm.RQTypeSRQ {
		if q.srq, ok = f.srqs.get(c.SRQNRmpnXrqn()); !ok {
			return syndNoSRQ
		}
		if q.srq.kind == kindXRC {
			return syndSRQKind
		}
	}
	if c.St() == prm.QPTypeXRC {
		if q.xrcd, ok = f.xrcds.get(c.XRCD()); !ok {
			return syndNoXRCD
		}
	}
	return syndOK
}

// hold counts a QP's uses of its objects, by +1 or -1.
func (q *qp) hold(f *function, n int) {
	if p := f.pds.objs[q.pd]; p != nil { // send queues and UMR queues have none
		p.users += n
	}
	f.uars.objs[q.uar].users += n
	for _, c := range []*cq{q.sendCQ, q.recvCQ} {
		if c != nil {
			c.users += n
		}
	}
	if q.srq != nil {
		q.srq.users += n
	}
	if q.xrcd != nil {
		q.xrcd.users += n
	}
	if q.counters != nil {
		q.counters.users += n
	}
	use([]*umem{q.mem, q.rec}, n)
}

func createQP(f *function, c *call) synd {
	in := prm.AsCreateQPIn(c.in)
	x := in.QPC()
	if _, ok := f.pds.get(x.PD()); !ok && x.St() != prm.QPTypeRegUMR {
		return syndNoPD
	}
	if _, ok := f.uars.get(x.UARPage()); !ok {
		return syndNoUAR
	}
	if s := f.checkNewQP(in); s != syndOK {
		return s
	}
	if f.qps.len() >= int(limitOf(f.general().LogMaxQP())) {
		return syndOutOfQPs
	}
	q := &qp{uid: uidOf(c), created: *x, ctx: *x, st: x.St(), pd: x.PD(), uar: x.UARPage(),
		rlkey: x.Rlky(), signs: x.WQSignature()}
	b, mem, s := f.qpBuffer(c)
	if s != syndOK {
		return s
	}
	if n := rqBytes(x); n > 0 {
		q.rq = workQueue{buf: b, log: uint(x.LogRQSize()), shift: 4 + uint(x.LogRQStride()), some: true}
	}
	if sqBytes(x) > 0 {
		q.sq = workQueue{buf: b, log: uint(x.LogSQSize()), shift: 6, some: true}
		q.sq.buf.offset += rqBytes(x)
	}
	q.mem = mem
	if q.dbr, q.rec, s = f.dbrOf(x.DBRUMEMValid(), qpcRecordUMEM(x), x.DBRAddr()); s != syndOK {
		return s
	}
	if s := f.attach(q, x); s != syndOK {
		return s
	}
	n, ok := f.qps.add(q)
	if !ok {
		return syndOutOfQPs
	}
	q.n = n
	q.hold(f, 1)
	q.parse()
	prm.AsCreateQPOut(c.out).SetQPN(n)
	return syndOK
}

// qpOf finds the QP of a command: all but CREATE_QP have its number in the same
// place.
func (f *function) qpOf(c *call) (*qp, bool) {
	q, ok := f.qps.get(binary.BigEndian.Uint32(c.in[8:]) & counter24)
	return q, ok && !q.bare
}

func destroyQP(f *function, c *call) synd {
	q, ok := f.qpOf(c)
	if !ok {
		return syndNoQP
	}
	f.engine.removed(q)
	q.hold(f, -1)
	f.qps.remove(q.n)
	return syndOK
}

func queryQP(f *function, c *call) synd {
	q, ok := f.qpOf(c)
	if !ok {
		return syndNoQP
	}
	if prm.AsQueryQPIn(c.in).QPCExt() && !f.general().QPCExtension() {
		return syndQPField
	}
	out := prm.AsQueryQPOut(c.out)
	x := out.QPC()
	*x = q.ctx
	x.SetState(q.state)
	f.engine.fill(q, x)
	c.n = prm.CommandByOpcode(c.op).MinOut
	return syndOK
}
