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
	Opcodes []struct {
		Service, Opcode, Note string
		Done                  int
	}
	Pages map[string]any
	DMA   map[string]int
}

// expectation is what the report must say of the function.
type expectation struct {
	bdf, backend, firmware string
	stages                 []string // of the bring-up, in order
	mapCalls               int      // at most so many mappings in a whole life
	polled                 bool     // without interrupts
}

// maxMapCalls is the goal of the bring-up.
const maxMapCalls = 16

// selftest checks that the program brings the function up, with interrupts, and gives it back. Processes that hold other
// functions meanwhile are named.
func (b *bench) selftest(name, bdf string, others ...*process) bool {
	return b.selftestOnly(name, bdf) && b.released(name+"-released", bdf, others...)
}

// selftestOnly does not look who holds the function afterwards.
func (b *bench) selftestOnly(name, bdf string) bool {
	b.step("%s", name)
	return b.judged(name, bdf, run(cliLimit, b.argv("selftest", bdf, "--json")...))
}

// polledSelftest does the same without interrupts.
func (b *bench) polledSelftest(name, bdf string) bool {
	b.step("%s", name)
	o := run(cliLimit, b.argv("selftest", bdf, "--polled", "--json")...)
	return b.judgedAs(name, o, expectation{bdf, b.backend, b.firmware[bdf], b.stages(), maxMapCalls, true}) && b.released(name+"-released", bdf)
}

// judged checks what a selftest has reported.
func (b *bench) judged(name, bdf string, o outcome) bool {
	return b.judgedAs(name, o, expectation{bdf, b.backend, b.firmware[bdf], b.stages(), maxMapCalls, false})
}

func (b *bench) judgedAs(name string, o outcome, want expectation) bool {
	b.keep(name, o.transcript())
	err := o.failure
	if err == nil {
		err = judgeSelftest(o.stdout, want)
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
	unless(r.Device == want.bdf && r.Backend == want.backend, "device %q over %q, want %s over %s", r.Device, r.Backend, want.bdf, want.backend)
	unless(want.firmware != "" && r.Firmware == want.firmware, "firmware %q, the model says %q", r.Firmware, want.firmware)
	if want.polled {
		unless(r.Mode == "polled" && r.Vectors == 0, "%s mode with %d vectors, want none and polled", r.Mode, r.Vectors)
	} else {
		unless(r.Mode == "event" && r.Vectors >= 3, "%s mode with %d vectors, want events on at least 3", r.Mode, r.Vectors)
	}
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
	errs = append(errs, r.judgeChecks(want.polled)...)
	errs = append(errs, r.judgeOpcodes()...)
	given, _ := r.Pages["given"].(float64)
	unless(given > 0 && r.Pages["returned"] == given, "the page ledger does not balance: %v", r.Pages)
	for _, name := range []string{"dropped", "outstanding", "strays", "refused", "chunks"} {
		unless(r.Pages[name] == 0.0, "the page ledger has %v %s", r.Pages[name], name)
	}
	for _, name := range []string{"mappings", "live_buffers"} {
		n, ok := r.DMA[name]
		unless(ok && n == 0, "DMA memory is left: %v", r.DMA)
	}
	calls := r.DMA["map_calls"]
	unless(calls > 0 && calls <= want.mapCalls && r.DMA["unmap_calls"] == calls, "%v, want at most %d MAP_DMA calls and as many UNMAP_DMA", r.DMA, want.mapCalls)
	return errors.Join(errs...)
}

// interruptsSeen finds how many completion events and wake-ups the check of the events has counted.
var interruptsSeen = regexp.MustCompile(`(\d+) completion events?, (\d+) wake-ups?`)

// neededChecks are those that must have been made: commands, data by loopback, atomics.
var neededChecks = []string{
	"event-mode", "command-burst", "capabilities", "atomics-preflight", "data-path", "nop", "send", "write", "read", "atomics-probe", "atomics",
	"datagrams", "cross-channel", "opcodes", "health",
}

// neededOpcodes are the operations that must have been done, with their service. The models have them all.
var neededOpcodes = []string{
	"RC NOP", "RC SEND", "RC SEND_IMM", "RC RDMA_WRITE", "RC RDMA_WRITE_IMM", "RC RDMA_READ", "RC ATOMIC_CS", "RC ATOMIC_FA",
	"RC ATOMIC_MASKED_CS", "RC ATOMIC_MASKED_FA", "RC SEND_EN", "RC WAIT", "UD SEND", "UD SEND_IMM",
}

// judgeOpcodes wants each of them done at least once, and nothing excused.
func (r selftestReport) judgeOpcodes() (errs []error) {
	missing := slices.Clone(neededOpcodes)
	for _, o := range r.Opcodes {
		if o.Done < 1 || o.Note != "" {
			errs = append(errs, fmt.Errorf("operation %s %s was done %d times: %s", o.Service, o.Opcode, o.Done, o.Note))
			continue
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == o.Service+" "+o.Opcode })
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("operations that were not done: %v", missing))
	}
	return errs
}

// judgeChecks wants every check to have passed, and the one of the events to have counted some. In polled mode it must
// have been left out.
func (r selftestReport) judgeChecks(polled bool) (errs []error) {
	counted := false
	missing := slices.Clone(neededChecks)
	for _, c := range r.Checks {
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == c.Check })
		if polled && c.Check == "event-mode" {
			counted = c.OK && strings.HasPrefix(c.Note, "skipped")
			continue
		}
		if !c.OK || c.Error != "" || strings.HasPrefix(c.Note, "skipped") || strings.HasPrefix(c.Note, "not supported") {
			errs = append(errs, fmt.Errorf("check %s: %s %s", c.Check, c.Note, c.Error))
		}
		if m := interruptsSeen.FindStringSubmatch(c.Note); c.Check == "event-mode" && m != nil {
			counted = positive(m[1]) && positive(m[2])
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("checks that were not made: %v", missing))
	}
	if !counted {
		errs = append(errs, fmt.Errorf("the check event-mode did not count events and wake-ups (polled: %v): %+v", polled, r.Checks))
	}
	return errs
}

func positive(number string) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n > 0
}
