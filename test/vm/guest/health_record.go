//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
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
