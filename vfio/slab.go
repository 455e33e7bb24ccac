package vfio

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/hostmem"
	"github.com/mlxvfio/mlxvfio/internal/iova"
)

// slab is one mapping: memory of the host at consecutive bus addresses.
type slab struct {
	arena    Backing
	iova     uint64
	size     uint64
	align    uint64          // of iova: offsets in the slab cannot be aligned better on the bus
	room     *iova.Allocator // offsets in the slab; nil when own
	used     uint64          // nothing at or above this offset was ever handed out
	readOnly bool
	own      bool // made for one buffer, and destroyed with it
}

// growFor adds a slab that holds b and cuts b out of it. Slabs double in size;
// where the address space or a limit has no room for that, smaller ones are tried.
func (s *AddressSpace) growFor(b *Buffer, align uint64, readOnly bool) (bool, error) {
	s.grow.Lock()
	defer s.grow.Unlock()
	// Somebody else may have grown the space while this caller waited.
	if ok, err := s.cut(b, align, readOnly); ok || err != nil {
		return ok, err
	}
	need := roundUp(b.room(), s.page)
	own := need > uint64(s.opt.SlabMax)
	want := max(need, s.nextSlab(readOnly))
	if want >= hugePage {
		want = roundUp(want, hugePage)
	}
	sl, err := s.newSlab(want, align, readOnly)
	for err != nil && errors.Is(err, ErrNoSpace) && want > need {
		want = max(need, roundUp(want/2, s.page))
		var again error
		if sl, again = s.newSlab(want, align, readOnly); again == nil || !errors.Is(again, ErrNoSpace) {
			err = again
		} else if want == need {
			err = again // what is needed at least says more than what was hoped for
		}
	}
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slabs = append(s.slabs, sl)
	off := uint64(0)
	if sl.own = own; !own {
		sl.room = iova.New(iova.Range{First: 0, Last: sl.size - 1})
		if off, err = sl.room.Alloc(b.room(), align); err != nil {
			return false, nil // the slab is kept for what fits
		}
	}
	s.give(b, sl, off)
	return true, nil
}

// nextSlab is the size of the next slab: double the largest of its kind.
func (s *AddressSpace) nextSlab(readOnly bool) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := uint64(s.opt.SlabMin)
	for _, sl := range s.slabs {
		if !sl.own && sl.readOnly == readOnly {
			next = max(next, sl.size*2)
		}
	}
	return min(next, uint64(s.opt.SlabMax))
}

// newSlab makes and maps one slab; on failure nothing is left behind. Called
// with grow held and mu not: the Mapper may be slow.
func (s *AddressSpace) newSlab(size, align uint64, readOnly bool) (_ *slab, err error) {
	if s.limits.Pinned {
		if err := s.lock.check(size); err != nil {
			return nil, err
		}
	}
	// A large slab sits at a 2 MiB boundary on the bus as it does in memory, so
	// that the IOMMU needs one entry where it needed 512. A smaller one is aligned
	// to its size, for whatever buffers will be cut out of it.
	at := max(align, s.page, min(uint64(1)<<bits.Len64(size-1), hugePage))
	sl := &slab{size: size, readOnly: readOnly}
	if s.limits.Physical {
		sl.arena, sl.iova, err = supply(s.m, int(size))
		if err != nil {
			return nil, err
		}
	} else if err := s.fill(sl, at); err != nil {
		return nil, err
	}
	sl.align = uint64(1) << bits.TrailingZeros64(sl.iova)
	if err = s.m.Map(Mapping{IOVA: sl.iova, Bytes: sl.arena.Bytes(), FD: sl.arena.FD(), ReadOnly: readOnly}); err != nil {
		s.giveIOVA(sl)
		return nil, errors.Join(err, sl.arena.Close())
	}
	s.mu.Lock()
	s.stats.Mappings++
	s.stats.MapCalls++
	s.stats.MappedBytes += size
	s.mu.Unlock()
	return sl, nil
}

// fill gives a slab a bus address, a multiple of at, and memory.
func (s *AddressSpace) fill(sl *slab, at uint64) error {
	s.mu.Lock()
	addr, err := s.iova.Alloc(sl.size, at)
	s.mu.Unlock()
	if err != nil {
		return &Error{Op: fmt.Sprintf("find %d bytes of bus addresses", sl.size), Err: ErrNoSpace,
			Remedy: "free DMA memory, or use fewer devices in this address space"}
	}
	sl.iova = addr
	var a *hostmem.Arena
	if s.opt.Memory == MemoryHeap {
		a, err = hostmem.Heap(int(sl.size))
	} else {
		a, err = hostmem.MemFD("mlxvfio-dma", int(sl.size))
	}
	if err != nil {
		s.giveIOVA(sl)
		return &Error{Op: "allocate DMA memory", Err: fmt.Errorf("%w: %w", ErrNoSpace, err), Remedy: "free memory or raise the memory limit of this process"}
	}
	sl.arena = a
	return nil
}

func (s *AddressSpace) giveIOVA(sl *slab) {
	if s.limits.Physical {
		return // it was the memory's own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// It was allocated by fill: giving it back cannot fail.
	_ = s.iova.Free(sl.iova, sl.size)
}

// drop takes sl out of the slabs that serve allocations. Called with mu held.
func (s *AddressSpace) drop(sl *slab) {
	for i, x := range s.slabs {
		if x == sl {
			s.slabs = append(s.slabs[:i], s.slabs[i+1:]...)
			return
		}
	}
}

// destroy unmaps and frees slabs that are out of use. Memory whose mapping the
// Mapper refuses to remove is kept: a device could still write to it. A Mapper
// that is closed has no mappings left.
func (s *AddressSpace) destroy(slabs ...*slab) error {
	var errs []error
	for _, sl := range slabs {
		if err := s.m.Unmap(sl.iova, sl.size); err != nil && !errors.Is(err, ErrClosed) {
			errs = append(errs, err)
			s.mu.Lock()
			s.dead = append(s.dead, sl)
			s.mu.Unlock()
			continue
		}
		if err := sl.arena.Close(); err != nil {
			errs = append(errs, err)
		}
		s.giveIOVA(sl)
		s.mu.Lock()
		s.stats.Mappings--
		s.stats.UnmapCalls++
		s.stats.MappedBytes -= sl.size
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}
