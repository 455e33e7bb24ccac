package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
)

// A counter that has stopped has the rate of the time in which it moved, and is said
// to have stopped apart from it; one that goes on is measured again.
func TestRateOfStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond})
		pause(5*time.Second + 30*time.Millisecond)
		f.stopCounter() // within an interval
		pause(time.Second)
		r := m.Report().Rate
		require.Zero(t, r.StoppedSince, "not before the stall limit")
		require.InDelta(t, 100, r.PerSecond, 2)
		pause(10 * time.Second)
		r = m.Report().Rate
		require.InDelta(t, 100, r.PerSecond, 0.1, "neither the pause nor the interval in which it began")
		require.Equal(t, 5*time.Second, r.Measured)
		require.EqualValues(t, 50, r.Intervals)
		require.EqualValues(t, 500, r.Increments)
		require.InDelta(t, 100, r.Least, 1)
		require.True(t, *r.Matches)
		require.Zero(t, r.Recent, "what it does now")
		require.Equal(t, 5100*time.Millisecond, r.StoppedSince.Sub(m.Report().Started))
		require.Contains(t, r.Statement, "100.0 increments a second, measured for 5s")
		require.Contains(t, r.Statement, "; stopped since "+r.StoppedSince.UTC().Format("15:04:05.000Z"))

		f.goOn()
		pause(5 * time.Second)
		r = m.Report().Rate
		require.Zero(t, r.StoppedSince)
		require.NotContains(t, r.Statement, "stopped")
		require.InDelta(t, 100, r.PerSecond, 0.1)
		require.Greater(t, r.Measured, 9*time.Second)
		require.Less(t, r.Measured, 10*time.Second)
	})
}

// A counter that stood from the first look on has no rate.
func TestRateOfDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.stopCounter()
		m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond})
		pause(500 * time.Millisecond)
		require.Equal(t, "nothing measured yet", m.Report().Rate.Statement)
		within(t, m, health.Stalled, 3*time.Second)
		r := m.Report()
		require.Zero(t, r.Rate.Measured)
		require.Nil(t, r.Rate.Matches)
		require.Equal(t, r.Started, r.Rate.StoppedSince)
		require.Contains(t, r.Rate.Statement, "no rate was measured; stopped since ")
	})
}

// Pauses of a counter that is merely slow are time between increments.
func TestRateOfSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.tick = time.Second
		m := watch(t, health.Options{Window: w, Period: 50 * time.Millisecond})
		pause(30*time.Second + 500*time.Millisecond)
		r := m.Report().Rate
		require.InDelta(t, 1, r.PerSecond, 0.02)
		require.Zero(t, r.Least)
		require.Zero(t, r.StoppedSince)
		require.False(t, *r.Matches)
	})
}

// A counter that stops before a reset is not measured up to it.
func TestRateAcrossReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond})
		pause(2*time.Second + 10*time.Millisecond)
		f.stopCounter()
		pause(time.Second)
		require.True(t, m.BeginRecovery())
		pause(time.Second)
		f.goOn()
		require.True(t, m.EndRecovery(health.RecoveryEnd{Reset: true}))
		pause(2 * time.Second)
		r := m.Report().Rate
		require.InDelta(t, 100, r.PerSecond, 0.6)
		require.InDelta(t, 4, r.Measured.Seconds(), 0.2)
	})
}

// Firmware that writes the buffer all the time tears every look; that is one event.
func TestTornIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.report(7, valid)
		n := uint32(0)
		f.hook = func(off uint64, v uint32) uint32 {
			if off == 0x200 {
				n++
				return n
			}
			return v
		}
		m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond})
		count := func() (n int) {
			for {
				select {
				case e := <-m.Events():
					if e.Kind == health.EventSyndrome {
						n++
					}
				default:
					return n
				}
			}
		}
		pause(3 * time.Second)
		require.True(t, m.Report().Buffer.Torn)
		require.Equal(t, 1, count())
		f.report(8, valid)
		pause(time.Second)
		require.Equal(t, 1, count(), "another syndrome is news")
		f.report(8, valid|rfr)
		pause(time.Second)
		require.Equal(t, 1, count(), "a flag as well")
	})
}

// What a verdict that stands says about the counter does not become wrong.
func TestExplanationFollowsCounter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.report(0xe, valid)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		synctest.Wait()
		require.Equal(t, health.SyndromeNonFatal, m.Verdict().Condition)
		require.Contains(t, m.Verdict().Explanation, "the counter has not been seen moving")
		pause(time.Second)
		v := m.Verdict()
		require.Equal(t, health.SyndromeNonFatal, v.Condition)
		require.Contains(t, v.Explanation, "it was there at the first look, the counter moves")
		require.Equal(t, m.Report().Started, v.Since)
	})
}
