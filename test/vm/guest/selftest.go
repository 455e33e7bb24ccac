//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// selftestReport is what "selftest --json" prints, as far as it is judged here.
type selftestReport struct {
	Schema, Device, Backend, Firmware, Mode, Verdict string
	Vectors                                          int
	Stages, Teardown                                 []struct{ Stage, Error string }
	Checks                                           []struct {
		Check, Note, Error string
		OK                 bool
	}
	Pages struct{ Given, Returned, Dropped, Outstanding, Strays, Refused, Chunks int }
	DMA   struct {
		Mappings, LiveBuffers, MapCalls, UnmapCalls int
	}
}

// expectation is what the report must say of the function.
type expectation struct {
	bdf, firmware string
	stages        []string // of the bring-up, in order
	mapCalls      int      // at most so many mappings in a whole life
}

// maxMapCalls is the goal of the bring-up.
const maxMapCalls = 16

// selftest checks that the program brings the function up, with interrupts, and gives it back. Processes that hold other
// functions meanwhile are named.
func (b *bench) selftest(name, bdf string, others ...*process) bool {
	b.step("%s", name)
	p, err := launch(nil, program, "selftest", bdf, "--json")
	if !b.check(name+"-start", err == nil, "%v", errText(err)) {
		return false
	}
	return b.judged(name, bdf, p.wait(cliLimit)) && b.released(name+"-released", bdf, others...)
}

// judged checks what a selftest has reported.
func (b *bench) judged(name, bdf string, o outcome) bool {
	b.keep(name, o.transcript())
	err := o.failure
	if err == nil {
		err = judgeSelftest(o.stdout, expectation{bdf, b.firmware[bdf], b.stages(), maxMapCalls})
	}
	return b.check(name, err == nil, "%v; %v", errText(err), o)
}

// judgeSelftest reads the one report of "selftest --json".
func judgeSelftest(text string, want expectation) error {
	var r selftestReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return fmt.Errorf("the report is not one object: %w", err)
	}
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(r.Schema == "mlxvfio.selftest/1" && r.Verdict == "pass", "schema %q, verdict %q", r.Schema, r.Verdict)
	unless(r.Device == want.bdf && r.Backend == "type1", "device %q over %q, want %s over type1", r.Device, r.Backend, want.bdf)
	unless(want.firmware != "" && r.Firmware == want.firmware, "firmware %q, the model says %q", r.Firmware, want.firmware)
	unless(r.Mode == "event" && r.Vectors >= 3, "%s mode with %d vectors, want events on at least 3", r.Mode, r.Vectors)
	var stages []string
	for _, s := range r.Stages {
		stages = append(stages, s.Stage)
		unless(s.Error == "", "stage %s: %s", s.Stage, s.Error)
	}
	unless(len(stages) > 0 && slices.Equal(stages, want.stages), "stages %v, want %v", stages, want.stages)
	for _, s := range r.Teardown {
		unless(s.Error == "", "teardown of %s: %s", s.Stage, s.Error)
	}
	unless(len(r.Teardown) > 0, "no teardown in the report")
	errs = append(errs, r.judgeChecks()...)
	p, d := r.Pages, r.DMA
	unless(p.Given > 0 && p.Returned == p.Given && p.Dropped == 0 && p.Outstanding == 0 && p.Strays == 0 && p.Refused == 0 && p.Chunks == 0,
		"the page ledger does not balance: %+v", p)
	unless(d.Mappings == 0 && d.LiveBuffers == 0 && d.MapCalls == d.UnmapCalls, "DMA memory is left: %+v", d)
	unless(d.MapCalls > 0 && d.MapCalls <= want.mapCalls, "%d MAP_DMA calls, want at most %d", d.MapCalls, want.mapCalls)
	return errors.Join(errs...)
}

// interruptsSeen finds how many completion events and wake-ups the check of the events has counted.
var interruptsSeen = regexp.MustCompile(`(\d+) completion events?, (\d+) wake-ups?`)

// judgeChecks wants every check to have passed, and the one of the events to have counted some.
func (r selftestReport) judgeChecks() (errs []error) {
	counted := false
	for _, c := range r.Checks {
		if !c.OK || c.Error != "" || strings.HasPrefix(c.Note, "skipped") {
			errs = append(errs, fmt.Errorf("check %s: %s %s", c.Check, c.Note, c.Error))
		}
		if m := interruptsSeen.FindStringSubmatch(c.Note); c.Check == "event-mode" && m != nil {
			counted = positive(m[1]) && positive(m[2])
		}
	}
	if !counted {
		errs = append(errs, fmt.Errorf("the check event-mode did not count events and wake-ups: %+v", r.Checks))
	}
	return errs
}

func positive(number string) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n > 0
}
