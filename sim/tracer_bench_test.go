package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// BenchmarkTraceBlocks is the model at its fastest: blocks written to the owner's
// memory, and in the same run the copies of a reader that only checks them.
func BenchmarkTraceBlocks(b *testing.B) {
	r := newTracer(newRaw(b, Options{}).to(phaseInit), 12, nil)
	require.True(b, r.acquire())
	r.start()
	b.ReportAllocs()
	before := r.chip.TraceStats()
	for b.Loop() {
		if _, err := r.chip.EmitTrace(10_000, TracePlain); err != nil {
			b.Fatal(err)
		}
	}
	wrote, per := r.chip.TraceStats(), b.Elapsed().Seconds()
	blocks := wrote.Blocks - before.Blocks
	b.ReportMetric(float64(blocks)/per, "blocks/s")
	b.ReportMetric(float64(wrote.Load-before.Load)/per, "messages/s")
}

// BenchmarkTraceReader is the reader to compare with: one copy and two checks a
// block.
func BenchmarkTraceReader(b *testing.B) {
	m := vfio.MemOf(make([]byte, 16<<20))
	var c rawBlock
	n := m.Len() / traceBlock
	sum := uint64(0)
	at := 0
	for b.Loop() {
		for k := range c {
			c[k] = m.LoadBE64(at*traceBlock + k*8)
		}
		sum += c.time() + m.LoadBE64((at+n-1)%n*traceBlock+traceBlock-8) + m.LoadBE64(at*traceBlock+traceBlock-8)
		at = (at + 1) % n
	}
	_ = sum
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// TestTracerAllocations: what the tracer writes costs no memory.
func TestTracerAllocations(t *testing.T) {
	r := newTracing(t, Options{}, 8)
	r.chip.KeepTrace(0)
	x := &r.chip.tracer
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.chip.mu.Lock()
		x.burst(200, true)
		r.chip.mu.Unlock()
	}))
}
