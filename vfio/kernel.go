package vfio

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
	"golang.org/x/sys/unix"
)

// kernelDevice is a function of kernel VFIO, however its I/O address space came
// to be: everything here is a verb on the device's file.
type kernelDevice struct {
	sys     sys
	fd      int
	info    DeviceInfo
	regions [NumRegions]kernelRegion
	irqs    [NumIRQs]IRQInfo
	mapper  Mapper
	detach  func() error // gives the group or the iommufd up, after fd is closed
	// groups are the open files of IOMMU groups by number, for a hot reset; nil
	// where there are none.
	groups func() map[int]int

	mu     sync.RWMutex // held for reading by every verb, for writing by Close
	closed bool

	own   sync.Mutex // guards what follows
	areas [NumRegions][]Area
	mmap  [NumRegions]bool
	armed [NumIRQs]bool // the index has seen SET_IRQS since it was last disabled
}

type kernelRegion struct {
	RegionInfo
	at int64 // offset of the region in the device's file
}

func (d *kernelDevice) fail(op string, err error, remedy string) error {
	if errors.Is(err, unix.ENODEV) && remedy == "" {
		err = fmt.Errorf("%w: %w", ErrGone, err)
		remedy = "the function was removed, or its driver unbound, under this process"
	}
	if remedy == "" {
		remedy = kernelRemedy(err)
	}
	return &Error{Op: op, Target: d.info.Name, Err: err, Remedy: remedy}
}

// enter is the way into every method: it keeps Close out until leave is called.
func (d *kernelDevice) enter() bool {
	d.mu.RLock()
	if d.closed {
		d.mu.RUnlock()
		return false
	}
	return true
}

func (d *kernelDevice) leave() { d.mu.RUnlock() }

// Info implements Transport.
func (d *kernelDevice) Info() (DeviceInfo, error) {
	if !d.enter() {
		return DeviceInfo{}, d.fail("query function", ErrClosed, "")
	}
	defer d.leave()
	return d.info, nil
}

// RegionInfo implements Transport.
func (d *kernelDevice) RegionInfo(index int) (RegionInfo, error) {
	op := func() string { return fmt.Sprintf("query region %d", index) }
	if !d.enter() {
		return RegionInfo{}, d.fail(op(), ErrClosed, "")
	}
	defer d.leave()
	if index < 0 || index >= NumRegions {
		return RegionInfo{}, d.fail(op(), ErrRange, "")
	}
	r := d.regions[index].RegionInfo
	r.Mappable = append([]Span(nil), r.Mappable...)
	return r, nil
}

// checkAccess refuses what the contract of ReadRegion refuses.
func checkAccess(r RegionInfo, index int, off uint64, n int, write bool) error {
	switch {
	case r.Size == 0:
		return fmt.Errorf("%w: the function has no such region", ErrNotFound)
	case off > r.Size || uint64(n) > r.Size-off:
		return fmt.Errorf("%w: the region has %#x bytes", ErrRange, r.Size)
	case index <= RegionBAR5 && (n != 1 && n != 2 && n != 4 && n != 8 || off%uint64(n) != 0):
		return fmt.Errorf("%w: a BAR takes aligned accesses of 1, 2, 4 or 8 bytes", ErrRange)
	case write && !r.Write, !write && !r.Read:
		return ErrNotSupported
	}
	return nil
}

// ReadRegion implements Transport.
func (d *kernelDevice) ReadRegion(index int, off uint64, p []byte) error {
	return d.access(index, off, p, false)
}

// WriteRegion implements Transport.
func (d *kernelDevice) WriteRegion(index int, off uint64, p []byte) error {
	return d.access(index, off, p, true)
}

func (d *kernelDevice) access(index int, off uint64, p []byte, write bool) error {
	verb, call := "read", d.sys.pread
	if write {
		verb, call = "write", d.sys.pwrite
	}
	op := func() string { return fmt.Sprintf("%s %d bytes at %#x of region %d", verb, len(p), off, index) }
	if !d.enter() {
		return d.fail(op(), ErrClosed, "")
	}
	defer d.leave()
	if index < 0 || index >= NumRegions {
		return d.fail(op(), ErrRange, "")
	}
	r := &d.regions[index]
	if err := checkAccess(r.RegionInfo, index, off, len(p), write); err != nil {
		return d.fail(op(), err, "")
	}
	if err := whole(call, d.fd, p, r.at+int64(off), index == RegionConfig || index == RegionROM); err != nil {
		remedy := ""
		switch {
		case errors.Is(err, unix.EIO):
			remedy = "memory decoding may be off, or the function in low power: set bus master, see dmesg"
		case errors.Is(err, io.ErrUnexpectedEOF):
			remedy = "the kernel moved only a part of it: see dmesg; reset the function"
		}
		return d.fail(op(), err, remedy)
	}
	return nil
}

// whole moves all of p with calls that may move less. On a BAR each access is one
// transaction: there the rest is not moved by itself, since half of a register or
// doorbell is something else than a doorbell.
func whole(call func(fd int, p []byte, off int64) (int, error), fd int, p []byte, at int64, pieces bool) error {
	for moved, size := 0, len(p); len(p) > 0; {
		n, err := call(fd, p, at)
		if err != nil {
			return err
		}
		if moved += n; n == 0 || moved < size && !pieces {
			return fmt.Errorf("%d of %d bytes: %w", moved, size, io.ErrUnexpectedEOF)
		}
		p, at = p[n:], at+int64(n)
	}
	return nil
}

// MapRegion implements Transport.
func (d *kernelDevice) MapRegion(index int) ([]Area, error) {
	op := func() string { return fmt.Sprintf("map region %d", index) }
	if !d.enter() {
		return nil, d.fail(op(), ErrClosed, "")
	}
	defer d.leave()
	if index < 0 || index >= NumRegions {
		return nil, d.fail(op(), ErrRange, "")
	}
	d.own.Lock()
	defer d.own.Unlock()
	if !d.mmap[index] {
		areas, err := d.mapAreas(d.regions[index], new(gate))
		if err != nil {
			return nil, d.fail(op(), err, "")
		}
		d.areas[index], d.mmap[index] = areas, true
	}
	return append([]Area(nil), d.areas[index]...), nil
}

// mapAreas maps all areas of a region or none.
func (d *kernelDevice) mapAreas(r kernelRegion, g *gate) ([]Area, error) {
	prot := 0
	if r.Read {
		prot |= unix.PROT_READ
	}
	if r.Write {
		prot |= unix.PROT_WRITE
	}
	var areas []Area
	for _, s := range r.Mappable {
		b, err := d.sys.mmap(d.fd, r.at+int64(s.Offset), int(s.Size), prot)
		if err != nil {
			err = fmt.Errorf("area %#x+%#x: %w", s.Offset, s.Size, err)
			return nil, errors.Join(err, d.unmapAreas(areas))
		}
		areas = append(areas, Area{Offset: s.Offset, Bytes: b, gate: g})
	}
	return areas, nil
}

// unmapAreas takes the function out of the areas of one region. Where a Window
// was not closed before, ordinary memory takes its place, since an access may be
// on its way, and goes when the Windows are garbage.
func (d *kernelDevice) unmapAreas(areas []Area) error {
	busy := len(areas) > 0 && areas[0].gate.close()
	var errs []error
	for _, a := range areas {
		remove := d.sys.munmap
		if busy {
			remove = d.sys.blank
		}
		if err := remove(a.Bytes); err != nil {
			errs = append(errs, d.fail(fmt.Sprintf("unmap area %#x+%#x", a.Offset, len(a.Bytes)), err, ""))
			continue
		}
		if busy {
			s := d.sys
			// Ordinary memory by now: unmapping it cannot fail, and is nobody's wait.
			runtime.AddCleanup(a.gate, func(b []byte) { _ = s.munmap(b) }, a.Bytes)
		}
	}
	return errors.Join(errs...)
}

// IRQInfo implements Transport.
func (d *kernelDevice) IRQInfo(index int) (IRQInfo, error) {
	op := func() string { return fmt.Sprintf("query interrupt index %d", index) }
	if !d.enter() {
		return IRQInfo{}, d.fail(op(), ErrClosed, "")
	}
	defer d.leave()
	if index < 0 || index >= NumIRQs {
		return IRQInfo{}, d.fail(op(), ErrRange, "")
	}
	return d.irqs[index], nil
}

// NewVector implements Transport: an eventfd.
func (d *kernelDevice) NewVector() (*Vector, error) {
	if !d.enter() {
		return nil, d.fail("make vector", ErrClosed, "")
	}
	defer d.leave()
	return NewEventFDVector()
}

// SetIRQs implements Transport.
func (d *kernelDevice) SetIRQs(index, start int, vectors []*Vector) error {
	op := fmt.Sprintf("attach %d interrupts from %d of index %d (VFIO_DEVICE_SET_IRQS)", len(vectors), start, index)
	if len(vectors) == 0 {
		op = fmt.Sprintf("disable interrupt index %d (VFIO_DEVICE_SET_IRQS)", index)
	}
	if !d.enter() {
		return d.fail(op, ErrClosed, "")
	}
	defer d.leave()
	if index < 0 || index >= NumIRQs {
		return d.fail(op, ErrRange, "")
	}
	if n := d.irqs[index].Count; start < 0 || start > n || len(vectors) > n-start {
		return d.fail(op, fmt.Errorf("%w: the function has %d", ErrRange, n), "")
	}
	fds := make([]int32, len(vectors))
	for i, v := range vectors {
		fds[i] = -1
		if v == nil {
			continue
		}
		if fds[i] = int32(v.FD()); fds[i] < 0 {
			return d.fail(op, fmt.Errorf("%w: vector %d has no eventfd, or is closed", ErrNotSupported, start+i), "")
		}
	}
	d.own.Lock()
	defer d.own.Unlock()
	if len(fds) == 0 && !d.armed[index] {
		return nil // the kernel refuses to disable what is not enabled
	}
	if err := d.setIRQs(index, start, fds); err != nil {
		remedy := ""
		switch {
		case errors.Is(err, unix.EINVAL) && d.armed[index]:
			remedy = "vectors cannot be added while others are attached: detach all first"
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM):
			err = fmt.Errorf("%w: %w", ErrNoSpace, err)
			fallthrough
		case errors.Is(err, ErrNoSpace):
			remedy = "the host has no interrupt vectors left: ask for fewer"
		}
		return d.fail(op, err, remedy)
	}
	d.armed[index] = len(fds) > 0
	return nil
}

// setIRQs makes the call; without fds it disables the index.
func (d *kernelDevice) setIRQs(index, start int, fds []int32) error {
	words := make([]uint32, abi.SizeIrq_set/4+len(fds))
	x := (*abi.Irq_set)(unsafe.Pointer(&words[0]))
	*x = abi.Irq_set{
		Argsz: uint32(4 * len(words)), Flags: abi.VFIO_IRQ_SET_DATA_EVENTFD | abi.VFIO_IRQ_SET_ACTION_TRIGGER,
		Index: uint32(index), Start: uint32(start), Count: uint32(len(fds)),
	}
	if len(fds) == 0 {
		x.Flags = abi.VFIO_IRQ_SET_DATA_NONE | abi.VFIO_IRQ_SET_ACTION_TRIGGER
		x.Start = 0
	}
	for i, fd := range fds {
		words[abi.SizeIrq_set/4+i] = uint32(fd)
	}
	n, err := d.sys.ioctl(d.fd, abi.VFIO_DEVICE_SET_IRQS, unsafe.Pointer(x))
	if err == nil && n > 0 {
		// Linux vfio_pci_intrs.c, vfio_msi_enable: fewer could be had, none were taken.
		err = fmt.Errorf("%w: the host has only %d vectors", ErrNoSpace, n)
	}
	return err
}

// DMA implements Transport.
func (d *kernelDevice) DMA() Mapper { return d.mapper }

// Reset implements Transport. The kernel saves and restores configuration space
// around it, so that BARs, interrupts and bus mastering stay.
func (d *kernelDevice) Reset() error {
	const op = "reset function (VFIO_DEVICE_RESET)"
	if !d.enter() {
		return d.fail(op, ErrClosed, "")
	}
	defer d.leave()
	if !d.info.CanReset {
		return d.fail(op, fmt.Errorf("%w: the kernel knows no way to reset this function alone", ErrNotSupported), "")
	}
	if _, err := d.sys.ioctlInt(d.fd, abi.VFIO_DEVICE_RESET, 0); err != nil {
		return d.fail(op, err, "")
	}
	return nil
}

// Close implements Transport. All steps are taken, whatever fails.
func (d *kernelDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.own.Lock()
	defer d.own.Unlock()
	var errs []error
	for i, armed := range d.armed {
		if !armed {
			continue
		}
		// A function that was removed has no interrupts left to disable.
		if err := d.setIRQs(i, 0, nil); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, d.fail(fmt.Sprintf("disable interrupt index %d", i), err, ""))
		}
	}
	for i := range d.areas {
		errs = append(errs, d.unmapAreas(d.areas[i]))
		d.areas[i] = nil
	}
	if err := d.sys.close(d.fd); err != nil {
		errs = append(errs, d.fail("close function", err, ""))
	}
	return errors.Join(append(errs, d.detach())...)
}
