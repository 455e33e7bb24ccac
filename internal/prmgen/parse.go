package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var (
	reName  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
	reBits  = regexp.MustCompile(`^(\d+)(?::(\d+))?$`)
	reArray = regexp.MustCompile(`^(\d+|\*)x(\d+)$`)
	reSub   = regexp.MustCompile(`^(?:(\d+|\*)x)?\{([A-Za-z0-9_]+)\}$`)
)

// parse adds one table to the specification. The notation is described in
// internal/prm/doc.go.
func (sp *spec) parse(file, text string) error {
	p := &parser{spec: sp, table: strings.TrimSuffix(filepath.Base(file), ".prm")}
	for i, line := range strings.Split(text, "\n") {
		p.pos = pos{filepath.Base(file), i + 1}
		words, err := p.split(line)
		if err != nil {
			return err
		}
		if len(words) == 0 {
			continue
		}
		if err := p.line(words); err != nil {
			return err
		}
	}
	return nil
}

type parser struct {
	*spec
	table string
	pos   pos
	st    *structure
	en    *enum
}

func (p *parser) errorf(kind, format string, args ...any) error {
	return &specError{p.pos, kind, fmt.Sprintf(format, args...)}
}

// split cuts a line into words; a quoted text is one word that keeps its
// opening quote, and # starts a comment.
func (p *parser) split(line string) ([]string, error) {
	var words []string
	for {
		line = strings.TrimLeft(line, " \t\r")
		if line == "" || line[0] == '#' {
			return words, nil
		}
		if line[0] == '"' {
			end := strings.IndexByte(line[1:], '"')
			if end < 0 {
				return nil, p.errorf(kindSyntax, "text without closing quote")
			}
			words = append(words, line[:end+1])
			line = line[end+2:]
			continue
		}
		end := strings.IndexAny(line, " \t\r")
		if end < 0 {
			end = len(line)
		}
		words = append(words, line[:end])
		line = line[end:]
	}
}

func (p *parser) number(word string) (uint64, error) {
	v, err := strconv.ParseUint(word, 0, 64)
	if err != nil {
		return 0, p.errorf(kindSyntax, "%q is not a number", word)
	}
	return v, nil
}

func (p *parser) line(w []string) error {
	switch w[0] {
	case "struct", "union":
		return p.structLine(w)
	case "enum":
		return p.enumLine(w)
	case "command":
		return p.commandLine(w)
	case "register", "capability":
		return p.linkLine(w)
	}
	switch {
	case p.st != nil:
		return p.fieldLine(w)
	case p.en != nil:
		return p.valueLine(w)
	}
	return p.errorf(kindSyntax, "%q stands outside of a struct, union or enum", w[0])
}

func (p *parser) structLine(w []string) error {
	p.st, p.en = nil, nil
	if len(w) != 3 || !reName.MatchString(w[1]) {
		return p.errorf(kindSyntax, "want: %s name size", w[0])
	}
	size, err := p.number(w[2])
	if err != nil {
		return err
	}
	if size == 0 || size%4 != 0 || size > 1<<20 {
		return p.errorf(kindSize, "%s has %#x bytes; a structure is a whole number of dwords", w[1], size)
	}
	if _, dup := p.structByName[w[1]]; dup {
		return p.errorf(kindDuplicate, "structure %s is declared twice", w[1])
	}
	p.st = &structure{pos: p.pos, name: w[1], size: int(size), union: w[0] == "union", table: p.table}
	p.structs = append(p.structs, p.st)
	p.structByName[w[1]] = p.st
	return nil
}

func (p *parser) fieldLine(w []string) error {
	if len(w) < 3 {
		return p.errorf(kindSyntax, "want: offset bits name [Enum] [alias]")
	}
	byteOff, err := p.number(w[0])
	if err != nil {
		return err
	}
	if byteOff > 1<<20 {
		return p.errorf(kindSize, "offset %s is beyond every structure", w[0])
	}
	f := &field{pos: p.pos, name: w[2], off: int(byteOff) * 8}
	if !reName.MatchString(f.name) {
		return p.errorf(kindSyntax, "%q is not a field name", f.name)
	}
	for _, x := range w[3:] {
		switch {
		case x == "alias" && !f.alias:
			f.alias = true
		case x != "alias" && f.enum == "" && reName.MatchString(x):
			f.enum = x
		default:
			return p.errorf(kindSyntax, "%q is one word too many", x)
		}
	}
	if err := p.shape(f, w[1], int(byteOff)); err != nil {
		return err
	}
	p.st.fields = append(p.st.fields, f)
	return nil
}

// shape reads the second column: 31:28, 18, 63:0, 6x32, *x64, {eqc}, 8x{x}.
func (p *parser) shape(f *field, word string, byteOff int) error {
	switch {
	case reBits.MatchString(word):
		m := reBits.FindStringSubmatch(word)
		msb, _ := strconv.Atoi(m[1])
		lsb := msb
		if m[2] != "" {
			lsb, _ = strconv.Atoi(m[2])
		}
		if lsb > msb {
			return p.errorf(kindSyntax, "bits %s run upwards; write the high bit first", word)
		}
		if byteOff%4 != 0 {
			return p.errorf(kindAlign, "%s: bit positions count in the dword at a multiple of 4, not at %#x", f.name, byteOff)
		}
		f.width, f.count = msb-lsb+1, 1
		switch {
		case msb <= 31:
			f.off += 31 - msb
		case msb <= 63 && lsb == 0:
			f.off += 63 - msb
		default:
			return p.errorf(kindCross, "%s %s: only a field that ends at bit 0 of a 64-bit word may span two dwords", f.name, word)
		}
	case reArray.MatchString(word):
		m := reArray.FindStringSubmatch(word)
		f.isArr = true
		f.width, _ = strconv.Atoi(m[2])
		if f.width != 8 && f.width != 16 && f.width != 32 && f.width != 64 {
			return p.errorf(kindSyntax, "%s: elements of %d bits; arrays hold 8, 16, 32 or 64", f.name, f.width)
		}
		if m[1] != "*" {
			if f.count, _ = strconv.Atoi(m[1]); f.count == 0 {
				return p.errorf(kindSyntax, "%s: an array of nothing; a flexible tail is written *x%d", f.name, f.width)
			}
		}
		if align := min(f.width/8, 4); byteOff%align != 0 {
			return p.errorf(kindAlign, "%s: elements of %d bits at %#x", f.name, f.width, byteOff)
		}
	case reSub.MatchString(word):
		m := reSub.FindStringSubmatch(word)
		f.sub, f.count, f.isArr = m[2], 1, m[1] != ""
		if m[1] == "*" {
			f.count = 0
		} else if m[1] != "" {
			if f.count, _ = strconv.Atoi(m[1]); f.count == 0 {
				return p.errorf(kindSyntax, "%s: an array of nothing", f.name)
			}
		}
		if byteOff%4 != 0 {
			return p.errorf(kindAlign, "%s: structure at %#x, not at a dword", f.name, byteOff)
		}
	default:
		return p.errorf(kindSyntax, "%q is neither bits, an array nor a {structure}", word)
	}
	return nil
}

func (p *parser) enumLine(w []string) error {
	p.st, p.en = nil, nil
	if len(w) != 4 || !reName.MatchString(w[1]) || !reName.MatchString(w[3]) {
		return p.errorf(kindSyntax, "want: enum Name uint8|uint16|uint32|uint64 ConstantPrefix")
	}
	base, ok := map[string]int{"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}[w[2]]
	if !ok {
		return p.errorf(kindUnknown, "enum %s of %q", w[1], w[2])
	}
	return p.newEnum(w[1], base, w[3])
}

func (p *parser) newEnum(name string, base int, prefix string) error {
	if _, dup := p.enumByName[name]; dup {
		return p.errorf(kindDuplicate, "enum %s is declared twice", name)
	}
	p.en = &enum{pos: p.pos, name: name, base: base, prefix: prefix}
	p.enums = append(p.enums, p.en)
	p.enumByName[name] = p.en
	return nil
}

func (p *parser) valueLine(w []string) error {
	v, err := p.number(w[0])
	if err != nil {
		return err
	}
	if len(w) < 2 || w[1][0] == '"' {
		return p.errorf(kindSyntax, `want: value NAME [GoName] ["text"]`)
	}
	ev := enumValue{pos: p.pos, value: v, name: w[1], goName: camel(strings.ToLower(w[1]))}
	for _, x := range w[2:] {
		if x[0] == '"' {
			ev.text = x[1:]
		} else {
			ev.goName = x
		}
	}
	p.en.values = append(p.en.values, ev)
	return nil
}

func (p *parser) commandLine(w []string) error {
	p.st, p.en = nil, nil
	if len(w) < 5 {
		return p.errorf(kindSyntax, "want: command opcode NAME in|- out|- [min_in=n] [min_out=n]")
	}
	v, err := p.number(w[1])
	if err != nil {
		return err
	}
	c := &command{pos: p.pos, value: v, name: w[2], minIn: -1, minOut: -1}
	if w[3] != "-" {
		c.in = w[3]
	}
	if w[4] != "-" {
		c.out = w[4]
	}
	for _, x := range w[5:] {
		key, val, _ := strings.Cut(x, "=")
		n, err := p.number(val)
		if err != nil {
			return err
		}
		switch key {
		case "min_in":
			c.minIn = int(n)
		case "min_out":
			c.minOut = int(n)
		default:
			return p.errorf(kindSyntax, "%q", x)
		}
	}
	p.commands = append(p.commands, c)
	return nil
}

func (p *parser) linkLine(w []string) error {
	p.st, p.en = nil, nil
	if len(w) != 4 {
		return p.errorf(kindSyntax, "want: %s value NAME structure|-", w[0])
	}
	v, err := p.number(w[1])
	if err != nil {
		return err
	}
	l := link{pos: p.pos, value: v, name: w[2]}
	if w[3] != "-" {
		l.layout = w[3]
	}
	if w[0] == "register" {
		p.registers = append(p.registers, l)
	} else {
		p.caps = append(p.caps, l)
	}
	return nil
}
