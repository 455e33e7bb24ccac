package vfio

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// What the kernel answers is a number; what went wrong is found by looking
// around. Each function here explains one call that fails in the field.

// openGroupError explains why /dev/vfio/N could not be opened.
func openGroupError(o KernelOptions, path, bdf string, err error) error {
	e := &Error{Op: "open IOMMU group " + path, Target: bdf, Err: err}
	switch {
	case errors.Is(err, unix.ENOENT):
		driver := o.driverOf(bdf)
		switch {
		case strings.HasPrefix(driver, "vfio"):
			e.Err = fmt.Errorf("%w: the function is bound to %s, but the group has no file: %w", ErrNotFound, driver, err)
			e.Remedy = "check that udev or devtmpfs makes " + path + "; in a container, pass it in"
		case driver == "":
			e.Err = fmt.Errorf("%w: the function has no driver: %w", ErrNotFound, err)
			e.Remedy = "mlxvfio bind " + bdf
		default:
			e.Err = fmt.Errorf("%w: the function is bound to %s, not to vfio-pci: %w", ErrNotFound, driver, err)
			e.Remedy = "mlxvfio bind " + bdf
		}
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: %w", ErrBusy, err)
		e.Remedy = "end the process that has it open: fuser -v " + path
		// A function of the group that is open by its own file blocks the group's, too.
		if who := o.groupOpeners(bdf); len(who) > 0 {
			e.Err = fmt.Errorf("%w, %s: %w", ErrBusy, list(who), err)
			e.Remedy = "end it, or share its Container when it is this process"
		}
	case errors.Is(err, unix.EACCES):
		e.Remedy = "run as root, or let this user open it: chown USER " + path
	case errors.Is(err, unix.EPERM):
		e.Remedy = "run as root; a group without IOMMU needs CAP_SYS_RAWIO"
	}
	if e.Remedy == "" {
		e.Remedy = kernelRemedy(err)
	}
	return e
}

// notViable names the functions that keep a group from user space.
func notViable(o KernelOptions, path, bdf string) *Error {
	e := &Error{Op: "use IOMMU group " + path, Target: bdf,
		Err:    fmt.Errorf("%w: other functions of the group belong to host drivers", ErrBusy),
		Remedy: "bind every function of the group to vfio-pci"}
	if who := o.blockers(bdf); len(who) > 0 {
		e.Err = fmt.Errorf("%w: the group also holds %s", ErrBusy, list(who))
		var cmds []string
		for _, w := range who {
			sibling, _, _ := strings.Cut(w, " ")
			cmds = append(cmds, sibling)
		}
		e.Remedy = "bind these too (mlxvfio bind " + strings.Join(cmds, "; mlxvfio bind ") + "), or use a slot with ACS, where they get groups of their own"
	}
	return e
}

// setContainerError explains why a group could not be put into the container. Since
// Linux 6.6 its DMA is taken over there, and EINVAL is for a function whose firmware
// keeps memory for it that no other user may take away (iommu.c, require_direct). In a
// container that has an IOMMU already, EINVAL is for one of another kind.
func (c *Container) setContainerError(path, bdf string, err error) error {
	e := &Error{Op: "put IOMMU group " + path + " into a container", Target: bdf, Err: err}
	switch {
	case c.physical != nil:
		if errors.Is(err, unix.EPERM) {
			e.Remedy = "run as root: a group without IOMMU needs CAP_SYS_RAWIO"
		}
	case errors.Is(err, unix.EINVAL) && c.o.reservedDirect(bdf):
		e.reserved(bdf)
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: %w", ErrBusy, err)
		if who := c.o.groupOpeners(bdf); len(who) > 0 {
			e.Err = fmt.Errorf("%w, %s: %w", ErrBusy, list(who), err)
		}
	case errors.Is(err, unix.ENOMEM):
		e.Err = noSpace(err)
	case c.iommu:
		e.Remedy = "groups of different IOMMU kinds cannot share one: use a Container of its own"
	}
	return e.advised()
}

// reserved makes the error one about memory that the platform keeps for DMA of the
// function (reservedDirect).
func (e *Error) reserved(bdf string) {
	e.Err = fmt.Errorf("%w: the platform keeps memory for the function's own DMA (RMRR): %w", ErrNotSupported, e.Err)
	e.Remedy = "turn the feature that needs it off in the firmware setup, see dmesg; " +
		"cat /sys/bus/pci/devices/" + bdf + "/iommu_group/reserved_regions shows the memory as direct"
}

// setIOMMUError explains why the IOMMU could not be set up. TYPE1 answers EPERM
// when interrupts are not remapped (Linux vfio_iommu_type1.c, attach_group): a
// device could then forge interrupts with plain writes. Before that it asks the IOMMU
// driver, and that of VT-d, before Linux 6.6, answers EPERM for memory that the
// platform keeps for the function (intel/iommu.c, device_is_rmrr_locked).
func setIOMMUError(o KernelOptions, bdf, kind string, err error) error {
	e := &Error{Op: "set up the IOMMU (VFIO_SET_IOMMU, " + kind + ")", Target: bdf, Err: err}
	switch {
	case kind == "NOIOMMU":
		if errors.Is(err, unix.EPERM) {
			e.Remedy = "run as root: a group without IOMMU needs CAP_SYS_RAWIO"
		}
	case (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL)) && o.reservedDirect(bdf):
		e.reserved(bdf)
	case errors.Is(err, unix.EPERM):
		e.Err = fmt.Errorf("the platform does not remap interrupts: %w", err)
		e.Remedy = "enable interrupt remapping (x2APIC in the firmware setup, no intremap=off); " +
			"or accept that the device can forge interrupts: echo 1 > /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
	case errors.Is(err, unix.ENOMEM):
		e.Err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	if e.Remedy == "" {
		e.Remedy = kernelRemedy(err)
	}
	return e
}

// openDeviceError explains why the group would not give the function. EPERM comes
// from a container of iommufd alone (IOMMUFD_VFIO_CONTAINER), which binds the
// function only now (Linux group.c, vfio_df_group_open).
func openDeviceError(o KernelOptions, bdf string, err error) error {
	e := &Error{Op: "open function (VFIO_GROUP_GET_DEVICE_FD)", Target: bdf, Err: err}
	switch {
	case errors.Is(err, unix.ENODEV):
		driver := o.driverOf(bdf)
		if driver == "" {
			driver = "no driver"
		}
		e.Err = fmt.Errorf("%w in its group for user space, it has %s: %w", ErrNotFound, driver, err)
		e.Remedy = "mlxvfio bind " + bdf
	case errors.Is(err, unix.EBUSY):
		e.Err = fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, unix.EPERM):
		e.Remedy, e.Err = notPermitted(o, bdf, err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EIO):
		e.Remedy = "the function did not come out of low power or reset: see dmesg"
	}
	if e.Remedy == "" {
		e.Remedy = kernelRemedy(err)
	}
	return e
}

// mapError explains why memory could not be mapped.
func mapError(target, op string, size uint64, err error) *Error {
	e := &Error{Op: op, Target: target, Err: err}
	switch {
	case errors.Is(err, unix.ENOMEM):
		e.Err = fmt.Errorf("%w: the kernel could not pin %d bytes: %w", ErrNoSpace, size, err)
		if limit, lerr := rlimitMemlock(); lerr == nil && limit != ^uint64(0) {
			e.Remedy = fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes: raise it (ulimit -l, LimitMEMLOCK=), or free memory", limit)
		} else {
			e.Remedy = "free memory"
		}
	case errors.Is(err, unix.ENOSPC):
		e.Err = fmt.Errorf("%w: the IOMMU takes no more mappings: %w", ErrNoSpace, err)
		e.Remedy = "raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit"
	case errors.Is(err, unix.EEXIST):
		e.Err = fmt.Errorf("%w: %w", ErrExists, err)
	case errors.Is(err, unix.EINVAL):
		e.Err = fmt.Errorf("%w: %w", ErrRange, err)
		e.Remedy = "IOVA and size must be multiples of the IOMMU's page and lie in its ranges"
	case errors.Is(err, unix.EFAULT):
		e.Remedy = "the memory is not mapped in this process, or cannot be pinned"
	}
	if e.Remedy == "" {
		e.Remedy = kernelRemedy(err)
	}
	return e
}

// advised gives the error the remedy that there is for any.
func (e *Error) advised() *Error {
	if e.Remedy == "" {
		e.Remedy = kernelRemedy(e.Err)
	}
	return e
}

// kernelRemedy is what helps against an errno of a call for which nothing better is
// known. The kernel logs most of its reasons.
func kernelRemedy(err error) string {
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrRange), errors.Is(err, ErrNotFound), errors.Is(err, ErrNotSupported):
		return ""
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "run as root; if that does not help, a security module or lockdown forbids it: see dmesg"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "free memory and open files, then try again"
	case errors.Is(err, unix.EBUSY):
		return "end what else uses the function or its IOMMU group: fuser -v /dev/vfio/*"
	}
	var e unix.Errno
	if errors.As(err, &e) {
		return "see dmesg: the kernel says there what went wrong"
	}
	return ""
}
