package queues_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func TestCQQuery(t *testing.T) {
	b := newBench(t, "sim:cx5")
	for _, log := range []uint8{1, 6, 7, 16, 20} {
		q, err := b.dev.CreateCQ(t.Context(), queues.CQOptions{Name: "test", LogSize: log, EQ: b.ch.EQ(), UAR: b.uar})
		require.NoError(t, err)
		s, err := q.Query(t.Context())
		require.NoError(t, err)
		require.NotZero(t, s.Record)
		require.Zero(t, s.Record%8)
		require.Equal(t, queues.CQState{
			Status: prm.CQStatusOK, State: prm.CQStateFired, EQN: uint32(b.ch.EQ().Number()), UAR: b.uar.Index(), LogSize: log, Record: s.Record,
		}, s)
		require.Equal(t, 1<<log, q.Entries())
		n, err := q.Poll(make([]queues.Completion, 4))
		require.NoError(t, err)
		require.Zero(t, n, "a new queue is empty")
		q.Arm(false)
		s, err = q.Query(t.Context())
		require.NoError(t, err)
		require.Equal(t, prm.CQStateArmed, s.State)
		q.Arm(true)
		s, err = q.Query(t.Context())
		require.NoError(t, err)
		require.Equal(t, prm.CQStateSolicitedArmed, s.State)
		require.NoError(t, q.Destroy(t.Context()))
	}
}

func TestCQRefused(t *testing.T) {
	b := newBench(t, "sim:cx5")
	other := newBench(t, "sim:cx5")
	ctx := t.Context()
	eq, err := b.dev.CreateEQ(ctx, queues.EQOptions{Name: "gone", LogSize: 7, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, eq.Destroy(ctx))
	uar, err := b.dev.AllocUAR(ctx)
	require.NoError(t, err)
	require.NoError(t, uar.Free(ctx))
	for _, c := range []struct {
		field    string
		sentinel error
		o        queues.CQOptions
	}{
		{"EQ", queues.ErrMissing, queues.CQOptions{UAR: b.uar}},
		{"EQ", queues.ErrForeign, queues.CQOptions{UAR: b.uar, EQ: other.ch.EQ()}},
		{"EQ", vfio.ErrClosed, queues.CQOptions{UAR: b.uar, EQ: eq}},
		{"UAR", queues.ErrMissing, queues.CQOptions{EQ: b.ch.EQ()}},
		{"UAR", queues.ErrForeign, queues.CQOptions{EQ: b.ch.EQ(), UAR: other.uar}},
		{"UAR", vfio.ErrClosed, queues.CQOptions{EQ: b.ch.EQ(), UAR: uar}},
		{"LogSize", vfio.ErrRange, queues.CQOptions{EQ: b.ch.EQ(), UAR: b.uar, LogSize: 23}},
		{"LogSize", vfio.ErrRange, queues.CQOptions{EQ: b.ch.EQ(), UAR: b.uar, LogSize: 255}},
	} {
		b.refused(c.field, c.sentinel, func() error {
			_, err := b.dev.CreateCQ(ctx, c.o)
			return err
		})
	}
	b.dev.Caps.LogMaxCQSize, b.dev.Caps.OverrunIgnore = 5, false
	b.refused("LogSize", vfio.ErrRange, func() error {
		_, err := b.dev.CreateCQ(ctx, queues.CQOptions{EQ: b.ch.EQ(), UAR: b.uar, LogSize: 6})
		return err
	})
	b.refused("OverrunIgnore", vfio.ErrNotSupported, func() error {
		_, err := b.dev.CreateCQ(ctx, queues.CQOptions{EQ: b.ch.EQ(), UAR: b.uar, LogSize: 5, OverrunIgnore: true})
		return err
	})
}

// A CQ in use is not destroyed, and one that is gone answers so.
func TestCQEnd(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	q, err := b.dev.CreateCQ(ctx, queues.CQOptions{Name: "mine", EQ: b.ch.EQ(), UAR: b.uar})
	require.NoError(t, err)
	p, err := b.dev.CreateQP(ctx, queues.QPOptions{PD: b.pd, SendCQ: q, UAR: b.uar})
	require.NoError(t, err)
	b.refused("", queues.ErrInUse, func() error { return q.Destroy(ctx) })
	require.NoError(t, p.Destroy(ctx))
	require.NoError(t, q.Destroy(ctx))
	b.refused("", vfio.ErrClosed, func() error { return q.Destroy(ctx) })
	b.refused("", vfio.ErrClosed, func() error { _, err := q.Query(ctx); return err })
	require.NoError(t, q.Release())
	_, err = q.Poll(make([]queues.Completion, 1))
	require.ErrorIs(t, err, vfio.ErrClosed)
	b.refused("SendCQ", vfio.ErrClosed, func() error {
		_, err := b.dev.CreateQP(ctx, queues.QPOptions{PD: b.pd, SendCQ: q, UAR: b.uar})
		return err
	})
}

// The device's word that a CQ is lost ends a wait for it.
func TestCQErrorWakesWaiter(t *testing.T) {
	for _, c := range []struct {
		why  prm.CQErrorSyndrome
		want error
	}{{prm.CQErrorOverrun, queues.ErrCQOverrun}, {prm.CQErrorAccessViolation, queues.ErrCQUnwritable}} {
		b := newBench(t, "sim:cx5")
		q := b.cq(4)
		got := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() {
			_, err := b.ch.Completions(ctx, q, make([]queues.Completion, 1))
			got <- err
		}()
		var e prm.EQE
		e.SetEventType(prm.EventCQError)
		e.EventData().CQError().SetCQN(q.Number())
		e.EventData().CQError().SetSyndrome(c.why)
		b.dev.HandleEvent(&e)
		require.ErrorIs(t, <-got, c.want)
		// Events of queues that do not exist are nobody's.
		e.EventData().CQError().SetCQN(0xabcdef)
		b.dev.HandleEvent(&e)
	}
}

// Waiting ends with the context, with or without an interrupt.
func TestEventChannelContext(t *testing.T) {
	b := newBench(t, "sim:cx5")
	bare, err := b.dev.NewEventChannel(t.Context(), queues.EventChannelOptions{Name: "bare", UAR: b.uar})
	require.NoError(t, err)
	for _, ch := range []*queues.EventChannel{b.ch, bare} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		_, err := ch.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
	}
	require.NoError(t, bare.Close(t.Context()))
	_, err = bare.Wait(t.Context())
	require.ErrorIs(t, err, vfio.ErrClosed)
	require.ErrorIs(t, bare.Close(t.Context()), vfio.ErrClosed)
	require.NoError(t, bare.Release())
	b.refused("UAR", queues.ErrMissing, func() error {
		_, err := b.dev.NewEventChannel(t.Context(), queues.EventChannelOptions{})
		return err
	})
}

// A device that was closed under its objects answers so; what they held is gone
// with it.
func TestClosedDevice(t *testing.T) {
	ctx := t.Context()
	c, err := sim.New(sim.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	h, err := mlxvfio.Open(ctx, c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	d := h.Queues()
	uar, err := d.AllocUAR(ctx)
	require.NoError(t, err)
	pd, err := d.AllocPD(ctx)
	require.NoError(t, err)
	buf, err := d.Space.Alloc(4096, vfio.BufferOptions{Name: "mine"})
	require.NoError(t, err)
	mkey, err := d.CreateMKey(ctx, queues.MKeyOptions{PD: pd, Buffer: buf})
	require.NoError(t, err)
	ch, err := d.NewEventChannel(ctx, queues.EventChannelOptions{UAR: uar})
	require.NoError(t, err)
	cq, err := d.CreateCQ(ctx, queues.CQOptions{Name: "my", EQ: ch.EQ(), UAR: uar})
	require.NoError(t, err)
	srq, err := d.CreateSRQ(ctx, queues.SRQOptions{Name: "my", PD: pd})
	require.NoError(t, err)
	qp, err := d.CreateQP(ctx, queues.QPOptions{Name: "my", PD: pd, SendCQ: cq, UAR: uar, SRQ: srq})
	require.NoError(t, err)

	err = h.Close(ctx)
	require.ErrorContains(t, err, "my CQ", "the close names what was left")
	require.ErrorContains(t, err, "queue pair my")
	require.ErrorContains(t, err, "shared receive queue my")

	for what, err := range map[string]error{
		"AllocPD":     func() error { _, err := d.AllocPD(ctx); return err }(),
		"AllocUAR":    func() error { _, err := d.AllocUAR(ctx); return err }(),
		"CreateMKey":  func() error { _, err := d.CreateMKey(ctx, queues.MKeyOptions{PD: pd, Buffer: buf}); return err }(),
		"QueryMKey":   func() error { _, err := mkey.Query(ctx); return err }(),
		"DestroyMKey": mkey.Destroy(ctx),
		"QueryCQ":     func() error { _, err := cq.Query(ctx); return err }(),
		"DestroyCQ":   cq.Destroy(ctx),
		"QuerySRQ":    func() error { _, err := srq.Query(ctx); return err }(),
		"SetLimit":    srq.SetLimit(ctx, 1),
		"QueryQP":     func() error { _, err := qp.Query(ctx); return err }(),
		"ToInit":      qp.ToInit(ctx, queues.InitAttr{}),
		"Reset":       qp.Reset(ctx),
		"DestroyQP":   qp.Destroy(ctx),
		"QueryPort":   func() error { _, err := d.QueryPort(ctx); return err }(),
		"FreeUAR":     uar.Free(ctx),
	} {
		switch what {
		case "AllocPD", "AllocUAR", "QueryPort":
			require.ErrorIs(t, err, cmdif.ErrClosed, what)
		default: // the close has ended the object
			require.ErrorIs(t, err, vfio.ErrClosed, what)
		}
	}
	for what, create := range map[string]func() error{
		"CreateCQ":  func() error { _, err := d.CreateCQ(ctx, queues.CQOptions{EQ: ch.EQ(), UAR: uar}); return err },
		"CreateSRQ": func() error { _, err := d.CreateSRQ(ctx, queues.SRQOptions{PD: pd}); return err },
		"CreateQP": func() error {
			_, err := d.CreateQP(ctx, queues.QPOptions{PD: pd, SendCQ: cq, UAR: uar})
			return err
		},
	} {
		require.ErrorIs(t, create(), vfio.ErrClosed, what)
	}
	one := queues.WorkRequest{Op: prm.WQERdmaRead, Local: queues.SGE{Len: 8}}
	for what, use := range map[string]func() error{
		"Nop":     func() error { return qp.SQ.Nop(1, 0) },
		"Post 1":  func() error { _, err := qp.SQ.Post([]queues.WorkRequest{one}); return err },
		"Post 2":  func() error { _, err := qp.SQ.Post([]queues.WorkRequest{one, one}); return err },
		"Post RQ": func() error { return qp.SRQ().Post(1) },
		"Poll 1":  func() error { _, err := cq.Poll(make([]queues.Completion, 1)); return err },
		"Poll 2":  func() error { _, err := cq.Poll(make([]queues.Completion, 2)); return err },
		"Wait":    func() error { _, err := ch.Completions(ctx, cq, make([]queues.Completion, 1)); return err },
	} {
		require.ErrorIs(t, use(), vfio.ErrClosed, what)
	}
	require.NotPanics(t, func() {
		qp.SQ.Ring()
		cq.Arm(false)
	})
	// What the objects held was freed by the close.
	require.NoError(t, qp.Release())
	require.NoError(t, cq.Release())
	require.NoError(t, srq.Release())
	mkey.Release()
	require.ErrorIs(t, pd.Free(ctx), vfio.ErrClosed)
	pd.Release()
	uar.Release()
}

// Waiting for completions allocates nothing, once the channel has seen its CQs.
func TestEventChannelAllocatesNothing(t *testing.T) {
	b := newBench(t, "sim:cx5")
	bare, err := b.dev.NewEventChannel(t.Context(), queues.EventChannelOptions{Name: "bare", UAR: b.uar})
	require.NoError(t, err)
	cq, err := b.dev.CreateCQ(t.Context(), queues.CQOptions{Name: "bare", EQ: bare.EQ(), UAR: b.uar})
	require.NoError(t, err)
	q, err := b.dev.CreateQP(t.Context(), queues.QPOptions{PD: b.pd, SendCQ: cq, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(t.Context(), queues.ConnectOptions{}))
	// A lost event must not take the minute of ctxOf.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var c [1]queues.Completion
	round := func() {
		if t.Failed() {
			return // after the first failure there is nothing left to count
		}
		cq.Arm(false)
		if err := q.SQ.Nop(1, queues.Signalled); err != nil {
			t.Error(err)
		}
		q.SQ.Ring()
		if fired, err := bare.Wait(ctx); err != nil || len(fired) != 1 || fired[0] != cq {
			t.Error(fired, err)
		}
		if n, err := cq.Poll(c[:]); n != 1 || err != nil {
			t.Error(n, err)
		}
	}
	round()
	require.Zero(t, testing.AllocsPerRun(200, round))
	require.Zero(t, bare.Stray())
	require.NoError(t, q.Destroy(ctx))
	require.NoError(t, cq.Destroy(ctx))
	require.NoError(t, bare.Close(ctx))
}
