package sim

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Access methods of ACCESS_REG.
const (
	regWrite = 0
	regRead  = 1
)

func init() {
	handle(prm.OpAccessReg, withPages, 1<<regWrite|1<<regRead, accessReg).refuses(syndOK, syndRegister)
}

// registers are the ones a driver can write.
type registers struct {
	hostEndian prm.RegisterHostEndianness
	nodeDesc   prm.SetNodeIn
	clock      prm.MrtcReg
	heat       thermometer
}

func (r *registers) reset(f *function) {
	*r = registers{}
	r.heat.reset()
	copy(r.nodeDesc.NodeDescription(), "MT"+f.chip.prof.name+" simulated")
}

// register is one register: a read fills img, which begins as the image the
// driver sent (its index fields); a write takes img in. A missing method is
// refused.
type register struct {
	read, write func(f *function, img []byte) synd
	// call serves both methods of a register whose image has no fixed size.
	call func(f *function, c *call) synd
}

// registerTable is filled in by init: its readers look into it.
var registerTable map[prm.RegisterID]register

func init() {
	registerTable = map[prm.RegisterID]register{
		prm.RegHostEndianness: {
			read:  func(f *function, img []byte) synd { copy(img, f.regs.hostEndian[:]); return syndOK },
			write: func(f *function, img []byte) synd { copy(f.regs.hostEndian[:], img); return syndOK },
		},
		prm.RegNodeDesc: {
			read:  func(f *function, img []byte) synd { copy(img, f.regs.nodeDesc[:]); return syndOK },
			write: func(f *function, img []byte) synd { copy(f.regs.nodeDesc[:], img); return syndOK },
		},
		prm.RegMrtc: {
			read:  func(f *function, img []byte) synd { copy(img, f.regs.clock[:]); return syndOK },
			write: func(f *function, img []byte) synd { copy(f.regs.clock[:], img); return syndOK },
		},
		prm.RegDtor:  {read: readDTOR},
		prm.RegMtcap: {read: readMTCAP},
		prm.RegMtmp:  {read: readMTMP, write: writeMTMP},
		prm.RegMpein: {read: readMPEIN},
		prm.RegMfrl:  {read: readMFRL, write: writeMFRL},
		prm.RegMcam:  {read: readMCAM},
		prm.RegPcam:  {read: readPCAM},
		prm.RegMgir:  {read: readMGIR},
		prm.RegPaos:  {read: readPAOS, write: writePAOS},
		prm.RegPmtu:  {read: readPMTU, write: writePMTU},
		prm.RegPtys:  {read: readPTYS},
		prm.RegPvlc:  {read: readPVLC},
		prm.RegPcap:  {read: readPCAP, write: writePCAP},
		prm.RegPmlp:  {read: readPMLP},

		prm.RegMtrcCap:  {read: readMtrcCap, write: writeMtrcCap},
		prm.RegMtrcConf: {read: readMtrcConf, write: writeMtrcConf},
		prm.RegMtrcStdb: {call: stringRegister},
		prm.RegMtrcCtrl: {read: readMtrcCtrl, write: writeMtrcCtrl},
	}
}

// hasRegister tells whether a device of this profile has a register.
func (f *function) hasRegister(id prm.RegisterID) bool {
	g := prm.AsCmdHCACap(f.caps.current(prm.CapGeneral))
	switch id {
	case prm.RegDtor:
		return f.chip.prof.dtor
	case prm.RegMcam, prm.RegMtcap, prm.RegMtmp, prm.RegMpein, prm.RegMfrl:
		return g.McamReg() // without the mask nothing announces them
	case prm.RegPcam:
		return g.PcamReg()
	case prm.RegMrtc, prm.RegMgir:
		return f.chip.prof.realTime || id == prm.RegMgir
	case prm.RegMtrcCap, prm.RegMtrcConf, prm.RegMtrcStdb, prm.RegMtrcCtrl:
		return f.chip.prof.tracer && g.McamReg()
	}
	return true
}

func accessReg(f *function, c *call) synd {
	id := prm.AsAccessRegisterIn(c.in).RegisterID()
	r, ok := registerTable[id]
	if !ok || !f.hasRegister(id) {
		return syndRegister
	}
	size := prm.RegisterStruct(id).Size
	switch {
	case len(c.in) < prm.AccessRegisterInSize+size:
		return syndRegisterShort
	case c.room < prm.AccessRegisterOutSize+size:
		return syndOutputShort
	}
	if r.call != nil {
		return r.call(f, c)
	}
	img := c.out[prm.AccessRegisterOutSize:][:size]
	copy(img, c.in[prm.AccessRegisterInSize:])
	do := r.read
	if c.opMod == regWrite {
		do = r.write
	}
	if do == nil {
		return syndRegisterReadOnly
	}
	c.n = prm.AccessRegisterOutSize + size
	return do(f, img)
}

func readDTOR(f *function, img []byte) synd {
	d := prm.AsDtorReg(img)
	*d = prm.DtorReg{}
	// Linux's own defaults (Linux lib/tout.c), so that reading them changes nothing.
	setTimeout(d.PCIEToggleTO(), 2*time.Second)
	poll := 2 * time.Second
	if x := f.chip.faults.find("health-poll"); x != nil {
		poll = x.delay
	}
	setTimeout(d.HealthPollTO(), poll)
	setTimeout(d.FullCrdumpTO(), 60*time.Second)
	setTimeout(d.FWResetTO(), 60*time.Second)
	setTimeout(d.FlushOnErrTO(), 2*time.Second)
	setTimeout(d.PCISyncUpdateTO(), 5*time.Second)
	setTimeout(d.TearDownTO(), 3*time.Second)
	setTimeout(d.FsmReactivateTO(), 5*time.Second)
	setTimeout(d.ReclaimPagesTO(), 5*time.Second)
	setTimeout(d.ReclaimVfsPagesTO(), 120*time.Second)
	setTimeout(d.ResetUnloadTO(), 300*time.Second)
	return syndOK
}

// readMCAM answers the mask of management registers of one group of 128 ids:
// bit n stands for the n-th register of the group, counted from the last bit of
// the mask.
func readMCAM(f *function, img []byte) synd {
	m := prm.AsMcamReg(img)
	group, feature := m.AccessRegGroup(), m.FeatureGroup()
	if group > 3 || feature > 0 {
		return syndRegisterIndex
	}
	*m = prm.McamReg{}
	m.SetAccessRegGroup(group)
	f.registerMask(m.MngAccessRegCapMask()[:], 0x9000+0x80*int(group))
	features := (*prm.McamEnhancedFeatures)(m.MngFeatureCapMask()[:])
	features.SetResetState(true)        // of MFRL
	features.SetPCIStatusAndPower(true) // of MPEIN
	return syndOK
}

func readPCAM(f *function, img []byte) synd {
	m := prm.AsPcamReg(img)
	if m.AccessRegGroup() != 0 || m.FeatureGroup() != 0 {
		return syndRegisterIndex
	}
	*m = prm.PcamReg{}
	f.registerMask(m.PortAccessRegCapMask()[:], 0x5000)
	return syndOK
}

// registerMask sets the bits of the registers that exist from id first on.
func (f *function) registerMask(mask []byte, first int) {
	for id := range registerTable {
		n := int(id) - first
		if n >= 0 && n < len(mask)*8 && f.hasRegister(id) {
			mask[len(mask)-1-n/8] |= 1 << (n % 8)
		}
	}
}

func readMGIR(f *function, img []byte) synd {
	g := prm.AsMgirReg(img)
	*g = prm.MgirReg{}
	p := f.chip.prof
	h := g.HwInfo()
	h.SetDeviceID(p.deviceID)
	h.SetHwDevID(uint16(p.hwID))
	h.SetNumPorts(1)
	h.SetManufacturingBaseMAC47_32(uint16(f.mac() >> 32))
	h.SetManufacturingBaseMAC31_0(uint32(f.mac()))
	h.SetUptime(uint32(f.chip.now() / time.Second))
	w := g.FWInfo()
	copy(w.Psid(), p.psid)
	w.SetExtendedMajor(uint32(f.chip.fwRev.Major))
	w.SetExtendedMinor(uint32(f.chip.fwRev.Minor))
	w.SetExtendedSubMinor(uint32(f.chip.fwRev.Sub))
	return syndOK
}
