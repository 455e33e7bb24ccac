package cmdif

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Signals tell answered commands from those the device holds past their deadline,
// whoever waits for them.
func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: 10 * time.Second})
		var held []*call
		b.onCommand(func(c *call) {
			if c.op() == prm.OpNop {
				held = append(held, c)
				return
			}
			echo(c)
		})
		base := b.conn.Signals()
		require.Zero(t, base.Overdue)
		out := make([]byte, 16)
		require.NoError(t, b.conn.Exec(t.Context(), msg(prm.OpQueryISSI, 16, 1), out))
		g := b.conn.Signals()
		require.Equal(t, base.Answered+1, g.Answered)
		require.Equal(t, time.Now(), g.AnsweredAt)
		answered := time.Now()

		start := time.Now()
		done := make(chan error, 1)
		go func() { done <- b.conn.NOP(context.Background()) }()
		time.Sleep(9 * time.Second)
		g = b.conn.Signals()
		require.Equal(t, 1, g.Active)
		require.Zero(t, g.Overdue, "its deadline has not passed")
		require.Error(t, <-done)
		time.Sleep(time.Second)
		g = b.conn.Signals()
		require.Equal(t, 1, g.Overdue)
		require.Equal(t, 1, g.Quarantined)
		require.Equal(t, prm.OpNop, g.OverdueOpcode)
		require.Equal(t, held[0].slot, g.OverdueSlot)
		require.Equal(t, start, g.OverduePosted)
		require.Equal(t, start.Add(10*time.Second), g.OverdueDeadline)
		require.Equal(t, answered, g.AnsweredAt)

		// A caller that gave up earlier: overdue only past the deadline it had.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		second := time.Now()
		require.Error(t, b.conn.NOP(ctx))
		cancel()
		g = b.conn.Signals()
		require.Equal(t, 2, g.Overdue)
		require.Equal(t, second, g.OverduePosted, "of the one that was sent last")
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		require.Error(t, b.conn.NOP(ctx))
		require.Equal(t, 2, b.conn.Signals().Overdue, "cancelled, and its deadline has not passed")
		time.Sleep(10 * time.Second)
		require.Equal(t, 3, b.conn.Signals().Overdue)

		for _, c := range held {
			echo(c)
		}
		g = b.conn.Signals()
		require.Zero(t, g.Overdue)
		require.Equal(t, uint64(3), g.Late)
		require.Equal(t, base.Answered+4, g.Answered)
		require.Equal(t, time.Now(), g.AnsweredAt)
		require.Zero(t, testing.AllocsPerRun(100, func() { b.conn.Signals() }))
		b.close()
	})
}

// What the device never completed is told after Close, too: a monitor that looks at a
// bring-up that failed has nothing else.
func TestSignalsAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Timeout: time.Second})
		b.onCommand(func(*call) {})
		require.Error(t, b.conn.NOP(t.Context()))
		time.Sleep(time.Second)
		before := b.conn.Signals()
		require.Equal(t, 1, before.Overdue)
		var ue *UnansweredError
		require.ErrorAs(t, b.conn.Close(), &ue)
		require.Equal(t, before, b.conn.Signals())
	})
}
