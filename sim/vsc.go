package sim

import (
	"encoding/binary"
	"slices"
)

// The vendor-specific capability: a window into the device's own address spaces
// (Linux pci_vsc.c and mstflint mtcr_ul_com.c use it). Offsets in the capability.
const (
	vscControl   = 0x04 // space 15:0, size valid 28, status 31:29
	vscCounter   = 0x08 // a new ticket at each read
	vscSemaphore = 0x0c // 0 is free, else the ticket of the owner
	vscAddress   = 0x10 // flag 31, syndrome 30, address 29:0
	vscData      = 0x14
	vscLength    = 0x18

	vscSizeValid = 1 << 28
	vscSupported = 1 << 29 // status 1; 0 is "no such space"
	vscFlag      = 1 << 31
	vscSyndrome  = 1 << 30
	vscAddrMask  = 1<<30 - 1
)

// vsc is what a function's gateway holds; a function-level reset clears it.
type vsc struct {
	space     uint16
	control   uint32 // what reads back above the space
	semaphore uint32
	address   uint32
	data      uint32
}

// overlay puts what the gateway shows into a read of configuration space. Only
// reads that cover the ticket counter move it.
func (f *function) overlayVSC(off int, p []byte) {
	if f.chip.faults.has("vsc-absent") {
		for i := range p {
			switch o := off + i; {
			case o == capMSIX+1:
				p[i] = capPM // the capability before it leads past it
			case o >= capVSC && o < capVSC+vscLength:
				p[i] = 0
			}
		}
		return
	}
	if off >= capVSC+vscLength || off+len(p) <= capVSC {
		return
	}
	for reg := vscControl; reg < vscLength; reg += 4 {
		at := capVSC + reg
		if off >= at+4 || off+len(p) <= at {
			continue
		}
		var w [4]byte
		binary.LittleEndian.PutUint32(w[:], f.readVSC(reg))
		for i, b := range w {
			if o := at + i - off; o >= 0 && o < len(p) {
				p[o] = b
			}
		}
	}
}

func (f *function) readVSC(reg int) uint32 {
	switch reg {
	case vscControl:
		return f.vsc.control | uint32(f.vsc.space)
	case vscCounter:
		return f.chip.ticket()
	case vscSemaphore:
		if f.chip.faults.holds("vsc-held", f.chip) {
			return foreignTicket
		}
		return f.vsc.semaphore
	case vscAddress:
		return f.vsc.address
	}
	return f.vsc.data
}

// ticket is the next value of the counter: each read of any function's gives
// another one, and none is 0.
func (c *Chip) ticket() uint32 {
	c.tickets++
	if c.tickets == 0 || c.tickets == foreignTicket {
		c.tickets++
	}
	return c.tickets
}

// foreignTicket is the mark of an owner that is none of the chip's users.
const foreignTicket = 0xffff_fff0

// writeVSC takes a store of one aligned dword; narrower ones are dropped.
func (f *function) writeVSC(reg int, v uint32) {
	g := &f.vsc
	switch reg {
	case vscControl:
		g.space = uint16(v)
		g.control = 0
		size, ok := f.chip.spaceSize(g.space)
		if !ok {
			return
		}
		g.control = vscSupported
		if size != 0 && !f.chip.faults.has("vsc-no-size") {
			g.control |= vscSizeValid
			g.address = size
		}
	case vscSemaphore:
		switch {
		case f.chip.faults.holds("vsc-held", f.chip):
		case v == 0, g.semaphore == 0:
			g.semaphore = v
		}
	case vscData:
		g.data = v
	case vscAddress:
		f.moveVSC(v)
	}
}

// moveVSC reads or writes the word at an address of the space. A read leaves the
// address of the next word, so that a block can be streamed.
func (f *function) moveVSC(v uint32) {
	g, c := &f.vsc, f.chip
	addr := v & vscAddrMask
	if c.faults.has("vsc-stuck") {
		g.address = v // the flag stays as it was written
		return
	}
	size, ok := c.spaceSize(g.space)
	fits := ok && addr&3 == 0 && addr < size
	if v&vscFlag != 0 {
		g.address = addr
		if !fits {
			g.address |= vscSyndrome
			return
		}
		c.writeSpace(g.space, addr, g.data)
		return
	}
	if !fits {
		g.data = 0
		g.address = vscFlag | vscSyndrome | addr
		return
	}
	g.data = c.readSpace(g.space, addr)
	g.address = vscFlag | c.nextAddress(g.space, addr, size)
}

// Spaces that the model has (mstflint mtcr_com_defs.h has the full list).
const (
	spaceCR        = 0x2 // configuration registers
	spaceScan      = 0x7 // those of them that a dump may read
	spaceSemaphore = 0xa
)

const (
	// crSize ends the configuration registers behind the device id, scanSize
	// ends the part that is dumped: choices, real ones are some MiB.
	crSize   = 0xf0020
	scanSize = 0x10000
	// crDeviceID holds the hardware device id (mstflint reads it there).
	crDeviceID = 0xf0014

	semaphores = 0x100 // words of the semaphore space
	// semSWReset is the address of the semaphore that whoever resets the
	// firmware takes (Linux pci_vsc.h).
	semSWReset = 0x20
)

// scanHoles are the parts of the scanned space that a block read leaps over.
var scanHoles = [][2]uint32{{0x400, 0x1000}, {0x1800, 0xf000}}

// spaceSize gives the bytes of a space; ok is false for one the device lacks.
func (c *Chip) spaceSize(space uint16) (size uint32, ok bool) {
	if x := c.faults.find("vsc-no-space"); x != nil && x.n == int(space) {
		return 0, false
	}
	switch space {
	case spaceCR:
		return crSize, true
	case spaceScan:
		return scanSize, true
	case spaceSemaphore:
		return semaphores * 4, true
	}
	return 0, false
}

// nextAddress is what the address register says after a read at addr.
func (c *Chip) nextAddress(space uint16, addr, size uint32) uint32 {
	if x := c.faults.find("vsc-short"); x != nil && space == spaceScan && addr+4 >= uint32(x.n) {
		return addr // it does not advance any more
	}
	next := addr + 4
	if space == spaceScan {
		for _, h := range scanHoles {
			if next >= h[0] && next < h[1] {
				next = h[1]
			}
		}
	}
	return min(next, size)
}

func (c *Chip) readSpace(space uint16, addr uint32) uint32 {
	if space == spaceSemaphore {
		if addr == semSWReset && c.faults.holds("swreset-held", c) {
			return foreignTicket
		}
		return c.sems[addr/4]
	}
	if addr == crDeviceID {
		return c.prof.hwID
	}
	if slices.ContainsFunc(scanHoles, func(h [2]uint32) bool { return addr >= h[0] && addr < h[1] }) {
		return 0
	}
	return crPattern<<20 | addr
}

// crPattern marks a register whose real content nobody published: such a word is
// this mark and its own address.
const crPattern = 0x51f

func (c *Chip) writeSpace(space uint16, addr, v uint32) {
	if space != spaceSemaphore {
		return // the registers are read-only
	}
	if addr == semSWReset && c.faults.holds("swreset-held", c) {
		return
	}
	if s := &c.sems[addr/4]; v == 0 || *s == 0 {
		*s = v
	}
}

// holds tells whether a fault of another owner is in force: for good, or for
// the time of its argument.
func (s *faultSet) holds(name string, c *Chip) bool {
	x := s.find(name)
	return x != nil && (x.delay == 0 || c.now() < x.at+x.delay)
}

func startHolding(c *Chip, x *fault) { x.at = c.now() }

func parseOptDuration(x *fault, arg string) error {
	if arg == "" {
		return nil
	}
	return parseDuration(x, arg)
}

// vscFaults are the faults of the vendor-specific capability.
func vscFaults() []faultKind {
	kind := func(name, arg, meaning string, parse func(*fault, string) error, now func(*Chip, *fault)) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse, now: now}
	}
	return []faultKind{
		kind("vsc-absent", "", "configuration space has no vendor-specific capability", parseNothing, nil),
		kind("vsc-held", "[DURATION]", "the gateway's semaphore is another owner's, for good or that long", parseOptDuration, startHolding),
		kind("vsc-stuck", "", "the gateway's flag never changes: no read and no write ends", parseNothing, nil),
		kind("vsc-no-space", "SPACE", "the gateway refuses one space (0xa has the semaphores, 0x7 what a dump reads)", parseNumber(16), nil),
		kind("vsc-no-size", "", "the gateway does not say how large a space is", parseNothing, nil),
		kind("vsc-short", "ADDRESS", "block reads of space 0x7 do not advance beyond an address", parseNumber(30), nil),
		kind("swreset-held", "[DURATION]", "the semaphore of the firmware reset is another owner's, for good or that long", parseOptDuration, startHolding),
	}
}
