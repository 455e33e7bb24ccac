package pci

import (
	"path/filepath"
	"strings"
)

// typeModule is the module that makes the mappings of a group, where VFIO itself has
// the container.
const typeModule = "vfio_iommu_type1"

// containerOf is who answers on /dev/vfio/vfio.
type containerOf int

const (
	containerVFIO    containerOf = iota // VFIO (VFIO_CONTAINER), with typeModule; or nobody yet
	containerIOMMUFD                    // iommufd, which needs no further module
	containerUnknown                    // iommufd is there, and nothing tells
)

// container finds out whether iommufd answers on /dev/vfio/vfio: because the kernel
// is built with IOMMUFD_VFIO_CONTAINER, which excludes VFIO_CONTAINER (Linux
// iommufd/Kconfig, main.c), or because a link or a node leads to /dev/iommu, as
// Linux's vfio.rst says it may. Both kernels announce the same number in sysfs; what
// differs is that VFIO's own container lets modules register, with a function that is
// in the kernel's list of symbols then (vfio/container.c), loaded as the one who
// announced the number is.
func (h *host) container() containerOf {
	if h.serves == nil {
		c := h.findContainer()
		h.serves = &c
	}
	return *h.serves
}

func (h *host) findContainer() containerOf {
	n, iommufd := h.o.containerNode(), h.o.iommufdNode()
	switch {
	case n.Actual != "" && n.Actual == iommufd.Number:
		return containerIOMMUFD
	case n.Number == "": // no module that would answer
		return containerVFIO
	}
	if _, err := h.o.FS.Stat(filepath.Join(h.o.SysRoot, "module/iommufd")); err != nil { // it has parameters, hence a folder
		return containerVFIO
	}
	symbols := h.proc("kallsyms")
	switch {
	case symbols == "": // a kernel without KALLSYMS
		return containerUnknown
	case hasSymbol(symbols, "vfio_register_iommu_driver"):
		return containerVFIO
	}
	return containerIOMMUFD
}

// hasSymbol looks for a name in /proc/kallsyms: "ADDRESS TYPE NAME", and "[MODULE]"
// behind those of modules.
func hasSymbol(text, name string) bool {
	for {
		_, rest, ok := strings.Cut(text, " "+name)
		if !ok {
			return false
		}
		if rest == "" || strings.ContainsRune("\n\t ", rune(rest[0])) {
			return true
		}
		text = rest
	}
}
