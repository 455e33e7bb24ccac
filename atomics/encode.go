package atomics

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Request is an atomic WQE in numbers: the word it addresses, its operands with
// their masks, and where in the returned word the variable lies. Encode fills
// one; it is good for any number of posts. The zero value is no request.
type Request struct {
	// Opcode and Opmod go to the control segment: 0x11 and 0x12 for plain 8-byte
	// operations, else 0x14 and 0x15 with opmod 8 | (log2(Size) − 2) (ruling A4).
	Opcode prm.WQEOpcode
	Opmod  uint8
	// Addr is the address of the word for the remote address segment, a multiple
	// of Size.
	Addr uint64
	// Size of the word in bytes, which is the length of the reply.
	Size int
	// Natural is false for a 2-byte variable at offset 1 of its word.
	Natural bool

	shift uint8  // of the variable in the word
	mask  uint64 // of the variable, not shifted
	n     int    // words of an operand
	count int    // operands
	words [64]uint64
}

// operands of a masked compare-and-swap in the order of the WQE; a masked
// fetch-add has the add and the boundary (UCX rc_mlx5.inl).
const (
	argSwap = iota
	argCompare
	argSwapMask
	argCompareMask
)

const (
	argAdd = iota
	argBoundary
)

func (r *Request) arg(i int) []uint64 { return r.words[i*r.n : (i+1)*r.n] }

// operandOr is an operand, or nothing where the request has none.
func (r *Request) operandOr(i int, masked bool) []uint64 {
	if i >= r.count || (masked && !r.Masked()) {
		return nil
	}
	return r.arg(i)
}

// Masked tells whether the WQE is one of the masked ones.
func (r *Request) Masked() bool {
	return r.Opcode == prm.WQEAtomicMaskedCS || r.Opcode == prm.WQEAtomicMaskedFA
}

// Adds tells whether the WQE is a fetch-add rather than a compare-and-swap.
func (r *Request) Adds() bool {
	return r.Opcode == prm.WQEAtomicFA || r.Opcode == prm.WQEAtomicMaskedFA
}

// Words are the operands as the WQE holds them, one word each 4 bytes (Size 4)
// or 8: swap, compare, swap_mask, compare_mask, or add, field_boundary. Plain
// operations have no masks and no boundary. The slices are views of r.
func (r *Request) Words() (swapAdd, compare, swapMask, compareMask, boundary []uint64) {
	if r.Adds() {
		return r.arg(argAdd), nil, nil, nil, r.operandOr(argBoundary, true)
	}
	return r.arg(argSwap), r.operandOr(argCompare, false), r.operandOr(argSwapMask, true), r.operandOr(argCompareMask, true), nil
}

// ArgsSize is the size in bytes of the atomic part of the WQE: 16 for plain
// operations, 4·Size for masked compare-and-swap, 2·Size but at least 16 for
// masked fetch-add.
func (r *Request) ArgsSize() int {
	switch r.Opcode {
	case prm.WQEAtomicMaskedCS:
		return 4 * r.Size
	case prm.WQEAtomicMaskedFA:
		return max(16, 2*r.Size)
	}
	return 16
}

// PutArgs writes the atomic part of the WQE to dst, big-endian as all sources
// have it (ruling A2), padding included, and returns its size. It panics as a
// slice bound does if dst is shorter than ArgsSize.
func (r *Request) PutArgs(dst []byte) int {
	n := r.ArgsSize()
	dst = dst[:n]
	if r.Size == 4 {
		clear(dst)
		for i := range r.count {
			binary.BigEndian.PutUint32(dst[4*i:], uint32(r.words[i]))
		}
		return n
	}
	used := r.count * r.n
	for i, w := range r.words[:used] {
		binary.BigEndian.PutUint64(dst[8*i:], w)
	}
	clear(dst[8*used:])
	return n
}

// place is where a variable lies: the address of its word, the size of the word
// and the shift of the variable in it. For 1 and 2 bytes the shift depends on
// the order of the word in memory (ruling A1).
func place(addr uint64, size int, order Order) (word uint64, s int, shift uint8) {
	if size >= 4 {
		return addr, size, 0
	}
	k := addr & 3
	if order == BigEndian {
		return addr &^ 3, 4, uint8(4-uint64(size)-k) * 8
	}
	return addr &^ 3, 4, uint8(k) * 8
}

// Encode turns the operation into what a WQE says, for a device that reads its
// words in the given order, and refuses what cannot be said: the error is an
// *OpError, and r is unchanged then. It allocates nothing unless it refuses. It
// only reads o.
func (o *Op) Encode(r *Request, order Order) error {
	if err := o.Check(); err != nil {
		return err
	}
	if order > BigEndian {
		return o.refuse(ErrOrder, "probe the device; if the probe found no order, the device's words cannot be used as numbers")
	}
	word, s, shift := place(o.Addr, o.Size, order)
	r.Addr, r.Size, r.Natural = word, s, o.NaturallyAligned()
	r.shift, r.mask = shift, fieldMask(o.Size)
	r.n = max(1, s/8)
	if s == 8 && o.plain() {
		o.encodePlain(r)
		return nil
	}
	r.Opmod = opmod(s)
	if o.Kind.adds() {
		r.Opcode, r.count = prm.WQEAtomicMaskedFA, 2
	} else {
		r.Opcode, r.count = prm.WQEAtomicMaskedCS, 4
	}
	if o.Size > 8 {
		for i := range r.n {
			o.encodeWord(r, i)
		}
		return nil
	}
	o.encodeField(r)
	return nil
}

// opmod is the argument size of a masked WQE of s bytes.
func opmod(s int) uint8 {
	n := uint8(0)
	for ; s > 4; s >>= 1 {
		n++
	}
	return 8 | n
}

// plain tells whether an 8-byte operation is one of the two without masks.
func (o *Op) plain() bool {
	return o.Kind == CompareSwap || (o.Kind == FetchAdd && o.Boundary == 0)
}

func (o *Op) encodePlain(r *Request) {
	r.Opmod = 0
	if o.Kind == FetchAdd {
		r.Opcode, r.count = prm.WQEAtomicFA, 1
		r.words[argAdd] = o.Value
		return
	}
	r.Opcode, r.count = prm.WQEAtomicCS, 2
	r.words[argSwap], r.words[argCompare] = o.Value, o.Compare
}

// encodeField writes the operands of a variable of 1 to 8 bytes in one word.
func (o *Op) encodeField(r *Request) {
	all, sh := r.mask, r.shift
	put := func(i int, v uint64) { r.words[i] = v << sh }
	switch o.Kind {
	case FetchAdd, MaskedFetchAdd:
		// The boundary bit on top keeps the carry inside a variable that is
		// smaller than its word. In a variable that is the word there is nothing
		// above it: a plain add has boundary 0 (NVSHMEM, OFED).
		b := o.Boundary
		if o.Size < 4 {
			b |= 1 << (8*o.Size - 1)
		}
		put(argAdd, o.Value)
		put(argBoundary, b)
	case Xor:
		put(argAdd, o.Value)
		put(argBoundary, all)
	case CompareSwap:
		o.putCS(r, 0, o.Value<<sh, o.Compare<<sh, all<<sh, all<<sh)
	case Swap:
		o.putCS(r, 0, o.Value<<sh, 0, all<<sh, 0)
	case And:
		o.putCS(r, 0, o.Value<<sh, 0, (all&^o.Value)<<sh, 0)
	case Or:
		o.putCS(r, 0, o.Value<<sh, 0, o.Value<<sh, 0)
	case MaskedCompareSwap:
		o.putCS(r, 0, o.Value<<sh, o.Compare<<sh, o.SwapMask<<sh, o.CompareMask<<sh)
	}
}

// encodeWord writes word i of the operands of a variable above 8 bytes.
func (o *Op) encodeWord(r *Request, i int) {
	w := o.Wide
	const all = ^uint64(0)
	v := w.Value[i]
	switch o.Kind {
	case FetchAdd, MaskedFetchAdd:
		var b uint64
		if len(w.Boundary) != 0 {
			b = w.Boundary[i]
		}
		r.arg(argAdd)[i], r.arg(argBoundary)[i] = v, b
	case Xor:
		r.arg(argAdd)[i], r.arg(argBoundary)[i] = v, all
	case CompareSwap:
		o.putCS(r, i, v, w.Compare[i], all, all)
	case Swap:
		o.putCS(r, i, v, 0, all, 0)
	case And:
		o.putCS(r, i, v, 0, ^v, 0)
	case Or:
		o.putCS(r, i, v, 0, v, 0)
	case MaskedCompareSwap:
		o.putCS(r, i, v, w.Compare[i], w.SwapMask[i], w.CompareMask[i])
	}
}

func (o *Op) putCS(r *Request, i int, swap, compare, swapMask, compareMask uint64) {
	r.arg(argSwap)[i] = swap
	r.arg(argCompare)[i] = compare
	r.arg(argSwapMask)[i] = swapMask
	r.arg(argCompareMask)[i] = compareMask
}

// Extract gets the old value of the variable, up to 8 bytes, out of the reply:
// the Size bytes that the device wrote to the local buffer, in the order it
// returns words. Bits of the word outside the variable mean nothing and are cut
// off (ruling A7). Above 8 bytes use ExtractWide. It allocates nothing and
// panics as a slice bound does if the reply is shorter than Size.
func (r *Request) Extract(reply []byte, order Order) uint64 {
	return order.load(reply[:wordSize(r.Size)]) >> r.shift & r.mask
}

// ExtractWide gets the old words of a variable of 16 bytes and more, in the order
// of their addresses, into dst, which must hold Size/8 words.
func (r *Request) ExtractWide(dst []uint64, reply []byte, order Order) {
	reply = reply[:r.Size]
	for i := range dst[:r.n] {
		dst[i] = order.load(reply[8*i : 8*i+8])
	}
}

// Matched tells whether a compare-and-swap that returned this reply has stored
// its value: whether the compared bits of the old word were those asked for. For
// the others it is true.
func (r *Request) Matched(reply []byte, order Order) bool {
	if r.Adds() {
		return true
	}
	ws := wordSize(r.Size)
	for i := range r.n {
		old, mask := order.load(reply[i*ws:(i+1)*ws]), ^uint64(0)
		if r.Masked() {
			mask = r.arg(argCompareMask)[i]
		}
		if (old^r.arg(argCompare)[i])&mask != 0 {
			return false
		}
	}
	return true
}
