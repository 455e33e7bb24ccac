package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
)

// Window is a view of one region, usually BAR0. Where the region is mapped, an
// access is a bounds check and one load or store of exactly that width; elsewhere
// it traps into the Transport. Neither path allocates. Offsets are bytes and
// naturally aligned; an offset that is out of bounds or not aligned panics, as a
// slice would.
//
// It is safe for concurrent use. After the Device or its transport was closed,
// reads give all ones, writes vanish, and Err says so. An access that runs while
// the Device itself is being closed may fault: stop users first.
type Window struct {
	t      Transport
	region int
	name   string
	size   uint64
	main   span   // the largest mapped area: the fast path
	others []span // further areas, if the region is mapped in pieces
	gate   *gate  // of the mapping; may be nil
	// open is 0 once nothing may be loaded or stored any more: for those who have
	// found out before that what they store to is writable.
	open atomic.Uint32
	err  atomic.Pointer[Error]
}

// span is a mapped piece of a region. The limits are the number of bytes of it
// that may be loaded or stored: zero when it is closed, or read-only.
type span struct {
	at       uint64 // offset in the region
	base     unsafe.Pointer
	readable atomic.Uint64
	writable atomic.Uint64
}

// newWindow maps what can be mapped of a region.
func newWindow(t Transport, region int, name string) (*Window, error) {
	info, err := t.RegionInfo(region)
	if err != nil {
		return nil, err
	}
	w := &Window{t: t, region: region, name: name, size: info.Size}
	if info.Size == 0 {
		return nil, &Error{Op: fmt.Sprintf("open region %d", region), Target: name, Err: fmt.Errorf("%w: the function has no such region", ErrNotFound)}
	}
	areas, err := t.MapRegion(region)
	if err != nil {
		return nil, err
	}
	w.others = make([]span, max(len(areas)-1, 0))
	big := 0
	for i, a := range areas {
		if len(a.Bytes) > len(areas[big].Bytes) {
			big = i
		}
	}
	next := 0
	for i, a := range areas {
		if len(a.Bytes) == 0 {
			continue
		}
		if a.Offset+uint64(len(a.Bytes)) > info.Size || a.Offset%8 != 0 || len(a.Bytes)%8 != 0 || uintptr(unsafe.Pointer(&a.Bytes[0]))%8 != 0 {
			return nil, &Error{Op: fmt.Sprintf("map region %d", region), Target: name,
				Err: fmt.Errorf("%w: area %#x+%#x of a region of %#x bytes", ErrRange, a.Offset, len(a.Bytes), info.Size)}
		}
		s := &w.main
		if i != big {
			s = &w.others[next]
			next++
		}
		s.at, s.base = a.Offset, unsafe.Pointer(&a.Bytes[0])
		if info.Read {
			s.readable.Store(uint64(len(a.Bytes)))
		}
		if info.Write {
			s.writable.Store(uint64(len(a.Bytes)))
		}
		w.gate = a.gate
	}
	w.open.Store(1)
	if w.gate != nil && !w.gate.enter(w) {
		w.block() // the transport was closed since it gave the areas
	}
	return w, nil
}

// close makes every later access trap, and so answer ErrClosed.
func (w *Window) close() {
	w.block()
	if w.gate != nil {
		w.gate.leave(w)
	}
}

// block makes every later access trap.
func (w *Window) block() {
	w.open.Store(0)
	w.main.readable.Store(0)
	w.main.writable.Store(0)
	for i := range w.others {
		w.others[i].readable.Store(0)
		w.others[i].writable.Store(0)
	}
}

// Size is the size of the region in bytes.
func (w *Window) Size() uint64 { return w.size }

// Mapped tells whether an access of 8 bytes at off is a load or store rather than
// a trap.
func (w *Window) Mapped(off uint64) bool { return w.at(off, 8, false) != nil }

// Err is the first error a trap met since the Window was opened or the Device
// was reset: the reads and writes themselves have no room for one. Nil if none.
func (w *Window) Err() error {
	if e := w.err.Load(); e != nil {
		return e
	}
	return nil
}

// ReadBE32 reads a big-endian 32-bit word; all ones if the read failed.
func (w *Window) ReadBE32(off uint64) uint32 { return be32(w.Read32(off)) }

// WriteBE32 writes a big-endian 32-bit word.
func (w *Window) WriteBE32(off uint64, v uint32) { w.Write32(off, be32(v)) }

// ReadBE64 reads a big-endian 64-bit word in one access; all ones if it failed.
func (w *Window) ReadBE64(off uint64) uint64 {
	if o := off - w.main.at; off&7 == 0 && o < w.main.readable.Load() {
		return be64(mmio.Load64(unsafe.Add(w.main.base, o)))
	}
	return be64(w.slowRead64(off))
}

// WriteBE64 writes a big-endian 64-bit word in one access.
func (w *Window) WriteBE64(off uint64, v uint64) {
	if o := off - w.main.at; off&7 == 0 && o < w.main.writable.Load() {
		mmio.Store64(unsafe.Add(w.main.base, o), be64(v))
		return
	}
	w.slowWrite64(off, be64(v))
}

// Read32 reads a 32-bit word in host order; all ones if the read failed.
func (w *Window) Read32(off uint64) uint32 {
	// Areas and their limits are multiples of 8 bytes, so an aligned word that
	// begins inside ends inside. An offset below the area wraps to a huge one.
	if o := off - w.main.at; off&3 == 0 && o < w.main.readable.Load() {
		return mmio.Load32(unsafe.Add(w.main.base, o))
	}
	return w.slowRead32(off)
}

// Write32 writes a 32-bit word in host order.
func (w *Window) Write32(off uint64, v uint32) {
	if o := off - w.main.at; off&3 == 0 && o < w.main.writable.Load() {
		mmio.Store32(unsafe.Add(w.main.base, o), v)
		return
	}
	w.slowWrite32(off, v)
}

// CopyWC copies src, a multiple of 64 bytes, to off, a multiple of 64, in
// ascending stores of 8 bytes (BlueFlame). Barriers are the caller's.
func (w *Window) CopyWC(off uint64, src []byte) {
	n := uint64(len(src))
	if off%64 != 0 || n%64 != 0 {
		panic("vfio: CopyWC needs offset and size in multiples of 64")
	}
	w.bounds(off, n, 1)
	if n == 0 {
		return
	}
	if o, lim := off-w.main.at, w.main.writable.Load(); o < lim && n <= lim-o {
		mmio.Copy64(unsafe.Add(w.main.base, o), unsafe.Pointer(&src[0]), uintptr(n))
		return
	}
	for i := uint64(0); i < n; i += 8 {
		w.slowWrite64(off+i, binary.NativeEndian.Uint64(src[i:]))
	}
}

// at finds the address of n mapped bytes at off, nil if they trap.
func (w *Window) at(off, n uint64, write bool) unsafe.Pointer {
	for i := -1; i < len(w.others); i++ {
		s := &w.main
		if i >= 0 {
			s = &w.others[i]
		}
		lim := s.readable.Load()
		if write {
			lim = s.writable.Load()
		}
		if o := off - s.at; o < lim && n <= lim-o {
			return unsafe.Add(s.base, o)
		}
	}
	return nil
}

// bounds panics as a slice would.
func (w *Window) bounds(off, n, align uint64) {
	if off >= w.size && n > 0 || n > w.size-off {
		panic(fmt.Sprintf("vfio: %s: access to %#x+%d of region %d, which has %#x bytes", w.name, off, n, w.region, w.size))
	}
	if off%align != 0 {
		panic(fmt.Sprintf("vfio: %s: access of %d bytes to %#x of region %d is not aligned", w.name, n, off, w.region))
	}
}

// scratch holds the bytes of a trap: they cross an interface, so on the stack
// the compiler would not leave them.
var scratch = sync.Pool{New: func() any { return new([8]byte) }}

//go:noinline
func (w *Window) slowRead32(off uint64) uint32 {
	w.bounds(off, 4, 4)
	if p := w.at(off, 4, false); p != nil {
		return mmio.Load32(p)
	}
	b := scratch.Get().(*[8]byte)
	v := ^uint32(0)
	if err := w.t.ReadRegion(w.region, off, b[:4]); err == nil {
		v = binary.NativeEndian.Uint32(b[:])
	} else {
		w.fail("read", off, 4, err)
	}
	scratch.Put(b)
	return v
}

//go:noinline
func (w *Window) slowRead64(off uint64) uint64 {
	w.bounds(off, 8, 8)
	if p := w.at(off, 8, false); p != nil {
		return mmio.Load64(p)
	}
	b := scratch.Get().(*[8]byte)
	v := ^uint64(0)
	if err := w.t.ReadRegion(w.region, off, b[:]); err == nil {
		v = binary.NativeEndian.Uint64(b[:])
	} else {
		w.fail("read", off, 8, err)
	}
	scratch.Put(b)
	return v
}

//go:noinline
func (w *Window) slowWrite32(off uint64, v uint32) {
	w.bounds(off, 4, 4)
	if p := w.at(off, 4, true); p != nil {
		mmio.Store32(p, v)
		return
	}
	b := scratch.Get().(*[8]byte)
	binary.NativeEndian.PutUint32(b[:], v)
	if err := w.t.WriteRegion(w.region, off, b[:4]); err != nil {
		w.fail("write", off, 4, err)
	}
	scratch.Put(b)
}

//go:noinline
func (w *Window) slowWrite64(off uint64, v uint64) {
	w.bounds(off, 8, 8)
	if p := w.at(off, 8, true); p != nil {
		mmio.Store64(p, v)
		return
	}
	b := scratch.Get().(*[8]byte)
	binary.NativeEndian.PutUint64(b[:], v)
	if err := w.t.WriteRegion(w.region, off, b[:]); err != nil {
		w.fail("write", off, 8, err)
	}
	scratch.Put(b)
}

// fail keeps the first error.
func (w *Window) fail(verb string, off uint64, n int, err error) {
	if w.err.Load() != nil {
		return
	}
	var e *Error
	if !errors.As(err, &e) { // the transport's error names target and operation, as a rule
		e = &Error{Op: fmt.Sprintf("%s %d bytes at %#x of region %d", verb, n, off, w.region), Target: w.name, Err: err}
	}
	w.err.CompareAndSwap(nil, e)
}
