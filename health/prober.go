package health

import (
	"context"
	"errors"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
)

// probeState is what the prober shows of itself.
type probeState struct {
	runs     uint64
	held     bool   // a command is unanswered: no other one is sent
	problem  string // the last error
	finished time.Time
}

// probeLoop is the prober's goroutine. A request that the device did not answer
// keeps a slot of the command queue; the next one is sent only when no command is
// overdue any more, or after ten periods where nobody watches the commands, so that
// a dead command interface costs one slot and not all.
func (m *Monitor) probeLoop(ctx context.Context) {
	env := environment{regs: m.o.Registers, host: m.o.Host}
	t := time.NewTimer(0)
	defer t.Stop()
	held := 0 // periods to wait
	for {
		early := false
		select {
		case <-ctx.Done():
			return
		case <-m.kick:
			early = true
		case <-t.C:
			t.Reset(m.o.ProbePeriod)
		}
		if m.recovering() {
			continue
		}
		if held > 0 {
			if !early {
				held--
			}
			if m.overdue(held) {
				continue
			}
			held = 0
		}
		if m.probeOnce(ctx, &env) {
			held = 10
		}
	}
}

// overdue tells whether the prober must go on waiting.
func (m *Monitor) overdue(held int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.j.cmds.w == nil {
		return held > 0
	}
	return m.j.cmds.last.Overdue > 0
}

// probeOnce answers whether the device left a command unanswered.
func (m *Monitor) probeOnce(ctx context.Context, env *environment) bool {
	// A command that was sent is not given up because the monitor ends.
	cmd, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), m.o.ProbeLimit, errProbe)
	defer cancel()
	host, cancelHost := context.WithTimeoutCause(ctx, m.o.ProbeLimit, errProbe)
	defer cancelHost()
	r, unanswered := env.read(host, cmd, m.wall())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.probe.runs++
	m.probe.held = unanswered != nil
	m.probe.problem = ""
	if unanswered != nil {
		m.probe.problem = oneLine(unanswered)
	}
	m.probe.finished = m.wall()
	m.j.env.take(&r, m.mono())
	return unanswered != nil && !errors.Is(unanswered, cmdif.ErrDead)
}

var errProbe = errors.New("the reading of the environment took too long")
