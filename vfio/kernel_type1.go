package vfio

import (
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
)

// parseIOMMU reads vfio_iommu_type1_info and its chain.
func parseIOMMU(buf []byte) (DMALimits, error) {
	info := (*abi.Iommu_type1_info)(unsafe.Pointer(&buf[0]))
	l := DMALimits{PageSizes: minPage, Pinned: true}
	if info.Flags&abi.VFIO_IOMMU_INFO_PGSIZES != 0 {
		l.PageSizes = info.Iova_pgsizes
	}
	var caps []abi.Capability
	if info.Flags&abi.VFIO_IOMMU_INFO_CAPS != 0 {
		var err error
		if caps, err = abi.Caps(buf, info.Cap_offset); err != nil {
			return l, err
		}
	}
	for _, x := range caps {
		switch x.ID {
		case abi.VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE:
			pairs, err := x.Pairs()
			if err != nil {
				return l, err
			}
			for _, p := range pairs {
				l.Ranges = append(l.Ranges, IOVARange{First: p[0], Last: p[1]})
			}
		case abi.VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL:
			n, err := x.Word()
			if err != nil {
				return l, err
			}
			l.MaxMappings = n
		}
	}
	if l.Ranges == nil {
		// Kernels before 5.4 report no ranges. 39 bits is the narrowest width of
		// VT-d's second-level tables (VT-d 3.3, SAGAW).
		l.Ranges = []IOVARange{{First: minPage, Last: msiFirst - 1}, {First: msiLast + 1, Last: 1<<39 - 1}}
	}
	return l, nil
}
