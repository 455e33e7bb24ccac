// Package pcitest builds fake sysfs and procfs trees for tests of everything
// that works on PCI functions, with a small simulated kernel behind them:
// writes to driver_override, bind, unbind and drivers_probe take effect as in
// Linux drivers/base/bus.c and drivers/pci/pci-driver.c. All state is in the
// files, so that another process can go on with a tree after the first one was
// killed. Nothing here needs root or hardware.
package pcitest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/pci"
)

// Tree is a fake machine under one folder: sys, proc, dev and run.
type Tree struct {
	Root string
	tb   testing.TB
}

// Spec describes a function to add. The zero values give a ConnectX-5 without
// driver in no IOMMU group.
type Spec struct {
	BDF             string
	Vendor, Device  uint16 // 0 = 15b3:1017
	Class           uint32 // 0 = 0x020000
	Driver          string // must have been added with Driver
	Override        string
	Group           int // IOMMU group number, 0 = none
	Netdevs         []Netdev
	Infiniband      []string
	PhysFn          string // BDF of the PF
	Bridge          string // BDF of the port above, which must have been added
	VFs             []string
	NumVFs, Total   int // sriov_numvfs and sriov_totalvfs, written when Total > 0
	Config          []byte
	Resource        string            // "" = a 32 MiB BAR 0
	Attrs           map[string]string // further attribute files, or other contents
	WithoutNUMANode bool
}

// Netdev is a network interface of a function.
type Netdev struct {
	Name   string
	Up     bool
	Master string   // bond or bridge
	Uppers []string // all interfaces directly above, the master included
}

// What the kernel of a tree is built with, as files.
const (
	kconfigGroup = "kconfig/VFIO_GROUP"
	kconfigCdev  = "kconfig/VFIO_DEVICE_CDEV"
)

// New makes an empty machine with the drivers mlx5_core, vfio-pci and pcieport
// loaded and an IOMMU that remaps interrupts; the calling process is root. Its
// kernel is one of the older kind: VFIO_GROUP, VFIO_CONTAINER and VFIO_NOIOMMU,
// no IOMMUFD (see IOMMUFD and WithoutGroups).
func New(tb testing.TB) *Tree {
	tb.Helper()
	t := &Tree{Root: tb.TempDir(), tb: tb}
	for _, d := range []string{"sys/bus/pci/devices", "sys/bus/pci/drivers", "sys/kernel/iommu_groups", "sys/class/net",
		"sys/module/vfio/parameters", "proc/net", "ids", "fail"} {
		t.Mkdir(d)
	}
	t.Write("sys/bus/pci/drivers_probe", "")
	t.Write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "N\n")
	t.Write("proc/net/route", "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n")
	t.Write("proc/net/ipv6_route", "")
	t.Write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on\n")
	t.Write("proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu vme\n")
	t.Write("proc/interrupts", "   0:  7  0  IR-IO-APIC    2-edge      timer\n")
	t.Process(0, "unlimited", "unlimited")
	t.Write("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n")
	t.Write("sys/firmware/acpi/tables/DMAR", "DMAR")
	t.Write("dev/vfio/vfio", "")
	t.Write("sys/class/misc/vfio/dev", "10:196\n")
	t.Write(symbols, ownContainer)
	t.Write(kconfigGroup, "y")
	t.charDevices()
	t.Write("proc/self/uid_map", "         0          0 4294967295\n")
	t.Write("proc/self/pagemap", "")
	t.HugePages(2048, 64)
	var ids []string
	for _, id := range pci.HCAs() {
		ids = append(ids, fmt.Sprintf("15b3:%04x", id.Device))
	}
	t.Driver("mlx5_core", ids...)
	t.Driver("vfio-pci")
	t.Driver("pcieport")
	return t
}

// IOMMUFD gives the kernel IOMMUFD and VFIO_DEVICE_CDEV, with the module loaded
// and /dev/iommu made. It is for trees without VFIO functions yet.
func (t *Tree) IOMMUFD() {
	t.tb.Helper()
	t.Write(kconfigCdev, "y")
	t.Write("sys/class/misc/iommu/dev", "10:125\n")
	t.Write("sys/module/iommufd/parameters/allow_unsafe_interrupts", "N\n")
	t.Write("dev/iommu", "")
	t.charDevices()
}

// IOMMUFDContainer is a kernel with VFIO_GROUP, IOMMUFD and IOMMUFD_VFIO_CONTAINER,
// hence without VFIO_CONTAINER, and without VFIO_DEVICE_CDEV: iommufd announces
// VFIO's misc device and answers on /dev/vfio/vfio (Linux iommufd/main.c); there is
// no module vfio_iommu_type1. It is for trees without VFIO functions yet.
func (t *Tree) IOMMUFDContainer() {
	t.tb.Helper()
	t.IOMMUFD()
	t.Remove(kconfigCdev)
	t.Remove("sys/module/vfio_iommu_type1")
	t.Write(symbols, noContainer)
	t.charDevices()
}

// What /proc/kallsyms has to say: vfio's container.o is in the first kernel only.
const (
	symbols      = "proc/kallsyms"
	noContainer  = "0000000000000000 T iommufd_ctx_from_file\t[iommufd]\n0000000000000000 T vfio_register_group_dev\t[vfio]\n"
	ownContainer = noContainer + "0000000000000000 T vfio_register_iommu_driver\t[vfio]\n"
)

// WithoutGroups takes VFIO_GROUP, VFIO_CONTAINER and VFIO_NOIOMMU away: such a
// kernel has nothing but functions' own files. It is for trees without VFIO
// functions yet.
func (t *Tree) WithoutGroups() {
	t.tb.Helper()
	for _, name := range []string{kconfigGroup, "sys/class/misc/vfio", "dev/vfio/vfio", "sys/module/vfio_iommu_type1", noIOMMUParam} {
		t.Remove(name)
	}
	t.Write(symbols, noContainer)
	t.charDevices()
}

// charDevices writes what majors a loaded vfio has.
func (t *Tree) charDevices() {
	text := "Character devices:\n  1 mem\n 10 misc\n"
	if exists(t.Root, kconfigGroup) {
		text += "240 vfio\n"
	}
	if exists(t.Root, kconfigCdev) {
		text += "511 vfio-dev\n"
	}
	t.Write("proc/devices", text+"\nBlock devices:\n  8 sd\n")
}

// HugePages makes huge pages of a size in KiB free.
func (t *Tree) HugePages(kb, free int) {
	t.tb.Helper()
	dir := fmt.Sprintf("sys/kernel/mm/hugepages/hugepages-%dkB/", kb)
	t.Write(dir+"nr_hugepages", fmt.Sprintln(free))
	t.Write(dir+"free_hugepages", fmt.Sprintln(free))
	for _, name := range []string{"resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages"} {
		t.Write(dir+name, "0\n")
	}
}

// VirtioIOMMU puts a virtio-iommu in charge of a function: its unit in sysfs has
// the PCI name of the device that it is.
func (t *Tree) VirtioIOMMU(bdf, unit string) {
	t.tb.Helper()
	dev := "sys/devices/pci0000:00/" + unit + "/virtio0"
	t.Mkdir("sys/bus/virtio/drivers/virtio_iommu")
	t.Mkdir(dev + "/iommu/" + unit)
	t.Link(dev+"/driver", "sys/bus/virtio/drivers/virtio_iommu")
	t.Link(dev+"/iommu/"+unit+"/device", dev)
	t.Link(Device(bdf)+"/iommu", dev+"/iommu/"+unit)
}

// Capabilities makes the calling process have these alone, by the mask of
// CapEff.
func (t *Tree) Capabilities(mask uint64) {
	t.tb.Helper()
	var out string
	for line := range strings.Lines(t.Read("proc/self/status")) {
		if strings.HasPrefix(line, "CapEff:") {
			line = fmt.Sprintf("CapEff:\t%016x\n", mask)
		}
		out += line
	}
	t.Write("proc/self/status", out)
}

// Options points the pci package at the tree, with the simulated kernel.
func (t *Tree) Options() pci.Options {
	return pci.Options{SysRoot: t.Path("sys"), ProcRoot: t.Path("proc"), DevRoot: t.Path("dev"), JournalDir: t.Path("run/mlxvfio"),
		VerifyTimeout: 5 * time.Millisecond, FS: OpenKernel(t.Root)}
}

// Process makes the calling process that of a user, with limits for
// locked memory as /proc/self/limits words them. Only root has capabilities.
func (t *Tree) Process(uid int, soft, hard string) {
	t.tb.Helper()
	caps := "0000000000000000"
	if uid == 0 {
		caps = "000001ffffffffff"
	}
	t.Write("proc/self/status", fmt.Sprintf("Name:\ttest\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nVmLck:\t       0 kB\nCapEff:\t%[2]s\n", uid, caps))
	t.Write("proc/self/limits", fmt.Sprintf("%-26s%-21s%-21s%-10s\n%-26s%-21s%-21s%-10s\n",
		"Limit", "Soft Limit", "Hard Limit", "Units", "Max locked memory", soft, hard, "bytes"))
}

// Opens makes a process have a file open.
func (t *Tree) Opens(pid int, comm, name string) {
	t.tb.Helper()
	t.Write(fmt.Sprintf("proc/%d/comm", pid), comm+"\n")
	t.Mkdir(fmt.Sprintf("proc/%d/fd", pid))
	t.must(os.Symlink(name, t.Path(fmt.Sprintf("proc/%d/fd/7", pid))))
}

// OpensDevice makes a process have the file of a function open, without that of
// its group. syspath is what fdinfo says, "" for a kernel that says nothing.
func (t *Tree) OpensDevice(pid int, comm, syspath string) {
	t.tb.Helper()
	t.Opens(pid, comm, "anon_inode:[vfio-device]")
	text := "pos:\t0\nflags:\t02000002\n"
	if syspath != "" {
		text += "vfio-device-syspath: " + syspath + "\n"
	}
	t.Write(fmt.Sprintf("proc/%d/fdinfo/7", pid), text)
}

// Deny makes the kernel refuse the calling process access to a file of the
// tree, for one of the reasons "EACCES", "EPERM" and "EROFS".
func (t *Tree) Deny(name, errno string) { t.Write("deny/"+name, errno) }

// Node makes a file of the tree look like a character device.
func (t *Tree) Node(name string, major, minor uint32) {
	t.Write(name, "")
	t.Write("rdev/"+name, fmt.Sprintf("%d:%d", major, minor))
}

// Driver loads a PCI driver that claims the ids given as "vvvv:dddd".
func (t *Tree) Driver(name string, ids ...string) {
	t.tb.Helper()
	for _, f := range []string{"bind", "unbind"} {
		t.Write("sys/bus/pci/drivers/"+name+"/"+f, "")
	}
	var list string
	for _, id := range ids {
		list += id + "\n"
	}
	t.Write("ids/"+name, list)
}

// FailProbe makes every later probe by the driver fail.
func (t *Tree) FailProbe(driver string) { t.Write("fail/"+driver, "") }

// Device gives the path of a function's folder, relative to the tree.
func Device(bdf string) string { return "sys/bus/pci/devices/" + bdf }

// Add puts a function into the tree.
func (t *Tree) Add(s Spec) {
	t.tb.Helper()
	if s.Vendor == 0 {
		s.Vendor = pci.VendorMellanox
	}
	if s.Device == 0 {
		s.Device = 0x1017
	}
	if s.Class == 0 {
		s.Class = 0x020000
	}
	if s.Resource == "" {
		s.Resource = "0x00000000a0000000 0x00000000a1ffffff 0x000000000014220c\n" // 32 MiB, 64-bit, prefetchable
	}
	folder := "sys/devices/pci" + s.BDF[:7] + "/" + s.BDF
	if s.Bridge != "" {
		folder = "sys/devices/pci" + s.Bridge[:7] + "/" + s.Bridge + "/" + s.BDF
	}
	t.Mkdir(folder)
	t.Link(Device(s.BDF), folder)
	dev := Device(s.BDF)
	attrs := map[string]string{
		"vendor": fmt.Sprintf("0x%04x\n", s.Vendor), "device": fmt.Sprintf("0x%04x\n", s.Device),
		"subsystem_vendor": "0x15b3\n", "subsystem_device": "0x0008\n", "revision": "0x00\n",
		"class": fmt.Sprintf("0x%06x\n", s.Class), "irq": "16\n", "resource": s.Resource, "enable": "1\n",
		"driver_override": "(null)\n", "power_state": "D0\n", "reset_method": "flr bus\n",
		"current_link_speed": "8.0 GT/s PCIe\n", "max_link_speed": "8.0 GT/s PCIe\n",
		"current_link_width": "16\n", "max_link_width": "16\n",
	}
	if !s.WithoutNUMANode {
		attrs["numa_node"] = "0\n"
	}
	if s.Override != "" {
		attrs["driver_override"] = s.Override + "\n"
	}
	if s.Total > 0 {
		attrs["sriov_numvfs"], attrs["sriov_totalvfs"] = fmt.Sprintln(s.NumVFs), fmt.Sprintln(s.Total)
	}
	for k, v := range s.Attrs {
		attrs[k] = v
	}
	for k, v := range attrs {
		t.Write(dev+"/"+k, v)
	}
	if s.Config != nil {
		t.Write(dev+"/config", string(s.Config))
	}
	if s.PhysFn != "" {
		t.Link(dev+"/physfn", Device(s.PhysFn))
	}
	for i, vf := range s.VFs {
		t.Link(dev+"/virtfn"+strconv.Itoa(i), Device(vf))
	}
	if s.Group != 0 {
		g := "sys/kernel/iommu_groups/" + strconv.Itoa(s.Group)
		t.Write(g+"/type", "DMA-FQ\n")
		t.Write(g+"/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi\n")
		t.Link(g+"/devices/"+s.BDF, folder)
		t.Link(dev+"/iommu_group", g)
	}
	for _, n := range s.Netdevs {
		t.addNetdev(dev, n)
	}
	for _, ib := range s.Infiniband {
		t.Mkdir(dev + "/infiniband/" + ib)
	}
	if s.Driver != "" {
		t.must(attach(t.Root, s.BDF, s.Driver))
	}
}

func (t *Tree) addNetdev(dev string, n Netdev) {
	dir := dev + "/net/" + n.Name
	flags, state := "0x1002\n", "down\n"
	if n.Up {
		flags, state = "0x1003\n", "up\n"
	}
	t.Write(dir+"/flags", flags)
	t.Write(dir+"/operstate", state)
	t.Link("sys/class/net/"+n.Name, dir)
	for _, u := range n.Uppers {
		t.Mkdir("sys/class/net/" + u)
		t.Link(dir+"/upper_"+u, "sys/class/net/"+u)
	}
	if n.Master != "" {
		t.Link(dir+"/master", "sys/class/net/"+n.Master)
	}
}

// State is the part of a function that bind and unbind change.
type State struct{ Driver, Override string }

// State reads it.
func (t *Tree) State(bdf string) State {
	return State{driverOf(t.Root, bdf), overrideOf(t.Root, bdf)}
}
