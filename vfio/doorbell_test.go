package vfio

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// A doorbell rings by two stores where its page is mapped, by a trap where it is
// not, and with the same bytes.
func TestDoorbell(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		d := onFile(t)
		if mapped {
			d.regions[RegionBAR0].Mappable = []Span{{Size: DoorbellPage}}
		}
		w, err := newWindow(d, RegionBAR0, "file")
		require.NoError(t, err)
		record := MemOf(make([]byte, 8))
		b := w.Doorbell(0x800, record.Slice(4, 4))
		require.Equal(t, mapped && !raceEnabled, b.Direct())
		b.Ring(0x01020304, 0x1112131415161718)
		require.Equal(t, uint32(0x01020304), record.Load32(4))
		require.Zero(t, record.Load32(0), "the other word of the record")
		require.Equal(t, be64(0x1112131415161718), w.ReadBE64(0x800))
		require.Zero(t, w.ReadBE64(0x7f8)|w.ReadBE64(0x808), "the neighbours")
		if !raceEnabled { // the detector makes sync.Pool drop things at random
			require.Zero(t, testing.AllocsPerRun(100, func() { b.Ring(1, 2) }))
		}

		i := b.Indirect()
		require.False(t, i.Direct())
		i.Ring(5, 6)
		require.Equal(t, be64(6), w.ReadBE64(0x800))

		// Closed under it: the store goes nowhere, and the window says why.
		w.close()
		require.False(t, b.Direct())
		require.NoError(t, d.Close())
		b.Ring(9, 3)
		require.ErrorIs(t, w.Err(), ErrClosed)
		require.Equal(t, uint32(9), record.Load32(4), "the record is memory of ours")
	}
}

// A register that is not all inside what is mapped traps; one that is not inside
// the region is refused.
func TestDoorbellBounds(t *testing.T) {
	record := MemOf(make([]byte, 8)).Slice(0, 4)
	bar := make([]byte, 3*DoorbellPage)
	w := WindowOf("memory", bar)
	b := w.Doorbell(3*DoorbellPage-8, record)
	require.Equal(t, !raceEnabled, b.Direct())
	b.Ring(1, ^uint64(0))
	require.Equal(t, ^uint64(0), binary.NativeEndian.Uint64(bar[3*DoorbellPage-8:]))
	clear(bar[3*DoorbellPage-8:])
	require.Equal(t, make([]byte, len(bar)), bar)
	require.Panics(t, func() { w.Doorbell(3*DoorbellPage, record) }, "behind the region")
	require.Panics(t, func() { w.Doorbell(4, record) }, "not aligned")
	require.Panics(t, func() { w.Doorbell(0, MemOf(make([]byte, 3))) }, "half a word")
	require.Panics(t, func() { WindowOf("none", nil) })

	d := onFile(t)
	d.regions[RegionBAR0].Mappable = []Span{{Size: DoorbellPage / 2}}
	w, err := newWindow(d, RegionBAR0, "file")
	require.NoError(t, err)
	b = w.Doorbell(DoorbellPage/2, record)
	require.False(t, b.Direct(), "behind what is mapped")
	b.Ring(7, 0x1112131415161718)
	require.Equal(t, be64(0x1112131415161718), w.ReadBE64(DoorbellPage/2))
	require.Equal(t, uint32(7), record.Load32(0))
}

// Lines are the memory itself, in host order.
func TestLines(t *testing.T) {
	m := MemOf(make([]byte, 3*LineSize+8))
	l := m.Lines()
	require.Len(t, l, 3, "whole ones")
	l[2][7] = 0x0102030405060708
	require.Equal(t, uint64(0x0102030405060708), m.Load64(2*LineSize+56))
	l[1].Bytes()[63] = 0xa5
	require.Equal(t, byte(0xa5), m.Bytes()[2*LineSize-1])
	require.Empty(t, MemOf(nil).Lines())
	require.Panics(t, func() { MemOf(make([]byte, 72)[4:]).Lines() })
}
