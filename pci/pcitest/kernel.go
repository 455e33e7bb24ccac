package pcitest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/mlxvfio/mlxvfio/pci"
)

// Kernel is a pci.FS whose sysfs writes take effect. It keeps nothing but the
// log of writes in memory.
type Kernel struct {
	pci.OS
	root string

	// Before, when set, runs before each write takes effect; it may block, or
	// refuse the write with an error.
	Before func(path, value string) error

	mu     sync.Mutex
	writes []Write
}

// Write is one write to sysfs, Path relative to the tree's root.
type Write struct{ Path, Value string }

// OpenKernel is the kernel of the tree at root.
func OpenKernel(root string) *Kernel { return &Kernel{root: root} }

// Writes returns all writes so far, refused ones included.
func (k *Kernel) Writes() []Write {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.writes)
}

// WriteSync leaves out the fsync: a killed process loses nothing that was
// written, and tests run it hundreds of times.
func (k *Kernel) WriteSync(name string, data []byte, perm fs.FileMode) error {
	return os.WriteFile(name, data, perm)
}

// SyncDir only checks that the folder is there.
func (k *Kernel) SyncDir(name string) error {
	_, err := os.Stat(name)
	return err
}

// WriteAttr is the simulated store function of the attribute.
func (k *Kernel) WriteAttr(name string, data []byte) error {
	rel, err := filepath.Rel(k.root, name)
	if err != nil {
		return err
	}
	value := string(data)
	if k.Before != nil {
		if err := k.Before(rel, value); err != nil {
			k.log(rel, value)
			return &fs.PathError{Op: "write", Path: name, Err: err}
		}
	}
	k.log(rel, value)
	if _, err := os.Stat(name); err != nil {
		return err
	}
	if err := k.store(rel, value); err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// Access refuses what Tree.Deny denies; the rest is open to the process.
func (k *Kernel) Access(name string) error {
	rel, err := filepath.Rel(k.root, name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(name); err != nil {
		return err
	}
	reason, err := os.ReadFile(filepath.Join(k.root, "deny", rel))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errno, ok := map[string]syscall.Errno{"EACCES": syscall.EACCES, "EPERM": syscall.EPERM, "EROFS": syscall.EROFS}[string(reason)]
	if !ok {
		return fmt.Errorf("pcitest: no reason %q", reason)
	}
	return &fs.PathError{Op: "access", Path: name, Err: errno}
}

// Stat makes a character device of what Tree.Node says is one.
func (k *Kernel) Stat(name string) (fs.FileInfo, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(k.root, name)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(k.root, "rdev", rel))
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return nil, err
	}
	return &node{st, uint64(major)<<8 | uint64(minor)}, nil // numbers below 256
}

// node is the FileInfo of a character device.
type node struct {
	fs.FileInfo
	rdev uint64
}

func (n *node) Mode() fs.FileMode { return fs.ModeDevice | fs.ModeCharDevice | 0o600 }
func (n *node) Sys() any          { return &syscall.Stat_t{Rdev: n.rdev} }

func (k *Kernel) log(rel, value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes = append(k.writes, Write{rel, value})
}

func (k *Kernel) store(rel, value string) error {
	el := strings.Split(filepath.ToSlash(rel), "/")
	bdf := strings.TrimSuffix(value, "\n")
	switch {
	case len(el) == 6 && el[3] == "devices" && el[5] == "driver_override":
		text := strings.TrimSuffix(value, "\n")
		if text == "" {
			text = "(null)"
		}
		return os.WriteFile(filepath.Join(k.root, rel), []byte(text+"\n"), 0o644)
	case len(el) == 6 && el[3] == "drivers" && el[5] == "unbind":
		if driverOf(k.root, bdf) != el[4] {
			return syscall.ENODEV
		}
		return detach(k.root, bdf, el[4])
	case len(el) == 6 && el[3] == "drivers" && el[5] == "bind":
		if !exists(k.root, Device(bdf)) || !matches(k.root, bdf, el[4]) {
			return syscall.ENODEV
		}
		if driverOf(k.root, bdf) != "" {
			return syscall.EBUSY
		}
		return attach(k.root, bdf, el[4])
	case len(el) == 4 && el[3] == "drivers_probe":
		return probe(k.root, bdf)
	case rel == noIOMMUParam:
		switch strings.TrimSpace(value) {
		case "Y", "y", "1":
			return os.WriteFile(filepath.Join(k.root, rel), []byte("Y\n"), 0o644)
		case "N", "n", "0":
			return os.WriteFile(filepath.Join(k.root, rel), []byte("N\n"), 0o644)
		}
		return syscall.EINVAL
	}
	return syscall.EACCES
}

// probe tries the drivers by name; like the kernel it reports no failed probe.
func probe(root, bdf string) error {
	if !exists(root, Device(bdf)) {
		return syscall.ENODEV
	}
	if driverOf(root, bdf) != "" {
		return nil
	}
	drivers, err := os.ReadDir(filepath.Join(root, "sys/bus/pci/drivers"))
	if err != nil {
		return err
	}
	for _, d := range drivers {
		if matches(root, bdf, d.Name()) && attach(root, bdf, d.Name()) == nil {
			return nil
		}
	}
	return nil
}

// matches: an override decides alone, else the id table does.
func matches(root, bdf, driver string) bool {
	if o := overrideOf(root, bdf); o != "" {
		return o == driver
	}
	ids, err := os.ReadFile(filepath.Join(root, "ids", driver))
	if err != nil {
		return false
	}
	id := func(attr string) string {
		data, err := os.ReadFile(filepath.Join(root, Device(bdf), attr))
		if err != nil {
			return ""
		}
		return strings.TrimPrefix(strings.TrimSpace(string(data)), "0x")
	}
	return slices.Contains(strings.Fields(string(ids)), id("vendor")+":"+id("device"))
}

// attach is a successful probe, or EIO where the test wants it to fail. VFIO
// refuses a function without IOMMU group unless no-IOMMU mode is on, in which
// case it makes up a group.
func attach(root, bdf, driver string) error {
	if exists(root, "fail/"+driver) {
		return syscall.EIO
	}
	dev := Device(bdf)
	if pci.IsVFIO(driver) {
		if err := attachVFIO(root, bdf, dev); err != nil {
			return err
		}
	}
	if err := link(root, "sys/bus/pci/drivers/"+driver+"/"+bdf, dev); err != nil {
		return err
	}
	return link(root, dev+"/driver", "sys/bus/pci/drivers/"+driver)
}

const noIOMMUParam = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"

// attachVFIO makes what vfio makes of a function (Linux vfio_main.c, group.c,
// device_cdev.c): its folder vfio-dev, which has a number only on kernels with
// VFIO_DEVICE_CDEV and only where an IOMMU guards it, and the group's file on
// kernels with VFIO_GROUP.
func attachVFIO(root, bdf, dev string) error {
	if !exists(root, dev+"/iommu_group") {
		mode, err := os.ReadFile(filepath.Join(root, noIOMMUParam))
		if err != nil || strings.TrimSpace(string(mode)) != "Y" || !exists(root, kconfigGroup) {
			return syscall.EINVAL
		}
		g := "sys/kernel/iommu_groups/" + strconv.Itoa(unused(root, "sys/kernel/iommu_groups", "", 900))
		if err := write(root, g+"/name", "vfio-noiommu\n"); err != nil {
			return err
		}
		if err := link(root, g+"/devices/"+bdf, dev); err != nil {
			return err
		}
		if err := link(root, dev+"/iommu_group", g); err != nil {
			return err
		}
	}
	n := unused(root, "sys/class/vfio-dev", "vfio", 0)
	name := "vfio" + strconv.Itoa(n)
	if err := write(root, dev+"/vfio-dev/"+name+"/uevent", ""); err != nil {
		return err
	}
	if err := link(root, "sys/class/vfio-dev/"+name, dev+"/vfio-dev/"+name); err != nil {
		return err
	}
	group := groupNode(root, dev)
	if exists(root, kconfigCdev) && !strings.HasPrefix(group, "noiommu-") {
		if err := write(root, dev+"/vfio-dev/"+name+"/dev", fmt.Sprintf("511:%d\n", n)); err != nil {
			return err
		}
		if err := write(root, "dev/vfio/devices/"+name, ""); err != nil {
			return err
		}
	}
	if !exists(root, kconfigGroup) || exists(root, "sys/class/vfio/"+group) {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(root, "sys/class/vfio"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := write(root, "sys/class/vfio/"+group+"/dev", fmt.Sprintf("240:%d\n", len(entries))); err != nil {
		return err
	}
	return write(root, "dev/vfio/"+group, "")
}

// unused is the first number from first on whose name is not in a folder.
func unused(root, dir, prefix string, first int) int {
	for exists(root, dir+"/"+prefix+strconv.Itoa(first)) {
		first++
	}
	return first
}

// detachVFIO takes all that away again, and a group that was made up with it.
func detachVFIO(root, bdf string) error {
	dev := Device(bdf)
	if err := leaveGroup(root, bdf); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(root, dev, "vfio-dev"))
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(root, "sys/class/vfio-dev", e.Name())), os.RemoveAll(filepath.Join(root, "dev/vfio/devices", e.Name())))
	}
	errs = append(errs, os.RemoveAll(filepath.Join(root, dev, "vfio-dev")))
	if strings.HasPrefix(groupNode(root, dev), "noiommu-") {
		g := readLink(root, dev+"/iommu_group")
		errs = append(errs, os.Remove(filepath.Join(root, dev, "iommu_group")), os.RemoveAll(g))
	}
	return errors.Join(errs...)
}

// groupNode is the name of the file that a group has in /dev/vfio.
func groupNode(root, dev string) string {
	name := filepath.Base(readLink(root, dev+"/iommu_group"))
	if data, err := os.ReadFile(filepath.Join(root, dev, "iommu_group/name")); err == nil && strings.TrimSpace(string(data)) == "vfio-noiommu" {
		name = "noiommu-" + name
	}
	return name
}

func readLink(root, name string) string {
	target, err := os.Readlink(filepath.Join(root, name))
	if err != nil {
		return ""
	}
	return target
}

// leaveGroup removes the group's file when its last function leaves vfio-pci.
func leaveGroup(root, bdf string) error {
	members, err := os.ReadDir(filepath.Join(root, Device(bdf), "iommu_group/devices"))
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Name() != bdf && pci.IsVFIO(driverOf(root, m.Name())) {
			return nil
		}
	}
	name := groupNode(root, Device(bdf))
	return errors.Join(os.RemoveAll(filepath.Join(root, "sys/class/vfio", name)), os.RemoveAll(filepath.Join(root, "dev/vfio", name)))
}

func detach(root, bdf, driver string) error {
	if pci.IsVFIO(driver) {
		if err := detachVFIO(root, bdf); err != nil {
			return err
		}
	}
	if err := os.Remove(filepath.Join(root, Device(bdf), "driver")); err != nil {
		return err
	}
	return os.Remove(filepath.Join(root, "sys/bus/pci/drivers", driver, bdf))
}

func exists(root, name string) bool {
	_, err := os.Stat(filepath.Join(root, name))
	return err == nil
}

func write(root, name, content string) error {
	return inFolder(root, name, func(p string) error { return os.WriteFile(p, []byte(content), 0o644) })
}

func link(root, name, to string) error {
	return inFolder(root, name, func(p string) error { return os.Symlink(filepath.Join(root, to), p) })
}

// inFolder makes the folder only where it is missing: trees are built often.
func inFolder(root, name string, do func(string) error) error {
	p := filepath.Join(root, name)
	err := do(p)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return do(p)
}

func driverOf(root, bdf string) string {
	target, err := os.Readlink(filepath.Join(root, Device(bdf), "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

func overrideOf(root, bdf string) string {
	data, err := os.ReadFile(filepath.Join(root, Device(bdf), "driver_override"))
	if s := strings.TrimSpace(string(data)); err == nil && s != "(null)" {
		return s
	}
	return ""
}
