package pcitest

import (
	"strings"

	"github.com/mlxvfio/mlxvfio/pci"
)

const (
	ownFile = "dev/vfio/devices/vfio0"
	plain   = "proc/interrupts"
	ioapic  = "  0:  7  IO-APIC 2-edge timer\n"
)

// onlyCdevs is a kernel without the older way.
func onlyCdevs(t *Tree) {
	t.IOMMUFD()
	t.WithoutGroups()
}

func backend(name string) func(*pci.Options) {
	return func(o *pci.Options) { o.Backend = name }
}

func virtio(t *Tree) {
	t.Write(plain, ioapic)
	t.VirtioIOMMU(Patient, "0000:00:01.0")
}

// wayCases are machines that differ in the ways into a function that they have.
var wayCases = []Case{
	{Name: "both ways", kernel: (*Tree).IOMMUFD, Verdict: "ready", Way: pci.BackendIOMMUFD},
	{Name: "only iommufd", kernel: onlyCdevs, Verdict: "ready", Way: pci.BackendIOMMUFD},
	{Name: "only groups", Verdict: "ready", Way: pci.BackendType1},
	{Name: "iommufd, no cdevs", kernel: all((*Tree).IOMMUFD, gone(kconfigCdev)), Verdict: "ready", Way: pci.BackendType1},
	{Name: "both ways, right nodes", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) {
		t.Node(ownFile, 511, 0)
		t.Node("dev/iommu", 10, 125)
	}, Verdict: "ready", Way: pci.BackendIOMMUFD},
	{Name: "both ways, no type1", kernel: all((*Tree).IOMMUFD, gone("sys/module/vfio_iommu_type1")), Verdict: "ready", Way: pci.BackendIOMMUFD},

	{Name: "iommufd's container", kernel: (*Tree).IOMMUFDContainer, Verdict: "ready", Way: pci.BackendType1},
	{Name: "iommufd's container, host driver", kernel: (*Tree).IOMMUFDContainer, spec: mlx5, Want: []pci.FindingID{pci.NotBound}, Verdict: "needs bind", Way: pci.BackendType1},
	{Name: "iommufd's container, vfio not loaded", kernel: all((*Tree).IOMMUFDContainer, gone("sys/bus/pci/drivers/vfio-pci"), gone("sys/module/vfio")), spec: mlx5,
		Want: []pci.FindingID{pci.ModuleMissing, pci.NotBound}, Seen: "not there: $/sys/bus/pci/drivers/vfio-pci", Remedy: "modprobe -a vfio-pci", Verdict: "needs modprobe, bind", Way: pci.BackendType1},
	{Name: "iommufd's container and cdevs, type1 wanted", kernel: all((*Tree).IOMMUFDContainer, (*Tree).IOMMUFD), opt: backend(pci.BackendType1), Verdict: "ready", Way: pci.BackendType1},
	{Name: "iommufd's container, node missing", kernel: (*Tree).IOMMUFDContainer, tree: gone("dev/vfio/vfio"), Want: []pci.FindingID{pci.ContainerMissing},
		Remedy: "mknod -m 666 $/dev/vfio/vfio c 10 196", Verdict: "needs /dev/vfio/vfio", Way: pci.BackendType1},
	{Name: "iommufd's container, no remapping", kernel: (*Tree).IOMMUFDContainer, tree: with(plain, ioapic), Want: []pci.FindingID{pci.NoRemapping},
		Seen: "VFIO_GROUP_GET_DEVICE_FD of the IOMMU answers EPERM", Remedy: "echo Y > $/sys/module/iommufd/parameters/allow_unsafe_interrupts", Verdict: "needs interrupt remapping"},
	{Name: "iommufd's container, no remapping, allowed", kernel: (*Tree).IOMMUFDContainer, tree: all(with(plain, ioapic),
		with("sys/module/iommufd/parameters/allow_unsafe_interrupts", "Y\n")), Want: []pci.FindingID{pci.UnsafeRemapping}, Verdict: "ready"},
	{Name: "iommufd's container, no list of symbols", kernel: all((*Tree).IOMMUFDContainer, gone(symbols)), Want: []pci.FindingID{pci.ModuleMissing},
		Seen: "module/vfio_iommu_type1", Verdict: "needs modprobe", Unseen: "proc/kallsyms: whether iommufd answers", Way: pci.BackendType1},
	{Name: "iommufd, no cdevs, no type1", kernel: all((*Tree).IOMMUFD, gone(kconfigCdev), gone("sys/module/vfio_iommu_type1")), Want: []pci.FindingID{pci.ModuleMissing},
		Remedy: "modprobe -a vfio_iommu_type1", Verdict: "needs modprobe", Way: pci.BackendType1},
	{Name: "iommufd, another symbol of that name", kernel: (*Tree).IOMMUFDContainer, tree: with(symbols, noContainer+"0000000000000000 t vfio_register_iommu_driver.cold\t[x]\n"),
		Verdict: "ready", Way: pci.BackendType1},
	{Name: "/dev/vfio/vfio is /dev/iommu", kernel: all((*Tree).IOMMUFD, gone(kconfigCdev), gone("sys/module/vfio_iommu_type1")),
		tree: func(t *Tree) { t.Node("dev/vfio/vfio", 10, 125) }, Verdict: "ready", Way: pci.BackendType1},

	{Name: "host driver, both ways", kernel: (*Tree).IOMMUFD, spec: mlx5, Want: []pci.FindingID{pci.NotBound}, Verdict: "needs bind", Way: pci.BackendIOMMUFD},
	{Name: "host driver, only iommufd", kernel: onlyCdevs, spec: mlx5, Want: []pci.FindingID{pci.NotBound}, Verdict: "needs bind", Way: pci.BackendIOMMUFD},
	{Name: "host driver, /dev/iommu missing", kernel: all(onlyCdevs, gone("dev/iommu")), spec: mlx5, Want: []pci.FindingID{pci.IOMMUFDMissing, pci.NotBound},
		Remedy: "mknod -m 600 $/dev/iommu c 10 125", Verdict: "needs bind, /dev/iommu", Way: pci.BackendIOMMUFD},
	{Name: "host driver, /dev/iommu denied, groups", kernel: all((*Tree).IOMMUFD, deny("dev/iommu", "EACCES")), spec: mlx5,
		Want: []pci.FindingID{pci.NotBound}, Verdict: "needs bind", Way: pci.BackendType1},

	{Name: "own file denied, group open", kernel: (*Tree).IOMMUFD, tree: deny(ownFile, "EACCES"), Want: []pci.FindingID{pci.IOMMUFDSkipped},
		Seen: "$/" + patient + "/vfio-dev/vfio0/dev is 511:0, $/" + ownFile + ": permission denied", Remedy: "sudo chown \"$(id -u)\" $/" + ownFile, Verdict: "ready", Way: pci.BackendType1},
	{Name: "own file missing, group open", kernel: (*Tree).IOMMUFD, tree: gone(ownFile), Want: []pci.FindingID{pci.IOMMUFDSkipped},
		Seen: "$/" + ownFile + " does not exist", Remedy: "mknod -m 600 $/" + ownFile + " c 511 0", Verdict: "ready", Way: pci.BackendType1},
	{Name: "/dev/iommu missing, group open", kernel: (*Tree).IOMMUFD, tree: gone("dev/iommu"), Want: []pci.FindingID{pci.IOMMUFDSkipped},
		Seen: "$/dev/iommu does not exist", Remedy: "mknod -m 600 $/dev/iommu c 10 125", Verdict: "ready", Way: pci.BackendType1},
	{Name: "/dev/iommu denied, group open", kernel: (*Tree).IOMMUFD, tree: deny("dev/iommu", "EACCES"), Want: []pci.FindingID{pci.IOMMUFDSkipped},
		Seen: "$/dev/iommu: permission denied", Remedy: "sudo chown", Verdict: "ready", Way: pci.BackendType1},
	{Name: "own file denied, group denied", kernel: (*Tree).IOMMUFD, tree: all(deny(ownFile, "EACCES"), deny("dev/vfio/31", "EACCES")),
		Want: []pci.FindingID{pci.NodePermission, pci.IOMMUFDSkipped}, Seen: "$/dev/vfio/31: permission denied", Verdict: "needs permission", Way: pci.BackendType1},
	{Name: "own file denied, group file missing", kernel: (*Tree).IOMMUFD, tree: all(deny(ownFile, "EACCES"), gone("dev/vfio/31")),
		Want: []pci.FindingID{pci.CdevPermission}, Verdict: "needs permission", Way: pci.BackendIOMMUFD},
	{Name: "no node at all", kernel: (*Tree).IOMMUFD, tree: all(gone(ownFile), gone("dev/iommu"), gone("dev/vfio/31")), Want: []pci.FindingID{pci.NodeMissing, pci.IOMMUFDSkipped},
		Remedy: "mknod -m 600 $/dev/vfio/31 c 240 0", Verdict: "needs its /dev/vfio node", Way: pci.BackendType1},
	{Name: "only /dev/iommu", kernel: (*Tree).IOMMUFD, tree: all(gone(ownFile), gone("dev/vfio/31"), gone("dev/vfio/vfio")), Want: []pci.FindingID{pci.CdevMissing},
		Remedy: "mknod -m 600 $/" + ownFile + " c 511 0", Verdict: "needs its /dev/vfio/devices node", Way: pci.BackendIOMMUFD},
	{Name: "own file missing", kernel: onlyCdevs, tree: gone(ownFile), Want: []pci.FindingID{pci.CdevMissing},
		Seen: "$/" + ownFile + " does not exist, $/" + patient + "/vfio-dev/vfio0/dev is 511:0", Remedy: "mknod -m 600 $/" + ownFile + " c 511 0",
		Verdict: "needs its /dev/vfio/devices node", Way: pci.BackendIOMMUFD},
	{Name: "own file denied", kernel: onlyCdevs, tree: deny(ownFile, "EACCES"), Want: []pci.FindingID{pci.CdevPermission},
		Seen: "$/" + ownFile + ": permission denied", Remedy: "sudo chown", Verdict: "needs permission"},
	{Name: "own file of another function", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) { t.Node(ownFile, 511, 3) }, Want: []pci.FindingID{pci.CdevStale},
		Seen: "$/" + ownFile + " is device 511:3", Remedy: "rm $/" + ownFile + "; mknod -m 600 $/" + ownFile + " c 511 0",
		Verdict: "needs its /dev/vfio/devices node", Way: pci.BackendIOMMUFD},
	{Name: "/dev/iommu missing", kernel: onlyCdevs, tree: gone("dev/iommu"), Want: []pci.FindingID{pci.IOMMUFDMissing},
		Seen: "$/dev/iommu does not exist, $/sys/class/misc/iommu/dev is 10:125", Remedy: "mknod -m 600 $/dev/iommu c 10 125", Verdict: "needs /dev/iommu"},
	{Name: "iommufd not loaded", kernel: onlyCdevs, tree: all(gone("dev/iommu"), gone("sys/class/misc/iommu")), Want: []pci.FindingID{pci.IOMMUFDMissing},
		Seen: "is not there either", Remedy: "modprobe iommufd", Verdict: "needs /dev/iommu"},
	{Name: "/dev/iommu denied", kernel: onlyCdevs, tree: deny("dev/iommu", "EACCES"), Want: []pci.FindingID{pci.IOMMUFDPermission},
		Seen: "$/dev/iommu: permission denied", Remedy: "sudo chown", Verdict: "needs permission"},
	{Name: "/dev/iommu of another device", kernel: onlyCdevs, tree: func(t *Tree) { t.Node("dev/iommu", 10, 126) }, Want: []pci.FindingID{pci.IOMMUFDStale},
		Seen: "$/dev/iommu is device 10:126", Remedy: "rm $/dev/iommu; mknod -m 600 $/dev/iommu c 10 125", Verdict: "needs /dev/iommu"},

	{Name: "iommufd wanted", kernel: (*Tree).IOMMUFD, opt: backend(pci.BackendIOMMUFD), Verdict: "ready", Way: pci.BackendIOMMUFD},
	{Name: "type1 wanted", kernel: (*Tree).IOMMUFD, opt: backend(pci.BackendType1), Verdict: "ready", Way: pci.BackendType1},
	{Name: "the choice wanted", kernel: (*Tree).IOMMUFD, opt: backend("auto"), Verdict: "ready", Way: pci.BackendIOMMUFD},
	{Name: "iommufd wanted, own file denied, group open", kernel: (*Tree).IOMMUFD, tree: deny(ownFile, "EACCES"), opt: backend(pci.BackendIOMMUFD),
		Want: []pci.FindingID{pci.CdevPermission}, Remedy: "  # or without --backend: /dev/vfio/31 is open", Verdict: "needs permission", Way: pci.BackendIOMMUFD},
	{Name: "iommufd wanted, kernel without cdevs", opt: backend(pci.BackendIOMMUFD), Want: []pci.FindingID{pci.BackendAbsent},
		Seen: "built without VFIO_DEVICE_CDEV", Remedy: "--backend auto", Verdict: "needs another --backend"},
	{Name: "iommufd wanted, host driver, kernel without cdevs", spec: mlx5, opt: backend(pci.BackendIOMMUFD), Want: []pci.FindingID{pci.BackendAbsent, pci.NotBound},
		Seen: "$/proc/devices has no vfio-dev", Verdict: "needs another --backend, bind"},
	{Name: "type1 wanted, kernel without groups", kernel: onlyCdevs, opt: backend(pci.BackendType1), Want: []pci.FindingID{pci.BackendAbsent, pci.ModuleMissing},
		Seen: "built without VFIO_GROUP", Verdict: "needs another --backend, modprobe"},
	{Name: "noiommu wanted, guarded", tree: all(gone(hugePages), without(17)), opt: unsafelyBy(pci.BackendNoIOMMU), Want: []pci.FindingID{pci.BackendAbsent},
		Seen: "IOMMU group 31", Verdict: "needs another --backend"},
	{Name: "iommufd wanted, unguarded", spec: noGroup, opt: backend(pci.BackendIOMMUFD), Want: []pci.FindingID{pci.BackendAbsent, pci.NoIOMMU, pci.NotBound},
		Seen: "no IOMMU is in charge", Verdict: "needs an IOMMU, another --backend, bind"},
	{Name: "type1 wanted, unguarded", spec: noGroup, opt: backend(pci.BackendType1), Want: []pci.FindingID{pci.BackendAbsent, pci.NoIOMMU, pci.NotBound},
		Seen: "no IOMMU is in charge", Verdict: "needs an IOMMU, another --backend, bind"},

	{Name: "no remapping, iommufd", kernel: (*Tree).IOMMUFD, tree: with(plain, ioapic), Want: []pci.FindingID{pci.NoRemapping},
		Seen: "VFIO_DEVICE_BIND_IOMMUFD of the IOMMU answers EPERM", Remedy: "echo Y > $/sys/module/iommufd/parameters/allow_unsafe_interrupts", Verdict: "needs interrupt remapping"},
	{Name: "no remapping, allowed for type1 only", kernel: (*Tree).IOMMUFD, tree: all(with(plain, ioapic),
		with("sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n")), Want: []pci.FindingID{pci.NoRemapping}, Verdict: "needs interrupt remapping"},
	{Name: "no remapping, allowed for iommufd", kernel: (*Tree).IOMMUFD, tree: all(with(plain, ioapic),
		with("sys/module/iommufd/parameters/allow_unsafe_interrupts", "Y\n")), Want: []pci.FindingID{pci.UnsafeRemapping},
		Remedy: "echo N > $/sys/module/iommufd", Verdict: "ready"},
	{Name: "virtio-iommu", tree: virtio, Want: []pci.FindingID{pci.NoRemapping, pci.VirtioIOMMU},
		Seen: "VFIO_SET_IOMMU of virtio-iommu 0000:00:01.0 answers EPERM", Remedy: "better: an intel-iommu with intremap=on", Verdict: "needs interrupt remapping"},
	{Name: "virtio-iommu, iommufd", kernel: onlyCdevs, tree: virtio, Want: []pci.FindingID{pci.VirtioIOMMU, pci.NoRemapping},
		Seen: "$/" + patient + "/iommu is 0000:00:01.0, a device of driver virtio_iommu", Remedy: "-device intel-iommu,intremap=on", Verdict: "needs interrupt remapping"},
	{Name: "virtio-iommu, not x86", tree: all(virtio, with(plain, " 11:  7  GICv3 27 Level arch_timer\n")), Verdict: "ready"},

	{Name: "another user of the own file", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) { t.Opens(4711, "qemu", "/dev/vfio/devices/vfio0") },
		Want: []pci.FindingID{pci.Busy}, Seen: "process 4711 (qemu) has /dev/vfio/devices/vfio0 open", Remedy: "kill 4711", Verdict: "needs its other user gone"},
	{Name: "another user of the group, both ways", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) { t.Opens(4711, "testpmd", "/dev/vfio/31") },
		Want: []pci.FindingID{pci.Busy}, Seen: "has /dev/vfio/31 open", Verdict: "needs its other user gone", Way: pci.BackendIOMMUFD},
	{Name: "another user of a sibling's own file", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) {
		t.Add(Spec{BDF: "0000:3b:00.1", Driver: "vfio-pci", Override: "vfio-pci", Group: 31})
		t.Opens(4711, "qemu", "/dev/vfio/devices/vfio1")
	}, Want: []pci.FindingID{pci.Busy, pci.GroupShared}, Seen: "has /dev/vfio/devices/vfio1 open, which is 0000:3b:00.1 of the same group", Verdict: "needs its other user gone"},
	{Name: "little memlock, iommufd", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) { t.Process(1000, "65536", "65536") }, Want: []pci.FindingID{pci.MemlockSmall},
		Seen: "the user's other processes", Remedy: "sudo prlimit", Verdict: "needs memlock"},
	{Name: "some memlock, in use, iommufd", kernel: (*Tree).IOMMUFD, tree: func(t *Tree) {
		t.Process(1000, "8388608", "8388608")
		t.Write("proc/self/status", strings.Replace(t.Read("proc/self/status"), "       0 kB", "    4096 kB", 1))
	}, Want: []pci.FindingID{pci.MemlockTight}, Verdict: "ready"},
	{Name: "root of a user namespace", tree: func(t *Tree) {
		t.Process(0, "65536", "65536")
		t.Write("proc/self/uid_map", "         0       1000          1\n")
	}, Want: []pci.FindingID{pci.MemlockSmall}, Verdict: "needs memlock"},
}
