package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// witness is a scenario of ../shared/judge: drivers of others, unmodified, on our model. Every check of it must pass.
type witness struct {
	Scenario  string
	Port      string   // link layer of the model: ib or eth
	Profile   string   // of the model; "" is cx5
	Functions int      // of the model's chip; 0 is one
	Variant   string   // what tells apart two runs of a scenario on the same port
	Fault     string   // fault of the model that is raised when the scenario asks for one, and cleared if it is not fatal
	TraceCmd  string   // shell command on the host that makes firmware write traces; {cli}, {control} and {out} are filled in
	GuestArgs string   // arguments of our program in the guest, for handover
	Required  []string // checks that show how far the run must come: one that is not reported has failed
	// Says is what details of checks must contain: the other driver prints what our model wrote.
	Says map[string]string
	// Log is what the whole kernel log must contain, a check each.
	Log []string
	// Early are checks that look at one function while another one may be the first to be ready: where they fail,
	// Log decides.
	Early []string
	// Also makes further checks of what the run left in its folder.
	Also  func(out string) []check
	Skips []string // the only checks that may be skipped: the other driver, or this kind of port, does not have the thing
}

// vfioProbe are the checks of one run of the C program on rdma-core's VFIO provider, in order but for the queries that
// are numerous; address names the ones that depend on the link layer.
func vfioProbe(prefix string, address ...string) []string {
	steps := slices.Concat([]string{
		"get-vfio-device-list", "open-device", "events-fd", "process-events", "query-hca-cap-atomic-cur", "bad-opcode", "port-type",
		"alloc-pd", "pd-number", "reg-mr", "alloc-uar", "alloc-msi-vector", "devx-create-eq",
		"umem-cq", "umem-cq-dbr", "create-cq", "umem-qp", "umem-qp-dbr", "create-qp",
	}, address, []string{
		"rst2init", "init2rtr", "rtr2rts", "query-qp",
		"rdma-write", "cq-event-msix", "cq-event-eqe", "rdma-read", "send-imm", "send-imm-data",
		"atomic-fa", "atomic-cs", "atomic-masked-cs", "atomic-masked-cs-miss", "atomic-masked-fa",
		"bad-rkey", "query-qp-error", "process-events-end", "destroy-qp", "destroy-cq", "destroy-eq", "free-msi-vector",
		"dereg-mr", "dealloc-pd", "close-device", "vfioprobe-exit",
	})
	for i := range steps {
		steps[i] = prefix + steps[i]
	}
	return steps
}

func (w witness) name() string {
	n := "witness-" + w.Scenario
	if w.Port != "ib" {
		n += "-" + w.Port
	}
	for _, s := range []string{w.Profile, w.Variant} {
		if s != "" {
			n += "-" + s
		}
	}
	return n
}

// skip says on out, and in the file that collects what was skipped, that there was nobody to ask.
func (w witness) skip(out io.Writer, list string) error {
	return skip(out, list, strings.Replace(w.name(), "-", " ", 1), "../shared/judge is absent")
}

// report is the part of the judge's result.json that is read here.
type report struct {
	Checks []struct {
		Name   string  `json:"name"`
		Pass   bool    `json:"pass"`
		Skip   bool    `json:"skip"`
		Detail string  `json:"detail"`
		At     float64 `json:"at"`
	} `json:"checks"`
}

// bootAttempts is how often a guest is started that dies before it runs a program, for want of time on the host.
const bootAttempts = 3

// run asks the judge.
func (w witness) run(ctx context.Context, root string, o options, cli string) (result, error) {
	start := time.Now()
	var rep report
	attempt := 1
	for ; ; attempt++ {
		var err error
		if rep, err = w.ask(ctx, root, o, cli); err != nil {
			return result{}, err
		}
		console, err := os.ReadFile(filepath.Join(o.out, w.name(), "console.log"))
		if err != nil {
			return result{}, err
		}
		if attempt == bootAttempts || !timerStopped(string(console)) {
			break
		}
	}
	log, err := os.ReadFile(filepath.Join(o.out, w.name(), "dmesg.txt"))
	if err != nil && !errors.Is(err, os.ErrNotExist) { // without a log, what it must contain is missing
		return result{}, err
	}
	checks := append(w.judge(rep), w.readLog(string(log))...)
	if w.Also != nil {
		checks = append(checks, w.Also(filepath.Join(o.out, w.name()))...)
	}
	r := newResult(w.name(), checks, time.Since(start).Seconds())
	if attempt > 1 {
		r.Note = fmt.Sprintf("attempt %d: the emulated timer had stopped in the guest's boot, before any program", attempt)
	}
	return r, nil
}

// timerStopped says whether the guest's kernel gave up because no timer interrupt came for a while: a host that is too
// busy makes it do so, in the first tenth of a second. Our own machines pass no_timer_check instead.
func timerStopped(console string) bool {
	return strings.Contains(console, "Kernel panic - not syncing: timer doesn't work through Interrupt-remapped IO-APIC")
}

// ask runs the judge once, which starts and ends the model itself.
func (w witness) ask(ctx context.Context, root string, o options, cli string) (rep report, err error) {
	out := filepath.Join(o.out, w.name())
	if err := os.RemoveAll(out); err != nil {
		return rep, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return rep, err
	}
	sockets, err := os.MkdirTemp("", "vmrun")
	if err != nil {
		return rep, err
	}
	defer func() { _ = os.RemoveAll(sockets) }() // in the temporary folder
	serve := cli + " serve sim:" + cmp.Or(w.Profile, "cx5") + ",port=" + w.Port
	var socket []string
	for i := range max(1, w.Functions) {
		socket = append(socket, filepath.Join(sockets, fmt.Sprintf("model%d.sock", i)))
		serve += " --socket " + socket[i]
	}
	control := filepath.Join(sockets, "control.sock")
	if w.Fault != "" || w.TraceCmd != "" {
		serve += " --control " + control
	}
	args := []string{
		"--scenario", w.Scenario, "--kernel", "6.12", "--dir", o.judge, "--out", out,
		"--socket", strings.Join(socket, ","), "--serve", serve,
	}
	if w.Fault != "" {
		tell := cli + " tell " + control
		args = append(args, "--fault-cmd", tell+" fault "+w.Fault, "--clear-cmd", tell+" clear")
	}
	if w.TraceCmd != "" {
		args = append(args, "--trace-cmd", strings.NewReplacer("{cli}", cli, "{control}", control, "{out}", out).Replace(w.TraceCmd))
	}
	if w.GuestArgs != "" {
		args = append(args, "--guest-bin", cli, "--guest-args", w.GuestArgs)
	}
	said, err := runGroup(ctx, 5*time.Minute, filepath.Join(root, "../shared/judge/judge"), args...)
	if werr := os.WriteFile(filepath.Join(out, "judge.log"), said, 0o644); werr != nil {
		return rep, werr
	}
	// its status says whether all checks passed, which is judged here: only 2 means that it could not run
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return rep, fmt.Errorf("%w: %s", err, lastLines(filepath.Join(out, "judge.log"), 5))
	}
	b, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		return rep, err
	}
	if err := json.Unmarshal(b, &rep); err != nil {
		return rep, fmt.Errorf("result.json of the judge: %w", err)
	}
	return rep, nil
}

// judge turns the report into our checks.
func (w witness) judge(rep report) (checks []check) {
	seen := map[string]bool{}
	for _, c := range rep.Checks {
		status := wire.Fail
		switch {
		case c.Skip && slices.Contains(w.Skips, c.Name):
			status = wire.Skip
		case c.Skip:
			c.Detail = "skipped, but it is required: " + c.Detail
		case c.Pass && !strings.Contains(c.Detail, w.Says[c.Name]):
			c.Detail = fmt.Sprintf("says %q, not %q", c.Detail, w.Says[c.Name])
		case c.Pass:
			status = wire.Pass
		case slices.Contains(w.Early, c.Name):
			status, c.Detail = wire.Skip, "too early: "+c.Detail
		}
		seen[c.Name] = true
		checks = append(checks, check{c.Name, status, c.Detail, c.At})
	}
	needed := slices.Concat(w.Required, slices.Collect(maps.Keys(w.Says)))
	slices.Sort(needed)
	for _, name := range slices.Compact(needed) {
		if !seen[name] {
			checks = append(checks, check{Name: name, Status: wire.Fail, Detail: "was never reached"})
		}
	}
	return checks
}

// readLog looks for what the kernel must have said.
func (w witness) readLog(log string) (checks []check) {
	for _, l := range w.Log {
		c := check{Name: "log-has " + l, Status: wire.Pass}
		if !strings.Contains(log, l) {
			c.Status, c.Detail = wire.Fail, "it is not in the kernel log"
		}
		checks = append(checks, c)
	}
	return checks
}

// runGroup runs a program in a process group of its own and, whatever happens, leaves none of the group behind: the
// judge starts QEMU and the model, and would not end them if it were killed itself.
func runGroup(ctx context.Context, limit time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killGroup := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = killGroup
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		if kerr := killGroup(); kerr == nil {
			err = errors.Join(err, fmt.Errorf("%s left processes behind; they were killed", filepath.Base(name)))
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out, err
}
