// Package iova allocates ranges of addresses: bus addresses of an I/O address
// space, and offsets inside a slab of DMA memory. First fit over a sorted list
// of free ranges, which coalesces on free: the lists here are short, and the
// lowest address first keeps what was never used together.
package iova

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// ErrNoSpace: no free range holds the size at the alignment.
var ErrNoSpace = errors.New("no free address range")

// ErrNotAllocated: the range given back is not wholly allocated.
var ErrNotAllocated = errors.New("address range is not allocated")

// ErrArgument: size zero, or an alignment that is no power of two.
var ErrArgument = errors.New("bad size or alignment")

// Range is an inclusive range of addresses, so that the last address of 64 bits
// can be named.
type Range struct{ First, Last uint64 }

// Allocator hands out ranges. It is not safe for concurrent use: its owner locks.
type Allocator struct {
	all  []Range // what may ever be handed out: sorted, disjoint, not adjacent
	free []Range // the same, minus what is allocated
}

// New makes an allocator over ranges, in any order, overlapping or not. Ranges
// with Last < First are ignored.
func New(ranges ...Range) *Allocator {
	all := normal(ranges)
	return &Allocator{all: all, free: slices.Clone(all)}
}

// normal sorts and merges ranges.
func normal(ranges []Range) []Range {
	var in []Range
	for _, r := range ranges {
		if r.First <= r.Last {
			in = append(in, r)
		}
	}
	slices.SortFunc(in, func(a, b Range) int {
		switch {
		case a.First < b.First:
			return -1
		case a.First > b.First:
			return 1
		}
		return 0
	})
	var out []Range
	for _, r := range in {
		n := len(out)
		// Last+1 may wrap: a range that reaches the last address takes all that follow.
		if n > 0 && (out[n-1].Last == ^uint64(0) || r.First <= out[n-1].Last+1) {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// Exclude takes [first, last] out of what may be handed out, for ever. What is
// allocated there stays allocated and does not come back when it is freed.
func (a *Allocator) Exclude(first, last uint64) {
	if last < first {
		return
	}
	a.all = cut(a.all, Range{first, last})
	a.free = cut(a.free, Range{first, last})
}

// cut removes x from a sorted list.
func cut(list []Range, x Range) []Range {
	var out []Range
	for _, r := range list {
		if r.Last < x.First || r.First > x.Last {
			out = append(out, r)
			continue
		}
		if r.First < x.First {
			out = append(out, Range{r.First, x.First - 1})
		}
		if r.Last > x.Last {
			out = append(out, Range{x.Last + 1, r.Last})
		}
	}
	return out
}

// Alloc takes the lowest free range of size bytes whose address is a multiple of
// align, a power of two.
func (a *Allocator) Alloc(size, align uint64) (uint64, error) {
	if size == 0 || bits.OnesCount64(align) != 1 {
		return 0, fmt.Errorf("%w: size %#x, alignment %#x", ErrArgument, size, align)
	}
	for i, r := range a.free {
		at := (r.First + align - 1) &^ (align - 1)
		if at < r.First || at > r.Last || r.Last-at < size-1 {
			continue // at < r.First: rounding up wrapped
		}
		a.take(i, Range{at, at + size - 1})
		return at, nil
	}
	return 0, ErrNoSpace
}

// take removes x, which lies inside free[i].
func (a *Allocator) take(i int, x Range) {
	r := a.free[i]
	switch {
	case r == x:
		a.free = slices.Delete(a.free, i, i+1)
	case r.First == x.First:
		a.free[i].First = x.Last + 1
	case r.Last == x.Last:
		a.free[i].Last = x.First - 1
	default:
		a.free[i].Last = x.First - 1
		a.free = slices.Insert(a.free, i+1, Range{x.Last + 1, r.Last})
	}
}

// Free gives a range back. It must have been allocated, wholly; it may be part
// of an allocation or span adjacent ones.
func (a *Allocator) Free(addr, size uint64) error {
	if size == 0 || addr+(size-1) < addr {
		return fmt.Errorf("%w: %#x+%#x", ErrArgument, addr, size)
	}
	x := Range{addr, addr + size - 1}
	// i is the first free range that ends at or after x.
	i, _ := slices.BinarySearchFunc(a.free, x, func(r, x Range) int {
		if r.Last < x.First {
			return -1
		}
		return 1
	})
	if i < len(a.free) && a.free[i].First <= x.Last {
		return fmt.Errorf("%w: %#x+%#x", ErrNotAllocated, addr, size)
	}
	// What was excluded while it was allocated does not come back. Usually that
	// is nothing, and one range holds x.
	given := false
	for _, r := range a.all {
		if lo, hi := max(r.First, x.First), min(r.Last, x.Last); lo <= hi {
			i = a.give(i, Range{lo, hi})
			given = true
		}
	}
	if !given {
		return fmt.Errorf("%w: %#x+%#x", ErrNotAllocated, addr, size)
	}
	return nil
}

// give inserts x before free[i], merging with its neighbours, and returns the
// index after it.
func (a *Allocator) give(i int, x Range) int {
	joinPrev := i > 0 && a.free[i-1].Last+1 == x.First
	joinNext := i < len(a.free) && x.Last+1 == a.free[i].First
	switch {
	case joinPrev && joinNext:
		a.free[i-1].Last = a.free[i].Last
		a.free = slices.Delete(a.free, i, i+1)
		return i
	case joinPrev:
		a.free[i-1].Last = x.Last
		return i
	case joinNext:
		a.free[i].First = x.First
		return i + 1
	}
	a.free = slices.Insert(a.free, i, x)
	return i + 1
}

// Idle tells that nothing is allocated.
func (a *Allocator) Idle() bool { return slices.Equal(a.free, a.all) }

// Ranges are what may be handed out at all.
func (a *Allocator) Ranges() []Range { return slices.Clone(a.all) }

// FreeRanges are what is free now.
func (a *Allocator) FreeRanges() []Range { return slices.Clone(a.free) }
