package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mlxvfio/mlxvfio/health"
)

// viewPeriod is how often a view is drawn at most.
const viewPeriod = 250 * time.Millisecond

// viewEvents is how many of the last lines a view shows.
const viewEvents = 8

// view is a picture on a terminal that is drawn over the last one.
type view struct {
	size   func() (columns, rows int)
	events []string
	drawn  int // lines of the last picture
}

// newView is nil where w is no terminal.
func newView(w io.Writer) *view {
	if windowOf(w) == nil {
		return nil
	}
	return &view{size: func() (int, int) {
		s := windowOf(w)
		if s == nil || s.Col == 0 || s.Row == 0 {
			return 80, 24
		}
		return int(s.Col), int(s.Row)
	}}
}

// remember keeps a line for the picture.
func (v *view) remember(line string) {
	v.events = append(v.events, line)
	if n := len(v.events); n > viewEvents {
		v.events = v.events[n-viewEvents:]
	}
}

// frame is the next picture, with what takes the last one away before it. Lines are
// cut at the edge: one that wraps would put the count of lines wrong.
func (v *view) frame(p *patient, r health.Report) []byte {
	columns, rows := v.size()
	var b bytes.Buffer
	state := strings.ToUpper(r.Verdict.State.String())
	fmt.Fprintf(&b, "%s (%s)%s   %s\n", p.arg.text, p.info.Backend, ifText(r.Now.Firmware != "", "  firmware "+r.Now.Firmware), stamp(r.At))
	fmt.Fprintf(&b, "%s (%s) for %v\n", state, r.Verdict.Condition, r.At.Sub(r.Verdict.Since).Round(time.Second))
	fmt.Fprintf(&b, "%s\n", r.Verdict.Explanation)
	fmt.Fprintf(&b, "%s\n\n", r.Verdict.Remedy)
	tableIn(&b, readings(&r), widthAny)
	b.WriteString("\n")
	for _, e := range v.events {
		b.WriteString(e + "\n")
	}
	lines := strings.SplitAfter(strings.TrimRight(b.String(), "\n")+"\n", "\n")
	lines = lines[:len(lines)-1]
	if most := max(rows-1, 4); len(lines) > most {
		lines = lines[:most]
	}
	var out bytes.Buffer
	if v.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", v.drawn)
	}
	out.WriteString("\r\x1b[J")
	for i, l := range lines {
		l = cut(strings.TrimSuffix(l, "\n"), columns-1)
		if i == 1 {
			l = colour(r.Verdict.State) + l + "\x1b[0m"
		}
		out.WriteString(l + "\n")
	}
	v.drawn = len(lines)
	return out.Bytes()
}

// cut makes a line fit.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	r := []rune(s)
	return string(r[:max(n-1, 0)]) + "…"
}

// colour is how a state looks.
func colour(s health.State) string {
	switch s {
	case health.Healthy:
		return "\x1b[32m"
	case health.Unknown, health.Degraded, health.Recovering:
		return "\x1b[33m"
	}
	return "\x1b[31m"
}
