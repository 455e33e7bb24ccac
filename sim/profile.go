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
	hwID      uint32 // hardware device id (pci-ids.md 11.1)
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

	// build makes the capabilities of a port type.
	build func(PortType) capPair
	once  [3]sync.Once
	built [3]capPair
}

// capPair is a profile's capabilities: maxima and power-on values.
type capPair struct{ max, cur capSet }

// caps gives the capabilities of a port type; they are shared and not written.
func (p *profile) caps(t PortType) *capPair {
	p.once[t].Do(func() { p.built[t] = p.build(t) })
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
var profiles = []*profile{&cx4, &cx5}
