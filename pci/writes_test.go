package pci_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

// own reports whether a write to sysfs concerns the function alone: its own
// driver_override, or a file of the bus to which only its own address goes.
func own(w pcitest.Write) bool {
	if w.Path == "sys/bus/pci/devices/"+port+"/driver_override" {
		return true
	}
	toBus := w.Path == "sys/bus/pci/drivers_probe" ||
		strings.HasPrefix(w.Path, "sys/bus/pci/drivers/") && (strings.HasSuffix(w.Path, "/bind") || strings.HasSuffix(w.Path, "/unbind"))
	return toBus && w.Value == port
}

// crowd is a machine where much could be hit by mistake: the function's second
// port in the same group, a VF, and another device in the group.
func crowd(t testing.TB, was pcitest.State) *pcitest.Tree {
	tr := pcitest.New(t)
	tr.Driver("nvme")
	tr.Add(pcitest.Spec{BDF: port, Driver: was.Driver, Override: was.Override, Group: 31, NumVFs: 1, Total: 8, VFs: []string{"0000:3b:00.2"},
		Netdevs: []pcitest.Netdev{{Name: "p0", Up: true, Master: "bond0", Uppers: []string{"bond0"}}}})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 31})
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.2", Device: 0x1018, PhysFn: port, Driver: "mlx5_core", Group: 32})
	tr.Add(pcitest.Spec{BDF: "0000:01:00.0", Vendor: 0x144d, Device: 1, Driver: "nvme", Group: 31})
	return tr
}

// Whatever happens (force, failing probes, failing operations at any place, the
// way back), bind and unbind write to nothing but the function.
func TestWritesOnlyToTheFunction(t *testing.T) {
	others := []string{"0000:3b:00.1", "0000:3b:00.2", "0000:01:00.0"}
	total := 0
	try := func(was pcitest.State, op string, mode pcitest.Mode, n int, fail string) (ops int) {
		tr := crowd(t, was)
		before := map[string]pcitest.State{}
		for _, x := range others {
			before[x] = tr.State(x)
		}
		o := tr.Options()
		o.Force = true
		kernel := o.FS.(*pcitest.Kernel)
		if fail != "" {
			tr.FailProbe(fail)
		}
		f := &pcitest.Faults{FS: o.FS, Mode: mode, N: n, Err: fmt.Errorf("planted")}
		o.FS = f
		_, _ = run(op, o, bdf(t, port)) // how it ends is other tests' business
		for _, w := range kernel.Writes() {
			require.True(t, own(w), "%s from %+v: wrote %q to %s", op, was, w.Value, w.Path)
			total++
		}
		for _, x := range others {
			require.Equal(t, before[x], tr.State(x), x)
		}
		return len(f.Ops())
	}
	for _, was := range []pcitest.State{onHost, onVFIO, {}, {Override: "vfio_pci"}} {
		for _, op := range []string{"bind", "unbind"} {
			for _, fail := range []string{"", "vfio-pci", "mlx5_core"} {
				ops := try(was, op, pcitest.Count, 0, fail)
				// the ways back: from a bind that fails, and from an unbind that does
				back := was == onHost && op == "bind" && fail != "mlx5_core" || was == onVFIO && op == "unbind" && fail == ""
				for n := 0; back && n < ops; n++ { // a killed process writes no more than this
					try(was, op, pcitest.Fail, n, fail)
				}
			}
		}
	}
	require.Greater(t, total, 50)
}

// A BDF cannot leave its folder: it is numbers before it is a path.
func TestBDFIsNoPath(t *testing.T) {
	for _, s := range []string{"../../../0000:3b:00.0", "0000:3b:00.0/..", "0000:3b:00.0/../0000:3b:00.1", "..", ""} {
		_, err := pci.ParseBDF(s)
		require.ErrorIs(t, err, pci.ErrBadBDF, s)
	}
}

// Both spellings of the driver mean the same, everywhere.
func TestBothSpellings(t *testing.T) {
	for _, name := range []string{"", "vfio-pci", "vfio_pci"} {
		tr := onePort(t)
		o := tr.Options()
		o.Driver = name
		_, err := run("bind", o, bdf(t, port))
		require.NoError(t, err, name)
		require.Equal(t, onVFIO, tr.State(port))
	}
	for driver, vfio := range map[string]bool{"vfio-pci": true, "vfio_pci": true, "mlx5_vfio_pci": true, "mlx5-vfio-pci": true,
		"vfio": false, "mlx5_core": false, "": false, "xvfio-pci": false} {
		require.Equal(t, vfio, pci.IsVFIO(driver), driver)
	}
	// an override in the module's spelling, which no driver answers to, is put right
	tr := pcitest.New(t)
	tr.Add(pcitest.Spec{BDF: port, Override: "vfio_pci", Group: 31})
	_, err := run("bind", tr.Options(), bdf(t, port))
	require.NoError(t, err)
	require.Equal(t, onVFIO, tr.State(port))
}

// What the doctor says of a bind that was cut off anywhere, its remedy puts right.
func TestDoctorsRemedyAfterACrash(t *testing.T) {
	cut := 0
	for n := range operations(t, onHost, "bind") {
		tr := onePort(t)
		o := tr.Options()
		o.FS = &pcitest.Faults{FS: o.FS, Mode: pcitest.KillAfter, N: n}
		_, err := run("bind", o, bdf(t, port))
		require.ErrorIs(t, err, pcitest.ErrKilled)
		d, err := pci.Diagnose(bdf(t, port), tr.Options())
		require.NoError(t, err)
		switch tr.State(port) {
		case onHost:
			require.Contains(t, ids(d), pci.NotBound, n)
			require.NotContains(t, ids(d), pci.InterruptedBind, n)
		case onVFIO:
			require.True(t, d.Ready(), n)
		default:
			cut++
			require.Equal(t, pci.InterruptedBind, d.Findings[0].ID, n)
			require.Equal(t, "mlxvfio unbind "+port, d.Findings[0].Remedy)
		}
		_, err = run("unbind", tr.Options(), bdf(t, port))
		require.NoError(t, err)
		d, err = pci.Diagnose(bdf(t, port), tr.Options())
		require.NoError(t, err)
		require.Equal(t, []pci.FindingID{pci.NotBound}, ids(d), n)
	}
	require.Positive(t, cut)
}
