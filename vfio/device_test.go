package vfio_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

func openRAM(t testing.TB, o vfiotest.RAMOptions) (*vfiotest.RAM, *vfio.Device) {
	t.Helper()
	ram := vfiotest.NewRAM(o)
	d, err := vfio.NewDevice(ram, vfio.DeviceOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return ram, d
}

func openWindow(t testing.TB, d *vfio.Device) *vfio.Window {
	t.Helper()
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	return w
}

// twoAreas leaves a hole and the end of BAR0 unmapped.
var twoAreas = []vfio.Span{{Offset: 0, Size: 4096}, {Offset: 8192, Size: 8192}}

// A word written through the Window stands big-endian in the BAR, whether the
// place is mapped (in one of two areas) or traps.
func TestWindowWrites(t *testing.T) {
	ram, d := openRAM(t, vfiotest.RAMOptions{Mapped: twoAreas})
	w := openWindow(t, d)
	for _, off := range []uint64{0, 4, 4092, 4096, 8188, 8192, 16380, 16384, 65532} {
		w.WriteBE32(off, 0x01020304)
		require.Equal(t, []byte{1, 2, 3, 4}, ram.BAR().Slice(int(off), 4).Bytes(), "offset %#x", off)
		require.Equal(t, uint32(0x01020304), w.ReadBE32(off), "offset %#x", off)
	}
	for _, off := range []uint64{8, 4088, 4096, 8184, 8192, 16376, 65528} {
		w.WriteBE64(off, 0x0102030405060708)
		require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, ram.BAR().Slice(int(off), 8).Bytes(), "offset %#x", off)
		require.Equal(t, uint64(0x0102030405060708), w.ReadBE64(off), "offset %#x", off)
	}
	src := make([]byte, 128)
	for i := range src {
		src[i] = byte(i + 1)
	}
	for _, off := range []uint64{64, 4032, 8192 - 64, 8192 + 128, 65536 - 128} {
		w.CopyWC(off, src)
		require.Equal(t, src, ram.BAR().Slice(int(off), 128).Bytes(), "offset %#x", off)
	}
	w.CopyWC(0, nil)
	require.NoError(t, w.Err())
	require.Equal(t, uint64(65536), w.Size())
	require.True(t, w.Mapped(0) && w.Mapped(8192) && w.Mapped(16376))
	require.False(t, w.Mapped(4096) || w.Mapped(16384) || w.Mapped(1<<63))
	again, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
	require.Same(t, w, again)
}

// An access is one transaction of its width at its place: what the device sees
// of a trapped one is exactly that.
func TestWindowTrapsOnce(t *testing.T) {
	var log []string
	_, d := openRAM(t, vfiotest.RAMOptions{
		OnRead: func(region int, off uint64, p []byte) {
			log = append(log, fmt.Sprintf("r%d %#x+%d", region, off, len(p)))
		},
		OnWrite: func(region int, off uint64, p []byte) { log = append(log, fmt.Sprintf("w%d %#x=%x", region, off, p)) },
	})
	w := openWindow(t, d)
	w.WriteBE32(0x10, 0x01020304)
	w.WriteBE64(0x18, 0x0102030405060708)
	w.ReadBE32(0x10)
	w.ReadBE64(0x18)
	w.CopyWC(0x40, make([]byte, 64))
	require.Equal(t, []string{"w0 0x10=01020304", "w0 0x18=0102030405060708", "r0 0x10+4", "r0 0x18+8",
		"w0 0x40=0000000000000000", "w0 0x48=0000000000000000", "w0 0x50=0000000000000000", "w0 0x58=0000000000000000",
		"w0 0x60=0000000000000000", "w0 0x68=0000000000000000", "w0 0x70=0000000000000000", "w0 0x78=0000000000000000"}, log)
	log = nil
}

func TestWindowPanics(t *testing.T) {
	_, d := openRAM(t, vfiotest.RAMOptions{Mapped: twoAreas})
	w := openWindow(t, d)
	for name, f := range map[string]func(){
		"read at the end":       func() { w.ReadBE32(65536) },
		"write at the end":      func() { w.WriteBE32(65536, 0) },
		"64 bits over the end":  func() { w.WriteBE64(65532, 0) },
		"far away":              func() { w.ReadBE32(1 << 40) },
		"at the last address":   func() { w.ReadBE32(^uint64(0) - 3) },
		"unaligned, mapped":     func() { w.ReadBE32(2) },
		"unaligned, trapped":    func() { w.WriteBE32(4098, 0) },
		"unaligned 64 bits":     func() { w.ReadBE64(4) },
		"copy over the end":     func() { w.CopyWC(65536-64, make([]byte, 128)) },
		"copy to unaligned":     func() { w.CopyWC(32, make([]byte, 64)) },
		"copy of an odd size":   func() { w.CopyWC(0, make([]byte, 65)) },
		"copy wrapping 64 bits": func() { w.CopyWC(^uint64(0)-63, make([]byte, 128)) },
	} {
		require.Panics(t, f, name)
	}
	require.NoError(t, w.Err())
}

// A trap that fails reads as all ones; the first error stays until a reset.
func TestWindowErr(t *testing.T) {
	boom := errors.New("boom")
	f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), nil)
	d, err := vfio.NewDevice(f, vfio.DeviceOptions{})
	require.NoError(t, err)
	w := openWindow(t, d)
	require.Zero(t, w.ReadBE32(0))
	f.Add(vfio.Fault{Verb: vfio.VerbRead, Err: boom, Times: -1})
	require.Equal(t, ^uint32(0), w.ReadBE32(0x24))
	require.Equal(t, ^uint64(0), w.ReadBE64(0x28))
	var e *vfio.Error
	require.ErrorAs(t, w.Err(), &e)
	require.ErrorIs(t, w.Err(), boom)
	require.ErrorContains(t, w.Err(), "0x24")
	require.NoError(t, d.Reset())
	require.NoError(t, w.Err())
	f.Clear()
	f.Add(vfio.Fault{Verb: vfio.VerbWrite, Err: boom, Times: 2})
	w.WriteBE32(0x30, 1)
	w.WriteBE64(0x38, 1)
	require.ErrorContains(t, w.Err(), "write 4 bytes at 0x30")
	require.NoError(t, d.Close())
}

// After Close a Window reads all ones and writes nothing, also where it was mapped.
func TestWindowAfterClose(t *testing.T) {
	ram, d := openRAM(t, vfiotest.RAMOptions{Mapped: twoAreas})
	w := openWindow(t, d)
	w.WriteBE32(0, 5)
	require.NoError(t, d.Close())
	w.WriteBE32(0, 7)
	w.WriteBE64(8192, 7)
	require.Equal(t, uint32(5), ram.BAR().LoadBE32(0))
	require.Equal(t, ^uint32(0), w.ReadBE32(0))
	require.Equal(t, ^uint64(0), w.ReadBE64(8192))
	require.ErrorIs(t, w.Err(), vfio.ErrClosed)
	_, err := d.Window(vfio.RegionBAR0)
	require.ErrorIs(t, err, vfio.ErrClosed)
}

func TestWindowMissing(t *testing.T) {
	_, d := openRAM(t, vfiotest.RAMOptions{})
	_, err := d.Window(vfio.RegionBAR2)
	require.ErrorIs(t, err, vfio.ErrNotFound)
	_, err = d.Window(vfio.NumRegions)
	require.ErrorIs(t, err, vfio.ErrRange)
	_, err = d.Window(-1)
	require.ErrorIs(t, err, vfio.ErrRange)
}

func TestWindowAllocatesNothing(t *testing.T) {
	if raceBuild {
		t.Skip("the race detector makes sync.Pool drop things at random")
	}
	_, d := openRAM(t, vfiotest.RAMOptions{Mapped: twoAreas})
	w := openWindow(t, d)
	src := make([]byte, 64)
	for name, off := range map[string]uint64{"mapped": 8192, "smaller area": 0, "trapped": 4096} {
		require.Zero(t, testing.AllocsPerRun(200, func() {
			w.WriteBE32(off, 1)
			w.WriteBE64(off, 1)
			w.ReadBE32(off)
			w.ReadBE64(off)
			w.CopyWC(off, src)
		}), name)
	}
}

func TestBusMaster(t *testing.T) {
	ram, d := openRAM(t, vfiotest.RAMOptions{})
	command := func() uint32 { return ram.Config().Load32(4) & 0xffff }
	require.NoError(t, d.SetBusMaster(true))
	require.Equal(t, uint32(6), command())
	require.NoError(t, d.SetBusMaster(false))
	require.Equal(t, uint32(2), command(), "memory decoding stays on")
	require.NoError(t, d.WriteConfig(4, []byte{0x47, 0x05}))
	require.NoError(t, d.SetBusMaster(false))
	require.Equal(t, uint32(0x0543), command(), "other bits stay")
	require.ErrorIs(t, d.ReadConfig(-1, make([]byte, 1)), vfio.ErrRange)
	require.ErrorIs(t, d.WriteConfig(-1, make([]byte, 1)), vfio.ErrRange)

	gone, err := vfio.NewDevice(vfio.Unplugged(vfiotest.NewRAM(vfiotest.RAMOptions{})), vfio.DeviceOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, gone.SetBusMaster(true), vfio.ErrGone)
	require.NoError(t, gone.Close(), "a device that is gone closes")
}

func TestVectors(t *testing.T) {
	ram, d := openRAM(t, vfiotest.RAMOptions{Vectors: 4})
	n, err := d.MaxVectors()
	require.NoError(t, err)
	require.Equal(t, 4, n)
	for _, n := range []int{0, -1, 5} {
		_, err := d.EnableVectors(n)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
	vs, err := d.EnableVectors(3)
	require.NoError(t, err)
	require.Len(t, vs, 3)
	_, err = d.EnableVectors(1)
	require.ErrorIs(t, err, vfio.ErrExists)
	require.True(t, ram.Raise(2))
	require.NoError(t, vs[2].Wait(t.Context()))
	require.False(t, ram.Raise(3), "not attached")
	require.NoError(t, d.DisableVectors())
	require.NoError(t, d.DisableVectors(), "nothing to do")
	require.False(t, ram.Raise(0))
	require.ErrorIs(t, vs[0].Wait(context.Background()), vfio.ErrClosed)
	_, err = d.EnableVectors(4)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	_, err = d.EnableVectors(1)
	require.ErrorIs(t, err, vfio.ErrClosed)
	require.ErrorIs(t, d.DisableVectors(), vfio.ErrClosed)
}

// When attaching fails no vector is left behind, and the next attempt can succeed.
func TestVectorsFail(t *testing.T) {
	boom := errors.New("boom")
	for _, x := range []vfio.Fault{
		{Verb: vfio.VerbNewVector, Nth: 2, Err: boom},
		{Verb: vfio.VerbNewVector, Nth: 2, Err: boom, After: true},
		{Verb: vfio.VerbSetIRQs, Err: boom},
		{Verb: vfio.VerbSetIRQs, Err: boom, After: true},
		{Verb: vfio.VerbIRQInfo, Err: boom},
	} {
		ram := vfiotest.NewRAM(vfiotest.RAMOptions{})
		d, err := vfio.NewDevice(vfio.NewFaulty(ram, vfio.Plan{x}), vfio.DeviceOptions{})
		require.NoError(t, err)
		_, err = d.EnableVectors(4)
		require.ErrorIs(t, err, boom)
		require.False(t, ram.Raise(0), "%s", x.Verb)
		_, err = d.EnableVectors(4)
		require.NoError(t, err)
		require.True(t, ram.Raise(0))
		require.NoError(t, d.Close())
	}
}

// Close takes every step in order, whatever fails, and leaves nothing.
func TestDeviceClose(t *testing.T) {
	boom := errors.New("boom")
	for _, verb := range []vfio.Verb{"", vfio.VerbSetIRQs, vfio.VerbWrite, vfio.VerbUnmapDMA, vfio.VerbClose} {
		ram := vfiotest.NewRAM(vfiotest.RAMOptions{})
		f := vfio.NewFaulty(ram, nil)
		d, err := vfio.NewDevice(f, vfio.DeviceOptions{Memory: vfio.MemoryMemFD})
		require.NoError(t, err)
		require.NoError(t, d.SetBusMaster(true))
		b, err := d.Space().Alloc(4096, vfio.BufferOptions{})
		require.NoError(t, err)
		require.NoError(t, b.Free())
		_, err = d.EnableVectors(2)
		require.NoError(t, err)
		if verb == "" {
			require.NoError(t, d.Close())
			require.Equal(t, uint32(2), ram.Config().Load32(4)&0xffff, "bus master")
		} else {
			f.Add(vfio.Fault{Verb: verb, Err: boom, Times: -1})
			require.ErrorIs(t, d.Close(), boom, "%s", verb)
		}
		require.NoError(t, d.Close(), "second Close")
		_, err = ram.Info()
		require.ErrorIs(t, err, vfio.ErrClosed, "%s", verb)
		if verb == vfio.VerbUnmapDMA {
			// The fault stands between: the space cannot know that the mapping went.
			require.Equal(t, 1, d.Space().Stats().Mappings)
			f.Clear()
			require.NoError(t, d.Space().Close())
		}
		require.Zero(t, memfds(t), "%s", verb)
		require.Zero(t, d.Space().Stats().Mappings)
	}
}

// Devices that share a space leave it alone.
func TestSharedSpace(t *testing.T) {
	m := vfiotest.NewMapper(vfio.DMALimits{})
	s := newSpace(t, m, vfio.SpaceOptions{})
	var ds []*vfio.Device
	for range 2 {
		d, err := vfio.NewDevice(vfiotest.NewRAM(vfiotest.RAMOptions{Mapper: m}), vfio.DeviceOptions{Space: s})
		require.NoError(t, err)
		require.Same(t, s, d.Space())
		ds = append(ds, d)
	}
	b, err := ds[0].Space().Alloc(64, vfio.BufferOptions{})
	require.NoError(t, err)
	require.NoError(t, ds[0].Close())
	require.Len(t, m.Mappings(), 1)
	require.NoError(t, ds[1].Close())
	require.NoError(t, b.Free())
}

func TestNewDeviceFails(t *testing.T) {
	boom := errors.New("boom")
	needsFile := vfiotest.NewRAM(vfiotest.RAMOptions{Mapper: vfiotest.NewMapper(vfio.DMALimits{NeedsFile: true})})
	_, err := vfio.NewDevice(needsFile, vfio.DeviceOptions{Memory: vfio.MemoryHeap})
	require.ErrorIs(t, err, vfio.ErrNotSupported, "a wish that cannot be met is an error, not a space that refuses")
	require.NoError(t, needsFile.Close())
	for _, verb := range []vfio.Verb{vfio.VerbInfo, vfio.VerbLimits} {
		f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), vfio.Plan{{Verb: verb, Err: boom}})
		_, err := vfio.NewDevice(f, vfio.DeviceOptions{})
		require.ErrorIs(t, err, boom)
		_, err = f.Info()
		require.NoError(t, err, "the transport stays the caller's")
		require.NoError(t, f.Close())
	}
}

// What is missing is said, with a remedy.
func TestNilArguments(t *testing.T) {
	_, err := vfio.NewDevice(nil, vfio.DeviceOptions{})
	_, err2 := vfio.NewAddressSpace(nil, vfio.SpaceOptions{})
	for word, err := range map[string]error{"transport": err, "mapper": err2} {
		var ve *vfio.Error
		require.ErrorAs(t, err, &ve)
		require.ErrorContains(t, err, "the "+word+" is nil")
		require.NotEmpty(t, ve.Remedy)
	}
}

var sink atomic.Uint32

func BenchmarkWindow(b *testing.B) {
	_, d := openRAM(b, vfiotest.RAMOptions{Mapped: twoAreas})
	w := openWindow(b, d)
	for name, off := range map[string]uint64{"mapped": 12288, "smaller area": 0, "trapped": 4096} {
		b.Run("WriteBE32/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.WriteBE32(off, 1)
			}
		})
		b.Run("WriteBE64/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.WriteBE64(off, 1)
			}
		})
		b.Run("ReadBE32/"+name, func(b *testing.B) {
			b.ReportAllocs()
			var v uint32
			for b.Loop() {
				v += w.ReadBE32(off)
			}
			sink.Store(v)
		})
	}
}
