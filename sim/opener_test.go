package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestOneOpener: while a function is open a second opener is told so by every verb and
// changes nothing; its siblings are free, and it is free again after Close.
func TestOneOpener(t *testing.T) {
	r := newRaw(t, Options{Functions: 2}).to(phaseInit)
	before, resets := r.chip.State(0), r.chip.Counters(0).Resets
	second := r.chip.Function(0)
	mem := make([]byte, 4096)
	verbs := map[string]func() error{
		"info":        func() error { _, err := second.Info(); return err },
		"region info": func() error { _, err := second.RegionInfo(0); return err },
		"read":        func() error { return second.ReadRegion(0, 0, mem[:4]) },
		"write":       func() error { return second.WriteRegion(vfio.RegionConfig, 4, mem[:2]) },
		"map region":  func() error { _, err := second.MapRegion(0); return err },
		"irq info":    func() error { _, err := second.IRQInfo(vfio.IRQMSIX); return err },
		"new vector":  func() error { _, err := second.NewVector(); return err },
		"set irqs":    func() error { return second.SetIRQs(vfio.IRQMSIX, 0, nil) },
		"reset":       second.Reset,
		"hot reset":   second.(vfio.HotResetter).HotReset,
		"map":         func() error { return second.DMA().Map(vfio.Mapping{IOVA: 1 << 30, Bytes: mem, FD: -1}) },
		"unmap":       func() error { return second.DMA().Unmap(arenaIOVA, arenaSize) },
		"limits":      func() error { _, err := second.DMA().Limits(); return err },
	}
	for name, verb := range verbs {
		err := verb()
		require.ErrorIs(t, err, vfio.ErrBusy, name)
		var e *vfio.Error
		require.ErrorAs(t, err, &e, name)
		require.NotEmpty(t, e.Remedy)
		require.NotEmpty(t, e.Target)
	}
	_, err := vfio.NewDevice(second, vfio.DeviceOptions{})
	require.ErrorIs(t, err, vfio.ErrBusy)
	require.Equal(t, before, r.chip.State(0))

	sibling := r.chip.Function(1)
	_, err = sibling.Info()
	require.NoError(t, err)
	require.NoError(t, sibling.Close())

	require.NoError(t, second.Close())
	_, err = second.Info()
	require.ErrorIs(t, err, vfio.ErrClosed)
	require.Equal(t, resets, r.chip.Counters(0).Resets)
	require.Equal(t, before, r.chip.State(0), "the first has it still")

	late := r.chip.Function(0)
	require.NoError(t, r.dev.Close())
	_, err = late.Info()
	require.ErrorIs(t, err, vfio.ErrBusy, "what was refused stays so, as an open is")
	r.dev = r.chip.Function(0)
	require.NoError(t, late.Close())
	_, err = r.dev.Info()
	require.NoError(t, err)
	require.Equal(t, 1, r.chip.State(0).Handles)
	require.Equal(t, "off", r.chip.State(0).Phase)
}
