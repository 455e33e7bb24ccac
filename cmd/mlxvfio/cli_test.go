package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/stretchr/testify/require"
)

// asProgram makes the test binary be the program, so that tests can start it,
// send it signals and read its exit code.
const asProgram = "MLXVFIO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(&app{out: os.Stdout, err: os.Stderr}, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// outcome is one run of the program.
type outcome struct {
	code     int
	out, err string
}

// cli runs the program in this process.
func cli(t *testing.T, args ...string) outcome {
	t.Helper()
	return cliOn(t, pci.Options{}, args...)
}

// cliOn is cli on a machine of its own.
func cliOn(t *testing.T, where pci.Options, args ...string) outcome {
	t.Helper()
	var out, errw bytes.Buffer
	a := &app{out: &out, err: &errw, pci: where}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code := a.main(ctx, args)
	require.NotErrorIs(t, ctx.Err(), context.DeadlineExceeded, "%v", args)
	return outcome{code, out.String(), errw.String()}
}

// works is cli for runs that must succeed without a word on standard error.
func works(t *testing.T, args ...string) string {
	t.Helper()
	o := cli(t, args...)
	require.Equal(t, exitOK, o.code, "%v: %s", args, o.err)
	require.Empty(t, o.err)
	return o.out
}

// object runs the program with --json and gives the one object it must print.
func object(t *testing.T, schema string, args ...string) map[string]any {
	t.Helper()
	return decodeOne(t, schema, works(t, append(args, "--json")...))
}

func decodeOne(t *testing.T, schema, text string) map[string]any {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, "\n"), "one line: %.200s", text)
	var o map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &o), "%.200s", text)
	require.Equal(t, "mlxvfio."+schema, o["schema"])
	return o
}

// refuses checks the exit code, and that the reason is one line holding each of
// the words.
func refuses(t *testing.T, o outcome, code int, words ...string) {
	t.Helper()
	require.Equal(t, code, o.code, "%s%s", o.out, o.err)
	require.Equal(t, 1, strings.Count(o.err, "\n"), "one line: %q", o.err)
	require.True(t, strings.HasPrefix(o.err, "mlxvfio: "), o.err)
	for _, w := range words {
		require.Contains(t, o.err, w)
	}
}

// program is the program in a process of its own.
type program struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err string // names of files
}

// start starts the program and ends it with the test.
func start(t *testing.T, args ...string) *program {
	t.Helper()
	dir := t.TempDir()
	p := &program{t: t, cmd: exec.Command(os.Args[0], args...), out: filepath.Join(dir, "out"), err: filepath.Join(dir, "err")}
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := os.Create(p.out)
	require.NoError(t, err)
	errw, err := os.Create(p.err)
	require.NoError(t, err)
	p.cmd.Stdout, p.cmd.Stderr = out, errw
	require.NoError(t, p.cmd.Start())
	require.NoError(t, out.Close())
	require.NoError(t, errw.Close())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	return p
}

// says waits until standard output has the text, and gives all of it.
func (p *program) says(text string) string {
	p.t.Helper()
	var have string
	require.Eventually(p.t, func() bool {
		b, err := os.ReadFile(p.out)
		have = string(b)
		return err == nil && strings.Contains(have, text)
	}, 20*time.Second, 2*time.Millisecond, "waiting for %q", text)
	return have
}

// ends waits for the end of the program.
func (p *program) ends() outcome {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done: // the exit code says it
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-done
		require.Fail(p.t, "the program did not end")
	}
	out, err := os.ReadFile(p.out)
	require.NoError(p.t, err)
	errw, err := os.ReadFile(p.err)
	require.NoError(p.t, err)
	return outcome{p.cmd.ProcessState.ExitCode(), string(out), string(errw)}
}

// bg is a context that nothing ends.
var bg = context.Background()
