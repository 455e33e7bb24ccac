package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The ways into a function, by the names that package vfio and --backend take.
const (
	// BackendIOMMUFD: the function's own file, with /dev/iommu for the mappings.
	BackendIOMMUFD = "iommufd"
	// BackendType1: the file of its IOMMU group, with /dev/vfio/vfio.
	BackendType1 = "type1"
	// BackendNoIOMMU: the file of a group that VFIO made up; nothing translates.
	BackendNoIOMMU = "noiommu"
)

// Way is how an open of a function would go.
type Way struct {
	// Backend is one of the names above, "" where there is no way at all.
	Backend string `json:"backend"`
	// Reason says what decides it.
	Reason string `json:"reason"`
}

// DeviceNode is a character device that an open opens, as the kernel announces
// it in sysfs and as it stands in /dev. It is looked at, never opened.
type DeviceNode struct {
	// Path is the name by which processes know it, "/dev/vfio/31".
	Path string `json:"path"`
	// Number is the major:minor that the kernel announces, "" for none.
	Number string `json:"number,omitempty"`
	// Missing: nothing stands at Path.
	Missing bool `json:"missing,omitempty"`
	// Actual is the major:minor of what stands there, "" when it is no device.
	Actual string `json:"actual,omitempty"`
	// Denied is why this process may not open it, "" when it may. Device rules
	// of a cgroup do not show.
	Denied string `json:"denied,omitempty"`
}

// Stale reports whether another device's file stands at Path.
func (n *DeviceNode) Stale() bool {
	return n.Number != "" && n.Actual != "" && n.Number != n.Actual
}

// reached: an open of the file succeeds, be it the right one or not.
func (n *DeviceNode) reached() bool { return !n.Missing && n.Denied == "" }

// Usable reports whether this process can open the right device there.
func (n *DeviceNode) Usable() bool { return n.reached() && !n.Stale() }

// VFIONodes are the files through which user space reaches a function.
type VFIONodes struct {
	// Cdev is the function's own file, nil where the kernel offers none: built
	// without VFIO_DEVICE_CDEV, or in no-IOMMU mode, but for kernels with IOMMUFD_NOIOMMU.
	Cdev *DeviceNode `json:"cdev,omitempty"`
	// IOMMUFD is /dev/iommu, which goes with Cdev.
	IOMMUFD DeviceNode `json:"iommufd"`
	// Group is the file of the IOMMU group, nil where the kernel offers none:
	// built without VFIO_GROUP.
	Group *DeviceNode `json:"group,omitempty"`
	// Container is /dev/vfio/vfio, which goes with Group.
	Container DeviceNode `json:"container"`
}

// devFile is where a node is looked at.
func (o Options) devFile(path string) string {
	return filepath.Join(o.DevRoot, strings.TrimPrefix(path, "/dev/"))
}

// node looks at a device file; number is the sysfs file with its number.
func (o Options) node(path, number string) DeviceNode {
	n := DeviceNode{Path: path}
	if data, err := o.FS.ReadFile(number); err == nil {
		if s := strings.TrimSpace(string(data)); validNumber(s) {
			n.Number = s
		}
	}
	file := o.devFile(path)
	st, err := o.FS.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		n.Missing = true
		return n
	case err != nil:
		n.Denied = errnoText(err)
		return n
	}
	n.Actual = nodeNumber(st)
	if err := o.FS.Access(file); err != nil {
		n.Denied = errnoText(err)
	}
	return n
}

// Where the kernel announces the numbers.
func (o Options) groupNumber(name string) string {
	return filepath.Join(o.SysRoot, "class/vfio", name, "dev")
}
func (o Options) miscNumber(name string) string {
	return filepath.Join(o.SysRoot, "class/misc", name, "dev")
}
func (o Options) cdevNumber(b BDF, name string) string {
	return filepath.Join(o.deviceDir(b), "vfio-dev", name, "dev")
}

// iommufdNode and containerNode are misc devices of the kernel.
func (o Options) iommufdNode() DeviceNode   { return o.node(iommufdPath, o.miscNumber("iommu")) }
func (o Options) containerNode() DeviceNode { return o.node(containerPath, o.miscNumber("vfio")) }

const (
	iommufdPath   = "/dev/iommu"
	containerPath = "/dev/vfio/vfio"
	cdevFolder    = "/dev/vfio/devices/"
)

// vfioNodes finds the files of a function that a VFIO driver has.
func vfioNodes(f *Function, o Options, dir string) {
	v := &VFIONodes{IOMMUFD: o.iommufdNode(), Container: o.containerNode()}
	if name := cdevName(o, dir); name != "" {
		n := o.node(cdevFolder+name, o.cdevNumber(f.BDF, name))
		v.Cdev, f.VFIOCdev = &n, n.Path
	}
	if f.IOMMU != nil {
		name := strconv.Itoa(f.IOMMU.Number)
		if f.IOMMU.NoIOMMU {
			name = "noiommu-" + name
		}
		n := o.node("/dev/vfio/"+name, o.groupNumber(name))
		if n.Number != "" || v.Cdev == nil {
			v.Group, f.VFIONode = &n, n.Path
		}
	}
	f.VFIO = v
}

// cdevName is the function's name in /dev/vfio/devices. The folder vfio-dev is
// there on every kernel since 6.1; only with VFIO_DEVICE_CDEV has what is in it
// a device number. A function in no-IOMMU mode gets none (Linux vfio.h,
// vfio_device_add); kernels with IOMMUFD_NOIOMMU call it noiommu-vfioN.
// The group's file is the way in there all the same, see way.
func cdevName(o Options, dir string) string {
	r := &attrs{fs: o.FS, dir: dir}
	for _, name := range r.names("vfio-dev") {
		if _, err := o.FS.Stat(filepath.Join(dir, "vfio-dev", name, "dev")); err == nil && validName(name) {
			return name
		}
	}
	return ""
}

// guarded: an IOMMU translates what the function writes to and reads from.
func (f *Function) guarded() bool { return f.IOMMU != nil && !f.IOMMU.NoIOMMU }

// way says how an open of the function would go: the rules of vfio.Open.
func (f *Function) way(h *host) Way {
	o := h.o
	switch {
	case !o.chooses():
		return Way{o.Backend, "asked for"}
	case !f.guarded() && o.UnsafeNoIOMMU:
		return Way{BackendNoIOMMU, "no IOMMU is in charge of the function, and that was accepted"}
	case !f.guarded():
		return Way{"", "no IOMMU is in charge of the function"}
	case f.VFIO == nil:
		return h.wayAfterBind()
	}
	cdev, group, iommufd, container := f.VFIO.Cdev, f.VFIO.Group, &f.VFIO.IOMMUFD, &f.VFIO.Container
	switch {
	case cdev == nil:
		return Way{BackendType1, "this kernel offers no file of the function's own in /dev/vfio/devices"}
	case cdev.reached() && iommufd.reached():
		return Way{BackendIOMMUFD, fmt.Sprintf("%s and %s can be opened", cdev.Path, iommufd.Path)}
	case group == nil:
		return Way{BackendIOMMUFD, "this kernel offers no file of the IOMMU group"}
	}
	// Where an open fails by either way, the one that lacks less is judged, and of
	// two equal ones that whose error an open gives.
	byCdev, byGroup := lacking(cdev, iommufd), lacking(group, container)
	if byGroup > 0 && (byCdev < byGroup || byCdev == byGroup && group.Missing) {
		return Way{BackendIOMMUFD, why(group, container)}
	}
	return Way{BackendType1, why(cdev, iommufd)}
}

// lacking counts the nodes that are not reached.
func lacking(nodes ...*DeviceNode) (n int) {
	for _, x := range nodes {
		if !x.reached() {
			n++
		}
	}
	return n
}

// why tells what of the two is not reached.
func why(nodes ...*DeviceNode) string {
	for _, n := range nodes {
		switch {
		case n.Missing:
			return n.Path + " is missing"
		case n.Denied != "":
			return n.Path + ": " + n.Denied
		}
	}
	return ""
}

// wayAfterBind foretells: a loaded vfio module has a major number for each kind
// of file that it would make (Linux group.c, device_cdev.c).
func (h *host) wayAfterBind() Way {
	cdev, group := h.charDevice("vfio-dev"), h.charDevice("vfio")
	n := h.o.iommufdNode()
	list := filepath.Join(h.o.ProcRoot, "devices")
	switch {
	case cdev && !group:
		return Way{BackendIOMMUFD, list + " has vfio-dev and no vfio"}
	case cdev && n.reached():
		return Way{BackendIOMMUFD, fmt.Sprintf("%s has vfio-dev, and %s can be opened", list, n.Path)}
	case cdev:
		return Way{BackendType1, why(&n)}
	case group:
		return Way{BackendType1, list + " has vfio and no vfio-dev"}
	}
	return Way{BackendType1, "no VFIO module is loaded that would tell of another"}
}

// charDevice reports whether /proc/devices has a character major of that name.
func (h *host) charDevice(name string) bool {
	if h.devices == nil {
		text, _, _ := strings.Cut(h.proc("devices"), "Block devices:")
		h.devices = &text
	}
	for line := range strings.Lines(*h.devices) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == name {
			return true
		}
	}
	return false
}

// Unit is the IOMMU that is in charge of a function.
type Unit struct {
	// Name is the kernel's: "dmar0" (VT-d), "ivhd0" (AMD-Vi), "smmu3.0x…"; a
	// virtio-iommu has the PCI address of its device.
	Name string `json:"name"`
	// Driver is the driver of the unit's own device, "" for those of firmware
	// tables: "virtio_iommu", "arm-smmu-v3".
	Driver string `json:"driver,omitempty"`
}

func readUnit(o Options, dir string) *Unit {
	name := linkBase(o.FS, filepath.Join(dir, "iommu"))
	if !validName(name) {
		return nil
	}
	return &Unit{Name: name, Driver: linkBase(o.FS, filepath.Join(dir, "iommu/device/driver"))}
}

// kind is the unit in words.
func (u *Unit) kind() string {
	switch {
	case u == nil:
		return "the IOMMU"
	case u.virtio():
		return "virtio-iommu " + u.Name
	case strings.HasPrefix(u.Name, "dmar"):
		return "VT-d unit " + u.Name
	case strings.HasPrefix(u.Name, "ivhd"):
		return "AMD-Vi unit " + u.Name
	}
	return "IOMMU " + u.Name
}

func (u *Unit) virtio() bool {
	return u != nil && slices.Contains([]string{"virtio_iommu", "virtio-iommu"}, u.Driver)
}

func validNumber(s string) bool {
	_, _, ok := deviceNumber(s)
	return ok
}

// deviceNumber reads "240:5".
func deviceNumber(s string) (major, minor uint64, ok bool) {
	x, y, ok := strings.Cut(s, ":")
	if !ok {
		return 0, 0, false
	}
	major, e1 := strconv.ParseUint(x, 10, 32)
	minor, e2 := strconv.ParseUint(y, 10, 32)
	return major, minor, e1 == nil && e2 == nil
}

// nodeNumber is the number of a character device, "" for anything else.
func nodeNumber(st fs.FileInfo) string {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&fs.ModeCharDevice == 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", unix.Major(sys.Rdev), unix.Minor(sys.Rdev))
}
