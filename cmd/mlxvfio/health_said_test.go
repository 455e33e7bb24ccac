package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/stretchr/testify/require"
)

// unfolded is text without the breaks of lines that are too long.
func unfolded(s string) string { return strings.Join(strings.Fields(s), " ") }

// narrow: no line of text is wider than it should be.
func narrow(t *testing.T, text string) {
	t.Helper()
	for l := range strings.SplitSeq(text, "\n") {
		require.LessOrEqual(t, utf8.RuneCountInString(l), 120, l)
	}
}

// TestHealthSaysOnce: what a sick device answered and what to do about it stand once
// in what a verb prints, and once in its error line, which names the bring-up that it
// ended.
func TestHealthSaysOnce(t *testing.T) {
	dead := []struct {
		fault, cond string
		bringUp     bool // it fails, and not always: a race with the monitor's looks
	}{
		{"fatal", "fatal-rfr", true},
		{"fatal@crr", "fatal-crr", true},
		{"fatal@FW_CRC_ERR+now", "fatal-rfr", false},
		{"stall", "counter-stopped", true},
		{"stall@DEAD_IRISC", "syndrome-stopped", true},
		{"health-stuck", "counter-stopped", false},
		{"commands-dead", "commands-dead", true},
		{"nic-disabled", "nic-disabled", true},
		{"nic-sw-reset", "nic-sw-reset", true},
		{"health-all-ones", "pci-comm-error", false},
		{"all-ones", "all-ones", false},
		{"syndrome@EQ_INV", "syndrome-nonfatal", false},
	}
	verbs := [][]string{
		{"show", "--command-timeout", "500ms"},
		{"watch", "--command-timeout", "500ms", "--period", "50ms", "--for", "4s"},
		{"recover", "--command-timeout", "500ms", "--max-level", "none"},
	}
	got := make([][]outcome, len(dead))
	var wg sync.WaitGroup
	for i, d := range dead {
		got[i] = make([]outcome, len(verbs))
		for j, v := range verbs {
			wg.Go(func() {
				got[i][j] = quick(append([]string{"health", v[0], "sim:cx5,fault=" + d.fault}, v[1:]...)...)
			})
		}
	}
	wg.Wait()
	said := regexp.MustCompile(`^mlxvfio: sim:cx5,fault=[^:]+: (bring-up stage [a-z-]+: (?:\S+\(0x[0-9a-f]+\) was [a-z ]+[0-9.]*m?s?: )?)?health is [a-z]+ \(([a-z-]+)\): ([^\n]*)\n$`)
	for i, d := range dead {
		for j, v := range verbs {
			t.Run(d.fault+" "+v[0], func(t *testing.T) {
				o := got[i][j]
				narrow(t, o.out)
				require.Equal(t, exitFailed, o.code)
				remedy, text := health.Condition(d.cond).Info().Remedy, unfolded(o.out)
				if v[0] == "recover" {
					require.Regexp(t, `^mlxvfio: [^\n]*recovery from `+d.cond+`: [^\n]*\n$`, o.err)
					m := regexp.MustCompile(`: before: \S+ \(` + d.cond + `\): (.*?) (?:the bring-up failed in stage [a-z-]+[: ]|not brought up: the first look found it |RUNG )`).FindStringSubmatch(text)
					require.NotNil(t, m, text)
					what := regexp.MustCompile(`[0-9.]+m?s\b`).Split(m[1], 2)[0] // times differ from look to look
					require.LessOrEqual(t, strings.Count(text, what), 2, "before and after: %s", text)
					require.NotContains(t, text, "health is")
					return
				}
				m := said.FindStringSubmatch(o.err)
				require.NotNil(t, m, o.err)
				require.Equal(t, d.cond, m[2])
				if d.bringUp {
					require.NotEmpty(t, m[1], "what was attempted: %s", o.err)
				}
				require.Equal(t, 1, strings.Count(o.err, remedy), o.err)
				require.Equal(t, 1, strings.Count(o.err, "health is"), o.err)
				what, ok := strings.CutSuffix(m[3], "; "+remedy)
				require.True(t, ok, o.err)
				if v[0] == "show" {
					require.Equal(t, 1, strings.Count(text, unfolded(what)), text)
					require.Equal(t, 1, strings.Count(text, remedy), text)
					require.NotContains(t, text, "handle is closed")
					return
				}
				require.Equal(t, 1, strings.Count(text, "("+d.cond+"): "+strings.SplitN(what, " ago", 2)[0][:10]), text)
				require.NotContains(t, text, " syndrome: ", "the line of the verdict has said it")
			})
		}
	}
	shown := func(fault string) string {
		for i := range dead {
			if dead[i].fault == fault {
				return unfolded(got[i][0].out)
			}
		}
		return ""
	}
	// Where a syndrome is all ones it is no syndrome.
	all := shown("health-all-ones")
	require.Contains(t, all, "counter: unknown: it reads all ones")
	require.Contains(t, all, "health buffer: unknown: it reads all ones")
	require.Contains(t, all, "interface: FULL_DRIVER")
	// A counter that stood has no rate.
	require.Contains(t, shown("health-stuck"), "no rate was measured; stopped since ")
	require.Regexp(t, `commands: [1-9]\d* answered since the bring-up began`, shown("fatal"), "known before a look met it")
	// The rate of a watch ends where the counter stopped.
	o := cli(t, "health", "watch", "sim,fault=stall@after=1s", "--period", "50ms", "--for", "4s", "--command-timeout", "500ms")
	require.Regexp(t, `looks, (9\d|10\d)\.\d increments a second, measured for \S+(, as the 100 in circulation \(unproven\)| \(too short to compare\)); stopped since \d\d:\d\d:\d\d\.\d{3}Z`, unfolded(o.out))
}

// TestHealthAnswered: what the bring-up sent was answered.
func TestHealthAnswered(t *testing.T) {
	o := object(t, "health/1", "health", "show", "sim")
	n := o["commands"].(map[string]any)["answered"].(float64)
	require.Greater(t, n, 20.0)
	require.Regexp(t, `commands: +[2-9]\d answered since the bring-up began, 0 in flight, 0 overdue; while watched 0 late, 0 found by polling\n`, works(t, "health", "show", "sim"))
}

// TestHealthErrorJSON: in JSON the parts of an error line stand apart, and the error of
// the bring-up in full.
func TestHealthErrorJSON(t *testing.T) {
	o := cli(t, "health", "show", "sim,fault=stall", "--json")
	require.Equal(t, exitFailed, o.code)
	s, e := decodeOne(t, "health/1", o.out), decodeOne(t, "error/1", o.err)
	require.Equal(t, "driver-version", s["stage"])
	require.Contains(t, s["error"], "the device may still execute it")
	require.Equal(t, "the bring-up failed", s["why"])
	require.NotEmpty(t, s["counter_rate"].(map[string]any)["stopped_since"])
	require.Equal(t, "driver-version", e["stage"])
	require.Equal(t, health.CounterStopped.Info().Remedy, e["remedy"])
	require.Contains(t, e, "pages")
}

// TestHealthFailureInFull: a failure that is more than the silence of a dead device is
// said beside the verdict.
func TestHealthFailureInFull(t *testing.T) {
	stalled := health.Verdict{State: health.Stalled, Condition: health.CounterStopped, ExitCode: exitFailed, Explanation: "it stands", Remedy: "recover it"}
	timeUp := &cmdif.TimeoutError{Opcode: prm.OpInitHCA, Age: 5 * time.Second}
	refused := &cmdif.CommandError{Opcode: prm.OpInitHCA, Status: prm.StatusBadParam}
	for _, c := range []struct {
		err  *mlxvfio.StageError
		v    health.Verdict
		want string // of the error line; empty for both in full
	}{
		{&mlxvfio.StageError{Stage: "init-hca", Err: timeUp}, stalled, "d: bring-up stage init-hca: INIT_HCA(0x102) was not answered within 5s: health is stalled (counter-stopped): it stands; recover it"},
		{&mlxvfio.StageError{Stage: "init-hca", Err: &cmdif.DeadError{Opcode: prm.OpInitHCA, Err: vfio.ErrGone}}, stalled, "d: bring-up stage init-hca: INIT_HCA(0x102) was abandoned: health is stalled (counter-stopped): it stands; recover it"},
		{&mlxvfio.StageError{Stage: "init-hca", Err: &cmdif.CanceledError{Opcode: prm.OpInitHCA, Age: time.Microsecond, Err: &health.VerdictError{}}}, stalled, "d: bring-up stage init-hca: INIT_HCA(0x102) was given up at once: health is stalled (counter-stopped): it stands; recover it"},
		{&mlxvfio.StageError{Stage: "init-hca", Err: refused}, stalled, ""},
		{&mlxvfio.StageError{Stage: "init-hca", Err: &cmdif.CanceledError{Opcode: prm.OpInitHCA, Err: context.Canceled}}, stalled, ""},
		{&mlxvfio.StageError{Stage: "init-hca", Err: timeUp, Undo: []error{errors.New("no memory")}}, stalled, ""},
		{&mlxvfio.StageError{Stage: "init-hca", Err: timeUp}, health.Verdict{State: health.Degraded, Condition: health.HighTemperature, ExitCode: exitFailed}, ""},
	} {
		p := &patient{arg: devArg{text: "d"}, attach: attachment{Attached: "window", Why: "the bring-up failed", Stage: c.err.Stage, Error: oneLine(c.err), err: c.err}}
		err := p.sick(c.v)
		require.Equal(t, exitFailed, exitCode(err))
		if c.want != "" {
			require.EqualError(t, err, c.want)
			require.Contains(t, p.attach.said(c.v), "the bring-up failed in stage init-hca")
			continue
		}
		require.Contains(t, oneLine(err), oneLine(c.err))
		require.Contains(t, oneLine(err), string(c.v.Condition))
		require.Equal(t, "the bring-up failed: "+oneLine(c.err), p.attach.said(c.v))
	}
}

// TestHealthCloseNote: beside a verdict the end of a teardown is what counts, and what
// is no consequence of the verdict.
func TestHealthCloseNote(t *testing.T) {
	v := &health.VerdictError{Verdict: health.Verdict{State: health.Fatal, Condition: health.FatalRFR, Explanation: "it is dead"}}
	n := newCloseNote(&mlxvfio.CloseError{Device: "d", Errs: []error{v}, Reset: true})
	require.Contains(t, n.full, "it is dead")
	require.NotContains(t, n.brief, "it is dead")
	require.Contains(t, n.brief, "the function was reset")
	n = newCloseNote(&mlxvfio.CloseError{Device: "d", Errs: []error{
		fmt.Errorf("undo: %w", &cmdif.TimeoutError{Opcode: prm.OpDestroyEQ, Age: 5 * time.Second}), errors.New("memory leaks")}, Reset: true})
	require.Contains(t, n.brief, "DESTROY_EQ(0x302) was not answered within 5s; memory leaks; the function was reset")
}

// TestHealthStoppedEarly: who ends a watch of a bring-up that goes on is told how far it
// had come.
func TestHealthStoppedEarly(t *testing.T) {
	o := cli(t, "health", "watch", "sim,fault=init-never", "--for", "300ms", "--period", "20ms")
	require.Contains(t, o.out, "ended, not brought up: ")
	refuses(t, outcome{code: o.code, err: o.err}, exitFailed, "bring-up stage wait-firmware", "the watch was over before; the function was given back")
	refuses(t, cli(t, "health", "show", "sim,fault=init-never", "--timeout", "300ms"), exitFailed, "being brought up, stage bus-master was done last")
}
