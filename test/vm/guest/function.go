//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// list: the program sees what sysfs shows.
func list(b *bench) {
	objects, ok := b.works("list", "list", "--json")
	if !ok {
		return
	}
	text := ""
	for _, o := range objects {
		text += strings.ToLower(jsonText(o))
	}
	for _, bdf := range b.bdfs {
		b.check("lists-"+bdf, strings.Contains(text, bdf), "%s", brief(text))
	}
	b.refuses("no-function", 3, "0000:ff:1f.7", "info", "0000:ff:1f.7")
	b.refuses("no-device", 2, "not-a-device", "info", "not-a-device")
}

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

// info: what the device says of itself, through VFIO and, behind any driver's back, through sysfs.
func info(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	version := regexp.MustCompile(`\d+\.\d+\.\d+`)
	var versions []string
	for name, dev := range map[string]string{"info": bdf, "info-short": strings.TrimPrefix(bdf, "0000:"), "info-sysfs": "sysfs:" + bdf} {
		objects, ok := b.works(name, "info", dev, "--json")
		if !ok {
			continue
		}
		v := version.FindString(jsonText(objects[0]))
		b.check(name+"-firmware", v != "", "%s", brief(jsonText(objects[0])))
		versions = append(versions, v)
	}
	for _, v := range versions {
		b.check("same-firmware", v == versions[0], "%v", versions)
	}
	b.released("released", bdf)
}

// caps and commands: the other verbs that bring the function up for a moment.
func verbs(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if objects, ok := b.works("caps", "caps", bdf, "--json"); ok {
		text := jsonText(objects[0])
		b.check("caps-general", strings.Contains(text, "log_max_qp"), "%s", brief(text))
	}
	b.released("caps-released", bdf)
	b.works("reg-get", "reg", "get", bdf, "PAOS", "--json")
	b.released("reg-released", bdf)
	b.works("exec", "exec", bdf, "QUERY_ADAPTER", "--json")
	b.released("exec-released", bdf)
	b.refuses("bad-opcode", 1, "BAD_OP", "exec", bdf, "0xcff")
	b.released("bad-opcode-released", bdf)
}

// selftest: bring-up with event queues on MSI-X, and teardown; twice, because the second finds what the first left.
func selftest(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	if b.selftest("first", bdf) {
		b.selftest("second", bdf)
	}
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
	stages := b.stages()
	if len(stages) == 0 {
		return
	}
	last := stages[len(stages)-1]
	p, ok := b.stopAt("in-use", bdf, last)
	if !ok {
		return
	}
	err = reset()
	b.check("in-use", err == nil, "at %s: %v", last, errText(err))
	p.kill()
	b.released("in-use-released", bdf)
	b.selftest("after-in-use", bdf)
}

// busy: a function that one process drives is refused to a second one, which says so.
func busy(b *bench) {
	bdf := b.bdfs[0]
	stages := b.stages()
	if !b.onVFIO(bdf) || len(stages) == 0 {
		return
	}
	p, ok := b.stopAt("holder", bdf, stages[len(stages)-1])
	if !ok {
		return
	}
	b.refuses("refused", 3, "busy", "selftest", bdf)
	b.check("holder-lives", p.alive(), "the refused one must not disturb the first")
	p.kill()
	b.selftest("after", bdf)
}

// pair: two functions at once, in parallel and one dying beside the other.
func pair(b *bench) {
	x, y := b.bdfs[0], b.bdfs[1]
	if !b.onVFIO(x) || !b.onVFIO(y) {
		return
	}
	b.check("groups", groupOf(x) != groupOf(y), "%s in group %s, %s in group %s", x, groupOf(x), y, groupOf(y))
	var procs []*process
	for _, bdf := range []string{x, y} {
		p, err := launch(nil, program, "selftest", bdf, "--json")
		if !b.check("start-"+bdf, err == nil, "%v", errText(err)) {
			return
		}
		procs = append(procs, p)
	}
	for i, p := range procs {
		o := p.wait(cliLimit)
		b.keep("parallel-"+b.bdfs[i], o.transcript())
		objects, err := decode(o.stdout)
		if err == nil {
			err = judgeSelftest(objects)
		}
		b.check("parallel-"+b.bdfs[i], o.ok() && err == nil, "%v; %v", errText(err), o)
	}
	stages := b.stages()
	if len(stages) == 0 {
		return
	}
	p, ok := b.stopAt("held", x, stages[len(stages)-1])
	if !ok {
		return
	}
	b.selftest("beside-held", y)
	held := groupFree(x)
	b.check("still-held", p.alive() && held != nil, "%s: %v", x, errText(held))
	p.kill()
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
	b.refuses("selftest", 3, remedy, "selftest", bdf)
	b.released("released", bdf)
	err := os.WriteFile("/sys/module/vfio_iommu_type1/parameters/"+remedy, []byte("1"), 0)
	if b.check("remedy", err == nil, "%v", errText(err)) {
		b.selftest("with-remedy", bdf)
	}
}

// contract: the hardware tests of the rooms, over the kernel's VFIO.
func contract(name string) func(*bench) {
	verdict := regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)
	return func(b *bench) {
		bdf := b.bdfs[0]
		if !b.onVFIO(bdf) {
			return
		}
		b.step("%s.test", name)
		o := runWith([]string{"MLXVFIO_TEST_BDF=" + bdf}, 100*time.Second, "/bin/"+name+".test", "-test.v", "-test.run=^TestHW", "-test.timeout=90s")
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
