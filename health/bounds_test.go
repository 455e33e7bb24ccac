package health

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOptionBounds: what cannot be is refused before anything starts.
func TestOptionBounds(t *testing.T) {
	h := newFakeHW(t)
	w := h.target(t).Window
	for _, o := range []Options{
		{}, {Window: w, Period: MinPeriod - 1}, {Window: w, Period: -1}, {Window: w, Period: MaxPeriod + 1}, {Window: w, Period: math.MaxInt64},
		{Window: w, Events: -1}, {Window: w, HealthPoll: -1}, {Window: w, ProbePeriod: -1}, {Window: w, ProbeLimit: -1},
	} {
		_, err := New(o)
		var oe *OptionError
		require.ErrorAs(t, err, &oe, "%+v", o)
		require.NotEmpty(t, oe.Option)
	}
	m, err := New(Options{Window: w, Period: MaxPeriod, History: -1, HealthPoll: math.MaxInt64})
	require.NoError(t, err)
	m.Stop()
	require.Empty(t, m.History())
}

// TestNoTicket: a ticket counter that keeps reading 0 ends the wait, and nothing is
// held.
func TestNoTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeVSC()
		v, err := OpenVSC(f)
		require.NoError(t, err)
		f.mu.Lock()
		f.noTicket = true
		f.mu.Unlock()
		_, err = v.Read(t.Context(), SpaceCR, 0)
		require.ErrorIs(t, err, ErrGatewayTimeout)
		require.NotErrorIs(t, err, ErrGatewayHeld, "nobody holds it")
		f.mu.Lock()
		f.noTicket = false
		f.mu.Unlock()
		err = v.With(t.Context(), SpaceSemaphore, func(g *Gateway) error {
			f.mu.Lock()
			f.noTicket = true
			f.mu.Unlock()
			_, err := g.lockSWReset(t.Context())
			return err
		})
		require.ErrorIs(t, err, ErrGatewayTimeout)
		gw, sw := f.semaphores()
		require.Zero(t, gw)
		require.Zero(t, sw)
	})
}

// TestStaleColdResetRequest: crr of an error that the monitor found to be of an
// earlier run does not keep a stalled function from being reset.
func TestStaleColdResetRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalCRR, RungFLR)
		rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungFLR, Verdict: Verdict{Condition: CounterStopped}})
		require.NoError(t, err)
		require.Equal(t, RungFLR, rep.By)
		require.False(t, rep.ColdReset)
	})
}

// TestCancelledLook: a recovery whose context is over says nothing of the device
// that it had no time to find out.
func TestCancelledLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		saved := false
		rep, err := Recover(ctx, h.target(t), RecoverOptions{MaxLevel: RungCold, BlackBox: func(context.Context) (string, error) { saved = true; return "x", nil }})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, Unknown, rep.State)
		require.Equal(t, "nothing was touched", rep.Remedy)
		require.False(t, saved)
		require.False(t, rep.Touched())
		require.Empty(t, h.log)
	})
}
