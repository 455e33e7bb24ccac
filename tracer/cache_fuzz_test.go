package tracer

import (
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/tempfile"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
)

// FuzzCache puts any bytes into the place of a cache entry. What is not the device's
// own database is never taken for it, and nothing more than the entry is allocated.
func FuzzCache(f *testing.F) {
	fake := newFake()
	fake.setSections(randomBytes(640, 1), randomBytes(64, 2))
	dir := f.TempDir()
	c := mustCaps(f, fake)
	db, info, err := ReadStrings(f.Context(), fake, &c, StringsOptions{CacheDir: dir, Firmware: "1.2.3"})
	require.NoError(f, err)
	good, err := os.ReadFile(info.Path)
	require.NoError(f, err)
	f.Add(good)
	for _, n := range []int{0, 7, cacheHead - 1, cacheHead, len(good) - 1} {
		f.Add(good[:n])
	}
	f.Add(append(good[:len(good):len(good)], 0))
	huge := append([]byte(nil), good...)
	binary.BigEndian.PutUint32(huge[len(cacheMagic):], 1<<31)
	f.Add(huge)
	f.Add([]byte(strings.Replace(string(good), `"Size":640`, `"Size":4294967295`, 1)))
	want := capture.HashDB(db)
	name := filepath.Join(f.TempDir(), "entry")
	f.Fuzz(func(t *testing.T, entry []byte) {
		require.NoError(t, os.WriteFile(name, entry, 0o600))
		r := &stringReader{p: fake, c: mustCaps(t, fake), o: StringsOptions{Firmware: "1.2.3", Chunk: 64}}
		got, err := r.load(name)
		if err != nil {
			require.Nil(t, got)
			return
		}
		same, err := r.sample(t.Context(), got)
		require.NoError(t, err)
		if same && capture.HashDB(got) == want {
			return
		}
		// An entry with a right hash of its own that differs from the device's in what is
		// not sampled can be made by who may write to the user's cache folder, nobody else.
		require.Equal(t, len(db.Sections), len(got.Sections))
	})
}

func mustCaps(t testing.TB, f *fake) Caps {
	t.Helper()
	c, err := ReadCaps(t.Context(), f)
	require.NoError(t, err)
	return c
}

// TestCacheIsPrivate: the cache is the user's alone, follows no link that was
// planted for its temporary file, and takes away what killed writers left.
func TestCacheIsPrivate(t *testing.T) {
	f := newFake()
	dir := filepath.Join(t.TempDir(), "cache")
	old := filepath.Join(dir, ".strings-123456")
	require.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	_, info := readStringsOf(t, f, StringsOptions{CacheDir: dir, Firmware: "1.2.3"})
	st, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), st.Mode().Perm())
	st, err = os.Stat(info.Path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())

	require.NoError(t, os.WriteFile(old, nil, 0o600))
	past := time.Now().Add(-2 * tempfile.Age)
	require.NoError(t, os.Chtimes(old, past, past))
	victim := filepath.Join(t.TempDir(), "victim")
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Remove(info.Path))
	require.NoError(t, os.Symlink(victim, info.Path))
	_, info = readStringsOf(t, f, StringsOptions{CacheDir: dir, Firmware: "1.2.3", Fresh: true})
	require.NoError(t, info.CacheErr)
	require.NoFileExists(t, old)
	b, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b), "the entry replaced the link, not what it points at")
	st, err = os.Lstat(info.Path)
	require.NoError(t, err)
	require.True(t, st.Mode().IsRegular())
}
