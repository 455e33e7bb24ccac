package cmdif_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// BenchmarkThroughput is commands a second of 62 callers against the model, with one
// slot and with all of them in the same run, and the ratio of the two: NOPs that are
// answered within the doorbell, and NOPs that take a fixed time, which overlap.
func BenchmarkThroughput(b *testing.B) {
	for _, latency := range []time.Duration{0, time.Millisecond} {
		for _, polled := range []bool{true, false} {
			mode := "events"
			if polled {
				mode = "polled"
			}
			b.Run(fmt.Sprintf("latency=%v/%s", latency, mode), func(b *testing.B) { throughput(b, latency, polled) })
		}
	}
}

func throughput(b *testing.B, latency time.Duration, polled bool) {
	one, all := bringUp(b, latency, polled, 1), bringUp(b, latency, polled, 0)
	var rates [2][]float64
	const turn = 50 * time.Millisecond
	b.ReportAllocs()
	for b.Loop() {
		for i, h := range []*mlxvfio.HCA{one, all} {
			rates[i] = append(rates[i], rate(b, h, 62, turn))
		}
	}
	b.StopTimer()
	median := func(r []float64) float64 { slices.Sort(r); return r[len(r)/2] }
	r1, r31 := median(rates[0]), median(rates[1])
	b.ReportMetric(r1, "one-slot-cmd/s")
	b.ReportMetric(r31, "all-slots-cmd/s")
	b.ReportMetric(r31/r1, "ratio")
	for _, h := range []*mlxvfio.HCA{one, all} {
		require.Zero(b, h.Conn().Stats().Quarantined)
	}
}

func bringUp(b testing.TB, latency time.Duration, polled bool, slots int) *mlxvfio.HCA {
	c, err := sim.New(sim.Options{})
	require.NoError(b, err)
	h, err := mlxvfio.Open(context.Background(), c.Function(0), mlxvfio.Options{Polled: polled, CommandSlots: slots, Memory: vfio.MemoryHeap})
	require.NoError(b, err)
	if latency > 0 {
		require.NoError(b, c.SetFault("late", "NOP="+latency.String()))
	}
	b.Cleanup(func() {
		require.NoError(b, c.ClearFault(""))
		require.NoError(b, h.Close(context.Background()))
		require.NoError(b, c.Close())
	})
	return h
}

// rate is commands a second of so many callers, for some time.
func rate(b testing.TB, h *mlxvfio.HCA, callers int, d time.Duration) float64 {
	var wg sync.WaitGroup
	sent := make([]int, callers)
	start := time.Now()
	for i := range callers {
		wg.Go(func() {
			in, out := make([]byte, prm.NopInSize), make([]byte, 16)
			prm.AsCmdIn(in).SetOpcode(prm.OpNop)
			for time.Since(start) < d {
				if err := h.Conn().Exec(context.Background(), in, out); err != nil {
					b.Error(err)
					return
				}
				sent[i]++
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	n := 0
	for _, s := range sent {
		n += s
	}
	return float64(n) / took.Seconds()
}

// One slot is one command at a time, whatever the mode: so many commands of a
// millisecond take so many milliseconds. All slots overlap them.
func TestCommandSlots(t *testing.T) {
	for _, polled := range []bool{false, true} {
		for _, slots := range []int{1, 0} {
			h := bringUp(t, time.Millisecond, polled, slots)
			require.Equal(t, map[int]int{1: 2, 0: 32}[slots], h.Conn().Stats().Slots)
			start := time.Now()
			var wg sync.WaitGroup
			for range 60 {
				wg.Go(func() {
					if err := h.Conn().NOP(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			took := time.Since(start)
			if slots == 1 {
				require.GreaterOrEqual(t, took, 60*time.Millisecond)
			}
			t.Logf("polled %v, %d slots: 60 commands of 1 ms in %v", polled, h.Conn().Stats().Slots, took)
		}
	}
}
