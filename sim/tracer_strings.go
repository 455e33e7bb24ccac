package sim

import (
	"fmt"
	"strings"
)

// traceFormat is one string of the database: as firmware has it and, next to it,
// what it means, so that the model's text owes nothing to a decoder.
type traceFormat struct {
	section int
	c       string // printf format, without its NUL
	skip    int    // bytes of c in front of what the message points to
	// kinds has a letter for each conversion: u and x for a word, d for a signed
	// one, c for a character, U and D for 64 bits of two words, and ? for a word
	// that no decoder can place, ! for two.
	kinds string
	text  string // the message in Go's notation; with ? or ! there is none
}

// words is the number of parameter words.
func (f *traceFormat) words() int {
	n := 0
	for _, k := range f.kinds {
		n++
		if k == 'U' || k == 'D' || k == '!' {
			n++
		}
	}
	return n
}

// traceSizes are the numbers of words of traceFormats.
var traceSizes = func() []int {
	l := make([]int, len(traceFormats))
	for i := range traceFormats {
		l[i] = traceFormats[i].words()
	}
	return l
}()

// Sections of the string database. The first string of each lies at its base, the last one
// ends with it; one has nothing in it.
const (
	sectCore = iota
	sectCommands
	sectEmpty
	sectQueues
	sectLoad
	traceSections
)

// Numbers of the strings that firmware's own messages use.
const (
	msgTracerOn = iota
	msgUp
	msgReset
	msgStopped
	msgHealth
	msgPages
	msgLink
	msgCommand
	msgQueue
	msgLoad // the first of the load's
)

var traceFormats = append([]traceFormat{
	msgTracerOn: {sectCore, "function %u: the tracer is on, %u blocks", 0, "uu", "function %d: the tracer is on, %d blocks"},
	msgUp:       {sectCore, "function %u: up, %u pages held", 0, "uu", "function %d: up, %d pages held"},
	msgReset:    {sectCore, "function %u: reset", 0, "u", "function %d: reset"},
	msgStopped:  {sectCore, "function %u: stopped", 0, "u", "function %d: stopped"},
	msgHealth:   {sectCore, "health syndrome 0x%02x, extended 0x%04x, severity %u", 0, "xxu", "health syndrome 0x%02x, extended 0x%04x, severity %d"},
	msgPages:    {sectCore, "function %u: %d pages wanted", 0, "ud", "function %d: %d pages wanted"},
	msgLink:     {sectCore, "function %u: link state %u", 0, "uu", "function %d: link state %d"},
	msgCommand:  {sectCommands, "function %u: command 0x%04x op_mod 0x%x status 0x%02x syndrome 0x%08x", 0, "uxxxx", "function %d: command 0x%04x op_mod 0x%x status 0x%02x syndrome 0x%08x"},
	msgQueue:    {sectQueues, "function %u: QP 0x%06x goes from state %u to %u", 0, "uxuu", "function %d: QP 0x%06x goes from state %d to %d"},
}, append(plainLoad, edgeLoad...)...)

// plainLoad are formats on which every decoder agrees, the kernel's included.
// The first word is the number of the message, here and in edgeLoad.
var plainLoad = []traceFormat{
	{sectLoad, "load %u", 0, "u", "load %d"},
	{sectLoad, "load %u: queue 0x%06x, %d bytes", 0, "uxd", "load %d: queue 0x%06x, %d bytes"},
	{sectLoad, "load %u: state 0x%08x", 0, "ux", "load %d: state 0x%08x"},
	{sectLoad, "load %u: words %x %x %x %x %x %x", 0, "uxxxxxx", "load %d: words %x %x %x %x %x %x"},
	{sectLoad, "load %u: error %i, hexadecimal %X", 0, "udX", "load %d: error %d, hexadecimal %X"},
	{sectQueues, "load %u is the last string of its section", 0, "u", "load %d is the last string of its section"},
	{sectLoad, "load %u is the last string of its section, too", 0, "u", "load %d is the last string of its section, too"},
}

// edgeLoad are formats on which decoders differ.
var edgeLoad = []traceFormat{
	{sectCore, "load %u is at the base of the first section", 0, "u", "load %d is at the base of the first section"},
	{sectCommands, "load %u is at a base: %x", 0, "ux", "load %d is at a base: %x"},
	{sectQueues, "load %u is at a base: %d", 0, "ud", "load %d is at a base: %d"},
	{sectLoad, "load %u is at the base of its own section", 0, "u", "load %d is at the base of its own section"},
	{sectCore, "load %u is the last string of the first section", 0, "u", "load %d is the last string of the first section"},
	{sectLoad, "load %u: 64 bits 0x%llx", 0, "uU", "load %d: 64 bits 0x%x"},
	{sectLoad, "load %u: 64 bits %lld and %llu", 0, "uDU", "load %d: 64 bits %d and %d"},
	{sectLoad, "load %u: flags [%-8x] [%+d] [%#x]", 0, "uxdx", "load %d: flags [%-8x] [%+d] [%#x]"},
	{sectLoad, "load %u: width [%12u] [%-12d] [%.3x]", 0, "uudx", "load %d: width [%12d] [%-12d] [%.3x]"},
	{sectLoad, "load %u: long %lx", 0, "ux", "load %d: long %x"},
	{sectLoad, "load %u: character [%c]", 0, "uc", "load %d: character [%s]"},
	{sectLoad, "load %u: 100%%", 0, "u", "load %d: 100%%"},
	{sectLoad, "load %u:\ttab, \"quotes\", back\\slash and two line ends\r\n\n", 0, "u", "load %d:\ttab, \"quotes\", back\\slash and two line ends\r\n\n"},
	{sectLoad, "load %u: beyond ASCII \xe9\x80\x01\x7f", 0, "u", "load %d: beyond ASCII \xe9\x80\x01\x7f"},
	{sectLoad, "load %u: name %s", 0, "u?", ""},
	{sectLoad, "load %u: written %n", 0, "u?", ""},
	{sectLoad, "load %u: wide %llc", 0, "u!", ""},
	{sectLoad, "load %u: wide as a house %600u", 0, "u?", ""},
	{sectLoad, "not this part: load %u is a tail", 15, "u", "load %d is a tail"},
	{sectLoad, "load %u: " + strings.Repeat("a long string ", 60) + "%x", 0, "ux", "load %d: " + strings.Repeat("a long string ", 60) + "%x"},
}

// render is the text of a message.
func (f *traceFormat) render(words []uint32) string {
	if strings.ContainsAny(f.kinds, "?!") {
		return "BAD_FORMAT: " + escapeTrace(f.c[f.skip:])
	}
	args := make([]any, 0, len(words))
	for _, k := range f.kinds {
		v := words[0]
		words = words[1:]
		switch k {
		case 'd':
			args = append(args, int32(v))
		case 'c':
			args = append(args, string([]byte{byte(v)}))
		case 'U', 'D':
			w := uint64(v)<<32 | uint64(words[0])
			words = words[1:]
			if k == 'D' {
				args = append(args, int64(w))
			} else {
				args = append(args, w)
			}
		default:
			args = append(args, v)
		}
	}
	return escapeTrace(strings.TrimRight(fmt.Sprintf(f.text, args...), "\r\n"))
}

// escapeTrace shows bytes as text: printable ASCII as it is, the rest as C does.
func escapeTrace(s string) string {
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

type traceSection struct {
	base uint32
	data []byte
}

// traceStrings is the string database: sections, and where each format lies.
type traceStrings struct {
	version  int
	sections []traceSection
	pointers []uint32 // by number of the format
}

// buildStrings lays the strings out as a linker would: another firmware version,
// or another version of the database, has them elsewhere.
func buildStrings(fw Version, version int) *traceStrings {
	db := &traceStrings{version: version, sections: make([]traceSection, traceSections), pointers: make([]uint32, len(traceFormats))}
	shift := (uint32(fw.Major)*0x1f + uint32(fw.Minor)*7 + uint32(fw.Sub) + uint32(version)*0x33) % 0x400 * stringGrain
	for i := range db.sections {
		s := &db.sections[i]
		s.base = 0x0040_0000 + uint32(i)*0x0010_0000 + shift
		if i == sectEmpty {
			continue
		}
		place := func(n int) {
			db.pointers[n] = s.base + uint32(len(s.data)+traceFormats[n].skip)
			s.data = append(append(s.data, traceFormats[n].c...), 0)
		}
		first, last := -1, -1
		var others []int
		for n := range traceFormats {
			switch f := &traceFormats[n]; {
			case f.section != i:
			case strings.Contains(f.c, " is at "):
				first = n
			case strings.Contains(f.c, " is the last string "):
				last = n
			default:
				others = append(others, n)
			}
		}
		place(first)
		s.data = append(s.data, fmt.Sprintf("strings of firmware %v, version %d\x00", fw, version)...)
		for _, n := range others {
			place(n)
		}
		if last >= 0 {
			end := len(s.data) + len(traceFormats[last].c) + 1
			s.data = append(s.data, make([]byte, -end&(stringGrain-1))...)
			place(last)
		}
		s.data = append(s.data, make([]byte, -len(s.data)&(stringGrain-1))...)
	}
	return db
}
