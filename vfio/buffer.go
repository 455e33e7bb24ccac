package vfio

import (
	"fmt"
	"sync/atomic"
)

// BufferOptions tune one allocation. The zero value is good.
type BufferOptions struct {
	// Align of the IOVA in bytes, a power of two up to 2 MiB; the host address is
	// aligned alike, up to 4096 in heap memory. 0 means the size rounded up to a
	// power of two, but at least 64 and at most 4096: a buffer below a page never
	// crosses one.
	Align int
	// Name says in errors and leak reports what the buffer is for.
	Name string
	// ReadOnly memory can be read but not written by devices.
	ReadOnly bool
}

// Buffer is DMA memory: a piece of a slab, contiguous on the bus. It has one
// owner, who frees it when no device can reach it any more.
type Buffer struct {
	Mem
	iova  uint64
	size  int
	space *AddressSpace
	slab  *slab
	name  string
	freed atomic.Bool
	holds int // under space.mu: objects by which a device reaches it
}

// IOVA is the bus address of the first byte.
func (b *Buffer) IOVA() uint64 { return b.iova }

// Size is the size asked for, in bytes.
func (b *Buffer) Size() int { return b.size }

// Name is what the buffer is for, as given to Alloc.
func (b *Buffer) Name() string { return b.name }

// room is what the buffer takes in its slab.
func (b *Buffer) room() uint64 { return roundUp(uint64(b.size), granule) }

// Free gives the memory back. The device must not be able to reach it any more:
// after that it belongs to somebody else. The Buffer's views are dead; its Mem is
// empty. While it is held (Hold), Free answers ErrInUse and does nothing. A second
// call answers ErrClosed, and so does a call after the address space was closed.
func (b *Buffer) Free() error {
	s := b.space
	op := func() string { return fmt.Sprintf("free DMA memory%s at IOVA %#x", forName(b.name), b.iova) }
	s.mu.Lock()
	if n := b.holds; n > 0 && !s.closed {
		s.mu.Unlock()
		return &Error{Op: op(), Err: fmt.Errorf("%w: %d objects give a device access to it", ErrInUse, n), Remedy: "destroy the memory keys over it first"}
	}
	if b.freed.Swap(true) {
		s.mu.Unlock()
		return &Error{Op: op(), Err: fmt.Errorf("%w: it was freed before", ErrClosed)}
	}
	if _, ok := s.live[b]; !ok {
		s.mu.Unlock()
		return &Error{Op: op(), Err: fmt.Errorf("%w: the address space is gone", ErrClosed)}
	}
	s.forget(b)
	sl := b.slab
	b.Mem = Mem{}
	if !sl.own {
		err := sl.room.Free(b.iova-sl.iova, b.room())
		s.mu.Unlock()
		if err != nil {
			return &Error{Op: op(), Err: err}
		}
		return nil
	}
	s.drop(sl)
	s.mu.Unlock()
	if err := s.destroy(sl); err != nil {
		return fmt.Errorf("%s: %w", op(), err)
	}
	return nil
}

// Hold keeps the buffer from being freed until Unhold: whoever gives a device
// access to it, a memory key for instance, holds it meanwhile. Holds add up. A
// buffer that was freed answers ErrClosed. It is safe for concurrent use.
func (b *Buffer) Hold() error {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if b.freed.Load() {
		return &Error{Op: "hold DMA memory" + forName(b.name), Err: fmt.Errorf("%w: it was freed", ErrClosed)}
	}
	b.holds++
	return nil
}

// Unhold undoes one Hold. More of them than Holds panic.
func (b *Buffer) Unhold() {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if b.holds == 0 {
		panic("vfio: Unhold of a buffer that nobody holds")
	}
	b.holds--
}
