package trace

import "encoding/binary"

// Append appends the message that the format makes of its words: printable ASCII,
// everything else escaped, without line ends at its end. It allocates only when
// dst has no room.
//
// What costs here are branches that values decide, so there are few: a literal is
// copied litStep bytes whatever its length, and numbers are made without asking
// how long they are.
func (f *Format) Append(dst []byte, words *[MaxParams]uint32) []byte {
	return f.text(dst, words, 0)
}

// text is Append, and for no format the text of an event that stands alone.
func (f *Format) text(dst []byte, words *[MaxParams]uint32, raw Event) []byte {
	if f == nil {
		return appendRaw(dst, uint64(raw))
	}
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
		case kindHex: // putHex, in place
			k := hexLen(v, int(p.prec))
			binary.BigEndian.PutUint64(b[n:], hex8(v)<<uint((64-8*k)&63))
			n += k
		case kindDec:
			neg := v >> 31 & p.signed
			b[n] = '-'
			n += int(neg)
			v = (v ^ -neg) + neg
			k := decLen(v) // putDec, in place
			h, over := v/100000000, max(k-8, 0)
			binary.LittleEndian.PutUint16(b[n:], dec2(h)>>uint((10-k)*8&15))
			binary.LittleEndian.PutUint64(b[n+over:], (dec8(v-h*100000000)+zeros)>>uint((8+over-k)*8&63))
			n += k
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
		case kindWideHex:
			n += putHex64(b[n:], uint64(v)<<32|uint64(words[w]))
			w++
		case kindWideDec:
			x := uint64(v)<<32 | uint64(words[w])
			w++
			neg := x >> 63 & uint64(p.signed)
			b[n] = '-'
			n += int(neg)
			n += putUint(b[n:], (x^-neg)+neg)
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
	var num [40]byte
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
		digits = num[:putUint(num[:], v)]
	case 'u':
		digits = num[:putUint(num[:], v)]
	case 'x':
		digits = num[:putHex64(num[:], v)]
		if p.flags&flagAlt != 0 && v != 0 {
			prefix = "0x"
		}
	case 'X':
		digits = num[:putHex64(num[:], v)]
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
