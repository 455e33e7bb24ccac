package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

func (r *exportResult) text(w io.Writer) {
	fmt.Fprintf(w, "%s: %d messages as %s in %s\n", r.Source, r.Messages, r.Format, r.File)
}

func (a *app) traceReportVerb() *cobra.Command {
	var (
		f   traceFlags
		out string
	)
	c := a.verb("report [FILE]", "draw a trace: one HTML file with a timeline, rates and intervals", 0, 1, func(ctx context.Context, args []string) error {
		return a.traceReport(ctx, &f, args, out)
	})
	c.Long = `trace report writes one HTML file that needs nothing else: a timeline to zoom into with the rate of each message and
the gaps, a table of all messages with histograms of their intervals, and bursts, silences and outliers.`
	c.Example = examples(
		"mlxvfio trace record sim,load=1000 -o a.mlxt --for 300ms", "something to read",
		"mlxvfio trace report a.mlxt --html a.html", "open a.html in a browser")
	f.add(c)
	c.Flags().StringVar(&out, "html", "", "`FILE` to write; - for standard output")
	completes(c, "html", aFile)
	return c
}

func (a *app) traceReport(ctx context.Context, f *traceFlags, args []string, out string) error {
	if out == "" {
		return usagef("--html FILE is missing: the file to write, - for standard output")
	}
	in, err := f.openTrace(args)
	if err != nil {
		return err
	}
	if err := in.spares(out); err != nil {
		return err
	}
	if err := in.oneDevice(); err != nil {
		return err
	}
	s, meta, e, err := in.survey(ctx)
	a.warn(in)
	if !usable(ctx, e, err) {
		return err
	}
	res, find := s.Result(), s.Finder()
	rep := export.NewReport(in.info(s, meta), res, s.Group)
	gaps := gapsTo(rep)
	end, again := in.play(ctx, func(r *capture.Record) error {
		find.Record(r)
		return gaps(r)
	}, func(m *trace.Message) error {
		find.Message(m)
		return rep.Message(m)
	})
	if ctx.Err() != nil {
		return again
	}
	werr := a.writeFile(out, func(w io.Writer) error { return rep.Write(w, find.Findings(), end) })
	if werr != nil {
		return werr
	}
	if out != "-" {
		r := &exportResult{Source: in.name, Format: "html", File: out, Messages: res.Messages, Stopped: e.Stopped}
		if perr := a.print("trace-export/1", r); perr != nil {
			return errors.Join(err, perr)
		}
	}
	return err
}
