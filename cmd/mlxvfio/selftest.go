package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

func (a *app) selftestVerb() *cobra.Command {
	var stages bool
	var stopAt string
	c := a.verb("selftest [DEV]", "bring a function up, check it, give it back; without DEV on the model", 0, 1, func(ctx context.Context, args []string) error {
		if stages && len(args) > 0 {
			return usagef("--list-stages touches no device: leave %s out", args[0])
		}
		if stages {
			return a.print("stages/1", stageList(mlxvfio.Stages()))
		}
		return a.selftest(ctx, args, stopAt)
	})
	c.Long = `selftest brings a function up from reset, shows each stage with its time, checks that commands complete by
interrupts and in parallel, moves data by loopback (every operation that the device has, datagrams and cross-channel
queues among them, all memory compared byte for byte), and gives the function back: every page that firmware was
given must return.
Without DEV it runs on the embedded model, sim.`
	c.Example = examples(
		"mlxvfio selftest", "on the model",
		"mlxvfio selftest 0000:3b:00.0", "on a real function",
		"mlxvfio selftest --list-stages", "what a bring-up consists of")
	c.Flags().BoolVar(&stages, "list-stages", false, "list the stages of the bring-up; no device is touched")
	c.Flags().StringVar(&stopAt, "stop-at", "", "stop for good after this `STAGE`, for tests that kill the process there")
	completes(c, "stop-at", anything)
	if err := c.Flags().MarkHidden("stop-at"); err != nil {
		panic(err) // the flag was defined in the line above
	}
	return c
}

// stageList is the bring-up, one stage a line.
type stageList []mlxvfio.StageInfo

func (l stageList) text(w io.Writer) {
	rows := [][]string{}
	for _, s := range l {
		rows = append(rows, []string{s.Name, s.Doc})
	}
	table(w, rows)
}

// MarshalJSON makes an object of the list, as every output is one.
func (l stageList) MarshalJSON() ([]byte, error) {
	type row struct {
		Stage string `json:"stage"`
		Doc   string `json:"doc"`
	}
	rows := []row{}
	for _, s := range l {
		rows = append(rows, row{s.Name, s.Doc})
	}
	return json.Marshal(map[string]any{"stages": rows})
}

func (a *app) selftest(ctx context.Context, args []string, stopAt string) error {
	run := &selftestRun{a: a, stopAt: stopAt, done: ctx.Done(),
		progress: progress{w: a.err, on: terminal(a.err) && !a.json, total: len(mlxvfio.Stages())}}
	dev := "sim"
	if len(args) > 0 {
		dev = args[0]
	} else {
		run.Note = "no DEV was given: this is the embedded model, sim"
	}
	if stopAt != "" && !knownStage(stopAt) {
		return usagef("--stop-at %q: no such stage; --list-stages shows them", stopAt)
	}
	run.Device, run.Stages, run.Checks, run.Teardown = dev, []stageRow{}, []checkRow{}, []stageRow{}
	err := a.withDevice(ctx, dev, mlxvfio.Options{OnStage: run.stage, CompletionVectors: 1}, run.up)
	run.progress.clear()
	if len(run.Stages) == 0 {
		return err // it could not be opened: nothing to report
	}
	err = run.finish(err)
	if errors.Is(ctx.Err(), context.Canceled) {
		return &interruptedError{dev: dev, after: run.lastStage(), pages: run.Pages, err: err}
	}
	return errors.Join(err, a.print("selftest/1", &run.selftestResult))
}

// lastStage is the last one that was done.
func (r *selftestResult) lastStage() string {
	last := "none"
	for _, s := range r.Stages {
		if s.Error == "" {
			last = s.Stage
		}
	}
	return last
}

// interruptedError says how the function was left by a run that a signal ended.
type interruptedError struct {
	dev, after string
	pages      mlxvfio.PageLedger
	err        error
}

func (e *interruptedError) Error() string {
	s := fmt.Sprintf("%s: interrupted after stage %s; %s", e.dev, e.after, pagesText(e.pages))
	var se *mlxvfio.StageError
	var ce *mlxvfio.CloseError
	switch {
	case errors.As(e.err, &ce):
		return s + "; " + ce.Error()
	case errors.As(e.err, &se) && len(se.Undo) > 0:
		return s + "; " + se.Error()
	}
	return s + "; the function was given back"
}

func (e *interruptedError) Unwrap() error { return e.err }

func knownStage(name string) bool {
	for _, s := range mlxvfio.Stages() {
		if s.Name == name {
			return true
		}
	}
	return false
}

// selftestRun is a run while it happens.
type selftestRun struct {
	selftestResult
	a        *app
	stopAt   string
	stopped  bool
	done     <-chan struct{}
	progress progress
	hca      *mlxvfio.HCA // once it is up

	upTime, downTime time.Duration
}

// stage hears about every stage, on the goroutine of the bring-up or teardown.
func (r *selftestRun) stage(e mlxvfio.StageEvent) {
	row := stageRow{Stage: e.Stage, MS: milliseconds(e.Duration), Note: e.Note}
	if e.Err != nil {
		row.Error = oneLine(e.Err)
	}
	if e.Undo {
		r.downTime += e.Duration
		r.Teardown = append(r.Teardown, row)
		return
	}
	r.upTime += e.Duration
	r.Stages = append(r.Stages, row)
	r.progress.show(len(r.Stages), e.Stage)
	if e.Stage == r.stopAt && e.Err == nil {
		r.progress.clear()
		r.stopped = true
		fmt.Fprintf(r.a.out, "stopped at %s\n", e.Stage)
		<-r.done
	}
}

// up checks a function that is up.
func (r *selftestRun) up(ctx context.Context, s *session) error {
	r.progress.clear()
	r.hca = s.HCA
	if err := context.Cause(ctx); err != nil {
		return err
	}
	i := s.Info()
	r.Backend, r.Firmware, r.Mode, r.Vectors = s.info.Backend, i.Firmware, "polled", i.Vectors
	if i.Events {
		r.Mode = "event"
	}
	for _, c := range selfChecks {
		start := time.Now()
		note, err := c.run(ctx, s)
		row := checkRow{Check: c.name, OK: err == nil, MS: milliseconds(time.Since(start)), Note: note}
		if err != nil {
			row.Error = oneLine(err)
		}
		r.Checks = append(r.Checks, row)
		if s.exerciser != nil {
			r.Opcodes = s.exerciser.Opcodes()
		}
		if err != nil {
			return fmt.Errorf("%s: check %s: %w", r.Device, c.name, err)
		}
	}
	return nil
}

// finish takes stock after the function was given back.
func (r *selftestRun) finish(err error) error {
	var se *mlxvfio.StageError
	switch {
	case errors.As(err, &se):
		r.Pages = se.Ledger
	case r.hca != nil:
		st := r.hca.Stats()
		r.Pages, r.DMA = st.Pages, st.DMA
		for _, o := range st.Commands.Ops {
			r.Commands += o.Count
		}
		if err == nil && (st.DMA.Mappings != 0 || st.DMA.LiveBuffers != 0) {
			err = fmt.Errorf("%s: after the teardown %d mappings and %d buffers of DMA memory are left", r.Device, st.DMA.Mappings, st.DMA.LiveBuffers)
		}
	}
	if err == nil && r.Pages.Outstanding != 0 {
		err = &mlxvfio.LedgerError{Ledger: r.Pages}
	}
	r.UpMS, r.DownMS = milliseconds(r.upTime), milliseconds(r.downTime)
	r.Verdict = "pass"
	if err != nil {
		r.Verdict = "fail"
	}
	return err
}

type selftestResult struct {
	Device   string `json:"device"`
	Note     string `json:"note,omitempty"`
	Backend  string `json:"backend,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	// Mode is "event" or "polled": how commands complete.
	Mode    string     `json:"mode,omitempty"`
	Vectors int        `json:"vectors"`
	Stages  []stageRow `json:"stages"`
	Checks  []checkRow `json:"checks"`
	// Opcodes are the operations of the send queues and how often each was done.
	Opcodes []mlxvfio.OpcodeCount `json:"opcodes,omitempty"`
	// Teardown are the stages undone, in that order.
	Teardown []stageRow `json:"teardown"`
	UpMS     float64    `json:"bring_up_ms"`
	DownMS   float64    `json:"teardown_ms"`
	// Commands sent in all; absent when the bring-up failed.
	Commands uint64 `json:"commands,omitempty"`
	// Pages is the ledger after the teardown.
	Pages mlxvfio.PageLedger `json:"pages"`
	// DMA counts mappings and buffers of DMA memory after the teardown.
	DMA     vfio.SpaceStats `json:"dma"`
	Verdict string          `json:"verdict"`
}

// stageRow is a stage, done or undone.
type stageRow struct {
	Stage string  `json:"stage"`
	MS    float64 `json:"ms"`
	Note  string  `json:"note,omitempty"`
	Error string  `json:"error,omitempty"`
}

type checkRow struct {
	Check string  `json:"check"`
	OK    bool    `json:"ok"`
	MS    float64 `json:"ms"`
	Note  string  `json:"note,omitempty"`
	Error string  `json:"error,omitempty"`
}

func (r *selftestResult) text(w io.Writer) {
	if r.Note != "" {
		fmt.Fprintln(w, r.Note)
	}
	rows := [][]string{{"STAGE", "MS"}}
	for _, s := range r.Stages {
		rows = append(rows, []string{s.Stage, fmt.Sprintf("%.3f", s.MS), failedOr(s.Error, s.Note)})
	}
	if len(r.Checks) > 0 {
		rows = append(rows, nil, []string{"CHECK", "MS"})
	}
	for _, c := range r.Checks {
		rows = append(rows, []string{c.Check, fmt.Sprintf("%.3f", c.MS), failedOr(c.Error, c.Note)})
	}
	table(w, rows)
	if len(r.Opcodes) > 0 {
		fmt.Fprintln(w)
		rows = [][]string{{"OPCODE", "ON", "DONE"}}
		for _, o := range r.Opcodes {
			rows = append(rows, []string{o.Opcode, o.Service, fmt.Sprint(o.Done), o.Note})
		}
		table(w, rows)
	}
	fmt.Fprintln(w)
	if r.Backend != "" {
		fmt.Fprintf(w, "%s (%s), firmware %s, %s mode, %d MSI-X vectors\n", r.Device, r.Backend, r.Firmware, r.Mode, r.Vectors)
	}
	fmt.Fprintf(w, "bring-up %.1f ms, teardown %.1f ms, %s%s\n", r.UpMS, r.DownMS, ifText(r.Commands > 0, fmt.Sprintf("%d commands, ", r.Commands)), pagesText(r.Pages))
	for _, s := range r.Teardown {
		if s.Error != "" {
			fmt.Fprintf(w, "teardown of %s failed: %s\n", s.Stage, s.Error)
		}
	}
	fmt.Fprintln(w, r.Verdict)
}

func failedOr(failure, note string) string {
	if failure != "" {
		return "FAILED: " + failure
	}
	return note
}

func pagesText(p mlxvfio.PageLedger) string {
	s := fmt.Sprintf("%d pages given to firmware, %d returned", p.Given, p.Returned)
	if p.Dropped > 0 {
		s += fmt.Sprintf(", %d dropped at once", p.Dropped)
	}
	return s + fmt.Sprintf(", %d outstanding", p.Outstanding)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
