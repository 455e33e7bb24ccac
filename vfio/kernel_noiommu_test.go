package vfio

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// unsafely are options that accept a function without an IOMMU.
func (k *fakeKernel) unsafely() KernelOptions {
	o := k.options()
	o.UnsafeNoIOMMU = true
	return o
}

// Who opens a function without an IOMMU says so, and is told each time.
func TestNoIOMMUOpen(t *testing.T) {
	const bdf = "0000:01:00.0"
	const mode = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
	noGroup := func(t *testing.T, k *fakeKernel) {
		require.NoError(t, os.Remove(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "iommu_group")))
	}
	param := func(t *testing.T, k *fakeKernel, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(k.root, mode)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(k.root, mode), []byte(text+"\n"), 0o600))
	}
	fail := func(name string, errno unix.Errno) func(t *testing.T, k *fakeKernel, o *KernelOptions) {
		return func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.failCall(name, 1, errno) }
	}
	tests := map[string]struct {
		kernel func(t *testing.T) *fakeKernel
		set    func(t *testing.T, k *fakeKernel, o *KernelOptions)
		is     []error
		says   []string
	}{
		"not asked for": {set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.UnsafeNoIOMMU = false },
			is: []error{ErrNoIOMMU}, says: []string{"all of this machine's memory", "intel_iommu=on", "--unsafe-noiommu"}},
		"asked for by half": {set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) {
			o.UnsafeNoIOMMU, o.Backend = false, BackendNoIOMMU
		},
			is: []error{ErrNoIOMMU}, says: []string{"--unsafe-noiommu"}},
		"type1 asked for": {set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendType1 },
			is: []error{ErrNoIOMMU}, says: []string{"backend type1", "backend noiommu"}},
		"iommufd asked for": {set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendIOMMUFD },
			is: []error{ErrNoIOMMU}, says: []string{"backend iommufd"}},
		"an IOMMU guards it": {kernel: newFakeKernel, set: func(_ *testing.T, _ *fakeKernel, o *KernelOptions) { o.Backend = BackendNoIOMMU },
			is: []error{ErrNotFound}, says: []string{"an IOMMU guards it, in group 1"}},
		"no mode in the kernel": {kernel: newFakeKernel, set: func(t *testing.T, k *fakeKernel, _ *KernelOptions) { noGroup(t, k) },
			is: []error{ErrNoIOMMU}, says: []string{"has no no-IOMMU mode", "VFIO_NOIOMMU"}},
		"mode off": {kernel: newFakeKernel, set: func(t *testing.T, k *fakeKernel, _ *KernelOptions) {
			noGroup(t, k)
			param(t, k, "N")
		}, is: []error{ErrNoIOMMU}, says: []string{"mode is off", "mlxvfio bind " + bdf + " --unsafe-noiommu"}},
		"mode on, not bound": {kernel: newFakeKernel, set: func(t *testing.T, k *fakeKernel, _ *KernelOptions) {
			noGroup(t, k)
			param(t, k, "Y")
			k.setDriver(t, bdf, "mlx5_core")
		}, is: []error{ErrNoIOMMU}, says: []string{"mlx5_core", "mlxvfio bind " + bdf}},
		"mode off at the open": {set: func(_ *testing.T, k *fakeKernel, _ *KernelOptions) { k.noIOMMUMode = false },
			is: []error{ErrNoIOMMU}, says: []string{"mode is off", "echo 1 >"}},
		"group needs a capability":     {set: fail("open group", unix.EPERM), is: []error{os.ErrPermission}, says: []string{"CAP_SYS_RAWIO"}},
		"container needs a capability": {set: fail("VFIO_GROUP_SET_CONTAINER", unix.EPERM), is: []error{os.ErrPermission}, says: []string{"CAP_SYS_RAWIO"}},
		"IOMMU needs a capability":     {set: fail("VFIO_SET_IOMMU", unix.EPERM), is: []error{os.ErrPermission}, says: []string{"CAP_SYS_RAWIO", "NOIOMMU"}},
		"open elsewhere": {set: func(t *testing.T, k *fakeKernel, _ *KernelOptions) {
			k.holder(t, 4242, "dev/vfio/noiommu-1")
			k.failCall("open group", 1, unix.EBUSY)
		}, is: []error{ErrBusy}, says: []string{"process 4242"}},
		"no high number": {set: fail("dup", unix.EMFILE), is: []error{unix.EMFILE}, says: []string{"ulimit -n", "killed"}},
		"a container of type1": {set: func(t *testing.T, k *fakeKernel, o *KernelOptions) {
			c, err := NewContainer(k.options())
			require.NoError(t, err)
			t.Cleanup(func() {
				require.NoError(t, c.Close())
				k.requireClean(t)
			})
			o.Container = c
		}, is: []error{ErrNoIOMMU}, says: []string{"backend type1"}},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			if x.kernel == nil {
				x.kernel = newFakeNoIOMMU
			}
			k := x.kernel(t)
			o := k.unsafely()
			var log bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			x.set(t, k, &o)
			_, err := Open(bdf, o)
			requireSays(t, err, x.is, x.says)
			require.Empty(t, log.String(), "nothing was opened")
			if o.Container == nil {
				k.requireClean(t)
			}
		})
	}
	k := newFakeNoIOMMU(t)
	o := k.unsafely()
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		log.Reset()
		tr, err := Open(bdf, o)
		require.NoError(t, err)
		require.Contains(t, log.String(), "level=WARN")
		require.Contains(t, log.String(), "NO IOMMU")
		require.NoError(t, tr.Close())
	}
	k.requireClean(t)
	_, err := NewContainer(KernelOptions{Backend: BackendNoIOMMU, sys: k, DevRoot: o.DevRoot})
	requireSays(t, err, []error{ErrNoIOMMU}, []string{"UnsafeNoIOMMU"})
}

// The function's file has a number above those of its memory: see raise.
func TestNoIOMMUNumber(t *testing.T) {
	k := newFakeNoIOMMU(t)
	tr, err := Open("01:00.0", k.unsafely())
	require.NoError(t, err)
	s, err := NewAddressSpace(tr.DMA(), SpaceOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	for fd, f := range k.fds {
		require.Equal(t, f.kind == "device", fd >= 4096, "%d: %s", fd, f.kind)
	}
	require.NoError(t, b.Free())
	require.NoError(t, s.Close())
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// Buffers are where their memory is: small ones share huge pages, large ones have
// pages of their own in one piece, and never does a buffer reach into the next.
func TestNoIOMMUSpace(t *testing.T) {
	k := newFakeNoIOMMU(t)
	tr, err := Open("01:00.0", k.unsafely())
	require.NoError(t, err)
	s, err := NewAddressSpace(tr.DMA(), SpaceOptions{SlabMin: 64 << 20, SlabMax: 64 << 20})
	require.NoError(t, err)
	require.True(t, s.Limits().Physical)
	physical := func(p *byte) uint64 {
		k.mu.Lock()
		defer k.mu.Unlock()
		a := uintptr(unsafe.Pointer(p))
		for at, h := range k.huge {
			if a >= at && a < at+uintptr(len(h.Bytes())) {
				return h.at + uint64(a-at)
			}
		}
		return 0
	}
	sizes := []int{64, 4096, 1 << 20, 1 << 20, 3 << 20, 5<<20 + 4096, 64}
	var bufs []*Buffer
	for _, size := range sizes {
		b, err := s.Alloc(size, BufferOptions{})
		require.NoError(t, err)
		require.Equal(t, b.IOVA(), physical(&b.Bytes()[0]))
		require.Equal(t, b.IOVA()+uint64(size)-1, physical(&b.Bytes()[size-1]))
		bufs = append(bufs, b)
	}
	var pages []int
	for _, h := range k.huge {
		pages = append(pages, len(h.Bytes())/hugePage)
	}
	require.ElementsMatch(t, []int{1, 1, 2, 3}, pages)

	// What does not lie in one piece is refused with its remedy; the rest works.
	k.fragmented = true
	_, err = s.Alloc(3<<20, BufferOptions{Name: "large"})
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "2 huge pages lie in one piece")
	require.ErrorContains(t, err, "hugepages=N")
	_, err = s.Alloc(2<<20, BufferOptions{})
	require.NoError(t, err)
	k.noHuge = true
	_, err = s.Alloc(2<<20, BufferOptions{})
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "echo 64 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	k.noHuge, k.fragmented = false, false

	_, err = NewAddressSpace(tr.DMA(), SpaceOptions{Memory: MemoryHeap})
	require.ErrorIs(t, err, ErrNotSupported)
	for _, b := range bufs {
		require.NoError(t, b.Free())
	}
	err = s.Close()
	require.ErrorContains(t, err, "1 buffers", "the one of 2 MiB")
	require.Empty(t, k.huge)
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// A table of physical addresses that does not say where memory is.
func TestNoIOMMUPagemap(t *testing.T) {
	tests := map[string]struct {
		set  func(k *fakeKernel)
		is   []error
		says []string
	}{
		"hidden":        {func(k *fakeKernel) { k.hideFrames = true }, []error{os.ErrPermission}, []string{"CAP_SYS_ADMIN", "pagemap"}},
		"not there":     {func(k *fakeKernel) { k.notPresent = true }, []error{ErrNotFound}, nil},
		"ordinary page": {func(k *fakeKernel) { k.ordinaryPage = true }, []error{ErrRange}, []string{"no huge page"}},
		"no table":      {func(k *fakeKernel) { k.failCall("open pagemap", 1, unix.ENOENT) }, []error{unix.ENOENT}, []string{"PROC_PAGE_MONITOR"}},
		"no access":     {func(k *fakeKernel) { k.failCall("open pagemap", 1, unix.EACCES) }, []error{os.ErrPermission}, []string{"root"}},
		"no answer":     {func(k *fakeKernel) { k.failCall("pread pagemap", 1, unix.EIO) }, []error{unix.EIO}, nil},
		"no close":      {func(k *fakeKernel) { k.failCall("close pagemap", 1, unix.EIO) }, []error{unix.EIO}, nil},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			k := newFakeNoIOMMU(t)
			tr, err := Open("01:00.0", k.unsafely())
			require.NoError(t, err)
			x.set(k)
			_, _, err = tr.DMA().(PhysicalMapper).Supply(hugePage)
			requireSays(t, err, x.is, x.says)
			require.NoError(t, tr.Close())
			k.requireClean(t)
		})
	}
}

// Memory that moved while a device knew where it was is a matter for the log: the
// device has used somebody else's.
func TestNoIOMMUMoved(t *testing.T) {
	k := newFakeNoIOMMU(t)
	o := k.unsafely()
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	tr, err := Open("01:00.0", o)
	require.NoError(t, err)
	s, err := NewAddressSpace(tr.DMA(), SpaceOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, b.Free())
	for _, h := range k.huge {
		h.at += 32 << 20
	}
	log.Reset()
	require.NoError(t, s.Close())
	require.Contains(t, log.String(), "level=ERROR")
	require.Contains(t, log.String(), fmt.Sprintf("was=%d now=%d", 64<<20, 96<<20))
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// Two functions without an IOMMU share a container, and so their memory.
func TestNoIOMMUShared(t *testing.T) {
	k := newFakeNoIOMMU(t)
	k.addDev(t, "0000:03:00.0", 3, "vfio-pci")
	k.setNoIOMMU(t, "0000:03:00.0")
	o := k.unsafely()
	o.Backend = BackendNoIOMMU
	c, err := NewContainer(o)
	require.NoError(t, err)
	o.Container = c
	a, err := Open("0000:01:00.0", o)
	require.NoError(t, err)
	b, err := Open("0000:03:00.0", o)
	require.NoError(t, err)
	require.Same(t, a.DMA(), b.DMA())
	require.Equal(t, 1, k.calls("VFIO_SET_IOMMU"))
	s, err := NewAddressSpace(a.DMA(), SpaceOptions{})
	require.NoError(t, err)
	buf, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, a.Close())
	require.ErrorIs(t, c.Close(), ErrBusy)
	require.NoError(t, buf.Free())
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	_, err = b.DMA().Limits()
	require.ErrorIs(t, err, ErrClosed)
	_, _, err = b.DMA().(PhysicalMapper).Supply(hugePage)
	require.ErrorIs(t, err, ErrClosed)
	k.requireClean(t)
}

// Decorators pass the memory on.
func TestNoIOMMUDecorated(t *testing.T) {
	k := newFakeNoIOMMU(t)
	tr, err := Open("01:00.0", k.unsafely())
	require.NoError(t, err)
	var log bytes.Buffer
	r := NewRecorder(tr, &log)
	d, err := NewDevice(r, DeviceOptions{})
	require.NoError(t, err)
	b, err := d.Space().Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, b.Free())
	require.NoError(t, d.Close())
	require.NoError(t, r.Err())
	require.Contains(t, log.String(), `"verb":"map-dma"`)
	k.requireClean(t)

	k = newFakeKernel(t)
	tr, err = Open("01:00.0", k.options())
	require.NoError(t, err)
	_, _, err = NewFaulty(tr, nil).DMA().(PhysicalMapper).Supply(hugePage)
	require.ErrorIs(t, err, ErrNotSupported)
	require.NoError(t, tr.Close())
}

// On a machine with reserved huge pages, as root: memory that is located for real.
func TestPhysicalMemory(t *testing.T) {
	p := newPhysicalMapper(KernelOptions{}.withDefaults())
	b, at, err := p.Supply(2 * hugePage)
	if errors.Is(err, ErrNoSpace) || errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
		absent.Skip(t, "memory in huge pages, located for real", err.Error())
	}
	require.NoError(t, err)
	require.NotZero(t, at)
	require.Zero(t, at%hugePage)
	require.Equal(t, make([]byte, 2*hugePage), b.Bytes())
	second, err := p.whereIs(b.Bytes()[hugePage:])
	require.NoError(t, err)
	require.Equal(t, at+hugePage, second, "one piece")
	c, other, err := p.Supply(hugePage)
	require.NoError(t, err)
	require.True(t, other+hugePage <= at || at+2*hugePage <= other, "%#x and %#x", at, other)
	require.NoError(t, p.Map(Mapping{IOVA: at, Bytes: b.Bytes(), FD: b.FD()}))
	require.NoError(t, p.Unmap(at, 2*hugePage))
	require.NoError(t, b.Close())
	require.NoError(t, c.Close())
	require.Empty(t, p.pieces)
	require.Zero(t, openFiles(t, "pagemap"))
}
