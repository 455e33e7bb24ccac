package vfio

import (
	"fmt"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
)

// DoorbellPage is the size in bytes of the page of registers a Doorbell rings in.
const DoorbellPage = 4096

// Doorbell tells a device about new work with two stores: a count to a word of a
// doorbell record in DMA memory, then 8 bytes to a register in a page of a Window.
// Work stored before is visible to the device before the count, and the count
// before the register (docs/ordering.md).
//
// A caller that rings for every piece of work saves a call by asking Direct
// itself:
//
//	if d.Direct() {
//		d.Store(n, at, v)
//	} else {
//		d.Trap(n, at, v)
//	}
//
// Words are in host order, as they are to lie in memory; at is a multiple of 8
// below DoorbellPage: other bits are ignored. What Window says about concurrent
// use and about closing holds here too. None of the methods allocates.
type Doorbell struct {
	base unsafe.Pointer // of the page, where it is mapped
	area *span          // what it lies in
	need uint64         // how much of area must be writable for that
	word *uint32        // in the doorbell record

	w      *Window
	off    uint64
	record Mem
}

// Doorbell is the doorbell that counts in record, which has 4 bytes, and rings in
// the page at off, a multiple of 8. A page or record that is out of bounds panics,
// as a slice would.
func (w *Window) Doorbell(off uint64, record Mem) Doorbell {
	w.bounds(off, DoorbellPage, 8)
	d := Doorbell{w: w, off: off, record: record, word: record.p32(0), area: &w.main, need: ^uint64(0)}
	for i := -1; i < len(w.others); i++ {
		s := &w.main
		if i >= 0 {
			s = &w.others[i]
		}
		if o, lim := off-s.at, s.writable.Load(); o < lim && DoorbellPage <= lim-o {
			d.area, d.base, d.need = s, unsafe.Add(s.base, o), o+DoorbellPage
		}
	}
	return d
}

// Direct tells whether ringing is two store instructions now. If not, the
// register traps, or the race detector is to see the record.
func (d *Doorbell) Direct() bool { return !raceEnabled && d.area.writable.Load() >= d.need }

// Indirect is the same doorbell, never Direct: for a caller that decides each time
// how to ring (CopyWC), so that those who do not have nothing more to ask.
func (d Doorbell) Indirect() Doorbell {
	d.need = ^uint64(0)
	return d
}

// Store rings with two store instructions. Only for a caller that has just asked
// Direct.
func (d *Doorbell) Store(n uint32, at, v uint64) {
	mmio.Doorbell(d.word, n, unsafe.Add(d.base, at&(DoorbellPage-8)), v)
}

// Trap rings in any case.
//
//go:noinline
func (d *Doorbell) Trap(n uint32, at, v uint64) {
	mmio.ToDevice()
	d.record.Store32(0, n)
	mmio.ToDevice()
	d.w.WriteBE64(d.off+at&(DoorbellPage-8), be64(v))
}

// Ring is Store or Trap, whichever it takes.
func (d *Doorbell) Ring(n uint32, at, v uint64) {
	if d.Direct() {
		d.Store(n, at, v)
	} else {
		d.Trap(n, at, v)
	}
}

// CopyWC writes whole lines to the register at at instead of its first 8 bytes
// (BlueFlame), as Window.CopyWC does. The record is the caller's to write before.
func (d *Doorbell) CopyWC(at uint64, src []byte) { d.w.CopyWC(d.off+at, src) }

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
	return w
}
