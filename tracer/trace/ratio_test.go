package trace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func realBench(b *testing.B, mb int) *Microbench {
	db, image := realisticRing(1, 4096)
	if dir := *ringDir; dir != "" {
		var err error
		db, err = ReadDB(filepath.Join(dir, "stringdb.json"))
		require.NoError(b, err)
		image, err = os.ReadFile(filepath.Join(dir, "ring.bin"))
		require.NoError(b, err)
	}
	m, err := NewMicrobench(db, image, mb)
	require.NoError(b, err)
	return m
}

// ratios are what the decoder is measured by: speed over the speed of the C side.
// A benchmark below its limit fails.
var ratios = []struct {
	name, c     string // mode of the C reference
	goal, limit float64
	mb          int // of our runs: they take about as long as those of C, with 1
	count       bool
}{
	{"text", "decode", 4.5, 3.5, 5, false},
	{"text, C with parsed formats", "fast", 2, 1.5, 2, false},
	{"count", "count", 1, 0.7, 1, true},
}

// BenchmarkRatio compares decoding and counting with the C reference on the same
// ring: rounds of both take turns, the fastest of several short runs counts on either
// side, and the ratio is the median of those of the rounds, so that a busy machine
// disturbs little. -benchtime 1x is enough: it has rounds of its own. The table goes
// to standard error.
func BenchmarkRatio(b *testing.B) {
	bin, dir := cReference(b), b.TempDir()
	const rounds, runs = 11, 9
	if *ringDir != "" {
		dir = *ringDir
	} else {
		db, image := realisticRing(1, 4096)
		writeRing(b, dir, db.Geometry, db.Sections, image)
	}
	fastest := regexp.MustCompile(`^\w+: median .* MB/s \(range [0-9.]+\.\.([0-9.]+), `)
	var t strings.Builder
	fmt.Fprintf(&t, "\n%-28s %9s %9s %7s %6s %6s   (MB/s, medians of %d rounds)\n", "trace", "Go", "C", "ratio", "goal", "limit", rounds)
	for _, r := range ratios {
		m := realBench(b, r.mb)
		run := m.Text
		if r.count {
			run = m.Count
		}
		var ours, theirs, ratio []float64
		for range rounds {
			out, err := exec.Command(bin, r.c, dir, "1", strconv.Itoa(runs)).Output()
			require.NoError(b, err)
			f := fastest.FindSubmatch(out)
			require.NotNil(b, f, "%s", out)
			c, err := strconv.ParseFloat(string(f[1]), 64)
			require.NoError(b, err)
			best := time.Hour
			for range runs {
				d, err := run()
				require.NoError(b, err)
				best = min(best, d)
			}
			g := float64(m.Bytes) * 1e3 / float64(best.Nanoseconds())
			ours, theirs, ratio = append(ours, g), append(theirs, c), append(ratio, g/c)
		}
		middle := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
		g := middle(ratio)
		fmt.Fprintf(&t, "%-28s %9.0f %9.0f %7.2f %6.1f %6.1f\n", r.name, middle(ours), middle(theirs), g, r.goal, r.limit)
		b.ReportMetric(g, "Go/C-"+r.c)
		if g < r.limit {
			b.Errorf("%s: %.2f times the C reference, below %.1f", r.name, g, r.limit)
		}
	}
	fmt.Fprint(os.Stderr, t.String()) // b.Log would cut it
	b.ReportMetric(0, "ns/op")
}

// BenchmarkText, BenchmarkAssemble and BenchmarkCount are for profiles;
// BenchmarkRatio compares.
func BenchmarkText(b *testing.B) {
	m := realBench(b, 16)
	profile(b, m, func() error { _, err := m.Text(); return err })
}

func BenchmarkAssemble(b *testing.B) {
	m := realBench(b, 16)
	profile(b, m, func() error {
		for i := 0; i < len(m.image); i += BlockSize {
			if err := m.d.Block(0, m.image[i:i+BlockSize], nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func BenchmarkCount(b *testing.B) {
	m := realBench(b, 16)
	profile(b, m, func() error { _, err := m.Count(); return err })
}

func profile(b *testing.B, m *Microbench, run func() error) {
	require.NoError(b, run()) // formats and slots
	b.SetBytes(int64(m.Bytes))
	b.ReportAllocs()
	for b.Loop() {
		if err := run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.Events), "ns/event")
}
