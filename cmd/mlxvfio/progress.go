package main

import (
	"fmt"
	"io"
)

// progress is a line on a terminal that is overwritten.
type progress struct {
	w     io.Writer
	on    bool
	total int
	shown bool
}

func (p *progress) show(n int, what string) {
	if p.on {
		fmt.Fprintf(p.w, "\r\x1b[K%d/%d %s", n, p.total, what)
		p.shown = true
	}
}

// clear takes the line away.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
