//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

const (
	period       = 100 * time.Millisecond
	commandLimit = 2 * time.Second // a dead command interface is to be noticed within the scenario's time
	sickLimit    = 25 * time.Second
)

// open makes a function that outlives its resets, over the kernel's VFIO.
func open(bdf string) (*mlxvfio.Recoverable, error) {
	t, err := vfio.Open(bdf, vfio.KernelOptions{})
	if err != nil {
		return nil, err
	}
	return mlxvfio.NewRecoverable(t, mlxvfio.Options{CommandTimeout: commandLimit})
}

// moveData sends bytes through the function and back, by every kind of operation, and compares all memory.
func moveData(ctx context.Context, h *mlxvfio.HCA) (err error) {
	d, err := h.OpenData(ctx, mlxvfio.DataOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close(ctx)) }()
	x, err := mlxvfio.NewExerciser(ctx, d, d, 4)
	if err != nil {
		return err
	}
	for _, f := range []func(context.Context) (string, error){x.Sends, x.Writes, x.Reads, x.Atomics} {
		note, err := f(ctx)
		if err != nil {
			return err
		}
		say("moved", note)
	}
	return nil
}

// revive is a life of a function with a sickness in it, which the monitor must find to be condition. If that is one of the
// command interface, commands are sent all the time: those who use it notice.
func revive(ctx context.Context, bdf, box, maxLevel string, condition health.Condition) (err error) {
	level, err := health.ParseRung(maxLevel)
	if err != nil {
		return err
	}
	r, err := open(bdf)
	if err != nil {
		return err
	}
	var spaces []*vfio.AddressSpace // of each life that came up
	closed := false
	finish := func() error {
		if closed {
			return nil
		}
		closed = true
		err := r.Close(context.WithoutCancel(ctx))
		var dma []vfio.SpaceStats
		for _, s := range spaces {
			dma = append(dma, s.Stats())
		}
		say("closed", struct {
			Ledgers []mlxvfio.PageLedger `json:"ledgers"`
			DMA     []vfio.SpaceStats    `json:"dma"`
			Error   string               `json:"error,omitempty"`
		}{r.Ledgers(), dma, errText(err)})
		return err
	}
	defer func() { err = errors.Join(err, finish()) }()
	h, err := r.Open(ctx)
	if err != nil {
		return err
	}
	spaces = append(spaces, h.Device().Space())
	if err := moveData(ctx, h); err != nil {
		return fmt.Errorf("before: %w", err)
	}
	m, err := r.Monitor(ctx, health.Options{Period: period, Events: 1024})
	if err != nil {
		return err
	}
	if v, err := m.Wait(ctx); err != nil || v.State != health.Healthy {
		return fmt.Errorf("it is %v (%v) to begin with: %w", v.State, v.Condition, err)
	}
	say("ready", m.Report().Limits)
	sick, err := waitSick(ctx, m, h, condition)
	if err != nil {
		return err
	}
	say("sick", sick)
	rep, rerr := r.Recover(ctx, health.RecoverOptions{
		MaxLevel: level, Verdict: sick.Verdict,
		// A reset by another function would be waited for, up to 90 s, and here is none; firmware that a reset does not
		// revive need not be watched for long.
		Limits: map[health.Rung]time.Duration{health.RungReopen: 3 * time.Second, health.RungSWReset: 4 * time.Second},
		OnStep: func(g health.Rung, s health.RecoveryStep) {
			say("step", fmt.Sprintf("%v: %s %v %s %v", g, s.Step, s.Took, s.Note, s.Err))
		},
		BlackBox: func(ctx context.Context) (string, error) {
			return box, r.SaveBlackBox(ctx, box, r.Evidence(m, string(sick.Verdict.Condition)))
		},
	})
	say("recovery", struct {
		Report health.RecoveryReport `json:"report"`
		Error  string                `json:"error,omitempty"`
		Cold   bool                  `json:"cold"` // the error says so
	}{rep, errText(rerr), errors.Is(rerr, health.ErrColdReset)})
	if rerr != nil {
		return finish()
	}
	spaces = append(spaces, r.HCA().Device().Space())
	if err := moveData(ctx, r.HCA()); err != nil {
		return fmt.Errorf("after: %w", err)
	}
	v, err := m.Wait(ctx)
	if err != nil {
		return err
	}
	say("well", v)
	return finish()
}

// waitSick waits for the verdict. Other ones may come before it.
func waitSick(ctx context.Context, m *health.Monitor, h *mlxvfio.HCA, condition health.Condition) (health.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, sickLimit)
	defer cancel()
	if condition == health.CommandsDead {
		stopped := make(chan struct{})
		defer func() { <-stopped }()
		defer cancel()
		go func() {
			defer close(stopped)
			for ctx.Err() == nil && h.Conn().NOP(ctx) == nil {
				time.Sleep(50 * time.Millisecond)
			}
		}()
	}
	for {
		select {
		case e, ok := <-m.Events():
			if !ok {
				return e, fmt.Errorf("the monitor ended")
			}
			say(string(e.Kind), e)
			if e.Kind == health.EventVerdict && e.Verdict.Condition == condition {
				return e, nil
			}
		case <-ctx.Done():
			return health.Event{}, fmt.Errorf("it is not %s: %w; %+v", condition, context.Cause(ctx), m.Verdict())
		}
	}
}
