package queues_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A handle of a queue pair that was destroyed touches nothing of the one that has
// its memory now: what Reset, Ring and the posts do, they do not do there.
func TestStaleHandles(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := ctxOf(t)
	cq := b.cq(6)
	mk := b.mkey(b.buffer(4096), queues.AccessAll)
	o := queues.QPOptions{Name: "old", PD: b.pd, SendCQ: cq, UAR: b.uar}
	old, err := b.dev.CreateQP(ctx, o)
	require.NoError(t, err)
	was, err := old.Query(ctx)
	require.NoError(t, err)
	require.NoError(t, old.Destroy(ctx))
	q := b.qp(cq, queues.QPOptions{})
	is, err := q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, was.Record, is.Record, "the new one has the record of the old one, or the test shows nothing")
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))

	const writes = 5
	var c [2 * writes]queues.Completion
	for range writes {
		require.NoError(t, q.SQ.Write(1, queues.Signalled|queues.NonAtomic, mk.SGE(0, 8), mk.Remote(64)))
	}
	q.SQ.Ring()
	require.NoError(t, q.RQ.Post(1, mk.SGE(0, 8)))
	q.RQ.Ring()
	old.SQ.Reset()
	old.RQ.Reset()
	require.ErrorIs(t, old.SQ.Nop(1, 0), vfio.ErrClosed)
	require.ErrorIs(t, old.RQ.Post(1, mk.SGE(0, 8)), vfio.ErrClosed)
	old.SQ.Ring()
	old.RQ.Ring()
	require.NoError(t, q.SQ.Send(9, queues.Signalled, mk.SGE(0, 8)))
	q.SQ.Ring()
	for n := 0; n < writes+2; {
		got, err := b.ch.Completions(ctx, cq, c[n:])
		require.NoError(t, err)
		n += got
	}
	now, err := q.Query(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, now.RQSoftware)
	require.EqualValues(t, writes+1, now.SQHardware)

	s, err := b.dev.CreateSRQ(ctx, queues.SRQOptions{Name: "old", PD: b.pd})
	require.NoError(t, err)
	require.NoError(t, s.Destroy(ctx))
	require.NotPanics(t, func() { s.Reset(); s.Ring() })
	require.ErrorIs(t, s.Post(1, mk.SGE(0, 8)), vfio.ErrClosed)
}

func TestConnectPairOfNothing(t *testing.T) {
	b := newBench(t, "sim:cx5")
	q := b.qp(b.cq(6), queues.QPOptions{})
	for _, pair := range [][2]*queues.QP{{nil, q}, {q, nil}, {nil, nil}} {
		b.refused("QP", queues.ErrMissing, func() error {
			return queues.ConnectPair(t.Context(), pair[0], pair[1], queues.ConnectOptions{})
		})
	}
}

// Query may be called beside transitions: the race detector sees no fault, and a
// late answer does not hide the state of a newer transition.
func TestQueryBesideTransitions(t *testing.T) {
	b := newBench(t, "sim:cx5")
	q := b.qp(b.cq(6), queues.QPOptions{})
	ctx := ctxOf(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for range 50 {
			if _, err := q.Query(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	for range 20 {
		require.NoError(t, q.ToInit(ctx, queues.InitAttr{}))
		require.Equal(t, prm.QPStateInit, q.State())
		require.NoError(t, q.Reset(ctx))
		require.Equal(t, prm.QPStateRst, q.State())
	}
}

// Of an event queue that is gone nothing can be read or rung.
func TestStaleEQ(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := ctxOf(t)
	eq, err := b.dev.CreateEQ(ctx, queues.EQOptions{Name: "old", LogSize: 6, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, eq.Destroy(ctx))
	n, err := eq.Poll(func(*prm.EQE) { t.Error("an event of a queue that is gone") })
	require.NoError(t, err)
	require.Zero(t, n)
	eq.Arm()
	eq.Update()
	b.refused("", vfio.ErrClosed, func() error { return eq.Destroy(ctx) })
	b.refused("", vfio.ErrClosed, func() error { _, err := eq.Query(ctx); return err })
	require.NoError(t, eq.Release())
}

// Memory under a memory key cannot be freed, so that nobody else gets what the
// device may still write.
func TestMemoryUnderAKey(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := ctxOf(t)
	buf, err := b.dev.Space.Alloc(4096, vfio.BufferOptions{Name: "covered"})
	require.NoError(t, err)
	mk, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Buffer: buf, Access: queues.AccessAll})
	require.NoError(t, err)
	require.ErrorIs(t, buf.Free(), queues.ErrInUse)
	require.NoError(t, mk.Destroy(ctx))
	mk.Release()
	require.NoError(t, buf.Free())
}
