package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
)

// differentError says that two traces differ.
type differentError struct {
	a, b string
	n    int
}

func (e *differentError) Error() string {
	return fmt.Sprintf("%s and %s: %d messages differ significantly", e.a, e.b, e.n)
}

func (a *app) traceDiff(ctx context.Context, f *traceFlags, args []string, against string, top int) error {
	if f.ring != "" {
		return usagef("--against compares two captures or two pasted texts, not a ring")
	}
	r := &diffResult{top: top, chance: analyze.Significance}
	var (
		res  [2]*analyze.Result
		side = [2]*diffSide{&r.A, &r.B}
		errs error
		text [2]bool
	)
	if len(args) == 0 {
		return usagef("want the FILE of the trace before, to compare with --against %s", against)
	}
	for i, name := range []string{args[0], against} {
		in, err := f.openTrace([]string{name})
		if err == nil {
			err = in.oneDevice()
		}
		if err != nil {
			return err
		}
		s, meta, e, err := in.survey(ctx)
		a.warn(in)
		if !usable(ctx, e, err) {
			return err
		}
		errs = errors.Join(errs, err)
		res[i], text[i] = s.Result(), in.lines != nil
		*side[i] = diffSide{in.name, meta, e.Stopped, res[i].Messages, res[i].Gaps, res[i].Missing, res[i].Clock}
	}
	if text[0] != text[1] {
		return usagef("%s and %s: a capture has formats, pasted text has none; compare two of a kind", r.A.Source, r.B.Source)
	}
	r.Diff = analyze.Compare(res[0], res[1])
	if err := a.print("trace-diff/1", r); err != nil {
		return err
	}
	if errs == nil && r.Significant > 0 {
		return &differentError{r.A.Source, r.B.Source, r.Significant}
	}
	return errs
}

// diffSide is one of two traces.
type diffSide struct {
	Source   string         `json:"source"`
	Meta     *capture.Meta  `json:"capture,omitempty"`
	Stopped  string         `json:"stopped,omitempty"`
	Messages uint64         `json:"messages"`
	Gaps     uint64         `json:"gaps"`
	Missing  uint64         `json:"missing_blocks"`
	Clock    *analyze.Clock `json:"clock"`
}

func (s *diffSide) String() string {
	t := s.Source
	if s.Meta != nil && s.Meta.Firmware != "" {
		t += " (firmware " + s.Meta.Firmware + ")"
	}
	t += fmt.Sprintf(": %d messages", s.Messages)
	if s.Stopped != "" {
		t += "; stopped before the end: " + s.Stopped
	}
	return t
}

// diffResult is what differs between two traces.
type diffResult struct {
	A diffSide `json:"a"`
	B diffSide `json:"b"`
	*analyze.Diff
	top    int
	chance float64
}

func (r *diffResult) text(w io.Writer) {
	unit := "s"
	if r.Unit != "per s" {
		unit = "Mticks (a trace is not calibrated: the rates compare only if both clocks tick alike)"
	}
	fmt.Fprintf(w, "A %v, %.4g %s watched\nB %v, %.4g %s watched\n", &r.A, r.WatchedA, unit, &r.B, r.WatchedB, unit)
	fmt.Fprintf(w, "%d new, %d gone, %d at another rate, %d the same; %d differ significantly (equal rates would show one in fewer than one comparison of %.0f)\n",
		r.New, r.Gone, r.Rate, r.Same, r.Significant, 1/r.chance)
	if len(r.List) == 0 {
		return
	}
	g := func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
	rows := [][]string{{"", "count A", "count B", "A " + r.Unit, "B " + r.Unit, "ratio", "p", "message"}}
	for _, d := range r.List[:min(len(r.List), r.top)] {
		ratio, what := "-", string(d.Change)
		if d.Ratio > 0 {
			ratio = g(d.Ratio)
		}
		if !d.Significant {
			what += " ?"
		}
		rows = append(rows, []string{what, strconv.FormatUint(d.CountA, 10), strconv.FormatUint(d.CountB, 10), g(d.RateA), g(d.RateB), ratio, strconv.FormatFloat(d.P, 'g', 2, 64), d.Name})
	}
	fmt.Fprintln(w)
	table(w, rows)
	if n := len(r.List) - r.top; n > 0 {
		fmt.Fprintf(w, "… and %d more (--top)\n", n)
	}
	fmt.Fprintln(w, "? may be chance: too few messages to tell")
}
