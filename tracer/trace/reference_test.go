package trace

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// reference is a decoder written plainly from the rulings, as slow as it likes:
// maps, lists and strings, and fmt for the values. It shares with the decoder
// under test only the constants and the kinds.
type reference struct {
	g       Geometry
	s       []Section
	c       Counters
	pending map[refKey]*refMessage
	open    []*refMessage // headers and orphans of the interval that is not over
	ready   []*refMessage
}

type refKey struct {
	id   uint8
	tmsn uint16
}

type refMessage struct {
	time    uint64
	block   uint64
	raw     uint64
	id      uint8
	lost    bool
	kind    Kind
	format  string
	words   int
	params  map[int]uint32
	drop    bool
	text    string
	nEvents int
}

func newReference(g Geometry, s []Section) *reference {
	return &reference{g: g, s: s, pending: map[refKey]*refMessage{}}
}

func (r *reference) block(index uint64, b []byte, emit func(*refMessage)) {
	if b[BlockSize-7] != 0xff {
		r.c.SkippedBlocks++
		return
	}
	r.c.Blocks++
	for i := 0; i < BlockSize; i += 8 {
		r.event(index, binary.BigEndian.Uint64(b[i:]), emit)
	}
}

func (r *reference) event(index, w uint64, emit func(*refMessage)) {
	r.c.Events++
	id := uint8(w >> 48)
	if id == 0xff {
		r.timestamp(w, emit)
		return
	}
	if w>>63 == 1 {
		r.c.LostMarks++
	}
	if int(id) < int(r.g.FirstString) || int(id) >= int(r.g.FirstString)+int(r.g.NumString) {
		r.c.RawEvents++
		return
	}
	r.c.StringEvents++
	key := refKey{id, uint16(w >> 35 & 0x1fff)}
	part := int(w >> 32 & 7)
	m := &refMessage{block: index, raw: w, id: id, lost: w>>63 == 1, params: map[int]uint32{}, nEvents: 1}
	old := r.pending[key]
	switch {
	case part == 0:
		r.end(key)
		r.open = append(r.open, m)
		f, known := r.find(uint32(w))
		if !known {
			r.c.UnknownStrings++
			m.kind = KindUnknown
			r.ready = append(r.ready, m)
			return
		}
		m.format = f
		var valid bool
		m.words, valid = refScan(f)
		if !valid {
			m.kind = KindBadFormat
		}
		if m.words == 0 {
			r.ready = append(r.ready, m)
		} else {
			r.pending[key] = m
		}
	case old != nil && part <= old.words && !has(old.params, part):
		old.params[part] = uint32(w)
		old.lost = old.lost || m.lost
		old.nEvents++
		if len(old.params) == old.words {
			delete(r.pending, key)
			r.ready = append(r.ready, old)
		}
	default:
		r.end(key)
		r.c.OrphanParams++
		m.kind = KindOrphan
		r.open = append(r.open, m)
		r.ready = append(r.ready, m)
	}
}

func has(m map[int]uint32, k int) bool { _, ok := m[k]; return ok }

func (r *reference) end(key refKey) {
	if r.pending[key] != nil {
		r.c.IncompleteMessages++
		delete(r.pending, key)
	}
}

func (r *reference) finish() {
	for k := range r.pending {
		r.end(k)
	}
}

func (r *reference) timestamp(w uint64, emit func(*refMessage)) {
	t := (w>>32&0x1fff)<<40 | (w&0xffffffff)<<8 | w>>56
	urts := w >> 45 & 7
	unreliable := urts != 0
	switch r.g.TrcVer {
	case 0:
		unreliable = urts&4 != 0
	case 1:
		unreliable = urts&1 != 0
	}
	r.c.Timestamps++
	if unreliable {
		r.c.UnreliableTimestamps++
	}
	for _, m := range r.open {
		stamp := m.raw >> 56 & 0x7f
		epoch := t / 128
		if stamp >= t%128 {
			epoch += 1<<46 - 1
		}
		m.time = epoch%(1<<46)*128 + stamp
		m.drop = unreliable
	}
	r.open = nil
	for _, m := range r.ready {
		if m.drop {
			r.c.UnreliableEventsDropped += uint64(m.nEvents)
			continue
		}
		r.c.Messages++
		if m.kind == KindBadFormat {
			r.c.BadFormats++
		}
		m.text = m.print()
		emit(m)
	}
	r.ready = nil
}

func (r *reference) find(p uint32) (string, bool) {
	for _, s := range r.s {
		if uint64(p) >= s.Base && uint64(p)-s.Base < uint64(len(s.Data)) {
			f, _, _ := strings.Cut(string(s.Data[uint64(p)-s.Base:]), "\x00")
			return f, true
		}
	}
	return "", false
}

// refConversion cuts one conversion, of the text behind its %.
func refConversion(s string) (flags string, width, prec int, ell int, conv byte, rest string) {
	take := func(set string) string {
		n := 0
		for n < len(s) && strings.IndexByte(set, s[n]) >= 0 {
			n++
		}
		t := s[:n]
		s = s[n:]
		return t
	}
	number := func(t string) int {
		if t == "" {
			return 0
		}
		n, err := strconv.Atoi(t)
		if err != nil {
			return 1 << 30
		}
		return n
	}
	flags = take("-+ #0")
	width = number(take("0123456789"))
	prec = -1
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		prec = number(take("0123456789"))
	}
	switch {
	case strings.HasPrefix(s, "ll"):
		ell, s = 2, s[2:]
	case strings.HasPrefix(s, "l"):
		ell, s = 1, s[1:]
	}
	if s != "" {
		conv, s = s[0], s[1:]
	}
	return flags, width, prec, ell, conv, s
}

func refScan(f string) (words int, valid bool) {
	valid = true
	for {
		_, after, found := strings.Cut(f, "%")
		if !found {
			break
		}
		if strings.HasPrefix(after, "%") {
			f = after[1:]
			continue
		}
		_, width, prec, ell, conv, rest := refConversion(after)
		f = rest
		if conv == 0 {
			valid = false
			break
		}
		words++
		if ell == 2 {
			words++
		}
		if strings.IndexByte("xXdiuc", conv) < 0 || width > 512 || prec > 512 || conv == 'c' && ell == 2 {
			valid = false
		}
	}
	if words > 7 {
		return 7, false
	}
	return words, valid
}

func (m *refMessage) print() string {
	switch m.kind {
	case KindOrphan, KindUnknown:
		return fmt.Sprintf("0x%016x", m.raw)
	case KindBadFormat:
		return "BAD_FORMAT: " + refEscape(m.format)
	}
	var b strings.Builder
	f, n := m.format, 0
	for f != "" {
		before, after, found := strings.Cut(f, "%")
		b.WriteString(before)
		if !found {
			break
		}
		if strings.HasPrefix(after, "%") {
			b.WriteByte('%')
			f = after[1:]
			continue
		}
		flags, width, prec, ell, conv, rest := refConversion(after)
		n++
		v := uint64(m.params[n])
		if ell == 2 {
			n++
			v = v<<32 | uint64(m.params[n])
		}
		b.WriteString(refValue(flags, width, prec, ell, conv, v))
		f = rest
	}
	return refEscape(strings.TrimRight(b.String(), "\r\n"))
}

// refValue is C's conversion, with sprintf's rules written out.
func refValue(flags string, width, prec, ell int, conv byte, v uint64) string {
	has := func(c string) bool { return strings.Contains(flags, c) }
	sign, digits := "", ""
	switch conv {
	case 'c':
		digits = string([]byte{byte(v)})
	case 'd', 'i':
		s := int64(v)
		if ell < 2 {
			s = int64(int32(v))
		}
		digits = strings.TrimPrefix(strconv.FormatInt(s, 10), "-")
		if s < 0 {
			sign = "-"
		} else if has("+") {
			sign = "+"
		} else if has(" ") {
			sign = " "
		}
	case 'u':
		digits = fmt.Sprintf("%d", v)
	case 'x', 'X':
		digits = fmt.Sprintf("%"+string(conv), v)
		if has("#") && v != 0 {
			sign = "0" + string(conv)
		}
	}
	if conv != 'c' {
		if prec == 0 && v == 0 {
			digits = ""
		}
		if prec > len(digits) {
			digits = strings.Repeat("0", prec-len(digits)) + digits
		}
	}
	pad := max(0, width-len(sign)-len(digits))
	switch {
	case has("-"):
		return sign + digits + strings.Repeat(" ", pad)
	case has("0") && prec < 0 && conv != 'c':
		return sign + strings.Repeat("0", pad) + digits
	}
	return strings.Repeat(" ", pad) + sign + digits
}

func refEscape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < 0x20 || c > 0x7e:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
