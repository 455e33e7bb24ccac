package vfio

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"sync"

	"github.com/mlxvfio/mlxvfio/internal/iova"
)

// MemoryKind says what DMA memory is made of.
type MemoryKind int

// Kinds of DMA memory.
const (
	// MemoryAuto is MemoryMemFD, except in a build with the race detector on a
	// Mapper that takes memory without a file: there it is MemoryHeap.
	MemoryAuto MemoryKind = iota
	// MemoryMemFD is a memfd, of huge pages when there are any.
	MemoryMemFD
	// MemoryHeap is Go memory: the race detector sees it; vfio-user refuses it.
	MemoryHeap
)

// SpaceOptions tune an AddressSpace. The zero value is good.
type SpaceOptions struct {
	Memory MemoryKind
	// SlabMin is the size of the first slab and SlabMax the size where doubling
	// ends, in bytes; 0 means 2 MiB and 64 MiB. Rounded up to the smallest page
	// of the Mapper. On a PhysicalMapper each slab is one page.
	SlabMin, SlabMax int
}

// SpaceStats count what an AddressSpace has done and holds.
type SpaceStats struct {
	Mappings    int    `json:"mappings"`     // mappings that exist now
	MapCalls    uint64 `json:"map_calls"`    // successful Mapper.Map calls so far
	UnmapCalls  uint64 `json:"unmap_calls"`  // successful Mapper.Unmap calls so far
	MappedBytes uint64 `json:"mapped_bytes"` // bytes mapped now
	LiveBuffers int    `json:"live_buffers"` // buffers allocated and not freed
	LiveBytes   uint64 `json:"live_bytes"`   // their bytes, as rounded up by the allocator
}

// granule is the unit of allocation inside slabs: one cache line, so that two
// buffers never share one.
const granule = 64

// AddressSpace is one I/O address space with the DMA memory in it. Devices that
// share the Mapper may share it. Memory comes from slabs of 2, 4, 8 … MiB, each
// one mapping, so that a bring-up costs few of them; buffers are cut out of the
// slabs. On a PhysicalMapper slabs lie where the Mapper has memory; elsewhere they
// are memory of this process at bus addresses that the space gives out. It is safe
// for concurrent use.
type AddressSpace struct {
	m      Mapper
	limits DMALimits
	opt    SpaceOptions
	page   uint64 // smallest page that can be mapped
	refuse error  // set when the transport has no DMA at all
	lock   memlock

	grow sync.Mutex // held while a slab is made or all are destroyed; before mu

	mu     sync.Mutex
	closed bool
	iova   *iova.Allocator
	slabs  []*slab
	dead   []*slab // no longer used, but the Mapper refused to unmap them
	live   map[*Buffer]struct{}
	stats  SpaceStats
}

// NewAddressSpace makes an empty address space over m, which outlives it. A nil m
// is refused with an *Error.
func NewAddressSpace(m Mapper, o SpaceOptions) (*AddressSpace, error) {
	limits, err := limitsOf(m)
	if err != nil {
		return nil, err
	}
	return newSpace(m, limits, o)
}

// limitsOf asks a Mapper what it takes.
func limitsOf(m Mapper) (DMALimits, error) {
	if m == nil {
		return DMALimits{}, &Error{Op: "make address space", Err: errors.New("the mapper is nil"),
			Remedy: "give it the Mapper of a transport, as Transport.DMA answers it"}
	}
	limits, err := m.Limits()
	if err != nil {
		return DMALimits{}, fmt.Errorf("query DMA limits: %w", err)
	}
	return limits, nil
}

func newSpace(m Mapper, limits DMALimits, o SpaceOptions) (*AddressSpace, error) {
	s := &AddressSpace{m: m, limits: limits, opt: o, lock: kernelMemlock, live: map[*Buffer]struct{}{}}
	if limits.PageSizes == 0 {
		return nil, &Error{Op: "make address space", Err: fmt.Errorf("%w: the IOMMU reports no page size", ErrNotSupported)}
	}
	s.page = max(uint64(1)<<bits.TrailingZeros64(limits.PageSizes), minPage)
	if s.page > hugePage {
		return nil, &Error{Op: "make address space",
			Err: fmt.Errorf("%w: the smallest IOMMU page is %d bytes, more than 2 MiB", ErrNotSupported, s.page)}
	}
	if o.Memory == MemoryAuto {
		s.opt.Memory = MemoryMemFD
		if raceEnabled && !limits.NeedsFile && !limits.Pinned && !limits.Physical {
			s.opt.Memory = MemoryHeap
		}
	}
	if s.opt.Memory == MemoryHeap && limits.Physical {
		return nil, &Error{Op: "make address space", Err: fmt.Errorf("%w: heap memory has no bus address that stays", ErrNotSupported),
			Remedy: "leave the kind of memory out"}
	}
	if s.opt.Memory == MemoryHeap && limits.NeedsFile {
		return nil, &Error{Op: "make address space", Err: fmt.Errorf("%w: this transport maps only memory with a file", ErrNotSupported),
			Remedy: "use memfd memory instead of the Go heap"}
	}
	if s.opt.SlabMin <= 0 {
		s.opt.SlabMin = hugePage
	}
	if s.opt.SlabMax <= 0 {
		s.opt.SlabMax = 64 << 20
	}
	if limits.Physical {
		// More than one page in one piece is luck: only a buffer that needs it asks.
		s.opt.SlabMin, s.opt.SlabMax = int(s.page), int(s.page)
	}
	if limits.PinnedByUser {
		s.lock.locked = vmPinned
	}
	s.opt.SlabMin = int(roundUp(uint64(s.opt.SlabMin), s.page))
	s.opt.SlabMax = int(roundUp(uint64(max(s.opt.SlabMax, s.opt.SlabMin)), s.page))
	s.iova = newIOVA(limits.Ranges)
	return s, nil
}

// newIOVA is an allocator over the usable ranges without what is never handed
// out, reported usable or not: the first page, so that a bus address of 0 keeps
// meaning "none", and the window in which x86 takes a write for an interrupt.
func newIOVA(ranges []IOVARange) *iova.Allocator {
	rs := make([]iova.Range, len(ranges))
	for i, r := range ranges {
		rs[i] = iova.Range{First: r.First, Last: r.Last}
	}
	a := iova.New(rs...)
	a.Exclude(0, minPage-1)
	a.Exclude(msiFirst, msiLast)
	return a
}

const (
	minPage  = 4096
	hugePage = 2 << 20
	// The interrupt window of x86 (Intel SDM vol. 3, "Message Signalled
	// Interrupts"): writes there never reach memory.
	msiFirst, msiLast = 0xfee00000, 0xfeefffff
)

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }

// Alloc gives size bytes of zeroed DMA memory, contiguous on the bus and mapped
// until the Buffer is freed. Errors: ErrNoSpace (bus addresses, mappings, memory
// or the memlock limit, with the bytes needed), ErrRange (bad size or
// alignment), ErrClosed, ErrNotSupported where the transport has no DMA.
func (s *AddressSpace) Alloc(size int, o BufferOptions) (*Buffer, error) {
	align := o.Align
	if align == 0 && size > 0 {
		align = min(max(1<<bits.Len(uint(size-1)), granule), minPage)
	}
	op := func() string { return fmt.Sprintf("allocate %d bytes of DMA memory%s", size, forName(o.Name)) }
	if size <= 0 || size > 1<<40 || align <= 0 || align > hugePage || align&(align-1) != 0 {
		return nil, &Error{Op: op(), Err: fmt.Errorf("%w: size %d, alignment %d", ErrRange, size, align)}
	}
	if s.refuse != nil {
		return nil, &Error{Op: op(), Err: s.refuse}
	}
	b := &Buffer{size: size, space: s, name: o.Name}
	align = max(align, granule)
	ok, err := s.cut(b, uint64(align), o.ReadOnly)
	if err == nil && !ok {
		ok, err = s.growFor(b, uint64(align), o.ReadOnly)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op(), err)
	}
	if !ok {
		return nil, &Error{Op: op(), Err: ErrNoSpace}
	}
	return b, nil
}

func forName(name string) string {
	if name == "" {
		return ""
	}
	return " for " + name
}

// cut takes b from the slabs there are; false when none has room.
func (s *AddressSpace) cut(b *Buffer, align uint64, readOnly bool) (bool, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false, &Error{Op: "use address space", Err: ErrClosed}
	}
	room := b.room()
	for _, sl := range s.slabs {
		if sl.readOnly != readOnly || sl.own || sl.align < align {
			continue
		}
		off, err := sl.room.Alloc(room, align)
		if err != nil {
			continue
		}
		dirty := s.give(b, sl, off)
		s.mu.Unlock()
		clear(dirty)
		return true, nil
	}
	s.mu.Unlock()
	return false, nil
}

// give makes b the piece of sl at off, and returns the part that was used
// before: the caller clears it after unlocking. Called with mu held.
func (s *AddressSpace) give(b *Buffer, sl *slab, off uint64) []byte {
	room := b.room()
	b.slab = sl
	b.iova = sl.iova + off
	b.Mem = Mem{sl.arena.Bytes()[off : off+uint64(b.size) : off+uint64(b.size)]}
	s.live[b] = struct{}{}
	s.stats.LiveBuffers++
	s.stats.LiveBytes += room
	var dirty []byte
	if off < sl.used {
		dirty = sl.arena.Bytes()[off:min(off+room, sl.used)]
	}
	sl.used = max(sl.used, off+room)
	return dirty
}

// forget takes b out of the books. Called with mu held.
func (s *AddressSpace) forget(b *Buffer) {
	delete(s.live, b)
	s.stats.LiveBuffers--
	s.stats.LiveBytes -= b.room()
}

// Stats tells what the address space holds now.
func (s *AddressSpace) Stats() SpaceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Limits are the limits the Mapper reported when the space was made.
func (s *AddressSpace) Limits() DMALimits { return s.limits }

// Memory is what the DMA memory is made of: MemoryMemFD or MemoryHeap.
func (s *AddressSpace) Memory() MemoryKind { return s.opt.Memory }

// Trim unmaps and frees the slabs in which nothing is allocated.
func (s *AddressSpace) Trim() error {
	s.grow.Lock()
	defer s.grow.Unlock()
	s.mu.Lock()
	var idle []*slab
	for _, sl := range s.slabs {
		if !sl.own && sl.room.Idle() {
			idle = append(idle, sl)
		}
	}
	for _, sl := range idle {
		s.drop(sl)
	}
	s.mu.Unlock()
	return s.destroy(idle...)
}

// Close unmaps and frees everything. Buffers that were not freed are named in an
// *Error, and are gone all the same: no device may reach them by now. A mapping
// the Mapper refuses to remove keeps its memory, and is tried again by the next
// Close; otherwise a second call does nothing.
func (s *AddressSpace) Close() error {
	s.grow.Lock()
	defer s.grow.Unlock()
	s.mu.Lock()
	s.closed = true
	var left error
	if n := len(s.live); n > 0 {
		left = &Error{Op: "close address space", Err: fmt.Errorf("%d buffers (%d bytes) were not freed: %s", n, s.stats.LiveBytes, s.names())}
		for b := range s.live {
			s.forget(b)
		}
	}
	all := append(s.slabs, s.dead...)
	s.slabs, s.dead = nil, nil
	s.mu.Unlock()
	return errors.Join(left, s.destroy(all...))
}

// names lists live buffers by name, most frequent kinds once. Called with mu held.
func (s *AddressSpace) names() string {
	count := map[string]int{}
	var order []string
	for b := range s.live {
		name := b.name
		if name == "" {
			name = "unnamed"
		}
		if count[name]++; count[name] == 1 {
			order = append(order, name)
		}
	}
	slices.Sort(order)
	const most = 8
	var out []string
	for i, name := range order {
		if i == most {
			out = append(out, "…")
			break
		}
		if count[name] > 1 {
			name = fmt.Sprintf("%s ×%d", name, count[name])
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}
