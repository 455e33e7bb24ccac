//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The doctor is asked in states of a real kernel. What it says is held against what then happens: where it sees
// something in the way an open must fail, where it sees nothing an open must succeed, and its remedies must help.

// diagnosis is what the doctor said of one function.
type diagnosis struct {
	ready    bool
	verdict  string
	findings []any
	unseen   string
	backend  string // by which an open would go
}

// find is the finding of an id, nil when there is none.
func (d diagnosis) find(id string) map[string]any { return entry(d.findings, "id", id) }

func (d diagnosis) text(id, field string) string { s, _ := at(d.find(id), field).(string); return s }

// diagnosed asks the doctor, and checks the exit status and that what blocks and what it warns of is exactly want.
func (b *bench) diagnosed(name string, o outcome, want ...string) (diagnosis, bool) {
	b.keep(name, o.transcript())
	object, err := decode(o.stdout)
	fns, _ := object["functions"].([]any)
	if !b.check(name+"-json", err == nil && len(fns) == 1, "%v; %v", errText(err), o) {
		return diagnosis{}, false
	}
	var d diagnosis
	d.ready, _ = at(fns[0], "ready").(bool)
	d.verdict, _ = at(fns[0], "verdict").(string)
	d.findings, _ = at(fns[0], "findings").([]any)
	d.backend, _ = at(fns[0], "backend").(string)
	d.unseen = fmt.Sprint(at(fns[0], "unseen"))
	var got []string
	blocks := false
	for _, f := range d.findings {
		blocks = blocks || at(f, "severity") == "blocks"
		if id := fmt.Sprint(at(f, "id")); at(f, "severity") != "note" || slices.Contains(want, id) {
			got = append(got, id)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	code := 0
	if blocks {
		code = 1
	}
	return d, b.check(name, slices.Equal(got, want) && o.code == code && d.ready == !blocks, "%s: %v, want %v; status %d, want %d", d.verdict, got, want, o.code, code)
}

func (b *bench) doctor(name, bdf string, want ...string) (diagnosis, bool) {
	b.step("%s", name)
	return b.diagnosed(name, run(cliLimit, b.argv("doctor", bdf, "--json")...), want...)
}

// obey does what a remedy says: "echo VALUE > FILE", "mkdir -p FOLDER", "mknod -m 600 FILE c MAJOR MINOR", or our own
// program. Nothing in this machine is a shell.
func (b *bench) obey(name, remedy string) bool {
	command, _, _ := strings.Cut(remedy, "  #")
	if first, rest, ok := strings.Cut(command, "; "); ok {
		return b.obey(name+"-first", first) && b.obey(name, rest)
	}
	f := strings.Fields(command)
	var err error
	switch {
	case len(f) == 4 && f[0] == "echo" && f[2] == ">":
		err = sysfsWrite(f[3], f[1])
	case len(f) == 3 && f[0] == "mkdir":
		err = os.MkdirAll(f[2], 0o755)
	case len(f) == 7 && f[0] == "mknod":
		mode, e0 := strconv.ParseUint(f[2], 8, 9)
		major, e1 := strconv.Atoi(f[5])
		minor, e2 := strconv.Atoi(f[6])
		if err = errors.Join(e0, e1, e2); err == nil {
			err = syscall.Mknod(f[3], syscall.S_IFCHR|uint32(mode), minor&0xff|major<<8|minor&^0xff<<12) // Linux kdev_t.h, new_encode_dev
		}
	case len(f) >= 3 && f[0] == "mlxvfio":
		_, ok := b.works(name, append([]string{f[1]}, f[2:]...)...)
		return ok
	default:
		err = fmt.Errorf("no command that this machine knows")
	}
	return b.check(name, err == nil, "%q: %v", command, errText(err))
}

// doctor: from a kernel without the modules to a function that opens, one remedy after the other, and what may come
// between later.
func doctor(b *bench) {
	bdf := b.bdfs[0]
	beside := strings.TrimSuffix(bdf, "0") + "1"
	sibling := driverOf(beside)
	if !b.check("sibling", sibling != "" && groupOf(beside) == groupOf(bdf), "%s: driver %q, group %q; %s: group %q", beside, sibling, groupOf(beside), bdf, groupOf(bdf)) {
		return
	}
	if err := unbindByHand(bdf); !b.check("prepare", err == nil, "%v", errText(err)) {
		return
	}
	var err error
	for _, m := range []string{"vfio_pci", "vfio_pci_core", "vfio_iommu_type1", "vfio"} {
		err = errors.Join(err, unload(m))
	}
	if b.check("unload", err == nil, "%v", errText(err)) {
		d, _ := b.doctor("no-modules", bdf, "module-missing", "not-bound", "group-not-viable")
		b.check("no-modules-remedy", strings.HasPrefix(d.text("module-missing", "remedy"), "modprobe -a vfio-pci vfio_iommu_type1"), "%s", d.text("module-missing", "remedy"))
		b.refuses("no-modules-true", 3, "vfio-pci", "bind", bdf)
	}
	for _, m := range []string{"vfio_iommu_type1", "vfio_pci"} {
		err = errors.Join(err, b.mods.load(m, ""))
	}
	if !b.check("load", err == nil, "%v", errText(err)) {
		return
	}

	d, ok := b.doctor("sibling-bound", bdf, "not-bound", "group-not-viable")
	members, _ := at(d.find("group-not-viable"), "siblings").([]any)
	b.check("sibling-named", ok && len(members) == 1 && at(members[0], "bdf") == beside && at(members[0], "driver") == sibling, "%v", members)
	b.refuses("sibling-true", 3, beside, "bind", bdf)
	if !b.obey("sibling-remedy", d.text("group-not-viable", "remedy")) {
		return
	}
	d, ok = b.doctor("unbound", bdf, "not-bound", "group-shared")
	b.refuses("unbound-true", 3, "mlxvfio bind", "selftest", bdf)

	err = sysfsWrite(sysfs(bdf, "driver_override"), "vfio_pci\n")
	if perr := probe(bdf); b.check("spelling-prepare", err == nil && perr == nil && driverOf(bdf) == "", "%v, %v, %s", errText(err), errText(perr), driverState(bdf)) {
		b.doctor("spelling", bdf, "not-bound", "override-spelling")
	}
	if !ok || !b.obey("unbound-remedy", d.text("not-bound", "remedy")) {
		return
	}
	b.asleep(bdf)
	b.selftest("ready-true", bdf)

	if p, ok := b.holdUp("holder", bdf); ok {
		d, _ := b.doctor("busy", bdf, "busy")
		holders, _ := at(d.find("busy"), "holders").([]any)
		b.check("busy-pid", len(holders) == 1 && at(holders[0], "pid") == float64(p.cmd.Process.Pid) && at(holders[0], "comm") == "mlxvfio", "%v, want %d", holders, p.cmd.Process.Pid)
		b.refuses("busy-true", 3, "in use", "selftest", bdf)
		p.kill()
		b.released("busy-released", bdf)
	}

	node := groupNode(bdf)
	if err := os.Remove(node); b.check("node-prepare", err == nil, "%v", errText(err)) {
		d, _ := b.doctor("node-missing", bdf, "node-missing")
		b.refuses("node-missing-true", 3, node, "selftest", bdf)
		b.obey("node-missing-remedy", d.text("node-missing", "remedy"))
		b.doctor("node-again", bdf)
		b.selftest("node-again-true", bdf)
	}

	// between two drivers, as a killed bind leaves it: the journal is there, the function has no driver
	if err := sysfsWrite(sysfs(bdf, "driver", "unbind"), bdf); b.check("cut-off-prepare", err == nil && len(journals(bdf)) == 1, "%v, %v", errText(err), journals(bdf)) {
		d, _ := b.doctor("cut-off", bdf, "interrupted-bind")
		b.obey("cut-off-remedy", d.text("interrupted-bind", "remedy"))
		b.check("cut-off-restored", driverOf(bdf) == "" && len(journals(bdf)) == 0, "%s, %v", driverState(bdf), journals(bdf))
		b.doctor("cut-off-after", bdf, "not-bound", "override-spelling") // that is what the function had before bind
	}
	err = unbindByHand(bdf)
	b.check("given-back", err == nil && noOverride(bdf), "%v, %s", errText(err), driverState(bdf))
}

// asleep: an idle function of vfio-pci sleeps, the doctor says so, and does not wake it.
func (b *bench) asleep(bdf string) {
	state := func() string { return readFile(sysfs(bdf, "power_state")) }
	for end := time.Now().Add(5 * time.Second); state() != "D3hot" && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	d, ok := b.doctor("asleep", bdf, "asleep")
	b.check("asleep-true", ok && state() == "D3hot" && d.verdict == "ready", "%s, then %s: the doctor must not wake it", d.verdict, state())
}

// doctorUser: a user who may lock little memory and owns no node.
func doctorUser(b *bench) {
	bdf := b.bdfs[0]
	const user, little, enough = 1000, 64 << 10, 256 << 20
	if !b.onVFIO(bdf) {
		return
	}
	node := groupNode(bdf)
	ask := func(name string, memlock uint64, want ...string) (diagnosis, bool) {
		b.step("%s", name)
		return b.diagnosed(name, runAs(user, memlock, cliLimit, program, "doctor", bdf, "--json"), want...)
	}
	open := func(name string, memlock uint64, code int, want string) {
		b.step("%s", name)
		o := runAs(user, memlock, cliLimit, program, "selftest", bdf)
		b.keep(name, o.transcript())
		b.check(name, o.code == code && strings.Contains(o.stdout+o.stderr, want), "want status %d and %q; %v", code, want, o)
	}
	d, _ := ask("nothing", little, "memlock", "node-permission")
	b.check("nothing-unseen", strings.Contains(d.unseen, "run as root"), "%s", d.unseen)
	b.check("nothing-remedy", strings.HasPrefix(d.text("node-permission", "remedy"), "sudo chown") && strings.HasSuffix(d.text("node-permission", "remedy"), node), "%s", d.text("node-permission", "remedy"))
	open("nothing-true", enough, 3, "permission")
	if err := os.Chown(node, user, user); !b.check("chown", err == nil, "%v", errText(err)) {
		return
	}
	ask("memlock", little, "memlock")
	open("memlock-true", little, 1, "RLIMIT_MEMLOCK")
	b.released("memlock-released", bdf)
	ask("tight", 16<<20, "memlock-tight")
	open("tight-true", 16<<20, 0, "pass")
	ask("enough", enough)
	open("enough-true", enough, 0, "pass")
	b.released("released", bdf)
	err := errors.Join(os.Chown(node, 0, 0), unbindByHand(bdf))
	b.check("given-back", err == nil && driverOf(bdf) == "", "%v, %s", errText(err), driverState(bdf))
	o := runAs(user, enough, cliLimit, program, "doctor", bdf, "--json")
	b.diagnosed("bind-permission", o, "not-bound", "bind-permission")
}

// doctorHost: the function of a running mlx5_core, from there to vfio-pci and back.
func doctorHost(b *bench) {
	bdf := b.bdfs[0]
	const host = "mlx5_core"
	b.step("load %s", host)
	err := within(90*time.Second, func() error { return b.mods.load(host, "") })
	if !b.check("host-driver", err == nil && driverOf(bdf) == host, "%v, %s", errText(err), driverState(bdf)) {
		return
	}
	d, ok := b.doctor("bound", bdf, "not-bound")
	b.check("bound-named", ok && strings.HasSuffix(d.text("not-bound", "seen"), "/driver is "+host), "%s", d.text("not-bound", "seen"))
	b.refuses("bound-true", 3, host, "selftest", bdf)
	if !b.obey("bound-remedy", d.text("not-bound", "remedy")) {
		return
	}
	b.doctor("ready", bdf)
	b.selftest("ready-true", bdf)
	if _, ok := b.works("unbind", "unbind", bdf); ok {
		b.check("restored", driverOf(bdf) == host && len(journals(bdf)) == 0, "%s, %v", driverState(bdf), journals(bdf))
	}
	if err := unbindByHand(bdf); err != nil {
		b.check("given-back", false, "%v", err)
	}
}

// doctorNoIOMMU: the kernel command line turns the IOMMU off, or this machine has none.
func doctorNoIOMMU(b *bench) {
	bdf := b.bdfs[0]
	want := "neither DMAR nor IVRS"
	if _, err := os.Stat("/sys/firmware/acpi/tables/DMAR"); err == nil {
		want = "intel_iommu=off"
	}
	if err := unbindByHand(bdf); !b.check("prepare", err == nil && groupOf(bdf) == "", "%v, group %q", errText(err), groupOf(bdf)) {
		return
	}
	d, _ := b.doctor("no-iommu", bdf, "no-iommu", "not-bound", "vm-without-iommu")
	b.check("no-iommu-reason", strings.Contains(d.text("no-iommu", "seen"), want), "%q: %s", want, d.text("no-iommu", "seen"))
	b.check("no-iommu-remedy", !strings.Contains(want, "=") || strings.Contains(d.text("no-iommu", "remedy"), "--remove-args="+want), "%s", d.text("no-iommu", "remedy"))
	b.refuses("no-iommu-true", 3, "IOMMU", "bind", bdf)
	b.check("untouched", driverOf(bdf) == "" && noOverride(bdf) && len(journals(bdf)) == 0, "%s, %v", driverState(bdf), journals(bdf))
	if o := b.cli("list", "list"); b.check("list", o.ok() && strings.Contains(o.stdout, "needs an IOMMU, bind"), "%v", o) {
		b.refuses("not-there", 3, "no such PCI function", "doctor", "0000:ff:1f.7")
	}
}

// doctorRemapping: an IOMMU that does not remap interrupts. That the kernel refuses it, and that the remedy helps, is
// shown by the scenario that comes after.
func doctorRemapping(b *bench) {
	bdf := b.bdfs[0]
	if !b.onVFIO(bdf) {
		return
	}
	d, _ := b.doctor("no-remapping", bdf, "no-interrupt-remapping")
	const param = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts"
	b.check("remedy", strings.HasPrefix(d.text("no-interrupt-remapping", "remedy"), "echo Y > "+param), "%s", d.text("no-interrupt-remapping", "remedy"))
	if err := sysfsWrite(param, "Y"); b.check("allowed-prepare", err == nil, "%v", errText(err)) {
		b.doctor("allowed", bdf, "unsafe-interrupts")
	}
	if err := sysfsWrite(param, "N"); err != nil {
		b.check("given-back", false, "%v", err)
	}
}
