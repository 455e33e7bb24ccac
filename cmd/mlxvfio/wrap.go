package main

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// How wide help is set: as the terminal is, but no wider than is pleasant to read,
// and as a manual page where there is no terminal.
const (
	widthUnknown = 80
	widthLeast   = 40
	widthMost    = 100
)

// helpWidth is the number of columns for help that is written to w.
func helpWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return widthUnknown
	}
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || s.Col == 0 {
		return widthUnknown
	}
	return min(max(int(s.Col), widthLeast), widthMost)
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
			if strings.HasSuffix(body, ":") {
				end() // a table or a command follows
			}
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
