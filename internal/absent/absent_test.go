package absent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A test that skips is skipped, and is listed where there is a list.
func TestSkip(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	for _, file := range []string{list, ""} {
		t.Setenv(Variable, file)
		went, skipped := false, false
		require.True(t, t.Run("of", func(t *testing.T) {
			defer func() { skipped = t.Skipped() }()
			Note(t, "one", "that is not needed")
			Skip(t, "other", "two\nlines")
			went = true
		}))
		require.True(t, skipped)
		require.False(t, went)
	}
	b, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Equal(t, "one: that is not needed\nother: two; lines\n", string(b), "once")
}

// A list that cannot be written is an error: it would say that nothing was skipped.
func TestListCannotBeWritten(t *testing.T) {
	require.ErrorIs(t, List(filepath.Join(t.TempDir(), "no", "folder"), "a", "b"), os.ErrNotExist)
	require.NoError(t, List("", "a", "b"))
}

// Lines of several writers stay whole.
func TestListOfMany(t *testing.T) {
	list := filepath.Join(t.TempDir(), "skipped")
	why := strings.Repeat("x", 1000)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 50 {
				if err := List(list, fmt.Sprint(i), why); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	b, err := os.ReadFile(list)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	require.Len(t, lines, 400)
	for _, l := range lines {
		require.Regexp(t, "^[0-7]: x{1000}$", l)
	}
}
