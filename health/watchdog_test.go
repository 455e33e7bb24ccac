package health_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// fakeCommands is a command interface whose signals a test sets.
type fakeCommands struct {
	mu  sync.Mutex
	g   cmdif.Signals
	err error
}

func (c *fakeCommands) Signals() cmdif.Signals {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.g
}

func (c *fakeCommands) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *fakeCommands) set(f func(g *cmdif.Signals)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.g)
}

// overdue is a command that was sent so long ago, with so long a deadline.
func overdue(age, limit time.Duration) func(g *cmdif.Signals) {
	at := time.Now().Add(-age)
	return func(g *cmdif.Signals) {
		g.Overdue, g.OverdueSlot, g.OverdueOpcode = 1, 3, prm.OpQueryQP
		g.OverduePosted, g.OverdueDeadline = at, at.Add(limit)
	}
}

func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(g *cmdif.Signals)
		want health.Condition
		say  string
	}{
		{"dead", func(g *cmdif.Signals) { overdue(time.Minute, 10*time.Second)(g) }, health.CommandsDead, "QUERY_QP"},
		{"others are answered", func(g *cmdif.Signals) {
			overdue(time.Minute, 10*time.Second)(g)
			g.Answered, g.AnsweredAt = 100, time.Now().Add(-50*time.Second)
		}, health.OverdueCommands, "slot 3"},
		{"an answer before it was sent does not count", func(g *cmdif.Signals) {
			overdue(time.Minute, 10*time.Second)(g)
			g.Answered, g.AnsweredAt = 100, time.Now().Add(-2*time.Minute)
		}, health.CommandsDead, "nothing has been answered since"},
		{"an impatient caller", func(g *cmdif.Signals) { overdue(2*time.Second, time.Millisecond)(g) }, health.OverdueCommands, ""},
		{"late", func(g *cmdif.Signals) { g.Late += 2 }, health.LateCompletions, "2 commands"},
		{"polled", func(g *cmdif.Signals) { g.Recovered++ }, health.LostInterrupts, "1 completions"},
		{"lost interrupt", func(g *cmdif.Signals) { g.Recovered++; g.LostInterrupts++ }, health.LostInterrupts, "1 of them"},
		{"foreign", func(g *cmdif.Signals) { g.Foreign++ }, health.ForeignReplies, "1 entries"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, w := newBAR(t)
				cmds := &fakeCommands{}
				// What was before the watch is not held against the device.
				cmds.set(func(g *cmdif.Signals) { g.Late, g.Recovered, g.LostInterrupts, g.Foreign = 5, 6, 7, 8 })
				m := watch(t, health.Options{Window: w, Period: time.Second, Commands: cmds})
				pause(5500 * time.Millisecond)
				require.Equal(t, health.OK, m.Verdict().Condition)
				cmds.set(c.set)
				pause(time.Second)
				v := m.Verdict()
				require.Equal(t, c.want, v.Condition)
				require.Contains(t, v.Explanation, c.say)

				// It passes: events after a while, a command that came back at once, each
				// with three samples.
				cmds.set(func(g *cmdif.Signals) { g.Overdue = 0 })
				took := within(t, m, health.Healthy, 14*time.Second)
				require.Greater(t, took, 2*time.Second)
			})
		})
	}
}

// Dead commands while the counter moves are one verdict; a command interface that
// was closed is no signal.
func TestWatchdogEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		cmds := &fakeCommands{}
		m := watch(t, health.Options{Window: w, Period: time.Second, Commands: cmds})
		pause(3500 * time.Millisecond)
		cmds.set(overdue(0, 0))
		pause(time.Second)
		require.Equal(t, health.OverdueCommands, m.Verdict().Condition)
		took := within(t, m, health.Stalled, 10*time.Second)
		require.Greater(t, took+time.Second, m.Report().Limits.Stall-time.Second)
		require.Equal(t, health.CommandsDead, m.Verdict().Condition)
		require.Contains(t, m.Verdict().Explanation, "the counter moves, but commands are dead")
		require.Equal(t, 1, m.Report().Commands.Overdue)

		cmds.mu.Lock()
		cmds.err = cmdif.ErrClosed
		cmds.mu.Unlock()
		within(t, m, health.Healthy, 4*time.Second)
		require.Equal(t, "command interface is closed", m.Report().Commands.Ended)
	})
}

// Firmware that stops takes its commands with it: whichever limit ends first, nobody
// says that the counter moves.
func TestWatchdogOfStoppedFirmware(t *testing.T) {
	for _, before := range []time.Duration{0, 300 * time.Millisecond, 1500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			f, w := newBAR(t)
			cmds := &fakeCommands{}
			var mu sync.Mutex
			var seen []health.Condition
			m := watch(t, health.Options{Window: w, Period: 100 * time.Millisecond, Commands: cmds, OnVerdict: func(v health.Verdict) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, v.Condition)
			}})
			pause(time.Second)
			f.stopCounter()
			cmds.set(overdue(before, 0))
			within(t, m, health.Stalled, 3*time.Second)
			pause(5 * time.Second)
			require.Equal(t, health.CounterStopped, m.Verdict().Condition)
			mu.Lock()
			defer mu.Unlock()
			require.NotContains(t, seen, health.CommandsDead)
		})
	}
}

// fakeRegisters answers registers; it can hang until its context ends.
type fakeRegisters struct {
	mu     sync.Mutex
	mcam   []prm.RegisterID
	mtmp   prm.MtmpReg
	mpein  prm.MpeinReg
	err    map[prm.RegisterID]error
	hang   bool
	asked  map[prm.RegisterID]int
	during int // requests that run now
}

func newRegisters() *fakeRegisters {
	r := &fakeRegisters{mcam: []prm.RegisterID{prm.RegMtmp, prm.RegMpein}, err: map[prm.RegisterID]error{}, asked: map[prm.RegisterID]int{}}
	r.mtmp.SetTemperature(8 * 61)
	r.mtmp.SetTempThresholdHi(8 * 105)
	r.mpein.SetLinkSpeedActive(1 << 2)
	r.mpein.SetLinkWidthActive(16)
	r.mpein.SetPwrStatus(1)
	r.mpein.SetPCIPower(75)
	return r
}

func (r *fakeRegisters) ReadRegister(ctx context.Context, id prm.RegisterID, image []byte) error {
	r.mu.Lock()
	r.asked[id]++
	hang, err := r.hang, r.err[id]
	r.during++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.during--
		r.mu.Unlock()
	}()
	if hang {
		<-ctx.Done()
		return &cmdif.TimeoutError{Opcode: prm.OpAccessReg, Slot: 1}
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch id {
	case prm.RegMcam:
		for _, id := range r.mcam {
			// By mlx5_ifc: mtmp is bit 10 of the last dword of the mask at 0x08.
			i := int(id) - 0x9000
			image[8+15-i/8] |= 1 << (i % 8)
		}
	case prm.RegMtmp:
		copy(image, r.mtmp[:])
	case prm.RegMpein:
		copy(image, r.mpein[:])
	}
	return nil
}

// times is how often a register was asked for, running how many requests run.
func (r *fakeRegisters) times(id prm.RegisterID) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[id]
}

func (r *fakeRegisters) running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.during
}

func (r *fakeRegisters) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func TestEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs := newRegisters()
		host := health.HostPCI{Speed: "8.0 GT/s PCIe", Width: 16, AER: &health.AER{
			Correctable: map[string]uint64{"RxErr": 4},
			NonFatal:    map[string]uint64{"Timeout": 1, "TOTAL_ERR_NONFATAL": 1},
		}}
		var hostErr error
		m := watch(t, health.Options{Window: w, Period: time.Second, ProbePeriod: 5 * time.Second, Registers: regs,
			Host: func(context.Context) (health.HostPCI, error) {
				regs.mu.Lock()
				defer regs.mu.Unlock()
				h := host
				a := *host.AER
				h.AER = &a
				return h, hostErr
			}})
		pause(2500 * time.Millisecond)
		e := m.Report().Environment
		require.Equal(t, 61.0, e.Temperature.Celsius)
		require.Equal(t, 105.0, e.Temperature.High)
		require.Nil(t, e.Temperature.Highest)
		require.Equal(t, "Gen3", e.PCIe.SpeedActive)
		require.Equal(t, 16, e.PCIe.WidthActive)
		require.Equal(t, "sufficient", e.PCIe.Power)
		require.Equal(t, 75, e.PCIe.PowerWatts)
		require.Equal(t, uint64(4), e.Host.AER.Correctable["RxErr"])
		require.Empty(t, e.Notes)
		require.Equal(t, health.OK, m.Verdict().Condition, "old errors and correctable ones are none")

		step := func(f func(), want health.Condition) {
			t.Helper()
			regs.change(f)
			pause(7 * time.Second)
			require.Equal(t, want, m.Verdict().Condition)
		}
		step(func() { host.AER.Correctable = map[string]uint64{"RxErr": 400} }, health.OK)
		step(func() { regs.mtmp.SetTemperature(0xffff) }, health.OK) // −0.125 °C
		require.Equal(t, -0.125, m.Report().Environment.Temperature.Celsius)
		step(func() { regs.mtmp.SetTemperature(8 * 105) }, health.HighTemperature)
		require.Contains(t, m.Verdict().Explanation, "105.0 °C")
		step(func() { host.AER.NonFatal = map[string]uint64{"Timeout": 3, "TOTAL_ERR_NONFATAL": 3} }, health.PCIeErrors)
		require.Contains(t, m.Verdict().Explanation, "2 uncorrectable")
		pause(10 * time.Second)
		step(func() { regs.mtmp.SetTemperature(8 * 61); regs.mpein.SetPwrStatus(2); regs.mpein.SetPCIPower(27) }, health.InsufficientPower)
		require.Contains(t, m.Verdict().Explanation, "27 W")
		regs.change(func() { regs.mpein.SetPwrStatus(0) })
		pause(9 * time.Second)
		require.Equal(t, health.OK, m.Verdict().Condition)
		step(func() { host.AER.NonFatal = map[string]uint64{"Timeout": 1, "TOTAL_ERR_NONFATAL": 1} }, health.OK) // counted anew
		regs.change(func() { hostErr = errors.New("no such file") })
		pause(6 * time.Second)
		require.Equal(t, []string{"host: no such file"}, m.Report().Environment.Notes)
	})
}

// Registers that MCAM does not list are not asked for; what firmware refuses once is
// not asked for again, unless it was busy.
func TestEnvironmentNotSupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs := newRegisters()
		regs.mcam = []prm.RegisterID{prm.RegMtmp}
		regs.err[prm.RegMtmp] = &cmdif.CommandError{Opcode: prm.OpAccessReg, Status: prm.StatusBadParam}
		m := watch(t, health.Options{Window: w, ProbePeriod: 5 * time.Second, Registers: regs})
		pause(20 * time.Second)
		require.Equal(t, 0, regs.times(prm.RegMpein))
		require.Equal(t, 1, regs.times(prm.RegMtmp))
		require.Equal(t, 1, regs.times(prm.RegMcam))
		e := m.Report().Environment
		require.Nil(t, e.Temperature)
		require.Len(t, e.Notes, 2)
		require.Contains(t, e.Notes[0], "not asked for again")
		require.Contains(t, e.Notes[1], "not supported (MCAM does not list it)")
		require.Equal(t, health.OK, m.Verdict().Condition)
	})
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs := newRegisters()
		regs.err[prm.RegMtmp] = &cmdif.CommandError{Opcode: prm.OpAccessReg, Status: prm.StatusResBusy}
		watch(t, health.Options{Window: w, ProbePeriod: 5 * time.Second, Registers: regs})
		pause(21 * time.Second)
		require.Equal(t, 5, regs.times(prm.RegMtmp))
	})
}

// A dead command interface holds up the prober and nothing else; it gets one
// command, and the next one only when it has answered.
func TestProberHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs, cmds := newRegisters(), &fakeCommands{}
		m := watch(t, health.Options{Window: w, Period: time.Second, ProbePeriod: 10 * time.Second, Registers: regs, Commands: cmds})
		pause(5500 * time.Millisecond)
		regs.change(func() { regs.hang = true })
		pause(6 * time.Second) // asked at 10 s
		samples := m.Report().Counts.Samples
		pause(4 * time.Second) // given up at 15 s
		cmds.set(overdue(5*time.Second, 5*time.Second))
		require.Equal(t, samples+4, m.Report().Counts.Samples)
		asked := regs.times(prm.RegMtmp)
		pause(60 * time.Second)
		r := m.Report()
		require.Equal(t, asked, regs.times(prm.RegMtmp), "one slot, not all")
		require.True(t, r.Probe.Held)
		require.Contains(t, r.Probe.Problem, "ACCESS_REG")
		require.Equal(t, health.CommandsDead, r.Verdict.Condition)

		regs.change(func() { regs.hang = false })
		cmds.set(func(g *cmdif.Signals) { g.Overdue, g.Late, g.Answered, g.AnsweredAt = 0, 1, 1, time.Now() })
		pause(15 * time.Second)
		require.False(t, m.Report().Probe.Held)
		require.NotNil(t, m.Report().Environment.Temperature)
	})
}

// A command that becomes overdue makes the prober ask at once whether it is this
// one or all.
func TestProberIsAskedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs, cmds := newRegisters(), &fakeCommands{}
		watch(t, health.Options{Window: w, Period: time.Second, ProbePeriod: time.Hour, Registers: regs, Commands: cmds})
		pause(5500 * time.Millisecond)
		require.Equal(t, 1, regs.times(prm.RegMtmp))
		cmds.set(overdue(0, 0))
		pause(time.Second)
		require.Equal(t, 2, regs.times(prm.RegMtmp))
		pause(time.Minute)
		require.Equal(t, 2, regs.times(prm.RegMtmp), "once for each")
	})
}

// Stop does not give up a command that was sent.
func TestStopWaitsForTheProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		regs := newRegisters()
		regs.hang = true
		m := watch(t, health.Options{Window: w, Registers: regs, ProbeLimit: 3 * time.Second})
		pause(time.Second)
		require.Equal(t, 1, regs.running())
		start := time.Now()
		m.Stop()
		require.Equal(t, 2*time.Second, time.Since(start))
		require.Equal(t, 0, regs.running())
		require.Equal(t, 0, regs.times(prm.RegMtmp), "no other command after it")
	})
}

// The report counts what was answered since the interface was opened; the signals
// since the monitor looks at it.
func TestCommandReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, w := newBAR(t)
		cmds := &fakeCommands{}
		cmds.set(func(g *cmdif.Signals) { g.Answered, g.Late, g.Quarantined = 57, 2, 1 })
		m := watch(t, health.Options{Window: w, Period: time.Second})
		pause(2500 * time.Millisecond)
		require.Nil(t, m.Report().Commands)

		// No look has met it yet.
		require.True(t, m.Adopt(health.Adoption{Owner: true, Commands: cmds}))
		r := m.Report()
		require.EqualValues(t, 57, r.Commands.Answered)
		require.Equal(t, 1, r.Commands.Quarantined)
		require.Zero(t, r.Commands.Late)
		require.Zero(t, r.Commands.SignalsSince)

		pause(time.Second)
		cmds.set(func(g *cmdif.Signals) { g.Answered, g.Late = 60, 3 })
		pause(time.Second)
		r = m.Report()
		require.EqualValues(t, 60, r.Commands.Answered)
		require.EqualValues(t, 1, r.Commands.Late)
		require.Equal(t, 3*time.Second, r.Commands.SignalsSince.Sub(r.Started))

		// An interface that a verdict ended names it and does not repeat it.
		v := r.Verdict
		cmds.mu.Lock()
		cmds.err = &health.VerdictError{Device: "x", Verdict: v}
		cmds.mu.Unlock()
		require.Equal(t, "health was degraded (late-completions)", m.Report().Commands.Ended)
		require.EqualValues(t, 60, m.Report().Commands.Answered)
	})
}
