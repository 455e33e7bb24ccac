package pci_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
)

const dev = "sys/bus/pci/devices/" + port

// sick is a tree that produces findings.
type sick struct {
	name string
	// spec changes the function, which is a ConnectX-5 with vfio-pci in group 31
	// otherwise; tree changes the machine after that.
	spec func(*pcitest.Spec)
	tree func(*pcitest.Tree)
	opt  func(*pci.Options)
	want []pci.FindingID // exactly these
	// seen and remedy are parts of the first finding wanted; $ is the tree's root.
	seen, remedy string
	verdict      string
	unseen       string
}

// mlx5 leaves the function with the kernel's driver.
func mlx5(s *pcitest.Spec) { s.Driver, s.Override = "mlx5_core", "" }

func attr(name, value string) func(*pcitest.Spec) {
	return func(s *pcitest.Spec) { s.Attrs = map[string]string{name: value} }
}

func file(name, content string) func(*pcitest.Tree) {
	return func(t *pcitest.Tree) { t.Write(name, content) }
}

func both(fns ...func(*pcitest.Tree)) func(*pcitest.Tree) {
	return func(t *pcitest.Tree) {
		for _, f := range fns {
			f(t)
		}
	}
}

func gone(name string) func(*pcitest.Tree) { return func(t *pcitest.Tree) { t.Remove(name) } }

func deny(name, errno string) func(*pcitest.Tree) {
	return func(t *pcitest.Tree) { t.Deny(name, errno) }
}

// noGroup: no driver and no IOMMU at all.
func noGroup(s *pcitest.Spec) { s.Driver, s.Override, s.Group = "", "", 0 }

// off is a machine without DMAR, of a CPU.
func off(cpu string) func(*pcitest.Tree) {
	return both(gone("sys/firmware/acpi/tables/DMAR"), file("proc/cpuinfo", cpu))
}

func sibling(s pcitest.Spec) func(*pcitest.Tree) {
	return func(t *pcitest.Tree) {
		t.Driver("nvme")
		s.Group = 31
		t.Add(s)
	}
}

const regions = "sys/kernel/iommu_groups/31/reserved_regions"

// noMSIX takes the MSI-X capability out of the list: the PCIe one links on.
func noMSIX() []byte {
	c := pcitest.ConfigSpace()
	c[0x49] = 0xc0 // VPD links to the gateway
	return c
}

func ones() []byte { return slices.Repeat([]byte{0xff}, 4096) }

func journalOf(driver string) string {
	return `{"schema":"mlxvfio.pci.journal/1","bdf":"` + port + `","vendor":5555,"device":4119,"driver":"` + driver +
		`","driver_override":"","target":"vfio-pci","time":"2026-01-02T03:04:05Z","pid":77}`
}

var sicknesses = []sick{
	{name: "another vendor", spec: func(s *pcitest.Spec) { s.Vendor, s.Device = 0x8086, 0x1572 }, want: []pci.FindingID{pci.NotMLX5},
		seen: "8086:1572 ($/" + dev + "/device)", remedy: "mlxvfio list", verdict: "never: not an mlx5 function"},
	{name: "a bridge of the vendor", spec: func(s *pcitest.Spec) { s.Device = 0x1976 }, want: []pci.FindingID{pci.NotMLX5},
		seen: "ConnectX-6 PCIe bridge", verdict: "never: not an mlx5 function"},
	{name: "ConnectX-3", spec: func(s *pcitest.Spec) { s.Device = 0x1003 }, want: []pci.FindingID{pci.MLX4},
		seen: "15b3:1003", remedy: "modprobe mlx4_core", verdict: "never: mlx4 card"},
	{name: "flash recovery", spec: func(s *pcitest.Spec) { s.Device = 0x020d }, want: []pci.FindingID{pci.FlashRecovery},
		seen: "15b3:020d ($/" + dev + "/device): ConnectX-5 flash recovery", remedy: "mstflint -d " + port, verdict: "needs firmware in its flash"},
	{name: "dead link", spec: func(s *pcitest.Spec) { s.Config = ones() }, want: []pci.FindingID{pci.AllOnesConfig},
		seen: "$/" + dev + "/config: 64 bytes 0xff", remedy: "echo 1 > $/" + dev + "/remove; echo 1 > $/sys/bus/pci/rescan", verdict: "needs a device that answers"},
	{name: "capability loop", spec: func(s *pcitest.Spec) { s.Config = pcitest.ConfigSpace(); s.Config[0x41] = 0x60 }, want: []pci.FindingID{pci.BadConfig},
		seen: "loops back to 0x60", remedy: "lspci -xxxx -s " + port, verdict: "ready"},
	{name: "no MSI-X", spec: func(s *pcitest.Spec) { s.Config = noMSIX() }, want: []pci.FindingID{pci.NoMSIX},
		seen: "none with id 0x11", remedy: "--polled", verdict: "needs MSI-X or --polled"},
	{name: "header only", spec: func(s *pcitest.Spec) { s.Config = pcitest.ConfigSpace()[:64] }, verdict: "ready", unseen: "capabilities in"},
	{name: "unreadable attribute", tree: func(t *pcitest.Tree) { t.Remove(dev + "/enable"); t.Mkdir(dev + "/enable") }, want: []pci.FindingID{pci.Unreadable},
		seen: "enable: is a directory", remedy: "dmesg | grep " + port, verdict: "ready"},
	{name: "stuck in D3hot", spec: attr("power_state", "D3hot\n"), tree: file(dev+"/power/runtime_status", "active\n"), want: []pci.FindingID{pci.StuckPower},
		seen: "$/" + dev + "/power_state is D3hot", remedy: "$/" + dev + "/remove", verdict: "needs power"},
	{name: "failed resume", tree: file(dev+"/power/runtime_status", "error\n"), want: []pci.FindingID{pci.StuckPower},
		seen: "runtime_status is error", verdict: "needs power"},
	{name: "asleep", spec: attr("power_state", "D3hot\n"), tree: file(dev+"/power/runtime_status", "suspended\n"), want: []pci.FindingID{pci.Asleep},
		seen: "D3hot", remedy: "echo on > $/" + dev + "/power/control", verdict: "ready"},
	{name: "asleep without power", spec: func(s *pcitest.Spec) {
		s.Attrs, s.Config = map[string]string{"power_state": "D3cold\n"}, ones()
	}, tree: file(dev+"/power/runtime_status", "suspended\n"), want: []pci.FindingID{pci.Asleep}, seen: "D3cold", verdict: "ready", unseen: "would wake"},
	{name: "BAR without address", spec: func(s *pcitest.Spec) { s.Resource = "0x0 0x1ffffff 0x14220c\n" }, want: []pci.FindingID{pci.NoBAR},
		seen: "$/" + dev + "/resource: BAR 0 has 33554432 bytes and address 0", remedy: "pci=realloc", verdict: "needs an address for BAR 0"},
	{name: "no BAR", spec: func(s *pcitest.Spec) { s.Resource = "0x0 0x0 0x0\n" }, want: []pci.FindingID{pci.NoBAR},
		seen: "no BAR 0", verdict: "needs an address for BAR 0"},

	{name: "VT-d not switched on", spec: noGroup, tree: file("proc/cmdline", "ro quiet\n"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		seen: "firmware offers VT-d", remedy: "--args=intel_iommu=on", verdict: "needs an IOMMU, bind"},
	{name: "VT-d switched off", spec: noGroup, tree: file("proc/cmdline", "intel_iommu=on intel_iommu=off\n"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		seen: "$/proc/cmdline has intel_iommu=off", remedy: "--remove-args=intel_iommu=off", verdict: "needs an IOMMU, bind"},
	{name: "VT-d on in vain", spec: noGroup, want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, seen: "in spite of intel_iommu=on", remedy: "dmesg | grep -i DMAR", verdict: "needs an IOMMU, bind"},
	{name: "VT-d off in firmware", spec: noGroup, tree: off("vendor_id : GenuineIntel\n"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		seen: "neither DMAR nor IVRS", remedy: "turn on VT-d", verdict: "needs an IOMMU, bind"},
	{name: "AMD-Vi off in firmware", spec: noGroup, tree: off("vendor_id : AuthenticAMD\n"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		seen: "neither DMAR nor IVRS", remedy: "turn on AMD-Vi", verdict: "needs an IOMMU, bind"},
	{name: "AMD-Vi failed", spec: noGroup, tree: both(off(""), file("sys/firmware/acpi/tables/IVRS", "IVRS")), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		seen: "AMD-Vi", remedy: "dmesg | grep -i AMD-Vi", verdict: "needs an IOMMU, bind"},
	{name: "no ACPI", spec: noGroup, tree: gone("sys/firmware"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, seen: "is empty", remedy: "smmu", verdict: "needs an IOMMU, bind"},
	{name: "others have groups", spec: noGroup, tree: func(t *pcitest.Tree) {
		t.Add(pcitest.Spec{BDF: "0000:01:00.0", Vendor: 0x144d, Device: 1, Group: 3})
	}, want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, seen: "has 1 groups of other functions", remedy: "dmesg", verdict: "needs an IOMMU, bind"},
	{name: "VM", spec: noGroup, tree: off("vendor_id : AuthenticAMD\nflags : fpu hypervisor\n"), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound, pci.VMWithoutIOMMU},
		seen: "iommu_group does not exist", verdict: "needs an IOMMU, bind"},
	{name: "VM, not x86", spec: noGroup, tree: both(off("BogoMIPS : 1\n"), file("sys/class/dmi/id/sys_vendor", "QEMU\n")), want: []pci.FindingID{pci.NoIOMMU, pci.NotBound, pci.VMWithoutIOMMU},
		verdict: "needs an IOMMU, bind"},
	{name: "no-IOMMU mode, not wanted", spec: func(s *pcitest.Spec) { s.Group = 0; s.Driver = "" }, tree: unsafeMode, want: []pci.FindingID{pci.NoIOMMU},
		seen: "iommu_groups/900/name is vfio-noiommu", verdict: "needs an IOMMU"},
	{name: "no-IOMMU mode, wanted", spec: func(s *pcitest.Spec) { s.Group = 0; s.Driver = "" }, tree: unsafeMode,
		opt: func(o *pci.Options) { o.UnsafeNoIOMMU = true }, want: []pci.FindingID{pci.NoIOMMUMode}, seen: "vfio-noiommu", remedy: "mlxvfio unbind", verdict: "ready"},
	{name: "sibling of another driver", tree: sibling(pcitest.Spec{BDF: "0000:3b:00.1", Vendor: 0x144d, Device: 1, Driver: "nvme"}), want: []pci.FindingID{pci.GroupNotViable},
		seen: "$/sys/kernel/iommu_groups/31/devices: 0000:3b:00.1 is with nvme", remedy: "echo 0000:3b:00.1 > $/sys/bus/pci/drivers/nvme/unbind",
		verdict: "needs its group's other functions off their drivers"},
	{name: "second port", tree: sibling(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core"}), want: []pci.FindingID{pci.GroupNotViable},
		remedy: "mlxvfio bind 0000:3b:00.1  #", verdict: "needs its group's other functions off their drivers"},
	{name: "two ports", spec: mlx5, tree: sibling(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core"}), want: []pci.FindingID{pci.GroupNotViable, pci.NotBound},
		remedy: "mlxvfio bind 0000:3b:00.1 --force", verdict: "needs its group's other functions off their drivers, bind"},
	{name: "bridge in the group", tree: sibling(pcitest.Spec{BDF: "0000:3a:00.0", Vendor: 0x8086, Device: 1, Class: 0x060400, Driver: "pcieport"}), verdict: "ready"},
	{name: "idle sibling", tree: sibling(pcitest.Spec{BDF: "0000:3b:00.1"}), want: []pci.FindingID{pci.GroupShared},
		seen: "0000:3b:00.1 (no driver)", remedy: "lspci -vvv -s " + port, verdict: "ready"},
	{name: "RMRR", tree: file(regions, "0x00000000000e8000 0x00000000000e8fff direct\n0x00000000fee00000 0x00000000feefffff msi\n"), want: []pci.FindingID{pci.ReservedDirect},
		seen: "$/" + regions + ": 0xe8000-0xe8fff direct", remedy: "RMRR", verdict: "needs no RMRR on it"},
	{name: "relaxable and reserved regions", tree: file(regions, "0x1000 0x1fff direct-relaxable\n0xfd00000000 0xffffffffff reserved\n"), want: []pci.FindingID{pci.ReservedOther},
		seen: "0x1000-0x1fff direct-relaxable, 0xfd00000000-0xffffffffff reserved", remedy: "cat $/" + regions, verdict: "ready"},
	{name: "no remapping", tree: both(file("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"), file("proc/cmdline", "intremap=off\n")), want: []pci.FindingID{pci.NoRemapping},
		seen: "$/proc/cmdline has intremap=off", remedy: "echo Y > $/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", verdict: "needs interrupt remapping"},
	{name: "no remapping, no module", tree: both(file("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"), gone("sys/module/vfio_iommu_type1")),
		want: []pci.FindingID{pci.NoRemapping, pci.ModuleMissing}, remedy: "modprobe vfio_iommu_type1 allow_unsafe_interrupts=1", verdict: "needs interrupt remapping, modprobe"},
	{name: "no remapping, allowed", tree: both(file("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"),
		file("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")), want: []pci.FindingID{pci.UnsafeRemapping}, seen: "is Y", remedy: "echo N", verdict: "ready"},
	{name: "GIC", tree: file("proc/interrupts", " 11:  7  GICv3 27 Level arch_timer\n"), verdict: "ready"},

	{name: "no vfio-pci", spec: mlx5, tree: both(gone("sys/bus/pci/drivers/vfio-pci"), gone("dev/vfio"), gone("sys/module/vfio_iommu_type1")), want: []pci.FindingID{pci.ModuleMissing, pci.NotBound},
		seen: "$/sys/bus/pci/drivers/vfio-pci, $/sys/module/vfio_iommu_type1", remedy: "modprobe -a vfio-pci vfio_iommu_type1", verdict: "needs modprobe, bind"},
	{name: "no type1", tree: gone("sys/module/vfio_iommu_type1"), want: []pci.FindingID{pci.ModuleMissing},
		seen: "vfio_iommu_type1", remedy: "modprobe -a vfio_iommu_type1", verdict: "needs modprobe"},
	{name: "bind cut off", spec: func(s *pcitest.Spec) { s.Driver = ""; s.Override = "vfio-pci" }, tree: file(journalFile, journalOf("mlx5_core")), want: []pci.FindingID{pci.InterruptedBind},
		seen: "process 77 was moving the function from mlx5_core to vfio-pci", remedy: "mlxvfio unbind " + port, verdict: "needs unbind (a bind was cut off)"},
	{name: "unbind cut off", spec: func(s *pcitest.Spec) { s.Override = "" }, tree: file(journalFile, journalOf("mlx5_core")), want: []pci.FindingID{pci.InterruptedUnbind},
		seen: "now it has vfio-pci", remedy: "mlxvfio unbind", verdict: "ready"},
	{name: "journal of this bind", tree: file(journalFile, journalOf("mlx5_core")), verdict: "ready"},
	{name: "journal damaged", tree: file(journalFile, "{"), want: []pci.FindingID{pci.JournalBad}, seen: "not a journal", remedy: "rm $/" + journalFile, verdict: "ready"},
	{name: "journal of another card", tree: file(journalFile, strings.ReplaceAll(journalOf("mlx5_core"), "4119", "4117")), want: []pci.FindingID{pci.JournalOld},
		seen: "15b3:1015", remedy: "rm $/" + journalFile, verdict: "ready"},
	{name: "journal left over", spec: mlx5, tree: file(journalFile, journalOf("mlx5_core")), want: []pci.FindingID{pci.NotBound, pci.JournalLeft}, verdict: "needs bind"},

	{name: "host driver", spec: mlx5, want: []pci.FindingID{pci.NotBound}, seen: "$/" + dev + "/driver is mlx5_core", remedy: "mlxvfio bind " + port, verdict: "needs bind"},
	{name: "no driver", spec: func(s *pcitest.Spec) { s.Driver, s.Override = "", "" }, want: []pci.FindingID{pci.NotBound}, seen: "no driver", verdict: "needs bind"},
	{name: "module's name as override", spec: func(s *pcitest.Spec) { s.Driver, s.Override = "", "vfio_pci" }, want: []pci.FindingID{pci.NotBound, pci.OverrideSpelling}, verdict: "needs bind"},
	{name: "variant driver", spec: func(s *pcitest.Spec) { s.Driver, s.Override = "mlx5_vfio_pci", "" },
		tree: gone("sys/bus/pci/drivers/vfio-pci"), verdict: "ready"},
	{name: "user", spec: mlx5, tree: deny(dev+"/driver_override", "EACCES"), want: []pci.FindingID{pci.NotBound, pci.BindPermission}, verdict: "needs bind, root"},
	{name: "container", spec: mlx5, tree: deny(dev+"/driver_override", "EROFS"), want: []pci.FindingID{pci.NotBound, pci.SysfsReadOnly}, verdict: "needs bind, a writable /sys"},
	{name: "interface up", spec: func(s *pcitest.Spec) { mlx5(s); s.Netdevs = []pcitest.Netdev{{Name: "p0", Up: true}} }, want: []pci.FindingID{pci.NotBound, pci.NetdevUp}, verdict: "needs bind, its interface down"},
	{name: "interface in a bond with routes", spec: func(s *pcitest.Spec) {
		mlx5(s)
		s.Netdevs = []pcitest.Netdev{{Name: "p0", Up: true, Master: "bond0", Uppers: []string{"bond0"}}}
	}, tree: file("proc/net/route", "bond0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"),
		want:    []pci.FindingID{pci.NotBound, pci.NetdevUp, pci.NetdevMember, pci.NetdevRoutes},
		verdict: "needs bind, its interface down, its interface out of the bond or bridge, its routes moved"},
	{name: "VFs", spec: func(s *pcitest.Spec) { mlx5(s); s.NumVFs, s.Total = 2, 8 }, want: []pci.FindingID{pci.NotBound, pci.VFsEnabled}, verdict: "needs bind, its VFs off"},
	{name: "VFs of a bound function", spec: func(s *pcitest.Spec) { s.NumVFs, s.Total = 2, 8 }, want: []pci.FindingID{pci.VFsOnVFIO},
		seen: "$/" + dev + "/sriov_numvfs is 2", remedy: "echo 0 > $/" + dev + "/sriov_numvfs", verdict: "ready"},
	{name: "VF of a bound function", spec: func(s *pcitest.Spec) { s.Device, s.PhysFn = 0x1018, "0000:3b:00.1" },
		tree: func(t *pcitest.Tree) {
			t.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "vfio-pci", Override: "vfio-pci", Group: 32})
		}, want: []pci.FindingID{pci.VFToken}, seen: "0000:3b:00.1/driver is vfio-pci", remedy: "mlxvfio unbind 0000:3b:00.1", verdict: "needs its PF off vfio-pci"},
	{name: "VF of a host function", spec: func(s *pcitest.Spec) { s.Device, s.PhysFn = 0x1018, "0000:3b:00.1" },
		tree: func(t *pcitest.Tree) {
			t.Add(pcitest.Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 32})
		}, verdict: "ready"},

	{name: "no container node", tree: gone("dev/vfio/vfio"), want: []pci.FindingID{pci.ContainerMissing}, seen: "$/dev/vfio/vfio: no such file", remedy: "mknod -m 666 $/dev/vfio/vfio c 10 196", verdict: "needs /dev/vfio/vfio"},
	{name: "container node denied", tree: deny("dev/vfio/vfio", "EACCES"), want: []pci.FindingID{pci.ContainerPermission}, seen: "permission denied", remedy: "sudo chmod 666", verdict: "needs permission"},
	{name: "no group node", tree: gone("dev/vfio/31"), want: []pci.FindingID{pci.NodeMissing}, seen: "class/vfio/31/dev is 240:0", remedy: "mknod -m 600 $/dev/vfio/31 c 240 0", verdict: "needs its /dev/vfio node"},
	{name: "no group node, no number", tree: both(gone("dev/vfio/31"), gone("sys/class/vfio/31")), want: []pci.FindingID{pci.NodeMissing}, remedy: "udevadm trigger", verdict: "needs its /dev/vfio node"},
	{name: "node of another group", tree: func(t *pcitest.Tree) { t.Node("dev/vfio/31", 240, 5) }, want: []pci.FindingID{pci.NodeStale}, seen: "is device 240:5", remedy: "rm $/dev/vfio/31; mknod", verdict: "needs its /dev/vfio node"},
	{name: "right node", tree: func(t *pcitest.Tree) { t.Node("dev/vfio/31", 240, 0) }, verdict: "ready"},
	{name: "group node denied", tree: deny("dev/vfio/31", "EACCES"), want: []pci.FindingID{pci.NodePermission}, seen: "permission denied", remedy: "sudo chown", verdict: "needs permission"},
	{name: "another user", tree: func(t *pcitest.Tree) { t.Opens(4711, "testpmd", "/dev/vfio/31"); t.Opens(4712, "cat", "/dev/null") }, want: []pci.FindingID{pci.Busy},
		seen: "process 4711 (testpmd) has /dev/vfio/31 open", remedy: "kill 4711", verdict: "needs its other user gone"},
	{name: "little memlock", tree: func(t *pcitest.Tree) { t.Process(1000, "65536", "65536") }, want: []pci.FindingID{pci.MemlockSmall},
		seen: "$/proc/self/limits: Max locked memory 65536 bytes", remedy: "sudo prlimit --memlock=67108864:67108864 --pid $$", verdict: "needs memlock"},
	{name: "little memlock, more allowed", tree: func(t *pcitest.Tree) { t.Process(1000, "65536", "unlimited") }, want: []pci.FindingID{pci.MemlockSmall},
		remedy: "ulimit -l 65536 ", verdict: "needs memlock"},
	{name: "some memlock", tree: func(t *pcitest.Tree) { t.Process(1000, "8388608", "8388608") }, want: []pci.FindingID{pci.MemlockTight}, seen: "8388608", verdict: "ready"},
	{name: "some memlock, in use", tree: func(t *pcitest.Tree) {
		t.Process(1000, "8388608", "8388608")
		t.Write("proc/self/status", strings.Replace(t.Read("proc/self/status"), "       0 kB", "    4096 kB", 1))
	}, want: []pci.FindingID{pci.MemlockSmall}, seen: "4194304 are locked", verdict: "needs memlock"},
	{name: "unlimited memlock", tree: func(t *pcitest.Tree) { t.Process(1000, "unlimited", "unlimited") }, verdict: "ready"},
	{name: "root's memlock", tree: func(t *pcitest.Tree) { t.Process(0, "65536", "65536") }, verdict: "ready"},

	{name: "lockdown", tree: file("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"), want: []pci.FindingID{pci.Lockdown}, seen: "lockdown: [integrity]", remedy: "mlxvfio info " + port, verdict: "ready"},
	{name: "no lockdown", tree: file("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"), verdict: "ready"},
	{name: "Secure Boot", tree: file(secureBoot, "\x06\x00\x00\x00\x01"), want: []pci.FindingID{pci.SecureBoot}, seen: "is 1", remedy: "mokutil --sb-state", verdict: "ready"},
	{name: "no Secure Boot", tree: file(secureBoot, "\x06\x00\x00\x00\x00"), verdict: "ready"},
	{name: "healthy", verdict: "ready"},
}

const secureBoot = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// unsafeMode binds the function in no-IOMMU mode: the kernel makes up a group.
func unsafeMode(t *pcitest.Tree) {
	t.Write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
	o := t.Options()
	if err := o.FS.WriteAttr(t.Path("sys/bus/pci/drivers_probe"), []byte(port)); err != nil {
		panic(err)
	}
}

func (s sick) build(t *testing.T) (*pcitest.Tree, pci.Options) {
	tr := pcitest.New(t)
	tr.Driver("mlx5_vfio_pci")
	spec := pcitest.Spec{BDF: port, Driver: "vfio-pci", Override: "vfio-pci", Group: 31, Config: pcitest.ConfigSpace()}
	if s.spec != nil {
		s.spec(&spec)
	}
	tr.Add(spec)
	if s.tree != nil {
		s.tree(tr)
	}
	o := tr.Options()
	if s.opt != nil {
		s.opt(&o)
	}
	return tr, o
}

// readOnly fails the test on every call that changes something.
type readOnly struct {
	pci.FS
	t *testing.T
}

func (r readOnly) no(what, name string) error {
	r.t.Errorf("the doctor must only read, and wants to %s %s", what, name)
	return fs.ErrPermission
}
func (r readOnly) WriteAttr(n string, _ []byte) error                { return r.no("write", n) }
func (r readOnly) MkdirAll(n string, _ fs.FileMode) error            { return r.no("make", n) }
func (r readOnly) WriteSync(n string, _ []byte, _ fs.FileMode) error { return r.no("write", n) }
func (r readOnly) Rename(n, _ string) error                          { return r.no("rename", n) }
func (r readOnly) Remove(n string) error                             { return r.no("remove", n) }

func ids(d *pci.Diagnosis) (out []pci.FindingID) {
	for _, f := range d.Findings {
		out = append(out, f.ID)
	}
	return out
}

func severity(id pci.FindingID) pci.Severity {
	for _, f := range pci.Findings() {
		if f.ID == id {
			return f.Severity
		}
	}
	return ""
}

// Each tree produces its findings and no other, with what was seen, why it
// matters, and a remedy that a shell understands.
func TestDiagnose(t *testing.T) {
	for _, s := range sicknesses {
		t.Run(s.name, func(t *testing.T) {
			tr, o := s.build(t)
			o.FS = readOnly{o.FS, t}
			d, err := pci.Diagnose(bdf(t, port), o)
			require.NoError(t, err)
			require.ElementsMatch(t, s.want, ids(d), "%+v", d.Findings)
			require.Equal(t, s.verdict, d.Verdict())
			blocks := slices.ContainsFunc(s.want, func(id pci.FindingID) bool { return severity(id) == pci.Blocks })
			require.Equal(t, !blocks, d.Ready())
			require.Equal(t, blocks, len(d.Needs()) > 0)
			if s.unseen == "" {
				require.Empty(t, d.Unseen)
			} else {
				require.Contains(t, strings.Join(d.Unseen, "\n"), s.unseen)
			}
			for i, f := range d.Findings {
				require.NotEmpty(t, f.Seen)
				require.NotEmpty(t, f.Why)
				require.NotContains(t, f.Seen+f.Remedy, "\n")
				requireShell(t, f.Remedy)
				if i > 0 {
					require.False(t, f.Severity == pci.Blocks && d.Findings[i-1].Severity != pci.Blocks, "what blocks comes first: %v", ids(d))
				}
			}
			if s.seen == "" && s.remedy == "" {
				return
			}
			i := slices.IndexFunc(d.Findings, func(f pci.Finding) bool { return f.ID == s.want[0] })
			require.Contains(t, d.Findings[i].Seen, strings.ReplaceAll(s.seen, "$/", tr.Root+"/"))
			require.Contains(t, d.Findings[i].Remedy, strings.ReplaceAll(s.remedy, "$/", tr.Root+"/"))
		})
	}
}

// requireShell: a remedy is a command line.
func requireShell(t *testing.T, remedy string) {
	t.Helper()
	command, _, _ := strings.Cut(remedy, "  # ")
	require.NotEmpty(t, strings.TrimSpace(command), remedy)
	out, err := exec.Command("sh", "-n", "-c", remedy).CombinedOutput()
	require.NoError(t, err, "%s: %s", remedy, out)
	require.Regexp(t, `^[a-z0-9_-]+ `, command, "a command and its arguments")
}

// Every finding of the catalogue has a tree that produces it, and its words.
func TestEveryFindingIsProduced(t *testing.T) {
	produced := map[pci.FindingID]bool{}
	for _, s := range sicknesses {
		for _, id := range s.want {
			produced[id] = true
		}
	}
	seen := map[pci.FindingID]bool{}
	for _, f := range pci.Findings() {
		require.True(t, produced[f.ID], "no tree produces %s", f.ID)
		require.False(t, seen[f.ID], "%s stands twice", f.ID)
		seen[f.ID] = true
		require.NotEmpty(t, f.Title, f.ID)
		require.NotEmpty(t, f.Why, f.ID)
		require.Equal(t, f.Severity == pci.Blocks, f.Need != "", "%s: what blocks needs something", f.ID)
		require.Regexp(t, `^[a-z0-9-]+$`, string(f.ID))
	}
	require.Len(t, seen, len(produced), "a finding that is not in the catalogue")
	// every constant is in the catalogue
	src, err := os.ReadFile("findings.go")
	require.NoError(t, err)
	consts := regexp.MustCompile(`FindingID = "([a-z0-9-]+)"`).FindAllStringSubmatch(string(src), -1)
	require.Len(t, consts, len(seen))
	for _, c := range consts {
		require.True(t, seen[pci.FindingID(c[1])], c[1])
	}
}

// The facts that programs want come as data, too.
func TestDiagnoseData(t *testing.T) {
	get := func(name string) *pci.Diagnosis {
		i := slices.IndexFunc(sicknesses, func(s sick) bool { return s.name == name })
		_, o := sicknesses[i].build(t)
		d, err := pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		return d
	}
	require.Equal(t, []pci.Holder{{PID: 4711, Comm: "testpmd", Node: "/dev/vfio/31"}}, get("another user").Findings[0].Holders)
	require.Equal(t, []pci.Member{{BDF: bdf(t, "3b:00.1"), Driver: "nvme", Class: 0x020000, Vendor: 0x144d, Device: 1}},
		get("sibling of another driver").Findings[0].Siblings)
	require.True(t, get("little memlock").Findings[0].Machine)
	require.False(t, get("host driver").Findings[0].Machine)
}

func TestDiagnoseNotFound(t *testing.T) {
	tr := onePort(t)
	_, err := pci.Diagnose(bdf(t, "ff:1f.7"), tr.Options())
	require.ErrorIs(t, err, pci.ErrNotFound)
}

// hiding refuses what a user other than root is refused.
type hiding struct {
	pci.FS
	hide string
}

func (h hiding) ReadDir(name string) ([]fs.DirEntry, error) {
	if ok, err := filepath.Match(h.hide, name); err != nil || ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return h.FS.ReadDir(name)
}

func (h hiding) ReadFile(name string) ([]byte, error) {
	if ok, err := filepath.Match(h.hide, name); err != nil || ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return h.FS.ReadFile(name)
}

// What a process may not look at is no finding, and is said.
func TestDiagnoseUnseen(t *testing.T) {
	tr := bound(t)
	tr.Opens(4711, "testpmd", "/dev/vfio/31")
	for _, x := range []struct{ hide, says string }{
		{tr.Path("proc/*/fd"), "open files of 1 processes"},
		{tr.Path(journalFile), "the journal"},
	} {
		o := tr.Options()
		o.FS = hiding{o.FS, x.hide}
		d, err := pci.Diagnose(bdf(t, port), o)
		require.NoError(t, err)
		require.Len(t, d.Unseen, 1)
		require.Contains(t, d.Unseen[0], x.says)
	}
}

// All functions in one go; the machine's files are read once, whatever their number.
func TestDiagnoseAll(t *testing.T) {
	tr := machine(t)
	ds, err := pci.DiagnoseAll(context.Background(), tr.Options())
	require.NoError(t, err)
	got := map[string]string{}
	for _, d := range ds {
		got[d.Function.BDF.String()] = d.Verdict()
	}
	require.Equal(t, map[string]string{
		"0000:3b:00.0": "needs bind, its interface down, its interface out of the bond or bridge, its VFs off",
		"0000:3b:00.1": "needs bind",
		"0000:3b:00.2": "ready",
		"0000:5e:00.0": "never: mlx4 card",
		"0001:00:00.0": "needs firmware in its flash",
	}, got)

	reads := func(n int) int {
		tr := pcitest.New(t)
		for i := range n {
			tr.Add(pcitest.Spec{BDF: "0000:3b:00." + strconv.Itoa(i), Driver: "vfio-pci", Override: "vfio-pci", Group: 31 + i})
		}
		tr.Opens(4711, "testpmd", "/dev/vfio/31")
		c := &counting{FS: tr.Options().FS}
		o := tr.Options()
		o.FS = c
		_, err := pci.DiagnoseAll(context.Background(), o)
		require.NoError(t, err)
		return c.n["fd"]
	}
	fds := reads(4)
	require.Equal(t, 1, fds, "/proc is searched once")
}

// counting counts reads by the last element of the name.
type counting struct {
	pci.FS
	n map[string]int
}

func (c *counting) ReadDir(name string) ([]fs.DirEntry, error) {
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[filepath.Base(name)]++
	return c.FS.ReadDir(name)
}
