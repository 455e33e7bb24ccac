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
	}
	if ok, why := d.h.capable(capSysRawIO); !ok {
		d.found(NoRawIO, again+"--cap-add SYS_RAWIO", "%s (CAP_SYS_RAWIO is bit %d)", why, capSysRawIO)
	}
	if ok, why := d.h.capable(capSysAdmin); !ok {
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

// hugePages counts the free ones of every size.
func (d *doctor) hugePages() {
	dir := filepath.Join(d.o.SysRoot, "kernel/mm/hugepages")
	a := &attrs{fs: d.o.FS, dir: dir}
	var free uint64
	for _, name := range a.names(".") {
		kb, ok := strings.CutSuffix(strings.TrimPrefix(name, "hugepages-"), "kB")
		size, err := strconv.ParseUint(kb, 10, 32)
		if !ok || err != nil {
			continue
		}
		free += uint64(max(a.num(filepath.Join(name, "free_hugepages"), 0), 0)) * size << 10
	}
	if free < memlockLeast {
		d.found(NoHugePages, fmt.Sprintf("echo %d > %s", uint64(memlockLarge)>>21, filepath.Join(d.o.ProcRoot, "sys/vm/nr_hugepages")),
			"%s: %d bytes are free; a bring-up takes %d bytes or more, with large firmware %d", dir, free, uint64(memlockLeast), uint64(memlockLarge))
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
	if m.PID <= 0 {
		d.found(NoIOMMULeft, "echo N > "+param+"; rm "+d.o.noIOMMUMark(), "%s is Y; %s is no mark of a bind", param, d.o.noIOMMUMark())
		return
	}
	if _, err := d.o.FS.Stat(filepath.Join(d.o.ProcRoot, strconv.Itoa(m.PID))); err == nil {
		return // a bind at work
	}
	d.found(NoIOMMULeft, "mlxvfio unbind "+m.BDF.String(), "%s is Y; %s: process %d turned it on for a bind of %s and is gone", param, d.o.noIOMMUMark(), m.PID, m.BDF)
}
