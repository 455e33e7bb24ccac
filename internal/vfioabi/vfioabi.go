// Package vfioabi holds the kernel's VFIO user interface: ioctl numbers, flags
// and structures of linux/vfio.h and linux/iommufd.h, names verbatim so that they
// can be found there. Structures end before their variable part; capability
// chains are read with Caps. No I/O.
package vfioabi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// VFIO_API_VERSION is what VFIO_GET_API_VERSION answers.
const VFIO_API_VERSION = 0

// Extensions of VFIO_CHECK_EXTENSION, and the IOMMU types of VFIO_SET_IOMMU.
const (
	VFIO_TYPE1_IOMMU   = 1
	VFIO_TYPE1v2_IOMMU = 3
	VFIO_NOIOMMU_IOMMU = 8
	VFIO_UNMAP_ALL     = 9
)

// The ioctl numbers are _IO(VFIO_TYPE, VFIO_BASE + n): no size, no direction.
const (
	VFIO_TYPE = 0x3b // ';'
	VFIO_BASE = 100
	io        = VFIO_TYPE<<8 + VFIO_BASE

	VFIO_GET_API_VERSION = io + 0 // container
	VFIO_CHECK_EXTENSION = io + 1
	VFIO_SET_IOMMU       = io + 2
	VFIO_IOMMU_GET_INFO  = io + 12
	VFIO_IOMMU_MAP_DMA   = io + 13
	VFIO_IOMMU_UNMAP_DMA = io + 14

	VFIO_GROUP_GET_STATUS      = io + 3 // group
	VFIO_GROUP_SET_CONTAINER   = io + 4
	VFIO_GROUP_UNSET_CONTAINER = io + 5
	VFIO_GROUP_GET_DEVICE_FD   = io + 6

	VFIO_DEVICE_GET_INFO        = io + 7 // device
	VFIO_DEVICE_GET_REGION_INFO = io + 8
	VFIO_DEVICE_GET_IRQ_INFO    = io + 9
	VFIO_DEVICE_SET_IRQS        = io + 10
	VFIO_DEVICE_RESET           = io + 11

	VFIO_DEVICE_GET_PCI_HOT_RESET_INFO = io + 12 // PCI device
	VFIO_DEVICE_PCI_HOT_RESET          = io + 13
)

// What Group_id of vfio_pci_dependent_device is where the function was opened
// through an iommufd (headers from Linux 6.6 on): a device id, 0 for a function
// without one in a group that the iommufd owns, −1 for one that it does not own.
const (
	VFIO_PCI_HOT_RESET_FLAG_DEV_ID       = 1 << 0
	VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED = 1 << 1 // each of them
	VFIO_PCI_DEVID_OWNED                 = 0
	VFIO_PCI_DEVID_NOT_OWNED             = -1
)

// VFIO_GROUP_FLAGS of vfio_group_status.
const (
	VFIO_GROUP_FLAGS_VIABLE        = 1 << 0
	VFIO_GROUP_FLAGS_CONTAINER_SET = 1 << 1
)

// VFIO_DEVICE_FLAGS of vfio_device_info.
const (
	VFIO_DEVICE_FLAGS_RESET = 1 << 0
	VFIO_DEVICE_FLAGS_PCI   = 1 << 1
	VFIO_DEVICE_FLAGS_CAPS  = 1 << 7
)

// VFIO_REGION_INFO_FLAG of vfio_region_info, and the capabilities in its chain.
const (
	VFIO_REGION_INFO_FLAG_READ  = 1 << 0
	VFIO_REGION_INFO_FLAG_WRITE = 1 << 1
	VFIO_REGION_INFO_FLAG_MMAP  = 1 << 2
	VFIO_REGION_INFO_FLAG_CAPS  = 1 << 3

	VFIO_REGION_INFO_CAP_SPARSE_MMAP   = 1
	VFIO_REGION_INFO_CAP_TYPE          = 2
	VFIO_REGION_INFO_CAP_MSIX_MAPPABLE = 3
)

// VFIO_IRQ_INFO of vfio_irq_info and VFIO_IRQ_SET of vfio_irq_set.
const (
	VFIO_IRQ_INFO_EVENTFD    = 1 << 0
	VFIO_IRQ_INFO_MASKABLE   = 1 << 1
	VFIO_IRQ_INFO_AUTOMASKED = 1 << 2
	VFIO_IRQ_INFO_NORESIZE   = 1 << 3

	VFIO_IRQ_SET_DATA_NONE      = 1 << 0
	VFIO_IRQ_SET_DATA_BOOL      = 1 << 1
	VFIO_IRQ_SET_DATA_EVENTFD   = 1 << 2
	VFIO_IRQ_SET_ACTION_MASK    = 1 << 3
	VFIO_IRQ_SET_ACTION_UNMASK  = 1 << 4
	VFIO_IRQ_SET_ACTION_TRIGGER = 1 << 5
)

// VFIO_IOMMU_INFO of vfio_iommu_type1_info, and the capabilities in its chain.
const (
	VFIO_IOMMU_INFO_PGSIZES = 1 << 0
	VFIO_IOMMU_INFO_CAPS    = 1 << 1

	VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE = 1
	VFIO_IOMMU_TYPE1_INFO_CAP_MIGRATION  = 2
	VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL      = 3
)

// VFIO_DMA_MAP_FLAG and VFIO_DMA_UNMAP_FLAG.
const (
	VFIO_DMA_MAP_FLAG_READ  = 1 << 0 // readable by the device
	VFIO_DMA_MAP_FLAG_WRITE = 1 << 1 // writable by the device

	VFIO_DMA_UNMAP_FLAG_ALL = 1 << 1
)

// Group_status is struct vfio_group_status.
type Group_status struct {
	Argsz, Flags uint32
}

// Device_info is struct vfio_device_info.
type Device_info struct {
	Argsz, Flags          uint32
	Num_regions, Num_irqs uint32
	Cap_offset            uint32
}

// Region_info is struct vfio_region_info.
type Region_info struct {
	Argsz, Flags      uint32
	Index, Cap_offset uint32
	Size, Offset      uint64
}

// Irq_info is struct vfio_irq_info.
type Irq_info struct {
	Argsz, Flags uint32
	Index, Count uint32
}

// Irq_set is struct vfio_irq_set without its data.
type Irq_set struct {
	Argsz, Flags        uint32
	Index, Start, Count uint32
}

// Iommu_type1_info is struct vfio_iommu_type1_info.
type Iommu_type1_info struct {
	Argsz, Flags uint32
	Iova_pgsizes uint64
	Cap_offset   uint32
	_            uint32 // the compiler's padding
}

// Iommu_type1_dma_map is struct vfio_iommu_type1_dma_map.
type Iommu_type1_dma_map struct {
	Argsz, Flags      uint32
	Vaddr, Iova, Size uint64
}

// Iommu_type1_dma_unmap is struct vfio_iommu_type1_dma_unmap without its data.
type Iommu_type1_dma_unmap struct {
	Argsz, Flags uint32
	Iova, Size   uint64
}

// Pci_dependent_device is struct vfio_pci_dependent_device. Group_id is a devid
// with VFIO_PCI_HOT_RESET_FLAG_DEV_ID.
type Pci_dependent_device struct {
	Group_id   uint32
	Segment    uint16
	Bus, Devfn uint8
}

// Pci_hot_reset_info is struct vfio_pci_hot_reset_info without its devices.
type Pci_hot_reset_info struct {
	Argsz, Flags, Count uint32
}

// Pci_hot_reset is struct vfio_pci_hot_reset without its group_fds.
type Pci_hot_reset struct {
	Argsz, Flags, Count uint32
}

// Sizes of the fixed parts above, as argsz wants them.
const (
	SizeGroup_status          = 8
	SizeDevice_info           = 20
	SizeRegion_info           = 32
	SizeIrq_info              = 16
	SizeIrq_set               = 20
	SizeIommu_type1_info      = 24
	SizeIommu_type1_dma_map   = 32
	SizeIommu_type1_dma_unmap = 24
	SizePci_dependent_device  = 8
	SizePci_hot_reset_info    = 12
	SizePci_hot_reset         = 12
	// SizeInfo_cap_header is sizeof(struct vfio_info_cap_header): id (16 bits),
	// version (16), next (32).
	SizeInfo_cap_header = 8
)

// ErrChain: a capability chain that leaves its buffer or does not end.
var ErrChain = errors.New("malformed VFIO capability chain")

// Capability is one element of a chain: its body begins after the header and
// reaches to the end of the buffer, since headers carry no length.
type Capability struct {
	ID, Version uint16
	Body        []byte
}

// Caps reads the chain that begins at offset first of an info buffer. first 0 is
// an empty chain.
func Caps(buf []byte, first uint32) ([]Capability, error) {
	var out []Capability
	for at := first; at != 0; {
		if uint64(at)+SizeInfo_cap_header > uint64(len(buf)) {
			return nil, fmt.Errorf("%w: element at %d of %d bytes", ErrChain, at, len(buf))
		}
		if len(out) > len(buf)/SizeInfo_cap_header {
			return nil, fmt.Errorf("%w: it does not end", ErrChain)
		}
		h := buf[at:]
		out = append(out, Capability{
			ID:      binary.NativeEndian.Uint16(h),
			Version: binary.NativeEndian.Uint16(h[2:]),
			Body:    h[SizeInfo_cap_header:],
		})
		at = binary.NativeEndian.Uint32(h[4:])
	}
	return out, nil
}

// Pairs reads the body of VFIO_REGION_INFO_CAP_SPARSE_MMAP (offset, size) or
// VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE (start, end): a count, a reserved word and
// that many pairs of 64-bit numbers.
func (c Capability) Pairs() ([][2]uint64, error) {
	if len(c.Body) < 8 {
		return nil, fmt.Errorf("%w: capability %d has %d bytes", ErrChain, c.ID, len(c.Body))
	}
	n := uint64(binary.NativeEndian.Uint32(c.Body))
	if n*16 > uint64(len(c.Body)-8) {
		return nil, fmt.Errorf("%w: capability %d counts %d pairs in %d bytes", ErrChain, c.ID, n, len(c.Body))
	}
	out := make([][2]uint64, n)
	for i := range out {
		p := c.Body[8+16*i:]
		out[i] = [2]uint64{binary.NativeEndian.Uint64(p), binary.NativeEndian.Uint64(p[8:])}
	}
	return out, nil
}

// Word reads the body of VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL: one 32-bit number.
func (c Capability) Word() (uint32, error) {
	if len(c.Body) < 4 {
		return 0, fmt.Errorf("%w: capability %d has %d bytes", ErrChain, c.ID, len(c.Body))
	}
	return binary.NativeEndian.Uint32(c.Body), nil
}
