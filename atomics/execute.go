package atomics

import "fmt"

// Execute does to word, Size bytes of memory, what a responder does that reads
// its words in the given order, and writes the old words to reply, Size bytes or
// more, in replyOrder. It is the reference for devices and models; nothing about
// it is atomic. It allocates nothing unless it refuses.
func (r *Request) Execute(word []byte, order Order, reply []byte, replyOrder Order) error {
	if len(word) != r.Size || len(reply) < r.Size {
		return fmt.Errorf("execute an atomic of %d bytes on %d bytes with a reply of %d: lengths differ", r.Size, len(word), len(reply))
	}
	if order > BigEndian || replyOrder > BigEndian {
		return fmt.Errorf("execute an atomic: %w", ErrOrder)
	}
	ws := wordSize(r.Size)
	matched := true
	for i := range r.n {
		v := order.load(word[i*ws : (i+1)*ws])
		replyOrder.store(reply[i*ws:(i+1)*ws], v)
		if !r.Adds() {
			mask := ^uint64(0)
			if r.Masked() {
				mask = r.arg(argCompareMask)[i]
			}
			matched = matched && (v^r.arg(argCompare)[i])&mask == 0
		}
	}
	if !matched {
		return nil
	}
	for i := range r.n {
		w := word[i*ws : (i+1)*ws]
		order.store(w, r.result(i, order.load(w)))
	}
	return nil
}

// result is the new value of word i with the old value v. What exceeds a 4-byte
// word is cut off when it is stored.
func (r *Request) result(i int, v uint64) uint64 {
	switch {
	case r.Adds() && r.Masked():
		return addFields(v, r.arg(argAdd)[i], r.arg(argBoundary)[i])
	case r.Adds():
		return v + r.arg(argAdd)[i]
	case r.Masked():
		m := r.arg(argSwapMask)[i]
		return v&^m | r.arg(argSwap)[i]&m
	}
	return r.arg(argSwap)[i]
}

// addFields adds in fields whose most significant bits are those of b. With those
// bits taken out nothing can be carried across them; the sum of the top bits
// without carry is put back by exclusive or.
func addFields(v, a, b uint64) uint64 {
	return (v&^b + a&^b) ^ (v^a)&b
}

// Result is what Apply did.
type Result struct {
	// Old is the variable's old value, OldWide its words above 8 bytes.
	Old     uint64
	OldWide []uint64
	// Stored is false for a compare-and-swap that did not match.
	Stored bool
}

// Apply does the operation to mem, whose first byte has the address base, by the
// meaning of the operation alone: no masks, no shifts, no words around the
// variable. It is the oracle that Encode, Execute, models and devices are
// compared with. Numbers in memory have the given order.
func Apply(mem []byte, base uint64, o *Op, order Order) (Result, error) {
	if err := o.Check(); err != nil {
		return Result{}, err
	}
	if order > BigEndian {
		return Result{}, o.refuse(ErrOrder, "memory has one order or the other")
	}
	off := o.Addr - base
	if o.Addr < base || off > uint64(len(mem)) || uint64(len(mem))-off < uint64(o.Size) {
		return Result{}, o.refuse(ErrSize, "the variable is outside the memory given")
	}
	v := mem[off : off+uint64(o.Size)]
	if o.Size <= 8 {
		old := order.load(v)
		now, stored := o.apply(old, wordOperands{o.Compare, o.Value, o.CompareMask, o.SwapMask, o.Boundary})
		if stored {
			order.store(v, now)
		}
		return Result{Old: old, Stored: stored}, nil
	}
	return o.applyWide(v, order), nil
}

type wordOperands struct{ compare, value, compareMask, swapMask, boundary uint64 }

func (o *Op) applyWide(v []byte, order Order) Result {
	res := Result{OldWide: make([]uint64, o.Size/8), Stored: true}
	now := make([]uint64, o.Size/8)
	for i := range now {
		old := order.load(v[8*i : 8*i+8])
		x := wordOperands{value: o.Wide.Value[i]}
		if len(o.Wide.Compare) != 0 {
			x.compare = o.Wide.Compare[i]
		}
		if len(o.Wide.CompareMask) != 0 {
			x.compareMask, x.swapMask = o.Wide.CompareMask[i], o.Wide.SwapMask[i]
		}
		if len(o.Wide.Boundary) != 0 {
			x.boundary = o.Wide.Boundary[i]
		}
		var stored bool
		now[i], stored = o.apply(old, x)
		res.OldWide[i], res.Stored = old, res.Stored && stored
	}
	if res.Stored {
		for i, w := range now {
			order.store(v[8*i:8*i+8], w)
		}
	}
	return res
}

// apply is the operation on one number of up to 8 bytes.
func (o *Op) apply(old uint64, x wordOperands) (now uint64, stored bool) {
	bits := 8 * min(o.Size, 8)
	switch o.Kind {
	case CompareSwap:
		if old != x.compare {
			return old, false
		}
		return x.value, true
	case Swap:
		return x.value, true
	case And:
		return old & x.value, true
	case Or:
		return old | x.value, true
	case Xor:
		return old ^ x.value, true
	case MaskedCompareSwap:
		for i := range bits {
			if x.compareMask>>i&1 == 1 && old>>i&1 != x.compare>>i&1 {
				return old, false
			}
		}
		return old&^x.swapMask | x.value&x.swapMask, true
	}
	// FetchAdd and MaskedFetchAdd, one bit after the other.
	var carry uint64
	for i := range bits {
		sum := old>>i&1 + x.value>>i&1 + carry
		now |= sum & 1 << i
		carry = sum >> 1
		if x.boundary>>i&1 == 1 {
			carry = 0
		}
	}
	return now, true
}
