package mlxvfio_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// ordered notes the acts on a transport that must keep an order.
type ordered struct {
	vfio.Transport
	mu   sync.Mutex
	acts []string
}

func (o *ordered) note(act string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.acts); n == 0 || o.acts[n-1] != act {
		o.acts = append(o.acts, act)
	}
}

func (o *ordered) WriteRegion(i int, off uint64, p []byte) error {
	if i == vfio.RegionConfig && off == 4 && p[0]&4 == 0 {
		o.note("bus master off")
	}
	return o.Transport.WriteRegion(i, off, p)
}

func (o *ordered) SetIRQs(i, start int, vs []*vfio.Vector) error {
	if len(vs) == 0 {
		o.note("interrupts off")
	}
	return o.Transport.SetIRQs(i, start, vs)
}

func (o *ordered) Reset() error {
	o.note("reset")
	return o.Transport.Reset()
}

func (o *ordered) Close() error {
	o.note("close")
	return o.Transport.Close()
}

func (o *ordered) DMA() vfio.Mapper { return orderedMapper{o.Transport.DMA(), o} }

type orderedMapper struct {
	vfio.Mapper
	o *ordered
}

func (m orderedMapper) Unmap(iova, size uint64) error {
	m.o.note("unmap")
	return m.Mapper.Unmap(iova, size)
}

// The order of the last acts: a device that answers gives its pages back and is
// disabled before its interrupts' memory goes; one that does not is cut off and
// reset before anything is unmapped.
func TestCloseOrder(t *testing.T) {
	c := chip(t, "sim:cx5")
	o := &ordered{Transport: c.Function(0)}
	h, err := mlxvfio.Open(t.Context(), o, mlxvfio.Options{})
	require.NoError(t, err)
	o.acts = nil
	require.NoError(t, h.Close(t.Context()))
	require.Equal(t, []string{"interrupts off", "bus master off", "unmap", "close"}, o.acts)
	spotless(c, 0)(t)

	o = &ordered{Transport: c.Function(0)}
	h, err = mlxvfio.Open(t.Context(), o, mlxvfio.Options{})
	require.NoError(t, err)
	o.acts = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, h.Close(ctx))
	require.Equal(t, []string{"bus master off", "reset", "interrupts off", "unmap", "close"}, o.acts)
	spotless(c, 0)(t)
}

// TestTeardownFaults: kinds × commands of the teardown. Whatever command of it
// fails, the function is isolated, everything is freed and the next open works.
func TestTeardownFaults(t *testing.T) {
	kinds := []struct {
		name, fault, arg string
		want             func(*testing.T, error)
	}{
		{"refused", "status", "=RES_BUSY", as[*cmdif.CommandError]},
		{"never completes", "lost", "", as[*cmdif.TimeoutError]},
		{"not delivered", "delivery", "=FW_ERR", as[*cmdif.DeliveryError]},
		{"wrong token", "token", "", is(cmdif.ErrNotOurs)},
	}
	for _, k := range kinds {
		for _, op := range []prm.Opcode{prm.OpDestroyEQ, prm.OpDeallocUAR, prm.OpTeardownHCA, prm.OpManagePages, prm.OpDisableHCA} {
			t.Run(k.name+"/"+op.String(), func(t *testing.T) {
				c := chip(t, "sim:cx5")
				base := drivertest.Now()
				w := drivertest.Watch(c.Function(0))
				h, err := mlxvfio.Open(t.Context(), w, mlxvfio.Options{CommandTimeout: 50e6})
				require.NoError(t, err)
				require.NoError(t, c.SetFault(k.fault, op.String()+k.arg))
				err = h.Close(t.Context())
				as[*mlxvfio.CloseError](t, err)
				k.want(t, err)
				require.ErrorContains(t, err, "the function was reset and the memory is free; the device can be opened again")
				require.NotContains(t, err.Error(), "\n")
				drivertest.Balanced(t, h.Ledger())
				w.Check(t)
				base.Check(t)
				require.NoError(t, c.ClearFault(""))
				spotless(c, 0)(t)
				h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
				require.NoError(t, err)
				require.NoError(t, h.Close(t.Context()))
			})
		}
	}
}

// TestOpenNil: a transport that is missing is a failure of the first stage.
func TestOpenNil(t *testing.T) {
	h, err := mlxvfio.Open(t.Context(), nil, mlxvfio.Options{})
	require.Nil(t, h)
	var se *mlxvfio.StageError
	require.ErrorAs(t, err, &se)
	require.Equal(t, "open", se.Stage)
	require.Empty(t, se.Undo)
	require.ErrorContains(t, err, "the transport is nil; give it a transport")
	_, err = mlxvfio.NewRecoverable(nil, mlxvfio.Options{})
	var ve *vfio.Error
	require.ErrorAs(t, err, &ve)
	require.NotEmpty(t, ve.Remedy)
}

// A device that keeps pages is reset, and the error names the counts.
func TestCloseUnbalanced(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
		require.NoError(t, err)
		require.NoError(t, c.SetFault("pages-kept", "7"))
		err = h.Close(t.Context())
		var le *mlxvfio.LedgerError
		require.ErrorAs(t, err, &le)
		require.Equal(t, 7, le.Ledger.Outstanding)
		require.ErrorContains(t, err, "1030 given, 1023 returned, 0 dropped, 7 outstanding (function 0: 7)")
		l := h.Ledger()
		require.Zero(t, l.Outstanding, "the reset ended the claim")
		require.Equal(t, 7, l.Dropped)
		spotless(c, 0)(t)
	})
}

// A device that does not confirm a fast teardown is reset.
func TestSwitchOffNotConfirmed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		f := vfio.NewFaulty(c.Function(0), nil)
		h, err := mlxvfio.Open(t.Context(), f, mlxvfio.Options{Teardown: mlxvfio.TeardownFast})
		require.NoError(t, err)
		require.Contains(t, h.Info().Teardowns, "fast")
		f.Add(vfio.Fault{Verb: vfio.VerbWrite, Times: -1, Drop: true, Match: func(x vfio.Call) bool {
			return x.Index == vfio.RegionBAR0 && x.Off == 0x14 // nic_interface
		}})
		err = h.Close(t.Context())
		as[*mlxvfio.SwitchOffError](t, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "fast teardown: wait up to 3s for the interface to switch off")
		var ce *mlxvfio.CloseError
		require.ErrorAs(t, err, &ce)
		require.True(t, ce.Reset)
		drivertest.Balanced(t, h.Ledger())
		spotless(c, 0)(t)
	})
}

// A command that was given up holds its slot and its memory until the device
// was reset: the device writes its late answer into memory that is still there.
func TestQuarantineOutlivesClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{CommandTimeout: 1e9})
		require.NoError(t, err)
		require.NoError(t, c.SetFault("lost", "QUERY_HCA_CAP#1"))
		_, err = h.Conn().QueryHCACap(t.Context(), prm.CapGeneral, cmdif.CapCurrent)
		as[*cmdif.TimeoutError](t, err)
		require.Equal(t, 1, h.Conn().Stats().Quarantined)
		require.NoError(t, h.Conn().NOP(t.Context()), "the other slots work on")
		resets := c.Counters(0).Resets
		require.NoError(t, h.Close(t.Context()), "teardown itself went well")
		require.Greater(t, c.Counters(0).Resets, resets+1, "a reset before the memory was freed, and the one of the last close")
		spotless(c, 0)(t)
	})
}

// A device that stops answering while page requests are queued: nothing is
// booked after the claims were dropped.
func TestIsolatedWithPageRequests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
		require.NoError(t, err)
		require.NoError(t, c.SetFault("lost", "MANAGE_PAGES"))
		for range 5 {
			require.True(t, c.RequestPages(0, 100))
		}
		sleep(1)
		require.Equal(t, 4, h.Stats().PageRequests, "one is stuck, the others wait")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		as[*mlxvfio.CloseError](t, h.Close(ctx))
		drivertest.Balanced(t, h.Ledger())
		spotless(c, 0)(t)
	})
}

// Pages that come back with an answer nobody waits for any more are booked.
func TestLateReclaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{CommandTimeout: 1e9})
		require.NoError(t, err)
		given := h.Ledger().Given
		require.NoError(t, c.SetFault("late", "MANAGE_PAGES#1=3s"))
		require.True(t, c.RequestPages(0, -20))
		sleep(5)
		require.Equal(t, uint64(1), h.Conn().Stats().Late+lateAfterNOP(t, h))
		sleep(1)
		require.Equal(t, given-20, h.Ledger().Outstanding)
		require.NoError(t, h.Close(t.Context()))
		drivertest.Balanced(t, h.Ledger())
		spotless(c, 0)(t)
	})
}
