package main

import (
	"fmt"
	"io"
)

// progress is a line on a terminal that is overwritten; total 0 is not known.
type progress struct {
	w     io.Writer
	on    bool
	total int
	shown bool
}

func (p *progress) show(n int, what string) {
	if !p.on {
		return
	}
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf("/%d", p.total)
	}
	fmt.Fprintf(p.w, "\r\x1b[K%d%s %s", n, of, what)
	p.shown = true
}

// clear takes the line away.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
