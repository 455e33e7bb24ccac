package pci_test

import (
	"context"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

const port = "0000:3b:00.0"

// onePort is a machine with one idle ConnectX-5 function in a group of its own.
func onePort(t testing.TB) *pcitest.Tree {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Driver: "mlx5_core", Group: 31})
	return tr
}

var (
	onHost = pcitest.State{Driver: "mlx5_core"}
	onVFIO = pcitest.State{Driver: "vfio-pci", Override: "vfio-pci"}
)

// steps gives actions and values of a result, without paths and times.
func steps(r *pci.Result) []string {
	var out []string
	for _, s := range r.Steps {
		x := s.Action
		if s.Undo {
			x = "undo: " + x
		}
		if s.Err != "" {
			x += " failed"
		}
		out = append(out, x)
	}
	return out
}

// untouched requires that a refusal changed nothing and left nothing.
func untouched(t *testing.T, tr *pcitest.Tree, o pci.Options, want pcitest.State) {
	t.Helper()
	require.Equal(t, want, tr.State(port))
	require.Empty(t, o.FS.(*pcitest.Kernel).Writes())
	js, err := pci.Journals(o)
	require.NoError(t, err)
	require.Empty(t, js)
}

func TestBindAndUnbind(t *testing.T) {
	tr := onePort(t)
	o := tr.Options()
	ctx := context.Background()
	r, err := pci.Bind(ctx, bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onVFIO, tr.State(port))
	require.Equal(t, []string{"write journal", "set driver_override", "unbind from mlx5_core", "probe drivers"}, steps(r))
	require.Equal(t, "mlx5_core", r.Previous)
	require.Equal(t, "vfio-pci", r.Driver)
	require.Equal(t, 31, r.Group)
	require.Equal(t, "/dev/vfio/31", r.VFIONode)
	require.Empty(t, r.VFIOCdev, "a kernel without VFIO_DEVICE_CDEV")
	require.Equal(t, "ConnectX-5", r.Name)
	require.Empty(t, r.Overrode)

	js, err := pci.Journals(o)
	require.NoError(t, err)
	require.Len(t, js, 1)
	require.Equal(t, pci.JournalBound, js[0].State)
	require.False(t, js[0].Interrupted())
	require.Equal(t, "mlx5_core", js[0].Driver)

	// Again: nothing is done, nothing is written.
	n := len(o.FS.(*pcitest.Kernel).Writes())
	r, err = pci.Bind(ctx, bdf(t, port), o)
	require.NoError(t, err)
	require.True(t, r.Already)
	require.Empty(t, r.Steps)
	require.Empty(t, r.Notes)
	require.Len(t, o.FS.(*pcitest.Kernel).Writes(), n)

	r, err = pci.Unbind(ctx, bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
	require.Equal(t, []string{"clear driver_override", "unbind from vfio-pci", "probe drivers", "remove journal"}, steps(r))
	require.Equal(t, "vfio-pci", r.Previous)
	require.Equal(t, "mlx5_core", r.Driver)
	require.Empty(t, r.Override)
	js, err = pci.Journals(o)
	require.NoError(t, err)
	require.Empty(t, js)

	r, err = pci.Unbind(ctx, bdf(t, port), o)
	require.NoError(t, err)
	require.True(t, r.Already)
	require.Contains(t, r.Notes[0], "nothing to do")

	// The journal folder is left empty: no temporary file, no lock file.
	entries, err := pci.OS{}.ReadDir(tr.Path("run/mlxvfio"))
	require.NoError(t, err)
	require.Empty(t, entries)
	// No other file of the machine was written.
	for _, w := range o.FS.(*pcitest.Kernel).Writes() {
		require.Contains(t, []string{
			"sys/bus/pci/devices/" + port + "/driver_override", "sys/bus/pci/drivers_probe",
			"sys/bus/pci/drivers/mlx5_core/unbind", "sys/bus/pci/drivers/vfio-pci/unbind"}, w.Path)
		if !strings.HasSuffix(w.Path, "driver_override") {
			require.Equal(t, port, w.Value)
		}
	}
}

// The original state may be any combination of driver and override.
func TestRestoresWhateverWasThere(t *testing.T) {
	for name, was := range map[string]pcitest.State{
		"driver":                         {Driver: "mlx5_core"},
		"driver with its own override":   {Driver: "mlx5_core", Override: "mlx5_core"},
		"driver with a foreign override": {Driver: "mlx5_core", Override: "other"},
		"driver with our override":       {Driver: "mlx5_core", Override: "vfio-pci"},
		"no driver":                      {},
		"no driver, override":            {Override: "other"},
		"no driver, our override":        {Override: "vfio-pci"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := pcitest.New(t)
			tr.Add(pcitest.Spec{BDF: port, Driver: was.Driver, Override: was.Override, Group: 31})
			_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
			require.NoError(t, err)
			require.Equal(t, onVFIO, tr.State(port))
			_, err = pci.Unbind(context.Background(), bdf(t, port), tr.Options())
			require.NoError(t, err)
			require.Equal(t, was, tr.State(port))
		})
	}
}

func TestBindRefusals(t *testing.T) {
	group := []string{"0000:3b:00.1", "0000:3b:00.2"}
	for name, tc := range map[string]struct {
		spec    pcitest.Spec
		prepare func(*pcitest.Tree, *pci.Options)
		kind    error
		has     string
		remedy  string
	}{
		"netdev up": {spec: pcitest.Spec{Netdevs: []pcitest.Netdev{{Name: "eth5", Up: true}}},
			kind: pci.ErrBusy, has: "netdev eth5 is up", remedy: "ip link set dev eth5 down"},
		"route": {spec: pcitest.Spec{Netdevs: []pcitest.Netdev{{Name: "eth5"}}},
			prepare: func(tr *pcitest.Tree, _ *pci.Options) {
				tr.Write("proc/net/route", "eth5\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
			},
			kind: pci.ErrBusy, has: "netdev eth5 holds route default", remedy: "ip route flush dev eth5"},
		"VFs": {spec: pcitest.Spec{Total: 8, NumVFs: 3},
			kind: pci.ErrBusy, has: "sriov_numvfs is 3", remedy: "echo 0 > ROOT/sys/bus/pci/devices/" + port + "/sriov_numvfs"},
		"two reasons": {spec: pcitest.Spec{Total: 8, NumVFs: 3, Netdevs: []pcitest.Netdev{{Name: "eth5", Up: true}}},
			kind: pci.ErrBusy, has: "netdev eth5 is up; VFs", remedy: "ip link set dev eth5 down && echo 0 > ROOT/sys/bus/pci/devices/" + port + "/sriov_numvfs"},
		"siblings on host drivers": {prepare: func(tr *pcitest.Tree, _ *pci.Options) {
			for _, b := range group {
				tr.Add(pcitest.Spec{BDF: b, Driver: "mlx5_core", Group: 31})
			}
			tr.Add(pcitest.Spec{BDF: "0000:3a:00.0", Vendor: 0x8086, Class: 0x060400, Driver: "pcieport", Group: 31})
		},
			kind: pci.ErrGroupNotViable, has: "0000:3b:00.1 of IOMMU group 31 is bound to mlx5_core; 0000:3b:00.2 of IOMMU group 31 is bound to mlx5_core",
			remedy: "echo 0000:3b:00.1 > ROOT/sys/bus/pci/drivers/mlx5_core/unbind && echo 0000:3b:00.2 > ROOT/sys/bus/pci/drivers/mlx5_core/unbind"},
		"no IOMMU": {spec: pcitest.Spec{Group: -1},
			kind: pci.ErrNoIOMMU, has: "no IOMMU group", remedy: "mlxvfio doctor " + port + "  # says how to turn an IOMMU on; to do without: mlxvfio bind " + port + " --unsafe-noiommu"},
		"no IOMMU, unsafe asked, not built": {spec: pcitest.Spec{Group: -1},
			prepare: func(tr *pcitest.Tree, o *pci.Options) { o.UnsafeNoIOMMU = true; tr.Remove(noIOMMUParam) },
			kind:    pci.ErrNoIOMMU, has: "built without no-IOMMU mode (ROOT/" + noIOMMUParam + " does not exist)",
			remedy: "grep VFIO_NOIOMMU \"/boot/config-$(uname -r)\"  # =y is needed: another kernel, or an IOMMU"},
		"no IOMMU, unsafe asked, no permission": {spec: pcitest.Spec{Group: -1},
			prepare: func(tr *pcitest.Tree, o *pci.Options) { o.UnsafeNoIOMMU = true; tr.Deny(noIOMMUParam, "EACCES") },
			kind:    pci.ErrPermission, has: "permission denied", remedy: "sudo mlxvfio bind " + port + " --unsafe-noiommu"},
		"no IOMMU, unsafe asked, no vfio-pci": {spec: pcitest.Spec{Group: -1},
			prepare: func(tr *pcitest.Tree, o *pci.Options) {
				o.UnsafeNoIOMMU = true
				tr.Remove("sys/bus/pci/drivers/vfio-pci")
			},
			kind: pci.ErrNoDriver, has: "module vfio_pci", remedy: "modprobe vfio-pci"},
		"no vfio-pci": {prepare: func(tr *pcitest.Tree, _ *pci.Options) { tr.Remove("sys/bus/pci/drivers/vfio-pci") },
			kind: pci.ErrNoDriver, has: "module vfio_pci", remedy: "modprobe vfio-pci"},
		"mlx4": {spec: pcitest.Spec{Device: 0x1007},
			kind: pci.ErrNotMellanox, has: "ConnectX-3 Pro is an mlx4 device", remedy: "mlxvfio list"},
		"other vendor": {spec: pcitest.Spec{Vendor: 0x8086},
			kind: pci.ErrNotMellanox, has: "8086:1017", remedy: "mlxvfio list"},
		"bridge of the card": {spec: pcitest.Spec{Device: 0x1974},
			kind: pci.ErrNotMellanox, has: "ConnectX-5 PCIe bridge", remedy: "mlxvfio list"},
		"flash recovery": {spec: pcitest.Spec{Device: 0x020d},
			kind: pci.ErrFlashRecovery, has: "no firmware runs", remedy: "mstflint -d " + port + " query full"},
		"driver that is not VFIO": {prepare: func(_ *pcitest.Tree, o *pci.Options) { o.Driver = "../../evil" },
			kind: pci.ErrNoDriver, has: "only vfio-pci is", remedy: "mlxvfio bind " + port},
	} {
		t.Run(name, func(t *testing.T) {
			tr := pcitest.New(t)
			spec := tc.spec
			spec.BDF = port
			if spec.Vendor == 0 && spec.Device == 0 {
				spec.Driver = "mlx5_core"
			}
			spec.Group = map[int]int{0: 31, -1: 0}[spec.Group]
			tr.Add(spec)
			o := tr.Options()
			if tc.prepare != nil {
				tc.prepare(tr, &o)
			}
			r, err := pci.Bind(context.Background(), bdf(t, port), o)
			remedy := remedyOf(t, err, tc.kind)
			require.ErrorContains(t, err, strings.ReplaceAll(tc.has, "ROOT", tr.Root))
			require.Equal(t, strings.ReplaceAll(tc.remedy, "ROOT", tr.Root), remedy)
			require.NotNil(t, r)
			require.Empty(t, r.Steps)
			untouched(t, tr, o, pcitest.State{Driver: spec.Driver})
		})
	}
	tr := onePort(t)
	_, err := pci.Bind(context.Background(), bdf(t, "3b:00.7"), tr.Options())
	remedyOf(t, err, pci.ErrNotFound)
	_, err = pci.Unbind(context.Background(), bdf(t, "3b:00.7"), tr.Options())
	remedyOf(t, err, pci.ErrNotFound)
}

func TestForceOverridesAndSaysSo(t *testing.T) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Driver: "mlx5_core", Group: 31, Total: 8, NumVFs: 3, Netdevs: []pcitest.Netdev{{Name: "eth5", Up: true}}})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 31})
	o := tr.Options()
	o.Force = true
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, []string{"0000:3b:00.1 of IOMMU group 31 is bound to mlx5_core", "netdev eth5 is up", "VFs are enabled (sriov_numvfs is 3)"}, r.Overrode)
	require.Equal(t, onVFIO, tr.State(port))

	// The second port of the group now needs no force: its sibling is on VFIO.
	r, err = pci.Bind(context.Background(), bdf(t, "3b:00.1"), tr.Options())
	require.NoError(t, err)
	require.Empty(t, r.Overrode)

	// Force does not make a missing IOMMU acceptable.
	tr.Add(pcitest.Spec{BDF: "0000:3c:00.0", Driver: "mlx5_core"})
	_, err = pci.Bind(context.Background(), bdf(t, "3c:00.0"), o)
	remedyOf(t, err, pci.ErrNoIOMMU)
}

func TestBothSpellingsOfTheDriver(t *testing.T) {
	for _, name := range []string{"", "vfio-pci", "vfio_pci"} {
		tr := onePort(t)
		o := tr.Options()
		o.Driver = name
		_, err := pci.Bind(context.Background(), bdf(t, port), o)
		require.NoError(t, err)
		require.Equal(t, onVFIO, tr.State(port))
	}
}

// vfio-pci refuses the function: the host gets it back.
func TestBindRollsBackWhenTheProbeFails(t *testing.T) {
	tr := onePort(t)
	tr.FailProbe("vfio-pci")
	o := tr.Options()
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.Equal(t, "dmesg | grep -i vfio", remedyOf(t, err, pci.ErrProbe))
	require.ErrorContains(t, err, "asked for vfio-pci, the function has no driver")
	require.True(t, r.RolledBack)
	require.Equal(t, onHost, tr.State(port))
	require.Equal(t, "mlx5_core", r.Driver)
	require.Equal(t, []string{"write journal", "set driver_override", "unbind from mlx5_core", "probe drivers",
		"undo: clear driver_override", "undo: probe drivers", "undo: remove journal"}, steps(r))
	js, err := pci.Journals(o)
	require.NoError(t, err)
	require.Empty(t, js)
}

// Neither driver takes it: the journal stays, and unbind works once the
// reason is gone.
func TestBindWhoseUndoFails(t *testing.T) {
	tr := onePort(t)
	tr.FailProbe("vfio-pci")
	tr.FailProbe("mlx5_core")
	o := tr.Options()
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.Equal(t, "mlxvfio unbind "+port, remedyOf(t, err, pci.ErrProbe))
	require.ErrorContains(t, err, "and undoing it failed")
	require.ErrorIs(t, err, syscall.EIO, "what the driver answered is in the chain")
	require.False(t, r.RolledBack)
	js, err := pci.Journals(o)
	require.NoError(t, err)
	require.True(t, js[0].Interrupted())

	tr.Remove("fail/mlx5_core")
	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
}

// Each write refused in turn, with the errors the kernel has.
func TestBindRollsBackFromEveryWrite(t *testing.T) {
	for _, tc := range []struct {
		path string
		err  error
		kind error
		has  string
	}{
		{"driver_override", syscall.EACCES, pci.ErrPermission, "sudo mlxvfio bind " + port},
		{"driver_override", syscall.EROFS, pci.ErrPermission, "remount,rw"},
		{"mlx5_core/unbind", syscall.EPERM, pci.ErrPermission, "sudo mlxvfio bind " + port},
		{"mlx5_core/unbind", syscall.ENODEV, pci.ErrNotFound, "unbind from mlx5_core"},
		{"drivers_probe", syscall.EBUSY, pci.ErrBusy, "drivers_probe"},
		{"drivers_probe", syscall.EINVAL, pci.ErrIO, "invalid argument"},
	} {
		t.Run(tc.path+" "+tc.err.Error(), func(t *testing.T) {
			tr := onePort(t)
			o := tr.Options()
			once := true
			o.FS.(*pcitest.Kernel).Before = func(path, _ string) error {
				if strings.HasSuffix(path, tc.path) && once {
					once = false
					return tc.err
				}
				return nil
			}
			r, err := pci.Bind(context.Background(), bdf(t, port), o)
			remedyOf(t, err, tc.kind)
			require.ErrorIs(t, err, tc.err)
			require.ErrorContains(t, err, tc.has)
			require.True(t, r.RolledBack)
			require.Equal(t, onHost, tr.State(port))
			js, err := pci.Journals(o)
			require.NoError(t, err)
			require.Empty(t, js)
		})
	}
}

// The driver was unbound by someone else a moment before: that is what was
// wanted, so Bind goes on.
func TestBindWhenTheDriverLeavesByItself(t *testing.T) {
	tr := onePort(t)
	o := tr.Options()
	other := pcitest.OpenKernel(tr.Root)
	o.FS.(*pcitest.Kernel).Before = func(path, value string) error {
		if strings.HasSuffix(path, "mlx5_core/unbind") {
			return other.WriteAttr(tr.Path(path), []byte(value))
		}
		return nil
	}
	_, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onVFIO, tr.State(port))
}

// blockFirst makes the first write to a path wait for the returned function.
func blockFirst(o pci.Options, suffix string) (entered chan struct{}, release func()) {
	entered, gate := make(chan struct{}), make(chan struct{})
	first := true
	o.FS.(*pcitest.Kernel).Before = func(path, _ string) error {
		if strings.HasSuffix(path, suffix) && first {
			first = false
			close(entered)
			<-gate
		}
		return nil
	}
	return entered, func() { close(gate) }
}

// An unbind that the driver does not let finish: the context ends the waiting,
// never the kernel; the lock and the journal stay until it is over.
func TestBindCancelledInsideAWrite(t *testing.T) {
	tr := onePort(t)
	o := tr.Options()
	entered, release := blockFirst(o, "mlx5_core/unbind")
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-entered
		cancel()
	}()
	r, err := pci.Bind(ctx, bdf(t, port), o)
	require.Contains(t, remedyOf(t, err, pci.ErrPending), "mlxvfio unbind "+port)
	require.ErrorIs(t, err, context.Canceled)
	var p *pci.PendingError
	require.ErrorAs(t, err, &p)
	require.Equal(t, port, p.Value)
	require.True(t, strings.HasSuffix(p.Path, "mlx5_core/unbind"))
	require.False(t, r.RolledBack)
	require.Contains(t, r.Notes[0], "kernel is still at it")
	select {
	case <-p.Done():
		t.Fatal("the write has not returned")
	default:
	}

	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	remedyOf(t, err, pci.ErrBusy)
	require.ErrorContains(t, err, "another bind or unbind")

	release()
	require.NoError(t, p.Wait())
	require.Equal(t, pcitest.State{Override: "vfio-pci"}, tr.State(port))
	_, err = pci.Unbind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onHost, tr.State(port))
}

// The context ends right after a step: everything is undone.
func TestBindCancelledBetweenWrites(t *testing.T) {
	for _, last := range []string{"write journal", "set driver_override", "unbind from mlx5_core"} {
		t.Run(last, func(t *testing.T) {
			tr := onePort(t)
			o := tr.Options()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o.Logger = slog.New(cancelAfter{slog.DiscardHandler, last, cancel})
			r, err := pci.Bind(ctx, bdf(t, port), o)
			remedyOf(t, err, pci.ErrInterrupted)
			require.ErrorIs(t, err, context.Canceled)
			require.True(t, r.RolledBack)
			require.Equal(t, onHost, tr.State(port))
			js, err := pci.Journals(o)
			require.NoError(t, err)
			require.Empty(t, js)
		})
	}
}

// While it waits for the driver link the context ends too.
func TestBindCancelledWhileVerifying(t *testing.T) {
	tr := onePort(t)
	tr.FailProbe("vfio-pci")
	o := tr.Options()
	o.VerifyTimeout = time.Minute
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o.Logger = slog.New(cancelAfter{slog.DiscardHandler, "probe drivers", cancel})
	r, err := pci.Bind(ctx, bdf(t, port), o)
	remedyOf(t, err, pci.ErrInterrupted)
	require.True(t, r.RolledBack)
	require.Equal(t, onHost, tr.State(port))
}

// cancelAfter is a log handler that cancels when a step has been logged: the
// one moment that is certainly between two writes.
type cancelAfter struct {
	slog.Handler
	action string
	cancel func()
}

func (c cancelAfter) Enabled(context.Context, slog.Level) bool { return true }

func (c cancelAfter) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "action" && a.Value.String() == c.action {
			c.cancel()
		}
		return true
	})
	return nil
}

// Two binds of one function at once: one works, the other is told so.
func TestBindIsExclusive(t *testing.T) {
	tr := onePort(t)
	o := tr.Options()
	entered, release := blockFirst(o, "mlx5_core/unbind")
	done := make(chan error, 1)
	go func() {
		_, err := pci.Bind(context.Background(), bdf(t, port), o)
		done <- err
	}()
	<-entered
	_, err := pci.Bind(context.Background(), bdf(t, port), tr.Options())
	require.Contains(t, remedyOf(t, err, pci.ErrBusy), "fuser -v ")
	release()
	require.NoError(t, <-done)
	require.Equal(t, onVFIO, tr.State(port))
}

func TestAlreadyBoundBySomeoneElse(t *testing.T) {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Driver: "vfio-pci", Override: "vfio-pci", Group: 31})
	o := tr.Options()
	r, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.True(t, r.Already)
	require.Contains(t, r.Notes[0], "by someone else")
	untouched(t, tr, o, onVFIO)
}

// A read-only or missing journal folder stops the bind before any sysfs write.
func TestJournalFirst(t *testing.T) {
	for n := 0; n < 4; n++ { // mkdir, create, rename, sync
		tr := onePort(t)
		o := tr.Options()
		kernel := o.FS.(*pcitest.Kernel)
		faults := &pcitest.Faults{FS: kernel, Mode: pcitest.Fail, N: n, Err: &fs.PathError{Op: "x", Path: "y", Err: syscall.ENOSPC}}
		o.FS = faults
		_, err := pci.Bind(context.Background(), bdf(t, port), o)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.NotEmpty(t, remedyOf(t, err, syscall.ENOSPC))
		require.Empty(t, kernel.Writes(), "op %d %v", n, faults.Ops())
		require.Equal(t, onHost, tr.State(port))
		entries, err := pci.OS{}.ReadDir(tr.Path("run/mlxvfio"))
		if n > 0 {
			require.NoError(t, err)
		}
		require.Empty(t, entries, "op %d", n)
	}
}

func TestVerifyWaits(t *testing.T) {
	tr := onePort(t)
	o := tr.Options()
	o.VerifyTimeout = 2 * time.Second
	tr.FailProbe("vfio-pci")
	// The driver shows up only after the write has returned.
	o.FS = lateDriver{o.FS, tr}
	_, err := pci.Bind(context.Background(), bdf(t, port), o)
	require.NoError(t, err)
	require.Equal(t, onVFIO, tr.State(port))
}

type lateDriver struct {
	pci.FS
	tr *pcitest.Tree
}

func (l lateDriver) WriteAttr(name string, data []byte) error {
	err := l.FS.WriteAttr(name, data)
	if strings.HasSuffix(name, "drivers_probe") {
		l.tr.Remove("fail/vfio-pci")
		time.AfterFunc(30*time.Millisecond, func() {
			_ = pcitest.OpenKernel(l.tr.Root).WriteAttr(l.tr.Path("sys/bus/pci/drivers/vfio-pci/bind"), data)
		})
	}
	return err
}
