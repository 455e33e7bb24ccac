package vfioabi

// The ioctls of /dev/iommu (linux/iommufd.h) are _IO(IOMMUFD_TYPE, number): no
// size, no direction. Each takes a structure that begins with its own size.
const (
	IOMMUFD_TYPE     = 0x3b // ';'
	IOMMUFD_CMD_BASE = 0x80
	iommufd          = IOMMUFD_TYPE<<8 + IOMMUFD_CMD_BASE

	IOMMU_DESTROY          = iommufd + 0
	IOMMU_IOAS_ALLOC       = iommufd + 1
	IOMMU_IOAS_ALLOW_IOVAS = iommufd + 2
	IOMMU_IOAS_COPY        = iommufd + 3
	IOMMU_IOAS_IOVA_RANGES = iommufd + 4
	IOMMU_IOAS_MAP         = iommufd + 5
	IOMMU_IOAS_UNMAP       = iommufd + 6
	IOMMU_OPTION           = iommufd + 7
)

// The ioctls by which a function's own file (/dev/vfio/devices/vfioN, headers
// from Linux 6.6 on) gets its address space.
const (
	VFIO_DEVICE_BIND_IOMMUFD      = io + 18
	VFIO_DEVICE_ATTACH_IOMMUFD_PT = io + 19
	VFIO_DEVICE_DETACH_IOMMUFD_PT = io + 20
)

// enum iommufd_ioas_map_flags.
const (
	IOMMU_IOAS_MAP_FIXED_IOVA = 1 << 0
	IOMMU_IOAS_MAP_WRITEABLE  = 1 << 1 // by the device
	IOMMU_IOAS_MAP_READABLE   = 1 << 2
)

// enum iommufd_option and enum iommufd_option_ops. RLIMIT_MODE 0 counts pinned
// memory by user, 1 by process.
const (
	IOMMU_OPTION_RLIMIT_MODE = 0
	IOMMU_OPTION_HUGE_PAGES  = 1

	IOMMU_OPTION_OP_SET = 0
	IOMMU_OPTION_OP_GET = 1
)

// Iommu_destroy is struct iommu_destroy.
type Iommu_destroy struct {
	Size, Id uint32
}

// Iommu_ioas_alloc is struct iommu_ioas_alloc.
type Iommu_ioas_alloc struct {
	Size, Flags, Out_ioas_id uint32
}

// Iommu_iova_range is struct iommu_iova_range; Last is inclusive.
type Iommu_iova_range struct {
	Start, Last uint64
}

// Iommu_ioas_iova_ranges is struct iommu_ioas_iova_ranges. Allowed_iovas is the
// address of an array of Num_iovas ranges; with too little room the kernel fills
// it, answers EMSGSIZE and puts the number of ranges into Num_iovas.
type Iommu_ioas_iova_ranges struct {
	Size, Ioas_id      uint32
	Num_iovas          uint32
	_                  uint32
	Allowed_iovas      uint64
	Out_iova_alignment uint64
}

// Iommu_ioas_allow_iovas is struct iommu_ioas_allow_iovas.
type Iommu_ioas_allow_iovas struct {
	Size, Ioas_id uint32
	Num_iovas     uint32
	_             uint32
	Allowed_iovas uint64
}

// Iommu_ioas_map is struct iommu_ioas_map.
type Iommu_ioas_map struct {
	Size, Flags uint32
	Ioas_id     uint32
	_           uint32
	User_va     uint64
	Length      uint64
	Iova        uint64
}

// Iommu_ioas_unmap is struct iommu_ioas_unmap. The kernel puts into Length what
// it unmapped.
type Iommu_ioas_unmap struct {
	Size, Ioas_id uint32
	Iova, Length  uint64
}

// Iommu_option is struct iommu_option.
type Iommu_option struct {
	Size, Option_id uint32
	Op              uint16
	_               uint16
	Object_id       uint32
	Val64           uint64
}

// Device_bind_iommufd is struct vfio_device_bind_iommufd as of Linux 6.6.
type Device_bind_iommufd struct {
	Argsz, Flags uint32
	Iommufd      int32
	Out_devid    uint32
}

// Device_attach_iommufd_pt is struct vfio_device_attach_iommufd_pt without its
// pasid. Pt_id is an IOAS or a page table; the kernel answers the page table.
type Device_attach_iommufd_pt struct {
	Argsz, Flags, Pt_id uint32
}

// Device_detach_iommufd_pt is struct vfio_device_detach_iommufd_pt without its
// pasid.
type Device_detach_iommufd_pt struct {
	Argsz, Flags uint32
}

// Sizes of the structures above, as their first member wants them.
const (
	SizeIommu_destroy            = 8
	SizeIommu_ioas_alloc         = 12
	SizeIommu_iova_range         = 16
	SizeIommu_ioas_iova_ranges   = 32
	SizeIommu_ioas_allow_iovas   = 24
	SizeIommu_ioas_map           = 40
	SizeIommu_ioas_unmap         = 24
	SizeIommu_option             = 24
	SizeDevice_bind_iommufd      = 16
	SizeDevice_attach_iommufd_pt = 12
	SizeDevice_detach_iommufd_pt = 8
)
