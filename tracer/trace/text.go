package trace

import "strconv"

// Append appends the message that the format makes of its words: printable ASCII,
// everything else escaped, without line ends at its end. It allocates only when
// dst has no room.
//
// What costs here are branches that values decide, so there are few: a literal is
// copied litStep bytes whatever its length, and numbers are made without asking
// how long they are.
func (f *Format) Append(dst []byte, words *[MaxParams]uint32) []byte {
	dst = grow(dst, f.room)
	start := len(dst)
	b, n := dst[:cap(dst)], start
	w := 0
	for i := range f.pieces {
		p := &f.pieces[i]
		*(*[litStep]byte)(b[n:]) = p.head
		if p.n > litStep {
			copy(b[n+litStep:n+int(p.n)], f.more[p.more:])
		}
		n += int(p.n)
		v := words[w]
		w++
		switch p.kind {
		case kindHex:
			n += putHex(b[n:], v, int(p.prec))
		case kindDec:
			neg := v >> 31 & p.signed
			b[n] = '-'
			n += int(neg)
			n += putDec(b[n:], (v^-neg)+neg)
		case kindAlt:
			if v != 0 {
				b[n], b[n+1] = '0', 'x'
				n += 2
			}
			n += putHex(b[n:], v, 1)
		case kindChar:
			if c := byte(v); !f.late {
				n = len(appendEscaped(b[:n], []byte{c}))
			} else {
				b[n] = c
				n++
			}
		default:
			x := uint64(v)
			if p.words == 2 {
				x = x<<32 | uint64(words[w])
				w++
			}
			n = p.put(b, n, x, f.late)
		}
	}
	*(*[litStep]byte)(b[n:]) = f.end.head
	if f.end.n > litStep {
		copy(b[n+litStep:n+int(f.end.n)], f.more[f.end.more:])
	}
	n += int(f.end.n)
	if f.late {
		t := trimLineEnd(b[start:n])
		return escapeTail(b[:start+len(t)], start)
	}
	return b[:n]
}

// put writes any conversion to b[n:], which has the room, and returns where it
// ends; raw leaves a character as it is, to be escaped later. The meaning is that
// of C: precision is the least number of digits, and none at all for 0 with
// precision 0; a zero flag counts without precision and without -; + and space are
// for signed numbers, # for hex that is not 0.
func (p *piece) put(b []byte, n int, v uint64, raw bool) int {
	var num [24]byte
	var digits []byte
	var prefix string
	switch p.conv {
	case 'c':
		pad := max(int(p.width)-1, 0)
		if p.flags&flagLeft == 0 {
			n = fill(b, n, ' ', pad)
		}
		if raw {
			b[n] = byte(v)
			n++
		} else {
			n = len(appendEscaped(b[:n], []byte{byte(v)}))
		}
		if p.flags&flagLeft != 0 {
			n = fill(b, n, ' ', pad)
		}
		return n
	case 'd', 'i':
		s := int64(v)
		if p.words == 1 {
			s = int64(int32(v))
		}
		switch {
		case s < 0:
			prefix = "-"
			v = -uint64(s)
		case p.flags&flagPlus != 0:
			prefix = "+"
		case p.flags&flagSpace != 0:
			prefix = " "
		}
		digits = strconv.AppendUint(num[:0], v, 10)
	case 'u':
		digits = strconv.AppendUint(num[:0], v, 10)
	case 'x':
		digits = strconv.AppendUint(num[:0], v, 16)
		if p.flags&flagAlt != 0 && v != 0 {
			prefix = "0x"
		}
	case 'X':
		digits = strconv.AppendUint(num[:0], v, 16)
		for i, c := range digits {
			if c >= 'a' {
				digits[i] = c - 'a' + 'A'
			}
		}
		if p.flags&flagAlt != 0 && v != 0 {
			prefix = "0X"
		}
	}
	if v == 0 && p.prec == 0 {
		digits = digits[:0]
	}
	zeros := max(int(p.prec)-len(digits), 0)
	pad := max(int(p.width)-len(prefix)-zeros-len(digits), 0)
	if p.flags&flagZero != 0 && p.flags&flagLeft == 0 && p.prec < 0 {
		zeros, pad = pad, 0
	}
	if p.flags&flagLeft == 0 {
		n = fill(b, n, ' ', pad)
	}
	n += copy(b[n:], prefix)
	n = fill(b, n, '0', zeros)
	n += copy(b[n:], digits)
	if p.flags&flagLeft != 0 {
		n = fill(b, n, ' ', pad)
	}
	return n
}

func fill(b []byte, n int, c byte, count int) int {
	for range count {
		b[n] = c
		n++
	}
	return n
}
