package pci_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

const (
	noIOMMUParam = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
	noIOMMUMark  = "run/mlxvfio/noiommu.json"
	off, on      = "N\n", "Y\n"
)

// bare is a machine without IOMMU, and the options that accept that.
func bare(t testing.TB) (*pcitest.Tree, pci.Options) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Driver: "mlx5_core"})
	return tr, unsafe(tr)
}

func unsafe(tr *pcitest.Tree) pci.Options {
	o := tr.Options()
	o.UnsafeNoIOMMU = true
	return o
}

// nothingLeft requires a machine as it was: the host's driver, the switch off,
// no made-up group, an empty journal folder.
func nothingLeft(t *testing.T, tr *pcitest.Tree, what string) {
	t.Helper()
	require.Equal(t, onHost, tr.State(port), what)
	require.Equal(t, off, tr.Read(noIOMMUParam), what)
	groups, err := os.ReadDir(tr.Path("sys/kernel/iommu_groups"))
	require.NoError(t, err)
	require.Empty(t, groups, what)
	entries, err := os.ReadDir(tr.Path("run/mlxvfio"))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	require.Empty(t, entries, what)
}

// isOn requires the state of a machine with functions in no-IOMMU mode that we
// turned on.
func isOn(t *testing.T, tr *pcitest.Tree, what string) {
	t.Helper()
	require.Equal(t, on, tr.Read(noIOMMUParam), what)
	require.FileExists(t, tr.Path(noIOMMUMark), what)
}

// The switch is on from the probe to the unbind: the kernel asks for it at each
// open.
func TestBindNoIOMMU(t *testing.T) {
	tr, o := bare(t)
	var seen []string
	o.FS.(*pcitest.Kernel).Before = func(path, _ string) error {
		seen = append(seen, path[strings.LastIndex(path, "/")+1:]+" "+strings.TrimSpace(tr.Read(noIOMMUParam)))
		return nil
	}
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, []string{"write journal", "set driver_override", "unbind from mlx5_core", "mark no-IOMMU mode", "turn no-IOMMU mode on", "probe drivers"}, steps(r))
	require.Equal(t, []string{"driver_override N", "unbind N", "enable_unsafe_noiommu_mode N", "drivers_probe Y"}, seen)
	require.Equal(t, onVFIO, tr.State(port))
	isOn(t, tr, "bound")
	require.NoFileExists(t, tr.Path("run/mlxvfio/.noiommu.lock"))
	require.Equal(t, "/dev/vfio/noiommu-900", r.VFIONode)
	require.Len(t, r.Overrode, 1)
	require.Contains(t, r.Overrode[0], "no IOMMU")
	require.Len(t, r.Warnings, 1)
	for _, word := range []string{"no IOMMU guards " + port, "overwrites this machine's memory", "tainted", "until unbind"} {
		require.Contains(t, r.Warnings[0], word)
	}
	d, err := pci.Diagnose(bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, []pci.FindingID{pci.NoIOMMUMode}, ids(d))
	require.Equal(t, pci.BackendNoIOMMU, d.Way.Backend)

	r, err = pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.True(t, r.Already)
	require.Empty(t, r.Steps)

	seen = nil
	r, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, []string{"clear driver_override", "unbind from vfio-pci", "turn no-IOMMU mode off", "remove mark of no-IOMMU mode", "probe drivers", "remove journal"}, steps(r))
	require.Equal(t, []string{"driver_override Y", "unbind Y", "enable_unsafe_noiommu_mode Y", "drivers_probe N"}, seen)
	nothingLeft(t, tr, "unbind")
}

// The last function in that mode turns it off, in whatever order they go.
func TestNoIOMMUSeveral(t *testing.T) {
	const second = "0000:3c:00.0"
	for _, order := range [][]string{{port, second}, {second, port}} {
		tr, _ := bare(t)
		tr.Add(pcitest.Spec{BDF: second, Driver: "mlx5_core"})
		for _, b := range []string{port, second} {
			_, err := run("bind", unsafe(tr), bdf(t, b))
			require.NoError(t, err)
		}
		r, err := run("unbind", tr.Options(), bdf(t, order[0]))
		require.NoError(t, err)
		require.Contains(t, strings.Join(r.Notes, " "), "no-IOMMU mode stays on: "+order[1]+" needs it")
		isOn(t, tr, "one is left")
		_, err = run("unbind", tr.Options(), bdf(t, order[1]))
		require.NoError(t, err)
		nothingLeft(t, tr, "both went")
	}
}

// Somebody turned the mode off under a bound function: nobody can open it, the
// doctor says so, and a bind turns it on again.
func TestNoIOMMUTurnedOffSince(t *testing.T) {
	tr, o := bare(t)
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	for _, marked := range []bool{true, false} {
		tr.Write(noIOMMUParam, off)
		if !marked {
			tr.Remove(noIOMMUMark)
		}
		d, err := pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		require.Equal(t, pci.NoIOMMUOff, d.Findings[0].ID)
		_, err = run("bind", tr.Options(), bdf(t, port)) // without the word nothing happens
		require.NoError(t, err)
		require.Equal(t, off, tr.Read(noIOMMUParam))
		r, err := run("bind", o, bdf(t, port))
		require.NoError(t, err)
		require.False(t, r.Already)
		require.Len(t, r.Warnings, 1)
		isOn(t, tr, "bound again")
		d, err = pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		require.True(t, d.Ready())
	}
	_, err = run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	nothingLeft(t, tr, "unbind")
}

// Another one at the switch is waited for: two that go at once must not each
// leave it to the other.
func TestNoIOMMUWaitsForTheSwitch(t *testing.T) {
	tr, o := bare(t)
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	lock, err := pci.OS{}.Lock(tr.Path("run/mlxvfio/.noiommu.lock"))
	require.NoError(t, err)
	freed := make(chan error, 1)
	time.AfterFunc(50*time.Millisecond, func() { freed <- lock.Close() })
	_, err = run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	require.NoError(t, <-freed)
	nothingLeft(t, tr, "unbind")
}

// A third driver has the function by now and keeps it; the mode goes.
func TestNoIOMMUThirdDriver(t *testing.T) {
	tr, o := bare(t)
	tr.Driver("thirdparty")
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	k := pcitest.OpenKernel(tr.Root)
	for _, w := range [][2]string{{"drivers/vfio-pci/unbind", port}, {"devices/" + port + "/driver_override", "thirdparty"}, {"drivers/thirdparty/bind", port}} {
		require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/"+w[0]), []byte(w[1])))
	}
	_, err = run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	require.Equal(t, pcitest.State{Driver: "thirdparty", Override: "thirdparty"}, tr.State(port))
	require.Equal(t, off, tr.Read(noIOMMUParam))
	require.NoFileExists(t, tr.Path(noIOMMUMark))
}

// stuck is a machine whose switch of no-IOMMU mode cannot be turned off any more.
type stuck struct{ pci.FS }

func (s stuck) WriteAttr(name string, data []byte) error {
	if strings.HasSuffix(name, noIOMMUParam) && string(data) == "N" {
		return &fs.PathError{Op: "write", Path: name, Err: syscall.EPERM}
	}
	return s.FS.WriteAttr(name, data)
}

// A switch that stays on is told, and does not keep the function from its driver;
// the mark stays for the next unbind.
func TestNoIOMMUStaysOn(t *testing.T) {
	tr, o := bare(t)
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	bad := tr.Options()
	bad.FS = stuck{bad.FS}
	r, err := run("unbind", bad, bdf(t, port))
	remedyOf(t, err, pci.ErrPermission)
	require.ErrorContains(t, err, "turn no-IOMMU mode off")
	require.Equal(t, "mlx5_core", r.Driver)
	require.Equal(t, onHost, tr.State(port))
	isOn(t, tr, "stuck")
	_, err = run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	nothingLeft(t, tr, "unbind again")
}

// Somebody else took the function away: the next unbind finds that nobody needs
// the mode.
func TestNoIOMMUTakenAway(t *testing.T) {
	tr, o := bare(t)
	_, err := run("bind", o, bdf(t, port))
	require.NoError(t, err)
	k := pcitest.OpenKernel(tr.Root)
	require.NoError(t, k.WriteAttr(tr.Path(pcitest.Device(port)+"/driver_override"), []byte("\n")))
	require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/drivers/vfio-pci/unbind"), []byte(port)))
	require.NoError(t, k.WriteAttr(tr.Path("sys/bus/pci/drivers_probe"), []byte(port)))
	tr.Remove("run/mlxvfio/" + port + ".json")
	isOn(t, tr, "taken away")
	d, err := pci.Diagnose(bdf(t, port), o)
	require.NoError(t, err)
	require.Contains(t, ids(d), pci.NoIOMMULeft)
	r, err := run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	require.Equal(t, []string{"turn no-IOMMU mode off", "remove mark of no-IOMMU mode"}, steps(r))
	nothingLeft(t, tr, "unbind")
}

// The flag alone opens nothing: with an IOMMU it changes nothing.
func TestBindNoIOMMUNotNeeded(t *testing.T) {
	tr := onePort(t)
	r, err := pci.Bind(context.Background(), bdf(t, port), unsafe(tr))
	require.NoError(t, err)
	require.Equal(t, []string{"write journal", "set driver_override", "unbind from mlx5_core", "probe drivers"}, steps(r))
	require.Empty(t, r.Warnings)
	require.Empty(t, r.Overrode)
}

// Somebody has the mode on: that is not ours to undo.
func TestBindNoIOMMUWasOn(t *testing.T) {
	tr, o := bare(t)
	tr.Write(noIOMMUParam, on)
	_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	remedyOf(t, err, pci.ErrNoIOMMU)
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Contains(t, strings.Join(r.Notes, " "), "was Y before: it stays, also after unbind")
	require.NoFileExists(t, tr.Path(noIOMMUMark))
	_, err = pci.Unbind(context.Background(), bdf(t, port), tr.Options())
	require.NoError(t, err)
	require.Equal(t, on, tr.Read(noIOMMUParam))
	for _, w := range o.FS.(*pcitest.Kernel).Writes() {
		require.NotEqual(t, noIOMMUParam, w.Path)
	}
	tr.Write(noIOMMUParam, off)
	nothingLeft(t, tr, "unbind")
}

func TestNoIOMMUProbeFails(t *testing.T) {
	tr, o := bare(t)
	tr.FailProbe("vfio-pci")
	r, err := run("bind", o, bdf(t, port))
	remedyOf(t, err, pci.ErrProbe)
	require.True(t, r.RolledBack)
	require.Equal(t, []string{"write journal", "set driver_override", "unbind from mlx5_core", "mark no-IOMMU mode", "turn no-IOMMU mode on", "probe drivers",
		"undo: clear driver_override", "undo: turn no-IOMMU mode off", "undo: remove mark of no-IOMMU mode", "undo: probe drivers", "undo: remove journal"}, steps(r))
	nothingLeft(t, tr, "probe failed")
}

// The context ends while the kernel sits in the probe: the switch stays on and
// locked, and the mark says so; unbind ends it.
func TestNoIOMMUPending(t *testing.T) {
	tr, o := bare(t)
	tr.Add(pcitest.Spec{BDF: "0000:3c:00.0", Driver: "mlx5_core"})
	entered, release := blockFirst(o, "drivers_probe")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	_, err := pci.Bind(ctx, bdf(t, port), o)
	remedyOf(t, err, pci.ErrPending)
	var p *pci.PendingError
	require.ErrorAs(t, err, &p)
	require.Equal(t, on, tr.Read(noIOMMUParam))
	require.FileExists(t, tr.Path(noIOMMUMark))

	// Another function's way back does not take the switch from under the probe,
	// and another bind waits for it.
	_, err = run("unbind", tr.Options(), bdf(t, "3c:00.0"))
	require.NoError(t, err)
	require.Equal(t, on, tr.Read(noIOMMUParam))
	short, stop := context.WithTimeout(context.Background(), 30_000_000)
	defer stop()
	_, err = pci.Bind(short, bdf(t, "3c:00.0"), unsafe(tr))
	remedyOf(t, err, pci.ErrInterrupted)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, onHost, tr.State("0000:3c:00.0"))

	release()
	require.NoError(t, p.Wait())
	_, err = run("unbind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	nothingLeft(t, tr, "unbind")
}

// Two functions at once: the first to finish does not turn the mode off under
// the other.
func TestNoIOMMUTwoAtOnce(t *testing.T) {
	tr, _ := bare(t)
	tr.Add(pcitest.Spec{BDF: "0000:3c:00.0", Driver: "mlx5_core"})
	errs := make(chan error)
	for _, b := range []string{port, "0000:3c:00.0"} {
		go func() {
			for range 10 {
				if _, err := pci.Bind(context.Background(), bdf(t, b), unsafe(tr)); err != nil {
					errs <- err
					return
				}
				if _, err := pci.Unbind(context.Background(), bdf(t, b), tr.Options()); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	nothingLeft(t, tr, "both")
}

// A bind that died left the mode on: the next one of another function takes the
// mark over and ends it.
func TestNoIOMMUMarkOfAnother(t *testing.T) {
	tr, o := bare(t)
	tr.Add(pcitest.Spec{BDF: "0000:3c:00.0", Driver: "mlx5_core"})
	kernel := o.FS
	o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: 9} // the switch is on
	_, err := run("bind", o, bdf(t, port))
	require.ErrorIs(t, err, pcitest.ErrKilled)
	require.Equal(t, on, tr.Read(noIOMMUParam))
	_, err = run("bind", unsafe(tr), bdf(t, "3c:00.0"))
	require.NoError(t, err)
	isOn(t, tr, "the other one")
	for _, b := range []string{"3c:00.0", port} {
		_, err = run("unbind", tr.Options(), bdf(t, b))
		require.NoError(t, err)
	}
	nothingLeft(t, tr, "both")
}

// A mark that cannot be read keeps nobody from anything, and does not stay.
func TestNoIOMMUMarkDamaged(t *testing.T) {
	for _, text := range []string{"", "{", `{"schema":"mlxvfio.pci.noiommu/9"}`} {
		for _, mode := range []string{on, off} {
			tr, o := bare(t)
			tr.Write(noIOMMUMark, text)
			tr.Write(noIOMMUParam, mode)
			_, err := run("bind", o, bdf(t, port))
			require.NoError(t, err)
			isOn(t, tr, text)
			tr.Write(noIOMMUMark, text)
			_, err = run("unbind", tr.Options(), bdf(t, port))
			require.NoError(t, err)
			nothingLeft(t, tr, "unbind")
		}
	}
}

// Whatever happens, the writes are those to the function and to the switch, and
// another function that no IOMMU guards keeps its driver.
func TestNoIOMMUWritesOnlyToTheFunction(t *testing.T) {
	total := 0
	for n := -1; n < unsafeOps(t, "bind"); n++ {
		for _, fail := range []string{"", "vfio-pci"} {
			tr, o := bare(t)
			tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core"})
			tr.Add(pcitest.Spec{BDF: "0000:3b:00.2", Override: "vfio-pci"}) // waits for a vfio-pci that takes it
			if fail != "" {
				tr.FailProbe(fail)
			}
			kernel := o.FS.(*pcitest.Kernel)
			o.FS = &pcitest.Faults{FS: o.FS, Mode: pcitest.Fail, N: n, Err: fmt.Errorf("planted")}
			_, _ = run("bind", o, bdf(t, port)) // how it ends is other tests' business
			for _, w := range kernel.Writes() {
				require.True(t, own(w) || w.Path == noIOMMUParam && (w.Value == "Y" || w.Value == "N"), "wrote %q to %s", w.Value, w.Path)
				total++
			}
			require.Equal(t, onHost, tr.State("0000:3b:00.1"))
			require.Equal(t, pcitest.State{Override: "vfio-pci"}, tr.State("0000:3b:00.2"))
			if tr.Read(noIOMMUParam) == on { // bound, or the undo was hit
				require.FileExists(t, tr.Path(noIOMMUMark))
				_, err := run("unbind", tr.Options(), bdf(t, port))
				require.NoError(t, err)
			}
			require.Equal(t, off, tr.Read(noIOMMUParam))
		}
	}
	require.Greater(t, total, 50)
}
