package mlxvfio_test

import (
	"fmt"
	"strings"
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
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The stages of a recording.
const (
	traceOpen   = "open"
	traceRecord = "record"
	traceClose  = "close"
)

// traceKind is a fault of the tracer, or of what it depends on.
type traceKind struct {
	name, arg string // of the model
	stages    []string
	other     func(f *vfio.Faulty)
	shows     string
	gone      bool
}

var traceKinds = []traceKind{
	{name: "trace-theft"}, {name: "trace-silent-theft"}, {name: "trace-busy", arg: "3"}, {name: "trace-busy"},
	{name: "trace-wrap", arg: "3"}, {name: "trace-torn"}, {name: "trace-unreliable"}, {name: "trace-clock-wrap", arg: "100000"},
	{name: "trace-strings", arg: "garbage"}, {name: "trace-strings", arg: "format"}, {name: "trace-strings", arg: "unterminated"},
	{name: "trace-strings-update"}, {name: "trace-pointer"}, {name: "trace-drop"}, {name: "trace-raw"}, {name: "trace-lost-event"},
	{name: "trace-mkey", arg: "refused"}, {name: "trace-no-memory"}, {name: "trace-version", arg: "1"}, {name: "trace-awkward"},
	{name: "status", arg: "ACCESS_REG=BAD_RES_STATE_ERR/0x55"}, {name: "delivery", arg: "ACCESS_REG=IN_LENGTH_ERR"},
	{name: "lost", arg: "ACCESS_REG#1"}, {name: "status", arg: "CREATE_MKEY=NO_RES_ERR", stages: []string{traceOpen}},
	{name: "lost-irq"}, {name: "fatal", arg: "now"}, {name: "all-ones", gone: true},
	{shows: "no memory for the ring", stages: []string{traceOpen}, other: func(f *vfio.Faulty) {
		f.Add(vfio.Fault{Verb: vfio.VerbMapDMA, Times: -1, Err: syscall.ENOMEM})
	}},
	{shows: "unplugged", gone: true, other: (*vfio.Faulty).Unplug},
}

var traceNames = faultdoc.Names{
	"ErrGone": vfio.ErrGone, "ErrNotSupported": vfio.ErrNotSupported, "ErrNoSpace": vfio.ErrNoSpace, "ErrDead": cmdif.ErrDead,
	"ErrBusy": tracer.ErrBusy, "ErrLost": tracer.ErrLost, "ErrReleased": tracer.ErrReleased,
}

// TestTracerFaultTable: what can go wrong with the tracer, and with the function it
// belongs to, before it is opened, while it is recorded, and before it is closed.
func TestTracerFaultTable(t *testing.T) {
	warmUp(t)
	stages := []string{traceOpen, traceRecord, traceClose}
	table := faultdoc.New("tracer", "TestTracerFaultTable", stages...)
	for _, k := range traceKinds {
		for _, stage := range stages {
			if len(k.stages) > 0 && k.stages[0] != stage {
				continue
			}
			name := k.name + k.shows
			row := table.Row(name, k.arg, stage)
			t.Run(name+k.arg+"/"+stage, func(t *testing.T) {
				base := drivertest.Now()
				synctest.Test(t, func(t *testing.T) { traceRow(t, &k, stage, row) })
				base.Check(t)
			})
		}
	}
	table.Check(t)
}

func traceRow(t *testing.T, k *traceKind, stage string, row *faultdoc.Row) {
	c := chip(t, "sim:cx5,load=2000")
	w := drivertest.Watch(c.Function(0))
	f := vfio.NewFaulty(w, nil)
	h, err := mlxvfio.Open(t.Context(), f, mlxvfio.Options{CommandTimeout: time.Second, Memory: vfio.MemoryHeap})
	require.NoError(t, err)
	raise := func(at string) {
		if at != stage {
			return
		}
		row.Raised()
		if k.other != nil {
			k.other(f)
			return
		}
		assert.NoError(t, c.SetFault(k.name, k.arg))
	}
	var saw []string
	raise(traceOpen)
	o := tracer.Options{OwnerPoll: 50 * time.Millisecond, Wait: time.Second, BufferSize: 16 << 10}
	if k.name == "trace-wrap" {
		o.BufferSize = 4 << 10 // it is written whole each time
	}
	if k.shows != "" { // a ring for which there is no room yet
		o.BufferSize = 16 << 20
	}
	tr, err := h.OpenTracer(t.Context(), o)
	if err != nil {
		assert.NotContains(t, err.Error(), "\n", "an error is one line")
		saw = append(saw, traceNames.Describe(err, "Error"))
	} else {
		saw = append(saw, recorded(t, tr, 1700*time.Millisecond, func() { raise(traceRecord) }, func() { raise(traceClose) })...)
		if err := tr.Close(t.Context()); err != nil {
			saw = append(saw, "Close: "+traceNames.Describe(err, "Error"))
		}
	}
	assert.NoError(t, c.ClearFault(""))
	f.Clear()
	f.Replug()
	err = h.Close(t.Context())
	if err != nil {
		saw = append(saw, "the function's Close: "+traceNames.Describe(err, "Error", "CloseError"))
	}
	row.Saw("%s", strings.Join(saw, "; "))
	drivertest.Balanced(t, h.Ledger())
	w.Check(t)
	if !k.gone {
		spotless(c, 0)(t)
	}

	h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{Memory: vfio.MemoryHeap})
	require.NoError(t, err, "the next open")
	tr, err = h.OpenTracer(t.Context(), tracer.Options{})
	if assert.NoError(t, err, "the next tracer") {
		assert.Equal(t, []string{"blocks whole"}, recorded(t, tr, 300*time.Millisecond, func() {}, func() {}))
		assert.NoError(t, tr.Close(t.Context()))
	}
	require.NoError(t, h.Close(t.Context()))
	row.Then("nothing left, the next recording is whole")
}

// recorded takes blocks for so long, or until the capture ends by itself, and says
// what was remarkable. half is called on the way, last before it is stopped.
func recorded(t *testing.T, tr *tracer.Capture, long time.Duration, half, last func()) []string {
	var p capture.Player
	blocks, updates, lost := 0, 0, 0
	// A device that says nothing more ends nothing: the clock does.
	stop := time.AfterFunc(long, func() { last(); tr.Stop() })
	begin := time.AfterFunc(200*time.Millisecond, half)
	defer stop.Stop()
	defer begin.Stop()
	err := p.Play(t.Context(), tr, func(r *capture.Record) error {
		switch r.Kind {
		case capture.KindBlock:
			blocks++
		case capture.KindStrings:
			updates++
		}
		return nil
	}, func(m *trace.Message) {
		if m.Lost {
			lost++
		}
	})
	assert.Positive(t, blocks)
	var out []string
	n := p.Counters()
	assert.NoError(t, n.Check(), "every event is accounted for")
	note := func(there bool, format string, args ...any) {
		if there {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	if end := p.End(); end != nil {
		note(end.Reason != capture.ReasonStopped, "ends: %v", end.Reason)
		note(end.Lost > 0, "missing blocks counted")
	}
	note(tr.Err() != nil, "%s", traceNames.Describe(tr.Err(), "Error"))
	note(err != nil && tr.Err() == nil, "%s", traceNames.Describe(err, "Error"))
	note(updates > 1, "new strings read")
	note(n.UnknownStrings > 0, "unknown strings counted")
	note(n.BadFormats > 0, "bad formats counted")
	note(n.UnreliableTimestamps > 0, "unreliable times counted")
	note(n.RawEvents > 0, "raw events kept")
	note(lost > 0, "loss by firmware marked")
	note(n.SkippedBlocks > 0, "blocks skipped")
	if len(out) == 0 {
		out = append(out, "blocks whole")
	}
	return out
}
