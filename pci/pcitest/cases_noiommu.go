package pcitest

import (
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/pci"
)

func unsafely(o *pci.Options) { o.UnsafeNoIOMMU = true }

func unsafelyBy(name string) func(*pci.Options) {
	return func(o *pci.Options) { o.UnsafeNoIOMMU, o.Backend = true, name }
}

// unguarded has the host's driver and no IOMMU; override is that of a bind.
func unguarded(s *Spec) { s.Driver, s.Override, s.Group = "mlx5_core", "", 0 }

func override(s *Spec) { s.Driver, s.Override, s.Group = "", "vfio-pci", 0 }

// unsafeMode gives the function to vfio-pci in no-IOMMU mode, for which the
// kernel makes up a group, as a bind does: the mode is on, and a mark says who
// turned it on.
func unsafeMode(t *Tree) {
	t.Write("run/mlxvfio/noiommu.json", markText)
	t.Write(noIOMMUParam, "Y\n")
	o := t.Options()
	if err := o.FS.WriteAttr(t.Path("sys/bus/pci/drivers_probe"), []byte(Patient)); err != nil {
		panic(err)
	}
}

// ownNoIOMMU is what a kernel with IOMMUFD_NOIOMMU makes in that mode.
func ownNoIOMMU(t *Tree) {
	unsafeMode(t)
	t.Remove(patient + "/vfio-dev/vfio0")
	t.Write(patient+"/vfio-dev/noiommu-vfio0/dev", "511:0\n")
	t.Write("dev/vfio/devices/noiommu-vfio0", "")
}

const hugePages = "sys/kernel/mm/hugepages/hugepages-2048kB"

const markText = `{"schema":"mlxvfio.pci.noiommu/1","bdf":"` + Patient + `","time":"2026-01-02T03:04:05Z","pid":77}`

// without is every capability but one.
func without(bit uint) func(*Tree) {
	return func(t *Tree) { t.Capabilities(0x1ffffffffff &^ (1 << bit)) }
}

// bound are the findings of a function in no-IOMMU mode that was asked for.
func bound(more ...pci.FindingID) []pci.FindingID {
	return slices.Concat(more, []pci.FindingID{pci.NoIOMMUMode})
}

// noIOMMUCases are machines in which no IOMMU guards the function.
var noIOMMUCases = []Case{
	{Name: "no-IOMMU mode, not wanted", spec: override, tree: unsafeMode, Want: []pci.FindingID{pci.NoIOMMU},
		Seen: "iommu_groups/900/name is vfio-noiommu", Verdict: "needs an IOMMU"},
	{Name: "no-IOMMU mode, asked for by its name alone", spec: override, tree: all(unsafeMode, gone(hugePages), without(17)), opt: backend(pci.BackendNoIOMMU), Want: []pci.FindingID{pci.NoIOMMU},
		Seen: "iommu_groups/900/name is vfio-noiommu", Remedy: "mlxvfio doctor " + Patient + " --backend noiommu --unsafe-noiommu", Verdict: "needs an IOMMU"},
	{Name: "no-IOMMU mode, wanted", spec: override, tree: unsafeMode, opt: unsafely, Want: bound(),
		Seen: "vfio-noiommu", Remedy: "mlxvfio unbind", Verdict: "ready", Way: pci.BackendNoIOMMU},
	{Name: "no-IOMMU mode, wanted by its name too", spec: override, tree: unsafeMode, opt: unsafelyBy(pci.BackendNoIOMMU), Want: bound(),
		Verdict: "ready", Way: pci.BackendNoIOMMU},
	{Name: "no-IOMMU mode, type1 wanted", spec: override, tree: unsafeMode, opt: unsafelyBy(pci.BackendType1), Want: bound(pci.BackendAbsent),
		Seen: "no IOMMU is in charge", Verdict: "needs another --backend"},
	{Name: "no-IOMMU mode, kernel with iommufd", kernel: (*Tree).IOMMUFD, spec: override, tree: unsafeMode, opt: unsafely, Want: bound(),
		Verdict: "ready", Way: pci.BackendNoIOMMU},
	{Name: "no-IOMMU mode, kernel that gives it an own file", kernel: (*Tree).IOMMUFD, spec: override, tree: ownNoIOMMU, opt: unsafely, Want: bound(),
		Verdict: "ready", Way: pci.BackendNoIOMMU},
	{Name: "no-IOMMU mode, another user of the own file", kernel: (*Tree).IOMMUFD, spec: override, tree: all(ownNoIOMMU, func(t *Tree) {
		t.Opens(4711, "testpmd", "/dev/vfio/devices/noiommu-vfio0")
	}), opt: unsafely, Want: bound(pci.Busy), Seen: "has /dev/vfio/devices/noiommu-vfio0 open", Verdict: "needs its other user gone"},
	{Name: "no-IOMMU mode, turned off since", spec: override, tree: all(unsafeMode, with(noIOMMUParam, "N\n")), opt: unsafely, Want: bound(pci.NoIOMMUOff),
		Seen: "$/" + noIOMMUParam + " is not Y: VFIO_SET_IOMMU answers ENODEV", Remedy: "echo Y > $/" + noIOMMUParam, Verdict: "needs no-IOMMU mode on"},
	{Name: "no-IOMMU mode, turned off since, iommufd's container", kernel: (*Tree).IOMMUFDContainer, spec: override, tree: all(unsafeMode, with(noIOMMUParam, "N\n")), opt: unsafely,
		Want: bound(), Verdict: "ready"},
	{Name: "no-IOMMU mode, turned on by somebody", spec: override, tree: all(unsafeMode, gone("run/mlxvfio/noiommu.json")), opt: unsafely, Want: bound(pci.NoIOMMUOn),
		Remedy: "echo N > $/" + noIOMMUParam, Verdict: "ready"},
	{Name: "no-IOMMU mode, no type1", spec: override, tree: all(unsafeMode, gone("sys/module/vfio_iommu_type1")), opt: unsafely, Want: bound(), Verdict: "ready"},
	{Name: "no-IOMMU mode, little memlock", spec: override, tree: all(unsafeMode, func(t *Tree) {
		t.Process(0, "65536", "65536")
		without(14)(t)
	}), opt: unsafely, Want: bound(), Verdict: "ready"},
	{Name: "no-IOMMU mode, no container node", spec: override, tree: all(unsafeMode, gone("dev/vfio/vfio")), opt: unsafely, Want: bound(pci.ContainerMissing),
		Verdict: "needs /dev/vfio/vfio"},
	{Name: "no-IOMMU mode, group node denied", spec: override, tree: all(unsafeMode, deny("dev/vfio/noiommu-900", "EACCES")), opt: unsafely, Want: bound(pci.NodePermission),
		Seen: "$/dev/vfio/noiommu-900: permission denied", Verdict: "needs permission"},
	{Name: "no-IOMMU mode, no CAP_SYS_RAWIO", spec: override, tree: all(unsafeMode, without(17)), opt: unsafely, Want: bound(pci.NoRawIO),
		Seen: "$/proc/self/status: CapEff 000001fffffdffff", Remedy: "--cap-add SYS_RAWIO", Verdict: "needs CAP_SYS_RAWIO"},
	{Name: "no-IOMMU mode, no CAP_SYS_ADMIN", spec: override, tree: all(unsafeMode, without(21)), opt: unsafely, Want: bound(pci.NoPagemap),
		Seen: "CapEff 000001ffffdfffff", Remedy: "--cap-add SYS_ADMIN", Verdict: "needs physical addresses"},
	{Name: "no-IOMMU mode, root of a user namespace", spec: override, tree: all(unsafeMode, with("proc/self/uid_map", "0 1000 1\n")), opt: unsafely,
		Want: bound(pci.NoRawIO, pci.NoPagemap), Seen: "holds in a user namespace only", Verdict: "needs CAP_SYS_RAWIO, physical addresses"},
	{Name: "no-IOMMU mode, no pagemap", spec: override, tree: all(unsafeMode, gone("proc/self/pagemap")), opt: unsafely, Want: bound(pci.NoPagemap),
		Seen: "$/proc/self/pagemap does not exist", Remedy: "grep PROC_PAGE_MONITOR", Verdict: "needs physical addresses"},
	{Name: "no-IOMMU mode, no huge pages", spec: override, tree: all(unsafeMode, func(t *Tree) { t.HugePages(2048, 2) }), opt: unsafely, Want: bound(pci.NoHugePages),
		Seen: "$/" + hugePages + ": 2 are free; a bring-up takes 3", Remedy: "echo 64 > $/" + hugePages + "/nr_hugepages", Verdict: "needs huge pages"},
	{Name: "no-IOMMU mode, huge pages of another size", spec: override, tree: all(unsafeMode, func(t *Tree) {
		t.HugePages(2048, 0)
		t.HugePages(1048576, 1)
	}), opt: unsafely, Want: bound(pci.NoHugePages), Verdict: "needs huge pages"},
	{Name: "no-IOMMU mode, huge pages promised to others", spec: override, tree: all(unsafeMode, with(hugePages+"/resv_hugepages", "63\n")), opt: unsafely,
		Want: bound(pci.NoHugePages), Seen: ": 1 are free", Remedy: "echo 96 > ", Verdict: "needs huge pages"},
	{Name: "no-IOMMU mode, huge pages on demand", spec: override, tree: all(unsafeMode, func(t *Tree) { t.HugePages(2048, 0) }, with(hugePages+"/nr_overcommit_hugepages", "64\n")),
		opt: unsafely, Want: bound(), Verdict: "ready"},
	{Name: "no-IOMMU mode, lockdown", spec: override, tree: all(unsafeMode, with("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")), opt: unsafely,
		Want: slices.Concat([]pci.FindingID{pci.NoIOMMULockdown, pci.Lockdown}, bound()), Seen: "lockdown: [integrity]", Verdict: "ready"},
	{Name: "no-IOMMU mode, another user", spec: override, tree: all(unsafeMode, func(t *Tree) { t.Opens(4711, "testpmd", "/dev/vfio/noiommu-900") }), opt: unsafely,
		Want: bound(pci.Busy), Seen: "has /dev/vfio/noiommu-900 open", Verdict: "needs its other user gone"},

	{Name: "host driver, no-IOMMU mode wanted", spec: unguarded, opt: unsafely, Want: bound(pci.NotBound),
		Remedy: "mlxvfio bind " + Patient + " --unsafe-noiommu", Verdict: "needs bind", Way: pci.BackendNoIOMMU},
	{Name: "host driver, no-IOMMU mode wanted, IOMMU possible", spec: unguarded, tree: with("proc/cmdline", "ro quiet\n"), opt: unsafely, Want: []pci.FindingID{pci.NoIOMMUMode, pci.NotBound},
		Seen: "taints the kernel", Remedy: "--args=intel_iommu=on", Verdict: "needs bind"},
	{Name: "kernel without no-IOMMU mode", spec: unguarded, tree: gone(noIOMMUParam), opt: unsafely, Want: bound(pci.NoIOMMUNotBuilt, pci.NotBound),
		Seen: "$/" + noIOMMUParam + " does not exist", Remedy: "grep VFIO_NOIOMMU", Verdict: "needs a kernel with VFIO_NOIOMMU, bind"},
	{Name: "no-IOMMU mode wanted, vfio not loaded", spec: unguarded, tree: all(gone("sys/module/vfio"), gone("sys/bus/pci/drivers/vfio-pci")), opt: unsafely,
		Want: bound(pci.ModuleMissing, pci.NotBound), Remedy: "modprobe -a vfio-pci", Verdict: "needs modprobe, bind"},
	{Name: "no-IOMMU mode wanted, guarded", opt: unsafely, Verdict: "ready", Way: pci.BackendType1},

	{Name: "no-IOMMU mode on", tree: with(noIOMMUParam, "Y\n"), Want: []pci.FindingID{pci.NoIOMMUOn}, Seen: "$/" + noIOMMUParam + " is Y",
		Remedy: "echo N > $/" + noIOMMUParam, Verdict: "ready"},
	{Name: "no-IOMMU mode left on", spec: unguarded, tree: all(with(noIOMMUParam, "Y\n"), with("run/mlxvfio/noiommu.json", markText)),
		Want: []pci.FindingID{pci.NoIOMMULeft, pci.NoIOMMU, pci.NotBound}, Seen: "process 77 turned it on for a bind of " + Patient + " and is gone, and no function is in that mode", Remedy: "mlxvfio unbind " + Patient,
		Verdict: "needs an IOMMU, bind"},
	{Name: "no-IOMMU mode on for a bind at work", spec: unguarded, tree: all(with(noIOMMUParam, "Y\n"), with("run/mlxvfio/noiommu.json", markText), with("proc/77/comm", "mlxvfio\n")),
		Want: []pci.FindingID{pci.NoIOMMU, pci.NotBound}, Verdict: "needs an IOMMU, bind"},
	{Name: "mark of no-IOMMU mode damaged", spec: unguarded, tree: all(with(noIOMMUParam, "Y\n"), with("run/mlxvfio/noiommu.json", strings.ToUpper(markText))),
		Want: []pci.FindingID{pci.NoIOMMULeft, pci.NoIOMMU, pci.NotBound}, Seen: "noiommu.json is no mark of a bind",
		Remedy: "echo N > $/" + noIOMMUParam + "; rm $/run/mlxvfio/noiommu.json", Verdict: "needs an IOMMU, bind"},
}
