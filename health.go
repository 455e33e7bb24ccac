package mlxvfio

import (
	"context"
	"slices"
	"sync"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
)

// Monitor starts a health monitor of the function. It runs until ctx is over, its
// Stop is called, or the HCA is closed. Of o, what is left zero is filled in with
// what the HCA knows: window, name, the device's health_poll_to (register DTOR),
// the command interface as watchdog and for the registers of the environment, and
// the logger.
//
// A verdict that the function is lost (health.Verdict.Lost) ends all commands that
// wait, and refuses later ones: their cmdif.DeadError wraps a *health.VerdictError.
// The HCA is good for nothing but Close then.
//
// Errors: *health.OptionError, or ErrClosed.
func (h *HCA) Monitor(ctx context.Context, o health.Options) (*health.Monitor, error) {
	if o.Window == nil {
		o.Window = h.bar
	}
	if o.Device == "" {
		o.Device = h.name
	}
	if o.HealthPoll == 0 {
		o.HealthPoll = h.timeouts.HealthPoll
	}
	if o.Commands == nil {
		o.Commands = h.conn
	}
	if o.Registers == nil && h.general().McamReg() {
		o.Registers = h.conn
	}
	if o.Logger == nil {
		o.Logger = h.o.Logger
	}
	o.Owner = true
	o.AfterReset = o.AfterReset || !h.o.SkipReset && h.dev.Info().CanReset
	return h.monitors.start(ctx, o, func() *cmdif.Conn { return h.conn })
}

// monitorSet are the monitors of a function. Close stops them: they read its
// registers.
type monitorSet struct {
	mu     sync.Mutex
	closed bool
	all    []*health.Monitor
}

// start starts a monitor and keeps it. What waits for the device ends when the
// verdict says that it is lost; conn may give nil while there is nothing to end.
func (s *monitorSet) start(ctx context.Context, o health.Options, conn func() *cmdif.Conn) (*health.Monitor, error) {
	told := o.OnVerdict
	o.OnVerdict = func(v health.Verdict) {
		if v.Lost() {
			if c := conn(); c != nil {
				c.Dead(&health.VerdictError{Device: o.Device, Verdict: v})
			}
		}
		if told != nil {
			told(v)
		}
	}
	m, err := health.New(o)
	if err != nil {
		return nil, err
	}
	if !s.add(m) {
		return nil, ErrClosed
	}
	if err := m.Start(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// add answers false once the function is being closed.
func (s *monitorSet) add(m *health.Monitor) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.all = slices.DeleteFunc(s.all, func(m *health.Monitor) bool {
		select {
		case <-m.Done():
			return true
		default:
			return false
		}
	})
	s.all = append(s.all, m)
	return true
}

// list is those that were added, ended ones perhaps among them.
func (s *monitorSet) list() []*health.Monitor {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// stop ends them and waits for them.
func (s *monitorSet) stop() {
	s.mu.Lock()
	s.closed = true
	all := s.all
	s.all = nil
	s.mu.Unlock()
	for _, m := range all {
		m.Stop()
	}
}
