package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// portState is the physical port behind a function.
type portState struct {
	admin    prm.PortAdminStatus
	up       bool // the cable is in and the peer answers
	adminMTU uint16
	mask     [4]uint32 // PCAP
	lid      uint16
}

// IB MTUs and the MTU an Ethernet port can carry, in bytes.
const (
	ibMTU  = 4096
	ethMTU = 10239
)

func (f *function) resetPort() {
	f.port = portState{admin: prm.PortAdminUp, up: true, adminMTU: f.maxMTU(), lid: uint16(f.chip.fabric.node)<<4 + uint16(f.index) + 1}
	if f.chip.port == PortEth {
		f.port.adminMTU = 1522
		f.port.lid = 0
	}
}

func (f *function) maxMTU() uint16 {
	if f.chip.port == PortEth {
		return ethMTU
	}
	return ibMTU
}

// linkUp tells whether the port carries traffic.
func (f *function) linkUp() bool { return f.port.up && f.port.admin == prm.PortAdminUp }

// mac is the function's address: a locally administered one, by the chip's end of
// a link and by function.
func (f *function) mac() uint64 {
	return 0x02_6d_6c_78_00_00 + uint64(f.chip.fabric.node)<<8 + uint64(f.index)
}

// guid is the function's EUI-64.
func (f *function) guid() uint64 {
	m := f.mac()
	return m>>24<<40 | 0xfffe<<24 | m&0xffffff
}

// localPort checks the port index of a port register.
func localPort(n uint8) synd {
	if n != 1 {
		return syndRegisterIndex
	}
	return syndOK
}

func readPAOS(f *function, img []byte) synd {
	r := prm.AsPaosReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	r.SetAdminStatus(f.port.admin)
	r.SetOperStatus(prm.PortOperDown)
	if f.linkUp() {
		r.SetOperStatus(prm.PortOperUp)
	}
	return syndOK
}

func writePAOS(f *function, img []byte) synd {
	r := prm.AsPaosReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	if r.Ase() {
		// The event tells the outcome, changed or not: rdma-core's VFIO test asks
		// for a port that is up to come up and waits for it.
		f.port.admin = r.AdminStatus()
		f.later = append(f.later, f.portChanged)
	}
	return readPAOS(f, img)
}

// SetLink plugs (true) or pulls the cable of function i, with the event that
// tells.
func (c *Chip) SetLink(i int, up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.funcs[i]
	was := f.linkUp()
	f.port.up = up
	if was != f.linkUp() {
		f.portChanged()
	}
}

// portChanged posts the event of a port that went up or down.
func (f *function) portChanged() {
	up := uint32(0)
	if f.linkUp() {
		up = 1
	}
	f.chip.tracer.say(traceCore, msgLink, uint32(f.index), up)
	eq := f.eventEQ(prm.EventPortChange)
	if eq == nil {
		return
	}
	var ev prm.EQE
	ev.SetEventType(prm.EventPortChange)
	ev.SetEventSubType(uint8(prm.PortChangeDown))
	if f.linkUp() {
		ev.SetEventSubType(uint8(prm.PortChangeActive))
	}
	ev.EventData().PortStateChangeEvent().SetPortNum(1)
	f.postEQE(eq, &ev)
}

func readPMTU(f *function, img []byte) synd {
	r := prm.AsPmtuReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	r.SetMaxMTU(f.maxMTU())
	r.SetAdminMTU(f.port.adminMTU)
	r.SetOperMTU(f.port.adminMTU)
	return syndOK
}

func writePMTU(f *function, img []byte) synd {
	r := prm.AsPmtuReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	if r.AdminMTU() == 0 || r.AdminMTU() > f.maxMTU() {
		return syndRegisterIndex
	}
	f.port.adminMTU = r.AdminMTU()
	return syndOK
}

// Speeds of the port: 4x EDR, or 100GBASE-SR4/CR4 (both are what a ConnectX-4 or
// -5 card of 100 Gb/s shows). IB: width bit 2 is 4x; protocol bits 0 SDR, 1 DDR,
// 2 QDR, 3 FDR10, 4 FDR, 5 EDR. Ethernet: bits 20 CR4, 21 SR4 of the 100 Gb/s
// group, as Linux port.h numbers them.
const (
	ibWidth4x  = 1 << 2
	ibWidths   = 1<<0 | 1<<2
	ibEDR      = 1 << 5
	ibSpeeds   = 0x3f
	eth100GCR4 = 1 << 20
	eth100GSR4 = 1 << 21
)

func readPTYS(f *function, img []byte) synd {
	r := prm.AsPtysReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	mask := r.ProtoMask()
	*r = prm.PtysReg{}
	r.SetLocalPort(1)
	r.SetProtoMask(mask)
	if f.chip.port == PortIB {
		r.SetIBLinkWidthCapability(ibWidths)
		r.SetIBProtoCapability(ibSpeeds)
		r.SetIBLinkWidthAdmin(ibWidths)
		r.SetIBProtoAdmin(ibSpeeds)
		if f.linkUp() {
			r.SetIBLinkWidthOper(ibWidth4x)
			r.SetIBProtoOper(ibEDR)
		}
		return syndOK
	}
	r.SetEthProtoCapability(eth100GCR4 | eth100GSR4)
	r.SetEthProtoAdmin(eth100GCR4 | eth100GSR4)
	if f.linkUp() {
		r.SetEthProtoOper(eth100GCR4)
	}
	return syndOK
}

// vls8 is the code of VL0 to VL7 (mlx5_ib takes 1, 2, 4, 8 and 15).
const vls8 = 8

func readPVLC(f *function, img []byte) synd {
	r := prm.AsPvlcReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	r.SetVlHwCap(vls8)
	r.SetVlAdmin(vls8)
	r.SetVlOperational(vls8)
	return syndOK
}

func readPCAP(f *function, img []byte) synd {
	r := prm.AsPcapReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	for i, v := range f.port.mask {
		r.SetPortCapabilityMask(i, v)
	}
	return syndOK
}

func writePCAP(f *function, img []byte) synd {
	r := prm.AsPcapReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	for i := range f.port.mask {
		f.port.mask[i] = r.PortCapabilityMask(i)
	}
	return syndOK
}

func readPMLP(f *function, img []byte) synd {
	r := prm.AsPmlpReg(img)
	if s := localPort(r.LocalPort()); s != syndOK {
		return s
	}
	r.SetWidth(4)
	for i, set := range []func(uint32){r.SetLane0ModuleMapping, r.SetLane1ModuleMapping, r.SetLane2ModuleMapping, r.SetLane3ModuleMapping} {
		set(uint32(i)<<16 | uint32(f.index)) // lane, module
	}
	return syndOK
}
