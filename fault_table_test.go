package mlxvfio_test

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var errPlanned = errors.New("planned")

// commandLimit is the deadline of a command in the table; time is virtual.
const commandLimit = 2 * time.Second

// errorNames are the sentinels that the tables of this room name.
var errorNames = faultdoc.Names{
	"ErrGone": vfio.ErrGone, "ErrNoSpace": vfio.ErrNoSpace, "ErrClosed": vfio.ErrClosed, "ErrNotSupported": vfio.ErrNotSupported,
	"ErrRange": vfio.ErrRange, "ErrNotFound": vfio.ErrNotFound, "ErrDead": cmdif.ErrDead, "ErrQuarantined": cmdif.ErrQuarantined,
	"ErrNotOurs": cmdif.ErrNotOurs, "ErrSignature": cmdif.ErrSignature, "the caller's error": errPlanned,
}

// TestFaultTable: kinds × stages. Whatever goes wrong at whatever stage, the
// error has its type and advises something, the ledger is zero, no mapping,
// descriptor, interrupt or goroutine is left, the device never touches memory
// that was taken away, and the next open succeeds once the fault is gone.
func TestFaultTable(t *testing.T) {
	warmUp(t)
	all := stageNames()
	table := faultdoc.New("bring-up", "TestFaultTable", all...)
	for i := range faultKinds {
		k := &faultKinds[i]
		stages := k.stages
		if len(stages) == 0 {
			stages = all
		}
		for _, stage := range stages {
			row := table.Row(k.name, "", stage)
			t.Run(k.name+"/"+stage, func(t *testing.T) {
				base := drivertest.Now()
				synctest.Test(t, func(t *testing.T) { faultRow(t, k, stage, row) })
				base.Check(t)
			})
		}
	}
	table.Check(t)
}

// warmUp makes the runtime open what it keeps, before descriptors are counted: its
// poller comes with the first file that can be polled.
func warmUp(t *testing.T) {
	t.Helper()
	v, err := vfio.NewEventFDVector()
	require.NoError(t, err)
	require.NoError(t, v.Close())
	h, err := mlxvfio.Open(t.Context(), chip(t, "sim:cx5").Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	require.NoError(t, h.Close(t.Context()))
}

func stageNames() (names []string) {
	for _, s := range mlxvfio.Stages() {
		names = append(names, s.Name)
	}
	return names
}

func faultRow(t *testing.T, k *faultKind, stage string, row *faultdoc.Row) {
	c := chip(t, "sim:cx5")
	watched := drivertest.Watch(c.Function(0))
	faulty := vfio.NewFaulty(watched, nil)
	o := mlxvfio.Options{CommandTimeout: commandLimit, FirmwareTimeout: 5 * time.Second}
	if k.change != nil {
		k.change(&o)
		row.Raised() // an option is its own fault
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	raised := false
	o.BeforeStage = func(name string) (err error) {
		if name != stage || raised || k.raise == nil && !k.cancel { // once
			return nil
		}
		raised = true
		if k.raise != nil {
			if err = k.raise(c, faulty); err != nil && !errors.Is(err, errPlanned) {
				t.Errorf("raise the fault: %v", err)
			}
		}
		switch {
		case k.cancel && k.after > 0:
			time.AfterFunc(k.after, cancel)
		case k.cancel:
			cancel()
		}
		row.Raised()
		return err
	}
	h, err := mlxvfio.Open(ctx, faulty, o)
	var ledger mlxvfio.PageLedger
	if err == nil {
		met := "comes up, goes down"
		if faulty.Unmet() > 0 {
			met = "not met any more: comes up, goes down"
		}
		row.Saw("%s", met)
		if k.want != nil && !k.mayPass {
			t.Error("the bring-up succeeded")
		}
		// It came up although something is wrong; it must go down all the same.
		if cerr := h.Close(t.Context()); cerr != nil {
			as[*mlxvfio.CloseError](t, cerr)
			require.NotNil(t, k.want, "%v", cerr)
			k.want(t, cerr)
			row.Saw("comes up; Close: %s", errorNames.Describe(cerr, "Error", "CloseError"))
		}
		ledger = h.Ledger()
	} else {
		require.NotNil(t, k.want, "%v", err)
		var se *mlxvfio.StageError
		require.ErrorAs(t, err, &se)
		k.want(t, se.Err)
		require.Regexp(t, regexp.MustCompile(k.remedy), err.Error())
		require.NotContains(t, err.Error(), "\n", "an error is one line")
		ledger = se.Ledger
		row.Saw("%s", errorNames.Describe(se.Err, "Error"))
	}
	drivertest.Balanced(t, ledger)
	watched.Check(t)
	require.NoError(t, c.ClearFault(""))
	clean := spotless(c, 0)
	if k.gone {
		clean = held(c, 0)
	}
	clean(t)

	h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err, "the next open")
	require.NoError(t, h.Close(t.Context()))
	drivertest.Balanced(t, h.Ledger())
	clean(t)
	row.Then("%d pages left with firmware, nothing left on the host, the next open works", ledger.Outstanding)
}
