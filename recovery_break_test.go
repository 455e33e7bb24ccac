package mlxvfio_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestFailedRecoveryIsNoReset: a recovery that reset nothing, or that did not help,
// does not make an old error of what the health buffer shows.
func TestFailedRecoveryIsNoReset(t *testing.T) {
	full := errors.New("no space left on device")
	for name, tt := range map[string]struct {
		fault, arg string
		want       health.Condition
		o          health.RecoverOptions
	}{
		"nothing allowed":   {"fatal", "now+heal=cold", health.FatalRFR, health.RecoverOptions{}},
		"no black box":      {"fatal", "now+heal=cold", health.FatalRFR, health.RecoverOptions{MaxLevel: health.RungFLR, BlackBox: func(context.Context) (string, error) { return "", full }}},
		"in vain":           {"fatal", "now+heal=cold", health.FatalRFR, health.RecoverOptions{MaxLevel: health.RungFLR}},
		"opened, not reset": {"syndrome", "HIGH_TEMP_ERR", health.SyndromeNonFatal, health.RecoverOptions{MaxLevel: health.RungReopen}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chip(t, "sim:cx5")
				r := recoverable(t, c, mlxvfio.Options{})
				defer func() { _ = r.Close(context.Background()) }()
				m, err := r.Monitor(t.Context(), health.Options{Period: 100 * time.Millisecond})
				require.NoError(t, err)
				time.Sleep(4 * time.Second)
				require.NoError(t, c.SetFault(tt.fault, tt.arg))
				time.Sleep(time.Second)
				require.Equal(t, tt.want, m.Verdict().Condition)
				tt.o.Verdict = m.Verdict()
				rep, _ := r.Recover(t.Context(), tt.o)
				time.Sleep(5 * time.Second)
				require.Equal(t, tt.want, m.Verdict().Condition, "%+v", m.Verdict())
				if !rep.Touched() {
					require.NotContains(t, m.Verdict().Explanation, "stale", "it was seen to appear, and nothing was done since")
				}
				if err := r.Close(t.Context()); err != nil {
					require.False(t, rep.Touched(), err)
					require.ErrorContains(t, err, "the function was reset and the memory is free")
				}
				balancedAll(t, c, r)
			})
		})
	}
}

// TestRecoveryCancelledAtEveryStep: whenever ctx ends, nothing harsher is done, and
// a second try brings the function back.
func TestRecoveryCancelledAtEveryStep(t *testing.T) {
	for _, s := range []sickness{
		{"", "", health.OK, health.RungReopen},
		{"fatal", "now", health.FatalRFR, health.RungSWReset},
		{"fatal", "now+heal=hot-reset", health.FatalRFR, health.RungHotReset},
		{"health-stuck", "heal=mfrl", health.CounterStopped, health.RungMFRL},
		{"nic-sw-reset", "now", health.NICSWReset, health.RungFLR},
	} {
		steps := 1 << 30
		for at := 0; at < steps; at++ {
			synctest.Test(t, func(t *testing.T) {
				c := chip(t, "sim:cx5")
				r := recoverable(t, c, mlxvfio.Options{})
				defer func() { _ = r.Close(context.Background()) }()
				if s.fault != "" {
					require.NoError(t, c.SetFault(s.fault, s.arg))
				}
				why := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				if at == 0 {
					cancel(why)
				}
				n := 0
				o := health.RecoverOptions{MaxLevel: health.RungCold, Consent: agree, OnStep: func(health.Rung, health.RecoveryStep) {
					if n++; n == at {
						cancel(why)
					}
				}}
				rep, err := r.Recover(ctx, o)
				switch {
				case n < at:
					steps = 0
					require.NoError(t, err)
				case err != nil:
					require.ErrorIs(t, err, why, "%v at %d: %v", s, at, err)
					require.NotErrorIs(t, err, health.ErrColdReset, "%v at %d: %v", s, at, err)
					require.False(t, rep.ColdReset)
					if at == 0 {
						require.NotEqual(t, health.Stalled, rep.State, "nobody looked for long enough to say so")
						require.NotNil(t, r.HCA())
					}
				default:
					require.True(t, rep.Recovered)
				}
				rep, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungCold, Consent: agree})
				require.NoError(t, err, "%v at %d: %+v", s, at, rep)
				require.NoError(t, r.HCA().Conn().NOP(t.Context()))
				require.NoError(t, r.Close(t.Context()))
				balancedAll(t, c, r)
			})
			if t.Failed() {
				t.Logf("%v at %d", s, at)
				return
			}
		}
	}
}

// TestTwoThatSawTheSame: two goroutines with one verdict recover the function once;
// one that waits for its turn waits no longer than its context; a later failure is
// recovered from again.
func TestTwoThatSawTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		m, err := r.Monitor(t.Context(), health.Options{Period: 100 * time.Millisecond})
		require.NoError(t, err)
		for life := range 2 {
			time.Sleep(4 * time.Second)
			require.NoError(t, c.SetFault("fatal", "now+heal=flr"))
			time.Sleep(time.Second)
			v := m.Verdict()
			require.Equal(t, health.FatalRFR, v.Condition)
			first, busy := make(chan struct{}), make(chan struct{})
			var once sync.Once
			got := make(chan health.RecoveryReport)
			go func() {
				rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungFLR, Verdict: v, OnStep: func(health.Rung, health.RecoveryStep) {
					once.Do(func() {
						close(first)
						<-busy
					})
				}})
				assert.NoError(t, err)
				got <- rep
			}()
			<-first
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			start := time.Now()
			_, err = r.Recover(ctx, health.RecoverOptions{MaxLevel: health.RungFLR, Verdict: v})
			cancel()
			require.ErrorIs(t, err, vfio.ErrBusy)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 3*time.Second, time.Since(start))
			close(busy)
			rep := <-got
			require.Equal(t, health.RungFLR, rep.By)
			h, resets := r.HCA(), c.Counters(0).Resets
			again, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungFLR, Verdict: v})
			require.NoError(t, err)
			require.Equal(t, rep.Started, again.Started)
			require.Same(t, h, r.HCA())
			require.Equal(t, resets, c.Counters(0).Resets)
			require.NoError(t, h.Conn().NOP(t.Context()))
			require.Len(t, r.Ledgers(), life+1)
		}
		require.NoError(t, r.Close(t.Context()))
		balancedAll(t, c, r)
	})
}

// TestMonitorInTheMiddle: a monitor that is made while a recovery goes on leaves the
// function alone until its end, and then watches it as the owner does.
func TestMonitorInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		require.NoError(t, c.SetFault("fatal", "now+heal=flr"))
		var m *health.Monitor
		_, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungFLR, OnStep: func(g health.Rung, s health.RecoveryStep) {
			if m == nil && g == health.RungFLR && s.Step == "reset" {
				var err error
				m, err = r.Monitor(t.Context(), health.Options{Period: 100 * time.Millisecond})
				assert.NoError(t, err)
				n := m.Report().Counts.Samples
				time.Sleep(time.Second)
				assert.Equal(t, n, m.Report().Counts.Samples, "no look in the middle")
				assert.Equal(t, health.InRecovery, m.Verdict().Condition)
			}
		}})
		require.NoError(t, err)
		time.Sleep(4 * time.Second)
		require.Equal(t, health.OK, m.Verdict().Condition)
		require.NotNil(t, m.Report().Commands)
		require.NoError(t, c.SetFault("nic-disabled", "now"))
		time.Sleep(time.Second)
		require.Equal(t, health.NICDisabled, m.Verdict().Condition)
		rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungReopen, Verdict: m.Verdict()})
		require.NoError(t, err)
		require.Equal(t, health.RungReopen, rep.By)
		require.NoError(t, r.Close(t.Context()))
		balancedAll(t, c, r)
	})
}
