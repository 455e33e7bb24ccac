package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
	"golang.org/x/sys/unix"
)

// physicalMapper is the Mapper where there is no IOMMU: it gives out huge pages
// and where they are, and keeps books. See kernel_noiommu.go for what the kernel
// guarantees about them.
type physicalMapper struct {
	o KernelOptions

	mu     sync.Mutex
	closed bool
	pieces map[uint64]*piece // by address
}

// piece is memory that was supplied.
type piece struct {
	Backing
	m      *physicalMapper
	at     uint64
	mapped bool
}

func newPhysicalMapper(o KernelOptions) *physicalMapper {
	return &physicalMapper{o: o, pieces: map[uint64]*piece{}}
}

func (p *physicalMapper) fail(op string, err error, remedy string) error {
	return (&Error{Op: op, Target: "physical memory", Err: err, Remedy: remedy}).advised()
}

// Limits implements Mapper. Memory comes in huge pages.
func (p *physicalMapper) Limits() (DMALimits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return DMALimits{}, p.fail("query DMA limits", ErrClosed, "")
	}
	return DMALimits{Physical: true, PageSizes: hugePage, Ranges: []IOVARange{{First: hugePage, Last: 1<<52 - 1}}}, nil
}

// Supply implements PhysicalMapper.
func (p *physicalMapper) Supply(size int) (Backing, uint64, error) {
	op := func() string { return fmt.Sprintf("allocate %d bytes of DMA memory in huge pages", size) }
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, 0, p.fail(op(), ErrClosed, "")
	}
	if size <= 0 || size%hugePage != 0 {
		return nil, 0, p.fail(op(), fmt.Errorf("%w: the size must be a multiple of %d", ErrRange, hugePage), "")
	}
	f, err := p.openPagemap()
	if err != nil {
		return nil, 0, err
	}
	b, at, err := p.o.sys.contiguous(size, f.locate)
	if cerr := f.close(); err == nil && cerr != nil {
		err = errors.Join(cerr, b.Close())
	}
	if err != nil {
		return nil, 0, p.supplyError(op(), size, err)
	}
	x := &piece{Backing: b, m: p, at: at}
	p.pieces[at] = x
	return x, at, nil
}

// supplyError explains why there was no memory.
func (p *physicalMapper) supplyError(op string, size int, err error) error {
	n := size / hugePage
	switch {
	case errors.Is(err, hostmem.ErrFragmented):
		return p.fail(op, fmt.Errorf("%w: no %d huge pages lie in one piece: %w", ErrNoSpace, n, err),
			"use smaller buffers, or reserve huge pages when the machine boots (hugepages=N), while memory is in one piece")
	case errors.Is(err, hostmem.ErrNoHuge):
		return p.fail(op, fmt.Errorf("%w: the machine has no %d free huge pages: %w", ErrNoSpace, n, err),
			fmt.Sprintf("echo %d > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages (in all, in use included)", max(64, 2*n)))
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	return p.fail(op, err, "")
}

// Close implements Backing. Memory that is mapped is not given back.
func (x *piece) Close() error {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	if x.mapped && !x.m.closed {
		return x.m.fail(fmt.Sprintf("free DMA memory at %#x", x.at), fmt.Errorf("%w: it is mapped", ErrInUse), "unmap it first")
	}
	if x.m.pieces[x.at] == x {
		delete(x.m.pieces, x.at)
	}
	return x.Backing.Close()
}

// Map implements Mapper.
func (p *physicalMapper) Map(m Mapping) error {
	op := fmt.Sprintf("map DMA %#x+%#x", m.IOVA, len(m.Bytes))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.fail(op, ErrClosed, "")
	}
	if len(m.Bytes) == 0 || m.IOVA%hugePage != 0 || len(m.Bytes)%hugePage != 0 {
		return p.fail(op, fmt.Errorf("%w: IOVA and size must be multiples of %d", ErrRange, hugePage), "")
	}
	for at, x := range p.pieces {
		if unsafe.SliceData(m.Bytes) != unsafe.SliceData(x.Bytes()) {
			continue
		}
		switch {
		case at != m.IOVA || len(m.Bytes) != len(x.Bytes()):
			return p.fail(op, fmt.Errorf("%w: the memory is at %#x, %#x bytes", ErrRange, at, len(x.Bytes())), "")
		case x.mapped:
			return p.fail(op, ErrExists, "")
		}
		x.mapped = true
		return nil
	}
	return p.fail(op, fmt.Errorf("%w: the memory is not of Supply, nothing keeps it where it is", ErrNotSupported), "")
}

// Unmap implements Mapper. Memory that is somewhere else by now was written by
// others where the device believed it to be: that is said loudly.
func (p *physicalMapper) Unmap(iova, size uint64) error {
	op := fmt.Sprintf("unmap DMA %#x+%#x", iova, size)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.fail(op, ErrClosed, "")
	}
	x := p.pieces[iova]
	if x == nil || !x.mapped || uint64(len(x.Bytes())) != size {
		return p.fail(op, fmt.Errorf("%w: no such mapping", ErrNotFound), "")
	}
	x.mapped = false
	log := p.o.log().With(slog.String("op", "unmap"))
	switch now, err := p.whereIs(x.Bytes()); {
	case err != nil:
		log.Warn("cannot tell whether DMA memory was moved while a device without IOMMU knew its address", slog.Any("error", err))
	case now != iova:
		log.Error("DMA memory was moved while a device without IOMMU knew its address: the device has used memory of others",
			slog.Uint64("was", iova), slog.Uint64("now", now))
	}
	return nil
}

// whereIs finds the physical address of the first byte of b.
func (p *physicalMapper) whereIs(b []byte) (uint64, error) {
	f, err := p.openPagemap()
	if err != nil {
		return 0, err
	}
	at, err := f.locate(b)
	return at, errors.Join(err, f.close())
}

func (p *physicalMapper) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// pagemap is the kernel's table of where the pages of this process are (Linux
// Documentation/admin-guide/mm/pagemap.rst): 8 bytes for each page, bit 63 for a
// page that is there, the number of its frame in bits 54:0, which is 0 for readers
// without CAP_SYS_ADMIN.
type pagemap struct {
	p    *physicalMapper
	fd   int
	path string
}

const (
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1
)

func (p *physicalMapper) openPagemap() (*pagemap, error) {
	path := filepath.Join(p.o.Proc, "self/pagemap")
	fd, err := p.o.sys.open(path, unix.O_RDONLY)
	if err != nil {
		return nil, &Error{Op: "open the table of physical addresses", Target: path, Err: err, Remedy: "run as root; the kernel needs PROC_PAGE_MONITOR"}
	}
	return &pagemap{p, fd, path}, nil
}

func (f *pagemap) close() error {
	if err := f.p.o.sys.close(f.fd); err != nil {
		return (&Error{Op: "close the table of physical addresses", Target: f.path, Err: err}).advised()
	}
	return nil
}

// locate finds the physical address of a huge page of this process.
func (f *pagemap) locate(page []byte) (uint64, error) {
	fail := func(err error, remedy string) (uint64, error) {
		return 0, (&Error{Op: "find the physical address of DMA memory", Target: f.path, Err: err, Remedy: remedy}).advised()
	}
	// The table knows a page from its first access on.
	first := unsafe.Pointer(unsafe.SliceData(page))
	atomic.LoadUint32((*uint32)(first))
	var b [8]byte
	n, err := f.p.o.sys.pread(f.fd, b[:], int64(uint64(uintptr(first))/pageSize*8))
	if err == nil && n != len(b) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fail(err, "")
	}
	x := binary.NativeEndian.Uint64(b[:])
	at := (x & pagemapFrame) * pageSize
	switch {
	case x&pagemapPresent == 0:
		return fail(fmt.Errorf("%w: the page is not in memory", ErrNotFound), "")
	case at == 0:
		return fail(fmt.Errorf("%w: the kernel hides it from this process", unix.EPERM), "run as root: it needs CAP_SYS_ADMIN")
	case at%hugePage != 0:
		return fail(fmt.Errorf("%w: %#x is no huge page", ErrRange, at), "")
	}
	return at, nil
}
