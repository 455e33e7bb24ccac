package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/health"
)

// A function is brought up while it is watched: from then on a disabled interface is a
// loss, and the device's own limit holds.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		f.change(func() { f.nic = 1 })
		told := 0
		o := health.Options{Window: w, Period: time.Second, OnVerdict: func(health.Verdict) { told++ }}
		m, err := health.New(o)
		require.NoError(t, err)
		require.False(t, m.Adopt(health.Adoption{Owner: true}), "it does not run")
		require.NoError(t, m.Start(t.Context()))
		pause(2500 * time.Millisecond)
		require.Equal(t, health.NICIdle, m.Verdict().Condition)
		f.change(func() { f.nic = 0 })
		pause(5 * time.Second)
		before := m.Report()
		n := told
		require.True(t, m.Adopt(health.Adoption{Owner: true, HealthPoll: 20 * time.Second}))
		require.Equal(t, n+1, told)
		r := m.Report()
		require.Equal(t, before.Counts.Samples, r.Counts.Samples, "what was seen stays")
		require.Equal(t, 20*time.Second, r.Limits.Stall)
		require.Equal(t, 20*time.Second, r.Limits.HealthPoll)
		require.True(t, m.Adopt(health.Adoption{Owner: true}))
		require.Equal(t, 20*time.Second, m.Report().Limits.Stall, "0 keeps what is known")
		f.change(func() { f.nic = 1 })
		within(t, m, health.Fatal, time.Second)
		require.Equal(t, health.NICDisabled, m.Verdict().Condition)
		f.change(func() { f.nic = 0 })
		pause(10 * time.Second)
		require.Equal(t, health.Fatal, m.Verdict().State, "what was brought up and lost stays lost")
		m.Stop()
		require.False(t, m.Adopt(health.Adoption{}))
	})
}

// A bring-up that failed and was undone in order: the interface may be disabled.
func TestAdoptWithoutOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, w := newBAR(t)
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(2500 * time.Millisecond)
		require.Equal(t, health.OK, m.Verdict().Condition)
		f.change(func() { f.nic = 1 })
		require.True(t, m.Adopt(health.Adoption{}))
		pause(10 * time.Second)
		require.Equal(t, health.Healthy, m.Verdict().State)
		m.Stop()
	})
}
