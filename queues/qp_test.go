package queues_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A queue pair is what was asked for, as the device itself says, through all
// states up to RTS.
func TestQPQuery(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	send, recv := b.cq(4), b.cq(5)
	q, err := b.dev.CreateQP(ctx, queues.QPOptions{
		Name: "test", PD: b.pd, SendCQ: send, RecvCQ: recv, UAR: b.uar, LogSQ: 7, LogRQ: 5, RecvSGEs: 3, PSN: 0x123456,
	})
	require.NoError(t, err)
	s, err := q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.QPStateRst, s.State)
	require.Equal(t, prm.QPTypeRC, s.Type)
	require.Equal(t, b.pd.Number(), s.PD)
	require.Equal(t, send.Number(), s.SendCQ)
	require.Equal(t, recv.Number(), s.RecvCQ)
	require.Equal(t, b.uar.Index(), s.UAR)
	require.EqualValues(t, 7, s.LogSQ)
	require.EqualValues(t, 5, s.LogRQ)
	require.Equal(t, 64, s.RecvStride, "three pieces and the one that ends the list")
	require.Equal(t, 128, q.SQ.Size())
	require.Equal(t, 32, q.RQ.Size())
	require.Equal(t, 4, q.RQ.MaxSGE())
	require.Equal(t, q.Number(), q.SQ.QPN())
	require.True(t, s.AtomicWrites)
	require.Equal(t, prm.AtomicModeUpTo256B, s.AtomicMode)
	require.Equal(t, prm.PMStateMigrated, s.Context.PmState())

	require.NoError(t, q.ToInit(ctx, queues.InitAttr{PKeyIndex: 3}))
	s, err = q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.QPStateInit, s.State)
	require.Equal(t, queues.RemoteAll, s.Remote)
	require.EqualValues(t, 3, s.PKeyIndex)
	require.EqualValues(t, 8, s.Context.LogAckReqFreq())
	require.True(t, s.AtomicWrites)
	require.Equal(t, prm.AtomicModeUpTo256B, s.AtomicMode)

	path := queues.Path{LID: 17, SL: 2, PathBits: 1, GRH: true, GID: queues.GID{0: 0xfe, 15: 9}, SGIDIndex: 1, HopLimit: 7, TClass: 5, FlowLabel: 0x12345, StatRate: 7}
	require.NoError(t, q.ToRTR(ctx, queues.RTRAttr{RemoteQPN: 0xabcdef, RecvPSN: 0x654321, MTU: 2048, LogReadsIn: 2, MinRNR: 9, Path: path}))
	s, err = q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.QPStateRtr, s.State)
	require.EqualValues(t, 0xabcdef, s.RemoteQPN)
	require.EqualValues(t, 0x654321, s.RecvPSN)
	require.Equal(t, 2048, s.MTU)
	require.EqualValues(t, 30, s.LogMessage)
	require.EqualValues(t, 2, s.LogReadsIn)
	require.EqualValues(t, 9, s.MinRNR)
	require.Equal(t, path, s.Path)

	require.NoError(t, q.ToRTS(ctx, queues.RTSAttr{SendPSN: q.PSN(), LogReads: 3, Retries: 5, RNRRetries: 6, AckTimeout: 11}))
	s, err = q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, prm.QPStateRts, s.State)
	require.EqualValues(t, 0x123456, s.SendPSN)
	require.EqualValues(t, []uint8{3, 5, 6, 11}, []uint8{s.LogReads, s.Retries, s.RNRRetries, s.AckTimeout})
	require.True(t, s.AtomicWrites)

	require.NoError(t, q.Change(ctx, prm.OpRts2RtsQP, queues.Change{Remote: queues.RemoteRead, MinRNR: 4},
		prm.OptParamRRE|prm.OptParamRAE|prm.OptParamRNRTimeout))
	s, err = q.Query(ctx)
	require.NoError(t, err)
	require.Equal(t, queues.RemoteRead|queues.RemoteWrite, s.Remote, "RWE was not selected")
	require.EqualValues(t, 4, s.MinRNR)

	require.NoError(t, q.ToErr(ctx))
	require.NoError(t, q.ToErr(ctx), "ERR stays ERR")
	require.NoError(t, q.Reset(ctx))
	require.NoError(t, q.Reset(ctx))
	require.NoError(t, q.Destroy(ctx))
	b.refused("", vfio.ErrClosed, func() error { return q.Destroy(ctx) })
	b.refused("", vfio.ErrClosed, func() error { _, err := q.Query(ctx); return err })
	b.refused("", vfio.ErrClosed, func() error { return q.ToErr(ctx) })
	b.refused("", vfio.ErrClosed, func() error { _, err := q.Local(ctx); return err })
	require.NoError(t, q.Release())
	require.ErrorIs(t, q.SQ.Nop(1, queues.Signalled), vfio.ErrClosed)
	require.ErrorIs(t, q.RQ.Post(1), vfio.ErrClosed)
}

// The atomic mode follows Linux's rule; what the caller may choose is bounded by
// it.
func TestAtomicMode(t *testing.T) {
	for _, c := range []struct {
		ops, sizes uint16
		want       prm.AtomicMode
	}{
		{0, 0x1fc, prm.AtomicModeNone},
		{3, 8, prm.AtomicModeIBSpec},
		{3, 0x1fc, prm.AtomicModeIBSpec},
		{1, 8, prm.AtomicModeNone},
		{7, 8, prm.AtomicModeIBSpec},
		{0xf, 4, prm.AtomicModeUpTo8B},
		{0xf, 8, prm.AtomicModeUpTo8B},
		{0xf, 0xc, prm.AtomicModeUpTo8B},
		{0xf, 0x3c, prm.AtomicModeUpTo32B},
		{0xf, 0x1fc, prm.AtomicModeUpTo256B},
		{0xf, 0xff80, prm.AtomicModeUpTo256B},
		{0xc, 0x10, prm.AtomicModeUpTo16B},
	} {
		caps := queues.Caps{AtomicOperations: c.ops, AtomicSizes: c.sizes}
		require.Equal(t, c.want, caps.AtomicMode(), "%+v", c)
	}
	for m, size := range []int{0, 8, 8, 8, 16, 32, 64, 128, 256, 0} {
		require.Equal(t, size, queues.AtomicModeSize(prm.AtomicMode(m)))
	}

	for words, want := range map[string]prm.AtomicMode{"sim:cx5": prm.AtomicModeUpTo256B, "sim:cx4": prm.AtomicModeUpTo32B} {
		b := newBench(t, words)
		cq := b.cq(4)
		q := b.qp(cq, queues.QPOptions{})
		s, err := q.Query(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, s.AtomicMode, words)
		require.True(t, s.AtomicWrites)
		q = b.qp(cq, queues.QPOptions{AtomicMode: prm.AtomicModeUpTo8B})
		require.Equal(t, prm.AtomicModeUpTo8B, q.AtomicMode())
	}
}

// Writes are atomic only where writes and atomics are let in, and can be left
// alone.
func TestAtomicWritesOff(t *testing.T) {
	b := newBench(t, "sim:cx5")
	cq := b.cq(4)
	for name, o := range map[string]queues.QPOptions{
		"asked not to":      {NoAtomicWrites: true},
		"no remote rights":  {Remote: queues.RemoteNone},
		"no remote writes":  {Remote: queues.RemoteAtomic},
		"no remote atomics": {Remote: queues.RemoteRead | queues.RemoteWrite},
		"datagrams":         {Type: queues.UD},
	} {
		q := b.qp(cq, o)
		require.False(t, q.AtomicWrites(), name)
		s, err := q.Query(t.Context())
		require.NoError(t, err)
		require.False(t, s.AtomicWrites, name)
		p, err := q.Local(t.Context())
		require.NoError(t, err)
		require.False(t, p.AtomicWrites, name)
	}
}

func TestQPRefused(t *testing.T) {
	b := newBench(t, "sim:cx4")
	other := newBench(t, "sim:cx5")
	cq := b.cq(4)
	srq, err := b.dev.CreateSRQ(t.Context(), queues.SRQOptions{PD: b.pd})
	require.NoError(t, err)
	defer func() { require.NoError(t, srq.Destroy(ctxOf(t))) }()
	for _, c := range []struct {
		field    string
		sentinel error
		change   func(*queues.QPOptions)
	}{
		{"PD", queues.ErrMissing, func(o *queues.QPOptions) { o.PD = nil }},
		{"PD", queues.ErrForeign, func(o *queues.QPOptions) { o.PD = other.pd }},
		{"SendCQ", queues.ErrMissing, func(o *queues.QPOptions) { o.SendCQ = nil }},
		{"SendCQ", queues.ErrForeign, func(o *queues.QPOptions) { o.SendCQ = other.cq(3) }},
		{"RecvCQ", queues.ErrForeign, func(o *queues.QPOptions) { o.RecvCQ = other.cq(3) }},
		{"UAR", queues.ErrMissing, func(o *queues.QPOptions) { o.UAR = nil }},
		{"UAR", queues.ErrForeign, func(o *queues.QPOptions) { o.UAR = other.uar }},
		{"Type", vfio.ErrNotSupported, func(o *queues.QPOptions) { o.Type = 2 }},
		{"LogSQ", vfio.ErrRange, func(o *queues.QPOptions) { o.LogSQ = 16 }},
		{"LogRQ", vfio.ErrRange, func(o *queues.QPOptions) { o.LogRQ = 16 }},
		{"RecvSGEs", vfio.ErrRange, func(o *queues.QPOptions) { o.RecvSGEs = 65 }},
		{"RecvSGEs", vfio.ErrRange, func(o *queues.QPOptions) { o.RecvSGEs = -1 }},
		{"NoRecv", vfio.ErrRange, func(o *queues.QPOptions) { o.NoRecv, o.SRQ = true, srq }},
		{"PSN", vfio.ErrRange, func(o *queues.QPOptions) { o.PSN = 1 << 24 }},
		{"Remote", vfio.ErrRange, func(o *queues.QPOptions) { o.Remote = queues.LocalWrite }},
		{"AtomicMode", vfio.ErrNotSupported, func(o *queues.QPOptions) { o.AtomicMode = prm.AtomicModeUpTo64B }},
		{"AtomicMode", vfio.ErrNotSupported, func(o *queues.QPOptions) {
			o.AtomicMode, o.Remote = prm.AtomicModeUpTo8B, queues.RemoteRead
		}},
	} {
		o := queues.QPOptions{PD: b.pd, SendCQ: cq, UAR: b.uar}
		c.change(&o)
		b.refused(c.field, c.sentinel, func() error {
			_, err := b.dev.CreateQP(t.Context(), o)
			return err
		})
	}
	// What a refused creation took it has given back.
	require.NoError(t, func() error {
		q, err := b.dev.CreateQP(t.Context(), queues.QPOptions{PD: b.pd, SendCQ: cq, UAR: b.uar})
		if err != nil {
			return err
		}
		return q.Destroy(t.Context())
	}())
}

// Attributes that no context could hold are refused before they are sent.
func TestQPAttributesRefused(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq := b.cq(4)
	q := b.qp(cq, queues.QPOptions{})
	ud := b.qp(cq, queues.QPOptions{Type: queues.UD})
	good := queues.RTRAttr{MTU: 1024}
	for _, c := range []struct {
		field  string
		change func(*queues.RTRAttr)
	}{
		{"MTU", func(a *queues.RTRAttr) { a.MTU = 1000 }},
		{"MTU", func(a *queues.RTRAttr) { a.MTU = 8192 }},
		{"RemoteQPN", func(a *queues.RTRAttr) { a.RemoteQPN = 1 << 24 }},
		{"RecvPSN", func(a *queues.RTRAttr) { a.RecvPSN = 1 << 24 }},
		{"LogMaxMessage", func(a *queues.RTRAttr) { a.LogMaxMessage = 31 }},
		{"LogReadsIn", func(a *queues.RTRAttr) { a.LogReadsIn = 8 }},
		{"MinRNR", func(a *queues.RTRAttr) { a.MinRNR = 32 }},
		{"Path.PathBits", func(a *queues.RTRAttr) { a.Path.PathBits = 128 }},
		{"Path.SL", func(a *queues.RTRAttr) { a.Path.SL = 16 }},
		{"Path.StatRate", func(a *queues.RTRAttr) { a.Path.StatRate = 16 }},
		{"Path.FlowLabel", func(a *queues.RTRAttr) { a.Path.FlowLabel = 1 << 20 }},
	} {
		a := good
		c.change(&a)
		b.refused(c.field, vfio.ErrRange, func() error { return q.ToRTR(ctx, a) })
	}
	for field, a := range map[string]queues.RTSAttr{
		"SendPSN": {SendPSN: 1 << 24}, "LogReads": {LogReads: 9}, "Retries": {RNRRetries: 8}, "AckTimeout": {AckTimeout: 32},
	} {
		b.refused(field, vfio.ErrRange, func() error { return q.ToRTS(ctx, a) })
	}
	b.refused("QKey", vfio.ErrNotSupported, func() error { return q.ToInit(ctx, queues.InitAttr{QKey: 1}) })
	b.refused("", vfio.ErrNotSupported, func() error { return q.ToSQD(ctx) })
	b.refused("", vfio.ErrNotSupported, func() error { return q.Change(ctx, prm.Op2ErrQP, queues.Change{}, 0) })
	b.refused("Remote", vfio.ErrRange, func() error {
		return q.Change(ctx, prm.OpRts2RtsQP, queues.Change{Remote: queues.LocalWrite}, prm.OptParamRRE)
	})
	b.refused("Remote", vfio.ErrNotSupported, func() error {
		return ud.Change(ctx, prm.OpRts2RtsQP, queues.Change{Remote: queues.RemoteAtomic}, prm.OptParamRAE)
	})
	b.refused("", vfio.ErrNotSupported, func() error { return ud.Connect(ctx, queues.PeerInfo{IB: true}, queues.ConnectOptions{}) })
	b.refused("", vfio.ErrNotSupported, func() error { return q.Activate(ctx, 1) })
	b.refused("peer", vfio.ErrNotSupported, func() error { return q.Connect(ctx, queues.PeerInfo{IB: false}, queues.ConnectOptions{}) })
	b.refused("peer.MaxAtomicSize", vfio.ErrRange, func() error {
		return q.Connect(ctx, queues.PeerInfo{IB: true, MaxAtomicSize: 24}, queues.ConnectOptions{})
	})
	b.refused("Reads", vfio.ErrRange, func() error {
		return q.Connect(ctx, queues.PeerInfo{IB: true}, queues.ConnectOptions{Reads: -1})
	})
	b.refused("Retries", vfio.ErrRange, func() error {
		return q.Connect(ctx, queues.PeerInfo{IB: true}, queues.ConnectOptions{Retries: 8})
	})
}

// The rings of a queue pair lie one behind the other, whatever their sizes.
func TestQPSizes(t *testing.T) {
	b := newBench(t, "sim:cx5")
	cq := b.cq(4)
	for _, o := range []queues.QPOptions{
		{LogSQ: 1, LogRQ: 1, RecvSGEs: 1}, {LogSQ: 15, LogRQ: 15, RecvSGEs: 1}, {LogSQ: 15, LogRQ: 11, RecvSGEs: 32},
		{LogSQ: 1, LogRQ: 13, RecvSGEs: 16}, {NoRecv: true}, {Type: queues.UD, LogSQ: 3},
	} {
		q := b.qp(cq, o)
		s, err := q.Query(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1<<s.LogSQ, q.SQ.Size())
		if o.NoRecv {
			require.Nil(t, q.RQ)
			continue
		}
		require.Equal(t, 1<<s.LogRQ, q.RQ.Size())
		require.GreaterOrEqual(t, s.RecvStride<<s.LogRQ, 64, "the send queue begins at a multiple of 64")
		require.GreaterOrEqual(t, q.RQ.MaxSGE(), o.RecvSGEs)
	}
}
