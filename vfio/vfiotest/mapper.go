package vfiotest

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Mapper is an I/O address space in this process: devices reach its memory with
// Access and Mem. It is safe for concurrent use.
type Mapper struct {
	limits vfio.DMALimits

	mu     sync.Mutex
	closed bool
	maps   []vfio.Mapping // ascending
}

// NewMapper makes an empty space. A zero limits.Ranges means all of 48 bits
// except x86's interrupt window, a zero PageSizes 4 KiB, 2 MiB and 1 GiB.
func NewMapper(limits vfio.DMALimits) *Mapper {
	if limits.Ranges == nil {
		limits.Ranges = []vfio.IOVARange{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: 1<<48 - 1}}
	}
	if limits.PageSizes == 0 {
		limits.PageSizes = 1<<12 | 1<<21 | 1<<30
	}
	return &Mapper{limits: limits}
}

func mapErr(verb string, iova, size uint64, err error) error {
	return &vfio.Error{Op: fmt.Sprintf("%s DMA %#x+%#x", verb, iova, size), Target: "memory", Err: err}
}

// Map implements vfio.Mapper.
func (m *Mapper) Map(x vfio.Mapping) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	size := uint64(len(x.Bytes))
	fail := func(err error) error { return mapErr("map", x.IOVA, size, err) }
	page := uint64(1) << bits.TrailingZeros64(m.limits.PageSizes)
	switch {
	case m.closed:
		return fail(vfio.ErrClosed)
	case size == 0 || x.IOVA%page != 0 || size%page != 0:
		return fail(fmt.Errorf("%w: not a multiple of the page size %d", vfio.ErrRange, page))
	case !m.usable(x.IOVA, size):
		return fail(fmt.Errorf("%w: outside the usable bus addresses", vfio.ErrRange))
	case m.limits.NeedsFile && x.FD < 0:
		return fail(fmt.Errorf("%w: memory without a file", vfio.ErrNotSupported))
	case m.limits.MaxMappings > 0 && len(m.maps) >= int(m.limits.MaxMappings):
		return fail(fmt.Errorf("%w: %d mappings", vfio.ErrNoSpace, len(m.maps)))
	}
	i := m.after(x.IOVA)
	if i < len(m.maps) && m.maps[i].IOVA <= x.IOVA+(size-1) {
		return fail(vfio.ErrExists)
	}
	m.maps = slices.Insert(m.maps, i, x)
	return nil
}

// usable tells whether [iova, iova+size) lies in one usable range.
func (m *Mapper) usable(iova, size uint64) bool {
	for _, r := range m.limits.Ranges {
		if iova >= r.First && iova <= r.Last && size-1 <= r.Last-iova {
			return true
		}
	}
	return false
}

// after is the index of the first mapping that ends behind iova.
func (m *Mapper) after(iova uint64) int {
	i, _ := slices.BinarySearchFunc(m.maps, iova, func(x vfio.Mapping, iova uint64) int {
		if x.IOVA+uint64(len(x.Bytes)-1) < iova {
			return -1
		}
		return 1
	})
	return i
}

// Unmap implements vfio.Mapper.
func (m *Mapper) Unmap(iova, size uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return mapErr("unmap", iova, size, vfio.ErrClosed)
	}
	i := m.after(iova)
	if i == len(m.maps) || m.maps[i].IOVA != iova || uint64(len(m.maps[i].Bytes)) != size {
		return mapErr("unmap", iova, size, vfio.ErrNotFound)
	}
	m.maps = slices.Delete(m.maps, i, i+1)
	return nil
}

// Limits implements vfio.Mapper.
func (m *Mapper) Limits() (vfio.DMALimits, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return vfio.DMALimits{}, &vfio.Error{Op: "query DMA limits", Target: "memory", Err: vfio.ErrClosed}
	}
	l := m.limits
	l.Ranges = slices.Clone(l.Ranges)
	if l.MaxMappings > 0 {
		// A space that is full answers 0, which would read as "unknown".
		l.MaxMappings = max(l.MaxMappings-uint32(len(m.maps)), 1)
	}
	return l, nil
}

// Mem is what a device sees at [iova, iova+n): one mapping must hold it all.
func (m *Mapper) Mem(iova uint64, n int, write bool) (vfio.Mem, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fail := func(err error) (vfio.Mem, error) { return vfio.Mem{}, mapErr("access", iova, uint64(n), err) }
	if m.closed {
		return fail(vfio.ErrClosed)
	}
	i := m.after(iova)
	if i == len(m.maps) || m.maps[i].IOVA > iova || iova-m.maps[i].IOVA+uint64(n) > uint64(len(m.maps[i].Bytes)) {
		return fail(vfio.ErrNotFound)
	}
	if write && m.maps[i].ReadOnly {
		return fail(fmt.Errorf("%w: the mapping is read-only", vfio.ErrNotSupported))
	}
	return vfio.MemOf(m.maps[i].Bytes).Slice(int(iova-m.maps[i].IOVA), n), nil
}

// Access copies between p and bus memory as a device would. vfio.ErrGone: the
// file behind the memory was truncated.
func (m *Mapper) Access(iova uint64, p []byte, write bool) error {
	mem, err := m.Mem(iova, len(p), write)
	if err != nil {
		return err
	}
	if !vfio.Guarded(mem, 0, func(mem vfio.Mem, _ int) {
		if write {
			mem.CopyIn(0, p)
		} else {
			mem.CopyOut(0, p)
		}
	}) {
		return mapErr("access", iova, uint64(len(p)), vfio.ErrGone)
	}
	return nil
}

// Mappings are the mappings that exist now, ascending.
func (m *Mapper) Mappings() []vfio.Mapping {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.maps)
}

// Close removes all mappings; after that every method answers vfio.ErrClosed.
func (m *Mapper) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.maps = true, nil
}
