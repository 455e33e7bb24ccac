package mlxvfio

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func noEntries(*queues.EQ, func(*prm.EQE)) int { return 0 }

// What others ask of a loop is done on its goroutine, between two looks, and a
// loop that has ended refuses.
func TestLoopServes(t *testing.T) {
	for _, vec := range []*vfio.Vector{nil, vfio.NewChanVector()} {
		l := newEventLoop(vec, time.Hour, discard(), noEntries)
		ran := false
		require.True(t, l.do(func() { ran = true }))
		require.True(t, ran)
		require.Zero(t, l.look())
		l.end()
		require.False(t, l.do(func() { t.Error("ran on a loop that has ended") }))
		require.Zero(t, l.look())
	}
}

// Without a vector a loop looks each interval and sleeps in between.
func TestLoopByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		l := newEventLoop(nil, 10*time.Millisecond, discard(), noEntries)
		l.do(func() {
			l.eqs = append(l.eqs, ownedEQ{q: &queues.EQ{}})
			l.poll = func(*queues.EQ, func(*prm.EQE)) int { looks++; return 0 }
		})
		time.Sleep(105 * time.Millisecond)
		l.end()
		require.Equal(t, 10, looks)
	})
}

// A vector that is closed under a loop ends it: nothing waits for ever.
func TestLoopVectorClosed(t *testing.T) {
	vec := vfio.NewChanVector()
	l := newEventLoop(vec, time.Hour, discard(), noEntries)
	require.NoError(t, vec.Close())
	<-l.gone
	l.end()
}
