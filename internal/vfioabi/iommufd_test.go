package vfioabi

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What linux/iommufd.h also defines, and what linux/vfio.h has since Linux 6.6.
var (
	iommufdNumbers = map[string]uint64{
		"IOMMUFD_TYPE": IOMMUFD_TYPE, "IOMMUFD_CMD_BASE": IOMMUFD_CMD_BASE,
		"IOMMU_DESTROY": IOMMU_DESTROY, "IOMMU_IOAS_ALLOC": IOMMU_IOAS_ALLOC, "IOMMU_IOAS_ALLOW_IOVAS": IOMMU_IOAS_ALLOW_IOVAS,
		"IOMMU_IOAS_COPY": IOMMU_IOAS_COPY, "IOMMU_IOAS_IOVA_RANGES": IOMMU_IOAS_IOVA_RANGES, "IOMMU_IOAS_MAP": IOMMU_IOAS_MAP,
		"IOMMU_IOAS_UNMAP": IOMMU_IOAS_UNMAP, "IOMMU_OPTION": IOMMU_OPTION,
		"IOMMU_IOAS_MAP_FIXED_IOVA": IOMMU_IOAS_MAP_FIXED_IOVA, "IOMMU_IOAS_MAP_WRITEABLE": IOMMU_IOAS_MAP_WRITEABLE,
		"IOMMU_IOAS_MAP_READABLE":  IOMMU_IOAS_MAP_READABLE,
		"IOMMU_OPTION_RLIMIT_MODE": IOMMU_OPTION_RLIMIT_MODE, "IOMMU_OPTION_HUGE_PAGES": IOMMU_OPTION_HUGE_PAGES,
		"IOMMU_OPTION_OP_SET": IOMMU_OPTION_OP_SET, "IOMMU_OPTION_OP_GET": IOMMU_OPTION_OP_GET,
	}
	iommufdLayout = map[string]uint64{
		"sizeof(struct iommu_destroy)":                                uint64(unsafe.Sizeof(Iommu_destroy{})),
		"offsetof(struct iommu_destroy, id)":                          uint64(unsafe.Offsetof(Iommu_destroy{}.Id)),
		"sizeof(struct iommu_ioas_alloc)":                             uint64(unsafe.Sizeof(Iommu_ioas_alloc{})),
		"offsetof(struct iommu_ioas_alloc, out_ioas_id)":              uint64(unsafe.Offsetof(Iommu_ioas_alloc{}.Out_ioas_id)),
		"sizeof(struct iommu_iova_range)":                             uint64(unsafe.Sizeof(Iommu_iova_range{})),
		"offsetof(struct iommu_iova_range, last)":                     uint64(unsafe.Offsetof(Iommu_iova_range{}.Last)),
		"sizeof(struct iommu_ioas_iova_ranges)":                       uint64(unsafe.Sizeof(Iommu_ioas_iova_ranges{})),
		"offsetof(struct iommu_ioas_iova_ranges, ioas_id)":            uint64(unsafe.Offsetof(Iommu_ioas_iova_ranges{}.Ioas_id)),
		"offsetof(struct iommu_ioas_iova_ranges, num_iovas)":          uint64(unsafe.Offsetof(Iommu_ioas_iova_ranges{}.Num_iovas)),
		"offsetof(struct iommu_ioas_iova_ranges, allowed_iovas)":      uint64(unsafe.Offsetof(Iommu_ioas_iova_ranges{}.Allowed_iovas)),
		"offsetof(struct iommu_ioas_iova_ranges, out_iova_alignment)": uint64(unsafe.Offsetof(Iommu_ioas_iova_ranges{}.Out_iova_alignment)),
		"sizeof(struct iommu_ioas_allow_iovas)":                       uint64(unsafe.Sizeof(Iommu_ioas_allow_iovas{})),
		"offsetof(struct iommu_ioas_allow_iovas, num_iovas)":          uint64(unsafe.Offsetof(Iommu_ioas_allow_iovas{}.Num_iovas)),
		"offsetof(struct iommu_ioas_allow_iovas, allowed_iovas)":      uint64(unsafe.Offsetof(Iommu_ioas_allow_iovas{}.Allowed_iovas)),
		"sizeof(struct iommu_ioas_map)":                               uint64(unsafe.Sizeof(Iommu_ioas_map{})),
		"offsetof(struct iommu_ioas_map, flags)":                      uint64(unsafe.Offsetof(Iommu_ioas_map{}.Flags)),
		"offsetof(struct iommu_ioas_map, ioas_id)":                    uint64(unsafe.Offsetof(Iommu_ioas_map{}.Ioas_id)),
		"offsetof(struct iommu_ioas_map, user_va)":                    uint64(unsafe.Offsetof(Iommu_ioas_map{}.User_va)),
		"offsetof(struct iommu_ioas_map, length)":                     uint64(unsafe.Offsetof(Iommu_ioas_map{}.Length)),
		"offsetof(struct iommu_ioas_map, iova)":                       uint64(unsafe.Offsetof(Iommu_ioas_map{}.Iova)),
		"sizeof(struct iommu_ioas_unmap)":                             uint64(unsafe.Sizeof(Iommu_ioas_unmap{})),
		"offsetof(struct iommu_ioas_unmap, ioas_id)":                  uint64(unsafe.Offsetof(Iommu_ioas_unmap{}.Ioas_id)),
		"offsetof(struct iommu_ioas_unmap, iova)":                     uint64(unsafe.Offsetof(Iommu_ioas_unmap{}.Iova)),
		"offsetof(struct iommu_ioas_unmap, length)":                   uint64(unsafe.Offsetof(Iommu_ioas_unmap{}.Length)),
		"sizeof(struct iommu_option)":                                 uint64(unsafe.Sizeof(Iommu_option{})),
		"offsetof(struct iommu_option, op)":                           uint64(unsafe.Offsetof(Iommu_option{}.Op)),
		"offsetof(struct iommu_option, object_id)":                    uint64(unsafe.Offsetof(Iommu_option{}.Object_id)),
		"offsetof(struct iommu_option, val64)":                        uint64(unsafe.Offsetof(Iommu_option{}.Val64)),
	}

	cdevNumbers = map[string]uint64{
		"VFIO_DEVICE_BIND_IOMMUFD": VFIO_DEVICE_BIND_IOMMUFD, "VFIO_DEVICE_ATTACH_IOMMUFD_PT": VFIO_DEVICE_ATTACH_IOMMUFD_PT,
		"VFIO_DEVICE_DETACH_IOMMUFD_PT":        VFIO_DEVICE_DETACH_IOMMUFD_PT,
		"VFIO_PCI_HOT_RESET_FLAG_DEV_ID":       VFIO_PCI_HOT_RESET_FLAG_DEV_ID,
		"VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED": VFIO_PCI_HOT_RESET_FLAG_DEV_ID_OWNED,
		"VFIO_PCI_DEVID_OWNED":                 VFIO_PCI_DEVID_OWNED,
		"VFIO_PCI_DEVID_NOT_OWNED":             math.MaxUint64, // −1
	}
	// The structures grew behind the members that are used here, so that their own
	// size is that of Linux 6.6 only.
	cdevLayout = map[string]uint64{
		"offsetof(struct vfio_device_bind_iommufd, iommufd)":    uint64(unsafe.Offsetof(Device_bind_iommufd{}.Iommufd)),
		"offsetof(struct vfio_device_bind_iommufd, out_devid)":  uint64(unsafe.Offsetof(Device_bind_iommufd{}.Out_devid)),
		"offsetof(struct vfio_device_attach_iommufd_pt, pt_id)": uint64(unsafe.Offsetof(Device_attach_iommufd_pt{}.Pt_id)),
		"offsetof(struct vfio_device_detach_iommufd_pt, flags)": uint64(unsafe.Offsetof(Device_detach_iommufd_pt{}.Flags)),
	}
)

func TestIOMMUFDSizes(t *testing.T) {
	for name, x := range map[string][2]uintptr{
		"destroy":     {SizeIommu_destroy, unsafe.Sizeof(Iommu_destroy{})},
		"ioas alloc":  {SizeIommu_ioas_alloc, unsafe.Sizeof(Iommu_ioas_alloc{})},
		"iova range":  {SizeIommu_iova_range, unsafe.Sizeof(Iommu_iova_range{})},
		"iova ranges": {SizeIommu_ioas_iova_ranges, unsafe.Sizeof(Iommu_ioas_iova_ranges{})},
		"allow iovas": {SizeIommu_ioas_allow_iovas, unsafe.Sizeof(Iommu_ioas_allow_iovas{})},
		"map":         {SizeIommu_ioas_map, unsafe.Sizeof(Iommu_ioas_map{})},
		"unmap":       {SizeIommu_ioas_unmap, unsafe.Sizeof(Iommu_ioas_unmap{})},
		"option":      {SizeIommu_option, unsafe.Sizeof(Iommu_option{})},
		"bind":        {SizeDevice_bind_iommufd, unsafe.Sizeof(Device_bind_iommufd{})},
		"attach":      {SizeDevice_attach_iommufd_pt, unsafe.Sizeof(Device_attach_iommufd_pt{})},
		"detach":      {SizeDevice_detach_iommufd_pt, unsafe.Sizeof(Device_detach_iommufd_pt{})},
	} {
		require.Equal(t, x[0], x[1], name)
	}
	// As strace prints them.
	require.Equal(t, 0x3b85, IOMMU_IOAS_MAP)
	require.Equal(t, 0x3b76, VFIO_DEVICE_BIND_IOMMUFD)
}

func TestAgainstIOMMUFDHeader(t *testing.T) {
	againstHeader(t, "linux/iommufd.h", "", iommufdNumbers, iommufdLayout)
}

func TestAgainstCDevHeader(t *testing.T) {
	againstHeader(t, "linux/vfio.h", "VFIO_DEVICE_BIND_IOMMUFD", cdevNumbers, cdevLayout)
}
