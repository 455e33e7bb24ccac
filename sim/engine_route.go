package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Addresses: where a packet goes, and whether one comes from where the QP's path
// says. Functions of a chip reach one another through its switch by LID, or by
// MAC and GID; what has no such address goes over the link.

// roceEntry is an entry of a function's RoCE address table.
type roceEntry struct {
	f *function
	i int
}

func (e roceEntry) layout() *prm.RoceAddrLayout { return &e.f.roce[e.i] }

func (e roceEntry) is(a gid, mac uint64) bool {
	return e.f != nil && e.i < len(e.f.roce) && gid(e.layout().SourceL3Address()) == a && macOf(e.layout()) == mac
}

func macOf(a *prm.RoceAddrLayout) uint64 {
	return uint64(a.SourceMAC47_32())<<32 | uint64(a.SourceMAC31_0())
}

// RoCE packet types in a completion (rdma-core mlx5 cq.c).
const (
	roceGRH  = 0
	roceIPv6 = 1
	roceIPv4 = 2
)

func l3Of(a *prm.RoceAddrLayout) uint8 {
	switch {
	case a.RoceVersion() != 2:
		return roceGRH
	case a.RoceL3Type() == 0:
		return roceIPv4
	}
	return roceIPv6
}

// byLID finds the function with a LID.
func (b *fabric) byLID(lid uint16) *function {
	for _, g := range b.chip.funcs {
		if g.port.lid == lid && lid != 0 {
			return g
		}
	}
	return nil
}

// byGID finds the function with a RoCE address, at hint if it is still there.
func (b *fabric) byGID(a gid, mac uint64, hint roceEntry) roceEntry {
	if hint.is(a, mac) {
		return hint
	}
	for _, g := range b.chip.funcs {
		for i := range g.roce {
			if e := (roceEntry{g, i}); e.is(a, mac) {
				return e
			}
		}
	}
	return roceEntry{}
}

// gidAt is entry i of the function's GID table; InfiniBand ports have the default
// one only.
func (f *function) gidAt(i uint8) (g gid) {
	if f.chip.port == PortEth {
		if int(i) < len(f.roce) {
			copy(g[:], f.roce[i].SourceL3Address())
		}
		return g
	}
	if i == 0 {
		putGID(&g, f.guid())
	}
	return g
}

func putGID(g *gid, guid uint64) {
	for i := range 8 {
		g[i] = byte(uint64(defaultPrefix) >> (56 - 8*i))
		g[8+i] = byte(guid >> (56 - 8*i))
	}
}

// address sends a packet along the path of a connected QP.
func (f *function) address(q *qp, p *packet) {
	a := q.ctx.PrimaryAddressPath()
	p.dqpn, p.sqpn = q.remote, q.n
	if f.chip.port == PortIB {
		p.slid, p.dlid, p.sl, p.path = f.port.lid, a.Rlid(), a.Sl(), a.Mlid()
		if a.Grh() {
			f.header(p, a.SrcAddrIndex(), gid(a.RgidRip()), a.Tclass(), a.HopLimit(), a.FlowLabel())
		}
		if a.Fl() {
			p.to = f
			return
		}
		p.to = f.chip.fabric.byLID(p.dlid)
		return
	}
	p.sl = a.EthPrio()
	mac := uint64(a.Rmac47_32())<<32 | uint64(a.Rmac31_0())
	f.roceHeader(p, a.SrcAddrIndex(), gid(a.RgidRip()), mac, a.Tclass(), a.HopLimit(), a.FlowLabel())
	if a.Fl() {
		p.to = f
		return
	}
	q.flow.peer = f.chip.fabric.byGID(p.dgid, p.dmac, q.flow.peer)
	p.to = q.flow.peer.f
}

func (f *function) header(p *packet, index uint8, dgid gid, tclass, hops uint8, flow uint32) {
	p.flags |= flagGRH
	p.sgid, p.dgid, p.tclass, p.hops, p.flow = f.gidAt(index), dgid, tclass, hops, flow
}

func (f *function) roceHeader(p *packet, index uint8, dgid gid, mac uint64, tclass, hops uint8, flow uint32) {
	f.header(p, index, dgid, tclass, hops, flow)
	p.dmac = mac
	if int(index) < len(f.roce) {
		p.smac, p.l3 = macOf(&f.roce[index]), l3Of(&f.roce[index])
	}
}

// fromPeer tells whether a packet comes from where the path of a connected QP
// leads.
func (f *function) fromPeer(q *qp, p *packet) bool {
	a := q.ctx.PrimaryAddressPath()
	switch {
	case a.Fl():
		return f.sent(p)
	case f.chip.port == PortIB:
		return p.slid == a.Rlid()
	}
	return p.sgid == gid(a.RgidRip())
}

// sent tells whether a packet bears an address of this function as its source.
func (f *function) sent(p *packet) bool {
	if f.chip.port == PortIB {
		return p.slid == f.port.lid
	}
	for i := range f.roce {
		if (roceEntry{f, i}).is(p.sgid, p.smac) {
			return true
		}
	}
	return false
}

// addressAV sends a datagram to the address in its entry's address vector; av is
// avBytes long, or baseAVBytes where the vector is not extended.
func (f *function) addressAV(q *qp, p *packet, av []byte) {
	var whole prm.Av
	copy(whole[:], av)
	base := whole.Base()
	p.dqpn, p.sqpn, p.qkey = base.DqpDCT(), q.n, base.Qkey()
	if p.qkey>>31 != 0 {
		p.qkey = q.qkey // the top bit selects the QP's own (IBTA 3.5.3)
	}
	p.sl = base.Sl()
	b := f.chip.fabric
	if f.chip.port == PortIB {
		p.slid, p.dlid, p.path = f.port.lid, base.Rlid(), base.Mlid()
		if whole.Grh() {
			f.header(p, whole.SgidIndex(), gid(whole.Rgid()), whole.Tclass(), whole.HopLimit(), whole.FlowLabel())
		}
		if p.to = b.byLID(p.dlid); base.Fl() {
			p.to = f
		}
		return
	}
	var mac uint64
	for _, x := range whole.Rmac() {
		mac = mac<<8 | uint64(x)
	}
	f.roceHeader(p, whole.SgidIndex(), gid(whole.Rgid()), mac, whole.Tclass(), whole.HopLimit(), whole.FlowLabel())
	q.flow.peer = b.byGID(p.dgid, p.dmac, q.flow.peer)
	p.to = q.flow.peer.f
}

// send puts a packet on its way: to a function of this chip, or over the link.
// One with no receiver is lost.
func (f *function) send(p *packet) {
	b := f.chip.fabric
	f.count.Packets++
	if p.to == nil && !f.linkUp() {
		b.drop(p)
		return
	}
	if len(f.chip.faults.list) > 0 && b.fated(p) {
		return
	}
	b.forward(p)
}

func (b *fabric) forward(p *packet) {
	if p.to != nil {
		b.wire.push(p)
		return
	}
	if b.link != nil {
		b.link.send(p)
	}
	b.drop(p)
}

// arrive takes a packet that came over the link: it goes to the function it is
// addressed to.
func (b *fabric) arrive(p *packet) {
	if b.chip.port == PortIB {
		p.to = b.byLID(p.dlid)
	} else {
		p.to = b.byGID(p.dgid, p.dmac, roceEntry{}).f
	}
	if p.to == nil || !p.to.linkUp() {
		b.drop(p)
		return
	}
	b.wire.push(p)
}
