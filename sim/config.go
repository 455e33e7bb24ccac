package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/vfio"
)

const (
	barSize     = 32 << 20 // published lspci of a BlueField-2: 32 MiB, 64-bit, prefetchable
	configSize  = 4096
	msixVectors = 64     // the same lspci
	msixTable   = 0x2000 // offset in BAR0
	msixPBA     = 0x3000

	capPM   = 0x40 // capability offsets of the same lspci
	capPCIe = 0x60
	capMSIX = 0x9c
	capVSC  = 0xc0

	cmdMemory    = 1 << 1
	cmdBusMaster = 1 << 2
)

// config is PCI configuration space: the image, the bits software may write and
// the bits that writing one clears.
type config struct {
	b, write, w1c [configSize]byte
}

func (c *config) put16(off int, v, mask uint16) {
	binary.LittleEndian.PutUint16(c.b[off:], v)
	binary.LittleEndian.PutUint16(c.write[off:], mask)
}

func (c *config) put32(off int, v, mask uint32) {
	binary.LittleEndian.PutUint32(c.b[off:], v)
	binary.LittleEndian.PutUint32(c.write[off:], mask)
}

// reset puts the image of power-on or FLR in place.
func (c *config) reset(p *profile, port PortType) {
	*c = config{}
	c.put16(0x00, 0x15b3, 0)
	c.put16(0x02, p.deviceID, 0)
	c.put16(0x04, 0, cmdMemory|cmdBusMaster|1<<6|1<<8|1<<10) // + parity, SERR, INTx disable
	c.put16(0x06, 1<<4, 0)                                   // capability list
	class := uint32(0x0200)
	if port == PortIB {
		class = 0x0207
	}
	c.put32(0x08, class<<16|p.revision, 0)
	c.put32(0x0c, 0, 0xff) // cache line size; header type 0
	c.put32(0x10, 0xc, ^uint32(barSize-1))
	c.put32(0x14, 0, ^uint32(0))
	c.put16(0x2c, 0x15b3, 0)
	c.put16(0x2e, p.subsystem, 0)
	c.b[0x34] = capPCIe
	c.write[0x3c] = 0xff // interrupt line; no pin

	c.put16(capPCIe, 0x10|capMSIX<<8, 0)
	c.put16(capPCIe+0x02, 0x0002, 0)                                   // version 2, endpoint
	c.put32(capPCIe+0x04, 1<<28|1<<15|1<<5|2, 0)                       // FLR, role-based errors, extended tags, 512 B payload
	c.put16(capPCIe+0x08, 0x2810, 0x7fff)                              // read request 512, relaxed ordering, no snoop
	c.w1c[capPCIe+0x0a] = 0x0f                                         // device status
	c.put32(capPCIe+0x0c, p.linkWidth<<4|p.linkSpeed, 0)               // link capabilities
	c.put16(capPCIe+0x10, 0, 0x0fd3)                                   // link control
	c.put16(capPCIe+0x12, uint16(1<<12|p.linkWidth<<4|p.linkSpeed), 0) // link status, slot clock
	c.put32(capPCIe+0x24, 1<<4|0xf, 0)                                 // completion timeout ranges and disable
	c.put16(capPCIe+0x28, 0, 0x001f)
	c.put32(capPCIe+0x2c, (1<<p.linkSpeed-1)<<1, 0) // every speed up to the link's
	c.put16(capPCIe+0x30, uint16(p.linkSpeed), 0x000f)

	c.put16(capMSIX, 0x11|capVSC<<8, 0)
	c.put16(capMSIX+2, msixVectors-1, 0xc000) // enable and function mask
	c.put32(capMSIX+4, msixTable, 0)          // BAR 0
	c.put32(capMSIX+8, msixPBA, 0)

	c.put16(capVSC, 0x09|capPM<<8, 0)
	c.b[capVSC+2] = vscLength // the rest is the gateway's (vsc.go)

	c.put16(capPM, 0x01, 0) // last capability
	c.put16(capPM+2, 0x0003, 0)
	c.put16(capPM+4, 1<<3, 0x0003) // no soft reset; power state
}

func (c *config) command() uint16 { return binary.LittleEndian.Uint16(c.b[4:]) }
func (c *config) busMaster() bool { return c.command()&cmdBusMaster != 0 && c.powered() }
func (c *config) memory() bool    { return c.command()&cmdMemory != 0 && c.powered() }
func (c *config) powered() bool   { return c.b[capPM+4]&3 == 0 } // D0

func (c *config) setCommand(v uint16) { binary.LittleEndian.PutUint16(c.b[4:], v) }

// store writes p at off and tells whether it asked for a function-level reset.
func (c *config) store(off int, p []byte) (flr bool) {
	for i, v := range p {
		o := off + i
		c.b[o] = c.b[o]&^c.write[o] | v&c.write[o]
		c.b[o] &^= v & c.w1c[o]
		if o == capPCIe+0x09 && v&0x80 != 0 {
			flr = true // device control bit 15; reads as 0
		}
	}
	return flr
}

func (f *function) readConfig(off uint64, p []byte) error {
	if off+uint64(len(p)) > configSize || off > configSize {
		return f.rangeError("read configuration space", off, len(p), configSize)
	}
	if f.allOnes() {
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	copy(p, f.cfg.b[off:])
	f.overlayVSC(int(off), p)
	return nil
}

func (f *function) writeConfig(off uint64, p []byte) error {
	if off+uint64(len(p)) > configSize || off > configSize {
		return f.rangeError("write configuration space", off, len(p), configSize)
	}
	if f.allOnes() {
		return nil
	}
	for at := capVSC + vscControl; at < capVSC+vscLength; at += 4 {
		if i := at - int(off); i >= 0 && i+4 <= len(p) && !f.chip.faults.has("vsc-absent") {
			f.writeVSC(at-capVSC, binary.LittleEndian.Uint32(p[i:]))
		}
	}
	if f.cfg.store(int(off), p) {
		f.flr("device control")
	}
	f.misbehave(rogueBatch)
	return nil
}

func (f *function) rangeError(op string, off uint64, n int, size uint64) error {
	return &vfio.Error{Op: fmt.Sprintf("%s %#x+%d", op, off, n), Target: f.name, Err: vfio.ErrRange,
		Remedy: fmt.Sprintf("the region has %#x bytes; BAR accesses are 1, 2, 4 or 8 bytes, aligned", size)}
}
