package mlxvfio

import (
	"context"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Monitor starts a health monitor that lives through recoveries: it is told when
// one begins and ends, and then watches the new life. Of o, what is left zero is
// filled in as HCA.Monitor does. It runs until ctx is over, its Stop is called, or
// the Recoverable is closed. A verdict that the function is lost ends the commands
// of the life that is going on.
func (r *Recoverable) Monitor(ctx context.Context, o health.Options) (*health.Monitor, error) {
	h := r.HCA()
	o.Window = r.bar
	if o.Device == "" {
		o.Device = r.dev.Info().Name
	}
	if o.HealthPoll == 0 {
		r.mu.Lock()
		o.HealthPoll = r.timeouts.HealthPoll
		r.mu.Unlock()
	}
	if h != nil {
		o.Owner = true
		o.AfterReset = o.AfterReset || !h.o.SkipReset && h.dev.Info().CanReset
		if o.Commands == nil {
			o.Commands = h.conn
		}
		if o.Registers == nil && h.general().McamReg() {
			o.Registers = liveRegisters{r}
		}
	}
	if o.Logger == nil {
		o.Logger = r.o.Logger
	}
	m, err := r.monitors.start(ctx, o, func() *cmdif.Conn {
		if h := r.HCA(); h != nil {
			return h.conn
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.watching.Lock()
	defer r.watching.Unlock()
	if r.recovering {
		m.BeginRecovery()
	}
	return m, nil
}

// beginWatch tells the monitors that a recovery begins. None reads a register then.
func (r *Recoverable) beginWatch() {
	r.watching.Lock()
	defer r.watching.Unlock()
	r.recovering = true
	for _, m := range r.monitors.list() {
		m.BeginRecovery()
	}
}

// endWatch tells them how it ended.
func (r *Recoverable) endWatch(rep *health.RecoveryReport) {
	end := health.RecoveryEnd{Reset: rep.WasReset(), Untouched: !rep.Touched()}
	if h := r.HCA(); h != nil && !end.Untouched {
		end.Owner, end.Commands = true, h.conn
	}
	r.watching.Lock()
	defer r.watching.Unlock()
	r.recovering = false
	for _, m := range r.monitors.list() {
		m.EndRecovery(end)
	}
}

// liveRegisters reads registers of the life that is going on.
type liveRegisters struct{ r *Recoverable }

func (l liveRegisters) ReadRegister(ctx context.Context, id prm.RegisterID, image []byte) error {
	h := l.r.HCA()
	if h == nil {
		return ErrClosed
	}
	return h.conn.ReadRegister(ctx, id, image)
}
