package mlxvfio_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
)

// servedModel is a model behind a socket; truth ends it and says what it wrote.
type servedModel struct {
	path  string
	truth func() sim.TraceTruth
}

// servedHere is in this process.
func servedHere(t *testing.T, words string) servedModel {
	c := chip(t, words)
	c.KeepTrace(1 << 20)
	return servedModel{serve(t, c), c.KeptTrace}
}

// modelProcess makes the test binary be a server: the words of the model and the path
// of the socket.
const modelProcess = "MLXVFIO_TEST_MODEL"

// beModelProcess is the server: it serves until its standard input ends, and then prints
// what the model wrote.
func beModelProcess(t *testing.T, words, path string) {
	c := chip(t, words)
	c.KeepTrace(1 << 20)
	l, err := vfiouser.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	tr := c.Function(0)
	go func() { done <- vfiouser.Serve(ctx, l, tr, vfiouser.Options{}) }()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, tr.Close())
	spotless(c, 0)(t)
	b, err := json.Marshal(c.KeptTrace())
	require.NoError(t, err)
	fmt.Println(string(b))
}

// servedThere is in a process of its own.
func servedThere(t *testing.T, words string) servedModel {
	path := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0], "-test.run=^TestTracerOverSocket$")
	cmd.Env = append(os.Environ(), modelProcess+"="+words, modelProcess+"_SOCKET="+path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()
		}
	})
	said := bufio.NewReaderSize(out, 1<<20)
	line, err := said.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	return servedModel{path, func() (truth sim.TraceTruth) {
		require.NoError(t, in.Close())
		text, err := said.ReadBytes('\n')
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &truth), "%.200s", text)
		_, err = io.Copy(io.Discard, said)
		require.NoError(t, err)
		ended = true
		require.NoError(t, cmd.Wait())
		return truth
	}}
}

// TestTracerOverSocket: memory that the device writes to is a file that both processes
// map, and its events cross the socket. At a rate that is no trouble every block comes
// and every message is word for word the model's; at one that is, every block that is
// missing is counted, in its place.
func TestTracerOverSocket(t *testing.T) {
	if words := os.Getenv(modelProcess); words != "" {
		beModelProcess(t, words, os.Getenv(modelProcess+"_SOCKET"))
		return
	}
	served := map[string]func(*testing.T, string) servedModel{"same process": servedHere, "other process": servedThere}
	for where, by := range served {
		for _, tt := range []struct {
			name   string
			rate   float64
			blocks int
			pause  time.Duration
			o      tracer.Options
		}{
			{"moderate", 20000, 300, 0, tracer.Options{}},
			{"moderate, polled", 20000, 300, 0, tracer.Options{Polled: true}},
			{"slow taker", 200000, 300, time.Millisecond, tracer.Options{Queue: 64}},
			{"slow reader", 200000, 300, 0, tracer.Options{BufferSize: 4096, Polled: true, Poll: 20 * time.Millisecond}},
		} {
			t.Run(where+", "+tt.name, func(t *testing.T) {
				lossy := tt.rate > 1e5
				if raceBuild {
					tt.rate /= 10
					tt.pause *= 5
				}
				m := by(t, fmt.Sprintf("sim:cx5,load=%g", tt.rate))
				tr, err := vfiouser.Dial(t.Context(), m.path, vfiouser.Options{})
				require.NoError(t, err)
				h, err := mlxvfio.Open(t.Context(), tr, mlxvfio.Options{})
				require.NoError(t, err)
				c, err := h.OpenTracer(t.Context(), tt.o)
				require.NoError(t, err)
				enough := blocks(tt.blocks)
				got := follow(t, c, tt.pause, func(x *traced) bool { return enough(x) && (!lossy || len(x.gaps) > 0) })
				require.Equal(t, capture.ReasonStopped, got.end.Reason)
				require.NoError(t, c.Close(t.Context()))
				s := c.Stats()
				require.Equal(t, lossy, len(got.gaps) > 0, "%+v", s)
				require.EqualValues(t, got.missing, s.BackPressure+s.Overwritten)
				require.Zero(t, s.Order)
				require.NoError(t, h.Close(t.Context()))
				drivertest.Balanced(t, h.Ledger())
				against(t, m.truth(), got, int(c.Meta().RingBlocks))
			})
		}
	}
}
