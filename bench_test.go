package mlxvfio_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/sim"
)

// BenchmarkBringUp opens and closes the model, which answers at once: what is
// measured is software. Beside the time of an open it reports the commands and
// MAP_DMA calls of one, and the resident memory of the process, in which no page
// that firmware was given has a part. Goals: 20 ms; 16 MAP_DMA calls on cx5, 24 on cx4 with its
// 12,868 pages; 40 MiB.
func BenchmarkBringUp(b *testing.B) {
	for _, words := range []string{"sim:cx5", "sim:cx4"} {
		for _, polled := range []bool{false, true} {
			name := strings.TrimPrefix(words, "sim:") + "/events"
			if polled {
				name = strings.TrimPrefix(words, "sim:") + "/polled"
			}
			b.Run(name, func(b *testing.B) { benchBringUp(b, words, mlxvfio.Options{Polled: polled}) })
		}
	}
}

func benchBringUp(b *testing.B, words string, o mlxvfio.Options) {
	so, err := sim.Parse(words)
	if err != nil {
		b.Fatal(err)
	}
	c, err := sim.New(so)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var commands, maps, beyond float64
	for b.Loop() {
		w := drivertest.Watch(c.Function(0))
		h, err := mlxvfio.Open(context.Background(), w, o)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		commands, maps = 0, float64(w.MapCalls())
		for _, op := range h.Conn().Stats().Ops {
			commands += float64(op.Count)
		}
		if rss, ok := resident(); ok {
			beyond = float64(rss) / (1 << 20) // the model leaves firmware's pages untouched: none is resident
		}
		if err := h.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(commands, "commands")
	b.ReportMetric(maps, "MAP_DMA")
	b.ReportMetric(beyond, "MiB-beyond-pages")
}

// resident is the resident memory of the process in bytes.
func resident() (int, bool) {
	s, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	f := strings.Fields(string(s))
	if len(f) < 2 {
		return 0, false
	}
	n, err := strconv.Atoi(f[1])
	return n * os.Getpagesize(), err == nil
}
