package pci_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// unsafeOps counts the changes of an operation.
func unsafeOps(t *testing.T, op string) int {
	_, o := bare(t)
	if op == "unbind" {
		_, err := run("bind", o, bdf(t, port))
		require.NoError(t, err)
	}
	f := &pcitest.Faults{FS: o.FS}
	o.FS = f
	_, err := run(op, o, bdf(t, port))
	require.NoError(t, err)
	return len(f.Ops())
}

// recovered: what the doctor says of a process that died helps, and so does a
// bind that goes on.
func recovered(t *testing.T, tr *pcitest.Tree, rebind bool, what string) {
	t.Helper()
	b := bdf(t, port)
	if tr.Read(noIOMMUParam) == on {
		require.FileExists(t, tr.Path(noIOMMUMark), "%s: the mode is on and nothing says that it must go", what)
		d, err := pci.Diagnose(b, unsafe(tr))
		require.NoError(t, err, what)
		if tr.State(port).Driver == "vfio-pci" {
			require.NotContains(t, ids(d), pci.NoIOMMULeft, what)
		} else {
			require.Contains(t, ids(d), pci.NoIOMMULeft, what)
		}
	}
	if rebind {
		_, err := run("bind", unsafe(tr), b)
		require.NoError(t, err, what)
		require.Equal(t, onVFIO, tr.State(port), what)
		isOn(t, tr, what)
	}
	_, err := run("unbind", tr.Options(), b)
	require.NoError(t, err, what)
	nothingLeft(t, tr, what)
}

// A process that dies at any point, at the switch too.
func TestNoIOMMUKilledAnywhere(t *testing.T) {
	torn, leftOn := 0, 0
	for _, op := range []string{"bind", "unbind"} {
		total := unsafeOps(t, op)
		for _, mode := range []pcitest.Mode{pcitest.KillBefore, pcitest.KillAfter, pcitest.KillTorn} {
			for n := range total {
				for _, rebind := range []bool{false, true} {
					tr, o := bare(t)
					if op == "unbind" {
						_, err := run("bind", o, bdf(t, port))
						require.NoError(t, err)
					}
					f := &pcitest.Faults{FS: o.FS, Mode: mode, N: n}
					o.FS = f
					_, err := run(op, o, bdf(t, port))
					what := strings.ReplaceAll(fmt.Sprintf("%s, mode %d at %d: %v", op, mode, n, f.Ops()), tr.Root, "")
					require.ErrorIs(t, err, pcitest.ErrKilled, what)
					if mode == pcitest.KillTorn && strings.HasPrefix(f.Ops()[n], "create ") {
						torn++
					}
					if tr.Read(noIOMMUParam) == on {
						leftOn++
					}
					recovered(t, tr, rebind, what)
				}
			}
		}
	}
	require.Equal(t, 4, torn, "journal and mark, each half written")
	require.Greater(t, leftOn, 8, "the mode was on when the process died")
}

// With a real process, whose lock file stays: the switch does not.
func TestNoIOMMUSIGKILL(t *testing.T) {
	leftOn := 0
	for n := range unsafeOps(t, "bind") {
		tr, _ := bare(t)
		cmd := exec.Command(os.Args[0], "-test.run=^TestSIGKILL$")
		cmd.Env = append(os.Environ(), "PCI_TEST_KILL_ROOT="+tr.Root, "PCI_TEST_KILL_OP=bind", "PCI_TEST_KILL_UNSAFE=1",
			"PCI_TEST_KILL_N="+strconv.Itoa(n), "PCI_TEST_KILL_MODE="+strconv.Itoa(int(pcitest.KillAfter)))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v %s", err, out)
		require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "%s", out)
		if tr.Read(noIOMMUParam) == on {
			leftOn++
			require.FileExists(t, tr.Path("run/mlxvfio/.noiommu.lock"))
		}
		recovered(t, tr, n%2 == 1, fmt.Sprintf("SIGKILL at %d", n))
	}
	require.Equal(t, 2, leftOn, "after it went on and after the probe")
}

// Dying twice: the unbind that repairs a killed bind is killed too.
func TestNoIOMMUKilledTwice(t *testing.T) {
	for first := range unsafeOps(t, "bind") {
		for second := 0; ; second++ {
			tr, o := bare(t)
			kernel := o.FS
			o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: first}
			_, err := run("bind", o, bdf(t, port))
			require.ErrorIs(t, err, pcitest.ErrKilled)
			o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: second}
			_, err = run("unbind", o, bdf(t, port))
			recovered(t, tr, false, fmt.Sprintf("killed at %d and %d", first, second))
			if err == nil {
				break // the unbind needs fewer operations than that
			}
			require.ErrorIs(t, err, pcitest.ErrKilled)
		}
	}
}

// Each operation fails once: bind undoes all of it, the switch first.
func TestNoIOMMUEachOperationFails(t *testing.T) {
	for n := range unsafeOps(t, "bind") {
		tr, o := bare(t)
		f := &pcitest.Faults{FS: o.FS, Mode: pcitest.Fail, N: n, Err: syscall.EIO}
		o.FS = f
		r, err := run("bind", o, bdf(t, port))
		what := strings.ReplaceAll(fmt.Sprintf("at %d: %v, %v", n, f.Ops(), err), tr.Root, "")
		require.ErrorIs(t, err, syscall.EIO, what)
		require.Equal(t, n > 3, r.RolledBack, what)
		nothingLeft(t, tr, what)
	}
}
