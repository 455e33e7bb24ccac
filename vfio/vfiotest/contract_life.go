package vfiotest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

func (c *contract) interrupts(t *testing.T) {
	tr := c.device(t)
	for i := range vfio.NumIRQs {
		info, err := tr.IRQInfo(i)
		require.NoError(t, err)
		require.GreaterOrEqual(t, info.Count, 0)
	}
	for _, i := range []int{-1, vfio.NumIRQs} {
		_, err := tr.IRQInfo(i)
		refused(t, err, vfio.ErrRange, "interrupt index %d", i)
	}
	if c.o.ReadOnly {
		return
	}
	msix, err := tr.IRQInfo(vfio.IRQMSIX)
	require.NoError(t, err)
	require.Positive(t, msix.Count)
	require.True(t, msix.EventFD)
	v := vectors(t, tr, 1)[0]
	refused(t, tr.SetIRQs(vfio.NumIRQs, 0, []*vfio.Vector{v}), vfio.ErrRange, "interrupt index out of range")
	refused(t, tr.SetIRQs(vfio.IRQMSIX, -1, []*vfio.Vector{v}), vfio.ErrRange, "negative start")
	refused(t, tr.SetIRQs(vfio.IRQMSIX, msix.Count, []*vfio.Vector{v}), vfio.ErrRange, "vector behind the last")
	refused(t, tr.SetIRQs(vfio.IRQMSIX, 1, make([]*vfio.Vector, msix.Count)), vfio.ErrRange, "more vectors than there are")
}

// vectors makes n vectors that close with the test.
func vectors(t *testing.T, tr vfio.Transport, n int) []*vfio.Vector {
	t.Helper()
	vs := make([]*vfio.Vector, n)
	for i := range vs {
		v, err := tr.NewVector()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, v.Close()) })
		vs[i] = v
	}
	return vs
}

func (c *contract) attach(t *testing.T) {
	tr := c.device(t)
	msix, err := tr.IRQInfo(vfio.IRQMSIX)
	require.NoError(t, err)
	require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, nil), "disabling what is not enabled")
	vs := vectors(t, tr, msix.Count)
	for range 2 { // all can be had, and again after they were given up
		require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, vs))
		require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, []*vfio.Vector{nil}), "detach one")
		require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, vs[:1]), "attach it again")
		require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, nil))
	}
	for _, v := range vs {
		require.False(t, v.TryWait(), "a vector fired by itself")
	}
}

func (c *contract) deliver(t *testing.T) {
	if c.o.Raise == nil {
		t.Skip("this device cannot be told to raise an interrupt")
	}
	tr := c.device(t)
	msix, err := tr.IRQInfo(vfio.IRQMSIX)
	require.NoError(t, err)
	vs := vectors(t, tr, min(msix.Count, 4))
	require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, vs))
	ctx, cancel := context.WithTimeout(t.Context(), c.o.Patience)
	defer cancel()
	for i, v := range vs {
		c.o.Raise(t, tr, i)
		require.NoError(t, v.Wait(ctx), "vector %d", i)
		for k, other := range vs {
			require.False(t, other.TryWait(), "vector %d fired for %d", k, i)
		}
	}
	// A detached vector hears nothing; the others still do.
	last := len(vs) - 1
	if last > 0 {
		require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, []*vfio.Vector{nil}))
		c.o.Raise(t, tr, 0)
		c.o.Raise(t, tr, last)
		require.NoError(t, vs[last].Wait(ctx))
		require.False(t, vs[0].TryWait())
	}
	require.NoError(t, tr.SetIRQs(vfio.IRQMSIX, 0, nil))
}

func (c *contract) reset(t *testing.T) {
	tr := c.device(t)
	info, err := tr.Info()
	require.NoError(t, err)
	if !info.CanReset {
		refused(t, tr.Reset(), vfio.ErrNotSupported, "reset")
		return
	}
	before := make([]byte, 4)
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, before))
	for range 2 {
		require.NoError(t, tr.Reset())
	}
	after := make([]byte, 4)
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, after))
	require.Equal(t, before, after, "vendor and device id")
}

// verbs are all methods, each once, with operands that are right.
func (c *contract) verbs(tr vfio.Transport) map[string]func() error {
	return map[string]func() error{
		"Info":       func() error { _, err := tr.Info(); return err },
		"RegionInfo": func() error { _, err := tr.RegionInfo(vfio.RegionBAR0); return err },
		"ReadRegion": func() error { return tr.ReadRegion(vfio.RegionBAR0, 0, make([]byte, 4)) },
		"ReadConfig": func() error { return tr.ReadRegion(vfio.RegionConfig, 0, make([]byte, 4)) },
		"MapRegion":  func() error { _, err := tr.MapRegion(vfio.RegionBAR0); return err },
		"IRQInfo":    func() error { _, err := tr.IRQInfo(vfio.IRQMSIX); return err },
	}
}

func (c *contract) close(t *testing.T) {
	tr := c.open(t)
	m := tr.DMA()
	require.NoError(t, tr.Close())
	require.NoError(t, tr.Close(), "second Close")
	verbs := c.verbs(tr)
	verbs["WriteRegion"] = func() error { return tr.WriteRegion(vfio.RegionConfig, 4, make([]byte, 2)) }
	verbs["SetIRQs"] = func() error { return tr.SetIRQs(vfio.IRQMSIX, 0, nil) }
	verbs["NewVector"] = func() error { _, err := tr.NewVector(); return err }
	verbs["Reset"] = tr.Reset
	if !c.o.SharedDMA {
		verbs["Limits"] = func() error { _, err := m.Limits(); return err }
		verbs["Map"] = func() error { return m.Map(vfio.Mapping{IOVA: 2 << 20, Bytes: make([]byte, 4096), FD: -1}) }
		verbs["Unmap"] = func() error { return m.Unmap(2<<20, 4096) }
	}
	for name, f := range verbs {
		refused(t, f(), vfio.ErrClosed, "%s after Close", name)
	}
}

// concurrent uses everything from several goroutines: for the race detector, and
// so that neither mixes its operands up with another's.
func (c *contract) concurrent(t *testing.T) {
	tr := c.device(t)
	l, err := tr.DMA().Limits()
	require.NoError(t, err)
	const size = 64 << 10
	at := place(t, l, 4*size)
	arena := memory(t, l, 4*size)
	vs := vectors(t, tr, 1)
	var id [2]byte
	require.NoError(t, tr.ReadRegion(vfio.RegionConfig, 0, id[:]))
	errs := make(chan error, 16)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				x := vfio.Mapping{IOVA: at + uint64(i)*size, Bytes: arena.Bytes()[i*size : (i+1)*size], FD: arena.FD(), Offset: int64(i) * size}
				var got [2]byte
				err := errors.Join(tr.DMA().Map(x), tr.ReadRegion(vfio.RegionConfig, 0, got[:]),
					tr.ReadRegion(vfio.RegionBAR0, 0, make([]byte, 8)), tr.DMA().Unmap(x.IOVA, size))
				if i == 0 {
					err = errors.Join(err, tr.SetIRQs(vfio.IRQMSIX, 0, vs), tr.SetIRQs(vfio.IRQMSIX, 0, nil))
				}
				if got != id {
					err = errors.Join(err, errors.New("vendor id of another read"))
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

// closeWhileBusy closes under users: they get their answer, or ErrClosed.
func (c *contract) closeWhileBusy(t *testing.T) {
	tr := c.open(t)
	errs := make(chan error, 64)
	started := make(chan struct{}, 64)
	var wg sync.WaitGroup
	for _, f := range c.verbs(tr) {
		wg.Go(func() {
			for n := 0; ; n++ {
				err := f()
				if n == 0 {
					started <- struct{}{}
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	for range len(c.verbs(tr)) {
		<-started
	}
	require.NoError(t, tr.Close())
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(c.o.Patience):
		require.Fail(t, "a verb does not notice Close")
	}
	close(errs)
	for err := range errs {
		refused(t, err, vfio.ErrClosed, "verb during Close")
	}
}
