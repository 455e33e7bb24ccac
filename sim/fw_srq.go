package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// armSRQ is the op_mod with which ARM_RQ and ARM_XRC_SRQ arm a shared receive
// queue (Linux srq_cmd.c); 0 has no meaning there.
const armSRQ = 1

func init() {
	handle(prm.OpCreateSRQ, onlyInit, 1, createSRQ).needs(createSRQMin).refuses(syndNoPD, syndSRQSize)
	handle(prm.OpQuerySRQ, onlyInit, 1, querySRQ).refuses(syndNoSRQ, syndOK)
	handle(prm.OpDestroySRQ, onlyInit, 1, destroySRQ).refuses(syndNoSRQ, syndOK)
	handle(prm.OpArmRQ, onlyInit, 1<<armSRQ, armRQ).refuses(syndNoSRQ, syndSRQLimit)
	handle(prm.OpCreateXRCSRQ, onlyInit, 1, createXRCSRQ).needs(createXRCSRQMin).refuses(syndNoXRCD, syndSRQSize)
	handle(prm.OpQueryXRCSRQ, onlyInit, 1, queryXRCSRQ).refuses(syndNoSRQ, syndOK)
	handle(prm.OpDestroyXRCSRQ, onlyInit, 1, destroyXRCSRQ).refuses(syndNoSRQ, syndOK)
	handle(prm.OpArmXRCSRQ, onlyInit, 1<<armSRQ, armXRCSRQ).refuses(syndNoSRQ, syndSRQLimit)
	handle(prm.OpCreateRMP, onlyInit, 1, createRMP).needs(createRMPMin).refuses(syndNoPD, syndSRQSize)
	handle(prm.OpModifyRMP, onlyInit, 1, modifyRMP).refuses(syndNoSRQ, syndSRQLimit)
	handle(prm.OpQueryRMP, onlyInit, 1, queryRMP).refuses(syndNoSRQ, syndOK)
	handle(prm.OpDestroyRMP, onlyInit, 1, destroyRMP).refuses(syndNoSRQ, syndOK)
	handle(prm.OpAllocXRCD, onlyInit, 1, allocXRCD)
	handle(prm.OpDeallocXRCD, onlyInit, 1, deallocXRCD).refuses(syndNoXRCD, syndOK)
}

// maxPageShift is the largest page that a context of any queue can name, but for
// those of SRQs, whose field is wider: log_page_size 31.
const maxPageShift = 12 + 31

// newSRQ is what the three creating commands have in common.
type newSRQ struct {
	kind      srqKind
	log       uint // log2 of the entries
	stride    uint // log2 of an entry's bytes
	pageShift uint
	offset    uint64 // in units of a sixty-fourth of a page
	pd, cqn   uint32 // cqn 0 is none
	limit     uint16
	linked    bool
	rlkey     bool
	dbr       uint64
	at        int // of the page list in the input
	// User memory; RMPs only, see checkSRQ.
	wqUMEM, dbrUMEM bool
	wqID, dbrID     uint32
	wqOffset        uint64
}

func (n *newSRQ) bytes() uint64 { return 1 << n.stride << n.log }

func (n *newSRQ) pages() uint64 {
	if n.pageShift > maxPageShift {
		return 0
	}
	return min(queuePages(n.offset<<n.pageShift>>6, n.bytes(), n.pageShift), maxPages)
}

// list is the bytes of the page list behind the command; what will be refused
// for its size needs none.
func (n *newSRQ) list(f *function) int {
	if n.wqUMEM || f.checkSRQ(*n) == syndSRQSize {
		return 0
	}
	return int(n.pages()) * 8
}

func fromSRQC(c *prm.SRQC) newSRQ {
	return newSRQ{kind: kindSRQ, log: uint(c.LogSRQSize()), stride: 4 + uint(c.LogRQStride()), pageShift: 12 + uint(c.LogPageSize()),
		offset: uint64(c.PageOffset()), pd: c.PD(), cqn: c.CQN(), limit: c.Lwm(), linked: true, rlkey: c.Rlky(),
		dbr: c.DBRAddr(), at: prm.CreateSRQInSize}
}

func fromXRCSRQC(c *prm.XRCSRQC) newSRQ {
	return newSRQ{kind: kindXRC, log: uint(c.LogXRCSRQSize()), stride: 4 + uint(c.LogRQStride()), pageShift: 12 + uint(c.LogPageSize()),
		offset: uint64(c.PageOffset()), pd: c.PD(), cqn: c.CQN(), limit: c.Lwm(), linked: !c.BasicCyclicRcvWQE(), rlkey: c.Rlky(),
		dbr: uint64(c.DbRecordAddrH())<<32 | uint64(c.DbRecordAddrL())<<2, at: prm.CreateXRCSRQInSize}
}

func fromRMPC(c *prm.RMPC) newSRQ {
	w := c.WQ()
	return newSRQ{kind: kindRMP, log: uint(w.LogWQSz()), stride: uint(w.LogWQStride()), pageShift: 12 + uint(w.LogWQPgSz()),
		offset: uint64(w.PageOffset()), pd: w.PD(), limit: w.Lwm(), linked: w.WQType() == prm.WQTypeLinkedList,
		dbr: w.DBRAddr(), at: prm.CreateRMPInSize, wqUMEM: w.WQUMEMValid(), dbrUMEM: w.DBRUMEMValid(),
		wqID: w.WQUMEMID(), dbrID: w.DBRUMEMID(), wqOffset: w.WQUMEMOffset()}
}

// addSRQ checks a new queue and numbers it.
func (f *function) addSRQ(s *srq, n newSRQ, c *call) synd {
	if _, ok := f.pds.get(n.pd); !ok {
		return syndNoPD
	}
	if r := f.checkSRQ(n); r != syndOK {
		return r
	}
	s.uid, s.kind, s.pd, s.linked, s.rlkey, s.limit = uidOf(c), n.kind, n.pd, n.linked, n.rlkey, n.limit
	b, r := f.srqBuffer(s, n, c.in)
	if r != syndOK {
		return r
	}
	s.wq = workQueue{buf: b, log: n.log, shift: n.stride, some: true}
	if s.dbr, s.rec, r = f.dbrOf(n.dbrUMEM, n.dbrID, n.dbr); r != syndOK {
		return r
	}
	if n.cqn != 0 {
		var ok bool
		if s.cq, ok = f.cqs.get(n.cqn); !ok {
			return syndNoCQ
		}
	} else if n.kind == kindXRC {
		return syndNoCQ
	}
	var ok bool
	if s.n, ok = f.srqs.add(s); !ok {
		return syndOutOfSRQs
	}
	s.hold(f, 1)
	return syndOK
}

func (f *function) checkSRQ(n newSRQ) synd {
	g := f.general()
	switch {
	case n.log > uint(g.LogMaxSRQSz()), n.stride < 4, 1<<n.stride > int(g.MaxWQESzRQ()):
		return syndSRQSize
	case n.limit != 0 && int(n.limit) >= 1<<n.log:
		return syndSRQLimit
	}
	return syndOK
}

func (f *function) srqBuffer(s *srq, n newSRQ, in []byte) (b buffer, r synd) {
	var ok bool
	if n.wqUMEM {
		if s.mem, ok = f.umems.get(n.wqID); !ok {
			return b, syndNoUMEM
		}
		if b, ok = s.mem.buffer(n.wqOffset, n.bytes()); !ok {
			return b, syndQueuePage
		}
		return b, syndOK
	}
	b = buffer{shift: n.pageShift, offset: n.offset << n.pageShift >> 6}
	if b.pages, ok = pageList(in[n.at:], n.pages(), b.shift, false); !ok || len(b.pages) == 0 {
		return b, syndQueuePage
	}
	return b, syndOK
}

// hold counts a queue's uses of its objects, by +1 or -1.
func (s *srq) hold(f *function, n int) {
	f.pds.objs[s.pd].users += n
	if s.cq != nil {
		s.cq.users += n
	}
	if s.domain != nil {
		s.domain.users += n
	}
	use([]*umem{s.mem, s.rec}, n)
}

// srqOf finds a queue of one kind.
func (f *function) srqOf(n uint32, k srqKind) (*srq, synd) {
	s, ok := f.srqs.get(n)
	switch {
	case !ok:
		return nil, syndNoSRQ
	case s.kind != k:
		return nil, syndSRQKind
	}
	return s, syndOK
}

func (f *function) removeSRQ(n uint32, k srqKind) synd {
	s, r := f.srqOf(n, k)
	switch {
	case r != syndOK:
		return r
	case s.users > 0:
		return syndSRQBusy
	}
	s.hold(f, -1)
	f.srqs.remove(n)
	return syndOK
}

// arm sets the limit below which the next entry taken raises an event, once;
// 0 turns it off.
func (f *function) armLimit(s *srq, limit uint16) synd {
	if limit != 0 && uint32(limit) >= s.wq.entries() {
		return syndSRQLimit
	}
	s.limit = limit
	f.checkLimit(s)
	return syndOK
}

// checkLimit raises the limit event when fewer entries are left than the limit,
// and disarms it. The engine calls it when it has taken an entry.
func (f *function) checkLimit(s *srq) {
	if s.limit == 0 {
		return
	}
	if posted, ok := f.postedSRQ(s); ok && posted-s.taken < s.limit {
		s.limit = 0
		f.srqEvent(s, prm.EventSRQRQLimit)
	}
}

func createSRQMin(f *function, c *call) (in, out int) {
	n := fromSRQC(prm.AsCreateSRQIn(c.in).SRQContextEntry())
	return prm.CreateSRQInSize + n.list(f), prm.CreateSRQOutSize
}

func createSRQ(f *function, c *call) synd {
	x := prm.AsCreateSRQIn(c.in).SRQContextEntry()
	s := &srq{srqc: *x}
	r := f.addSRQ(s, fromSRQC(x), c)
	prm.AsCreateSRQOut(c.out).SetSRQN(s.n)
	return r
}

func querySRQ(f *function, c *call) synd {
	s, r := f.srqOf(prm.AsQuerySRQIn(c.in).SRQN(), kindSRQ)
	if r != syndOK {
		return r
	}
	x := prm.AsQuerySRQOut(c.out).SRQContextEntry()
	*x = s.srqc
	x.SetState(prm.SRQStateGood)
	if s.failed {
		x.SetState(prm.SRQStateError)
	}
	x.SetLwm(s.limit)
	x.SetWQECnt(s.taken)
	c.n = putPages(c.out, prm.QuerySRQOutSize, s.wq.buf.pages)
	return syndOK
}

func destroySRQ(f *function, c *call) synd {
	return f.removeSRQ(prm.AsDestroySRQIn(c.in).SRQN(), kindSRQ)
}

func armRQ(f *function, c *call) synd {
	in := prm.AsArmRQIn(c.in)
	s, r := f.srqOf(in.SRQNumber(), kindSRQ)
	if r != syndOK {
		return r
	}
	return f.armLimit(s, in.Lwm())
}

func createXRCSRQMin(f *function, c *call) (in, out int) {
	n := fromXRCSRQC(prm.AsCreateXRCSRQIn(c.in).XRCSRQContextEntry())
	return prm.CreateXRCSRQInSize + n.list(f), prm.CreateXRCSRQOutSize
}

func createXRCSRQ(f *function, c *call) synd {
	in := prm.AsCreateXRCSRQIn(c.in)
	x := in.XRCSRQContextEntry()
	d, ok := f.xrcds.get(x.XRCD())
	switch {
	case !ok:
		return syndNoXRCD
	case in.XRCSRQUMEMValid() || x.DBRUMEMValid():
		return syndSRQUMEM
	}
	s := &srq{xrcc: *x, domain: d, xrcd: x.XRCD(), index: x.UserIndex()}
	r := f.addSRQ(s, fromXRCSRQC(x), c)
	prm.AsCreateXRCSRQOut(c.out).SetXRCSRQN(s.n)
	return r
}

func queryXRCSRQ(f *function, c *call) synd {
	s, r := f.srqOf(prm.AsQueryXRCSRQIn(c.in).XRCSRQN(), kindXRC)
	if r != syndOK {
		return r
	}
	x := prm.AsQueryXRCSRQOut(c.out).XRCSRQContextEntry()
	*x = s.xrcc
	x.SetState(uint8(prm.SRQStateGood))
	if s.failed {
		x.SetState(uint8(prm.SRQStateError))
	}
	x.SetLwm(s.limit)
	x.SetWQECnt(s.taken)
	c.n = putPages(c.out, prm.QueryXRCSRQOutSize, s.wq.buf.pages)
	return syndOK
}

func destroyXRCSRQ(f *function, c *call) synd {
	return f.removeSRQ(prm.AsDestroyXRCSRQIn(c.in).XRCSRQN(), kindXRC)
}

func armXRCSRQ(f *function, c *call) synd {
	in := prm.AsArmXRCSRQIn(c.in)
	s, r := f.srqOf(in.XRCSRQN(), kindXRC)
	if r != syndOK {
		return r
	}
	return f.armLimit(s, in.Lwm())
}

func createRMPMin(f *function, c *call) (in, out int) {
	n := fromRMPC(prm.AsCreateRMPIn(c.in).Ctx())
	return prm.CreateRMPInSize + n.list(f), prm.CreateRMPOutSize
}

func createRMP(f *function, c *call) synd {
	x := prm.AsCreateRMPIn(c.in).Ctx()
	if x.WQ().WQType() > prm.WQTypeCyclic || x.State() != prm.RMPStateRdy {
		return syndRMPState
	}
	s := &srq{rmpc: *x}
	r := f.addSRQ(s, fromRMPC(x), c)
	prm.AsCreateRMPOut(c.out).SetRmpn(s.n)
	return r
}

// modifyRMP arms the limit; the state can only stay READY, as Linux sends it.
func modifyRMP(f *function, c *call) synd {
	in := prm.AsModifyRMPIn(c.in)
	s, r := f.srqOf(in.Rmpn(), kindRMP)
	switch {
	case r != syndOK:
		return r
	case prm.RMPState(in.RMPState()) != prm.RMPStateRdy || s.failed:
		return syndRMPState
	case !in.Bitmask().Lwm():
		return syndOK
	}
	return f.armLimit(s, in.Ctx().WQ().Lwm())
}

func queryRMP(f *function, c *call) synd {
	s, r := f.srqOf(prm.AsQueryRMPIn(c.in).Rmpn(), kindRMP)
	if r != syndOK {
		return r
	}
	x := prm.AsQueryRMPOut(c.out).RMPContext()
	*x = s.rmpc
	if s.failed {
		x.SetState(prm.RMPStateErr)
	}
	x.WQ().SetLwm(s.limit)
	x.WQ().SetHwCounter(uint32(s.taken))
	c.n = putPages(c.out, prm.QueryRMPOutSize, s.wq.buf.pages)
	return syndOK
}

func destroyRMP(f *function, c *call) synd {
	return f.removeSRQ(prm.AsDestroyRMPIn(c.in).Rmpn(), kindRMP)
}

func allocXRCD(f *function, c *call) synd {
	n, ok := f.xrcds.add(&xrcd{uid: uidOf(c)})
	if !ok {
		return syndOutOfXRCDs
	}
	prm.AsAllocXRCDOut(c.out).SetXRCD(n)
	return syndOK
}

func deallocXRCD(f *function, c *call) synd {
	n := prm.AsDeallocXRCDIn(c.in).XRCD()
	d, ok := f.xrcds.get(n)
	switch {
	case !ok:
		return syndNoXRCD
	case d.users > 0:
		return syndXRCDBusy
	}
	f.xrcds.remove(n)
	return syndOK
}
