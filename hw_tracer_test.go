//go:build hw

package mlxvfio_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/hwtest"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
)

// hardwareFunction opens the function under test.
func hardwareFunction(t *testing.T) *mlxvfio.HCA {
	h, err := mlxvfio.Open(t.Context(), hwtest.Open(t), mlxvfio.Options{})
	require.NoError(t, err)
	return h
}

// record captures to a file until enough blocks are there and wait, if any, says so,
// with commands beside it, and reads the file back.
func record(t *testing.T, h *mlxvfio.HCA, o tracer.Options, blocks int, wait func() bool) *loads {
	c, err := h.OpenTracer(t.Context(), o)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "a.mlxt")
	w, err := capture.Create(path, c.Meta(), true)
	require.NoError(t, err)
	stop, gone := make(chan struct{}), make(chan error, 1)
	go func() { // firmware has something to say
		for {
			select {
			case <-stop:
				gone <- nil
				return
			case <-time.After(2 * time.Millisecond):
			}
			if err := h.Conn().NOP(t.Context()); err != nil {
				gone <- err
				return
			}
		}
	}()
	n, limit := 0, time.Now().Add(60*time.Second)
	end, err := capture.Pump(t.Context(), w, c, func(r *capture.Record) error {
		if r.Kind == capture.KindBlock {
			n++
		}
		if late := time.Now().After(limit); late || n >= blocks && (wait == nil || wait()) {
			c.Stop()
		}
		return nil
	})
	close(stop)
	require.NoError(t, <-gone)
	require.NoError(t, err)
	require.NoError(t, w.Close(end))
	require.NoError(t, c.Close(t.Context()))
	require.Equal(t, capture.ReasonStopped, end.Reason)
	require.GreaterOrEqual(t, n, blocks, "%+v", c.Stats())
	rd, err := capture.Open(path, capture.ReaderOptions{})
	require.NoError(t, err)
	defer rd.Close()
	l := &loads{}
	require.NoError(t, l.play(t.Context(), rd, nil))
	require.Equal(t, n, l.blocks)
	t.Logf("%d blocks, %d messages, %d of them the load's; %+v", l.blocks, l.counters.Messages, l.messages, c.Stats())
	return l
}

// TestHardwareTracer records what firmware says of commands, and loses none of it, by
// events and by polling. It needs a tracer that nobody else has.
func TestHardwareTracer(t *testing.T) {
	h := hardwareFunction(t)
	defer func() { require.NoError(t, h.Close(t.Context())) }()
	var missing *tracer.CapabilityError
	caps, err := h.TracerCaps(t.Context())
	if errors.As(err, &missing) {
		absent.Skip(t, "tracer of real hardware", err.Error())
	}
	require.NoError(t, err)
	blocks, load := 50, os.Getenv("MLXVFIO_TEST_LOAD") != "" // the model's, beside the commands
	if load {
		blocks = 200
	}
	for _, o := range []tracer.Options{{}, {Polled: true}, {BufferSize: 64 << 10}, {BufferSize: int(caps.MaxBuffer())}} {
		l := record(t, h, o, blocks, nil)
		require.Empty(t, l.gaps)
		require.Positive(t, l.counters.Messages)
		if load {
			require.NoError(t, l.whole())
		}
	}
}

// TestContendedTracer does not hold the tracer alone: another function's driver
// has it, lets go, and wants it back. Whoever plays the other driver waits for the lines
// that this test prints and tells it to go on by making files in the folder
// MLXVFIO_TEST_STEPS.
func TestContendedTracer(t *testing.T) {
	steps := os.Getenv("MLXVFIO_TEST_STEPS")
	if steps == "" {
		absent.Skip(t, "tracer that another driver contends for", "MLXVFIO_TEST_STEPS names no folder: nobody plays the other driver")
	}
	h := hardwareFunction(t)
	defer func() { require.NoError(t, h.Close(t.Context())) }()
	say := func(format string, args ...any) { fmt.Printf("STEP "+format+"\n", args...) }
	told := func(name string) bool {
		_, err := os.Stat(filepath.Join(steps, name))
		return err == nil
	}
	refused := func() {
		caps, err := h.TracerCaps(t.Context())
		require.NoError(t, err)
		require.False(t, caps.Owner)
		_, err = h.OpenTracer(t.Context(), tracer.Options{})
		require.ErrorIs(t, err, tracer.ErrBusy)
		var busy *tracer.BusyError
		require.ErrorAs(t, err, &busy)
		require.Equal(t, 1, busy.Tries)
	}
	refused()
	say("busy")

	// No clock asks again before the wait is over: only the event can end it in time.
	const patience = 40 * time.Second
	tries := 0
	o, err := h.TracerOwner(t.Context(), tracer.OwnerOptions{
		Wait: patience, Backoff: time.Hour, MaxBackoff: time.Hour,
		OnBusy: func(n int, _ time.Duration) { tries = n; say("waiting") },
	})
	require.NoError(t, err)
	require.Equal(t, 1, tries, "the second question was answered with yes")
	require.False(t, o.TakenUp())
	say("owned")
	require.NoError(t, o.Release(t.Context()))

	recorded := false
	l := record(t, h, tracer.Options{}, 300, func() bool {
		if !recorded {
			recorded = true
			say("recording")
		}
		return told("stop")
	})
	require.NoError(t, l.whole())
	say("released after %d messages of the load", l.messages)
	for end := time.Now().Add(patience); !told("end"); time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "nobody says how it ends")
	}
	refused()
	say("busy again")
}
