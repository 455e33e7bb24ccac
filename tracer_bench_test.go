package mlxvfio_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
)

// BenchmarkTracerLive is the model writing as fast as it can and the capture taking
// it, in one process: blocks a second, and how many of them went missing for want of a
// core.
func BenchmarkTracerLive(b *testing.B) {
	c := chip(b, "sim:cx5")
	h, err := mlxvfio.Open(b.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(b, err)
	caps, err := h.TracerCaps(b.Context())
	require.NoError(b, err)
	tr, err := h.OpenTracer(b.Context(), tracer.Options{BufferSize: int(caps.MaxBuffer())})
	require.NoError(b, err)
	b.ResetTimer()
	go func() {
		_, _ = c.EmitTrace(100*b.N, sim.TracePlain)
		tr.Stop()
	}()
	var r capture.Record
	begin := time.Now()
	for err = nil; err == nil; {
		err = tr.Next(b.Context(), &r)
	}
	s := tr.Stats()
	b.ReportMetric(float64(s.Blocks)/time.Since(begin).Seconds(), "blocks/s")
	b.ReportMetric(float64(s.BackPressure+s.Overwritten), "missing")
	b.ReportMetric(float64(s.Laps), "laps")
	require.NoError(b, tr.Close(b.Context()))
	require.NoError(b, h.Close(b.Context()))
}
