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
		b := w.Doorbell(0, record.Slice(4, 4))
		require.Equal(t, mapped && !raceEnabled, b.Direct())
		b.Ring(0x01020304, 0x800, 0x1112131415161718)
		require.Equal(t, uint32(0x01020304), record.Load32(4))
		require.Zero(t, record.Load32(0), "the other word of the record")
		require.Equal(t, be64(0x1112131415161718), w.ReadBE64(0x800))
		require.Zero(t, w.ReadBE64(0x7f8)|w.ReadBE64(0x808), "the neighbours")
		if !raceEnabled { // the detector makes sync.Pool drop things at random
			require.Zero(t, testing.AllocsPerRun(100, func() { b.Ring(1, 0x808, 2) }))
		}

		i := b.Indirect()
		require.False(t, i.Direct())
		i.Ring(5, 0x810, 6)
		require.Equal(t, be64(6), w.ReadBE64(0x810))

		// Closed under it: the store goes nowhere, and the window says why.
		w.close()
		require.False(t, b.Direct())
		require.NoError(t, d.Close())
		b.Ring(9, 0x800, 3)
		require.ErrorIs(t, w.Err(), ErrClosed)
		require.Equal(t, uint32(9), record.Load32(4), "the record is memory of ours")
	}
}

// No register index reaches beyond the page.
func TestDoorbellStaysInItsPage(t *testing.T) {
	bar := make([]byte, 3*DoorbellPage)
	w := WindowOf("memory", bar)
	require.True(t, w.Mapped(0))
	b := w.Doorbell(DoorbellPage, MemOf(make([]byte, 8)).Slice(0, 4))
	b.Ring(1, 5*DoorbellPage+0x13, ^uint64(0))
	require.Equal(t, ^uint64(0), binary.NativeEndian.Uint64(bar[DoorbellPage+0x10:]))
	clear(bar[DoorbellPage+0x10:][:8])
	require.Equal(t, make([]byte, len(bar)), bar)
	require.Panics(t, func() { w.Doorbell(2*DoorbellPage+8, MemOf(make([]byte, 8)).Slice(0, 4)) }, "a page that ends behind the region")
	require.Panics(t, func() { w.Doorbell(4, MemOf(make([]byte, 8)).Slice(0, 4)) }, "not aligned")
	require.Panics(t, func() { w.Doorbell(0, MemOf(make([]byte, 3))) }, "half a word")
	require.Panics(t, func() { WindowOf("none", nil) })
}

// Lines are the memory itself, in host order.
func TestLines(t *testing.T) {
	m := MemOf(make([]byte, 3*LineSize+8))
	l := m.Lines()
	require.Len(t, l, 3, "whole ones")
	l[2][7] = 0x0102030405060708
	require.Equal(t, uint64(0x0102030405060708), m.Load64(2*LineSize+56))
	require.Empty(t, MemOf(nil).Lines())
	require.Panics(t, func() { MemOf(make([]byte, 72)[4:]).Lines() })
}
