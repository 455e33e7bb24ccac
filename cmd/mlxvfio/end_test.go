package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/stretchr/testify/require"
)

// onModel runs fn on a model that is up.
func onModel(t *testing.T, fn func(ctx context.Context, s *session) error) error {
	t.Helper()
	var out strings.Builder
	a := &app{out: &out, err: &out}
	return a.withDevice(t.Context(), "sim", mlxvfio.Options{}, fn)
}

// TestHealthWhileUp: faults that strike a function at work fail the health check,
// and what heals passes it again.
func TestHealthWhileUp(t *testing.T) {
	err := onModel(t, func(ctx context.Context, s *session) error {
		_, err := checkHealth(ctx, s)
		require.NoError(t, err)
		require.NoError(t, s.dev.chip.SetFault("syndrome", "EQ_INV"))
		_, err = checkHealth(ctx, s)
		require.ErrorContains(t, err, "the device reports EQ_INV (severity WARNING)")
		require.NoError(t, s.dev.chip.ClearFault("syndrome"))
		note, err := checkHealth(ctx, s)
		require.NoError(t, err)
		require.Regexp(t, `counter (\d+), then \d+ after .*; no syndrome`, note)
		require.NoError(t, s.dev.chip.SetFault("health-stuck", ""))
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err = checkHealth(short, s)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return nil
	})
	require.NoError(t, err)

	// Fatal: the function is given back by a reset as soon as a command does not come
	// back.
	var a app
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	err = a.withDevice(ctx, "sim", mlxvfio.Options{}, func(ctx context.Context, s *session) error {
		require.NoError(t, s.dev.chip.SetFault("fatal", ""))
		_, err := checkHealth(ctx, s)
		require.ErrorContains(t, err, "fatal: the device reports FW_INTERNAL_ERR (severity CRITICAL) and asks for recovery")
		cancel()
		return err
	})
	var ce *mlxvfio.CloseError
	require.ErrorAs(t, err, &ce)
	require.True(t, ce.Reset)
	require.ErrorContains(t, err, "undo pages-eq")
	require.ErrorContains(t, err, "the fatal syndrome FW_INTERNAL_ERR")
	require.Less(t, time.Since(begun), lateLimit)
}

// TestTimeoutIsKept: a teardown that hangs is cut off soon after --timeout, which
// the message blames only where it was the reason.
func TestTimeoutIsKept(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	o := cli(t, "info", "sim,fault=lost@TEARDOWN_HCA", "--timeout", "500ms")
	refuses(t, o, exitFailed, "TEARDOWN_HCA", "cut off 3s after: not done within --timeout 500ms", "the function was reset")
	require.NotContains(t, o.err, "(--timeout")
	require.Less(t, time.Since(begun), 500*time.Millisecond+2*lateLimit)

	// It ends what waits in the verb, and says so.
	refuses(t, cli(t, "exec", "sim,fault=lost@QUERY_ISSI#2", "QUERY_ISSI", "--timeout", "300ms"), exitFailed, "no completion after", "(--timeout 300ms)")
}

// TestTimeUp adds the reason where it is one.
func TestTimeUp(t *testing.T) {
	late, cancel := context.WithTimeoutCause(t.Context(), time.Nanosecond, &timeUpError{time.Second})
	defer cancel()
	<-late.Done()
	slow := &closeTimeoutError{limit: closeLimit}
	require.EqualError(t, timeUp(late, slow), slow.Error()+" (--timeout 1s)")
	require.Equal(t, error(slow), timeUp(t.Context(), slow), "there was time")
	require.Equal(t, os.ErrClosed, timeUp(late, os.ErrClosed), "nothing about time")
	once := timeUp(late, slow)
	require.Equal(t, once, timeUp(late, once))
	require.ErrorIs(t, once, context.DeadlineExceeded)
}

// TestOutlast: the longer context ends after its own limit, or some time after the
// first one, and cancel waits for what it started, no longer. In virtual time: one that
// never ends, or ends late, fails at once.
func TestOutlast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := func(want time.Duration, since time.Time) {
			t.Helper()
			require.Equal(t, want, time.Since(since))
		}
		begun := time.Now()
		ctx, cancel := outlast(t.Context(), time.Second, time.Hour)
		<-ctx.Done()
		took(time.Second, begun)
		require.EqualError(t, context.Cause(ctx), "giving the function back is cut off after 1s")
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		cancel()
		took(time.Second, begun)

		over, end := context.WithCancelCause(t.Context())
		end(os.ErrClosed)
		begun = time.Now()
		ctx, cancel = outlast(over, time.Hour, time.Second)
		<-ctx.Done()
		took(time.Second, begun)
		require.EqualError(t, context.Cause(ctx), "giving the function back is cut off 1s after: "+os.ErrClosed.Error())
		cancel()
		took(time.Second, begun)

		begun = time.Now()
		_, cancel = outlast(over, time.Hour, time.Hour)
		synctest.Wait() // what it started waits for its hour
		cancel()
		took(0, begun)

		// A context that is over later gets its time from then on.
		later, end := context.WithCancelCause(t.Context())
		begun = time.Now()
		ctx, cancel = outlast(later, time.Hour, time.Second)
		time.Sleep(time.Minute)
		require.NoError(t, ctx.Err())
		end(os.ErrClosed)
		<-ctx.Done()
		took(time.Minute+time.Second, begun)
		cancel()
	})
}

// TestFullDisk: a recording that cannot be written is no fault of the teardown.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		absent.Skip(t, "full disk", err.Error())
	}
	defer full.Close()
	o := cli(t, "info", "sim", "--record", "/dev/full")
	refuses(t, o, exitFailed, "the recording /dev/full is not complete", syscall.ENOSPC.Error(), "record to where there is room")
	require.NotContains(t, o.err, "teardown")
	require.Regexp(t, `[1-9]\d* accesses are missing`, o.err)
	require.Contains(t, o.out, "function:")

	for _, args := range [][]string{{"--help"}, {"info", "--help"}, {"version"}} {
		var errw strings.Builder
		c := exec.Command(os.Args[0], args...)
		c.Env, c.Stdout, c.Stderr = append(os.Environ(), asProgram+"=1"), full, &errw
		require.Error(t, c.Run(), "%v", args)
		require.Equal(t, exitFailed, c.ProcessState.ExitCode(), "%v", args)
		require.Contains(t, errw.String(), syscall.ENOSPC.Error())
	}
}

// TestExecAftermath: what the user sent is named where it broke the teardown.
func TestExecAftermath(t *testing.T) {
	for _, args := range [][]string{{"TEARDOWN_HCA"}, {"DESTROY_EQ", "--set", "eq_number=16"}} {
		o := cli(t, append([]string{"exec", "sim"}, args...)...)
		refuses(t, o, exitFailed, "firmware did the "+args[0]+" that was sent", "the driver's own teardown", "the function was reset")
	}
	// A teardown that fails by itself is not blamed on a question.
	o := cli(t, "exec", "sim,fault=status@DESTROY_EQ#1=INT_ERR", "QUERY_ADAPTER")
	refuses(t, o, exitFailed, "DESTROY_EQ", "INT_ERR")
	require.NotContains(t, o.err, "that was sent")
}
