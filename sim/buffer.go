package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// buffer is a queue's memory as a command described it: pages of 1<<shift
// bytes, the first used byte at offset. It holds bus addresses only; every
// access goes through the I/O address space.
type buffer struct {
	pages  []uint64
	shift  uint
	offset uint64
}

// addr is the bus address of byte off. The caller keeps off inside the queue.
func (b *buffer) addr(off uint64) uint64 {
	at := b.offset + off
	return b.pages[at>>b.shift] + at&(1<<b.shift-1)
}

// run is how many bytes from off on lie in one page.
func (b *buffer) run(off uint64) uint64 {
	return 1<<b.shift - (b.offset+off)&(1<<b.shift-1)
}

// readBuffer and writeBuffer copy bytes of a queue's memory; false when one of
// them could not be reached.
func (f *function) readBuffer(b *buffer, off uint64, p []byte) bool {
	for len(p) > 0 {
		n := min(uint64(len(p)), b.run(off))
		if !f.dmaRead(b.addr(off), p[:n]) {
			return false
		}
		off, p = off+n, p[n:]
	}
	return true
}

func (f *function) writeBuffer(b *buffer, off uint64, p []byte) bool {
	for len(p) > 0 {
		n := min(uint64(len(p)), b.run(off))
		if !f.dmaWrite(b.addr(off), p[:n]) {
			return false
		}
		off, p = off+n, p[n:]
	}
	return true
}

// readRecord reads one dword of a doorbell record with the atomic access that
// the other side writes it with.
func (f *function) readRecord(addr uint64) (v uint32, ok bool) {
	ok = f.dma(addr, 4, false, func(m vfio.Mem, _ int) {
		if m.Len() == 4 {
			v = m.LoadBE32(0)
		}
	})
	return v, ok
}

// pageList parses n addresses of pages of 1<<shift bytes; false if one is not
// aligned. Linux and rdma-core leave permission bits in the low bits of user
// memory's entries, which loose lets through (rdma-core leaves permission bits there).
func pageList(raw []byte, n uint64, shift uint, loose bool) ([]uint64, bool) {
	l := make([]uint64, n)
	for i := range l {
		p := binary.BigEndian.Uint64(raw[i*8:])
		if !loose && p&(1<<shift-1) != 0 {
			return nil, false
		}
		l[i] = p &^ (1<<shift - 1)
	}
	return l, true
}

// inUMEM places size bytes at off of a user memory; false if they do not fit.
func (u *umem) buffer(off, size uint64) (buffer, bool) {
	n := uint64(len(u.mtt) / 8)
	if at := uint64(u.offset) + off; at < off || at+size < at || at+size > n<<u.shift {
		return buffer{}, false
	}
	pages, _ := pageList(u.mtt, n, u.shift, true)
	return buffer{pages: pages, shift: u.shift, offset: uint64(u.offset) + off}, true
}
