package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"golang.org/x/sys/unix"
)

// OpenSysfs opens the function bdf for reading, whatever driver owns it: BAR0 and
// configuration space through the files sysfs has for them. It reads what the
// driver in charge also sees, and changes nothing. Writes, DMA, interrupts and
// reset answer ErrNotSupported. Without root only the first 64 bytes of
// configuration space can be read, and BAR0 not at all (os.ErrPermission). Reads
// of BAR0 answer ErrGone while the function sleeps or decodes no memory.
func OpenSysfs(bdf string, o KernelOptions) (Transport, error) {
	o = o.withDefaults()
	bdf, err := fullBDF(bdf)
	if err != nil {
		return nil, err
	}
	d := &sysfsDevice{sys: o.sys, name: bdf, config: -1, power: filepath.Join(o.devicePath(bdf), "power_state")}
	path := filepath.Join(o.devicePath(bdf), "resource0")
	info, err := os.Stat(path)
	if err != nil {
		if _, serr := os.Stat(o.devicePath(bdf)); errors.Is(serr, fs.ErrNotExist) {
			return nil, d.fail("open", fmt.Errorf("%w: no such PCI function", ErrNotFound), "mlxvfio list shows the functions there are")
		}
		return nil, d.fail("open BAR0", err, "the function has no BAR0, or it is not assigned: see dmesg")
	}
	if info.Size() == 0 {
		return nil, d.fail("open BAR0", ErrNotFound, "BAR0 is not assigned: see dmesg")
	}
	if d.bar, err = mapFile(o.sys, path, int(info.Size())); err != nil {
		remedy := ""
		switch {
		case errors.Is(err, unix.EACCES):
			remedy = "run as root"
		case errors.Is(err, unix.EPERM):
			remedy = "kernel lockdown (secure boot) forbids it: bind the function to vfio-pci and use kernel VFIO"
		case errors.Is(err, unix.EINVAL):
			// Linux pci-sysfs.c, pci_mmap_resource, under CONFIG_IO_STRICT_DEVMEM.
			remedy = "the kernel keeps BARs that a driver has claimed to itself: boot with iomem=relaxed, or bind the function to vfio-pci and use kernel VFIO"
		}
		return nil, d.fail("map "+path, err, remedy)
	}
	if d.config, err = o.sys.open(filepath.Join(o.devicePath(bdf), "config"), unix.O_RDONLY); err != nil {
		return nil, errors.Join(d.fail("open configuration space", err, ""), o.sys.munmap(d.bar))
	}
	return d, nil
}

// mapFile maps size bytes of a file for reading; the file need not stay open.
func mapFile(s sys, path string, size int) ([]byte, error) {
	fd, err := s.open(path, unix.O_RDONLY|unix.O_SYNC)
	if err != nil {
		return nil, err
	}
	b, err := s.mmap(fd, 0, size, unix.PROT_READ)
	if cerr := s.close(fd); err == nil && cerr != nil {
		return nil, errors.Join(cerr, s.munmap(b))
	}
	return b, err
}

// sysfsDevice is a function seen through sysfs. BAR0 is mapped, but accesses
// trap: a store to memory mapped for reading would end the process, and nothing
// here is in a hurry.
type sysfsDevice struct {
	sys    sys
	name   string
	bar    []byte
	config int
	power  string // the file with the power state

	mu     sync.RWMutex
	closed bool
}

func (d *sysfsDevice) fail(op string, err error, remedy string) error {
	return &Error{Op: op, Target: d.name, Err: err, Remedy: remedy}
}

// refuse is the answer to every verb that is not reading.
func (d *sysfsDevice) refuse(op string) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return d.fail(op, ErrClosed, "")
	}
	return d.fail(op, fmt.Errorf("%w through sysfs, which only reads", ErrNotSupported), "mlxvfio bind "+d.name+", then name it without sysfs:")
}

// check is the beginning of every reading verb; mu is held.
func (d *sysfsDevice) check(op string, index, most int) error {
	if d.closed {
		return d.fail(op, ErrClosed, "")
	}
	if index < 0 || index >= most {
		return d.fail(op, ErrRange, "")
	}
	return nil
}

// Info implements Transport.
func (d *sysfsDevice) Info() (DeviceInfo, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check("query function", 0, 1); err != nil {
		return DeviceInfo{}, err
	}
	return DeviceInfo{Name: d.name, Backend: "sysfs", Regions: NumRegions, IRQs: NumIRQs}, nil
}

// RegionInfo implements Transport.
func (d *sysfsDevice) RegionInfo(index int) (RegionInfo, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check(fmt.Sprintf("query region %d", index), index, NumRegions); err != nil {
		return RegionInfo{}, err
	}
	switch index {
	case RegionBAR0:
		return RegionInfo{Size: uint64(len(d.bar)), Read: true}, nil
	case RegionConfig:
		return RegionInfo{Size: configSize, Read: true}, nil
	}
	return RegionInfo{}, nil
}

// configSize is extended configuration space; what a reader may not see, or the
// function does not have, reads short.
const configSize = 4096

// ReadRegion implements Transport.
func (d *sysfsDevice) ReadRegion(index int, off uint64, p []byte) error {
	op := fmt.Sprintf("read %d bytes at %#x of region %d", len(p), off, index)
	info, err := d.RegionInfo(index)
	if err != nil {
		return err
	}
	if err := checkAccess(info, index, off, len(p), false); err != nil {
		return d.fail(op, err, "")
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return d.fail(op, ErrClosed, "")
	}
	if index == RegionConfig {
		n, err := d.sys.pread(d.config, p, int64(off))
		if err == nil && n < len(p) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return d.fail(op, err, "only root may read configuration space beyond byte 63")
		}
		return nil
	}
	if err := d.awake(); err != nil {
		return d.fail(op, err, "the function answers while a driver uses it; mlxvfio info "+d.name+" wakes one that is bound to vfio-pci")
	}
	// The device sees loads of 4 or 8 bytes only, as from a driver.
	at := unsafe.Pointer(&d.bar[off])
	if len(p) == 8 {
		binary.NativeEndian.PutUint64(p, mmio.Load64(at))
		return nil
	}
	var w [4]byte
	binary.NativeEndian.PutUint32(w[:], mmio.Load32(unsafe.Pointer(&d.bar[off&^3])))
	copy(p, w[off&3:])
	return nil
}

// awake answers an error if the function does not decode loads: what they read
// then (all ones, or zeros where a bridge or an emulator answers) is not the
// device's. vfio-pci leaves a function that nobody uses in D3hot. mu is held.
func (d *sysfsDevice) awake() error {
	if state, err := os.ReadFile(d.power); err == nil { // no such file before Linux 5.12
		if s := strings.TrimSpace(string(state)); s != "D0" && s != "unknown" {
			return fmt.Errorf("%w: it is asleep in power state %s", ErrGone, s)
		}
	}
	var command [2]byte
	n, err := d.sys.pread(d.config, command[:], configCommand)
	if err == nil && n < len(command) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint16(command[:])&commandMemory == 0 {
		return fmt.Errorf("%w: its memory decoding is off, no driver has enabled it", ErrGone)
	}
	return nil
}

// WriteRegion implements Transport: it refuses.
func (d *sysfsDevice) WriteRegion(index int, off uint64, p []byte) error {
	return d.refuse(fmt.Sprintf("write %d bytes at %#x of region %d", len(p), off, index))
}

// MapRegion implements Transport: nothing is mapped for the caller.
func (d *sysfsDevice) MapRegion(index int) ([]Area, error) {
	_, err := d.RegionInfo(index)
	return nil, err
}

// IRQInfo implements Transport: there are none.
func (d *sysfsDevice) IRQInfo(index int) (IRQInfo, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return IRQInfo{}, d.check(fmt.Sprintf("query interrupt index %d", index), index, NumIRQs)
}

// NewVector implements Transport: it refuses.
func (d *sysfsDevice) NewVector() (*Vector, error) { return nil, d.refuse("make vector") }

// SetIRQs implements Transport: it refuses.
func (d *sysfsDevice) SetIRQs(index, start int, vectors []*Vector) error {
	return d.refuse(fmt.Sprintf("set interrupts of index %d", index))
}

// DMA implements Transport: a Mapper that refuses.
func (d *sysfsDevice) DMA() Mapper { return sysfsMapper{d} }

type sysfsMapper struct{ d *sysfsDevice }

func (m sysfsMapper) Map(Mapping) error          { return m.d.refuse("map DMA") }
func (m sysfsMapper) Unmap(uint64, uint64) error { return m.d.refuse("unmap DMA") }
func (m sysfsMapper) Limits() (DMALimits, error) { return DMALimits{}, m.d.refuse("query DMA limits") }

// Reset implements Transport: it refuses.
func (d *sysfsDevice) Reset() error { return d.refuse("reset function") }

// Close implements Transport.
func (d *sysfsDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	err := errors.Join(d.sys.munmap(d.bar), d.sys.close(d.config))
	d.bar = nil
	if err != nil {
		return d.fail("close", err, "")
	}
	return nil
}
