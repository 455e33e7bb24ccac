//go:build linux

package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// kill: SIGKILL at every stage, each followed by a clean run. The kernel takes the dead process's mappings and
// interrupts away and resets the function; nothing of the dead run may be in the way of the next.
func kill(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	for _, stage := range b.stages() {
		b.step("%s", stage)
		p, ok := b.stopAt(stage, bdf, stage)
		if !ok {
			continue
		}
		b.killed(stage, bdf, p)
	}
}

// killed kills a run that is going on, and wants the next one to be clean.
func (b *bench) killed(name, bdf string, p *process) {
	o := p.kill()
	if errors.Is(o.failure, errUnkillable) {
		b.check(name+"/killed", false, "%v", o.failure)
		return
	}
	ws, isWait := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	b.check(name+"/killed", isWait && ws.Signaled() && ws.Signal() == syscall.SIGKILL, "%v", errText(o.failure))
	left := interrupts(bdf)
	if b.released(name+"/released", bdf) && b.check(name+"/interrupts-gone", len(left) == 0, "%v", left) {
		b.selftest(name+"/clean-run", bdf)
	}
}

// killRunning: SIGKILL at moments that the program has not chosen, from its start through its bring-up, its checks and its
// teardown: the moments divide the time of a whole run.
func killRunning(b *bench) {
	bdf := b.bdfs[0]
	const moments = 12
	if !b.onVFIO(bdf) {
		return
	}
	start := time.Now()
	if !b.selftest("measure", bdf) {
		return
	}
	whole := time.Since(start)
	for i := range moments {
		after := whole * time.Duration(i+1) / (moments + 1)
		name := fmt.Sprintf("at-%02d", i+1)
		b.step("%s: after %v of %v", name, after, whole)
		p, err := launch(nil, b.argv("selftest", bdf, "--json")...)
		if !b.check(name, err == nil, "%v", errText(err)) {
			return
		}
		time.Sleep(after)
		if !p.alive() { // it was faster than the one that was measured
			b.judged(name+"/done", bdf, p.wait(cliLimit))
			continue
		}
		b.killed(name, bdf, p)
	}
}

// interrupt: SIGTERM in the middle gives the function back in order.
func interrupt(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	stages := b.stages()
	if len(stages) == 0 {
		return
	}
	for _, stage := range []string{stages[len(stages)/2], stages[len(stages)-1]} {
		p, ok := b.stopAt(stage, bdf, stage)
		if !ok {
			continue
		}
		err := p.cmd.Process.Signal(syscall.SIGTERM)
		o := p.wait(cliLimit)
		b.keep(stage, o.transcript())
		b.check(stage+"/status", err == nil && o.code == 130, "%v, want status 130; %v", errText(err), o)
		b.released(stage+"/released", bdf)
		b.selftest(stage+"/clean-run", bdf)
	}
}

// restore: the function of a running mlx5_core goes to vfio-pci and comes back, also when our program dies between,
// or in the middle of a bind.
func restore(b *bench) {
	bdf := b.bdfs[0]
	const host = "mlx5_core"
	b.step("load %s", host)
	start := time.Now()
	err := within(90*time.Second, func() error { return b.mods.load(host, "") })
	before := driverState(bdf)
	if !b.check("host-driver", err == nil && driverOf(bdf) == host, "%v after %.1f s, %s", errText(err), time.Since(start).Seconds(), before) {
		return
	}
	if o, ok := b.works("info-sysfs", "info", "sysfs:"+bdf, "--json"); ok { // beside the host's driver
		b.sameFirmware("info-sysfs", bdf, o)
	}
	home := func(name string) bool {
		if _, ok := b.works(name, "unbind", bdf); !ok {
			return false
		}
		return b.check(name+"-restored", driverState(bdf) == before && len(journals(bdf)) == 0, "%s, before: %s, journals %v",
			driverState(bdf), before, journals(bdf))
	}
	if _, ok := b.works("bind", "bind", bdf); !ok {
		return
	}
	b.check("bound", driverOf(bdf) == "vfio-pci" && len(journals(bdf)) == 1, "%s, journals %v", driverState(bdf), journals(bdf))
	b.selftest("selftest", bdf)
	if p, ok := b.holdUp("killed", bdf); ok {
		p.kill()
	}
	if !home("unbind") {
		return
	}
	// a bind takes some tenths of a second here, most of them in the host driver's removal
	for _, after := range []time.Duration{30, 80, 200, 500} {
		after *= time.Millisecond
		name := fmt.Sprintf("bind-killed-after-%v", after)
		p, err := launch(nil, b.argv("bind", bdf)...)
		if !b.check(name, err == nil, "%v", errText(err)) {
			return
		}
		o := p.wait(after) // kills it when it is over
		b.step("%s: %v, %s, journals %v", name, errText(o.failure), driverState(bdf), journals(bdf))
		if driverState(bdf) == before && len(journals(bdf)) == 0 {
			b.skip(name+"-unbind", "killed before it had changed anything")
			continue
		}
		if !home(name + "-unbind") {
			return
		}
	}
}
