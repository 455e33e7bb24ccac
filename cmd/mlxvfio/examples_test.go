package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// needsMore tells whether an example needs a function that can be opened, or files
// that the examples before it do not make.
func needsMore(line string) bool {
	return strings.Contains(line, ":00.0") && !regexp.MustCompile(`^ *mlxvfio (doctor|bind|unbind) `).MatchString(line) ||
		regexp.MustCompile(`before\.mlxt|dmesg\.txt|ring\.bin`).MatchString(line)
}

// TestHelpExamples runs the examples in the help of each verb, one after the other in
// a folder of their own, as a reader would who tries them.
func TestHelpExamples(t *testing.T) {
	ran := 0
	eachVerb((&app{}).command(), func(c *cobra.Command) {
		if !c.HasSubCommands() {
			require.NotEmpty(t, c.Example, "%s has no examples", c.CommandPath())
		}
		t.Run(c.CommandPath(), func(t *testing.T) {
			t.Chdir(t.TempDir())
			_, where := machine(t)
			for l := range strings.SplitSeq(c.Example, "\n") {
				line, about, says := strings.Cut(l, "#")
				require.True(t, !says || strings.TrimSpace(about) != "", "%s says nothing", l)
				words := strings.Fields(line)
				if len(words) == 0 || needsMore(line) {
					continue
				}
				require.Equal(t, "mlxvfio", words[0], l)
				ran++
				if words[len(words)-1] == "&" {
					inBackground(t, words[1:len(words)-1])
					continue
				}
				want := exitOK
				if m := regexp.MustCompile(`exit code (\d+)`).FindStringSubmatch(about); m != nil {
					want, _ = strconv.Atoi(m[1])
				}
				o := cliOn(t, where, words[1:]...)
				if words[1] == "doctor" { // the machine is one that needs something
					want = exitFailed
				}
				require.Equal(t, want, o.code, "%s\n%s%s", line, o.out, o.err)
				require.NotEmpty(t, o.out+readNamed(words), "%s shows and writes nothing", line)
			}
		})
	})
	require.Greater(t, ran, 40)
}

// readNamed is what stands in the file that an example writes.
func readNamed(words []string) string {
	for i, w := range words[1:] {
		if words[i] == "-o" || words[i] == "--out" || words[i] == "--html" {
			b, _ := os.ReadFile(w) // a file that is not there is empty
			return string(b)
		}
	}
	return ""
}

// inBackground runs an example that ends with &, until the test ends.
func inBackground(t *testing.T, args []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var out safeBuffer
	var errs bytes.Buffer
	code := make(chan int, 1)
	a := &app{out: &out, err: &errs}
	go func() { code <- a.main(ctx, args) }()
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-code, "%v\n%s", args, errs.String())
	})
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "ready") }, 20*time.Second, time.Millisecond, "%v", args)
}

// safeBuffer may be read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestHelpIsReadable: every verb says in a sentence what it does, its texts are not
// wider than a help should be, and help, --help and a manual page have the same.
func TestHelpIsReadable(t *testing.T) {
	root := (&app{}).command()
	eachVerb(root, func(c *cobra.Command) {
		for l := range strings.SplitSeq(c.Long, "\n") {
			require.LessOrEqual(t, len([]rune(strings.TrimLeft(l, " "))), 200, "%s: %s", c.CommandPath(), l)
		}
		require.NotContains(t, c.Short, "\n")
		require.False(t, strings.HasSuffix(c.Short, "."), "%s: %s", c.CommandPath(), c.Short)
		if !c.HasParent() {
			return
		}
		words := strings.Fields(c.CommandPath())[1:]
		require.Equal(t, works(t, append(words, "--help")...), works(t, append([]string{"help"}, words...)...))
		if !c.HasSubCommands() {
			require.NotEmpty(t, c.Long, c.CommandPath())
		}
	})
	top := works(t)
	for _, c := range root.Commands() {
		require.Contains(t, top, "\n  "+c.Name()+" ", "the help lists every verb")
	}
	require.Equal(t, top, works(t, "help"))
	refuses(t, cli(t, "help", "nosuch"), exitUsage, `"nosuch"`)
	refuses(t, cli(t, "help", "reg", "gte"), exitUsage, `"reg gte"`, "did you mean get?")
}

// TestDidYouMean suggests what was meant, in one line, with exit code 2.
func TestDidYouMean(t *testing.T) {
	for _, x := range []struct{ args, meant string }{
		{"inof sim", "did you mean info?"},
		{"trace recrd sim", `"trace recrd"; did you mean record?`},
		{"info sim --jsn", "mlxvfio info has no flag --jsn; did you mean --json?"},
		{"health watch sim --metric x", "did you mean --metrics or --metrics-public?"},
		{"info sim:cx6", "did you mean cx6dx"},
		{"info sim,fault=lats", "did you mean late"},
		{"info sim,fualt=late", "did you mean fault"},
		{"serve cx5,fault=fatl --socket s", "did you mean fatal?"},
		{"exec sim QUERY_ADAPTR", "did you mean QUERY_ADAPTER?"},
		{"reg get sim POAS", "did you mean PAOS"},
		{"reg set sim PAOS admin_state=1", "did you mean admin_status?"},
		{"reg set sim PAOS admin_status=UPP", "UP, DOWN"},
	} {
		o := cli(t, strings.Fields(x.args)...)
		refuses(t, o, exitUsage, x.meant)
		require.Less(t, len(o.err), 400, "%s", o.err)
	}
	require.NotContains(t, cli(t, "info", "sim,fault=zzzzzzzz").err, "did you mean")
	require.Equal(t, []string{"ab"}, near("ba", []string{"ab", "xyz"}), "two letters swapped")
	require.Empty(t, near("", []string{"a"}))
	require.Equal(t, 3, distance("kitten", "sitting"))
}
