package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

func (a *app) traceStatVerb() *cobra.Command {
	var (
		f       traceFlags
		against string
		top     int
	)
	c := a.verb("stat [FILE]", "how often and how regularly each message comes; bursts, silences, outliers; what differs from another trace", 0, 1, func(ctx context.Context, args []string) error {
		if top < 1 {
			return usagef("--top %d: want 1 or more", top)
		}
		if against != "" {
			return a.traceDiff(ctx, &f, args, against, top)
		}
		return a.traceStat(ctx, &f, args, top)
	})
	c.Long = `trace stat counts and times messages by event id and by format. With --against it compares FILE, the trace before,
with another one, the trace after, and ends with exit code 1 if they differ significantly. docs/tracer.md has the
definitions.`
	c.Example = examples(
		"mlxvfio trace record sim,load=1000 -o a.mlxt --for 300ms", "something to read",
		"mlxvfio trace stat a.mlxt", "rates and intervals",
		"mlxvfio trace stat before.mlxt --against after.mlxt", "what differs between two; exit code 1: significantly")
	f.add(c)
	c.Flags().StringVar(&against, "against", "", "compare with the capture `FILE`: what is new there, gone, or comes at another rate")
	completes(c, "against", aFile)
	c.Flags().IntVar(&top, "top", 40, "print `N` lines of each table (JSON has all)")
	return c
}

// analyse makes both passes over a trace.
func (in *traceInput) analyse(ctx context.Context) (*statResult, error) {
	if err := in.oneDevice(); err != nil {
		return nil, err
	}
	s, meta, e, err := in.survey(ctx)
	if !usable(ctx, e, err) {
		return nil, err
	}
	r := &statResult{Source: in.name, Meta: meta, Counters: e.Counters, Stopped: e.Stopped, Result: s.Result()}
	find := s.Finder()
	_, again := in.play(ctx, func(r *capture.Record) error { find.Record(r); return nil },
		func(m *trace.Message) error { find.Message(m); return nil })
	if ctx.Err() != nil {
		return nil, again
	}
	r.Findings = find.Findings()
	return r, err
}

func (a *app) traceStat(ctx context.Context, f *traceFlags, args []string, top int) error {
	in, err := f.openTrace(args)
	if err != nil {
		return err
	}
	r, err := in.analyse(ctx)
	a.warn(in)
	if r == nil {
		return err
	}
	r.top = top
	if perr := a.print("trace-stat/1", r); perr != nil {
		return perr
	}
	return err
}

// statResult is the statistics of one trace.
type statResult struct {
	Source   string            `json:"source"`
	Meta     *capture.Meta     `json:"capture,omitempty"`
	Stopped  string            `json:"stopped,omitempty"`
	Counters trace.Counters    `json:"counters"`
	Findings *analyze.Findings `json:"findings"`
	*analyze.Result
	top int
}

func (r *statResult) text(w io.Writer) {
	head := r.Source
	if r.Meta != nil && r.Meta.Device != "" {
		head += ": " + r.Meta.Device
		if r.Meta.Firmware != "" {
			head += ", firmware " + r.Meta.Firmware
		}
	}
	fmt.Fprintln(w, head)
	if r.Stopped != "" {
		fmt.Fprintf(w, "  stopped before the end: %s\n", r.Stopped)
	}
	fmt.Fprintf(w, "  %d messages in %s watched; %s%d blocks missing in %d gap%s\n", r.Messages, r.length(float64(r.Observed)), atLeast(r.AtLeast), r.Missing, r.Gaps, plural(int(r.Gaps)))
	switch c := r.Clock; {
	case c == nil:
		fmt.Fprintln(w, "  clock: not calibrated; intervals are in ticks (t)")
	case c.Samples == 0:
		fmt.Fprintf(w, "  clock: %.6g MHz, as given\n", c.Hz/1e6)
	default:
		fmt.Fprintf(w, "  clock: %.9g MHz ± %.2g ppm from %d samples; every time below is as exact as that\n", c.Hz/1e6, c.Relative()*1e6, c.Samples)
	}
	r.groups(w, "event id", append([]analyze.Group{r.All}, r.IDs...))
	r.groups(w, "format", r.Formats)
	r.findings(w)
}

// length is a number of ticks for people.
func (r *statResult) length(ticks float64) string {
	if r.Clock == nil {
		return strconv.FormatFloat(math.Round(ticks), 'f', -1, 64) + " t"
	}
	s, _ := r.Clock.Seconds(ticks)
	return secondsText(s)
}

// secondsText is a time with four digits and the unit that fits.
func secondsText(s float64) string {
	for _, u := range []struct {
		name string
		f    float64
	}{{"s", 1}, {"ms", 1e3}, {"µs", 1e6}} {
		if math.Abs(s)*u.f >= 1 {
			return strconv.FormatFloat(s*u.f, 'g', 4, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(s*1e9, 'g', 4, 64) + " ns"
}

func (r *statResult) groups(w io.Writer, title string, gs []analyze.Group) {
	rate := "per Mtick"
	if r.Clock != nil {
		rate = "per s"
	}
	rows := [][]string{{"count", rate, "min", "median", "mean", "p99", "max", title}}
	about := false
	for _, g := range gs[:min(len(gs), r.top)] {
		n := g.PerMtick
		if r.Clock != nil {
			n = g.Rate
		}
		row := []string{strconv.FormatUint(g.Count, 10), strconv.FormatFloat(n, 'g', 4, 64)}
		for i, v := range []float64{g.Ticks.Min, g.Ticks.Median, g.Ticks.Mean, g.Ticks.P99, g.Ticks.Max} {
			switch {
			case g.Intervals == 0:
				row = append(row, "-")
			case !g.Exact && (i == 1 || i == 3):
				row, about = append(row, "~"+r.length(v)), true
			default:
				row = append(row, r.length(v))
			}
		}
		name := g.Name
		if g.Kind == "bad_format" {
			name = "[bad format] " + name
		}
		rows = append(rows, append(row, name))
	}
	fmt.Fprintln(w)
	table(w, rows)
	if n := len(gs) - r.top; n > 0 {
		fmt.Fprintf(w, "… and %d more (--top)\n", n)
	}
	if about {
		fmt.Fprintf(w, "~ from a histogram, within %.1f %%\n", analyze.QuantileError*100)
	}
}

func (r *statResult) findings(w io.Writer) {
	f := r.Findings
	fmt.Fprintf(w, "\n%d bursts, %d silences, %d outliers in %d groups (%d have too few messages to judge)\n", f.Bursts, f.Silences, f.Outliers, f.Judged, f.TooFew)
	var rows [][]string
	shown := map[analyze.FindingKind]int{}
	for _, x := range f.List {
		if shown[x.Kind]++; shown[x.Kind] > max(r.top/4, 1) {
			continue
		}
		what := fmt.Sprintf("%.3g medians", x.Factor)
		if x.Kind == analyze.Burst {
			what = fmt.Sprintf("%d messages, %.3g times faster", x.Messages, x.Factor)
		}
		rows = append(rows, []string{string(x.Kind), fmt.Sprintf("0x%x", x.From), r.length(float64(x.Ticks)), what, x.Group})
	}
	table(w, rows)
}
