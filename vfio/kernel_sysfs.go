package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// KernelOptions say where the kernel is found. The zero value is good.
type KernelOptions struct {
	// Container is the I/O address space to join, so that several functions share
	// one; nil makes a private one that closes with the function.
	Container *Container
	// Sysfs, DevRoot and Proc are where those file systems are mounted; empty
	// means /sys, /dev and /proc.
	Sysfs, DevRoot, Proc string

	sys sys // the system calls; nil means the kernel's
}

func (o KernelOptions) withDefaults() KernelOptions {
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.DevRoot == "" {
		o.DevRoot = "/dev"
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.sys == nil {
		o.sys = kernelSys{}
	}
	o.sys = beneath(o.sys)
	return o
}

// devicePath is the sysfs folder of a function.
func (o KernelOptions) devicePath(bdf string) string {
	return filepath.Join(o.Sysfs, "bus/pci/devices", bdf)
}

// fullBDF adds the PCI domain where it is left out, and refuses what is no
// domain:bus:device.function: it becomes part of a path.
func fullBDF(s string) (string, error) {
	full := s
	if strings.Count(s, ":") == 1 {
		full = "0000:" + s
	}
	digits := func(s string, least, most int) bool {
		_, err := strconv.ParseUint(s, 16, 32)
		return err == nil && len(s) >= least && len(s) <= most
	}
	domain, rest, _ := strings.Cut(full, ":")
	bus, rest, _ := strings.Cut(rest, ":")
	dev, fn, _ := strings.Cut(rest, ".")
	if !digits(domain, 4, 8) || !digits(bus, 2, 2) || !digits(dev, 2, 2) || len(fn) != 1 || fn < "0" || fn > "7" {
		return "", &Error{Op: "parse PCI address", Target: s, Err: fmt.Errorf("%w: no domain:bus:device.function", ErrRange),
			Remedy: "write it as 0000:3b:00.0 or 3b:00.0"}
	}
	return strings.ToLower(full), nil
}

// driverOf is the name of the driver of a function; empty if it has none.
func (o KernelOptions) driverOf(bdf string) string {
	link, err := os.Readlink(filepath.Join(o.devicePath(bdf), "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(link)
}

// groupOf is the number of the function's IOMMU group.
func (o KernelOptions) groupOf(bdf string) (int, error) {
	fail := func(err error, remedy string) (int, error) {
		return 0, &Error{Op: "find IOMMU group", Target: bdf, Err: err, Remedy: remedy}
	}
	if _, err := os.Stat(o.devicePath(bdf)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fail(fmt.Errorf("%w: no such PCI function", ErrNotFound), "mlxvfio list shows the functions there are")
		}
		return fail(err, "")
	}
	link, err := os.Readlink(filepath.Join(o.devicePath(bdf), "iommu_group"))
	if errors.Is(err, fs.ErrNotExist) {
		return fail(fmt.Errorf("%w: the function is in no IOMMU group", ErrNoIOMMU),
			"turn on VT-d or AMD-Vi in the firmware setup and boot with intel_iommu=on (Intel)")
	}
	if err != nil {
		return fail(err, "")
	}
	n, err := strconv.Atoi(filepath.Base(link))
	if err != nil {
		return fail(fmt.Errorf("group link %q: %w", link, ErrNotFound), "")
	}
	return n, nil
}

// blockers names the functions of a group that keep it from user space: those
// with a driver that does DMA for the host.
func (o KernelOptions) blockers(bdf string) []string {
	dir := filepath.Join(o.devicePath(bdf), "iommu_group", "devices")
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range list {
		driver := o.driverOf(e.Name())
		// The kernel itself allows these (vfio.c, vfio_driver_allowed): stubs, and
		// bridges, whose driver does no DMA.
		if driver == "" || strings.HasPrefix(driver, "vfio") || slices.Contains([]string{"pci-stub", "pcieport"}, driver) {
			continue
		}
		out = append(out, fmt.Sprintf("%s (%s)", e.Name(), driver))
	}
	return out
}

// openers names the processes that have path open, as far as this process may
// look. Empty: nobody, or nobody visible.
func (o KernelOptions) openers(path string) []string {
	procs, err := os.ReadDir(o.Proc)
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(o.Proc, p.Name(), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue // not ours to look at, or gone
		}
		for _, fd := range fds {
			if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err != nil || link != path {
				continue
			}
			who := fmt.Sprintf("process %d", pid)
			if comm, err := os.ReadFile(filepath.Join(o.Proc, p.Name(), "comm")); err == nil {
				who += " (" + strings.TrimSpace(string(comm)) + ")"
			}
			if pid == os.Getpid() {
				who += ", which is this one"
			}
			out = append(out, who)
			break
		}
	}
	return out
}
