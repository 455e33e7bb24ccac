package sim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// pageSize is the IOMMU's and the firmware's page: 4096 bytes.
const pageSize = 4096

// The I/O address space looks like an x86 machine's: 48 bits with the MSI
// window cut out (Linux iommu, IOMMU_RESV_MSI 0xfee00000-0xfeefffff).
var iovaRanges = []vfio.IOVARange{{First: 0, Last: 0xfedf_ffff}, {First: 0xfef0_0000, Last: 1<<48 - 1}}

type mapping struct {
	iova, end uint64 // [iova, end)
	mem       vfio.Mem
	readOnly  bool
	lent      bool // of another process, see vfio.Mapping
}

// touch lets do have n bytes at off; false when they turn out not to be there.
func (m *mapping) touch(off, n, done int, do func(m vfio.Mem, done int)) bool {
	mem := m.mem.Slice(off, n)
	if m.lent {
		return vfio.Guarded(mem, done, do)
	}
	do(mem, done)
	return true
}

// keepGone is how many unmapped ranges are remembered.
const keepGone = 4096

// domain is one I/O address space, as one VFIO container is. Its lock is held
// during each device access, so a mapping that Unmap removed is never touched
// again. Lock order: chip, domain.
type domain struct {
	name     string
	mu       sync.RWMutex
	maps     []mapping // ascending
	mapCalls uint64
	gone     []mapping // the last unmapped ranges, without their memory
	// unmapped is told about ranges that go away.
	unmapped func(iova, end uint64)
}

func (d *domain) errorf(op string, cause error, remedy string) error {
	return &vfio.Error{Op: op, Target: d.name, Err: cause, Remedy: remedy}
}

// find gives the place of the first mapping that ends above iova.
func (d *domain) find(iova uint64) int {
	i, _ := slices.BinarySearchFunc(d.maps, iova, func(m mapping, a uint64) int {
		if m.end <= a {
			return -1
		}
		return 1
	})
	return i
}

// Map implements vfio.Mapper.
func (d *domain) Map(m vfio.Mapping) error {
	size := uint64(len(m.Bytes))
	op := fmt.Sprintf("map DMA %#x+%#x", m.IOVA, size)
	if size == 0 || size%pageSize != 0 || m.IOVA%pageSize != 0 {
		return d.errorf(op, vfio.ErrRange, "IOVA and size must be multiples of 4096")
	}
	last := m.IOVA + size - 1
	if last < m.IOVA || !slices.ContainsFunc(iovaRanges, func(r vfio.IOVARange) bool { return r.First <= m.IOVA && last <= r.Last }) {
		return d.errorf(op, vfio.ErrRange, "choose an IOVA inside the ranges that Limits reports")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.find(m.IOVA)
	if i < len(d.maps) && d.maps[i].iova <= last {
		return d.errorf(op, vfio.ErrExists, fmt.Sprintf("unmap %#x+%#x first", d.maps[i].iova, d.maps[i].end-d.maps[i].iova))
	}
	d.maps = slices.Insert(d.maps, i, mapping{m.IOVA, m.IOVA + size, vfio.MemOf(m.Bytes), m.ReadOnly, m.Lent})
	d.mapCalls++
	return nil
}

// Unmap implements vfio.Mapper.
func (d *domain) Unmap(iova, size uint64) error {
	d.mu.Lock()
	i := d.find(iova)
	if i == len(d.maps) || d.maps[i].iova != iova || d.maps[i].end != iova+size {
		d.mu.Unlock()
		return d.errorf(fmt.Sprintf("unmap DMA %#x+%#x", iova, size), vfio.ErrNotFound, "unmap exactly what was mapped")
	}
	d.maps = slices.Delete(d.maps, i, i+1)
	if len(d.gone) == keepGone {
		d.gone = d.gone[:copy(d.gone, d.gone[keepGone/2:])]
	}
	d.gone = append(d.gone, mapping{iova: iova, end: iova + size})
	d.mu.Unlock()
	if d.unmapped != nil {
		d.unmapped(iova, iova+size)
	}
	return nil
}

// Limits implements vfio.Mapper.
func (d *domain) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: slices.Clone(iovaRanges), PageSizes: ^uint64(pageSize - 1)}, nil
}

// access runs do over the pieces of [iova, iova+n), each inside one mapping, in
// order. It answers false, without touching anything, when a byte is not mapped
// or would be written read-only; and when a piece of lent memory is gone, where
// what came before it has been touched.
func (d *domain) access(iova uint64, n int, write bool, do func(m vfio.Mem, done int)) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	end := iova + uint64(n)
	if end < iova { // no mapping ends at the top of the address space
		return false
	}
	i := d.find(iova)
	// The usual access lies in one mapping.
	if i < len(d.maps) && d.maps[i].iova <= iova && end <= d.maps[i].end && end > iova {
		if write && d.maps[i].readOnly {
			return false
		}
		return d.maps[i].touch(int(iova-d.maps[i].iova), n, 0, do)
	}
	for j, a := i, iova; a < end; j++ {
		if j == len(d.maps) || d.maps[j].iova > a || write && d.maps[j].readOnly {
			return false
		}
		a = d.maps[j].end
	}
	for done := 0; done < n; i++ {
		m := &d.maps[i]
		off := int(iova + uint64(done) - m.iova)
		k := min(n-done, m.mem.Len()-off)
		if !m.touch(off, k, done, do) {
			return false
		}
		done += k
	}
	return true
}

func (d *domain) mapped(iova uint64, n int) bool {
	return d.access(iova, n, false, func(vfio.Mem, int) {})
}

// wasMapped tells whether iova was among the ranges unmapped last.
func (d *domain) wasMapped(iova uint64) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.ContainsFunc(d.gone, func(m mapping) bool { return m.iova <= iova && iova < m.end })
}

func (d *domain) count() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.maps)
}

// dma is the gate of every device access: bus mastering, which the last close
// takes away, and a mapping, or the access does not happen and is counted.
func (f *function) dma(iova uint64, n int, write bool, do func(m vfio.Mem, done int)) bool {
	switch {
	case !f.cfg.busMaster():
		f.count.DMABlocked++
		return false
	case !f.domain.access(iova, n, write, do):
		f.fault(iova)
		return false
	}
	if write {
		f.count.DMAWrites++
	} else {
		f.count.DMAReads++
	}
	if f.rogue != nil {
		f.rogue.learn(iova, n)
	}
	return true
}

// fault counts an access that no mapping allows.
func (f *function) fault(iova uint64) {
	f.count.DMAFaults++
	f.count.LastFaultIOVA = iova
	if f.domain.wasMapped(iova) {
		f.count.DMAAfterClose++
	}
}

// dmaRead copies host memory to p; false when the access failed.
func (f *function) dmaRead(iova uint64, p []byte) bool {
	return f.dma(iova, len(p), false, func(m vfio.Mem, done int) { m.CopyOut(0, p[done:done+m.Len()]) })
}

// dmaWrite copies p to host memory; false when the access failed.
func (f *function) dmaWrite(iova uint64, p []byte) bool {
	return f.dma(iova, len(p), true, func(m vfio.Mem, done int) { m.CopyIn(0, p[done:done+m.Len()]) })
}

// dmaPublish writes p, whose last dword carries the ownership bit, so that who
// sees the new ownership sees the rest: the last dword is one atomic store.
func (f *function) dmaPublish(iova uint64, p []byte) bool {
	n := len(p) - 4
	last := uint32(p[n])<<24 | uint32(p[n+1])<<16 | uint32(p[n+2])<<8 | uint32(p[n+3])
	return f.dma(iova, len(p), true, func(m vfio.Mem, done int) {
		k := m.Len()
		if done+k <= n {
			m.CopyIn(0, p[done:done+k])
			return
		}
		if k > 4 {
			m.CopyIn(0, p[done:n])
		}
		m.StoreBE32(k-4, last)
	})
}
