package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/spf13/cobra"
)

func (a *app) traceOwnerVerb() *cobra.Command {
	var (
		hold bool
		wait time.Duration
	)
	c := a.verb("owner DEV", "show whether this function owns the firmware tracer, and what the tracer can do; --hold keeps it", 1, 1, func(ctx context.Context, args []string) error {
		if wait != 0 && !hold {
			return usagef("--wait goes with --hold: without it nothing is asked for")
		}
		return a.traceOwner(ctx, args[0], hold, wait)
	})
	c.Long = `trace owner shows whether this function owns the firmware tracer, of which a chip has one, and what the tracer can do:
its version, the largest ring, the string database. It takes the tracer only with --hold.`
	c.Example = examples(
		"mlxvfio trace owner sim", "who has it, and what it can do",
		"mlxvfio trace owner 0000:3b:00.0 --hold --wait 10s", "take it and keep it, to keep others away")
	c.Flags().BoolVar(&hold, "hold", false, "acquire the tracer and keep it until interrupted, or until another owner takes it")
	c.Flags().DurationVar(&wait, "wait", 0, "with --hold: wait this `TIME` for another owner (default: ask once)")
	return c
}

func (a *app) traceOwner(ctx context.Context, dev string, hold bool, wait time.Duration) error {
	return a.withDevice(ctx, dev, mlxvfio.Options{}, func(ctx context.Context, s *session) error {
		caps, err := s.TracerCaps(ctx)
		if err != nil {
			return err
		}
		r := newOwnerResult(s.head(), caps)
		if !hold {
			return a.print("trace-owner/1", r)
		}
		bar := progress{w: a.err, on: terminal(a.err) && !a.json}
		defer bar.clear()
		o, err := s.TracerOwner(ctx, tracer.OwnerOptions{Wait: wait,
			OnBusy: func(tries int, _ time.Duration) {
				bar.show(tries, "times asked for the tracer, which another owner has")
			}})
		if err != nil {
			return err
		}
		bar.clear()
		r.Owner, r.Held, r.TakenUp = true, true, o.TakenUp()
		if err := a.print("trace-owner/1", r); err != nil {
			return errors.Join(err, o.Release(ctx))
		}
		err = o.Hold(ctx)
		if err == nil && !interrupted(ctx) {
			err = context.Cause(ctx) // the time of --timeout
		}
		return errors.Join(err, o.Release(ctx))
	})
}

// ownerResult is register MTRC_CAP, and what became of asking for it.
type ownerResult struct {
	deviceHead
	Owner    bool           `json:"owner"` // this function owns the tracer
	Held     bool           `json:"held"`  // and keeps it for --hold
	TakenUp  bool           `json:"taken_up"`
	ToMemory bool           `json:"trace_to_memory"`
	Version  uint8          `json:"trc_ver"`
	First    uint8          `json:"first_string_trace"`
	Num      uint8          `json:"num_string_trace"`
	Max      uint64         `json:"max_buffer"` // bytes
	Sections []ownerSection `json:"sections"`
}

type ownerSection struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

func newOwnerResult(h deviceHead, c tracer.Caps) *ownerResult {
	r := &ownerResult{deviceHead: h, Owner: c.Owner, ToMemory: c.ToMemory, Version: c.Geometry.TrcVer, First: c.Geometry.FirstString,
		Num: c.Geometry.NumString, Max: c.MaxBuffer(), Sections: []ownerSection{}}
	for _, s := range c.Sections {
		r.Sections = append(r.Sections, ownerSection(s))
	}
	return r
}

func (r *ownerResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	owner := "not this function: nobody, another function of the chip, or a tool"
	switch {
	case r.Held && r.TakenUp:
		owner = "this function, from a run that was killed; held until interrupted"
	case r.Held:
		owner = "this function; held until interrupted"
	case r.Owner:
		owner = "this function, from a run that was killed; trace record takes it up"
	}
	toMemory := "traces go to memory"
	if !r.ToMemory {
		toMemory = "traces do not go to memory"
	}
	rows := [][]string{
		{"owner", owner},
		{"tracer", fmt.Sprintf("version %d, %s, rings of 4096 to %d bytes", r.Version, toMemory, r.Max)},
		{"strings", fmt.Sprintf("event ids 0x%x to 0x%x", r.First, int(r.First)+int(r.Num)-1)},
	}
	for i, s := range r.Sections {
		rows = append(rows, []string{fmt.Sprintf("section %d", i), fmt.Sprintf("0x%x, %d bytes", s.Base, s.Size)})
	}
	table(w, rows)
}
