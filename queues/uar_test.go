package queues_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A doorbell page cannot be freed under what rings in it, an event queue not under the
// CQs that report to it: refused before a command is sent, and possible again once the
// users are gone, whichever way they went.
func TestUARUsers(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	uar, err := b.dev.AllocUAR(ctx)
	require.NoError(t, err)
	busy := func() {
		t.Helper()
		b.refused("", queues.ErrInUse, func() error { return uar.Free(ctx) })
	}
	ch, err := b.dev.NewEventChannel(ctx, queues.EventChannelOptions{Name: "mine", UAR: uar})
	require.NoError(t, err)
	busy()
	cq, err := b.dev.CreateCQ(ctx, queues.CQOptions{Name: "mine", EQ: ch.EQ(), UAR: uar})
	require.NoError(t, err)
	b.refused("", queues.ErrInUse, func() error { return ch.Close(ctx) })
	q, err := b.dev.CreateQP(ctx, queues.QPOptions{Name: "mine", PD: b.pd, SendCQ: cq, UAR: uar})
	require.NoError(t, err)

	// A creation that fails counts for nothing.
	require.NoError(t, b.chip.SetFault("status", "CREATE_QP=INT_ERR"))
	_, err = b.dev.CreateQP(ctx, queues.QPOptions{Name: "none", PD: b.pd, SendCQ: cq, UAR: uar})
	require.Error(t, err)
	require.NoError(t, b.chip.SetFault("status", "CREATE_CQ=INT_ERR"))
	_, err = b.dev.CreateCQ(ctx, queues.CQOptions{Name: "none", EQ: ch.EQ(), UAR: uar})
	require.Error(t, err)
	require.NoError(t, b.chip.SetFault("status", "CREATE_EQ=INT_ERR"))
	_, err = b.dev.CreateEQ(ctx, queues.EQOptions{Name: "none", LogSize: 7, UAR: uar})
	require.Error(t, err)
	require.NoError(t, b.chip.ClearFault(""))
	_, err = b.dev.CreateQP(ctx, queues.QPOptions{Name: "none", SendCQ: cq, UAR: uar})
	require.ErrorIs(t, err, queues.ErrMissing)
	_, err = b.dev.CreateQP(ctx, queues.QPOptions{Name: "none", PD: b.pd, UAR: uar})
	require.ErrorIs(t, err, queues.ErrMissing)

	var oe *queues.ObjectError
	require.ErrorAs(t, uar.Free(ctx), &oe)
	require.Equal(t, "3 objects use it; destroy them first", oe.Detail)
	require.NoError(t, q.Destroy(ctx))
	busy()
	require.NoError(t, cq.Destroy(ctx))
	busy()
	require.NoError(t, ch.Close(ctx))
	require.NoError(t, uar.Free(ctx))
	b.refused("", vfio.ErrClosed, func() error { return uar.Free(ctx) })
	b.refused("UAR", vfio.ErrClosed, func() error {
		_, err := b.dev.CreateEQ(ctx, queues.EQOptions{Name: "late", LogSize: 7, UAR: uar})
		return err
	})
	b.refused("UAR", queues.ErrMissing, func() error {
		_, err := b.dev.CreateEQ(ctx, queues.EQOptions{Name: "none", LogSize: 7})
		return err
	})
	uar.Release() // does nothing
}
