package health_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
)

// bench is a watched function whose every part a scenario can disturb.
type bench struct {
	f    *fakeBAR
	cmds *fakeCommands
	regs *fakeRegisters
	host *health.AER
	m    *health.Monitor
	o    health.Options
}

func newBench(t *testing.T) *bench {
	b := &bench{cmds: &fakeCommands{}, regs: newRegisters(), host: &health.AER{}}
	b.f, b.o.Window = newBAR(t)
	b.o.Period, b.o.ProbePeriod = time.Second, time.Second
	b.o.Commands, b.o.Registers, b.o.Host = b.cmds, b.regs, b.hostPCI
	return b
}

// scenario brings a condition about. before runs before the monitor starts, during
// while it is healthy. Two scenarios that share a part exclude each other.
type scenario struct {
	condition      health.Condition
	parts          string
	before, during func(b *bench)
}

// scenarios has one for each condition, by the text of its Meaning.
var scenarios = []scenario{
	{health.AllOnes, "bar", nil, func(b *bench) { b.f.change(func() { b.f.ones = true }) }},
	{health.PCICommError, "fw", nil, func(b *bench) { b.f.change(func() { b.f.dword[0x230] = 0xffffffff }) }},
	{health.NICDisabled, "nic", nil, func(b *bench) { b.f.change(func() { b.f.nic = 1 }) }},
	{health.NICSWReset, "nic", nil, func(b *bench) { b.f.change(func() { b.f.nic = 7 }) }},
	{health.FatalCRR, "buffer", nil, func(b *bench) { b.f.report(1, rfr|crr) }},
	{health.FatalRFR, "buffer", nil, func(b *bench) { b.f.report(1, rfr) }},
	{health.InRecovery, "all", nil, func(b *bench) { b.m.BeginRecovery() }},
	{health.SyndromeStopped, "buffer counter", nil, func(b *bench) { b.f.report(1, 0); b.f.stopCounter() }},
	{health.CounterStopped, "buffer counter", nil, func(b *bench) { b.f.stopCounter() }},
	{health.CommandsDead, "overdue", nil, func(b *bench) { b.cmds.set(overdue(time.Minute, time.Second)) }},
	{health.NonFatalCRR, "buffer", nil, func(b *bench) { b.f.report(1, crr) }},
	{health.SyndromeNonFatal, "buffer", nil, func(b *bench) { b.f.report(1, 0) }},
	{health.OverdueCommands, "overdue", nil, func(b *bench) {
		b.cmds.set(overdue(time.Minute, time.Second))
		b.cmds.set(func(g *cmdif.Signals) { g.AnsweredAt = time.Now() })
	}},
	{health.LateCompletions, "late", nil, func(b *bench) { b.cmds.set(func(g *cmdif.Signals) { g.Late++ }) }},
	{health.LostInterrupts, "lost", nil, func(b *bench) { b.cmds.set(func(g *cmdif.Signals) { g.Recovered++ }) }},
	{health.ForeignReplies, "foreign", nil, func(b *bench) { b.cmds.set(func(g *cmdif.Signals) { g.Foreign++ }) }},
	{health.PCIReadError, "hook", nil, func(b *bench) {
		bad := 1
		b.f.change(func() {
			b.f.hook = func(off uint64, v uint32) uint32 {
				if off == 0x14 && bad > 0 {
					bad--
					return 0xffffffff
				}
				return v
			}
		})
	}},
	{health.PCIeErrors, "aer", nil, func(b *bench) { b.regs.change(func() { b.host.Fatal = map[string]uint64{"DLP": 1} }) }},
	{health.HighTemperature, "heat", nil, func(b *bench) { b.regs.change(func() { b.regs.mtmp.SetTemperature(8 * 110) }) }},
	{health.InsufficientPower, "power", nil, func(b *bench) { b.regs.change(func() { b.regs.mpein.SetPwrStatus(2) }) }},
	{health.NICNotFull, "nic", nil, func(b *bench) { b.f.change(func() { b.f.nic = 2 }) }},
	{health.Starting, "all", func(b *bench) { b.f.tick = time.Hour; b.o.HealthPoll = time.Hour }, nil},
	{health.StaleError, "buffer counter all", func(b *bench) { b.o.AfterReset = true; b.f.report(1, rfr) }, nil},
	{health.NICIdle, "nic all", func(b *bench) { b.f.nic = 1 }, nil},
	{health.OK, "all", nil, nil},
}

// run lets scenarios act together on a function that was healthy before.
func run(t *testing.T, ss ...scenario) health.Report {
	t.Helper()
	var r health.Report
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for _, s := range ss {
			if s.before != nil {
				s.before(b)
			}
		}
		b.m = watch(t, b.o)
		pause(4500 * time.Millisecond)
		for _, s := range ss {
			if s.during != nil {
				s.during(b)
			}
		}
		pause(6 * time.Second) // longer than the stall limit, shorter than a signal counts
		r = b.m.Report()
	})
	return r
}

// Every row of the table can be reached, and answers what the row says.
func TestEveryCondition(t *testing.T) {
	have := map[health.Condition]bool{}
	for _, s := range scenarios {
		have[s.condition] = true
		t.Run(string(s.condition), func(t *testing.T) {
			r := run(t, s)
			i := s.condition.Info()
			require.Equal(t, s.condition, r.Verdict.Condition, r.Verdict.Explanation)
			require.Equal(t, i.State, r.Verdict.State)
			require.Equal(t, i.ExitCode, r.Verdict.ExitCode)
			require.Equal(t, i.Remedy, r.Verdict.Remedy)
			require.NotEmpty(t, r.Verdict.Explanation)
		})
	}
	for _, i := range health.Conditions() {
		require.True(t, have[i.Condition], "%s has no scenario", i.Condition)
		require.NotEmpty(t, i.Meaning)
		require.NotEmpty(t, i.Keeps)
		require.Equal(t, i.State == health.Healthy, i.ExitCode == 0, i.Condition)
	}
}

// Of two conditions that hold, the one that stands first in the table is the
// verdict; a recovery hides them all.
func TestOrderOfConditions(t *testing.T) {
	table := health.Conditions()
	rank := func(c health.Condition) int {
		return slices.IndexFunc(table, func(i health.ConditionInfo) bool { return i.Condition == c })
	}
	pairs := 0
	for i, a := range scenarios {
		for _, b := range scenarios[i+1:] {
			if excludes(a.parts, b.parts) {
				continue
			}
			pairs++
			want := a.condition
			if rank(b.condition) < rank(a.condition) {
				want = b.condition
			}
			got := run(t, b, a).Verdict
			require.Equal(t, want, got.Condition, "%s with %s: %s", a.condition, b.condition, got.Explanation)
		}
	}
	require.Greater(t, pairs, 100)
	recovery := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.condition == health.InRecovery })]
	for _, s := range scenarios {
		require.Equal(t, health.InRecovery, run(t, s, recovery).Verdict.Condition, s.condition)
	}
}

func excludes(a, b string) bool {
	for _, p := range strings.Fields(a) {
		if p == "all" || slices.Contains(strings.Fields(b), p) {
			return true
		}
	}
	return slices.Contains(strings.Fields(b), "all")
}

// The table of docs/health.md is the table of the package.
func TestDocumentedConditions(t *testing.T) {
	doc, err := os.ReadFile("../docs/health.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(doc), "<!-- conditions -->\n")
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, "<!-- end of conditions -->")
	require.True(t, ok)
	want := health.ConditionsMarkdown()
	if table != want {
		t.Errorf("docs/health.md must hold this table:\n%s", want)
	}
}

func TestStates(t *testing.T) {
	for i, s := range health.States() {
		require.Equal(t, health.State(i), s)
		b, err := s.MarshalText()
		require.NoError(t, err)
		var back health.State
		require.NoError(t, back.UnmarshalText(b))
		require.Equal(t, s, back)
	}
	var s health.State
	require.Error(t, s.UnmarshalText([]byte("fine")))
	require.Equal(t, "state(9)", health.State(9).String())
	require.Empty(t, health.Condition("no such").Info())
}

func (b *bench) hostPCI(context.Context) (health.HostPCI, error) {
	b.regs.mu.Lock()
	defer b.regs.mu.Unlock()
	a := *b.host
	return health.HostPCI{AER: &a}, nil
}
