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
)

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
	for _, f := range slotFunctions(bdf) { // all of a group, or the kernel gives nobody any of it
		if !b.onVFIO(f) {
			return
		}
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
		group := groupOf(h.Name)
		if b.backend == byCdev {
			group = "-1" // the kernel tells device ids of the iommufd there, and no groups
		}
		good = good && h.Self == (h.Name == bdf) && fmt.Sprint(h.Group) == group && h.Owned == (groupOf(h.Name) == groupOf(bdf))
	}
	sort.Strings(names)
	want := slotFunctions(bdf)
	b.check("hits", err == nil && herr == nil && good && slices.Equal(names, want) && len(want) > 0, "%+v; sysfs has %v in the slot; %v %v", hits, want, errText(err), errText(herr))
	b.released("released", bdf)
	b.selftest("selftest", bdf)
	for _, f := range want {
		if f != bdf {
			err := unbindByHand(f)
			b.check("given-back-"+f, err == nil, "%v", errText(err))
		}
	}
}

// slotShared: another function is in the slot. Without a driver it keeps the kernel from resetting the slot, which is said;
// then both are the probe's.
func slotShared(b *bench) {
	bdf := b.bdfs[0]
	others := slices.DeleteFunc(slotFunctions(bdf), func(f string) bool { return f == bdf })
	if !b.check("shared", len(others) == 1 && groupOf(others[0]) == groupOf(bdf), "beside %s there are %v", bdf, others) {
		return
	}
	err := unbindByHand(others[0])
	if !b.check("no-driver", err == nil && driverOf(others[0]) == "", "%v, %s", errText(err), driverState(others[0])) || !b.onVFIO(bdf) {
		return
	}
	p, err := launch(nil, prober, "slot", bdf)
	if !b.check("start", err == nil, "%v", errText(err)) {
		return
	}
	parked := p.printed(says("parked"), probeLimit)
	if parked {
		err = p.cmd.Process.Signal(syscall.SIGUSR1)
	}
	o := p.wait(probeLimit)
	b.keep("refused", o.transcript())
	b.check("refused", parked && err == nil && o.code == 1 && strings.Contains(o.stderr, "to vfio-pci") && strings.Contains(o.stderr, others[0]) && !strings.Contains(o.stdout, says("reset")), "%v", o)
	b.released("refused-released", bdf)
	slot(b)
}
