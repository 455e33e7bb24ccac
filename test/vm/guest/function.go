//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// bind: a function without a driver goes to vfio-pci; the journal tells how to undo it.
func bind(b *bench) {
	bdf := b.bdfs[0]
	err := unbindByHand(bdf)
	if !b.check("prepare", err == nil && driverOf(bdf) == "", "%v, %s", errText(err), driverState(bdf)) {
		return
	}
	if _, ok := b.works("bind", "bind", bdf); !ok {
		return
	}
	b.check("driver", driverOf(bdf) == "vfio-pci", "%s", driverState(bdf))
	b.check("journal", len(journals(bdf)) == 1, "%v", journals(bdf))
	b.check("group", groupOf(bdf) != "", "IOMMU group %q", groupOf(bdf))
	b.released("group-free", bdf)
}

// unbind: what bind changed is restored, and the journal goes.
func unbind(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if _, ok := b.works("unbind", "unbind", bdf); !ok {
		return
	}
	b.check("driver", driverOf(bdf) == "" && noOverride(bdf), "%s, want none: the function had none", driverState(bdf))
	b.check("journal", len(journals(bdf)) == 0, "%v", journals(bdf))
	b.check("group-gone", groupFree(bdf) != nil, "the group's node goes with the last vfio-pci function")
	if b.backend == noIOMMU {
		b.check("mode-off", readFile(noIOMMUMode) == "N", "%s is %q: it was off before", noIOMMUMode, readFile(noIOMMUMode))
	}
}

// journals are the files that tell how to give the function back.
func journals(bdf string) []string {
	files, err := filepath.Glob(journalDir + "/*" + bdf + "*")
	if err != nil {
		return nil
	}
	return files
}

func noOverride(bdf string) bool {
	o := readFile(sysfs(bdf, "driver_override"))
	return o == "" || o == "(null)"
}

// selftest: bring-up with event queues on MSI-X, and teardown; twice, because the second finds what the first left; and
// without interrupts.
func selftest(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if b.selftest("first", bdf) {
		b.selftest("second", bdf)
	}
	b.polledSelftest("polled", bdf)
}

// flr: the function level reset of an idle function, of one that a program has brought up, and what comes after.
func flr(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	methods := readFile(sysfs(bdf, "reset_method"))
	b.check("method", strings.Fields(methods + " none")[0] == "flr", "reset methods %q: the first is used", methods)
	reset := func() error { return sysfsWrite(sysfs(bdf, "reset"), "1") }
	err := reset()
	b.check("idle", err == nil, "%v", errText(err))
	b.selftest("after-idle", bdf)
	p, ok := b.holdUp("hold", bdf)
	if !ok {
		return
	}
	err = reset()
	b.check("in-use", err == nil, "%v", errText(err))
	p.kill()
	b.released("in-use-released", bdf)
	b.selftest("after-in-use", bdf)
}

// busy: a function that one process drives has its interrupts, and is refused to a second process, which says so.
func busy(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	p, ok := b.holdUp("holder", bdf)
	if !ok {
		return
	}
	seen := interrupts(bdf)
	b.check("interrupts", len(seen) >= 3 && seen[0] > 0, "/proc/interrupts counts by vector %v, want three vectors or more, and some of vector 0, the commands'", seen)
	b.refuses("refused", 3, "in use", "selftest", bdf)
	b.refuses("sysfs", 3, "iomem=relaxed", "info", "sysfs:"+bdf) // this kernel lets nobody map a BAR that a driver has claimed
	b.check("holder-lives", p.alive(), "the refused ones must not disturb the first")
	p.kill()
	b.released("released", bdf)
	left := interrupts(bdf)
	b.check("interrupts-gone", len(left) == 0, "%v", left)
	b.selftest("after", bdf)
}

// pair: two functions at once, in parallel and one dying beside the other.
func pair(b *bench) {
	x, y := b.bdfs[0], b.bdfs[1]
	if !b.onVFIO(x) || !b.onVFIO(y) {
		return
	}
	b.check("groups", groupOf(x) != groupOf(y), "%s in group %s, %s in group %s", x, groupOf(x), y, groupOf(y))
	b.check("versions", b.firmware[x] != b.firmware[y], "the models must differ, to be told apart: %v", b.firmware)
	var procs []*process
	for _, bdf := range []string{x, y} {
		p, err := launch(nil, b.argv("selftest", bdf, "--json")...)
		if !b.check("start-"+bdf, err == nil, "%v", errText(err)) {
			return
		}
		procs = append(procs, p)
	}
	for i, p := range procs {
		b.judged("parallel-"+b.bdfs[i], b.bdfs[i], p.wait(cliLimit))
	}
	b.released("parallel-released-"+x, x)
	b.released("parallel-released-"+y, y)
	idle := freeHugePages()
	p, ok := b.holdUp("held", x)
	if !ok {
		return
	}
	held := freeHugePages()
	b.check("huge-pages", held >= 0 && held < idle, "%d of 2 MiB free while %s is up, %d before: it must take its memory from them", held, x, idle)
	b.selftest("beside-held", y, p)
	free := groupFree(x)
	b.check("still-held", p.alive() && free != nil, "%s: %v", x, errText(free))
	p.kill()
	b.released("killed-released", x)
	b.check("huge-pages-free", freeHugePages() == idle, "%d free, %d before: those of a killed process must come back", freeHugePages(), idle)
	b.selftest("after-kill-same", x)
	b.selftest("after-kill-other", y)
}

// refused: without interrupt remapping the kernel refuses the container, and the program must say what to do.
func refused(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	const remedy = "allow_unsafe_interrupts"
	b.expect("No interrupt remapping support") // the kernel says it too, each time
	b.refuses("selftest", 3, remedy, "selftest", bdf)
	b.released("released", bdf)
	err := os.WriteFile("/sys/module/vfio_iommu_type1/parameters/"+remedy, []byte("1"), 0)
	if b.check("remedy", err == nil, "%v", errText(err)) {
		b.selftest("with-remedy", bdf)
	}
}

// refusedWays: the same in a kernel with every way into VFIO. Each has a remedy of its own.
func refusedWays(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	const remedy = "allow_unsafe_interrupts"
	b.expect("No interrupt remapping support") // of type1
	b.expect("MSI interrupts are not secure")  // of iommufd, when it is allowed
	for _, c := range []struct{ way, module string }{{byCdev, "iommufd"}, {byGroup, "vfio_iommu_type1"}} {
		by := b.via(c.way, "--backend", c.way)
		param := "/sys/module/" + c.module + "/parameters/" + remedy
		by.refuses(c.way, 3, param, "selftest", bdf)
		d, _ := by.doctor(c.way+"-doctor", bdf, "no-interrupt-remapping")
		b.check(c.way+"-doctor-remedy", strings.Contains(d.text("no-interrupt-remapping", "remedy"), param), "%s", d.text("no-interrupt-remapping", "remedy"))
		b.released(c.way+"-released", bdf)
		if !b.obey(c.way+"-remedy", d.text("no-interrupt-remapping", "remedy")) {
			continue
		}
		by.doctor(c.way+"-doctor-allowed", bdf, "unsafe-interrupts")
		by.selftest(c.way+"-with-remedy", bdf)
		err := sysfsWrite(param, "N")
		b.check(c.way+"-given-back", err == nil, "%v", errText(err))
	}
	// the one way is refused and the other one is allowed: what is chosen is refused, and not quietly left
	err := sysfsWrite("/sys/module/vfio_iommu_type1/parameters/"+remedy, "Y")
	b.check("type1-allowed", err == nil, "%v", errText(err))
	b.refuses("no-fall-back", 3, "/sys/module/iommufd/parameters/"+remedy, "selftest", bdf)
}

// pairApart: while one function is up, the other one's IOMMU lets nothing through; the models say what they are given.
func pairApart(b *bench) {
	x, y := b.bdfs[0], b.bdfs[1]
	for i, up := range []string{x, y} {
		other := b.bdfs[1-i]
		p, ok := b.holdUp("up-"+up, up)
		if !ok {
			return
		}
		own, err := b.stateOf(up, "mappings")
		others, oerr := b.stateOf(other, "mappings")
		b.check("apart-"+up, err == nil && oerr == nil && own > 0 && others == 0, "%s is given %v mappings, %s %v; %v, %v", up, own, other, others, errText(err), errText(oerr))
		p.kill()
		b.released("released-"+up, up)
	}
}

// pairShared: one address space for both, and the models are given the same.
func pairShared(b *bench) {
	x, y := b.bdfs[0], b.bdfs[1]
	if !b.onVFIO(x) || !b.onVFIO(y) {
		return
	}
	steps, err := os.MkdirTemp("", "steps")
	if !b.check("prepare", err == nil, "%v", errText(err)) {
		return
	}
	p, err := launch(append(b.testEnv(x), "MLXVFIO_TEST_PEER="+y, "MLXVFIO_TEST_STEPS="+steps), "/bin/vfio.test", "-test.v", "-test.run=^TestHWShared$")
	if !b.check("start", err == nil, "%v", errText(err)) {
		return
	}
	for end := time.Now().Add(cliLimit); p.alive() && !exists(steps+"/mapped") && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	one, err := b.stateOf(x, "mappings")
	other, oerr := b.stateOf(y, "mappings")
	b.check("same", err == nil && oerr == nil && one > 0 && one == other, "%s is given %v mappings, %s %v; %v, %v", x, one, y, other, errText(err), errText(oerr))
	err = os.WriteFile(steps+"/seen", nil, 0o600)
	o := p.wait(cliLimit)
	b.keep("output", o.transcript())
	b.check("test", err == nil && o.ok() && strings.Contains(o.stdout, "--- PASS: TestHWShared"), "%v; %v", errText(err), o)
	b.released("released-"+x, x)
	b.released("released-"+y, y)
	b.selftest("after-"+x, x)
	b.selftest("after-"+y, y)
}

const (
	hardwareTests = "^Test(HW|Hardware)"
	contractLimit = 3 * time.Minute
)

// contract: the hardware tests of the rooms, over the kernel's VFIO.
func contract(name string) func(*bench) {
	verdict := regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	return func(b *bench) {
		bdf := b.bdfs[0]
		if !b.onVFIO(bdf) {
			return
		}
		b.step("%s.test", name)
		o := runWith(b.testEnv(bdf), contractLimit, "/bin/"+name+".test", "-test.v", "-test.run="+hardwareTests, fmt.Sprintf("-test.timeout=%v", contractLimit-10*time.Second))
		b.keep("output", o.transcript())
		passed := 0
		for _, m := range verdict.FindAllStringSubmatch(o.stdout, -1) {
			switch m[1] {
			case "PASS":
				passed++
				b.check(m[2], true, "")
			case "FAIL":
				b.check(m[2], false, "see the output file")
			case "SKIP":
				b.skip(m[2], "see the output file")
			}
		}
		b.check("tests", o.ok() && passed > 0, "%d passed; %v after %.1f s %s", passed, errText(o.failure), o.took.Seconds(), brief(o.stderr))
		b.released("released", bdf)
	}
}
