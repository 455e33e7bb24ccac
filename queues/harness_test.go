package queues_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// bench is a function of the model, brought up, with the objects most tests need.
type bench struct {
	t    testing.TB
	chip *sim.Chip // nil: a real function
	hca  *mlxvfio.HCA
	dev  *queues.Dev
	uar  *queues.UAR
	pd   *queues.PD
	ch   *queues.EventChannel
}

// realFunction, if set, opens a real function, which newBench then takes instead of
// a model (hw_test.go).
var realFunction func(t testing.TB) vfio.Transport

// newBench opens a model. At the end of the test everything is destroyed in the
// right order; what a test makes and leaves is reported by the close.
func newBench(t testing.TB, words string) *bench {
	t.Helper()
	o := mlxvfio.Options{CompletionVectors: 1}
	if realFunction != nil { // which may take only some kinds of memory
		b := &bench{t: t}
		b.openOn(realFunction(t), 0, o)
		return b
	}
	o.Memory = vfio.MemoryHeap // the race detector sees no other
	return openBench(t, words, o)
}

func openBench(t testing.TB, words string, o mlxvfio.Options) *bench {
	t.Helper()
	so, err := sim.Parse(words)
	require.NoError(t, err)
	c, err := sim.New(so)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := &bench{t: t, chip: c}
	b.open(0, o)
	return b
}

func (b *bench) open(i int, o mlxvfio.Options) {
	b.t.Helper()
	b.openOn(b.chip.Function(i), i, o)
}

// openOn opens function i of the model over a transport.
func (b *bench) openOn(tr vfio.Transport, i int, o mlxvfio.Options) {
	t := b.t
	t.Helper()
	w := drivertest.Watch(tr)
	h, err := mlxvfio.Open(ctxOf(t), w, o)
	require.NoError(t, err)
	b.hca, b.dev = h, h.Queues()
	t.Cleanup(func() {
		require.NoError(t, h.Close(ctxOf(t)), "every object was destroyed")
		drivertest.Balanced(t, h.Ledger())
		w.Check(t)
		if b.chip != nil {
			n := b.chip.Counters(i)
			require.Zero(t, n.DMAFaults, "the device touched memory that was taken away")
		}
	})
	b.uar, err = b.dev.AllocUAR(ctxOf(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.uar.Free(ctxOf(t))) })
	b.pd, err = b.dev.AllocPD(ctxOf(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.pd.Free(ctxOf(t))) })
	co := queues.EventChannelOptions{UAR: b.uar}
	if first, vs := h.CompletionVectors(); len(vs) > 0 {
		co.Vector, co.Index = vs[0], uint16(first)
	}
	b.ch, err = b.dev.NewEventChannel(ctxOf(t), co)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.ch.Close(ctxOf(t))) })
}

// ctxOf is a context for one step of a test; it outlives t.Context in cleanups.
func ctxOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// buffer gives memory until the end of the test.
func (b *bench) buffer(size int) *vfio.Buffer {
	b.t.Helper()
	buf, err := b.dev.Space.Alloc(size, vfio.BufferOptions{Name: "test"})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, buf.Free()) })
	return buf
}

// mkey makes a key over a buffer until the end of the test.
func (b *bench) mkey(buf *vfio.Buffer, a queues.Access) *queues.MKey {
	b.t.Helper()
	m, err := b.dev.CreateMKey(ctxOf(b.t), queues.MKeyOptions{PD: b.pd, Buffer: buf, Access: a})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, m.Destroy(ctxOf(b.t))) })
	return m
}

// cq makes a CQ until the end of the test.
func (b *bench) cq(log uint8) *queues.CQ {
	b.t.Helper()
	q, err := b.dev.CreateCQ(ctxOf(b.t), queues.CQOptions{Name: "test", LogSize: log, EQ: b.ch.EQ(), UAR: b.uar})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, q.Destroy(ctxOf(b.t))) })
	return q
}

// qp makes a queue pair until the end of the test, RC unless o says otherwise.
func (b *bench) qp(cq *queues.CQ, o queues.QPOptions) *queues.QP {
	b.t.Helper()
	o.Name, o.PD, o.SendCQ, o.UAR = "test", b.pd, cq, b.uar
	q, err := b.dev.CreateQP(ctxOf(b.t), o)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, q.Destroy(ctxOf(b.t))) })
	return q
}
