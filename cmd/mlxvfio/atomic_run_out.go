package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// runResult is what one operation did. Bytes are hex digits in the order of the
// addresses, values numbers as text, since JSON's are too small for some.
type runResult struct {
	pairHead
	Op            atomics.Kind  `json:"op"`
	Size          int           `json:"size"`
	Offset        int           `json:"offset"`
	Natural       bool          `json:"naturally_aligned"`
	MaxAtomicSize int           `json:"max_atomic_size"`
	Probed        bool          `json:"probed"`
	WordOrder     atomics.Order `json:"word_order"`
	ReplyOrder    atomics.Order `json:"reply_order"`
	Address       uint64        `json:"address"`
	Before        string        `json:"before"`
	After         string        `json:"after"`
	// Returned is one for each time the operation was done; WQE and ReplyHex are
	// those of the last one.
	Returned []runReturn `json:"returned"`
	ReplyHex string      `json:"reply_hex"`
	WQE      wqeView     `json:"wqe"`
}

// runReturn is what came back: the old value of the variable, above 8 bytes its
// words, and whether a comparison matched.
type runReturn struct {
	Old    []string `json:"old"`
	Stored bool     `json:"stored"`
}

// wqeView is a WQE as posted. Word is the address of the aligned word it works on,
// Bytes the size of that word.
type wqeView struct {
	Opcode   string   `json:"opcode"`
	Opmod    uint8    `json:"opmod"`
	Word     uint64   `json:"word_address"`
	Bytes    int      `json:"word_bytes"`
	Segments []string `json:"segments"`
	Hex      string   `json:"hex"`
}

func (r *runResult) text(w io.Writer) {
	fmt.Fprintln(w, r.pairHead)
	how := "assumed"
	if r.Probed {
		how = "probed"
	}
	fmt.Fprintf(w, "%v of %d byte%s at offset %d%s; words %v in memory, replies %v (%s); max_atomic_size %d\n\n", r.Op, r.Size, plural(r.Size), r.Offset,
		ifText(!r.Natural, " (not naturally aligned)"), r.WordOrder, r.ReplyOrder, how, r.MaxAtomicSize)
	from, to := r.shown()
	rows := [][]string{
		{fmt.Sprintf("memory %d … %d", from, to-1), spaced(r.Before[2*from:2*to], r.Offset-from, r.Size)},
		{"after", spaced(r.After[2*from:2*to], r.Offset-from, r.Size)},
	}
	for i, x := range r.Returned {
		name := "returned"
		if len(r.Returned) > 1 {
			name = fmt.Sprintf("returned %d", i+1)
		}
		rows = append(rows, []string{name, strings.Join(x.Old, " ") + ifText(!x.Stored, ", no match: nothing stored")})
	}
	rows = append(rows, []string{"reply bytes", spaced(r.ReplyHex, 0, 0)})
	table(w, rows)
	fmt.Fprintf(w, "\nWQE %s, opmod %#x, on the %d bytes at 0x%x\n", r.WQE.Opcode, r.WQE.Opmod, r.WQE.Bytes, r.WQE.Word)
	for _, s := range r.WQE.Segments {
		fmt.Fprintf(w, "  %s\n", s)
	}
	for i := 0; i < len(r.WQE.Hex); i += 32 {
		fmt.Fprintf(w, "  %03x: %s\n", i/2, r.WQE.Hex[i:min(i+32, len(r.WQE.Hex))])
	}
}

// shown is the part of the block that text shows: the variable and 8 bytes on
// both sides of its word.
func (r *runResult) shown() (from, to int) {
	word := max(r.Size, 4)
	return max(0, r.Offset/word*word-8), min(runBlock, (r.Offset+r.Size+word-1)/word*word+8)
}

// spaced separates bytes by blanks and puts the n bytes from at on in brackets.
func spaced(digits string, at, n int) string {
	var b strings.Builder
	for i := 0; 2*i < len(digits); i++ {
		sep := " "
		if n > 0 && i == at {
			sep = "["
		} else if n > 0 && i == at+n {
			sep = "]"
		}
		b.WriteString(sep + digits[2*i:2*i+2])
	}
	if n > 0 && 2*(at+n) == len(digits) {
		b.WriteString("]")
	}
	return strings.TrimPrefix(b.String(), " ")
}
