package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/stretchr/testify/require"
)

// traceRing writes a ring of two blocks, with 20 messages, and its database.
func traceRing(t *testing.T) (ring, db string) {
	t.Helper()
	dir := t.TempDir()
	ring, db = filepath.Join(dir, "ring.bin"), filepath.Join(dir, "db.json")
	d := trace.DB{
		Geometry: trace.Geometry{TrcVer: 1, FirstString: 1, NumString: 2},
		Sections: []trace.Section{{Base: 0x1000, Data: []byte("qp %u state %x\n\x00")}},
	}
	require.NoError(t, d.Write(db))
	var image []byte
	for b := range uint64(2) {
		for m := range uint16(10) {
			for part, word := range []uint32{0x1000, uint32(m), 0xab} {
				image = binary.BigEndian.AppendUint64(image, uint64(trace.StringEvent(false, uint8(m), 1, m, uint8(part), word)))
			}
		}
		image = binary.BigEndian.AppendUint64(image, 0)
		image = binary.BigEndian.AppendUint64(image, uint64(trace.TimestampEvent(b*100+64, 0)))
	}
	require.NoError(t, os.WriteFile(ring, image, 0o644))
	return ring, db
}

func TestMicrobenchTrace(t *testing.T) {
	ring, db := traceRing(t)
	args := []string{"microbench", "trace", "--ring", ring, "--stringdb", db, "--mb", "1", "--runs", "3"}
	o := object(t, "microbench-trace/1", args...)
	require.Equal(t, "text", o["mode"])
	require.EqualValues(t, 1<<20, o["bytes"])
	require.EqualValues(t, 1<<17, o["events"])
	require.EqualValues(t, 20*2048, o["messages"])
	require.Greater(t, o["ns_per_event_min"], 0.0)
	require.LessOrEqual(t, o["mb_per_s_min"], o["mb_per_s"])
	require.LessOrEqual(t, o["mb_per_s"], o["mb_per_s_max"])
	require.InEpsilon(t, 8000/o["ns_per_event"].(float64), o["mb_per_s"], 0.1)
	o = object(t, "microbench-trace/1", append(args, "--count")...)
	require.Equal(t, "count", o["mode"])
	require.EqualValues(t, 0, o["messages"])
	require.Regexp(t, `^text: median [0-9.]+ MB/s .* 40960 messages each\n$`, works(t, args...))
}

func TestMicrobenchTraceRefuses(t *testing.T) {
	ring, db := traceRing(t)
	base := []string{"microbench", "trace"}
	refuses(t, cli(t, append(base, "--ring", ring)...), exitUsage, "--stringdb")
	both := append(base, "--ring", ring, "--stringdb", db)
	refuses(t, cli(t, append(both, "--mb", "0")...), exitUsage, "--mb 0")
	refuses(t, cli(t, append(both, "--runs", "0")...), exitUsage, "--runs 0")
	refuses(t, cli(t, "microbench", "trace", "--ring", ring+"x", "--stringdb", db), exitUnavailable, "ring.binx")
	refuses(t, cli(t, "microbench", "trace", "--ring", ring, "--stringdb", db+"x"), exitUnavailable, "db.jsonx")
	require.NoError(t, os.WriteFile(ring, make([]byte, 100), 0o644))
	refuses(t, cli(t, both...), exitFailed, "ring.bin", "no whole block")
	require.NoError(t, os.WriteFile(db, []byte(`{"trc_ver":4}`), 0o644))
	refuses(t, cli(t, both...), exitFailed, "trc_ver", "0 to 3")
}
