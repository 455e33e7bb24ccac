package health_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/mlxvfio/mlxvfio/vfio/vfiotest"
)

// The fatal sensors, each alone and in pairs: the first in Linux' order is the
// verdict, within one period.
func TestFatalSensorsInOrder(t *testing.T) {
	sensors := []struct {
		want health.Condition
		set  func(f *fakeBAR)
	}{
		{health.AllOnes, func(f *fakeBAR) { f.change(func() { f.ones = true }) }},
		{health.PCICommError, func(f *fakeBAR) { f.change(func() { f.dword[0x230] = 0xffffffff }) }},
		{health.NICDisabled, func(f *fakeBAR) { f.change(func() { f.nic = 1 }) }},
		{health.NICSWReset, func(f *fakeBAR) { f.change(func() { f.nic = 7 }) }},
		{health.FatalCRR, func(f *fakeBAR) { f.report(8, rfr|crr|valid) }},
		{health.FatalRFR, func(f *fakeBAR) { f.report(8, rfr|valid) }},
		{health.CounterStopped, func(f *fakeBAR) { f.stopCounter() }},
	}
	const period = time.Second
	for i, first := range sensors[:6] {
		for _, second := range sensors[i:] {
			if first.want == health.NICDisabled && second.want == health.NICSWReset || first.want == health.FatalCRR && second.want == health.FatalRFR {
				continue // one field
			}
			t.Run(string(first.want+"+"+second.want), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, w := newBAR(t)
					m := watch(t, health.Options{Window: w, Period: period})
					pause(10*period + period/3)
					require.Equal(t, health.Healthy, m.Verdict().State)
					second.set(f)
					first.set(f)
					info := first.want.Info()
					within(t, m, info.State, period)
					v := m.Verdict()
					require.Equal(t, first.want, v.Condition)
					require.Equal(t, info.ExitCode, v.ExitCode)
					require.Equal(t, info.Remedy, v.Remedy)
					require.NotEmpty(t, v.Explanation)
					require.True(t, v.Lost())
				})
			})
		}
	}
}

// Only part of the registers read all ones: each dword of the sample alone.
func TestPartOnes(t *testing.T) {
	for _, off := range []uint64{0x1010, 0x14, 0x230, 0x23c} {
		synctest.Test(t, func(t *testing.T) {
			f, w := newBAR(t)
			m := watch(t, health.Options{Window: w, Period: time.Second})
			pause(2500 * time.Millisecond)
			f.change(func() {
				f.hook = func(o uint64, v uint32) uint32 {
					if o == off {
						return 0xffffffff
					}
					return v
				}
			})
			within(t, m, health.Fatal, time.Second)
			require.Equal(t, health.PCICommError, m.Verdict().Condition)
		})
	}
}

// One read that fails once is not the end: it is reported, and held against the
// device for a while.
func TestOneBadRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(2500 * time.Millisecond)
		bad := 1
		f.change(func() {
			f.hook = func(o uint64, v uint32) uint32 {
				if o == 0x230 && bad > 0 {
					bad--
					return 0xffffffff
				}
				return v
			}
		})
		within(t, m, health.Degraded, time.Second)
		r := m.Report()
		require.Equal(t, health.PCIReadError, r.Verdict.Condition)
		require.Equal(t, uint64(1), r.Counts.Glitches)
		took := within(t, m, health.Healthy, 20*time.Second)
		require.Greater(t, took, 8*time.Second)
	})
}

// A syndrome without rfr: the function goes on; it is healthy again after it was
// cleared and three good samples.
func TestNonFatal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(5500 * time.Millisecond)
		f.report(0x10, valid|4<<24)
		within(t, m, health.Degraded, time.Second)
		r := m.Report()
		require.Equal(t, health.SyndromeNonFatal, r.Verdict.Condition)
		require.NotNil(t, r.Buffer)
		require.False(t, r.Buffer.Stale, "it appeared while watching")
		require.Equal(t, uint8(0x10), r.Buffer.Synd)
		require.Equal(t, "WARNING", r.Buffer.SeverityName)
		require.Contains(t, r.Verdict.Explanation, "HIGH_TEMP_ERR")
		pause(20 * time.Second)
		require.Equal(t, health.Degraded, m.Verdict().State)

		f.report(0xd, crr)
		pause(time.Second)
		require.Equal(t, health.NonFatalCRR, m.Verdict().Condition)
		require.Contains(t, m.Verdict().Explanation, "EQ_IN_ERR")

		f.clear()
		took := within(t, m, health.Healthy, 4*time.Second)
		require.Greater(t, took, 2*time.Second)
		require.Nil(t, m.Report().Buffer)
		kinds := map[health.EventKind]int{}
		for len(m.Events()) > 0 {
			kinds[(<-m.Events()).Kind]++
		}
		require.Equal(t, 3, kinds[health.EventSyndrome], "appeared, changed, cleared")
	})
}

// Another function of the device resets it: each step is seen from outside, and the
// function is healthy again at the end, with what the buffer shows then as stale.
func TestResetByAnotherFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(5500 * time.Millisecond)
		f.report(1, rfr)
		within(t, m, health.Fatal, time.Second)
		for _, step := range []struct {
			set  func()
			want health.Condition
		}{
			{func() { f.nic = 7 }, health.NICSWReset},
			{func() { f.ones = true }, health.AllOnes},
			{func() { f.ones, f.nic = false, 1 }, health.AllOnes}, // better states need three samples
		} {
			f.change(step.set)
			pause(time.Second)
			require.Equal(t, step.want, m.Verdict().Condition)
		}
		pause(3 * time.Second)
		require.Equal(t, health.NICDisabled, m.Verdict().Condition)
		f.change(func() { f.nic = 0 }) // the buffer still shows the old error
		within(t, m, health.Healthy, 6*time.Second)
		r := m.Report()
		require.Equal(t, health.StaleError, r.Verdict.Condition)
		require.True(t, r.Buffer.Stale)
		require.Contains(t, r.Verdict.Explanation, "stale")

		f.report(1, rfr) // the same error again: its time differs
		within(t, m, health.Fatal, time.Second)
		require.False(t, m.Report().Buffer.Stale)
	})
}

// After a reset the first content is stale until it has been seen cleared or
// changed; without one, an error that was there before the watch is shown and
// counts.
func TestStale(t *testing.T) {
	for _, c := range []struct {
		name       string
		afterReset bool
		flags      uint32
		state      health.State
		condition  health.Condition
	}{
		{"fatal, no reset known", false, rfr, health.Fatal, health.FatalRFR},
		{"non-fatal, no reset known", false, 0, health.Degraded, health.SyndromeNonFatal},
		{"fatal, after reset", true, rfr, health.Healthy, health.StaleError},
		{"non-fatal, after reset", true, 0, health.Healthy, health.StaleError},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, w := newBAR(t)
				f.report(7, c.flags)
				m := watch(t, health.Options{Window: w, Period: time.Second, AfterReset: c.afterReset})
				pause(10 * time.Second)
				r := m.Report()
				require.Equal(t, c.state, r.Verdict.State)
				require.Equal(t, c.condition, r.Verdict.Condition)
				require.True(t, r.Buffer.Stale)
				require.Contains(t, r.Verdict.Explanation, "stale")

				// Changed: it is of this run now.
				f.report(7, c.flags)
				pause(time.Second)
				r = m.Report()
				require.False(t, r.Buffer.Stale)
				require.NotEqual(t, health.Healthy, r.Verdict.State)
			})
			synctest.Test(t, func(t *testing.T) {
				f, w := newBAR(t)
				f.report(7, c.flags)
				m := watch(t, health.Options{Window: w, Period: time.Second, AfterReset: c.afterReset})
				pause(5500 * time.Millisecond)
				raw := m.Report().Buffer.Raw
				saved := map[uint64]uint32{}
				f.change(func() {
					for k, v := range f.dword {
						saved[k] = v
					}
				})
				f.clear()
				pause(time.Second)
				require.Nil(t, m.Report().Buffer)
				// The very same bytes come back: seen cleared, so they are new.
				f.change(func() { f.dword = saved })
				pause(time.Second)
				r := m.Report()
				require.Equal(t, raw, r.Buffer.Raw)
				require.False(t, r.Buffer.Stale)
				require.NotEqual(t, health.Healthy, r.Verdict.State)
			})
		})
	}
}

// A stale buffer does not explain a counter that stops.
func TestStaleIsNoDiagnosis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.report(7, rfr)
		m := watch(t, health.Options{Window: w, Period: time.Second, AfterReset: true})
		pause(5500 * time.Millisecond)
		f.stopCounter()
		within(t, m, health.Stalled, 4*time.Second)
		v := m.Verdict()
		require.Equal(t, health.CounterStopped, v.Condition)
		require.NotContains(t, v.Explanation, "DEAD_IRISC")
		require.Contains(t, v.Explanation, "stale")
	})
}

// A torn buffer at the first look is being written: it is not of an earlier run.
func TestTornIsNotStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.report(7, rfr)
		n := uint32(0)
		f.hook = func(off uint64, v uint32) uint32 {
			if off == 0x204 {
				n++
				return n
			}
			return v
		}
		m := watch(t, health.Options{Window: w, Period: time.Second, AfterReset: true})
		pause(time.Second / 2) // the first look
		r := m.Report()
		require.Equal(t, health.FatalRFR, r.Verdict.Condition)
		require.True(t, r.Buffer.Torn)
		require.False(t, r.Buffer.Stale)
		require.Contains(t, r.Verdict.Explanation, "torn")
	})
}

// The monitor comes after the failure.
func TestStartedAfterTheFailure(t *testing.T) {
	for _, c := range []struct {
		name  string
		set   func(f *fakeBAR)
		state health.State
		cond  health.Condition
		in    time.Duration
		say   string
	}{
		{"stopped counter", func(f *fakeBAR) { f.stopCounter() }, health.Stalled, health.CounterStopped, 6 * time.Second, "since the watch began"},
		{"counter stopped at 0", func(f *fakeBAR) { f.stop = new(uint32) }, health.Stalled, health.CounterStopped, 6 * time.Second, "0x000000"},
		{"stopped counter with an error", func(f *fakeBAR) { f.stopCounter(); f.report(9, 0) }, health.Stalled, health.SyndromeStopped, 6 * time.Second, "FW_CRC_ERR"},
		{"fatal error", func(f *fakeBAR) { f.stopCounter(); f.report(9, rfr) }, health.Fatal, health.FatalRFR, 0, "has not been seen moving"},
		{"all ones", func(f *fakeBAR) { f.ones = true }, health.Gone, health.AllOnes, 0, "all ones"},
		{"software reset", func(f *fakeBAR) { f.nic = 7 }, health.Fatal, health.NICSWReset, 0, "nic_interface reads 7"},
		{"nobody uses it", func(f *fakeBAR) { f.nic = 1 }, health.Healthy, health.NICIdle, 2 * time.Second, "no driver"},
		{"pre-boot", func(f *fakeBAR) { f.nic = 2 }, health.Degraded, health.NICNotFull, 2 * time.Second, "nic_interface reads 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, w := newBAR(t)
				c.set(f)
				start := time.Now()
				r, err := health.Check(t.Context(), health.Options{Window: w})
				require.NoError(t, err)
				require.Equal(t, c.in, time.Since(start))
				require.Equal(t, c.state, r.Verdict.State)
				require.Equal(t, c.cond, r.Verdict.Condition)
				require.Contains(t, r.Verdict.Explanation, c.say)
			})
		})
	}
	// The owner brought it up: disabled is fatal at once.
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.nic = 1
		r, err := health.Check(t.Context(), health.Options{Window: w, Owner: true})
		require.NoError(t, err)
		require.Equal(t, health.NICDisabled, r.Verdict.Condition)
	})
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		start := time.Now()
		r, err := health.Check(t.Context(), health.Options{Window: w, Device: "0000:3b:00.0"})
		require.NoError(t, err)
		require.Equal(t, health.OK, r.Verdict.Condition)
		require.Zero(t, r.Verdict.ExitCode)
		require.Equal(t, 2*time.Second, time.Since(start), "the second sample tells")
		require.Equal(t, "16.32.0492", r.Now.Firmware)
		require.Equal(t, "health-buffer", r.Now.FWPacking)
	})
}

// What the owner lost stays lost until it has recovered it, whatever the registers
// say; a watcher from outside sees it come back.
func TestLostStaysLost(t *testing.T) {
	for _, owner := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f, w := newBAR(t)
			var verdicts []health.Verdict
			m := watch(t, health.Options{Window: w, Period: time.Second, Owner: owner, OnVerdict: func(v health.Verdict) { verdicts = append(verdicts, v) }})
			pause(5500 * time.Millisecond)
			f.change(func() { f.ones = true })
			within(t, m, health.Gone, time.Second)
			f.change(func() { f.ones = false })
			pause(10 * time.Second)
			if !owner {
				require.Equal(t, health.Healthy, m.Verdict().State)
				return
			}
			require.Equal(t, health.Gone, m.Verdict().State)

			require.True(t, m.BeginRecovery())
			require.Equal(t, health.Recovering, m.Verdict().State)
			f.change(func() { f.ones = true })
			f.change(func() { clear(f.reads) })
			pause(5 * time.Second)
			require.Equal(t, health.Recovering, m.Verdict().State)
			f.change(func() { require.Empty(t, f.reads, "a function that is being reset is not touched") })
			f.change(func() { f.ones = false })
			f.report(1, rfr)
			require.True(t, m.EndRecovery(health.RecoveryEnd{Reset: true}))
			require.Equal(t, health.Unknown, m.Verdict().State)
			within(t, m, health.Healthy, 3*time.Second)
			require.Equal(t, health.StaleError, m.Verdict().Condition)
			var states []health.State
			for _, v := range verdicts {
				states = append(states, v.State)
			}
			require.Equal(t, []health.State{health.Healthy, health.Gone, health.Recovering, health.Unknown, health.Healthy}, states)

			// A recovery that did not help is found out at once.
			require.True(t, m.BeginRecovery())
			f.change(func() { f.ones = true })
			require.True(t, m.EndRecovery(health.RecoveryEnd{Reset: true}))
			within(t, m, health.Gone, time.Second)
		})
	}
}

// Accesses that fail read all ones; the verdict says what the transport answered.
func TestBrokenTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := vfio.NewFaulty(vfiotest.NewRAM(vfiotest.RAMOptions{}), nil)
		dev, err := vfio.NewDevice(f, vfio.DeviceOptions{})
		require.NoError(t, err)
		defer dev.Close()
		w, err := dev.Window(vfio.RegionBAR0)
		require.NoError(t, err)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(1500 * time.Millisecond)
		f.Add(vfio.Fault{Verb: vfio.VerbRead, Times: -1, Err: errors.New("the server has gone away")})
		within(t, m, health.Gone, time.Second)
		require.Contains(t, m.Verdict().Explanation, "the server has gone away")
		m.Stop()
	})
}

func TestVerdictError(t *testing.T) {
	e := &health.VerdictError{Device: "dev", Verdict: health.Verdict{State: health.Gone, Condition: health.AllOnes, Explanation: "x", Remedy: "y"}}
	require.ErrorIs(t, e, vfio.ErrGone)
	require.Equal(t, "dev: health is gone (all-ones): x; y", e.Error())
	e.Verdict.State, e.Device = health.Fatal, ""
	require.ErrorIs(t, e, health.ErrFatal)
	require.Equal(t, "health is fatal (all-ones): x; y", e.Error())
	e.Verdict.State = health.Stalled
	require.ErrorIs(t, e, health.ErrStalled)
	e.Verdict.State = health.Degraded
	require.NoError(t, e.Unwrap())
}
