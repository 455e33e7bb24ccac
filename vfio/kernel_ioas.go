package vfio

import (
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"

	abi "github.com/mlxvfio/mlxvfio/internal/vfioabi"
	"golang.org/x/sys/unix"
)

// IOAS is an I/O address space of iommufd that several functions join with Open.
// It is a Mapper as long as a function is in it: what can be mapped where depends
// on the functions. Unlike a Container's, its mappings outlive the functions; they
// go when the IOAS is closed. It is safe for concurrent use.
type IOAS struct {
	o    KernelOptions
	path string

	mu       sync.Mutex
	fd       int
	id       uint32
	closed   bool
	users    int               // functions in it
	promised bool              // Limits has told ranges, and the kernel keeps them free
	maps     map[uint64]uint64 // IOVA → size of what is mapped
}

// NewIOAS makes an empty address space. Close it after the functions in it.
func NewIOAS(o KernelOptions) (*IOAS, error) {
	a, _, err := newIOAS(o.withDefaults())
	return a, err
}

// newIOAS also tells whether /dev/iommu is there for this process.
func newIOAS(o KernelOptions) (a *IOAS, reached bool, err error) {
	a = &IOAS{o: o, path: filepath.Join(o.DevRoot, "iommu"), maps: map[uint64]uint64{}}
	if a.fd, err = o.sys.open(a.path, unix.O_RDWR); err != nil {
		return nil, !noWay(err), openIOMMUError(a.path, err)
	}
	x := abi.Iommu_ioas_alloc{Size: abi.SizeIommu_ioas_alloc}
	if _, err := o.sys.ioctl(a.fd, abi.IOMMU_IOAS_ALLOC, unsafe.Pointer(&x)); err != nil {
		return nil, true, errors.Join(a.fail("make an I/O address space (IOMMU_IOAS_ALLOC)", noSpace(err), ""), o.sys.close(a.fd))
	}
	a.id = x.Out_ioas_id
	return a, true, nil
}

// noWay tells that a file is not there, or not for this process.
func noWay(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// noSpace makes ENOMEM the sentinel that it means.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

func (a *IOAS) fail(op string, err error, remedy string) error {
	if remedy == "" {
		remedy = kernelRemedy(err)
	}
	return &Error{Op: op, Target: a.path, Err: err, Remedy: remedy}
}

// join opens the function's file, and binds and attaches it; leave undoes it after
// the file was closed. reached tells whether the file is there for this process. On
// failure nothing is left open.
func (a *IOAS) join(bdf, path string) (fd int, reached bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return -1, true, a.fail("join I/O address space", ErrClosed, "")
	}
	s := a.o.sys
	if fd, err = s.open(path, unix.O_RDWR); err != nil {
		return -1, !noWay(err), openCDevError(a.o, path, bdf, err)
	}
	// A function that is closed is detached and unbound: there is nothing else to undo.
	b := abi.Device_bind_iommufd{Argsz: abi.SizeDevice_bind_iommufd, Iommufd: int32(a.fd)}
	if _, err = s.ioctl(fd, abi.VFIO_DEVICE_BIND_IOMMUFD, unsafe.Pointer(&b)); err != nil {
		cerr := s.close(fd) // first: who has it open is looked up next
		return -1, true, errors.Join(bindError(a.o, path, bdf, err), cerr)
	}
	p := abi.Device_attach_iommufd_pt{Argsz: abi.SizeDevice_attach_iommufd_pt, Pt_id: a.id}
	if _, err = s.ioctl(fd, abi.VFIO_DEVICE_ATTACH_IOMMUFD_PT, unsafe.Pointer(&p)); err != nil {
		return -1, true, errors.Join(attachError(bdf, err), s.close(fd))
	}
	a.users++
	return fd, true, nil
}

// leave gives a closed function up.
func (a *IOAS) leave() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.users--
	return nil
}

// ready answers an error unless memory can be mapped. Called with mu held.
func (a *IOAS) ready(op string) error {
	switch {
	case a.closed:
		return a.fail(op, ErrClosed, "")
	case a.users == 0:
		return a.fail(op, fmt.Errorf("%w: no function is in the I/O address space", ErrNotSupported), "open a function in it first")
	}
	return nil
}

// Map implements Mapper.
func (a *IOAS) Map(m Mapping) error {
	op := fmt.Sprintf("map DMA %#x+%#x", m.IOVA, len(m.Bytes))
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.ready(op); err != nil {
		return err
	}
	if err := checkMapping(m); err != nil {
		return a.fail(op, err, "")
	}
	x := abi.Iommu_ioas_map{
		Size: abi.SizeIommu_ioas_map, Ioas_id: a.id,
		Flags:   abi.IOMMU_IOAS_MAP_FIXED_IOVA | abi.IOMMU_IOAS_MAP_READABLE | abi.IOMMU_IOAS_MAP_WRITEABLE,
		User_va: uint64(uintptr(unsafe.Pointer(&m.Bytes[0]))), Length: uint64(len(m.Bytes)), Iova: m.IOVA,
	}
	if m.ReadOnly {
		x.Flags &^= abi.IOMMU_IOAS_MAP_WRITEABLE
	}
	if _, err := a.o.sys.ioctl(a.fd, abi.IOMMU_IOAS_MAP, unsafe.Pointer(&x)); err != nil {
		return ioasMapError(a.path, op, x.Length, err)
	}
	a.maps[m.IOVA] = x.Length
	return nil
}

// checkMapping refuses what no IOMMU takes.
func checkMapping(m Mapping) error {
	if len(m.Bytes) == 0 || m.IOVA%minPage != 0 || len(m.Bytes)%minPage != 0 || uintptr(unsafe.Pointer(&m.Bytes[0]))%minPage != 0 {
		return fmt.Errorf("%w: address, IOVA and size must be multiples of %d", ErrRange, minPage)
	}
	return nil
}

// Unmap implements Mapper. It works without a function, too. The kernel would
// unmap every mapping inside the range: only what was mapped gets there.
func (a *IOAS) Unmap(iova, size uint64) error {
	op := fmt.Sprintf("unmap DMA %#x+%#x", iova, size)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.fail(op, ErrClosed, "")
	}
	if have, ok := a.maps[iova]; !ok || have != size {
		return a.fail(op, fmt.Errorf("%w: no such mapping", ErrNotFound), "")
	}
	x := abi.Iommu_ioas_unmap{Size: abi.SizeIommu_ioas_unmap, Ioas_id: a.id, Iova: iova, Length: size}
	if _, err := a.o.sys.ioctl(a.fd, abi.IOMMU_IOAS_UNMAP, unsafe.Pointer(&x)); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return a.fail(op, fmt.Errorf("%w: the kernel knows no such mapping: %w", ErrNotFound, err), "close the I/O address space: what is mapped goes with it")
		}
		return a.fail(op, err, "")
	}
	delete(a.maps, iova)
	if x.Length != size {
		return a.fail(op, fmt.Errorf("%w: the kernel unmapped %#x bytes", ErrNotFound, x.Length), "")
	}
	return nil
}

// Limits implements Mapper. The ranges of its first answer stay usable: the kernel
// is told to keep them, and refuses functions with less.
func (a *IOAS) Limits() (DMALimits, error) {
	const op = "query I/O address space (IOMMU_IOAS_IOVA_RANGES)"
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.ready(op); err != nil {
		return DMALimits{}, err
	}
	ranges, align, err := a.ranges()
	if err != nil {
		return DMALimits{}, a.fail(op, err, "")
	}
	if bits.OnesCount64(align) != 1 {
		return DMALimits{}, a.fail(op, fmt.Errorf("%w: IOVA alignment %d is no power of two", ErrRange, align), "")
	}
	l := DMALimits{PageSizes: -max(align, minPage), Pinned: true, PinnedByUser: true}
	for _, r := range ranges {
		l.Ranges = append(l.Ranges, IOVARange{First: r.Start, Last: r.Last})
	}
	if !a.promised {
		if err := a.promise(ranges); err != nil {
			return DMALimits{}, err
		}
	}
	return l, nil
}

// ranges asks for the usable IOVAs. Where there is no room for them the kernel
// counts them, with EMSGSIZE.
func (a *IOAS) ranges() ([]abi.Iommu_iova_range, uint64, error) {
	const most = 4096 // reserved regions are a handful
	for room := 8; room <= most; {
		list := make([]abi.Iommu_iova_range, room)
		x := abi.Iommu_ioas_iova_ranges{Size: abi.SizeIommu_ioas_iova_ranges, Ioas_id: a.id, Num_iovas: uint32(room)}
		err := a.withRanges(list, func(at uint64) error {
			x.Allowed_iovas = at
			_, err := a.o.sys.ioctl(a.fd, abi.IOMMU_IOAS_IOVA_RANGES, unsafe.Pointer(&x))
			return err
		})
		n := int(x.Num_iovas)
		switch {
		case errors.Is(err, unix.EMSGSIZE) && n > room:
			room = n
			continue
		case err != nil:
			return nil, 0, err
		case n > room:
			return nil, 0, fmt.Errorf("%w: the kernel counts %d ranges in room for %d", ErrRange, n, room)
		}
		return list[:n], x.Out_iova_alignment, nil
	}
	return nil, 0, fmt.Errorf("%w: the number of ranges does not settle below %d", ErrRange, most)
}

// withRanges calls f with the address of list, which stays where it is meanwhile.
func (a *IOAS) withRanges(list []abi.Iommu_iova_range, f func(at uint64) error) error {
	var p runtime.Pinner
	defer p.Unpin()
	p.Pin(&list[0])
	return f(uint64(uintptr(unsafe.Pointer(&list[0]))))
}

// promise keeps ranges usable, whoever joins.
func (a *IOAS) promise(ranges []abi.Iommu_iova_range) error {
	const op = "keep bus addresses usable (IOMMU_IOAS_ALLOW_IOVAS)"
	list := make([]abi.Iommu_iova_range, 0, len(ranges))
	for _, r := range ranges {
		if r.Start < r.Last { // the kernel takes no range of a single byte
			list = append(list, r)
		}
	}
	if len(list) == 0 {
		return a.fail(op, fmt.Errorf("%w: the function can reach no bus address", ErrNotSupported), "")
	}
	x := abi.Iommu_ioas_allow_iovas{Size: abi.SizeIommu_ioas_allow_iovas, Ioas_id: a.id, Num_iovas: uint32(len(list))}
	err := a.withRanges(list, func(at uint64) error {
		x.Allowed_iovas = at
		_, err := a.o.sys.ioctl(a.fd, abi.IOMMU_IOAS_ALLOW_IOVAS, unsafe.Pointer(&x))
		return err
	})
	if err != nil {
		return a.fail(op, noSpace(err), "")
	}
	a.promised = true
	return nil
}

// Close gives the address space up, with what is still mapped. ErrBusy: functions
// in it are open.
func (a *IOAS) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	if a.users > 0 {
		return a.fail("close I/O address space", fmt.Errorf("%w: %d functions are open in it", ErrBusy, a.users), "close the functions first")
	}
	a.closed = true
	var errs []error
	x := abi.Iommu_destroy{Size: abi.SizeIommu_destroy, Id: a.id}
	if _, err := a.o.sys.ioctl(a.fd, abi.IOMMU_DESTROY, unsafe.Pointer(&x)); err != nil {
		errs = append(errs, a.fail("destroy I/O address space (IOMMU_DESTROY)", err, ""))
	}
	// The file takes along what could not be destroyed.
	if err := a.o.sys.close(a.fd); err != nil {
		errs = append(errs, a.fail("close I/O address space", err, ""))
	}
	return errors.Join(errs...)
}
