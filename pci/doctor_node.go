package pci

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// nodes judges the character devices that an open opens, those of its way. They
// are looked at, not opened: the kernel gives a group to one opener only, and a
// look must not be in anybody's way.
func (d *doctor) nodes() {
	if d.f.VFIO != nil && d.h.layered() {
		d.unseen("device rules of this container: a node that shows may be refused all the same; docker run --device passes it in")
	}
	if d.has(BackendAbsent) {
		return
	}
	if d.way.Backend == BackendIOMMUFD {
		if d.f.VFIO != nil {
			d.cdev(d.f.VFIO.Cdev) // there, else BackendAbsent
		}
		n := d.o.iommufdNode()
		d.iommufd(&n)
		return
	}
	if !d.has(ModuleMissing) { // no module, no node
		n := d.o.containerNode()
		d.container(&n)
	}
	if d.f.VFIO != nil && d.f.VFIO.Group != nil {
		d.groupFile(d.f.VFIO.Group)
		d.skipped()
	}
}

// backend: a way that was asked for, and that the kernel does not offer.
func (d *doctor) backend() {
	absent := func(format string, args ...any) {
		d.found(BackendAbsent, "mlxvfio doctor "+d.b.String()+" --backend auto  # the way that there is", format, args...)
	}
	v := d.f.VFIO
	switch d.o.Backend {
	case "", "auto":
	case BackendIOMMUFD:
		switch {
		case !d.f.guarded():
			absent("--backend iommufd, and no IOMMU is in charge of the function")
		case v != nil && v.Cdev == nil:
			absent("--backend iommufd, and %s holds no device number: the kernel is built without VFIO_DEVICE_CDEV", d.attr("vfio-dev"))
		case v == nil && d.h.charDevice("vfio") && !d.h.charDevice("vfio-dev"):
			absent("--backend iommufd, and %s has no vfio-dev: the kernel is built without VFIO_DEVICE_CDEV", filepath.Join(d.o.ProcRoot, "devices"))
		}
	case BackendType1:
		switch {
		case !d.f.guarded():
			absent("--backend type1, and no IOMMU is in charge of the function")
		case v != nil && v.Group == nil, v == nil && d.h.charDevice("vfio-dev") && !d.h.charDevice("vfio"):
			absent("--backend type1, and %s has no folder for the group: the kernel is built without VFIO_GROUP", filepath.Join(d.o.SysRoot, "class/vfio"))
		}
	case BackendNoIOMMU:
		if d.f.guarded() {
			absent("--backend noiommu, and the function is in IOMMU group %d of %s: a guarded function is not opened unguarded", d.f.IOMMU.Number, d.f.Unit.kind())
		}
	default:
		absent("--backend %s: the names are iommufd, type1 and noiommu", d.o.Backend)
	}
}

// mknod is the command that makes a node as the kernel announces it.
func (d *doctor) mknod(n *DeviceNode, otherwise string) string {
	if major, minor, ok := deviceNumber(n.Number); ok {
		return fmt.Sprintf("mknod -m 600 %s c %d %d", d.o.devFile(n.Path), major, minor)
	}
	return otherwise
}

// chown gives a node to the user who runs the doctor.
func (d *doctor) chown(n *DeviceNode) string { return "sudo chown \"$(id -u)\" " + d.o.devFile(n.Path) }

// number names the sysfs file in which the kernel announces a node.
func (d *doctor) number(n *DeviceNode) string {
	switch {
	case n.Path == iommufdPath:
		return d.o.miscNumber("iommu")
	case n.Path == containerPath:
		return d.o.miscNumber("vfio")
	case strings.HasPrefix(n.Path, cdevFolder):
		return d.o.cdevNumber(d.b, filepath.Base(n.Path))
	}
	return d.o.groupNumber(filepath.Base(n.Path))
}

// judge finds what is wrong with a node, if anything.
func (d *doctor) judge(n *DeviceNode, missing, stale, denied FindingID, otherwise string) {
	file, number, mknod := d.o.devFile(n.Path), d.number(n), d.mknod(n, otherwise)
	switch {
	case n.Missing:
		d.found(missing, mknod+"  # in a container: pass "+file+" in", "%s does not exist, %s is %s", file, number, orNothing(n.Number))
	case n.Stale():
		d.found(stale, "rm "+file+"; "+mknod, "%s is device %s, %s is %s", file, n.Actual, number, n.Number)
	case n.Denied != "":
		d.found(denied, d.chown(n), "%s: %s", file, n.Denied)
	}
}

// remark adds to a remedy what is no command.
func remark(remedy, text string) string {
	if strings.Contains(remedy, "  # ") {
		return remedy + "; " + text
	}
	return remedy + "  # " + text
}

const (
	udevVFIO    = "udevadm trigger --action=add --subsystem-match=vfio --subsystem-match=vfio-dev"
	loadIOMMUFD = "modprobe iommufd"
)

func (d *doctor) groupFile(n *DeviceNode) {
	d.judge(n, NodeMissing, NodeStale, NodePermission, udevVFIO)
}

func (d *doctor) cdev(n *DeviceNode) {
	d.judge(n, CdevMissing, CdevStale, CdevPermission, udevVFIO)
	if v := d.f.VFIO; v.Group != nil && v.Group.Usable() && v.Container.Usable() {
		for i := range d.res.Findings { // only where --backend kept it from the other way
			if f := &d.res.Findings[i]; f.ID == CdevPermission || f.ID == CdevMissing {
				f.Remedy = printable(remark(f.Remedy, "or without --backend: "+v.Group.Path+" is open to this process"))
			}
		}
	}
}

func (d *doctor) iommufd(n *DeviceNode) {
	d.judge(n, IOMMUFDMissing, IOMMUFDStale, IOMMUFDPermission, loadIOMMUFD)
}

func (d *doctor) container(n *DeviceNode) {
	file := d.o.devFile(n.Path)
	switch {
	case n.Missing:
		// 10:196 is VFIO_MINOR of the misc devices (Linux miscdevice.h).
		d.found(ContainerMissing, fmt.Sprintf("mkdir -p %s; mknod -m 666 %s c 10 196  # in a container: pass it in", filepath.Dir(file), file),
			"%s: no such file or directory", file)
	case n.Denied != "":
		d.found(ContainerPermission, "sudo chmod 666 "+file, "%s: %s", file, n.Denied)
	}
}

// skipped: the kernel offers the function's own file, and an open takes the
// group's because this process does not reach all of the newer way.
func (d *doctor) skipped() {
	v := d.f.VFIO
	if v.Cdev == nil || !d.o.chooses() || !d.f.guarded() {
		return
	}
	n, otherwise := v.Cdev, udevVFIO
	if n.reached() {
		n, otherwise = &v.IOMMUFD, loadIOMMUFD
	}
	if n.Missing {
		d.found(IOMMUFDSkipped, d.mknod(n, otherwise)+"  # in a container: pass "+d.o.devFile(n.Path)+" in", "%s is %s, %s does not exist",
			d.number(v.Cdev), v.Cdev.Number, d.o.devFile(n.Path))
		return
	}
	d.found(IOMMUFDSkipped, d.chown(n), "%s is %s, %s: %s", d.number(v.Cdev), v.Cdev.Number, d.o.devFile(n.Path), n.Denied)
}

func orNothing(s string) string {
	if s == "" {
		return "not there either"
	}
	return s
}

// holders: another process has the function, its group, or a function of its
// group. Each way keeps the other out: a group that is open is refused to a cdev
// (VFIO_DEVICE_BIND_IOMMUFD: EBUSY) and the other way round (Linux group.c,
// vfio_device_block_group), a bound cdev is bound once (EINVAL), and the
// functions of a group have one owner (EPERM; Linux iommu.c, claim_dma_owner).
func (d *doctor) holders() {
	if d.f.VFIO == nil {
		return
	}
	byNode, hidden := d.h.holders()
	if hidden > 0 {
		d.unseen("open files of %d processes: run as root", hidden)
	}
	hs := d.f.holdersIn(byNode)
	var who, pids []string
	for _, h := range hs {
		who = append(who, fmt.Sprintf("process %d (%s) has %s open", h.PID, h.Comm, h.Node))
	}
	if d.f.IOMMU != nil {
		for _, m := range d.f.IOMMU.Siblings(d.b) {
			for _, h := range slices.Concat(byNode[m.VFIOCdev], byNode[m.BDF.String()]) {
				if slices.ContainsFunc(hs, func(x Holder) bool { return x.PID == h.PID }) {
					continue
				}
				hs = append(hs, h)
				who = append(who, fmt.Sprintf("process %d (%s) has %s open, which is %s of the same group", h.PID, h.Comm, h.Node, m.BDF))
			}
		}
	}
	if len(hs) == 0 {
		return
	}
	for _, h := range hs {
		pids = append(pids, strconv.Itoa(h.PID))
	}
	d.found(Busy, "kill "+strings.Join(pids, " "), "%s", strings.Join(who, ", ")).Holders = hs
}
