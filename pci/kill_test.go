package pci_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// origins are states in which Bind may find a function.
var origins = []pcitest.State{
	{Driver: "mlx5_core"},
	{Driver: "mlx5_core", Override: "mlx5_core"},
	{Driver: "mlx5_core", Override: "other"},
	{},
}

func origin(t testing.TB, was pcitest.State) *pcitest.Tree {
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Driver: was.Driver, Override: was.Override, Group: 31})
	return tr
}

// run is Bind or Unbind by name.
func run(op string, o pci.Options, b pci.BDF) (*pci.Result, error) {
	if op == "bind" {
		return pci.Bind(context.Background(), b, o)
	}
	return pci.Unbind(context.Background(), b, o)
}

// operations counts the changes an operation makes on a tree.
func operations(t testing.TB, was pcitest.State, op string) int {
	tr := origin(t, was)
	o := tr.Options()
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

// checkRecovered runs a fresh Unbind, or Bind and Unbind, and requires the
// original state, no journal and an empty journal folder.
func checkRecovered(t *testing.T, tr *pcitest.Tree, was pcitest.State, rebind bool, what string) {
	t.Helper()
	o := tr.Options()
	half := tr.State(port)
	js, err := pci.Journals(o)
	require.NoError(t, err, what)
	if half != was && half != onVFIO {
		require.Len(t, js, 1, "%s: the function is half-way (%+v) and nothing says how to undo it", what, half)
		require.True(t, js[0].Interrupted(), what)
	}
	if half == onVFIO {
		require.Len(t, js, 1, what)
		require.Equal(t, pci.JournalBound, js[0].State, what)
	}
	if rebind {
		_, err = run("bind", o, bdf(t, port))
		require.NoError(t, err, what)
		require.Equal(t, onVFIO, tr.State(port), what)
	}
	r, err := run("unbind", o, bdf(t, port))
	require.NoError(t, err, what)
	require.Equal(t, was, tr.State(port), "%s: half-way %+v, then %v", what, half, steps(r))
	js, err = pci.Journals(o)
	require.NoError(t, err, what)
	require.Empty(t, js, what)
}

// A process that dies at any point of bind or unbind, with the operation done,
// not done or half done, leaves a state from which one unbind restores the
// original, and from which a bind can be completed and undone.
func TestKilledAnywhere(t *testing.T) {
	for i, was := range origins {
		for _, op := range []string{"bind", "unbind"} {
			total := operations(t, was, op)
			require.Greater(t, total, 3)
			for _, mode := range []pcitest.Mode{pcitest.KillBefore, pcitest.KillAfter, pcitest.KillTorn} {
				for n := 0; n < total; n++ {
					if mode == pcitest.KillTorn && (op != "bind" || n != 1) {
						continue // only the creation of the journal, operation 1, can be half done
					}
					for _, rebind := range []bool{false, true} {
						if rebind && i > 1 {
							continue
						}
						tr := origin(t, was)
						o := tr.Options()
						if op == "unbind" {
							_, err := run("bind", o, bdf(t, port))
							require.NoError(t, err)
						}
						f := &pcitest.Faults{FS: o.FS, Mode: mode, N: n}
						o.FS = f
						_, err := run(op, o, bdf(t, port))
						what := fmt.Sprintf("%s from %+v, mode %d at %d: %v", op, was, mode, n, f.Ops())
						require.ErrorIs(t, err, pcitest.ErrKilled, what)
						if mode == pcitest.KillTorn {
							require.Contains(t, f.Ops()[n], "create ", what)
						}
						checkRecovered(t, tr, was, rebind, strings.ReplaceAll(what, tr.Root, ""))
					}
				}
			}
		}
	}
}

// Dying twice: the unbind that repairs a killed bind is killed too.
func TestKilledTwice(t *testing.T) {
	was := pcitest.State{Driver: "mlx5_core", Override: "other"}
	total := operations(t, was, "bind")
	for first := 0; first < total; first++ {
		for second := 0; ; second++ {
			tr := origin(t, was)
			o := tr.Options()
			kernel := o.FS
			o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: first}
			_, err := run("bind", o, bdf(t, port))
			require.ErrorIs(t, err, pcitest.ErrKilled)
			o.FS = &pcitest.Faults{FS: kernel, Mode: pcitest.KillAfter, N: second}
			_, err = run("unbind", o, bdf(t, port))
			checkRecovered(t, tr, was, false, fmt.Sprintf("killed at %d and %d", first, second))
			if err == nil {
				break // the unbind needs fewer operations than that
			}
			require.ErrorIs(t, err, pcitest.ErrKilled)
		}
	}
}

// An operation that fails once, wherever it is: Bind leaves the original state
// (or, when the undo was hit, a journal), Unbind can be repeated.
func TestFailedAnywhere(t *testing.T) {
	for _, was := range origins {
		for _, op := range []string{"bind", "unbind"} {
			total := operations(t, was, op)
			for n := 0; n < total; n++ {
				tr := origin(t, was)
				o := tr.Options()
				if op == "unbind" {
					_, err := run("bind", o, bdf(t, port))
					require.NoError(t, err)
				}
				kernel := o.FS
				f := &pcitest.Faults{FS: kernel, Mode: pcitest.Fail, N: n, Err: syscall.EIO}
				o.FS = f
				r, err := run(op, o, bdf(t, port))
				what := strings.ReplaceAll(fmt.Sprintf("%s from %+v, fails at %d: %v", op, was, n, f.Ops()), tr.Root, "")
				require.ErrorIs(t, err, syscall.EIO, what)
				if op == "bind" {
					require.Equal(t, was, tr.State(port), what)
					wrote := false
					for _, s := range r.Steps {
						wrote = wrote || strings.Contains(s.Action, "driver") && !s.Undo
					}
					require.Equal(t, wrote, r.RolledBack, what)
					js, err := pci.Journals(tr.Options())
					require.NoError(t, err)
					require.Empty(t, js, what)
				}
				checkRecovered(t, tr, was, false, what)
			}
		}
	}
}

// The same with real processes and a real SIGKILL: this test binary runs
// itself, the child kills itself at the n-th change, and this process goes on
// with what is on disk.
func TestSIGKILL(t *testing.T) {
	if root := os.Getenv("PCI_TEST_KILL_ROOT"); root != "" {
		dyingChild(t, root)
		return
	}
	was := pcitest.State{Driver: "mlx5_core"}
	for _, op := range []string{"bind", "unbind"} {
		total := operations(t, was, op)
		for _, mode := range []pcitest.Mode{pcitest.KillBefore, pcitest.KillAfter} {
			for n := 0; n < total; n++ {
				tr := origin(t, was)
				if op == "unbind" {
					_, err := run("bind", tr.Options(), bdf(t, port))
					require.NoError(t, err)
				}
				cmd := exec.Command(os.Args[0], "-test.run=^TestSIGKILL$")
				cmd.Env = append(os.Environ(), "PCI_TEST_KILL_ROOT="+tr.Root, "PCI_TEST_KILL_OP="+op,
					"PCI_TEST_KILL_N="+strconv.Itoa(n), "PCI_TEST_KILL_MODE="+strconv.Itoa(int(mode)))
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v %s", err, out)
				require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "%s", out)
				checkRecovered(t, tr, was, n%2 == 1, fmt.Sprintf("SIGKILL in %s, mode %d at %d", op, mode, n))
				entries, err := os.ReadDir(tr.Path("run/mlxvfio"))
				if !errors.Is(err, fs.ErrNotExist) { // killed before the folder was made
					require.NoError(t, err)
				}
				require.Empty(t, entries, "lock or temporary file of the dead process must not stay")
			}
		}
	}
}

func dyingChild(t *testing.T, root string) {
	n, err := strconv.Atoi(os.Getenv("PCI_TEST_KILL_N"))
	require.NoError(t, err)
	mode, err := strconv.Atoi(os.Getenv("PCI_TEST_KILL_MODE"))
	require.NoError(t, err)
	die := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute) // the signal arrives long before
	}
	o := pci.Options{SysRoot: root + "/sys", ProcRoot: root + "/proc", JournalDir: root + "/run/mlxvfio",
		UnsafeNoIOMMU: os.Getenv("PCI_TEST_KILL_UNSAFE") != "",
		FS:            &pcitest.Faults{FS: pcitest.OpenKernel(root), Mode: pcitest.Mode(mode), N: n, Die: die}}
	_, err = run(os.Getenv("PCI_TEST_KILL_OP"), o, bdf(t, port))
	t.Fatalf("still alive: %v", err)
}
