package pcitest

import (
	"slices"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/pci"
)

// Patient is the address of the function that the doctor is asked about.
const Patient = "0000:3b:00.0"

const (
	patient        = "sys/bus/pci/devices/" + Patient
	patientJournal = "run/mlxvfio/" + Patient + ".json"
)

// Case is a fake machine for the doctor, and what it must say of Patient there.
type Case struct {
	Name string
	// kernel changes the machine before the function is there; spec changes the function, which is a ConnectX-5 with vfio-pci in group 31
	// otherwise; tree changes the machine after that.
	kernel func(*Tree)
	spec   func(*Spec)
	tree   func(*Tree)
	opt    func(*pci.Options)
	// Want are exactly the findings, in any order.
	Want []pci.FindingID
	// Seen and Remedy are parts of the first finding wanted, "" for any; $/ is the
	// tree's root.
	Seen, Remedy string
	// Verdict is the whole one, Unseen a part of what was not looked at. Way is the
	// backend of an open, where the case is about that.
	Verdict string
	Unseen  string
	Way     string
}

// mlx5 leaves the function with the kernel's driver.
func mlx5(s *Spec) { s.Driver, s.Override = "mlx5_core", "" }

func attr(name, value string) func(*Spec) {
	return func(s *Spec) { s.Attrs = map[string]string{name: value} }
}

func with(name, content string) func(*Tree) {
	return func(t *Tree) { t.Write(name, content) }
}

func all(fns ...func(*Tree)) func(*Tree) {
	return func(t *Tree) {
		for _, f := range fns {
			f(t)
		}
	}
}

func gone(name string) func(*Tree) { return func(t *Tree) { t.Remove(name) } }

func deny(name, errno string) func(*Tree) {
	return func(t *Tree) { t.Deny(name, errno) }
}

// noGroup: no driver and no IOMMU at all.
func noGroup(s *Spec) { s.Driver, s.Override, s.Group = "", "", 0 }

// off is a machine without DMAR, of a CPU.
func off(cpu string) func(*Tree) {
	return all(gone("sys/firmware/acpi/tables/DMAR"), with("proc/cpuinfo", cpu))
}

func sibling(s Spec) func(*Tree) {
	return func(t *Tree) {
		t.Driver("nvme")
		s.Group = 31
		t.Add(s)
	}
}

const regions = "sys/kernel/iommu_groups/31/reserved_regions"

// noMSIX takes the MSI-X capability out of the list: the PCIe one links on.
func noMSIX() []byte {
	c := ConfigSpace()
	c[0x49] = 0xc0 // VPD links to the gateway
	return c
}

// payload is a configuration space with a value of DevCtl.
func payload(devctl uint16) []byte {
	c := ConfigSpace()
	c[0x68], c[0x69] = byte(devctl), byte(devctl>>8)
	return c
}

const upstream = "0000:3a:00.0"

// port is a port above with a value of DevCtl.
func port(devctl uint16) func(*Tree) {
	return func(t *Tree) {
		t.Add(Spec{BDF: upstream, Vendor: 0x8086, Device: 0x2030, Class: 0x060400, Driver: "pcieport", Config: payload(devctl)})
	}
}

func under(s *Spec) { s.Bridge = upstream }

func ones() []byte { return slices.Repeat([]byte{0xff}, 4096) }

func journalOf(driver string) string {
	return `{"schema":"mlxvfio.pci.journal/1","bdf":"` + Patient + `","vendor":5555,"device":4119,"driver":"` + driver +
		`","driver_override":"","target":"vfio-pci","time":"2026-01-02T03:04:05Z","pid":77}`
}

// Cases are all of them. Every finding of the catalogue is in one at least.
func Cases() []Case { return slices.Concat(cases, wayCases, noIOMMUCases) }

var cases = []Case{
	{Name: "another vendor", spec: func(s *Spec) { s.Vendor, s.Device = 0x8086, 0x1572 }, Want: []pci.FindingID{pci.NotMLX5},
		Seen: "8086:1572 ($/" + patient + "/device)", Remedy: "mlxvfio list", Verdict: "never: not an mlx5 function"},
	{Name: "a bridge of the vendor", spec: func(s *Spec) { s.Device = 0x1976 }, Want: []pci.FindingID{pci.NotMLX5},
		Seen: "ConnectX-6 PCIe bridge", Verdict: "never: not an mlx5 function"},
	{Name: "ConnectX-3", spec: func(s *Spec) { s.Device = 0x1003 }, Want: []pci.FindingID{pci.MLX4},
		Seen: "15b3:1003", Remedy: "modprobe mlx4_core", Verdict: "never: mlx4 card"},
	{Name: "flash recovery", spec: func(s *Spec) { s.Device = 0x020d }, Want: []pci.FindingID{pci.FlashRecovery},
		Seen: "15b3:020d ($/" + patient + "/device): ConnectX-5 flash recovery", Remedy: "mstflint -d " + Patient, Verdict: "needs firmware in its flash"},
	{Name: "dead link", spec: func(s *Spec) { s.Config = ones() }, Want: []pci.FindingID{pci.AllOnesConfig},
		Seen: "$/" + patient + "/config: 64 bytes 0xff", Remedy: "echo 1 > $/" + patient + "/remove; echo 1 > $/sys/bus/pci/rescan", Verdict: "needs a device that answers"},
	{Name: "capability loop", spec: func(s *Spec) { s.Config = ConfigSpace(); s.Config[0x41] = 0x60 }, Want: []pci.FindingID{pci.BadConfig},
		Seen: "loops back to 0x60", Remedy: "lspci -xxxx -s " + Patient, Verdict: "ready"},
	{Name: "no MSI-X", spec: func(s *Spec) { s.Config = noMSIX() }, Want: []pci.FindingID{pci.NoMSIX},
		Seen: "none with id 0x11", Remedy: "--polled", Verdict: "needs MSI-X or --polled"},
	{Name: "header only", spec: func(s *Spec) { s.Config = ConfigSpace()[:64] }, Verdict: "ready", Unseen: "capabilities in"},
	{Name: "unreadable attribute", tree: func(t *Tree) { t.Remove(patient + "/enable"); t.Mkdir(patient + "/enable") }, Want: []pci.FindingID{pci.Unreadable},
		Seen: "enable: is a directory", Remedy: "dmesg | grep " + Patient, Verdict: "ready"},
	{Name: "stuck in D3hot", spec: attr("power_state", "D3hot\n"), tree: with(patient+"/power/runtime_status", "active\n"), Want: []pci.FindingID{pci.StuckPower},
		Seen: "$/" + patient + "/power_state is D3hot", Remedy: "$/" + patient + "/remove", Verdict: "needs power"},
	{Name: "failed resume", tree: with(patient+"/power/runtime_status", "error\n"), Want: []pci.FindingID{pci.StuckPower},
		Seen: "runtime_status is error", Verdict: "needs power"},
	{Name: "asleep", spec: attr("power_state", "D3hot\n"), tree: with(patient+"/power/runtime_status", "suspended\n"), Want: []pci.FindingID{pci.Asleep},
		Seen: "D3hot", Remedy: "echo on > $/" + patient + "/power/control", Verdict: "ready"},
	{Name: "asleep without power", spec: func(s *Spec) {
		s.Attrs, s.Config = map[string]string{"power_state": "D3cold\n"}, ones()
	}, tree: with(patient+"/power/runtime_status", "suspended\n"), Want: []pci.FindingID{pci.Asleep}, Seen: "D3cold", Verdict: "ready", Unseen: "would wake"},
	{Name: "narrow link", spec: attr("current_link_width", "4\n"), Want: []pci.FindingID{pci.LinkDegraded},
		Seen: "8.0 GT/s PCIe x4 of 8.0 GT/s PCIe x16", Remedy: "lspci -vv -s " + Patient, Verdict: "ready"},
	{Name: "large packets", kernel: port(0x2816), spec: under, Want: []pci.FindingID{pci.PayloadSize},
		Seen: "$/" + patient + "/config: up to 256 bytes a packet, $/sys/bus/pci/devices/0000:3a:00.0/config: 128", Remedy: "setpci -s " + Patient + " CAP_EXP+8.w=0:e0", Verdict: "ready"},
	{Name: "equal packets", kernel: port(0x2836), spec: under, Verdict: "ready"},
	{Name: "smaller packets", kernel: port(0x2856), spec: under, Verdict: "ready"},
	{Name: "packets of larger function", kernel: port(0x2836), spec: func(s *Spec) { under(s); s.Config = payload(0x2956) }, Want: []pci.FindingID{pci.PayloadSize},
		Seen: "up to 512 bytes", Remedy: "CAP_EXP+8.w=20:e0", Verdict: "ready"},
	{Name: "no reset", spec: attr("reset_method", "\n"), Want: []pci.FindingID{pci.NoReset},
		Seen: "$/" + patient + "/reset_method is empty", Remedy: "echo default > $/" + patient + "/reset_method", Verdict: "ready"},
	{Name: "kernel without reset methods", tree: gone(patient + "/reset_method"), Verdict: "ready"},
	{Name: "BAR without address", spec: func(s *Spec) { s.Resource = "0x0 0x1ffffff 0x14220c\n" }, Want: []pci.FindingID{pci.NoBAR},
		Seen: "$/" + patient + "/resource: BAR 0 has 33554432 bytes and address 0", Remedy: "pci=realloc", Verdict: "needs an address for BAR 0"},
	{Name: "no BAR", spec: func(s *Spec) { s.Resource = "0x0 0x0 0x0\n" }, Want: []pci.FindingID{pci.NoBAR},
		Seen: "no BAR 0", Verdict: "needs an address for BAR 0"},

	{Name: "VT-d not switched on", spec: noGroup, tree: with("proc/cmdline", "ro quiet\n"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		Seen: "firmware offers VT-d", Remedy: "--args=intel_iommu=on", Verdict: "needs an IOMMU, bind"},
	{Name: "VT-d switched off", spec: noGroup, tree: with("proc/cmdline", "intel_iommu=on intel_iommu=off\n"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		Seen: "$/proc/cmdline has intel_iommu=off", Remedy: "--remove-args=intel_iommu=off", Verdict: "needs an IOMMU, bind"},
	{Name: "VT-d on in vain", spec: noGroup, Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, Seen: "in spite of intel_iommu=on", Remedy: "dmesg | grep -i DMAR", Verdict: "needs an IOMMU, bind"},
	{Name: "VT-d off in firmware", spec: noGroup, tree: off("vendor_id : GenuineIntel\n"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		Seen: "neither DMAR nor IVRS", Remedy: "turn on VT-d", Verdict: "needs an IOMMU, bind"},
	{Name: "AMD-Vi off in firmware", spec: noGroup, tree: off("vendor_id : AuthenticAMD\n"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		Seen: "neither DMAR nor IVRS", Remedy: "turn on AMD-Vi", Verdict: "needs an IOMMU, bind"},
	{Name: "AMD-Vi failed", spec: noGroup, tree: all(off(""), with("sys/firmware/acpi/tables/IVRS", "IVRS")), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound},
		Seen: "AMD-Vi", Remedy: "dmesg | grep -i AMD-Vi", Verdict: "needs an IOMMU, bind"},
	{Name: "no ACPI", spec: noGroup, tree: gone("sys/firmware"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, Seen: "is empty", Remedy: "smmu", Verdict: "needs an IOMMU, bind"},
	{Name: "others have groups", spec: noGroup, tree: func(t *Tree) {
		t.Add(Spec{BDF: "0000:01:00.0", Vendor: 0x144d, Device: 1, Group: 3})
	}, Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, Seen: "has 1 groups of other functions", Remedy: "dmesg", Verdict: "needs an IOMMU, bind"},
	{Name: "VM", spec: noGroup, tree: off("vendor_id : AuthenticAMD\nflags : fpu hypervisor\n"), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound, pci.VMWithoutIOMMU},
		Seen: "iommu_group does not exist", Remedy: "-device intel-iommu,intremap=on", Verdict: "needs an IOMMU, bind"},
	{Name: "VM, not x86", spec: noGroup, tree: all(off("BogoMIPS : 1\n"), with("sys/class/dmi/id/sys_vendor", "QEMU\n")), Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound, pci.VMWithoutIOMMU},
		Remedy: "qemu-system-aarch64", Verdict: "needs an IOMMU, bind"},
	{Name: "sibling of another driver", tree: sibling(Spec{BDF: "0000:3b:00.1", Vendor: 0x144d, Device: 1, Driver: "nvme"}), Want: []pci.FindingID{pci.GroupNotViable},
		Seen: "$/sys/kernel/iommu_groups/31/devices: 0000:3b:00.1 is with nvme", Remedy: "echo 0000:3b:00.1 > $/sys/bus/pci/drivers/nvme/unbind",
		Verdict: "needs its group's other functions off their drivers"},
	{Name: "second port", tree: sibling(Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core"}), Want: []pci.FindingID{pci.GroupNotViable},
		Remedy: "mlxvfio bind 0000:3b:00.1  #", Verdict: "needs its group's other functions off their drivers"},
	{Name: "two ports", spec: mlx5, tree: sibling(Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core"}), Want: []pci.FindingID{pci.GroupNotViable, pci.NotBound},
		Remedy: "mlxvfio bind 0000:3b:00.1 --force", Verdict: "needs its group's other functions off their drivers, bind"},
	{Name: "bridge in the group", tree: sibling(Spec{BDF: "0000:3a:00.0", Vendor: 0x8086, Device: 1, Class: 0x060400, Driver: "pcieport"}), Verdict: "ready"},
	{Name: "idle sibling", tree: sibling(Spec{BDF: "0000:3b:00.1"}), Want: []pci.FindingID{pci.GroupShared},
		Seen: "0000:3b:00.1 (no driver)", Remedy: "lspci -vvv -s " + Patient, Verdict: "ready"},
	{Name: "RMRR", tree: with(regions, "0x00000000000e8000 0x00000000000e8fff direct\n0x00000000fee00000 0x00000000feefffff msi\n"), Want: []pci.FindingID{pci.ReservedDirect},
		Seen: "$/" + regions + ": 0xe8000-0xe8fff direct", Remedy: "RMRR", Verdict: "needs no RMRR on it"},
	{Name: "relaxable and reserved regions", tree: with(regions, "0x1000 0x1fff direct-relaxable\n0xfd00000000 0xffffffffff reserved\n"), Want: []pci.FindingID{pci.ReservedOther},
		Seen: "0x1000-0x1fff direct-relaxable, 0xfd00000000-0xffffffffff reserved", Remedy: "cat $/" + regions, Verdict: "ready"},
	{Name: "narrow IOMMU", tree: with(patient+"/iommu/intel-iommu/cap", "d2008c22260286\n"), Want: []pci.FindingID{pci.NarrowIOMMU},
		Seen: "addresses of 39 bits", Remedy: "cat $/" + patient + "/iommu/intel-iommu/cap", Verdict: "ready"},
	{Name: "wide IOMMU", tree: with(patient+"/iommu/intel-iommu/cap", "d2008c222f0686\n"), Verdict: "ready"},
	{Name: "no remapping", tree: all(with("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"), with("proc/cmdline", "intremap=off\n")), Want: []pci.FindingID{pci.NoRemapping},
		Seen: "$/proc/cmdline has intremap=off", Remedy: "echo Y > $/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", Verdict: "needs interrupt remapping"},
	{Name: "no remapping, no module", tree: all(with("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"), gone("sys/module/vfio_iommu_type1")),
		Want: []pci.FindingID{pci.NoRemapping, pci.ModuleMissing}, Remedy: "modprobe vfio_iommu_type1 allow_unsafe_interrupts=1", Verdict: "needs interrupt remapping, modprobe"},
	{Name: "no remapping, allowed", tree: all(with("proc/interrupts", "  0:  7  IO-APIC 2-edge timer\n"),
		with("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")), Want: []pci.FindingID{pci.UnsafeRemapping}, Seen: "is Y", Remedy: "echo N", Verdict: "ready"},
	{Name: "GIC", tree: with("proc/interrupts", " 11:  7  GICv3 27 Level arch_timer\n"), Verdict: "ready"},

	{Name: "no vfio-pci", spec: mlx5, tree: all(gone("sys/bus/pci/drivers/vfio-pci"), gone("dev/vfio"), gone("sys/module/vfio_iommu_type1")), Want: []pci.FindingID{pci.ModuleMissing, pci.NotBound},
		Seen: "$/sys/bus/pci/drivers/vfio-pci, $/sys/module/vfio_iommu_type1", Remedy: "modprobe -a vfio-pci vfio_iommu_type1", Verdict: "needs modprobe, bind"},
	{Name: "no type1", tree: gone("sys/module/vfio_iommu_type1"), Want: []pci.FindingID{pci.ModuleMissing},
		Seen: "vfio_iommu_type1", Remedy: "modprobe -a vfio_iommu_type1", Verdict: "needs modprobe"},
	{Name: "bind cut off", spec: func(s *Spec) { s.Driver = ""; s.Override = "vfio-pci" }, tree: with(patientJournal, journalOf("mlx5_core")), Want: []pci.FindingID{pci.InterruptedBind},
		Seen: "process 77 was moving the function from mlx5_core to vfio-pci", Remedy: "mlxvfio unbind " + Patient, Verdict: "needs unbind (a bind was cut off)"},
	{Name: "unbind cut off", spec: func(s *Spec) { s.Override = "" }, tree: with(patientJournal, journalOf("mlx5_core")), Want: []pci.FindingID{pci.InterruptedUnbind},
		Seen: "now it has vfio-pci", Remedy: "mlxvfio unbind", Verdict: "ready"},
	{Name: "journal of this bind", tree: with(patientJournal, journalOf("mlx5_core")), Verdict: "ready"},
	{Name: "journal damaged", tree: with(patientJournal, "{"), Want: []pci.FindingID{pci.JournalBad}, Seen: "not a journal", Remedy: "rm $/" + patientJournal, Verdict: "ready"},
	{Name: "journal of another card", tree: with(patientJournal, strings.ReplaceAll(journalOf("mlx5_core"), "4119", "4117")), Want: []pci.FindingID{pci.JournalOld},
		Seen: "15b3:1015", Remedy: "rm $/" + patientJournal, Verdict: "ready"},
	{Name: "journal left over", spec: mlx5, tree: with(patientJournal, journalOf("mlx5_core")), Want: []pci.FindingID{pci.NotBound, pci.JournalLeft}, Verdict: "needs bind"},

	{Name: "host driver", spec: mlx5, Want: []pci.FindingID{pci.NotBound}, Seen: "$/" + patient + "/driver is mlx5_core", Remedy: "mlxvfio bind " + Patient, Verdict: "needs bind"},
	{Name: "no driver", spec: func(s *Spec) { s.Driver, s.Override = "", "" }, Want: []pci.FindingID{pci.NotBound}, Seen: "no driver", Verdict: "needs bind"},
	{Name: "module's name as override", spec: func(s *Spec) { s.Driver, s.Override = "", "vfio_pci" }, Want: []pci.FindingID{pci.NotBound, pci.OverrideSpelling}, Verdict: "needs bind"},
	{Name: "variant driver", spec: func(s *Spec) { s.Driver, s.Override = "mlx5_vfio_pci", "" },
		tree: gone("sys/bus/pci/drivers/vfio-pci"), Verdict: "ready"},
	{Name: "user", spec: mlx5, tree: deny(patient+"/driver_override", "EACCES"), Want: []pci.FindingID{pci.NotBound, pci.BindPermission}, Verdict: "needs bind, root"},
	{Name: "container", spec: mlx5, tree: deny(patient+"/driver_override", "EROFS"), Want: []pci.FindingID{pci.NotBound, pci.SysfsReadOnly}, Verdict: "needs bind, a writable /sys"},
	{Name: "interface up", spec: func(s *Spec) { mlx5(s); s.Netdevs = []Netdev{{Name: "p0", Up: true}} }, Want: []pci.FindingID{pci.NotBound, pci.NetdevUp}, Verdict: "needs bind, its interface down"},
	{Name: "interface in a bond with routes", spec: func(s *Spec) {
		mlx5(s)
		s.Netdevs = []Netdev{{Name: "p0", Up: true, Master: "bond0", Uppers: []string{"bond0"}}}
	}, tree: with("proc/net/route", "bond0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"),
		Want:    []pci.FindingID{pci.NotBound, pci.NetdevUp, pci.NetdevMember, pci.NetdevRoutes},
		Verdict: "needs bind, its interface down, its interface out of the bond or bridge, its routes moved"},
	{Name: "VFs", spec: func(s *Spec) { mlx5(s); s.NumVFs, s.Total = 2, 8 }, Want: []pci.FindingID{pci.NotBound, pci.VFsEnabled}, Verdict: "needs bind, its VFs off"},
	{Name: "VFs of a bound function", spec: func(s *Spec) { s.NumVFs, s.Total = 2, 8 }, Want: []pci.FindingID{pci.VFsOnVFIO},
		Seen: "$/" + patient + "/sriov_numvfs is 2", Remedy: "echo 0 > $/" + patient + "/sriov_numvfs", Verdict: "ready"},
	{Name: "VF of a bound function", spec: func(s *Spec) { s.Device, s.PhysFn = 0x1018, "0000:3b:00.1" },
		tree: func(t *Tree) {
			t.Add(Spec{BDF: "0000:3b:00.1", Driver: "vfio-pci", Override: "vfio-pci", Group: 32})
		}, Want: []pci.FindingID{pci.VFToken}, Seen: "0000:3b:00.1/driver is vfio-pci", Remedy: "mlxvfio unbind 0000:3b:00.1", Verdict: "needs its PF off vfio-pci"},
	{Name: "VF of a host function", spec: func(s *Spec) { s.Device, s.PhysFn = 0x1018, "0000:3b:00.1" },
		tree: func(t *Tree) {
			t.Add(Spec{BDF: "0000:3b:00.1", Driver: "mlx5_core", Group: 32})
		}, Verdict: "ready"},

	{Name: "no container node", tree: gone("dev/vfio/vfio"), Want: []pci.FindingID{pci.ContainerMissing}, Seen: "$/dev/vfio/vfio: no such file", Remedy: "mknod -m 666 $/dev/vfio/vfio c 10 196", Verdict: "needs /dev/vfio/vfio"},
	{Name: "container node denied", tree: deny("dev/vfio/vfio", "EACCES"), Want: []pci.FindingID{pci.ContainerPermission}, Seen: "permission denied", Remedy: "sudo chmod 666", Verdict: "needs permission"},
	{Name: "no group node", tree: gone("dev/vfio/31"), Want: []pci.FindingID{pci.NodeMissing}, Seen: "class/vfio/31/dev is 240:0", Remedy: "mknod -m 600 $/dev/vfio/31 c 240 0", Verdict: "needs its /dev/vfio node"},
	{Name: "no group node, no number", tree: all(gone("dev/vfio/31"), gone("sys/class/vfio/31")), Want: []pci.FindingID{pci.NodeMissing}, Remedy: "udevadm trigger", Verdict: "needs its /dev/vfio node"},
	{Name: "node of another group", tree: func(t *Tree) { t.Node("dev/vfio/31", 240, 5) }, Want: []pci.FindingID{pci.NodeStale}, Seen: "is device 240:5", Remedy: "rm $/dev/vfio/31; mknod", Verdict: "needs its /dev/vfio node"},
	{Name: "right node", tree: func(t *Tree) { t.Node("dev/vfio/31", 240, 0) }, Verdict: "ready"},
	{Name: "group node denied", tree: deny("dev/vfio/31", "EACCES"), Want: []pci.FindingID{pci.NodePermission}, Seen: "permission denied", Remedy: "sudo chown", Verdict: "needs permission"},
	{Name: "another user", tree: func(t *Tree) { t.Opens(4711, "testpmd", "/dev/vfio/31"); t.Opens(4712, "cat", "/dev/null") }, Want: []pci.FindingID{pci.Busy},
		Seen: "process 4711 (testpmd) has /dev/vfio/31 open", Remedy: "kill 4711", Verdict: "needs its other user gone"},
	{Name: "another user, group closed", tree: func(t *Tree) { t.OpensDevice(4711, "qemu", "/sys/devices/pci0000:3a/0000:3a:00.0/"+Patient) }, Want: []pci.FindingID{pci.Busy},
		Seen: "process 4711 (qemu) has " + Patient + " open", Remedy: "kill 4711", Verdict: "needs its other user gone"},
	{Name: "another user of another function", tree: func(t *Tree) {
		t.OpensDevice(4711, "qemu", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1")
		t.OpensDevice(4712, "qemu", "")
	}, Verdict: "ready"},
	{Name: "in a container", tree: with("proc/self/mountinfo", "1 0 0:1 / / rw,relatime - overlay overlay rw\n2 1 0:2 / /proc rw - proc proc rw\n"), Verdict: "ready", Unseen: "device rules"},
	{Name: "not in a container", tree: with("proc/self/mountinfo", "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n2 1 0:2 / /var/x rw - overlay overlay rw\n"), Verdict: "ready"},
	{Name: "little memlock", tree: func(t *Tree) { t.Process(1000, "65536", "65536") }, Want: []pci.FindingID{pci.MemlockSmall},
		Seen: "$/proc/self/limits: Max locked memory 65536 bytes", Remedy: "sudo prlimit --memlock=67108864:67108864 --pid $$", Verdict: "needs memlock"},
	{Name: "little memlock, more allowed", tree: func(t *Tree) { t.Process(1000, "65536", "unlimited") }, Want: []pci.FindingID{pci.MemlockSmall},
		Remedy: "ulimit -l 65536 ", Verdict: "needs memlock"},
	{Name: "some memlock", tree: func(t *Tree) { t.Process(1000, "8388608", "8388608") }, Want: []pci.FindingID{pci.MemlockTight}, Seen: "8388608", Verdict: "ready"},
	{Name: "some memlock, in use", tree: func(t *Tree) {
		t.Process(1000, "8388608", "8388608")
		t.Write("proc/self/status", strings.Replace(t.Read("proc/self/status"), "       0 kB", "    4096 kB", 1))
	}, Want: []pci.FindingID{pci.MemlockSmall}, Seen: "4194304 are locked", Verdict: "needs memlock"},
	{Name: "unlimited memlock", tree: func(t *Tree) { t.Process(1000, "unlimited", "unlimited") }, Verdict: "ready"},
	{Name: "root's memlock", tree: func(t *Tree) { t.Process(0, "65536", "65536") }, Verdict: "ready"},

	{Name: "lockdown", tree: with("sys/kernel/security/lockdown", "none [integrity] confidentiality\n"), Want: []pci.FindingID{pci.Lockdown}, Seen: "lockdown: [integrity]", Remedy: "mlxvfio info " + Patient, Verdict: "ready"},
	{Name: "no lockdown", tree: with("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"), Verdict: "ready"},
	{Name: "Secure Boot", tree: with(secureBoot, "\x06\x00\x00\x00\x01"), Want: []pci.FindingID{pci.SecureBoot}, Seen: "is 1", Remedy: "mokutil --sb-state", Verdict: "ready"},
	{Name: "no Secure Boot", tree: with(secureBoot, "\x06\x00\x00\x00\x00"), Verdict: "ready"},
	{Name: "healthy", Verdict: "ready"},
}

const secureBoot = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// Build makes the machine.
func (c Case) Build(tb testing.TB) (*Tree, pci.Options) {
	tb.Helper()
	tr := New(tb)
	tr.Driver("mlx5_vfio_pci")
	if c.kernel != nil {
		c.kernel(tr)
	}
	spec := Spec{BDF: Patient, Driver: "vfio-pci", Override: "vfio-pci", Group: 31, Config: ConfigSpace()}
	if c.spec != nil {
		c.spec(&spec)
	}
	tr.Add(spec)
	if c.tree != nil {
		c.tree(tr)
	}
	o := tr.Options()
	if c.opt != nil {
		c.opt(&o)
	}
	return tr, o
}

// At puts the tree's root in for $/.
func (t *Tree) At(s string) string { return strings.ReplaceAll(s, "$/", t.Root+"/") }
