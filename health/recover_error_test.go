package health_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Rungs that fail alike are named together.
func TestRecoverErrorSaysOnce(t *testing.T) {
	e := &health.RecoverError{Err: health.ErrNotRecovered, Report: health.RecoveryReport{
		Device: "d", Condition: health.CounterStopped, State: health.Stalled, Remedy: "go on", Rungs: []health.RungReport{
			{Rung: health.RungReopen, Outcome: health.OutcomeUseless, Reason: "no"},
			{Rung: health.RungSWReset, Outcome: health.OutcomeFailed, Reason: "it stands"},
			{Rung: health.RungFLR, Outcome: health.OutcomeFailed, Reason: "it stands"},
			{Rung: health.RungHotReset, Outcome: health.OutcomeFailed, Reason: "refused"},
		}}}
	require.EqualError(t, e, "d: recovery from counter-stopped: the device did not recover (sw-reset, flr: it stands; hot-reset: refused); go on")
	for i, age := range []time.Duration{time.Second, 1001 * time.Millisecond} {
		err := &cmdif.TimeoutError{Opcode: prm.OpEnableHCA, Age: age}
		e.Report.Rungs[i+1] = health.RungReport{Rung: health.RungSWReset + health.Rung(i), Outcome: health.OutcomeFailed, Reason: "open: " + err.Error(),
			Steps: []health.RecoveryStep{{Step: "park"}, {Step: "open", Err: err}}}
	}
	require.EqualError(t, e, "d: recovery from counter-stopped: the device did not recover (sw-reset, flr: open: ENABLE_HCA(0x104) was not answered; hot-reset: refused); go on")
	e.Report.Rungs, e.Report.MaxLevel, e.Report.Next = e.Report.Rungs[:1], health.RungReopen, health.RungSWReset
	require.EqualError(t, e, "d: recovery from counter-stopped: the device did not recover (reopen: no); go on", "why nothing was tried")
	e.Report.Condition, e.Report.State, e.Report.Rungs = health.OK, health.Healthy, nil
	require.EqualError(t, e, "d: recovery of a function whose registers look well: the device did not recover; go on")
}
