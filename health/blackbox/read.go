package blackbox

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Schema names the JSON form of a Bundle.
const Schema = "mlxvfio.blackbox/1"

// Bundle is what was read of a file.
type Bundle struct {
	// Version is that of the format: the high byte major, the low byte minor.
	Version uint16
	// Recorded says that a Recorder wrote the file; Began is when it, or Write,
	// began.
	Recorded bool
	Began    time.Time
	// Sections in their order.
	Sections []Section
	// Samples are the records of a Recorder, oldest first. FirstSample is the
	// number of the first, counted from 1 since the file was made.
	Samples     [][]byte
	FirstSample uint64
	// Damage says what could not be read, one line each; empty if all is well.
	Damage []string
}

// Section finds a section by name.
func (b *Bundle) Section(name string) (*Section, bool) {
	for i := range b.Sections {
		if b.Sections[i].Name == name {
			return &b.Sections[i], true
		}
	}
	return nil, false
}

// Read reads a black box. A damaged one is read as far as its checksums hold and
// says so in Damage; the error wraps ErrFormat if it is no black box at all, and
// ErrTooLarge beyond MaxFile.
func Read(path string) (*Bundle, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read black box: %w", err)
	}
	p, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read black box: %w", err)
	}
	if len(p) > MaxFile {
		return nil, fmt.Errorf("read black box %s: %w: more than %d bytes", path, ErrTooLarge, MaxFile)
	}
	b, err := Parse(p)
	if err != nil {
		return nil, fmt.Errorf("read black box %s: %w", path, err)
	}
	return b, nil
}

// Parse is Read of bytes. Sections share memory with p.
func Parse(p []byte) (*Bundle, error) {
	h, err := parseHeader(p)
	if err != nil {
		return nil, err
	}
	b := &Bundle{Version: h.version, Recorded: h.kind == kindRecorder, Began: h.began}
	switch h.kind {
	case kindBundle:
		b.image(p[fileHeaderSize:])
	case kindRecorder:
		b.recorder(p, h)
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrFormat, h.kind)
	}
	return b, nil
}

func (b *Bundle) damage(format string, args ...any) {
	b.Damage = append(b.Damage, fmt.Sprintf(format, args...))
}

// imageHeader is the head of an image whose own checksum holds.
type imageHeader struct {
	sections int
	seq      uint64
	body     []byte
	whole    bool // the checksum of the body holds
}

func parseImage(p []byte) (h imageHeader, why string) {
	if len(p) < imageHeaderSize {
		return h, "it ends in the header"
	}
	if binary.BigEndian.Uint32(p) != imageMagic || binary.BigEndian.Uint32(p[28:]) != sum(p[:28]) {
		return h, "its header is damaged"
	}
	n := binary.BigEndian.Uint64(p[16:])
	h = imageHeader{sections: int(binary.BigEndian.Uint32(p[4:])), seq: binary.BigEndian.Uint64(p[8:]), body: p[imageHeaderSize:]}
	if n > uint64(len(h.body)) {
		return h, fmt.Sprintf("%d of %d bytes are there", len(h.body), n)
	}
	h.body = h.body[:n]
	if h.whole = binary.BigEndian.Uint32(p[24:]) == sum(h.body); !h.whole {
		return h, "its checksum does not hold"
	}
	return h, ""
}

// image reads an image as far as it goes: a section whose own checksum holds is
// worth having in a damaged one.
func (b *Bundle) image(p []byte) {
	h, why := parseImage(p)
	if why != "" {
		b.damage("image: %s", why)
	}
	if h.body == nil {
		if len(p) <= imageHeaderSize {
			return
		}
		h.body, h.sections = p[imageHeaderSize:], -1 // look for sections all the same
	}
	p, at, n := h.body, 0, 0
	for len(p)-at >= sectionHeaderSize {
		s, size, why := parseSection(p[at:])
		if size == 0 {
			if n == h.sections || h.sections < 0 && n > 0 && allZero(p[at:]) {
				break
			}
			b.damage("section at byte %d: %s", at, why)
			next := nextSection(p, at+4)
			if next < 0 {
				break
			}
			at = next
			continue
		}
		if why != "" {
			b.damage("section %s: %s", s.Name, why)
		} else {
			b.Sections = append(b.Sections, s)
		}
		n++
		at += size
	}
	if h.sections >= 0 && n != h.sections {
		b.damage("image: %d of %d sections are there", n, h.sections)
	}
}

func allZero(p []byte) bool {
	for _, x := range p {
		if x != 0 {
			return false
		}
	}
	return true
}

// nextSection looks for the next section after damage.
func nextSection(p []byte, at int) int {
	for at = pad4(at); at+sectionHeaderSize <= len(p); at += 4 {
		if binary.BigEndian.Uint32(p[at:]) == sectionMagic {
			return at
		}
	}
	return -1
}

// parseSection answers size 0 when it cannot even tell where the section ends.
func parseSection(p []byte) (s Section, size int, why string) {
	if binary.BigEndian.Uint32(p) != sectionMagic {
		return s, 0, "there is none"
	}
	nameLen := int(binary.BigEndian.Uint16(p[6:]))
	n := binary.BigEndian.Uint64(p[8:])
	original := binary.BigEndian.Uint64(p[16:])
	from := sectionHeaderSize + pad4(nameLen)
	if nameLen > MaxName || from > len(p) {
		return s, 0, "its header is damaged"
	}
	name := p[sectionHeaderSize : sectionHeaderSize+nameLen]
	if binary.BigEndian.Uint32(p[36:]) != sum(p[:36], name) || checkName(string(name)) != nil {
		return s, 0, "its header is damaged"
	}
	s = Section{Name: string(name), Time: time.Unix(0, int64(binary.BigEndian.Uint64(p[24:])))}
	if n > uint64(len(p)-from) {
		return s, len(p), fmt.Sprintf("%d of %d bytes are there", len(p)-from, n)
	}
	s.Data = p[from : from+int(n) : from+int(n)]
	if binary.BigEndian.Uint16(p[4:])&flagCut != 0 {
		s.Original = int(min(original, 1<<62))
	}
	size = min(from+pad4(int(n)), len(p))
	if binary.BigEndian.Uint32(p[32:]) != sum(s.Data) {
		return s, size, "its checksum does not hold"
	}
	return s, size, ""
}

// recorder takes the later of the two images that is whole, and every record
// whose checksum holds.
func (b *Bundle) recorder(p []byte, h fileHeader) {
	if h.record < recordHeaderSize || h.slot > MaxFile || h.slot < imageHeaderSize {
		b.damage("recorder: the header gives impossible sizes")
		return
	}
	var best []byte
	var bestSeq uint64
	for i := range uint64(2) {
		from := headerRoom + i*h.slot
		if from+h.slot > uint64(len(p)) {
			b.damage("recorder: the file ends before image %d", i)
			continue
		}
		slot := p[from : from+h.slot]
		switch x, why := parseImage(slot); {
		case why == "" && x.seq > bestSeq:
			best, bestSeq = slot, x.seq
		case why != "" && !allZero(slot[:imageHeaderSize]):
			b.damage("recorder: image %d: %s; it was being written", i, why)
		}
	}
	if best != nil {
		b.image(best)
	}
	b.ring(p, h)
}

func (b *Bundle) ring(p []byte, h fileHeader) {
	type rec struct {
		seq  uint64
		data []byte
	}
	var recs []rec
	from := headerRoom + 2*h.slot
	bad := 0
	for i := range uint64(h.records) {
		at := from + i*uint64(h.record)
		if at+uint64(h.record) > uint64(len(p)) {
			b.damage("recorder: the file ends before record %d of %d", i, h.records)
			break
		}
		f := p[at : at+uint64(h.record)]
		seq, n := binary.BigEndian.Uint64(f), binary.BigEndian.Uint32(f[8:])
		if seq == 0 && allZero(f) {
			continue
		}
		if binary.BigEndian.Uint32(f[12:]) != recordSum(f) || n > h.record-recordHeaderSize || seq == 0 || (seq-1)%uint64(h.records) != i {
			bad++
			continue
		}
		recs = append(recs, rec{seq, f[recordHeaderSize : recordHeaderSize+n]})
	}
	slices.SortFunc(recs, func(x, y rec) int { return cmp.Compare(x.seq, y.seq) })
	for i, r := range recs {
		if i == 0 {
			b.FirstSample = r.seq
		}
		b.Samples = append(b.Samples, r.data)
	}
	if bad > 0 {
		b.damage("recorder: %d records are damaged", bad)
	}
}

// jsonSection is a Section in JSON: one of JSON, Text and Hex.
type jsonSection struct {
	Name     string          `json:"name"`
	Time     time.Time       `json:"time"`
	Bytes    int             `json:"bytes"`
	Original int             `json:"original_bytes,omitempty"` // if bytes are missing
	JSON     json.RawMessage `json:"json,omitempty"`
	Text     *string         `json:"text,omitempty"`
	Hex      *string         `json:"hex,omitempty"`
}

// MarshalJSON gives the whole of it: sections of JSON as such, text as strings,
// anything else, and what does not hold its name's promise, in hexadecimal.
func (b *Bundle) MarshalJSON() ([]byte, error) {
	out := struct {
		Schema      string        `json:"schema"`
		Version     string        `json:"format_version"`
		Recorded    bool          `json:"recorded"`
		Began       time.Time     `json:"began"`
		Sections    []jsonSection `json:"sections"`
		FirstSample uint64        `json:"first_sample,omitempty"`
		Samples     []string      `json:"samples,omitempty"`
		Damage      []string      `json:"damage"`
	}{Schema: Schema, Version: fmt.Sprintf("%d.%d", b.Version>>8, b.Version&0xff), Recorded: b.Recorded, Began: b.Began.UTC(),
		Sections: []jsonSection{}, FirstSample: b.FirstSample, Damage: b.Damage}
	if out.Damage == nil {
		out.Damage = []string{}
	}
	for i := range b.Sections {
		s := &b.Sections[i]
		j := jsonSection{Name: s.Name, Time: s.Time.UTC(), Bytes: len(s.Data)}
		if s.Cut() {
			j.Original = s.Original
		}
		switch {
		case strings.HasSuffix(s.Name, ".json") && json.Valid(s.Data):
			j.JSON = s.Data
		case strings.HasSuffix(s.Name, ".txt") && utf8.Valid(s.Data):
			t := string(s.Data)
			j.Text = &t
		default:
			t := hex.EncodeToString(s.Data)
			j.Hex = &t
		}
		out.Sections = append(out.Sections, j)
	}
	for _, s := range b.Samples {
		out.Samples = append(out.Samples, hex.EncodeToString(s))
	}
	return json.Marshal(out)
}
