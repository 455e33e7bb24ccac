package main

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// What firmware, files, other processes and served models say is printed as text, and
// never reaches a terminal as something that it would act on: cursor movements,
// titles, colours, text that runs backwards. docs/security.md lists where such words
// come from.

// plain is text with everything but printable characters, line feeds and tabs as
// \xNN, byte by byte. Clean text, the usual case, is returned as it is.
func plain(b []byte) []byte {
	var out []byte
	clean := 0 // b[:clean] is in out, or there is no out
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			i += n
			continue
		}
		out = append(out, b[clean:i]...)
		for _, c := range b[i : i+n] {
			out = fmt.Appendf(out, `\x%02x`, c)
		}
		i += n
		clean = i
	}
	if out == nil {
		return b
	}
	return append(out, b[clean:]...)
}

// plainJSON escapes what package json leaves in strings and some terminals act on:
// DEL, the control characters of ISO 6429 from 0x80 on, and what turns the direction
// of text. What it means stays the same.
func plainJSON(b []byte) []byte {
	var out []byte
	clean := 0
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == 0x7f || r >= 0x80 && r < 0xa0 || r < 0x10000 && unicode.Is(unicode.Cf, r) {
			out = fmt.Appendf(append(out, b[clean:i]...), `\u%04x`, r)
			clean = i + n
		}
		i += n
	}
	if out == nil {
		return b
	}
	return append(out, b[clean:]...)
}
