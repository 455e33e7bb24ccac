package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// How wide tables are. The last cell of a longer row goes on below where it begins or,
// where that is far to the right, stands below the others, a bit further in.
const (
	widthTable = 120
	widthCells = 84 // a last cell that begins behind this column has too little room
	indentCell = 6
)

// table prints rows in aligned columns, without blanks at the ends of lines. Words are
// never broken, and of a row nothing but the last cell.
func table(w io.Writer, rows [][]string) { aligned(w, rows, widthTable) }

// widthAny is for rows that are set later, such as those of help.
const widthAny = 1 << 20

// aligned is table for another width.
func aligned(w io.Writer, rows [][]string, most int) {
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
			if i > 0 && i == len(r)-1 && column <= most && column+n > most { // else the others are too wide already
				cell = lastOfRow(&b, column, cell)
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
func lastOfRow(b *strings.Builder, column int, cell string) string {
	if column <= widthCells {
		return strings.TrimLeft(strings.Join(wrapLine(cell, column, column, widthTable), "\n"), " ")
	}
	head := strings.TrimRight(b.String(), " ")
	b.Reset()
	b.WriteString(head)
	return "\n" + strings.Join(wrapLine(cell, indentCell, indentCell, widthTable), "\n")
}

// paragraph prints a line that may be long; it goes on below the given column.
func paragraph(w io.Writer, line string, hang int) {
	in := len(line) - len(strings.TrimLeft(line, " "))
	for _, l := range wrapLine(line[in:], in, hang, widthTable) {
		fmt.Fprintln(w, l)
	}
}
