package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTraceRecord records the model's load and decodes it: every number of the load
// once, in order.
func TestTraceRecord(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path := filepath.Join(t.TempDir(), "a.mlxt")
	args := []string{"trace", "record", "sim:cx5,load=2000", "-o", path, "--for", "300ms", "--size", "2M"}
	o := object(t, "trace-record/1", args...)
	require.Greater(t, o["blocks"], 10.0)
	require.EqualValues(t, 0, o["missing_blocks"])
	require.Equal(t, false, o["strings_cached"])
	require.Equal(t, false, o["taken_up"])
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, st.Size(), o["bytes"])

	number := regexp.MustCompile(`load (\d+)`)
	var numbers []string
	for _, l := range linesOf(works(t, "trace", "decode", path)) {
		if m := number.FindStringSubmatch(l); m != nil {
			numbers = append(numbers, m[1])
		}
	}
	require.Greater(t, len(numbers), 70)
	for i := 1; i < len(numbers); i++ {
		require.Equal(t, jsonOf(t, atoi(t, numbers[i-1])+1), numbers[i])
	}
	s := object(t, "trace-stat/1", "trace", "stat", path)
	require.NotNil(t, s["clock"])
	rate := s["all"].(map[string]any)["rate_per_s"] // less on a machine that has no time
	require.Less(t, rate, 2200.0)
	require.Greater(t, rate, 100.0)

	refuses(t, cli(t, args...), exitUsage, "exists already", "--force")
	o = object(t, "trace-record/1", append(args, "--force")...)
	require.Equal(t, true, o["strings_cached"], "the second time from the cache")
	o = object(t, "trace-record/1", append(args, "--force", "--no-cache")...)
	require.Equal(t, false, o["strings_cached"])
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n := 0
	for _, c := range s {
		n = n*10 + int(c-'0')
	}
	return n
}

func TestTraceRecordRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.mlxt")
	base := []string{"trace", "record", "sim:cx5", "-o", path, "--for", "10ms"}
	refuses(t, cli(t, base[:3]...), exitUsage, "-o FILE")
	for _, size := range []string{"0", "x", "5000", "2K", "3M"} {
		refuses(t, cli(t, append(base, "--size", size)...), exitUsage, "--size", size)
	}
	refuses(t, cli(t, append(base, "--size", "1G")...), exitFailed, "size")
	refuses(t, cli(t, append(base, "--queue", "-1")...), exitUsage, "--queue")
	refuses(t, cli(t, "trace", "record", "sim:cx5", "-o", path, "--for", "-1s"), exitUsage, "--for")
	refuses(t, cli(t, append(base, "--class", "x")...), exitUnsupported, "classes and levels", "--match")
	refuses(t, cli(t, append(base, "--level", "3")...), exitUnsupported, "classes and levels")
	base[2] = "sim:cx4"
	refuses(t, cli(t, base...), exitUnsupported, "mcam_reg")
	base[2], base[4] = "sim:cx5", filepath.Join(t.TempDir(), "no", "a.mlxt")
	refuses(t, cli(t, base...), exitUnavailable, "no such file")
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist, "no file was begun")
}

// TestTraceRecordInterrupted: SIGINT ends a recording in order; kill -9 leaves a file
// that is good up to its last record.
func TestTraceRecordInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.mlxt")
	grown := func(p *program, to int64) {
		require.Eventually(t, func() bool { st, err := os.Stat(path); return err == nil && st.Size() > to }, 20*time.Second, time.Millisecond)
	}
	p := start(t, "trace", "record", "sim:cx5,load=5000", "-o", path)
	grown(p, 100000)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	o := p.ends()
	require.Equal(t, exitOK, o.code, o.err)
	require.Contains(t, o.out, "; stopped")
	d := cli(t, "trace", "decode", path)
	require.Equal(t, exitOK, d.code, "it has its end: %s", d.err)

	require.NoError(t, os.Remove(path))
	p = start(t, "trace", "record", "sim:cx5,load=5000", "-o", path, "--for", "1m")
	grown(p, 1000)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitInterrupted, p.ends().code, "before its time")

	require.NoError(t, os.Remove(path))
	p = start(t, "trace", "record", "sim:cx5,load=5000", "-o", path)
	grown(p, 200000)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGKILL))
	p.ends()
	d = cli(t, "trace", "decode", path)
	require.Equal(t, exitFailed, d.code)
	require.Regexp(t, "no end record|ends inside a record", d.err)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Greater(t, len(linesOf(d.out)), int(st.Size()/280*5), "7 messages a block, nearly all blocks")
}

// TestTraceOwner shows the register, keeps the tracer, and meets another owner.
func TestTraceOwner(t *testing.T) {
	o := object(t, "trace-owner/1", "trace", "owner", "sim:cx5")
	require.Equal(t, false, o["owner"])
	require.Equal(t, true, o["trace_to_memory"])
	require.NotEmpty(t, o["sections"])
	refuses(t, cli(t, "trace", "owner", "sim:cx4"), exitUnsupported, "mcam_reg")
	refuses(t, cli(t, "trace", "owner", "sim:cx5", "--wait", "1s"), exitUsage, "--hold")

	p := start(t, "trace", "owner", "sim:cx5", "--hold")
	p.says("held until interrupted")
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitOK, p.ends().code)

	// Two functions of one chip: one keeps the tracer, the other finds it busy, and gets
	// it when the first lets go.
	dir := t.TempDir()
	one, two := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	m := start(t, "serve", "sim:cx5,load=1000", "--socket", one, "--socket", two)
	m.says(two)
	holder := start(t, "trace", "owner", "vfio-user:"+one, "--hold")
	holder.says("held until interrupted")
	path := filepath.Join(dir, "a.mlxt")
	record := []string{"trace", "record", "vfio-user:" + two, "-o", path, "--for", "100ms"}
	refuses(t, cli(t, record...), exitUnavailable, "another owner has the firmware tracer", "mlx5_core")
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	waiting := start(t, append(record, "--wait", "20s")...)
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, holder.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitOK, holder.ends().code)
	got := waiting.ends()
	require.Equal(t, exitOK, got.code, got.err)
	require.True(t, strings.Contains(got.out, "blocks"), got.out)
}
