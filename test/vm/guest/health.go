//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	prober     = "/bin/probe"
	probeLimit = 45 * time.Second
	// lateness is what a busy host may add to a limit of the monitor's: it emulates two processors on what it has left.
	lateness = 500 * time.Millisecond
	// commandLimit is after what time the probe gives a command up.
	commandLimit = 2 * time.Second
)

// said is a line of the probe.
type said struct {
	Is   string          `json:"is"`
	At   time.Time       `json:"at"`
	What json.RawMessage `json:"what"`
}

// saidLines are the lines of a probe's output, without one that is cut.
func saidLines(text string) (out []said, err error) {
	for line := range strings.Lines(text) {
		var s said
		if e := json.Unmarshal([]byte(line), &s); e != nil {
			err = errors.Join(err, fmt.Errorf("line %q: %w", brief(line), e))
			continue
		}
		out = append(out, s)
	}
	return out, err
}

// one finds the last line of a kind and decodes it.
func one(lines []said, is string, into any) (at time.Time, err error) {
	for _, l := range slices.Backward(lines) {
		if l.Is == is {
			return l.At, json.Unmarshal(l.What, into)
		}
	}
	return at, fmt.Errorf("the probe did not come as far as %q", is)
}

// says is the text by which a line is recognized while the probe runs.
func says(is string) string { return fmt.Sprintf("{\"is\":%q,", is) }

// verdictSaid is a verdict, as it is judged here.
type verdictSaid struct {
	State, Condition string
	ExitCode         int `json:"exit_code"`
}

// bufferSaid is the health buffer, as it is judged here.
type bufferSaid struct {
	AssertVar     [6]uint32 `json:"assert_var"`
	AssertExitPtr uint32    `json:"assert_exit_ptr"`
	AssertCallRA  uint32    `json:"assert_callra"`
	Time          uint32
	FWVersion     uint32 `json:"fw_version"`
	HWID          uint32 `json:"hw_id"`
	RFR, CRR      bool
	Valid         bool
	Severity      uint8
	SeverityName  string `json:"severity_name"`
	IRISCIndex    uint8  `json:"irisc_index"`
	Synd          uint8
	SyndText      string `json:"synd_text"`
	ExtSynd       uint16 `json:"ext_synd"`
	Raw           string
	Torn, Stale   bool
}

type eventSaid struct {
	At       time.Time
	Previous string
	Verdict  verdictSaid
	Buffer   *bufferSaid
}

type limitsSaid struct {
	Period time.Duration `json:"period_ns"`
	Stall  time.Duration `json:"stall_ns"`
}

type recoverySaid struct {
	Report struct {
		Recovered bool
		By, Next  string
		ColdReset bool `json:"cold_reset"`
		Bundle    string
		Rungs     []struct{ Rung, Outcome, Reason string }
	}
	Error string
	Cold  bool
}

type closedSaid struct {
	Ledgers []struct{ Given, Returned, Dropped, Outstanding, Strays, Chunks int }
	DMA     []struct {
		Mappings    int
		LiveBuffers int `json:"live_buffers"`
		MapCalls    int `json:"map_calls"`
		UnmapCalls  int `json:"unmap_calls"`
	}
	Error string
}

// sickness is a fault of the model, what the monitor must say of it, and which rung must end it.
type sickness struct {
	name, fault string
	level       string // the highest rung that is allowed
	condition   string
	within      func(limitsSaid) time.Duration // how long the monitor may take, with its last period
	by          string                         // the rung that must work; "" is none
	next        string                         // what the report must then recommend
	remedy      string                         // what the model must be told for it to work again
}

func atOnce(l limitsSaid) time.Duration     { return l.Period }
func twice(l limitsSaid) time.Duration      { return 2 * l.Period } // one look may be a glitch
func stalled(l limitsSaid) time.Duration    { return l.Stall + l.Period }
func unanswered(l limitsSaid) time.Duration { return commandLimit + stalled(l) }

var sicknesses = []sickness{
	{name: "fatal", fault: everyField("fatal@HW_FATAL_ERR+now"), level: "flr", condition: "fatal-rfr", within: atOnce, by: "sw-reset"},
	{name: "fatal-flr", fault: "fatal@now+heal=flr", level: "flr", condition: "fatal-rfr", within: atOnce, by: "flr"},
	{name: "stall", fault: "stall@now", level: "flr", condition: "counter-stopped", within: stalled, by: "sw-reset"},
	{name: "stall-syndrome", fault: "stall@DEAD_IRISC+now", level: "flr", condition: "syndrome-stopped", within: stalled, by: "sw-reset"},
	{name: "commands-dead", fault: "commands-dead@now", level: "flr", condition: "commands-dead", within: unanswered, by: "flr"},
	{name: "nic-disabled", fault: "nic-disabled@now", level: "flr", condition: "nic-disabled", within: atOnce, by: "reopen"},
	{name: "all-ones", fault: "health-all-ones@now", level: "flr", condition: "pci-comm-error", within: twice, by: "flr"},
	{name: "nonfatal", fault: everyField("syndrome@HIGH_TEMP_ERR"), level: "reopen", condition: "syndrome-nonfatal", within: twice, by: "reopen", remedy: "clear"},
	{name: "not-allowed", fault: "fatal@now", level: "reopen", condition: "fatal-rfr", within: atOnce, next: "sw-reset"},
	{name: "cold", fault: "fatal@now+crr", level: "hot-reset", condition: "fatal-crr", within: atOnce, next: "cold", remedy: "clear"},
}

// everyField gives each field of the health buffer a value of its own.
func everyField(fault string) string {
	return fault + "+sev=CRITICAL+irisc=7+ext=0xbeef+time=1700000000+exit=0x12345678+callra=0x9abcdef0+assert=0xa/0xb/0xc/0xd/0xe/0xf"
}

// healthFaults: a function of kernel VFIO falls ill under our driver. The monitor says so within its limit, a bundle is
// kept, the ladder brings it back by the rung that must do it, data moves again, and nothing is left.
func healthFaults(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	for _, s := range sicknesses {
		b.suffer(bdf, s)
	}
	b.selftest("selftest", bdf)
}

func (b *bench) suffer(bdf string, s sickness) {
	b.step("%s", s.name)
	box := "/tmp/" + s.name + ".box"
	p, err := launch(nil, prober, "recover", bdf, box, s.level, s.condition)
	if !b.check(s.name+"/start", err == nil, "%v", errText(err)) {
		return
	}
	if !p.printed(says("ready"), probeLimit) {
		o := p.kill()
		b.check(s.name+"/ready", false, "%v", o)
		return
	}
	resets, cerr := b.counter(bdf, "resets")
	before := time.Now()
	told := b.told(s.name+"/fault", bdf, "fault "+s.fault)
	after := time.Now()
	o := p.wait(probeLimit)
	b.keep(s.name, o.transcript())
	end, err := b.counter(bdf, "resets")
	if !told {
		return
	}
	lines, lerr := saidLines(o.stdout)
	b.check(s.name+"/life", lerr == nil && o.ok() == (s.by != ""), "%v; %v", errText(lerr), o)
	b.seen(s, lines, before, after)
	b.recovered(s, lines)
	b.resets(s, end-resets, errors.Join(cerr, err))
	b.box(s, box, lines)
	b.leftNothing(s, lines)
	b.released(s.name+"/released", bdf)
	left := interrupts(bdf)
	b.check(s.name+"/interrupts-gone", len(left) == 0, "%v", left)
	if s.remedy != "" {
		b.told(s.name+"/remedy", bdf, s.remedy)
	}
}

// seen judges what the monitor said, and when. The fault struck between before and after.
func (b *bench) seen(s sickness, lines []said, before, after time.Time) {
	var e eventSaid
	var limits limitsSaid
	_, err := one(lines, "ready", &limits)
	_, serr := one(lines, "sick", &e)
	took, limit := e.At.Sub(after), s.within(limits)
	early := s.condition == "counter-stopped" && e.At.Sub(before) < limits.Stall-2*limits.Period
	b.check(s.name+"/seen", err == nil && serr == nil && e.Verdict.Condition == s.condition && took <= limit+lateness && !early,
		"%s (%s) %v after the fault, limit %v: %v %v", e.Verdict.Condition, e.Verdict.State, took.Round(time.Millisecond), limit, errText(err), errText(serr))
}

// recovered judges the ladder.
func (b *bench) recovered(s sickness, lines []said) {
	var r recoverySaid
	var rungs []string
	_, err := one(lines, "recovery", &r)
	worked := 0
	for _, g := range r.Report.Rungs {
		rungs = append(rungs, strings.TrimSpace(g.Rung+" "+g.Outcome+" "+g.Reason))
		if g.Outcome == "worked" {
			worked++
		}
	}
	text := strings.Join(rungs, "; ")
	if s.by == "" {
		cold := s.next == "cold"
		b.check(s.name+"/ladder", err == nil && !r.Report.Recovered && r.Error != "" && r.Report.Next == s.next && r.Report.ColdReset == cold && r.Cold == cold && worked == 0,
			"next %q, want %q; %s; %s; %v", r.Report.Next, s.next, r.Error, text, errText(err))
		return
	}
	b.check(s.name+"/ladder", err == nil && r.Report.Recovered && r.Error == "" && r.Report.By == s.by && worked == 1, "by %q, want %q; %s; %v", r.Report.By, s.by, text, errText(err))
	var v verdictSaid
	_, err = one(lines, "well", &v)
	good := v.State == "healthy" || s.condition == "syndrome-nonfatal" && v.Condition == s.condition
	moved := 0
	for _, l := range lines {
		if l.Is == "moved" {
			moved++
		}
	}
	b.check(s.name+"/works", err == nil && good && moved == 2*dataSteps, "%s (%s), %d of %d kinds of data moved before and after: %v", v.State, v.Condition, moved, 2*dataSteps, errText(err))
}

// dataSteps is how many kinds of operations the probe moves data by, each time.
const dataSteps = 4

// resets counts what the device saw of resets of the function, which the kernel makes: one when the function is given
// back, and one of the ladder or, where it did not help, of the driver's end.
func (b *bench) resets(s sickness, n float64, err error) {
	want := 2.0
	if s.by == "reopen" || s.by == "sw-reset" {
		want = 1
	}
	b.check(s.name+"/resets", err == nil && n == want, "the device was reset %v times, want %v; %v", n, want, errText(err))
}

// boxSaid is what the probe finds in a black box.
type boxSaid struct {
	Recorded    bool
	Damage      []string
	Sections    []string
	FirstSample uint64 `json:"first_sample"`
	Samples     []sampleSaid
	Report      struct {
		Verdict  verdictSaid
		Verdicts []verdictSaid
	}
	Buffer *bufferSaid
}

type sampleSaid struct {
	Elapsed int64
	Counter uint32
	Synd    uint8
	State   string
}

func (b *bench) readBox(name, path string) (box boxSaid, err error) {
	o := run(cliLimit, prober, "read", path)
	b.keep(name, o.transcript())
	lines, err := saidLines(o.stdout)
	if err == nil {
		_, err = one(lines, "box", &box)
	}
	return box, errors.Join(err, o.failure)
}

// neededSections are those that every bundle must have; names of docs/blackbox.md.
var neededSections = []string{
	"about.json", "notes.txt", "health/report.json", "health/buffer.json", "health/buffer.bin", "health/history.json", "init-segment.bin",
	"commands.json", "commands.txt", "events.json", "capabilities.json", "ledger.json", "firmware.json",
}

// box judges the bundle: it is whole, and says what was seen.
func (b *bench) box(s sickness, path string, lines []said) {
	var e eventSaid
	_, serr := one(lines, "sick", &e)
	box, err := b.readBox(s.name+"-box", path)
	missing := slices.DeleteFunc(slices.Clone(neededSections), func(n string) bool { return slices.Contains(box.Sections, n) })
	// recovery has begun when the bundle is made
	same := box.Report.Verdict.Condition == "recovery" && slices.ContainsFunc(box.Report.Verdicts, func(v verdictSaid) bool { return v.Condition == s.condition })
	if e.Buffer != nil {
		same = same && box.Buffer != nil && box.Buffer.Raw == e.Buffer.Raw
	}
	b.check(s.name+"/bundle", serr == nil && err == nil && len(box.Damage) == 0 && len(missing) == 0 && same,
		"missing %v, damage %v, verdicts %+v, %v %v", missing, box.Damage, box.Report.Verdicts, errText(serr), errText(err))
}

// leftNothing judges the accounts: of every life each page came back, and no memory is mapped.
func (b *bench) leftNothing(s sickness, lines []said) {
	var c closedSaid
	_, err := one(lines, "closed", &c)
	lives := 1
	if s.by != "" {
		lives = 2
	}
	// a function that nothing has helped cannot be torn down in good order, and Close says so
	ok := err == nil && (c.Error == "") == (s.by != "") && len(c.Ledgers) >= lives
	for i, l := range c.Ledgers {
		// a rung's bring-up that failed at once gave nothing
		ok = ok && (l.Given > 0 || i > 0 && i < len(c.Ledgers)-1) && l.Given == l.Returned+l.Dropped && l.Outstanding == 0 && l.Strays == 0 && l.Chunks == 0
	}
	ok = ok && len(c.DMA) == lives
	for _, d := range c.DMA {
		ok = ok && d.Mappings == 0 && d.LiveBuffers == 0 && d.MapCalls > 0 && d.MapCalls == d.UnmapCalls
	}
	b.check(s.name+"/accounts", ok, "ledgers %+v, DMA %+v, %s %v", c.Ledgers, c.DMA, c.Error, errText(err))
}
