package tempfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClean: only what a killed writer of this name left, long ago, goes.
func TestClean(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	old := now.Add(-2 * Age)
	put := func(name string, at time.Time) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), at, at))
	}
	f, err := os.CreateTemp(dir, ".box.*.tmp") // really such a name
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(f.Name(), old, old))
	put(".box.123.tmp", now) // somebody is writing
	for _, name := range []string{"box", ".box.tmp", ".box..tmp", ".box.12a.tmp", ".boxes.12.tmp", ".box.12.tmpx", ".box.mine.tmp"} {
		put(name, old)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, nil, 0o600))
	require.NoError(t, os.Symlink(victim, filepath.Join(dir, ".box.77.tmp")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".box.78.tmp"), 0o700))
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Equal(t, 1, Clean(dir, ".box.", ".tmp", now))
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, after, len(before)-1)
	require.NoFileExists(t, f.Name())
	require.FileExists(t, victim)
	require.Zero(t, Clean(filepath.Join(dir, "nowhere"), ".box.", ".tmp", now))
}
