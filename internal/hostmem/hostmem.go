// Package hostmem allocates memory that devices can be given: a memfd (which
// vfio-user can pass to another process, with huge pages when there are any), or
// the Go heap (which the race detector sees, unlike mapped memory).
package hostmem

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// HugeSize is the huge page that is tried, and the alignment of every memfd
	// arena in this process: with IOVAs aligned alike, the IOMMU can use large
	// entries wherever the pages behind are contiguous.
	HugeSize = 2 << 20
	pageSize = 4096
)

// ErrSize: a size that is not a positive multiple of 4096.
var ErrSize = errors.New("size is not a positive multiple of 4096")

// Arena is a piece of memory with one owner. Its methods are not safe for
// concurrent use with Close.
type Arena struct {
	b    []byte
	fd   int // −1: Go heap
	huge bool
	// shuffled: the pages of b are not those of the file in order.
	shuffled bool
}

// Bytes is the memory, zero at first. It is valid until Close.
func (a *Arena) Bytes() []byte { return a.b }

// FD is the memfd behind Bytes, from its offset 0; −1 for the Go heap, and for
// memory whose pages are in another order than in their file.
func (a *Arena) FD() int {
	if a.shuffled {
		return -1
	}
	return a.fd
}

// Huge tells whether the arena is made of reserved huge pages.
func (a *Arena) Huge() bool { return a.huge }

// Heap makes an arena of Go memory, aligned to 4096 bytes. The collector does
// not move it, and keeps it while the Arena or a view of Bytes is reachable.
func Heap(size int) (*Arena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, ErrSize)
	}
	raw := make([]byte, size+pageSize)
	skip := int(-uintptr(unsafe.Pointer(&raw[0])) & (pageSize - 1))
	return &Arena{b: raw[skip : skip+size : skip+size], fd: -1}, nil
}

// MemFD makes an arena of a new memfd of that name (as /proc shows it), aligned
// to HugeSize. With a size that is a multiple of HugeSize it takes reserved huge
// pages when the machine has enough of them, and ordinary pages otherwise.
func MemFD(name string, size int) (*Arena, error) {
	if size <= 0 || size%pageSize != 0 {
		return nil, fmt.Errorf("allocate %d bytes: %w", size, ErrSize)
	}
	if size%HugeSize == 0 {
		if a, err := memfd(name, size, true); err == nil {
			return a, nil
		}
	}
	return memfd(name, size, false)
}

// memfd makes one attempt; on failure nothing is left behind.
func memfd(name string, size int, huge bool) (*Arena, error) {
	flags := unix.MFD_CLOEXEC
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, fmt.Errorf("create memfd of %d bytes: %w", size, err)
	}
	b, err := fill(fd, size, huge)
	if err != nil {
		_ = unix.Close(fd) // nothing was written: the first error is the one that counts
		return nil, err
	}
	return &Arena{b: b, fd: fd, huge: huge}, nil
}

// fill sizes the file and maps it.
func fill(fd, size int, huge bool) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("size memfd to %d bytes: %w", size, err)
	}
	if huge {
		// A page fault on a missing huge page is SIGBUS: allocate now, where a
		// shortage is an error. Ordinary pages stay lazy.
		if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
			return nil, fmt.Errorf("allocate %d bytes of huge pages: %w", size, err)
		}
	}
	return mapAligned(fd, size)
}

// mapAligned maps the file at a multiple of HugeSize: it reserves more than is
// needed, maps into the middle and gives the rest back.
func mapAligned(fd, size int) ([]byte, error) {
	total := uintptr(size + HugeSize)
	hold, err := unix.MmapPtr(-1, 0, nil, total, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes of address space: %w", total, err)
	}
	head := -uintptr(hold) & (HugeSize - 1)
	at := unsafe.Add(hold, head)
	p, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(hold, total) // a reservation only
		return nil, fmt.Errorf("map memfd of %d bytes: %w", size, err)
	}
	if head > 0 {
		_ = unix.MunmapPtr(hold, head) // a reservation only: keeping it costs address space
	}
	if tail := HugeSize - head; tail > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, size), tail)
	}
	b := unsafe.Slice((*byte)(p), size)
	// A hint: transparent huge pages for shared memory may be off or unknown.
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	return b, nil
}

// Close unmaps the memory and closes the file. Heap memory is left to the
// collector. A second call does nothing.
func (a *Arena) Close() error {
	if a.b == nil {
		return nil
	}
	b, fd := a.b, a.fd
	a.b, a.fd = nil, -1
	if fd < 0 {
		return nil
	}
	err := unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b)))
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("free %d bytes: %w", len(b), err)
	}
	return nil
}
