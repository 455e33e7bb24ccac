package health

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestOptionBounds: what cannot be is refused before anything starts.
func TestOptionBounds(t *testing.T) {
	h := newFakeHW(t)
	w := h.target(t).Window
	for _, o := range []Options{
		{}, {Window: w, Period: MinPeriod - 1}, {Window: w, Period: -1}, {Window: w, Period: MaxPeriod + 1}, {Window: w, Period: math.MaxInt64},
		{Window: w, Events: -1}, {Window: w, Events: math.MaxInt}, {Window: w, Events: MaxEvents + 1},
		{Window: w, History: math.MaxInt}, {Window: w, History: MaxHistory + 1}, {Window: w, HealthPoll: -1}, {Window: w, ProbePeriod: -1}, {Window: w, ProbeLimit: -1},
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

// TestVirtualNeverResets: the ladder of a virtual function never asks for a reset of
// the chip, whatever the device would offer.
func TestVirtualNeverResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungCold)
		h.mfrl = &fakeMFRL{levels: 8, types: 1, method: 1, answer: prm.MFRLResetInProgress}
		x := h.target(t)
		x.Virtual, x.HotReset, x.HotResetInfo = true, nil, nil
		x.LinkToggle = func(context.Context) error { h.done("toggle"); return nil }
		rep, err := Recover(t.Context(), x, RecoverOptions{MaxLevel: RungCold, Consent: agree})
		require.ErrorIs(t, err, ErrNotRecovered)
		require.Equal(t, []string{"park", "flr"}, h.log)
		require.False(t, h.mfrl.started)
		require.Equal(t, map[string]RungOutcome{
			"reopen": OutcomeUseless, "sw-reset": OutcomeNotSupported, "flr": OutcomeFailed, "hot-reset": OutcomeNotSupported, "mfrl": OutcomeNotSupported,
		}, outcomes(rep))
		require.Contains(t, rep.Rungs[1].Reason, "virtual functions")
		require.Contains(t, rep.Rungs[4].Reason, "virtual functions")
	})
}

// TestMFRLChangesItsMind: firmware that wants the link reset in another way than it
// said before is not given one that it does not want.
func TestMFRLChangesItsMind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungMFRL)
		h.mfrl = &fakeMFRL{levels: 8, types: 1, method: 1, answer: prm.MFRLResetInProgress}
		x := h.target(t)
		hot := x.HotReset
		x.HotReset = func() error { // of the rung before
			h.mfrl.state = prm.MFRLResetIdle
			return hot()
		}
		x.Registers = func(context.Context) (RegisterAccess, error) { return changingMFRL{h.mfrl}, nil }
		_, err := Recover(t.Context(), x, RecoverOptions{MaxLevel: RungMFRL, Consent: agree})
		require.ErrorContains(t, err, "now wants the link reset by method 0")
		require.Equal(t, []string{"park", "sw-reset", "flr", "hot-reset"}, h.log, "no second reset of the slot")
	})
}

// changingMFRL asks for a link toggle once it was acknowledged.
type changingMFRL struct{ *fakeMFRL }

func (m changingMFRL) WriteRegister(ctx context.Context, id prm.RegisterID, img []byte) error {
	err := m.fakeMFRL.WriteRegister(ctx, id, img)
	if m.acks > 0 {
		m.method = 0
	}
	return err
}

// TestStillAsksForAReset: a function that was opened again without a reset, and
// whose firmware goes on asking for one, is not well.
func TestStillAsksForAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.set(func() { h.buffer[0x38], h.buffer[0x3d] = 0x80, 0x08 })
		h.heal = RungCold
		rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungReopen, Verdict: Verdict{Condition: SyndromeNonFatal}})
		require.ErrorIs(t, err, ErrFatal)
		require.Equal(t, OutcomeFailed, rep.Rungs[0].Outcome)
		require.Contains(t, rep.Rungs[0].Reason, "still asks for a reset")
	})
}

// TestGatewayWithoutItsSpace: a control register that shows another space than the
// one selected, and a next address that is none, are not read on with.
func TestGatewayWithoutItsSpace(t *testing.T) {
	f := newFakeVSC()
	v := openFake(t, f)
	f.spaces[3] = &fakeSpace{}
	f.wrongSpace = true
	_, err := v.Read(t.Context(), SpaceCR, 0)
	require.ErrorIs(t, err, ErrGatewayLost)
	f.wrongSpace = false
	f.spaces[7].holes[8] = 22
	_, err = v.ReadBlock(t.Context(), SpaceScanCR, 0, make([]uint32, 16))
	require.ErrorIs(t, err, ErrGatewayRefused)
	require.ErrorContains(t, err, "0x16")
	require.Zero(t, f.sem)
}
