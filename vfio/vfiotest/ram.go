package vfiotest

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// RAMOptions shape a RAM device. The zero value is good.
type RAMOptions struct {
	Name string // "ram" if empty
	BAR0 int    // size in bytes, a multiple of 4096; 0 means 64 KiB
	// Vectors is the number of MSI-X vectors; 0 means 8.
	Vectors int
	// Mapped are the areas of BAR0 that MapRegion maps; the rest traps.
	Mapped []vfio.Span
	// VendorID and DeviceID stand in configuration space; 0 means 15b3:1017.
	VendorID, DeviceID uint16
	// Mapper is the I/O address space; nil makes one of the device's own, which
	// dies with it. One given here is shared, and stays open.
	Mapper *Mapper
	// OnRead sees a trapped read after memory was copied to p, and may change p.
	// OnWrite sees a trapped write after memory was changed. OnReset sees a reset
	// after memory was cleared. They run on the caller's goroutine, without locks.
	OnRead  func(region int, off uint64, p []byte)
	OnWrite func(region int, off uint64, p []byte)
	OnReset func()
}

// RAM is a device whose BAR0 is memory, with a PCI configuration header and
// MSI-X vectors that a test raises. It is a vfio.Transport, in this process.
type RAM struct {
	o      RAMOptions
	mapper *Mapper
	own    bool
	bar    vfio.Mem
	config vfio.Mem

	mu      sync.RWMutex
	closed  bool
	vectors []*vfio.Vector
	resets  int
}

// NewRAM makes a RAM device.
func NewRAM(o RAMOptions) *RAM {
	if o.Name == "" {
		o.Name = "ram"
	}
	if o.BAR0 == 0 {
		o.BAR0 = 64 << 10
	}
	if o.Vectors == 0 {
		o.Vectors = 8
	}
	if o.VendorID == 0 {
		o.VendorID, o.DeviceID = 0x15b3, 0x1017
	}
	r := &RAM{
		o: o, mapper: o.Mapper, bar: vfio.MemOf(make([]byte, o.BAR0)), config: vfio.MemOf(make([]byte, 4096)),
		vectors: make([]*vfio.Vector, o.Vectors),
	}
	if r.mapper == nil {
		r.mapper, r.own = NewMapper(vfio.DMALimits{}), true
	}
	r.clear()
	return r
}

// clear puts memory and configuration space into the state after reset.
func (r *RAM) clear() {
	for i := 0; i < r.bar.Len(); i += 8 {
		r.bar.Store64(i, 0)
	}
	r.config.Store32(0, hostLE32(uint32(r.o.VendorID)|uint32(r.o.DeviceID)<<16))
	r.config.Store32(4, 0)
}

// BAR is the memory behind BAR0.
func (r *RAM) BAR() vfio.Mem { return r.bar }

// Config is configuration space, 4096 bytes.
func (r *RAM) Config() vfio.Mem { return r.config }

// Memory is the I/O address space the device is attached to.
func (r *RAM) Memory() *Mapper { return r.mapper }

// Resets is the number of resets so far.
func (r *RAM) Resets() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.resets
}

// Raise signals MSI-X vector i, and tells whether one is attached.
func (r *RAM) Raise(i int) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed || r.vectors[i] == nil {
		return false
	}
	r.vectors[i].Signal()
	return true
}

func (r *RAM) fail(op string, err error) error {
	return &vfio.Error{Op: op, Target: r.o.Name, Err: err}
}

// Info implements vfio.Transport.
func (r *RAM) Info() (vfio.DeviceInfo, error) {
	if r.isClosed() {
		return vfio.DeviceInfo{}, r.fail("query device", vfio.ErrClosed)
	}
	return vfio.DeviceInfo{Name: r.o.Name, Backend: "sim", Regions: vfio.NumRegions, IRQs: vfio.NumIRQs, CanReset: true}, nil
}

func (r *RAM) isClosed() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.closed
}

// RegionInfo implements vfio.Transport.
func (r *RAM) RegionInfo(index int) (vfio.RegionInfo, error) {
	op := fmt.Sprintf("query region %d", index)
	switch {
	case r.isClosed():
		return vfio.RegionInfo{}, r.fail(op, vfio.ErrClosed)
	case index < 0 || index >= vfio.NumRegions:
		return vfio.RegionInfo{}, r.fail(op, vfio.ErrRange)
	case index == vfio.RegionBAR0:
		return vfio.RegionInfo{Size: uint64(r.bar.Len()), Read: true, Write: true, Mappable: r.o.Mapped}, nil
	case index == vfio.RegionConfig:
		return vfio.RegionInfo{Size: uint64(r.config.Len()), Read: true, Write: true}, nil
	}
	return vfio.RegionInfo{}, nil
}

// mem finds the memory of an access and checks the access.
func (r *RAM) mem(verb string, index int, off uint64, n int) (vfio.Mem, error) {
	op := func() string { return fmt.Sprintf("%s %d bytes at %#x of region %d", verb, n, off, index) }
	m := r.config
	switch {
	case r.isClosed():
		return vfio.Mem{}, r.fail(op(), vfio.ErrClosed)
	case index < 0 || index >= vfio.NumRegions:
		return vfio.Mem{}, r.fail(op(), vfio.ErrRange)
	case index == vfio.RegionBAR0:
		m = r.bar
		if n != 1 && n != 2 && n != 4 && n != 8 || off%uint64(n) != 0 {
			return vfio.Mem{}, r.fail(op(), fmt.Errorf("%w: a BAR takes aligned accesses of 1, 2, 4 or 8 bytes", vfio.ErrRange))
		}
	case index != vfio.RegionConfig:
		return vfio.Mem{}, r.fail(op(), vfio.ErrNotFound)
	}
	if size := uint64(m.Len()); off > size || uint64(n) > size-off {
		return vfio.Mem{}, r.fail(op(), vfio.ErrRange)
	}
	return m, nil
}

// ReadRegion implements vfio.Transport.
func (r *RAM) ReadRegion(index int, off uint64, p []byte) error {
	m, err := r.mem("read", index, off, len(p))
	if err != nil {
		return err
	}
	// Word by word, as the mapped path does it: what is raced on stays defined.
	for i := range p {
		at := int(off) + i
		if i == 0 || at%4 == 0 {
			var w [4]byte
			binary.NativeEndian.PutUint32(w[:], m.Load32(at&^3))
			copy(p[i:], w[at&3:])
		}
	}
	if r.o.OnRead != nil {
		r.o.OnRead(index, off, p)
	}
	return nil
}

// WriteRegion implements vfio.Transport.
func (r *RAM) WriteRegion(index int, off uint64, p []byte) error {
	m, err := r.mem("write", index, off, len(p))
	if err != nil {
		return err
	}
	for i := 0; i < len(p); {
		at := int(off) + i
		n := min(len(p)-i, 4-at&3)
		for {
			old := m.Load32(at &^ 3)
			var w [4]byte
			binary.NativeEndian.PutUint32(w[:], old)
			copy(w[at&3:], p[i:i+n])
			if m.CompareAndSwap32(at&^3, old, binary.NativeEndian.Uint32(w[:])) {
				break
			}
		}
		i += n
	}
	if r.o.OnWrite != nil {
		r.o.OnWrite(index, off, p)
	}
	return nil
}

// MapRegion implements vfio.Transport.
func (r *RAM) MapRegion(index int) ([]vfio.Area, error) {
	if _, err := r.RegionInfo(index); err != nil {
		return nil, err
	}
	if index != vfio.RegionBAR0 {
		return nil, nil
	}
	var areas []vfio.Area
	for _, s := range r.o.Mapped {
		areas = append(areas, vfio.Area{Offset: s.Offset, Bytes: r.bar.Bytes()[s.Offset : s.Offset+s.Size]})
	}
	return areas, nil
}

// IRQInfo implements vfio.Transport.
func (r *RAM) IRQInfo(index int) (vfio.IRQInfo, error) {
	op := fmt.Sprintf("query interrupt index %d", index)
	switch {
	case r.isClosed():
		return vfio.IRQInfo{}, r.fail(op, vfio.ErrClosed)
	case index < 0 || index >= vfio.NumIRQs:
		return vfio.IRQInfo{}, r.fail(op, vfio.ErrRange)
	case index == vfio.IRQMSIX:
		return vfio.IRQInfo{Count: r.o.Vectors, EventFD: true, NoResize: true}, nil
	}
	return vfio.IRQInfo{}, nil
}

// NewVector implements vfio.Transport.
func (r *RAM) NewVector() (*vfio.Vector, error) {
	if r.isClosed() {
		return nil, r.fail("make vector", vfio.ErrClosed)
	}
	return vfio.NewChanVector(), nil
}

// SetIRQs implements vfio.Transport.
func (r *RAM) SetIRQs(index, start int, vectors []*vfio.Vector) error {
	op := fmt.Sprintf("set interrupts %d…%d of index %d", start, start+len(vectors)-1, index)
	info, err := r.IRQInfo(index)
	if err != nil {
		return err
	}
	if start < 0 || start > info.Count || len(vectors) > info.Count-start {
		return r.fail(op, fmt.Errorf("%w: there are %d", vfio.ErrRange, info.Count))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return r.fail(op, vfio.ErrClosed)
	}
	if len(vectors) == 0 && index == vfio.IRQMSIX {
		clear(r.vectors)
		return nil
	}
	copy(r.vectors[start:], vectors)
	return nil
}

// DMA implements vfio.Transport.
func (r *RAM) DMA() vfio.Mapper { return r.mapper }

// Reset implements vfio.Transport.
func (r *RAM) Reset() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return r.fail("reset", vfio.ErrClosed)
	}
	r.resets++
	r.clear()
	r.mu.Unlock()
	if r.o.OnReset != nil {
		r.o.OnReset()
	}
	return nil
}

// Close implements vfio.Transport.
func (r *RAM) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	clear(r.vectors)
	if r.own {
		r.mapper.Close()
	}
	return nil
}

// hostLE32 is the host word whose bytes are v's, lowest first.
func hostLE32(v uint32) uint32 {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}
