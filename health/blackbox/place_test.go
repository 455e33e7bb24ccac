package blackbox

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOnlyFilesAreReplaced: a folder or a device at the path stays where it is.
func TestOnlyFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	folder, link := filepath.Join(dir, "folder"), filepath.Join(dir, "null")
	require.NoError(t, os.Mkdir(folder, 0o700))
	require.NoError(t, os.Symlink(os.DevNull, link))
	for _, path := range []string{folder, link} {
		require.ErrorIs(t, Write(path, someSections(), Options{}), os.ErrExist)
		_, err := NewRecorder(path, RecorderOptions{})
		require.ErrorIs(t, err, os.ErrExist)
	}
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 2, "%v", list)
}

// smallDisk has room for so many bytes, in blocks as they are written.
type smallDisk struct{ room int64 }

type smallFile struct {
	*os.File
	d *smallDisk
}

func (f smallFile) WriteAt(p []byte, at int64) (int, error) {
	if f.d.room -= int64(len(p)); f.d.room < 0 {
		return 0, syscall.ENOSPC
	}
	return f.File.WriteAt(p, at)
}

// TestRecorderOnAFullDisk: it is found when the file is made, which keeps the file
// that was there; afterwards a full disk costs no sample, since every block of the
// file has been taken.
func TestRecorderOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r")
	o := RecorderOptions{ImageBytes: 64 << 10, Records: 256, RecordBytes: 32}
	r, err := NewRecorder(path, o)
	require.NoError(t, err)
	require.NoError(t, r.Append([]byte("evidence")))
	require.NoError(t, r.Close())
	fi, err := os.Stat(path)
	require.NoError(t, err)

	small := &smallDisk{room: fi.Size() - 1}
	d := realDisk
	d.create = func(dir, pattern string) (file, error) {
		f, err := os.CreateTemp(dir, pattern)
		return smallFile{f, small}, err
	}
	_, err = d.recorder(path, o)
	require.ErrorIs(t, err, syscall.ENOSPC)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, list, 1, "no temporary file, and nothing was moved: %v", list)
	b, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, "evidence", string(b.Samples[0]))
}

// TestEveryByteOfARecorder: a recorder's file that is damaged or cut anywhere reads
// without a panic and says so, and what it answers is what was recorded.
func TestEveryByteOfARecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r, err := NewRecorder(path, RecorderOptions{ImageBytes: 4096, Records: 4, RecordBytes: 8})
	require.NoError(t, err)
	for i := range byte(6) {
		require.NoError(t, r.Append([]byte{'s', i}))
		require.NoError(t, r.Update([]Section{{Name: "a.txt", Data: []byte{'a', i}}, {Name: "b.json", Data: []byte{'1', '0' + i}}}))
	}
	require.NoError(t, r.Close())
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	check := func(q []byte, what string, at int) {
		b, err := Parse(q)
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			require.Less(t, at, fileHeaderSize, what)
			return
		}
		_, err = json.Marshal(b)
		require.NoError(t, err)
		for _, s := range b.Sections {
			require.Len(t, s.Data, 2)
			require.Contains(t, []byte{4, 5, '4', '5'}, s.Data[1], "%s %d", what, at)
		}
		for _, s := range b.Samples {
			require.Contains(t, []byte{2, 3, 4, 5}, s[1], "%s %d", what, at)
		}
		if len(b.Damage) == 0 {
			require.Len(t, b.Samples, 4, "%s %d", what, at)
			require.Len(t, b.Sections, 2, "%s %d", what, at)
			require.Equal(t, byte(5), b.Samples[3][1])
		}
	}
	for i := range p {
		q := append([]byte(nil), p...)
		q[i] ^= 0x41
		check(q, "byte", i)
		q[i] = 0
		check(q, "zero", i)
	}
	for n := range p {
		check(p[:n:n], "cut", n)
	}
}

// TestJSONOfBrokenJSON: a section that calls itself JSON and is none does not cost
// the others.
func TestJSONOfBrokenJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Write(path, []Section{{Name: "a.json", Data: []byte("{")}, {Name: "b.txt", Data: []byte{0xff, 'x'}}}, Options{}))
	b, err := Read(path)
	require.NoError(t, err)
	out, err := json.Marshal(b)
	require.NoError(t, err)
	require.True(t, json.Valid(out))
}

// TestForgedRecords: a record that stands in a place that is not its own, or says
// that it is longer than its place, is damage though its checksum holds.
func TestForgedRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r, err := NewRecorder(path, RecorderOptions{ImageBytes: 4096, Records: 4, RecordBytes: 8})
	require.NoError(t, err)
	require.NoError(t, r.Append([]byte("first")))
	require.NoError(t, r.Close())
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	const ring, size = 4096 + 2*4096, recordHeaderSize + 8
	for _, forge := range []func(f []byte){
		func(f []byte) { binary.BigEndian.PutUint64(f, 7) },
		func(f []byte) { binary.BigEndian.PutUint32(f[8:], 9) },
		func(f []byte) { binary.BigEndian.PutUint32(f[8:], 1<<31) },
	} {
		q := append([]byte(nil), p...)
		f := q[ring : ring+size]
		forge(f)
		binary.BigEndian.PutUint32(f[12:], recordSum(f))
		b, err := Parse(q)
		require.NoError(t, err)
		require.Empty(t, b.Samples)
		require.NotEmpty(t, b.Damage)
	}
}
