package vfio

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// life is everything a driver does with a function, by way of a Device.
func life(k *fakeKernel, o KernelOptions) error {
	t, err := Open("01:00.0", o)
	if err != nil {
		return err
	}
	d, err := NewDevice(t, DeviceOptions{})
	if err != nil {
		return errors.Join(err, t.Close())
	}
	use := func() error {
		w, err := d.Window(RegionBAR0)
		if err != nil {
			return err
		}
		if err := d.SetBusMaster(true); err != nil {
			return err
		}
		b, err := d.Space().Alloc(4096, BufferOptions{Name: "page"})
		if err != nil {
			return err
		}
		if _, err := d.EnableVectors(4); err != nil {
			return errors.Join(err, b.Free())
		}
		w.WriteBE32(0x20, 1)
		return errors.Join(d.Reset(), w.Err(), b.Free(), d.DisableVectors())
	}
	return errors.Join(use(), d.Close())
}

// backends are the ways to a function, each with a kernel that has it.
var backends = map[string]struct {
	kernel func(t *testing.T) *fakeKernel
	set    func(o *KernelOptions)
}{
	BackendType1:   {newFakeKernel, func(*KernelOptions) {}},
	BackendIOMMUFD: {newFakeCDevs, func(*KernelOptions) {}},
	BackendNoIOMMU: {newFakeNoIOMMU, func(o *KernelOptions) { o.UnsafeNoIOMMU = true }},
}

func TestKernelLife(t *testing.T) {
	for name, x := range backends {
		t.Run(name, func(t *testing.T) {
			k := x.kernel(t)
			o := k.options()
			x.set(&o)
			tr, err := Open("01:00.0", o)
			require.NoError(t, err)
			info, err := tr.Info()
			require.NoError(t, err)
			require.Equal(t, name, info.Backend)
			require.NoError(t, tr.Close())

			require.NoError(t, life(k, o))
			require.Equal(t, 1, k.devs["0000:01:00.0"].resets)
			require.Equal(t, byte(1), k.devs["0000:01:00.0"].bar[0x23])
			require.Equal(t, byte(commandMemory), k.devs["0000:01:00.0"].config[configCommand], "bus master stays on")
			k.requireClean(t)
		})
	}
}

// Every system call of a whole life fails once: whichever it is, the error comes
// out, and no file, mapping, vector or memory stays.
func TestKernelEveryCallFails(t *testing.T) {
	for name, x := range backends {
		t.Run(name, func(t *testing.T) {
			// What cannot be looked up when memory is given back is logged: the device
			// is done with it.
			looks := func(call string) bool { return strings.Contains(call, "pagemap") }
			var log bytes.Buffer
			first := x.kernel(t)
			open := func() (*fakeKernel, KernelOptions) {
				k := first.again()
				o := k.options()
				x.set(&o)
				log.Reset()
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				return k, o
			}
			k, o := open()
			require.NoError(t, life(k, o))
			names := slices.Clone(k.log)
			total := len(names)
			require.Greater(t, total, 40)
			asks := func(call string) bool { // the kernel's answer has many reasons
				return strings.HasPrefix(call, "VFIO_") || strings.HasPrefix(call, "IOMMU_") || strings.HasPrefix(call, "open ") || call == "dup" || call == "contiguous"
			}
			eventfds, memfds := openFiles(t, "eventfd"), openFiles(t, "mlxvfio-dma")
			for _, errno := range []unix.Errno{unix.EIO, unix.EPERM, unix.ENOMEM, unix.EINVAL, unix.EBUSY, unix.ENODEV, unix.ENOENT, unix.EACCES, unix.ENOTTY, unix.EMSGSIZE, unix.EADDRINUSE} {
				for n := 1; n <= total; n++ {
					k, o := open()
					failed := ""
					k.hook = func(name string) unix.Errno {
						if len(k.log) == n {
							failed = name
							return errno
						}
						return 0
					}
					if errno != unix.EIO && !asks(names[n-1]) {
						continue
					}
					err := life(k, o)
					switch {
					case err == nil && looks(failed):
						require.Contains(t, log.String(), "cannot tell whether DMA memory was moved")
					case tolerated(failed, errno):
					default:
						require.ErrorIs(t, err, errno, "call %d: %s", n, failed)
						var e *Error
						require.ErrorAs(t, err, &e, "call %d: %s", n, failed)
						require.NotEmpty(t, e.Op)
						require.NotEmpty(t, e.Remedy, "%v", err)
					}
					k.requireClean(t, "call", n, failed, errno)
					require.Empty(t, k.mappings(), "call %d: %s", n, failed)
					require.Equal(t, eventfds, openFiles(t, "eventfd"), "call %d: %s", n, failed)
					require.Equal(t, memfds, openFiles(t, "mlxvfio-dma"), "call %d: %s", n, failed)
				}
			}
		})
	}
}

// tolerated are the answers that are none to fail on: a region or an interrupt
// that does not exist, a way that is closed while there is another, a function that
// is gone when it is closed, and less memory than was hoped for.
func tolerated(call string, errno unix.Errno) bool {
	switch call {
	case "VFIO_DEVICE_GET_REGION_INFO", "VFIO_DEVICE_GET_IRQ_INFO":
		return errno == unix.EINVAL
	case "open iommufd", "open cdev":
		return slices.Contains([]unix.Errno{unix.ENOENT, unix.EPERM, unix.EACCES, unix.ENODEV, unix.ENXIO}, errno)
	case "VFIO_DEVICE_SET_IRQS":
		return errno == unix.ENODEV
	case "VFIO_IOMMU_MAP_DMA", "IOMMU_IOAS_MAP", "contiguous":
		return errno == unix.ENOMEM
	}
	return false
}

// A kernel in which iommufd answers on /dev/vfio/vfio asks for isolated interrupts when
// the group is asked for the function; the switch that accepts it is iommufd's.
func TestKernelInterruptsOfIOMMUFDsContainer(t *testing.T) {
	k := newFakeKernel(t)
	k.failCall("VFIO_GROUP_GET_DEVICE_FD", 1, unix.EPERM)
	_, err := OpenGroup("0000:01:00.0", k.options())
	var e *Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, os.ErrPermission)
	require.Contains(t, e.Error(), "does not isolate interrupts")
	require.Contains(t, e.Remedy, "/sys/module/iommufd/parameters/allow_unsafe_interrupts")
	k.requireClean(t)
}

// TestKernelErrors: what fails in the field, the error it gives and the remedy it
// names.
func TestKernelErrors(t *testing.T) {
	const bdf = "0000:01:00.0"
	tests := map[string]struct {
		bdf    string
		set    func(t *testing.T, k *fakeKernel)
		is     []error
		remedy []string
	}{
		"no function":     {bdf: "0000:ff:1f.7", is: []error{ErrNotFound}, remedy: []string{"no such PCI function", "mlxvfio list"}},
		"no PCI address":  {bdf: "not-a-device", is: []error{ErrRange}, remedy: []string{"0000:3b:00.0"}},
		"path in address": {bdf: "../..:00:00.0", is: []error{ErrRange}},
		"no such slot":    {bdf: "0000:3b:00.8", is: []error{ErrRange}},
		"no IOMMU": {
			set: func(t *testing.T, k *fakeKernel) {
				require.NoError(t, os.Remove(filepath.Join(k.root, "sys/bus/pci/devices", bdf, "iommu_group")))
			},
			is: []error{ErrNoIOMMU}, remedy: []string{"intel_iommu=on"},
		},
		"no VFIO": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("open container", 1, unix.ENOENT) },
			is:  []error{fs.ErrNotExist}, remedy: []string{"modprobe vfio-pci"},
		},
		"container not ours": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("open container", 1, unix.EACCES) },
			is:  []error{os.ErrPermission}, remedy: []string{"root"},
		},
		"other API":  {set: func(t *testing.T, k *fakeKernel) { k.apiVersion = 1 }, is: []error{ErrNotSupported}, remedy: []string{"API version 1"}},
		"no TYPE1v2": {set: func(t *testing.T, k *fakeKernel) { k.noType1v2 = true }, is: []error{ErrNotSupported}, remedy: []string{"TYPE1v2"}},
		"bound to mlx5_core": {
			set: func(t *testing.T, k *fakeKernel) {
				k.setDriver(t, bdf, "mlx5_core")
				k.failCall("open group", 1, unix.ENOENT)
			},
			is: []error{ErrNotFound, unix.ENOENT}, remedy: []string{"mlx5_core", "mlxvfio bind " + bdf},
		},
		"not bound": {
			set: func(t *testing.T, k *fakeKernel) {
				k.setDriver(t, bdf, "")
				k.failCall("open group", 1, unix.ENOENT)
			},
			is: []error{ErrNotFound}, remedy: []string{"no driver", "mlxvfio bind " + bdf},
		},
		"bound, no file": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("open group", 1, unix.ENOENT) },
			is:  []error{ErrNotFound}, remedy: []string{"vfio-pci", "devtmpfs"},
		},
		"group not ours": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("open group", 1, unix.EACCES) },
			is:  []error{os.ErrPermission}, remedy: []string{"chown"},
		},
		"busy": {
			set: func(t *testing.T, k *fakeKernel) {
				fd := filepath.Join(k.root, "proc/4242/fd")
				require.NoError(t, os.MkdirAll(fd, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(k.root, "proc/4242/comm"), []byte("qemu-system-x86\n"), 0o600))
				require.NoError(t, os.Symlink(filepath.Join(k.root, "dev/vfio/1"), filepath.Join(fd, "7")))
				k.failCall("open group", 1, unix.EBUSY)
			},
			is: []error{ErrBusy, unix.EBUSY}, remedy: []string{"process 4242 (qemu-system-x86)"},
		},
		"busy, opener hidden": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("open group", 1, unix.EBUSY) },
			is:  []error{ErrBusy}, remedy: []string{"fuser"},
		},
		"not viable": {
			bdf: "0000:02:00.0",
			set: func(t *testing.T, k *fakeKernel) {
				k.notViable = true
				k.setDriver(t, "0000:02:00.1", "mlx5_core")
			},
			is: []error{ErrBusy}, remedy: []string{"0000:02:00.1 (mlx5_core)", "mlxvfio bind 0000:02:00.1"},
		},
		"no interrupt remapping": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("VFIO_SET_IOMMU", 1, unix.EPERM) },
			is:  []error{os.ErrPermission}, remedy: []string{"remap", "allow_unsafe_interrupts"},
		},
		"firmware keeps memory for it": {
			set: func(t *testing.T, k *fakeKernel) {
				k.reserve(t, bdf, "0x000000007a800000 0x000000007effffff direct\n0x00000000fee00000 0x00000000feefffff msi\n")
				k.failCall("VFIO_GROUP_SET_CONTAINER", 1, unix.EINVAL)
			},
			is: []error{ErrNotSupported, unix.EINVAL}, remedy: []string{"RMRR", bdf + "/iommu_group/reserved_regions"},
		},
		"firmware keeps memory for it, older kernel": {
			set: func(t *testing.T, k *fakeKernel) {
				k.reserve(t, bdf, "0x000000007a800000 0x000000007effffff direct\n")
				k.failCall("VFIO_SET_IOMMU", 1, unix.EPERM)
			},
			is: []error{ErrNotSupported, unix.EPERM}, remedy: []string{"RMRR", "reserved_regions"},
		},
		"no reason given": {
			set: func(t *testing.T, k *fakeKernel) {
				k.reserve(t, bdf, "0x0000000000001000 0x0000000000001fff direct-relaxable\n0x00000000fee00000 0x00000000feefffff msi\n")
				k.failCall("VFIO_GROUP_SET_CONTAINER", 1, unix.EINVAL)
			},
			is: []error{unix.EINVAL}, remedy: []string{"see dmesg"},
		},
		"no interrupt remapping, relaxable memory": {
			set: func(t *testing.T, k *fakeKernel) {
				k.reserve(t, bdf, "0x0000000000001000 0x0000000000001fff direct-relaxable\n")
				k.failCall("VFIO_SET_IOMMU", 1, unix.EPERM)
			},
			is: []error{os.ErrPermission}, remedy: []string{"remap", "allow_unsafe_interrupts"},
		},
		"group taken by another": {
			set: func(t *testing.T, k *fakeKernel) {
				k.holder(t, 4242, "dev/vfio/1")
				k.failCall("VFIO_GROUP_SET_CONTAINER", 1, unix.EBUSY)
			},
			is: []error{ErrBusy, unix.EBUSY}, remedy: []string{"process 4242 (qemu-system-x86)", "fuser"},
		},
		"no memory for the group": {
			set: func(t *testing.T, k *fakeKernel) { k.failCall("VFIO_GROUP_SET_CONTAINER", 1, unix.ENOMEM) },
			is:  []error{ErrNoSpace, unix.ENOMEM}, remedy: []string{"free memory"},
		},
		"not in group for us": {
			set: func(t *testing.T, k *fakeKernel) {
				k.setDriver(t, bdf, "")
				k.failCall("VFIO_GROUP_GET_DEVICE_FD", 1, unix.ENODEV)
			},
			is: []error{ErrNotFound, unix.ENODEV}, remedy: []string{"no driver", "mlxvfio bind"},
		},
	}
	names := faultdoc.Names{"ErrNotFound": ErrNotFound, "ErrRange": ErrRange, "ErrNoIOMMU": ErrNoIOMMU, "ErrBusy": ErrBusy, "ErrNotSupported": ErrNotSupported}
	table := faultdoc.New("kernel VFIO, reasons", "TestKernelErrors", "open")
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		x := tests[name]
		row := table.Row(name, "", "open")
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel(t)
			if x.set != nil {
				x.set(t, k)
			}
			row.Raised()
			if x.bdf == "" {
				x.bdf = bdf
			}
			_, err := OpenGroup(x.bdf, k.options())
			require.Error(t, err)
			var e *Error
			require.ErrorAs(t, err, &e)
			for _, is := range x.is {
				require.ErrorIs(t, err, is)
			}
			for _, s := range x.remedy {
				require.Contains(t, err.Error(), s)
			}
			require.NotContains(t, err.Error(), "\n", "one line")
			require.NotEmpty(t, e.Remedy, "%v", err)
			k.requireClean(t)
			row.Saw("%s; remedy: %s", names.Describe(err, "Error"), strings.ReplaceAll(e.Remedy, k.root, ""))
			row.Then("nothing left")
		})
	}
	table.Check(t)
}

// What the kernel says of a container that has an IOMMU already is about both groups.
func TestKernelOtherIOMMU(t *testing.T) {
	k := newFakeKernel(t)
	c, err := NewContainer(k.options())
	require.NoError(t, err)
	o := k.options()
	o.Container = c
	first, err := OpenGroup("0000:02:00.0", o)
	require.NoError(t, err)
	k.failCall("VFIO_GROUP_SET_CONTAINER", 1, unix.EINVAL)
	_, err = OpenGroup("0000:01:00.0", o)
	requireSays(t, err, []error{unix.EINVAL}, []string{"different IOMMU kinds", "a Container of its own"})
	require.NoError(t, first.Close())
	require.NoError(t, c.Close())
	k.requireClean(t)
}

// Two functions of one group and one of another share a container: its group is
// opened once, the IOMMU is set once, and the address space outlives the function
// that was opened first.
func TestKernelSharedContainer(t *testing.T) {
	k := newFakeKernel(t)
	c, err := NewContainer(k.options())
	require.NoError(t, err)
	o := k.options()
	o.Container = c
	_, err = c.Limits()
	require.ErrorIs(t, err, ErrNotSupported, "no function has joined")
	var fns []Transport
	for _, bdf := range []string{"0000:02:00.0", "0000:02:00.1", "0000:01:00.0"} {
		f, err := OpenGroup(bdf, o)
		require.NoError(t, err)
		require.Same(t, c, f.DMA())
		fns = append(fns, f)
	}
	require.Equal(t, 2, k.calls("open group"))
	require.Equal(t, 1, k.calls("VFIO_SET_IOMMU"))
	s, err := NewAddressSpace(c, SpaceOptions{})
	require.NoError(t, err)
	b, err := s.Alloc(4096, BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, fns[0].Close())
	require.NoError(t, fns[2].Close())
	require.Len(t, k.mappings(), 1, "the mapping belongs to the container")
	require.ErrorIs(t, c.Close(), ErrBusy)
	again, err := OpenGroup("0000:02:00.0", o)
	require.NoError(t, err, "a function can come back")
	require.NoError(t, again.Close())
	require.NoError(t, b.Free())
	require.NoError(t, s.Close())
	require.Empty(t, k.mappings())
	require.NoError(t, fns[1].Close())
	third, err := OpenGroup("0000:01:00.0", o)
	require.NoError(t, err, "nothing was mapped: an empty container can be used again")
	require.Equal(t, 2, k.calls("VFIO_SET_IOMMU"))

	// With memory mapped the last function takes the mappings along: the space
	// knows that they are gone, and nobody may believe that they are back.
	s, err = NewAddressSpace(c, SpaceOptions{})
	require.NoError(t, err)
	_, err = s.Alloc(4096, BufferOptions{Name: "left"})
	require.NoError(t, err)
	require.NoError(t, third.Close())
	_, err = OpenGroup("0000:01:00.0", o)
	require.ErrorIs(t, err, ErrClosed)
	err = s.Close()
	require.ErrorContains(t, err, "left")
	require.NotContains(t, err.Error(), "unmap")
	require.Zero(t, s.Stats().Mappings)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err = OpenGroup("0000:01:00.0", o)
	require.ErrorIs(t, err, ErrClosed)
	k.requireClean(t)
}

// What may be mapped of BAR0, by what the kernel reports.
func TestKernelMappable(t *testing.T) {
	tests := map[string]struct {
		set  func(k *fakeKernel)
		want []Span
	}{
		"table mappable":        {func(k *fakeKernel) {}, []Span{{0, fakeBAR}}},
		"table not mappable":    {func(k *fakeKernel) { k.tableOK = false }, []Span{{0, 0x2000}, {0x3000, fakeBAR - 0x3000}}},
		"no chain":              {func(k *fakeKernel) { k.oldCaps = true }, []Span{{0, 0x2000}, {0x3000, fakeBAR - 0x3000}}},
		"sparse":                {func(k *fakeKernel) { k.sparse = []Span{{0, 0x1000}, {0x4000, 0x2000}} }, []Span{{0, 0x1000}, {0x4000, 0x2000}}},
		"sparse, over table":    {func(k *fakeKernel) { k.tableOK, k.sparse = false, []Span{{0x1000, 0x4000}} }, []Span{{0x1000, 0x1000}, {0x3000, 0x2000}}},
		"sparse, not in pages":  {func(k *fakeKernel) { k.sparse = []Span{{0x800, 0x2000}} }, []Span{{0x1000, 0x1000}}},
		"sparse, no whole page": {func(k *fakeKernel) { k.sparse = []Span{{0x800, 0x900}} }, nil},
		"sparse, none":          {func(k *fakeKernel) { k.sparse = []Span{} }, nil},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel(t)
			x.set(k)
			tr, err := OpenGroup("0000:01:00.0", k.options())
			require.NoError(t, err)
			info, err := tr.RegionInfo(RegionBAR0)
			require.NoError(t, err)
			require.Equal(t, x.want, info.Mappable)
			areas, err := tr.MapRegion(RegionBAR0)
			require.NoError(t, err)
			require.Len(t, areas, len(x.want))
			require.NoError(t, tr.Close())
			k.requireClean(t)
		})
	}
	k := newFakeKernel(t)
	k.sparse = []Span{{0, 1 << 20}}
	_, err := OpenGroup("0000:01:00.0", k.options())
	require.ErrorIs(t, err, ErrRange, "an area larger than its region")
	k.requireClean(t)
}

func TestKernelLimits(t *testing.T) {
	k := newFakeKernel(t)
	tr, err := OpenGroup("0000:01:00.0", k.options())
	require.NoError(t, err)
	l, err := tr.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, DMALimits{Ranges: fakeRanges, PageSizes: 0xfffffffffffff000, MaxMappings: 65535, Pinned: true}, l)
	k.noRanges = true
	l, err = tr.DMA().Limits()
	require.NoError(t, err)
	require.Equal(t, []IOVARange{{4096, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}, l.Ranges)
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

// The host may have fewer vectors than the function: Linux then answers their
// number, which is no success.
func TestKernelFewVectors(t *testing.T) {
	k := newFakeKernel(t)
	k.vectors = 3
	tr, err := OpenGroup("0000:01:00.0", k.options())
	require.NoError(t, err)
	d, err := NewDevice(tr, DeviceOptions{})
	require.NoError(t, err)
	_, err = d.EnableVectors(4)
	require.ErrorIs(t, err, ErrNoSpace)
	require.ErrorContains(t, err, "only 3")
	vs, err := d.EnableVectors(3)
	require.NoError(t, err)
	k.raise("0000:01:00.0", 2)
	require.Eventually(t, vs[2].TryWait, time.Second, time.Millisecond)
	require.NoError(t, tr.SetIRQs(IRQMSIX, 0, []*Vector{nil}))
	require.ErrorIs(t, tr.SetIRQs(IRQMSIX, 0, []*Vector{NewChanVector()}), ErrNotSupported, "the kernel signals eventfds only")
	require.NoError(t, d.Close())
	k.requireClean(t)
}

func TestKernelNoReset(t *testing.T) {
	k := newFakeKernel(t)
	k.noReset = true
	tr, err := OpenGroup("0000:01:00.0", k.options())
	require.NoError(t, err)
	require.ErrorIs(t, tr.Reset(), ErrNotSupported)
	require.NoError(t, tr.Close())
}

// A function that is removed under us answers ENODEV.
func TestKernelRemoved(t *testing.T) {
	k := newFakeKernel(t)
	tr, err := OpenGroup("0000:01:00.0", k.options())
	require.NoError(t, err)
	k.hook = func(name string) unix.Errno {
		if name == "pread" || name == "VFIO_DEVICE_RESET" {
			return unix.ENODEV
		}
		return 0
	}
	require.ErrorIs(t, tr.ReadRegion(RegionBAR0, 0, make([]byte, 4)), ErrGone)
	require.ErrorIs(t, tr.Reset(), ErrGone)
	require.NoError(t, tr.Close())
	k.requireClean(t)
}

func TestMSIXTable(t *testing.T) {
	conf := make([]byte, 256)
	read := func(off int, p []byte) error { copy(p, conf[off:]); return nil }
	bar, _, err := msixTable(read)
	require.NoError(t, err)
	require.Equal(t, -1, bar, "no capability list")
	conf[configStatus], conf[configCapFirst] = statusCapList, 0x43 // the low bits are reserved
	copy(conf[0x40:], []byte{capMSIX, 0, 0xff, 0x87, 0x04, 0x10, 0, 0})
	bar, table, err := msixTable(read)
	require.NoError(t, err)
	require.Equal(t, 4, bar)
	require.Equal(t, Span{Offset: 0x1000, Size: 2048 * 16}, table)
	copy(conf[0x40:], []byte{1, 0x40})
	_, _, err = msixTable(read)
	require.ErrorIs(t, err, errCapLoop)
}

func TestFullBDF(t *testing.T) {
	for in, want := range map[string]string{"3b:00.0": "0000:3b:00.0", "0000:3B:1f.7": "0000:3b:1f.7", "10000:01:00.0": "10000:01:00.0"} {
		got, err := fullBDF(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "3b", "3b:00", "3b:0.0", "3b:00.9", "3b:00.00", "zz:00.0", "1:2:3:4.0", "000:3b:00.0", "0000:3b:00.0/.."} {
		_, err := fullBDF(in)
		require.ErrorIs(t, err, ErrRange, in)
	}
}

// refuseMmap is the kernel, except that nothing can be mapped.
type refuseMmap struct {
	kernelSys
	errno unix.Errno
}

func (s refuseMmap) mmap(int, int64, int, int) ([]byte, error) { return nil, s.errno }

// The kernel may refuse to map resource0 for reasons of its own: each has a remedy.
func TestSysfsMapErrors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bus/pci/devices/0000:3b:00.0")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	bar := filepath.Join(dir, "resource0")
	require.NoError(t, os.WriteFile(bar, nil, 0o600))
	o := KernelOptions{Sysfs: filepath.Join(dir, "../../../..")}
	_, err := OpenSysfs("3b:00.0", o)
	require.ErrorIs(t, err, ErrNotFound, "an empty BAR0")
	require.NoError(t, os.WriteFile(bar, make([]byte, 4096), 0o600))
	files := openFiles(t, "resource0")
	for errno, remedy := range map[unix.Errno]string{unix.EACCES: "root", unix.EPERM: "lockdown", unix.EINVAL: "iomem=relaxed"} {
		o.sys = refuseMmap{errno: errno}
		_, err := OpenSysfs("3b:00.0", o)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, remedy)
	}
	require.Equal(t, files, openFiles(t, "resource0"))
}

// The system calls reach the kernel with the operands as they are: a pipe answers
// how much is in it, and has no VFIO.
func TestKernelSys(t *testing.T) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	_, err := unix.Write(p[1], make([]byte, 7))
	require.NoError(t, err)
	var s kernelSys
	var n int32
	_, err = s.ioctl(p[0], unix.TIOCINQ, unsafe.Pointer(&n))
	require.NoError(t, err)
	require.Equal(t, int32(7), n)
	_, err = s.ioctl(p[0], abi.VFIO_DEVICE_GET_INFO, unsafe.Pointer(&n))
	require.ErrorIs(t, err, unix.ENOTTY)
	_, err = s.ioctlInt(p[0], abi.VFIO_GET_API_VERSION, 0)
	require.ErrorIs(t, err, unix.ENOTTY)
	require.NoError(t, s.close(p[0]))
	require.NoError(t, s.close(p[1]))
	require.ErrorIs(t, s.close(p[0]), unix.EBADF)
	_, err = s.open(filepath.Join(t.TempDir(), "nothing"), unix.O_RDONLY)
	require.ErrorIs(t, err, unix.ENOENT)
}

// onFile is a function whose BAR0 is a plain file, for what the real system calls
// cost.
func onFile(t testing.TB) *kernelDevice {
	fd, err := unix.MemfdCreate("mlxvfio-bar", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	d := &kernelDevice{sys: beneath(kernelSys{}), fd: fd, info: DeviceInfo{Name: "file", Regions: NumRegions}, detach: func() error { return nil }}
	d.regions[RegionBAR0] = kernelRegion{RegionInfo: RegionInfo{Size: 4096, Read: true, Write: true}}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// A transport may be closed under its Windows, as when a test plays the death of a
// process: they are turned away, and nothing of the function stays mapped.
func TestKernelCloseUnderWindow(t *testing.T) {
	k := newFakeKernel(t)
	tr, err := OpenGroup("0000:01:00.0", k.options())
	require.NoError(t, err)
	d, err := NewDevice(tr, DeviceOptions{})
	require.NoError(t, err)
	w, err := d.Window(RegionBAR0)
	require.NoError(t, err)
	areas, err := tr.MapRegion(RegionBAR0)
	require.NoError(t, err)
	w.WriteBE32(0x40, 1)
	require.NoError(t, tr.Close())
	k.requireClean(t)
	require.Equal(t, 1, k.calls("blank"))
	w.WriteBE32(0x40, 2)
	require.Equal(t, byte(1), k.devs["0000:01:00.0"].bar[0x43], "the store went nowhere")
	require.Equal(t, ^uint32(0), w.ReadBE32(0x40))
	require.ErrorIs(t, w.Err(), ErrClosed)
	require.ErrorIs(t, d.Close(), ErrClosed, "bus master could not be turned off")
	require.NoError(t, d.Close())

	late := &Window{t: tr, region: RegionBAR0, size: fakeBAR}
	require.False(t, areas[0].gate.enter(late), "areas from before Close let nobody in")
}

// An access that is on its way when the transport is closed hits ordinary memory.
func TestKernelCloseDuringStores(t *testing.T) {
	for range 50 {
		d := onFile(t)
		d.regions[RegionBAR0].Mappable = []Span{{Size: 4096}}
		w, err := newWindow(d, RegionBAR0, "file")
		require.NoError(t, err)
		require.True(t, w.Mapped(0))
		started, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for n := uint32(0); w.Err() == nil; n++ {
				w.WriteBE32(64, n)
				w.ReadBE32(64)
				if n == 100 {
					close(started)
				}
			}
		}()
		<-started
		require.NoError(t, d.Close())
		<-done
		require.ErrorIs(t, w.Err(), ErrClosed)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	require.NotContains(t, string(maps), "mlxvfio-bar", "the file is not mapped any more")
}

// A trap into the kernel allocates nothing either.
func TestKernelTrapAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes sync.Pool drop things at random")
	}
	w, err := newWindow(onFile(t), RegionBAR0, "file")
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		w.WriteBE32(0, 1)
		w.WriteBE64(8, 1)
		w.ReadBE32(0)
		w.ReadBE64(8)
	}))
	require.Equal(t, uint32(1), w.ReadBE32(0))
	require.NoError(t, w.Err())
}

func BenchmarkKernelTrap(b *testing.B) {
	w, err := newWindow(onFile(b), RegionBAR0, "file")
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		w.WriteBE32(0, 1)
	}
}
