package atomics

import (
	"fmt"
	"iter"
	"strings"
)

// Row is one line of the mask matrix of 1- and 2-byte operations: what a masked
// WQE on the aligned 4-byte word carries. Columns that the operation does not
// have are empty. Operands are written as expressions: c is the value compared,
// s the value stored, a the value added, v the operand of AND, OR and XOR.
type Row struct {
	Order Order  `json:"order"`
	Op    string `json:"op"`
	Kind  Kind   `json:"kind"`
	Size  int    `json:"size"`
	// Offset is the target's in the aligned word, Natural whether it is a multiple
	// of Size, Shift how many bits the operand moves left.
	Offset  int  `json:"offset"`
	Natural bool `json:"naturally_aligned"`
	Shift   int  `json:"shift"`

	Compare     string `json:"compare,omitempty"`
	CompareMask string `json:"compare_mask,omitempty"`
	SwapAdd     string `json:"swap_add"`
	SwapMask    string `json:"swap_mask,omitempty"`
	Boundary    string `json:"field_boundary,omitempty"`

	Opcode uint8 `json:"opcode"`
	Opmod  uint8 `json:"opmod"`
}

// matrixOps are the operations of the tables in the order in which they are
// printed.
var matrixOps = []struct {
	kind     Kind
	name     string
	cmp, val string
}{
	{CompareSwap, "MASKED_CS as C&S", "c", "s"},
	{Swap, "MASKED_CS as SWAP", "", "s"},
	{FetchAdd, "MASKED_FA as F&A", "", "a"},
}

// derivedOps are the further operations that the same two WQEs make.
var derivedOps = []struct {
	kind Kind
	name string
}{
	{And, "MASKED_CS as AND"},
	{Or, "MASKED_CS as OR"},
	{Xor, "MASKED_FA as XOR"},
}

// places are the positions of 1- and 2-byte variables in an aligned word.
func places() iter.Seq2[int, int] {
	return func(yield func(size, offset int) bool) {
		for size := 1; size <= 2; size++ {
			for k := 0; k+size <= 4; k++ {
				if !yield(size, k) {
					return
				}
			}
		}
	}
}

// Table is the mask matrix of compare-and-swap, swap and fetch-add of 1 and 2
// bytes at every offset, in little-endian order and then in big-endian order: 42
// rows. The masks are those that Encode gives.
func Table() []Row {
	var rows []Row
	for _, order := range []Order{LittleEndian, BigEndian} {
		for size, k := range places() {
			for _, m := range matrixOps {
				op := Op{Kind: m.kind, Size: size, Addr: uint64(k)}
				row, r := newRow(&op, order, m.name)
				_, _, swapMask, compareMask, boundary := r.Words()
				row.SwapAdd = fmt.Sprintf("%s<<%d", m.val, row.Shift)
				switch {
				case m.cmp != "":
					row.Compare = fmt.Sprintf("%s<<%d", m.cmp, row.Shift)
				case compareMask != nil:
					row.Compare = "0"
				}
				row.CompareMask, row.SwapMask, row.Boundary = hex32(compareMask), hex32(swapMask), hex32(boundary)
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// Derived is the same matrix for AND, OR and XOR. Their masks depend on the
// operand, so they are expressions too: AND stores the zeros of v, OR its ones,
// XOR is an addition in which every bit is a field of its own.
func Derived() []Row {
	var rows []Row
	for _, order := range []Order{LittleEndian, BigEndian} {
		for size, k := range places() {
			for _, m := range derivedOps {
				op := Op{Kind: m.kind, Size: size, Addr: uint64(k)}
				row, r := newRow(&op, order, m.name)
				_, _, _, compareMask, boundary := r.Words()
				v, field := fmt.Sprintf("v<<%d", row.Shift), fmt.Sprintf("0x%08x", fieldMask(size)<<row.Shift)
				row.SwapAdd = v
				switch m.kind {
				case And:
					row.SwapMask = fmt.Sprintf("%s &^ (%s)", field, v)
				case Or:
					row.SwapMask = v
				case Xor:
					row.Boundary = hex32(boundary)
				}
				if compareMask != nil {
					row.Compare, row.CompareMask = "0", hex32(compareMask)
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

func newRow(op *Op, order Order, name string) (Row, *Request) {
	r := new(Request)
	if err := op.Encode(r, order); err != nil {
		// places() yields only what can be encoded.
		panic(err)
	}
	return Row{
		Order: order, Op: name, Kind: op.Kind, Size: op.Size, Offset: int(op.Addr), Natural: r.Natural,
		Shift: int(r.shift), Opcode: uint8(r.Opcode), Opmod: r.Opmod,
	}, r
}

func hex32(words []uint64) string {
	if words == nil {
		return ""
	}
	return fmt.Sprintf("0x%08x", words[0])
}

// Heads are the names of the columns that Columns gives.
func Heads() []string {
	return []string{"op", "size", "offset", "shift", "compare", "compare_mask", "swap/add", "swap_mask", "field_boundary"}
}

// Columns is the row as text, without its order; what the operation does not have
// is a dash.
func (r Row) Columns() []string {
	off := fmt.Sprint(r.Offset)
	if !r.Natural {
		off += " (not naturally aligned)"
	}
	c := []string{r.Op, fmt.Sprintf("%dB", r.Size), off, fmt.Sprint(r.Shift), r.Compare, r.CompareMask, r.SwapAdd, r.SwapMask, r.Boundary}
	for i, s := range c {
		if strings.TrimSpace(s) == "" {
			c[i] = "—"
		}
	}
	return c
}
