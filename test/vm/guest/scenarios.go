//go:build linux

package main

import (
	"os"
	"strings"
	"time"
)

// scenario is a set of checks that leaves the machine as it found it.
type scenario struct {
	run   func(*bench)
	limit time.Duration
}

var scenarios = map[string]scenario{
	"list":      {list, time.Minute},
	"bind":      {bind, time.Minute},
	"unbind":    {unbind, time.Minute},
	"info":      {info, time.Minute},
	"verbs":     {verbs, 2 * time.Minute},
	"selftest":  {selftest, time.Minute},
	"flr":       {flr, 2 * time.Minute},
	"busy":      {busy, 2 * time.Minute},
	"pair":      {pair, 3 * time.Minute},
	"faulty":    {faulty, 3 * time.Minute},
	"refused":   {refused, time.Minute},
	"kill":      {kill, 6 * time.Minute},
	"kill-any":  {killRunning, 3 * time.Minute},
	"interrupt": {interrupt, 2 * time.Minute},
	"restore":   {restore, 4 * time.Minute},
	"data":      {data, 5 * time.Minute},
	"data-kill": {dataKilled, 3 * time.Minute},
	"tracer":    {tracer, 2 * time.Minute},
	"hosts":     {hosts, 5 * time.Minute},
	"broken":    {broken, 5 * time.Minute},

	"doctor":           {doctor, 2 * time.Minute},
	"doctor-user":      {doctorUser, time.Minute},
	"doctor-host":      {doctorHost, 2 * time.Minute},
	"doctor-no-iommu":  {doctorNoIOMMU, 30 * time.Second},
	"doctor-remapping": {doctorRemapping, 30 * time.Second},

	"health-faults": {healthFaults, 3 * time.Minute},
	"health-killed": {healthKilled, 2 * time.Minute},
	"slot":          {slot, time.Minute},
	"slot-shared":   {slotShared, 2 * time.Minute},
	"health-sysfs":  {healthSysfs, 3 * time.Minute},
	"pci-state":     {pciState, 30 * time.Second},

	"ways":         {ways, 2 * time.Minute},
	"ways-hidden":  {waysHidden, 2 * time.Minute},
	"refused-ways": {refusedWays, time.Minute},
	"pair-apart":   {pairApart, time.Minute},
	"pair-shared":  {pairShared, 2 * time.Minute},

	"noiommu-bind":  {noIOMMUBind, time.Minute},
	"noiommu-loud":  {noIOMMULoud, time.Minute},
	"noiommu-moved": {noIOMMUMoved, 3 * time.Minute},

	// of the bench itself
	"mechanics":     {mechanics, 30 * time.Second},
	"control-fail":  {controlFail, 10 * time.Second},
	"control-limit": {controlLimit, 10 * time.Second},
	"control-panic": {controlPanic, 10 * time.Second},
	"control-die":   {controlDie, 10 * time.Second},
	"control-hang":  {controlHang, 2 * time.Second},
}

// find looks a scenario up; "contract-NAME" runs the test binary /bin/NAME.test.
func find(name string) (scenario, bool) {
	if room, ok := strings.CutPrefix(name, "contract-"); ok {
		return scenario{contract(room), contractLimit + 20*time.Second}, true
	}
	s, ok := scenarios[name]
	return s, ok
}

// mechanics checks the bench, not the driver: this kernel, its IOMMU and vfio-pci do what the other scenarios rely on,
// shown on a function that QEMU makes by itself.
func mechanics(b *bench) {
	const vendorQEMU = "0x1b36"
	var bdf, node string
	for _, f := range functions(vendorQEMU) {
		if strings.HasPrefix(readFile(sysfs(f, "class")), "0x0108") { // an NVMe controller
			bdf = f
		}
	}
	if !b.check("stand-in", bdf != "", "functions of vendor %s: %v", vendorQEMU, functions(vendorQEMU)) {
		return
	}
	before := driverState(bdf)
	err := bindByHand(bdf, "vfio-pci")
	if !b.check("bind", err == nil && driverOf(bdf) == "vfio-pci", "%s: %v, %s", bdf, errText(err), driverState(bdf)) {
		return
	}
	b.check("group", groupOf(bdf) != "", "IOMMU group %q", groupOf(bdf))
	err = claim(bdf)
	b.check("group-exclusive", err == nil, "%v", errText(err))
	if exists(iommufdNode) { // a kernel with every way into VFIO
		node = cdevNode(bdf)
		b.check("cdev", node != "" && exists(node), "character device %q", node)
		b.check("modes", readFile(noIOMMUMode) == "N" && tainted() == 0, "%s is %q, tainted %#x", noIOMMUMode, readFile(noIOMMUMode), tainted())
	}
	b.check("no-users", len(vfioUsers()) == 0, "%s", strings.Join(vfioUsers(), "; "))
	methods := readFile(sysfs(bdf, "reset_method"))
	err = sysfsWrite(sysfs(bdf, "reset"), "1")
	b.check("reset", err == nil && strings.Contains(methods, "flr"), "methods %q: %v", methods, errText(err))
	err = unbindByHand(bdf)
	b.check("unbind", err == nil && driverOf(bdf) == "", "%v, %s", errText(err), driverState(bdf))
	b.check("group-gone", groupFree(bdf) != nil, "the group's node goes with the last vfio-pci function")
	b.check("cdev-gone", node == "" || !exists(node), "and so does the character device %q", node)
	err = probe(bdf)
	b.check("given-back", err == nil && driverState(bdf) == before, "%v, %s, before: %s", errText(err), driverState(bdf), before)
}

// The controls show that a check can fail, that a program cannot outlive its limit, that a panic costs one scenario,
// and that a scenario which never returns, or a worker that dies, ends the report but not the machine. The host expects these very failures.

func controlFail(b *bench) {
	b.check("planted", false, "this check must fail")
	log := watchLog()
	defer log.close()
	err := sysfsWrite("/dev/kmsg", "<3>vfio-pci: planted complaint")
	b.check("program-lines-ignored", err == nil && len(complaints(log.read())) == 0, "%v: what a program writes to the log is not the kernel's", errText(err))
}

func controlLimit(b *bench) {
	o := run(500*time.Millisecond, "/init", "sleep")
	b.check("killed", o.failure != nil && o.code == -1 && o.took < 4*time.Second, "%v", o)
	o = run(5*time.Second, "/init", "no-such-word")
	b.check("exit-status", o.code == 2 && strings.Contains(o.stderr, "/init of the real-kernel bench"), "status %d, %v", o.code, o)
	o = run(5*time.Second, "/bin/no-such-program")
	b.check("no-program", o.failure != nil && o.code == -1, "%v", o)
}

func controlPanic(*bench) { panic("planted") }

func controlHang(*bench) { select {} }

func controlDie(*bench) { os.Exit(3) }
