package queues

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ratioOps are the operations the reference has, ratioBatches its batches.
var (
	ratioOps     = []MicroOp{MicroWrite, MicroInlineWrite16, MicroWriteInRule, MicroInline16InRule, MicroAtomicFA, MicroMaskedCS4, MicroMaskedCS8}
	ratioBatches = []int{1, 4, 16, 64}
	ratioPolls   = []int{1, 4, 16, 64}
)

const (
	// ratioRuns is how often a figure is taken in a row: the first, which finds
	// caches cold and a core asleep, is dropped, and the median of the others
	// counts. Runs are short, so that few of them are interrupted.
	ratioRuns = 4
	ratioWQEs = 1 << 14
	// ratioRounds is how often both sides take turns at a figure.
	ratioRounds = 25
)

// refOp is what the reference calls an operation. It knows no write rule: it posts
// the same WQE without one.
func refOp(op MicroOp) string { return strings.TrimSuffix(op.String(), "_rule") }

// side takes one figure in ns.
type side func() float64

// take is the figure of one round.
func (s side) take() float64 {
	s()
	v := make([]float64, ratioRuns-1)
	for i := range v {
		v[i] = s()
	}
	return quantile(v, 0.5)
}

// quantile is the value below which that part of v lies.
func quantile(v []float64, part float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(int(float64(len(s))*part), len(s)-1)]
}

// duel lets sides take turns. It gives the median of each, and the quartiles of
// the ratio of the first to the second, which run next to each other: what slows
// the machine down for longer than a round cancels out.
func duel(sides ...side) (ns []float64, ratio [3]float64) {
	times := make([][]float64, len(sides))
	ratios := make([]float64, ratioRounds)
	for r := range ratioRounds {
		for i, s := range sides {
			times[i] = append(times[i], s.take())
		}
		ratios[r] = times[0][r] / times[1][r]
	}
	for _, t := range times {
		ns = append(ns, quantile(t, 0.5))
	}
	for i := range ratio {
		ratio[i] = quantile(ratios, float64(i+1)/4)
	}
	return ns, ratio
}

// BenchmarkRatio compares posting and polling with the C reference. Both sides
// work in ordinary memory, on rings of the same size, with the order of stores
// that an uncached page needs. C's "list" takes a list of work requests whose
// operation is decided at run time, as Post does; its "loop" is specialised to one
// operation; "calls" is one method call per WQE. The table goes to standard error;
// the metrics are the worst ratios. -benchtime 1x is enough: it has rounds of its
// own.
//
// Where the sides differ, C has the lead: its queue pair number, ring size and
// inline length are constants of the compiler, which also drops its table of
// request numbers, since nothing reads it; its poll looks for no queue and retires
// nothing; Post and Poll check what a caller may get wrong. It knows no write rule, so
// the worst ratio of writes that obey one, rule/C, has what the rule costs in it; post/C
// is of all others. In turn C changes the register at every doorbell, and a queue
// without BlueFlame does not.
func BenchmarkRatio(b *testing.B) {
	c := serveReference(b)
	m, err := NewMicrobench(nil)
	require.NoError(b, err)
	var t strings.Builder
	row := func(v ...any) { fmt.Fprintf(&t, "%-19v %5v %7.2f %7.2f %6.2f  %4.2f–%4.2f %8.2f %7.2f\n", v...) }
	fmt.Fprintf(&t, "\n%-19s %5s %7s %7s %6s  %9s %8s %7s   (ns a WQE, medians of %d rounds)\n",
		"post", "batch", "list", "C list", "ratio", "quartiles", "calls", "C loop", ratioRounds)
	worst, worstInRule := 0.0, 0.0
	for _, op := range ratioOps {
		for _, batch := range ratioBatches {
			post := func(f func(MicroOp, int, int) (time.Duration, error)) side {
				return func() float64 {
					d, err := f(op, batch, ratioWQEs)
					require.NoError(b, err)
					return float64(d.Nanoseconds()) / ratioWQEs
				}
			}
			ref := func(kind string) side {
				return func() float64 { return c.measure(kind, "uc", refOp(op), batch, ratioWQEs) }
			}
			ns, ratio := duel(post(m.Post), ref("list"), post(m.Calls), ref("post"))
			row(op, batch, ns[0], ns[1], ratio[1], ratio[0], ratio[2], ns[2], ns[3])
			if refOp(op) == op.String() {
				worst = max(worst, ratio[1])
			} else {
				worstInRule = max(worstInRule, ratio[1])
			}
		}
	}
	fmt.Fprintf(&t, "%-19s %5s %7s %7s %6s  %9s   (ns a CQE)\n", "poll", "batch", "Go", "C", "ratio", "quartiles")
	poll := func(name string, batch int, f side, kind, how string) float64 {
		ns, ratio := duel(f, func() float64 { return c.measure(kind, how, "plain", batch, ratioWQEs) })
		fmt.Fprintf(&t, "%-19v %5v %7.2f %7.2f %6.2f  %4.2f–%4.2f\n", name, batch, ns[0], ns[1], ratio[1], ratio[0], ratio[2])
		return ratio[1]
	}
	worstPoll := 0.0
	for _, batch := range ratioPolls {
		worstPoll = max(worstPoll, poll("warm", batch, func() float64 {
			d, n, err := m.Poll(batch, ratioWQEs)
			require.NoError(b, err)
			return float64(d.Nanoseconds()) / float64(n)
		}, "poll", "warm"))
	}
	poll("empty", 1, func() float64 {
		d, err := m.PollEmpty(ratioWQEs)
		require.NoError(b, err)
		return float64(d.Nanoseconds()) / ratioWQEs
	}, "empty", "-")
	fmt.Fprint(os.Stderr, t.String()) // b.Log would cut it
	b.ReportMetric(worst, "post/C")
	b.ReportMetric(worstInRule, "rule/C")
	b.ReportMetric(worstPoll, "poll/C")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPost and BenchmarkPoll are for profiles; BenchmarkRatio compares.
func BenchmarkPost(b *testing.B) {
	m, err := NewMicrobench(nil)
	require.NoError(b, err)
	for _, op := range MicroOps() {
		for _, batch := range []int{1, MicroMaxBatch} {
			b.Run(fmt.Sprintf("%s/%d", op, batch), func(b *testing.B) {
				b.ReportAllocs()
				_, err := m.Post(op, batch, max(b.N, batch))
				require.NoError(b, err)
			})
		}
	}
}

func BenchmarkPoll(b *testing.B) {
	m, err := NewMicrobench(nil)
	require.NoError(b, err)
	for _, batch := range []int{1, MicroMaxBatch} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			d, n, err := m.Poll(batch, b.N)
			require.NoError(b, err)
			b.ReportMetric(float64(d.Nanoseconds())/float64(n), "ns/CQE")
			b.ReportMetric(0, "ns/op")
		})
	}
}
