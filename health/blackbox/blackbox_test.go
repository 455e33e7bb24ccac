package blackbox

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func someSections() []Section {
	return []Section{
		{Name: "health/report.json", Data: []byte(`{"state":"fatal"}`), Time: time.Unix(1700000000, 5)},
		{Name: "health/buffer.bin", Data: []byte{0xff, 0, 1, 2, 3}},
		{Name: "notes.txt", Data: []byte("a\nb\n")},
		{Name: "empty.bin"},
	}
}

func TestWriteRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.mlxbb")
	require.NoError(t, Write(path, someSections(), Options{}))
	b, err := Read(path)
	require.NoError(t, err)
	require.Empty(t, b.Damage)
	require.False(t, b.Recorded)
	require.WithinDuration(t, time.Now(), b.Began, time.Minute)
	require.Len(t, b.Sections, 4)
	for i, want := range someSections() {
		got := b.Sections[i]
		require.Equal(t, want.Name, got.Name)
		require.Equal(t, string(want.Data), string(got.Data))
		require.False(t, got.Cut())
	}
	require.True(t, b.Sections[0].Time.Equal(time.Unix(1700000000, 5)))
	require.WithinDuration(t, time.Now(), b.Sections[1].Time, time.Minute)
	s, ok := b.Section("notes.txt")
	require.True(t, ok)
	require.Equal(t, "a\nb\n", string(s.Data))
	_, ok = b.Section("other")
	require.False(t, ok)

	out, err := json.Marshal(b)
	require.NoError(t, err)
	var j map[string]any
	require.NoError(t, json.Unmarshal(out, &j))
	require.Equal(t, Schema, j["schema"])
	secs := j["sections"].([]any)
	require.Equal(t, "fatal", secs[0].(map[string]any)["json"].(map[string]any)["state"])
	require.Equal(t, "ff00010203", secs[1].(map[string]any)["hex"])
	require.Equal(t, "a\nb\n", secs[2].(map[string]any)["text"])
	require.Equal(t, []any{}, j["damage"])
}

// TestGoldenLayout reads the bytes as docs/blackbox.md describes them, not as the
// code does.
func TestGoldenLayout(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Write(path, []Section{{Name: "a.bin", Data: []byte{1, 2, 3}, Time: time.Unix(1, 2)}}, Options{}))
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	be := binary.BigEndian
	require.Equal(t, "MLXBBOX\n", string(p[:8]))
	require.Equal(t, uint16(0x0100), be.Uint16(p[8:]))
	require.Equal(t, uint16(1), be.Uint16(p[10:]))
	require.Equal(t, uint32(64), be.Uint32(p[12:]))
	img := p[64:]
	require.Equal(t, "IMAG", string(img[:4]))
	require.Equal(t, uint32(1), be.Uint32(img[4:]))
	require.Equal(t, uint64(1), be.Uint64(img[8:]))
	require.Equal(t, uint64(len(img)-32), be.Uint64(img[16:]))
	sec := img[32:]
	require.Equal(t, "SECT", string(sec[:4]))
	require.Equal(t, uint16(0), be.Uint16(sec[4:]))
	require.Equal(t, uint16(5), be.Uint16(sec[6:]))
	require.Equal(t, uint64(3), be.Uint64(sec[8:]))
	require.Equal(t, uint64(3), be.Uint64(sec[16:]))
	require.Equal(t, uint64(1_000_000_002), be.Uint64(sec[24:]))
	// CRC-32C of 01 02 03, computed elsewhere.
	require.Equal(t, uint32(0xf130f21e), be.Uint32(sec[32:]))
	require.Equal(t, "a.bin\x00\x00\x00\x01\x02\x03\x00", string(sec[40:]))
}

// TestEveryByteMatters: one changed byte, wherever, is noticed; and so is an end
// that comes early, wherever. What is whole is still read.
func TestEveryByteMatters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, Write(path, someSections(), Options{}))
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range p {
		q := append([]byte(nil), p...)
		q[i] ^= 0x10
		b, err := Parse(q)
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			require.Less(t, i, fileHeaderSize, "only the file header makes it unreadable")
			continue
		}
		require.NotEmpty(t, b.Damage, "byte %d", i)
		require.GreaterOrEqual(t, len(b.Sections), 3, "byte %d: one section at most is lost", i)
		for _, s := range b.Sections {
			ok := false
			for _, w := range someSections() {
				ok = ok || w.Name == s.Name && string(w.Data) == string(s.Data)
			}
			require.True(t, ok, "byte %d: section %q is not what was written", i, s.Name)
		}
	}
	for n := range p {
		b, err := Parse(p[:n:n])
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			continue
		}
		require.NotEmpty(t, b.Damage, "cut to %d bytes", n)
	}
}

func TestNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	for _, n := range []string{"", "/etc/passwd", "../x", "a b", "a\nb", strings.Repeat("x", MaxName+1), `a\b`} {
		require.ErrorIs(t, Write(path, []Section{{Name: n}}, Options{}), ErrName, "%q", n)
	}
	require.ErrorIs(t, Write(path, []Section{{Name: "a"}, {Name: "a"}}, Options{}), ErrName)
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	big := make([]byte, 5000)
	for i := range big {
		big[i] = 'x'
	}
	sections := []Section{{Name: "first.txt", Data: big}, {Name: "half.json", Data: big}, {Name: "second.txt", Data: big}, {Name: "last.bin", Data: []byte{1}}}
	for _, limit := range []int{400, 1000, 7777, 12000} {
		require.NoError(t, Write(path, sections, Options{Limit: limit}))
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.LessOrEqual(t, fi.Size(), int64(limit))
		b, err := Read(path)
		require.NoError(t, err)
		require.Empty(t, b.Damage)
		require.Len(t, b.Sections, 4, "a section that does not fit is there, empty and marked")
		for i, s := range b.Sections {
			if len(s.Data) < len(sections[i].Data) {
				require.True(t, s.Cut())
				require.Equal(t, len(sections[i].Data), s.Original)
			}
		}
		if s := b.Sections[1]; s.Cut() {
			require.Empty(t, s.Data, "JSON is whole or not there")
		}
	}
	require.ErrorIs(t, Write(path, sections, Options{Limit: 100}), ErrTooLarge)
}

// badDisk fails one call.
type badDisk struct {
	at, n int
	open  int
}

var errDisk = errors.New("disk failed")

func (b *badDisk) step() error {
	if b.n++; b.n == b.at {
		return errDisk
	}
	return nil
}

func (b *badDisk) disk() disk {
	return disk{
		create: func(dir, pattern string) (file, error) {
			if err := b.step(); err != nil {
				return nil, err
			}
			f, err := os.CreateTemp(dir, pattern)
			b.open++
			return &badFile{f, b}, err
		},
		rename: func(from, to string) error {
			if err := b.step(); err != nil {
				return err
			}
			return os.Rename(from, to)
		},
		link: func(from, to string) error {
			if err := b.step(); err != nil {
				return err
			}
			return os.Link(from, to)
		},
		remove: os.Remove,
		sync: func(string) error {
			return b.step()
		},
	}
}

type badFile struct {
	*os.File
	b *badDisk
}

func (f *badFile) Write(p []byte) (int, error) {
	if err := f.b.step(); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *badFile) WriteAt(p []byte, at int64) (int, error) {
	if err := f.b.step(); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], at)
		return n, err
	}
	return f.File.WriteAt(p, at)
}

func (f *badFile) Sync() error {
	if err := f.b.step(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *badFile) Close() error {
	f.b.open--
	err := f.b.step()
	return errors.Join(err, f.File.Close())
}

// TestAtomic fails each call in turn: the old file is whole, or the new one is,
// no temporary file and no descriptor stays.
func TestAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	old := []Section{{Name: "old.txt", Data: []byte("old")}}
	for at := 1; ; at++ {
		require.NoError(t, Write(path, old, Options{}))
		b := &badDisk{at: at}
		err := b.disk().write(path, someSections(), Options{})
		if b.n < at {
			require.NoError(t, err)
			require.Equal(t, 7, at, "create, write, sync, close, rename and the folder's sync")
			break
		}
		require.ErrorIs(t, err, errDisk)
		require.Zero(t, b.open, "step %d", at)
		got, err := Read(path)
		require.NoError(t, err)
		require.Empty(t, got.Damage)
		if at < 6 && len(got.Sections) != 1 {
			require.Equal(t, 6, at, "the file was replaced before all was well")
		}
		list, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, list, 1, "step %d: %v", at, list)
	}
}

func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	r, err := NewRecorder(path, RecorderOptions{ImageBytes: 8192, Records: 10, RecordBytes: 30})
	require.NoError(t, err)
	b, err := Read(path)
	require.NoError(t, err)
	require.True(t, b.Recorded)
	require.Empty(t, b.Sections)
	require.Empty(t, b.Damage)
	fi, err := os.Stat(path)
	require.NoError(t, err)
	size := fi.Size()
	for i := range 25 {
		require.NoError(t, r.Append(fmt.Appendf(nil, "sample %d", i)))
		if i%4 == 0 {
			require.NoError(t, r.Update([]Section{{Name: "n.txt", Data: strconv.AppendInt(nil, int64(i), 10)}}))
		}
		b, err := Read(path)
		require.NoError(t, err)
		require.Empty(t, b.Damage)
		require.Equal(t, fmt.Sprintf("sample %d", i), string(b.Samples[len(b.Samples)-1]))
		require.Len(t, b.Samples, min(i+1, 10))
		require.Equal(t, uint64(max(1, i-8)), b.FirstSample)
		require.Equal(t, strconv.Itoa(i/4*4), string(b.Sections[0].Data))
	}
	fi, err = os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, size, fi.Size(), "it never grows")
	require.ErrorIs(t, r.Append(make([]byte, 33)), ErrTooLarge)
	require.NoError(t, r.Update([]Section{{Name: "big.bin", Data: make([]byte, 1<<20)}}))
	b, err = Read(path)
	require.NoError(t, err)
	require.True(t, b.Sections[0].Cut())
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = r.Append([]byte("x")) }))
	require.NoError(t, r.Sync())
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Append(nil), ErrClosed)
	require.ErrorIs(t, r.Update(nil), ErrClosed)
	require.ErrorIs(t, r.Sync(), ErrClosed)

	// The next one keeps what this one left.
	r, err = NewRecorder(path, RecorderOptions{})
	require.NoError(t, err)
	require.NoError(t, r.Close())
	b, err = Read(path + ".previous")
	require.NoError(t, err)
	require.NotEmpty(t, b.Samples)
	_, err = NewRecorder(path, RecorderOptions{Records: 1 << 30})
	require.ErrorIs(t, err, ErrTooLarge)
}

// TestRecorderCutWrite fails each write half-way, as a kill in its middle would:
// the last state before it is read.
func TestRecorderCutWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r")
	for at := 1; ; at++ {
		b := &badDisk{}
		r, err := b.disk().recorder(path, RecorderOptions{ImageBytes: 4096, Records: 4, RecordBytes: 32})
		require.NoError(t, err)
		for i := range 7 {
			require.NoError(t, r.Append([]byte{byte(i)}))
			require.NoError(t, r.Update([]Section{{Name: "n.bin", Data: []byte{byte(i)}}, {Name: "x.bin", Data: make([]byte, 64)}}))
		}
		b.n, b.at = 0, at
		err = r.Append(bytes.Repeat([]byte{99}, 32))
		if err == nil {
			err = r.Update([]Section{{Name: "n.bin", Data: []byte{99}}, {Name: "x.bin", Data: make([]byte, 300)}})
		}
		got, rerr := Read(path)
		require.NoError(t, rerr)
		if b.n < at {
			require.NoError(t, err)
			require.Equal(t, 4, at)
			break
		}
		require.ErrorIs(t, err, errDisk)
		s, ok := got.Section("n.bin")
		require.True(t, ok)
		require.Equal(t, []byte{6}, s.Data, "the image before")
		require.NotEmpty(t, got.Damage)
		last := got.Samples[len(got.Samples)-1][0]
		require.Equal(t, map[int]byte{1: 6, 2: 99, 3: 99}[at], last)
		require.NoError(t, r.Close())
	}
}

// TestRecorderKilled: a process that is killed leaves what it had recorded.
func TestRecorderKilled(t *testing.T) {
	if path := os.Getenv("BLACKBOX_CHILD"); path != "" {
		r, err := NewRecorder(path, RecorderOptions{ImageBytes: 64 << 10, Records: 128, RecordBytes: 32})
		if err != nil {
			panic(err)
		}
		for i := uint64(1); ; i++ {
			if err := r.Append(binary.BigEndian.AppendUint64(nil, i)); err != nil {
				panic(err)
			}
			if i%16 == 0 {
				data := make([]byte, 20000)
				binary.BigEndian.PutUint64(data, i)
				if err := r.Update([]Section{{Name: "state.bin", Data: data}}); err != nil {
					panic(err)
				}
			}
			fmt.Println(i)
		}
	}
	rounds := 5
	if s := os.Getenv("MLXVFIO_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		rounds = n
	}
	for round := range rounds {
		path := filepath.Join(t.TempDir(), "r")
		cmd := exec.Command(os.Args[0], "-test.run=^TestRecorderKilled$")
		cmd.Env = append(os.Environ(), "BLACKBOX_CHILD="+path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		sc := bufio.NewScanner(out)
		said := uint64(0)
		rnd := rand.New(rand.NewPCG(uint64(round), 1))
		at := rnd.Uint64N(1000)
		var kill *time.Timer
		for sc.Scan() {
			said, err = strconv.ParseUint(sc.Text(), 10, 64)
			require.NoError(t, err)
			if said >= at && kill == nil {
				// Not at a line, but anywhere in what it does then.
				kill = time.AfterFunc(time.Duration(rnd.Int64N(int64(2*time.Millisecond))), func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
			}
		}
		require.Error(t, cmd.Wait())
		b, err := Read(path)
		require.NoError(t, err)
		last := binary.BigEndian.Uint64(b.Samples[len(b.Samples)-1])
		require.GreaterOrEqual(t, last, said, "every sample that was said to be recorded is there")
		require.Equal(t, last, b.FirstSample+uint64(len(b.Samples))-1)
		if said >= 32 {
			s, ok := b.Section("state.bin")
			require.True(t, ok, "round %d", round)
			require.GreaterOrEqual(t, binary.BigEndian.Uint64(s.Data), said/16*16-16)
			require.Len(t, s.Data, 20000)
		}
	}
}

func TestNoBlackBox(t *testing.T) {
	_, err := Read(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
	_, err = Read(path)
	require.ErrorIs(t, err, ErrFormat)
	later := fileHeader{version: 0x0200, kind: 1}.append(nil)
	_, err = Parse(later)
	require.ErrorIs(t, err, ErrFormat)
	require.Contains(t, err.Error(), "version 2.0")
}

func FuzzParse(f *testing.F) {
	img, _ := image(1, someSections(), 4096, time.Unix(1, 1))
	f.Add(append(fileHeader{version: Version, kind: kindBundle}.append(nil), img...))
	f.Add(fileHeader{version: Version, kind: kindRecorder, slot: 64, records: 3, record: 20}.append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= fileHeaderSize { // past the checksum of the header
			copy(p, Magic)
			p[8] = 1
			binary.BigEndian.PutUint32(p[60:], sum(p[:60]))
		}
		b, err := Parse(p)
		if err != nil {
			return
		}
		if _, err := json.Marshal(b); err != nil {
			t.Fatal(err)
		}
	})
}
