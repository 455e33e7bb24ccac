package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/spf13/cobra"
)

// microFlags are the flags of microbench post and poll.
type microFlags struct {
	ops     []string
	batches []int
	runs    int
	count   int
}

func (a *app) microbenchVerb() *cobra.Command {
	return folder("microbench", "time the software path of posting, polling, commands and trace decoding in ordinary memory; no device",
		a.microPostVerb(), a.microPollVerb(), a.microCmdVerb(), a.microTraceVerb())
}

func (a *app) microPostVerb() *cobra.Command {
	var f microFlags
	c := a.verb("post", "ns a WQE: written, rung by one doorbell a batch, and retired", 0, 0, func(ctx context.Context, _ []string) error {
		return a.microbench(ctx, "post", f)
	})
	c.Long = `post measures the time of a WQE in ordinary memory, without a device: it is written, rung by one doorbell for --batch
of them, and retired. Each figure is the median of --runs.`
	c.Example = examples(
		"mlxvfio microbench post --op nop --runs 3", "the WQE without data")
	var names []string
	for _, o := range queues.MicroOps() {
		names = append(names, o.String())
	}
	c.Flags().StringSliceVar(&f.ops, "op", names, "comma-separated `LIST` of operations")
	completes(c, "op", someOf(names...))
	microCommon(c, &f, "WQEs", "a doorbell", []int{1, 4, 16, 64})
	return c
}

func (a *app) microPollVerb() *cobra.Command {
	var f microFlags
	c := a.verb("poll", "ns a completion: found, matched with its WQE, and retired; and ns a look at an empty queue", 0, 0, func(ctx context.Context, _ []string) error {
		return a.microbench(ctx, "poll", f)
	})
	c.Long = `poll measures the time of a completion in ordinary memory, without a device: it is found, matched with its WQE and
retired, --batch of them a call; and the time of a look at an empty queue. Each figure is the median of --runs.`
	c.Example = examples(
		"mlxvfio microbench poll --runs 3", "completions one by one, 16 and 64 at a time")
	microCommon(c, &f, "completions", "a poll", []int{1, 16, 64})
	return c
}

func microCommon(c *cobra.Command, f *microFlags, what, at string, batches []int) {
	c.Flags().IntSliceVar(&f.batches, "batch", batches, fmt.Sprintf("comma-separated `LIST` of %s %s: 1 to %d", what, at, queues.MicroMaxBatch))
	c.Flags().IntVar(&f.runs, "runs", 15, "`N` runs of each figure; they take turns")
	c.Flags().IntVar(&f.count, "count", 1<<17, "`N` "+what+" a run")
}

// microCase is one figure: run gives the time of one of n things.
type microCase struct {
	op    string
	batch int
	run   func() (time.Duration, int, error)
	took  []float64 // ns, one a run
}

func (a *app) microbench(ctx context.Context, what string, f microFlags) error {
	m, err := queues.NewMicrobench(nil)
	if err != nil {
		return err
	}
	cases, err := f.cases(m, what)
	if err != nil {
		return err
	}
	bar := progress{w: a.err, on: terminal(a.err) && !a.json, total: f.runs}
	for n := range f.runs {
		bar.show(n+1, "runs")
		for _, c := range cases {
			if err := context.Cause(ctx); err != nil {
				bar.clear()
				return err
			}
			d, k, err := c.run()
			if err != nil {
				bar.clear()
				return err
			}
			c.took = append(c.took, float64(d.Nanoseconds())/float64(k))
		}
	}
	bar.clear()
	r := &microResult{What: what, Runs: f.runs, Count: f.count, Rows: []microRow{}}
	for _, c := range cases {
		slices.Sort(c.took)
		r.Rows = append(r.Rows, microRow{Op: c.op, Batch: c.batch, Median: round2(c.took[len(c.took)/2]), Min: round2(c.took[0]), Max: round2(c.took[len(c.took)-1])})
	}
	return a.print("microbench/1", r)
}

// mostCount bounds a run, which nothing ends before its time.
const mostCount = 10_000_000

// cases checks the flags and makes the list of figures.
func (f *microFlags) cases(m *queues.Microbench, what string) ([]*microCase, error) {
	if f.runs < 1 {
		return nil, usagef("--runs %d: want 1 or more", f.runs)
	}
	for _, b := range f.batches {
		if b < 1 || b > queues.MicroMaxBatch {
			return nil, usagef("--batch %d: want 1 to %d", b, queues.MicroMaxBatch)
		}
	}
	if f.count < queues.MicroMaxBatch || f.count > mostCount {
		return nil, usagef("--count %d: want %d to %d", f.count, queues.MicroMaxBatch, mostCount)
	}
	var cases []*microCase
	if what == "poll" {
		for _, b := range f.batches {
			cases = append(cases, &microCase{op: "completion", batch: b, run: func() (time.Duration, int, error) { return m.Poll(b, f.count) }})
		}
		return append(cases, &microCase{op: "empty", batch: 1, run: func() (time.Duration, int, error) {
			d, err := m.PollEmpty(f.count)
			return d, f.count, err
		}}), nil
	}
	if len(f.ops) == 0 {
		return nil, usagef("--op names no operation; there are: %s", microNames())
	}
	for _, name := range f.ops {
		op, ok := queues.ParseMicroOp(name)
		if !ok {
			return nil, usagef("--op %q: no such operation; there are: %s", name, microNames())
		}
		for _, b := range f.batches {
			n := f.count / b * b // whole batches
			cases = append(cases, &microCase{op: name, batch: b, run: func() (time.Duration, int, error) {
				d, err := m.Post(op, b, n)
				return d, n, err
			}})
		}
	}
	return cases, nil
}

func microNames() string {
	var names []string
	for _, o := range queues.MicroOps() {
		names = append(names, o.String())
	}
	return strings.Join(names, " ")
}

// microResult are the figures: nanoseconds a WQE or completion.
type microResult struct {
	What string `json:"what"`
	Runs int    `json:"runs"`
	// Count is the number of WQEs or completions a run.
	Count int        `json:"count"`
	Rows  []microRow `json:"rows"`
}

type microRow struct {
	Op     string  `json:"op"`
	Batch  int     `json:"batch"`
	Median float64 `json:"ns_median"`
	Min    float64 `json:"ns_min"`
	Max    float64 `json:"ns_max"`
}

func (r *microResult) text(w io.Writer) {
	unit := "a WQE"
	if r.What == "poll" {
		unit = "a completion"
	}
	fmt.Fprintf(w, "%s on ordinary memory, no device: ns %s, %d runs of %d\n", r.What, unit, r.Runs, r.Count)
	rows := [][]string{{"OP", "BATCH", "MEDIAN", "MIN", "MAX"}}
	for _, x := range r.Rows {
		rows = append(rows, []string{x.Op, strconv.Itoa(x.Batch), fmt.Sprintf("%.2f", x.Median), fmt.Sprintf("%.2f", x.Min), fmt.Sprintf("%.2f", x.Max)})
	}
	table(w, rows)
}
