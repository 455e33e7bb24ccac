package capture

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Numbers of the file; docs/capture.md lists them. All integers are big-endian.
const (
	// Magic begins a file. Its line ends and its control character show what a text
	// transfer has done to it.
	Magic = "MLXT\r\n\x1a\n"
	// Major is the version that readers must know, Minor counts additions that older
	// readers may leave unread.
	Major, Minor = 1, 0
	// Extension is what a file is called.
	Extension = ".mlxt"

	fileHeader   = 16
	recordHeader = 16
	sync         = 0x4d54 // "MT"
	align        = 8
	// maxPayload bounds a record: what a reader has to hold at a time.
	maxPayload  = 1 << 20
	maxRecord   = recordHeader + maxPayload
	maxSections = 64
	maxSection  = 64 << 20
	maxText     = 1 << 16

	blockPayload = 8 + trace.BlockSize
	gapPayload   = 40
	clockPayload = 64
	endPayload   = 40 // and the text behind it
	notePayload  = 8  // likewise
	piecePayload = 24 // and the bytes of the section
	allPayload   = 8 + sha256.Size

	stringsPiece = 0 // first byte of a strings record
	stringsAll   = 1
	pieceSize    = 64 << 10

	gapHaveFrom, gapHaveTo, gapAtLeast = 1, 2, 4
	clockTicks, clockTimer             = 1, 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func padded(n int) int { return (n + align - 1) &^ (align - 1) }

// recordSum is the checksum of a record whose header and payload are b.
func recordSum(b []byte) uint32 { return crc32.Checksum(b[4:], castagnoli) }

// HashDB is the SHA-256 of a string database: what two captures of the same firmware
// share. It covers the geometry (3 bytes), and for each section base and size (8 bytes
// each, big-endian) and its bytes.
func HashDB(db *trace.DB) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write([]byte{db.Geometry.TrcVer, db.Geometry.FirstString, db.Geometry.NumString})
	var b [16]byte
	for _, s := range db.Sections {
		binary.BigEndian.PutUint64(b[:], s.Base)
		binary.BigEndian.PutUint64(b[8:], uint64(len(s.Data)))
		h.Write(b[:])
		h.Write(s.Data)
	}
	h.Sum(sum[:0])
	return sum
}

func appendGap(b []byte, g *Gap) []byte {
	var flags byte
	for i, have := range []bool{g.HaveFrom, g.HaveTo, g.AtLeast} {
		if have {
			flags |= 1 << i
		}
	}
	for _, v := range [...]uint64{g.From, g.To, g.First, g.Blocks} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return append(b, flags, byte(g.Cause), 0, 0, 0, 0, 0, 0)
}

func appendClock(b []byte, c *Clock) []byte {
	var flags uint32
	if c.HaveTicks {
		flags |= clockTicks
	}
	if c.HaveTimer {
		flags |= clockTimer
	}
	for _, v := range [...]uint64{uint64(c.Host.UnixNano()), uint64(c.Mono), c.Ticks, c.Timer, uint64(c.Error), uint64(c.TimerError)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	for _, v := range [...]uint32{flags, c.RealSeconds, c.RealNanoseconds, 0} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func appendNote(b []byte, n *Note) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(n.Time.UnixNano()))
	return append(b, cut(n.Text)...)
}

func appendEnd(b []byte, e *End) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(e.Time.UnixNano()))
	b = append(b, byte(e.Reason), 0, 0, 0, 0, 0, 0, 0)
	for _, v := range [...]uint64{e.Blocks, e.Gaps, e.Lost} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return append(b, cut(e.Text)...)
}

// cut bounds a text.
func cut(s string) string { return s[:min(len(s), maxText)] }

// parse fills r from the payload of a record, other than strings and meta. Payloads
// may be longer than this version knows.
func parse(r *Record, kind Kind, p []byte) error {
	be := binary.BigEndian
	need := map[Kind]int{KindBlock: blockPayload, KindGap: gapPayload, KindClock: clockPayload, KindNote: notePayload, KindEnd: endPayload}[kind]
	if len(p) < need {
		return fmt.Errorf("a %v record of %d bytes; it has %d at least", kind, len(p), need)
	}
	switch kind {
	case KindGap:
		r.Gap = Gap{
			From: be.Uint64(p), To: be.Uint64(p[8:]), First: be.Uint64(p[16:]), Blocks: be.Uint64(p[24:]),
			HaveFrom: p[32]&gapHaveFrom != 0, HaveTo: p[32]&gapHaveTo != 0, AtLeast: p[32]&gapAtLeast != 0,
			Cause: Cause(p[33]),
		}
	case KindClock:
		flags := be.Uint32(p[48:])
		r.Clock = Clock{
			Host: unix(be.Uint64(p)), Mono: time.Duration(be.Uint64(p[8:])), Ticks: be.Uint64(p[16:]), Timer: be.Uint64(p[24:]),
			Error: time.Duration(be.Uint64(p[32:])), TimerError: time.Duration(be.Uint64(p[40:])),
			HaveTicks: flags&clockTicks != 0, HaveTimer: flags&clockTimer != 0,
			RealSeconds: be.Uint32(p[52:]), RealNanoseconds: be.Uint32(p[56:]),
		}
	case KindNote:
		r.Note = Note{Time: unix(be.Uint64(p)), Text: printable(string(p[notePayload:]))}
	case KindEnd:
		r.End = End{
			Time: unix(be.Uint64(p)), Reason: Reason(p[8]), Text: printable(string(p[endPayload:])),
			Blocks: be.Uint64(p[16:]), Gaps: be.Uint64(p[24:]), Lost: be.Uint64(p[32:]),
		}
	}
	return nil
}

func unix(ns uint64) time.Time { return time.Unix(0, int64(ns)) }

func parseMeta(p []byte) (*Meta, error) {
	m := &Meta{}
	if err := json.Unmarshal(p, m); err != nil {
		return nil, fmt.Errorf("the meta record is no JSON object of this format: %w", err)
	}
	for _, s := range []*string{&m.Device, &m.PCIID, &m.Firmware, &m.PSID, &m.Tool} {
		*s = printable(*s)
	}
	return m, nil
}

// printable escapes what a file says that could do something to a terminal or look like
// another line. Files come from anywhere; what is written honestly stays as it is.
func printable(s string) string {
	var b []byte
	for i, r := range s {
		if unicode.IsPrint(r) && (r != utf8.RuneError || strings.HasPrefix(s[i:], string(utf8.RuneError))) {
			b = utf8.AppendRune(b, r)
			continue
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		for _, c := range []byte(s[i : i+n]) {
			b = fmt.Appendf(b, `\x%02x`, c)
		}
	}
	return string(b)
}

// dbParts puts a string database together from its records.
type dbParts struct {
	sections []trace.Section
	sizes    []uint64
}

// take handles one strings record; it answers the database when that is complete.
func (d *dbParts) take(p []byte) (*trace.DB, error) {
	be := binary.BigEndian
	if len(p) == 0 {
		return nil, errors.New("an empty strings record")
	}
	switch p[0] {
	case stringsPiece:
		return nil, d.piece(p)
	case stringsAll:
	default:
		return nil, fmt.Errorf("a strings record of unknown form %d", p[0])
	}
	if len(p) < allPayload {
		return nil, fmt.Errorf("the last strings record has %d bytes; it has %d at least", len(p), allPayload)
	}
	db := &trace.DB{Geometry: trace.Geometry{TrcVer: p[1], FirstString: p[2], NumString: p[3]}, Sections: d.sections}
	n, sizes := be.Uint32(p[4:]), d.sizes
	*d = dbParts{}
	if err := db.Geometry.Check(); err != nil {
		return nil, err
	}
	if int(n) != len(db.Sections) {
		return nil, fmt.Errorf("%d sections of the string database are there, %d are announced", len(db.Sections), n)
	}
	for i, s := range db.Sections {
		if uint64(len(s.Data)) != sizes[i] {
			return nil, fmt.Errorf("section %d of the string database has %d of %d bytes", i, len(s.Data), sizes[i])
		}
	}
	if got := HashDB(db); string(got[:]) != string(p[8:allPayload]) {
		return nil, fmt.Errorf("the string database has the hash %x, not %x", got[:8], p[8:16])
	}
	return db, nil
}

func (d *dbParts) piece(p []byte) error {
	be := binary.BigEndian
	if len(p) < piecePayload {
		return fmt.Errorf("a strings record of %d bytes; it has %d at least", len(p), piecePayload)
	}
	i, off, base, size := int(p[1]), uint64(be.Uint32(p[4:])), be.Uint64(p[8:]), be.Uint64(p[16:])
	data := p[piecePayload:]
	switch {
	case i >= maxSections || size > maxSection:
		return fmt.Errorf("section %d of the string database with %d bytes: beyond the bounds", i, size)
	case i == len(d.sections) && off == 0:
		d.sections = append(d.sections, trace.Section{Base: base})
		d.sizes = append(d.sizes, size)
	case i != len(d.sections)-1 || off != uint64(len(d.sections[i].Data)) || base != d.sections[i].Base || size != d.sizes[i]:
		return fmt.Errorf("a piece of section %d of the string database is out of order", i)
	}
	s := &d.sections[i]
	if uint64(len(s.Data)+len(data)) > size {
		return fmt.Errorf("section %d of the string database has more than its %d bytes", i, size)
	}
	s.Data = append(s.Data, data...)
	return nil
}
