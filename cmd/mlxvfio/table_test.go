package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestTable: a long last cell goes on below where it begins, or below the others; no
// word is lost or broken, and short rows stay as they are.
func TestTable(t *testing.T) {
	text := func(rows ...[]string) string {
		var b bytes.Buffer
		table(&b, rows)
		return b.String()
	}
	long := strings.Repeat("word ", 40) + "end"
	require.Equal(t, "a    b\nccc  d e\n\nx\n", text([]string{"a", "b"}, []string{"ccc", "d e"}, []string{}, []string{"x"}))
	got := strings.Split(strings.TrimSpace(text([]string{"name", long}, []string{"n", "short"})), "\n")
	require.Len(t, got, 3)
	require.True(t, strings.HasPrefix(got[0], "name  word word"))
	require.True(t, strings.HasPrefix(got[1], "      word"), "below the cell: %q", got[1])
	require.Equal(t, "n     short", got[2])
	far := strings.Repeat("x", 100)
	got = strings.Split(text([]string{far, "y", long}, []string{"a", "b", "c"}), "\n")
	require.Equal(t, far+"  y", got[0])
	require.True(t, strings.HasPrefix(got[1], "      word"), got[1])
	require.Equal(t, "a"+strings.Repeat(" ", 101)+"b  c", got[len(got)-2])
	require.Equal(t, far+" y "+long+" a b c", strings.Join(strings.Fields(strings.Join(got, " ")), " "))
	got = strings.Split(strings.TrimSpace(text([]string{far + far, "y", "z"}, []string{"a", "b", ""})), "\n")
	require.Equal(t, []string{far + far + "  y  z", "a" + strings.Repeat(" ", 201) + "b"}, got)
	unbroken := strings.Repeat("f", 300)
	require.Contains(t, text([]string{"hex", unbroken}), unbroken)
}

// TestTableIn: within a width that is given a long last cell goes on below itself while it
// has room there, else below the others; nothing is wider but what cannot be broken.
func TestTableIn(t *testing.T) {
	text := func(width int, rows ...[]string) string {
		var b bytes.Buffer
		tableIn(&b, rows, width)
		return b.String()
	}
	require.Equal(t, `name  x      word word word word word word word
             word word word word word end
a            short
two   cells
`, text(50, []string{"name", "x", strings.Repeat("word ", 12) + "end"}, []string{"a", "", "short"}, []string{"two", "cells"}))
	rungs := [][]string{{"RUNG", "OUTCOME", "MS"}, {"sw-reset", "failed", "5200.4", "alive: the health counter reads 0x1000005 and has not moved in 5s"},
		{"  take the software-reset semaphore", "", "0.0", "after 102ms"}}
	require.Equal(t, `RUNG                                 OUTCOME  MS
sw-reset                             failed   5200.4
      alive: the health counter reads 0x1000005 and has not moved in 5s
  take the software-reset semaphore           0.0     after 102ms
`, text(80, rungs...))
	for width := 60; width <= 2*widthTable; width++ { // wider than a table, too
		for line := range strings.Lines(text(width, append(rungs, []string{strings.Repeat("n", width-20), "", "", strings.Repeat("word ", 60)})...)) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
		}
	}
	wide := strings.Repeat("n", 70)
	require.Equal(t, wide+"\n      some words that need room all the same, however wide\n      the first is\n",
		text(60, []string{wide, "some words that need room all the same, however wide the first is"}))
	require.Equal(t, wide+"  short\n", text(60, []string{wide, "short"}))
}

// TestParagraph: a line goes on where it is told to, behind its own blanks at first.
func TestParagraph(t *testing.T) {
	var b bytes.Buffer
	paragraph(&b, "  one two three", 4, 11)
	require.Equal(t, "  one two\n    three\n", b.String())
}

// TestTextFits: what is printed as text stays within the columns of a table, but for
// words that are longer.
func TestTextFits(t *testing.T) {
	for _, args := range [][]string{{"serve", "--list"}, {"serve", "cx4", "--list"}, {"serve", "bf3", "--list"}, {"litmus", "sim"}, {"info", "sim"}, {"caps", "sim"},
		{"selftest"}, {"selftest", "--list-stages"}, {"atomic", "table"}, {"atomic", "probe", "sim"}, {"health", "fields", "sim"}, {"trace", "owner", "sim"}} {
		for line := range strings.Lines(works(t, args...)) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), widthTable, "%v: %s", args, line)
		}
	}
}
