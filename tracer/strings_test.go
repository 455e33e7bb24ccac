package tracer

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomBytes differ everywhere.
func randomBytes(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewPCG(seed, 1)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
	return b
}

func readStringsOf(t *testing.T, f *fake, o StringsOptions) (sections [][]byte, info StringsInfo) {
	t.Helper()
	c, err := ReadCaps(t.Context(), f)
	require.NoError(t, err)
	db, info, err := ReadStrings(t.Context(), f, &c, o)
	require.NoError(t, err)
	for i, s := range db.Sections {
		require.EqualValues(t, 0x400000+0x100000*i, s.Base)
		sections = append(sections, s.Data)
	}
	return sections, info
}

func TestStringsInChunks(t *testing.T) {
	f := newFake()
	f.setSections(randomBytes(64*13, 1), nil, randomBytes(64, 2), randomBytes(64*2000, 3))
	got, _ := readStringsOf(t, f, StringsOptions{Chunk: 704})
	require.Equal(t, f.sections[3], got[3], "beyond 2^16 bytes")
	f.setSections(randomBytes(64*13, 1), nil, randomBytes(64, 2), randomBytes(64*100, 3))
	for chunk, commands := range map[int]int{0: 4 + 1 + 25, 64: 13 + 1 + 100, 704: 2 + 1 + 10, 32 << 10: 3} {
		var last, total uint64
		calls := 0
		got, info := readStringsOf(t, f, StringsOptions{Chunk: chunk, Progress: func(d, n uint64) {
			require.Greater(t, d, last)
			last, total = d, n
			calls++
		}})
		require.Len(t, got, 4)
		for i := range got {
			require.True(t, bytes.Equal(f.sections[i], got[i]), "section %d in chunks of %d", i, chunk)
		}
		require.EqualValues(t, 64*114, total)
		require.Equal(t, total, last)
		require.Equal(t, commands, info.Commands)
		require.Equal(t, commands, calls)
	}
	c, err := ReadCaps(t.Context(), f)
	require.NoError(t, err)
	for _, chunk := range []int{-64, 63, 100, 64 << 10} {
		_, _, err := ReadStrings(t.Context(), f, &c, StringsOptions{Chunk: chunk})
		require.ErrorContains(t, err, "multiple of 64")
	}
	// A section whose end cannot be asked for.
	f.caps.StringDbParam(2).SetStringDbSize(100)
	f.sections[2] = randomBytes(128, 4)
	got, info := readStringsOf(t, f, StringsOptions{})
	require.EqualValues(t, 36, info.Unread)
	require.Equal(t, append(bytes.Clone(f.sections[2][:64]), make([]byte, 36)...), got[2])
}

// TestStringsMove: sections that move while they are read are read again, and not for
// ever.
func TestStringsMove(t *testing.T) {
	f := newFake()
	n := 0
	f.on = func(op string) error {
		if op == "stdb" {
			if n++; n == 2 {
				f.setSections(randomBytes(128, 9))
			}
		}
		return nil
	}
	got, _ := readStringsOf(t, f, StringsOptions{})
	require.Equal(t, [][]byte{randomBytes(128, 9)}, got)
	f.on = func(op string) error {
		if op == "stdb" {
			n++
			f.setSections(randomBytes(64*(1+n%2), uint64(n)))
		}
		return nil
	}
	c, err := ReadCaps(t.Context(), f)
	require.NoError(t, err)
	_, _, err = ReadStrings(t.Context(), f, &c, StringsOptions{})
	require.ErrorContains(t, err, "moved 5 times")
}

func TestStringsCache(t *testing.T) {
	f := newFake()
	f.setSections(randomBytes(6400, 1), nil, randomBytes(64, 2))
	dir := filepath.Join(t.TempDir(), "deep", "cache")
	o := StringsOptions{CacheDir: dir, Firmware: "16.35.1012"}
	want, info := readStringsOf(t, f, o)
	require.False(t, info.Cached)
	require.NoError(t, info.CacheErr)
	require.FileExists(t, info.Path)
	first := info.Path

	got, info := readStringsOf(t, f, o)
	require.True(t, info.Cached)
	require.Equal(t, first, info.Path)
	require.Equal(t, want, got)
	require.Equal(t, 6, info.Commands, "three samples of each section that has something")

	// Another firmware, other places: another entry.
	other := o
	other.Firmware = "16.35.1013"
	_, info = readStringsOf(t, f, other)
	require.False(t, info.Cached)
	require.NotEqual(t, first, info.Path)

	// The same version and places, another content: read anew, both are kept.
	f.sections[0][3100] ^= 1 // in the middle sample
	got, info = readStringsOf(t, f, o)
	require.False(t, info.Cached)
	require.NotEqual(t, first, info.Path)
	require.True(t, bytes.Equal(f.sections[0], got[0]))
	second := info.Path
	_, info = readStringsOf(t, f, o)
	require.Equal(t, second, info.Path)
	require.True(t, info.Cached)
	f.sections[0][3100] ^= 1
	_, info = readStringsOf(t, f, o)
	require.Equal(t, first, info.Path)
	require.True(t, info.Cached)

	// Fresh does not look at it.
	fresh := o
	fresh.Fresh = true
	_, info = readStringsOf(t, f, fresh)
	require.False(t, info.Cached)

	// Damage of any byte is found; the entry is removed and read anew.
	whole, err := os.ReadFile(first)
	require.NoError(t, err)
	require.NoError(t, os.Remove(second))
	for at := 0; at < len(whole); at += 1 + at/40 {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x40
		require.NoError(t, os.WriteFile(first, bad, 0o600))
		got, info = readStringsOf(t, f, o)
		require.False(t, info.Cached, "byte %d", at)
		require.Error(t, info.CacheErr)
		require.Equal(t, want, got)
		require.Equal(t, first, info.Path)
	}
	for _, n := range []int{0, 7, 20, 50, 100, 300, len(whole) - 1} {
		require.NoError(t, os.WriteFile(first, whole[:n], 0o600))
		got, info = readStringsOf(t, f, o)
		require.False(t, info.Cached)
		require.Equal(t, want, got)
	}
	require.NoError(t, os.WriteFile(first, append(whole, 0), 0o600))
	_, info = readStringsOf(t, f, o)
	require.False(t, info.Cached)
	l, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, l, 2, "nothing is left beside the entries")

	// A cache that cannot be written is no failure.
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	o.CacheDir = file
	got, info = readStringsOf(t, f, o)
	require.Equal(t, want, got)
	require.Error(t, info.CacheErr)
}

// TestCacheNames: whatever firmware calls itself, the name stays in the directory.
func TestCacheNames(t *testing.T) {
	for in, want := range map[string]string{"16.35.1012": "16.35.1012", "../../x": "_.._.._x", "": "_", "a b/c\x00": "a_b_c_", ".hidden": "_.hidden"} {
		require.Equal(t, want, plainName(in))
	}
	f := newFake()
	dir := t.TempDir()
	_, info := readStringsOf(t, f, StringsOptions{CacheDir: dir, Firmware: "../../../etc/x"})
	require.Equal(t, dir, filepath.Dir(info.Path))
	_, info = readStringsOf(t, f, StringsOptions{CacheDir: dir, Firmware: "../../../etc/x"})
	require.True(t, info.Cached)
}

// TestCacheSaysWhatBecameOfAnEntry: one that cannot be removed is not said to be.
func TestCacheSaysWhatBecameOfAnEntry(t *testing.T) {
	f := newFake()
	dir := t.TempDir()
	o := StringsOptions{CacheDir: dir, Firmware: "1.2.3"}
	want, info := readStringsOf(t, f, o)
	require.NoError(t, os.WriteFile(info.Path, []byte("x"), 0o600))
	got, info := readStringsOf(t, f, o)
	require.Equal(t, want, got)
	require.ErrorContains(t, info.CacheErr, "it was removed")
	require.NoError(t, os.Remove(info.Path))
	require.NoError(t, os.MkdirAll(filepath.Join(info.Path, "a folder in its place"), 0o755))
	got, info = readStringsOf(t, f, o)
	require.Equal(t, want, got)
	require.Error(t, info.CacheErr)
	require.NotContains(t, info.CacheErr.Error(), "it was removed")
}
