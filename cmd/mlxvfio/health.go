package main

import (
	"context"
	"errors"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/spf13/cobra"
)

// healthVerb is the folder of the verbs about health; health_*.go have one each.
func (a *app) healthVerb() *cobra.Command {
	c := folder("health", "is firmware alive: watch it, keep what it said, bring it back",
		a.healthShowVerb(), a.healthWatchVerb(), a.healthDumpVerb(), a.healthFieldsVerb(), a.healthRecoverVerb())
	c.Long = `health looks at a function from outside, says in one verdict how it is, keeps evidence, and climbs the recovery
ladder as far as it is told to. None of its verbs needs a function that works. A function that looks sick is only
looked at; one that looks well is brought up (with the reset that this begins with), unless --passive or sysfs:BDF
says that nothing may be touched. Opening a function through the kernel's VFIO resets it, whoever asks: use sysfs:BDF
to see what a dead one last said. docs/health.md has the table of verdicts.`
	return c
}

// healthFlags are those of the verbs that watch.
type healthFlags struct {
	period  time.Duration
	command time.Duration
	passive bool
}

const (
	quickPeriod    = 100 * time.Millisecond // of verbs that want one verdict
	defaultCommand = 5 * time.Second
)

func (f *healthFlags) add(c *cobra.Command, period time.Duration) {
	c.Flags().DurationVar(&f.period, "period", period, "`TIME` between looks, at least 10ms; a stall is three of them, or the time that the device states (2s)")
	c.Flags().DurationVar(&f.command, "command-timeout", defaultCommand, "`TIME` that a command may take")
	c.Flags().BoolVar(&f.passive, "passive", false, "only look at registers: no reset, no command, whatever they say")
}

// check refuses values before a device is touched.
func (f *healthFlags) check() error {
	switch {
	case f.period < health.MinPeriod:
		return usagef("--period %v: at least %v", f.period, health.MinPeriod)
	case f.period > health.MaxPeriod:
		return usagef("--period %v: at most %v", f.period, health.MaxPeriod)
	case f.command < time.Millisecond:
		return usagef("--command-timeout %v: at least 1ms", f.command)
	}
	return nil
}

// illError ends a verb with a verdict: the exit code is that of the table of
// conditions, whatever the causes are.
type illError struct {
	code    int
	remedy  string
	err     error
	bringUp error // where one failed; it does not decide about the exit code
}

func (e *illError) Error() string { return e.err.Error() }

// ill makes an error of a verdict that is not healthy.
func ill(device string, v health.Verdict) error {
	if v.ExitCode == exitOK {
		return nil
	}
	return &illError{v.ExitCode, v.Remedy, &health.VerdictError{Device: device, Verdict: v}, nil}
}

// signalled tells whether a signal, not --timeout, ended ctx.
func signalled(ctx context.Context) bool {
	var up *timeUpError
	return ctx.Err() != nil && !errors.As(context.Cause(ctx), &up)
}
