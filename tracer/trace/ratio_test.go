package trace

import (
	"os"
	"path/filepath"
	"testing"

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

// BenchmarkText and BenchmarkCount are for profiles; BenchmarkRatio compares.
func BenchmarkText(b *testing.B) {
	m := realBench(b, 16)
	b.SetBytes(int64(m.Bytes))
	for b.Loop() {
		_, err := m.Text()
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.Events), "ns/event")
}

func BenchmarkAssemble(b *testing.B) {
	m := realBench(b, 16)
	b.SetBytes(int64(m.Bytes))
	for b.Loop() {
		for i := 0; i < len(m.image); i += BlockSize {
			_ = m.d.Block(0, m.image[i:i+BlockSize], nil)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.Events), "ns/event")
}

func BenchmarkCount(b *testing.B) {
	m := realBench(b, 16)
	b.SetBytes(int64(m.Bytes))
	for b.Loop() {
		_, err := m.Count()
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(m.Events), "ns/event")
}
