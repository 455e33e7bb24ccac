package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// The atomic unit (MLNX_OFED documentation, "Advanced Transport"; UCX
// rc_mlx5.inl): what an atomic does to the words of
// memory, in the words of the request. It knows no keys and no packets.

// maxAtomic is the largest operand in bytes.
const maxAtomic = 256

// atomicWords is the operand of an atomic: one word of 4 bytes, or words of 8
// in ascending address. A word is the number that its big-endian form has in the
// request.
type atomicWords [maxAtomic / 8]uint64

// atomicReq is one atomic.
type atomicReq struct {
	cs   bool // compare and swap, else fetch and add
	size int
	// Of compare-and-swap: swap, compare and their masks; of fetch-and-add: add
	// in swap and the field boundary in swapMask.
	swap, compare, swapMask, compareMask atomicWords
}

// words is the number of words, wordBytes the size of each.
func (a *atomicReq) words() int     { return max(1, a.size/8) }
func (a *atomicReq) wordBytes() int { return min(8, a.size) }

// atomicArgs is how many bytes the arguments of an atomic take in a packet: the
// operands of the WQE without padding.
func atomicArgs(atom uint8, size int) int {
	switch {
	case atom&atomMasked == 0 && atom&atomCS != 0:
		return 2 * size
	case atom&atomMasked == 0:
		return size
	case atom&atomCS != 0:
		return 4 * size
	}
	return 2 * size
}

// setArgs takes the operands from their big-endian form: swap, compare,
// swap_mask, compare_mask, or add, field_boundary, each of size bytes. The forms
// without masks act on all bits, without boundary.
func (a *atomicReq) setArgs(atom uint8, size int, b []byte) {
	a.cs, a.size = atom&atomCS != 0, size
	n, w := a.words(), a.wordBytes()
	b = a.swap.take(n, w, b)
	if a.cs {
		b = a.compare.take(n, w, b)
	}
	switch {
	case atom&atomMasked != 0:
		b = a.swapMask.take(n, w, b)
		if a.cs {
			a.compareMask.take(n, w, b)
		}
	case a.cs:
		ones := ^uint64(0) >> (64 - 8*uint(w))
		a.swapMask.fill(n, ones)
		a.compareMask.fill(n, ones)
	default:
		a.swapMask.fill(n, 0)
	}
}

// take reads n words of w bytes and gives what follows them.
func (d *atomicWords) take(n, w int, b []byte) []byte {
	for i := range n {
		if w == 4 {
			d[i] = uint64(binary.BigEndian.Uint32(b))
		} else {
			d[i] = binary.BigEndian.Uint64(b[8*i:])
		}
	}
	return b[n*w:]
}

func (d *atomicWords) fill(n int, v uint64) {
	for i := range n {
		d[i] = v
	}
}

// matches is the comparison of a compare-and-swap: one over all words (ruling
// A5).
func (a *atomicReq) matches(old *atomicWords) bool {
	for i := range a.words() {
		if (a.compare[i]^old[i])&a.compareMask[i] != 0 {
			return false
		}
	}
	return true
}

// word is the value of word i after the operation, given its old one. Of a
// compare-and-swap it is what a match leaves.
func (a *atomicReq) word(i int, old uint64) uint64 {
	if a.cs {
		return old&^a.swapMask[i] | a.swap[i]&a.swapMask[i]
	}
	return addFields(old, a.swap[i], a.swapMask[i], uint(8*a.wordBytes()))
}

// addFields adds within fields: the carry out of bit i enters bit i+1 only where
// boundary has no bit i (MLNX_OFED documentation). Each word is an adder of its own
// (ruling A6).
func addFields(v, add, boundary uint64, bits uint) uint64 {
	// Without the top bits of fields no carry leaves a field; those bits are then
	// added without their carry.
	sum := v&^boundary + add&^boundary
	sum ^= (v ^ add) & boundary
	return sum & (^uint64(0) >> (64 - bits))
}

// memOrder is how a word lies in the responder's memory.
type memOrder uint8

const (
	orderHost memOrder = iota // as the host's own numbers: the usual one
	orderBig                  // most significant byte first
)

// load is one access to a word of memory, and store another.
func (o memOrder) load(m vfio.Mem, off, size int) uint64 {
	switch {
	case size == 4 && o == orderBig:
		return uint64(m.LoadBE32(off))
	case size == 4:
		return uint64(m.Load32(off))
	case o == orderBig:
		return m.LoadBE64(off)
	}
	return m.Load64(off)
}

func (o memOrder) store(m vfio.Mem, off, size int, v uint64) {
	if v = o.native(v, size); size == 4 {
		m.Store32(off, uint32(v))
	} else {
		m.Store64(off, v)
	}
}

// native gives the host's number whose bytes lie in memory as v does in order o.
func (o memOrder) native(v uint64, size int) uint64 {
	if o == orderHost {
		return v
	}
	var b [8]byte
	if size == 4 {
		binary.BigEndian.PutUint32(b[:], uint32(v))
		return uint64(binary.NativeEndian.Uint32(b[:]))
	}
	binary.BigEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// replace is one compare-and-swap of the host's memory: was and now are numbers
// in order o.
func (o memOrder) replace(m vfio.Mem, off, size int, was, now uint64) bool {
	was, now = o.native(was, size), o.native(now, size)
	if size == 4 {
		return m.CompareAndSwap32(off, uint32(was), uint32(now))
	}
	return m.CompareAndSwap64(off, was, now)
}

// run carries the atomic out on m, which is exactly its target, and gives the
// words as they were. One word is one read-modify-write, atomic against the
// host's processors too. More words are atomic against the device's own
// operations, which run under the same lock, and word by word against the host.
func (a *atomicReq) run(m vfio.Mem, o memOrder, old *atomicWords) {
	w, n := a.wordBytes(), a.words()
	for i := range n {
		old[i] = o.load(m, i*w, w)
	}
	for {
		if a.cs && !a.matches(old) {
			return
		}
		if o.replace(m, 0, w, old[0], a.word(0, old[0])) {
			break
		}
		old[0] = o.load(m, 0, w)
	}
	for i := 1; i < n; i++ {
		for v := old[i]; !o.replace(m, i*w, w, v, a.word(i, v)); {
			v = o.load(m, i*w, w)
			if !a.cs {
				old[i] = v // the adder of this word took it
			}
		}
	}
}

// putWords writes words in the big-endian form of a reply.
func putWords(b []byte, w *atomicWords, size int) {
	if size == 4 {
		binary.BigEndian.PutUint32(b, uint32(w[0]))
		return
	}
	for i := range size / 8 {
		binary.BigEndian.PutUint64(b[8*i:], w[i])
	}
}
