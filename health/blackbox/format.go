package blackbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"time"
)

// Numbers of the format; docs/blackbox.md lists them. All integers are
// big-endian.
const (
	// Magic is the first 8 bytes of a file.
	Magic = "MLXBBOX\n"
	// Version is the version this package writes. Readers take files of the same
	// major version (the high byte).
	Version = 0x0100

	kindBundle   = 1
	kindRecorder = 2

	fileHeaderSize    = 64
	imageHeaderSize   = 32
	sectionHeaderSize = 40
	recordHeaderSize  = 16

	imageMagic   = 0x494d4147 // "IMAG"
	sectionMagic = 0x53454354 // "SECT"

	flagCut = 1 << 0 // the payload is shorter than what there was

	// MaxName bounds the name of a section in bytes.
	MaxName = 128
	// DefaultLimit bounds a bundle when the caller does not.
	DefaultLimit = 32 << 20
	// MaxFile is the largest file Read takes.
	MaxFile = 1 << 30
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sum(parts ...[]byte) uint32 {
	var c uint32
	for _, p := range parts {
		c = crc32.Update(c, castagnoli, p)
	}
	return c
}

// Sentinels, found with errors.Is.
var (
	// ErrFormat: the file is no black box, or of a later major version.
	ErrFormat = errors.New("not a black box this version can read")
	// ErrTooLarge: a file, section or record is beyond its bound.
	ErrTooLarge = errors.New("too large")
	// ErrName: a section name that is empty, too long, doubled, or no plain path.
	ErrName = errors.New("bad section name")
	// ErrClosed: the Recorder was closed.
	ErrClosed = errors.New("recorder is closed")
)

// Section is one piece of evidence. The name reads as a relative path, and its
// ending says what the bytes are: .json, .txt or .bin.
type Section struct {
	Name string
	Data []byte
	// Time is when it was taken; zero is the time of writing.
	Time time.Time
	// Original is the number of bytes there were, if Data is less: cut to fit the
	// bound of the file. Writers leave it 0.
	Original int
}

// Cut tells whether bytes are missing.
func (s *Section) Cut() bool { return s.Original > len(s.Data) }

func checkName(name string) error {
	if name == "" || len(name) > MaxName || strings.HasPrefix(name, "/") || strings.Contains(name, "..") {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	for _, r := range name {
		if r <= ' ' || r > '~' || r == '\\' {
			return fmt.Errorf("%w: %q", ErrName, name)
		}
	}
	return nil
}

func pad4(n int) int { return (n + 3) &^ 3 }

// image encodes sections into at most limit bytes. What does not fit is cut:
// text and binary at the end, JSON altogether, since half of it cannot be read.
// Earlier sections have precedence.
func image(seq uint64, sections []Section, limit int, now time.Time) ([]byte, error) {
	seen := map[string]bool{}
	room := limit - imageHeaderSize
	for i := range sections {
		n := sections[i].Name
		if err := checkName(n); err != nil {
			return nil, err
		}
		if seen[n] {
			return nil, fmt.Errorf("%w: %q stands there twice", ErrName, n)
		}
		seen[n] = true
		room -= sectionHeaderSize + pad4(len(n))
	}
	if room < 0 {
		return nil, fmt.Errorf("%w: the headers of %d sections do not fit %d bytes", ErrTooLarge, len(sections), limit)
	}
	var body []byte
	for i := range sections {
		s := &sections[i]
		data := s.Data
		if pad4(len(data)) > room {
			if strings.HasSuffix(s.Name, ".json") {
				data = nil
			} else {
				data = data[:room&^3]
			}
		}
		room -= pad4(len(data))
		body = appendSection(body, s, data, now)
	}
	head := make([]byte, imageHeaderSize)
	binary.BigEndian.PutUint32(head[0:], imageMagic)
	binary.BigEndian.PutUint32(head[4:], uint32(len(sections)))
	binary.BigEndian.PutUint64(head[8:], seq)
	binary.BigEndian.PutUint64(head[16:], uint64(len(body)))
	binary.BigEndian.PutUint32(head[24:], sum(body))
	binary.BigEndian.PutUint32(head[28:], sum(head[:28]))
	return slices.Concat(head, body), nil
}

func appendSection(b []byte, s *Section, data []byte, now time.Time) []byte {
	var flags uint16
	original := max(s.Original, len(s.Data))
	if len(data) < original {
		flags |= flagCut
	}
	at := s.Time
	if at.IsZero() {
		at = now
	}
	h := make([]byte, sectionHeaderSize, sectionHeaderSize+pad4(len(s.Name)))
	binary.BigEndian.PutUint32(h[0:], sectionMagic)
	binary.BigEndian.PutUint16(h[4:], flags)
	binary.BigEndian.PutUint16(h[6:], uint16(len(s.Name)))
	binary.BigEndian.PutUint64(h[8:], uint64(len(data)))
	binary.BigEndian.PutUint64(h[16:], uint64(original))
	binary.BigEndian.PutUint64(h[24:], uint64(at.UnixNano()))
	binary.BigEndian.PutUint32(h[32:], sum(data))
	binary.BigEndian.PutUint32(h[36:], sum(h[:36], []byte(s.Name)))
	b = append(b, h...)
	b = append(b, s.Name...)
	b = append(b, make([]byte, pad4(len(s.Name))-len(s.Name))...)
	b = append(b, data...)
	return append(b, make([]byte, pad4(len(data))-len(data))...)
}

// fileHeader is the first 64 bytes.
type fileHeader struct {
	version uint16
	kind    uint16
	slot    uint64 // bytes of each of the two image slots of a recorder
	records uint32 // records of its ring
	record  uint32 // bytes of each, header included
	began   time.Time
}

func (h fileHeader) append(b []byte) []byte {
	p := make([]byte, fileHeaderSize)
	copy(p, Magic)
	binary.BigEndian.PutUint16(p[8:], h.version)
	binary.BigEndian.PutUint16(p[10:], h.kind)
	binary.BigEndian.PutUint32(p[12:], fileHeaderSize)
	binary.BigEndian.PutUint64(p[16:], h.slot)
	binary.BigEndian.PutUint32(p[24:], h.records)
	binary.BigEndian.PutUint32(p[28:], h.record)
	binary.BigEndian.PutUint64(p[32:], uint64(h.began.UnixNano()))
	binary.BigEndian.PutUint32(p[60:], sum(p[:60]))
	return append(b, p...)
}

func parseHeader(p []byte) (h fileHeader, err error) {
	if len(p) < fileHeaderSize || string(p[:8]) != Magic {
		return h, fmt.Errorf("%w: it does not begin with the magic number", ErrFormat)
	}
	if got, want := binary.BigEndian.Uint32(p[60:]), sum(p[:60]); got != want {
		return h, fmt.Errorf("%w: the file header is damaged (checksum %08x, computed %08x)", ErrFormat, got, want)
	}
	h = fileHeader{
		version: binary.BigEndian.Uint16(p[8:]), kind: binary.BigEndian.Uint16(p[10:]), slot: binary.BigEndian.Uint64(p[16:]),
		records: binary.BigEndian.Uint32(p[24:]), record: binary.BigEndian.Uint32(p[28:]),
		began: time.Unix(0, int64(binary.BigEndian.Uint64(p[32:]))),
	}
	if h.version>>8 != Version>>8 {
		return h, fmt.Errorf("%w: version %d.%d, this one reads %d", ErrFormat, h.version>>8, h.version&0xff, Version>>8)
	}
	return h, nil
}
