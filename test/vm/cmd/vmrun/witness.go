package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// witness is a scenario of ../shared/judge: drivers of others, unmodified, on our model.
type witness struct {
	Scenario  string
	GuestArgs string   // arguments of our program in the guest, for handover
	All       bool     // every check must pass; one that is skipped is shown
	Required  []string // these must pass, whether All is set or not: they show how far the run must come
	MaySkip   []string // required ones that the other driver itself may not support
}

// witnesses and how far each must come today. What is reported beyond a required set is shown, not held against us.
var witnesses = []witness{
	{
		Scenario: "mlx5_core",
		All:      true,
		Required: []string{
			"insmod-mlx5_core", "firmware-version", "health-poll",
			"rebind-1-pages", "rebind-2-pages", "rebind-3-pages", "rmmod-mlx5_core", "rmmod-log",
		},
	},
	{
		Scenario: "rdma-core-vfio", // to the first event queue
		Required: []string{
			"enumerated", "bind-vfio-pci", "get-vfio-device-list", "open-device", "query-device", "events-fd", "process-events",
			"query-hca-cap-general-max", "query-hca-cap-general-cur", "query-hca-cap-eth-offload-max", "query-hca-cap-eth-offload-cur",
			"query-hca-cap-atomic-max", "query-hca-cap-atomic-cur", "query-hca-cap-roce-max", "query-hca-cap-roce-cur",
			"query-hca-cap-general-2-max", "query-hca-cap-general-2-cur", "bad-opcode", "port-type",
			"alloc-pd", "pd-number", "reg-mr", "alloc-uar", "alloc-msi-vector", "devx-create-eq",
		},
		MaySkip: []string{"query-device"}, // the VFIO provider has none
	},
	{
		Scenario:  "handover",
		GuestArgs: "selftest {bdf}",
		All:       true,
		Required:  []string{"to-vfio-bind", "guest-bin", "to-mlx5_core-bind", "guest-bin-2", "to-mlx5_core-2-bind", "final-unbind", "final-log"},
	},
}

func (w witness) name() string { return "witness-" + w.Scenario }

// skip says on out, and in the file that collects skipped witnesses, that there was nobody to ask.
func (w witness) skip(out io.Writer, list string) error {
	const why = "../shared/judge is absent"
	if _, err := fmt.Fprintf(out, "SKIP witness %s: %s\n", w.Scenario, why); err != nil {
		return err
	}
	if list == "" {
		return nil
	}
	f, err := os.OpenFile(list, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "witness %s: %s\n", w.Scenario, why)
	return errors.Join(err, f.Close())
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

// run asks the judge, which starts and ends the model itself.
func (w witness) run(ctx context.Context, root string, o options, cli string) (result, error) {
	out := filepath.Join(o.out, w.name())
	if err := os.RemoveAll(out); err != nil {
		return result{}, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return result{}, err
	}
	sockets, err := os.MkdirTemp("", "vmrun")
	if err != nil {
		return result{}, err
	}
	defer func() { _ = os.RemoveAll(sockets) }() // in the temporary folder
	args := []string{
		"--scenario", w.Scenario, "--kernel", "6.12", "--dir", o.judge, "--out", out,
		"--socket", filepath.Join(sockets, "model.sock"), "--serve", cli + " serve " + connectX5 + " --socket {socket}",
	}
	if w.GuestArgs != "" {
		args = append(args, "--guest-bin", cli, "--guest-args", w.GuestArgs)
	}
	start := time.Now()
	said, err := runGroup(ctx, 5*time.Minute, filepath.Join(root, "../shared/judge/judge"), args...)
	if werr := os.WriteFile(filepath.Join(out, "judge.log"), said, 0o644); werr != nil {
		return result{}, werr
	}
	// its status says whether all checks passed, not whether the required ones did: only 2 means that it could not run
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return result{}, fmt.Errorf("%w: %s", err, lastLines(filepath.Join(out, "judge.log"), 5))
	}
	b, err := os.ReadFile(filepath.Join(out, "result.json"))
	if err != nil {
		return result{}, err
	}
	var rep report
	if err := json.Unmarshal(b, &rep); err != nil {
		return result{}, fmt.Errorf("result.json of the judge: %w", err)
	}
	checks, note := w.judge(rep)
	r := newResult(w.name(), checks, time.Since(start).Seconds())
	r.Note = note
	return r, nil
}

// judge turns the report into our checks; the note tells what was seen beyond them.
func (w witness) judge(rep report) (checks []check, note string) {
	seen := map[string]bool{}
	var beyond []string
	passedBeyond := 0
	for _, c := range rep.Checks {
		required := slices.Contains(w.Required, c.Name)
		status := wire.Fail
		switch {
		case c.Skip && required && !slices.Contains(w.MaySkip, c.Name):
			c.Detail = "skipped, but it is required: " + c.Detail
		case c.Skip:
			status = wire.Skip
		case c.Pass:
			status = wire.Pass
		}
		seen[c.Name] = true
		switch {
		case w.All || required:
			checks = append(checks, check{c.Name, status, c.Detail, c.At})
		case status == wire.Pass:
			passedBeyond++
		default:
			beyond = append(beyond, c.Name)
		}
	}
	for _, name := range w.Required {
		if !seen[name] {
			checks = append(checks, check{Name: name, Status: wire.Fail, Detail: "was never reached"})
		}
	}
	if !w.All {
		note = fmt.Sprintf("not yet required: %d passed, %d did not", passedBeyond, len(beyond))
		if len(beyond) > 0 {
			note += " (" + strings.Join(beyond, " ") + ")"
		}
	}
	return checks, note
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
