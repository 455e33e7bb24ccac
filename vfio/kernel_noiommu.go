package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// No-IOMMU mode: the kernel hands a function to user space although nothing
// translates or checks its DMA (Linux vfio/group.c, vfio/container.c). A container
// of VFIO_NOIOMMU_IOMMU maps nothing, so bus addresses are physical addresses; the
// memory behind them is the business of physicalMapper.
//
// What it means, and what is done about it:
//
//   - A wrong address, or a device that misbehaves, writes into any memory of the
//     machine. Nothing is done about that: hence UnsafeNoIOMMU, a warning each time,
//     and the kernel's own taint.
//   - Memory that the device knows must stay where it is. Reserved huge pages are
//     not swapped, and not moved by compaction or NUMA balancing. The kernel does
//     move them when memory is taken offline, when a page with corrected errors is
//     retired, for a reservation of contiguous memory (CMA, huge pages of 1 GiB
//     made at run time), and for who may call move_pages or migrate_pages on this
//     process: leave all of that alone while a function is open. Ordinary pages can
//     move at any time, mlock or not (vm.compact_unevictable_allowed is 1 unless
//     the kernel is PREEMPT_RT), so they are not used.
//   - A process that is killed must not give its memory back before the device is
//     stopped, which vfio-pci does when the function's file is closed. The memory
//     belongs to files, too: it outlives the process's address space. The kernel
//     promises no order among the files of a dying process; it closes the one with
//     the highest number first (fs/file.c queues them in ascending order,
//     kernel/task_work.c takes the last one first). The function's file is
//     therefore moved to a high number (TestExitOrder looks at the kernel it runs
//     on). A copy of the file in another process defeats that, and so do thousands
//     of files that are open before the memory is made.

const (
	noIOMMURemedy = "turn on VT-d or AMD-Vi in the firmware setup and boot with intel_iommu=on (Intel); " +
		"or accept that: --unsafe-noiommu (KernelOptions.UnsafeNoIOMMU)"
	noIOMMUMode = "as root: echo 1 > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
)

// noIOMMUMeans is why a function without IOMMU is not opened just so.
func noIOMMUMeans() error {
	return fmt.Errorf("%w guards it: the device could read and write all of this machine's memory", ErrNoIOMMU)
}

// noGroup explains why a function is in no IOMMU group.
func (o KernelOptions) noGroup(bdf string) error {
	e := &Error{Op: "find IOMMU group", Target: bdf, Err: fmt.Errorf("%w: the function is in no IOMMU group", ErrNoIOMMU),
		Remedy: "turn on VT-d or AMD-Vi in the firmware setup and boot with intel_iommu=on (Intel)"}
	if !o.UnsafeNoIOMMU {
		return e
	}
	mode, err := os.ReadFile(filepath.Join(o.Sysfs, "module/vfio/parameters/enable_unsafe_noiommu_mode"))
	switch on := strings.TrimSpace(string(mode)); {
	case errors.Is(err, fs.ErrNotExist):
		e.Err = fmt.Errorf("%w, and the kernel has no no-IOMMU mode", e.Err)
		e.Remedy = "modprobe vfio; if /sys/module/vfio/parameters/enable_unsafe_noiommu_mode is still missing, use a kernel with VFIO_NOIOMMU"
	case on == "Y" || on == "1":
		e.Err = fmt.Errorf("%w, as it has %s", e.Err, driverOrNone(o.driverOf(bdf)))
		e.Remedy = "mlxvfio bind " + bdf + " --unsafe-noiommu (unbind it first if it has vfio-pci: the mode was off then)"
	default:
		e.Err = fmt.Errorf("%w, and the kernel's no-IOMMU mode is off", e.Err)
		e.Remedy = "mlxvfio bind " + bdf + " --unsafe-noiommu, which turns it on (" + noIOMMUMode + ")"
	}
	return e
}

// openNoIOMMU opens a function that no IOMMU guards.
func openNoIOMMU(bdf string, g iommuGroup, o KernelOptions) (Transport, error) {
	fail := func(err error, remedy string) (Transport, error) {
		return nil, &Error{Op: "open function without an IOMMU", Target: bdf, Err: err, Remedy: remedy}
	}
	switch {
	case !g.noIOMMU:
		return fail(fmt.Errorf("%w among the functions without one: an IOMMU guards it, in group %d", ErrNotFound, g.number),
			"leave the backend noiommu out: it is opened with the IOMMU")
	case o.Backend == BackendType1 || o.Backend == BackendIOMMUFD:
		return nil, &Error{Op: "open function with the backend " + o.Backend, Target: bdf, Err: noIOMMUMeans(), Remedy: noIOMMURemedy + " with the backend noiommu"}
	case !o.UnsafeNoIOMMU:
		return fail(noIOMMUMeans(), noIOMMURemedy)
	}
	o.Backend = BackendNoIOMMU
	d, err := openGroup(bdf, g, o)
	if err != nil {
		return nil, err
	}
	if err := d.raise(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	o.log().Warn("NO IOMMU: the device can read and write all of this machine's memory", slog.String("bdf", bdf), slog.String("op", "open"))
	return d, nil
}

// raise moves the function's file to a number above those of the memory, so that
// the kernel closes it first when the process dies.
func (d *kernelDevice) raise() error {
	const enough = 1 << 12 // a larger number costs a larger table
	least := uint64(enough)
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err == nil {
		least = min(least, r.Cur/2)
	}
	const op = "move the function's file to a high number"
	fd, err := d.sys.dup(d.fd, int(least))
	if err != nil {
		return d.fail(op, err, "raise the limit of open files (ulimit -n): were this process killed, it could free its memory before the device is stopped")
	}
	low := d.fd
	d.fd = fd
	if err := d.sys.close(low); err != nil {
		return d.fail(op, err, "")
	}
	return nil
}
