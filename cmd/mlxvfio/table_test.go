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
