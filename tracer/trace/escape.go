package trace

const (
	lowerDigits = "0123456789abcdef"
	upperDigits = "0123456789ABCDEF"
)

// appendEscaped appends s so that only bytes 0x20 to 0x7e come out: backslash,
// \n, \r and \t by name, the rest as \x and two digits.
func appendEscaped(dst, s []byte) []byte {
	for _, c := range s {
		if c >= 0x20 && c <= 0x7e && c != '\\' {
			dst = append(dst, c)
			continue
		}
		switch c {
		case '\\':
			dst = append(dst, '\\', '\\')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'x', lowerDigits[c>>4], lowerDigits[c&15])
		}
	}
	return dst
}

// escapedLen is the number of bytes that appendEscaped makes of c.
func escapedLen(c byte) int {
	switch {
	case c >= 0x20 && c <= 0x7e && c != '\\':
		return 1
	case c == '\\' || c == '\n' || c == '\r' || c == '\t':
		return 2
	}
	return 4
}

// escapeTail escapes what dst holds from n on, in place, growing dst if it must.
func escapeTail(dst []byte, n int) []byte {
	extra := 0
	for _, c := range dst[n:] {
		extra += escapedLen(c) - 1
	}
	if extra == 0 {
		return dst
	}
	from := len(dst)
	dst = grow(dst, extra)[:from+extra]
	// From the end, so that nothing is overwritten before it is read.
	to := len(dst)
	var e [4]byte
	for from > n {
		from--
		s := appendEscaped(e[:0], dst[from:from+1])
		to -= len(s)
		copy(dst[to:], s)
	}
	return dst
}
