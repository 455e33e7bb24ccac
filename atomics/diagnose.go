package atomics

import (
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Fault names a way in which a responder can do atomics wrong.
type Fault string

// The faults that Probe and package litmus can name.
const (
	NoFault Fault = ""
	// FaultMaskOrder: the masks of a compare-and-swap are not those of the WQE:
	// swap_mask and compare_mask are exchanged, or the masks count in the other
	// byte order than the operands.
	FaultMaskOrder Fault = "mask-order"
	// FaultOperandOrder: swap and compare are exchanged.
	FaultOperandOrder Fault = "operand-order"
	// FaultNoBoundary: the field boundary of a masked fetch-add is not kept.
	FaultNoBoundary Fault = "no-boundary"
	// FaultByteOrder: the word is read in another byte order than was found
	// before.
	FaultByteOrder Fault = "byte-order"
	// FaultCarry: a carry goes from one 8-byte word of an argument to the next.
	FaultCarry Fault = "carry-between-words"
	// FaultPartialCompare: words of a large compare-and-swap are swapped one by
	// one instead of all or nothing.
	FaultPartialCompare Fault = "compare-by-words"
	// FaultReply: memory is right and the returned value is not.
	FaultReply Fault = "reply"
	// FaultLostUpdate: of two concurrent operations one has left no trace.
	FaultLostUpdate Fault = "lost-update"
	// FaultTornWrite: an atomic write was seen half done, or mixed with another.
	FaultTornWrite Fault = "torn-write"
	// FaultNeighbour: a byte changed that no operation was meant to change.
	FaultNeighbour Fault = "neighbour"
	// FaultLateWrite: an operation was carried out before what a WRITE in front of it
	// wrote was in memory.
	FaultLateWrite Fault = "late-write"
	// FaultNoFence: an operation with a fence did not wait for the READ before it.
	FaultNoFence Fault = "no-fence"
	// FaultOrder: operations of one queue were carried out in another order than
	// they were posted, where the order is guaranteed.
	FaultOrder Fault = "ordering"
	// FaultNotLinearizable: no order of the operations explains what they returned.
	FaultNotLinearizable Fault = "not-linearizable"
	// FaultUnknown: the result is wrong in a way that no hypothesis explains.
	FaultUnknown Fault = "unexplained"
)

// hypothesis is a wrong responder.
type hypothesis struct {
	fault Fault
	run   func(r *Request, word []byte, order Order)
}

// hypotheses in the order in which they are preferred: the special ones first.
var hypotheses = []hypothesis{
	{FaultMaskOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) { swapArgs(x, argSwapMask, argCompareMask) })
	}},
	{FaultMaskOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) { reverseArgs(x, argSwapMask, argCompareMask) })
	}},
	{FaultMaskOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) { reverseArgs(x, argSwapMask, argSwapMask) })
	}},
	{FaultMaskOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) { reverseArgs(x, argCompareMask, argCompareMask) })
	}},
	{FaultOperandOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) { swapArgs(x, argSwap, argCompare) })
	}},
	{FaultOperandOrder, func(r *Request, word []byte, order Order) {
		twist(r, word, order, func(x *Request) {
			swapArgs(x, argSwap, argCompare)
			swapArgs(x, argSwapMask, argCompareMask)
		})
	}},
	{FaultNoBoundary, func(r *Request, word []byte, order Order) { addLike(r, word, order, func(uint64) uint64 { return 0 }) }},
	{FaultNoBoundary, func(r *Request, word []byte, order Order) {
		addLike(r, word, order, func(b uint64) uint64 { return b << 1 })
	}},
	{FaultNoBoundary, func(r *Request, word []byte, order Order) {
		addLike(r, word, order, func(b uint64) uint64 { return b >> 1 })
	}},
	{FaultNoBoundary, func(r *Request, word []byte, order Order) {
		addLike(r, word, order, func(b uint64) uint64 { return reverseBytes(b, r.Size) })
	}},
	{FaultCarry, runCarry},
	{FaultPartialCompare, runByWords},
	{FaultByteOrder, func(r *Request, word []byte, order Order) {
		_ = r.Execute(word, 1-order, make([]byte, r.Size), BigEndian)
	}},
}

// twist runs a masked compare-and-swap, or a plain one, with its operands
// changed.
func twist(r *Request, word []byte, order Order, change func(*Request)) {
	if r.Adds() {
		return
	}
	x := *r
	change(&x)
	_ = x.Execute(word, order, make([]byte, x.Size), BigEndian)
}

func swapArgs(x *Request, a, b int) {
	if a >= x.count || b >= x.count {
		return
	}
	for i := range x.n {
		p, q := &x.arg(a)[i], &x.arg(b)[i]
		*p, *q = *q, *p
	}
}

// reverseArgs turns the bytes of every word of operands a to b around.
func reverseArgs(x *Request, a, b int) {
	for ; a <= b && a < x.count; a++ {
		for i, w := range x.arg(a) {
			x.arg(a)[i] = reverseBytes(w, x.Size)
		}
	}
}

func reverseBytes(w uint64, size int) uint64 {
	if size == 4 {
		return uint64(bits.ReverseBytes32(uint32(w)))
	}
	return bits.ReverseBytes64(w)
}

// addLike runs a masked fetch-add with another boundary.
func addLike(r *Request, word []byte, order Order, boundary func(uint64) uint64) {
	if r.Opcode != prm.WQEAtomicMaskedFA {
		return
	}
	x := *r
	for i, b := range r.arg(argBoundary) {
		x.arg(argBoundary)[i] = boundary(b)
	}
	_ = x.Execute(word, order, make([]byte, x.Size), BigEndian)
}

// runCarry adds with one adder over all words, the first one lowest.
func runCarry(r *Request, word []byte, order Order) {
	if !r.Adds() || r.n == 1 {
		return
	}
	var carry uint64
	for i := range r.n {
		w := word[8*i : 8*i+8]
		v, a, b := order.load(w), r.arg(argAdd)[i], r.arg(argBoundary)[i]
		var sum uint64
		for bit := range 64 {
			x := v>>bit&1 + a>>bit&1 + carry
			sum |= x & 1 << bit
			if carry = x >> 1; b>>bit&1 == 1 {
				carry = 0
			}
		}
		order.store(w, sum)
	}
}

// runByWords compares and swaps every word for itself.
func runByWords(r *Request, word []byte, order Order) {
	if r.Adds() || r.n == 1 {
		return
	}
	for i := range r.n {
		w := word[8*i : 8*i+8]
		v := order.load(w)
		if (v^r.arg(argCompare)[i])&r.arg(argCompareMask)[i] == 0 {
			order.store(w, r.result(i, v))
		}
	}
}

// Diagnosis compares results of a device with the reference and, if they differ,
// finds the fault that explains all that differ. The zero value is ready. Not
// safe for concurrent use.
type Diagnosis struct {
	// Runs and Wrong count the operations compared, and those that differ.
	Runs, Wrong int
	// reply counts those whose memory was right and whose reply was not.
	reply    int
	explains []int // per hypothesis
}

// Compare takes the word before and after an operation, and its reply, and tells
// whether they are what the reference says for a device with these orders.
func (d *Diagnosis) Compare(r *Request, before, after, reply []byte, memory, replies Order) bool {
	d.Runs++
	var want, wantReply [256]byte
	w := want[:r.Size]
	copy(w, before)
	if err := r.Execute(w, memory, wantReply[:], replies); err != nil {
		d.Wrong++
		return false
	}
	memoryOK, replyOK := string(w) == string(after), string(wantReply[:r.Size]) == string(reply[:r.Size])
	if memoryOK && replyOK {
		return true
	}
	d.Wrong++
	if memoryOK {
		d.reply++
		return false
	}
	if d.explains == nil {
		d.explains = make([]int, len(hypotheses))
	}
	for i, h := range hypotheses {
		copy(w, before)
		h.run(r, w, memory)
		if string(w) == string(after) {
			d.explains[i]++
		}
	}
	return false
}

// Fault is what explains every difference so far, NoFault without any.
func (d *Diagnosis) Fault() Fault {
	switch {
	case d.Wrong == 0:
		return NoFault
	case d.reply == d.Wrong:
		return FaultReply
	}
	for i, n := range d.explains {
		if n == d.Wrong-d.reply {
			return hypotheses[i].fault
		}
	}
	return FaultUnknown
}

// Add counts the results of another diagnosis of the same device in.
func (d *Diagnosis) Add(o *Diagnosis) {
	d.Runs, d.Wrong, d.reply = d.Runs+o.Runs, d.Wrong+o.Wrong, d.reply+o.reply
	if o.explains == nil {
		return
	}
	if d.explains == nil {
		d.explains = make([]int, len(hypotheses))
	}
	for i, n := range o.explains {
		d.explains[i] += n
	}
}
