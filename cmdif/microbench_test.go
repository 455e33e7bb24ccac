package cmdif

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Commands that take a millisecond overlap in as many slots as there are, and stand
// in line for one.
func TestMicrobench(t *testing.T) {
	for _, events := range []bool{false, true} {
		for _, slots := range []int{1, 4, 0} {
			synctest.Test(t, func(t *testing.T) {
				m, err := NewMicrobench(MicroOptions{MaxSlots: slots, In: 16, Out: 600, Latency: time.Millisecond, Events: events})
				require.NoError(t, err)
				n := m.Slots()
				require.Equal(t, map[int]int{1: 1, 4: 4, 0: 31}[slots], n)
				r, err := m.Run(context.Background(), 62, 620, time.Hour)
				require.NoError(t, err)
				require.Equal(t, 620, r.Sent)
				turns := time.Duration((620 + n - 1) / n)
				require.GreaterOrEqual(t, r.Took, turns*time.Millisecond)
				if events {
					require.Equal(t, turns*time.Millisecond, r.Took)
				} else {
					require.LessOrEqual(t, r.Took, turns*(time.Millisecond+longestSleep))
				}
				r, err = m.Run(context.Background(), 4, 1<<40, 100*time.Millisecond)
				require.NoError(t, err)
				require.InDelta(t, 100, r.Took.Milliseconds(), 10)
				require.Less(t, r.Sent, 1000)
				st := m.conn.Stats()
				require.Zero(t, st.Recovered)
				require.NoError(t, m.Close())
				require.Zero(t, m.dev.Space().Stats().LiveBuffers)
			})
		}
	}
}

func TestMicrobenchRefuses(t *testing.T) {
	for _, o := range []MicroOptions{{In: 7, Out: 16}, {In: 16, Out: 7}, {In: 16, Out: 16, Latency: -1}, {In: 16, Out: 16, MaxSlots: -1}} {
		_, err := NewMicrobench(o)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
	m, err := NewMicrobench(MicroOptions{In: 16, Out: 16})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = m.Run(ctx, 3, 10, time.Second)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, m.Close())
}
