package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
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

var errPlanned = errors.New("planned")

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

// TestCreateLeavesDevices: what cannot be written and is no ordinary file stays where it
// is, also when it was to be replaced.
func TestCreateLeavesDevices(t *testing.T) {
	path := filepath.Join(t.TempDir(), "full")
	require.NoError(t, os.Symlink("/dev/full", path))
	_, err := capture.Create(path, &testMeta, true)
	require.ErrorIs(t, err, syscall.ENOSPC)
	_, err = os.Lstat(path)
	require.NoError(t, err)
}
