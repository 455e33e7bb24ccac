package mlxvfio_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/faultdoc"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// sickness is a fault, what a monitor says of it, and what the ladder makes of it.
type sickness struct {
	fault, arg string
	cond       health.Condition
	by         health.Rung // RungNone: nothing helps
}

var sicknesses = []sickness{
	{"", "", health.OK, health.RungReopen},
	{"fatal", "now", health.FatalRFR, health.RungSWReset},
	{"fatal", "HW_FATAL_ERR+now", health.FatalRFR, health.RungSWReset},
	{"fatal", "FW_CRC_ERR+now", health.FatalRFR, health.RungSWReset},
	{"fatal", "ICM_FETCH_PCI_ERR+now", health.FatalRFR, health.RungSWReset},
	{"fatal", "ICM_PAGE_ERR+now", health.FatalRFR, health.RungSWReset},
	{"fatal", "EQ_INV+now+heal=flr", health.FatalRFR, health.RungFLR},
	{"fatal", "0x11+now", health.FatalRFR, health.RungSWReset},
	{"fatal", "now+stale=2s", health.FatalRFR, health.RungSWReset},
	{"fatal", "now+heal=flr", health.FatalRFR, health.RungFLR},
	{"fatal", "now+heal=hot-reset", health.FatalRFR, health.RungHotReset},
	{"fatal", "now+heal=mfrl", health.FatalRFR, health.RungNone}, // dead firmware takes no command
	{"fatal", "now+heal=cold", health.FatalRFR, health.RungNone},
	{"fatal", "now+crr", health.FatalCRR, health.RungNone},
	{"stall", "now", health.CounterStopped, health.RungSWReset},
	{"stall", "now+heal=flr", health.CounterStopped, health.RungFLR},
	{"stall", "now+heal=hot-reset", health.CounterStopped, health.RungHotReset},
	{"stall", "now+heal=cold", health.CounterStopped, health.RungNone},
	{"stall", "DEAD_IRISC+now", health.SyndromeStopped, health.RungSWReset},
	{"stall", "FFSER_ERR+now+heal=flr", health.SyndromeStopped, health.RungFLR},
	{"health-stuck", "heal=reopen", health.CounterStopped, health.RungReopen},
	{"health-stuck", "heal=sw-reset", health.CounterStopped, health.RungSWReset},
	{"health-stuck", "heal=flr", health.CounterStopped, health.RungFLR},
	{"health-stuck", "heal=mfrl", health.CounterStopped, health.RungMFRL},
	{"health-stuck", "", health.CounterStopped, health.RungNone},
	{"commands-dead", "now", health.CommandsDead, health.RungFLR},
	{"commands-dead", "now+heal=sw-reset", health.CommandsDead, health.RungSWReset},
	{"commands-dead", "now+heal=hot-reset", health.CommandsDead, health.RungHotReset},
	{"nic-disabled", "now", health.NICDisabled, health.RungReopen},
	{"nic-sw-reset", "now", health.NICSWReset, health.RungFLR},
	{"nic-sw-reset", "now+heal=hot-reset", health.NICSWReset, health.RungHotReset},
	{"peer-reset", "now", health.NICDisabled, health.RungReopen},
	{"peer-reset", "now+for=30s", health.NICSWReset, health.RungReopen},
	{"health-all-ones", "now", health.PCICommError, health.RungFLR},
	{"all-ones", "1+heal=hot-reset", health.AllOnes, health.RungHotReset},
	{"syndrome", "HIGH_TEMP_ERR", health.SyndromeNonFatal, health.RungReopen},
	{"health-torn", "", health.SyndromeNonFatal, health.RungReopen},
}

// seeds is how many seeds the table runs under; MLXVFIO_SEEDS asks for more.
func seeds(t *testing.T) int {
	if s := os.Getenv("MLXVFIO_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	return 1
}

// TestRecoverFaults: each way of being sick is seen by the monitor, leaves a
// bundle, and ends with a function that works, or with an honest word; the pages of
// every life balance, the device never touches memory that was taken away, and
// nothing of the host is left.
func TestRecoverFaults(t *testing.T) {
	require.GreaterOrEqual(t, len(sicknesses), 30)
	warmUp(t)
	table := faultdoc.New("health", "TestRecoverFaults", "in use")
	for _, s := range sicknesses {
		row := table.Row(orNone(s.fault), s.arg, "in use")
		t.Run(s.fault+" "+s.arg, func(t *testing.T) {
			for seed := range seeds(t) {
				words := fmt.Sprintf("sim:cx5,seed=%d", seed+1)
				if seed%2 == 1 {
					words += ",port=eth,load=2000"
				}
				synctest.Test(t, func(t *testing.T) { suffer(t, words, s, row) })
			}
		})
	}
	table.Check(t)
}

func orNone(fault string) string {
	if fault == "" {
		return "none"
	}
	return fault
}

func suffer(t *testing.T, words string, s sickness, row *faultdoc.Row) {
	c := chip(t, words)
	base := drivertest.Now()
	tr := c.Function(0)
	w := drivertest.Watch(tr)
	// Watched hides the slot's reset; the model's is put back.
	r, err := mlxvfio.NewRecoverable(withSlot{w, tr.(vfio.HotResetter)}, mlxvfio.Options{CommandTimeout: time.Second})
	require.NoError(t, err)
	h, err := r.Open(t.Context())
	require.NoError(t, err)
	m, err := r.Monitor(t.Context(), health.Options{Period: 250 * time.Millisecond})
	require.NoError(t, err)
	time.Sleep(5 * time.Second)
	require.Equal(t, health.OK, m.Verdict().Condition)
	if s.fault != "" {
		require.NoError(t, c.SetFault(s.fault, s.arg))
	}
	row.Raised()
	if s.cond == health.CommandsDead {
		require.Error(t, h.Conn().NOP(t.Context()), "somebody has to ask for something")
	}
	time.Sleep(4 * time.Second)
	v := m.Verdict()
	require.Equal(t, s.cond, v.Condition, "%+v", v)

	path := filepath.Join(t.TempDir(), "box")
	rep, err := r.Recover(t.Context(), health.RecoverOptions{
		MaxLevel: health.RungCold, Consent: agree, Verdict: v,
		BlackBox: func(ctx context.Context) (string, error) {
			return path, r.SaveBlackBox(ctx, path, r.Evidence(m, string(v.Condition)))
		},
	})
	js, jerr := json.MarshalIndent(rep, "", " ")
	require.NoError(t, jerr)
	require.Equal(t, s.by, rep.By, "%s\n%v", js, err)
	require.Equal(t, s.by == health.RungNone, rep.ColdReset)
	row.Saw("verdict %s: %s; %s", v.State, v.Condition, recovered(rep))
	box, berr := blackbox.Read(path)
	require.NoError(t, berr)
	require.Empty(t, box.Damage)
	for _, name := range []string{health.SectionReport, health.SectionHistory, health.SectionRaw, health.SectionCommands, health.SectionHexdump,
		health.SectionEvents, health.SectionLedger, health.SectionCaps, health.SectionSegment, health.SectionFirmware} {
		_, ok := box.Section(name)
		require.True(t, ok, name)
	}
	if s.by != health.RungNone {
		require.NoError(t, err)
		require.NotSame(t, h, r.HCA())
		require.NoError(t, r.HCA().Conn().NOP(t.Context()))
		d, err := r.HCA().OpenData(t.Context(), mlxvfio.DataOptions{})
		require.NoError(t, err)
		require.NoError(t, d.Close(t.Context()))
		time.Sleep(5 * time.Second)
		got := m.Verdict()
		require.LessOrEqual(t, got.State, health.Degraded, "%+v", got)
		if s.cond != health.SyndromeNonFatal {
			require.Equal(t, health.Healthy, got.State, "%+v", got)
		}
	} else {
		require.ErrorIs(t, err, health.ErrColdReset)
	}
	require.Error(t, h.Conn().NOP(t.Context()), "the old life is over")
	err = r.Close(t.Context())
	if s.by != health.RungNone {
		require.NoError(t, err)
	}
	balancedAll(t, c, r)
	w.Check(t)
	base.Check(t)
	row.Then("black box whole, pages of every life balanced, nothing left")
}

// recovered says what helped and what had been tried in vain before.
func recovered(rep health.RecoveryReport) string {
	var failed []string
	for _, r := range rep.Rungs {
		if r.Outcome == health.OutcomeFailed {
			failed = append(failed, r.Rung.String())
		}
	}
	text := fmt.Sprintf("recovered by %v", rep.By)
	if !rep.Recovered {
		text = "not recovered"
	}
	if rep.ColdReset {
		text += ", asks for a cold reset"
	}
	if len(failed) > 0 {
		text += " (in vain: " + strings.Join(failed, ", ") + ")"
	}
	return text
}
