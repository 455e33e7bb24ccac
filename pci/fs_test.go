package pci_test

import (
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
)

func TestOSFiles(t *testing.T) {
	var o pci.OS
	dir := filepath.Join(t.TempDir(), "a/b")
	require.NoError(t, o.MkdirAll(dir, 0o755))
	f := filepath.Join(dir, "f")

	// An attribute is never created, and never truncated before the write.
	require.ErrorIs(t, o.WriteAttr(f, []byte("x")), fs.ErrNotExist)
	require.NoError(t, o.WriteSync(f, []byte("long content"), 0o644))
	require.NoError(t, o.WriteAttr(f, []byte("LONG")))
	data, err := o.ReadFile(f)
	require.NoError(t, err)
	require.Equal(t, "LONG content", string(data))
	require.NoError(t, o.WriteSync(f, []byte("short"), 0o644))
	data, err = o.ReadFile(f)
	require.NoError(t, err)
	require.Equal(t, "short", string(data))

	require.NoError(t, o.Rename(f, f+"2"))
	require.NoError(t, o.SyncDir(dir))
	require.NoError(t, o.Remove(f+"2"))
	require.ErrorIs(t, o.SyncDir(filepath.Join(dir, "none")), fs.ErrNotExist)
	require.Error(t, o.WriteSync(filepath.Join(dir, "none/f"), nil, 0o644))
}

func TestOSLock(t *testing.T) {
	var o pci.OS
	name := filepath.Join(t.TempDir(), "lock")
	l, err := o.Lock(name)
	require.NoError(t, err)
	_, err = o.Lock(name)
	require.ErrorIs(t, err, syscall.EWOULDBLOCK)
	require.NoError(t, l.Close())
	require.NoFileExists(t, name)

	// Many at once, while holders remove the file under each other: never two
	// inside.
	var wg sync.WaitGroup
	var inside sync.Mutex
	var got int
	for range 8 {
		wg.Go(func() {
			for range 50 {
				l, err := o.Lock(name)
				if err != nil {
					continue
				}
				if !inside.TryLock() {
					t.Error("two holders")
				} else {
					got++
					inside.Unlock()
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, got)
	_, err = o.Lock(filepath.Join(t.TempDir(), "none/lock"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}
