package sim

import (
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// profile is one device that the model can be.
type profile struct {
	name      string
	deviceID  uint16
	revision  uint32
	subsystem uint16
	port      PortType
	firmware  Version
	psid      string
	hwID      uint32 // hardware device id (mstflint tools_dev_types.c)
	linkWidth uint32 // PCIe lanes
	linkSpeed uint32 // PCIe generation

	issi       uint32 // supported_issi_dw0
	bootPages  int
	initPages  int
	clockKHz   uint32 // of the internal timer
	realTime   bool   // real-time clock in the segment
	swReset    bool   // reset through nic_interface
	cmdExecTO  time.Duration
	cmdQInitTO time.Duration
	dtor       bool

	tracer      bool  // the firmware tracer's registers
	trcVer      uint8 // where a timestamp event's unreliable bit is
	traceLogMax uint8 // log2 of the largest trace buffer in units of 4096 bytes

	fields []capField // capabilities that differ from the ConnectX-4's

	// Where the values come from.
	srcFirmware, srcPSID, srcISSI, srcBoot, srcInit, srcClock, srcTimeouts, srcLink, srcCaps, srcTracer sourced
	// Where configuration space comes from: revision, subsystem, and BAR 0 with MSI-X.
	srcRevision, srcSubsystem, srcBAR, srcMSIX sourced
	// foreign says why the link layer that the device is not known to have is there
	// all the same; zero for a device that has both.
	foreign map[PortType]sourced

	once  [3]sync.Once
	built [3]capPair
}

// capPair is a profile's capabilities: maxima and power-on values.
type capPair struct{ max, cur capSet }

// caps gives the capabilities of a port type; they are shared and not written.
func (p *profile) caps(t PortType) *capPair {
	p.once[t].Do(func() {
		b := realCX4()
		b.apply(p.fields)
		if t == PortIB {
			b.apply(ibPort)
		}
		p.built[t] = b
	})
	return &p.built[t]
}

// word is one non-zero dword of a capability type.
type word struct {
	off int
	v   uint32
}

func (s capSet) set(t prm.CapType, words ...word) {
	b := s[t]
	if b == nil {
		b = make([]byte, capBytes)
		s[t] = b
	}
	for _, w := range words {
		b[w.off], b[w.off+1], b[w.off+2], b[w.off+3] = byte(w.v>>24), byte(w.v>>16), byte(w.v>>8), byte(w.v)
	}
}

func (s capSet) clone() capSet {
	d := make(capSet, len(s))
	for t, b := range s {
		d[t] = append([]byte(nil), b...)
	}
	return d
}

// profiles are the devices that exist.
var profiles = []*profile{&cx4, &cx5, &cx6dx, &cx7, &bf3}

// capField is a capability that differs from the ConnectX-4's.
type capField struct {
	typ      prm.CapType
	name     string
	max, cur uint64
	tag      Tag
	why      string // source, or reason of the choice
}

// general is a field of the general capabilities whose power-on value is its
// maximum.
func general(name string, v uint64, tag Tag, why string) capField {
	return capField{prm.CapGeneral, name, v, v, tag, why}
}

// carried gives the fields of an older device to a newer one of which nothing is
// published: each is a choice there, whatever it was for the older one. A later
// field of the same name wins.
func carried(from string, fields []capField) []capField {
	out := make([]capField, len(fields))
	for i, f := range fields {
		f.tag, f.why = Chosen, "as the "+from+"'s: "+f.why
		out[i] = f
	}
	return out
}

// apply sets fields in both sets.
func (p *capPair) apply(fields []capField) {
	for _, f := range fields {
		s := prm.CapStruct(f.typ)
		p.max.set(f.typ)
		p.cur.set(f.typ)
		mustPut(s, p.max[f.typ], f.name, f.max)
		mustPut(s, p.cur[f.typ], f.name, f.cur)
	}
}

// ibPort turns a device's port from Ethernet to InfiniBand. The capture is of an
// Ethernet port, so an InfiniBand ConnectX-4 is derived.
var ibPort = []capField{
	general("port_type", 0, Real, "0 is InfiniBand (Linux mlx5_ifc.h, MLX5_CAP_PORT_TYPE_IB)"),
	general("ib_virt", 1, Derived, "lets drivers use QUERY_HCA_VPORT_CONTEXT, as rdma-core does on InfiniBand ports"),
	general("eth_net_offloads", 0, Derived, "an InfiniBand port has no Ethernet offloads"),
	general("nic_flow_table", 0, Derived, "no NIC flow tables without Ethernet offloads"),
	general("eswitch_manager", 0, Derived, "no e-switch on an InfiniBand port"),
	general("roce", 0, Derived, "RoCE runs on Ethernet"),
	general("ets", 0, Derived, "traffic classes of Ethernet"),
	general("log_max_l2_table", 0, Derived, "MAC addresses of Ethernet"),
}
