package queues_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestErrorCompletions: each syndrome by a cause a user can have. The first WQE
// that fails is explained, those behind it are flushed and counted, memory the
// operation had no right to is untouched, and after a reset the queue pairs work.
func TestErrorCompletions(t *testing.T) {
	table := faultdoc.New("queues, completions in error", "TestErrorCompletions", "post")
	for _, c := range []struct {
		name string
		// post posts the failing WQE with wrid 7 on a.
		post func(l *link) error
		// want is the syndrome at the requester, recv at the responder's receive
		// (0: none completes).
		want, recv prm.CQESyndrome
		opts       queues.QPOptions
		conn       queues.ConnectOptions
		// peer is the state of b afterwards.
		peer prm.QPState
	}{
		{"local key unknown", func(l *link) error {
			return l.a.SQ.Write(7, 0, queues.SGE{Addr: 1, Len: 8, LKey: 0xbad00}, l.bkey.Remote(0))
		}, prm.CQESyndLocalProtErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"local range", func(l *link) error {
			return l.a.SQ.Write(7, 0, l.akey.SGE(linkHalf-4, 8), l.bkey.Remote(0))
		}, prm.CQESyndLocalProtErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"stale local key", func(l *link) error {
			return l.a.SQ.Write(7, 0, queues.SGE{Addr: l.akey.Start(), Len: 8, LKey: l.akey.Key() ^ 1}, l.bkey.Remote(0))
		}, prm.CQESyndLocalProtErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"local memory read-only", func(l *link) error {
			m := l.mkey(l.amem, 0)
			return l.a.SQ.Read(7, 0, m.SGE(0, 8), l.bkey.Remote(0))
		}, prm.CQESyndLocalProtErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"operation unknown", func(l *link) error {
			w := make([]byte, 16)
			w[3], w[7] = 0x3f, 1
			return l.a.SQ.Raw(7, w)
		}, prm.CQESyndLocalQPOpErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"remote key unknown", func(l *link) error {
			return l.a.SQ.Write(7, 0, l.akey.SGE(0, 8), queues.Remote{RKey: 0xbad00})
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"remote range", func(l *link) error {
			return l.a.SQ.Write(7, queues.NonAtomic, l.akey.SGE(0, 8), l.bkey.Remote(linkHalf-7))
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"no right to write", func(l *link) error {
			return l.a.SQ.Write(7, 0, l.akey.SGE(0, 8), l.mkey(l.bmem, queues.LocalWrite|queues.RemoteRead|queues.RemoteAtomic).Remote(0))
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"no right to read", func(l *link) error {
			return l.a.SQ.Read(7, 0, l.akey.SGE(0, 8), l.mkey(l.bmem, queues.AccessAll&^queues.RemoteRead).Remote(0))
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"no right to atomics", func(l *link) error {
			return l.a.SQ.FetchAdd(7, 0, l.akey.SGE(0, 8), l.mkey(l.bmem, queues.AccessAll&^queues.RemoteAtomic).Remote(0), 1)
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"another protection domain", func(l *link) error {
			return l.a.SQ.Write(7, 0, l.akey.SGE(0, 8), l.foreign().Remote(0))
		}, prm.CQESyndRemoteAccessErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"write with immediate, remote key unknown", func(l *link) error {
			return l.a.SQ.WriteImm(7, 0, 1, l.akey.SGE(0, 8), queues.Remote{RKey: 0xbad00})
		}, prm.CQESyndRemoteAccessErr, prm.CQESyndLocalAccessErr, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"reads not let in", func(l *link) error {
			return l.a.SQ.Read(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(0))
		}, prm.CQESyndRemoteInvalReqErr, 0, queues.QPOptions{Remote: queues.RemoteWrite}, queues.ConnectOptions{}, prm.QPStateErr},
		{"writes not let in", func(l *link) error {
			return l.a.SQ.Write(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(0))
		}, prm.CQESyndRemoteInvalReqErr, 0, queues.QPOptions{Remote: queues.RemoteRead}, queues.ConnectOptions{}, prm.QPStateErr},
		{"atomics not let in", func(l *link) error {
			return l.a.SQ.FetchAdd(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(0), 1)
		}, prm.CQESyndRemoteInvalReqErr, 0, queues.QPOptions{Remote: queues.RemoteWrite}, queues.ConnectOptions{}, prm.QPStateErr},
		{"atomic larger than atomic_mode", func(l *link) error {
			w := make([]uint64, 4)
			return l.a.SQ.MaskedFetchAddWide(7, 0, l.akey.SGE(0, 32), l.bkey.Remote(0), &queues.MaskedFAWide{Add: w, Boundary: w})
		}, prm.CQESyndRemoteInvalReqErr, 0, queues.QPOptions{AtomicMode: prm.AtomicModeUpTo16B}, queues.ConnectOptions{}, prm.QPStateErr},
		{"unaligned atomic", func(l *link) error {
			// The builder refuses it; the device must as well.
			require.ErrorIs(l.t, l.a.SQ.FetchAdd(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(4), 1), queues.ErrUnaligned)
			return l.a.SQ.Raw(7, rawFetchAdd(l.akey.SGE(0, 8), l.bkey.Remote(4)))
		}, prm.CQESyndRemoteInvalReqErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"receive too short", func(l *link) error {
			return l.a.SQ.Send(7, 0, l.akey.SGE(0, 65))
		}, prm.CQESyndRemoteInvalReqErr, prm.CQESyndLocalLengthErr, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"receive key unknown", func(l *link) error {
			require.NoError(l.t, l.b.Reset(l.t.Context()))
			require.NoError(l.t, l.a.Reset(l.t.Context()))
			require.NoError(l.t, queues.ConnectPair(l.t.Context(), l.a, l.b, queues.ConnectOptions{}))
			require.NoError(l.t, l.b.RQ.Post(100, queues.SGE{Addr: 1, Len: 64, LKey: 0xbad00}))
			l.b.RQ.Ring()
			return l.a.SQ.Send(7, 0, l.akey.SGE(0, 64))
		}, prm.CQESyndRemoteOpErr, prm.CQESyndLocalProtErr, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateErr},
		{"no receive posted", func(l *link) error {
			require.NoError(l.t, l.b.Reset(l.t.Context()))
			require.NoError(l.t, l.a.Reset(l.t.Context()))
			require.NoError(l.t, queues.ConnectPair(l.t.Context(), l.a, l.b, queues.ConnectOptions{RNRRetries: 2, MinRNR: 1}))
			return l.a.SQ.Send(7, 0, l.akey.SGE(0, 64))
		}, prm.CQESyndRNRRetryExcErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
		{"peer reset", func(l *link) error {
			require.NoError(l.t, l.b.Reset(l.t.Context()))
			return l.a.SQ.Write(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(0))
		}, prm.CQESyndTransportRetryExcErr, 0, queues.QPOptions{}, queues.ConnectOptions{AckTimeout: 1, Retries: 2}, prm.QPStateRst},
		{"peer answers wrongly", func(l *link) error {
			if l.chip == nil {
				l.t.Skip("a real function cannot be told to")
			}
			require.NoError(l.t, l.chip.SetFault("bad-response", ""))
			return l.a.SQ.Read(7, 0, l.akey.SGE(0, 8), l.bkey.Remote(0))
		}, prm.CQESyndBadRespErr, 0, queues.QPOptions{}, queues.ConnectOptions{}, prm.QPStateRts},
	} {
		row := table.Row(c.name, "", "post")
		t.Run(c.name, func(t *testing.T) {
			l := newLink(newBench(t, "sim:cx5"), c.opts, c.conn)
			ctx := t.Context()
			fill(l.amem, 0, 4096, 1)
			before := fill(l.bmem, 0, 4096, 99)
			require.NoError(t, l.b.RQ.Post(100, l.bkey.SGE(8192, 64)))
			l.b.RQ.Ring()
			require.NoError(t, c.post(l))
			row.Raised()
			require.NoError(t, l.a.SQ.Nop(8, 0))
			require.NoError(t, l.a.SQ.FetchAdd(9, queues.Signalled|queues.Fence, l.akey.SGE(64, 8), l.bkey.Remote(0), 1))
			l.a.SQ.Ring()

			x := l.next(l.acq)
			require.EqualValues(t, 7, x.WRID)
			require.Equal(t, c.want, x.Syndrome)
			require.NotZero(t, x.Vendor)
			for _, wrid := range []uint64{8, 9} {
				f := l.next(l.acq)
				require.Equal(t, wrid, f.WRID)
				require.True(t, f.Flushed())
				var fe *queues.CompletionError
				require.ErrorAs(t, l.acq.Err(&f), &fe)
				require.NotNil(t, fe.First)
				require.Equal(t, c.want, fe.First.Syndrome)
			}
			var ce *queues.CompletionError
			require.ErrorAs(t, l.acq.Err(&x), &ce)
			require.EqualValues(t, 7, ce.WRID)
			require.EqualValues(t, 2, ce.Flushed)
			require.NotEmpty(t, ce.WQE)
			require.NotContains(t, ce.Error(), "\n")
			require.ErrorIs(t, ce, &queues.CompletionError{Syndrome: c.want})

			receive := "stays posted"
			if c.recv != 0 {
				r := l.next(l.bcq)
				receive = r.Syndrome.String()
				require.EqualValues(t, 100, r.WRID)
				require.Equal(t, c.recv, r.Syndrome)
				require.True(t, r.Recv())
			} else if c.peer == prm.QPStateErr {
				r := l.next(l.bcq)
				receive = r.Syndrome.String()
				require.True(t, r.Flushed(), "the peer's receive is flushed: %+v", r)
			}
			l.quiet()
			require.True(t, bytes.Equal(before, at(l.bmem, 0, 4096)), "memory it had no right to")

			s, err := l.a.Query(ctx)
			require.NoError(t, err)
			require.Equal(t, prm.QPStateErr, s.State)
			s, err = l.b.Query(ctx)
			require.NoError(t, err)
			require.Equal(t, c.peer, s.State)
			row.Saw("%s, %d more flushed; peer's receive: %s; peer: %v", describe(ce), ce.Flushed, receive, s.State)

			// What is posted on a queue in error is flushed at once.
			require.NoError(t, l.a.SQ.Nop(10, queues.Signalled))
			l.a.SQ.Ring()
			f := l.next(l.acq)
			require.EqualValues(t, 10, f.WRID)
			require.True(t, f.Flushed())

			if l.chip != nil {
				require.NoError(t, l.chip.ClearFault(""))
			}
			require.NoError(t, l.a.Reset(ctx))
			require.NoError(t, l.b.Reset(ctx))
			require.NoError(t, queues.ConnectPair(ctx, l.a, l.b, queues.ConnectOptions{}))
			require.NoError(t, l.b.RQ.Post(200, l.bkey.SGE(0, 8)))
			l.b.RQ.Ring()
			require.NoError(t, l.a.SQ.SendInline(20, queues.Signalled, []byte("again")))
			l.a.SQ.Ring()
			l.good(l.acq, 20)
			l.good(l.bcq, 200)
			require.Equal(t, "again", string(at(l.bmem, 0, 5)))
			l.quiet()
			row.Then("memory untouched; after a reset both queue pairs work")
		})
	}
	if realFunction == nil { // the document is about the model
		table.Check(t)
	}
}

// rawFetchAdd is a fetch-and-add that no builder would make.
func rawFetchAdd(l queues.SGE, r queues.Remote) []byte {
	w := make([]byte, 64)
	prm.AsWQECtrlSeg(w).SetOpcode(prm.WQEAtomicFA)
	w[7] = 4
	ra := prm.AsWQERaddrSeg(w[16:])
	ra.SetRaddr(r.Addr)
	ra.SetRkey(r.RKey)
	w[39] = 1 // add
	d := prm.AsWQEDataSeg(w[48:])
	d.SetByteCount(l.Len)
	d.SetLkey(l.LKey)
	d.SetAddr(l.Addr)
	return w
}

// foreign is a key over b's memory in another protection domain.
func (l *link) foreign() *queues.MKey {
	pd, err := l.dev.AllocPD(l.t.Context())
	require.NoError(l.t, err)
	l.t.Cleanup(func() { require.NoError(l.t, pd.Free(ctxOf(l.t))) })
	m, err := l.dev.CreateMKey(l.t.Context(), queues.MKeyOptions{PD: pd, Buffer: l.bmem, Access: queues.AccessAll})
	require.NoError(l.t, err)
	l.t.Cleanup(func() { require.NoError(l.t, m.Destroy(ctxOf(l.t))) })
	return m
}

// A CQ that is overrun says so, in the next poll that finds nothing, by event and
// by query, and its queue pairs go to error.
func TestCQOverrun(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq := b.cq(2)
	q, err := b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", PD: b.pd, SendCQ: cq, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	for i := range 6 {
		require.NoError(t, q.SQ.Nop(uint64(i), queues.Signalled))
	}
	q.SQ.Ring()
	dst := make([]queues.Completion, 8)
	n, err := cq.Poll(dst)
	require.NoError(t, err)
	require.Equal(t, 4, n, "what was written before is good")
	_, err = b.ch.Completions(ctxOf(t), cq, dst)
	require.ErrorIs(t, err, queues.ErrCQOverrun)
	s, err := cq.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.CQStatusOverflow, s.Status)
	p, err := q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.QPStateErr, p.State)
	require.NoError(t, q.Destroy(ctx))

	// One that may be overrun is not lost by it.
	o, err := b.dev.CreateCQ(ctx, queues.CQOptions{Name: "lapped", LogSize: 2, EQ: b.ch.EQ(), UAR: b.uar, OverrunIgnore: true})
	require.NoError(t, err)
	q, err = b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", PD: b.pd, SendCQ: o, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	for i := range 30 {
		require.NoError(t, q.SQ.Nop(uint64(i), queues.Signalled))
	}
	q.SQ.Ring()
	s, err = o.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.CQStatusOK, s.Status)
	require.EqualValues(t, 30, s.Producer)
	require.NoError(t, q.Destroy(ctx))
	require.NoError(t, o.Destroy(ctx))
}

// A queue pair destroyed with work and completions outstanding takes both along:
// others on its CQ are not disturbed.
func TestDestroyWithWorkOutstanding(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq := b.cq(6)
	make2 := func() *queues.QP {
		q, err := b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", PD: b.pd, SendCQ: cq, UAR: b.uar})
		require.NoError(t, err)
		require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
		return q
	}
	x, y := make2(), make2()
	for i := range 5 {
		for _, q := range []*queues.QP{x, y} {
			require.NoError(t, q.SQ.Nop(uint64(i), queues.Signalled))
			q.SQ.Ring()
		}
	}
	require.NoError(t, x.RQ.Post(1))
	x.RQ.Ring()
	number := x.Number()
	require.NoError(t, x.Destroy(ctx))
	dst := make([]queues.Completion, 16)
	n, err := cq.Poll(dst)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	for i, c := range dst[:n] {
		require.Equal(t, y.Number(), c.QPN)
		require.EqualValues(t, i, c.WRID)
	}
	z := make2()
	require.NotEqual(t, number, y.Number())
	require.NoError(t, z.Destroy(ctx))
	require.NoError(t, y.Destroy(ctx))
}

// Drained receives: a queue pair in error gives every posted receive back.
func TestFlushOfReceives(t *testing.T) {
	l := newLink(newBench(t, "sim:cx5"), queues.QPOptions{}, queues.ConnectOptions{})
	for i := range 10 {
		require.NoError(t, l.b.RQ.Post(uint64(i), l.bkey.SGE(0, 64)))
	}
	l.b.RQ.Ring()
	require.NoError(t, l.b.ToErr(t.Context()))
	for i := range 10 {
		c := l.next(l.bcq)
		require.EqualValues(t, i, c.WRID)
		require.True(t, c.Flushed())
		require.True(t, c.Recv())
	}
	require.Equal(t, l.b.RQ.Size(), l.b.RQ.Free())
	l.quiet()
	require.NoError(t, l.b.RQ.Post(10, l.bkey.SGE(0, 64)))
	l.b.RQ.Ring()
	require.EqualValues(t, 10, l.next(l.bcq).WRID, "posted after the error: flushed too")
	var oe *queues.ObjectError
	require.ErrorAs(t, l.bcq.Destroy(t.Context()), &oe)
	require.ErrorIs(t, oe, queues.ErrInUse)
	require.NotErrorIs(t, oe, vfio.ErrClosed)
}

// WAIT and SEND_EN: a master starts a slave's WQEs, and waits for its completions.
func TestCrossChannel(t *testing.T) {
	b := newBench(t, "sim:cx5")
	if !b.dev.Caps.CrossChannel {
		b.refused("CrossMaster", vfio.ErrNotSupported, func() error {
			_, err := b.dev.CreateQP(t.Context(), queues.QPOptions{PD: b.pd, SendCQ: b.cq(3), UAR: b.uar, CrossMaster: true})
			return err
		})
		t.Skip("this profile has no cross-channel operations")
	}
	ctx := t.Context()
	mcq, scq := b.cq(4), b.cq(4)
	master, slave := b.qp(mcq, queues.QPOptions{CrossMaster: true}), b.qp(scq, queues.QPOptions{CrossSlave: true})
	require.NoError(t, master.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.NoError(t, slave.ConnectLoopback(ctx, queues.ConnectOptions{}))
	l := &link{bench: b, a: master, b: slave, acq: mcq, bcq: scq}
	require.NoError(t, slave.SQ.Nop(1, queues.Signalled))
	require.NoError(t, slave.SQ.Nop(2, queues.Signalled))
	slave.SQ.Ring()
	l.quiet()
	require.NoError(t, master.SQ.SendEnable(10, 0, slave.Number(), 1))
	require.NoError(t, master.SQ.Wait(11, 0, scq.Number(), 1))
	require.NoError(t, master.SQ.Nop(12, queues.Signalled))
	require.NoError(t, master.SQ.Wait(13, queues.Signalled, scq.Number(), 2))
	master.SQ.Ring()
	l.good(scq, 1)
	l.good(mcq, 12)
	l.quiet()
	third := b.qp(b.cq(3), queues.QPOptions{CrossMaster: true})
	require.NoError(t, third.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.NoError(t, third.SQ.SendEnable(20, 0, slave.Number(), uint32(slave.SQ.Index())))
	third.SQ.Ring()
	l.good(scq, 2)
	l.good(mcq, 13)
	l.quiet()
}
