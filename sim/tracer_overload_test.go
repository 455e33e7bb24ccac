package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// slowMachine is a clock on which all work takes longer: time goes times as fast.
type slowMachine struct {
	born  time.Time
	times time.Duration
}

func (c slowMachine) Now() time.Time { return c.born.Add(time.Since(c.born) * c.times) }

// TestTracerOverload: whatever the load and however slow the machine, a command gets
// its turn, the load goes on as fast as it can, and the end of the chip is not held up.
func TestTracerOverload(t *testing.T) {
	for _, tt := range []struct {
		name  string
		times time.Duration
		rate  float64
		fault []FaultSpec
	}{
		{"beyond this machine", 1, 1e9, nil},
		{"beyond any", 1, 1e15, nil},
		{"a slow machine", 100, 1e6, nil},
		{"a very slow machine", 1000, 1e9, nil},
		{"torn blocks", 100, 1e9, []FaultSpec{{"trace-torn", ""}}},
		{"edges", 100, 1e9, []FaultSpec{{"trace-edges", ""}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			done := make(chan struct{})
			go func() { // a command that never gets its turn ends the test, with all stacks
				select {
				case <-done:
				case <-time.After(time.Minute):
					panic("no command got its turn for a minute")
				}
			}()
			defer close(done)
			o := Options{Faults: tt.fault}
			if tt.times > 1 {
				o.Clock = slowMachine{time.Now(), tt.times}
			}
			r := newTracer(newRaw(t, o).to(phaseInit), 6, nil)
			r.chip.SetTraceLoad(tt.rate)
			require.True(t, r.acquire())
			r.start()
			begun, wrote := time.Now(), uint64(0)
			for range 5 {
				for range 20 {
					r.send(cmd(prm.OpNop, 0, 16), 16)
				}
				require.Eventually(t, func() bool { return r.chip.TraceStats().Load > wrote },
					10*time.Second, time.Millisecond, "the load goes on")
				wrote = r.chip.TraceStats().Load
			}
			took := time.Since(begun)
			t.Logf("100 commands and %d messages in %v", wrote, took)
			require.Less(t, took, 20*time.Second)
			r.ctrl(0, false)
		})
	}
}

// TestForeignClock: on a clock that is not the wall's, what is due in a minute of it
// happens then, not in a minute of the wall's.
func TestForeignClock(t *testing.T) {
	c, err := New(Options{Clock: slowMachine{time.Now(), 10000}})
	require.NoError(t, err)
	done := make(chan struct{})
	c.mu.Lock()
	c.sched.after(nil, time.Minute, func() { close(done) })
	c.unlock()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("6 ms take 30 s")
	}
	require.NoError(t, c.Close())
}

// TestTracerOverloadSlips: on a clock that stands still while the chip works, a load
// beyond its bounds writes the same each time.
func TestTracerOverloadSlips(t *testing.T) {
	run := func() (TraceTruth, uint64) {
		r := newTracing(t, Options{Seed: 3}, 4)
		r.chip.SetTraceLoad(1e9)
		for range 10 {
			r.send(cmd(prm.OpNop, 0, 16), 16)
			r.chip.Advance(700 * time.Microsecond)
		}
		return r.chip.KeptTrace(), r.chip.TraceStats().Load
	}
	first, n := run()
	second, m := run()
	require.Equal(t, n, m)
	require.Equal(t, first, second)
	// 7 ms are 7 million messages at that rate, and at most 141 turns.
	require.LessOrEqual(t, n, uint64(7*time.Millisecond/traceYield+1)*traceBatch)
	require.Greater(t, n, uint64(100*traceBatch))
}
