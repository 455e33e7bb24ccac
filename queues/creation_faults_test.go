package queues_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// creations make every kind of object from what a bench has; the function they
// return destroys it. commands are what they send, in order.
var creations = []struct {
	name     string
	commands []string
	make     func(ctx context.Context, b *bench, cq *queues.CQ, buf *vfio.Buffer) (func(context.Context) error, error)
}{
	{"PD", []string{"ALLOC_PD"}, func(ctx context.Context, b *bench, _ *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		p, err := b.dev.AllocPD(ctx)
		if err != nil {
			return nil, err
		}
		return p.Free, nil
	}},
	{"MKey", []string{"CREATE_MKEY"}, func(ctx context.Context, b *bench, _ *queues.CQ, buf *vfio.Buffer) (func(context.Context) error, error) {
		m, err := b.dev.CreateMKey(ctx, queues.MKeyOptions{PD: b.pd, Buffer: buf})
		if err != nil {
			return nil, err
		}
		return m.Destroy, nil
	}},
	{"CQ", []string{"CREATE_CQ"}, func(ctx context.Context, b *bench, _ *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		q, err := b.dev.CreateCQ(ctx, queues.CQOptions{Name: "test", EQ: b.ch.EQ(), UAR: b.uar})
		if err != nil {
			return nil, err
		}
		return q.Destroy, nil
	}},
	{"RMP", []string{"CREATE_RMP"}, func(ctx context.Context, b *bench, _ *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		q, err := b.dev.CreateSRQ(ctx, queues.SRQOptions{Name: "test", PD: b.pd})
		if err != nil {
			return nil, err
		}
		return q.Destroy, nil
	}},
	{"event channel", []string{"CREATE_EQ"}, func(ctx context.Context, b *bench, _ *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		c, err := b.dev.NewEventChannel(ctx, queues.EventChannelOptions{UAR: b.uar})
		if err != nil {
			return nil, err
		}
		return c.Close, nil
	}},
	{"RC QP", []string{"CREATE_QP", "QUERY_QP"}, func(ctx context.Context, b *bench, cq *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		q, err := b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", PD: b.pd, SendCQ: cq, UAR: b.uar})
		if err != nil {
			return nil, err
		}
		return q.Destroy, nil
	}},
	{"UD QP", []string{"CREATE_QP", "QUERY_QP"}, func(ctx context.Context, b *bench, cq *queues.CQ, _ *vfio.Buffer) (func(context.Context) error, error) {
		q, err := b.dev.CreateQP(ctx, queues.QPOptions{Name: "test", Type: queues.UD, PD: b.pd, SendCQ: cq, UAR: b.uar})
		if err != nil {
			return nil, err
		}
		return q.Destroy, nil
	}},
}

// TestCreationFaults: every kind of object, and what keeps its creation from ending
// well.
func TestCreationFaults(t *testing.T) {
	table := faultdoc.New("queues, creation", "TestCreationFaults", "create")
	t.Run("Refused", func(t *testing.T) { creationRefused(t, table) })
	t.Run("WithoutMemory", func(t *testing.T) { creationWithoutMemory(t, table) })
	t.Run("Unanswered", func(t *testing.T) { creationUnanswered(t, table) })
	table.Check(t)
}

// A creation that is refused or not delivered at any of its steps leaves nothing
// behind, and works once the fault is gone.
func creationRefused(t *testing.T, table *faultdoc.Table) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq, buf := b.cq(4), b.buffer(4096)
	for _, c := range creations {
		for _, cmd := range c.commands {
			for _, f := range []struct {
				name, fault, arg string
				check            func(error)
			}{
				{"refused", "status", cmd + "=NO_RES_ERR/0x77", func(err error) {
					require.ErrorIs(t, err, cmdif.Status(prm.StatusNoRes))
					require.ErrorContains(t, err, "syndrome 0x77")
				}},
				{"not delivered", "delivery", cmd + "=IN_LENGTH_ERR", func(err error) {
					var de *cmdif.DeliveryError
					require.ErrorAs(t, err, &de)
				}},
			} {
				row := table.Row(f.name, c.name+" ("+cmd+")", "create")
				t.Run(c.name+"/"+cmd+"/"+f.fault, func(t *testing.T) {
					before := b.dev.Space.Stats()
					require.NoError(t, b.chip.SetFault(f.fault, f.arg))
					row.Raised()
					_, err := c.make(ctx, b, cq, buf)
					f.check(err)
					row.Saw("%s; nothing is held, works the next time", describe(err))
					require.NoError(t, b.chip.ClearFault(""))
					now := b.dev.Space.Stats()
					require.Equal(t, before.LiveBuffers, now.LiveBuffers)
					require.Equal(t, before.LiveBytes, now.LiveBytes)
					destroy, err := c.make(ctx, b, cq, buf)
					require.NoError(t, err)
					require.NoError(t, destroy(ctx))
					require.Equal(t, before.LiveBytes, b.dev.Space.Stats().LiveBytes)
				})
			}
		}
	}
	// The common objects have no users left over: the cleanups destroy them.
}

// Without memory nothing is created and nothing is held.
func creationWithoutMemory(t *testing.T, table *faultdoc.Table) {
	c, err := sim.New(sim.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	f := vfio.NewFaulty(c.Function(0), nil)
	b := &bench{t: t, chip: c}
	b.openOn(f, 0, mlxvfio.Options{})
	cq := b.cq(4)
	f.Add(vfio.Fault{Verb: vfio.VerbMapDMA, Times: -1, Err: syscall.ENOMEM})
	// Whatever is mapped already is used up first.
	var hogs []*vfio.Buffer
	for size := 1 << 21; size >= 64; size /= 2 {
		for {
			h, err := b.dev.Space.Alloc(size, vfio.BufferOptions{Name: "hog"})
			if err != nil {
				require.ErrorIs(t, err, syscall.ENOMEM)
				break
			}
			hogs = append(hogs, h)
		}
	}
	before, sent := b.dev.Space.Stats().LiveBytes, b.commands()
	for _, k := range creations {
		if k.name == "PD" || k.name == "MKey" {
			continue
		}
		row := table.Row("no memory", k.name, "create")
		_, err := k.make(t.Context(), b, cq, nil)
		row.Raised()
		row.Saw("%s; no command was sent", describe(err))
		require.ErrorIs(t, err, syscall.ENOMEM, k.name)
		require.Equal(t, before, b.dev.Space.Stats().LiveBytes, k.name)
	}
	require.Equal(t, sent, b.commands())
	// Room for the ring but not for its doorbell record.
	last := len(hogs) - 1
	for hogs[last].Size() < 4096 {
		last--
	}
	room := hogs[last].Size()
	require.NoError(t, hogs[last].Free())
	hogs = append(hogs[:last], hogs[last+1:]...)
	if room > 4096 {
		h, err := b.dev.Space.Alloc(room-4096, vfio.BufferOptions{Name: "hog"})
		require.NoError(t, err)
		hogs = append(hogs, h)
	}
	before = b.dev.Space.Stats().LiveBytes
	_, err = b.dev.CreateCQ(t.Context(), queues.CQOptions{Name: "test", LogSize: 6, EQ: b.ch.EQ(), UAR: b.uar})
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.Equal(t, before, b.dev.Space.Stats().LiveBytes)
	for _, h := range hogs {
		require.NoError(t, h.Free())
	}
}

// A creation without an answer keeps its memory, which the device may know of,
// until the close has reset the function; then nothing is left.
func creationUnanswered(t *testing.T, table *faultdoc.Table) {
	for _, k := range creations {
		for _, cmd := range k.commands {
			for _, cancelled := range []bool{false, true} {
				what := "never completes"
				if cancelled {
					what = "never completes, cancelled"
				}
				row := table.Row(what, k.name+" ("+cmd+")", "create")
				t.Run(k.name+"/"+cmd+"/"+what, func(t *testing.T) {
					ctx := t.Context()
					c, err := sim.New(sim.Options{})
					require.NoError(t, err)
					defer func() { require.NoError(t, c.Close()) }()
					w := drivertest.Watch(c.Function(0))
					h, err := mlxvfio.Open(ctx, w, mlxvfio.Options{CommandTimeout: 300 * time.Millisecond})
					require.NoError(t, err)
					b := &bench{t: t, chip: c, hca: h, dev: h.Queues()}
					b.uar, err = b.dev.AllocUAR(ctx)
					require.NoError(t, err)
					b.pd, err = b.dev.AllocPD(ctx)
					require.NoError(t, err)
					b.ch, err = b.dev.NewEventChannel(ctx, queues.EventChannelOptions{Name: "mine", UAR: b.uar})
					require.NoError(t, err)
					cq, err := b.dev.CreateCQ(ctx, queues.CQOptions{Name: "mine", EQ: b.ch.EQ(), UAR: b.uar})
					require.NoError(t, err)
					buf, err := b.dev.Space.Alloc(4096, vfio.BufferOptions{})
					require.NoError(t, err)
					before := b.dev.Space.Stats().LiveBytes

					require.NoError(t, c.SetFault("lost", cmd))
					cctx, cancel := context.WithCancel(ctx)
					if cancelled {
						time.AfterFunc(20*time.Millisecond, cancel)
					}
					_, err = k.make(cctx, b, cq, buf)
					cancel()
					require.True(t, cmdif.Unanswered(err), "%v", err)
					row.Raised()
					if cmd != "QUERY_QP" && k.name != "PD" && k.name != "MKey" {
						require.Greater(t, b.dev.Space.Stats().LiveBytes, before, "the device may write there")
					}
					require.NoError(t, c.ClearFault(""))

					require.NoError(t, cq.Destroy(ctx))
					require.NoError(t, b.ch.Close(ctx))
					if free := buf.Free(); k.name == "MKey" {
						require.ErrorIs(t, free, queues.ErrInUse, "the key may exist")
						b.dev.Orphan(buf)
					} else {
						require.NoError(t, free)
					}
					require.NoError(t, b.pd.Free(ctx), "the failed creation does not use it any more")
					require.NoError(t, b.uar.Free(ctx))
					resets := c.Counters(0).Resets
					require.NoError(t, h.Close(ctx), "nothing of the failed creation is left")
					// One is the close of the transport.
					require.Equal(t, resets+2, c.Counters(0).Resets, "a command was never completed")
					require.Zero(t, h.Stats().DMA.LiveBuffers)
					w.Check(t)
					require.Zero(t, c.Counters(0).DMAFaults)
					row.Saw("%s; memory is kept until Close has reset the function", describe(err))
				})
			}
		}
	}
}

// A queue pair that can be neither finished nor destroyed is not handed out; its
// memory stays until the device is reset, and the objects it used are free.
func TestCreationAbandoned(t *testing.T) {
	for _, fault := range [][2]string{{"lost", "DESTROY_QP"}, {"status", "DESTROY_QP=INT_ERR"}} {
		ctx := t.Context()
		c, err := sim.New(sim.Options{})
		require.NoError(t, err)
		w := drivertest.Watch(c.Function(0))
		h, err := mlxvfio.Open(ctx, w, mlxvfio.Options{CommandTimeout: 300 * time.Millisecond})
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
		before := d.Space.Stats().LiveBytes

		require.NoError(t, c.SetFault("status", "QUERY_QP=INT_ERR"))
		require.NoError(t, c.SetFault(fault[0], fault[1]))
		_, err = d.CreateQP(ctx, queues.QPOptions{Name: "test", PD: pd, SendCQ: cq, UAR: uar})
		require.ErrorIs(t, err, cmdif.Status(prm.StatusInternal))
		require.ErrorContains(t, err, "destroy the queue pair test")
		require.Greater(t, d.Space.Stats().LiveBytes, before, "the device has the queue pair still")
		require.NoError(t, c.ClearFault(""))

		// The driver lets its CQ go; firmware does not, as long as the queue pair is.
		err = cq.Destroy(ctx)
		require.ErrorIs(t, err, cmdif.Status(prm.StatusResBusy))
		err = h.Close(ctx)
		require.ErrorContains(t, err, "mine CQ", "the CQ was left to the close")
		require.NotContains(t, err.Error(), "test QP", "what was abandoned is accounted for")
		w.Check(t)
		require.Zero(t, c.Counters(0).DMAFaults)
		require.NoError(t, c.Close())
	}
}
