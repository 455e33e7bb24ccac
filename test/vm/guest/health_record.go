//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

// healthKilled: a process that records a black box is killed, at moments that it has not chosen, also while the function is
// ill. Whatever it had recorded is in the file, the kernel takes the function back, and the next process can have it.
func healthKilled(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	const box = "/tmp/record.box"
	for i, k := range []struct {
		name, fault, condition string
		after                  time.Duration
	}{
		{"healthy", "", "ok", 700 * time.Millisecond},
		{"ill", everyField("syndrome@HIGH_TEMP_ERR"), "syndrome-nonfatal", 300 * time.Millisecond},
		{"dead", everyField("fatal@HW_FATAL_ERR+now"), "fatal-rfr", 150 * time.Millisecond},
	} {
		b.step("%s", k.name)
		p, err := launch(nil, prober, "record", bdf, box)
		if !b.check(k.name+"/start", err == nil, "%v", errText(err)) {
			return
		}
		up := p.printed(`"state":"healthy"`, probeLimit)
		if k.fault != "" && up {
			up = b.told(k.name+"/fault", bdf, "fault "+k.fault) && p.printed(fmt.Sprintf("%q", k.condition), probeLimit)
		}
		time.Sleep(k.after)
		alive := p.alive()
		o := p.kill()
		b.keep(k.name, o.transcript())
		if !b.check(k.name+"/recording", up && alive, "%v", o) {
			continue
		}
		ws, isWait := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		b.check(k.name+"/killed", isWait && ws.Signaled() && ws.Signal() == syscall.SIGKILL, "%v", errText(o.failure))
		b.lastWords(k.name, box, o.stdout, k.condition)
		b.released(k.name+"/released", bdf)
		left := interrupts(bdf)
		b.check(k.name+"/interrupts-gone", len(left) == 0, "%v", left)
		if k.fault != "" {
			b.told(k.name+"/clear", bdf, "clear")
		}
		b.selftest(k.name+"/clean-run", bdf)
		if i > 0 { // the file of the process before was moved aside, whole
			before, err := b.readBox(k.name+"-previous", box+".previous")
			b.check(k.name+"/previous", err == nil && len(before.Damage) == 0 && len(before.Samples) > 0, "%d samples, damage %v, %v", len(before.Samples), before.Damage, errText(err))
		}
	}
}

// lastWords compares the box with what the dead process had said it recorded.
func (b *bench) lastWords(name, path, stdout, condition string) {
	stdout = stdout[:strings.LastIndexByte(stdout, '\n')+1] // the last line may be cut
	lines, err := saidLines(stdout)
	var told []sampleSaid
	for _, l := range lines {
		if l.Is != "sample" {
			continue
		}
		var s sampleSaid
		if _, e := one([]said{l}, "sample", &s); e != nil {
			err = errors.Join(err, e)
		}
		told = append(told, s)
	}
	box, berr := b.readBox(name+"-box", path)
	n := len(told)
	same := n > 5 && len(box.Samples) >= n && len(box.Samples) <= n+2 && slices.Equal(box.Samples[:n], told) // one for the cut line, one not yet printed
	b.check(name+"/last-sample", err == nil && berr == nil && box.Recorded && box.FirstSample == 1 && len(box.Damage) == 0 && same,
		"%d samples printed, %d in the file from number %d, damage %v: %v %v", n, len(box.Samples), box.FirstSample, box.Damage, errText(err), errText(berr))
	shows := condition == "ok" || box.Buffer != nil && box.Buffer.ExtSynd == 0xbeef && n > 0 && box.Samples[len(box.Samples)-1].Synd == box.Buffer.Synd
	b.check(name+"/last-verdict", berr == nil && box.Report.Verdict.Condition == condition && shows, "%+v, want %s; buffer %+v", box.Report.Verdict, condition, box.Buffer)
}

// slotFunctions are the functions that share the bus of the port above bdf, by sysfs: what a hot reset of the slot hits.
func slotFunctions(bdf string) []string {
	path, err := filepath.EvalSymlinks(sysfs(bdf))
	if err != nil {
		return nil
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), "[0-9a-f]*:*.[0-7]"))
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range found {
		out = append(out, filepath.Base(f))
	}
	sort.Strings(out)
	return out
}

// slot: what the kernel says a hot reset would hit is what sysfs shows below the port; the reset itself reaches the device.
func slot(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	p, err := launch(nil, prober, "slot", bdf)
	if !b.check("start", err == nil, "%v", errText(err)) {
		return
	}
	count := func(is string) float64 {
		if !p.printed(says(is), probeLimit) {
			b.check(is, false, "the probe did not come so far")
			return 0
		}
		n, err := b.counter(bdf, "resets")
		sig := p.cmd.Process.Signal(syscall.SIGUSR1)
		b.check(is, err == nil && sig == nil, "the device has seen %v resets; %v", n, errText(errors.Join(err, sig)))
		return n
	}
	before := count("parked")
	after := count("reset")
	o := p.wait(probeLimit)
	b.keep("probe", o.transcript())
	b.check("reached", after == before+1, "%v resets before, %v after", before, after)
	b.check("works", o.ok() && strings.Count(o.stdout, says("moved")) == dataSteps, "%v", o)
	lines, err := saidLines(o.stdout)
	var hits []struct {
		Name        string
		Group       int
		Self, Owned bool
	}
	_, herr := one(lines, "hits", &hits)
	var names []string
	good := true
	for _, h := range hits {
		names = append(names, h.Name)
		good = good && h.Self == (h.Name == bdf) && fmt.Sprint(h.Group) == groupOf(h.Name) && h.Owned == (h.Name == bdf)
	}
	sort.Strings(names)
	want := slotFunctions(bdf)
	b.check("hits", err == nil && herr == nil && good && slices.Equal(names, want) && len(want) > 0, "%+v; sysfs has %v in the slot; %v %v", hits, want, errText(err), errText(herr))
	b.released("released", bdf)
	b.selftest("selftest", bdf)
}
