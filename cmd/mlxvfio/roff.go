package main

import (
	"bytes"
	"fmt"
	"strings"
)

// roff writes a page in the man macros, in ASCII: groff and mandoc read it without
// being told an encoding.
type roff struct{ bytes.Buffer }

// escaped is text that roff shows as it is.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\'':
			b.WriteString(`\(aq`)
		case r == '`':
			b.WriteString(`\(ga`)
		case r == '^':
			b.WriteString(`\(ha`)
		case r == '~':
			b.WriteString(`\(ti`)
		case r < 0x80:
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		}
	}
	return b.String()
}

func bold(s string) string   { return `\fB` + escaped(s) + `\fR` }
func italic(s string) string { return `\fI` + escaped(s) + `\fR` }

// line writes one line of text that is roff already; a dot at its beginning is no
// macro.
func (r *roff) line(s string) {
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	r.WriteString(s + "\n")
}

// lineWidth is what a line of the source may have; mandoc finds fault with more.
const lineWidth = 78

// fill writes text that is roff already in lines that are not too long.
func (r *roff) fill(s string) {
	l := ""
	for _, w := range strings.Fields(s) {
		if l != "" && len(l)+1+len(w) > lineWidth {
			r.line(l)
			l = ""
		}
		l += ifText(l != "", " ") + w
	}
	r.line(l)
}

func (r *roff) section(name string) { r.WriteString(".SH " + escaped(name) + "\n") }

// item writes a tagged paragraph.
func (r *roff) item(tag, text string) {
	r.WriteString(".TP\n")
	r.line(tag)
	r.fill(escaped(text))
}

// text writes paragraphs; lines that are set in stand as they are.
func (r *roff) text(s string) {
	begun, literal := false, false
	end := func() {
		if literal {
			r.WriteString(".fi\n.RE\n")
		}
		literal = false
	}
	fresh := true // the next line begins a paragraph
	for _, l := range strings.Split(strings.TrimRight(s, "\n"), "\n") {
		switch {
		case strings.TrimSpace(l) == "":
			end()
			fresh = true
			continue
		case strings.HasPrefix(l, "  ") && !literal:
			r.WriteString(".RS 4\n.nf\n")
			literal = true
		case !strings.HasPrefix(l, "  ") && literal:
			end()
			fresh = true
		}
		if fresh && begun && !literal {
			r.WriteString(".PP\n")
		}
		fresh, begun = false, true
		if literal {
			r.line(escaped(strings.TrimPrefix(l, "  ")))
		} else {
			r.fill(escaped(l))
		}
	}
	end()
}
