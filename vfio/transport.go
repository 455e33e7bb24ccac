package vfio

// Region indexes of VFIO's PCI devices (linux/vfio.h, VFIO_PCI_*_REGION_INDEX).
const (
	RegionBAR0   = 0
	RegionBAR1   = 1
	RegionBAR2   = 2
	RegionBAR3   = 3
	RegionBAR4   = 4
	RegionBAR5   = 5
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	NumRegions   = 9
)

// Interrupt indexes of VFIO's PCI devices (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX).
const (
	IRQINTx = 0
	IRQMSI  = 1
	IRQMSIX = 2
	IRQErr  = 3
	IRQReq  = 4
	NumIRQs = 5
)

// Transport is one function seen through VFIO's verbs. Kernel VFIO, the
// vfio-user client and the model implement it; the vfio-user server serves one.
// All methods are safe for concurrent use. After Close every method answers
// ErrClosed. Errors are *Error (found with errors.As): ErrRange for an index or
// offset that does not exist, ErrNotFound for a region that the function does not
// have, ErrNotSupported for a verb. Package vfiotest holds the contract as tests.
type Transport interface {
	// Info describes the function.
	Info() (DeviceInfo, error)
	// RegionInfo describes region index (RegionBAR0 … RegionVGA). A region that
	// does not exist has Size 0.
	RegionInfo(index int) (RegionInfo, error)
	// ReadRegion fills p from byte offset off. On BARs p is 1, 2, 4 or 8 bytes,
	// naturally aligned; bytes arrive in bus order, so p[0] is the byte at off.
	ReadRegion(index int, off uint64, p []byte) error
	// WriteRegion writes p at byte offset off, under the rules of ReadRegion.
	// To the model a doorbell written here is a synchronous call.
	WriteRegion(index int, off uint64, p []byte) error
	// MapRegion maps the mappable areas of a region into this process and
	// returns them; a second call returns the same areas. What no area covers
	// (the MSI-X table, or everything on the model and on vfio-user) traps into
	// ReadRegion and WriteRegion. The areas die with Close.
	MapRegion(index int) ([]Area, error)
	// IRQInfo describes interrupt index (IRQINTx … IRQReq).
	IRQInfo(index int) (IRQInfo, error)
	// NewVector makes a Vector of the kind this transport can signal: an eventfd
	// for the kernel and vfio-user, a channel for the in-process model.
	NewVector() (*Vector, error)
	// SetIRQs attaches vectors[i] to interrupt start+i of the index; a nil entry
	// detaches that one. With no vectors at all the whole index is disabled.
	// The transport does not own the vectors: close them after detaching.
	SetIRQs(index, start int, vectors []*Vector) error
	// DMA is the Mapper of the I/O address space the function is attached to.
	// Functions may share it.
	DMA() Mapper
	// Reset resets the function (FLR where it has one).
	Reset() error
	// Close detaches interrupts, unmaps regions and gives the function up. It
	// does not unmap DMA of a Mapper that other functions share. A second call
	// does nothing.
	Close() error
}

// Mapper makes memory visible to devices: one I/O address space of type1,
// iommufd, vfio-user or the model. It is safe for concurrent use.
type Mapper interface {
	// Map makes m visible at m.IOVA. Refused: overlaps (ErrExists), an empty or
	// misaligned mapping or one outside the usable ranges (ErrRange), memory
	// without a file where one is needed (ErrNotSupported).
	Map(m Mapping) error
	// Unmap removes what was mapped at exactly [iova, iova+size); ErrNotFound if
	// that is no mapping.
	Unmap(iova, size uint64) error
	// Limits tells what may be mapped where.
	Limits() (DMALimits, error)
}

// Mapping is memory offered to devices. It carries bytes, file and offset
// together: the kernel wants the address, vfio-user the file, the model the
// bytes.
type Mapping struct {
	IOVA  uint64 // bus address, a multiple of the smallest page
	Bytes []byte // host view; len is the size, a multiple of the smallest page
	// FD is the memfd behind Bytes and Offset the place of Bytes in it; FD is
	// −1 for memory without a file (the Go-heap arena), which vfio-user refuses.
	FD     int
	Offset int64
	// ReadOnly memory may be read but not written by devices.
	ReadOnly bool
	// Lent memory belongs to another process, which may truncate the file behind
	// it: a device in this process touches it with Guarded.
	Lent bool
}

// IOVARange is an inclusive range of bus addresses.
type IOVARange struct{ First, Last uint64 }

// DMALimits describes an I/O address space.
type DMALimits struct {
	// Ranges are the usable IOVA ranges, ascending; reserved regions are
	// already cut out.
	Ranges []IOVARange
	// PageSizes is a bitmap: bit n set means 1<<n bytes can be mapped.
	PageSizes uint64
	// MaxMappings is the number of mappings the space still takes; 0 = unknown.
	MaxMappings uint32
	// NeedsFile says that mappings without a file are refused.
	NeedsFile bool
	// Pinned says that mapped memory counts against RLIMIT_MEMLOCK; PinnedByUser
	// that the kernel adds up what all processes of the user pin, and not what this
	// process does.
	Pinned       bool
	PinnedByUser bool
	// Physical says that nothing translates: the bus address of memory is its
	// physical address, and nothing keeps a device from any memory, read-only
	// mappings included. The Mapper is a PhysicalMapper.
	Physical bool
}

// PhysicalMapper is a Mapper of devices that no IOMMU guards. Memory is where it
// is, so it comes from the Mapper, and only such memory can be mapped, at its own
// address.
type PhysicalMapper interface {
	Mapper
	// Supply makes size bytes of zeroed memory, a multiple of the smallest page, at
	// consecutive bus addresses from iova on, which do not change. Close it after
	// unmapping. ErrNoSpace: there is not that much, or not in one piece.
	Supply(size int) (b Backing, iova uint64, err error)
}

// Backing is memory with one owner: FD is the file behind Bytes, −1 for none.
type Backing interface {
	Bytes() []byte
	FD() int
	Close() error
}

// DeviceInfo describes an opened function.
type DeviceInfo struct {
	// Name identifies the function in messages: a BDF, a socket, a model name.
	Name string `json:"name"`
	// Backend is "type1", "iommufd", "noiommu", "sysfs", "vfio-user" or "sim".
	Backend string `json:"backend"`
	Regions int    `json:"regions"`
	IRQs    int    `json:"irqs"`
	// CanReset says that Reset works.
	CanReset bool `json:"can_reset"`
}

// RegionInfo describes a region.
type RegionInfo struct {
	Size uint64
	Read bool
	// Write says that the region may be written.
	Write bool
	// Mappable are the areas MapRegion maps: the whole region, or the sparse
	// areas the kernel reports, minus the MSI-X table where it says so.
	Mappable []Span
}

// Span is a piece of a region: Size bytes at Offset.
type Span struct{ Offset, Size uint64 }

// Area is a mapped piece of a region: Bytes begins at byte Offset of the region.
// It is device memory: only package mmio may touch it.
type Area struct {
	Offset uint64
	Bytes  []byte

	gate *gate // shared by the areas of a region; nil if they outlive Close
}

// IRQInfo describes an interrupt index.
type IRQInfo struct {
	// Count is the number of vectors.
	Count int
	// EventFD says that vectors can be attached.
	EventFD bool
	// NoResize says that vectors cannot be added without detaching all first.
	NoResize bool
}
