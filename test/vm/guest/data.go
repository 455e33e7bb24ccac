//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"
)

// dataLimit is for one run of a verb that moves data.
const dataLimit = time.Minute

// dataMode is how completions are waited for: what a report must call it, and the flag that asks for it.
type dataMode struct {
	name  string
	flags []string
}

var (
	byInterrupt = dataMode{name: "event"}
	byPolling   = dataMode{name: "polled", flags: []string{"--polled"}}
)

// completionVector is the one behind those of commands, asynchronous events and pages.
const completionVector = 3

// moves runs a verb that moves data, asks it for JSON and looks meanwhile at the functions' interrupts: there must be one
// for completions, or none at all. seen is, for each function, the fullest line of counts by vector; of a short run it
// may be one from before the first completion.
func (b *bench) moves(name string, m dataMode, bdfs []string, args ...string) (text string, seen []map[int]int, ok bool) {
	b.step("%s", name)
	args = append(slices.Concat(args, m.flags), "--json")
	p, err := launch(nil, b.argv(args...)...)
	if err != nil {
		return "", nil, b.check(name, false, "%v", err)
	}
	seen = make([]map[int]int, len(bdfs))
	for end := time.Now().Add(dataLimit); p.alive() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for i, bdf := range bdfs {
			if now := interrupts(bdf); now[completionVector] > seen[i][completionVector] || len(now) > len(seen[i]) {
				seen[i] = now
			}
		}
	}
	o := p.wait(time.Second) // it has ended, or used up its limit
	b.keep(name, o.transcript())
	ok = b.check(name, o.ok(), "%v", o)
	for i, bdf := range bdfs {
		_, attached := seen[i][completionVector]
		if m.name == byInterrupt.name {
			ok = b.check(name+"-vector-"+bdf, attached, "/proc/interrupts counts by vector %v, want vector %d", seen[i], completionVector) && ok
		} else {
			ok = b.check(name+"-no-vector-"+bdf, len(seen[i]) == 0, "/proc/interrupts counts by vector %v, want no vector", seen[i]) && ok
		}
		ok = b.released(name+"-released-"+bdf, bdf) && ok
	}
	return o.stdout, seen, ok
}

// dataHead begins every report of a verb that moves data.
type dataHead struct {
	Schema, Device, Backend, Firmware, Mode string
	Peer                                    *struct{ Device, Backend, Firmware string }
}

func (b *bench) head(h dataHead, schema string, m dataMode, bdfs []string) error {
	var errs []error
	if h.Schema != "mlxvfio."+schema || h.Mode != m.name {
		errs = append(errs, fmt.Errorf("%s in %s mode, want mlxvfio.%s in %s mode", h.Schema, h.Mode, schema, m.name))
	}
	if h.Device != bdfs[0] || h.Backend != b.backend || h.Firmware != b.firmware[bdfs[0]] {
		errs = append(errs, fmt.Errorf("%s over %s with firmware %s, want %s over %s with %s", h.Device, h.Backend, h.Firmware, bdfs[0], b.backend, b.firmware[bdfs[0]]))
	}
	switch {
	case len(bdfs) == 1 && h.Peer != nil:
		errs = append(errs, fmt.Errorf("a peer %v nobody asked for", *h.Peer))
	case len(bdfs) == 2 && (h.Peer == nil || h.Peer.Device != bdfs[1] || h.Peer.Backend != b.backend):
		errs = append(errs, fmt.Errorf("peer %+v, want %s over %s", h.Peer, bdfs[1], b.backend))
	}
	return errors.Join(errs...)
}

// peerArgs are the arguments that name the functions.
func peerArgs(verb string, bdfs []string) []string {
	if len(bdfs) == 2 {
		return []string{verb, bdfs[0], "--peer", bdfs[1]}
	}
	return []string{verb, bdfs[0]}
}

// cardReport is what "litmus --json" prints, as far as it is judged here.
type cardReport struct {
	dataHead
	Runs, Hosts, Queues int
	TotalOps            int `json:"total_ops"`
	MaxAtomicSize       int `json:"max_atomic_size"`
	OK                  bool
	Faults              []string
	Rows                []cardRow
}

type cardRow struct {
	Test, Subject, Verdict, Fault, Detail string
	Required                              bool
	Ops                                   int
}

// cardTests must each have a row that holds; of torn writes outside the rule the model also lets some be seen.
var cardTests = []string{"probe", "operations", "adds", "mutex", "linear", "torn", "order"}

const (
	lockRows = 6      // semaphores of 1, 2 and 4 bytes, released in two ways
	fewOps   = 20_000 // of a run at the usual scale: fewer means that it was cut short
)

// judge says whether the card is a good one, of so many hosts.
func (r cardReport) judge(hosts int) error {
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(r.OK && len(r.Faults) == 0, "ok is %v, faults %v", r.OK, r.Faults)
	unless(r.Hosts == hosts && r.Runs == 1 && r.Queues > 1, "%d hosts, %d runs, %d queues, want %d hosts, one run, several queues", r.Hosts, r.Runs, r.Queues, hosts)
	unless(r.TotalOps >= fewOps, "%d operations, want %d", r.TotalOps, fewOps)
	unless(r.MaxAtomicSize > 8, "max_atomic_size %d: the model has extended atomics", r.MaxAtomicSize)
	held, torn, locks := map[string]bool{}, false, 0
	for _, row := range r.Rows {
		held[row.Test] = held[row.Test] || row.Verdict == "holds" && row.Ops > 0
		torn = torn || row.Test == "torn" && row.Verdict == "seen"
		if row.Test == "mutex" && strings.Contains(row.Subject, fmt.Sprintf("%d host", hosts)) {
			locks++
		}
		unless(!row.Required || row.Verdict == "holds", "%s: %s: %s %s", row.Test, row.Subject, row.Verdict, row.Detail)
		unless(slices.Contains([]string{"holds", "seen", "not seen"}, row.Verdict), "%s: %s: was not tried: %s %s", row.Test, row.Subject, row.Verdict, row.Detail)
	}
	for _, t := range cardTests {
		unless(held[t], "no row of %s holds", t)
	}
	unless(torn, "no torn write was seen outside the rule, so the test may be blind")
	unless(locks == lockRows, "%d rows about locks of %d hosts, want %d", locks, hosts, lockRows)
	return errors.Join(errs...)
}

// litmus runs the suite on one function, or on two that are linked.
func (b *bench) litmus(name string, m dataMode, bdfs ...string) bool {
	start := time.Now()
	text, seen, ok := b.moves(name, m, bdfs, peerArgs("litmus", bdfs)...)
	if !ok {
		return false
	}
	took := time.Since(start)
	if m.name == byInterrupt.name { // it takes seconds, and waits thousands of times
		for i, bdf := range bdfs {
			b.check(name+"-interrupts-"+bdf, seen[i][completionVector] > 20, "/proc/interrupts counts by vector %v", seen[i])
		}
	}
	var r cardReport
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = errors.Join(b.head(r.dataHead, "litmus/1", m, bdfs), r.judge(len(bdfs)))
	}
	return b.check(name+"-card", err == nil, "%d rows, %d operations, %.1f s: %v", len(r.Rows), r.TotalOps, took.Seconds(), errText(err))
}

// benchReport is what "bench --json" prints, as far as it is judged here.
type benchReport struct {
	dataHead
	Latency []latencyRow
	Rate    []rateRow
}

type latencyRow struct {
	Op         string
	Iterations int
	Min        float64 `json:"t_min_us"`
	Typical    float64 `json:"t_typical_us"`
	Max        float64 `json:"t_max_us"`
}

type rateRow struct {
	Op                string
	Iterations, Batch int
	Rate              float64
}

// benchOps and what else bench is asked for; benchIters operations a row.
const (
	benchOps     = "write,send,read,add,masked-cas"
	benchBatches = "1,16"
	benchIters   = 200
)

func (r benchReport) judge() error {
	var errs []error
	ops, batches := strings.Split(benchOps, ","), strings.Split(benchBatches, ",")
	if len(r.Latency) != len(ops) || len(r.Rate) != len(ops)*len(batches) {
		errs = append(errs, fmt.Errorf("%d latencies and %d rates, want %d and %d", len(r.Latency), len(r.Rate), len(ops), len(ops)*len(batches)))
	}
	for _, l := range r.Latency {
		if !slices.Contains(ops, l.Op) || l.Iterations != benchIters || l.Min <= 0 || l.Typical < l.Min || l.Max < l.Typical {
			errs = append(errs, fmt.Errorf("latency %+v", l))
		}
	}
	for _, x := range r.Rate {
		if !slices.Contains(ops, x.Op) || !slices.Contains(batches, fmt.Sprint(x.Batch)) || x.Iterations < benchIters || x.Rate <= 0 {
			errs = append(errs, fmt.Errorf("rate %+v", x))
		}
	}
	return errors.Join(errs...)
}

func (r benchReport) String() string {
	var out []string
	for _, l := range r.Latency {
		out = append(out, fmt.Sprintf("%s %.0f µs", l.Op, l.Typical))
	}
	return strings.Join(out, ", ")
}

// perf runs a short benchmark. What it measures here is the emulation.
func (b *bench) perf(name string, m dataMode, bdfs ...string) bool {
	args := append(peerArgs("bench", bdfs), "--op", benchOps, "--size", "8", "--batch", benchBatches, "--iters", fmt.Sprint(benchIters))
	if m.name == byInterrupt.name {
		args = append(args, "--events")
	}
	text, _, ok := b.moves(name, m, bdfs, args...)
	if !ok {
		return false
	}
	var r benchReport
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = errors.Join(b.head(r.dataHead, "bench/1", m, bdfs), r.judge())
	}
	return b.check(name+"-rows", err == nil, "%v: %v", r, errText(err))
}

// probeReport is what "atomic probe --json" prints, as far as it is judged here.
type probeReport struct {
	dataHead
	MaxAtomicSize int    `json:"max_atomic_size"`
	MaxWrite      int    `json:"max_atomic_write"`
	AtomicWrites  bool   `json:"atomic_writes"`
	WordOrder     string `json:"word_order"`
	Forms         []map[string]any
}

// probed runs "atomic probe", which must find what it finds on the same model in process.
func (b *bench) probed(name string, m dataMode, bdf string) {
	text, _, ok := b.moves(name, m, []string{bdf}, "atomic", "probe", bdf)
	if !ok {
		return
	}
	var r, inProcess probeReport
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = b.head(r.dataHead, "atomic-probe/1", m, []string{bdf})
	}
	b.check(name+"-head", err == nil, "%v", errText(err))
	o := b.cli(name+"-in-process", "atomic", "probe", b.models[bdf], "--json")
	if err := json.Unmarshal([]byte(o.stdout), &inProcess); !b.check(name+"-in-process", o.ok() && err == nil, "%v; %v", errText(err), o) {
		return
	}
	wrong := slices.DeleteFunc(slices.Clone(r.Forms), func(f map[string]any) bool { return f["wrong"] == 0.0 && f["runs"] != 0.0 && f["runs"] != nil })
	b.check(name+"-forms", len(r.Forms) > 10 && len(wrong) == 0, "%d forms, wrong or untried: %v", len(r.Forms), wrong)
	r.dataHead, inProcess.dataHead = dataHead{}, dataHead{}
	b.check(name+"-same", reflect.DeepEqual(r, inProcess), "%+v, in process %+v", r, inProcess)
}

// atomicRun does one operation whose outcome is worked out by hand: the block holds its offsets.
func (b *bench) atomicRun(bdf string) {
	o, ok := b.works("atomic-run", "atomic", "run", bdf, "--op", "cas", "--size", "1", "--offset", "5", "--compare", "5", "--value", "0xa7", "--json")
	if !ok {
		return
	}
	before, _ := o["before"].(string)
	after, _ := o["after"].(string)
	b.check("atomic-run-result", strings.HasPrefix(before, "000102030405060708") && len(after) == len(before) && after == before[:10]+"a7"+before[12:],
		"before %s, after %s", before, after)
	b.released("atomic-run-released", bdf)
}

// data: data moves through this kernel's VFIO, IOMMU and interrupts, by loopback.
func data(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	b.selftest("opcodes-event", bdf) // which does every operation, and says how often
	b.polledSelftest("opcodes-polled", bdf)
	for _, m := range []dataMode{byInterrupt, byPolling} {
		b.probed("probe-"+m.name, m, bdf)
		b.litmus("litmus-"+m.name, m, bdf)
		b.perf("bench-"+m.name, m, bdf)
	}
	b.atomicRun(bdf)
}

// dataKilled: a run that is in the middle of moving data is killed, or told to end. The device then has work in its queues,
// and memory that it writes to disappears.
func dataKilled(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	// the interrupts that a litmus run has taken when it is past the probing and its suite is under way
	const started, underWay = 20, 200
	busy := func(name string, enough int, args ...string) (*process, bool) {
		b.step("%s", name)
		p, err := launch(nil, b.argv(args...)...)
		if err != nil {
			return nil, b.check(name+"/moves", false, "%v", err)
		}
		n := 0
		for end := time.Now().Add(cliLimit); n < enough && p.alive() && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			n = interrupts(bdf)[completionVector]
		}
		if b.check(name+"/moves", n >= enough && p.alive(), "%d interrupts of the completion vector", n) {
			return p, true
		}
		b.keep(name, p.kill().transcript())
		return nil, false
	}
	for _, c := range []struct {
		name   string
		enough int
		args   []string
	}{
		{"probe", started, []string{"litmus", bdf, "--for", "1h"}},
		{"litmus", underWay, []string{"litmus", bdf, "--for", "1h"}},
		{"bench-write", started, []string{"bench", bdf, "--events", "--rate", "--op", "write", "--size", "8192", "--iters", "10000000"}},
		{"bench-atomics", started, []string{"bench", bdf, "--events", "--rate", "--op", "masked-cas", "--size", "8", "--iters", "10000000"}},
	} {
		if p, ok := busy(c.name, c.enough, c.args...); ok {
			b.killed(c.name, bdf, p)
		}
	}
	if p, ok := busy("terminated", underWay, "litmus", bdf, "--for", "1h"); ok {
		err := p.cmd.Process.Signal(syscall.SIGTERM)
		o := p.wait(cliLimit)
		b.keep("terminated", o.transcript())
		b.check("terminated/status", err == nil && o.code == 130, "%v, want status 130; %v", errText(err), o)
		b.released("terminated/released", bdf)
		b.selftest("terminated/clean-run", bdf)
	}
}

// hosts: two functions of two models with a wire between them lock, update and write the same memory.
func hosts(b *bench) {
	x, y := b.bdfs[0], b.bdfs[1]
	if !b.onVFIO(x) || !b.onVFIO(y) {
		return
	}
	b.litmus("litmus-event", byInterrupt, x, y)
	b.perf("bench-event", byInterrupt, x, y)
	b.litmus("litmus-polled", byPolling, y, x) // the other way round, which also finds what the first runs left
	b.selftest("after-"+x, x)
	b.selftest("after-"+y, y)
}

// broken: devices that do atomics or writes wrong; the suite must say so, and name the fault as the model does.
func broken(b *bench) {
	for _, bdf := range b.bdfs {
		_, fault, ok := strings.Cut(b.models[bdf], "fault=")
		if !b.check(fault+"/known", ok, "%s is %s", bdf, b.models[bdf]) || !b.onVFIO(bdf) {
			continue
		}
		b.step("%s", fault)
		o := run(dataLimit, b.argv("litmus", bdf, "--json")...)
		b.keep(fault+"/litmus", o.transcript())
		var card cardReport
		err := json.Unmarshal([]byte(o.stdout), &card)
		named := slices.ContainsFunc(card.Rows, func(r cardRow) bool { return r.Verdict == "broken" && r.Fault == fault })
		b.check(fault+"/card", err == nil && o.code == 1 && !card.OK && named && slices.Equal(card.Faults, []string{fault}),
			"status %d, ok %v, faults %v, want %s; %v; %v", o.code, card.OK, card.Faults, fault, errText(err), o)
		line, err := decode(o.stderr)
		text, _ := at(line, "error").(string)
		b.check(fault+"/named", err == nil && at(line, "fault") == fault && strings.Contains(text, fault), "%v: %s", errText(err), brief(o.stderr))
		b.released(fault+"/released", bdf)
	}
}
