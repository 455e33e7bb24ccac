package atomics

import "fmt"

// Kind is an operation on a variable.
type Kind uint8

// The operations. Swap, And, Or and Xor are derived from masked compare-and-swap
// and masked fetch-add (UCX rc_mlx5.inl).
const (
	// CompareSwap stores Value if the variable equals Compare.
	CompareSwap Kind = iota
	// Swap stores Value.
	Swap
	// FetchAdd adds Value; what is carried out of the variable is lost.
	FetchAdd
	// And, Or and Xor combine the variable with Value.
	And
	Or
	Xor
	// MaskedCompareSwap compares the bits of CompareMask with Compare and, if they
	// are equal, stores the bits of SwapMask of Value.
	MaskedCompareSwap
	// MaskedFetchAdd adds Value in fields: a bit set in Boundary is the most
	// significant bit of a field, and nothing is carried above it.
	MaskedFetchAdd

	numKinds
)

var kindNames = [numKinds]string{"compare-swap", "swap", "fetch-add", "and", "or", "xor", "masked-compare-swap", "masked-fetch-add"}

// Kinds lists the operations.
func Kinds() []Kind {
	ks := make([]Kind, numKinds)
	for i := range ks {
		ks[i] = Kind(i)
	}
	return ks
}

func (k Kind) String() string {
	if k < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("operation %d", uint8(k))
}

// MarshalText gives the name, for JSON and flags.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a name that MarshalText gave.
func (k *Kind) UnmarshalText(b []byte) error {
	v, err := ParseKind(string(b))
	*k = v
	return err
}

// ParseKind finds an operation by its name, or by the short names cas, swap, fa,
// mcas and mfa.
func ParseKind(s string) (Kind, error) {
	switch s {
	case "cas", "cs":
		return CompareSwap, nil
	case "fa", "faa", "add":
		return FetchAdd, nil
	case "mcas", "mcs":
		return MaskedCompareSwap, nil
	case "mfa":
		return MaskedFetchAdd, nil
	}
	for i, n := range kindNames {
		if s == n {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("operation %q: %w; want one of %v", s, ErrKind, kindNames)
}

// adds tells whether the operation is made of a fetch-add; the others are made
// of a compare-and-swap.
func (k Kind) adds() bool { return k == FetchAdd || k == Xor || k == MaskedFetchAdd }

// MaxSize is the largest variable in bytes that a WQE can carry the operands of:
// a WQE has at most 63 units of 16 bytes (ruling W4).
func (k Kind) MaxSize() int {
	if k.adds() {
		return 256
	}
	return 128
}

// Op is an operation on a variable of Size bytes at Addr in the responder's
// memory. Sizes are powers of two: 1 and 2 bytes inside an aligned 4-byte word,
// and 4 to MaxSize bytes aligned to their size. Operands are numbers of the
// variable; bits outside it are refused.
//
// From 16 bytes on the operands are lists of 8-byte words in the order of their
// addresses, in Wide. The comparison is one, all or nothing (ruling A5); each
// word adds for itself, nothing is carried from one to the next (ruling A6).
type Op struct {
	Kind Kind
	Addr uint64
	Size int

	// Compare is used by CompareSwap and MaskedCompareSwap, Value by all.
	Compare, Value uint64
	// CompareMask and SwapMask are used by MaskedCompareSwap, Boundary by
	// MaskedFetchAdd and, for fields inside the variable, by FetchAdd.
	CompareMask, SwapMask, Boundary uint64

	// Wide are the operands of variables above 8 bytes.
	Wide *Wide
}

// Wide are operands of 16 bytes and more: Size/8 words each, in the order of
// their addresses. Those the operation does not use are empty; an empty Boundary
// means none.
type Wide struct {
	Compare, Value, CompareMask, SwapMask, Boundary []uint64
}

// fieldMask is the mask of a variable of size bytes, up to 8.
func fieldMask(size int) uint64 {
	if size >= 8 {
		return ^uint64(0)
	}
	return 1<<(8*size) - 1
}

// uses tells which operands an operation has.
func (k Kind) uses() (compare, masks, boundary bool) {
	switch k {
	case CompareSwap:
		return true, false, false
	case MaskedCompareSwap:
		return true, true, false
	case FetchAdd, MaskedFetchAdd:
		return false, false, true
	}
	return false, false, false
}

func (o *Op) refuse(err error, remedy string) error {
	return &OpError{Kind: o.Kind, Size: o.Size, Addr: o.Addr, Err: err, Remedy: remedy}
}

func (o *Op) refuseField(field string, v uint64, err error, remedy string) error {
	return &OpError{Kind: o.Kind, Size: o.Size, Addr: o.Addr, Field: field, Value: v, Err: err, Remedy: remedy}
}

// Check tells whether the operation can be expressed at all: kind, size,
// alignment and operands. The error is an *OpError. It does not ask what a
// device offers; Caps.Check does. It allocates nothing unless it refuses.
func (o *Op) Check() error {
	if o == nil {
		return (&Op{Kind: numKinds}).refuse(ErrKind, "it is nil; give an operation")
	}
	if o.Kind >= numKinds {
		return o.refuse(ErrKind, "use one of the operations of this package")
	}
	if o.Size < 1 || o.Size > 256 || o.Size&(o.Size-1) != 0 {
		return o.refuse(ErrSize, "sizes are powers of two from 1 to 256")
	}
	if o.Size > o.Kind.MaxSize() {
		return o.refuse(ErrSize, fmt.Sprintf("the operands do not fit a WQE; the largest is %d bytes", o.Kind.MaxSize()))
	}
	if err := o.checkPlace(); err != nil {
		return err
	}
	if o.Size <= 8 {
		return o.checkOperands()
	}
	return o.checkWide()
}

// checkPlace refuses targets no aligned word holds (rulings A8 and A10).
func (o *Op) checkPlace() error {
	switch {
	case o.Size == 1:
	case o.Size == 2:
		if o.Addr&3 == 3 {
			return o.refuse(ErrCrosses, "move the variable so that both bytes lie in one aligned 4-byte word")
		}
	case o.Addr&uint64(o.Size-1) != 0:
		return o.refuse(ErrUnaligned, "align the variable to its size")
	}
	if o.Addr+uint64(o.Size)-1 < o.Addr {
		return o.refuse(ErrUnaligned, "the variable ends beyond the last address")
	}
	return nil
}

func (o *Op) checkOperands() error {
	if o.Wide != nil {
		return o.refuse(ErrOperand, "operands up to 8 bytes are numbers, not lists of words")
	}
	compare, masks, boundary := o.Kind.uses()
	m := fieldMask(o.Size)
	for i := range 5 {
		name, v, used := o.operand(i, compare, masks, boundary)
		switch {
		case v == 0:
		case !used:
			return o.refuseField(name, v, ErrOperand, "leave it zero")
		case v&^m != 0:
			return o.refuseField(name, v, ErrOverflow, fmt.Sprintf("it must not exceed 0x%x", m))
		}
	}
	return nil
}

// operand is the i-th operand, its name and whether the operation uses it.
func (o *Op) operand(i int, compare, masks, boundary bool) (string, uint64, bool) {
	switch i {
	case 0:
		return "compare", o.Compare, compare
	case 1:
		return o.valueName(), o.Value, true
	case 2:
		return "compare_mask", o.CompareMask, masks
	case 3:
		return "swap_mask", o.SwapMask, masks
	}
	return "field_boundary", o.Boundary, boundary
}

func (o *Op) valueName() string {
	switch o.Kind {
	case CompareSwap, Swap, MaskedCompareSwap:
		return "swap"
	case FetchAdd, MaskedFetchAdd:
		return "add"
	}
	return "value"
}

func (o *Op) checkWide() error {
	w := o.Wide
	if w == nil {
		return o.refuse(ErrOperand, "operands above 8 bytes are lists of 8-byte words (Wide)")
	}
	if o.Compare|o.Value|o.CompareMask|o.SwapMask|o.Boundary != 0 {
		return o.refuse(ErrOperand, "operands above 8 bytes are lists of words, not numbers")
	}
	compare, masks, boundary := o.Kind.uses()
	n := o.Size / 8
	for i := range 5 {
		name, ws, used := o.wideOperand(i, compare, masks, boundary)
		switch {
		case !used && len(ws) != 0:
			return o.refuseField(name, ws[0], ErrOperand, "leave it empty")
		case used && len(ws) != n && (name != "field_boundary" || len(ws) != 0):
			return o.refuseField(name, uint64(len(ws)), ErrOperand, fmt.Sprintf("that many words were given; it needs %d", n))
		}
	}
	return nil
}

func (o *Op) wideOperand(i int, compare, masks, boundary bool) (string, []uint64, bool) {
	switch i {
	case 0:
		return "compare", o.Wide.Compare, compare
	case 1:
		return o.valueName(), o.Wide.Value, true
	case 2:
		return "compare_mask", o.Wide.CompareMask, masks
	case 3:
		return "swap_mask", o.Wide.SwapMask, masks
	}
	return "field_boundary", o.Wide.Boundary, boundary
}

// NaturallyAligned tells whether the variable lies at a multiple of its size. A
// 2-byte variable at offset 1 of its word does not: it works, and is flagged
// (ruling A8).
func (o *Op) NaturallyAligned() bool { return o.Addr&uint64(o.Size-1) == 0 }
