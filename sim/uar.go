package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// firstUAR is the first index that ALLOC_UAR hands out, as on the golden
// ConnectX-4; the pages below hold the initialization segment and MSI-X.
const firstUAR = 0x10

// Offsets of doorbells in a UAR page (wqe-cqe-eqe.md 6.11).
const (
	doorbellEQArm = 0x40
	doorbellEQ    = 0x48
)

// uar is an allocated UAR page.
type uar struct {
	uid uint16
	eqs int // event queues that ring here
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
	case u.eqs > 0:
		return syndUARBusy
	}
	f.uars.remove(n)
	return syndOK
}

// doorbell is a store into a UAR page.
func (f *function) doorbell(off uint64, p []byte) {
	page := uint32(off >> f.uarShift())
	if _, ok := f.uars.get(page); !ok || f.fw.phase != phaseInit || f.fw.dead {
		f.count.DoorbellsIgnored++
		return
	}
	switch reg := off & (1<<f.uarShift() - 1); {
	case reg == doorbellEQArm && len(p) == 4:
		f.updateEQ(page, binary.BigEndian.Uint32(p), true)
	case reg == doorbellEQ && len(p) == 4:
		f.updateEQ(page, binary.BigEndian.Uint32(p), false)
	default:
		f.count.DoorbellsIgnored++
	}
}
