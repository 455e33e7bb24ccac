package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// How wide help and the text of verbs that look at a terminal's width are set: as it is,
// but no wider than is pleasant to read and no narrower than is of use. Where there is no
// terminal, help is as wide as a manual page, and text as a table.
const (
	widthUnknown = 80
	widthLeast   = 40
	widthMost    = 100

	widthLeastText = 60
)

// helpWidth is the number of columns for help that is written to w.
func helpWidth(w io.Writer) int { return widthOf(w, widthLeast, widthMost, widthUnknown) }

// textWidth is the number of columns for text that is written to w.
func textWidth(w io.Writer) int { return widthOf(w, widthLeastText, widthTable, widthTable) }

// widthOf is how wide the terminal w is, within limits; unknown where it does not say,
// or is none.
func widthOf(w io.Writer, least, most, unknown int) int {
	if s := windowOf(w); s != nil && s.Col > 0 {
		return min(max(int(s.Col), least), most)
	}
	return unknown
}

// windowOf is the size of the terminal w; nil where it is none.
func windowOf(w io.Writer) *unix.Winsize {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return nil
	}
	return s
}

// wrapText sets text in lines of at most width columns. Lines that follow each other
// are one paragraph, as in a manual page; one that is set in is a row of a table and
// goes on below its last cell.
func wrapText(text string, width int) string {
	var out, paragraph []string
	end := func() {
		if len(paragraph) > 0 {
			out = append(out, wrapLine(strings.Join(paragraph, " "), 0, 0, width)...)
		}
		paragraph = nil
	}
	for l := range strings.SplitSeq(text, "\n") {
		body := strings.TrimLeft(l, " ")
		in := len(l) - len(body)
		switch {
		case body == "":
			end()
			out = append(out, "")
		case in > 0:
			end()
			out = append(out, wrapLine(body, in, lastCell(l, in, width), width)...)
		default:
			paragraph = append(paragraph, body)
		}
	}
	end()
	return strings.Join(out, "\n")
}

// lastCell is the column of a row's last cell: what follows two blanks or more. A
// row of one cell, and one whose last cell has little room, goes on a bit further in.
func lastCell(row string, in, width int) int {
	i := strings.LastIndex(row, "  ")
	if i < in {
		return in + 2
	}
	if at := utf8.RuneCountInString(row[:i+2]); at <= width/2 {
		return at
	}
	return in + 2
}

// wrapLine breaks one line at blanks. The first line begins at column in, the others
// at column hang. Blanks between cells stand as they are.
func wrapLine(s string, in, hang, width int) []string {
	var lines []string
	for {
		room := width - in
		cut := breakAt(s, room)
		lines = append(lines, strings.Repeat(" ", in)+strings.TrimRight(s[:cut], " "))
		s = strings.TrimLeft(s[cut:], " ")
		if s == "" {
			return lines
		}
		in = hang
	}
}

// breakAt is where to break s so that it fits: at the last blank within room, else at
// the first one behind it. A word is never broken.
func breakAt(s string, room int) int {
	column, last := 0, -1
	for i, r := range s {
		if r == ' ' {
			if column > room && last < 0 {
				return i
			}
			last = i
		}
		if column++; column > room && last > 0 && r != ' ' {
			return last
		}
	}
	return len(s)
}
