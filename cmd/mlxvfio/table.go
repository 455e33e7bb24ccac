package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// How wide tables are. The last cell of a longer row goes on below where it begins or,
// where that leaves it little room, stands below the others, a bit further in.
const (
	widthTable = 120
	widthAny   = 1 << 20 // for rows that are set later, such as those of help
	leastCell  = 36      // the room that a last cell needs where it begins
	indentCell = 6
)

// table prints rows in aligned columns, without blanks at the ends of lines. Words are
// never broken, and of a row nothing but the last cell.
func table(w io.Writer, rows [][]string) { tableIn(w, rows, widthTable) }

// tableIn is table for another width, such as the terminal's.
func tableIn(w io.Writer, rows [][]string, most int) {
	var width []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		column := 0
		for i, cell := range r {
			n := utf8.RuneCountInString(cell)
			if i > 0 && i == len(r)-1 && column+n > most && (column <= most || n > most-indentCell) { // a short one stays beside others that are too wide
				cell = lastOfRow(&b, column, cell, most)
				n = 0
			}
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", max(width[i]-n, 0)+2))
			column += width[i] + 2
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// lastOfRow breaks a long last cell; what is to the left of it is in b.
func lastOfRow(b *strings.Builder, column int, cell string, most int) string {
	if column <= most-leastCell {
		return strings.TrimLeft(strings.Join(wrapLine(cell, column, column, most), "\n"), " ")
	}
	head := strings.TrimRight(b.String(), " ")
	b.Reset()
	b.WriteString(head)
	return "\n" + strings.Join(wrapLine(cell, indentCell, indentCell, most), "\n")
}

// paragraph prints a line that may be long; it goes on below the given column.
func paragraph(w io.Writer, line string, hang, width int) {
	in := len(line) - len(strings.TrimLeft(line, " "))
	for _, l := range wrapLine(line[in:], in, hang, width) {
		fmt.Fprintln(w, l)
	}
}
