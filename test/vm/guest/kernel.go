//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	vendorMellanox = "0x15b3"
	sysfsLimit     = 30 * time.Second // for one write to sysfs that runs a driver's code
)

// modules are the kernel modules of the image: /lib/modules.dep has a line "name dependency..." for each of them.
type modules struct{ deps map[string][]string }

func (m *modules) load(name, params string) error {
	if m.deps == nil {
		m.deps = map[string][]string{}
		for line := range strings.Lines(readFile("/lib/modules.dep")) {
			if f := strings.Fields(line); len(f) > 0 {
				m.deps[f[0]] = f[1:]
			}
		}
	}
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return nil // loaded, or built in
	}
	deps, ok := m.deps[name]
	if !ok {
		return fmt.Errorf("module %s is neither in the kernel nor in the image", name)
	}
	for _, d := range deps {
		if err := m.load(d, ""); err != nil {
			return err
		}
	}
	image, err := os.ReadFile("/lib/modules/" + name + ".ko")
	if err != nil {
		return err
	}
	return insmod(name, image, params)
}

// insmod is init_module(2). The standard library has the number but no wrapper; reflect gives the addresses, so that
// the bench needs neither package unsafe nor a module outside the standard library.
func insmod(name string, image []byte, params string) error {
	p := append([]byte(params), 0)
	_, _, errno := syscall.Syscall(syscall.SYS_INIT_MODULE, reflect.ValueOf(image).Pointer(), uintptr(len(image)), reflect.ValueOf(p).Pointer())
	runtime.KeepAlive(image)
	runtime.KeepAlive(p)
	if errno != 0 && errno != syscall.EEXIST {
		return fmt.Errorf("load module %s: %w", name, errno)
	}
	return nil
}

// unload is delete_module(2), by number for the same reason as insmod.
func unload(name string) error {
	p := append([]byte(name), 0)
	_, _, errno := syscall.Syscall(syscall.SYS_DELETE_MODULE, reflect.ValueOf(p).Pointer(), syscall.O_NONBLOCK, 0)
	runtime.KeepAlive(p)
	if errno != 0 && errno != syscall.ENOENT {
		return fmt.Errorf("unload module %s: %w", name, errno)
	}
	return nil
}

// functions lists the PCI functions of a vendor, in order.
func functions(vendor string) []string {
	paths, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range paths {
		if readFile(p+"/vendor") == vendor {
			out = append(out, filepath.Base(p))
		}
	}
	sort.Strings(out)
	return out
}

func sysfs(bdf string, name ...string) string {
	return filepath.Join(append([]string{"/sys/bus/pci/devices", bdf}, name...)...)
}

// linkName is the last element of the link's target, "" where there is none.
func linkName(p string) string {
	t, err := os.Readlink(p)
	if err != nil {
		return ""
	}
	return filepath.Base(t)
}

func driverOf(bdf string) string { return linkName(sysfs(bdf, "driver")) }
func groupOf(bdf string) string  { return linkName(sysfs(bdf, "iommu_group")) }

// groupNode is the file of the function's group. A group that stands in for an IOMMU has another name.
func groupNode(bdf string) string {
	g := groupOf(bdf)
	if readFile("/sys/kernel/iommu_groups/"+g+"/name") == "vfio-noiommu" {
		return "/dev/vfio/noiommu-" + g
	}
	return "/dev/vfio/" + g
}

func sysfsWrite(path, value string) error {
	return within(sysfsLimit, func() error { return os.WriteFile(path, []byte(value), 0) })
}

// interrupts counts, for each MSI-X vector that vfio-pci has attached for the function, what /proc/interrupts has seen.
func interrupts(bdf string) map[int]int { return countInterrupts(readFile("/proc/interrupts"), bdf) }

// interruptName is how vfio-pci names a vector (Linux vfio_pci_intrs.c): vfio-msix[0](0000:01:00.0).
var interruptName = regexp.MustCompile(`vfio-msix\[(\d+)\]\((\S+)\)`)

func countInterrupts(table, bdf string) map[int]int {
	out := map[int]int{}
	for line := range strings.Lines(table) {
		m := interruptName.FindStringSubmatch(line)
		if m == nil || m[2] != bdf {
			continue
		}
		vector, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		out[vector] = 0
		for _, f := range strings.Fields(line)[1:] { // one column for each processor
			n, err := strconv.Atoi(f)
			if err != nil {
				break
			}
			out[vector] += n
		}
	}
	return out
}

// freeHugePages is how many of the reserved pages nobody uses.
func freeHugePages() int {
	for line := range strings.Lines(readFile("/proc/meminfo")) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "HugePages_Free:" {
			if n, err := strconv.Atoi(f[1]); err == nil {
				return n
			}
		}
	}
	return -1
}

// driverState is what bind changes and unbind must restore.
func driverState(bdf string) string {
	return fmt.Sprintf("driver %q, driver_override %q", driverOf(bdf), readFile(sysfs(bdf, "driver_override")))
}

// bindByHand gives the function to a driver without the program under test.
func bindByHand(bdf, driver string) error {
	if err := unbindByHand(bdf); err != nil {
		return err
	}
	if err := sysfsWrite(sysfs(bdf, "driver_override"), driver+"\n"); err != nil {
		return err
	}
	return probe(bdf)
}

// probe lets the kernel look for a driver for the function, the override first.
func probe(bdf string) error { return sysfsWrite("/sys/bus/pci/drivers_probe", bdf) }

func unbindByHand(bdf string) error {
	if driverOf(bdf) != "" {
		if err := sysfsWrite(sysfs(bdf, "driver", "unbind"), bdf); err != nil {
			return err
		}
	}
	return sysfsWrite(sysfs(bdf, "driver_override"), "\n")
}

// groupFree opens the function's VFIO group, which only one process can, and closes it again. A group whose last user
// has just died may need a moment.
func groupFree(bdf string) error {
	node := groupNode(bdf)
	var err error
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var fd int
		if fd, err = syscall.Open(node, syscall.O_RDWR|syscall.O_CLOEXEC, 0); err == nil {
			return syscall.Close(fd)
		}
		if !isBusy(err) {
			break
		}
	}
	return fmt.Errorf("open %s: %w", node, err)
}

// vfioUsers names the processes, but for the exempt ones, that hold a VFIO container, group or device, or an iommufd open.
func vfioUsers(exempt ...*process) []string {
	var out []string
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil
	}
	for _, fd := range fds {
		t, err := os.Readlink(fd)
		if err == nil && (strings.HasPrefix(t, "/dev/vfio/") || t == iommufdNode || strings.Contains(t, "[vfio-device]")) {
			pid := strings.Split(fd, "/")[2]
			if slices.ContainsFunc(exempt, func(p *process) bool { return strconv.Itoa(p.cmd.Process.Pid) == pid }) {
				continue
			}
			out = append(out, fmt.Sprintf("%s (%s): %s", pid, readFile("/proc/"+pid+"/comm"), t))
		}
	}
	return out
}

// claim opens the group twice: the second time must be refused as long as the first is open.
func claim(bdf string) error {
	node := groupNode(bdf)
	fd, err := syscall.Open(node, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", node, err)
	}
	second, err := syscall.Open(node, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = fmt.Errorf("%s opened twice", node)
		return errors.Join(err, syscall.Close(second), syscall.Close(fd))
	}
	if !isBusy(err) {
		return errors.Join(fmt.Errorf("second open of %s: %w, want EBUSY", node, err), syscall.Close(fd))
	}
	users := vfioUsers()
	if err := syscall.Close(fd); err != nil {
		return err
	}
	if len(users) == 0 {
		return fmt.Errorf("/proc does not show the open %s", node)
	}
	return groupFree(bdf)
}
