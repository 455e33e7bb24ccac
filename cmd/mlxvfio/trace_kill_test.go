package main

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/stretchr/testify/require"
)

// readKilled reads a capture whose writer was killed: the blocks in it, without one
// missing, with the load's numbers in order. whole says that it has its end.
func readKilled(t *testing.T, path string) (blocks int, whole bool) {
	t.Helper()
	r, err := capture.Open(path, capture.ReaderOptions{})
	if errors.Is(err, os.ErrNotExist) {
		return 0, false
	}
	var stop *capture.StopError
	if errors.As(err, &stop) { // inside the file's header
		require.ErrorIs(t, err, capture.ErrTruncated)
		return 0, false
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	var p capture.Player
	number, next := regexp.MustCompile(`load (\d+)`), -1
	messages := 0
	err = p.Play(t.Context(), r, func(r *capture.Record) error {
		switch r.Kind {
		case capture.KindBlock:
			require.EqualValues(t, blocks, r.Index)
			blocks++
		case capture.KindGap:
			return errors.New(r.Gap.String())
		}
		return nil
	}, func(m *trace.Message) {
		if found := number.FindStringSubmatch(m.Text()); found != nil {
			n, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			if next >= 0 {
				require.Equal(t, next, n)
			}
			next = n + 1
			messages++
		}
	})
	if !errors.Is(err, capture.ErrNoEnd) && !errors.Is(err, capture.ErrTruncated) {
		require.NoError(t, err)
		require.NotNil(t, p.End())
		whole = true
	}
	if errors.As(err, &stop) { // everything before the place is used, and behind it there is at most one record
		require.EqualValues(t, blocks, stop.Blocks)
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.LessOrEqual(t, st.Size()-stop.Offset, int64(1<<20+32))
	}
	counters := p.Counters()
	require.NoError(t, counters.Check())
	require.Zero(t, counters.UnknownStrings)
	require.GreaterOrEqual(t, messages, blocks/2, "the load is in them")
	return blocks, whole
}

// TestTraceRecordKilled kills recordings of a served function at any moment, from the
// start of the program on. The file is good up to the last block, the server's reset
// releases the tracer, or, where firmware keeps it, the next run takes it up; it records
// as if nothing had been.
func TestTraceRecordKilled(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := socketDir(t)
	sock, ctl := filepath.Join(dir, "s"), filepath.Join(dir, "c")
	server := start(t, "serve", "sim:cx5,load=5000", "--socket", sock, "--control", ctl)
	server.says("ready")
	// owned waits until the server has noticed that its client has gone, and reset the
	// function, and says whether firmware still counts the tracer as the function's.
	owned := func() int {
		end := time.Now().Add(10 * time.Second)
		for {
			raw, err := json.Marshal(object(t, "tell/1", "tell", ctl, "state")["answer"])
			require.NoError(t, err)
			var st chipState
			require.NoError(t, json.Unmarshal(raw, &st))
			require.Len(t, st.Functions, 1)
			f := st.Functions[0]
			if f.State.Phase == "off" && f.State.Mappings == 0 && f.State.Vectors == 0 {
				require.Zero(t, f.Counters.DMAFaults)
				return f.State.TracerOwned
			}
			require.True(t, time.Now().Before(end), "%+v", f.State)
			time.Sleep(time.Millisecond)
		}
	}
	// clean is a whole run: how long it takes is where the moments to kill at lie.
	clean := func(path string) (o map[string]any) {
		o = object(t, "trace-record/1", "trace", "record", "vfio-user:"+sock, "-o", path, "--for", "50ms", "--force", "--timeout", "20s")
		require.EqualValues(t, 0, o["missing_blocks"])
		n, whole := readKilled(t, path)
		require.True(t, whole)
		require.EqualValues(t, n, o["blocks"])
		require.Zero(t, owned())
		return o
	}
	path, again := filepath.Join(dir, "a.mlxt"), filepath.Join(dir, "b.mlxt")
	begun := time.Now()
	clean(again)
	whole := time.Since(begun) + 200*time.Millisecond
	rng := rand.New(rand.NewPCG(11, 12))
	kills, files, blocks, taken, released := 26, 0, 0, 0, 0
	for i := range kills {
		kept := i%2 == 1
		if kept {
			works(t, "tell", ctl, "fault", "trace-kept")
		} else {
			works(t, "tell", ctl, "clear")
		}
		require.NoError(t, os.RemoveAll(path))
		p := start(t, "trace", "record", "vfio-user:"+sock, "-o", path)
		if i%4 > 1 { // surely while it records
			require.Eventually(t, func() bool { st, err := os.Stat(path); return err == nil && st.Size() > 4096 },
				20*time.Second, time.Millisecond)
			time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
		} else {
			time.Sleep(time.Duration(rng.Int64N(int64(whole))))
		}
		require.NoError(t, p.cmd.Process.Kill())
		require.Equal(t, -1, p.ends().code)
		n, end := readKilled(t, path)
		require.False(t, end)
		blocks += n
		if n > 0 {
			files++
		}
		left := owned()
		if !kept {
			require.Zero(t, left, "the reset released it")
		}
		require.Equal(t, left == 1, clean(again)["taken_up"], "kill %d", i)
		taken += left
		if n > 0 && left == 0 {
			released++
		}
	}
	require.Greater(t, files, kills/4)
	require.Greater(t, taken, kills/8)
	require.Greater(t, released, kills/8)
	t.Logf("%d kills, %d of them left a file with blocks, %d blocks in all; %d owned the tracer still and were taken up, %d were released by the reset",
		kills, files, blocks, taken, released)
	require.NoError(t, server.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, exitOK, server.ends().code)
}
