package queues_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// With ISSI 1 a shared receive queue is an RMP, with ISSI 0 an SRQ; both are what
// was asked for.
func TestSRQKinds(t *testing.T) {
	for _, issi := range []uint16{1, 0} {
		t.Run(fmt.Sprintf("ISSI %d", issi), func(t *testing.T) {
			b := newBench(t, "sim:cx5")
			b.dev.Caps.ISSI = issi
			ctx := t.Context()
			for _, o := range []queues.SRQOptions{
				{}, {LogSize: 1, RecvSGEs: 1}, {LogSize: 4, RecvSGEs: 7, Limit: 5}, {LogSize: 12, RecvSGEs: 31},
			} {
				o.Name, o.PD = "test", b.pd
				q, err := b.dev.CreateSRQ(ctx, o)
				require.NoError(t, err)
				s, err := q.Query(ctx)
				require.NoError(t, err)
				require.Equal(t, issi > 0, s.RMP)
				require.False(t, s.Error)
				require.Equal(t, b.pd.Number(), s.PD)
				if o.LogSize != 0 {
					require.Equal(t, o.LogSize, s.LogSize)
					require.Equal(t, o.RecvSGEs, q.MaxSGE())
				}
				require.Equal(t, 1<<s.LogSize-1, q.Size())
				require.Equal(t, q.MaxSGE(), 1<<s.LogStride/16-1)
				require.Equal(t, o.Limit, s.Limit)
				require.NotZero(t, s.Record)
				require.NoError(t, q.Post(1, queues.SGE{Addr: 1, Len: 1}), "the list is linked")
				require.NoError(t, q.Destroy(ctx))
				require.ErrorIs(t, q.Destroy(ctx), vfio.ErrClosed)
				require.ErrorIs(t, q.Post(1), vfio.ErrClosed)
			}
		})
	}
}

// The limit event comes when fewer WQEs are left than the limit.
func TestSRQLimit(t *testing.T) {
	for _, issi := range []uint16{1, 0} {
		t.Run(fmt.Sprintf("ISSI %d", issi), func(t *testing.T) {
			b := newBench(t, "sim:cx5")
			b.dev.Caps.ISSI = issi
			ctx := ctxOf(t)
			events := b.hca.Subscribe(4, queues.EventMask{})
			defer events.Close()
			q, err := b.dev.CreateSRQ(ctx, queues.SRQOptions{Name: "test", PD: b.pd, LogSize: 4})
			require.NoError(t, err)
			for i := range 8 {
				require.NoError(t, q.Post(uint64(i), queues.SGE{Addr: 1, Len: 1}))
			}
			q.Ring()
			require.NoError(t, q.SetLimit(ctx, 8))
			s, err := q.Query(ctx)
			require.NoError(t, err)
			require.EqualValues(t, 8, s.Limit)
			require.Empty(t, events.C(), "eight are left")
			require.NoError(t, q.SetLimit(ctx, 9))
			e := <-events.C()
			require.Equal(t, "SRQ_RQ_LIMIT", e.Type().String())
			require.Equal(t, q.Number(), e.Entry.EventData().QPEvents().QPNRqnSqn())
			b.refused("limit", vfio.ErrRange, func() error { return q.SetLimit(ctx, 16) })
			require.NoError(t, q.Destroy(ctx))
			b.refused("", vfio.ErrClosed, func() error { return q.SetLimit(ctx, 1) })
			b.refused("", vfio.ErrClosed, func() error { _, err := q.Query(ctx); return err })
		})
	}
}

func TestSRQRefused(t *testing.T) {
	b := newBench(t, "sim:cx5")
	other := newBench(t, "sim:cx5")
	for _, c := range []struct {
		field    string
		sentinel error
		o        queues.SRQOptions
	}{
		{"PD", queues.ErrMissing, queues.SRQOptions{}},
		{"PD", queues.ErrForeign, queues.SRQOptions{PD: other.pd}},
		{"LogSize", vfio.ErrRange, queues.SRQOptions{PD: b.pd, LogSize: 16}},
		{"Limit", vfio.ErrRange, queues.SRQOptions{PD: b.pd, LogSize: 4, Limit: 16}},
		{"RecvSGEs", vfio.ErrRange, queues.SRQOptions{PD: b.pd, RecvSGEs: -1}},
		{"RecvSGEs", vfio.ErrRange, queues.SRQOptions{PD: b.pd, RecvSGEs: 64}},
		{"RecvSGEs", vfio.ErrRange, queues.SRQOptions{PD: b.pd, RecvSGEs: 1 << 60}},
	} {
		b.refused(c.field, c.sentinel, func() error {
			_, err := b.dev.CreateSRQ(t.Context(), c.o)
			return err
		})
	}
}

// A shared receive queue in use is not destroyed.
func TestSRQInUse(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	q, err := b.dev.CreateSRQ(ctx, queues.SRQOptions{Name: "test", PD: b.pd})
	require.NoError(t, err)
	cq := b.cq(4)
	p, err := b.dev.CreateQP(ctx, queues.QPOptions{PD: b.pd, SendCQ: cq, UAR: b.uar, SRQ: q})
	require.NoError(t, err)
	require.Nil(t, p.RQ)
	s, err := p.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, q.Number(), s.SRQ)
	b.refused("", queues.ErrInUse, func() error { return q.Destroy(ctx) })
	require.NoError(t, p.Destroy(ctx))
	require.NoError(t, q.Destroy(ctx))
	b.refused("SRQ", vfio.ErrClosed, func() error {
		_, err := b.dev.CreateQP(ctx, queues.QPOptions{PD: b.pd, SendCQ: cq, UAR: b.uar, SRQ: q})
		return err
	})
}
