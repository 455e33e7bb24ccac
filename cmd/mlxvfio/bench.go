package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/spf13/cobra"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	peer                   string
	ops                    []string
	sizes, batches, signal []int
	inline, depth, iters   int
	events, lat, rate      bool
}

// benchOps are the operations that are measured. kind is what an atomic is.
var benchOps = []struct {
	name   string
	atomic bool
	kind   atomics.Kind
	sizes  []int // by default
}{
	{"write", false, 0, []int{8, 64, 1024, 8192}},
	{"send", false, 0, []int{8, 64, 1024, 8192}},
	{"read", false, 0, []int{8, 64, 1024, 8192}},
	{"add", true, atomics.FetchAdd, []int{8}},
	{"cas", true, atomics.CompareSwap, []int{8}},
	{"masked-add", true, atomics.MaskedFetchAdd, []int{4, 8}},
	{"masked-cas", true, atomics.MaskedCompareSwap, []int{4, 8}},
}

func benchNames() []string {
	var names []string
	for _, o := range benchOps {
		names = append(names, o.name)
	}
	return names
}

func (a *app) benchVerb() *cobra.Command {
	var f benchFlags
	c := a.verb("bench DEV", "latency and rate of SEND, WRITE, READ and atomics, in the columns of perftest", 1, 1, func(ctx context.Context, args []string) error {
		return a.bench(ctx, args[0], &f)
	})
	c.Long = `bench measures, over a connection of DEV with itself or with --peer: latency, one operation at a time from posting it
to its completion (of a SEND: to that of the receive as well), in µs; and rate, with --depth operations outstanding,
--batch of them to a doorbell and every --signal-th with a completion. Completions are polled, as perftest does, unless
--events. Nothing else should run on the machine.`
	c.Example = examples(
		"mlxvfio bench sim --op write,read --size 8,64 --iters 100", "two operations, two sizes",
		"mlxvfio bench 0000:3b:00.0 --peer 0000:3b:00.1", "between the ports of a card")
	a.peerFlag(c, &f.peer)
	fl := c.Flags()
	fl.StringSliceVar(&f.ops, "op", benchNames(), "comma-separated `LIST` of operations")
	completes(c, "op", someOf(benchNames()...))
	fl.IntSliceVar(&f.sizes, "size", nil, "comma-separated `LIST` of bytes an operation (default: some for each; sizes that an atomic does not have are left out)")
	fl.IntSliceVar(&f.batches, "batch", []int{1, 16}, "comma-separated `LIST` of operations a doorbell, for rates")
	fl.IntSliceVar(&f.signal, "signal", []int{1}, "comma-separated `LIST`: one completion for so many operations, for rates")
	fl.IntVar(&f.inline, "inline", 0, "put the data of SENDs and WRITEs of up to so many `BYTES` into the WQE")
	fl.IntVar(&f.depth, "depth", 128, "`N` operations outstanding, for rates")
	fl.IntVar(&f.iters, "iters", 1000, "`N` operations a row")
	fl.BoolVar(&f.events, "events", false, "wait for completions by interrupt instead of polling")
	fl.BoolVar(&f.lat, "latency", false, "latencies only")
	fl.BoolVar(&f.rate, "rate", false, "rates only")
	return c
}

// benchLimit is the largest message.
const benchLimit = 1 << 20

func (f *benchFlags) check() error {
	if f.lat == f.rate {
		f.lat, f.rate = true, true
	}
	if len(f.ops) == 0 {
		return usagef("--op names no operation; there are: %s", strings.Join(benchNames(), " "))
	}
	for _, name := range f.ops {
		if !slices.Contains(benchNames(), name) {
			return usagef("--op %q: no such operation; there are: %s", name, strings.Join(benchNames(), " "))
		}
	}
	if f.depth < 1 || f.depth > 1024 {
		return usagef("--depth %d: want 1 to 1024", f.depth)
	}
	for _, x := range []struct {
		flag   string
		vs     []int
		lo, hi int
	}{
		{"size", f.sizes, 1, benchLimit}, {"batch", f.batches, 1, f.depth}, {"signal", f.signal, 1, f.depth},
		{"iters", []int{f.iters}, 1, 10_000_000}, {"inline", []int{f.inline}, 0, 512},
	} {
		for _, v := range x.vs {
			if v < x.lo || v > x.hi {
				return usagef("--%s %d: want %d to %d", x.flag, v, x.lo, x.hi)
			}
		}
	}
	for _, o := range benchOps {
		if o.atomic && slices.Contains(f.ops, o.name) {
			if err := anySize(o.kind, f.sizes); err != nil {
				return &usageError{fmt.Sprintf("--op %s: %v", o.name, err)}
			}
		}
	}
	// Else nothing that is outstanding would complete, and nothing more have room.
	if s, b := slices.Max(f.signal), slices.Max(f.batches); s-1+b > f.depth {
		return usagef("--signal %d and --batch %d: together at most one more than --depth %d", s, b, f.depth)
	}
	return nil
}

// anySize refuses sizes of which an atomic has none, whatever the device.
func anySize(k atomics.Kind, sizes []int) error {
	var refused error
	for _, n := range sizes {
		if refused = (&atomics.Op{Kind: k, Size: n}).Check(); !errors.Is(refused, atomics.ErrSize) {
			return nil
		}
	}
	return refused
}

func (a *app) bench(ctx context.Context, dev string, f *benchFlags) error {
	if err := f.check(); err != nil {
		return err
	}
	return a.withPair(ctx, dev, f.peer, func(ctx context.Context, p *dataSession) error {
		b, err := p.newBencher(ctx, f)
		if err != nil {
			return err
		}
		cases, err := b.cases()
		if err != nil {
			return err
		}
		r := &benchResult{pairHead: p.head(), Depth: f.depth, Inline: f.inline, Latency: []latencyRow{}, Rate: []rateRow{}}
		r.Mode = b.mode()
		bar := progress{w: a.err, on: terminal(a.err) && !a.json, total: len(cases)}
		defer bar.clear()
		for i, c := range cases {
			bar.show(i+1, fmt.Sprintf("%s %d bytes", c.name, c.size))
			if err := b.measure(ctx, c, r); err != nil {
				return fmt.Errorf("%s: %s of %d bytes: %w", dev, c.name, c.size, err)
			}
		}
		bar.clear()
		return a.print("bench/1", r)
	})
}

// measure adds the rows of one operation and size.
func (b *bencher) measure(ctx context.Context, c benchCase, r *benchResult) error {
	if b.f.lat {
		took, total, err := b.latency(ctx, c)
		if err != nil {
			return err
		}
		r.Latency = append(r.Latency, newLatencyRow(c, took, total))
	}
	if !b.f.rate {
		return nil
	}
	for _, batch := range b.f.batches {
		for _, signal := range b.f.signal {
			total, err := b.rate(ctx, c, batch, signal)
			if err != nil {
				return err
			}
			s := total.Seconds()
			r.Rate = append(r.Rate, rateRow{
				Op: c.name, Bytes: c.size, Iterations: b.f.iters, Batch: batch, Signal: signal, Inline: c.inline,
				NS: round2(float64(total.Nanoseconds()) / float64(b.f.iters)), Rate: math.Round(float64(b.f.iters) / s),
				MBs: round2(float64(b.f.iters) * float64(c.size) / s / 1e6),
			})
		}
	}
	return nil
}

// benchResult is what was measured.
type benchResult struct {
	pairHead
	Depth   int          `json:"depth"`
	Inline  int          `json:"inline"`
	Latency []latencyRow `json:"latency"`
	Rate    []rateRow    `json:"rate"`
}

// latencyRow has times in µs; t_typical is the median.
type latencyRow struct {
	Op         string  `json:"op"`
	Bytes      int     `json:"bytes"`
	Iterations int     `json:"iterations"`
	Inline     bool    `json:"inline"`
	Min        float64 `json:"t_min_us"`
	Max        float64 `json:"t_max_us"`
	Typical    float64 `json:"t_typical_us"`
	Avg        float64 `json:"t_avg_us"`
	Stdev      float64 `json:"t_stdev_us"`
	P99        float64 `json:"t_99_us"`
	P999       float64 `json:"t_999_us"`
	// Rate is operations a second, one at a time.
	Rate float64 `json:"rate"`
}

// rateRow is a throughput: ns an operation, operations and 10^6 bytes a second.
type rateRow struct {
	Op         string  `json:"op"`
	Bytes      int     `json:"bytes"`
	Iterations int     `json:"iterations"`
	Batch      int     `json:"batch"`
	Signal     int     `json:"signal"`
	Inline     bool    `json:"inline"`
	NS         float64 `json:"ns"`
	Rate       float64 `json:"rate"`
	MBs        float64 `json:"mb_per_s"`
}

func newLatencyRow(c benchCase, took []time.Duration, total time.Duration) latencyRow {
	slices.Sort(took)
	us := func(d time.Duration) float64 { return round3(float64(d.Nanoseconds()) / 1000) }
	at := func(q float64) float64 { return us(took[min(int(q*float64(len(took))), len(took)-1)]) }
	var sum, squares float64
	for _, d := range took {
		v := float64(d.Nanoseconds()) / 1000
		sum += v
		squares += v * v
	}
	n := float64(len(took))
	return latencyRow{
		Op: c.name, Bytes: c.size, Iterations: len(took), Inline: c.inline,
		Min: us(took[0]), Max: us(took[len(took)-1]), Typical: at(0.5), Avg: round3(sum / n),
		Stdev: round3(math.Sqrt(max(0, squares/n-sum/n*sum/n))), P99: at(0.99), P999: at(0.999),
		Rate: math.Round(n / total.Seconds()),
	}
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

func (r *benchResult) text(w io.Writer) {
	fmt.Fprintln(w, r.pairHead)
	num := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	yes := func(v bool) string { return map[bool]string{true: "inline", false: ""}[v] }
	if len(r.Latency) > 0 {
		fmt.Fprintln(w, "\nlatency to the completion, µs")
		rows := [][]string{{"OP", "#bytes", "#iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%", "rate[1/s]"}}
		for _, x := range r.Latency {
			rows = append(rows, []string{
				x.Op, strconv.Itoa(x.Bytes), strconv.Itoa(x.Iterations), num(x.Min), num(x.Max), num(x.Typical), num(x.Avg), num(x.Stdev),
				num(x.P99), num(x.P999), fmt.Sprintf("%.0f", x.Rate), yes(x.Inline),
			})
		}
		table(w, rows)
	}
	if len(r.Rate) > 0 {
		fmt.Fprintf(w, "\nrate, %d outstanding\n", r.Depth)
		rows := [][]string{{"OP", "#bytes", "#iterations", "batch", "signal", "t_avg[ns]", "rate[1/s]", "BW[MB/s]"}}
		for _, x := range r.Rate {
			rows = append(rows, []string{
				x.Op, strconv.Itoa(x.Bytes), strconv.Itoa(x.Iterations), strconv.Itoa(x.Batch), strconv.Itoa(x.Signal),
				fmt.Sprintf("%.0f", x.NS), fmt.Sprintf("%.0f", x.Rate), fmt.Sprintf("%.1f", x.MBs), yes(x.Inline),
			})
		}
		table(w, rows)
	}
}

// benchData opens the two sides: polled unless --events.
func (p *dataSession) benchData(ctx context.Context, f *benchFlags) (from, to *mlxvfio.DataPath, err error) {
	return p.dataPaths(ctx, mlxvfio.DataOptions{Name: "bench", Polled: !f.events, LogCQ: 13})
}
