package vfio

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// fakeIOMMUFD is what the fake kernel knows of iommufd and of functions' own files,
// by the rules of Linux vfio/device_cdev.c and iommufd (device.c, ioas.c,
// io_pagetable.c).
type fakeIOMMUFD struct {
	noIOMMUFile bool // there is no /dev/iommu
	noGroups    bool // there are no files of IOMMU groups
	notIsolated bool // interrupts are not isolated
	alignment   uint64
	nextID      uint32
}

// fakeCDev is a device that was opened by its own file.
type fakeCDev struct {
	opened  bool
	iommufd *fakeFD
	devid   uint32
	ioas    uint32
}

type fakeIOAS struct {
	maps    map[uint64]abi.Iommu_ioas_map
	allowed []abi.Iommu_iova_range
}

// newFakeCDevs is newFakeKernel with a kernel that has iommufd.
func newFakeCDevs(t *testing.T) *fakeKernel {
	k := newFakeKernel(t)
	for i, bdf := range []string{"0000:01:00.0", "0000:02:00.0", "0000:02:00.1"} {
		k.addCDev(t, bdf, fmt.Sprintf("vfio%d", i))
	}
	return k
}

// addCDev gives a function its own file. The folder is there in kernels without,
// too; the device number is not.
func (k *fakeKernel) addCDev(t *testing.T, bdf, name string) {
	t.Helper()
	dir := filepath.Join(k.root, "sys/bus/pci/devices", bdf, "vfio-dev", name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "dev"), []byte("511:0\n"), 0o600))
	k.devs[bdf].file = name
}

// openOther opens what is not a container or a group.
func (k *fakeKernel) openOther(path string) (int, error) {
	switch {
	case path == filepath.Join(k.root, "proc/self/pagemap"):
		return k.openFile("open pagemap", &fakeFD{kind: "pagemap"})
	case path == filepath.Join(k.root, "dev/iommu"):
		if k.noIOMMUFile {
			return -1, unix.ENOENT
		}
		return k.openFile("open iommufd", &fakeFD{kind: "iommufd", objects: map[uint32]*fakeIOAS{}})
	}
	for _, d := range k.devs {
		if d.file != "" && path == filepath.Join(k.root, "dev/vfio/devices", d.file) {
			return k.openFile("open cdev", &fakeFD{kind: "device", dev: d, cdev: fakeCDev{opened: true}})
		}
	}
	return -1, unix.ENOENT
}

func (k *fakeKernel) openFile(name string, f *fakeFD) (int, error) {
	if err := k.enter(name); err != nil {
		return -1, err
	}
	return k.add(f), nil
}

// iommufdIoctl answers what concerns iommufd.
func (k *fakeKernel) iommufdIoctl(f *fakeFD, name string, arg unsafe.Pointer) (done bool, err error) {
	switch f.kind + " " + name {
	case "device VFIO_DEVICE_BIND_IOMMUFD":
		return true, k.bind(f, (*abi.Device_bind_iommufd)(arg))
	case "device VFIO_DEVICE_ATTACH_IOMMUFD_PT":
		return true, k.attach(f, (*abi.Device_attach_iommufd_pt)(arg))
	case "iommufd IOMMU_IOAS_ALLOC":
		x := (*abi.Iommu_ioas_alloc)(arg)
		if x.Size != abi.SizeIommu_ioas_alloc || x.Flags != 0 {
			return true, unix.EINVAL
		}
		x.Out_ioas_id = k.newID()
		f.objects[x.Out_ioas_id] = &fakeIOAS{maps: map[uint64]abi.Iommu_ioas_map{}}
		return true, nil
	case "iommufd IOMMU_DESTROY":
		x := (*abi.Iommu_destroy)(arg)
		if f.objects[x.Id] == nil {
			return true, unix.ENOENT
		}
		if len(k.attached(f, x.Id)) > 0 {
			return true, unix.EBUSY
		}
		delete(f.objects, x.Id)
		return true, nil
	case "iommufd IOMMU_IOAS_IOVA_RANGES":
		return true, k.iovaRanges(f, (*abi.Iommu_ioas_iova_ranges)(arg))
	case "iommufd IOMMU_IOAS_ALLOW_IOVAS":
		return true, k.allowIOVAs(f, (*abi.Iommu_ioas_allow_iovas)(arg))
	case "iommufd IOMMU_IOAS_MAP":
		return true, k.ioasMap(f, (*abi.Iommu_ioas_map)(arg))
	case "iommufd IOMMU_IOAS_UNMAP":
		return true, k.ioasUnmap(f, (*abi.Iommu_ioas_unmap)(arg))
	}
	// A file that is not bound answers nothing else.
	return f.cdev.opened && f.cdev.iommufd == nil, unix.EINVAL
}

func (k *fakeKernel) newID() uint32 {
	k.nextID++
	return k.nextID
}

// attached are the functions in an address space.
func (k *fakeKernel) attached(iommufd *fakeFD, ioas uint32) []*fakeFD {
	var l []*fakeFD
	for _, f := range k.fds {
		if f.cdev.iommufd == iommufd && f.cdev.ioas == ioas {
			l = append(l, f)
		}
	}
	return l
}

func (k *fakeKernel) bind(f *fakeFD, x *abi.Device_bind_iommufd) error {
	fd := k.fds[int(x.Iommufd)]
	if x.Argsz < abi.SizeDevice_bind_iommufd || x.Flags != 0 || !f.cdev.opened || f.cdev.iommufd != nil {
		return unix.EINVAL
	}
	for _, other := range k.fds {
		if other.kind == "group" && other.group == f.dev.group {
			return unix.EBUSY
		}
	}
	if fd == nil || fd.kind != "iommufd" {
		return unix.EBADF
	}
	for _, other := range k.fds {
		if other.cdev.iommufd != nil && other.dev == f.dev {
			return unix.EINVAL
		}
	}
	if k.notIsolated || k.notViable {
		return unix.EPERM
	}
	for _, other := range k.fds {
		if other.cdev.iommufd != nil && other.dev.group == f.dev.group && other.cdev.iommufd != fd {
			return unix.EPERM
		}
	}
	f.cdev.iommufd, f.cdev.devid = fd, k.newID()
	if f.dev.behind != nil {
		f.dev.behind.use()
	}
	x.Out_devid = f.cdev.devid
	return nil
}

// reservedOf are the bus addresses that a function cannot use.
func reservedOf(d *fakeDev) []IOVARange {
	return append([]IOVARange{{msiFirst, msiLast}, {1 << 48, 1<<64 - 1}}, d.reserved...)
}

func (k *fakeKernel) attach(f *fakeFD, x *abi.Device_attach_iommufd_pt) error {
	if x.Argsz < abi.SizeDevice_attach_iommufd_pt || x.Flags != 0 || f.cdev.iommufd == nil {
		return unix.EINVAL
	}
	a := f.cdev.iommufd.objects[x.Pt_id]
	if a == nil {
		return unix.ENOENT
	}
	for _, other := range k.fds {
		if other.cdev.iommufd != nil && other.dev.group == f.dev.group && other.cdev.ioas != 0 && other.cdev.ioas != x.Pt_id {
			return unix.EINVAL
		}
	}
	for _, r := range reservedOf(f.dev) {
		for _, y := range a.allowed {
			if y.Start <= r.Last && r.First <= y.Last {
				return unix.EADDRINUSE
			}
		}
		for at, m := range a.maps {
			if at <= r.Last && r.First <= at+m.Length-1 {
				return unix.EADDRINUSE
			}
		}
	}
	if b := f.dev.behind; b != nil {
		for _, m := range a.maps {
			if err := b.mapDMA(&m.User_va, m.Iova, m.Length, m.Flags&abi.IOMMU_IOAS_MAP_WRITEABLE == 0); err != nil {
				return err
			}
		}
	}
	f.cdev.ioas = x.Pt_id
	x.Pt_id = k.newID() // the page table
	return nil
}

// usable are the ranges of an address space, by the functions in it.
func (k *fakeKernel) usable(iommufd *fakeFD, ioas uint32) []IOVARange {
	var out []IOVARange
	for _, f := range k.attached(iommufd, ioas) {
		out = append(out, reservedOf(f.dev)...)
	}
	slices.SortFunc(out, func(a, b IOVARange) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	var holes []IOVARange
	next := uint64(0)
	for _, r := range out {
		if r.First > next {
			holes = append(holes, IOVARange{next, r.First - 1})
		}
		if r.Last+1 == 0 {
			return holes
		}
		next = max(next, r.Last+1)
	}
	return append(holes, IOVARange{next, 1<<64 - 1})
}

func (k *fakeKernel) iovaRanges(f *fakeFD, x *abi.Iommu_ioas_iova_ranges) error {
	if f.objects[x.Ioas_id] == nil {
		return unix.ENOENT
	}
	l := k.usable(f, x.Ioas_id)
	room := int(x.Num_iovas)
	out := unsafe.Slice(rangesAt(&x.Allowed_iovas), room)
	for i, r := range l {
		if i < room {
			out[i] = abi.Iommu_iova_range{Start: r.First, Last: r.Last}
		}
	}
	x.Num_iovas, x.Out_iova_alignment = uint32(len(l)), k.alignment
	if x.Out_iova_alignment == 0 {
		x.Out_iova_alignment = 4096
	}
	if len(l) > room {
		return unix.EMSGSIZE
	}
	return nil
}

// rangesAt is the array whose address is in p.
func rangesAt(p *uint64) *abi.Iommu_iova_range {
	return *(**abi.Iommu_iova_range)(unsafe.Pointer(p))
}

func (k *fakeKernel) allowIOVAs(f *fakeFD, x *abi.Iommu_ioas_allow_iovas) error {
	a := f.objects[x.Ioas_id]
	if a == nil {
		return unix.ENOENT
	}
	l := slices.Clone(unsafe.Slice(rangesAt(&x.Allowed_iovas), x.Num_iovas))
	for _, r := range l {
		if r.Start >= r.Last {
			return unix.EINVAL
		}
		if !slices.ContainsFunc(k.usable(f, x.Ioas_id), func(u IOVARange) bool { return u.First <= r.Start && r.Last <= u.Last }) {
			return unix.EADDRINUSE
		}
	}
	a.allowed = l
	return nil
}

func (k *fakeKernel) ioasMap(f *fakeFD, x *abi.Iommu_ioas_map) error {
	const fixed = abi.IOMMU_IOAS_MAP_FIXED_IOVA
	a := f.objects[x.Ioas_id]
	switch {
	case a == nil:
		return unix.ENOENT
	case x.Flags&^(fixed|abi.IOMMU_IOAS_MAP_READABLE|abi.IOMMU_IOAS_MAP_WRITEABLE) != 0, x.Size != abi.SizeIommu_ioas_map:
		return unix.EOPNOTSUPP
	case x.Flags&fixed == 0 || x.Flags&^fixed == 0 || x.Length == 0 || (x.Iova|x.Length|x.User_va)%4096 != 0:
		return unix.EINVAL
	case x.Iova+(x.Length-1) < x.Iova:
		return unix.EOVERFLOW
	case len(a.maps) >= k.maxMaps:
		return unix.ENOSPC
	}
	if !slices.ContainsFunc(k.usable(f, x.Ioas_id), func(u IOVARange) bool { return u.First <= x.Iova && x.Iova+x.Length-1 <= u.Last }) {
		return unix.EINVAL
	}
	for at, m := range a.maps {
		if at < x.Iova+x.Length && x.Iova < at+m.Length {
			return unix.EEXIST
		}
	}
	for _, d := range k.attached(f, x.Ioas_id) {
		if b := d.dev.behind; b != nil {
			if err := b.mapDMA(&x.User_va, x.Iova, x.Length, x.Flags&abi.IOMMU_IOAS_MAP_WRITEABLE == 0); err != nil {
				return err
			}
		}
	}
	a.maps[x.Iova] = *x
	return nil
}

func (k *fakeKernel) ioasUnmap(f *fakeFD, x *abi.Iommu_ioas_unmap) error {
	a := f.objects[x.Ioas_id]
	if a == nil || x.Length == 0 {
		return unix.EINVAL
	}
	done := uint64(0)
	for at, m := range a.maps {
		if at >= x.Iova && at+m.Length <= x.Iova+x.Length {
			delete(a.maps, at)
			done += m.Length
			for _, d := range k.attached(f, x.Ioas_id) {
				if b := d.dev.behind; b != nil {
					if err := b.unmapDMA(at, m.Length); err != nil {
						return err
					}
				}
			}
		} else if at < x.Iova+x.Length && x.Iova < at+m.Length {
			return unix.ENOENT // it would split a mapping
		}
	}
	if x.Length = done; done == 0 {
		return unix.ENOENT
	}
	return nil
}

// devID is what iommufd has for a function that a hot reset hits.
func (k *fakeKernel) devID(iommufd *fakeFD, h fakeHit) int32 {
	id := int32(abi.VFIO_PCI_DEVID_NOT_OWNED)
	for _, f := range k.fds {
		if f.cdev.iommufd != iommufd {
			continue
		}
		if fmt.Sprintf("%04x:%02x:%02x.%d", h.segment, h.bus, h.devfn>>3, h.devfn&7) == f.dev.bdf {
			return int32(f.cdev.devid)
		}
		if h.vfio && h.group == uint32(f.dev.group) {
			id = abi.VFIO_PCI_DEVID_OWNED
		}
	}
	return id
}
