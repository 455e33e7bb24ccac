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
// that several functions, of one IOMMU group or several, join with OpenGroup. It
// is a Mapper once a function has joined. It is safe for concurrent use.
type Container struct {
	o    KernelOptions
	path string

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

// NewContainer opens an empty container. Close it after the functions in it.
func NewContainer(o KernelOptions) (*Container, error) {
	o = o.withDefaults()
	c := &Container{o: o, path: filepath.Join(o.DevRoot, "vfio/vfio"), fd: -1, groups: map[int]*group{}, maps: map[uint64]uint64{}}
	fd, err := o.sys.open(c.path, unix.O_RDWR)
	if err != nil {
		return nil, c.fail("open container", err, openContainerRemedy(err))
	}
	if err := checkContainer(o.sys, fd); err != nil {
		return nil, errors.Join(c.fail("open container", err, "modprobe vfio_iommu_type1, or use a kernel with VFIO_IOMMU_TYPE1"), o.sys.close(fd))
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

// checkContainer asks for the API version and for TYPE1v2.
func checkContainer(s sys, fd int) error {
	v, err := s.ioctlInt(fd, abi.VFIO_GET_API_VERSION, 0)
	if err != nil {
		return fmt.Errorf("VFIO_GET_API_VERSION: %w", err)
	}
	if v != abi.VFIO_API_VERSION {
		return fmt.Errorf("%w: the kernel speaks VFIO API version %d, not %d", ErrNotSupported, v, abi.VFIO_API_VERSION)
	}
	has, err := s.ioctlInt(fd, abi.VFIO_CHECK_EXTENSION, abi.VFIO_TYPE1v2_IOMMU)
	if err != nil {
		return fmt.Errorf("VFIO_CHECK_EXTENSION: %w", err)
	}
	if has == 0 {
		return fmt.Errorf("%w: the kernel offers no TYPE1v2 IOMMU", ErrNotSupported)
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
func (c *Container) join(n int, bdf string) (fd int, err error) {
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
		if g, err = c.attach(n, bdf); err != nil {
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

// attach opens group n and puts it into the container; on failure it is closed.
func (c *Container) attach(n int, bdf string) (*group, error) {
	path := filepath.Join(c.o.DevRoot, "vfio", fmt.Sprint(n))
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
		return fail("put IOMMU group "+path+" into a container", err,
			"groups of different IOMMU kinds cannot share one: use a Container of its own")
	}
	if c.iommu {
		return nil
	}
	if _, err := c.o.sys.ioctlInt(c.fd, abi.VFIO_SET_IOMMU, abi.VFIO_TYPE1v2_IOMMU); err != nil {
		return setIOMMUError(bdf, err)
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
	if len(m.Bytes) == 0 || m.IOVA%minPage != 0 || len(m.Bytes)%minPage != 0 || uintptr(unsafe.Pointer(&m.Bytes[0]))%minPage != 0 {
		return c.fail(op, fmt.Errorf("%w: address, IOVA and size must be multiples of %d", ErrRange, minPage), "")
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

// infoIoctl makes an INFO call that answers a structure of size bytes and, when
// the kernel says that argsz was too small, makes it again with room for the
// chain. fill sets the request's own fields.
func infoIoctl(s sys, fd int, req uint, size uint32, fill func(buf []byte)) ([]byte, error) {
	const most = 1 << 20 // chains are a few hundred bytes
	for want := size; ; {
		words := make([]uint64, (want+7)/8) // aligned for the structures in it
		buf := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8)[:want]
		argsz := (*uint32)(unsafe.Pointer(&buf[0]))
		*argsz = want
		if fill != nil {
			fill(buf)
		}
		if _, err := s.ioctl(fd, req, unsafe.Pointer(&buf[0])); err != nil {
			return nil, err
		}
		if *argsz <= want {
			return buf, nil
		}
		if *argsz > most {
			return nil, fmt.Errorf("%w: the kernel wants to answer %d bytes", abi.ErrChain, *argsz)
		}
		want = *argsz
	}
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
	if err := c.o.sys.close(c.fd); err != nil {
		return c.fail("close container", err, "")
	}
	return nil
}

// list joins names for an error message.
func list(names []string) string { return strings.Join(names, ", ") }
