package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

// microTraceFlags are the flags of microbench trace.
type microTraceFlags struct {
	ring, stringDB string
	mb, runs       int
	count          bool
}

// microTraceMax bounds --mb: the ring is repeated in memory.
const microTraceMax = 16384

func (a *app) microTraceVerb() *cobra.Command {
	var f microTraceFlags
	c := a.verb("trace", "MB/s and ns an event: a trace ring in memory decoded with text, or counted", 0, 0, func(ctx context.Context, _ []string) error {
		return a.microTrace(ctx, f)
	})
	c.Long = `trace measures how fast a trace ring is decoded that lies in memory, in MB/s and ns an event: with the text of every
message, or with --count the times and numbers only. --ring and --stringdb must be given.`
	c.Example = examples(
		"mlxvfio microbench trace --ring ring.bin --stringdb db.json", "what tell trace-memory wrote, or what was read from a device")
	c.Flags().StringVar(&f.ring, "ring", "", "ring `IMAGE`, a file of blocks of 256 bytes")
	c.Flags().StringVar(&f.stringDB, "stringdb", "", "JSON `FILE` of its string database")
	completes(c, "ring", aFile)
	completes(c, "stringdb", aFile)
	c.Flags().IntVar(&f.mb, "mb", 256, "size of a run in megabytes, `N` of 2^20 bytes: the ring is repeated in memory")
	c.Flags().IntVar(&f.runs, "runs", 7, "`N` runs; the median counts")
	c.Flags().BoolVar(&f.count, "count", false, "the full time of each event and counts by id, without messages and text")
	return c
}

func (a *app) microTrace(ctx context.Context, f microTraceFlags) error {
	switch {
	case f.ring == "" || f.stringDB == "":
		return usagef("microbench trace: want --ring FILE and --stringdb FILE, the image of a trace ring and the JSON of its string database")
	case f.mb < 1 || f.mb > microTraceMax:
		return usagef("--mb %d: want 1 to %d", f.mb, microTraceMax)
	case f.runs < 1:
		return usagef("--runs %d: want 1 or more", f.runs)
	}
	db, err := trace.ReadDB(f.stringDB)
	if err != nil {
		return err
	}
	image, err := os.ReadFile(f.ring)
	if err != nil {
		return err
	}
	m, err := trace.NewMicrobench(db, image, f.mb)
	if err != nil {
		return fmt.Errorf("%s: %w", f.ring, err)
	}
	r := &microTraceResult{Mode: "text", Runs: f.runs, Bytes: m.Bytes, Events: m.Events}
	run := m.Text
	if f.count {
		r.Mode, run = "count", m.Count
	}
	bar := progress{w: a.err, on: terminal(a.err) && !a.json, total: f.runs}
	defer bar.clear()
	var took []time.Duration
	for n := range f.runs {
		bar.show(n+1, "runs")
		if err := context.Cause(ctx); err != nil {
			return err
		}
		d, err := run()
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	bar.clear()
	slices.Sort(took)
	speed := func(d time.Duration) float64 { return round2(float64(m.Bytes) * 1e3 / float64(d.Nanoseconds())) }
	each := func(d time.Duration) float64 { return round2(float64(d.Nanoseconds()) / float64(m.Events)) }
	best, middle, worst := took[0], took[len(took)/2], took[len(took)-1]
	r.Speed, r.SpeedMin, r.SpeedMax = speed(middle), speed(worst), speed(best)
	r.Each, r.EachMin, r.EachMax = each(middle), each(best), each(worst)
	r.Messages = m.Texts / uint64(f.runs)
	return a.print("microbench-trace/1", r)
}

// microTraceResult are the figures of a run, without start-up and output. A MB has
// 10^6 bytes.
type microTraceResult struct {
	Mode     string  `json:"mode"` // text or count
	Runs     int     `json:"runs"`
	Bytes    int     `json:"bytes"`    // a run
	Events   int     `json:"events"`   // a run
	Messages uint64  `json:"messages"` // a run; 0 for count
	Speed    float64 `json:"mb_per_s"` // of the median run
	SpeedMin float64 `json:"mb_per_s_min"`
	SpeedMax float64 `json:"mb_per_s_max"`
	Each     float64 `json:"ns_per_event"`
	EachMin  float64 `json:"ns_per_event_min"`
	EachMax  float64 `json:"ns_per_event_max"`
}

func (r *microTraceResult) text(w io.Writer) {
	fmt.Fprintf(w, "%s: median %.1f MB/s (%.1f to %.1f), %.2f ns an event (%.2f to %.2f); %d runs of %.0f MB",
		r.Mode, r.Speed, r.SpeedMin, r.SpeedMax, r.Each, r.EachMin, r.EachMax, r.Runs, float64(r.Bytes)/1e6)
	if r.Messages > 0 {
		fmt.Fprintf(w, ", %d messages each", r.Messages)
	}
	fmt.Fprintln(w)
}
