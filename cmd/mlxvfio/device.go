package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// session is a function that is up, and how it was asked for.
type session struct {
	*mlxvfio.HCA
	arg  devArg
	info vfio.DeviceInfo
	dev  *opened
	// firmware is what the bring-up read: a device that has died since reads all ones.
	firmware string

	exerciser *mlxvfio.Exerciser // of selftest
}

// withDevice brings the function up, runs fn, and gives the function back
// whatever happens.
func (a *app) withDevice(ctx context.Context, dev string, o mlxvfio.Options, fn func(ctx context.Context, s *session) error) error {
	arg, err := parseDev(dev)
	if err != nil {
		return err
	}
	return a.withFunction(ctx, arg, o, fn)
}

// withFunction is withDevice for an argument that was parsed.
func (a *app) withFunction(ctx context.Context, arg devArg, o mlxvfio.Options, fn func(ctx context.Context, s *session) error) error {
	t, err := a.open(ctx, arg)
	if err != nil {
		return timeUp(ctx, err)
	}
	if arg.kind == devSysfs {
		return errors.Join(&vfio.Error{Op: "bring the function up", Target: arg.text, Err: vfio.ErrNotSupported,
			Remedy: fmt.Sprintf("sysfs only reads: mlxvfio bind %v, then use %v", arg.bdf, arg.bdf)}, t.Close())
	}
	o.Logger = a.logger()
	o.Polled = o.Polled || a.polled
	o.CommandSlots = a.commandSlots
	h, err := mlxvfio.Open(ctx, t, o)
	if err != nil {
		var se *mlxvfio.StageError
		if errors.As(err, &se) && !errors.Is(se.Err, context.DeadlineExceeded) {
			return err // whatever the undo met
		}
		return timeUp(ctx, err)
	}
	s := &session{HCA: h, arg: arg, info: h.Device().Info(), dev: t, firmware: h.Info().Firmware}
	err = timeUp(ctx, fn(ctx, s))
	if cerr := closeDevice(ctx, h); cerr != nil {
		return errors.Join(err, cerr)
	}
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		return &stoppedError{dev: arg.text, pages: h.Ledger(), err: err}
	}
	return err
}

// stoppedError says that a signal ended what was going on, and how the function
// was left.
type stoppedError struct {
	dev   string
	pages mlxvfio.PageLedger
	err   error
}

func (e *stoppedError) Error() string {
	s := fmt.Sprintf("%s: interrupted; %s; the function was given back", e.dev, pagesText(e.pages))
	var peer *stoppedError
	if errors.As(e.err, &peer) {
		s += "; " + peer.Error()
	}
	return s
}

func (e *stoppedError) Unwrap() error { return e.err }

// How long giving a function back may take before it is cut off instead: while
// there is time, and once a signal came or the time of --timeout is over. The
// second is what Linux gives a teardown.
const (
	closeLimit = 30 * time.Second
	lateLimit  = initseg.DefaultTeardown
)

// closeDevice gives the function back, also when ctx is over.
func closeDevice(ctx context.Context, h *mlxvfio.HCA) error {
	ctx, cancel := outlast(ctx, closeLimit, lateLimit)
	defer cancel()
	return h.Close(ctx)
}

// outlast is a context that goes on when ctx is over: for late, and never longer
// than limit in all. cancel waits for what belongs to it.
func outlast(ctx context.Context, limit, late time.Duration) (longer context.Context, cancel func()) {
	longer, free := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, &closeTimeoutError{limit, nil})
	longer, cut := context.WithCancelCause(longer)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		t := time.NewTimer(late)
		defer t.Stop()
		select {
		case <-t.C:
			cut(&closeTimeoutError{late, context.Cause(ctx)})
		case <-longer.Done():
		}
	})
	return longer, func() {
		cut(nil)
		if !stop() {
			<-done
		}
		free()
	}
}

// closeTimeoutError is why giving a function back was cut off.
type closeTimeoutError struct {
	limit time.Duration
	after error // what left it no more time, nil for none
}

func (e *closeTimeoutError) Error() string {
	if e.after == nil {
		return fmt.Sprintf("giving the function back is cut off after %v", e.limit)
	}
	return fmt.Sprintf("giving the function back is cut off %v after: %v", e.limit, e.after)
}

// Is makes it the deadline that it is.
func (e *closeTimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// deviceHead is how every report about a device begins.
type deviceHead struct {
	Device   string `json:"device"`
	Backend  string `json:"backend"`
	Firmware string `json:"firmware"`
}

func (s *session) head() deviceHead {
	return deviceHead{Device: s.arg.text, Backend: s.info.Backend, Firmware: s.firmware}
}

func (d deviceHead) String() string {
	return fmt.Sprintf("%s (%s), firmware %s", d.Device, d.Backend, d.Firmware)
}
