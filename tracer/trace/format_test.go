package trace

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(format string, words ...uint32) string {
	var w [MaxParams]uint32
	copy(w[:], words)
	return string(NewFormat([]byte(format)).Append(nil, &w))
}

func TestD16Conversions(t *testing.T) {
	for _, c := range []struct {
		format string
		words  []uint32
		want   string
	}{
		{"%x %X %d %i %u %c", []uint32{0xab, 0xab, 0xffffffff, 0x80000000, 0xffffffff, 'z'}, "ab AB -1 -2147483648 4294967295 z"},
		{"%c", []uint32{0x12345641}, "A"}, // the low byte
		{"100%%", nil, "100%"},
		{"%%%u%%", []uint32{3}, "%3%"},
		{"%llx", []uint32{1, 2}, "100000002"},
		{"%llx", []uint32{0, 2}, "2"},
		{"%lld", []uint32{0xffffffff, 0xfffffffe}, "-2"},
		{"%lli", []uint32{0x80000000, 0}, "-9223372036854775808"},
		{"%llu", []uint32{0xffffffff, 0xffffffff}, "18446744073709551615"},
		{"%llX", []uint32{0xa, 0xb}, "A0000000B"},
		{"%lx %ld %lu %lc", []uint32{0xffffffff, 0xffffffff, 0xffffffff, 'l'}, "ffffffff -1 4294967295 l"}, // l alone is 32 bits
		{"%08x|%02x|%04x", []uint32{0xabc, 0xabc, 0}, "00000abc|abc|0000"},
		{"%#x|%#X|%#x", []uint32{255, 255, 0}, "0xff|0XFF|0"},
		{"%#010x|%-#8x|", []uint32{255, 255}, "0x000000ff|0xff    |"},
		{"%5d|%-5d|%05d|%5d", []uint32{42, 42, 42, 0xffffffd6}, "   42|42   |00042|  -42"},
		{"%05d|%+d|% d|%+ d", []uint32{0xffffffd6, 42, 42, 42}, "-0042|+42| 42|+42"},
		{"%.3d|%5.3d|%05.3d|%.3d", []uint32{7, 7, 7, 0xfffffff9}, "007|  007|  007|-007"}, // precision stops the zero flag
		{"%.0d|%.d|%.0x|%+.0d|%3.0u|", nil, "|||+|   |"},                                  // 0 with precision 0 has no digits
		{"%-05d|%+u|% x|%#u", []uint32{1, 2, 3, 4}, "1    |2|3|4"},
		{"%3c|%-3c|%03c|%.5c", []uint32{'a', 'b', 'c', 'd'}, "  a|b  |  c|d"},
		{"%020llx", []uint32{1, 2}, "00000000000100000002"},
		{"%-- ++##00x", []uint32{5}, "0x5"},
		{"%512d", []uint32{1}, strings.Repeat(" ", 511) + "1"},
		{"%.512x", []uint32{1}, strings.Repeat("0", 511) + "1"},
		{"%x%x%x%llx%llx", []uint32{1, 2, 3, 4, 5, 6, 7}, "1234000000056" + "00000007"},
	} {
		require.Equal(t, c.want, text(c.format, c.words...), "%q", c.format)
		f := NewFormat([]byte(c.format))
		require.False(t, f.Bad(), c.format)
		require.Equal(t, c.format, f.String())
	}
}

func TestD17BadFormatsAreShownWithoutValues(t *testing.T) {
	for format, words := range map[string]int{
		"%s":                           1,
		"a %u %s b":                    2,
		"%p %n":                        2,
		"%llc":                         2,
		"%lls":                         2,
		"%513d":                        1,
		"%.513x":                       1,
		"%4294967297d":                 1, // not 1 modulo 2^32
		"%99999999999999999999999u":    1,
		"%*d":                          1,
		"%hx":                          1,
		"%lllx":                        2, // two l, and then a third where the conversion should be
		"%5%":                          1,
		"%":                            0,
		"cut %":                        0,
		"cut %-08":                     0,
		"cut %ll":                      0,
		"cut %.":                       0,
		"%u cut %":                     1,
		"%x%x%x%x%x%x%x%x":             7,
		"%llx%llx%llx%llx":             7,
		"%llx%llx%llx%llx%llx%llx%llx": 7,
		"%\xff":                        1,
		"%\n":                          1,
	} {
		f := NewFormat([]byte(format))
		require.True(t, f.Bad(), "%q", format)
		require.Equal(t, words, f.Words(), "%q", format)
		require.Equal(t, "BAD_FORMAT: "+refEscape(format), text(format, 1, 2, 3, 4, 5, 6, 7), "%q", format)
	}
	require.Equal(t, `BAD_FORMAT: 50%\n`, text("50%\n"), "line ends are removed from valid text only")
	require.Equal(t, 7, NewFormat([]byte("%x%x%x%x%x%x%x")).Words())
	require.False(t, NewFormat([]byte("%x%x%x%x%x%x%x")).Bad())
}

func TestD17WordsOfABadFormatAreStillItsOwn(t *testing.T) {
	lines, ms, c := gold(t, blockOf(at, str(1, 0, bad), str(1, 1, 7), str(2, 0, bad), str(2, 0, plain)))
	require.Equal(t, []string{"0x105 BAD_FORMAT: bad %s", "0x105 plain"}, lines)
	require.Equal(t, KindBadFormat, ms[0].Kind)
	require.EqualValues(t, 7, ms[0].Params[0])
	require.Zero(t, c.OrphanParams)
	require.EqualValues(t, 1, c.BadFormats)
	require.EqualValues(t, 1, c.IncompleteMessages)
}

func TestD18Escapes(t *testing.T) {
	require.Equal(t, ` ~\\\n\r\t\x00\x1f\x7f\x80\xffx`, text("%c~\\\n\r\t%c\x1f\x7f\x80\xffx", ' ', 0))
	require.Equal(t, `"'`, text(`"'`), "quotes stay")
	for _, c := range []struct {
		format string
		word   uint32
		want   string
	}{
		{"a\r\n\n", 0, "a"},
		{"\n", 0, ""},
		{"a\nb\n", 0, `a\nb`},
		{"a \n", 0, "a "},
		{"a\n%c", '\n', "a"}, // the value is a line end
		{"a\n%c", 'b', `a\nb`},
		{"a\n%.0d", 0, "a"}, // the value is nothing
		{"a\n%.0d", 1, `a\n1`},
		{"%3c", '\n', "  "},
		{"%-3c", '\n', `\n  `},
		{"%c\n%%", '\n', `\n\n%`},
		{"%c\\", '\\', `\\\\`},
	} {
		require.Equal(t, c.want, text(c.format, c.word), "%q %d", c.format, c.word)
	}
}

func TestAFormatEndsAtNUL(t *testing.T) {
	require.Equal(t, "ab 1", text("ab %u\x00%s", 1))
	require.True(t, NewFormat([]byte("%\x00d")).Bad())
	require.Zero(t, NewFormat([]byte("%\x00d")).Words())
}

func TestD19TextHasNoLimit(t *testing.T) {
	long := strings.Repeat("0123456789\t", 100000)
	require.Equal(t, strings.Repeat(`0123456789\t`, 100000)+"5", text(long+"%u", 5))
	require.Equal(t, badPrefix+strings.Repeat(`0123456789\t`, 100000)+"%s", text(long+"%s"))
	require.Equal(t, strings.Repeat(`0123456789\t`, 99999)+"0123456789\\t\\x01", text(long+"%c", 1))
}

// TestFormatsAreThoseOfThePlainRule compares random formats and values with the
// reference, into buffers of every size, whose bytes before the text stay.
func TestFormatsAreThoseOfThePlainRule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	alphabet := "%%%%llxXdiuc-+ #0123459.\n\\s\x01\"a"
	for n := range 60000 {
		var format string
		if n%2 == 0 {
			format = oddFormat(r)
		} else {
			for range r.IntN(14) {
				format += string(alphabet[r.IntN(len(alphabet))])
			}
		}
		m := &refMessage{format: format, params: map[int]uint32{}}
		var words [MaxParams]uint32
		for i := range words {
			switch words[i] = r.Uint32(); r.IntN(4) {
			case 0:
				words[i] >>= r.IntN(32)
			case 1:
				words[i] = uint32("\n\r\\\x00 "[r.IntN(5)])
			case 2:
				words[i] = -words[i] >> r.IntN(32)
			}
			m.params[i+1] = words[i]
		}
		var valid bool
		if m.words, valid = refScan(format); !valid {
			m.kind = KindBadFormat
		}
		f := NewFormat([]byte(format))
		require.Equal(t, !valid, f.Bad(), "%q", format)
		require.Equal(t, m.words, f.Words(), "%q", format)
		dst := append(make([]byte, 0, r.IntN(200)), "before "...)
		require.Equal(t, "before "+m.print(), string(f.Append(dst, &words)), "%q %#x", format, words)
	}
}
