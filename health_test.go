package mlxvfio_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// watched is an opened function with a monitor on it.
func watched(t *testing.T, words string, o mlxvfio.Options, ho health.Options) (*mlxvfio.HCA, *sim.Chip, *health.Monitor) {
	t.Helper()
	h, c := opened(t, words, o)
	t.Cleanup(func() { _ = h.Close(context.Background()) }) // of a test that failed
	m, err := h.Monitor(t.Context(), ho)
	require.NoError(t, err)
	return h, c, m
}

// verdictWithin waits for a verdict other than healthy, at most d.
func verdictWithin(t *testing.T, m *health.Monitor, d time.Duration) health.Verdict {
	t.Helper()
	for start := time.Now(); time.Since(start) <= d; time.Sleep(time.Millisecond) {
		synctest.Wait()
		if v := m.Verdict(); v.State > health.Healthy {
			return v
		}
	}
	require.Failf(t, "no verdict in time", "after %v: %+v", d, m.Verdict())
	return health.Verdict{}
}

// Faults of the model, raised on a function in use: what the monitor says, and in
// what time. A fatal sensor is seen within a period, a stall within its limit (3 s,
// the period is 1 s) and a period.
func TestMonitorNamesTheFault(t *testing.T) {
	const period = time.Second
	stall := 4 * period
	for _, c := range []struct {
		name, arg string
		want      health.Condition
		within    time.Duration
	}{
		{"fatal", "", health.FatalRFR, period},
		{"fatal", "DEAD_IRISC", health.FatalRFR, period},
		{"fatal", "HW_FATAL_ERR+sev=0", health.FatalRFR, period},
		{"fatal", "FW_CRC_ERR+crr", health.FatalCRR, period},
		{"fatal", "ICM_FETCH_PCI_ERR+novalid", health.FatalRFR, period},
		{"fatal", "ICM_PAGE_ERR+ext=2", health.FatalRFR, period},
		{"fatal", "0x42", health.FatalRFR, period},
		{"stall", "", health.CounterStopped, stall},
		{"health-stuck", "", health.CounterStopped, stall},
		{"syndrome", "HIGH_TEMP_ERR", health.SyndromeNonFatal, period},
		{"syndrome", "EQ_INV+crr", health.NonFatalCRR, period},
		{"syndrome", "TRUST_LOCKDOWN_ERR", health.SyndromeNonFatal, period},
		{"health-torn", "", health.SyndromeNonFatal, period},
		{"all-ones", "", health.AllOnes, period},
		{"health-all-ones", "", health.PCICommError, period},
		{"nic-disabled", "", health.NICDisabled, period},
		{"nic-sw-reset", "", health.NICSWReset, period},
		{"peer-reset", "for=5s", health.NICSWReset, period},
		{"temperature", "110", health.HighTemperature, 2 * period},
		{"slot-power", "27", health.InsufficientPower, 2 * period},
	} {
		t.Run(c.name+"@"+c.arg, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{}, health.Options{Period: period, ProbePeriod: period})
				time.Sleep(4300 * time.Millisecond)
				require.Equal(t, health.OK, m.Verdict().Condition)
				require.NoError(t, chip.SetFault(c.name, c.arg))
				start := time.Now()
				v := verdictWithin(t, m, c.within)
				require.Equal(t, c.want, v.Condition, v.Explanation)
				t.Logf("after %v: %s", time.Since(start), v.Explanation)
				if v.Lost() {
					var ve *health.VerdictError
					require.ErrorAs(t, h.Conn().Err(), &ve)
					require.Equal(t, v.Condition, ve.Verdict.Condition)
				} else {
					require.NoError(t, h.Conn().Err())
				}
				require.NoError(t, chip.ClearFault(""))
				if v.Lost() {
					time.Sleep(10 * time.Second)
					require.True(t, m.Verdict().Lost(), "its state is gone, whatever the registers read")
				}
				_ = h.Close(context.Background())
				<-m.Done()
				held(chip, 0)(t)
			})
		})
	}
}

// A stall with a syndrome is degraded first and stalled at its limit.
func TestMonitorStallWithSyndrome(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{}, health.Options{Period: time.Second})
		time.Sleep(4300 * time.Millisecond)
		require.NoError(t, chip.SetFault("stall", "DEAD_IRISC"))
		require.Equal(t, health.SyndromeNonFatal, verdictWithin(t, m, time.Second).Condition)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		v := m.Verdict()
		require.Equal(t, health.SyndromeStopped, v.Condition)
		require.Contains(t, v.Explanation, "DEAD_IRISC")
		_ = h.Close(context.Background())
	})
}

// A command that waits ends when the monitor finds the function lost, with its
// verdict, long before its deadline.
func TestVerdictReachesTheWaiter(t *testing.T) {
	for fault, want := range map[string]health.Condition{"fatal": health.FatalRFR, "all-ones": health.AllOnes, "nic-disabled": health.NICDisabled} {
		for _, polled := range []bool{false, true} {
			t.Run(fault, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					// So fast that the Conn's own look at the device comes later.
					h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{Polled: polled}, health.Options{Period: 10 * time.Millisecond})
					time.Sleep(time.Second)
					require.NoError(t, chip.SetFault("lost", "NOP"))
					errs := make(chan error, 2)
					for range 2 {
						go func() { errs <- h.Conn().NOP(context.Background()) }()
					}
					time.Sleep(100 * time.Millisecond)
					require.NoError(t, chip.SetFault(fault, ""))
					start := time.Now()
					for range 2 {
						err := <-errs
						var de *cmdif.DeadError
						require.ErrorAs(t, err, &de)
						var ve *health.VerdictError
						if !errors.As(err, &ve) && polled {
							// It looked first, which is as good.
							require.NotEqual(t, "nic-disabled", fault)
							continue
						}
						require.ErrorAs(t, err, &ve)
						require.Equal(t, want, ve.Verdict.Condition)
						require.Equal(t, fault == "all-ones", errors.Is(err, vfio.ErrGone))
					}
					require.LessOrEqual(t, time.Since(start), 20*time.Millisecond)
					// Later ones are refused with it.
					time.Sleep(20 * time.Millisecond)
					require.ErrorIs(t, h.Conn().NOP(t.Context()), cmdif.ErrDead)
					require.True(t, m.Verdict().Lost())
					require.Error(t, h.Close(context.Background()), "it could not be asked")
					held(chip, 0)(t)
				})
			})
		}
	}
}

// "Link up, commands dead": the counter moves and nothing is answered.
func TestMonitorCommandsDead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{CommandTimeout: 2 * time.Second}, health.Options{Period: time.Second, ProbePeriod: time.Hour})
		time.Sleep(4300 * time.Millisecond)
		require.NoError(t, chip.SetFault("commands-dead", ""))
		var te *cmdif.TimeoutError
		require.ErrorAs(t, h.Conn().NOP(t.Context()), &te)
		require.Equal(t, health.OverdueCommands, verdictWithin(t, m, 2*time.Second).Condition)
		time.Sleep(2 * time.Second)
		v := m.Verdict()
		require.Equal(t, health.CommandsDead, v.Condition)
		require.Equal(t, health.Stalled, v.State)
		require.Contains(t, v.Explanation, "NOP")
		require.NotZero(t, m.Report().Rate.PerSecond)
		_ = h.Close(context.Background())
		held(chip, 0)(t)
	})
}

// Late completions and lost interrupts, by a real command interface.
func TestMonitorCommandSignals(t *testing.T) {
	for _, c := range []struct {
		name, arg string
		want      health.Condition
	}{
		{"late", "NOP#1=3s", health.LateCompletions},
		{"lost-event", "NOP#1", health.LostInterrupts},
	} {
		inBubble(t, func(t *testing.T) {
			h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{CommandTimeout: 2 * time.Second}, health.Options{Period: time.Second})
			time.Sleep(4300 * time.Millisecond)
			require.NoError(t, chip.SetFault(c.name, c.arg))
			err := h.Conn().NOP(t.Context())
			require.Equal(t, c.name == "late", err != nil)
			time.Sleep(3 * time.Second)
			require.Equal(t, c.want, m.Verdict().Condition)
			time.Sleep(15 * time.Second)
			require.Equal(t, health.OK, m.Verdict().Condition)
			closed(t, h, chip)
		})
	}
}

// What HCA.Monitor fills in: limits of the device, its registers, and that it was
// reset. Close ends the monitor.
func TestMonitorOfHCA(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, chip, m := watched(t, "sim:cx5", mlxvfio.Options{}, health.Options{ProbePeriod: 2 * time.Second})
		time.Sleep(5 * time.Second)
		r := m.Report()
		require.Equal(t, health.OK, r.Verdict.Condition)
		require.Equal(t, h.Info().Device.Name, r.Device)
		require.Equal(t, 6*time.Second, r.Limits.Stall)
		require.Equal(t, h.Info().Firmware, r.Now.Firmware)
		require.Equal(t, "health-buffer", r.Now.FWPacking)
		require.NotNil(t, r.Environment.Temperature, "%v", r.Environment.Notes)
		require.NotNil(t, r.Environment.PCIe)
		require.Positive(t, r.Commands.Answered)
		closed(t, h, chip)
		<-m.Done()
		_, err := h.Monitor(t.Context(), health.Options{})
		require.ErrorIs(t, err, mlxvfio.ErrClosed)
	})
	// An error that outlives the reset of the bring-up is stale.
	inBubble(t, func(t *testing.T) {
		h, chip, m := watched(t, "sim:cx5,fault=syndrome@EQ_INV", mlxvfio.Options{}, health.Options{})
		time.Sleep(5 * time.Second)
		require.Equal(t, health.StaleError, m.Verdict().Condition)
		closed(t, h, chip)
	})
	inBubble(t, func(t *testing.T) {
		h, chip := opened(t, "sim:cx5", mlxvfio.Options{})
		_, err := h.Monitor(t.Context(), health.Options{Period: 1})
		var oe *health.OptionError
		require.ErrorAs(t, err, &oe)
		closed(t, h, chip)
	})
}

// Two functions of one device: one resets the firmware, the other notices.
func TestMonitorOfTheOtherFunction(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		o, err := sim.Parse("sim:cx5")
		require.NoError(t, err)
		o.Functions = 2
		chip, err := sim.New(o)
		require.NoError(t, err)
		defer chip.Close()
		var hs []*mlxvfio.HCA
		var ms []*health.Monitor
		for i := range 2 {
			h, err := mlxvfio.Open(t.Context(), chip.Function(i), mlxvfio.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { _ = h.Close(context.Background()) })
			m, err := h.Monitor(t.Context(), health.Options{Period: 50 * time.Millisecond})
			require.NoError(t, err)
			hs, ms = append(hs, h), append(ms, m)
		}
		time.Sleep(time.Second)
		require.NoError(t, hs[0].Segment().SetNICInterface(prm.NICInterfaceSwReset))
		require.Equal(t, health.NICSWReset, verdictWithin(t, ms[1], 60*time.Millisecond).Condition)
		time.Sleep(time.Second)
		require.Equal(t, health.NICDisabled, ms[1].Verdict().Condition)
		var ve *health.VerdictError
		require.ErrorAs(t, hs[1].Conn().Err(), &ve)
		require.Equal(t, health.NICSWReset, ve.Verdict.Condition, "the first reason stays")
		for i, h := range hs {
			_ = h.Close(context.Background())
			held(chip, i)(t)
		}
	})
}
