package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Tag says where a value of the model comes from.
type Tag string

// Tags.
const (
	Real    Tag = "real"    // read from a real device or its documentation
	Derived Tag = "derived" // follows from real values or from what drivers demand
	Chosen  Tag = "chosen"  // a choice within what the facts allow
)

// Value is one value the device shows.
type Value struct {
	Where  string `json:"where"` // "pci", "init segment", "pages", "adapter", "cap GENERAL max"…
	Name   string `json:"name"`
	Value  string `json:"value"`
	Tag    Tag    `json:"tag"`
	Source string `json:"source"`
}

// goldenSource names the capture the ConnectX-4 profile is made of.
const goldenSource = "capture of a ConnectX-4, firmware 14.12.1220 (trace published with Snabb)"

// sourced is a tag with its source.
type sourced struct {
	tag Tag
	src string
}

var (
	noSource = sourced{Chosen, "no source"}
	lspciBF2 = sourced{Real, "published lspci of a BlueField-2"}
)

// Values lists every value that the chip shows, with its tag and source. Fields
// that are zero are left out.
func (c *Chip) Values() []Value {
	p := c.prof
	var l []Value
	add := func(where, name, v string, s sourced) { l = append(l, Value{where, name, v, s.tag, s.src}) }
	ids := sourced{Real, "Debian pci.ids"}
	bar, msix := cmp.Or(p.srcBAR, lspciBF2), cmp.Or(p.srcMSIX, lspciBF2)
	add("pci", "device id", fmt.Sprintf("15b3:%04x", p.deviceID), ids)
	class := cmp.Or(p.foreign[c.port], sourced{Derived, "PCI class codes: 0x0207 is an InfiniBand controller, 0x0200 an Ethernet controller; mlx5 has both"})
	add("pci", "class", map[PortType]string{PortIB: "0x0207", PortEth: "0x0200"}[c.port], class)
	add("pci", "revision", fmt.Sprintf("%02x", p.revision), cmp.Or(p.srcRevision, noSource))
	add("pci", "subsystem", fmt.Sprintf("15b3:%04x", p.subsystem), cmp.Or(p.srcSubsystem, noSource))
	add("pci", "BAR 0", "32 MiB, 64-bit, prefetchable", bar)
	add("pci", "MSI-X", "64 vectors, table at BAR 0 + 0x2000, PBA at + 0x3000", msix)
	add("pci", "vendor-specific capability", "0xc0, length 0x18", sourced{Real, "published lspci of mlx5 devices"})
	add("pci", "link", fmt.Sprintf("generation %d, %d lanes", p.linkSpeed, p.linkWidth), p.srcLink)
	firmware := p.srcFirmware
	if c.fwRev != p.firmware {
		firmware = sourced{Chosen, "the fw= word"}
	}
	add("init segment", "firmware", c.fwRev.String(), firmware)
	add("init segment", "cmd_interface_rev", fmt.Sprint(cmdInterfaceRev), sourced{Real, "Linux cmd.c, rdma-core mlx5_vfio.c and OpenBSD if_mcx.c refuse any other"})
	add("init segment", "queue", "32 entries of 64 bytes", sourced{Real, "Linux cmd.c: 32 at most, one page; entries of mlx5_ifc.h, cmd_queue_entry"})
	add("init segment", "cmd_exec_to", p.cmdExecTO.String(), p.srcTimeouts)
	add("init segment", "cmd_q_init_to", p.cmdQInitTO.String(), p.srcTimeouts)
	add("init segment", "internal timer", fmt.Sprintf("%d kHz", p.clockKHz), p.srcClock)
	add("init segment", "health counter", "one every "+healthTick.String(), sourced{Chosen, "no source states a rate; Linux health.c and rdma-core only want it to move"})
	add("init segment", "hw_id", fmt.Sprintf("%#x", p.hwID), sourced{Real, "mstflint tools_dev_types.c"})
	if caps := p.caps(c.port); prm.AsCmdHCACap(caps.max[prm.CapGeneral]).McamReg() {
		add("board", "temperature", fmt.Sprintf("%g °C, warning at %g °C", boardCelsius, boardHigh), sourced{Chosen, "no source"})
		add("board", "slot power", fmt.Sprintf("%d W", boardWatts), sourced{Chosen, "what PCIe gives a full-height card"})
	}
	add("issi", "supported", fmt.Sprintf("%#x", p.issi), p.srcISSI)
	add("pages", "boot", fmt.Sprint(p.bootPages), p.srcBoot)
	add("pages", "init", fmt.Sprint(p.initPages), p.srcInit)
	add("adapter", "psid", p.psid, p.srcPSID)
	add("adapter", "ieee_vendor_id", "0x2c9", sourced{Real, goldenSource})
	add("adapter", "vsd_vendor_id", "0x15b3", sourced{Real, goldenSource})
	add("numbers", "first UAR and first EQN", "0x10", sourced{Real, goldenSource})
	if p.tracer {
		add("tracer", "trc_ver", fmt.Sprint(p.trcVer), p.srcTracer)
		add("tracer", "largest buffer", fmt.Sprintf("%d KiB", 4<<p.traceLogMax), p.srcTracer)
		add("tracer", "string event ids", fmt.Sprintf("%#x to %#x", traceFirst, traceFirst+traceIDs-1), sourced{Chosen, "no source"})
		add("tracer", "string database", fmt.Sprintf("%d sections, one of them empty", traceSections), sourced{Chosen, "no source; at most 8 fit the register"})
	}
	numbers := sourced{Chosen, "no source"}
	add("numbers", "first memory key index and shared receive queue", "0x10", numbers)
	add("numbers", "first QPN", fmt.Sprintf("%#x", firstQPN), numbers)
	add("numbers", "first CQN", fmt.Sprintf("%#x", firstCQN), numbers)
	caps := p.caps(c.port)
	over := c.overrides()
	for _, set := range []struct {
		name string
		caps capSet
	}{{"max", caps.max}, {"cur", caps.cur}} {
		var types []prm.CapType
		for t := range set.caps {
			types = append(types, t)
		}
		slices.Sort(types)
		for _, t := range types {
			for _, v := range prm.Decode(set.caps[t], prm.CapStruct(t)).NonZero() {
				s := p.srcCaps
				if o, ok := over[capName{t, v.Path}]; ok {
					s = o
				}
				text := v.String()
				add("cap "+t.String()+" "+set.name, v.Path, text, s)
			}
		}
	}
	return l
}

type capName struct {
	typ  prm.CapType
	name string
}

// overrides are the capabilities in which the chip differs from the capture.
func (c *Chip) overrides() map[capName]sourced {
	m := map[capName]sourced{}
	for _, f := range c.prof.fields {
		m[capName{f.typ, f.name}] = sourced{f.tag, f.why}
	}
	if c.port == PortIB {
		for _, f := range ibPort {
			m[capName{f.typ, f.name}] = sourced{f.tag, f.why}
		}
	}
	return m
}
