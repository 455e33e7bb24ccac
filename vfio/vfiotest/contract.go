package vfiotest

import (
	"fmt"
	"math/bits"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Options tell Run what a test may do to the device. The zero value fits any
// device: nothing is written to it.
type Options struct {
	// Scratch are places of BAR0, in multiples of 8 bytes, where what is written
	// can be read back.
	Scratch []vfio.Span
	// ReadOnly says that the transport only reads (sysfs): no writes, no DMA, no
	// interrupts, no reset.
	ReadOnly bool
	// Raise makes the device raise MSI-X vector i; nil skips delivery.
	Raise func(t *testing.T, tr vfio.Transport, i int)
	// Access makes the device read or write bus memory; nil skips reaching it.
	Access func(tr vfio.Transport, iova uint64, p []byte, write bool) error
	// SharedDMA says that the Mapper outlives the transport.
	SharedDMA bool
	// Patience is how long an interrupt may take to arrive, and Close to be
	// noticed; 0 means 5 seconds. Only a failing test waits that long.
	Patience time.Duration
}

// Run checks the contract of vfio.Transport. open gives a fresh transport each
// time; Run closes it.
func Run(t *testing.T, open func(t *testing.T) vfio.Transport, o Options) {
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	c := &contract{open: open, o: o}
	t.Run("Info", c.info)
	t.Run("Regions", c.regions)
	t.Run("Config", c.config)
	t.Run("Bounds", c.bounds)
	t.Run("MapRegion", c.mapRegion)
	t.Run("Interrupts", c.interrupts)
	if o.ReadOnly {
		t.Run("ReadOnly", c.readOnly)
	} else {
		t.Run("Scratch", c.scratch)
		t.Run("AttachDetach", c.attach)
		t.Run("Delivery", c.deliver)
		t.Run("Limits", c.limits)
		t.Run("MapDMA", c.either(c.mapDMA, c.mapPhysical))
		t.Run("RefuseDMA", c.either(c.refuseDMA, c.refusePhysical))
		t.Run("ReachDMA", c.either(c.reachDMA, c.reachPhysical))
		t.Run("Reset", c.reset)
		t.Run("Concurrent", c.either(c.concurrent, c.concurrentPhysical))
		t.Run("Space", c.space)
	}
	t.Run("Close", c.close)
	t.Run("CloseWhileBusy", c.closeWhileBusy)
}

type contract struct {
	open func(t *testing.T) vfio.Transport
	o    Options
}

// device opens a transport that closes with the test.
func (c *contract) device(t *testing.T) vfio.Transport {
	t.Helper()
	tr := c.open(t)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// refused checks that an error is typed, and of the kind.
func refused(t *testing.T, err, kind error, what string, args ...any) {
	t.Helper()
	what = fmt.Sprintf(what, args...)
	require.Error(t, err, what)
	require.ErrorIs(t, err, kind, what)
	var e *vfio.Error
	require.ErrorAs(t, err, &e, what)
	require.NotEmpty(t, e.Op, what)
}

func (c *contract) info(t *testing.T) {
	tr := c.device(t)
	info, err := tr.Info()
	require.NoError(t, err)
	require.NotEmpty(t, info.Name)
	require.Contains(t, []string{"type1", "iommufd", "noiommu", "sysfs", "vfio-user", "sim"}, info.Backend)
	require.GreaterOrEqual(t, info.Regions, vfio.RegionConfig+1)
	require.GreaterOrEqual(t, info.IRQs, vfio.IRQMSIX+1)
}

func (c *contract) regions(t *testing.T) {
	tr := c.device(t)
	for i := range vfio.NumRegions {
		r, err := tr.RegionInfo(i)
		require.NoError(t, err, "region %d", i)
		end := uint64(0)
		for _, s := range r.Mappable {
			require.Positive(t, s.Size, "region %d", i)
			require.GreaterOrEqual(t, s.Offset, end, "mappable areas of region %d overlap or descend", i)
			end = s.Offset + s.Size
			require.LessOrEqual(t, end, r.Size, "mappable area of region %d leaves it", i)
		}
	}
	bar, err := tr.RegionInfo(vfio.RegionBAR0)
	require.NoError(t, err)
	require.True(t, bar.Read)
	require.Equal(t, !c.o.ReadOnly, bar.Write)
	require.Equal(t, 1, bits.OnesCount64(bar.Size), "size of BAR0: %#x", bar.Size)
	for _, i := range []int{-1, vfio.NumRegions, 1 << 20} {
		_, err := tr.RegionInfo(i)
		refused(t, err, vfio.ErrRange, "region %d", i)
		_, err = tr.MapRegion(i)
		refused(t, err, vfio.ErrRange, "map region %d", i)
		refused(t, tr.ReadRegion(i, 0, make([]byte, 4)), vfio.ErrRange, "read region %d", i)
	}
}

func (c *contract) config(t *testing.T) {
	tr := c.device(t)
	r, err := tr.RegionInfo(vfio.RegionConfig)
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.Size, uint64(256))
	whole := make([]byte, 64)
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, whole))
	require.NotEqual(t, []byte{0, 0}, whole[:2], "vendor id")
	require.NotEqual(t, []byte{0xff, 0xff}, whole[:2], "vendor id")
	// A piece, at any alignment, is a piece of the whole.
	for off := range 8 {
		for _, n := range []int{1, 2, 3, 4, 8} {
			p := make([]byte, n)
			require.NoError(t, tr.ReadRegion(vfio.RegionConfig, uint64(off), p))
			require.Equal(t, whole[off:off+n], p, "%d bytes at %d", n, off)
		}
	}
}

func (c *contract) bounds(t *testing.T) {
	tr := c.device(t)
	for i := range vfio.NumRegions {
		r, err := tr.RegionInfo(i)
		require.NoError(t, err)
		if r.Size == 0 {
			refused(t, tr.ReadRegion(i, 0, make([]byte, 4)), vfio.ErrNotFound, "read of absent region %d", i)
			continue
		}
		for _, off := range []uint64{r.Size, r.Size + 4, 1 << 40, 1<<63 - 8, ^uint64(0) - 7} {
			refused(t, tr.ReadRegion(i, off, make([]byte, 4)), vfio.ErrRange, "read at %#x of region %d", off, i)
			if r.Write {
				refused(t, tr.WriteRegion(i, off, make([]byte, 4)), vfio.ErrRange, "write at %#x of region %d", off, i)
			}
		}
		refused(t, tr.ReadRegion(i, r.Size-4, make([]byte, 8)), vfio.ErrRange, "read across the end of region %d", i)
	}
	for _, n := range []int{1, 2, 4, 8} {
		require.NoError(t, tr.ReadRegion(vfio.RegionBAR0, 0, make([]byte, n)), "read of %d bytes", n)
		if n > 1 {
			refused(t, tr.ReadRegion(vfio.RegionBAR0, 1, make([]byte, n)), vfio.ErrRange, "unaligned read of %d bytes", n)
		}
	}
	for _, n := range []int{3, 5, 16} {
		refused(t, tr.ReadRegion(vfio.RegionBAR0, 0, make([]byte, n)), vfio.ErrRange, "read of %d bytes", n)
	}
}

func (c *contract) mapRegion(t *testing.T) {
	tr := c.device(t)
	for i := range vfio.NumRegions {
		r, err := tr.RegionInfo(i)
		require.NoError(t, err)
		areas, err := tr.MapRegion(i)
		require.NoError(t, err)
		require.Len(t, areas, len(r.Mappable), "region %d", i)
		for k, a := range areas {
			require.Equal(t, r.Mappable[k], vfio.Span{Offset: a.Offset, Size: uint64(len(a.Bytes))})
		}
		again, err := tr.MapRegion(i)
		require.NoError(t, err)
		require.Len(t, again, len(areas))
		for k := range again {
			require.Same(t, &areas[k].Bytes[0], &again[k].Bytes[0], "second MapRegion of region %d", i)
		}
	}
}

// scratch writes through Device and Window, and reads back by both ways.
func (c *contract) scratch(t *testing.T) {
	tr := c.open(t)
	d, err := vfio.NewDevice(tr, vfio.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	for _, s := range c.o.Scratch {
		for off := s.Offset; off < s.Offset+s.Size; off += 8 {
			w.WriteBE64(off, off*0x0101010101010101+1)
			w.WriteBE32(off+4, uint32(off)+2)
		}
		for off := s.Offset; off < s.Offset+s.Size; off += 8 {
			require.Equal(t, uint32((off*0x0101010101010101+1)>>32), w.ReadBE32(off), "offset %#x", off)
			require.Equal(t, uint32(off)+2, w.ReadBE32(off+4), "offset %#x", off+4)
			var p [4]byte
			require.NoError(t, tr.ReadRegion(vfio.RegionBAR0, off+4, p[:]))
			require.Equal(t, []byte{byte((off + 2) >> 24), byte((off + 2) >> 16), byte((off + 2) >> 8), byte(off + 2)}, p[:], "bus order at %#x", off+4)
		}
	}
	require.NoError(t, w.Err())
}

func (c *contract) readOnly(t *testing.T) {
	tr := c.device(t)
	refused(t, tr.WriteRegion(vfio.RegionBAR0, 0, make([]byte, 4)), vfio.ErrNotSupported, "write")
	refused(t, tr.WriteRegion(vfio.RegionConfig, 4, make([]byte, 2)), vfio.ErrNotSupported, "write of configuration space")
	refused(t, tr.Reset(), vfio.ErrNotSupported, "reset")
	refused(t, tr.SetIRQs(vfio.IRQMSIX, 0, nil), vfio.ErrNotSupported, "interrupts")
	_, err := tr.NewVector()
	refused(t, err, vfio.ErrNotSupported, "vector")
	_, err = tr.DMA().Limits()
	refused(t, err, vfio.ErrNotSupported, "DMA limits")
	refused(t, tr.DMA().Map(vfio.Mapping{}), vfio.ErrNotSupported, "map DMA")
	refused(t, tr.DMA().Unmap(0, 4096), vfio.ErrNotSupported, "unmap DMA")
	// A Device over it still opens, reads and closes; only memory is refused.
	d, err := vfio.NewDevice(c.open(t), vfio.DeviceOptions{})
	require.NoError(t, err)
	_, err = d.Space().Alloc(4096, vfio.BufferOptions{})
	refused(t, err, vfio.ErrNotSupported, "allocate DMA memory")
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	w.ReadBE32(0)
	require.NoError(t, w.Err())
	w.WriteBE32(0, 1)
	refused(t, w.Err(), vfio.ErrNotSupported, "store")
	require.NoError(t, d.Close())
}

// memory is DMA memory that the limits accept.
func memory(t *testing.T, l vfio.DMALimits, size int) *hostmem.Arena {
	t.Helper()
	var a *hostmem.Arena
	var err error
	if l.NeedsFile || l.Pinned {
		a, err = hostmem.MemFD("mlxvfio-test", size)
	} else {
		a, err = hostmem.Heap(size)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

// place is an IOVA with room for size bytes at a 2 MiB boundary, not the first.
func place(t *testing.T, l vfio.DMALimits, size uint64) uint64 {
	t.Helper()
	const step = 2 << 20
	for _, r := range l.Ranges {
		at := (max(r.First, step) + step - 1) &^ (step - 1)
		if at <= r.Last && r.Last-at >= size-1 {
			return at
		}
	}
	require.Fail(t, "no usable range", "%v", l.Ranges)
	return 0
}
