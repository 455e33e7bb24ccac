package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func init() {
	handle(prm.OpEnableHCA, forEnable, 1, enableHCA).refuses(syndOK, syndFunctionID)
	handle(prm.OpDisableHCA, forDisable, 1, disableHCA).refuses(syndOK, syndFunctionID)
	handle(prm.OpQueryISSI, fromEnabled, 1, queryISSI)
	handle(prm.OpSetISSI, onlyEnabled, 1, setISSI).refuses(syndOK, syndISSI)
	handle(prm.OpInitHCA, onlyISSI, 1, initHCA).needs(initHCAMin)
	handle(prm.OpTeardownHCA, onlyInit, 1, teardownHCA).refuses(syndOK, syndProfile)
	handle(prm.OpQueryAdapter, fromISSI, 1, queryAdapter)
	handle(prm.OpSetDriverVersion, fromISSI, 1, setDriverVersion)
	handle(prm.OpNop, fromISSI, 1, func(*function, *call) synd { return syndOK })
}

// self checks a function id: 0 is the function itself, and no other exists that
// it could speak for.
func self(id uint16) synd {
	if id != 0 {
		return syndFunctionID
	}
	return syndOK
}

func enableHCA(f *function, c *call) synd {
	if s := self(prm.AsEnableHCAIn(c.in).FunctionID()); s != syndOK {
		return s
	}
	f.restart()
	f.fw.phase = phaseEnabled
	return syndOK
}

// restart forgets what an earlier life of the function left: pages, objects,
// capabilities that were set.
func (f *function) restart() {
	f.dropObjects()
	f.count.PagesDropped += uint64(f.fw.ledger.len())
	ready := f.fw.ready
	f.fw = firmware{ready: ready}
	f.fw.ledger.reset()
	f.caps.reset(f.chip)
}

func disableHCA(f *function, c *call) synd {
	if s := self(prm.AsDisableHCAIn(c.in).FunctionID()); s != syndOK {
		return s
	}
	f.restart()
	return syndOK
}

func queryISSI(f *function, c *call) synd {
	out := prm.AsQueryISSIOut(c.out)
	out.SetCurrentISSI(uint16(f.fw.issi))
	out.SetSupportedISSIDw0(f.chip.faults.supportedISSI(f.chip.prof.issi))
	return syndOK
}

func setISSI(f *function, c *call) synd {
	n := prm.AsSetISSIIn(c.in).CurrentISSI()
	if n > 31 || f.chip.faults.supportedISSI(f.chip.prof.issi)>>n&1 == 0 {
		return syndISSI
	}
	f.fw.issi = int(n)
	f.fw.phase = phaseISSI
	return syndOK
}

// initHCAMin: the software owner id follows only where the device takes one.
func initHCAMin(f *function, _ *call) (in, out int) {
	if prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).SwOwnerID() {
		return prm.InitHCAInSize, prm.InitHCAOutSize
	}
	return inlineBytes, prm.InitHCAOutSize
}

func initHCA(f *function, c *call) synd {
	switch {
	case f.fw.ledger.len() < f.chip.prof.bootPages:
		return syndBootPages
	case f.fw.ledger.len() < f.chip.prof.bootPages+f.chip.prof.initPages:
		return syndInitPages
	case f.chip.faults.starving():
		return syndPageStarvation
	}
	if len(c.in) >= prm.InitHCAInSize {
		copy(f.fw.swOwner[:], c.in[inlineBytes:])
	}
	f.fw.checksum = prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).CmdifChecksum() == checksumsEnabled
	f.fw.phase = phaseInit
	f.chip.tracer.say(traceCore, msgUp, uint32(f.index), uint32(f.fw.ledger.len()))
	f.later = append(f.later, f.strike)
	return syndOK
}

// checksumsEnabled is the value of cmdif_checksum that turns signatures on.
const checksumsEnabled = 3

func teardownHCA(f *function, c *call) synd {
	general := prm.AsCmdHCACap(f.caps.current(prm.CapGeneral))
	switch prm.AsTeardownHCAIn(c.in).Profile() {
	case prm.TeardownGraceful:
		// Pages stay the firmware's, unused, until they are taken back.
		f.dropObjects()
		f.fw.phase = phaseTornDown
		f.fw.extra = 0
		f.fw.checksum = false
	case prm.TeardownForce:
		if !general.ForceTeardown() {
			return syndProfileCap
		}
		// The driver sends nothing after this and frees everything.
		f.restart()
	case prm.TeardownPrepareFast:
		if !general.FastTeardown() {
			return syndProfileCap
		}
		f.fw.prepared = true // nic_interface = DISABLED does the rest
	default:
		return syndProfile
	}
	return syndOK
}

func queryAdapter(f *function, c *call) synd {
	p := prm.AsQueryAdapterOut(c.out).QueryAdapterStruct()
	p.SetIeeeVendorID(0x2c9)
	p.SetVsdVendorID(0x15b3)
	copy(p.VsdContdPsid(), f.chip.prof.psid)
	return syndOK
}

func setDriverVersion(f *function, c *call) synd {
	copy(f.fw.driver[:], prm.AsSetDriverVersionIn(c.in).DriverVersion())
	return syndOK
}
