package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/stretchr/testify/require"
)

func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func objectsOf(t *testing.T, text string) (l []map[string]any) {
	t.Helper()
	for _, s := range linesOf(text) {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(s), &o), s)
		l = append(l, o)
	}
	return l
}

// TestTraceReservedVersion: trc_ver 2 and 3 are described nowhere, and every verb that
// reads such a trace says so beside its result.
func TestTraceReservedVersion(t *testing.T) {
	ring, path := traceRing(t)
	args := []string{"--ring", ring, "--stringdb", path}
	require.Empty(t, cli(t, append([]string{"trace", "decode"}, args...)...).err)
	db, err := trace.ReadDB(path)
	require.NoError(t, err)
	db.Geometry.TrcVer = 3
	require.NoError(t, db.Write(path))
	for _, verb := range [][]string{
		{"decode"}, {"decode", "--json"}, {"decode", "--count"}, {"stat"},
		{"export", "--format", "csv", "-o", "-"}, {"report", "--html", "-"},
	} {
		o := cli(t, append(append([]string{"trace"}, verb...), args...)...)
		require.Equal(t, exitOK, o.code, verb)
		require.Equal(t, 1, strings.Count(o.err, "# warning: "), "%v: %s", verb, o.err)
		require.Contains(t, o.err, "trc_ver 3 is not described anywhere")
	}
}

// TestTraceDecodeRing decodes a ring image as text and as JSON.
func TestTraceDecodeRing(t *testing.T) {
	ring, db := traceRing(t)
	base := []string{"trace", "decode", "--ring", ring, "--stringdb", db}
	lines := linesOf(works(t, base...))
	require.Len(t, lines, 20)
	require.Equal(t, "[0x0] 0 [0x1] qp 0 state ab", lines[0])
	require.Equal(t, "[0x89] 0 [0x1] qp 9 state ab", lines[19])
	objs := objectsOf(t, works(t, append(base, "--json")...))
	require.Len(t, objs, 21)
	require.Equal(t, map[string]any{"timestamp": 0.0, "event_id": 1.0, "lost": false, "block": 0.0, "text": "qp 0 state ab"}, objs[0])
	sum := objs[20]["summary"].(map[string]any)
	require.EqualValues(t, 20, sum["messages"])
	require.EqualValues(t, 64, sum["events"])
	require.NotContains(t, objs[20], "stopped")

	objs = objectsOf(t, works(t, append(base, "--json", "--start-block", "1")...))
	require.EqualValues(t, 1, objs[0]["block"])
	require.Len(t, objs, 21)
	require.Len(t, objectsOf(t, works(t, append(base, "--json", "--count")...)), 1)
	require.Regexp(t, `(?m)^messages +20$`, works(t, append(base, "--count")...))

	refuses(t, cli(t, append(base, "--start-block", "2")...), exitUsage, "2 blocks")
	refuses(t, cli(t, append(base, "--start-block", "-2")...), exitUsage, "--start-block -2")
	refuses(t, cli(t, append(base, "x")...), exitUsage, "not both")
	refuses(t, cli(t, base[:4]...), exitUsage, "--stringdb")
	refuses(t, cli(t, "trace", "decode"), exitUsage, "FILE")
	refuses(t, cli(t, append(base, "--follow")...), exitUsage, "--follow")
	refuses(t, cli(t, append(base, "--id", "1-300")...), exitUsage, "--id")
	refuses(t, cli(t, append(base, "--id", "9-3")...), exitUsage, "--id")
	refuses(t, cli(t, append(base, "--match", "(")...), exitUsage, "--match")

	// An image that ends inside a block: what is whole comes, and the error says where.
	image, err := os.ReadFile(ring)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(ring, image[:300], 0o644))
	o := cli(t, append(base, "--start-block", "0")...)
	refuses(t, o, exitFailed, "44 of 256 bytes at offset 256")
	require.Len(t, linesOf(o.out), 10)
}

// TestTraceDecodeCapture compares the whole output with the decoder's, and the filters
// with what they must take.
func TestTraceDecodeCapture(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), true, true)
	rd, err := capture.Open(path, capture.ReaderOptions{})
	require.NoError(t, err)
	var (
		p       capture.Player
		want    []string
		gaps    int
		some    []string
		matched []string
	)
	require.NoError(t, p.Play(t.Context(), rd, func(r *capture.Record) error {
		if r.Kind == capture.KindGap {
			want = append(want, "# "+r.Gap.String())
			gaps++
		}
		return nil
	}, func(m *trace.Message) {
		l := string(m.AppendLine(nil, "0000:3b:00.0"))
		want = append(want, l)
		if m.EventID == 0x10 || m.EventID == 0x12 {
			some = append(some, l)
		}
		if regexp.MustCompile(`^port \d+`).Match(m.AppendText(nil)) {
			matched = append(matched, l)
		}
	}))
	require.NoError(t, rd.Close())
	require.Equal(t, 1, gaps)
	require.Greater(t, len(want), 3000)

	o := cli(t, "trace", "decode", path)
	require.Equal(t, exitOK, o.code)
	require.Equal(t, want, linesOf(o.out))
	require.Contains(t, o.err, "40 blocks missing in 1 gap")
	noGap := func(args ...string) (l []string) {
		for _, s := range linesOf(cli(t, append([]string{"trace", "decode", path}, args...)...).out) {
			if !strings.HasPrefix(s, "# ") {
				l = append(l, s)
			}
		}
		return l
	}
	require.Equal(t, some, noGap("--id", "0x10,18-18"))
	require.Equal(t, matched, noGap("--match", `^port \d+`))
	require.Empty(t, noGap("--id", "0x10", "--match", `^port \d+`))

	objs := objectsOf(t, cli(t, "trace", "decode", path, "--json").out)
	require.Len(t, objs, len(want)+1)
	end := objs[len(objs)-1]
	require.Equal(t, map[string]any{"device": "0000:3b:00.0", "firmware": "16.35.1012", "gaps": 1.0, "missing_blocks": 40.0, "at_least": false}, end["capture"])
	require.EqualValues(t, len(want)-1, end["summary"].(map[string]any)["messages"])
}

// TestTraceDecodeDamaged: what is good comes out, and where it stopped is said.
func TestTraceDecodeDamaged(t *testing.T) {
	path := makeCapture(t, "a.mlxt", usual(), false, true)
	all := linesOf(cli(t, "trace", "decode", path).out)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	write := func(b []byte) { require.NoError(t, os.WriteFile(path, b, 0o644)) }
	write(whole[:len(whole)/2])
	o := cli(t, "trace", "decode", path)
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.err, "ends inside a record")
	got := linesOf(o.out)
	require.Greater(t, len(got), len(all)/3)
	require.Equal(t, all[:len(got)-1], got[:len(got)-1])
	require.Regexp(t, `^# .*a\.mlxt: .*ends inside a record`, got[len(got)-1])
	objs := objectsOf(t, cli(t, "trace", "decode", path, "--json").out)
	require.Regexp(t, "ends inside a record", objs[len(objs)-1]["stopped"])
	// Everything else works on what is good, too, and says the same.
	for _, args := range [][]string{{"stat"}, {"report", "--html", filepath.Join(t.TempDir(), "x")}, {"export", "--format", "csv", "-o", filepath.Join(t.TempDir(), "x")}} {
		o := cli(t, append([]string{"trace", args[0], path}, args[1:]...)...)
		require.Equal(t, exitFailed, o.code, args)
		require.NotEmpty(t, o.out)
		require.Contains(t, o.err, "ends inside a record")
	}

	bad := bytes.Clone(whole)
	bad[len(bad)/2] ^= 1
	write(bad)
	o = cli(t, "trace", "decode", path)
	require.Equal(t, exitFailed, o.code)
	require.Less(t, len(linesOf(o.out)), len(all)*2/3)
	o = cli(t, "trace", "decode", path, "--salvage")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.err, "1 damaged places")
	require.Greater(t, len(linesOf(o.out)), len(all)-50)

	// What can be read once only works as well: both passes.
	write(whole)
	stat := exec.Command("sh", "-c", `cat "$1" | "$0" trace stat - --json`, os.Args[0], path)
	stat.Env = append(os.Environ(), asProgram+"=1")
	piped, err := stat.Output()
	require.NoError(t, err)
	require.Equal(t, object(t, "trace-stat/1", "trace", "stat", path)["formats"], decodeOne(t, "trace-stat/1", string(piped))["formats"])

	write(nil)
	refuses(t, cli(t, "trace", "decode", path), exitFailed, "a.mlxt")
	refuses(t, cli(t, "trace", "stat", path), exitFailed, "a.mlxt")
	write([]byte("what is this\n"))
	refuses(t, cli(t, "trace", "decode", path), exitFailed, "neither a capture nor output")
	refuses(t, cli(t, "trace", "decode", path+"x"), exitUnavailable, "a.mlxtx")
}

// TestTraceDecodeFollow reads a capture while it grows, up to its end.
func TestTraceDecodeFollow(t *testing.T) {
	whole, err := os.ReadFile(makeCapture(t, "a.mlxt", usual(), true, true))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "b.mlxt")
	f, err := os.Create(path)
	require.NoError(t, err)
	half := len(whole) / 2
	_, err = f.Write(whole[:half])
	require.NoError(t, err)
	p := start(t, "trace", "decode", path, "--follow")
	p.says("hb: tick 300")
	_, err = f.Write(whole[half:])
	require.NoError(t, err)
	require.NoError(t, f.Close())
	o := p.ends()
	require.Equal(t, exitOK, o.code, o.err)
	require.Equal(t, linesOf(cli(t, "trace", "decode", path).out), linesOf(o.out))

	// Interrupted: what was there is printed, and the code says so.
	require.NoError(t, os.WriteFile(path, whole[:half], 0o644))
	p = start(t, "trace", "decode", path, "--follow")
	p.says("hb: tick 300")
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitInterrupted, p.ends().code)
}

const pasted = `# tracer: nop
     kworker/0:1-8  [000] .....  12.345678: mlx5_fw: 0000:3b:00.0 [0x1070] 0 [0x10] qp 0x12 up
     kworker/0:1-8  [000] .....  12.345679: mlx5_fw: 0000:3b:00.0 [0x1001] 1 [0x11] 100% of 7
     kworker/0:1-8  [000] .....  12.345680: mlx5_fw: 0000:3b:00.1 [0x2000] 0 [0x10] other
     kworker/0:1-8  [000] .....  12.345681: mlx5_fw: 0000:3b:00.0 [0x1090] 0 [0x10] qp 0x13 up
     kworker/0:1-8  [000] .....  12.345682: sched_switch: nothing of ours
`

// TestTraceText reads pasted kernel output.
func TestTraceText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.txt")
	require.NoError(t, os.WriteFile(path, []byte(pasted), 0o644))
	require.Equal(t, []string{
		"0000:3b:00.0 [0x1070] 0 [0x10] qp 0x12 up",
		"# line 2: the epoch is wrong, the time is 0xff0",
		"0000:3b:00.0 [0x1001] 1 [0x11] 100% of 7",
		"0000:3b:00.1 [0x2000] 0 [0x10] other",
		"0000:3b:00.0 [0x1090] 0 [0x10] qp 0x13 up",
	}, linesOf(works(t, "trace", "decode", path)))
	require.Equal(t, []string{"0000:3b:00.0 [0x1001] 1 [0x11] 100% of 7"}, linesOf(works(t, "trace", "decode", path, "--id", "17")))
	objs := objectsOf(t, works(t, "trace", "decode", path, "--json", "--device", "0000:3b:00.0"))
	require.Len(t, objs, 4)
	require.Equal(t, "wrong", objs[0]["epoch"])
	require.EqualValues(t, 0xff0, objs[0]["corrected"])
	require.EqualValues(t, 4, objs[3]["summary"].(map[string]any)["messages"])
	require.Regexp(t, `(?m)^wrong_epochs +1$`, works(t, "trace", "decode", path, "--count"))

	refuses(t, cli(t, "trace", "stat", path), exitUsage, "several devices", "--device")
	refuses(t, cli(t, "trace", "stat", path, "--device", "x"), exitUsage, "--device x")
	o := object(t, "trace-stat/1", "trace", "stat", path, "--device", "0000:3b:00.0")
	first := o["formats"].([]any)[0].(map[string]any)
	require.Equal(t, "qp # up", first["name"], "numbers of pasted lines do not tell messages apart")
	require.EqualValues(t, 2, first["count"])
	require.EqualValues(t, 0x1090-0xff0, first["ticks"].(map[string]any)["max"], "with the corrected time")
}
