package mlxvfio_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Queues that outlive their function are refused, not followed into memory that is
// unmapped, whatever it is made of; the close names them and frees what is theirs.
func TestCloseWithQueuesLeft(t *testing.T) {
	for _, kind := range []vfio.MemoryKind{vfio.MemoryMemFD, vfio.MemoryHeap} {
		for _, how := range []mlxvfio.TeardownKind{mlxvfio.TeardownRegular, mlxvfio.TeardownForced} {
			ctx := t.Context()
			c, err := sim.New(sim.Options{})
			require.NoError(t, err)
			h, err := mlxvfio.Open(ctx, c.Function(0), mlxvfio.Options{CompletionVectors: 1, Memory: kind, Teardown: how})
			require.NoError(t, err)
			d := h.Queues()
			uar, err := d.AllocUAR(ctx)
			require.NoError(t, err)
			pd, err := d.AllocPD(ctx)
			require.NoError(t, err)
			ch, err := d.NewEventChannel(ctx, queues.EventChannelOptions{UAR: uar})
			require.NoError(t, err)
			cq, err := d.CreateCQ(ctx, queues.CQOptions{Name: "mine", EQ: ch.EQ(), UAR: uar})
			require.NoError(t, err)
			srq, err := d.CreateSRQ(ctx, queues.SRQOptions{Name: "mine", PD: pd})
			require.NoError(t, err)
			buf, err := d.Space.Alloc(4096, vfio.BufferOptions{Name: "mine"})
			require.NoError(t, err)
			mk, err := d.CreateMKey(ctx, queues.MKeyOptions{PD: pd, Buffer: buf, Access: queues.AccessAll})
			require.NoError(t, err)
			q, err := d.CreateQP(ctx, queues.QPOptions{Name: "mine", PD: pd, SendCQ: cq, UAR: uar, BlueFlame: true})
			require.NoError(t, err)
			require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
			require.NoError(t, q.SQ.Nop(1, queues.Signalled)) // not rung

			err = h.Close(ctx)
			var le *mlxvfio.LeftError
			require.ErrorAs(t, err, &le)
			require.Len(t, le.Objects, 7)
			require.Equal(t, fmt.Sprintf("doorbell page %#x", uar.Index()), le.Objects[6], "oldest last")
			require.Equal(t, fmt.Sprintf("protection domain %#x", pd.Number()), le.Objects[5])
			require.Contains(t, le.Objects[0], "queue pair mine", "newest first")
			require.ErrorContains(t, err, "1 buffers (4096 bytes) were not freed: mine", "the queues' own memory was")
			require.NotContains(t, err.Error(), "\n")

			var out [4]queues.Completion
			require.ErrorIs(t, q.SQ.Write(2, queues.Signalled, mk.SGE(0, 8), mk.Remote(64)), mlxvfio.ErrClosed)
			require.ErrorIs(t, q.SQ.WriteInline(2, 0, make([]byte, 40), mk.Remote(64)), mlxvfio.ErrClosed)
			require.ErrorIs(t, q.RQ.Post(2, mk.SGE(0, 8)), mlxvfio.ErrClosed)
			require.ErrorIs(t, srq.Post(2, mk.SGE(0, 8)), mlxvfio.ErrClosed)
			_, err = cq.Poll(out[:])
			require.ErrorIs(t, err, mlxvfio.ErrClosed)
			q.SQ.Ring()
			q.SQ.Reset()
			q.RQ.Ring()
			q.RQ.Reset()
			srq.Ring()
			srq.Reset()
			cq.Arm(false)
			cq.Forget(q.Number())
			_, err = ch.Wait(ctx)
			require.ErrorIs(t, err, mlxvfio.ErrClosed)
			require.ErrorIs(t, q.Destroy(ctx), mlxvfio.ErrClosed)
			require.ErrorIs(t, pd.Free(ctx), mlxvfio.ErrClosed)
			require.ErrorIs(t, uar.Free(ctx), mlxvfio.ErrClosed)
			require.NoError(t, q.Release())
			require.NoError(t, cq.Release())
			require.NoError(t, srq.Release())
			require.NoError(t, ch.Release())
			mk.Release()
			require.Zero(t, h.Stats().DMA.LiveBuffers)
			require.Zero(t, c.Counters(0).DMAFaults)
			require.NoError(t, c.Close())
		}
	}
}
