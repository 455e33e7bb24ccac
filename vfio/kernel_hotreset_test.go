package vfio

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// hits are the functions on the bus of f.
func (k *fakeKernel) hits(f *fakeFD) []fakeHit {
	var l []fakeHit
	for _, d := range k.devs {
		var h fakeHit
		var dev, fn uint8
		_, _ = fmt.Sscanf(d.bdf, "%04x:%02x:%02x.%d", &h.segment, &h.bus, &dev, &fn)
		h.devfn, h.group, h.vfio = dev<<3|fn, uint32(d.group), true
		if d.bdf[:7] == f.dev.bdf[:7] {
			l = append(l, h)
		}
	}
	slices.SortFunc(l, func(a, b fakeHit) int { return int(a.devfn) - int(b.devfn) })
	return append(l, k.extraHit...)
}

func (k *fakeKernel) hotResetInfo(f *fakeFD, x *abi.Pci_hot_reset_info) error {
	if k.noHotReset {
		return unix.ENODEV
	}
	if x.Argsz < abi.SizePci_hot_reset_info {
		return unix.EINVAL
	}
	l := k.hits(f)
	x.Flags, x.Count = 0, uint32(len(l))
	room := (x.Argsz - abi.SizePci_hot_reset_info) / abi.SizePci_dependent_device
	if uint32(len(l)) > room {
		return unix.ENOSPC
	}
	out := unsafe.Slice((*abi.Pci_dependent_device)(unsafe.Add(unsafe.Pointer(x), abi.SizePci_hot_reset_info)), len(l))
	if f.cdev.iommufd != nil {
		x.Flags = abi.VFIO_PCI_HOT_RESET_FLAG_DEV_ID | abi.VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED
	}
	for i, h := range l {
		out[i] = abi.Pci_dependent_device{Group_id: h.group, Segment: h.segment, Bus: h.bus, Devfn: h.devfn}
		if f.cdev.iommufd != nil {
			id := k.devID(f.cdev.iommufd, h)
			out[i].Group_id = uint32(id)
			if id == abi.VFIO_PCI_DEVID_NOT_OWNED {
				x.Flags &^= abi.VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED
			}
		}
	}
	return nil
}

// hotReset wants the file of the group of each function that is hit, and vfio-pci
// as its driver (Linux vfio_pci_core.c).
func (k *fakeKernel) hotReset(f *fakeFD, x *abi.Pci_hot_reset) error {
	// No files are for functions that were opened by their own, and only for them.
	if x.Argsz != abi.SizePci_hot_reset+4*x.Count || x.Flags != 0 || (x.Count == 0) != (f.cdev.iommufd != nil) {
		return unix.EINVAL
	}
	if f.cdev.iommufd != nil {
		for _, h := range k.hits(f) {
			if !h.vfio || k.devID(f.cdev.iommufd, h) == abi.VFIO_PCI_DEVID_NOT_OWNED {
				return unix.EINVAL
			}
		}
		k.hotResets++
		return nil
	}
	shown := map[uint32]bool{}
	for _, fd := range unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(x), abi.SizePci_hot_reset)), x.Count) {
		g := k.fds[int(fd)]
		if g == nil || g.kind != "group" {
			return unix.EBADF
		}
		if shown[uint32(g.group)] {
			k.broken = append(k.broken, "a group was shown twice")
		}
		shown[uint32(g.group)] = true
	}
	for _, h := range k.hits(f) {
		if !h.vfio || !shown[h.group] {
			return unix.EINVAL
		}
	}
	k.hotResets++
	return nil
}

func TestKernelHotReset(t *testing.T) {
	k := newFakeKernel(t)
	tr, err := OpenGroup("02:00.0", k.options())
	require.NoError(t, err)
	d, err := NewDevice(tr, DeviceOptions{})
	require.NoError(t, err)
	list, err := d.HotResetInfo()
	require.NoError(t, err)
	require.Equal(t, []HotResetFunction{
		{Name: "0000:02:00.0", Group: 2, Self: true, Owned: true},
		{Name: "0000:02:00.1", Group: 2, Owned: true},
	}, list)
	require.NoError(t, d.HotReset())
	require.Equal(t, 1, k.hotResets)

	// More functions than there was room for, in a group of somebody else.
	for i := range uint8(20) {
		k.extraHit = append(k.extraHit, fakeHit{bus: 2, devfn: 8 + i, group: 77, vfio: true})
	}
	list, err = d.HotResetInfo()
	require.NoError(t, err)
	require.Len(t, list, 22)
	require.Equal(t, HotResetFunction{Name: "0000:02:01.0", Group: 77}, list[2])
	err = d.HotReset()
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, err, unix.EINVAL)
	require.Contains(t, err.Error(), "0000:02:01.0")
	require.Equal(t, 1, k.hotResets)

	k.extraHit = []fakeHit{{bus: 2, devfn: 8, group: 2}} // ours, without a driver
	err = d.HotReset()
	require.ErrorIs(t, err, unix.EINVAL)
	require.NotErrorIs(t, err, ErrBusy)
	require.Contains(t, err.Error(), "bound to vfio-pci, also one without a driver (0000:02:00.0, 0000:02:00.1, 0000:02:01.0)")

	k.noHotReset = true
	_, err = d.HotResetInfo()
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorIs(t, d.HotReset(), ErrNotSupported)
	k.noHotReset, k.extraHit = false, nil
	k.failCall("VFIO_DEVICE_PCI_HOT_RESET", 1, unix.EIO)
	require.ErrorIs(t, d.HotReset(), unix.EIO)
	k.failCall("VFIO_DEVICE_PCI_HOT_RESET", 1, unix.ENOTTY)
	err = d.HotReset()
	require.ErrorIs(t, err, unix.ENOTTY)
	require.Contains(t, err.Error(), "did not come back")
	require.NoError(t, d.Close())
	_, err = d.HotResetInfo()
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, d.HotReset(), ErrClosed)
	k.requireClean(t)
}

// TestHotResetShared: functions of two groups in one container show both files.
func TestHotResetShared(t *testing.T) {
	k := newFakeKernel(t)
	k.addDev(t, "0000:02:01.0", 3, "vfio-pci")
	c, err := NewContainer(k.options())
	require.NoError(t, err)
	o := k.options()
	o.Container = c
	a, err := OpenGroup("02:00.0", o)
	require.NoError(t, err)
	h := a.(HotResetter)
	require.ErrorIs(t, h.HotReset(), ErrBusy, "the other group is not open here")
	b, err := OpenGroup("02:01.0", o)
	require.NoError(t, err)
	require.NoError(t, h.HotReset())
	require.Equal(t, 1, k.hotResets)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	k.requireClean(t)
}

// TestHotResetDecorated: faults reach it, and an unplugged device refuses.
func TestHotResetDecorated(t *testing.T) {
	k := newFakeKernel(t)
	tr, err := OpenGroup("01:00.0", k.options())
	require.NoError(t, err)
	f := NewFaulty(tr, Plan{{Verb: VerbHotReset, Err: unix.EIO}})
	require.ErrorIs(t, f.HotReset(), unix.EIO)
	require.Zero(t, k.hotResets)
	require.NoError(t, f.HotReset())
	require.Equal(t, 1, k.hotResets)
	f.Unplug()
	require.ErrorIs(t, f.HotReset(), ErrGone)
	list, err := f.HotResetInfo()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, f.Close())
	k.requireClean(t)
}
