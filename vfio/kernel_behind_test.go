package vfio

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// fakeBehind makes a function of another Transport, the model, the hardware behind
// a function of the fake kernel, so that a whole driver comes up through the kernel
// backend. As vfio-pci does, it resets the function when it is opened and closed,
// takes it off the bus at the end, and keeps the command register over a reset. All
// of BAR0 traps but its last page, which the driver does not use: that one can be
// mapped, so that there is something to map.
type fakeBehind struct {
	open    func() Transport
	t       Transport         // a handle on the model, until the IOMMU has forgotten it
	maps    map[uint64]uint64 // IOVA → size
	vectors map[uint32][]*Vector
	tail    []byte
}

// errnoOf is what the kernel answers for the error of a Transport.
func errnoOf(err error) error {
	var e syscall.Errno
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, ErrNotSupported):
		return unix.ENOTTY
	case errors.Is(err, ErrExists):
		return unix.EEXIST
	case errors.Is(err, ErrRange), errors.Is(err, ErrNotFound):
		return unix.EINVAL
	}
	return unix.EIO
}

// use is the open of the function's file (Linux vfio_pci_core.c, vfio_pci_core_enable).
func (b *fakeBehind) use() {
	if b.t == nil {
		b.t, b.vectors, b.maps = b.open(), map[uint32][]*Vector{}, map[uint64]uint64{}
	}
	_ = b.t.Reset()
}

// release is its close (vfio_pci_core_disable): off the bus, interrupts off, reset.
func (b *fakeBehind) release() {
	if b.t == nil {
		return // it was never bound
	}
	_ = b.t.WriteRegion(RegionConfig, configCommand, []byte{0, 0})
	for index := range b.vectors {
		_ = b.disarm(index)
	}
	_ = b.t.Reset()
}

// forget is the end of the IOMMU domain with what is still mapped.
func (b *fakeBehind) forget() {
	if b.t == nil {
		return
	}
	for at, size := range b.maps {
		_ = b.t.DMA().Unmap(at, size)
	}
	_ = b.t.Close()
	b.t = nil
}

// forgetBehind ends what the functions of a group had mapped.
func (k *fakeKernel) forgetBehind(group int) {
	for _, d := range k.devs {
		if d.group == group && d.behind != nil {
			d.behind.forget()
		}
	}
}

// behind are the models whose groups are in a container.
func (k *fakeKernel) behind(container *fakeFD) (all []*fakeBehind) {
	for _, f := range k.fds {
		if f.kind != "group" || f.container != container {
			continue
		}
		for _, d := range k.devs {
			if d.group == f.group && d.behind != nil {
				all = append(all, d.behind)
			}
		}
	}
	return all
}

func (b *fakeBehind) reset() error {
	var command [2]byte
	if err := b.t.ReadRegion(RegionConfig, configCommand, command[:]); err != nil {
		return errnoOf(err)
	}
	if err := b.t.Reset(); err != nil {
		return errnoOf(err)
	}
	return errnoOf(b.t.WriteRegion(RegionConfig, configCommand, command[:]))
}

func (b *fakeBehind) regionInfo(arg unsafe.Pointer) error {
	index := (*abi.Region_info)(arg).Index
	r, err := b.t.RegionInfo(int(index))
	if err != nil {
		return errnoOf(err)
	}
	fixed := make([]byte, abi.SizeRegion_info)
	binary.NativeEndian.PutUint32(fixed[8:], index)
	binary.NativeEndian.PutUint64(fixed[16:], r.Size)
	binary.NativeEndian.PutUint64(fixed[24:], uint64(index)<<40)
	flags := uint32(0)
	if r.Read {
		flags |= abi.VFIO_REGION_INFO_FLAG_READ
	}
	if r.Write {
		flags |= abi.VFIO_REGION_INFO_FLAG_WRITE
	}
	var caps [][]byte
	if index == RegionBAR0 {
		flags |= abi.VFIO_REGION_INFO_FLAG_MMAP
		caps = append(caps, chainCap(abi.VFIO_REGION_INFO_CAP_MSIX_MAPPABLE),
			chainCap(abi.VFIO_REGION_INFO_CAP_SPARSE_MMAP, append([]uint32{1, 0}, words(r.Size-minPage, minPage)...)...))
	}
	binary.NativeEndian.PutUint32(fixed[4:], flags)
	answer(arg, fixed, 12, abi.VFIO_REGION_INFO_FLAG_CAPS, caps)
	return nil
}

func (b *fakeBehind) irqInfo(x *abi.Irq_info) error {
	q, err := b.t.IRQInfo(int(x.Index))
	if err != nil {
		return errnoOf(err)
	}
	if x.Count = uint32(q.Count); q.EventFD {
		x.Flags = abi.VFIO_IRQ_INFO_EVENTFD | abi.VFIO_IRQ_INFO_NORESIZE
	}
	return nil
}

func (b *fakeBehind) setIRQs(f *fakeFD, x *abi.Irq_set) error {
	if x.Count == 0 {
		if !f.armed {
			return unix.EINVAL
		}
		f.armed = false
		return errnoOf(b.disarm(x.Index))
	}
	if x.Start != 0 || f.armed {
		return unix.EINVAL // the driver attaches all at once
	}
	fds := unsafe.Slice((*int32)(unsafe.Add(unsafe.Pointer(x), abi.SizeIrq_set)), x.Count)
	vs := make([]*Vector, len(fds))
	for i, fd := range fds {
		if fd < 0 {
			continue
		}
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			_ = closeVectors(vs[:i])
			return unix.EBADF
		}
		vs[i] = VectorFromFD(own)
	}
	b.vectors[x.Index] = vs
	f.armed = true
	return errnoOf(b.t.SetIRQs(int(x.Index), 0, vs))
}

func (b *fakeBehind) disarm(index uint32) error {
	err := b.t.SetIRQs(int(index), 0, nil)
	for _, v := range b.vectors[index] {
		if v != nil {
			_ = v.Close()
		}
	}
	delete(b.vectors, index)
	return err
}

// memory is what an offset of the file maps; nothing else of BAR0 has memory.
func (b *fakeBehind) memory(off int64) ([]byte, error) {
	if off>>40 != RegionBAR0 {
		return nil, nil
	}
	r, err := b.t.RegionInfo(RegionBAR0)
	if err != nil {
		return nil, errnoOf(err)
	}
	if uint64(off) == r.Size-minPage {
		if b.tail == nil {
			b.tail = make([]byte, minPage)
		}
		return b.tail, nil
	}
	return nil, nil
}

func (b *fakeBehind) access(name string, p []byte, off int64) (int, error) {
	do := b.t.ReadRegion
	if name == "pwrite" {
		do = b.t.WriteRegion
	}
	if err := do(int(off>>40), uint64(off&(1<<40-1)), p); err != nil {
		return -1, errnoOf(err)
	}
	return len(p), nil
}

// mapDMA maps the memory whose address is in va: that of a memfd's mapping, which
// the collector neither moves nor frees.
func (b *fakeBehind) mapDMA(va *uint64, iova, size uint64, readOnly bool) error {
	return b.mapBytes(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(va))), size), iova, readOnly)
}

func (b *fakeBehind) mapBytes(mem []byte, iova uint64, readOnly bool) error {
	err := b.t.DMA().Map(Mapping{IOVA: iova, Bytes: mem, FD: -1, ReadOnly: readOnly})
	if err == nil {
		b.maps[iova] = uint64(len(mem))
	}
	return errnoOf(err)
}

func (b *fakeBehind) unmapDMA(iova, size uint64) error {
	err := b.t.DMA().Unmap(iova, size)
	if err == nil {
		delete(b.maps, iova)
	}
	return errnoOf(err)
}

// FakeMachine is the fake kernel with a function of the caller's Transport behind
// 0000:01:00.0, for tests from outside the package.
type FakeMachine struct {
	k *fakeKernel
	o KernelOptions
}

// NewFakeMachine makes one on which the function is opened by a backend; open gives
// a handle on the function each time the kernel takes hold of it.
func NewFakeMachine(t *testing.T, backend string, open func() Transport) *FakeMachine {
	k := backends[backend].kernel(t)
	k.maxMaps = 1 << 16
	k.devs["0000:01:00.0"].behind = &fakeBehind{open: open}
	exempt := kernelMemlock.exempt
	kernelMemlock.exempt = func() bool { return true } // nothing is pinned here
	t.Cleanup(func() { kernelMemlock.exempt = exempt })
	o := k.options()
	o.Backend = backend
	backends[backend].set(&o)
	return &FakeMachine{k, o}
}

// Open opens the function as a user does.
func (m *FakeMachine) Open() (Transport, error) { return Open("0000:01:00.0", m.o) }

// Hook is asked at each system call, by its name (the request of an ioctl, "open group", …): what it answers is the
// answer, unless it is 0. A close it fails is done all the same.
func (m *FakeMachine) Hook(f func(name string) syscall.Errno) {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	m.k.hook = f
}

// Short says how many of the n bytes of a pread or pwrite of a region are moved;
// nil: all.
func (m *FakeMachine) Short(f func(name string, region, n int) int) {
	m.k.mu.Lock()
	defer m.k.mu.Unlock()
	m.k.short = f
}

// Clean requires that nothing is open or mapped and no rule was broken.
func (m *FakeMachine) Clean(t *testing.T) {
	t.Helper()
	m.k.requireClean(t)
}
