//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// slot asks what a hot reset would hit, and does it to a function that was up and is parked, as the ladder does. It
// stops before and after the reset until SIGUSR1, for others to look.
func slot(ctx context.Context, bdf string) (err error) {
	on := make(chan os.Signal, 1)
	signal.Notify(on, syscall.SIGUSR1)
	pause := func(is string) error {
		say(is, nil)
		select {
		case <-on:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r, err := open(bdf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	hit, err := r.Device().HotResetInfo()
	if err != nil {
		return err
	}
	say("hits", hit)
	if _, err := r.Open(ctx); err != nil {
		return err
	}
	if err := r.Park(errors.New("the slot is reset")); err != nil {
		return err
	}
	if err := pause("parked"); err != nil {
		return err
	}
	if err := r.Target().HotReset(); err != nil {
		return err
	}
	if err := pause("reset"); err != nil {
		return err
	}
	if err := r.Reopen(ctx); err != nil {
		return err
	}
	return moveData(ctx, r.HCA())
}
