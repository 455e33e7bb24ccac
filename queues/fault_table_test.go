package queues_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var queueNames = faultdoc.Names{
	"ErrGone": vfio.ErrGone, "ErrNoSpace": vfio.ErrNoSpace, "ErrClosed": vfio.ErrClosed, "ErrInUse": vfio.ErrInUse, "ErrNotFound": vfio.ErrNotFound,
	"ErrDead": cmdif.ErrDead, "ErrQuarantined": cmdif.ErrQuarantined, "ErrNotOurs": cmdif.ErrNotOurs, "ErrCQOverrun": queues.ErrCQOverrun, "ErrCQUnwritable": queues.ErrCQUnwritable,
	"ErrMissing": queues.ErrMissing, "ErrForeign": queues.ErrForeign, "ErrQueueFull": queues.ErrQueueFull,
}

// describe names an error as the fault tables do.
func describe(err error) string { return queueNames.Describe(err, "Error", "ObjectError") }

// queueLife is a function with a queue pair that is connected to itself, made and
// used and taken apart step by step.
type queueLife struct {
	t    *testing.T
	chip *sim.Chip
	f    *vfio.Faulty
	h    *mlxvfio.HCA
	uar  *queues.UAR
	pd   *queues.PD
	ch   *queues.EventChannel
	cq   *queues.CQ
	buf  *vfio.Buffer
	key  *queues.MKey
	q    *queues.QP
}

// queueSteps are the stages. Each does its part and answers what it met.
var queueSteps = []struct {
	name string
	do   func(l *queueLife, ctx context.Context) error
}{
	{"create", func(l *queueLife, ctx context.Context) (err error) {
		l.q, err = l.h.Queues().CreateQP(ctx, queues.QPOptions{Name: "life", PD: l.pd, SendCQ: l.cq, UAR: l.uar})
		return err
	}},
	{"modify", func(l *queueLife, ctx context.Context) error {
		return l.q.ConnectLoopback(ctx, queues.ConnectOptions{AckTimeout: 8, Retries: 5, RNRRetries: 3, MinRNR: 1})
	}},
	{"post", func(l *queueLife, ctx context.Context) error {
		for i := range uint64(2) {
			if err := errors.Join(l.q.SQ.Write(2*i, queues.NonAtomic|queues.Signalled, l.key.SGE(0, 256), l.key.Remote(2048)),
				l.q.SQ.Read(2*i+1, queues.Signalled, l.key.SGE(512, 256), l.key.Remote(2048))); err != nil {
				return err
			}
		}
		l.q.SQ.Ring()
		return nil
	}},
	{"poll", func(l *queueLife, ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		var cs [8]queues.Completion
		for done := 0; done < 4; {
			n, err := l.ch.Completions(ctx, l.cq, cs[:])
			if err != nil {
				return err
			}
			for i := range cs[:n] {
				if err := l.cq.Err(&cs[i]); err != nil {
					return err // the first one explains the rest
				}
			}
			done += n
		}
		return nil
	}},
	{"modify again", func(l *queueLife, ctx context.Context) error { return l.q.Reset(ctx) }},
	{"destroy", func(l *queueLife, ctx context.Context) error { return l.destroy(ctx) }},
}

// destroy ends the objects from the top; what fails is met again at the next call.
func (l *queueLife) destroy(ctx context.Context) error {
	var errs []error
	end := func(there bool, f func(context.Context) error, forget func()) {
		if !there || len(errs) > 0 {
			return
		}
		if err := f(ctx); err != nil && !errors.Is(err, vfio.ErrClosed) {
			errs = append(errs, err)
			return
		}
		forget()
	}
	end(l.q != nil, func(ctx context.Context) error { return l.q.Destroy(ctx) }, func() { l.q = nil })
	end(l.cq != nil, func(ctx context.Context) error { return l.cq.Destroy(ctx) }, func() { l.cq = nil })
	end(l.key != nil, func(ctx context.Context) error { return l.key.Destroy(ctx) }, func() { l.key = nil })
	end(l.ch != nil, func(ctx context.Context) error { return l.ch.Close(ctx) }, func() { l.ch = nil })
	end(l.pd != nil, func(ctx context.Context) error { return l.pd.Free(ctx) }, func() { l.pd = nil })
	end(l.uar != nil, func(ctx context.Context) error { return l.uar.Free(ctx) }, func() { l.uar = nil })
	return errors.Join(errs...)
}

func newQueueLife(t *testing.T, c *sim.Chip, f *vfio.Faulty) *queueLife {
	ctx := t.Context()
	l := &queueLife{t: t, chip: c, f: f}
	var err error
	l.h, err = mlxvfio.Open(ctx, f, mlxvfio.Options{CommandTimeout: 2 * time.Second, CompletionVectors: 1})
	require.NoError(t, err)
	d := l.h.Queues()
	l.uar, err = d.AllocUAR(ctx)
	require.NoError(t, err)
	l.pd, err = d.AllocPD(ctx)
	require.NoError(t, err)
	first, vs := l.h.CompletionVectors()
	l.ch, err = d.NewEventChannel(ctx, queues.EventChannelOptions{UAR: l.uar, Vector: vs[0], Index: uint16(first)})
	require.NoError(t, err)
	l.cq, err = d.CreateCQ(ctx, queues.CQOptions{Name: "life", LogSize: 4, EQ: l.ch.EQ(), UAR: l.uar})
	require.NoError(t, err)
	l.buf, err = d.Space.Alloc(4096, vfio.BufferOptions{Name: "life"})
	require.NoError(t, err)
	l.key, err = d.CreateMKey(ctx, queues.MKeyOptions{PD: l.pd, Buffer: l.buf, Access: queues.AccessAll})
	require.NoError(t, err)
	return l
}

// TestQueueFaultTable: faults of the device, the wire and the transport at each step
// in the life of a queue pair. Whatever fails, the caller can take everything apart
// once the fault is over, or Close does, and the function opens again.
func TestQueueFaultTable(t *testing.T) {
	v, err := vfio.NewEventFDVector() // the runtime's poller comes with the first one
	require.NoError(t, err)
	require.NoError(t, v.Close())
	var stages []string
	for _, s := range queueSteps {
		stages = append(stages, s.name)
	}
	table := faultdoc.New("queues", "TestQueueFaultTable", stages...)
	for _, k := range queueKinds() {
		for _, stage := range stages {
			if len(k.stages) > 0 && !slices.Contains(k.stages, stage) {
				continue
			}
			row := table.Row(k.name, k.variant, stage)
			t.Run(k.name+k.variant+"/"+stage, func(t *testing.T) {
				base := drivertest.Now()
				synctest.Test(t, func(t *testing.T) { queueRow(t, &k, stage, row) })
				base.Check(t)
			})
		}
	}
	table.Check(t)
}

func queueRow(t *testing.T, k *queueKind, stage string, row *faultdoc.Row) {
	o, err := sim.Parse("sim:cx5")
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	w := drivertest.Watch(c.Function(0))
	l := newQueueLife(t, c, vfio.NewFaulty(w, nil))

	// The stages in their order until one fails. A fault may show later than it
	// is raised: a doorbell has no answer.
	saw := "works"
	for _, s := range queueSteps {
		if s.name == stage {
			require.NoError(t, k.raise(l))
			row.Raised()
		}
		ctx := t.Context()
		if k.limit > 0 && s.name == stage {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			time.AfterFunc(k.limit, cancel)
			defer cancel()
		}
		if err := s.do(l, ctx); err != nil {
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
			saw = describe(err)
			if s.name != stage {
				saw = s.name + ": " + saw
			}
			if k.want != nil && s.name != "poll" { // a poll asks nobody; its caller's time ends
				assert.ErrorIs(t, err, k.want)
			}
			break
		}
	}
	if k.want != nil {
		assert.NotEqual(t, "works", saw)
	}
	require.NoError(t, c.ClearFault(""))
	l.f.Clear()
	row.Saw("%s; %s", saw, l.end(row))

	drivertest.Balanced(t, l.h.Ledger())
	w.Check(t)
	if !k.gone {
		require.Zero(t, c.Counters(0).DMAFaults, "the device touched memory that was taken away")
	}
	again := newQueueLife(t, c, vfio.NewFaulty(c.Function(0), nil))
	for _, s := range queueSteps {
		require.NoError(t, s.do(again, t.Context()), "the next life: %s", s.name)
	}
	require.NoError(t, again.buf.Free())
	require.NoError(t, again.h.Close(t.Context()))
}

// end takes apart what is left, and says how.
func (l *queueLife) end(row *faultdoc.Row) string {
	t := l.t
	how := "destroyed"
	if err := l.destroy(t.Context()); err != nil {
		how = "left to Close"
	}
	if err := l.buf.Free(); err != nil {
		l.h.Queues().Orphan(l.buf)
	}
	err := l.h.Close(t.Context())
	var le *mlxvfio.LeftError
	switch {
	case errors.As(err, &le):
	case err != nil:
		how += fmt.Sprintf(", Close: %s", queueNames.Describe(err, "Error", "CloseError", "ObjectError"))
	}
	assert.Zero(t, l.h.Stats().DMA.LiveBuffers, "memory is left")
	row.Then("nothing left, the next open and the next queue pair work")
	return how
}

// queueKind is a fault and where it is raised.
type queueKind struct {
	name, variant string
	raise         func(l *queueLife) error
	stages        []string
	want          error
	gone          bool          // the device cannot be made to forget its memory
	limit         time.Duration // the caller gives up that long after the stage began
}

func queueKinds() (kinds []queueKind) {
	set := func(pairs ...string) func(*queueLife) error {
		return func(l *queueLife) error {
			for i := 0; i < len(pairs); i += 2 {
				if err := l.chip.SetFault(pairs[i], pairs[i+1]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	commands := []struct{ stage, cmd string }{
		{"create", "CREATE_QP"}, {"create", "QUERY_QP"}, {"modify", "RST2INIT_QP"}, {"modify", "INIT2RTR_QP"}, {"modify", "RTR2RTS_QP"},
		{"modify again", "2RST_QP"}, {"destroy", "DESTROY_QP"}, {"destroy", "DESTROY_CQ"}, {"destroy", "DESTROY_MKEY"}, {"destroy", "DESTROY_EQ"},
		{"destroy", "DEALLOC_PD"}, {"destroy", "DEALLOC_UAR"},
	}
	for _, x := range []struct{ name, fault, arg string }{
		{"refused", "status", "=BAD_SYS_STATE_ERR/0x77"}, {"not delivered", "delivery", "=IN_LENGTH_ERR"},
		{"never completes", "lost", ""}, {"completes too late", "late", "=5s"}, {"answer of another command", "token", ""},
	} {
		for _, c := range commands {
			kinds = append(kinds, queueKind{name: x.name, variant: c.cmd, stages: []string{c.stage}, raise: set(x.fault, c.cmd+x.arg)})
		}
	}
	for _, c := range commands {
		kinds = append(kinds, queueKind{name: "cancelled while it runs", variant: c.cmd, stages: []string{c.stage}, limit: 100 * time.Millisecond, raise: set("late", c.cmd+"=500ms")})
	}
	verb := func(x vfio.Fault) func(*queueLife) error {
		return func(l *queueLife) error { l.f.Add(x); return nil }
	}
	onBAR := func(c vfio.Call) bool { return c.Index == vfio.RegionBAR0 }
	post := []string{"post"}
	return append(kinds,
		queueKind{name: "all ones", raise: set("all-ones", ""), gone: true, want: vfio.ErrGone},
		queueKind{name: "unplugged", raise: func(l *queueLife) error { l.f.Unplug(); return nil }, gone: true, want: vfio.ErrGone},
		queueKind{name: "fatal error of firmware", raise: set("fatal", "now"), want: cmdif.ErrDead},
		queueKind{name: "reset behind the driver's back", raise: func(l *queueLife) error {
			l.chip.ResetFunction(0)
			return nil
		}},
		queueKind{name: "a write of BAR0 fails", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Err: syscall.EIO, Match: onBAR})},
		queueKind{name: "a write of BAR0 is lost", raise: verb(vfio.Fault{Verb: vfio.VerbWrite, Drop: true, Match: onBAR})},
		queueKind{name: "every interrupt is lost", raise: set("lost-irq", "")},
		queueKind{name: "the first packet is lost", stages: post, raise: set("packet-drop", "#1")},
		queueKind{name: "the first answer is lost", stages: post, raise: set("packet-drop", "response#1")},
		queueKind{name: "one packet in three is lost", stages: post, raise: set("packet-loss", "3")},
		queueKind{name: "every request is lost", stages: post, raise: set("packet-drop", "request")},
		queueKind{name: "every answer is lost", stages: post, raise: set("packet-drop", "response")},
		queueKind{name: "packets arrive twice", stages: post, raise: set("packet-duplicate", "")},
		queueKind{name: "packets are late", stages: post, raise: set("packet-delay", "100us")},
		queueKind{name: "packets are later than the retry timer", stages: post, raise: set("packet-delay", "50ms")},
		queueKind{name: "bad responses", stages: post, raise: set("bad-response", "")},
	)
}
