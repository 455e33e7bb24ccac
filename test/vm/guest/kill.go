//go:build linux

package main

import (
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
		o := p.kill()
		ws, isWait := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		b.check(stage+"/killed", isWait && ws.Signaled() && ws.Signal() == syscall.SIGKILL, "%v", o.failure)
		if b.released(stage+"/released", bdf) {
			b.selftest(stage+"/clean-run", bdf)
		}
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
	if stages := b.stages(); len(stages) > 0 {
		if p, ok := b.stopAt("killed", bdf, stages[len(stages)-1]); ok {
			p.kill()
		}
	}
	if !home("unbind") {
		return
	}
	// a bind takes some tenths of a second here, most of them in the host driver's removal
	for _, after := range []time.Duration{30, 80, 200, 500} {
		after *= time.Millisecond
		name := fmt.Sprintf("bind-killed-after-%v", after)
		p, err := launch(nil, program, "bind", bdf)
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
