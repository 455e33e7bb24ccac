package health_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
)

// A stall is reported within its limit and one period of the moment the counter
// stopped, never before the limit has passed since it was last seen to move,
// whatever the period, the device's own limit, and the moment.
func TestStallInTime(t *testing.T) {
	for _, c := range []struct{ period, poll, limit time.Duration }{
		{2 * time.Second, 0, 6 * time.Second},
		{2 * time.Second, 2 * time.Second, 6 * time.Second},
		{2 * time.Second, 7 * time.Second, 7 * time.Second}, // ends between two samples
		{10 * time.Millisecond, 0, 2 * time.Second},         // a fast sampler does not cry wolf
		{10 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond},
		{300 * time.Millisecond, time.Second, time.Second},
		{time.Second, 2 * time.Second, 3 * time.Second},
	} {
		for _, part := range []float64{0.01, 0.5, 0.99} { // of a period
			t.Run(fmt.Sprintf("%v/%v/%v", c.period, c.poll, part), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, w := newBAR(t)
					m := watch(t, health.Options{Window: w, Period: c.period, HealthPoll: c.poll})
					require.Equal(t, c.limit, m.Report().Limits.Stall)
					pause(3*c.period + time.Duration(part*float64(c.period)))
					require.Equal(t, health.Healthy, m.Verdict().State)
					f.stopCounter()
					took := within(t, m, health.Stalled, c.limit+c.period)
					require.GreaterOrEqual(t, took, c.limit-c.period)
					require.Equal(t, health.CounterStopped, m.Verdict().Condition)
				})
			})
		}
	}
}

// A counter that is slower than the sampler, and even slower than three periods, is
// healthy while it moves within the device's limit.
func TestSlowCounterIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.tick = 1900 * time.Millisecond
		m := watch(t, health.Options{Window: w, Period: 10 * time.Millisecond})
		within(t, m, health.Healthy, 2*time.Second)
		for range 2000 {
			pause(10 * time.Millisecond)
			require.Equal(t, health.Healthy, m.Verdict().State)
		}
		require.Empty(t, m.Report().Verdicts[1:])
	})
}

// The counter wraps at 24 bits; the byte above it is not part of it.
func TestCounterWraps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.offset = 0xffffff - 500 // wraps after 5 s
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(20*time.Second + time.Millisecond)
		r := m.Report()
		require.Equal(t, health.Healthy, r.Verdict.State)
		require.Zero(t, r.Counts.Missed)
		require.InDelta(t, 100, r.Rate.PerSecond, 0.5, "the wrap is not a jump")
		require.InDelta(t, 100, r.Rate.Most, 1)
		require.Less(t, r.Now.Counter, uint32(2000))
	})
}

// A syndrome that appears beside a counter that stands still is no movement.
func TestSyndromeIsNoMovement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w})
		pause(5 * time.Second)
		f.stopCounter()
		start := time.Now()
		for i := range 3 { // each sample finds another dword at 0x1010
			pause(2 * time.Second)
			f.report(uint32(0xc+i), 0)
		}
		within(t, m, health.Stalled, 8*time.Second-time.Since(start))
		v := m.Verdict()
		require.Equal(t, health.SyndromeStopped, v.Condition)
		require.Contains(t, v.Explanation, "synd 0xe EQ_INV")
	})
}

// A dead counter without a syndrome: the buffer is kept raw and explains nothing.
func TestStoppedWithoutSyndrome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.change(func() { f.dword[0x200], f.dword[0x220] = 0xabad1dea, 0xcafe })
		m := watch(t, health.Options{Window: w})
		pause(5 * time.Second)
		require.Nil(t, m.Report().Evidence)
		f.stopCounter()
		within(t, m, health.Stalled, 8*time.Second)
		r := m.Report()
		require.Equal(t, health.CounterStopped, r.Verdict.Condition)
		require.Nil(t, r.Buffer, "no diagnosis")
		require.NotNil(t, r.Evidence)
		require.Equal(t, byte(0xab), r.Evidence[0])
		require.NotContains(t, r.Verdict.Explanation, "cafe")
		require.Contains(t, r.Verdict.Explanation, "explains nothing")
	})
}

// A stall ends when the counter has moved in three samples, not in one.
func TestStallHysteresis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(3500 * time.Millisecond)
		f.stopCounter()
		within(t, m, health.Stalled, 4*time.Second)
		// It twitches every 5 s: one movement in five samples, never three together
		// without a stall between.
		for range 5 {
			f.change(func() { *f.stop++ })
			for range 50 {
				pause(100 * time.Millisecond)
				require.Equal(t, health.Stalled, m.Verdict().State)
			}
		}
		require.Len(t, m.Report().Verdicts, 2, "one change into the stall, and no flapping")
		f.goOn()
		took := within(t, m, health.Healthy, 4*time.Second)
		require.Greater(t, took, 2*time.Second)
	})
}

// A stopped process has not looked: nothing is held against the device, even if the
// device stood still with it; a device that is dead all the same is found.
func TestStoppedProcess(t *testing.T) {
	for _, frozen := range []bool{false, true} {
		t.Run(fmt.Sprintf("frozen device %v", frozen), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, w := newBAR(t)
				hang := make(chan time.Duration, 1)
				m := watch(t, health.Options{Window: w, OnSample: func(health.Sample, health.Verdict) {
					select {
					case d := <-hang: // as SIGSTOP does
						time.Sleep(d)
					default:
					}
				}})
				pause(5 * time.Second)
				hang <- time.Hour
				if frozen {
					// The machine was frozen with the device, which goes on a while later.
					pause(1001 * time.Millisecond)
					f.stopCounter()
					pause(time.Hour - 800*time.Millisecond)
					for range 75 { // a whole limit is given, from the first look on
						require.Equal(t, health.Healthy, m.Verdict().State)
						pause(100 * time.Millisecond)
					}
					f.goOn()
				} else {
					pause(time.Hour + 10*time.Second)
				}
				for range 100 {
					require.Equal(t, health.Healthy, m.Verdict().State)
					pause(100 * time.Millisecond)
				}
				r := m.Report()
				require.Equal(t, uint64(1), r.Counts.Gaps)
				require.InDelta(t, 100, r.Rate.PerSecond, 30, "the gap is not measured")
				var kinds []health.EventKind
				for len(m.Events()) > 0 {
					kinds = append(kinds, (<-m.Events()).Kind)
				}
				require.Contains(t, kinds, health.EventGap)

				f.stopCounter()
				within(t, m, health.Stalled, 8*time.Second)
			})
		})
	}
}

// Time without looks is no evidence: three looks must find the counter where it was.
func TestTwoLooksAreTooFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		hang := make(chan time.Duration, 1)
		m := watch(t, health.Options{Window: w, Period: time.Second, OnSample: func(health.Sample, health.Verdict) {
			select {
			case d := <-hang:
				time.Sleep(d)
			default:
			}
		}})
		require.Equal(t, 3*time.Second, m.Report().Limits.Stall)
		pause(3500 * time.Millisecond)
		hang <- 1900 * time.Millisecond // less than the limit: from 4.0 s to 5.9 s
		pause(501 * time.Millisecond)
		f.stopCounter() // the machine stands still, and the device with it
		pause(3100 * time.Millisecond)
		require.Equal(t, health.Healthy, m.Verdict().State, "looks at 6 s and at the limit, 7 s")
		require.Equal(t, 2, m.Report().Counts.MissedRow)
		f.goOn()
		pause(5 * time.Second)
		require.Len(t, m.Report().Verdicts, 1)
	})
}

// A host that is always too late to look still finds a dead device.
func TestGapsDoNotHideAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second, HealthPoll: time.Second, OnSample: func(health.Sample, health.Verdict) {
			time.Sleep(3500 * time.Millisecond) // longer than the limit of 3 s, every time
		}})
		pause(10 * time.Second)
		f.stopCounter()
		within(t, m, health.Stalled, 25*time.Second)
	})
}

// The wall clock is set: nothing is judged by it, and an event tells.
func TestClockStep(t *testing.T) {
	for _, step := range []time.Duration{-48 * time.Hour, 48 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f, w := newBAR(t)
			m, err := health.New(health.Options{Window: w})
			require.NoError(t, err)
			start := time.Now()
			m.SetWall(func() time.Time {
				now := time.Now()
				if now.Sub(start) > 9*time.Second {
					return now.Add(step).Round(0)
				}
				return now
			})
			require.NoError(t, m.Start(t.Context()))
			defer m.Stop()
			for range 200 {
				pause(100 * time.Millisecond)
				require.NotEqual(t, health.Stalled, m.Verdict().State)
			}
			r := m.Report()
			require.Equal(t, health.Healthy, r.Verdict.State)
			require.Zero(t, r.Counts.Gaps)
			require.InDelta(t, 100, r.Rate.PerSecond, 1)
			steps := 0
			for len(m.Events()) > 0 {
				if e := <-m.Events(); e.Kind == health.EventClock {
					steps++
				}
			}
			require.Equal(t, 1, steps)
			f.stopCounter()
			within(t, m, health.Stalled, 8*time.Second)
		})
	}
}

func TestRate(t *testing.T) {
	for _, c := range []struct {
		tick  time.Duration
		match bool
	}{{10 * time.Millisecond, true}, {time.Millisecond, false}, {11 * time.Millisecond, false}} {
		synctest.Test(t, func(t *testing.T) {
			f, w := newBAR(t)
			f.tick = c.tick
			m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond})
			pause(550 * time.Millisecond)
			r := m.Report().Rate
			require.Nil(t, r.Matches)
			require.Contains(t, r.Statement, "too short")
			pause(10 * time.Second)
			r = m.Report().Rate
			per := float64(time.Second) / float64(c.tick)
			require.InDelta(t, per, r.PerSecond, per/50)
			require.InDelta(t, per, r.Recent, per/10)
			require.NotNil(t, r.Matches)
			require.Equal(t, c.match, *r.Matches, r.Statement)
			require.Contains(t, r.Statement, "unproven")
			require.Equal(t, uint64(105), r.Intervals)
		})
	}
}
