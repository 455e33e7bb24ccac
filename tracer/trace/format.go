package trace

import (
	"bytes"
)

// maxNumber is the largest width or precision of a conversion.
const maxNumber = 512

// badPrefix stands before a format that is shown instead of its message.
const badPrefix = "BAD_FORMAT: "

// Format is a printf format of the firmware, compiled. Valid conversions are
// %[-+ #0]*[width][.precision][l|ll] and one of x X d i u c, and %%; ll takes two
// words, the high one first; l alone is 32 bits as without it; c is the low byte.
// Everything else, %llc, a width or precision above 512 and more than seven words
// make the format bad: it is shown escaped and without values, but its words are
// still those of the message. A Format does not change and is safe for concurrent
// use.
type Format struct {
	pieces []piece
	end    literal // after the last piece
	more   []byte
	room   int // bytes that Append may write to, at most
	raw    []byte
	words  uint8
	bad    bool
	quotes bool // the text may hold bytes that JSON escapes
	late   bool // literals are not escaped: the whole text is trimmed and escaped when it is there
}

// litStep is how many bytes of a literal are copied whatever its length.
const litStep = 32

// literal is a text between two values.
type literal struct {
	head [litStep]byte
	n    uint32
	more uint32 // where what is after litStep bytes begins in Format.more
}

// piece is a literal and the conversion after it.
type piece struct {
	literal
	signed uint32 // 1 for %d
	kind   kind
	words  uint8
	width  uint16
	prec   int16 // -1: none; for kindHex the least number of digits
	flags  flags
	conv   byte
}

// kind chooses the way a value is written: the common forms have ways of their own.
type kind uint8

const (
	kindHex     kind = iota // %x, %0Nx
	kindDec                 // %d, %i, %u
	kindAlt                 // %#x
	kindChar                // %c
	kindWideHex             // %llx
	kindWideDec             // %lld, %lli, %llu
	kindOther               // anything else
)

type flags uint8

const (
	flagLeft  flags = 1 << iota // -
	flagPlus                    // +
	flagSpace                   // space
	flagAlt                     // #
	flagZero                    // 0
)

var flagOf = [256]flags{'-': flagLeft, '+': flagPlus, ' ': flagSpace, '#': flagAlt, '0': flagZero}

// parseConversion reads what follows a %. It returns the conversion, whether it is
// a valid one, and how many bytes it has. No conversion byte (the string ended)
// takes no word.
func parseConversion(s []byte) (p piece, ok bool, n int) {
	at := func() byte {
		if n < len(s) {
			return s[n]
		}
		return 0
	}
	for flagOf[at()] != 0 {
		p.flags |= flagOf[at()]
		n++
	}
	number := func() int {
		v := 0
		for c := at(); c >= '0' && c <= '9'; c = at() {
			v = min(v*10+int(c-'0'), maxNumber+1)
			n++
		}
		return v
	}
	width, prec := number(), -1
	if at() == '.' {
		n++
		prec = number()
	}
	ell := 0
	for at() == 'l' && ell < 2 {
		ell++
		n++
	}
	if n >= len(s) {
		return p, false, n
	}
	p.width, p.prec, p.conv, p.words = uint16(width), int16(prec), at(), 1
	n++
	if ell == 2 {
		p.words = 2
	}
	ok = bytes.IndexByte([]byte("xXdiuc"), p.conv) >= 0 && width <= maxNumber && prec <= maxNumber && (p.conv != 'c' || ell < 2)
	return p, ok, n
}

// NewFormat compiles a format string, which ends at its first NUL if it has one. It
// never fails: see Bad. s must not change afterwards.
func NewFormat(s []byte) *Format {
	if n := bytes.IndexByte(s, 0); n >= 0 {
		s = s[:n]
	}
	f := &Format{raw: s}
	var lits [][]byte
	var lit []byte
	words := 0
	for i := 0; i < len(s); {
		if s[i] != '%' {
			n := bytes.IndexByte(s[i:], '%')
			if n < 0 {
				n = len(s) - i
			}
			lit = append(lit, s[i:i+n]...)
			i += n
			continue
		}
		if i+1 < len(s) && s[i+1] == '%' {
			lit = append(lit, '%')
			i += 2
			continue
		}
		p, ok, n := parseConversion(s[i+1:])
		words += int(p.words)
		i += 1 + n
		if !ok {
			f.bad = true
			continue
		}
		p.kind = p.choose()
		f.pieces = append(f.pieces, p)
		lits = append(lits, lit)
		lit = nil
	}
	if words > MaxParams {
		f.bad = true
	}
	f.words = uint8(min(words, MaxParams))
	if f.bad {
		f.pieces, lits = nil, nil
		lit = append([]byte(badPrefix), appendEscaped(nil, s)...)
	} else {
		lit = trimLineEnd(lit)
		f.late = len(lit) == 0 && endsOpen(f.pieces)
	}
	for i := range f.pieces {
		p := &f.pieces[i]
		p.literal = f.literal(lits[i])
		f.room += int(p.width) + max(int(p.prec), 0) + 32
		f.quotes = f.quotes || p.conv == 'c'
	}
	f.end = f.literal(lit)
	f.room += 2 * litStep // the last literal and the last number write past their end
	return f
}

// literal prepares a literal, and counts its room.
func (f *Format) literal(s []byte) (l literal) {
	if !f.bad && !f.late {
		s = appendEscaped(nil, s)
	}
	l.n = uint32(len(s))
	if copy(l.head[:], s) < len(s) {
		l.more = uint32(len(f.more))
		f.more = append(f.more, s[litStep:]...)
	}
	f.room += len(s)
	f.quotes = f.quotes || f.late || bytes.ContainsAny(s, `"\`)
	return l
}

// endsOpen says that the last conversion may give a line end, or nothing at all,
// so that what is to be trimmed is known only with the values.
func endsOpen(p []piece) bool {
	return len(p) > 0 && (p[len(p)-1].conv == 'c' || p[len(p)-1].prec == 0)
}

// choose picks the way of a valid conversion.
func (p *piece) choose() kind {
	plain := p.flags == 0 && p.width == 0 && p.prec < 0
	wide := p.words == 2
	switch p.conv {
	case 'c':
		if p.width <= 1 {
			return kindChar
		}
	case 'd', 'i', 'u':
		if p.conv != 'u' {
			p.signed = 1
		}
		if plain && wide {
			return kindWideDec
		} else if plain {
			return kindDec
		}
	case 'x':
		if plain && wide {
			return kindWideHex
		}
		if wide || p.prec >= 0 {
			break
		}
		switch {
		case plain, p.flags == flagZero && p.width <= 8:
			p.prec = int16(max(p.width, 1)) // the least number of digits
			return kindHex
		case p.flags == flagAlt && p.width == 0:
			return kindAlt
		}
	}
	return kindOther
}

// Bad says that the format is shown instead of its messages.
func (f *Format) Bad() bool { return f.bad }

// Words is the number of 32-bit words that follow the header: 0 to 7.
func (f *Format) Words() int { return int(f.words) }

// Escaped is the format as texts show strings: printable ASCII only, without line ends
// at its end.
func (f *Format) Escaped() string { return string(appendEscaped(nil, trimLineEnd(f.raw))) }

// String is the format as firmware has it; it may hold any byte but NUL.
func (f *Format) String() string { return string(f.raw) }

func trimLineEnd(s []byte) []byte {
	for len(s) > 0 && (s[len(s)-1] == '\n' || s[len(s)-1] == '\r') {
		s = s[:len(s)-1]
	}
	return s
}
