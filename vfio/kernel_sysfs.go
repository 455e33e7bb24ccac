package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// KernelOptions say where the kernel is found. The zero value is good.
type KernelOptions struct {
	// Backend is the way to the function: BackendIOMMUFD, BackendType1 or
	// BackendNoIOMMU; empty means that Open chooses.
	Backend string
	// UnsafeNoIOMMU accepts a function that no IOMMU guards: it can then read and
	// write all of this machine's memory. See BackendNoIOMMU.
	UnsafeNoIOMMU bool
	// Container or IOAS is the I/O address space to join, so that several functions
	// share one; nil makes a private one that closes with the function.
	Container *Container
	IOAS      *IOAS
	// Logger hears about the choice of a backend, and a warning for each function
	// that is opened without an IOMMU; nil is silent.
	Logger *slog.Logger
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

func (o KernelOptions) log() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
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

// iommuGroup is the IOMMU group of a function. A function that no IOMMU guards is
// in a group too while it is bound to vfio-pci in the kernel's no-IOMMU mode.
type iommuGroup struct {
	number  int
	noIOMMU bool
}

// node is the name of the group's file under /dev/vfio.
func (g iommuGroup) node() string {
	if g.noIOMMU {
		return fmt.Sprintf("noiommu-%d", g.number)
	}
	return strconv.Itoa(g.number)
}

// groupOf finds the function's IOMMU group.
func (o KernelOptions) groupOf(bdf string) (iommuGroup, error) {
	fail := func(err error, remedy string) (iommuGroup, error) {
		return iommuGroup{}, &Error{Op: "find IOMMU group", Target: bdf, Err: err, Remedy: remedy}
	}
	if _, err := os.Stat(o.devicePath(bdf)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return fail(fmt.Errorf("%w: no such PCI function", ErrNotFound), "mlxvfio list shows the functions there are")
		}
		return fail(err, "")
	}
	link, err := os.Readlink(filepath.Join(o.devicePath(bdf), "iommu_group"))
	if errors.Is(err, fs.ErrNotExist) {
		return iommuGroup{}, o.noGroup(bdf)
	}
	if err != nil {
		return fail(err, "")
	}
	n, err := strconv.Atoi(filepath.Base(link))
	if err != nil {
		return fail(fmt.Errorf("group link %q: %w", link, ErrNotFound), "")
	}
	// Linux vfio/group.c gives its stand-ins for a group this name.
	name, err := os.ReadFile(filepath.Join(o.devicePath(bdf), "iommu_group", "name"))
	return iommuGroup{number: n, noIOMMU: err == nil && strings.TrimSpace(string(name)) == "vfio-noiommu"}, nil
}

// cdevOf is the path of the function's own file, which kernels with
// VFIO_DEVICE_CDEV have for functions that an IOMMU guards. The folder vfio-dev is
// there without it; then no device number is in it.
func (o KernelOptions) cdevOf(bdf string) (string, error) {
	dir := filepath.Join(o.devicePath(bdf), "vfio-dev")
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range list {
		if _, err := os.Stat(filepath.Join(dir, e.Name(), "dev")); err == nil {
			return filepath.Join(o.DevRoot, "vfio/devices", e.Name()), nil
		}
	}
	return "", fs.ErrNotExist
}

// blockers names the functions of a group that keep it from user space: those
// with a driver that does DMA for the host.
func (o KernelOptions) blockers(bdf string) []string {
	var out []string
	for _, name := range o.members(bdf) {
		driver := o.driverOf(name)
		// The kernel itself allows these (vfio.c, vfio_driver_allowed): stubs, and
		// bridges, whose driver does no DMA.
		if driver == "" || strings.HasPrefix(driver, "vfio") || slices.Contains([]string{"pci-stub", "pcieport"}, driver) {
			continue
		}
		out = append(out, fmt.Sprintf("%s (%s)", name, driver))
	}
	return out
}

// members are the functions of a function's IOMMU group, itself among them.
func (o KernelOptions) members(bdf string) []string {
	list, err := os.ReadDir(filepath.Join(o.devicePath(bdf), "iommu_group", "devices"))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// reservedDirect tells whether the platform keeps memory for DMA of a function of
// the group that must go on whoever drives it.
func (o KernelOptions) reservedDirect(bdf string) bool {
	b, err := os.ReadFile(filepath.Join(o.devicePath(bdf), "iommu_group", "reserved_regions"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "direct" {
			return true
		}
	}
	return false
}

// groupOpeners names the processes that have the file of a function's group open,
// or that of a function in it.
func (o KernelOptions) groupOpeners(bdf string) []string {
	var out []string
	if g, err := o.groupOf(bdf); err == nil {
		out = o.openers(filepath.Join(o.DevRoot, "vfio", g.node()))
	}
	for _, name := range o.members(bdf) {
		if path, err := o.cdevOf(name); err == nil {
			for _, who := range o.openers(path) {
				out = append(out, who+" with "+name)
			}
		}
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
