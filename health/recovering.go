package health

import (
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// RecoveryEnd says how a recovery ended.
type RecoveryEnd struct {
	// Reset: the function was reset; an error that the health buffer shows at the
	// first look is stale then.
	Reset bool
	// Untouched: nothing was done to the function, so the watch goes on with what it
	// knew.
	Untouched bool
	// Owner: the watcher has brought the function up (Options.Owner), if it had not
	// before.
	Owner bool
	// Window and Commands replace the monitor's after the function was opened
	// again; nil keeps them.
	Window   *vfio.Window
	Commands Watchdog
}

// BeginRecovery makes the verdict Recovering until EndRecovery. Between the two the
// monitor reads no register and its prober begins no reading: a function that is
// being reset must not be touched, and its window may be closed. When it returns no
// read is going on. It answers false, and does nothing, when the monitor does not
// run.
func (m *Monitor) BeginRecovery() bool {
	return m.do(func() {
		m.j.rescued = true
		if m.j.cond != InRecovery {
			m.j.cond, m.j.better = InRecovery, 0
			m.changeLocked(m.wall())
		}
	})
}

// EndRecovery begins a new run: what was lost is no longer held against the
// function, and the next samples decide, as after Start.
func (m *Monitor) EndRecovery(e RecoveryEnd) bool {
	return m.do(func() {
		j := m.j
		j.rescued = false
		if !e.Untouched {
			j.rebase(e.Reset)
		}
		j.owner = j.owner || e.Owner
		j.cond = Starting
		j.glitch = seenAt{}
		if e.Window != nil && e.Window.Size() >= windowEnd {
			m.o.Window, m.smp = e.Window, NewSampler(e.Window)
		}
		if e.Commands != nil {
			j.cmds = commandWatch{w: e.Commands}
		}
		m.running = initseg.New(m.o.Window).FirmwareVersion()
		if !e.Untouched {
			m.evidence = nil
		}
		m.changeLocked(m.wall())
	})
}

func (m *Monitor) recovering() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.j.rescued
}

// do runs f on the monitor's goroutine, under the lock.
func (m *Monitor) do(f func()) bool {
	m.mu.Lock()
	started := m.cancel != nil
	m.mu.Unlock()
	if !started {
		return false
	}
	ok := make(chan struct{})
	g := func() {
		m.mu.Lock()
		f()
		v := m.v
		m.mu.Unlock()
		if m.o.OnVerdict != nil {
			m.o.OnVerdict(v)
		}
		close(ok)
	}
	select {
	case m.control <- g:
		<-ok
		return true
	case <-m.done:
		return false
	}
}
