package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/tempfile"
	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

// exportFormats are the forms of trace export.
var exportFormats = map[string]func(io.Writer, *export.Info) export.Sink{
	"text":     func(w io.Writer, i *export.Info) export.Sink { return export.NewText(w, i) },
	"jsonl":    func(w io.Writer, i *export.Info) export.Sink { return export.NewJSONLines(w, i) },
	"csv":      func(w io.Writer, i *export.Info) export.Sink { return export.NewCSV(w, i) },
	"perfetto": func(w io.Writer, i *export.Info) export.Sink { return export.NewPerfetto(w, i) },
	"parquet":  func(w io.Writer, i *export.Info) export.Sink { return newParquet(w, i) },
}

func (a *app) traceExportVerb() *cobra.Command {
	var (
		f           traceFlags
		format, out string
	)
	c := a.verb("export [FILE]", "write a trace as text, JSON lines, CSV, Perfetto's JSON or Parquet", 0, 1, func(ctx context.Context, args []string) error {
		return a.traceExport(ctx, &f, args, format, out)
	})
	c.Long = `trace export writes the messages of a trace for other programs. --format and -o must be given; docs/tracer.md lists
columns and keys. The file appears under its name when it is whole.`
	c.Example = examples(
		"mlxvfio trace record sim,load=1000 -o a.mlxt --for 300ms", "something to read",
		"mlxvfio trace export a.mlxt --format csv -o -", "to standard output",
		"mlxvfio trace export a.mlxt --format perfetto -o a.json", "for ui.perfetto.dev")
	f.add(c)
	formats := slices.Sorted(maps.Keys(exportFormats))
	c.Flags().StringVar(&format, "format", "", "the `FORM` of the output: "+strings.Join(formats, ", "))
	completes(c, "format", oneOf(formats...))
	c.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; - for standard output")
	completes(c, "output", aFile)
	return c
}

func (a *app) traceExport(ctx context.Context, f *traceFlags, args []string, format, out string) error {
	newSink, ok := exportFormats[format]
	if !ok {
		return usagef("--format %q: want one of %s", format, strings.Join(slices.Sorted(maps.Keys(exportFormats)), ", "))
	}
	if out == "" {
		return usagef("-o FILE is missing: the file to write, - for standard output")
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
	// The clock samples up to the end are needed for the first message already.
	s, meta, e, err := in.survey(ctx)
	a.warn(in)
	if !usable(ctx, e, err) {
		return err
	}
	info := in.info(s, meta)
	r := &exportResult{Source: in.name, Format: format, File: out, Stopped: e.Stopped}
	werr := a.writeFile(out, func(w io.Writer) error {
		sink := newSink(w, info)
		end, perr := in.play(ctx, gapsTo(sink), func(m *trace.Message) error { r.Messages++; return sink.Message(m) })
		if ctx.Err() != nil || perr != nil && err == nil {
			return errors.Join(perr, context.Cause(ctx))
		}
		return sink.Close(end)
	})
	if werr != nil {
		return werr
	}
	if out != "-" {
		if perr := a.print("trace-export/1", r); perr != nil {
			return perr
		}
	}
	return err
}

// spares refuses to write over what is read.
func (in *traceInput) spares(out string) error {
	same := func(path string) bool {
		from, err := os.Stat(path)
		if err != nil {
			return false
		}
		to, err := os.Stat(out)
		return err == nil && to.Mode().IsRegular() && os.SameFile(from, to)
	}
	for _, path := range []string{in.name, in.flags.stringDB} {
		if same(path) {
			return usagef("%s would be written over %s, which is read: choose another name", out, path)
		}
	}
	return nil
}

// gapsTo hands gaps to a sink.
func gapsTo(s interface{ Gap(*capture.Gap) error }) func(*capture.Record) error {
	return func(r *capture.Record) error {
		if r.Kind == capture.KindGap {
			return s.Gap(&r.Gap)
		}
		return nil
	}
}

// info is what an export knows after the first pass.
func (in *traceInput) info(s *analyze.Stats, meta *capture.Meta) *export.Info {
	return &export.Info{Source: in.name, Meta: meta, Timeline: s.Timeline(), Hz: in.flags.hz, Base: s.Result().First}
}

// writeFile has fn write a file, which appears under its name only when it is whole.
// "-" is standard output; what is there and no ordinary file is written to as it is.
func (a *app) writeFile(path string, fn func(io.Writer) error) (err error) {
	if path == "-" {
		return fn(a.out)
	}
	if st, serr := os.Stat(path); serr == nil && !st.Mode().IsRegular() {
		f, oerr := os.OpenFile(path, os.O_WRONLY, 0)
		if oerr != nil {
			return oerr
		}
		return errors.Join(fn(f), f.Close())
	}
	tempfile.Clean(filepath.Dir(path), "."+filepath.Base(path)+".", "", time.Now())
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = errors.Join(fn(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// exportResult says what was written.
type exportResult struct {
	Source   string `json:"source"`
	Format   string `json:"format"`
	File     string `json:"file"`
	Messages uint64 `json:"messages"`
	Stopped  string `json:"stopped,omitempty"`
}
