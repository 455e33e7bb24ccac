package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// unguarded judges what an open without IOMMU needs beside a node: a kernel that
// knows the mode, two capabilities, and memory that is contiguous by itself.
func (d *doctor) unguarded() {
	if d.way.Backend != BackendNoIOMMU || !d.o.UnsafeNoIOMMU || d.f.guarded() {
		return
	}
	again := "sudo mlxvfio doctor " + d.b.String() + " --unsafe-noiommu  # root has it; a container needs "
	if d.f.IOMMU == nil {
		d.built()
	} else if data, err := d.o.FS.ReadFile(d.o.noIOMMUParam()); (err != nil || strings.TrimSpace(string(data)) != "Y") && d.h.container() != containerIOMMUFD {
		// iommufd answers VFIO_SET_IOMMU without a look at the mode (Linux vfio_compat.c).
		d.found(NoIOMMUOff, "echo Y > "+d.o.noIOMMUParam()+"  # or mlxvfio bind "+d.b.String()+" --unsafe-noiommu, whose unbind turns it off again",
			"%s is not Y: VFIO_SET_IOMMU answers ENODEV", d.o.noIOMMUParam())
	}
	if ok, why := d.h.capable(capSysRawIO); !ok {
		d.found(NoRawIO, again+"--cap-add SYS_RAWIO", "%s (CAP_SYS_RAWIO is bit %d)", why, capSysRawIO)
	}
	pagemap := filepath.Join(d.o.ProcRoot, "self/pagemap")
	if _, err := d.o.FS.Stat(pagemap); errors.Is(err, fs.ErrNotExist) {
		d.found(NoPagemap, "grep PROC_PAGE_MONITOR \"/boot/config-$(uname -r)\"  # =y is needed: another kernel, or an IOMMU", "%s does not exist", pagemap)
	} else if ok, why := d.h.capable(capSysAdmin); !ok {
		d.found(NoPagemap, again+"--cap-add SYS_ADMIN", "%s (CAP_SYS_ADMIN is bit %d)", why, capSysAdmin)
	}
	d.hugePages()
}

// built: only a kernel with VFIO_NOIOMMU has the parameter. As long as no VFIO
// module is loaded nothing shows.
func (d *doctor) built() {
	if _, err := d.o.FS.Stat(d.o.driverDir(vfioDriver)); err != nil {
		return
	}
	if _, err := d.o.FS.Stat(d.o.noIOMMUParam()); errors.Is(err, fs.ErrNotExist) {
		d.found(NoIOMMUNotBuilt, "grep VFIO_NOIOMMU \"/boot/config-$(uname -r)\"  # =y is needed: another kernel, or an IOMMU", "%s does not exist", d.o.noIOMMUParam())
	}
}

// hugePages counts those of 2 MiB that this process could have: free and promised
// to nobody, and those that the kernel may make on demand. Whether they lie in one
// piece shows when they are taken.
func (d *doctor) hugePages() {
	const size = 2 << 20
	a := &attrs{fs: d.o.FS, dir: filepath.Join(d.o.SysRoot, "kernel/mm/hugepages/hugepages-2048kB")}
	free := max(a.num("free_hugepages", 0)-a.num("resv_hugepages", 0), 0) + max(a.num("nr_overcommit_hugepages", 0)-a.num("surplus_hugepages", 0), 0)
	if uint64(free)*size < memlockLeast {
		d.found(NoHugePages, fmt.Sprintf("echo %d > %s  # in all, those in use included", max(64, a.num("nr_hugepages", 0)+memlockLarge/size), filepath.Join(a.dir, "nr_hugepages")),
			"%s: %d are free; a bring-up takes %d or more, with large firmware %d", a.dir, free, memlockLeast/size, memlockLarge/size)
	}
}

// leftOn: the switch of no-IOMMU mode stands on, and who left it there.
func (d *doctor) leftOn() {
	param := d.o.noIOMMUParam()
	data, err := d.o.FS.ReadFile(param)
	if err != nil || strings.TrimSpace(string(data)) != "Y" {
		return
	}
	m, err := readMark("diagnose", d.b, d.o)
	if err != nil || m == nil {
		d.found(NoIOMMUOn, "echo N > "+param, "%s is Y", param)
		return
	}
	if len(noIOMMUFunctions(d.o)) > 0 {
		return // it is on for those
	}
	if m.PID <= 0 {
		d.found(NoIOMMULeft, "echo N > "+param+"; rm "+d.o.noIOMMUMark(), "%s is Y; %s is no mark of a bind", param, d.o.noIOMMUMark())
		return
	}
	if _, err := d.o.FS.Stat(filepath.Join(d.o.ProcRoot, strconv.Itoa(m.PID))); err == nil {
		return // a bind at work
	}
	d.found(NoIOMMULeft, "mlxvfio unbind "+m.BDF.String(), "%s is Y; %s: process %d turned it on for a bind of %s and is gone, and no function is in that mode",
		param, d.o.noIOMMUMark(), m.PID, m.BDF)
}
