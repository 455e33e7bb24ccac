package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/spf13/cobra"
)

func (a *app) traceVerb() *cobra.Command {
	c := folder("trace", "the firmware tracer: record, decode and analyse what firmware says; export it, draw a report",
		a.traceRecordVerb(), a.traceOwnerVerb(), a.traceDecodeVerb(), a.traceStatVerb(), a.traceExportVerb(), a.traceReportVerb())
	c.Long = `trace is about the firmware tracer: firmware writes what it does into memory that the driver gives it, and this
records, decodes and analyses it. trace record needs a function; the verbs that read FILE take a capture of trace
record, pasted output of the kernel's tracer, or a ring image with its string database (--ring and --stringdb).
docs/tracer.md has the rules of decoding and the definitions of the statistics.`
	return c
}

// traceFlags are the flags of every verb that reads a trace.
type traceFlags struct {
	ring, stringDB string
	startBlock     int
	salvage        bool
	device         string
	hz             float64
	ids            string
	match          string
}

func (f *traceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.ring, "ring", "", "`IMAGE` of a trace ring, a file that is read instead of FILE")
	c.Flags().StringVar(&f.stringDB, "stringdb", "", "JSON `FILE` of the ring's string database")
	c.Flags().IntVar(&f.startBlock, "start-block", -1, "first `BLOCK` of the ring (default: the oldest one)")
	c.Flags().Lookup("start-block").DefValue = "0" // -1 stands for what the text says
	c.Flags().BoolVar(&f.salvage, "salvage", false, "go on behind damage in a capture, where the next good record begins")
	c.Flags().StringVar(&f.device, "device", "", "of pasted kernel output: only the lines of this `DEVICE`")
	c.Flags().Float64Var(&f.hz, "hz", 0, "rate of the device's clock in `HZ`, for traces without clock samples")
	positive(c, "hz")
	c.Flags().StringVar(&f.ids, "id", "", "only messages of these event `IDS`: numbers and ranges, such as 16,0x20-0x2f")
	c.Flags().StringVar(&f.match, "match", "", "only messages whose text this regular expression `RE` matches (syntax RE2)")
	for _, v := range []string{"ring", "stringdb"} {
		completes(c, v, aFile)
	}
	for _, v := range []string{"device", "id", "match"} {
		completes(c, v, anything)
	}
}

// traceFilter chooses messages. The zero value takes all of them.
type traceFilter struct {
	ids  *[256]bool
	text *regexp.Regexp
	buf  []byte
}

func (f *traceFlags) filter() (*traceFilter, error) {
	t := &traceFilter{}
	if f.ids != "" {
		t.ids = new([256]bool)
		for _, part := range strings.Split(f.ids, ",") {
			lo, hi, isRange := strings.Cut(part, "-")
			a, err := strconv.ParseUint(lo, 0, 8)
			b := a
			if err == nil && isRange {
				b, err = strconv.ParseUint(hi, 0, 8)
			}
			if err != nil || b < a {
				return nil, usagef("--id %s: %q: want event ids from 0 to 255, such as 16,0x20-0x2f", f.ids, part)
			}
			for i := a; i <= b; i++ {
				t.ids[i] = true
			}
		}
	}
	if f.match != "" {
		re, err := regexp.Compile(f.match)
		if err != nil {
			return nil, usagef("--match: %v", err)
		}
		t.text = re
	}
	return t, nil
}

func (t *traceFilter) takes(m *trace.Message) bool {
	if t.ids != nil && !t.ids[m.EventID] {
		return false
	}
	if t.text == nil {
		return true
	}
	t.buf = m.AppendText(t.buf[:0])
	return t.text.Match(t.buf)
}

// damagedError says that a capture was read in spite of damage.
type damagedError struct {
	file   string
	places int
	bytes  int64
	first  string
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("%s: %d damaged places with %d bytes were left out; the first: %s", e.file, e.places, e.bytes, e.first)
}
