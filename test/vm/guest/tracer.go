//go:build linux

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

const (
	tracerLimit = 30 * time.Second // for one step, the other driver's or ours
	traceDir    = "/sys/kernel/tracing"
)

// tracer: the firmware tracer of one chip, which its two functions share. First ours alone, through vfio-pci: every
// block is read. Then mlx5_core on the other function has it, lets go of it, comes back while we have it, and gets it
// when we let go. Both are told by the device's event, and whoever has it reads what firmware writes.
func tracer(b *bench) {
	theirs, ours := b.bdfs[0], b.bdfs[1]
	if !b.onVFIO(ours) {
		return
	}
	defer func() {
		b.check("given-back", unbindByHand(ours) == nil && driverOf(ours) == "", "%s", driverState(ours))
	}()
	b.step("alone")
	o := runWith([]string{"MLXVFIO_TEST_BDF=" + ours, "MLXVFIO_TEST_LOAD=plain"}, tracerLimit, "/bin/driver.test", "-test.v", "-test.run=^TestHardwareTracer$")
	b.keep("alone", o.transcript())
	b.check("alone", o.ok() && strings.Contains(o.stdout, "--- PASS: TestHardwareTracer"), "%v", o)
	b.released("alone-released", ours)

	log := watchLog()
	defer log.close()
	var said []string
	// logged waits for a line of the tracer of mlx5_core on the other function, from the last one found on.
	logged := func(name, text string) bool {
		for end := time.Now().Add(tracerLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for _, r := range log.read() {
				said = append(said, r.text)
			}
			for i, line := range said {
				if strings.Contains(line, text) && strings.Contains(line, theirs) {
					said = said[i+1:]
					return b.check(name, true, "%s", line)
				}
			}
		}
		return b.check(name, false, "%q is not in the kernel log; since then it has %q", text, said)
	}
	b.step("load mlx5_core")
	err := within(90*time.Second, func() error { return b.mods.load("mlx5_core", `dyndbg="file fw_tracer.c +p"`) })
	if !b.check("their-driver", err == nil && driverOf(theirs) == "mlx5_core" && driverOf(ours) == "vfio-pci", "%v, %s", errText(err), driverState(theirs)) {
		return
	}
	defer func() {
		err := unbindByHand(theirs)
		b.check("their-driver-gone", err == nil, "%v", errText(err))
	}()
	if !logged("they-own", granted) {
		return
	}
	steps, err := os.MkdirTemp("", "steps")
	if !b.check("steps", err == nil, "%v", errText(err)) {
		return
	}
	p, err := launch([]string{"MLXVFIO_TEST_BDF=" + ours, "MLXVFIO_TEST_STEPS=" + steps}, "/bin/driver.test", "-test.v",
		"-test.run=^TestContendedTracer$", "-test.timeout=100s")
	if !b.check("start", err == nil, "%v", errText(err)) {
		return
	}
	done := false
	defer func() {
		if !done {
			b.keep("contended", p.kill().transcript())
		}
	}()
	step := func(text string) bool {
		b.step("%s", text)
		return b.check(strings.ReplaceAll(text, " ", "-"), p.printed("STEP "+text, tracerLimit) && p.alive(), "%s", readFile(p.out.Name()))
	}
	tell := func(name string) bool {
		err := os.WriteFile(filepath.Join(steps, name), nil, 0o600)
		return err == nil || b.check("tell-"+name, false, "%v", err)
	}
	if !step("busy") || !step("waiting") {
		return
	}
	// They let go: we have it at once.
	b.step("unbind mlx5_core")
	err = unbindByHand(theirs)
	if !b.check("they-let-go", err == nil && driverOf(theirs) == "", "%v, %s", errText(err), driverState(theirs)) || !step("owned") || !step("recording") {
		return
	}
	// They come back and do without, and what we read meanwhile is whole.
	b.step("bind mlx5_core")
	err = within(90*time.Second, func() error { return bindByHand(theirs, "mlx5_core") })
	if !b.check("they-come-back", err == nil && driverOf(theirs) == "mlx5_core", "%v, %s", errText(err), driverState(theirs)) ||
		!logged("they-do-without", refusedThem) || !tell("stop") || !step("released") {
		return
	}
	// We let go: the event tells them.
	if !logged("they-hear-of-it", "ownership_change") || !logged("they-own-again", granted) {
		return
	}
	b.theyPrint(theirs)
	if !tell("end") {
		return
	}
	done = true
	out := p.wait(tracerLimit)
	b.keep("contended", out.transcript())
	b.check("ours", out.ok() && strings.Contains(out.stdout, "STEP busy again") && strings.Contains(out.stdout, "--- PASS: TestContendedTracer"), "%v", out)
	b.released("released", ours)
}

const (
	granted     = "FWTracer: Ownership granted and active"
	refusedThem = "FWTracer: Ownership was not granted"
)

// loadLine is what the kernel's tracepoint prints of the model's load.
var loadLine = regexp.MustCompile(`mlx5_fw: (\S+) \[0x[0-9a-f]+\] [01] \[0x[0-9a-f]+\] .*load \d`)

// theyPrint wants the kernel's tracepoint to print what firmware writes now.
func (b *bench) theyPrint(bdf string) {
	err := os.MkdirAll(traceDir, 0o755)
	if err == nil {
		err = syscall.Mount("tracefs", traceDir, "tracefs", 0, "")
	}
	if err == nil || isBusy(err) {
		err = os.WriteFile(traceDir+"/events/mlx5/mlx5_fw/enable", []byte("1"), 0)
	}
	if !b.check("tracepoint", err == nil, "%v", errText(err)) {
		return
	}
	var lines [][]string
	for end := time.Now().Add(tracerLimit); time.Now().Before(end) && len(lines) < 100; time.Sleep(100 * time.Millisecond) {
		lines = loadLine.FindAllStringSubmatch(readFile(traceDir+"/trace"), -1)
	}
	err = os.WriteFile(traceDir+"/events/mlx5/mlx5_fw/enable", []byte("0"), 0)
	b.check("they-print", err == nil && len(lines) >= 100 && lines[0][1] == bdf, "%d lines of the load, %v", len(lines), errText(err))
}
