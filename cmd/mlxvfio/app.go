package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/spf13/cobra"
)

// app holds what every verb shares: streams and the global flags. It serves one
// run.
type app struct {
	out io.Writer
	err io.Writer

	json     bool
	logLevel string
	timeout  time.Duration
	record   string
	polled   bool
	// commandSlots bounds the commands in flight; 0 is what the device takes.
	commandSlots int
	backend      string
	unsafe       bool // --unsafe-noiommu

	pci   pci.Options        // where functions are looked for; tests point it elsewhere
	begun bool               // a verb runs: what fails from here on is no usage error of cobra's
	done  context.CancelFunc // ends the time limit
	// recording is why the recording is not complete: no fault of the device.
	recording error
}

// result is what a verb prints: as JSON through its exported fields, or as text.
type result interface{ text(w io.Writer) }

// main runs the verb that args name and returns the exit code. ctx ends when the
// user wants to stop.
func (a *app) main(ctx context.Context, args []string) int {
	if err := a.execute(ctx, args); err != nil {
		return a.fail(ctx, err)
	}
	return exitOK
}

func (a *app) execute(ctx context.Context, args []string) error {
	root := a.command()
	root.SetArgs(args)
	help := &sticky{w: a.out} // cobra does not tell when it cannot write
	root.SetOut(help)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if a.done != nil {
		a.done()
	}
	if err != nil && !a.begun {
		// Flags are read in order: an error before --json was reached is JSON all the same.
		a.json = a.json || slices.Contains(args, "--json")
		var ue *usageError
		if !errors.As(err, &ue) {
			err = &usageError{err.Error()}
		}
	}
	return errors.Join(err, a.recording, help.err)
}

// sticky keeps the first error of a writer.
type sticky struct {
	w   io.Writer
	err error
}

func (s *sticky) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// command is the tree of verbs.
func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "mlxvfio",
		Short: "drive ConnectX (mlx5) functions from user space through VFIO",
		Long: fmt.Sprintf(`mlxvfio drives NVIDIA/Mellanox ConnectX functions from user space through VFIO.

DEV names a function:
  0000:3b:00.0, 3b:00.0   a function bound to vfio-pci (see bind)
  vfio-user:PATH          a function served on a socket (see serve)
  sysfs:BDF               BAR0 read-only through sysfs, whatever driver owns it (info, health)
  sim[:PROFILE][,WORD…]   the embedded model; mlxvfio serve --list shows profiles and words

No hardware is needed for a first look: mlxvfio selftest, mlxvfio info sim:cx7, mlxvfio litmus sim.
On a real adapter begin with mlxvfio doctor. docs/cli.md describes every verb,
and mlxvfio man VERB prints its manual page.

Exit codes:
%s`, exitTable()),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              noVerb,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if _, err := parseLevel(a.logLevel); err != nil {
				return err
			}
			if !slices.Contains(backendWords, a.backend) {
				return usagef("--backend %q: want %s", a.backend, strings.Join(backendWords, ", "))
			}
			if a.timeout < 0 {
				return usagef("--timeout %v is negative", a.timeout)
			}
			if a.commandSlots < 0 {
				return usagef("--command-slots %d is negative", a.commandSlots)
			}
			if err := a.checkFlags(cmd, args); err != nil {
				return err
			}
			if a.timeout > 0 {
				ctx, cancel := context.WithTimeoutCause(cmd.Context(), a.timeout, &timeUpError{a.timeout})
				a.done = cancel
				cmd.SetContext(ctx)
			}
			a.begun = true
			return nil
		},
	}
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print JSON (one object, or one a line) instead of text; errors too")
	f.StringVar(&a.logLevel, "log-level", "", "log to standard error from this `LEVEL` on: debug, info, warn or error (default: silent)")
	f.DurationVar(&a.timeout, "timeout", 0, "give up after this `TIME`, e.g. 30s (default: the device's own deadlines)")
	f.BoolVar(&a.polled, "polled", false, "use no interrupts: poll command completions and events")
	f.IntVar(&a.commandSlots, "command-slots", 0, "send at most `N` commands at a time, page commands not counted; 1: one after the other (default: what the device takes)")
	f.StringVar(&a.record, "record", "", "write every access to the device to this `FILE`, as JSON lines")
	f.StringVar(&a.backend, "backend", backendWords[0], "the `WAY` into a function of this machine: "+strings.Join(backendWords, ", "))
	f.BoolVar(&a.unsafe, "unsafe-noiommu", false, "accept a function that no IOMMU guards: it can overwrite any memory of this machine")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(a.showHelp)
	root.SetUsageFunc(func(c *cobra.Command) error { usage(c.OutOrStderr(), c, helpWidth(a.err)); return nil })
	root.AddGroup(groups...)
	completes(root, "log-level", oneOf("debug", "info", "warn", "error"))
	completes(root, "record", aFile)
	completes(root, "backend", oneOf(backendWords...))
	root.AddCommand(a.verbs()...)
	help := a.helpVerb()
	help.GroupID = groupProgram
	root.AddCommand(help)
	root.SetHelpCommand(help)
	completeNumbers(root)
	return root
}

// exitTable is the exit codes as text.
func exitTable() string {
	var rows [][]string
	for _, x := range exits {
		rows = append(rows, []string{"  " + strconv.Itoa(x.code), x.meaning})
	}
	var b strings.Builder
	tableIn(&b, rows, widthAny)
	return strings.TrimRight(b.String(), "\n")
}

// verb wraps cobra's wiring: usage errors for wrong argument counts, one function.
func (a *app) verb(use, short string, minArgs, maxArgs int, fn func(ctx context.Context, args []string) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, ValidArgsFunction: a.completeArgs(use)}
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) < minArgs || maxArgs >= 0 && len(args) > maxArgs {
			return usagef("usage: %s (%s --help explains)", strings.TrimSuffix(cmd.UseLine(), " [flags]"), cmd.CommandPath())
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		err := fn(cmd.Context(), args)
		var (
			se *mlxvfio.StageError
			ce *mlxvfio.CloseError
		)
		if errors.As(err, &se) || errors.As(err, &ce) {
			return err // withFunction knows whose time was over
		}
		return timeUp(cmd.Context(), err)
	}
	return c
}

// noVerb refuses a first word that is no verb.
func noVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasSubCommands() {
		return usagef("%s has no verbs below it, %q is none (%s --help explains)", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	var known []string
	for _, c := range cmd.Commands() {
		known = append(known, c.Name())
	}
	return usagef("there is no verb %q%s (%s --help lists them)", strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "mlxvfio "), didYouMean(args[0], known), cmd.CommandPath())
}

// timeUpError is the cause of a context that --timeout ended.
type timeUpError struct{ after time.Duration }

func (e *timeUpError) Error() string { return fmt.Sprintf("not done within --timeout %v", e.after) }

// Is makes it the deadline that it is.
func (e *timeUpError) Is(target error) bool { return target == context.DeadlineExceeded }

// timeUp adds to an error that --timeout is why: where the time is over and the
// error is about time.
func timeUp(ctx context.Context, err error) error {
	var up *timeUpError
	if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &up) {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		<-ctx.Done() // who looks at the deadline may be ahead of the context by a moment
	}
	if !errors.As(context.Cause(ctx), &up) {
		return err
	}
	return &lateError{err, up}
}

// lateError is what was going on when the time of --timeout was over.
type lateError struct {
	err error
	up  *timeUpError
}

func (e *lateError) Error() string { return fmt.Sprintf("%v (--timeout %v)", e.err, e.up.after) }

func (e *lateError) Unwrap() []error { return []error{e.err, e.up} }

func parseLevel(s string) (slog.Level, error) {
	if s == "" {
		return 0, nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return 0, usagef("--log-level %q: want debug, info, warn or error", s)
	}
	return l, nil
}

// logger is silent unless --log-level was given.
func (a *app) logger() *slog.Logger {
	if a.logLevel == "" {
		return slog.New(slog.DiscardHandler)
	}
	l, err := parseLevel(a.logLevel)
	if err != nil {
		return slog.New(slog.DiscardHandler)
	}
	o := &slog.HandlerOptions{Level: l}
	if a.json {
		return slog.New(slog.NewJSONHandler(a.err, o))
	}
	return slog.New(slog.NewTextHandler(a.err, o))
}

// print shows a result. schema names its JSON form and version, "info/1".
func (a *app) print(schema string, r result) error {
	if !a.json {
		var b bytes.Buffer
		r.text(&b)
		_, err := a.out.Write(plain(b.Bytes()))
		return err
	}
	return writeJSON(a.out, schema, r)
}

// writeJSON puts the schema first and keeps the fields' order.
func writeJSON(w io.Writer, schema string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	head, err := json.Marshal(map[string]string{"schema": "mlxvfio." + schema})
	if err != nil {
		return err
	}
	line := head
	if len(body) > 2 {
		line = append(append(head[:len(head)-1:len(head)-1], ','), body[1:]...)
	}
	_, err = w.Write(append(plainJSON(line), '\n'))
	return err
}

// terminal tells whether w is one, for progress lines.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
