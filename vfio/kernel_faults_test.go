package vfio_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// machine is the fake kernel with the model as its hardware, and the stage that a
// driver on it is at.
type machine struct {
	*vfio.FakeMachine
	chip  *sim.Chip
	stage atomic.Value  // string: event loops make calls, too
	limit time.Duration // of a command
}

// The stages before and after the driver's own.
const (
	getting = "get the function"
	closing = "close"
)

func newMachine(t *testing.T, backend string) *machine {
	t.Helper()
	o, err := sim.Parse("sim:cx5")
	require.NoError(t, err)
	c, err := sim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return &machine{FakeMachine: vfio.NewFakeMachine(t, backend, func() vfio.Transport { return c.Function(0) }), chip: c, limit: 500 * time.Millisecond}
}

// now is the stage.
func (m *machine) now() string { return m.stage.Load().(string) }

// life is what a driver does from the first system call to the last one. up tells
// how far it came.
func (m *machine) life(t *testing.T) (up bool, err error) {
	m.stage.Store(getting)
	tr, err := m.Open()
	if err != nil {
		return false, err
	}
	w := drivertest.Watch(tr)
	h, err := mlxvfio.Open(t.Context(), w, mlxvfio.Options{
		CommandTimeout: m.limit, FirmwareTimeout: 2 * time.Second,
		BeforeStage: func(name string) error { m.stage.Store(name); return nil },
	})
	if err != nil {
		var se *mlxvfio.StageError
		require.ErrorAs(t, err, &se)
		drivertest.Balanced(t, se.Ledger)
		w.Check(t)
		return false, err
	}
	m.stage.Store(closing)
	err = h.Close(t.Context())
	drivertest.Balanced(t, h.Ledger())
	w.Check(t)
	return true, err
}

// place is a system call at a stage.
type place struct{ call, stage string }

// places are the system calls of a life, in their order, each once per stage.
func places(t *testing.T, backend string) (all []place) {
	m := newMachine(t, backend)
	m.Hook(func(name string) syscall.Errno {
		if p := (place{name, m.now()}); !slices.Contains(all, p) {
			all = append(all, p)
		}
		return 0
	})
	up, err := m.life(t)
	require.NoError(t, err)
	require.True(t, up)
	m.Clean(t)
	return all
}

var kernelNames = faultdoc.Names{
	"ErrGone": vfio.ErrGone, "ErrNoSpace": vfio.ErrNoSpace, "ErrClosed": vfio.ErrClosed, "ErrNotSupported": vfio.ErrNotSupported,
	"ErrRange": vfio.ErrRange, "ErrNotFound": vfio.ErrNotFound, "ErrExists": vfio.ErrExists, "ErrBusy": vfio.ErrBusy, "ErrNoIOMMU": vfio.ErrNoIOMMU, "ErrDead": cmdif.ErrDead,
}

var kernelErrnos = []struct {
	name  string
	errno syscall.Errno
	// everywhere: at each stage at which the call is made; the others at its first.
	everywhere bool
}{
	{"EIO", syscall.EIO, true}, {"ENOMEM", syscall.ENOMEM, false}, {"EPERM", syscall.EPERM, false}, {"EACCES", syscall.EACCES, false},
	{"EBUSY", syscall.EBUSY, false}, {"ENODEV", syscall.ENODEV, true},
}

// TestKernelFaultTable brings the driver up through the kernel backend, with the
// model behind a fake of the kernel's system call table, and has each call fail at
// each stage with each errno.
func TestKernelFaultTable(t *testing.T) {
	for backend, section := range map[string]string{
		vfio.BackendType1: "kernel VFIO", vfio.BackendIOMMUFD: "kernel VFIO, iommufd", vfio.BackendNoIOMMU: "kernel VFIO, no IOMMU",
	} {
		t.Run(backend, func(t *testing.T) { kernelTable(t, backend, section) })
	}
}

func kernelTable(t *testing.T, backend, section string) {
	all := places(t, backend)
	if backend != vfio.BackendType1 { // the calls that are its own
		known := places(t, vfio.BackendType1)
		all = slices.DeleteFunc(all, func(p place) bool {
			return slices.ContainsFunc(known, func(q place) bool { return q.call == p.call })
		})
	}
	stages := []string{getting}
	for _, s := range mlxvfio.Stages() {
		stages = append(stages, s.Name)
	}
	table := faultdoc.New(section, "TestKernelFaultTable", append(stages, closing)...)
	for i, p := range all {
		for _, e := range kernelErrnos {
			if !e.everywhere && slices.ContainsFunc(all[:i], func(q place) bool { return q.call == p.call }) {
				continue
			}
			row := table.Row(p.call+" fails", e.name, p.stage)
			t.Run(fmt.Sprintf("%s/%s/%s", p.call, p.stage, e.name), func(t *testing.T) {
				base := drivertest.Now()
				kernelRow(t, newMachine(t, backend), p, e.errno, row)
				base.Check(t)
			})
		}
	}
	for _, k := range kernelKinds(backend, all) {
		for _, stage := range k.stages {
			row := table.Row(k.name, k.variant, stage)
			t.Run(k.name+k.variant+"/"+stage, func(t *testing.T) {
				base := drivertest.Now()
				m := newMachine(t, backend)
				k.set(m, func() bool {
					here := m.now() == stage || stage == throughout
					if here {
						row.Raised()
					}
					return here
				})
				m.saw(t, row, k.errno)
				base.Check(t)
			})
		}
	}
	table.Check(t)
}

func kernelRow(t *testing.T, m *machine, p place, errno syscall.Errno, row *faultdoc.Row) {
	once := false
	m.Hook(func(name string) syscall.Errno {
		if once || name != p.call || m.now() != p.stage {
			return 0
		}
		once = true
		row.Raised()
		return errno
	})
	m.saw(t, row, errno)
}

// saw lives once with what was set up, and requires what holds of every row.
func (m *machine) saw(t *testing.T, row *faultdoc.Row, errno error) {
	up, err := m.life(t)
	switch {
	case err == nil:
		row.Saw("comes up, goes down")
	case up:
		row.Saw("comes up; Close: %s", describe(err, errno))
	default:
		row.Saw("%s", describe(err, errno))
	}
	if err != nil {
		require.ErrorIs(t, err, errno)
		require.NotContains(t, err.Error(), "\n", "an error is one line")
		require.True(t, advises(err), "no remedy: %v", err)
	}
	m.again(t)
	row.Then("nothing left, the next open works")
}

// again requires that nothing is left and that the function comes up and goes down
// once the fault is gone.
func (m *machine) again(t *testing.T) {
	t.Helper()
	m.Clean(t)
	m.Hook(nil)
	m.Short(nil)
	require.NoError(t, m.chip.ClearFault(""))
	up, err := m.life(t)
	require.NoError(t, err, "the next open")
	require.True(t, up)
	m.Clean(t)
	s := m.chip.State(0)
	require.Zero(t, s.Handles)
	require.Zero(t, s.Mappings)
	require.Zero(t, s.Vectors)
}

// describe names the injected errno as such, so that lines of several errnos can be
// one.
func describe(err, errno error) string {
	names := faultdoc.Names{}
	if _, ok := errno.(syscall.Errno); ok { //nolint:errorlint // what was injected
		names["the errno"] = errno
	}
	for k, v := range kernelNames {
		names[k] = v
	}
	return names.Describe(err, "Error", "StageError", "CloseError")
}

// advises tells whether an error of the tree has a remedy.
func advises(err error) bool {
	var ve *vfio.Error
	var se *mlxvfio.StageError
	var de *cmdif.DeadError // each of its texts ends in one
	var te *cmdif.TimeoutError
	switch {
	case errors.As(err, &ve) && ve.Remedy != "":
		return true
	case errors.As(err, &se) && se.Remedy != "":
		return true
	}
	return errors.As(err, &de) || errors.As(err, &te)
}
