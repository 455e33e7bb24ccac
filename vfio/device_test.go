package vfio_test

import (
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

// A word written through the Window stands big-endian in the BAR, whether the
// place is mapped (in one of two areas) or traps.
func TestWindowWrites(t *testing.T) {
	ram, d := openRAM(t, vfiotest.RAMOptions{Mapped: []vfio.Span{{Offset: 0, Size: 4096}, {Offset: 8192, Size: 8192}}})
	w, err := d.Window(vfio.RegionBAR0)
	require.NoError(t, err)
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
	require.NoError(t, w.Err())
	require.True(t, w.Mapped(0) && w.Mapped(8192) && w.Mapped(16376))
	require.False(t, w.Mapped(4096) || w.Mapped(16384))
}
