package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

const (
	fileHeader = 16
	blockSize  = 16 + 8 + trace.BlockSize // a block's record
)

// blockAt is a closed block with recognisable content.
func blockAt(n uint64) (b [trace.BlockSize]byte) {
	for i := range trace.EventsPerBlock - 1 {
		binary.BigEndian.PutUint64(b[8*i:], n<<16|uint64(i))
	}
	binary.BigEndian.PutUint64(b[trace.BlockSize-8:], uint64(trace.TimestampEvent(1000+10*n, 0)))
	return b
}

var testMeta = capture.Meta{
	Device: "0000:3b:00.0", PCIID: "15b3:1019", Firmware: "16.35.1012", PSID: "MT_0000000008", RingBlocks: 1024,
	ClockKHz: 156250, Started: time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC), TakenUp: true, Tool: "test",
}

func testDB(long int) *trace.DB {
	return &trace.DB{
		Geometry: trace.Geometry{TrcVer: 1, FirstString: 16, NumString: 8},
		Sections: []trace.Section{{Base: 0x400000, Data: []byte("hello %u\x00")}, {Base: 0x500000}, {Base: 0x600000, Data: bytes.Repeat([]byte("a long section \x00"), long)}},
	}
}

// sample are records of every kind, meta and end left out.
func sample() []capture.Record { return sampleOf(10) }

func sampleOf(long int) []capture.Record {
	at := time.Unix(1700000000, 123456789)
	rs := []capture.Record{
		{Kind: capture.KindStrings, DB: testDB(long)},
		{Kind: capture.KindClock, Clock: capture.Clock{Host: at, Mono: time.Second, Ticks: 1<<53 - 1, HaveTicks: true, Error: 20 * time.Microsecond, Timer: 1 << 63, HaveTimer: true, TimerError: time.Microsecond, RealSeconds: 7, RealNanoseconds: 8}},
		{Kind: capture.KindClock, Clock: capture.Clock{Host: at, Mono: -1}},
	}
	for i := range uint64(20) {
		switch i {
		case 7, 8, 9:
		case 10:
			rs = append(rs, capture.Record{Kind: capture.KindGap, Gap: capture.Gap{From: 1060, HaveFrom: true, To: 1100, HaveTo: true, First: 7, Blocks: 3, Cause: capture.CauseOverwritten | capture.CauseBackPressure}})
			fallthrough
		default:
			rs = append(rs, capture.Record{Kind: capture.KindBlock, Index: i, Data: blockAt(i)})
		}
	}
	return append(rs,
		capture.Record{Kind: capture.KindNote, Note: capture.Note{Time: at, Text: "strings were read again"}},
		capture.Record{Kind: capture.KindGap, Gap: capture.Gap{From: 1190, HaveFrom: true, First: 20, Blocks: 5, AtLeast: true, Cause: capture.CauseOrder}})
}

// file is a capture of all of them.
func file(t testing.TB, end bool) []byte {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	for _, r := range sample() {
		require.NoError(t, w.Write(&r))
	}
	if end {
		require.NoError(t, w.Close(&capture.End{Time: time.Unix(1, 2), Reason: capture.ReasonLost, Text: "why"}))
	} else {
		require.NoError(t, w.Flush())
	}
	require.EqualValues(t, b.Len(), w.Size())
	return b.Bytes()
}

// readAll reads until the error.
func readAll(ctx context.Context, b io.Reader, o capture.ReaderOptions) (rs []capture.Record, err error) {
	rd := capture.NewReader(b, o)
	for {
		var r capture.Record
		if err := rd.Next(ctx, &r); err != nil {
			return rs, err
		}
		rs = append(rs, r)
	}
}

func blocksOf(rs []capture.Record) (l []uint64) {
	for _, r := range rs {
		if r.Kind == capture.KindBlock {
			l = append(l, r.Index)
		}
	}
	return l
}

func TestRoundTrip(t *testing.T) {
	want := sampleOf(10000) // a section in several pieces
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	for _, r := range want {
		require.NoError(t, w.Write(&r))
	}
	require.NoError(t, w.Close(&capture.End{Time: time.Unix(1, 2), Reason: capture.ReasonLost, Text: "why"}))
	rs, err := readAll(t.Context(), &b, capture.ReaderOptions{})
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, rs, len(want)+2)
	require.Equal(t, capture.KindMeta, rs[0].Kind)
	require.Equal(t, testMeta, *rs[0].Meta)
	require.EqualValues(t, fileHeader, rs[0].Offset)
	for i, w := range want {
		g := rs[i+1]
		require.Positive(t, g.Offset)
		g.Offset = 0
		if w.Kind == capture.KindStrings {
			require.Equal(t, w.DB.Geometry, g.DB.Geometry)
			require.Len(t, g.DB.Sections, len(w.DB.Sections))
			for k, s := range w.DB.Sections {
				require.Equal(t, s.Base, g.DB.Sections[k].Base)
				require.True(t, bytes.Equal(s.Data, g.DB.Sections[k].Data), "section %d", k)
			}
			require.Equal(t, capture.HashDB(w.DB), capture.HashDB(g.DB))
			continue
		}
		require.Equal(t, w, g, "record %d", i)
	}
	require.Equal(t, capture.End{Time: time.Unix(1, 2), Reason: capture.ReasonLost, Text: "why", Blocks: 17, Gaps: 2, Lost: 8}, rs[len(rs)-1].End)
}

// TestCut cuts a file at every length: what comes is a prefix, and the error says
// where and why it stops.
func TestCut(t *testing.T) {
	whole := file(t, true)
	all, _ := readAll(t.Context(), bytes.NewReader(whole), capture.ReaderOptions{})
	ends := map[int64]bool{fileHeader: true} // where a record ends
	for _, r := range all {
		ends[r.Offset] = true
	}
	for n := range len(whole) {
		rs, err := readAll(t.Context(), bytes.NewReader(whole[:n]), capture.ReaderOptions{})
		var stop *capture.StopError
		require.ErrorAs(t, err, &stop, "cut at %d", n)
		require.LessOrEqual(t, stop.Offset, int64(n))
		require.Len(t, blocksOf(rs), int(stop.Blocks))
		require.LessOrEqual(t, len(rs), len(all))
		for i := range rs {
			require.Equal(t, all[i].Kind, rs[i].Kind)
			require.Equal(t, all[i].Index, rs[i].Index)
			require.Equal(t, all[i].Data, rs[i].Data)
		}
		switch {
		case n < fileHeader:
			require.ErrorIs(t, err, capture.ErrFormat)
		case ends[int64(n)]:
			require.ErrorIs(t, err, capture.ErrNoEnd, "cut at %d", n)
			require.Equal(t, int64(n), stop.Offset)
		case stop.Offset == int64(n):
			require.ErrorIs(t, err, capture.ErrNoEnd, "between pieces of the strings, at %d", n)
		default:
			require.ErrorIs(t, err, capture.ErrTruncated, "cut at %d", n)
			if n-int(stop.Offset) > 16 { // something of the last record is there, but not all
				require.Less(t, stop.Offset, int64(n))
			}
		}
	}
}

// TestFlip damages each byte of the last blocks: strict reading stops there, and
// salvage gives everything but the record with the byte, and says exactly what is
// missing.
func TestFlip(t *testing.T) {
	whole := file(t, true)
	all, _ := readAll(t.Context(), bytes.NewReader(whole), capture.ReaderOptions{})
	var first, after int64
	for _, r := range all {
		if r.Kind == capture.KindBlock && r.Index == 13 {
			first = r.Offset
		}
		if r.Kind == capture.KindBlock && r.Index == 14 {
			after = r.Offset
		}
	}
	require.EqualValues(t, blockSize, after-first)
	for at := first; at < after; at++ {
		bad := bytes.Clone(whole)
		bad[at] ^= 0x10
		rs, err := readAll(t.Context(), bytes.NewReader(bad), capture.ReaderOptions{})
		var stop *capture.StopError
		require.ErrorAs(t, err, &stop)
		if at-first >= 8 && at-first < 12 { // the length
			require.True(t, errors.Is(err, capture.ErrDamaged) || errors.Is(err, capture.ErrTruncated), "byte %d: %v", at-first, err)
		} else {
			require.ErrorIs(t, err, capture.ErrDamaged, "byte %d", at-first)
		}
		require.Equal(t, first, stop.Offset)
		require.EqualValues(t, 12, blocksOf(rs)[len(blocksOf(rs))-1])

		rs, err = readAll(t.Context(), bytes.NewReader(bad), capture.ReaderOptions{Salvage: true})
		require.ErrorIs(t, err, io.EOF, "byte %d", at-first)
		require.Len(t, rs, len(all)+1, "one block less, a damage and a gap record more")
		var damage, gap *capture.Record
		for i := range rs {
			switch {
			case rs[i].Kind == capture.KindDamage:
				damage = &rs[i]
			case rs[i].Kind == capture.KindGap && rs[i].Gap.Cause == capture.CauseDamage:
				gap = &rs[i]
			}
		}
		require.NotNil(t, damage)
		require.Equal(t, first, damage.Damage.From)
		require.Equal(t, after, damage.Damage.To)
		require.NotEmpty(t, damage.Damage.Why)
		require.Equal(t, capture.Gap{From: 1120, HaveFrom: true, To: 1140, HaveTo: true, First: 13, Blocks: 1, Cause: capture.CauseDamage}, gap.Gap)
	}
}

// TestPiecesMissing: whole records that are gone or doubled are noticed, though each
// checksum is right.
func TestPiecesMissing(t *testing.T) {
	whole := file(t, true)
	all, _ := readAll(t.Context(), bytes.NewReader(whole), capture.ReaderOptions{})
	var at int
	for _, r := range all {
		if r.Kind == capture.KindBlock && r.Index == 3 {
			at = int(r.Offset)
		}
	}
	gone := append(bytes.Clone(whole[:at]), whole[at+blockSize:]...)
	_, err := readAll(t.Context(), bytes.NewReader(gone), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrDamaged)
	rs, err := readAll(t.Context(), bytes.NewReader(gone), capture.ReaderOptions{Salvage: true})
	require.ErrorIs(t, err, io.EOF)
	require.NotContains(t, blocksOf(rs), uint64(3))
	double := append(bytes.Clone(whole[:at+blockSize]), whole[at:]...)
	_, err = readAll(t.Context(), bytes.NewReader(double), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrDamaged)
}

// TestSalvageBelievesChecksums: what looks like a record inside damage is none.
func TestSalvageBelievesChecksums(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	d := blockAt(0)
	copy(d[40:], []byte{1, 2, 3, 4, 'M', 'T', byte(capture.KindGap), 0, 0, 0, 0, 40, 0, 0, 0, 2})
	require.NoError(t, w.Block(0, &d))
	at := int(w.Size())
	require.NoError(t, w.Block(1, &d))
	require.NoError(t, w.Block(2, &d))
	require.NoError(t, w.Close(&capture.End{}))
	f := b.Bytes()
	f[at+20] ^= 1
	rs, err := readAll(t.Context(), bytes.NewReader(f), capture.ReaderOptions{Salvage: true})
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []uint64{0, 2}, blocksOf(rs))
	var kinds []capture.Kind
	for _, r := range rs {
		kinds = append(kinds, r.Kind)
	}
	require.Equal(t, []capture.Kind{capture.KindMeta, capture.KindBlock, capture.KindDamage, capture.KindGap, capture.KindBlock, capture.KindEnd}, kinds)
}

// record makes a record by the document.
func record(kind byte, seq uint32, payload []byte) []byte {
	b := []byte{0, 0, 0, 0, 'M', 'T', kind, 0}
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.BigEndian.AppendUint32(b, seq)
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b, crc32.Checksum(b[4:], crc32.MakeTable(crc32.Castagnoli)))
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

// TestDocument composes a file by hand, as docs/capture.md says, with a record of a
// later version in it and fields behind those that are known.
func TestDocument(t *testing.T) {
	data := blockAt(5)
	head := append([]byte("MLXT\r\n\x1a\n"), 0, 1, 0, 9, 0, 0, 0, 0)
	f := append(bytes.Clone(head), record(1, 0, []byte(`{"device":"x","started":"2026-01-02T03:04:05Z","later":1}`))...)
	f = append(f, record(99, 1, []byte("from the future"))...)
	f = append(f, record(3, 2, append(append(binary.BigEndian.AppendUint64(nil, 5), data[:]...), "more"...))...)
	f = append(f, record(7, 3, make([]byte, 40))...)
	rd := capture.NewReader(bytes.NewReader(f), capture.ReaderOptions{})
	var r capture.Record
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, "x", r.Meta.Device)
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, capture.KindBlock, r.Kind)
	require.EqualValues(t, 5, r.Index)
	require.Equal(t, data, r.Data)
	require.EqualValues(t, 1, rd.Unknown())
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, capture.KindEnd, r.Kind)
	require.ErrorIs(t, rd.Next(t.Context(), &r), io.EOF)
	require.EqualValues(t, len(f), rd.Offset())

	back := append(append(bytes.Clone(head), record(1, 0, []byte(`{}`))...), record(3, 1, append(binary.BigEndian.AppendUint64(nil, 5), data[:]...))...)
	_, err := readAll(t.Context(), bytes.NewReader(append(back, record(3, 2, append(binary.BigEndian.AppendUint64(nil, 5), data[:]...))...)), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrDamaged, "a number comes twice")

	f[9] = 2
	_, err = readAll(t.Context(), bytes.NewReader(f), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrFormat)
	require.ErrorContains(t, err, "version 2")
	_, err = readAll(t.Context(), bytes.NewReader([]byte("MLXT\n\x1a\n and so on and so forth")), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrFormat)
	_, err = readAll(t.Context(), bytes.NewReader(append(head, record(7, 0, make([]byte, 40))...)), capture.ReaderOptions{})
	require.ErrorIs(t, err, capture.ErrDamaged, "a file begins with meta")
}

// TestStringsDamage: a database whose pieces do not fit is refused, though checksums
// are right.
func TestStringsDamage(t *testing.T) {
	begin := append(append([]byte("MLXT\r\n\x1a\n"), 0, 1, 0, 0, 0, 0, 0, 0), record(1, 0, []byte(`{}`))...)
	piece := func(i byte, off uint32, base, size uint64, data string) []byte {
		b := binary.BigEndian.AppendUint32([]byte{0, i, 0, 0}, off)
		b = binary.BigEndian.AppendUint64(b, base)
		return append(binary.BigEndian.AppendUint64(b, size), data...)
	}
	db := &trace.DB{Geometry: trace.Geometry{FirstString: 1, NumString: 2}, Sections: []trace.Section{{Base: 64, Data: []byte("abcdef")}}}
	sum := capture.HashDB(db)
	all := append([]byte{1, 0, 1, 2, 0, 0, 0, 1}, sum[:]...)
	for name, c := range map[string]struct {
		recs [][]byte
		says string
	}{
		"good":         {[][]byte{piece(0, 0, 64, 6, "abc"), piece(0, 3, 64, 6, "def"), all}, ""},
		"hole":         {[][]byte{piece(0, 0, 64, 6, "abc"), piece(0, 4, 64, 6, "ef")}, "out of order"},
		"short":        {[][]byte{piece(0, 0, 64, 6, "abc"), all}, "3 of 6 bytes"},
		"long":         {[][]byte{piece(0, 0, 64, 6, "abcdefg")}, "more than its 6"},
		"wrong bytes":  {[][]byte{piece(0, 0, 64, 6, "abcdeg"), all}, "has the hash"},
		"none":         {[][]byte{all}, "are announced"},
		"huge":         {[][]byte{piece(0, 0, 64, 1<<40, "a")}, "beyond the bounds"},
		"second first": {[][]byte{piece(1, 0, 64, 6, "abcdef")}, "out of order"},
		"empty":        {[][]byte{{}}, "empty"},
		"form":         {[][]byte{{7}}, "unknown form"},
		"version":      {[][]byte{append([]byte{1, 9, 1, 2, 0, 0, 0, 0}, sum[:]...)}, "trc_ver 9"},
	} {
		f := bytes.Clone(begin)
		for i, r := range c.recs {
			f = append(f, record(2, uint32(i+1), r)...)
		}
		rs, err := readAll(t.Context(), bytes.NewReader(f), capture.ReaderOptions{})
		if c.says == "" {
			require.ErrorIs(t, err, capture.ErrNoEnd, name)
			require.Equal(t, db, rs[1].DB)
			continue
		}
		require.ErrorIs(t, err, capture.ErrDamaged, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

// TestFollow reads a file while it is written, in pieces of any size.
func TestFollow(t *testing.T) {
	whole := file(t, true)
	path := filepath.Join(t.TempDir(), "a.mlxt")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	rd, err := capture.Open(path, capture.ReaderOptions{Follow: true, Poll: time.Millisecond})
	require.NoError(t, err)
	defer rd.Close()

	short, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, errPlanned)
	var r capture.Record
	require.ErrorIs(t, rd.Next(short, &r), errPlanned, "nothing is there yet")
	cancel()

	go func() {
		for n, i := 1, 0; i < len(whole); n = n*5%4099 + 1 {
			m := min(n, len(whole)-i)
			_, _ = f.Write(whole[i : i+m])
			i += m
			if n%3 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	var l []uint64
	for {
		if err = rd.Next(t.Context(), &r); err != nil {
			break
		}
		if r.Kind == capture.KindBlock {
			l = append(l, r.Index)
		}
	}
	require.ErrorIs(t, err, io.EOF)
	want, _ := readAll(t.Context(), bytes.NewReader(whole), capture.ReaderOptions{})
	require.Equal(t, blocksOf(want), l)
}

var errPlanned = errors.New("planned")

func TestFollowShrinks(t *testing.T) {
	whole := file(t, false)
	path := filepath.Join(t.TempDir(), "a.mlxt")
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	rd, err := capture.Open(path, capture.ReaderOptions{Follow: true, Poll: time.Millisecond})
	require.NoError(t, err)
	defer rd.Close()
	var r capture.Record
	for range len(sample()) + 1 {
		require.NoError(t, rd.Next(t.Context(), &r))
	}
	require.NoError(t, os.Truncate(path, 100))
	err = rd.Next(t.Context(), &r)
	require.ErrorIs(t, err, capture.ErrDamaged)
	require.ErrorContains(t, err, "shorter")
}

func TestNoAllocations(t *testing.T) {
	w, err := capture.NewWriter(io.Discard, &testMeta)
	require.NoError(t, err)
	r := capture.Record{Kind: capture.KindBlock, Data: blockAt(1)}
	g := capture.Record{Kind: capture.KindGap}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Index++
		require.NoError(t, w.Write(&r))
		require.NoError(t, w.Write(&g))
	}))

	var b bytes.Buffer
	w, err = capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	for i := range uint64(3000) {
		d := blockAt(i)
		require.NoError(t, w.Block(i, &d))
	}
	require.NoError(t, w.Flush())
	rd := capture.NewReader(bytes.NewReader(b.Bytes()), capture.ReaderOptions{})
	require.NoError(t, rd.Next(t.Context(), &r))
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(2500, func() { require.NoError(t, rd.Next(ctx, &r)) }))
	require.EqualValues(t, 2500, r.Index)
}

// failing fails after n bytes.
type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.n {
		n := f.n
		f.n = 0
		return n, errPlanned
	}
	f.n -= len(p)
	return len(p), nil
}

func TestWriteFails(t *testing.T) {
	_, err := capture.NewWriter(&failing{10}, &testMeta)
	require.ErrorIs(t, err, errPlanned)
	w, err := capture.NewWriter(&failing{1000}, &testMeta)
	require.NoError(t, err)
	meta := w.Size()
	d := blockAt(0)
	require.NoError(t, w.Block(0, &d))
	require.NoError(t, w.Flush())
	for i := range uint64(3) {
		require.NoError(t, w.Block(i+1, &d), "buffered")
	}
	err = w.Flush()
	require.ErrorIs(t, err, errPlanned)
	require.ErrorContains(t, err, "write at byte 1000")
	require.Equal(t, err, w.Block(9, &d), "it sticks")
	size, blocks := w.Size(), uint64(0)
	require.EqualValues(t, 1000, size)
	n, _, _ := w.Totals()
	for rest := size - meta; rest >= 280; rest -= 280 {
		blocks++
	}
	require.Equal(t, blocks, n, "those that are whole in the file")
	require.Equal(t, err, w.Close(&capture.End{}))
	require.ErrorIs(t, w.Close(&capture.End{}), capture.ErrClosed)
}

func TestCreate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.mlxt")
	w, err := capture.Create(path, &testMeta, false)
	require.NoError(t, err)
	require.NoError(t, w.Sync())
	require.NoError(t, w.Close(&capture.End{Reason: capture.ReasonStopped}))
	d := blockAt(0)
	require.ErrorIs(t, w.Block(0, &d), capture.ErrClosed)
	_, err = capture.Create(path, &testMeta, false)
	require.ErrorIs(t, err, os.ErrExist)
	w, err = capture.Create(path, &testMeta, true)
	require.NoError(t, err)
	require.NoError(t, w.Close(&capture.End{}))
	rd, err := capture.Open(path, capture.ReaderOptions{})
	require.NoError(t, err)
	defer rd.Close()
	var r capture.Record
	require.NoError(t, rd.Next(t.Context(), &r))
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, capture.KindEnd, r.Kind)
}

// TestKill kills a process that records: everything that it had flushed is there.
func TestKill(t *testing.T) {
	if path := os.Getenv("CAPTURE_TEST_WRITE"); path != "" {
		w, err := capture.Create(path, &testMeta, false)
		require.NoError(t, err)
		for i := uint64(0); ; i++ {
			d := blockAt(i)
			require.NoError(t, w.Block(i, &d))
			if i%7 == 0 {
				require.NoError(t, w.Flush())
				fmt.Println(i)
			}
		}
	}
	path := filepath.Join(t.TempDir(), "a.mlxt")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "CAPTURE_TEST_WRITE="+path)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var told uint64
	for told < 700 {
		_, err := fmt.Fscanln(out, &told)
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	rs, err := readAll(t.Context(), f, capture.ReaderOptions{})
	var stop *capture.StopError
	require.ErrorAs(t, err, &stop)
	require.True(t, errors.Is(err, capture.ErrNoEnd) || errors.Is(err, capture.ErrTruncated), "%v", err)
	l := blocksOf(rs)
	require.GreaterOrEqual(t, l[len(l)-1], told, "the last block that was flushed is there")
	for i, n := range l {
		require.EqualValues(t, i, n)
		require.Equal(t, blockAt(n), rs[i+1].Data)
	}
}

// queue is a Source.
type queue struct {
	rs      []capture.Record
	flushed func() int
	seen    []int
}

func (q *queue) Ready() int { return len(q.rs) % 5 }

func (q *queue) Next(_ context.Context, r *capture.Record) error {
	if q.Ready() == 0 {
		q.seen = append(q.seen, q.flushed())
	}
	if len(q.rs) == 0 {
		return io.EOF
	}
	*r, q.rs = q.rs[0], q.rs[1:]
	return nil
}

// TestPump: what was taken is in the file whenever the source has nothing more.
func TestPump(t *testing.T) {
	var b bytes.Buffer
	w, err := capture.NewWriter(&b, &testMeta)
	require.NoError(t, err)
	var rs []capture.Record
	for i := range uint64(20) {
		rs = append(rs, capture.Record{Kind: capture.KindBlock, Index: i, Data: blockAt(i)})
	}
	rs = append(rs, capture.Record{Kind: capture.KindEnd, End: capture.End{Reason: capture.ReasonLost}})
	head := b.Len()
	q := &queue{rs: rs, flushed: func() int { return (b.Len() - head) / blockSize }}
	end, err := capture.Pump(t.Context(), w, q, nil)
	require.NoError(t, err)
	require.Equal(t, capture.ReasonLost, end.Reason)
	require.Equal(t, []int{1, 6, 11, 16, 20}, q.seen)
	_, err = capture.Pump(t.Context(), w, &queue{rs: sample(), flushed: func() int { return 0 }}, func(r *capture.Record) error {
		if r.Kind == capture.KindBlock {
			return errPlanned
		}
		return nil
	})
	require.ErrorIs(t, err, errPlanned)
}

func TestPlayer(t *testing.T) {
	var p capture.Player
	rd := capture.NewReader(bytes.NewReader(file(t, true)), capture.ReaderOptions{})
	n := 0
	require.NoError(t, p.Play(t.Context(), rd, func(*capture.Record) error { n++; return nil }, nil))
	require.Equal(t, len(sample())+2, n)
	require.Equal(t, testMeta, *p.Meta())
	require.Equal(t, capture.ReasonLost, p.End().Reason)
	c := p.Counters()
	require.EqualValues(t, 17, c.Blocks)
	require.NoError(t, c.Check())
	gaps, lost, least := p.Missing()
	require.EqualValues(t, 2, gaps)
	require.EqualValues(t, 8, lost)
	require.True(t, least)
	// A message that is not complete: it ends with the trace, with a gap, or with damage.
	pending := blockAt(0)
	binary.BigEndian.PutUint64(pending[8*3:], uint64(trace.StringEvent(false, 1, 16, 5, 0, 0x400000)))
	rest := blockAt(1)
	binary.BigEndian.PutUint64(rest[8*3:], uint64(trace.StringEvent(false, 1, 16, 5, 1, 7)))
	for _, k := range []capture.Kind{capture.KindNote, capture.KindGap, capture.KindDamage} {
		var out bytes.Buffer
		w, err := capture.NewWriter(&out, &testMeta)
		require.NoError(t, err)
		require.NoError(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: testDB(3)}))
		require.NoError(t, w.Block(0, &pending))
		require.NoError(t, w.Close(&capture.End{}))
		var p capture.Player
		require.NoError(t, p.Play(t.Context(), capture.NewReader(&out, capture.ReaderOptions{}), nil, nil))
		require.EqualValues(t, 1, p.Counters().IncompleteMessages)

		p = capture.Player{}
		var texts []string
		for _, r := range []capture.Record{{Kind: capture.KindStrings, DB: testDB(3)}, {Kind: capture.KindBlock, Data: pending}, {Kind: k}, {Kind: capture.KindBlock, Index: 1, Data: rest}} {
			require.NoError(t, p.Record(&r, func(m *trace.Message) { texts = append(texts, m.Text()) }))
		}
		want := "hello 7"
		if k != capture.KindNote {
			want = fmt.Sprintf("0x%016x", uint64(trace.StringEvent(false, 1, 16, 5, 1, 7)))
		}
		require.Equal(t, []string{want}, texts, "%v", k)
	}
	var q capture.Player
	require.ErrorContains(t, q.Record(&capture.Record{Kind: capture.KindBlock}, nil), "before any string database")
}

// repair gives the records of a file good marks, numbers and checksums, as far as
// their lengths go, so that fuzzing gets behind them.
func repair(b []byte) {
	copy(b, append([]byte(capture.Magic), 0, 1))
	for seq, at := uint32(0), fileHeader; at+16 <= len(b); seq++ {
		h := b[at:]
		n := min(binary.BigEndian.Uint32(h[8:]), 1<<20)
		end := 16 + int(n)
		if end > len(h) {
			return
		}
		copy(h[4:], "MT")
		binary.BigEndian.PutUint32(h[12:], seq)
		binary.BigEndian.PutUint32(h, crc32.Checksum(h[4:end], crc32.MakeTable(crc32.Castagnoli)))
		at += (end + 7) &^ 7
	}
}

func FuzzReader(f *testing.F) {
	f.Add(file(f, true))
	f.Add(file(f, false)[:3000])
	f.Add(append(file(f, true), 0))
	f.Add([]byte(capture.Magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b)%2 != 0 {
			b = bytes.Clone(b) // the fuzzer's own must stay as it is
			repair(b)
		}
		for _, o := range []capture.ReaderOptions{{}, {Salvage: true}} {
			rd := capture.NewReader(bytes.NewReader(b), o)
			var r capture.Record
			var at int64 = -1
			var p capture.Player
			for {
				err := rd.Next(context.Background(), &r)
				if err != nil {
					require.Equal(t, err, rd.Next(context.Background(), &r), "an end stays")
					break
				}
				require.GreaterOrEqual(t, r.Offset, at)
				at = r.Offset
				_ = p.Record(&r, func(m *trace.Message) { _ = m.Text() })
			}
			c := p.Counters()
			require.NoError(t, c.Check())
		}
	})
}

func BenchmarkWriteBlock(b *testing.B) {
	w, err := capture.NewWriter(io.Discard, &testMeta)
	require.NoError(b, err)
	d := blockAt(1)
	b.SetBytes(trace.BlockSize)
	for i := range uint64(b.N) {
		_ = w.Block(i, &d)
	}
}

func BenchmarkReadBlock(b *testing.B) {
	var f bytes.Buffer
	w, err := capture.NewWriter(&f, &testMeta)
	require.NoError(b, err)
	for i := range uint64(b.N) {
		d := blockAt(i)
		_ = w.Block(i, &d)
	}
	require.NoError(b, w.Flush())
	rd := capture.NewReader(&f, capture.ReaderOptions{})
	var r capture.Record
	ctx := context.Background()
	require.NoError(b, rd.Next(ctx, &r))
	b.SetBytes(trace.BlockSize)
	b.ResetTimer()
	for range b.N {
		if err := rd.Next(ctx, &r); err != nil {
			b.Fatal(err)
		}
	}
}

// TestStringsTooLarge: a database that does not fit is refused whole.
func TestStringsTooLarge(t *testing.T) {
	var out bytes.Buffer
	w, err := capture.NewWriter(&out, &testMeta)
	require.NoError(t, err)
	n := w.Size()
	db := &trace.DB{Sections: []trace.Section{{Data: make([]byte, 100)}, {Data: make([]byte, 64<<20+1)}}}
	require.ErrorContains(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: db}), "section 1")
	require.Equal(t, n, w.Size())
	require.NoError(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: testDB(3)}))
	require.NoError(t, w.Close(&capture.End{}))
	r := capture.NewReader(&out, capture.ReaderOptions{})
	var kinds []capture.Kind
	var rec capture.Record
	for err = r.Next(t.Context(), &rec); err == nil; err = r.Next(t.Context(), &rec) {
		kinds = append(kinds, rec.Kind)
	}
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []capture.Kind{capture.KindMeta, capture.KindStrings, capture.KindEnd}, kinds)
}

// kindsOf gives the kinds of all records up to the end or the stop.
func kindsOf(t *testing.T, b []byte, o capture.ReaderOptions) (kinds []capture.Kind, err error) {
	t.Helper()
	rd := capture.NewReader(bytes.NewReader(b), o)
	var r capture.Record
	for {
		if err := rd.Next(t.Context(), &r); err != nil {
			return kinds, err
		}
		kinds = append(kinds, r.Kind)
	}
}

// TestNumbersBehindAGap: behind a gap that is "at least" any later number may follow;
// behind an exact one a jump is a gap of its own.
func TestNumbersBehindAGap(t *testing.T) {
	for _, least := range []bool{true, false} {
		var out bytes.Buffer
		w, err := capture.NewWriter(&out, &testMeta)
		require.NoError(t, err)
		d := blockAt(0)
		require.NoError(t, w.Block(0, &d))
		require.NoError(t, w.Write(&capture.Record{Kind: capture.KindGap, Gap: capture.Gap{First: 1, Blocks: 10, AtLeast: least, Cause: capture.CauseOverwritten}}))
		require.NoError(t, w.Block(27, &d))
		require.NoError(t, w.Block(28, &d))
		require.NoError(t, w.Close(&capture.End{}))
		got, err := kindsOf(t, out.Bytes(), capture.ReaderOptions{})
		require.ErrorIs(t, err, io.EOF)
		want := []capture.Kind{capture.KindMeta, capture.KindBlock, capture.KindGap, capture.KindBlock, capture.KindBlock, capture.KindEnd}
		if !least {
			want = slices.Insert(want, 3, capture.KindGap)
		}
		require.Equal(t, want, got)
	}
}

// TestSalvageForgetsHalfADatabase: what is left of a damaged one does not spoil the
// next.
func TestSalvageForgetsHalfADatabase(t *testing.T) {
	var out bytes.Buffer
	w, err := capture.NewWriter(&out, &testMeta)
	require.NoError(t, err)
	require.NoError(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: testDB(3)}))
	end := w.Size() // of the record that ends the database
	require.NoError(t, w.Write(&capture.Record{Kind: capture.KindStrings, DB: testDB(3)}))
	d := blockAt(0)
	require.NoError(t, w.Block(0, &d))
	require.NoError(t, w.Close(&capture.End{}))
	out.Bytes()[end-20] ^= 1
	got, err := kindsOf(t, out.Bytes(), capture.ReaderOptions{Salvage: true})
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []capture.Kind{capture.KindMeta, capture.KindDamage, capture.KindStrings, capture.KindBlock, capture.KindEnd}, got)
}

// TestTextsOfAFile: what a file says about itself is shown, and does nothing else.
func TestTextsOfAFile(t *testing.T) {
	var out bytes.Buffer
	w, err := capture.NewWriter(&out, &capture.Meta{Device: "\x1b[31mevil\n# gap", Firmware: "1\u009b2J", PSID: "\u202e", Tool: "zum Prüfen C:\\x"})
	require.NoError(t, err)
	require.NoError(t, w.Write(&capture.Record{Kind: capture.KindNote, Note: capture.Note{Text: "a\rb\xffc\ufffd"}}))
	require.NoError(t, w.Close(&capture.End{Text: "\x00 why"}))
	rd := capture.NewReader(&out, capture.ReaderOptions{})
	var r capture.Record
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, capture.Meta{Device: `\x1b[31mevil\x0a# gap`, Firmware: `1\xc2\x9b2J`, PSID: `\xe2\x80\xae`, Tool: `zum Prüfen C:\x`}, *r.Meta)
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, "a\\x0db\\xffc\ufffd", r.Note.Text)
	require.NoError(t, rd.Next(t.Context(), &r))
	require.Equal(t, `\x00 why`, r.End.Text)
}
