package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/stretchr/testify/require"
)

// rawByte finds what a terminal would act on: anything but printable characters and
// line feeds.
func rawByte(s string) int {
	for i, r := range s {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return i
		}
	}
	return -1
}

// readers are the verbs that read a file, NAME being its name.
var readers = [][]string{
	{"trace", "decode", "NAME"},
	{"trace", "decode", "NAME", "--salvage", "--json"},
	{"trace", "stat", "NAME"},
	{"trace", "export", "NAME", "--format", "csv", "-o", "-"},
	{"trace", "report", "NAME", "--html", "-"},
	{"trace", "decode", "--ring", "NAME", "--stringdb", "NAME"},
	{"health", "dump", "NAME"},
	{"health", "dump", "NAME", "--json"},
	{"caps", "--diff", "NAME", "NAME"},
	{"exec", "nodevice", "QUERY_ADAPTER", "--in", "@NAME"},
}

// FuzzReaders gives the verbs that read files any file. They end with an exit code
// of the documented ones, a message of one line where they fail, and nothing that a
// terminal acts on in what they print.
func FuzzReaders(f *testing.F) {
	dir := f.TempDir()
	add := func(i int, b []byte) { f.Add(uint8(i), b) }
	capturePath := filepath.Join(dir, "seed.mlxt")
	a := &app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}
	require.Equal(f, exitOK, a.main(f.Context(), []string{"trace", "record", "sim:cx5,load=2000", "--for", "200ms", "-o", capturePath, "--no-cache"}), "%v", a.err)
	capture, err := os.ReadFile(capturePath)
	require.NoError(f, err)
	box := filepath.Join(dir, "seed.box")
	require.NoError(f, blackbox.Write(box, []blackbox.Section{{Name: "notes.txt", Data: []byte("\x1b[2J what happened")}, {Name: "x.bin", Data: []byte{0, 1, 2}}}, blackbox.Options{}))
	boxed, err := os.ReadFile(box)
	require.NoError(f, err)
	var caps bytes.Buffer
	a = &app{out: &caps, err: &bytes.Buffer{}}
	require.Equal(f, exitOK, a.main(f.Context(), []string{"caps", "sim", "--json"}))
	text := []byte("w-1 [003] 1.5: mlx5_fw: 0000:3b:00.0 [0x170] 0 [0x1] \x1b]0;title\x07 text\n")
	for i := range readers {
		for _, b := range [][]byte{nil, capture, capture[:len(capture)/2], boxed, boxed[:40], text, caps.Bytes(), []byte("\x1b[2J\x9b31m"), []byte(`{"schema":"mlxvfio.caps/1"}`)} {
			if len(b) < 64<<10 {
				add(i, b)
			}
		}
	}
	db := `{"trc_ver":1,"first_string_trace":1,"num_string_trace":4,"sections":[{"base":0,"data":"\u001b[2J %s"}]}`
	add(5, []byte(db))
	where := f.TempDir()
	name := filepath.Join(where, "file")
	f.Fuzz(func(t *testing.T, which uint8, content []byte) {
		require.NoError(t, os.WriteFile(name, content, 0o600))
		args := append([]string{}, readers[int(which)%len(readers)]...)
		for i := range args {
			args[i] = strings.Replace(args[i], "NAME", name, 1)
		}
		var out, errw bytes.Buffer
		a := &app{out: &out, err: &errw}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		code := a.main(ctx, args)
		require.NoError(t, ctx.Err(), "%v", args)
		require.Contains(t, []int{exitOK, exitFailed, exitUsage, exitUnavailable, exitUnsupported}, code)
		if i := rawByte(out.String()); i >= 0 && args[1] != "report" {
			t.Fatalf("%v printed %q", args, out.String()[max(0, i-40):min(out.Len(), i+40)])
		}
		if i := rawByte(errw.String()); i >= 0 {
			t.Fatalf("%v said %q", args, errw.String())
		}
		if code != exitOK {
			require.NotEmpty(t, errw.String())
		}
	})
}

// FuzzControl says any lines to a served model's control socket. Each line gets one
// line back, and the model still answers afterwards.
func FuzzControl(f *testing.F) {
	for _, line := range []string{"state", "clear", "fault late@NOP=1ms", "fault all-ones", "fault\trogue@deaf", "power-cycle", "trace 3 edge", "trace 99999999999999999999",
		"trace -1", "fault temperature@99999999999", "fault x@y", "", "  ", "\x00", strings.Repeat("a ", 300), "state\nclear late\nfault lost@#0", "fault syndrome@0xff+after=-1s", "clear nothing"} {
		f.Add([]byte(line + "\n"))
	}
	chip, err := sim.New(sim.Options{})
	require.NoError(f, err)
	f.Cleanup(func() { _ = chip.Close() })
	m := &server{a: &app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}, chip: chip}
	f.Fuzz(func(t *testing.T, said []byte) {
		if bytes.Contains(said, []byte("trace-memory")) {
			return // writes files where it is told to, as the user who serves
		}
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); talk(far, m); _ = far.Close() }()
		go func() { _, _ = near.Write(append(said, "\nstate\n"...)) }()
		require.NoError(t, near.SetDeadline(time.Now().Add(20*time.Second)))
		var answers bytes.Buffer
		buf := make([]byte, 4096)
		want := bytes.Count(said, []byte("\n")) + 2
		for bytes.Count(answers.Bytes(), []byte("\n")) < want {
			n, err := near.Read(buf)
			answers.Write(buf[:n])
			if err != nil { // a line that was too long
				break
			}
		}
		_ = near.Close()
		<-done
		lines := strings.Split(strings.TrimSuffix(answers.String(), "\n"), "\n")
		for _, l := range lines {
			require.True(t, l == "ok" || strings.HasPrefix(l, "ok ") || strings.HasPrefix(l, "error "), "%q", l)
		}
		if last := lines[len(lines)-1]; strings.HasPrefix(last, "ok {") {
			require.True(t, json.Valid([]byte(last[3:])))
		} else {
			require.Contains(t, last, "error a line has more than", "%q", last)
		}
		require.NoError(t, chip.ClearFault(""))
	})
}
