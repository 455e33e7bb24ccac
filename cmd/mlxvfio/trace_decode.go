package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

func (a *app) traceDecodeVerb() *cobra.Command {
	var (
		f             traceFlags
		follow, count bool
	)
	c := a.verb("decode [FILE]", "print the messages of a trace, as the kernel's tracepoint does or as JSON lines", 0, 1, func(ctx context.Context, args []string) error {
		return a.traceDecode(ctx, &f, args, follow, count)
	})
	c.Long = `trace decode prints the messages of a capture (trace record writes them), of pasted output of the kernel's
tracer (FILE), or of the image of a trace ring (--ring and --stringdb). docs/tracer.md has the rules.`
	c.Example = examples(
		"mlxvfio trace record sim,load=1000 -o a.mlxt --for 300ms", "something to read",
		"mlxvfio trace decode a.mlxt", "all of it",
		"mlxvfio trace decode a.mlxt --match opcode --json", "messages of one kind, as JSON lines",
		"mlxvfio trace decode dmesg.txt --device 0000:3b:00.0", "pasted output of the kernel's tracer")
	f.add(c)
	c.Flags().BoolVar(&follow, "follow", false, "wait for more at the end of a capture that is still being written")
	c.Flags().BoolVar(&count, "count", false, "print the counters only")
	return c
}

func (a *app) traceDecode(ctx context.Context, f *traceFlags, args []string, follow, count bool) error {
	in, err := f.openTrace(args)
	if err != nil {
		return err
	}
	if in.follow = follow; follow && (in.path == "" || in.data != nil) {
		return usagef("--follow waits for a capture file that grows; %s is none", in.name)
	}
	if in.lines != nil {
		return a.decodeText(ctx, in, count)
	}
	return a.decodeBlocks(ctx, in, count)
}

// flusher is a Sink that is read while it is written.
type flusher interface {
	export.Sink
	Flush() error
}

func (a *app) decodeBlocks(ctx context.Context, in *traceInput, count bool) error {
	info := &export.Info{Source: in.name}
	var sink flusher
	begin := func() {
		if sink != nil {
			return
		}
		if a.json {
			sink = export.NewJSONLines(a.out, info)
		} else {
			sink = export.NewText(a.out, info)
		}
	}
	emit := func(m *trace.Message) error { return sink.Message(m) }
	if count {
		emit = nil
	}
	each := func(r *capture.Record) error {
		if r.Kind == capture.KindMeta {
			info.Meta = r.Meta
		}
		begin()
		if r.Kind == capture.KindGap && !count {
			if err := sink.Gap(&r.Gap); err != nil {
				return err
			}
		}
		if in.follow { // what the record before this one brought
			return sink.Flush()
		}
		return nil
	}
	e, err := in.play(ctx, each, emit)
	a.warn(in)
	begin()
	if in.ring != nil && !a.json {
		e.Stopped = "" // lines of a ring are messages and nothing else; the error says it
	}
	if cerr := a.endDecode(sink, e, count); err == nil {
		err = cerr
	}
	return err
}

// endDecode writes the end: the summary, or the counters as a table, or what the
// messages do not show.
func (a *app) endDecode(sink export.Sink, e *export.End, count bool) error {
	switch {
	case a.json:
		return sink.Close(e)
	case count:
		writeCounters(a.out, e)
		return nil
	}
	if err := sink.Close(e); err != nil {
		return err
	}
	if s := notWhole(e); s != "" {
		fmt.Fprintf(a.err, "# %s\n", s)
	}
	return nil
}

// writeCounters prints the counters as a table.
func writeCounters(w io.Writer, e *export.End) {
	var rows [][]string
	v := reflect.ValueOf(e.Counters)
	for i := range v.NumField() {
		rows = append(rows, []string{v.Type().Field(i).Tag.Get("json"), fmt.Sprint(v.Field(i).Uint())})
	}
	if e.Gaps > 0 {
		rows = append(rows, []string{"gaps", fmt.Sprint(e.Gaps)}, []string{"missing_blocks", atLeast(e.AtLeast) + fmt.Sprint(e.Missing)})
	}
	table(w, rows)
}

func atLeast(b bool) string {
	if b {
		return "at least "
	}
	return ""
}

// notWhole says what of a trace is missing from its messages; empty if nothing is.
func notWhole(e *export.End) string {
	var parts []string
	for _, c := range []struct {
		n    uint64
		what string
	}{
		{e.Counters.SkippedBlocks, "blocks that are not closed"},
		{e.Counters.IncompleteMessages, "incomplete messages"},
		{e.Counters.UnreliableEventsDropped, "events without a reliable time"},
		{e.Counters.LostMarks, "events marked as having lost others before them"},
	} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	if e.Gaps > 0 {
		parts = append(parts, fmt.Sprintf("%s%d blocks missing in %d gap%s", atLeast(e.AtLeast), e.Missing, e.Gaps, plural(int(e.Gaps))))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("%d messages of %d blocks; not among them: %s", e.Counters.Messages, e.Counters.Blocks, strings.Join(parts, ", "))
}

// decodeText prints pasted kernel output again, one form for all kernels, with its
// wrong times flagged.
func (a *app) decodeText(ctx context.Context, in *traceInput, count bool) error {
	text := export.NewText(a.out, &export.Info{})
	i := -1
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	_, err := in.play(ctx, nil, func(m *trace.Message) error {
		for i++; in.msgs[i] != m; i++ { // the filter left some out
		}
		l := in.lines[i]
		switch {
		case count:
			return nil
		case a.json:
			l.Text = m.Text()
			return enc.Encode(l)
		}
		out := *m
		out.Time = l.Time
		if err := text.Line(&out, l.Device); err != nil || l.Epoch == trace.EpochUnproven {
			return err
		}
		if l.Corrected != l.Time {
			return text.Note(fmt.Sprintf("line %d: the epoch is %v, the time is 0x%x", l.Line, l.Epoch, l.Corrected))
		}
		return text.Note(fmt.Sprintf("line %d: the epoch is %v", l.Line, l.Epoch))
	})
	if cerr := text.Flush(); err == nil {
		err = cerr
	}
	switch {
	case a.json:
		if werr := enc.Encode(struct {
			Summary trace.FtraceStats `json:"summary"`
			Schema  string            `json:"schema"`
		}{in.stats, "mlxvfio.trace-decode-text/1"}); err == nil {
			err = werr
		}
	case count:
		s := in.stats
		table(a.out, [][]string{
			{"lines", fmt.Sprint(s.Lines)}, {"messages", fmt.Sprint(s.Messages)}, {"malformed", fmt.Sprint(s.Malformed)}, {"other", fmt.Sprint(s.Other)},
			{"suspect_epochs", fmt.Sprint(s.Suspect)}, {"wrong_epochs", fmt.Sprint(s.Wrong)}, {"lost_stamps", fmt.Sprint(s.StampLost)},
		})
	}
	return err
}
