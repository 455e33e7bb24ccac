package faultdoc

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// spy is a T that keeps what it hears.
type spy struct {
	said   []string
	failed bool
}

func (*spy) Helper()                     {}
func (*spy) Logf(string, ...any)         {}
func (s *spy) Failed() bool              { return s.failed }
func (s *spy) Errorf(f string, a ...any) { s.said = append(s.said, fmt.Sprintf(f, a...)) }
func (s *spy) heard() string             { return strings.Join(s.said, "\n") }
func see(d *Table, f, v, at, saw string) { r := d.Row(f, v, at); r.Raised(); r.Saw("%s", saw) }
func seeThen(d *Table, f, at, saw string) {
	r := d.Row(f, "", at)
	r.Raised()
	r.Saw("%s", saw)
	r.Then("open again")
}

func TestRender(t *testing.T) {
	d := New("x", "TestX", "a", "b", "c", "d", "e")
	for _, at := range []string{"d", "a", "b", "c", "elsewhere"} { // e was not tried
		see(d, "lost", "", at, "Timeout")
	}
	see(d, "lost", "", "e", "works")
	for _, v := range []string{"EIO", "EPERM"} {
		see(d, "open", v, "a", "Error")
		see(d, "open", v, "b", "Error|s")
	}
	see(d, "open", "EBUSY", "a", "Error")
	see(d, "open", "", "a", "Error") // without a variant it is a line of its own
	require.Equal(t, `5 kinds, 12 rows, written by TestX.

| fault | raised at | result |
|---|---|---|
| lost | a … d (4), elsewhere | Timeout |
| lost | e | works |
| open: EIO, EPERM, EBUSY | a | Error |
| open: EIO, EPERM | b | Error\|s |
| open | a | Error |
`, d.render())
	require.Equal(t, 5, d.Kinds())
}

func TestCommonIsSaidOnce(t *testing.T) {
	d := New("x", "TestX", "a", "b")
	seeThen(d, "f", "a", "E")
	seeThen(d, "g", "a", "E")
	require.Contains(t, d.render(), "In every row: open again.")
	require.NotContains(t, d.render(), "E; open again")
	r := d.Row("g", "", "b")
	r.Raised()
	r.Saw("E")
	r.Then("stuck")
	require.NotContains(t, d.render(), "In every row")
	require.Contains(t, d.render(), "| g | a | E; open again |")
	require.Contains(t, d.render(), "| g | b | E; stuck |")
}

// Check is of no use unless it fails: on rows that prove nothing, and on a document
// that says something else.
func TestCheckFails(t *testing.T) {
	d := New("x", "TestX", "a")
	require.Equal(t, []string{"the table has no rows"}, d.missing())
	r := d.Row("f", "v", "a")
	require.Contains(t, d.missing()[0], "f v at a: the fault was never raised")
	s := &spy{}
	d.Check(s)
	require.Contains(t, s.heard(), "never raised")
	r.Raised()
	require.Contains(t, d.missing()[0], "nothing was observed")
	r.Saw("E")
	require.Empty(t, d.missing())

	path := filepath.Join(t.TempDir(), "testing.md")
	write := func(s string) { require.NoError(t, os.WriteFile(path, []byte(s), 0o600)) }
	write("head\n")
	require.ErrorContains(t, d.sync(path, true), "has no section")
	write("head\n<!-- faults: x -->\n| f | a | stale |\n")
	require.ErrorContains(t, d.sync(path, true), "has no end")
	write("head\n<!-- faults: x -->\n<!-- faults: y -->\n<!-- /faults -->\n")
	require.ErrorContains(t, d.sync(path, true), "has no end")
	write("head\n<!-- faults: x -->\n| f | a | stale |\n<!-- /faults -->\ntail\n")
	require.ErrorContains(t, d.sync(path, false), "make faults writes it")
	require.NoError(t, d.sync(path, true))
	require.NoError(t, d.sync(path, false))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "head\n<!-- faults: x -->\n"+d.render()+"<!-- /faults -->\ntail\n", string(text))
	r.Saw("F")
	require.ErrorContains(t, d.sync(path, false), `observed is "| f: v | a | F |"`)

	s = &spy{failed: true}
	d.Check(s) // a test that has failed says enough
	require.Empty(t, s.said)
}

// A run of some subtests has not seen the whole table, and has nothing to compare.
func TestPartialRun(t *testing.T) {
	run := flag.Lookup("test.run")
	was := run.Value.String()
	t.Cleanup(func() { require.NoError(t, run.Value.Set(was)) })
	r := New("no such section", "TestX", "a").Row("f", "", "a")
	r.Raised()
	r.Saw("E")
	for pattern, fails := range map[string]bool{"TestX": true, "TestX/some_row": false} {
		require.NoError(t, run.Value.Set(pattern))
		s := &spy{}
		r.table.Check(s)
		require.Equal(t, fails, strings.Contains(s.heard(), "has no section"), s.heard())
	}
}

// StatusError has what Describe shows.
type StatusError struct{ Status word }

type word string

func (w word) String() string      { return string(w) }
func (*StatusError) Error() string { return "status" }

func TestDescribe(t *testing.T) {
	sentinel := errors.New("x")
	n := Names{"ErrX": sentinel}
	require.Equal(t, "StatusError BAD, ErrX, EIO, deadline", n.Describe(fmt.Errorf("a: %w, %w",
		&StatusError{"BAD"}, errors.Join(fmt.Errorf("%w", sentinel), syscall.EIO, syscall.EIO, context.DeadlineExceeded))))
	require.Equal(t, "ErrX", n.Describe(errors.Join(&StatusError{"BAD"}, sentinel), "StatusError BAD"))
	require.Equal(t, "*errors.errorString", n.Describe(errors.New("unknown")))
	require.Equal(t, "errno 133", n.Describe(syscall.Errno(133)))
}
