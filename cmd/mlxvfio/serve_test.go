package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/stretchr/testify/require"
)

// socketDir is a folder with a short name: a UNIX socket's has a limit.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "mlx")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestServe(t *testing.T) {
	dir := socketDir(t)
	s1, s2, ctl := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "c")
	p := start(t, "serve", "sim:cx4,port=ib", "--socket", s1, "--socket", s2, "--control", ctl)
	line := p.says("\n")
	require.Equal(t, "ready: cx4, ib port, firmware 14.12.1220 on "+s1+", "+s2+", control on "+ctl+"\n", line)

	o := object(t, "info/1", "info", "vfio-user:"+s1)
	require.Equal(t, "14.12.1220", o["firmware"])
	require.Equal(t, "vfio-user", o["backend"])
	require.Equal(t, "pass", object(t, "selftest/1", "selftest", "vfio-user:"+s2)["verdict"])

	// A fault raised at run time is seen by the next command, and gone when it is cleared.
	require.Equal(t, "ok\n", works(t, "tell", ctl, "fault", "status@NOP=BAD_RES_ERR"))
	refuses(t, cli(t, "exec", "vfio-user:"+s1, "NOP"), exitFailed, "BAD_RES_ERR")
	require.Contains(t, works(t, "tell", ctl, "state"), "status@NOP=BAD_RES_ERR")
	works(t, "tell", ctl, "clear", "status")
	works(t, "exec", "vfio-user:"+s1, "NOP")

	raw, err := json.Marshal(object(t, "tell/1", "tell", ctl, "state")["answer"])
	require.NoError(t, err)
	var st chipState
	require.NoError(t, json.Unmarshal(raw, &st))
	require.Equal(t, "cx4", st.Model)
	require.Len(t, st.Functions, 2)
	for _, f := range st.Functions { // nothing is left of the clients
		require.Zero(t, f.State.Pages)
		require.Zero(t, f.State.Mappings)
		require.Equal(t, "off", f.State.Phase)
		require.NotZero(t, f.Counters.Interrupts)
	}
	require.Equal(t, "ok\n", works(t, "tell", ctl, "power-cycle"))
	refuses(t, cli(t, "tell", ctl, "power-cycle", "twice"), exitFailed, "want: power-cycle")
	refuses(t, cli(t, "tell", ctl, "fault", "nosuch"), exitFailed, "nosuch", "lost-irq")
	refuses(t, cli(t, "tell", ctl, "sing"), exitFailed, "sing", "state")
	refuses(t, cli(t, "tell", ctl, "trace", "5"), exitFailed, "no function traces", "acquire")
	refuses(t, cli(t, "tell", ctl, "trace-memory", t.TempDir()), exitFailed, "no function traces")
	refuses(t, cli(t, "tell", ctl, "trace-memory", "here"), exitFailed, "absolute")
	for _, bad := range [][]string{{}, {"0"}, {"x"}, {"5", "odd"}, {"5", "plain", "1"}} {
		refuses(t, cli(t, append([]string{"tell", ctl, "trace"}, bad...)...), exitFailed, "want: trace N")
	}

	// A live socket is nobody else's.
	refuses(t, cli(t, "serve", "--socket", s1), exitUnavailable, s1, "in use")

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, outcome{code: exitOK, out: line}, p.ends())
	left, err := os.ReadDir(dir) // the sockets are gone
	require.NoError(t, err)
	require.Empty(t, left, "the sockets are removed")
	refuses(t, cli(t, "info", "vfio-user:"+s1), exitUnavailable, s1, "mlxvfio serve")
	refuses(t, cli(t, "tell", ctl, "state"), exitUnavailable, ctl, "mlxvfio serve --socket PATH --control "+ctl)
}

func TestServeReplacesDeadSocket(t *testing.T) {
	dir := socketDir(t)
	sock, plain := filepath.Join(dir, "s"), filepath.Join(dir, "file")
	p := start(t, "serve", "--socket", sock)
	p.says("ready")
	require.NoError(t, p.cmd.Process.Kill())
	p.ends()
	require.FileExists(t, sock, "SIGKILL leaves the socket")

	p = start(t, "serve", "--socket", sock, "--json")
	o := decodeOne(t, "serve/1", p.says("\n"))
	require.Equal(t, true, o["ready"])
	require.Equal(t, []any{sock}, o["sockets"])
	works(t, "info", "vfio-user:"+sock)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitOK, p.ends().code)

	require.NoError(t, os.WriteFile(plain, []byte("precious"), 0o600))
	refuses(t, cli(t, "serve", "--socket", sock, "--control", plain), exitUnavailable, plain, "no socket")
	require.FileExists(t, plain)
	require.NoFileExists(t, sock, "what was opened before the refusal is closed")
}

// TestServeClientDies kills a client in the middle of its work: the next one
// finds a fresh function.
func TestServeClientDies(t *testing.T) {
	dir := socketDir(t)
	sock := filepath.Join(dir, "s")
	p := start(t, "serve", "--socket", sock)
	p.says("ready")
	for _, stage := range []string{"init-pages", "ready"} {
		c := start(t, "selftest", "vfio-user:"+sock, "--stop-at", stage)
		c.says("stopped at " + stage)
		refuses(t, cli(t, "info", "vfio-user:"+sock, "--timeout", "100ms"), exitFailed, "--timeout 100ms")
		require.NoError(t, c.cmd.Process.Kill())
		require.Equal(t, -1, c.ends().code)
		require.Equal(t, "pass", object(t, "selftest/1", "selftest", "vfio-user:"+sock)["verdict"])
	}
}

func TestServeList(t *testing.T) {
	text := strings.Join(strings.Fields(works(t, "serve", "--list")), " ") // however its lines are broken
	o := object(t, "serve-list/1", "serve", "--list")
	require.Len(t, o["faults"], len(sim.Faults()))
	for _, f := range sim.Faults() {
		require.Contains(t, text, f.Name)
		require.Contains(t, text, f.Meaning)
	}
	for _, p := range sim.Profiles() {
		require.Contains(t, text, p)
		require.Contains(t, o["profiles"], p)
	}
	require.Len(t, o["rulings"], len(sim.Rulings()))
	require.Equal(t, sim.Rulings()[0].Name, o["rulings"].([]any)[0].(map[string]any)["name"])
	for _, x := range sim.Rulings() {
		require.Contains(t, text, x.Name+": "+x.Text)
	}
	require.Contains(t, text, "fw=X.Y.Z")
	require.Regexp(t, `firmware +14\.12\.1220 +real `, works(t, "serve", "cx4", "--list"))
	require.Equal(t, "sim:cx4", object(t, "serve-values/1", "serve", "cx4", "--list")["model"])
	refuses(t, cli(t, "serve", "nosuch", "--list"), exitUsage, "nosuch")
}

// TestControl speaks the protocol by hand: several lines over one connection.
func TestControl(t *testing.T) {
	chip, err := sim.New(sim.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, chip.Close()) }()
	path := filepath.Join(socketDir(t), "c")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveControl(ctx, l, &server{chip: chip}) }()

	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	in := bufio.NewScanner(c)
	for _, x := range []struct{ line, want string }{
		{"", "error no word"},
		{"dance", `error unknown word "dance"`},
		{"fault", "error want: fault NAME"},
		{"fault nosuch", `error simulated device: unknown fault "nosuch"`},
		{"fault late@NOP=soon", "error simulated device: bad fault"},
		{"clear nosuch", "error simulated device: unknown fault"},
		{"clear late reorder", "error want: clear [NAME]"},
		{"state now", "error want: state"},
		{"fault late@NOP=5ms\r", "ok"},
		{"clear", "ok"},
	} {
		_, err := c.Write([]byte(x.line + "\n"))
		require.NoError(t, err)
		require.True(t, in.Scan())
		require.True(t, strings.HasPrefix(in.Text(), x.want), "%q: %q", x.line, in.Text())
	}
	_, err = c.Write([]byte("fault reorder\nstate\n"))
	require.NoError(t, err)
	require.True(t, in.Scan())
	require.Equal(t, "ok", in.Text())
	require.True(t, in.Scan())
	var s chipState
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(in.Text(), "ok ")), &s))
	require.Equal(t, []string{"reorder"}, s.Functions[0].State.Faults)

	// The end of the server ends the connection, and nothing waits for the client.
	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "serveControl waits for an idle client")
	}
	require.False(t, in.Scan())
}

// TestTellNotControl tells a server that is none: the answer is an error, not a wait.
func TestTellNotControl(t *testing.T) {
	path := filepath.Join(socketDir(t), "x")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	answers := make(chan string, 2)
	go func() {
		for answer := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(answer))
			if answer != "" {
				_, _ = c.Read(make([]byte, 64)) // a peer that hangs up unheard would break the sender's pipe
				_ = c.Close()
			} // else silent
		}
	}()
	defer close(answers)
	answers <- "220 mail.example.org\n"
	refuses(t, cli(t, "tell", path, "state"), exitFailed, "no control socket")
	answers <- ""
	refuses(t, cli(t, "tell", path, "state", "--timeout", "50ms"), exitFailed, "no answer", "50ms")
}
