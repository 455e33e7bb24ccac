package vfio

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
)

// DoorbellPage is the size in bytes of the page of registers a Doorbell rings in.
const DoorbellPage = 4096

// Doorbell tells a device about new work with two stores: a count to a word of a
// doorbell record in DMA memory, then 8 bytes to a register of a Window. Work
// stored before is visible to the device before the count, and the count before
// the register (docs/ordering.md).
//
// A caller that rings for every piece of work saves a call by asking Direct
// itself:
//
//	if d.Direct() {
//		d.Store(n, v)
//	} else {
//		d.Trap(n, v)
//	}
//
// Words are in host order, as they are to lie in memory. What Window says about
// concurrent use and about closing holds here too. None of the methods allocates.
type Doorbell struct {
	open *atomic.Uint32 // of the Window, if the register is mapped; else never
	word *uint32        // in the doorbell record
	reg  unsafe.Pointer // where the register is mapped

	w      *Window
	off    uint64
	record Mem
}

// never is what the register of a Doorbell that always traps is: not open.
var never atomic.Uint32

// Doorbell is the doorbell that counts in record, which has 4 bytes, and rings the
// register of 8 bytes at off, a multiple of 8. A register or record that is out of
// bounds panics, as a slice would.
func (w *Window) Doorbell(off uint64, record Mem) Doorbell {
	w.bounds(off, 8, 8)
	d := Doorbell{w: w, off: off, record: record, word: record.p32(0), open: &never}
	if p := w.at(off, 8, true); p != nil {
		d.reg, d.open = p, &w.open
	}
	return d
}

// Direct tells whether ringing is two store instructions now. If not, the
// register traps, or the race detector is to see the record.
func (d *Doorbell) Direct() bool { return !raceEnabled && d.open.Load() != 0 }

// Indirect is the same doorbell, never Direct: for a caller that decides each time
// how to ring (CopyWC), so that those who do not have nothing more to ask.
func (d Doorbell) Indirect() Doorbell {
	d.open = &never
	return d
}

// Store rings with two store instructions. Only for a caller that has just asked
// Direct.
func (d *Doorbell) Store(n uint32, v uint64) { mmio.Doorbell(d.word, n, d.reg, v) }

// Trap rings in any case.
//
//go:noinline
func (d *Doorbell) Trap(n uint32, v uint64) {
	mmio.ToDevice()
	d.record.Store32(0, n)
	mmio.ToDevice()
	d.w.WriteBE64(d.off, be64(v))
}

// Ring is Store or Trap, whichever it takes.
func (d *Doorbell) Ring(n uint32, v uint64) {
	if d.Direct() {
		d.Store(n, v)
	} else {
		d.Trap(n, v)
	}
}

// CopyWC writes whole lines to the register instead of its 8 bytes (BlueFlame), as
// Window.CopyWC does. The record is the caller's to write before.
func (d *Doorbell) CopyWC(src []byte) { d.w.CopyWC(d.off, src) }

// WindowOf views ordinary memory, 8-byte aligned, as a Window: registers for
// measurements without a device.
func WindowOf(name string, b []byte) *Window {
	if len(b) == 0 || len(b)%8 != 0 || uintptr(unsafe.Pointer(&b[0]))%8 != 0 {
		panic(fmt.Sprintf("vfio: WindowOf(%s): %d bytes that are empty or not aligned", name, len(b)))
	}
	w := &Window{name: name, size: uint64(len(b))}
	w.main.base = unsafe.Pointer(&b[0])
	w.main.readable.Store(w.size)
	w.main.writable.Store(w.size)
	w.open.Store(1)
	return w
}
