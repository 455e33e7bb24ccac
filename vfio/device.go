package vfio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// DeviceOptions tune NewDevice. The zero value is good.
type DeviceOptions struct {
	// Space is the address space to use, shared with other devices on the same
	// Mapper; nil makes a private one, which Close closes.
	Space *AddressSpace
	// Memory is what a private address space is made of.
	Memory MemoryKind
	// Logger hears about resets, vectors and close; nil is silent.
	Logger *slog.Logger
}

// Device is one opened function: Windows on its regions, its address space, its
// interrupts and the little of its configuration space a driver needs. It is
// safe for concurrent use.
type Device struct {
	t       Transport
	info    DeviceInfo
	space   *AddressSpace
	private bool // space is ours to close
	log     *slog.Logger

	mu      sync.Mutex
	closed  bool
	windows [NumRegions]*Window
	vectors []*Vector
}

// NewDevice takes over t: Close closes it. On failure t stays the caller's; a nil t
// is refused with an *Error. On a transport without DMA (sysfs) the address space
// exists, and refuses to allocate.
func NewDevice(t Transport, o DeviceOptions) (*Device, error) {
	if t == nil {
		return nil, &Error{Op: "make device", Err: errors.New("the transport is nil"),
			Remedy: "give it a transport that was opened without an error, as from vfio.Open"}
	}
	info, err := t.Info()
	if err != nil {
		return nil, fmt.Errorf("query device: %w", err)
	}
	d := &Device{t: t, info: info, space: o.Space, log: o.Logger}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.log = d.log.With("bdf", info.Name)
	if d.space == nil {
		d.private = true
		if d.space, err = privateSpace(t.DMA(), o.Memory); err != nil {
			return nil, fmt.Errorf("%s: %w", info.Name, err)
		}
	}
	return d, nil
}

// privateSpace is a Device's own address space; one that refuses to allocate if
// the transport has no DMA.
func privateSpace(m Mapper, kind MemoryKind) (*AddressSpace, error) {
	limits, err := limitsOf(m)
	if errors.Is(err, ErrNotSupported) {
		return &AddressSpace{refuse: err}, nil
	}
	if err != nil {
		return nil, err
	}
	return newSpace(m, limits, SpaceOptions{Memory: kind})
}

// Transport is what carries the function; it belongs to the Device.
func (d *Device) Transport() Transport { return d.t }

// Info describes the function.
func (d *Device) Info() DeviceInfo { return d.info }

// Space is the address space the function's DMA memory comes from.
func (d *Device) Space() *AddressSpace { return d.space }

// fail is the Device's error for an operation of its own.
func (d *Device) fail(op string, err error, remedy string) error {
	return &Error{Op: op, Target: d.info.Name, Err: err, Remedy: remedy}
}

// Window is the view of a region (RegionBAR0 …), made once. It lives as long as
// the Device. ErrNotFound: the function has no such region.
func (d *Device) Window(region int) (*Window, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := func() string { return fmt.Sprintf("open region %d", region) }
	if d.closed {
		return nil, d.fail(op(), ErrClosed, "")
	}
	if region < 0 || region >= len(d.windows) {
		return nil, d.fail(op(), ErrRange, "")
	}
	if w := d.windows[region]; w != nil {
		return w, nil
	}
	w, err := newWindow(d.t, region, d.info.Name)
	if err != nil {
		return nil, err
	}
	d.windows[region] = w
	return w, nil
}

// ReadConfig reads len(p) bytes of configuration space at off.
func (d *Device) ReadConfig(off int, p []byte) error {
	if off < 0 {
		return d.fail(fmt.Sprintf("read configuration space at %d", off), ErrRange, "")
	}
	return d.t.ReadRegion(RegionConfig, uint64(off), p)
}

// WriteConfig writes p to configuration space at off. What the host keeps for
// itself (BAR addresses, MSI-X control) is filtered by the kernel.
func (d *Device) WriteConfig(off int, p []byte) error {
	if off < 0 {
		return d.fail(fmt.Sprintf("write configuration space at %d", off), ErrRange, "")
	}
	return d.t.WriteRegion(RegionConfig, uint64(off), p)
}

// The command register of PCI's configuration header (PCI Local Bus 3.0, 6.2.2).
const (
	configCommand = 4
	commandMemory = 1 << 1
	commandMaster = 1 << 2
)

// SetBusMaster lets the function reach memory and raise interrupts, or stops it.
// Either way memory decoding is on afterwards. ErrGone: the function reads all
// ones.
func (d *Device) SetBusMaster(on bool) error {
	var b [2]byte
	if err := d.ReadConfig(configCommand, b[:]); err != nil {
		return err
	}
	was := binary.LittleEndian.Uint16(b[:])
	if was == 0xffff {
		return d.fail("set bus master", ErrGone, "check the slot and the power state; rescan the bus")
	}
	now := was | commandMemory | commandMaster
	if !on {
		now &^= commandMaster
	}
	if now == was {
		return nil
	}
	binary.LittleEndian.PutUint16(b[:], now)
	return d.WriteConfig(configCommand, b[:])
}

// MaxVectors is the number of MSI-X vectors the function has.
func (d *Device) MaxVectors() (int, error) {
	info, err := d.t.IRQInfo(IRQMSIX)
	if err != nil {
		return 0, err
	}
	if !info.EventFD {
		return 0, nil
	}
	return info.Count, nil
}

// EnableVectors attaches MSI-X vectors 0 … n−1, all at once: adding one later
// would tear down and set up all of them on older kernels and under QEMU. The
// vectors belong to the Device. ErrExists: vectors are enabled already.
func (d *Device) EnableVectors(n int) ([]*Vector, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := fmt.Sprintf("enable %d MSI-X vectors", n)
	switch {
	case d.closed:
		return nil, d.fail(op, ErrClosed, "")
	case len(d.vectors) > 0:
		return nil, d.fail(op, ErrExists, "disable them first")
	}
	have, err := d.MaxVectors()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > have {
		return nil, d.fail(op, fmt.Errorf("%w: the function has %d", ErrRange, have), "ask for fewer event queues, or raise the vectors of the VF")
	}
	vs := make([]*Vector, 0, n)
	for range n {
		v, err := d.t.NewVector()
		if err != nil {
			return nil, errors.Join(err, closeVectors(vs))
		}
		vs = append(vs, v)
	}
	if err := d.t.SetIRQs(IRQMSIX, 0, vs); err != nil {
		// A transport that attaches in several steps may have done some of them.
		_ = d.t.SetIRQs(IRQMSIX, 0, nil)
		return nil, errors.Join(err, closeVectors(vs))
	}
	d.vectors = vs
	d.log.Debug("vectors enabled", "op", "enable-vectors", "count", n)
	return append([]*Vector(nil), vs...), nil
}

func closeVectors(vs []*Vector) error {
	var errs []error
	for _, v := range vs {
		errs = append(errs, v.Close())
	}
	return errors.Join(errs...)
}

// DisableVectors detaches and closes the vectors: whoever waits on one gets
// ErrClosed. Without vectors it does nothing.
func (d *Device) DisableVectors() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.fail("disable vectors", ErrClosed, "")
	}
	return d.disableVectors()
}

// disableVectors is DisableVectors with mu held. The vectors are closed even when
// the transport cannot detach them: it holds duplicates or has lost the device.
func (d *Device) disableVectors() error {
	if len(d.vectors) == 0 {
		return nil
	}
	err := d.t.SetIRQs(IRQMSIX, 0, nil)
	err = errors.Join(err, closeVectors(d.vectors))
	d.vectors = nil
	return err
}

// Reset resets the function (FLR where it has one). DMA mappings and vectors
// stay; the function's own state is gone, and so are the errors its Windows kept.
func (d *Device) Reset() error {
	if err := d.t.Reset(); err != nil {
		return err
	}
	d.forgetErrors()
	d.log.Info("function reset", "op", "reset")
	return nil
}

// Close gives the function up: interrupts off, bus master off, private address
// space unmapped and freed, transport closed, in that order. Stop what uses the
// Device first. All steps are taken, whatever fails; a second call does nothing.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	errs = append(errs, d.disableVectors())
	if err := d.SetBusMaster(false); err != nil && !errors.Is(err, ErrNotSupported) && !errors.Is(err, ErrGone) {
		errs = append(errs, err) // a function that reads all ones does no DMA
	}
	for _, w := range d.windows {
		if w != nil {
			w.close()
		}
	}
	var unmap error
	if d.private {
		unmap = d.space.Close()
	}
	errs = append(errs, unmap, d.t.Close())
	if d.private && d.space.Stats().Mappings > 0 {
		// What could not be unmapped before is gone with the transport.
		errs = append(errs, d.space.Close())
	}
	err := errors.Join(errs...)
	d.log.LogAttrs(context.Background(), slog.LevelDebug, "closed", slog.String("op", "close"), slog.Any("error", err))
	return err
}
