package vfio

import (
	"errors"
	"fmt"
	"log/slog"
)

// The kernel's ways to a function, as KernelOptions.Backend takes them and
// DeviceInfo.Backend tells them.
const (
	// BackendIOMMUFD is the function's own file and an address space of iommufd.
	BackendIOMMUFD = "iommufd"
	// BackendType1 is the function's IOMMU group and a container with TYPE1v2.
	BackendType1 = "type1"
	// BackendNoIOMMU is a group without IOMMU: nothing translates or checks what
	// the function reads and writes. It needs KernelOptions.UnsafeNoIOMMU.
	BackendNoIOMMU = "noiommu"
)

// Open opens the function bdf (0000:3b:00.0 or 3b:00.0), which is bound to
// vfio-pci. The kernel resets it on the way. With o.Backend empty it chooses:
// iommufd where the kernel has a file for the function and this process may open
// it and /dev/iommu, else the IOMMU group (TYPE1v2). A function that no IOMMU
// guards is opened only with o.UnsafeNoIOMMU. o.Container and o.IOAS decide, too.
//
// Errors name the remedy: ErrNotFound (no such function, not bound to vfio-pci, no
// file), ErrBusy (another opener, or siblings in the group on host drivers),
// ErrNoIOMMU, ErrNotSupported (the kernel lacks the backend), ErrRange (no PCI
// address, no backend), os.ErrPermission (the files, or an IOMMU that does not
// remap interrupts).
func Open(bdf string, o KernelOptions) (Transport, error) {
	o = o.withDefaults()
	bdf, err := fullBDF(bdf)
	if err != nil {
		return nil, err
	}
	if o.Backend, err = o.backend(bdf); err != nil {
		return nil, err
	}
	g, err := o.groupOf(bdf)
	if err != nil {
		return nil, err
	}
	switch {
	case g.noIOMMU || o.Backend == BackendNoIOMMU:
		return openNoIOMMU(bdf, g, o)
	case o.Backend == BackendType1:
		return openGroup(bdf, g, o)
	case o.Backend == BackendIOMMUFD:
		t, _, err := openIOMMUFD(bdf, o)
		return t, err
	}
	if _, err := o.cdevOf(bdf); err != nil {
		return openGroup(bdf, g, o) // a kernel without such files
	}
	t, reached, err := openIOMMUFD(bdf, o)
	if err == nil || reached {
		return t, err
	}
	o.log().Debug("iommufd cannot be reached, trying the IOMMU group", slog.String("bdf", bdf), slog.String("op", "open"), slog.Any("error", err))
	t, gerr := openGroup(bdf, g, o)
	if gerr != nil && errors.Is(gerr, ErrNotFound) {
		return nil, err // there is no group file either: iommufd is the way
	}
	return t, gerr
}

// backend is what the options ask for; empty: to be chosen.
func (o KernelOptions) backend(bdf string) (string, error) {
	fail := func(remedy, format string, args ...any) (string, error) {
		return "", &Error{Op: "choose a VFIO backend", Target: bdf, Err: fmt.Errorf("%w: "+format, append([]any{ErrRange}, args...)...), Remedy: remedy}
	}
	switch o.Backend {
	case "", BackendIOMMUFD, BackendType1, BackendNoIOMMU:
	default:
		return fail("take one of iommufd, type1 and noiommu, or leave it out", "there is no backend %q", o.Backend)
	}
	if o.Container != nil && o.IOAS != nil {
		return fail("set one of them", "both a Container and an IOAS to join")
	}
	has := o.Backend
	switch {
	case o.IOAS != nil:
		has = BackendIOMMUFD
	case o.Container != nil:
		has = o.Container.backend()
	}
	if o.Backend != "" && o.Backend != has {
		return fail("", "backend %s, and an address space of %s to join", o.Backend, has)
	}
	return has, nil
}

// OpenGroup is Open through the function's IOMMU group, with TYPE1v2.
func OpenGroup(bdf string, o KernelOptions) (Transport, error) {
	o.Backend = BackendType1
	return Open(bdf, o)
}

// openGroup opens a function through its group, in o.Container or in a private
// one.
func openGroup(bdf string, g iommuGroup, o KernelOptions) (*kernelDevice, error) {
	c, private := o.Container, false
	if c == nil {
		private = true
		var err error
		if c, err = NewContainer(o); err != nil {
			return nil, err
		}
	}
	detach := func() error {
		err := c.leave(g.number)
		if private {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	fd, err := c.join(g, bdf)
	if err != nil {
		if private {
			err = errors.Join(err, c.Close())
		}
		return nil, err
	}
	d, err := newKernelDevice(c.o.sys, fd, DeviceInfo{Name: bdf, Backend: c.backend()}, c, detach)
	if err != nil {
		return nil, errors.Join(err, c.o.sys.close(fd), detach())
	}
	d.groups = c.groupFiles
	if c.physical != nil {
		d.mapper = c.physical
	}
	return d, nil
}
