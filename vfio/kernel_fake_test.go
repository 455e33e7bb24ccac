package vfio

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// fakeKernel stands in for VFIO at the system call table: containers, groups and
// functions with BAR0, configuration space and MSI-X, and a sysfs tree on disk. It
// keeps the rules of Linux (vfio.c, vfio_iommu_type1.c, vfio_pci_core.c) that this
// package relies on, counts what is open, and fails the call it is told to.
type fakeKernel struct {
	root string

	mu     sync.Mutex
	fds    map[int]*fakeFD
	next   int
	devs   map[string]*fakeDev
	mmaps  map[*byte]int
	blanks map[*byte]int
	broken []string // rules that the code under test broke

	// hook may answer a call itself: name as in log, e.g. "open group" or
	// "VFIO_SET_IOMMU". A close or unmap it fails is done all the same.
	hook func(name string) unix.Errno
	// short, if set, says how many of n bytes a pread or pwrite of a region moves.
	short func(name string, region, n int) int
	log   []string

	apiVersion int
	noType1v2  bool
	noRanges   bool
	sparse     []Span // sparse areas of BAR0
	tableOK    bool   // MSIX_MAPPABLE on BAR0
	oldCaps    bool   // no capability chains at all
	notViable  bool
	noReset    bool
	vectors    int // that the host has; fewer than the function's: see SET_IRQS
	maxMaps    int

	fakeIOMMUFD
	fakeMemory

	noHotReset bool
	extraHit   []fakeHit // further functions on the bus, that are not of the fake
	hotResets  int
}

// fakeHit is a function that a hot reset hits.
type fakeHit struct {
	segment    uint16
	bus, devfn uint8
	group      uint32
	vfio       bool // bound to vfio-pci
}

type fakeFD struct {
	kind      string // container, group, device, iommufd, pagemap
	container *fakeFD
	group     int
	iommu     int // the number of VFIO_SET_IOMMU
	maps      map[uint64]uint64
	dev       *fakeDev
	armed     bool
	cdev      fakeCDev // how a device was opened
	objects   map[uint32]*fakeIOAS
}

type fakeDev struct {
	bdf    string
	group  int
	bar    []byte
	config []byte
	fds    [8]int32
	resets int
	behind *fakeBehind // a function of another Transport is the hardware

	noIOMMU  bool
	file     string      // its name in /dev/vfio/devices
	reserved []IOVARange // bus addresses it cannot use, beside the usual ones
}

var ioctlNames = map[uint]string{
	abi.VFIO_GET_API_VERSION: "VFIO_GET_API_VERSION", abi.VFIO_CHECK_EXTENSION: "VFIO_CHECK_EXTENSION", abi.VFIO_SET_IOMMU: "VFIO_SET_IOMMU",
	abi.VFIO_IOMMU_GET_INFO: "VFIO_IOMMU_GET_INFO", abi.VFIO_IOMMU_MAP_DMA: "VFIO_IOMMU_MAP_DMA", abi.VFIO_IOMMU_UNMAP_DMA: "VFIO_IOMMU_UNMAP_DMA",
	abi.VFIO_GROUP_GET_STATUS: "VFIO_GROUP_GET_STATUS", abi.VFIO_GROUP_SET_CONTAINER: "VFIO_GROUP_SET_CONTAINER",
	abi.VFIO_GROUP_GET_DEVICE_FD: "VFIO_GROUP_GET_DEVICE_FD", abi.VFIO_DEVICE_GET_INFO: "VFIO_DEVICE_GET_INFO",
	abi.VFIO_DEVICE_GET_REGION_INFO: "VFIO_DEVICE_GET_REGION_INFO", abi.VFIO_DEVICE_GET_IRQ_INFO: "VFIO_DEVICE_GET_IRQ_INFO",
	abi.VFIO_DEVICE_SET_IRQS: "VFIO_DEVICE_SET_IRQS", abi.VFIO_DEVICE_RESET: "VFIO_DEVICE_RESET",
	abi.VFIO_DEVICE_BIND_IOMMUFD: "VFIO_DEVICE_BIND_IOMMUFD", abi.VFIO_DEVICE_ATTACH_IOMMUFD_PT: "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
	abi.IOMMU_DESTROY: "IOMMU_DESTROY", abi.IOMMU_IOAS_ALLOC: "IOMMU_IOAS_ALLOC", abi.IOMMU_IOAS_ALLOW_IOVAS: "IOMMU_IOAS_ALLOW_IOVAS",
	abi.IOMMU_IOAS_IOVA_RANGES: "IOMMU_IOAS_IOVA_RANGES", abi.IOMMU_IOAS_MAP: "IOMMU_IOAS_MAP", abi.IOMMU_IOAS_UNMAP: "IOMMU_IOAS_UNMAP",
}

const (
	fakeBAR   = 64 << 10
	fakeTable = 0x2000
)

// newFakeKernel has the function 0000:01:00.0 in group 1 and 0000:02:00.0 with
// 0000:02:00.1 in group 2, all bound to vfio-pci.
func newFakeKernel(t *testing.T) *fakeKernel {
	k := bareKernel(t.TempDir())
	k.addDev(t, "0000:01:00.0", 1, "vfio-pci")
	k.addDev(t, "0000:02:00.0", 2, "vfio-pci")
	k.addDev(t, "0000:02:00.1", 2, "vfio-pci")
	return k
}

func bareKernel(root string) *fakeKernel {
	return &fakeKernel{
		root: root, fds: map[int]*fakeFD{}, next: 1000, devs: map[string]*fakeDev{}, mmaps: map[*byte]int{}, blanks: map[*byte]int{},
		tableOK: true, vectors: 8, maxMaps: 64,
	}
}

// again is the kernel after a boot, with the same functions.
func (k *fakeKernel) again() *fakeKernel {
	n := bareKernel(k.root)
	n.noIOMMUMode = k.noIOMMUMode
	for bdf, d := range k.devs {
		n.devs[bdf] = newFakeDev(bdf, d.group)
		n.devs[bdf].noIOMMU, n.devs[bdf].file = d.noIOMMU, d.file
	}
	return n
}

func (k *fakeKernel) options() KernelOptions {
	return KernelOptions{Sysfs: filepath.Join(k.root, "sys"), DevRoot: filepath.Join(k.root, "dev"), Proc: filepath.Join(k.root, "proc"), sys: k}
}

func newFakeDev(bdf string, group int) *fakeDev {
	d := &fakeDev{bdf: bdf, group: group, bar: make([]byte, fakeBAR), config: make([]byte, 4096)}
	binary.LittleEndian.PutUint32(d.config, 0x101715b3)
	d.config[configStatus] = statusCapList
	d.config[configCapFirst] = 0x40
	copy(d.config[0x40:], []byte{1, 0x9c, 3, 0})                                      // power management
	copy(d.config[0x9c:], []byte{capMSIX, 0, 7, 0, 0, fakeTable >> 8, 0, 0, 0, 0x30}) // 8 entries in BAR0
	d.bar[0], d.bar[1], d.bar[2], d.bar[3] = 0, 1, 2, 3
	return d
}

// addDev puts a function into sysfs, and into the kernel's table.
func (k *fakeKernel) addDev(t *testing.T, bdf string, group int, driver string) {
	t.Helper()
	k.devs[bdf] = newFakeDev(bdf, group)
	dir := filepath.Join(k.root, "sys/bus/pci/devices", bdf)
	members := filepath.Join(k.root, "sys/kernel/iommu_groups", fmt.Sprint(group), "devices")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.MkdirAll(members, 0o700))
	require.NoError(t, os.Symlink(dir, filepath.Join(members, bdf)))
	require.NoError(t, os.Symlink(filepath.Dir(members), filepath.Join(dir, "iommu_group")))
	k.setDriver(t, bdf, driver)
}

func (k *fakeKernel) setDriver(t *testing.T, bdf, driver string) {
	t.Helper()
	link := filepath.Join(k.root, "sys/bus/pci/devices", bdf, "driver")
	_ = os.Remove(link)
	if driver != "" {
		require.NoError(t, os.Symlink("/nowhere/"+driver, link))
	}
}

// requireClean checks that nothing is open or mapped, and no rule was broken.
func (k *fakeKernel) requireClean(t *testing.T, msg ...any) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for fd, f := range k.fds {
		require.Fail(t, "left open", "%d: %s %v", fd, f.kind, msg)
	}
	require.Empty(t, k.mmaps, msg...)
	require.Empty(t, k.huge, msg...)
	require.Empty(t, k.broken, msg...)
}

// enter logs a call and asks the hook. Called with mu held.
func (k *fakeKernel) enter(name string) error {
	k.log = append(k.log, name)
	if k.hook != nil {
		if e := k.hook(name); e != 0 {
			return e
		}
	}
	return nil
}

func (k *fakeKernel) add(f *fakeFD) int {
	k.next++
	k.fds[k.next] = f
	return k.next
}

func (k *fakeKernel) open(path string, flags int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name, ok := strings.CutPrefix(path, filepath.Join(k.root, "dev/vfio")+"/")
	if !ok || strings.HasPrefix(name, "devices/") {
		return k.openOther(path)
	}
	if name == "vfio" {
		return k.openFile("open container", &fakeFD{kind: "container", maps: map[uint64]uint64{}})
	}
	if err := k.enter("open group"); err != nil {
		return -1, err
	}
	var group int
	bare, noIOMMU := strings.CutPrefix(name, "noiommu-")
	if _, err := fmt.Sscan(bare, &group); err != nil {
		return -1, unix.ENOENT
	}
	there := false
	for _, d := range k.devs {
		there = there || d.group == group && d.noIOMMU == noIOMMU
	}
	if !there || k.noGroups {
		return -1, unix.ENOENT
	}
	for _, f := range k.fds {
		if f.kind == "group" && f.group == group || f.cdev.iommufd != nil && f.dev.group == group {
			return -1, unix.EBUSY
		}
	}
	return k.add(&fakeFD{kind: "group", group: group}), nil
}

func (k *fakeKernel) close(fd int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.fds[fd]
	if f == nil {
		k.broken = append(k.broken, fmt.Sprintf("close of %d, which is not open", fd))
		return unix.EBADF
	}
	delete(k.fds, fd)
	for _, other := range k.fds {
		if other == f { // a duplicate
			return k.enter("close " + f.kind)
		}
	}
	for _, other := range k.fds {
		if other.cdev.iommufd == f {
			k.broken = append(k.broken, "iommufd closed before its function")
		}
		if f.kind == "group" && other.kind == "device" && other.dev.group == f.group {
			k.broken = append(k.broken, "group closed before its function")
		}
		if f.kind == "container" && other.container == f {
			k.broken = append(k.broken, "container closed before its group")
		}
	}
	if f.kind == "device" && f.armed {
		k.broken = append(k.broken, "function closed with interrupts attached")
	}
	if c := f.container; f.kind == "group" && c != nil {
		last := true
		for _, other := range k.fds {
			last = last && other.container != c
		}
		if last { // the IOMMU type and the mappings go with the last group
			c.iommu = 0
			k.forgetBehind(f.group)
			clear(c.maps)
		}
	}
	if f.kind == "device" && f.dev.behind != nil {
		f.dev.behind.release()
		if f.cdev.opened { // without a function in it the address space is a list
			f.dev.behind.forget()
		}
	}
	return k.enter("close " + f.kind)
}

func (k *fakeKernel) ioctlInt(fd int, req uint, arg int) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.enter(ioctlNames[req]); err != nil {
		return 0, err
	}
	f := k.fds[fd]
	switch {
	case f == nil:
		return 0, unix.EBADF
	case f.kind == "container" && req == abi.VFIO_GET_API_VERSION:
		return k.apiVersion, nil
	case f.kind == "container" && req == abi.VFIO_CHECK_EXTENSION:
		if arg == abi.VFIO_TYPE1v2_IOMMU && !k.noType1v2 || arg == abi.VFIO_NOIOMMU_IOMMU && k.noIOMMUMode {
			return 1, nil
		}
		return 0, nil
	case f.kind == "container" && req == abi.VFIO_SET_IOMMU:
		groups, want := 0, abi.VFIO_TYPE1v2_IOMMU
		for _, g := range k.fds {
			if g.container == f {
				groups++
				if k.noIOMMUGroup(g.group) {
					want = abi.VFIO_NOIOMMU_IOMMU
				}
			}
		}
		if groups == 0 || f.iommu != 0 || arg != want {
			return 0, unix.EINVAL
		}
		f.iommu = arg
		return 0, nil
	case f.kind == "device" && req == abi.VFIO_DEVICE_RESET:
		f.dev.resets++
		if f.dev.behind != nil {
			return 0, f.dev.behind.reset()
		}
		return 0, nil
	}
	return 0, unix.ENOTTY
}

func (k *fakeKernel) ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.fds[fd]
	name := ioctlNames[req]
	if f != nil && f.kind == "device" { // numbers that mean something else on a container
		switch req {
		case abi.VFIO_DEVICE_GET_PCI_HOT_RESET_INFO:
			name = "VFIO_DEVICE_GET_PCI_HOT_RESET_INFO"
		case abi.VFIO_DEVICE_PCI_HOT_RESET:
			name = "VFIO_DEVICE_PCI_HOT_RESET"
		}
	}
	if err := k.enter(name); err != nil {
		return 0, err
	}
	if f == nil {
		return 0, unix.EBADF
	}
	if done, err := k.iommufdIoctl(f, name, arg); done {
		return 0, err
	}
	switch f.kind + " " + name {
	case "device VFIO_DEVICE_GET_PCI_HOT_RESET_INFO":
		return 0, k.hotResetInfo(f, (*abi.Pci_hot_reset_info)(arg))
	case "device VFIO_DEVICE_PCI_HOT_RESET":
		return 0, k.hotReset(f, (*abi.Pci_hot_reset)(arg))
	case "container VFIO_IOMMU_GET_INFO":
		if f.iommu == abi.VFIO_NOIOMMU_IOMMU {
			return 0, unix.ENOTTY
		}
		return 0, k.iommuInfo(arg)
	case "container VFIO_IOMMU_MAP_DMA":
		return 0, k.mapDMA(f, (*abi.Iommu_type1_dma_map)(arg))
	case "container VFIO_IOMMU_UNMAP_DMA":
		return 0, k.unmapDMA(f, (*abi.Iommu_type1_dma_unmap)(arg))
	case "group VFIO_GROUP_GET_STATUS":
		if !k.notViable {
			(*abi.Group_status)(arg).Flags = abi.VFIO_GROUP_FLAGS_VIABLE
		}
		return 0, nil
	case "group VFIO_GROUP_SET_CONTAINER":
		f.container = k.fds[int(*(*int32)(arg))]
		if f.container == nil || f.container.kind != "container" {
			return 0, unix.EBADF
		}
		return 0, nil
	case "group VFIO_GROUP_GET_DEVICE_FD":
		name := unix.BytePtrToString((*byte)(arg))
		d := k.devs[name]
		if d == nil || d.group != f.group {
			return 0, unix.ENODEV
		}
		if f.container == nil || f.container.iommu == 0 {
			return 0, unix.EINVAL
		}
		if d.behind != nil {
			d.behind.use()
		}
		return k.add(&fakeFD{kind: "device", dev: d}), nil
	case "device VFIO_DEVICE_GET_INFO":
		x := (*abi.Device_info)(arg)
		x.Flags, x.Num_regions, x.Num_irqs = abi.VFIO_DEVICE_FLAGS_PCI, NumRegions, NumIRQs
		if !k.noReset {
			x.Flags |= abi.VFIO_DEVICE_FLAGS_RESET
		}
		return 0, nil
	case "device VFIO_DEVICE_GET_REGION_INFO":
		if f.dev.behind != nil {
			return 0, f.dev.behind.regionInfo(arg)
		}
		return 0, k.regionInfo(arg)
	case "device VFIO_DEVICE_GET_IRQ_INFO":
		x := (*abi.Irq_info)(arg)
		if f.dev.behind != nil {
			return 0, f.dev.behind.irqInfo(x)
		}
		switch x.Index {
		case IRQMSIX:
			x.Count, x.Flags = 8, abi.VFIO_IRQ_INFO_EVENTFD|abi.VFIO_IRQ_INFO_NORESIZE
		case IRQErr:
			return 0, unix.EINVAL // no PCI Express
		}
		return 0, nil
	case "device VFIO_DEVICE_SET_IRQS":
		if f.dev.behind != nil {
			return 0, f.dev.behind.setIRQs(f, (*abi.Irq_set)(arg))
		}
		return k.setIRQs(f, (*abi.Irq_set)(arg))
	}
	return 0, unix.ENOTTY
}

// answer writes a structure and a chain behind it, as far as argsz allows: the
// kernel then reports the size it wanted and leaves the chain out.
func answer(arg unsafe.Pointer, fixed []byte, capOffset int, flag uint32, caps [][]byte) {
	argsz := int(*(*uint32)(arg))
	var chain []byte
	for i, c := range caps {
		at := len(fixed) + len(chain)
		if i < len(caps)-1 {
			binary.NativeEndian.PutUint32(c[4:], uint32(at+len(c)))
		}
		chain = append(chain, c...)
	}
	want := len(fixed) + len(chain)
	if len(caps) > 0 {
		flags := binary.NativeEndian.Uint32(fixed[4:])
		binary.NativeEndian.PutUint32(fixed[4:], flags|flag)
		if argsz >= want {
			binary.NativeEndian.PutUint32(fixed[capOffset:], uint32(len(fixed)))
		}
	}
	binary.NativeEndian.PutUint32(fixed, uint32(want))
	out := fixed
	if argsz >= want {
		out = append(out, chain...)
	} else {
		binary.NativeEndian.PutUint32(out, uint32(want))
	}
	copy(unsafe.Slice((*byte)(arg), argsz), out)
}

func chainCap(id uint16, body ...uint32) []byte {
	c := binary.NativeEndian.AppendUint16(nil, id)
	c = binary.NativeEndian.AppendUint16(c, 1)
	c = append(c, 0, 0, 0, 0)
	for _, w := range body {
		c = binary.NativeEndian.AppendUint32(c, w)
	}
	return c
}

func words(v ...uint64) (out []uint32) {
	for _, x := range v {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], x)
		out = append(out, binary.NativeEndian.Uint32(b[:]), binary.NativeEndian.Uint32(b[4:]))
	}
	return out
}

// fakeRanges are the ranges of a 48-bit VT-d without the interrupt window.
var fakeRanges = []IOVARange{{0, msiFirst - 1}, {msiLast + 1, 1<<48 - 1}}

func (k *fakeKernel) iommuInfo(arg unsafe.Pointer) error {
	fixed := make([]byte, abi.SizeIommu_type1_info)
	binary.NativeEndian.PutUint32(fixed[4:], abi.VFIO_IOMMU_INFO_PGSIZES)
	binary.NativeEndian.PutUint64(fixed[8:], 0xfffffffffffff000)
	var caps [][]byte
	if !k.noRanges {
		body := []uint32{uint32(len(fakeRanges)), 0}
		for _, r := range fakeRanges {
			body = append(body, words(r.First, r.Last)...)
		}
		caps = append(caps, chainCap(abi.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, body...),
			chainCap(abi.VFIO_IOMMU_TYPE1_INFO_CAP_MIGRATION, 0, 0, 0, 0, 0, 0),
			chainCap(abi.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, 65535))
	}
	answer(arg, fixed, 16, abi.VFIO_IOMMU_INFO_CAPS, caps)
	return nil
}

func (k *fakeKernel) regionInfo(arg unsafe.Pointer) error {
	x := (*abi.Region_info)(arg)
	index := x.Index
	fixed := make([]byte, abi.SizeRegion_info)
	binary.NativeEndian.PutUint32(fixed[8:], index)
	binary.NativeEndian.PutUint64(fixed[24:], uint64(index)<<40)
	rw := uint32(abi.VFIO_REGION_INFO_FLAG_READ | abi.VFIO_REGION_INFO_FLAG_WRITE)
	var caps [][]byte
	switch index {
	case RegionBAR0:
		binary.NativeEndian.PutUint32(fixed[4:], rw|abi.VFIO_REGION_INFO_FLAG_MMAP)
		binary.NativeEndian.PutUint64(fixed[16:], fakeBAR)
		if k.tableOK {
			caps = append(caps, chainCap(abi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE))
		}
		if k.sparse != nil {
			body := []uint32{uint32(len(k.sparse)), 0}
			for _, s := range k.sparse {
				body = append(body, words(s.Offset, s.Size)...)
			}
			caps = append(caps, chainCap(abi.VFIO_REGION_INFO_CAP_SPARSE_MMAP, body...))
		}
	case RegionConfig:
		binary.NativeEndian.PutUint32(fixed[4:], rw)
		binary.NativeEndian.PutUint64(fixed[16:], 4096)
	case RegionVGA:
		return unix.EINVAL
	}
	if k.oldCaps {
		caps = nil
	}
	answer(arg, fixed, 12, abi.VFIO_REGION_INFO_FLAG_CAPS, caps)
	return nil
}

func (k *fakeKernel) mapDMA(f *fakeFD, x *abi.Iommu_type1_dma_map) error {
	usable := false
	for _, r := range fakeRanges {
		usable = usable || x.Iova >= r.First && x.Iova <= r.Last && x.Size-1 <= r.Last-x.Iova
	}
	switch {
	case f.iommu == abi.VFIO_NOIOMMU_IOMMU:
		return unix.ENOTTY
	case f.iommu == 0 || x.Size == 0 || (x.Iova|x.Size|x.Vaddr)%4096 != 0 || x.Flags&3 == 0 || x.Flags&^3 != 0 || !usable:
		return unix.EINVAL
	case len(f.maps) >= k.maxMaps:
		return unix.ENOSPC
	}
	for at, size := range f.maps {
		if at < x.Iova+x.Size && x.Iova < at+size {
			return unix.EEXIST
		}
	}
	for _, b := range k.behind(f) {
		if err := b.mapDMA(&x.Vaddr, x.Iova, x.Size, x.Flags&abi.VFIO_DMA_MAP_FLAG_WRITE == 0); err != nil {
			return err
		}
	}
	f.maps[x.Iova] = x.Size
	return nil
}

func (k *fakeKernel) unmapDMA(f *fakeFD, x *abi.Iommu_type1_dma_unmap) error {
	done := uint64(0)
	for at, size := range f.maps {
		if at >= x.Iova && at+size <= x.Iova+x.Size {
			delete(f.maps, at)
			done += size
			for _, b := range k.behind(f) {
				if err := b.unmapDMA(at, size); err != nil {
					return err
				}
			}
		} else if at < x.Iova+x.Size && x.Iova < at+size {
			return unix.EINVAL // it would split a mapping
		}
	}
	x.Size = done
	return nil
}

func (k *fakeKernel) setIRQs(f *fakeFD, x *abi.Irq_set) (int, error) {
	const efd = abi.VFIO_IRQ_SET_DATA_EVENTFD | abi.VFIO_IRQ_SET_ACTION_TRIGGER
	const none = abi.VFIO_IRQ_SET_DATA_NONE | abi.VFIO_IRQ_SET_ACTION_TRIGGER
	switch {
	case x.Index != IRQMSIX:
		return 0, unix.EINVAL
	case x.Flags == none && x.Count == 0:
		if !f.armed {
			return 0, unix.EINVAL
		}
		f.armed = false
		for i := range f.dev.fds {
			f.dev.fds[i] = -1
		}
		return 0, nil
	case x.Flags != efd || x.Count == 0 || x.Start+x.Count > 8 || x.Argsz != abi.SizeIrq_set+4*x.Count:
		return 0, unix.EINVAL
	case int(x.Start+x.Count) > k.vectors && !f.armed:
		return k.vectors, nil // as Linux does: fewer could be had
	}
	fds := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(x), abi.SizeIrq_set)), x.Count)
	for _, fd := range fds {
		if fd >= 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
				return 0, unix.EBADF
			}
		}
	}
	f.armed = true
	copy(f.dev.fds[x.Start:], fds)
	return 0, nil
}

// raise signals an eventfd, as the interrupt handler would.
func (k *fakeKernel) raise(bdf string, i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if fd := k.devs[bdf].fds[i]; fd > 0 {
		if _, err := unix.Write(int(fd), one[:]); err != nil {
			k.broken = append(k.broken, "interrupt to a closed eventfd")
		}
	}
}

// memory finds what a file offset of a function means.
func (k *fakeKernel) memory(name string, fd int, off int64) ([]byte, error) {
	if err := k.enter(name); err != nil {
		return nil, err
	}
	f := k.fds[fd]
	if f == nil || f.kind != "device" {
		return nil, unix.EBADF
	}
	if f.cdev.opened && f.cdev.iommufd == nil {
		return nil, unix.EINVAL // not bound
	}
	if b := f.dev.behind; b != nil {
		return b.memory(off)
	}
	m := f.dev.bar
	if off>>40 == RegionConfig {
		m = f.dev.config
	} else if off>>40 != RegionBAR0 {
		return nil, unix.EINVAL
	}
	off &= 1<<40 - 1
	if off >= int64(len(m)) {
		return nil, unix.EINVAL
	}
	return m[off:], nil
}

func (k *fakeKernel) pread(fd int, p []byte, off int64) (int, error) {
	k.mu.Lock()
	if f := k.fds[fd]; f != nil && f.kind == "pagemap" {
		defer k.mu.Unlock()
		return k.readPagemap(p, off)
	}
	k.mu.Unlock()
	return k.access("pread", fd, p, off)
}

func (k *fakeKernel) pwrite(fd int, p []byte, off int64) (int, error) {
	return k.access("pwrite", fd, p, off)
}

func (k *fakeKernel) access(name string, fd int, p []byte, off int64) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.memory(name, fd, off)
	if err != nil {
		return -1, err
	}
	if k.short != nil {
		p = p[:k.short(name, int(off>>40), len(p))]
	}
	switch b := k.fds[fd].dev.behind; {
	case b != nil:
		return b.access(name, p, off)
	case name == "pwrite":
		return copy(m, p), nil
	}
	return copy(p, m), nil
}

func (k *fakeKernel) mmap(fd int, off int64, size, prot int) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, err := k.memory("mmap", fd, off)
	if err != nil {
		return nil, err
	}
	if size > len(m) || off%4096 != 0 || size%4096 != 0 || prot != unix.PROT_READ|unix.PROT_WRITE {
		return nil, unix.EINVAL
	}
	k.mmaps[&m[0]]++
	return m[:size:size], nil
}

func (k *fakeKernel) blank(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.blanks[&b[0]]++
	if k.mmaps[&b[0]]--; k.mmaps[&b[0]] == 0 {
		delete(k.mmaps, &b[0])
	}
	return k.enter("blank")
}

func (k *fakeKernel) munmap(b []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.blanks[&b[0]] > 0 { // long after Close, by the collector
		k.blanks[&b[0]]--
		return nil
	}
	if k.mmaps[&b[0]]--; k.mmaps[&b[0]] == 0 {
		delete(k.mmaps, &b[0])
	}
	return k.enter("munmap")
}

// mappings are the DMA mappings in all containers and address spaces.
func (k *fakeKernel) mappings() map[uint64]uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[uint64]uint64{}
	for _, f := range k.fds {
		maps.Copy(all, f.maps)
		for _, a := range f.objects {
			for iova, m := range a.maps {
				all[iova] = m.Length
			}
		}
	}
	return all
}

// failCall makes the nth call of that name fail.
func (k *fakeKernel) failCall(name string, nth int, errno unix.Errno) {
	k.hook = func(n string) unix.Errno {
		if n == name {
			if nth--; nth == 0 {
				return errno
			}
		}
		return 0
	}
}

// calls counts calls of that name.
func (k *fakeKernel) calls(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for _, c := range k.log {
		if c == name {
			n++
		}
	}
	return n
}

// openFiles are the files of this process of that kind, as /proc names them.
func openFiles(t *testing.T, kind string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range list {
		link, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && strings.Contains(link, kind) {
			n++
		}
	}
	return n
}
