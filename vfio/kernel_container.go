package vfio

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
	"golang.org/x/sys/unix"
)

// Container is an I/O address space of kernel VFIO (a container with TYPE1v2)
// that several functions, of one IOMMU group or several, join with Open. It is a
// Mapper once a function has joined. It is safe for concurrent use.
//
// One made with BackendNoIOMMU maps nothing: the Mapper of its functions is
// another (see PhysicalMapper).
type Container struct {
	o    KernelOptions
	path string
	// physical is the Mapper where there is no IOMMU; nil with TYPE1v2.
	physical *physicalMapper

	mu     sync.Mutex
	fd     int
	closed bool
	groups map[int]*group
	iommu  bool              // VFIO_SET_IOMMU was done: a group is attached
	spent  bool              // the last group left while memory was mapped
	maps   map[uint64]uint64 // IOVA → size of what is mapped
}

// group is an open IOMMU group. The kernel opens one only once, so that the
// functions in it share it.
type group struct{ fd, users int }

// NewContainer opens an empty container: for TYPE1v2, or for functions without an
// IOMMU with BackendNoIOMMU and UnsafeNoIOMMU. Close it after the functions in it.
func NewContainer(o KernelOptions) (*Container, error) {
	o = o.withDefaults()
	c := &Container{o: o, path: filepath.Join(o.DevRoot, "vfio/vfio"), fd: -1, groups: map[int]*group{}, maps: map[uint64]uint64{}}
	switch {
	case o.Backend == BackendIOMMUFD:
		return nil, c.fail("open container", fmt.Errorf("%w: iommufd has no containers", ErrRange), "make an IOAS")
	case o.Backend == BackendNoIOMMU && !o.UnsafeNoIOMMU:
		return nil, c.fail("open container", noIOMMUMeans(), noIOMMURemedy)
	case o.Backend == BackendNoIOMMU:
		c.physical = newPhysicalMapper(o)
	}
	fd, err := o.sys.open(c.path, unix.O_RDWR)
	if err != nil {
		return nil, c.fail("open container", err, openContainerRemedy(err))
	}
	if err := c.check(fd); err != nil {
		remedy := "modprobe vfio_iommu_type1, or use a kernel with VFIO_IOMMU_TYPE1"
		if c.physical != nil {
			remedy = noIOMMUMode
		}
		return nil, errors.Join(c.fail("open container", err, remedy), o.sys.close(fd))
	}
	c.fd = fd
	return c, nil
}

func openContainerRemedy(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return "modprobe vfio-pci"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "run as root, or let this user open the file"
	}
	return ""
}

// kind is the kind of IOMMU the container is for: the number the kernel has for
// it, and its name.
func (c *Container) kind() (int, string) {
	if c.physical != nil {
		return abi.VFIO_NOIOMMU_IOMMU, "NOIOMMU"
	}
	return abi.VFIO_TYPE1v2_IOMMU, "TYPE1v2"
}

// backend is the backend of the functions in the container.
func (c *Container) backend() string {
	if c.physical != nil {
		return BackendNoIOMMU
	}
	return BackendType1
}

// check asks a container's file for the API version and for its kind of IOMMU.
func (c *Container) check(fd int) error {
	s := c.o.sys
	number, name := c.kind()
	v, err := s.ioctlInt(fd, abi.VFIO_GET_API_VERSION, 0)
	if err != nil {
		return fmt.Errorf("VFIO_GET_API_VERSION: %w", err)
	}
	if v != abi.VFIO_API_VERSION {
		return fmt.Errorf("%w: the kernel speaks VFIO API version %d, not %d", ErrNotSupported, v, abi.VFIO_API_VERSION)
	}
	has, err := s.ioctlInt(fd, abi.VFIO_CHECK_EXTENSION, number)
	if err != nil {
		return fmt.Errorf("VFIO_CHECK_EXTENSION: %w", err)
	}
	if has == 0 && c.physical != nil {
		// Linux container.c asks for the mode when a function is opened, too.
		return fmt.Errorf("%w guards the function, and the kernel's no-IOMMU mode is off", ErrNoIOMMU)
	}
	if has == 0 {
		return fmt.Errorf("%w: the kernel offers no %s IOMMU", ErrNotSupported, name)
	}
	return nil
}

func (c *Container) fail(op string, err error, remedy string) error {
	if remedy == "" {
		remedy = kernelRemedy(err)
	}
	return &Error{Op: op, Target: c.path, Err: err, Remedy: remedy}
}

// join attaches the IOMMU group of a function and opens the function, which the
// caller owns; leave undoes it. The group is attached once for all functions in
// it. On failure nothing is left open that was not before.
func (c *Container) join(which iommuGroup, bdf string) (fd int, err error) {
	n := which.number
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return -1, c.fail("join container", ErrClosed, "")
	}
	if c.spent {
		return -1, c.fail("join container", fmt.Errorf("%w: its mappings went when the last function left", ErrClosed), "make a new Container")
	}
	g := c.groups[n]
	if g == nil {
		if g, err = c.attach(which, bdf); err != nil {
			return -1, err
		}
		c.groups[n] = g
	}
	g.users++
	name := append([]byte(bdf), 0)
	fd, err = c.o.sys.ioctl(g.fd, abi.VFIO_GROUP_GET_DEVICE_FD, unsafe.Pointer(&name[0]))
	if err != nil {
		return -1, errors.Join(openDeviceError(c.o, bdf, err), c.release(n))
	}
	return fd, nil
}

// leave gives the group of a closed function up.
func (c *Container) leave(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.release(n)
}

// release is leave with mu held. Without groups the kernel forgets the IOMMU
// type and every mapping.
func (c *Container) release(n int) error {
	g := c.groups[n]
	if g.users--; g.users > 0 {
		return nil
	}
	delete(c.groups, n)
	err := c.o.sys.close(g.fd)
	if len(c.groups) == 0 {
		c.iommu = false
		c.spent = len(c.maps) > 0
	}
	if err != nil {
		return c.fail(fmt.Sprintf("close IOMMU group %d", n), err, "")
	}
	return nil
}

// attach opens a group and puts it into the container; on failure it is closed.
func (c *Container) attach(which iommuGroup, bdf string) (*group, error) {
	path := filepath.Join(c.o.DevRoot, "vfio", which.node())
	fd, err := c.o.sys.open(path, unix.O_RDWR)
	if err != nil {
		return nil, openGroupError(c.o, path, bdf, err)
	}
	if err := c.attachFD(fd, path, bdf); err != nil {
		return nil, errors.Join(err, c.o.sys.close(fd)) // closing detaches, too
	}
	return &group{fd: fd}, nil
}

func (c *Container) attachFD(fd int, path, bdf string) error {
	fail := func(op string, err error, remedy string) error {
		return &Error{Op: op, Target: bdf, Err: err, Remedy: remedy}
	}
	st := abi.Group_status{Argsz: abi.SizeGroup_status}
	if _, err := c.o.sys.ioctl(fd, abi.VFIO_GROUP_GET_STATUS, unsafe.Pointer(&st)); err != nil {
		return fail("query IOMMU group "+path, err, kernelRemedy(err))
	}
	if st.Flags&abi.VFIO_GROUP_FLAGS_VIABLE == 0 {
		return notViable(c.o, path, bdf)
	}
	cfd := int32(c.fd)
	if _, err := c.o.sys.ioctl(fd, abi.VFIO_GROUP_SET_CONTAINER, unsafe.Pointer(&cfd)); err != nil {
		return c.setContainerError(path, bdf, err)
	}
	if c.iommu {
		return nil
	}
	number, name := c.kind()
	if _, err := c.o.sys.ioctlInt(c.fd, abi.VFIO_SET_IOMMU, number); err != nil {
		return setIOMMUError(c.o, bdf, name, err)
	}
	c.iommu = true
	return nil
}

// ready answers an error unless memory can be mapped. Called with mu held.
func (c *Container) ready(op string) error {
	switch {
	case c.closed:
		return c.fail(op, ErrClosed, "")
	case c.spent:
		return c.fail(op, fmt.Errorf("%w: the last function left the container", ErrClosed), "")
	case !c.iommu:
		return c.fail(op, fmt.Errorf("%w: no function has joined the container", ErrNotSupported), "open a function in it first")
	}
	return nil
}

// Map implements Mapper.
func (c *Container) Map(m Mapping) error {
	op := fmt.Sprintf("map DMA %#x+%#x", m.IOVA, len(m.Bytes))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ready(op); err != nil {
		return err
	}
	if err := checkMapping(m); err != nil {
		return c.fail(op, err, "")
	}
	x := abi.Iommu_type1_dma_map{
		Argsz: abi.SizeIommu_type1_dma_map, Flags: abi.VFIO_DMA_MAP_FLAG_READ | abi.VFIO_DMA_MAP_FLAG_WRITE,
		Vaddr: uint64(uintptr(unsafe.Pointer(&m.Bytes[0]))), Iova: m.IOVA, Size: uint64(len(m.Bytes)),
	}
	if m.ReadOnly {
		x.Flags &^= abi.VFIO_DMA_MAP_FLAG_WRITE
	}
	if _, err := c.o.sys.ioctl(c.fd, abi.VFIO_IOMMU_MAP_DMA, unsafe.Pointer(&x)); err != nil {
		return mapError(c.path, op, x.Size, err)
	}
	c.maps[m.IOVA] = x.Size
	return nil
}

// Unmap implements Mapper. What went with the last function counts as unmapped.
func (c *Container) Unmap(iova, size uint64) error {
	op := fmt.Sprintf("unmap DMA %#x+%#x", iova, size)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ready(op); err != nil {
		return err
	}
	if have, ok := c.maps[iova]; !ok || have != size {
		return c.fail(op, fmt.Errorf("%w: no such mapping", ErrNotFound), "")
	}
	x := abi.Iommu_type1_dma_unmap{Argsz: abi.SizeIommu_type1_dma_unmap, Iova: iova, Size: size}
	if _, err := c.o.sys.ioctl(c.fd, abi.VFIO_IOMMU_UNMAP_DMA, unsafe.Pointer(&x)); err != nil {
		return c.fail(op, err, "")
	}
	delete(c.maps, iova)
	if x.Size != size {
		return c.fail(op, fmt.Errorf("%w: the kernel unmapped %#x bytes", ErrNotFound, x.Size), "")
	}
	return nil
}

// Limits implements Mapper.
func (c *Container) Limits() (DMALimits, error) {
	const op = "query IOMMU"
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ready(op); err != nil {
		return DMALimits{}, err
	}
	buf, err := infoIoctl(c.o.sys, c.fd, abi.VFIO_IOMMU_GET_INFO, abi.SizeIommu_type1_info, nil)
	if err != nil {
		return DMALimits{}, c.fail(op, err, "")
	}
	l, err := parseIOMMU(buf)
	if err != nil {
		return DMALimits{}, c.fail(op, err, "")
	}
	return l, nil
}

// Close gives the container up. ErrBusy: functions in it are open.
func (c *Container) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if n := len(c.groups); n > 0 {
		return c.fail("close container", fmt.Errorf("%w: functions of %d IOMMU groups are open in it", ErrBusy, n), "close the functions first")
	}
	c.closed = true
	if c.physical != nil {
		c.physical.close()
	}
	if err := c.o.sys.close(c.fd); err != nil {
		return c.fail("close container", err, "")
	}
	return nil
}

// list joins names for an error message.
func list(names []string) string { return strings.Join(names, ", ") }
