package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/tracer/analyze"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/export"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// traceInput is a trace that can be played from its start, as often as wanted: a
// capture file, a ring image with its string database, or pasted kernel output.
type traceInput struct {
	name   string
	filter *traceFilter
	flags  *traceFlags
	follow bool
	seen   func(*trace.Message) // sees what the filter leaves out, too

	path  string // of a capture
	data  []byte // of standard input, instead of the file
	ring  *trace.Ring
	db    *trace.DB
	lines []trace.FtraceLine
	stats trace.FtraceStats
	rerr  error    // why pasted output was not read to its end
	notes []string // what makes the result less certain, found while it was played
	msgs  []*trace.Message
}

// mostInput bounds what is held in memory: standard input, and images of rings (the
// register's largest ring has 2^31 blocks of a page, far from anything built).
const mostInput = 1 << 31

// openTrace finds out what the arguments name. Nothing is decoded yet.
func (f *traceFlags) openTrace(args []string) (*traceInput, error) {
	filter, err := f.filter()
	if err != nil {
		return nil, err
	}
	in := &traceInput{filter: filter, flags: f}
	switch {
	case (f.ring == "") != (f.stringDB == ""):
		return nil, usagef("--ring and --stringdb belong together: the image of a ring, and the JSON of its string database")
	case f.ring != "" && len(args) > 0:
		return nil, usagef("FILE or --ring, not both")
	case f.ring == "" && len(args) == 0:
		return nil, usagef("want a FILE (a capture, or pasted kernel output; - for standard input), or --ring FILE --stringdb FILE")
	case len(args) > 0 && args[0] == "":
		return nil, usagef("FILE is empty: want a capture, or pasted kernel output; - for standard input")
	case f.hz < 0:
		return nil, usagef("--hz %v is negative", f.hz)
	case f.startBlock < -1 || f.startBlock >= 0 && f.ring == "":
		return nil, usagef("--start-block %d: want the number of a block of --ring", f.startBlock)
	}
	if f.ring != "" {
		return in, in.openRing()
	}
	in.name = args[0]
	return in, in.openFile(args[0])
}

func (in *traceInput) openRing() error {
	in.name = in.flags.ring
	db, err := trace.ReadDB(in.flags.stringDB)
	if err != nil {
		return err
	}
	f, err := os.Open(in.name)
	if err != nil {
		return err
	}
	image, err := in.readAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	in.db, in.ring = db, trace.NewRing(image)
	if n := in.ring.Blocks(); in.flags.startBlock >= n && in.flags.startBlock > 0 {
		return &usageError{(&trace.StartError{Start: in.flags.startBlock, Blocks: n}).Error()}
	}
	return nil
}

// readAll reads what is held in memory.
func (in *traceInput) readAll(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, mostInput+1))
	if err == nil && len(b) > mostInput {
		return nil, fmt.Errorf("%s: more than %d bytes, which is the most that is held in memory; cut it, or give a capture file by its name", in.name, mostInput)
	}
	return b, err
}

// openFile tells captures from pasted text by their first bytes. What is no ordinary
// file can be read once only, so it is held in memory.
func (in *traceInput) openFile(path string) error {
	f := os.Stdin
	if path == "-" {
		in.name = "standard input"
	} else {
		var err error
		if f, err = os.Open(path); err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // nothing was written
	}
	var (
		head [4]byte
		n    int
		r    io.Reader = f
	)
	st, err := f.Stat()
	if err == nil && path != "-" && st.Mode().IsRegular() {
		if n, err = f.ReadAt(head[:], 0); errors.Is(err, io.EOF) {
			err = nil
		}
	} else if err == nil {
		in.data, err = in.readAll(f)
		n = copy(head[:], in.data)
		r = bytes.NewReader(in.data)
	}
	if err != nil {
		return err
	}
	if bytes.HasPrefix([]byte(capture.Magic), head[:n]) { // an empty file is a capture that stops at once
		if in.flags.device != "" {
			return usagef("--device chooses from pasted kernel output; %s is a capture, of one device", in.name)
		}
		in.path = path
		return nil
	}
	return in.readText(r)
}

// readText takes pasted output of the kernel's tracer.
func (in *traceInput) readText(r io.Reader) error {
	in.lines, in.stats, in.rerr = trace.ReadFtrace(r)
	if len(in.lines) == 0 {
		if in.rerr != nil {
			return fmt.Errorf("%s: %w", in.name, in.rerr)
		}
		return fmt.Errorf("%s: neither a capture nor output of the kernel's tracer: no line of %d reads \"mlx5_fw: … [0x…] 0 [0x…] text\"; the image of a ring needs --ring and --stringdb", in.name, in.stats.Lines)
	}
	var devices []string
	for _, l := range in.lines {
		if !slices.Contains(devices, l.Device) {
			devices = append(devices, l.Device)
		}
	}
	if d := in.flags.device; d != "" {
		if !slices.Contains(devices, d) {
			return usagef("--device %s: the text has lines of %s", d, strings.Join(devices, ", "))
		}
		in.lines = slices.DeleteFunc(in.lines, func(l trace.FtraceLine) bool { return l.Device != d })
	}
	return nil
}

// devices are the devices of pasted text.
func (in *traceInput) devices() []string {
	var d []string
	for _, l := range in.lines {
		if !slices.Contains(d, l.Device) {
			d = append(d, l.Device)
		}
	}
	return d
}

// oneDevice refuses text of several devices, whose clocks have nothing to do with
// each other.
func (in *traceInput) oneDevice() error {
	if d := in.devices(); len(d) > 1 {
		return usagef("%s has lines of several devices, whose clocks differ; choose one with --device: %s", in.name, strings.Join(d, ", "))
	}
	return nil
}

// lineMessage makes a message of a pasted line: its text is a format without values.
func lineMessage(l *trace.FtraceLine) *trace.Message {
	f := trace.NewFormat([]byte(strings.ReplaceAll(l.Text, "%", "%%")))
	return &trace.Message{Time: l.Corrected, EventID: l.EventID, Lost: l.Lost, Format: f}
}

var numbers = regexp.MustCompile(`0x[0-9a-fA-F]+|\b[0-9a-fA-F]*[0-9][0-9a-fA-F]*\b`)

// key groups pasted lines, whose formats are not known: by their text with # for
// every number.
func (in *traceInput) key() func(*trace.Message) string {
	if in.lines == nil {
		return nil
	}
	return func(m *trace.Message) string { return numbers.ReplaceAllString(m.Text(), "#") }
}

// play goes through the trace from its start. each, which may be nil, sees the
// records of a capture and the blocks of a ring, emit the messages that the filter
// takes. The error is the first one of those, or why the trace could not be read to
// its end: what came before is good, and End is right in either case.
func (in *traceInput) play(ctx context.Context, each func(*capture.Record) error, emit func(*trace.Message) error) (*export.End, error) {
	var failed error
	take := func(m *trace.Message) {
		if in.seen != nil {
			in.seen(m)
		}
		if failed == nil && emit != nil && in.filter.takes(m) {
			failed = emit(m)
		}
	}
	var (
		e   export.End
		err error
	)
	switch {
	case in.ring != nil:
		e.Counters, err = in.playRing(ctx, each, take)
	case in.lines != nil:
		if in.msgs == nil {
			for i := range in.lines {
				in.msgs = append(in.msgs, lineMessage(&in.lines[i]))
			}
		}
		for _, m := range in.msgs {
			take(m)
		}
		e.Counters.Messages = uint64(len(in.msgs))
		if err = in.rerr; err != nil {
			err = fmt.Errorf("%s: %w", in.name, err)
		}
	default:
		err = in.playCapture(ctx, &e, each, take, &failed)
	}
	if failed != nil {
		return &e, failed
	}
	if err != nil {
		e.Stopped = oneLine(err)
	}
	return &e, err
}

// note keeps the warnings about a geometry, each once.
func (in *traceInput) note(g trace.Geometry) {
	for _, w := range g.Warnings() {
		if !slices.Contains(in.notes, w) {
			in.notes = append(in.notes, w)
		}
	}
}

// warn prints the warnings.
func (a *app) warn(in *traceInput) {
	for _, w := range in.notes {
		fmt.Fprintf(a.err, "# warning: %s: %s\n", in.name, w)
	}
}

func (in *traceInput) playRing(ctx context.Context, each func(*capture.Record) error, emit func(*trace.Message)) (trace.Counters, error) {
	d, err := trace.NewDecoder(in.db.Geometry, in.db.Strings())
	if err != nil {
		return trace.Counters{}, err
	}
	in.note(in.db.Geometry)
	start, n := in.flags.startBlock, in.ring.Blocks()
	if start < 0 {
		start = in.ring.Oldest()
	}
	r := capture.Record{Kind: capture.KindBlock}
	for i := range n {
		k := (start + i) % n
		b := in.ring.Block(k)
		if each != nil {
			r.Index = uint64(k)
			copy(r.Data[:], b)
			if err := each(&r); err != nil {
				return d.Counters(), err
			}
		}
		if i%4096 == 0 && ctx.Err() != nil {
			return d.Counters(), context.Cause(ctx)
		}
		if err := d.Block(uint64(k), b, emit); err != nil {
			return d.Counters(), err
		}
	}
	d.Flush()
	if err := in.ring.Err(); err != nil {
		return d.Counters(), fmt.Errorf("%s: %w", in.name, err)
	}
	return d.Counters(), nil
}

func (in *traceInput) playCapture(ctx context.Context, e *export.End, each func(*capture.Record) error, emit func(*trace.Message), failed *error) error {
	var (
		p   capture.Player
		src *capture.Reader
		err error
		o   = capture.ReaderOptions{Follow: in.follow, Salvage: in.flags.salvage}
	)
	if in.data != nil {
		src = capture.NewReader(bytes.NewReader(in.data), o)
	} else if src, err = capture.Open(in.path, o); err != nil {
		return err
	}
	damaged := &damagedError{file: in.name}
	err = p.Play(ctx, src, func(r *capture.Record) error {
		if r.Kind == capture.KindDamage {
			if damaged.places == 0 {
				damaged.first = fmt.Sprintf("bytes %d to %d: %s", r.Damage.From, r.Damage.To, r.Damage.Why)
			}
			damaged.places++
			damaged.bytes += r.Damage.To - r.Damage.From
		}
		if r.Kind == capture.KindStrings {
			in.note(r.DB.Geometry)
		}
		if *failed != nil {
			return *failed
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if each != nil {
			return each(r)
		}
		return nil
	}, emit)
	e.Counters = p.Counters()
	e.Gaps, e.Missing, e.AtLeast = p.Missing()
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w", in.name, err)
	}
	if damaged.places > 0 {
		err = errors.Join(err, damaged)
	}
	return errors.Join(err, src.Close())
}

// survey is the first pass for statistics.
func (in *traceInput) survey(ctx context.Context) (*analyze.Stats, *capture.Meta, *export.End, error) {
	s := analyze.New(analyze.Options{Key: in.key(), Hz: in.flags.hz})
	var meta *capture.Meta
	in.seen = s.Seen
	defer func() { in.seen = nil }()
	e, err := in.play(ctx, func(r *capture.Record) error {
		if r.Kind == capture.KindMeta {
			meta = r.Meta
		}
		s.Record(r)
		return nil
	}, func(m *trace.Message) error { s.Message(m); return nil })
	if meta == nil && in.lines != nil {
		meta = &capture.Meta{Device: in.lines[0].Device}
	}
	return s, meta, e, err
}

// usable says whether a trace that ended with this error is worth going on with:
// where reading stopped at damage, but not where nothing was read or the user wants
// to stop.
func usable(ctx context.Context, e *export.End, err error) bool {
	return err == nil || ctx.Err() == nil && (e.Counters.Blocks > 0 || e.Counters.Messages > 0)
}
