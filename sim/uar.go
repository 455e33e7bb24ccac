package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// firstUAR is the first index that ALLOC_UAR hands out, as on the captured
// ConnectX-4; the pages below hold the initialization segment and MSI-X.
const firstUAR = 0x10

// Offsets of doorbells in a UAR page (Linux doorbell.h and eq.c; OpenBSD if_mcx.c).
const (
	doorbellCQ    = 0x20
	doorbellEQArm = 0x40
	doorbellEQ    = 0x48
	blueFlame     = 0x800
	// uarUse is the part of a UAR page that has registers: a page of 4096 bytes,
	// however far apart the pages lie.
	uarUse = 0x1000
)

// uar is an allocated UAR page.
type uar struct {
	uid   uint16
	users int // queues that ring here
}

func init() {
	handle(prm.OpAllocUAR, onlyInit, 1, allocUAR)
	handle(prm.OpDeallocUAR, onlyInit, 1, deallocUAR).refuses(syndNoUAR, syndOK)
}

// uarShift is log2 of the bytes between two UARs in BAR 0.
func (f *function) uarShift() uint {
	return 12 + uint(prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).LogUARPageSz())
}

func allocUAR(f *function, c *call) synd {
	u := &uar{uid: uidOf(c)}
	n, ok := f.uars.add(u)
	if ok && n >= barSize>>f.uarShift() {
		f.uars.remove(n)
		ok = false
	}
	if !ok {
		return syndOutOfUARs
	}
	prm.AsAllocUAROut(c.out).SetUAR(n)
	return syndOK
}

func deallocUAR(f *function, c *call) synd {
	n := prm.AsDeallocUARIn(c.in).UAR()
	u, ok := f.uars.get(n)
	switch {
	case !ok:
		return syndNoUAR
	case u.users > 0:
		return syndUARBusy
	}
	f.uars.remove(n)
	return syndOK
}

// doorbell is a store into a UAR page. CQ and send doorbells are eight bytes;
// hosts without 8-byte stores write the halves in ascending order, as Linux's
// mlx5_write64 does on 32 bits.
func (f *function) doorbell(off uint64, p []byte) {
	page := uint32(off >> f.uarShift())
	if _, ok := f.uars.get(page); !ok || f.fw.phase != phaseInit || f.chip.health.dead() {
		f.count.DoorbellsIgnored++
		return
	}
	switch reg := off & (1<<f.uarShift() - 1); {
	case len(p) < 4 || reg >= uarUse:
		f.count.DoorbellsIgnored++
	case reg == doorbellEQArm && len(p) == 4:
		f.updateEQ(page, binary.BigEndian.Uint32(p), true)
	case reg == doorbellEQ && len(p) == 4:
		f.updateEQ(page, binary.BigEndian.Uint32(p), false)
	case reg&^7 == doorbellCQ:
		if v, ok := f.doorbell64(off, p); ok {
			f.armCQ(page, v)
		}
	case reg >= blueFlame:
		f.sendDoorbell(page, reg, off, p)
	default:
		f.count.DoorbellsIgnored++
	}
}

// doorbell64 puts an 8-byte doorbell together.
func (f *function) doorbell64(off uint64, p []byte) (v uint64, ok bool) {
	switch {
	case len(p) == 8:
		return binary.BigEndian.Uint64(p), true
	case off&4 == 0:
		f.halves[off] = binary.BigEndian.Uint32(p)
		return 0, false
	}
	hi, ok := f.halves[off-4]
	if !ok {
		f.count.DoorbellsIgnored++
		return 0, false
	}
	delete(f.halves, off-4)
	return uint64(hi)<<32 | uint64(binary.BigEndian.Uint32(p)), true
}

// sendDoorbell is a store into the send registers. The first eight bytes of a
// BlueFlame buffer are the doorbell; a driver may write the whole entry there,
// and the model, which reads the entry from memory where it lies too, has no use
// for the rest.
func (f *function) sendDoorbell(page uint32, reg, off uint64, p []byte) {
	buffer := uint64(1) << prm.AsCmdHCACap(f.caps.current(prm.CapGeneral)).LogBfRegSize() / 2
	if buffer < 8 || (reg-blueFlame)&(buffer-1) >= 8 {
		return
	}
	if v, ok := f.doorbell64(off, p); ok {
		f.ringSend(page, v)
	}
}
