package main

import (
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/stretchr/testify/require"
)

const testBDF = "0000:3b:00.0"

// machine has a ConnectX-5 on mlx5_core, one that shares its group, and a VF.
func machine(t *testing.T) (*pcitest.Tree, pci.Options) {
	m := pcitest.New(t)
	m.Add(pcitest.Spec{BDF: testBDF, Group: 7, Driver: "mlx5_core",
		Netdevs: []pcitest.Netdev{{Name: "eth0"}}, Infiniband: []string{"mlx5_0"}})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.1", Group: 8, Driver: "mlx5_core", Netdevs: []pcitest.Netdev{{Name: "eth1", Up: true}}})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.2", Device: 0x1018, PhysFn: testBDF})
	m.Add(pcitest.Spec{BDF: "0000:01:00.0", Device: 0x1003}) // a ConnectX-3
	return m, m.Options()
}

func TestList(t *testing.T) {
	_, where := machine(t)
	o := cliOn(t, where, "list")
	require.Equal(t, exitOK, o.code, o.err)
	require.Regexp(t, `0000:3b:00\.0 +ConnectX-5 +PF +needs bind +type1 +mlx5_core +7 +0 +8\.0 GT/s x16 +eth0 \(down\), mlx5_0\n`, o.out)
	require.Regexp(t, `0000:3b:00\.2 +ConnectX-5 VF +VF +needs an IOMMU, bind +- +- `, o.out)
	require.NotContains(t, o.out, "0000:01:00.0")
	require.Contains(t, cliOn(t, where, "list", "--all").out, "0000:01:00.0")

	got := decodeOne(t, "list/1", cliOn(t, where, "list", "--json").out)
	fns := got["functions"].([]any)
	require.Len(t, fns, 3)
	require.Equal(t, testBDF, fns[0].(map[string]any)["bdf"])
	require.Equal(t, "mlx5_core", fns[0].(map[string]any)["driver"])
	require.Equal(t, false, fns[0].(map[string]any)["ready"])
	require.Equal(t, "needs bind", fns[0].(map[string]any)["verdict"])
	require.Equal(t, []any{"not-bound"}, fns[0].(map[string]any)["findings"])
	require.Equal(t, "type1", fns[0].(map[string]any)["backend"])
	require.Contains(t, fns[0].(map[string]any)["backend_reason"], "no vfio-dev")
}

// TestListWays: which way an open goes shows for every function, bound or not.
func TestListWays(t *testing.T) {
	m := pcitest.New(t)
	m.IOMMUFD()
	m.Add(pcitest.Spec{BDF: testBDF, Group: 7, Driver: "vfio-pci", Override: "vfio-pci"})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.1", Group: 8, Driver: "vfio-pci", Override: "vfio-pci"})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.2", Group: 9, Driver: "mlx5_core"})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.3", Driver: "mlx5_core"})
	m.Remove("dev/vfio/devices/vfio1")
	o := cliOn(t, m.Options(), "list")
	require.Equal(t, exitOK, o.code, o.err)
	require.Regexp(t, `0000:3b:00\.0 .* ready +iommufd +vfio-pci`, o.out)
	require.Regexp(t, `0000:3b:00\.1 .* ready +type1 +vfio-pci`, o.out)
	require.Regexp(t, `0000:3b:00\.2 .* needs bind +iommufd +mlx5_core`, o.out)
	require.Regexp(t, `0000:3b:00\.3 .* needs an IOMMU, bind +- +mlx5_core`, o.out)
	f := decodeOne(t, "list/1", cliOn(t, m.Options(), "list", "--json").out)["functions"].([]any)[0].(map[string]any)
	vfio := f["vfio"].(map[string]any)
	require.Equal(t, map[string]any{"path": "/dev/vfio/devices/vfio0", "number": "511:0"}, vfio["cdev"])
	require.Equal(t, map[string]any{"path": "/dev/iommu", "number": "10:125"}, vfio["iommufd"])
	require.Equal(t, map[string]any{"path": "/dev/vfio/7", "number": "240:0"}, vfio["group"])
	doctor := cliOn(t, m.Options(), "doctor", "3b:00.1").out
	require.Contains(t, doctor, "0000:3b:00.1 ConnectX-5: ready\n  way      type1: /dev/vfio/devices/vfio1 is missing\n")
	require.Contains(t, cliOn(t, m.Options(), "doctor", "3b:00.3").out, "  way      none: no IOMMU is in charge")
	require.Contains(t, cliOn(t, m.Options(), "doctor", "3b:00.1", "--backend", "iommufd").out, "needs its /dev/vfio/devices node")
}

func TestBindNoIOMMU(t *testing.T) {
	m := pcitest.New(t)
	m.Add(pcitest.Spec{BDF: testBDF, Driver: "mlx5_core"})
	where := m.Options()
	const param = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
	refuses(t, cliOn(t, where, "bind", testBDF), exitUnavailable, "no IOMMU", "mlxvfio bind "+testBDF+" --unsafe-noiommu")
	require.Equal(t, "mlx5_core", m.State(testBDF).Driver)
	o := cliOn(t, where, "bind", testBDF, "--unsafe-noiommu")
	require.Equal(t, exitOK, o.code, o.err)
	require.Regexp(t, `^mlxvfio: warning: unsafe: no IOMMU guards 0000:3b:00\.0: .*overwrites this machine's memory.*tainted.*\n$`, o.err)
	require.Contains(t, o.out, "mlx5_core → vfio-pci, /dev/vfio/noiommu-900\n  in spite of: no IOMMU")
	require.Equal(t, "Y\n", m.Read(param), "each open needs it")
	require.Equal(t, exitOK, cliOn(t, where, "doctor", testBDF, "--unsafe-noiommu").code)
	require.Equal(t, exitFailed, cliOn(t, where, "doctor", testBDF).code)
	require.Equal(t, exitOK, cliOn(t, where, "unbind", testBDF).code)
	require.Equal(t, "mlx5_core", m.State(testBDF).Driver)
	require.Equal(t, "N\n", m.Read(param))

	o = cliOn(t, where, "bind", testBDF, "--unsafe-noiommu", "--json")
	require.Contains(t, decodeOne(t, "warning/1", o.err)["warning"], "no IOMMU guards")
	require.Len(t, decodeOne(t, "bind/1", o.out)["warnings"], 1)
}

func TestListEmpty(t *testing.T) {
	m := pcitest.New(t)
	require.Equal(t, outcome{out: "no ConnectX function on this machine\n"}, cliOn(t, m.Options(), "list"))
	o := cliOn(t, m.Options(), "list", "--json")
	require.Equal(t, []any{}, decodeOne(t, "list/1", o.out)["functions"])
}

func TestBindUnbind(t *testing.T) {
	m, where := machine(t)
	o := cliOn(t, where, "bind", "3b:00.0")
	require.Equal(t, exitOK, o.code, o.err)
	require.Contains(t, o.out, "0000:3b:00.0 ConnectX-5: mlx5_core → vfio-pci")
	require.Equal(t, "vfio-pci", m.State(testBDF).Driver)
	require.Contains(t, cliOn(t, where, "list").out, "unbind restores mlx5_core")

	require.Contains(t, cliOn(t, where, "bind", testBDF).out, "nothing to do")

	got := decodeOne(t, "unbind/1", cliOn(t, where, "unbind", testBDF, "--json").out)
	require.Equal(t, "vfio-pci", got["previous_driver"])
	require.Equal(t, "mlx5_core", got["driver"])
	require.Equal(t, "mlx5_core", m.State(testBDF).Driver)
	require.NotContains(t, cliOn(t, where, "list").out, "unbind restores")
}

func TestBindRefuses(t *testing.T) {
	m, where := machine(t)
	refuses(t, cliOn(t, where, "bind", "0000:3b:00.1"), exitUnavailable, "eth1", "in use")
	require.Equal(t, "mlx5_core", m.State("0000:3b:00.1").Driver)
	o := cliOn(t, where, "bind", "0000:3b:00.1", "--force")
	require.Equal(t, exitOK, o.code, o.err)
	require.Contains(t, o.out, "in spite of: ")
	refuses(t, cliOn(t, where, "bind", "0000:3b:00.2"), exitUnavailable, "IOMMU")
	refuses(t, cliOn(t, where, "bind", "0000:ff:1f.7"), exitUnavailable, "0000:ff:1f.7")
	refuses(t, cliOn(t, where, "bind", "0000:01:00.0"), exitUnsupported, "not an mlx5 function")
	refuses(t, cliOn(t, where, "bind", "eth0"), exitUsage, "eth0")
	refuses(t, cliOn(t, where, "unbind"), exitUsage, "usage: mlxvfio unbind BDF")
	e := decodeOne(t, "error/1", cliOn(t, where, "bind", "0000:ff:1f.7", "--json").err)
	require.EqualValues(t, exitUnavailable, e["exit"])
	require.Equal(t, "mlxvfio list", e["remedy"])
}

func TestOpenNamesTheReason(t *testing.T) {
	_, where := machine(t)
	refuses(t, cliOn(t, where, "info", testBDF), exitUnavailable, "mlx5_core", "mlxvfio bind "+testBDF)
	refuses(t, cliOn(t, where, "info", "0000:3b:00.2"), exitUnavailable, "no driver", "mlxvfio bind")
	refuses(t, cliOn(t, where, "info", "0000:01:00.0"), exitUnsupported, "not an mlx5 function")
	refuses(t, cliOn(t, where, "info", "0000:ff:1f.7"), exitUnavailable, "0000:ff:1f.7")
}

// TestInfoSysfs reads an initialization segment beside the driver that owns it.
func TestInfoSysfs(t *testing.T) {
	m, where := machine(t)
	bar := make([]byte, 64<<10)
	require.NoError(t, prm.Write(bar, prm.InitialSegStruct).
		Set("fw_rev_major", 16).Set("fw_rev_minor", 35).Set("fw_rev_subminor", 4030).Set("cmd_interface_rev", 5).
		Set("health_counter", 77).Err())
	m.Write(pcitest.Device(testBDF)+"/resource0", string(bar))
	config := make([]byte, pci.ConfigHeaderSize)
	copy(config, []byte{0xb3, 0x15, 0x17, 0x10, 2}) // memory decoding
	m.Write(pcitest.Device(testBDF)+"/config", string(config))

	o := cliOn(t, where, "info", "sysfs:"+testBDF)
	require.Equal(t, exitOK, o.code, o.err)
	require.Regexp(t, `firmware: +16\.35\.4030, command interface revision 5`, o.out)
	require.Contains(t, o.out, "ConnectX-5 (15b3:1017")
	require.Regexp(t, `health: +counter 77`, o.out)
	require.NotContains(t, o.out, "ISSI", "no command is sent")

	got := decodeOne(t, "info/1", cliOn(t, where, "info", "sysfs:"+testBDF, "--json").out)
	require.Equal(t, "16.35.4030", got["firmware"])
	require.NotContains(t, got, "hca")
	refuses(t, cliOn(t, where, "selftest", "sysfs:"+testBDF), exitUnsupported, "sysfs only reads", "mlxvfio bind "+testBDF)

	m.Write(pcitest.Device(testBDF)+"/power_state", "D3hot\n")
	refuses(t, cliOn(t, where, "info", "sysfs:"+testBDF), exitFailed, "D3hot", "mlxvfio info "+testBDF)
	m.Write(pcitest.Device(testBDF)+"/power_state", "D0\n")

	bar = append(bar[:0], make([]byte, 64<<10)...)
	for i := range bar {
		bar[i] = 0xff
	}
	m.Write(pcitest.Device(testBDF)+"/resource0", string(bar))
	refuses(t, cliOn(t, where, "info", "sysfs:"+testBDF), exitFailed, "all ones")
}
