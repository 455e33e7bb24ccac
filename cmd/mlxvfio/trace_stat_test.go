package main

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
)

func format(t *testing.T, o map[string]any, name string) map[string]any {
	t.Helper()
	for _, g := range o["formats"].([]any) {
		if m := g.(map[string]any); m["name"] == name {
			return m
		}
	}
	require.Fail(t, "no format", name)
	return nil
}

func TestTraceStat(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), true, true)
	o := object(t, "trace-stat/1", "trace", "stat", path)
	clock := o["clock"].(map[string]any)
	require.InEpsilon(t, testHz, clock["hz"], 1e-5)
	require.InDelta(t, 1.3e-6, clock["hz_error"].(float64)/testHz, 2e-7, "2 × 2 µs in 3 s")
	g := format(t, o, fmtRegular)
	require.InEpsilon(t, 156250, g["ticks"].(map[string]any)["median"], 1.0/256)
	require.InEpsilon(t, 1e6, g["ns"].(map[string]any)["median"], 1.0/256)
	require.InEpsilon(t, 60e6, g["ticks"].(map[string]any)["max"], 0.01, "the silence; the gap makes no interval")
	require.EqualValues(t, 40, o["missing_blocks"])
	require.Equal(t, "bad_format", format(t, o, fmtBad)["kind"])
	f := o["findings"].(map[string]any)
	require.EqualValues(t, 1, f["silences"])
	require.EqualValues(t, 2, f["bursts"], "of the format, and of all messages")

	text := works(t, "trace", "stat", path, "--top", "2")
	for _, s := range []string{"0000:3b:00.0, firmware 16.35.1012", "40 blocks missing in 1 gap\n", "ppm from", "hb: tick %u", "silence", "and 3 more"} {
		require.Contains(t, text, s)
	}
	require.NotContains(t, text, fmtRare)
	refuses(t, cli(t, "trace", "stat", path, "--top", "0"), exitUsage, "--top")

	// A filter leaves the time that was watched as it is.
	one := object(t, "trace-stat/1", "trace", "stat", path, "--id", "0x12")
	require.Equal(t, o["observed_ticks"], one["observed_ticks"])
	require.Len(t, one["formats"], 2)

	// Without clock samples there are ticks, or the rate that was given.
	ring, db := traceRing(t)
	o = object(t, "trace-stat/1", "trace", "stat", "--ring", ring, "--stringdb", db)
	require.Nil(t, o["clock"])
	require.NotContains(t, format(t, o, "qp %u state %x"), "ns")
	o = object(t, "trace-stat/1", "trace", "stat", "--ring", ring, "--stringdb", db, "--hz", "1e9")
	require.EqualValues(t, 1e9, o["clock"].(map[string]any)["hz"])
}

// TestTraceDiff: what a firmware change did, and that the same firmware did nothing.
func TestTraceDiff(t *testing.T) {
	before := makeCapture(t, "before.mlxt", usual(), false, true)
	same := makeCapture(t, "same.mlxt", usual(), true, true) // but for a gap
	changed := usual()
	changed[1].every /= 2
	changed[2].format = "something new %u"
	changed = append([]stream{{format: "another, rarely", id: 0x13, every: testTicks}}, changed...) // and all addresses move
	after := makeCapture(t, "after.mlxt", changed, false, true)

	o := object(t, "trace-diff/1", "trace", "stat", before, "--against", same)
	require.EqualValues(t, 0, o["significant"])
	require.GreaterOrEqual(t, o["same"], float64(len(usual())))

	r := cli(t, "trace", "stat", before, "--against", after, "--json")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "3 messages differ significantly")
	o = decodeOne(t, "trace-diff/1", r.out)
	var got []string
	for _, d := range o["list"].([]any) {
		m := d.(map[string]any)
		got = append(got, m["change"].(string)+" "+m["name"].(string))
		if m["change"] == "rate" {
			require.InEpsilon(t, 2, m["ratio"], 0.1)
		}
		require.Equal(t, m["name"] != "another, rarely", m["significant"], m["name"])
	}
	require.Len(t, got, 4)
	require.Equal(t, "new something new %u", got[0])
	require.Equal(t, "new another, rarely", got[1])
	require.True(t, strings.HasPrefix(got[2], "gone </script>"))
	require.Equal(t, "rate "+fmtChance, got[3])
	text := cli(t, "trace", "stat", before, "--against", after).out
	require.Contains(t, text, "new ?")
	require.Contains(t, text, "2 new, 1 gone, 1 at another rate")

	ring, db := traceRing(t)
	refuses(t, cli(t, "trace", "stat", "--ring", ring, "--stringdb", db, "--against", after), exitUsage, "--against")
	refuses(t, cli(t, "trace", "stat", "--against", after), exitUsage, "FILE")
	paste := filepath.Join(t.TempDir(), "p")
	require.NoError(t, os.WriteFile(paste, []byte("x [0x1] 0 [0x1] y\n"), 0o644))
	refuses(t, cli(t, "trace", "stat", paste, "--against", after), exitUsage, "two of a kind")
}

func TestTraceExport(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), true, true)
	dir := t.TempDir()
	out := func(form string) string {
		file := filepath.Join(dir, form)
		require.Contains(t, works(t, "trace", "export", path, "--format", form, "-o", file), "messages as "+form)
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}
	decoded := cli(t, "trace", "decode", path)
	require.Equal(t, decoded.out, out("text"))
	require.Equal(t, cli(t, "trace", "decode", path, "--json").out, out("jsonl"))
	objs := objectsOf(t, out("jsonl"))
	n := len(objs) - 2 // a gap and the summary

	rows, err := csv.NewReader(strings.NewReader(out("csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, n+1)
	var p struct{ TraceEvents []map[string]any }
	require.NoError(t, json.Unmarshal([]byte(out("perfetto")), &p))
	instants, last := 0, -1.0
	for _, e := range p.TraceEvents {
		if e["ph"] == "i" {
			instants++
			last = max(last, e["ts"].(float64))
		}
	}
	require.Equal(t, n, instants)
	require.InDelta(t, 3.0e6, last, 0.02e6, "3 s in µs, over the wrap of the clock")

	// Standard output, and an output that cannot be.
	require.Equal(t, out("csv"), works(t, "trace", "export", path, "--format", "csv", "-o", "-"))
	refuses(t, cli(t, "trace", "export", path, "--format", "xml", "-o", "x"), exitUsage, "perfetto")
	refuses(t, cli(t, "trace", "export", path, "--format", "csv"), exitUsage, "-o FILE")
	refuses(t, cli(t, "trace", "export", path, "--format", "csv", "-o", filepath.Join(dir, "no", "x")), exitUnavailable, "no such")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 4, "no temporary files stay")
}

// TestTraceParquet reads the file back: as rows, and through its own schema.
func TestTraceParquet(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), true, true)
	file := filepath.Join(t.TempDir(), "a.parquet")
	works(t, "trace", "export", path, "--format", "parquet", "-o", file)
	rows, err := parquet.ReadFile[parquetRow](file)
	require.NoError(t, err)
	table, err := csv.NewReader(strings.NewReader(works(t, "trace", "export", path, "--format", "csv", "-o", "-"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(table)-1)
	params := 0
	for i, r := range rows {
		c := table[i+1]
		require.Equal(t, c[0], jsonOf(t, r.Timestamp))
		require.Equal(t, c[2], jsonOf(t, r.TimeError))
		require.Equal(t, []string{c[3], c[4], c[8], c[12]}, []string{r.Device, r.Firmware, r.Kind, r.Text})
		require.Equal(t, []string{c[5], c[6], c[7], c[9]}, []string{jsonOf(t, r.Block), jsonOf(t, r.EventID), jsonOf(t, r.Lost), jsonOf(t, r.Pointer)})
		require.Equal(t, c[10], *r.Format)
		require.Equal(t, "["+strings.ReplaceAll(c[11], " ", ",")+"]", jsonOf(t, r.Params))
		params += len(r.Params)
	}
	require.Greater(t, params, len(rows))

	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	pf, err := parquet.OpenFile(f, st.Size())
	require.NoError(t, err)
	var names, manual []string
	for _, c := range pf.Root().Columns() {
		names = append(names, c.Name())
	}
	require.Equal(t, export.Columns, names)
	text, err := os.ReadFile("../../docs/tracer.md")
	require.NoError(t, err)
	for _, l := range strings.Split(string(text), "\n") {
		if n, ok := strings.CutPrefix(l, "| `"); ok {
			if n, typ, ok := strings.Cut(n, "` | "); ok && strings.Contains(typ, "|") {
				for _, c := range pf.Root().Columns() {
					if c.Name() == n {
						manual = append(manual, n)
						require.Contains(t, typ, strings.Split(c.Type().String(), "(")[0], n)
					}
				}
			}
		}
	}
	require.Equal(t, export.Columns, manual, "docs/tracer.md lists every column, in order")
	missing, ok := pf.Lookup("mlxvfio.missing_blocks")
	require.True(t, ok)
	require.Equal(t, "40", missing)
	_, ok = pf.Lookup("mlxvfio.counters")
	require.True(t, ok)
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
