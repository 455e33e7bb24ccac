package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// openIOMMUFD opens a function through its own file, in o.IOAS or in a private
// one. iommufd wants the function bound and attached before memory is mapped;
// type1 takes the group first. reached tells whether both files are there for this
// process: where not, there may be another way.
func openIOMMUFD(bdf string, o KernelOptions) (t Transport, reached bool, err error) {
	path, err := o.cdevOf(bdf)
	if err != nil {
		return nil, false, noCDevError(o, bdf, err)
	}
	a, private := o.IOAS, false
	if a == nil {
		private = true
		if a, reached, err = newIOAS(o); err != nil {
			return nil, reached, err
		}
	}
	giveUp := func() error {
		if private {
			return a.Close()
		}
		return nil
	}
	detach := func() error { return errors.Join(a.leave(), giveUp()) }
	fd, reached, err := a.join(bdf, path)
	if err != nil {
		return nil, reached, errors.Join(err, giveUp())
	}
	d, err := newKernelDevice(a.o.sys, fd, DeviceInfo{Name: bdf, Backend: BackendIOMMUFD}, a, detach)
	if err != nil {
		return nil, true, errors.Join(err, a.o.sys.close(fd), detach())
	}
	return d, true, nil
}

// noCDevError explains why a function has no file of its own.
func noCDevError(o KernelOptions, bdf string, err error) error {
	e := &Error{Op: "find the function's VFIO file", Target: bdf, Err: err}
	if !errors.Is(err, fs.ErrNotExist) {
		return e.advised()
	}
	driver := o.driverOf(bdf)
	switch {
	case strings.HasPrefix(driver, "vfio"):
		e.Err = fmt.Errorf("%w: the kernel makes no such files", ErrNotFound)
		e.Remedy = "use a kernel with IOMMUFD and VFIO_DEVICE_CDEV (Linux 6.6 on), or the backend type1"
	case driver == "":
		e.Err = fmt.Errorf("%w: the function has no driver", ErrNotFound)
		e.Remedy = "mlxvfio bind " + bdf
	default:
		e.Err = fmt.Errorf("%w: the function is bound to %s, not to vfio-pci", ErrNotFound, driver)
		e.Remedy = "mlxvfio bind " + bdf
	}
	return e.advised()
}

// openIOMMUError explains why /dev/iommu could not be opened.
func openIOMMUError(path string, err error) error {
	e := &Error{Op: "open iommufd", Target: path, Err: err}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		e.Err = fmt.Errorf("%w: %w", ErrNotFound, err)
		e.Remedy = "modprobe iommufd; in a container, pass " + path + " in; or use the backend type1"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.Remedy = "run as root, or let this user open it: chown USER " + path
	case errors.Is(err, unix.ENOMEM):
		e.Err = noSpace(err)
	}
	return e.advised()
}

// openCDevError explains why the function's own file could not be opened. That
// somebody else has the function shows only when it is bound.
func openCDevError(o KernelOptions, path, bdf string, err error) error {
	e := &Error{Op: "open " + path, Target: bdf, Err: err}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO):
		e.Err = fmt.Errorf("%w: the kernel has the function, but there is no file for it: %w", ErrNotFound, err)
		e.Remedy = "check that udev or devtmpfs makes " + path + "; in a container, pass it in"
	case errors.Is(err, unix.ENODEV):
		e.Err = fmt.Errorf("%w: the function left vfio-pci, it has %s: %w", ErrNotFound, driverOrNone(o.driverOf(bdf)), err)
		e.Remedy = "mlxvfio bind " + bdf
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.Remedy = "run as root, or let this user open it: chown USER " + path
	case errors.Is(err, unix.ENOMEM):
		e.Err = noSpace(err)
	}
	return e.advised()
}

func driverOrNone(driver string) string {
	if driver == "" {
		return "no driver"
	}
	return driver
}

// bindError explains why a function could not be bound to an iommufd. The numbers
// are few for what they say (Linux vfio/device_cdev.c and iommufd/device.c): EPERM
// is for interrupts that are not isolated, and for a group that somebody else owns,
// a host driver or another iommufd; EBUSY for a group whose own file is open;
// EINVAL for a function that is bound already, and for an IOMMU that does not keep
// caches coherent, or a function whose firmware keeps memory for it that no other
// user may take away (iommu.c, require_direct).
func bindError(o KernelOptions, path, bdf string, err error) error {
	e := &Error{Op: "bind the function to iommufd (VFIO_DEVICE_BIND_IOMMUFD)", Target: bdf, Err: err}
	busy := func(who []string, what string) { e.Remedy, e.Err = heldBy(who, what, err) }
	switch {
	case errors.Is(err, unix.EPERM):
		e.Remedy, e.Err = notPermitted(o, bdf, err)
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: the file of its IOMMU group is open: %w", ErrBusy, err)
		e.Remedy = "end the process that has it open"
		if g, gerr := o.groupOf(bdf); gerr == nil {
			file := filepath.Join(o.DevRoot, "vfio", g.node())
			e.Remedy += ": fuser -v " + file
			if who := o.openers(file); len(who) > 0 {
				busy(who, "has the file of its IOMMU group")
			}
		}
	case errors.Is(err, unix.EINVAL):
		if who := o.openers(path); len(who) > 0 {
			busy(who, "has it")
		} else if o.reservedDirect(bdf) {
			e.reserved(bdf)
		} else {
			e.Err = fmt.Errorf("%w, or its DMA is not coherent with the caches: %w", ErrBusy, err)
			e.Remedy = "end the process that has it open: fuser -v " + path + " (as root, which sees all of them)"
		}
	case errors.Is(err, unix.ENODEV):
		e.Err = fmt.Errorf("%w: the function left vfio-pci, it has %s: %w", ErrNotFound, driverOrNone(o.driverOf(bdf)), err)
		e.Remedy = "mlxvfio bind " + bdf
	case errors.Is(err, unix.ENOTTY):
		e.Err = fmt.Errorf("%w: %w", ErrNotSupported, err)
		e.Remedy = "use a kernel with VFIO_DEVICE_CDEV (Linux 6.6 on), or the backend type1"
	case errors.Is(err, unix.EIO):
		e.Remedy = "the function did not come out of low power or reset: see dmesg"
	case errors.Is(err, unix.ENOMEM):
		e.Err = noSpace(err)
	}
	return e.advised()
}

// heldBy is the reason and the remedy where processes have what is needed.
func heldBy(who []string, what string, err error) (remedy string, reason error) {
	return "end it, or share its IOAS when it is this process", fmt.Errorf("%w, %s %s: %w", ErrBusy, list(who), what, err)
}

// notPermitted finds out why iommufd would not bind a function with EPERM.
func notPermitted(o KernelOptions, bdf string, err error) (remedy string, reason error) {
	if who := o.blockers(bdf); len(who) > 0 {
		v := notViable(o, "of the function", bdf)
		return v.Remedy, fmt.Errorf("%w: %w", v.Err, err)
	}
	if who := o.groupOpeners(bdf); len(who) > 0 {
		return heldBy(who, "has its IOMMU group", err)
	}
	remedy = "enable interrupt remapping (x2APIC in the firmware setup, no intremap=off); " +
		"or accept that the device can forge interrupts: echo 1 > /sys/module/iommufd/parameters/allow_unsafe_interrupts"
	if o.unsafeType1() {
		remedy += "; for the backend type1 that is accepted already"
	}
	return remedy, fmt.Errorf("the platform does not isolate interrupts, or another process has the IOMMU group: %w", err)
}

// unsafeType1 tells whether TYPE1 takes functions whose interrupts are not isolated:
// each has a switch of its own.
func (o KernelOptions) unsafeType1() bool {
	b, err := os.ReadFile(filepath.Join(o.Sysfs, "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"))
	return err == nil && strings.TrimSpace(string(b)) == "Y"
}

// attachError explains why a bound function could not be attached to an address
// space.
func attachError(bdf string, err error) error {
	e := &Error{Op: "attach the function to an I/O address space (VFIO_DEVICE_ATTACH_IOMMUFD_PT)", Target: bdf, Err: err}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		e.Err = fmt.Errorf("%w: the function needs bus addresses for itself that the IOAS has mapped or promised: %w", ErrExists, err)
		e.Remedy = "open it in the IOAS before memory is mapped, or in an IOAS of its own"
	case errors.Is(err, unix.EINVAL):
		e.Err = fmt.Errorf("%w: the function's IOMMU does not fit, or functions of its group are in another IOAS: %w", ErrNotSupported, err)
		e.Remedy = "use an IOAS of its own; functions of one group share one"
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: it is attached elsewhere: %w", ErrBusy, err)
	case errors.Is(err, unix.EPERM):
		// Memory that iommufd was not given may be reserved for the function (RMRR).
		e.Remedy = "the platform keeps memory for this function's own DMA: dmesg says which; see the firmware setup"
	case errors.Is(err, unix.ENOMEM):
		e.Err = noSpace(err)
	}
	return e.advised()
}

// ioasMapError explains why memory could not be mapped.
func ioasMapError(target, op string, size uint64, err error) error {
	e := mapError(target, op, size, err)
	switch {
	case errors.Is(err, unix.EOVERFLOW):
		e.Err, e.Remedy = fmt.Errorf("%w: %w", ErrRange, err), ""
	case errors.Is(err, unix.ENOMEM) && !hasIPCLock():
		e.Remedy += "; iommufd counts what all processes of this user pin"
	case errors.Is(err, unix.ENOSPC):
		e.Err, e.Remedy = fmt.Errorf("%w: the IOMMU takes no more: %w", ErrNoSpace, err), "free DMA memory"
	}
	return e.advised()
}
