package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// manPages writes the pages and gives their folder.
func manPages(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "man1")
	require.Contains(t, works(t, "man", "--dir", dir), " pages in "+dir)
	return dir
}

// TestManPages: each verb has a page of its own, with every flag, every exit code, and
// what a page should have; what the page of the verb is printed as is what is written.
func TestManPages(t *testing.T) {
	dir := manPages(t)
	pages := 0
	eachVerb((&app{}).command(), func(c *cobra.Command) {
		pages++
		b, err := os.ReadFile(filepath.Join(dir, manName(c)+".1"))
		require.NoError(t, err)
		page := string(b)
		for _, s := range []string{"NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"} {
			if s == "SEE ALSO" && !c.HasParent() {
				s = "VERBS"
			}
			require.Contains(t, page, "\n.SH "+s+"\n", c.CommandPath())
		}
		all := func(f *pflag.Flag) {
			if f.Hidden {
				require.NotContains(t, page, bold("--"+f.Name), c.CommandPath())
				return
			}
			require.Contains(t, page, bold("--"+f.Name), c.CommandPath())
		}
		c.NonInheritedFlags().VisitAll(all)
		c.InheritedFlags().VisitAll(all)
		for _, x := range exits {
			require.Contains(t, page, escaped(x.meaning)[:10], c.CommandPath())
		}
		for _, s := range c.Commands() {
			require.Contains(t, page, manRef(s), c.CommandPath())
		}
		if c.HasParent() {
			require.Equal(t, page, works(t, append([]string{"man"}, strings.Fields(c.CommandPath())[1:]...)...))
		}
	})
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, pages)
	got := object(t, "man/1", "man", "--dir", dir)
	require.Len(t, got["pages"], pages)
	require.Equal(t, dir, got["dir"])

	record := works(t, "man", "trace", "record")
	require.Contains(t, record, "/mlxvfio/strings/")
	require.Contains(t, record, "XDG_CACHE_HOME")
	require.Contains(t, record, `\fBmlxvfio trace record\fR \fIDEV\fR`)
	require.NotContains(t, works(t, "man", "version"), "/dev/vfio", "it opens nothing")
	require.Contains(t, works(t, "man", "reg", "set"), `\fIDEV\fR \fIREG\fR \fIFIELD\fR=\fIVALUE\fR\[u2026]`)
	require.Contains(t, works(t, "man", "completion"), `\fBbash\fR|\fBzsh\fR|\fBfish\fR`)
}

// TestManRefuses: a verb that is not there, and words that make no sense together.
func TestManRefuses(t *testing.T) {
	refuses(t, cli(t, "man", "trase"), exitUsage, `"trase"; did you mean trace?`)
	refuses(t, cli(t, "man", "info", "x"), exitUsage, `"x"`)
	refuses(t, cli(t, "man", "info", "--dir", t.TempDir()), exitUsage, "--dir")
	refuses(t, cli(t, "man", "--dir", ""), exitUsage, "--dir")
	require.Equal(t, exitUsage, cli(t, "man", "info", "--json").code)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	refuses(t, cli(t, "man", "--dir", filepath.Join(file, "x")), exitUnavailable, "file")
}

// TestManIsReproducible: the pages are the same whenever, wherever and by whomever
// they are made, and plain ASCII.
func TestManIsReproducible(t *testing.T) {
	one := manPages(t)
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	t.Setenv("TZ", "Pacific/Auckland")
	t.Setenv("LANG", "de_DE.UTF-8")
	two := manPages(t)
	host, err := os.Hostname()
	require.NoError(t, err)
	files, err := os.ReadDir(one)
	require.NoError(t, err)
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(one, f.Name()))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(two, f.Name()))
		require.NoError(t, err)
		require.Equal(t, string(a), string(b), f.Name())
		require.NotRegexp(t, `[^\x0a\x20-\x7e]`, string(a), f.Name())
		require.NotRegexp(t, `\b20\d\d\b|\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) |/root|/home|/tmp/go|`+regexp.QuoteMeta(one), string(a), f.Name())
		require.NotRegexp(t, `\b`+regexp.QuoteMeta(host)+`\b`, string(a), f.Name())
	}
}

// TestManIsRoff has groff, man and mandoc read every page, those of them that the
// machine has.
func TestManIsRoff(t *testing.T) {
	dir := manPages(t)
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	require.NoError(t, err)
	run := func(name string, args ...string) (string, bool) {
		path, err := exec.LookPath(name)
		if err != nil {
			absent.Note(t, "manual pages read by "+name, name+" is not in PATH")
			return "", false
		}
		out, err := exec.Command(path, args...).CombinedOutput()
		require.NoError(t, err, "%s %v\n%s", name, args, out)
		return string(out), true
	}
	seen := 0
	for _, p := range pages {
		out, ok := run("groff", "-man", "-ww", "-z", "-Tutf8", p)
		if !ok {
			break
		}
		require.Empty(t, out, p)
		seen++
	}
	if out, ok := run("man", "-l", "-P", "cat", filepath.Join(dir, "mlxvfio-trace-record.1")); ok {
		require.Contains(t, strings.ReplaceAll(out, "\b", ""), "SYNOPSIS")
		seen++
	}
	if path, err := exec.LookPath("mandoc"); err != nil {
		absent.Note(t, "manual pages read by mandoc", "mandoc is not in PATH")
	} else {
		for _, p := range pages {
			out, _ := exec.Command(path, "-Tlint", "-Wstyle", p).CombinedOutput() // its exit code counts the missing date
			for l := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
				// A date would be that of a build; long lines are in the table of NAME, which is one line,
				// and in what stands as it is.
				if l != "" && !strings.Contains(l, "missing date") && !strings.Contains(l, "longer than 80 bytes") {
					t.Error(l)
				}
			}
			seen++
		}
	}
	if seen == 0 {
		absent.Skip(t, "manual pages", "neither groff nor man nor mandoc is in PATH")
	}
}

// TestRoffText: what would mean something to roff stands as it is.
func TestRoffText(t *testing.T) {
	var r roff
	r.text(".dot at the beginning\n'quote -x \\n ~ ^ `\n\nnext\n  set in\n  .more\nafter")
	require.Equal(t, `\&.dot at the beginning
\(aqquote \-x \en \(ti \(ha \(ga
.PP
next
.RS 4
.nf
set in
\&.more
.fi
.RE
.PP
after
`, r.String())
	r.Reset()
	r.fill(strings.Repeat("word ", 40))
	for l := range strings.SplitSeq(r.String(), "\n") {
		require.LessOrEqual(t, len(l), lineWidth)
	}
}

// TestManNotes: the verbs that files and variables belong to exist, and every verb
// that opens a function has its files.
func TestManNotes(t *testing.T) {
	have := map[string]*cobra.Command{}
	eachVerb((&app{}).command(), func(c *cobra.Command) {
		have[strings.TrimPrefix(c.CommandPath(), "mlxvfio ")] = c
	})
	for _, n := range append(append([]manNote{}, usedFiles...), environment...) {
		for _, v := range n.verbs {
			require.Contains(t, have, v, n.name)
		}
	}
	for path, c := range have {
		want, _ := usageArgs(c.Use)
		takes := false
		for _, w := range want {
			for _, x := range w {
				takes = takes || x == "DEV"
			}
		}
		if takes {
			require.Contains(t, opens, path, "it takes DEV")
		}
	}
}
