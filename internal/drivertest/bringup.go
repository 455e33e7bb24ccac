package drivertest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// bringUp: what a user sees of a function that came up.
func (s *suite) bringUp(t *testing.T) {
	var seen []string
	h, _ := s.up(t, func(o *mlxvfio.Options) {
		o.OnStage = func(e mlxvfio.StageEvent) {
			if !e.Undo {
				seen = append(seen, e.Stage)
			}
		}
	})
	require.Equal(t, stageNames(), seen, "every stage is reported, in order")
	i := h.Info()
	require.Equal(t, uint16(0x15b3), i.VendorID)
	require.NotZero(t, i.DeviceID)
	require.Regexp(t, `^\d+\.\d+\.\d{4}$`, i.Firmware)
	require.NotEmpty(t, i.Board.PSID)
	require.Positive(t, i.Ports)
	require.Positive(t, i.Pages.Given)
	require.Equal(t, i.Pages.Given, i.Pages.Outstanding)
	require.Equal(t, h.EventMode(), i.Events)
	if i.Events {
		require.Len(t, i.EQs, 3)
		require.Positive(t, h.Stats().Events.Commands, "commands complete by events")
		require.Zero(t, h.Conn().Stats().Recovered)
	}
	general, ok := h.Cap(prm.CapGeneral)
	require.True(t, ok)
	require.Len(t, general.Current, mlxvfio.CapSize)
	if i.Atomics.Supported {
		require.Equal(t, i.Atomics.MaxQP, h.MaxAtomicSize())
		require.Positive(t, h.MaxAtomicSize())
	}
	for _, r := range h.CapReport() {
		require.Contains(t, []string{"set", "clamped", "already", "not offered", "ignored"}, r.Done)
		if r.Done == "set" || r.Done == "clamped" {
			require.Equal(t, r.Sent, r.After, "%s", r.Field)
		}
		if v, err := general.Get(r.Field); r.Type == prm.CapGeneral && err == nil {
			require.Equal(t, r.After, v)
		}
	}
	s.down(t, h)
}

// polled: no interrupt is used, and the event queues still work.
func (s *suite) polled(t *testing.T) {
	h, _ := s.up(t, func(o *mlxvfio.Options) { o.Polled = true })
	require.False(t, h.EventMode())
	require.Zero(t, h.Info().Vectors)
	require.NoError(t, h.Conn().NOP(t.Context()))
	require.Zero(t, h.Stats().Events.Commands)
	s.down(t, h)
}

// again: the same function, several times in a row, with and without a reset.
func (s *suite) again(t *testing.T) {
	for i := range 3 {
		h, _ := s.up(t, func(o *mlxvfio.Options) { o.SkipReset = i == 1 })
		s.down(t, h)
	}
}

// commands: many goroutines, in both modes.
func (s *suite) commands(t *testing.T) {
	for _, polled := range []bool{false, true} {
		h, _ := s.up(t, func(o *mlxvfio.Options) { o.Polled = polled })
		general, _ := h.Cap(prm.CapGeneral)
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				for range 10 {
					if i%3 == 0 {
						got, err := h.Conn().QueryHCACap(t.Context(), prm.CapGeneral, cmdif.CapCurrent)
						if err != nil || string(got) != string(general.Current) {
							t.Errorf("capabilities read in parallel differ (%v)", err)
							return
						}
						continue
					}
					if err := h.Conn().NOP(t.Context()); err != nil {
						t.Errorf("NOP: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		st := h.Conn().Stats()
		require.Zero(t, st.Active)
		require.Zero(t, st.Quarantined)
		require.Equal(t, st.MailboxesInUse, 0)
		s.down(t, h)
	}
}

// queues: a doorbell page and event queues of the caller's own.
func (s *suite) queues(t *testing.T) {
	h, _ := s.up(t, nil)
	ctx := t.Context()
	d := h.Queues()
	u, err := d.AllocUAR(ctx)
	require.NoError(t, err)
	require.NotEqual(t, h.Info().UAR, u.Index())
	var eqs []*queues.EQ
	for _, log := range []uint8{0, 3, 10} {
		q, err := d.CreateEQ(ctx, queues.EQOptions{Name: "test", LogSize: log, UAR: u})
		require.NoError(t, err)
		n, err := q.Poll(func(*prm.EQE) { t.Error("an entry in a new EQ without events") })
		require.NoError(t, err)
		require.Zero(t, n)
		q.Update()
		st, err := q.Query(ctx)
		require.NoError(t, err)
		require.Equal(t, prm.EQStatusOK, st.Status)
		require.Zero(t, st.Producer)
		require.NotEqual(t, prm.EQStateArmed, st.State, "a new EQ is not armed")
		q.Arm()
		st, err = q.Query(ctx)
		require.NoError(t, err)
		require.Equal(t, prm.EQStateArmed, st.State)
		eqs = append(eqs, q)
	}
	_, err = d.CreateEQ(ctx, queues.EQOptions{Name: "too large", LogSize: 23, UAR: u})
	require.ErrorIs(t, err, vfio.ErrRange)
	for _, q := range eqs {
		require.NoError(t, q.Destroy(ctx))
		require.ErrorIs(t, q.Destroy(ctx), vfio.ErrClosed)
		_, err := q.Query(ctx)
		require.Error(t, err, "a destroyed EQ cannot be asked")
	}
	require.NoError(t, u.Free(ctx))
	require.ErrorIs(t, u.Free(ctx), vfio.ErrClosed)
	s.down(t, h)
}

// vectors: the interrupts beyond the driver's own.
func (s *suite) vectors(t *testing.T) {
	h, _ := s.up(t, func(o *mlxvfio.Options) { o.CompletionVectors = 2 })
	first, vs := h.CompletionVectors()
	most, err := h.Device().MaxVectors()
	require.NoError(t, err)
	if most >= 5 {
		require.Equal(t, 3, first)
		require.Len(t, vs, 2)
	}
	s.down(t, h)
}

// subscriptions end with the HCA, whoever still reads them.
func (s *suite) subscriptions(t *testing.T) {
	h, _ := s.up(t, nil)
	a, b := h.Subscribe(4, queues.EventMask{}), h.Subscribe(0, queues.MaskOf(prm.EventPortChange))
	b.Close()
	_, open := <-b.C()
	require.False(t, open)
	s.down(t, h)
	for range a.C() {
		// What arrived meanwhile; the channel ends.
	}
	late := h.Subscribe(1, queues.EventMask{})
	_, open = <-late.C()
	require.False(t, open, "a subscription after Close is over at once")
	a.Close()
}
