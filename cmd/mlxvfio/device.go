package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// session is a function that is up, and how it was asked for.
type session struct {
	*mlxvfio.HCA
	arg  devArg
	info vfio.DeviceInfo
	dev  *opened

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
		return err
	}
	if arg.kind == devSysfs {
		return errors.Join(&vfio.Error{Op: "bring the function up", Target: arg.text, Err: vfio.ErrNotSupported,
			Remedy: fmt.Sprintf("sysfs only reads: mlxvfio bind %v, then use %v", arg.bdf, arg.bdf)}, t.Close())
	}
	o.Logger = a.logger()
	o.Polled = o.Polled || a.polled
	h, err := mlxvfio.Open(ctx, t, o)
	if err != nil {
		return err
	}
	s := &session{HCA: h, arg: arg, info: h.Device().Info(), dev: t}
	err = fn(ctx, s)
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

// closeLimit bounds how long giving a function back may take before it is cut
// off instead.
const closeLimit = 30 * time.Second

// closeDevice gives the function back, also when ctx is over.
func closeDevice(ctx context.Context, h *mlxvfio.HCA) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
	defer cancel()
	return h.Close(ctx)
}

// deviceHead is how every report about a device begins.
type deviceHead struct {
	Device   string `json:"device"`
	Backend  string `json:"backend"`
	Firmware string `json:"firmware"`
}

func (s *session) head() deviceHead {
	return deviceHead{Device: s.arg.text, Backend: s.info.Backend, Firmware: s.Segment().FirmwareVersion().String()}
}

func (d deviceHead) String() string {
	return fmt.Sprintf("%s (%s), firmware %s", d.Device, d.Backend, d.Firmware)
}
