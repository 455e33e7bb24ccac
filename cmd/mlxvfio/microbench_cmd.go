package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/spf13/cobra"
)

// microCmdFlags are the flags of microbench cmd.
type microCmdFlags struct {
	messages, modes []string
	latencies       []time.Duration
	slots           []int
	callers         int
	runs, count     int
	most            time.Duration
}

// microMessage is a pair of message lengths with a name.
type microMessage struct {
	name    string
	in, out int
}

// microMessages are the messages that are measured: all inside the queue entry; a
// mailbox each way; the length of QUERY_HCA_CAP; that of MANAGE_PAGES with 512 pages.
var microMessages = []microMessage{{"inline", 16, 16}, {"mailbox", 280, 272}, {"caps", 16, 4112}, {"pages", 4112, 16}}

func microMessageNames() []string {
	var names []string
	for _, m := range microMessages {
		names = append(names, m.name)
	}
	return names
}

var microModes = []string{"polled", "events"}

func (a *app) microCmdVerb() *cobra.Command {
	var f microCmdFlags
	c := a.verb("cmd", "commands a second through the command engine: one slot, and all of them", 0, 0, func(ctx context.Context, _ []string) error {
		return a.microCmd(ctx, &f)
	})
	c.Long = `cmd measures the command engine in ordinary memory, without a device: --callers goroutines send NOPs through its queue
to a responder that hands every entry back, at once or --latency later. RATIO compares the numbers of --slots: one at a
time, as with --command-slots 1, and as many as a device takes. Each figure is the median of --runs.`
	c.Example = examples(
		"mlxvfio microbench cmd --message inline --latency 1ms", "how commands of a millisecond overlap",
		"mlxvfio microbench cmd --callers 1 --slots 1 --latency 0s", "what one command costs")
	fs := c.Flags()
	fs.StringSliceVar(&f.messages, "message", []string{"inline", "caps"}, "comma-separated `LIST` of messages: "+strings.Join(microMessageNames(), ", "))
	fs.StringSliceVar(&f.modes, "mode", microModes, "comma-separated `LIST` of how completions are found: polled, events")
	completes(c, "message", someOf(microMessageNames()...))
	completes(c, "mode", someOf(microModes...))
	fs.DurationSliceVar(&f.latencies, "latency", []time.Duration{0, time.Millisecond}, "comma-separated `LIST` of how long a command takes; 0s is answered within the doorbell")
	fs.IntSliceVar(&f.slots, "slots", []int{1, microMaxSlots}, "comma-separated `LIST` of commands in flight, 1 to "+strconv.Itoa(microMaxSlots)+"; RATIO refers to the first")
	fs.IntVar(&f.callers, "callers", 2*microMaxSlots, "`N` goroutines that send commands")
	fs.IntVar(&f.runs, "runs", 5, "`N` runs of each figure; they take turns")
	fs.IntVar(&f.count, "count", 20000, "`N` commands a run")
	fs.DurationVar(&f.most, "most", 50*time.Millisecond, "longest `TIME` of a run, whatever --count says")
	return c
}

// microMaxSlots is the number of slots beside the one kept for page commands.
const microMaxSlots = 31

// microCmdCase is one figure.
type microCmdCase struct {
	row    microCmdRow
	bench  *cmdif.Microbench
	took   []float64 // ns a command, one a run
	base   *microCmdCase
	allocs float64
	sent   int
}

func (f *microCmdFlags) check() error {
	switch {
	case f.runs < 1:
		return usagef("--runs %d: want 1 or more", f.runs)
	case f.count < 1:
		return usagef("--count %d: want 1 or more", f.count)
	case f.callers < 1 || f.callers > 10000:
		return usagef("--callers %d: want 1 to 10000", f.callers)
	case f.most <= 0:
		return usagef("--most %v: want more than 0", f.most)
	case len(f.messages) == 0 || len(f.modes) == 0 || len(f.latencies) == 0 || len(f.slots) == 0:
		return usagef("microbench cmd: --message, --mode, --latency and --slots want a value each")
	}
	for _, n := range f.slots {
		if n < 1 || n > microMaxSlots {
			return usagef("--slots %d: want 1 to %d", n, microMaxSlots)
		}
	}
	for _, d := range f.latencies {
		if d < 0 || d > time.Second {
			return usagef("--latency %v: want 0 to 1s", d)
		}
	}
	for _, m := range f.modes {
		if !slices.Contains(microModes, m) {
			return usagef("--mode %q: no such mode; there are: %s", m, strings.Join(microModes, " "))
		}
	}
	for _, m := range f.messages {
		if !slices.Contains(microMessageNames(), m) {
			return usagef("--message %q: no such message; there are: %s", m, strings.Join(microMessageNames(), " "))
		}
	}
	return nil
}

// cases opens an engine for each figure.
func (f *microCmdFlags) cases() (cases []*microCmdCase, err error) {
	for _, name := range f.messages {
		m := microMessages[slices.Index(microMessageNames(), name)]
		for _, mode := range f.modes {
			for _, latency := range f.latencies {
				var base *microCmdCase
				for _, n := range f.slots {
					c := &microCmdCase{row: microCmdRow{Message: name, In: m.in, Out: m.out, Mode: mode, Latency: latency.Nanoseconds(), Slots: n}}
					if base == nil {
						base = c
					}
					c.base = base
					c.bench, err = cmdif.NewMicrobench(cmdif.MicroOptions{MaxSlots: n, In: m.in, Out: m.out, Latency: latency, Events: mode == "events"})
					if err != nil {
						return cases, err
					}
					cases = append(cases, c)
				}
			}
		}
	}
	return cases, nil
}

func (a *app) microCmd(ctx context.Context, f *microCmdFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	cases, err := f.cases()
	defer func() {
		for _, c := range cases {
			_ = c.bench.Close() // memory only
		}
	}()
	if err != nil {
		return err
	}
	bar := progress{w: a.err, on: terminal(a.err) && !a.json, total: f.runs}
	defer bar.clear()
	for n := range f.runs {
		bar.show(n+1, "runs")
		for _, c := range cases {
			if err := c.run(ctx, f); err != nil {
				return err
			}
		}
	}
	bar.clear()
	r := &microCmdResult{Runs: f.runs, Callers: f.callers, Rows: []microCmdRow{}}
	for _, c := range cases {
		r.Rows = append(r.Rows, c.result())
	}
	return a.print("microbench-cmd/1", r)
}

// run is one run of a figure.
func (c *microCmdCase) run(ctx context.Context, f *microCmdFlags) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if c.sent == 0 { // not counted: memory is taken, waiters are made
		if _, err := c.bench.Run(ctx, f.callers, 2*f.callers, f.most); err != nil {
			return err
		}
	}
	r, err := c.bench.Run(ctx, f.callers, f.count, f.most)
	if err != nil {
		return err
	}
	c.took = append(c.took, float64(r.Took.Nanoseconds())/float64(r.Sent))
	c.sent += r.Sent
	c.allocs += float64(r.Allocs)
	return nil
}

func (c *microCmdCase) median() float64 {
	s := slices.Sorted(slices.Values(c.took))
	return s[len(s)/2]
}

func (c *microCmdCase) result() microCmdRow {
	r, m := c.row, c.median()
	r.Median, r.Min, r.Max = round2(m), round2(slices.Min(c.took)), round2(slices.Max(c.took))
	r.Rate = round2(1e9 / m)
	r.Ratio = round2(c.base.median() / m)
	r.Allocs = round2(c.allocs / float64(c.sent))
	return r
}

// microCmdResult are the figures of a run.
type microCmdResult struct {
	Runs    int           `json:"runs"`
	Callers int           `json:"callers"`
	Rows    []microCmdRow `json:"rows"`
}

type microCmdRow struct {
	Message string  `json:"message"`
	In      int     `json:"in_bytes"`
	Out     int     `json:"out_bytes"`
	Mode    string  `json:"mode"`
	Latency int64   `json:"latency_ns"`
	Slots   int     `json:"slots"`
	Median  float64 `json:"ns_median"` // of the runs, for one command
	Min     float64 `json:"ns_min"`
	Max     float64 `json:"ns_max"`
	Rate    float64 `json:"per_s"` // commands a second, of the median run
	Ratio   float64 `json:"ratio"` // of that to the one of the first number of slots
	Allocs  float64 `json:"allocs"`
}

func (r *microCmdResult) text(w io.Writer) {
	fmt.Fprintf(w, "cmd on ordinary memory, no device: ns a command from %d callers, %d runs\n", r.Callers, r.Runs)
	rows := [][]string{{"MESSAGE", "IN", "OUT", "MODE", "LATENCY", "SLOTS", "MEDIAN", "MIN", "MAX", "CMD/S", "RATIO", "ALLOCS"}}
	for _, x := range r.Rows {
		rows = append(rows, []string{
			x.Message, strconv.Itoa(x.In), strconv.Itoa(x.Out), x.Mode, time.Duration(x.Latency).String(), strconv.Itoa(x.Slots),
			fmt.Sprintf("%.0f", x.Median), fmt.Sprintf("%.0f", x.Min), fmt.Sprintf("%.0f", x.Max),
			fmt.Sprintf("%.0f", x.Rate), fmt.Sprintf("%.2f", x.Ratio), fmt.Sprintf("%.2f", x.Allocs),
		})
	}
	table(w, rows)
}
