package vfiouser

import (
	"fmt"
	"slices"
	"sort"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// clientMapper is the I/O address space behind a client. It belongs to one
// connection and dies with it. Under c.mu.
type clientMapper struct {
	c         *client
	max       int // mappings the server takes
	pageSizes uint64
	maps      []vfio.IOVARange // ascending
}

// lastIOVA ends the addresses offered: what 48-bit translation can reach. The
// protocol has no way to ask, and a server refuses what it cannot use.
const lastIOVA = 1<<48 - 1

// find is the index of the first mapping that ends at or after iova.
func (d *clientMapper) find(iova uint64) int {
	return sort.Search(len(d.maps), func(i int) bool { return d.maps[i].Last >= iova })
}

// Map implements vfio.Mapper. The server maps the file that m names; m.Bytes
// only says how much of it.
func (d *clientMapper) Map(m vfio.Mapping) error {
	size := uint64(len(m.Bytes))
	op := fmt.Sprintf("map DMA %#x+%#x", m.IOVA, size)
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.usable(); err != nil {
		return c.fail(op, err)
	}
	last := m.IOVA + size - 1
	switch {
	case m.FD < 0:
		return &vfio.Error{
			Op: op, Target: c.name, Err: fmt.Errorf("memory without a file: %w", vfio.ErrNotSupported),
			Remedy: "use memfd memory (vfio.MemoryKind auto or memfd): the server maps the file",
		}
	case size == 0 || last < m.IOVA || m.Offset < 0 || (m.IOVA|size|uint64(m.Offset))%pageSize != 0:
		return c.fail(op, fmt.Errorf("not in pages of %d bytes: %w", pageSize, vfio.ErrRange))
	case last > lastIOVA:
		return c.fail(op, fmt.Errorf("bus addresses end at %#x: %w", uint64(lastIOVA), vfio.ErrRange))
	case len(d.maps) >= d.max:
		return c.fail(op, fmt.Errorf("the server takes %d mappings: %w", d.max, vfio.ErrNoSpace))
	}
	i := d.find(m.IOVA)
	if i < len(d.maps) && d.maps[i].First <= last {
		return c.fail(op, fmt.Errorf("overlaps %#x…%#x: %w", d.maps[i].First, d.maps[i].Last, vfio.ErrExists))
	}
	q := dmaMap{argsz: dmaMapSize, flags: dmaFlagRead, offset: uint64(m.Offset), iova: m.IOVA, size: size}
	if !m.ReadOnly {
		q.flags |= dmaFlagWrite
	}
	if _, err := c.turn(cmdDMAMap, q.put(c.out[headerSize:]), []int{m.FD}); err != nil {
		return c.fail(op, err)
	}
	d.maps = slices.Insert(d.maps, i, vfio.IOVARange{First: m.IOVA, Last: last})
	return nil
}

// Unmap implements vfio.Mapper. When the connection is lost the mapping is
// forgotten all the same, and the error says so: the server drops all of a
// client's mappings when it sees it leave.
func (d *clientMapper) Unmap(iova, size uint64) error {
	op := fmt.Sprintf("unmap DMA %#x+%#x", iova, size)
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	i := d.find(iova)
	if size == 0 || i == len(d.maps) || d.maps[i] != (vfio.IOVARange{First: iova, Last: iova + size - 1}) {
		if err := c.usable(); err != nil {
			return c.fail(op, err)
		}
		return c.fail(op, fmt.Errorf("no mapping with these bounds: %w", vfio.ErrNotFound))
	}
	err := c.usable()
	if err == nil {
		q := dmaUnmap{argsz: dmaUnmapSize, iova: iova, size: size}
		_, err = c.turn(cmdDMAUnmap, q.put(c.out[headerSize:]), nil)
	}
	if err == nil || c.dead != nil || c.closed.Load() {
		d.maps = slices.Delete(d.maps, i, i+1)
	}
	if err != nil {
		return c.fail(op, err)
	}
	return nil
}

// Limits implements vfio.Mapper.
func (d *clientMapper) Limits() (vfio.DMALimits, error) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	if err := d.c.usable(); err != nil {
		return vfio.DMALimits{}, d.c.fail("get DMA limits", err)
	}
	return vfio.DMALimits{
		Ranges:      []vfio.IOVARange{{First: 0, Last: lastIOVA}},
		PageSizes:   d.pageSizes,
		MaxMappings: uint32(max(1, d.max-len(d.maps))), // 0 would read as "unknown"
		NeedsFile:   true,
	}, nil
}
