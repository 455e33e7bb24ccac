package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/stretchr/testify/require"
)

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain text\n\tµs → 5 °C": "plain text\n\tµs → 5 °C",
		"\x1b[2Jx":                `\x1b[2Jx`,
		"a\rb\x00\x7f":            `a\x0db\x00\x7f`,
		"\u009b31m":               `\xc2\x9b31m`,
		"\x9b31m":                 `\x9b31m`,
		"abc\u202edef":            `abc\xe2\x80\xaedef`,
		"\ufffd":                  "\ufffd",
	} {
		require.Equal(t, want, string(plain([]byte(in))), "%q", in)
	}
	for _, s := range []string{"\u009b31m\x7f\x85", "µ", "\x1b"} {
		b, err := json.Marshal(s)
		require.NoError(t, err)
		p := plainJSON(b)
		require.Equal(t, -1, rawByte(string(p)))
		var back, was string
		require.NoError(t, json.Unmarshal(p, &back))
		require.NoError(t, json.Unmarshal(b, &was))
		require.Equal(t, was, back)
	}
	clean := []byte("nothing to do")
	require.Zero(t, testing.AllocsPerRun(10, func() { plain(clean); plainJSON(clean) }))
}

// evil is what each source of words says.
const evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"

// TestNothingRawReachesTheTerminal: words of firmware, of files, of other processes
// and of errors come out escaped, as text and as JSON, on both outputs.
func TestNothingRawReachesTheTerminal(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, b, 0o600))
		return p
	}
	box := filepath.Join(dir, "box")
	require.NoError(t, blackbox.Write(box, []blackbox.Section{{Name: "notes.txt", Data: []byte(evil)}, {Name: "about", Data: []byte(`{"board":"` + `\u001b[2J` + "\u009b" + `"}`)}}, blackbox.Options{}))
	traceText := file("trace", []byte("w-1 [003] 1.5: mlx5_fw: 0000:3b:00.0 [0x170] 0 [0x1] "+evil+"\n"))
	db := filepath.Join(dir, "db.json")
	require.NoError(t, (&trace.DB{Geometry: trace.Geometry{FirstString: 1, NumString: 4}, Sections: []trace.Section{{Base: 0, Data: []byte(evil + "\x00")}}}).Write(db))
	ring := make([]byte, 256)
	ring[248] = 0xff // a closed block
	ring[0] = 1
	ringFile := file("ring", ring)
	caps := file("caps", []byte(`{"schema":"mlxvfio.caps/1","device":"`+"\u009b"+`\u001b[2J","types":[]}`))

	tr := pcitest.New(t)
	tr.Driver("x" + evil[:4])
	tr.Add(pcitest.Spec{BDF: "0000:3b:00.0", Driver: "vfio-pci", Group: 31})
	tr.Opens(4711, evil, "/dev/vfio/31")

	for _, args := range [][]string{
		{"health", "dump", box}, {"trace", "decode", traceText}, {"trace", "stat", traceText}, {"trace", "export", traceText, "--format", "csv", "-o", "-"},
		{"trace", "decode", "--ring", ringFile, "--stringdb", db}, {"caps", "--diff", caps, caps}, {"info", "sim:" + evil}, {"info", evil}, {"tell", dir + "/" + evil, "state"},
		{"exec", "sim", evil}, {"reg", "get", "sim", evil}, {"trace", "decode", dir + "/" + evil}, {evil}, {"info", "--" + evil}, {"doctor"}, {"list"}, {"doctor", "3b:00.0"},
	} {
		for _, more := range [][]string{nil, {"--json"}} {
			o := cliOn(t, tr.Options(), append(append([]string{}, args...), more...)...)
			require.NotEmpty(t, o.out+o.err, "%q", args)
			require.Equal(t, -1, rawByte(o.out), "%q printed %q", args, o.out)
			require.Equal(t, -1, rawByte(o.err), "%q said %q", args, o.err)
			require.NotContains(t, o.out+o.err, "\u202e")
		}
	}

	// What every verb prints goes through these.
	var out, errw bytes.Buffer
	a := &app{out: &out, err: &errw}
	a.fail(t.Context(), errors.New("firmware says "+evil))
	require.Contains(t, errw.String(), `\x1b]0;owned\x07\x1b[2J\x9b31m\xe2\x80\xae\x0d`)
	a.json = true
	a.fail(t.Context(), errors.New("firmware says "+evil))
	require.Equal(t, -1, rawByte(strings.ReplaceAll(errw.String(), "\u202e", "")))
}
