//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	hostDriver = "mlx5_core"
	// pollLimit is in what time this driver must have seen an error: it looks every 2 s and a bit, and calls a counter
	// stopped after the third look in a row.
	pollLimit = 25 * time.Second
	// healLimit is for its whole recovery: it waits for the device, and takes its time.
	healLimit = 60 * time.Second
	// outsidePeriod is the probe's.
	outsidePeriod = 100 * time.Millisecond
)

// printed lines of mlx5_core about the health buffer (Linux health.c, print_health_info).
var healthLine = regexp.MustCompile(`mlx5_core (\S+): print_health_info:\d+:\(pid \d+\): (.*)`)

// kernelBuffer is what the lines say, by the driver's names of the fields; the head line is under "".
func kernelBuffer(log []record, bdf string) map[string]string {
	out := map[string]string{}
	for _, r := range log {
		m := healthLine.FindStringSubmatch(r.text)
		if m == nil || m[1] != bdf {
			continue
		}
		line := m[2]
		if strings.HasPrefix(line, "Health issue observed") {
			clear(out) // a new one begins
			out[""] = line
			continue
		}
		if line == "Cold reset is required" { // what a later driver makes of crr
			out["cold reset"] = "required"
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		for _, name := range []string{"severity ", "synd "} { // words follow the number
			if strings.HasPrefix(line, name) {
				i = len(name) - 1
			}
		}
		if i > 0 {
			out[line[:i]] = line[i+1:]
		}
	}
	return out
}

// ourBuffer is our reading in the driver's words, field by field, and the running firmware.
func ourBuffer(b *bufferSaid, firmware string) map[string]string {
	flag := map[bool]string{false: "0", true: "1"}
	out := map[string]string{
		"assert_exit_ptr": fmt.Sprintf("0x%08x", b.AssertExitPtr), "assert_callra": fmt.Sprintf("0x%08x", b.AssertCallRA),
		"fw_ver": firmware, "raw fw_ver": fmt.Sprintf("0x%08x", b.FWVersion), "time": strconv.FormatUint(uint64(b.Time), 10),
		"hw_id": fmt.Sprintf("0x%08x", b.HWID), "rfr": flag[b.RFR], "crr": flag[b.CRR], "severity": fmt.Sprintf("%d (%s)", b.Severity, b.SeverityName),
		"irisc_index": fmt.Sprint(b.IRISCIndex), "synd": fmt.Sprintf("0x%x", b.Synd), "ext_synd": fmt.Sprintf("0x%04x", b.ExtSynd),
	}
	if b.CRR {
		out["cold reset"] = "required"
	}
	for i, v := range b.AssertVar {
		out[fmt.Sprintf("assert_var[%d]", i)] = fmt.Sprintf("0x%08x", v)
	}
	return out
}

// difference tells which fields the driver and we have read differently; what stands behind a colon is the driver's words for
// the number.
func difference(theirs, ours map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		value, _, _ := strings.Cut(theirs[name], ":")
		if value != ours[name] {
			out = append(out, fmt.Sprintf("%s: %s has %q, we have %q", name, hostDriver, theirs[name], ours[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		if _, ok := ours[name]; !ok && name != "" {
			out = append(out, fmt.Sprintf("%s: %s has %q, we have no such field", name, hostDriver, theirs[name]))
		}
	}
	return out
}

// twoViews is a function that mlx5_core drives and that our monitor watches through sysfs.
type twoViews struct {
	*bench
	bdf   string
	probe *process
	link  *devlink
	log   *kernelLog
	lines []record // of the log, so far
	since int      // from where on a step looks
}

// healthSysfs: the same errors, seen by the kernel's driver and by our monitor, which share nothing but the function: every
// field that the driver prints is what we read.
func healthSysfs(b *bench) {
	bdf := b.bdfs[0]
	b.step("load %s", hostDriver)
	err := within(90*time.Second, func() error { return b.mods.load(hostDriver, "") })
	if !b.check("host-driver", err == nil && driverOf(bdf) == hostDriver, "%v, %s", errText(err), driverState(bdf)) {
		return
	}
	link, err := openDevlink()
	if !b.check("devlink", err == nil, "%v", errText(err)) {
		return
	}
	defer func() { _ = link.close() }() // nothing is written through it
	log := watchLog()
	defer log.close()
	p, err := launch(nil, prober, "watch", bdf, outsidePeriod.String())
	if !b.check("watch", err == nil, "%v", errText(err)) {
		return
	}
	v := &twoViews{bench: b, bdf: bdf, probe: p, link: link, log: log}
	known := p.printed(says("known"), cliLimit)
	b.check("healthy", known && v.until(cliLimit, func() bool { return v.last().Condition == "ok" }), "%s", brief(readFile(p.out.Name())))
	b.allow("FWTracer: Events were lost") // the model's firmware writes more than a busy guest reads
	v.nonFatal()
	v.fatal()
	signal := p.cmd.Process.Signal(syscall.SIGTERM)
	o := p.wait(cliLimit)
	b.keep("probe", o.transcript())
	lines, lerr := saidLines(o.stdout)
	var r struct{ Verdict verdictSaid }
	_, rerr := one(lines, "report", &r)
	err = errors.Join(signal, o.failure, lerr, rerr)
	b.check("well-again", err == nil && r.Verdict.State == "healthy", "%s (%s) in the end; %v", r.Verdict.State, r.Verdict.Condition, errText(err))
	err = unbindByHand(bdf)
	b.check("unbind", err == nil, "%v: the driver's commands work", errText(err))
}

// nonFatal: an error without rfr. The driver counts it, and prints it when the counter stands still too.
func (v *twoViews) nonFatal() {
	before, err := v.link.state(v.bdf, "fw")
	start := time.Now()
	if !v.check("nonfatal/reporter", err == nil && !before.Broken, "%+v %v", before, errText(err)) ||
		!v.told("nonfatal/fault", v.bdf, "fault "+everyField("syndrome@HIGH_TEMP_ERR+crr")) {
		return
	}
	after := time.Now()
	e, ok := v.ours("nonfatal/ours", "nonfatal-crr", start, after, 2*outsidePeriod)
	var now reporterState
	v.until(pollLimit, func() bool {
		now, err = v.link.state(v.bdf, "fw")
		return err != nil || now.Errors != before.Errors
	})
	v.check("nonfatal/counted", err == nil && now.Errors == before.Errors+1, "%+v, before: %+v, %v", now, before, errText(err))
	d, err := v.link.diagnose(v.bdf, "fw")
	v.check("nonfatal/diagnose", err == nil && ok && d["Syndrome"] == fmt.Sprint(e.Buffer.Synd) && d["Description"] != "", "devlink %v, ours synd %d %q; %v", d, e.Buffer.Synd, e.Buffer.SyndText, errText(err))
	if v.logs(time.Second, "print_health_info") {
		v.same("nonfatal", e, ok)
	} else {
		v.skip("nonfatal/same-fields", "this driver prints only what is fatal")
	}

	v.expect("reached miss count")
	start = time.Now()
	if !v.told("stopped/fault", v.bdf, "fault health-stuck") {
		return
	}
	after = time.Now()
	e, ok = v.ours("stopped/ours", "syndrome-stopped", start, after, 2*time.Second+2*outsidePeriod)
	v.check("stopped/their-verdict", v.logs(pollLimit, "reached miss count"), "%s must say that the counter stands still", hostDriver)
	v.same("stopped", e, ok)
	start = time.Now()
	v.told("stopped/clear", v.bdf, "clear")
	v.until(cliLimit, func() bool { return v.verdicts(start)["ok"] })
	v.check("stopped/over", v.verdicts(start)["ok"], "our verdicts since: %v", v.verdicts(start))
	d, err = v.link.diagnose(v.bdf, "fw")
	v.check("stopped/diagnose", err == nil && d["Syndrome"] == "0", "%v %v", d, errText(err))
}

// fatal: the driver prints the buffer, resets the firmware and comes up again, while we look on.
func (v *twoViews) fatal() {
	for _, text := range []string{"Fatal error", "handling bad device", "mlx5_error_sw_reset", "Issuing FW Reset", "starting health recovery flow"} {
		v.expect(text)
	}
	for _, text := range []string{"Skipping wait for vf pages", "Expected to see disabled NIC but it is full driver", "Failed to arm tracer event"} {
		v.allow(text) // it depends on where the error meets the driver
	}
	before, err := v.link.state(v.bdf, "fw_fatal")
	start := time.Now()
	if !v.check("fatal/reporter", err == nil && !before.Broken, "%+v %v", before, errText(err)) ||
		!v.told("fatal/fault", v.bdf, "fault "+everyField("fatal@HW_FATAL_ERR+now")) {
		return
	}
	e, ok := v.ours("fatal/ours", "fatal-rfr", start, time.Now(), outsidePeriod)
	v.same("fatal", e, ok)
	healed := v.logs(healLimit, "health recovery succeeded")
	v.check("fatal/their-recovery", healed, "%s must say that its recovery succeeded", hostDriver)
	v.until(cliLimit, func() bool { return v.last().Condition == "ok" })
	v.check("fatal/our-view", v.last().Condition == "ok", "our verdicts since: %v", slices.Sorted(maps.Keys(v.verdicts(start))))
	var now reporterState
	v.until(pollLimit, func() bool {
		now, err = v.link.state(v.bdf, "fw_fatal")
		return err != nil || now.Recoveries != before.Recoveries
	})
	v.check("fatal/counted", err == nil && !now.Broken && now.Errors == before.Errors+1 && now.Recoveries == before.Recoveries+1, "%+v, before: %+v, %v", now, before, errText(err))
}

// until looks again and again.
func (v *twoViews) until(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return true
		}
	}
	return done()
}

// logs waits for a text in the kernel's log, from where the last step ended.
func (v *twoViews) logs(limit time.Duration, text string) bool {
	return v.until(limit, func() bool {
		v.lines = append(v.lines, v.log.read()...)
		return slices.ContainsFunc(v.lines[v.since:], func(r record) bool { return strings.Contains(r.text, text) })
	})
}

// events are our monitor's, so far.
func (v *twoViews) events(since time.Time) (out []eventSaid) {
	text := readFile(v.probe.out.Name()) + "\n"
	for line := range strings.Lines(text) {
		var l said
		var e eventSaid
		if json.Unmarshal([]byte(line), &l) == nil && (l.Is == "verdict" || l.Is == "syndrome") && json.Unmarshal(l.What, &e) == nil && !e.At.Before(since) {
			out = append(out, e)
		}
	}
	return out
}

func (v *twoViews) verdicts(since time.Time) map[string]bool {
	out := map[string]bool{}
	for _, e := range v.events(since) {
		out[e.Verdict.Condition] = true
	}
	return out
}

func (v *twoViews) last() verdictSaid {
	e := v.events(time.Time{})
	if len(e) == 0 {
		return verdictSaid{}
	}
	return e[len(e)-1].Verdict
}

// ours waits for our monitor's verdict, and holds it against its limit. The fault struck between start and after.
func (v *twoViews) ours(name, condition string, start, after time.Time, limit time.Duration) (e eventSaid, ok bool) {
	ok = v.until(limit+5*time.Second, func() bool {
		all := v.events(start)
		i := slices.IndexFunc(all, func(e eventSaid) bool { return e.Verdict.Condition == condition })
		if i >= 0 {
			e = all[i]
		}
		return i >= 0
	})
	if e.Buffer == nil {
		ok, e.Buffer = false, &bufferSaid{}
	}
	took := e.At.Sub(after)
	return e, v.check(name, ok && took <= limit+lateness && !e.Buffer.Torn, "%s %v after the fault, limit %v", e.Verdict.Condition, took.Round(time.Millisecond), limit)
}

// same waits until the driver has printed the buffer, and compares it with ours.
func (v *twoViews) same(name string, e eventSaid, ok bool) {
	v.expect("print_health_info")
	printed := v.logs(pollLimit, "raw fw_ver")
	time.Sleep(200 * time.Millisecond) // a later driver says something about it
	v.lines = append(v.lines, v.log.read()...)
	theirs := kernelBuffer(v.lines[v.since:], v.bdf)
	v.since = len(v.lines)
	if !ok || !v.check(name+"/printed", printed && theirs[""] != "", "%q", theirs[""]) {
		return
	}
	ours := ourBuffer(e.Buffer, v.firmware[v.bdf])
	if _, has := theirs["crr"]; !has {
		delete(ours, "crr") // an older driver does not know of it
		delete(ours, "cold reset")
	}
	d := difference(theirs, ours)
	v.check(name+"/same-fields", len(d) == 0 && len(theirs)-1 == len(ours), "%d fields, those of assert_var[0] %s, synd %s, rfr %s, crr %q; %s", len(ours), theirs["assert_var[0]"], theirs["synd"], theirs["rfr"], theirs["crr"], strings.Join(d, "; "))
}
