package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

func statuses(checks []check) map[string]wire.Status {
	out := map[string]wire.Status{}
	for _, c := range checks {
		out[c.Name] = c.Status
	}
	return out
}

func TestJudgeMissesScenariosAndControls(t *testing.T) {
	p := plan{Scenarios: []string{"a", "b", "dies"}, MustFail: []string{"a/planted", "b/planted", "c/planted", "dies/complete"}}
	got := judge(p, []check{
		{Name: "a/planted", Status: wire.Fail},
		{Name: "a/complete", Status: wire.Pass},
		{Name: "b/planted", Status: wire.Pass},
		{Name: "b/real", Status: wire.Fail},
		{Name: "b/real", Status: wire.Fail},
	})
	require.Equal(t, map[string]wire.Status{
		"a/planted":     wire.Pass, // it failed, as it must
		"a/complete":    wire.Pass,
		"b/planted":     wire.Fail, // it passed, and must not
		"b/real":        wire.Fail,
		"b/complete":    wire.Fail, // never reported
		"c/planted":     wire.Fail,
		"dies/complete": wire.Pass, // never reported, as it must
	}, statuses(got))
	r := newResult("x", got, 1)
	require.Equal(t, 3, r.Passed)
	require.Equal(t, 5, r.Failed)
}

func TestKillsAreSummedUp(t *testing.T) {
	var checks []check
	add := func(names ...string) {
		for _, n := range names {
			status := wire.Pass
			if n[0] == '-' {
				n, status = n[1:], wire.Fail
			}
			checks = append(checks, check{Name: n, Status: status})
		}
	}
	good := []string{"killed", "released", "interrupts-gone", "clean-run-start", "clean-run", "clean-run-released"}
	for _, g := range good {
		add("kill/open/" + g)
	}
	add("kill/list-stages", "kill/reset/killed", "-kill/reset/released") // nothing was run after it
	for _, g := range good[:5] {
		add("kill/issi/" + g)
	}
	add("-kill/issi/clean-run-released", "kill-any/at-01/done") // the last was not killed: it had ended
	r := newResult("kill", checks, 1)
	require.Equal(t, "3 times killed, 1 times clean after it", r.Note)
	require.Len(t, r.Kills, 3)
	require.Equal(t, "kill/open", r.Kills[0].At)
	require.True(t, r.Kills[0].Clean)
	require.Equal(t, killResult{At: "kill/reset", Checks: map[string]wire.Status{"killed": wire.Pass, "released": wire.Fail}}, r.Kills[1])
	require.Equal(t, wire.Fail, r.Kills[2].Checks["clean-run-released"])
	require.False(t, r.Kills[2].Clean)
	require.Empty(t, newResult("x", []check{{Name: "a/b", Status: wire.Pass}}, 1).Note)
}

func TestKeepFileStaysInside(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, keepFile(dir, "kill/stage.txt", "text"))
	b, err := os.ReadFile(filepath.Join(dir, "kill", "stage.txt"))
	require.NoError(t, err)
	require.Equal(t, "text", string(b))
	require.Error(t, keepFile(dir, "../out.txt", "text"))
	require.Error(t, keepFile(dir, "/out.txt", "text"))
}

// rep builds a report of the witness's bench.
func rep(t *testing.T, lines ...string) report {
	t.Helper()
	var r report
	for _, l := range lines {
		r.Checks = append(r.Checks, struct {
			Name   string  `json:"name"`
			Pass   bool    `json:"pass"`
			Skip   bool    `json:"skip"`
			Detail string  `json:"detail"`
			At     float64 `json:"at"`
		}{Name: l[1:], Pass: l[0] == '+', Skip: l[0] == '?'})
	}
	return r
}

func TestWitnessJudgesEveryCheck(t *testing.T) {
	w := witness{Required: []string{"open", "eq", "caps", "query"}, Skips: []string{"query"}}
	checks := w.judge(rep(t, "+open", "?eq", "?query", "-cq", "+qp", "?dump"))
	require.Equal(t, map[string]wire.Status{
		"open": wire.Pass, "eq": wire.Fail, "query": wire.Skip, "caps": wire.Fail, "cq": wire.Fail, "qp": wire.Pass, "dump": wire.Fail,
	}, statuses(checks))
}

func TestWitnessReadsWhatIsSaid(t *testing.T) {
	w := witness{Required: []string{"a"}, Says: map[string]string{"a": "synd 0x8", "b": "x", "c": "y"}}
	r := rep(t, "+a", "+b", "-d")
	r.Checks[0].Detail, r.Checks[1].Detail = "print: synd 0x8: text", "print: z"
	checks := w.judge(r)
	require.Equal(t, map[string]wire.Status{"a": wire.Pass, "b": wire.Fail, "c": wire.Fail, "d": wire.Fail}, statuses(checks))
	require.Len(t, checks, 4)
}

func TestWitnessReadsTheLog(t *testing.T) {
	w := witness{Log: []string{"a: well", "b: well"}, Early: []string{"x"}}
	require.Equal(t, map[string]wire.Status{"log-has a: well": wire.Pass, "log-has b: well": wire.Fail}, statuses(w.readLog("1 a: well\n2 b: ill\n")))
	require.Equal(t, map[string]wire.Status{"x": wire.Skip, "y": wire.Fail}, statuses(w.judge(rep(t, "-x", "-y"))))
}

func TestWitnessesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range witnesses {
		require.False(t, seen[w.name()], w.name())
		seen[w.name()] = true
		require.Contains(t, []string{"ib", "eth"}, w.Port)
		require.Contains(t, w.Required, "guest-completed", w.name())
	}
	require.True(t, seen["witness-rdma-core-vfio"] && seen["witness-rdma-core-vfio-eth"])
	require.True(t, seen["witness-health"] && seen["witness-health-nonfatal"] && seen["witness-health-two"])
}

func TestTimerStopped(t *testing.T) {
	require.True(t, timerStopped("[    0.080000] Kernel panic - not syncing: timer doesn't work through Interrupt-remapped IO-APIC\n[    0.080000] CPU: 0"))
	require.False(t, timerStopped("[    9.080000] Kernel panic - not syncing: Fatal exception in interrupt"))
}

func TestSkippedWitnessIsListed(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	var out bytes.Buffer
	for _, w := range witnesses {
		require.NoError(t, w.skip(&out, list))
	}
	b, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Equal(t, len(witnesses), bytes.Count(b, []byte("\n")))
	require.Contains(t, out.String(), "SKIP witness mlx5_core: ")
	require.Contains(t, out.String(), "SKIP witness rdma-core-vfio-eth: ")
}

func TestRunGroupLeavesNobodyBehind(t *testing.T) {
	_, err := runGroup(t.Context(), time.Minute, "/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & exit 0")
	require.ErrorContains(t, err, "left processes behind")
	start := time.Now()
	_, err = runGroup(t.Context(), 200*time.Millisecond, "/bin/sh", "-c", "sleep 60; true")
	require.ErrorContains(t, err, "not done after 200ms")
	require.Less(t, time.Since(start), 5*time.Second)
	out, err := runGroup(t.Context(), time.Minute, "/bin/sh", "-c", "echo said")
	require.NoError(t, err)
	require.Equal(t, "said\n", string(out))
}
