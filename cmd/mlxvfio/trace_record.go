package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

// recordFlags are the flags of trace record.
type recordFlags struct {
	out          string
	length, wait time.Duration
	size         string
	queue        int
	force        bool
	noCache      bool
	class, level string
}

func (a *app) traceRecordVerb() *cobra.Command {
	var f recordFlags
	c := a.verb("record DEV", "take the firmware tracer and write what firmware says into a capture file", 1, 1, func(ctx context.Context, args []string) error {
		return a.traceRecord(ctx, args[0], &f)
	})
	c.Long = `trace record takes the firmware tracer, has the device write its traces into memory, and stores them with everything
it takes to decode them: the string database, clock samples, and an exact record of what is missing. It ends after
--for, or when interrupted; the tracer is given back either way. trace decode reads the file, also while it grows.`
	c.Example = examples(
		"mlxvfio trace record sim,load=1000 -o a.mlxt --for 1s", "a second of a busy model",
		"mlxvfio trace record 0000:3b:00.0 -o b.mlxt", "until interrupted")
	fl := c.Flags()
	fl.StringVarP(&f.out, "output", "o", "", "capture `FILE` to write, such as a.mlxt")
	fl.DurationVar(&f.length, "for", 0, "record for this `TIME`, e.g. 10s (default: until interrupted)")
	fl.DurationVar(&f.wait, "wait", 0, "wait this `TIME` for another owner of the tracer (default: ask once)")
	fl.StringVar(&f.size, "size", "", "size of the device's trace ring in `BYTES`: 4K to the device's maximum, a power of two (default 1M)")
	fl.IntVar(&f.queue, "queue", 0, "`N` blocks may wait for the file before some are dropped and counted (default: twice the ring)")
	fl.BoolVar(&f.force, "force", false, "replace the capture file if it exists")
	fl.BoolVar(&f.noCache, "no-cache", false, "read the string database from the device, whatever is in the cache")
	fl.StringVar(&f.class, "class", "", "trace only these `CLASSES`, where the device offers that")
	fl.StringVar(&f.level, "level", "", "trace only from this `LEVEL` on, where the device offers that")
	positive(c, "for", "queue")
	completes(c, "output", aFile)
	for _, v := range []string{"size", "class", "level"} {
		completes(c, v, anything)
	}
	return c
}

// parseSize reads a number of bytes with K or M behind it.
func parseSize(s string) (int, error) {
	digits, unit := s, 1
	for suffix, u := range map[string]int{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if d, ok := strings.CutSuffix(strings.ToUpper(s), suffix); ok {
			digits, unit = d, u
		}
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 1<<40/unit {
		return 0, usagef("--size %q: want bytes, such as 4096, 64K or 1M", s)
	}
	if _, ok := tracer.LogSize(uint64(n * unit)); !ok {
		return 0, usagef("--size %s: want a power of two from 4K on, which is what the device takes", s)
	}
	return n * unit, nil
}

// options checks the flags.
func (f *recordFlags) options() (o tracer.Options, err error) {
	switch {
	case f.out == "":
		return o, usagef("-o FILE is missing: the capture file to write")
	case f.length < 0:
		return o, usagef("--for %v is negative", f.length)
	case f.wait < 0:
		return o, usagef("--wait %v is negative", f.wait)
	case f.queue < 0 || f.queue > tracer.MaxQueue:
		return o, usagef("--queue %d: want 1 to %d blocks; each takes some memory from the beginning", f.queue, tracer.MaxQueue)
	}
	if f.size != "" {
		if o.BufferSize, err = parseSize(f.size); err != nil {
			return o, err
		}
	}
	if _, serr := os.Stat(f.out); serr == nil && !f.force {
		return o, usagef("%s exists already: choose another name, or --force replaces it", f.out)
	}
	if f.class != "" || f.level != "" {
		return o, &vfio.Error{Op: "set trace classes and levels", Target: "firmware tracer", Err: vfio.ErrNotSupported,
			Remedy: "the tracer's public registers have no field for them; record everything and choose with trace decode --id or --match"}
	}
	o.Queue, o.Wait = f.queue, f.wait
	if dir, cerr := os.UserCacheDir(); cerr == nil && !f.noCache {
		o.CacheDir = filepath.Join(dir, "mlxvfio", "strings")
	}
	return o, nil
}

func (a *app) traceRecord(ctx context.Context, dev string, f *recordFlags) error {
	o, err := f.options()
	if err != nil {
		return err
	}
	return a.withDevice(ctx, dev, mlxvfio.Options{}, func(ctx context.Context, s *session) error {
		o.Polled = a.polled
		bar := progress{w: a.err, on: terminal(a.err) && !a.json}
		defer bar.clear()
		o.OnBusy = func(tries int, _ time.Duration) {
			bar.show(tries, "times asked for the tracer, which another owner has")
		}
		o.Progress = func(done, total uint64) { bar.total = int(total); bar.show(int(done), "bytes of the string database") }
		c, err := s.OpenTracer(ctx, o)
		if err != nil {
			return err
		}
		bar.total = 0
		r, err := a.recordTo(ctx, c, f, &bar)
		bar.clear()
		if r == nil {
			return err
		}
		r.deviceHead = s.head()
		if perr := a.print("trace-record/1", r); perr != nil {
			return errors.Join(perr, err)
		}
		return err
	})
}

// recordTo writes a running capture into its file and ends both, whatever happens.
func (a *app) recordTo(ctx context.Context, c *tracer.Capture, f *recordFlags, bar *progress) (_ *recordResult, err error) {
	closed := false
	closeCapture := func() error {
		if closed {
			return nil
		}
		closed = true
		long, cancel := outlast(ctx, closeLimit, lateLimit)
		defer cancel()
		return c.Close(long)
	}
	defer func() { err = errors.Join(err, closeCapture()) }()
	w, err := capture.Create(f.out, c.Meta(), f.force)
	if err != nil {
		return nil, err
	}
	if f.length > 0 {
		stop := time.AfterFunc(f.length, c.Stop)
		defer stop.Stop()
	}
	began, n := time.Now(), 0
	end, perr := capture.Pump(ctx, w, c, func(r *capture.Record) error {
		if n++; bar.on && n%4096 == 0 {
			bar.show(n, "records")
		}
		return nil
	})
	took := time.Since(began)
	cerr := closeCapture()
	if end == nil {
		end = &capture.End{Time: time.Now(), Reason: capture.ReasonFailed}
		if perr != nil {
			end.Text = oneLine(perr)
		}
	}
	if werr := w.Close(end); perr == nil {
		perr = werr
	}
	_, strs := c.DB()
	r := &recordResult{File: f.out, Seconds: took.Seconds(), Reason: end.Reason.String(), Detail: end.Text, TakenUp: c.Meta().TakenUp, StringsCached: strs.Cached, Bytes: w.Size(), Stats: c.Stats()}
	r.Blocks, r.Gaps, r.Missing = w.Totals()
	if perr == nil {
		perr = c.Err()
	}
	if perr == nil && ctx.Err() != nil && (f.length > 0 || !interrupted(ctx)) {
		perr = context.Cause(ctx)
	}
	return r, errors.Join(perr, cerr)
}

// interrupted says that a signal ended ctx: the way to end what has no other end.
func interrupted(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// recordResult says what was recorded.
type recordResult struct {
	deviceHead
	File    string  `json:"file"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Blocks  uint64  `json:"blocks"`
	Gaps    uint64  `json:"gaps"`
	Missing uint64  `json:"missing_blocks"`
	Reason  string  `json:"reason"`
	Detail  string  `json:"detail,omitempty"`
	// TakenUp: the function owned the tracer already, from a run that was killed.
	TakenUp       bool         `json:"taken_up"`
	StringsCached bool         `json:"strings_cached"`
	Stats         tracer.Stats `json:"stats"`
}

func (r *recordResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	if r.TakenUp {
		fmt.Fprintln(w, "the tracer was ours already, from a run that was killed: it was taken up")
	}
	fmt.Fprintf(w, "%s: %d blocks, %d bytes in %.3g s; %d missing in %d gap%s; %s\n", r.File, r.Blocks, r.Bytes, r.Seconds, r.Missing, r.Gaps, plural(int(r.Gaps)), r.Reason)
	if r.Missing > 0 {
		fmt.Fprintf(w, "missing: %d overwritten before they were read (a larger --size helps), %d for want of room (--queue), %d out of order\n",
			r.Stats.Overwritten, r.Stats.BackPressure, r.Stats.Order)
	}
}
