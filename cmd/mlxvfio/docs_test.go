package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func manual(t *testing.T) string {
	b, err := os.ReadFile("../../docs/cli.md")
	require.NoError(t, err)
	return string(b)
}

// TestManualIsComplete finds every verb and every flag in docs/cli.md.
func TestManualIsComplete(t *testing.T) {
	text := manual(t)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.HasParent() && !c.HasSubCommands() {
			name := strings.TrimPrefix(c.CommandPath(), "mlxvfio ")
			require.Regexp(t, `(?m)^## .*\b`+name+`\b`, text)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				require.Contains(t, text, "--"+f.Name, c.CommandPath())
			}
		})
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	root := (&app{}).command()
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { require.Contains(t, text, "| `--"+f.Name+"` |") })
	walk(root)
	for _, code := range []int{exitOK, exitFailed, exitUsage, exitUnavailable, exitUnsupported, exitInterrupted} {
		require.Contains(t, text, "\n| "+strconv.Itoa(code)+" | ")
	}
}

// TestManualExamples runs the examples that need nothing but the model: each
// ends with the exit code that the manual shows.
func TestManualExamples(t *testing.T) {
	n := 0
	lines := strings.Split(manual(t), "\n")
	for i, l := range lines {
		args, ok := strings.CutPrefix(l, "    $ mlxvfio ")
		if !ok || !regexp.MustCompile(`\bsim\b|^version|--list|ff:1f`).MatchString(args) {
			continue
		}
		want := exitOK
		for _, next := range lines[i+1:] {
			if !strings.HasPrefix(next, "    ") && next != "" || strings.HasPrefix(next, "    $ ") {
				break
			}
			if code, ok := strings.CutPrefix(next, "    exit code "); ok {
				var err error
				want, err = strconv.Atoi(code)
				require.NoError(t, err)
				break
			}
		}
		o := cli(t, strings.Fields(args)...)
		require.Equal(t, want, o.code, "%s\n%s", args, o.err)
		n++
	}
	require.Greater(t, n, 10)
}

// TestManualSchemas compares the table of JSON objects with what comes out.
func TestManualSchemas(t *testing.T) {
	ring, db := traceRing(t)
	trace := makeCapture(t, "a.mlxt", usual(), false, true)
	file := filepath.Join(t.TempDir(), "x")
	runs := map[string][]string{
		"microbench-trace/1": {"microbench", "trace", "--ring", ring, "--stringdb", db, "--mb", "1", "--runs", "1"},
		"trace-owner/1":      {"trace", "owner", "sim:cx5"},
		"trace-record/1":     {"trace", "record", "sim:cx5", "-o", file + ".mlxt", "--for", "10ms"},
		"trace-stat/1":       {"trace", "stat", trace},
		"trace-diff/1":       {"trace", "stat", trace, "--against", trace},
		"trace-export/1":     {"trace", "export", trace, "--format", "csv", "-o", file},
		"info/1":             {"info", "sim"},
		"caps/1":             {"caps", "sim"},
		"caps-diff/1":        {"caps", "--diff", "sim:cx5", "sim:cx7"},
		"caps-set/1":         {"caps", "sim", "--set", "log_max_qp=15"},
		"selftest/1":         {"selftest"},
		"stages/1":           {"selftest", "--list-stages"},
		"exec/1":             {"exec", "sim", "NOP"},
		"reg/1":              {"reg", "get", "sim", "PAOS"},
		"list/1":             {"list"},
		"doctor/1":           {"doctor", "--unsafe-noiommu"},
		"atomic-table/1":     {"atomic", "table"},
		"atomic-probe/1":     {"atomic", "probe", "sim"},
		"atomic-run/1":       {"atomic", "run", "sim", "--op", "add", "--value", "1"},
		"litmus/1":           {"litmus", "sim"},
		"bench/1":            {"bench", "sim", "--iters", "10"},
		"microbench/1":       {"microbench", "poll", "--runs", "1"},
		"microbench-cmd/1":   {"microbench", "cmd", "--runs", "1", "--most", "1ms"},
		"health/1":           {"health", "show", "sim"},
		"health-dump/1":      {"health", "dump", "sim", "--out", filepath.Join(t.TempDir(), "box")},
		"health-fields/1":    {"health", "fields", "sim"},
		"health-recover/1":   {"health", "recover", "sim"},
		"man/1":              {"man", "--dir", filepath.Join(t.TempDir(), "man1")},
		"serve-list/1":       {"serve", "--list"},
		"serve-values/1":     {"serve", "sim", "--list"},
		"version/1":          {"version"},
	}
	rows := regexp.MustCompile("(?m)^\\| `mlxvfio\\.([a-z-]+/1)` \\| ([^\\[\n]*)(\\[.*\\])? \\|$").FindAllStringSubmatch(manual(t), -1)
	require.Len(t, rows, len(runs))
	word := regexp.MustCompile("`([a-z_]+)`")
	for _, r := range rows {
		args, ok := runs[r[1]]
		require.True(t, ok, r[1])
		var got map[string]any
		switch {
		case args[0] == "doctor": // needs a function to look at
			_, where := machine(t)
			got = decodeOne(t, r[1], cliOn(t, where, append(args, "--json")...).out)
		case r[1] == "caps-diff/1": // what differs is exit code 1
			got = decodeOne(t, r[1], cli(t, append(args, "--json")...).out)
		default:
			got = object(t, r[1], args...)
		}
		delete(got, "schema")
		for _, w := range word.FindAllStringSubmatch(r[2], -1) {
			require.Contains(t, got, w[1], r[1])
			delete(got, w[1])
		}
		for _, w := range word.FindAllStringSubmatch(r[3], -1) {
			delete(got, w[1])
		}
		require.Empty(t, got, "%s: fields that the manual does not name", r[1])
	}
}
