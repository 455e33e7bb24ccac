package main

import (
	"slices"
	"testing"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/stretchr/testify/require"
)

func TestDoctor(t *testing.T) {
	m, where := machine(t)
	m.Write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
	o := cliOn(t, where, "doctor", "3b:00.0")
	require.Equal(t, exitFailed, o.code, o.err)
	require.Equal(t, "mlxvfio: 0000:3b:00.0: doctor: cannot be opened: needs bind; try: mlxvfio bind 0000:3b:00.0\n", o.err)
	require.Contains(t, o.out, "this machine\n  note     lockdown: ")
	require.Contains(t, o.out, "\n0000:3b:00.0 ConnectX-5: needs bind\n  way      type1: "+m.Path("proc/devices")+" has vfio and no vfio-dev\n"+
		"  users    the kernel's network and RDMA, rdma-core and DPDK's mlx5 driver; programs that use VFIO after mlxvfio bind 0000:3b:00.0\n  blocks   not-bound: "+m.Path("sys/bus/pci/devices/0000:3b:00.0/driver")+" is mlx5_core\n"+
		"           why: user space can open only what a VFIO driver has\n           try: mlxvfio bind 0000:3b:00.0\n")

	got := decodeOne(t, "doctor/1", cliOn(t, where, "doctor", testBDF, "--json").out)
	require.Equal(t, false, got["ready"])
	f := got["functions"].([]any)[0].(map[string]any)
	require.Equal(t, []any{testBDF, "ConnectX-5", "mlx5_core", false, "needs bind"}, []any{f["bdf"], f["name"], f["driver"], f["ready"], f["verdict"]})
	x := f["findings"].([]any)[0].(map[string]any)
	require.Equal(t, []any{"not-bound", "blocks", "mlxvfio bind " + testBDF}, []any{x["id"], x["severity"], x["remedy"]})

	// what it says to do is enough
	require.Equal(t, exitOK, cliOn(t, where, "bind", testBDF).code)
	o = cliOn(t, where, "doctor", testBDF)
	require.Equal(t, exitOK, o.code, o.err)
	require.Contains(t, o.out, testBDF+" ConnectX-5: ready\n")
	require.Empty(t, o.err)
	require.Regexp(t, `0000:3b:00\.0 +ConnectX-5 +PF +ready +type1 +vfio-pci `, cliOn(t, where, "list").out)
}

func TestDoctorAll(t *testing.T) {
	_, where := machine(t)
	o := cliOn(t, where, "doctor")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.err, "(3 of 3 functions cannot)")
	require.Contains(t, o.out, "0000:3b:00.1 ConnectX-5: needs bind, its interface down\n")
	require.Contains(t, o.out, "0000:3b:00.2 ConnectX-5 VF: needs an IOMMU, bind\n")
	require.NotContains(t, o.out, "0000:01:00.0")
	require.Contains(t, cliOn(t, where, "doctor", "--all").out, "0000:01:00.0 ConnectX-3: never: mlx4 card\n")
	require.Contains(t, cliOn(t, where, "doctor", "0000:01:00.0").out, "modprobe mlx4_core")
}

func TestDoctorNotFound(t *testing.T) {
	_, where := machine(t)
	refuses(t, cliOn(t, where, "doctor", "0000:ff:1f.7"), exitUnavailable, "no such PCI function", "mlxvfio list")
	refuses(t, cliOn(t, where, "doctor", "eth0"), exitUsage, "eth0")
	refuses(t, cliOn(t, pcitest.New(t).Options(), "doctor"), exitUnavailable, "no ConnectX function", "lspci")
	e := decodeOne(t, "error/1", cliOn(t, where, "doctor", testBDF, "--json").err)
	require.EqualValues(t, exitFailed, e["exit"])
	require.Equal(t, "mlxvfio bind "+testBDF, e["remedy"])
}

func TestDoctorNoIOMMU(t *testing.T) {
	m := pcitest.New(t)
	m.Write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
	m.Add(pcitest.Spec{BDF: testBDF})
	o := m.Options()
	require.NoError(t, o.FS.WriteAttr(m.Path(pcitest.Device(testBDF)+"/driver_override"), []byte("vfio-pci")))
	require.NoError(t, o.FS.WriteAttr(m.Path("sys/bus/pci/drivers_probe"), []byte(testBDF)))
	require.Contains(t, cliOn(t, o, "doctor").out, "needs an IOMMU")
	got := cliOn(t, o, "doctor", "--unsafe-noiommu")
	require.Equal(t, exitOK, got.code, got.err)
	require.Contains(t, got.out, "warning  "+string(pci.NoIOMMUMode))
}

// TestDoctorOfEachFakeMachine: what the library says comes out, as JSON and as
// text, with the exit code that belongs to it.
func TestDoctorOfEachFakeMachine(t *testing.T) {
	for _, c := range pcitest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			m, where := c.Build(t)
			args := []string{"doctor", pcitest.Patient}
			if where.UnsafeNoIOMMU {
				args = append(args, "--unsafe-noiommu")
			}
			if where.Backend != "" {
				args = append(args, "--backend", where.Backend)
			}
			o := cliOn(t, where, append(args, "--json")...)
			f := decodeOne(t, "doctor/1", o.out)["functions"].([]any)[0].(map[string]any)
			require.Equal(t, c.Verdict, f["verdict"])
			require.Equal(t, c.Verdict == "ready", f["ready"])
			if c.Way != "" {
				require.Equal(t, c.Way, f["backend"])
				require.NotEmpty(t, f["backend_reason"])
			}
			if c.Verdict == "ready" {
				require.Equal(t, exitOK, o.code)
				require.Empty(t, o.err)
			} else {
				require.Equal(t, exitFailed, o.code)
				e := decodeOne(t, "error/1", o.err)
				require.Contains(t, e["error"], c.Verdict)
				if slices.ContainsFunc(c.Want, func(id pci.FindingID) bool { return slices.Contains(beforeBind, id) }) {
					require.NotEqual(t, "mlxvfio bind "+pcitest.Patient, e["remedy"], "bind refuses")
				}
			}
			var got []pci.FindingID
			for _, x := range f["findings"].([]any) {
				x := x.(map[string]any)
				got = append(got, pci.FindingID(x["id"].(string)))
				require.NotEmpty(t, x["severity"])
				require.NotEmpty(t, x["seen"])
				require.NotEmpty(t, x["why"])
				require.NotEmpty(t, x["remedy"])
			}
			require.ElementsMatch(t, c.Want, got)
			text := cliOn(t, where, args...).out
			for _, id := range c.Want {
				require.Contains(t, text, " "+string(id)+": ")
			}
			require.Contains(t, text, m.At(c.Seen))
			require.Contains(t, text, m.At(c.Remedy))
			if c.Unseen != "" {
				require.Contains(t, text, "not seen: ")
			}
		})
	}
}
