package vfio

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// holder makes a process of the fake tree that has path open.
func (k *fakeKernel) holder(t *testing.T, pid int, path string) {
	t.Helper()
	fd := filepath.Join(k.root, "proc", fmt.Sprint(pid), "fd")
	require.NoError(t, os.MkdirAll(fd, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(k.root, "proc", fmt.Sprint(pid), "comm"), []byte("qemu-system-x86\n"), 0o600))
	require.NoError(t, os.Symlink(filepath.Join(k.root, path), filepath.Join(fd, "7")))
}

// reserve gives a function's group reserved regions, as sysfs shows them.
func (k *fakeKernel) reserve(t *testing.T, bdf, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "iommu_group/reserved_regions"), []byte(text), 0o600))
}

// The order that iommufd wants: bound and attached before memory is mapped, and
// the function's file closed before the address space goes.
func TestIOMMUFDOrder(t *testing.T) {
	k := newFakeCDevs(t)
	require.NoError(t, life(k, k.options()))
	var order []string
	for _, c := range k.log {
		switch c {
		case "open iommufd", "IOMMU_IOAS_ALLOC", "open cdev", "VFIO_DEVICE_BIND_IOMMUFD", "VFIO_DEVICE_ATTACH_IOMMUFD_PT", "IOMMU_IOAS_ALLOW_IOVAS",
			"IOMMU_IOAS_MAP", "IOMMU_IOAS_UNMAP", "close device", "IOMMU_DESTROY", "close iommufd":
			order = append(order, c)
		}
	}
	require.Equal(t, []string{"open iommufd", "IOMMU_IOAS_ALLOC", "open cdev", "VFIO_DEVICE_BIND_IOMMUFD", "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
		"IOMMU_IOAS_ALLOW_IOVAS", "IOMMU_IOAS_MAP", "IOMMU_IOAS_UNMAP", "close device", "IOMMU_DESTROY", "close iommufd"}, order)
	require.Zero(t, k.calls("open container"))
}

func TestOpenChooses(t *testing.T) {
	const bdf = "0000:01:00.0"
	hide := func(name string, errno unix.Errno) func(t *testing.T, k *fakeKernel, o *KernelOptions) {
		return func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.failCall(name, 1, errno) }
	}
	tests := map[string]struct {
		kernel func(t *testing.T) *fakeKernel
		set    func(t *testing.T, k *fakeKernel, o *KernelOptions)
		want   string
		is     []error
		says   []string
	}{
		"iommufd where there is one": {kernel: newFakeCDevs, want: BackendIOMMUFD},
		"type1 where there is none":  {kernel: newFakeKernel, want: BackendType1},
		"a folder without a number is no file": {kernel: newFakeCDevs, want: BackendType1, set: func(t *testing.T, k *fakeKernel, _ *KernelOptions) {
			require.NoError(t, os.Remove(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "vfio-dev/vfio0/dev")))
		}},
		"no /dev/iommu":                         {kernel: newFakeCDevs, want: BackendType1, set: func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.noIOMMUFile = true }},
		"/dev/iommu is not ours":                {kernel: newFakeCDevs, want: BackendType1, set: hide("open iommufd", unix.EACCES)},
		"the function's file is not ours":       {kernel: newFakeCDevs, want: BackendType1, set: hide("open cdev", unix.EACCES)},
		"the function's file is not made":       {kernel: newFakeCDevs, want: BackendType1, set: hide("open cdev", unix.ENOENT)},
		"type1 by wish":                         {kernel: newFakeCDevs, want: BackendType1, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendType1 }},
		"iommufd by wish":                       {kernel: newFakeCDevs, want: BackendIOMMUFD, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendIOMMUFD }},
		"accepting no IOMMU where there is one": {kernel: newFakeCDevs, want: BackendIOMMUFD, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.UnsafeNoIOMMU = true }},
		"no IOMMU accepted":                     {kernel: newFakeNoIOMMU, want: BackendNoIOMMU, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.UnsafeNoIOMMU = true }},
		"an error of iommufd stays one": {kernel: newFakeCDevs, is: []error{os.ErrPermission}, says: []string{"isolate interrupts"},
			set: func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.notIsolated = true }},
		"neither way is there": {kernel: newFakeCDevs, is: []error{ErrNotFound}, says: []string{"modprobe iommufd"},
			set: func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.noIOMMUFile, k.noGroups = true, true }},
		"the other way fails, too": {kernel: newFakeCDevs, is: []error{ErrBusy}, says: []string{"fuser"},
			set: func(_ *testing.T, k *fakeKernel, _ *KernelOptions) {
				k.noIOMMUFile = true
				k.failCall("open group", 1, unix.EBUSY)
			}},
		"iommufd by wish, and the kernel has none": {kernel: newFakeKernel, is: []error{ErrNotFound}, says: []string{"VFIO_DEVICE_CDEV"},
			set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendIOMMUFD }},
		"unknown backend": {kernel: newFakeKernel, is: []error{ErrRange}, says: []string{"spapr", "type1"},
			set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = "spapr" }},
		"two address spaces": {kernel: newFakeCDevs, is: []error{ErrRange}, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) {
			o.Container, o.IOAS = &Container{}, &IOAS{}
		}},
		"an address space of another backend": {kernel: newFakeCDevs, is: []error{ErrRange}, says: []string{"backend type1", "of iommufd"},
			set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend, o.IOAS = BackendType1, &IOAS{} }},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			k := x.kernel(t)
			o := k.options()
			if x.set != nil {
				x.set(t, k, &o)
			}
			tr, err := Open(bdf, o)
			if x.want != "" {
				require.NoError(t, err)
				info, err := tr.Info()
				require.NoError(t, err)
				require.Equal(t, x.want, info.Backend)
				require.NoError(t, tr.Close())
			} else {
				requireSays(t, err, x.is, x.says)
			}
			k.requireClean(t)
		})
	}
}

// requireSays checks a typed error of one line.
func requireSays(t *testing.T, err error, is []error, says []string) {
	t.Helper()
	require.Error(t, err)
	var e *Error
	require.ErrorAs(t, err, &e)
	for _, x := range is {
		require.ErrorIs(t, err, x)
	}
	for _, s := range says {
		require.Contains(t, err.Error(), s)
	}
	require.NotContains(t, err.Error(), "\n", "one line")
}

// What fails in the field on the way through iommufd, the error it gives and the
// remedy it names.
func TestIOMMUFDErrors(t *testing.T) {
	const bdf = "0000:02:00.0"
	fail := func(name string, errno unix.Errno) func(t *testing.T, k *fakeKernel) {
		return func(_ *testing.T, k *fakeKernel) { k.failCall(name, 1, errno) }
	}
	const bind, attach = "VFIO_DEVICE_BIND_IOMMUFD", "VFIO_DEVICE_ATTACH_IOMMUFD_PT"
	tests := map[string]struct {
		set  func(t *testing.T, k *fakeKernel)
		is   []error
		says []string
	}{
		"iommufd not loaded":   {fail("open iommufd", unix.ENOENT), []error{ErrNotFound, fs.ErrNotExist}, []string{"modprobe iommufd"}},
		"iommufd without node": {fail("open iommufd", unix.ENXIO), []error{ErrNotFound}, []string{"modprobe iommufd"}},
		"iommufd not ours":     {fail("open iommufd", unix.EACCES), []error{os.ErrPermission}, []string{"chown USER"}},
		"no memory to open":    {fail("open iommufd", unix.ENOMEM), []error{ErrNoSpace}, nil},
		"no address space":     {fail("IOMMU_IOAS_ALLOC", unix.ENOMEM), []error{ErrNoSpace}, []string{"IOMMU_IOAS_ALLOC"}},
		"file not made":        {fail("open cdev", unix.ENOENT), []error{ErrNotFound}, []string{"devtmpfs", "vfio/devices/vfio1"}},
		"file not ours":        {fail("open cdev", unix.EACCES), []error{os.ErrPermission}, []string{"chown USER"}},
		"left vfio-pci while it was opened": {func(t *testing.T, k *fakeKernel) {
			k.setDriver(t, bdf, "")
			k.failCall("open cdev", 1, unix.ENODEV)
		}, []error{ErrNotFound}, []string{"no driver", "mlxvfio bind " + bdf}},
		"bound to mlx5_core": {func(t *testing.T, k *fakeKernel) {
			require.NoError(t, os.RemoveAll(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "vfio-dev")))
			k.setDriver(t, bdf, "mlx5_core")
		}, []error{ErrNotFound}, []string{"mlx5_core", "mlxvfio bind " + bdf}},
		"not bound": {func(t *testing.T, k *fakeKernel) {
			require.NoError(t, os.RemoveAll(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "vfio-dev")))
			k.setDriver(t, bdf, "")
		}, []error{ErrNotFound}, []string{"no driver", "mlxvfio bind " + bdf}},
		"interrupts not isolated": {func(_ *testing.T, k *fakeKernel) { k.notIsolated = true },
			[]error{os.ErrPermission}, []string{"interrupt remapping", "/sys/module/iommufd/parameters/allow_unsafe_interrupts"}},
		"interrupts not isolated, and type1 does not mind": {func(t *testing.T, k *fakeKernel) {
			k.notIsolated = true
			dir := filepath.Join(k.root, "sys/module/vfio_iommu_type1/parameters")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "allow_unsafe_interrupts"), []byte("Y\n"), 0o600))
		}, []error{os.ErrPermission}, []string{"iommufd/parameters/allow_unsafe_interrupts", "for the backend type1 that is accepted already"}},
		"sibling on a host driver": {func(t *testing.T, k *fakeKernel) {
			k.notViable = true
			k.setDriver(t, "0000:02:00.1", "mlx5_core")
		}, []error{ErrBusy, unix.EPERM}, []string{"0000:02:00.1 (mlx5_core)", "mlxvfio bind 0000:02:00.1"}},
		"sibling with another process": {func(t *testing.T, k *fakeKernel) {
			k.holder(t, 4242, "dev/vfio/devices/vfio2")
			k.failCall(bind, 1, unix.EPERM)
		}, []error{ErrBusy, unix.EPERM}, []string{"process 4242 (qemu-system-x86) with 0000:02:00.1", "IOMMU group"}},
		"open by its group": {func(t *testing.T, k *fakeKernel) {
			k.holder(t, 4242, "dev/vfio/2")
			k.failCall(bind, 1, unix.EBUSY)
		}, []error{ErrBusy, unix.EBUSY}, []string{"process 4242 (qemu-system-x86)", "group"}},
		"open by its group, holder hidden": {fail(bind, unix.EBUSY), []error{ErrBusy}, []string{"fuser -v", "vfio/2"}},
		"open by its file": {func(t *testing.T, k *fakeKernel) {
			k.holder(t, 4243, "dev/vfio/devices/vfio1")
			k.failCall(bind, 1, unix.EINVAL)
		}, []error{ErrBusy, unix.EINVAL}, []string{"process 4243 (qemu-system-x86)"}},
		"open by its file, holder hidden": {fail(bind, unix.EINVAL), []error{ErrBusy}, []string{"fuser -v", "vfio/devices/vfio1"}},
		"firmware keeps memory for it": {func(t *testing.T, k *fakeKernel) {
			k.reserve(t, bdf, "0x000000007a800000 0x000000007effffff direct\n0x00000000fee00000 0x00000000feefffff msi\n")
			k.failCall(bind, 1, unix.EINVAL)
		}, []error{ErrNotSupported}, []string{"RMRR", "reserved_regions"}},
		"removed while it was bound":  {fail(bind, unix.ENODEV), []error{ErrNotFound}, []string{"mlxvfio bind"}},
		"no cdev in the kernel":       {fail(bind, unix.ENOTTY), []error{ErrNotSupported}, []string{"VFIO_DEVICE_CDEV"}},
		"function does not wake":      {fail(bind, unix.EIO), []error{unix.EIO}, []string{"dmesg"}},
		"no memory to bind":           {fail(bind, unix.ENOMEM), []error{ErrNoSpace}, nil},
		"reserved addresses in use":   {fail(attach, unix.EADDRINUSE), []error{ErrExists}, []string{"IOAS of its own"}},
		"another IOMMU":               {fail(attach, unix.EINVAL), []error{ErrNotSupported}, []string{"IOAS of its own"}},
		"attached elsewhere":          {fail(attach, unix.EBUSY), []error{ErrBusy}, nil},
		"attach is not allowed":       {fail(attach, unix.EPERM), []error{os.ErrPermission}, []string{"firmware setup"}},
		"no memory to attach":         {fail(attach, unix.ENOMEM), []error{ErrNoSpace}, nil},
		"function's own file is gone": {fail("VFIO_DEVICE_GET_INFO", unix.ENODEV), []error{ErrGone}, []string{"removed"}},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			k := newFakeCDevs(t)
			x.set(t, k)
			o := k.options()
			o.Backend = BackendIOMMUFD
			_, err := Open(bdf, o)
			requireSays(t, err, x.is, x.says)
			k.requireClean(t)
		})
	}
}

// What the kernel really answers to a second opener, whichever way each came.
func TestTwoOpeners(t *testing.T) {
	const bdf = "0000:01:00.0"
	nodes := map[string]string{BackendIOMMUFD: "dev/vfio/devices/vfio0", BackendType1: "dev/vfio/1"}
	for _, first := range []string{BackendIOMMUFD, BackendType1} {
		for _, second := range []string{BackendIOMMUFD, BackendType1} {
			k := newFakeCDevs(t)
			o := k.options()
			o.Backend = first
			a, err := Open(bdf, o)
			require.NoError(t, err)
			k.holder(t, os.Getpid(), nodes[first])
			o.Backend = second
			_, err = Open(bdf, o)
			requireSays(t, err, []error{ErrBusy}, []string{fmt.Sprintf("process %d", os.Getpid()), "which is this one"})
			require.NoError(t, a.Close())
			k.requireClean(t)
		}
	}
}

// A mapping reaches the kernel as it was asked for.
func TestIOMMUFDMapping(t *testing.T) {
	k := newFakeCDevs(t)
	tr, err := Open("0000:01:00.0", k.options())
	require.NoError(t, err)
	s, err := NewAddressSpace(tr.DMA(), SpaceOptions{Memory: MemoryMemFD})
	require.NoError(t, err)
	s.lock.exempt = func() bool { return true }
	rw, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	ro, err := s.Alloc(4096, BufferOptions{ReadOnly: true})
	require.NoError(t, err)
	flags := map[uint64]uint32{}
	for _, f := range k.fds {
		for _, a := range f.objects {
			for at, m := range a.maps {
				flags[at] = m.Flags
			}
		}
	}
	const readable = abi.IOMMU_IOAS_MAP_FIXED_IOVA | abi.IOMMU_IOAS_MAP_READABLE
	require.Equal(t, map[uint64]uint32{rw.IOVA(): readable | abi.IOMMU_IOAS_MAP_WRITEABLE, ro.IOVA(): readable}, flags)
	require.NoError(t, rw.Free())
	require.NoError(t, ro.Free())
	require.NoError(t, s.Close())
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// The kernel would unmap all that lies inside a range: the neighbours of a mapping
// do not go with it, whatever size is asked for.
func TestIOMMUFDUnmapsOne(t *testing.T) {
	k := newFakeCDevs(t)
	tr, err := Open("0000:01:00.0", k.options())
	require.NoError(t, err)
	mem, err := unix.Mmap(-1, 0, 3*minPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	const at = 0x200000
	for i := range uint64(3) {
		require.NoError(t, tr.DMA().Map(Mapping{IOVA: at + i*minPage, Bytes: mem[i*minPage : (i+1)*minPage], FD: -1}))
	}
	for _, size := range []uint64{0, minPage / 2, 2 * minPage, 3 * minPage, ^uint64(0)} {
		require.ErrorIs(t, tr.DMA().Unmap(at, size), ErrNotFound, "%#x", size)
	}
	require.Zero(t, k.calls("IOMMU_IOAS_UNMAP"))
	for i := range uint64(3) {
		require.NoError(t, tr.DMA().Unmap(at+i*minPage, minPage))
	}
	require.NoError(t, unix.Munmap(mem))
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

func TestIOMMUFDLimits(t *testing.T) {
	k := newFakeCDevs(t)
	d := k.devs["0000:01:00.0"]
	d.reserved = []IOVARange{{0x7a800000, 0x7effffff}}
	tr, err := Open("0000:01:00.0", k.options())
	require.NoError(t, err)
	l, err := tr.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, DMALimits{
		Ranges:    []IOVARange{{0, 0x7a7fffff}, {0x7f000000, msiFirst - 1}, {msiLast + 1, 1<<48 - 1}},
		PageSizes: 0xfffffffffffff000, Pinned: true, PinnedByUser: true,
	}, l)
	require.Equal(t, 1, k.calls("IOMMU_IOAS_IOVA_RANGES"))

	// More ranges than there was room for: the kernel counts, and is asked again.
	for i := range uint64(40) {
		d.reserved = append(d.reserved, IOVARange{(1 + i) << 40, (1+i)<<40 + 0xfff})
	}
	l, err = tr.DMA().Limits()
	require.NoError(t, err)
	require.Len(t, l.Ranges, 43)
	require.Equal(t, IOVARange{40<<40 + 0x1000, 1<<48 - 1}, l.Ranges[42])
	require.Equal(t, 3, k.calls("IOMMU_IOAS_IOVA_RANGES"))
	require.Equal(t, 1, k.calls("IOMMU_IOAS_ALLOW_IOVAS"), "the promise is made once")

	k.alignment = 65536
	l, err = tr.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, uint64(0xffffffffffff0000), l.PageSizes)
	k.alignment = 1
	l, err = tr.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, uint64(0xfffffffffffff000), l.PageSizes)
	k.alignment = 3
	_, err = tr.DMA().Limits()
	require.ErrorIs(t, err, ErrRange)
	k.alignment = 0
	k.hook = func(name string) unix.Errno { // a kernel that never has enough
		if name == "IOMMU_IOAS_IOVA_RANGES" {
			return unix.EMSGSIZE
		}
		return 0
	}
	_, err = tr.DMA().Limits()
	require.ErrorIs(t, err, unix.EMSGSIZE)
	k.hook = nil
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// The kernel takes no range of one byte (iommufd/ioas.c), and may tell one.
func TestIOMMUFDRangeOfOneByte(t *testing.T) {
	k := newFakeCDevs(t)
	k.devs["0000:01:00.0"].reserved = []IOVARange{{0x10000, 0x1ffff}, {0x20001, 0x2ffff}}
	tr, err := Open("0000:01:00.0", k.options())
	require.NoError(t, err)
	l, err := tr.DMA().Limits()
	require.NoError(t, err)
	require.Contains(t, l.Ranges, IOVARange{0x20000, 0x20000})
	require.Equal(t, 1, k.calls("IOMMU_IOAS_ALLOW_IOVAS"))
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// overcount is a kernel that tells more ranges than there was room for, without an
// error.
type overcount struct{ sys }

func (o overcount) ioctl(fd int, req uint, arg unsafe.Pointer) (int, error) {
	n, err := o.sys.ioctl(fd, req, arg)
	if req == abi.IOMMU_IOAS_IOVA_RANGES {
		(*abi.Iommu_ioas_iova_ranges)(arg).Num_iovas = 9
	}
	return n, err
}

func TestIOMMUFDTooManyRanges(t *testing.T) {
	k := newFakeCDevs(t)
	o := k.options()
	o.sys = overcount{o.sys}
	tr, err := Open("0000:01:00.0", o)
	require.NoError(t, err)
	_, err = tr.DMA().Limits()
	requireSays(t, err, []error{ErrRange}, []string{"9 ranges in room for 8"})
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// Functions of one group and of another share an address space: mappings outlive
// the function that was opened first, and what Limits told stays true.
func TestIOMMUFDShared(t *testing.T) {
	k := newFakeCDevs(t)
	a, err := NewIOAS(k.options())
	require.NoError(t, err)
	o := k.options()
	o.IOAS = a
	_, err = a.Limits()
	require.ErrorIs(t, err, ErrNotSupported, "no function has joined")
	require.ErrorIs(t, a.Map(Mapping{IOVA: 2 << 20, Bytes: make([]byte, 4096), FD: -1}), ErrNotSupported)
	var fns []Transport
	for _, bdf := range []string{"0000:02:00.0", "0000:02:00.1"} {
		f, err := Open(bdf, o)
		require.NoError(t, err)
		require.Same(t, a, f.DMA())
		fns = append(fns, f)
	}
	require.Equal(t, 1, k.calls("open iommufd"))
	s, err := NewAddressSpace(a, SpaceOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)

	// A function that cannot reach what was promised is turned away.
	narrow := k.devs["0000:01:00.0"]
	narrow.reserved = []IOVARange{{0x7a800000, 0x7effffff}}
	_, err = Open("0000:01:00.0", o)
	requireSays(t, err, []error{ErrExists, unix.EADDRINUSE}, []string{"before memory is mapped"})
	narrow.reserved = nil
	third, err := Open("0000:01:00.0", o)
	require.NoError(t, err)
	fns = append(fns, third)

	require.ErrorIs(t, a.Close(), ErrBusy)
	for _, f := range fns {
		require.NoError(t, f.Close())
	}
	require.Len(t, k.mappings(), 1, "the mapping belongs to the address space")
	require.ErrorIs(t, a.Map(Mapping{IOVA: 1 << 30, Bytes: make([]byte, 4096), FD: -1}), ErrNotSupported)
	again, err := Open("0000:02:00.0", o)
	require.NoError(t, err, "a function can come back to its mappings")
	require.NoError(t, again.Close())
	require.NoError(t, b.Free())
	require.NoError(t, s.Close(), "unmapping works without a function")
	require.Empty(t, k.mappings())

	// What is still mapped goes with the address space, which the space learns.
	back, err := Open("0000:02:00.0", o)
	require.NoError(t, err)
	s, err = NewAddressSpace(a, SpaceOptions{})
	require.NoError(t, err)
	_, err = s.Alloc(4096, BufferOptions{Name: "left"})
	require.NoError(t, err)
	require.NoError(t, back.Close())
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	_, err = Open("0000:02:00.0", o)
	require.ErrorIs(t, err, ErrClosed)
	err = s.Close()
	require.ErrorContains(t, err, "left")
	require.NotContains(t, err.Error(), "unmap")
	require.Zero(t, s.Stats().Mappings)
	k.requireClean(t)
}

// Under iommufd a hot reset is asked for without files; the kernel knows by itself
// what the iommufd owns: functions with a device id, functions that share a group
// with one, and none of the others.
func TestIOMMUFDHotReset(t *testing.T) {
	k := newFakeCDevs(t)
	k.addDev(t, "0000:02:01.0", 3, "vfio-pci")
	k.addCDev(t, "0000:02:01.0", "vfio3")
	a, err := NewIOAS(k.options())
	require.NoError(t, err)
	o := k.options()
	o.IOAS = a
	f, err := Open("02:00.0", o)
	require.NoError(t, err)
	h := f.(HotResetter)
	list, err := h.HotResetInfo()
	require.NoError(t, err)
	require.Equal(t, []HotResetFunction{
		{Name: "0000:02:00.0", Group: -1, Self: true, Owned: true},
		{Name: "0000:02:00.1", Group: -1, Owned: true},
		{Name: "0000:02:01.0", Group: -1},
	}, list)
	err = h.HotReset()
	requireSays(t, err, []error{ErrBusy, unix.EINVAL}, []string{"0000:02:01.0", "IOAS"})
	require.Zero(t, k.hotResets)

	other, err := Open("02:01.0", o)
	require.NoError(t, err)
	list, err = h.HotResetInfo()
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(list, func(f HotResetFunction) bool { return !f.Owned }))
	require.NoError(t, h.HotReset())
	require.Equal(t, 1, k.hotResets)

	k.extraHit = []fakeHit{{bus: 2, devfn: 0x10, group: 2}} // of our group, without a driver
	err = h.HotReset()
	requireSays(t, err, []error{ErrBusy, unix.EINVAL}, []string{"0000:02:02.0"})
	k.extraHit = nil
	for _, x := range []Transport{f, other} {
		require.NoError(t, x.Close())
	}
	require.ErrorIs(t, h.HotReset(), ErrClosed)
	require.NoError(t, a.Close())
	k.requireClean(t)
}

// iommufd's limit of pinned memory is checked against what it has pinned of this
// process, and not against locked memory.
func TestIOMMUFDMemlock(t *testing.T) {
	k := newFakeCDevs(t)
	tr, err := Open("0000:01:00.0", k.options())
	require.NoError(t, err)
	s, err := NewAddressSpace(tr.DMA(), SpaceOptions{})
	require.NoError(t, err)
	b := make([]byte, 4<<20)
	require.NoError(t, unix.Mlock(b))
	pinned, err := s.lock.locked()
	require.NoError(t, err)
	locked, err := vmLocked()
	require.NoError(t, unix.Munlock(b))
	require.NoError(t, err)
	require.Less(t, pinned, uint64(4<<20), "nothing is pinned here")
	require.GreaterOrEqual(t, locked, uint64(4<<20))
	got, err := parseStatus("VmLck:\t       8 kB\nVmPin:\t    2048 kB\n", "VmPin:")
	require.NoError(t, err)
	require.Equal(t, uint64(2<<20), got)
	require.NoError(t, s.Close())
	require.NoError(t, tr.Close())
	k.requireClean(t)
}
