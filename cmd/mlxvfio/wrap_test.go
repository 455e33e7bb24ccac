package main

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestWrapText(t *testing.T) {
	require.Equal(t, "one two\nthree", wrapText("one\ntwo three", 9), "lines that follow each other are a paragraph")
	require.Equal(t, "one:\ntwo six", wrapText("one:\ntwo\nsix", 7), "behind a colon, too")
	require.Equal(t, "a: b", wrapText("a:\nb", 7))
	require.Equal(t, "one\n\ntwo", wrapText("one\n\ntwo", 9))
	require.Equal(t, "a table:\n  ab  the second\n      cell\n  c   d", wrapText("a table:\n  ab  the second cell\n  c   d", 16))
	require.Equal(t, "  an item\n    that is\n    long", wrapText("  an item that is long", 11))
	require.Equal(t, "averylongword\nb", wrapText("averylongword b", 4), "words are never broken")
	require.Equal(t, "ä ä\nä", wrapText("ä ä ä", 3), "columns, not bytes")
	require.Equal(t, "abc\ndef", wrapText("abc def", 6))
	require.Equal(t, "abc def", wrapText("abc def", 7))
	require.Empty(t, wrapText("", 7))
}

// TestHelpFits: on a terminal of 80 columns nothing in a help is wider but words that
// cannot be broken, and no word is lost. Commands to copy stand on lines of their own.
func TestHelpFits(t *testing.T) {
	root := (&app{}).command()
	eachVerb(root, func(c *cobra.Command) {
		require.Equal(t, strings.Fields(c.Long), strings.Fields(wrapText(c.Long, 40)), c.CommandPath())
		var b strings.Builder
		usage(&b, c, widthUnknown)
		for l := range strings.SplitSeq(wrapText(c.Long, widthUnknown)+"\n"+b.String(), "\n") {
			if strings.HasPrefix(strings.TrimSpace(l), "mlxvfio ") || len(strings.Fields(l)) < 2 {
				continue
			}
			require.LessOrEqual(t, utf8.RuneCountInString(l), widthUnknown, "%s: %s", c.CommandPath(), l)
		}
	})
	require.Equal(t, "  a  # b", fitExamples("  a  # b", 8))
	require.Equal(t, "  # b\n  # c\n  a", fitExamples("  a  # b c", 6))
}

func TestHelpWidth(t *testing.T) {
	require.Equal(t, widthUnknown, helpWidth(&strings.Builder{}))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	require.Equal(t, widthUnknown, helpWidth(w), "no terminal")
}
