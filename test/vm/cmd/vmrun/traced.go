package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// traceCommand makes the model write messages and gives us the memory that the kernel reads.
var traceCommand = fmt.Sprintf("{cli} tell {control} trace %d && {cli} tell {control} trace-memory {out}/memory", tracedMessages)

// traceSteps are the checks that show that mlx5_core traces.
var traceSteps = []string{
	"insmod-mlx5_core", "event-exists", "tracer-log", "event-enable", "trace-cmd", "trace-lines", "trace-formatted", "trace-strings",
	"log-tracer", "guest-completed",
}

// tracedMessages is how many messages of known content the kernel has to print: a few hundred blocks, which fit its
// buffer of 1024.
const tracedMessages = 1500

// printed is a line of the mlx5_fw tracepoint, from the device's name on.
var printed = regexp.MustCompile(`(?m)mlx5_fw: (\S+ \[0x[0-9a-f]+\] [01] \[0x[0-9a-f]+\] .*)$`)

// sameMessages compares what the kernel printed with what our decoder makes of the blocks that the kernel read, in the
// guest's own memory: time, lost mark, event id and text of every message.
func sameMessages(out string) []check {
	c := check{Name: "same-messages", Status: wire.Fail}
	theirs, ours, err := tracedLines(out)
	switch {
	case err != nil:
		c.Detail = err.Error()
	case len(ours) < tracedMessages:
		c.Detail = fmt.Sprintf("our decoder has %d messages, not %d", len(ours), tracedMessages)
	default:
		if c.Detail = difference(theirs, ours); c.Detail == "" {
			c.Status, c.Detail = wire.Pass, fmt.Sprintf("%d messages, the last one %q", len(ours), ours[len(ours)-1])
		}
	}
	return []check{c}
}

// oneOwner looks into the kernel's log: one driver of two may have got the tracer, and the lines are its own.
func oneOwner(out string) []check {
	c := check{Name: "one-owner", Status: wire.Fail}
	log, err := os.ReadFile(filepath.Join(out, "dmesg.txt"))
	if err != nil {
		c.Detail = err.Error()
		return []check{c}
	}
	owners := owned.FindAllStringSubmatch(string(log), -1)
	theirs, _, err := tracedLines(out)
	switch {
	case err != nil:
		c.Detail = err.Error()
	case len(owners) != 1:
		c.Detail = fmt.Sprintf("%d functions were granted the tracer", len(owners))
	case len(theirs) == 0 || !strings.HasPrefix(theirs[0], owners[0][1]+" "):
		c.Detail = fmt.Sprintf("%s owns the tracer, the first of %d lines is not from there", owners[0][1], len(theirs))
	default:
		c.Status, c.Detail = wire.Pass, owners[0][1]
	}
	return []check{c}
}

var owned = regexp.MustCompile(`mlx5_core (\S+): .*FWTracer: Ownership granted and active`)

// difference tells the first one; empty if there is none.
func difference(theirs, ours []string) string {
	for i := range min(len(theirs), len(ours)) {
		if theirs[i] != ours[i] {
			return fmt.Sprintf("message %d: the kernel printed %q, our decoder %q", i, theirs[i], ours[i])
		}
	}
	if len(theirs) != len(ours) {
		return fmt.Sprintf("the kernel printed %d messages, our decoder %d", len(theirs), len(ours))
	}
	return ""
}

// tracedLines gives the messages of both from the first of known content to the last: the kernel prints others, and does
// so only from the moment on at which the event was switched on.
func tracedLines(out string) (theirs, ours []string, err error) {
	text, err := os.ReadFile(filepath.Join(out, "trace.txt"))
	if err != nil {
		return nil, nil, err
	}
	device := ""
	for _, m := range printed.FindAllStringSubmatch(string(text), -1) {
		theirs = append(theirs, m[1])
		device, _, _ = strings.Cut(m[1], " ")
	}
	db, err := trace.ReadDB(filepath.Join(out, "memory", "db.json"))
	if err != nil {
		return nil, nil, err
	}
	image, err := os.ReadFile(filepath.Join(out, "memory", "ring.bin"))
	if err != nil {
		return nil, nil, err
	}
	d, err := trace.NewDecoder(db.Geometry, db.Strings())
	if err != nil {
		return nil, nil, err
	}
	err = trace.NewRing(image).Decode(d, -1, func(m *trace.Message) {
		ours = append(ours, string(m.AppendLine(nil, device)))
	})
	if err != nil {
		return nil, nil, err
	}
	return known(theirs), known(ours), nil
}

// known cuts the lines from the first message of known content to the last.
func known(lines []string) []string {
	first, last := -1, -1
	for i, l := range lines {
		if strings.Contains(l, "] load ") {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		return nil
	}
	return lines[first : last+1]
}
