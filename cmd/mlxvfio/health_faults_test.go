package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/stretchr/testify/require"
)

// sick is a fault of the model, the worst verdict that watch must come to, and the
// lowest rung with which recover ends healthy: RungNone where nothing is to be done,
// RungCold where nothing helps.
type sick struct {
	fault string
	cond  health.Condition
	rung  health.Rung
	// slow: the lower rungs are not tried, they take too long.
	slow bool
}

var sickOnes = []sick{
	{"fatal", health.FatalRFR, health.RungSWReset, false},
	{"fatal@HW_FATAL_ERR+sev=0", health.FatalRFR, health.RungSWReset, false},
	{"fatal@ICM_PAGE_ERR+ext=2", health.FatalRFR, health.RungSWReset, false},
	{"fatal@0x42+novalid", health.FatalRFR, health.RungSWReset, false},
	{"fatal@now", health.FatalRFR, health.RungSWReset, false},
	{"fatal@stale=1s", health.FatalRFR, health.RungSWReset, false},
	{"fatal@heal=flr", health.FatalRFR, health.RungFLR, false},
	{"fatal@now+heal=hot-reset", health.FatalRFR, health.RungHotReset, false},
	{"fatal@heal=mfrl", health.FatalRFR, health.RungCold, false}, // dead firmware takes no command
	{"fatal@crr", health.FatalCRR, health.RungCold, false},
	{"stall", health.CounterStopped, health.RungSWReset, false},
	{"stall@now", health.CounterStopped, health.RungSWReset, false},
	{"stall@DEAD_IRISC", health.SyndromeStopped, health.RungSWReset, false},
	{"stall@now+heal=flr", health.CounterStopped, health.RungFLR, false},
	{"syndrome@HIGH_TEMP_ERR", health.SyndromeNonFatal, health.RungCold, false}, // it stays, whatever is done
	{"syndrome@EQ_INV+crr", health.NonFatalCRR, health.RungCold, false},
	{"syndrome@TRUST_LOCKDOWN_ERR+heal=sw-reset", health.OK, health.RungNone, false}, // the reset of the bring-up heals it
	{"health-torn", health.SyndromeNonFatal, health.RungCold, false},
	{"health-stuck@heal=reopen", health.CounterStopped, health.RungReopen, false},
	{"health-stuck@heal=flr", health.CounterStopped, health.RungFLR, false},
	{"health-stuck@heal=mfrl", health.CounterStopped, health.RungMFRL, true},
	{"health-stuck", health.CounterStopped, health.RungCold, false},
	{"health-all-ones", health.PCICommError, health.RungFLR, false},
	{"health-counter@0xfffff0", health.OK, health.RungNone, false},
	{"health-rate@10", health.OK, health.RungNone, false},
	{"health-poll@1s", health.OK, health.RungNone, false},
	{"commands-dead", health.CommandsDead, health.RungFLR, false},
	{"commands-dead@heal=hot-reset", health.CommandsDead, health.RungHotReset, false},
	{"nic-disabled", health.NICDisabled, health.RungReopen, false},
	{"nic-disabled@now", health.OK, health.RungNone, false}, // nobody had it
	{"nic-sw-reset", health.NICSWReset, health.RungFLR, false},
	{"nic-sw-reset@now+heal=hot-reset", health.NICSWReset, health.RungHotReset, false},
	{"peer-reset@for=500ms", health.NICSWReset, health.RungReopen, false},
	{"all-ones@1", health.AllOnes, health.RungCold, false},
	{"all-ones@1+heal=hot-reset", health.AllOnes, health.RungHotReset, false},
	// What makes rungs fail.
	{"fatal,fault=swreset-unsupported", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=swreset-ignored", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=swreset-stuck", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=swreset-slow@300ms", health.FatalRFR, health.RungSWReset, false},
	{"fatal,fault=swreset-held", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=vsc-absent", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=vsc-held", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=vsc-stuck", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=vsc-no-space@0xa", health.FatalRFR, health.RungFLR, false},
	{"fatal,fault=vsc-no-size", health.FatalRFR, health.RungSWReset, false},
	{"fatal,fault=vsc-short@0x100", health.FatalRFR, health.RungSWReset, false},
	{"fatal@now+heal=flr,fault=reset-slow@300ms", health.FatalRFR, health.RungFLR, false},
	{"fatal@now+heal=hot-reset,fault=hot-reset-refused", health.FatalRFR, health.RungCold, false},
	{"health-stuck@heal=mfrl,fault=mfrl-fails@NACK", health.CounterStopped, health.RungCold, true},
	{"fatal@now+heal=flr,fault=flr-dead@now", health.FatalRFR, health.RungHotReset, false},
	// Beside firmware.
	{"temperature@110", health.HighTemperature, health.RungCold, false},
	{"slot-power@27", health.InsufficientPower, health.RungCold, false},
	{"pcie-link@1x4", health.OK, health.RungNone, false},
	{"late@=30ms", health.OK, health.RungNone, false},
}

// notOfHealth are faults that have tables of their own.
var notOfHealth = "late lost duplicate lost-event token signature delivery status reorder lost-irq init-never init-slow cmdif-rev issi page-starvation " +
	"pages-kept pages-more pages-negative mask-order no-boundary torn-write late-write lost-update memory-order no-fence bad-response packet- trace- rogue"

// TestEveryHealthFaultIsInTheTable: a fault of the model that is new must be added.
func TestEveryHealthFaultIsInTheTable(t *testing.T) {
	others := strings.Fields(notOfHealth)
	require.GreaterOrEqual(t, len(sickOnes), 30)
	for _, f := range sim.Faults() {
		listed := false
		for _, o := range others {
			listed = listed || f.Name == o || strings.HasSuffix(o, "-") && strings.HasPrefix(f.Name, o)
		}
		for _, s := range sickOnes {
			for _, w := range strings.Split(s.fault, ",fault=") {
				name, _, _ := strings.Cut(w, "@")
				listed = listed || name == f.Name
			}
		}
		require.True(t, listed, "%s", f.Name)
	}
}

// quick is a run of the program beside others.
func quick(args ...string) outcome {
	var out, errw bytes.Buffer
	a := &app{out: &out, err: &errw, pci: pci.Options{}}
	return outcome{a.main(bg, args), out.String(), errw.String()}
}

// TestHealthFaults: each fault is seen by watch; recover brings the function back
// with the lowest rung that can and with none below it, leaves a bundle, and the pages
// of all lives balance.
func TestHealthFaults(t *testing.T) {
	dir := t.TempDir()
	watched, done := make([]outcome, len(sickOnes)), make([][]outcome, len(sickOnes))
	levels := []health.Rung{health.RungReopen, health.RungSWReset, health.RungFLR, health.RungHotReset, health.RungMFRL}
	var wg sync.WaitGroup
	places := make(chan struct{}, 64) // all at once would starve the clocks of two processors
	for i, s := range sickOnes {
		dev := "sim:cx5,fault=" + s.fault
		patience := "500ms"
		if s.cond == health.OK { // no command may end unanswered, however slow the machine
			patience = "10s"
		}
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			watched[i] = quick("health", "watch", dev, "--for", "6s", "--period", "50ms", "--command-timeout", patience, "--json") // three times what a stall takes
		})
		from, to := health.RungReopen, s.rung
		switch {
		case s.rung == health.RungNone:
			to = health.RungReopen
		case s.rung == health.RungCold:
			from, to = health.RungMFRL, health.RungMFRL
		case s.rung > health.RungReopen && !s.slow:
			from = s.rung - 1
		default:
			from = s.rung
		}
		done[i] = make([]outcome, len(levels))
		for l := from; l <= to; l++ {
			wg.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				done[i][l-1] = quick("health", "recover", dev, "--json", "--max-level", l.String(), "--period", "50ms", "--command-timeout", patience,
					"--rung-timeout", "2500ms", "--blackbox", filepath.Join(dir, fmt.Sprintf("%d-%v", i, l)))
			})
		}
	}
	wg.Wait()
	table := faultdoc.New("health, verbs", "TestHealthFaults", "open")
	for i, s := range sickOnes {
		name, arg, _ := strings.Cut(s.fault, "@")
		if with, more, ok := strings.Cut(s.fault, ",fault="); ok {
			name, arg = with+", and", more
		}
		row := table.Row(name, arg, "open")
		t.Run(s.fault, func(t *testing.T) {
			saw := []string{checkWatched(t, s, watched[i])}
			row.Raised()
			for l, o := range done[i] {
				if o.out != "" || o.err != "" {
					saw = append(saw, checkRecovered(t, s, levels[l], o, filepath.Join(dir, fmt.Sprintf("%d-%v", i, levels[l]))))
				}
			}
			row.Saw("%s", strings.Join(saw, "; "))
		})
	}
	table.Check(t)
}

// checkWatched says what watch came to.
func checkWatched(t *testing.T, s sick, o outcome) string {
	lines := strings.Split(strings.TrimSpace(o.out), "\n")
	var end struct {
		Schema string
		Worst  health.Verdict
		Lost   int `json:"lines_lost"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &end))
	require.Equal(t, "mlxvfio.health-end/1", end.Schema)
	require.Equal(t, s.cond, end.Worst.Condition, "%s", o.out)
	require.Equal(t, s.cond.Info().State, end.Worst.State)
	require.Equal(t, s.cond.Info().ExitCode, o.code, "%s", o.err)
	require.Zero(t, end.Lost)
	seen := false
	for _, l := range lines {
		var e struct {
			Schema  string
			Kind    health.EventKind
			Verdict health.Verdict
		}
		require.NoError(t, json.Unmarshal([]byte(l), &e), l)
		seen = seen || e.Schema == "mlxvfio.health-event/1" && e.Kind == health.EventVerdict && e.Verdict.Condition == s.cond
	}
	require.True(t, seen, "an event with the verdict: %s", o.out)
	if s.cond.Info().ExitCode != exitOK {
		require.Contains(t, o.err, string(s.cond))
	}
	return fmt.Sprintf("%v: %s (exit %d)", end.Worst.State, end.Worst.Condition, o.code)
}

// checkRecovered says what recover came to.
func checkRecovered(t *testing.T, s sick, level health.Rung, o outcome, path string) string {
	r := struct {
		recoverResult
		Schema string
	}{}
	require.NoError(t, json.Unmarshal([]byte(o.out), &r), "%s%s", o.out, o.err)
	require.Equal(t, "mlxvfio.health-recover/1", r.Schema)
	for _, l := range r.Ledgers {
		require.Zero(t, l.Outstanding)
		require.Equal(t, l.Given, l.Returned+l.Dropped)
	}
	if s.rung == health.RungNone {
		require.Equal(t, exitOK, o.code, o.err)
		require.Nil(t, r.Recovery)
		require.NotEmpty(t, r.Note)
		require.NoFileExists(t, path)
		return "nothing to do"
	}
	require.NotNil(t, r.Recovery, "%s", o.out)
	require.Equal(t, path, r.Recovery.Bundle)
	box, err := blackbox.Read(path)
	require.NoError(t, err)
	require.Empty(t, box.Damage)
	for _, name := range []string{health.SectionReport, health.SectionBuffer, health.SectionHistory, health.SectionSegment} {
		_, ok := box.Section(name)
		require.True(t, ok, name)
	}
	well := s.rung != health.RungCold && level >= s.rung
	require.Equal(t, well, o.code == exitOK, "at %v: %s%s", level, o.out, o.err)
	require.Equal(t, well, r.After.State == health.Healthy, "at %v: %s", level, o.out)
	for _, g := range r.Recovery.Rungs {
		require.LessOrEqual(t, r.Recovery.By, level)
		if g.Rung > level {
			require.NotContains(t, []health.RungOutcome{health.OutcomeWorked, health.OutcomeFailed}, g.Outcome, "above the level")
		}
	}
	if well {
		require.Equal(t, s.rung, r.Recovery.By)
	}
	if !r.Recovery.Recovered {
		return fmt.Sprintf("not by %v (exit %d)", level, o.code)
	}
	return fmt.Sprintf("by %v (exit %d)", r.Recovery.By, o.code)
}
