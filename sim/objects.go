package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Objects without queues: protection and transport domains, memory keys, user
// memory and user contexts. Each belongs to the user context that created it.

type pd struct {
	uid   uint16
	users int // memory keys, QPs, shared receive queues
}

// td is a transport domain, xrcd an XRC domain.
type td struct{ uid uint16 }

type xrcd struct {
	uid   uint16
	users int // XRC SRQs and QPs
}

type umem struct {
	uid    uint16
	users  int  // queues and doorbell records in it
	shift  uint // log2 of the page size
	offset uint32
	mtt    []byte
}

type uctx struct{ cap uint32 }

func init() {
	handle(prm.OpAllocPD, onlyInit, 1, allocPD)
	handle(prm.OpDeallocPD, onlyInit, 1, deallocPD).refuses(syndNoPD, syndOK)
	handle(prm.OpAllocTransportDomain, onlyInit, 1, allocTD)
	handle(prm.OpDeallocTransportDomain, onlyInit, 1, deallocTD).refuses(syndNoTD, syndOK)
	handle(prm.OpCreateMKey, onlyInit, 1, createMKey).needs(createMKeyMin).refuses(syndNoPD, syndMKeyMode)
	handle(prm.OpQueryMKey, onlyInit, 1, queryMKey).refuses(syndNoMKey, syndOK)
	handle(prm.OpDestroyMKey, onlyInit, 1, destroyMKey).refuses(syndNoMKey, syndOK)
	handle(prm.OpQuerySpecialContexts, onlyInit, 1, querySpecialContexts)
	handle(prm.OpCreateUMEM, onlyInit, 1, createUMEM).needs(createUMEMMin).refuses(syndUID, syndUMEMPage)
	handle(prm.OpDestroyUMEM, onlyInit, 1, destroyUMEM).refuses(syndNoUMEM, syndOK)
	handle(prm.OpCreateUCTX, onlyInit, 1, createUCTX).refuses(syndOK, syndUCTXCap)
	handle(prm.OpDestroyUCTX, onlyInit, 1, destroyUCTX).refuses(syndNoUCTX, syndOK)
}

// dropObjects forgets all objects and sizes the number spaces by the
// capabilities in force.
func (f *function) dropObjects() {
	f.chip.tracer.forget(f)
	g := prm.AsCmdHCACap(f.chip.prof.caps(f.chip.port).max.get(prm.CapGeneral))
	eqs := limitOf(g.LogMaxEQ())
	if n := uint32(g.MaxNumEqs()); n != 0 {
		eqs = n
	}
	f.eqs.init(firstEQN, min(eqs, 0x100-firstEQN), false) // eq_number has 8 bits
	f.listen()
	f.uars.init(firstUAR, barSize/pageSize-firstUAR, false)
	f.pds.init(1, limitOf(g.LogMaxPD())-1, true)
	f.tds.init(1, limitOf(g.LogMaxTransportDomain())-1, true)
	f.mkeys.init(firstMKey, limitOf(g.LogMaxMKey())-firstMKey, true)
	f.umems.init(1, limitOf(g.LogMaxUMEM())-1, true)
	f.uctxs.init(1, limitOf(g.LogMaxUCTX())-1, true)
	f.cqs.init(firstCQN, limitOf(g.LogMaxCQ())-firstCQN, true)
	f.qps.init(firstQPN, limitOf(g.LogMaxQP())-firstQPN, true)
	f.srqs.init(firstSRQN, limitOf(g.LogMaxSRQ())-firstSRQN, true)
	f.xrcds.init(1, limitOf(g.LogMaxXRCD())-1, true)
	f.sets.init(1, 1<<8-1, false) // counter_set_id has 8 bits; 0 is none
	f.delays = [msixVectors]uint16{}
	f.halves = map[uint64]uint32{}
	f.roce = make([]prm.RoceAddrLayout, prm.AsRoceCap(f.chip.prof.caps(f.chip.port).max.get(prm.CapRoce)).RoceAddressTableSize())
	f.engine.reset()
}

func allocPD(f *function, c *call) synd {
	n, ok := f.pds.add(&pd{uid: uidOf(c)})
	if !ok {
		return syndOutOfPDs
	}
	prm.AsAllocPDOut(c.out).SetPD(n)
	return syndOK
}

func deallocPD(f *function, c *call) synd {
	n := prm.AsDeallocPDIn(c.in).PD()
	p, ok := f.pds.get(n)
	switch {
	case !ok:
		return syndNoPD
	case p.users > 0:
		return syndPDBusy
	}
	f.pds.remove(n)
	return syndOK
}

func allocTD(f *function, c *call) synd {
	n, ok := f.tds.add(&td{uid: uidOf(c)})
	if !ok {
		return syndOutOfTDs
	}
	prm.AsAllocTransportDomainOut(c.out).SetTransportDomain(n)
	return syndOK
}

func deallocTD(f *function, c *call) synd {
	n := prm.AsDeallocTransportDomainIn(c.in).TransportDomain()
	if _, ok := f.tds.get(n); !ok {
		return syndNoTD
	}
	f.tds.remove(n)
	return syndOK
}

func createUMEMMin(_ *function, c *call) (in, out int) {
	n := prm.AsCreateUMEMIn(c.in).UMEM().NumOfMTT()
	return prm.CreateUMEMInSize + int(min(n, maxChain*mailboxBytes/8))*8, prm.CreateUMEMOutSize
}

func createUMEM(f *function, c *call) synd {
	m := prm.AsCreateUMEMIn(c.in).UMEM()
	shift := 12 + uint(m.LogPageSize())
	switch {
	case uidOf(c) == 0 && !prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).UMEMUID0():
		return syndUMEMUID
	case m.NumOfMTT() == 0 || uint64(m.PageOffset()) >= 1<<shift:
		return syndUMEMPage
	}
	u := &umem{uid: uidOf(c), shift: shift, offset: m.PageOffset()}
	u.mtt = append(u.mtt, c.in[prm.CreateUMEMInSize:prm.CreateUMEMInSize+int(m.NumOfMTT())*8]...)
	n, ok := f.umems.add(u)
	if !ok {
		return syndOutOfUMEMs
	}
	prm.AsCreateUMEMOut(c.out).SetUMEMID(n)
	return syndOK
}

func destroyUMEM(f *function, c *call) synd {
	n := prm.AsDestroyUMEMIn(c.in).UMEMID()
	u, ok := f.umems.get(n)
	switch {
	case !ok:
		return syndNoUMEM
	case u.users > 0:
		return syndUMEMBusy
	}
	f.umems.remove(n)
	return syndOK
}

func createUCTX(f *function, c *call) synd {
	rights := prm.AsCreateUCTXIn(c.in).UCTX().Cap()
	if rights&^prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).UCTXCap() != 0 {
		return syndUCTXCap
	}
	n, ok := f.uctxs.add(&uctx{cap: rights})
	if !ok {
		return syndOutOfUCTXs
	}
	prm.AsCreateUCTXOut(c.out).SetUID(uint16(n))
	return syndOK
}

func destroyUCTX(f *function, c *call) synd {
	uid := prm.AsDestroyUCTXIn(c.in).UID()
	if _, ok := f.uctxs.get(uint32(uid)); !ok {
		return syndNoUCTX
	}
	if f.usedBy(uid) {
		return syndUCTXBusy
	}
	f.uctxs.remove(uint32(uid))
	return syndOK
}

// usedBy tells whether an object belongs to a user context.
func (f *function) usedBy(uid uint16) bool {
	return owns(&f.pds, uid, func(o *pd) uint16 { return o.uid }) ||
		owns(&f.tds, uid, func(o *td) uint16 { return o.uid }) ||
		owns(&f.mkeys, uid, func(o *mkey) uint16 { return o.uid }) ||
		owns(&f.umems, uid, func(o *umem) uint16 { return o.uid }) ||
		owns(&f.uars, uid, func(o *uar) uint16 { return o.uid }) ||
		owns(&f.eqs, uid, func(o *eq) uint16 { return o.uid }) ||
		owns(&f.cqs, uid, func(o *cq) uint16 { return o.uid }) ||
		owns(&f.qps, uid, func(o *qp) uint16 { return o.uid }) ||
		owns(&f.srqs, uid, func(o *srq) uint16 { return o.uid }) ||
		owns(&f.xrcds, uid, func(o *xrcd) uint16 { return o.uid }) ||
		owns(&f.sets, uid, func(o *qCounters) uint16 { return o.uid })
}

func owns[T any](p *pool[T], uid uint16, of func(T) uint16) bool {
	for _, o := range p.objs {
		if of(o) == uid {
			return true
		}
	}
	return false
}
