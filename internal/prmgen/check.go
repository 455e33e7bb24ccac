package main

import "fmt"

func refuse(p pos, kind, format string, args ...any) error {
	return &specError{p, kind, fmt.Sprintf(format, args...)}
}

// check resolves names and refuses everything that cannot be a layout. The
// enums of opcodes, registers and capability types come from their lines.
func (sp *spec) check() error {
	if err := sp.deriveEnums(); err != nil {
		return err
	}
	for _, e := range sp.enums {
		if err := checkEnum(e); err != nil {
			return err
		}
	}
	for _, s := range sp.structs {
		if err := sp.checkStruct(s); err != nil {
			return err
		}
	}
	if err := sp.checkLoops(); err != nil {
		return err
	}
	for _, c := range sp.commands {
		for _, n := range []string{c.in, c.out} {
			if n != "" && sp.structByName[n] == nil {
				return refuse(c.pos, kindUnknown, "command %s: no structure %s", c.name, n)
			}
		}
	}
	for _, l := range append(append([]link(nil), sp.registers...), sp.caps...) {
		if l.layout != "" && sp.structByName[l.layout] == nil {
			return refuse(l.pos, kindUnknown, "%s: no structure %s", l.name, l.layout)
		}
	}
	return sp.checkGoNames()
}

func (sp *spec) deriveEnums() error {
	derive := func(name, prefix string, links []link) error {
		if len(links) == 0 {
			return nil
		}
		if old := sp.enumByName[name]; old != nil {
			return refuse(old.pos, kindDuplicate, "enum %s is derived, not declared", name)
		}
		e := &enum{pos: links[0].pos, name: name, base: 16, prefix: prefix}
		for _, l := range links {
			e.values = append(e.values, enumValue{pos: l.pos, value: l.value, name: l.name, goName: camel(lower(l.name))})
		}
		sp.enums = append(sp.enums, e)
		sp.enumByName[name] = e
		return nil
	}
	ops := make([]link, 0, len(sp.commands))
	for _, c := range sp.commands {
		ops = append(ops, link{pos: c.pos, value: c.value, name: c.name})
	}
	if err := derive("Opcode", "Op", ops); err != nil {
		return err
	}
	if err := derive("RegisterID", "Reg", sp.registers); err != nil {
		return err
	}
	return derive("CapType", "Cap", sp.caps)
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func checkEnum(e *enum) error {
	names, values, goNames := map[string]bool{}, map[uint64]bool{}, map[string]bool{}
	for _, v := range e.values {
		if e.base < 64 && v.value>>e.base != 0 {
			return refuse(v.pos, kindEnum, "%s.%s: %#x does not fit in uint%d", e.name, v.name, v.value, e.base)
		}
		if names[v.name] || goNames[v.goName] {
			return refuse(v.pos, kindDuplicate, "%s.%s is declared twice", e.name, v.name)
		}
		if values[v.value] {
			return refuse(v.pos, kindEnum, "%s: value %#x has two names", e.name, v.value)
		}
		names[v.name], values[v.value], goNames[v.goName] = true, true, true
	}
	if len(e.values) == 0 {
		return refuse(e.pos, kindEnum, "%s has no values", e.name)
	}
	return nil
}

func (sp *spec) checkStruct(s *structure) error {
	names := map[string]bool{}
	var tail *field
	for _, f := range s.fields {
		if names[f.name] {
			return refuse(f.pos, kindDuplicate, "%s.%s is declared twice", s.name, f.name)
		}
		names[f.name] = true
		if f.sub != "" {
			if f.enum != "" {
				return refuse(f.pos, kindEnum, "%s.%s: a structure has no enum", s.name, f.name)
			}
			f.subRef = sp.structByName[f.sub]
			if f.subRef == nil {
				return refuse(f.pos, kindUnknown, "%s.%s: no structure %s", s.name, f.name, f.sub)
			}
			f.width = f.subRef.size * 8
		}
		if f.enum != "" {
			e := sp.enumByName[f.enum]
			if e == nil {
				return refuse(f.pos, kindUnknown, "%s.%s: no enum %s", s.name, f.name, f.enum)
			}
			if f.isArr || f.width > e.base {
				return refuse(f.pos, kindEnum, "%s.%s: %d bits do not fit in %s", s.name, f.name, f.width, f.enum)
			}
		}
		if f.count == 0 {
			if tail != nil || s.union {
				return refuse(f.pos, kindTail, "%s.%s: a structure has one flexible tail, a union none", s.name, f.name)
			}
			if f.off != s.size*8 {
				return refuse(f.pos, kindTail, "%s.%s: the tail starts at %#x, the structure ends at %#x", s.name, f.name, f.off/8, s.size)
			}
			tail = f
			continue
		}
		if f.off+f.bits() > s.size*8 {
			return refuse(f.pos, kindSize, "%s.%s ends at bit %#x, the structure at %#x", s.name, f.name, f.off+f.bits(), s.size*8)
		}
	}
	if s.union {
		return nil
	}
	return checkOverlap(s)
}

// checkOverlap allows two names for the same bits only where the later one is
// marked as alias, and then they must indeed be the same bits or a part.
func checkOverlap(s *structure) error {
	owner := make([]*field, s.size*8)
	for _, f := range s.fields {
		if f.alias {
			continue
		}
		for b := f.off; b < f.off+f.bits(); b++ {
			if owner[b] != nil {
				return refuse(f.pos, kindOverlap, "%s.%s and %s.%s share bit %#x", s.name, f.name, s.name, owner[b].name, b)
			}
			owner[b] = f
		}
	}
	for _, f := range s.fields {
		if !f.alias {
			continue
		}
		shared := false
		for b := f.off; b < f.off+f.bits(); b++ {
			shared = shared || owner[b] != nil
		}
		if !shared {
			return refuse(f.pos, kindAlias, "%s.%s is marked alias but shares no bit with another field", s.name, f.name)
		}
	}
	return nil
}

func (sp *spec) checkLoops() error {
	state := map[*structure]int{}
	var visit func(s *structure) error
	visit = func(s *structure) error {
		switch state[s] {
		case 1:
			return refuse(s.pos, kindSize, "%s contains itself", s.name)
		case 2:
			return nil
		}
		state[s] = 1
		for _, f := range s.fields {
			if f.subRef != nil {
				if err := visit(f.subRef); err != nil {
					return err
				}
			}
		}
		state[s] = 2
		return nil
	}
	for _, s := range sp.structs {
		if err := visit(s); err != nil {
			return err
		}
	}
	return nil
}

// checkGoNames refuses two declarations that would become one Go identifier.
func (sp *spec) checkGoNames() error {
	seen := map[string]pos{}
	add := func(p pos, names ...string) error {
		for _, n := range names {
			if old, dup := seen[n]; dup {
				return refuse(p, kindDuplicate, "Go identifier %s is already that of %s", n, old)
			}
			seen[n] = p
		}
		return nil
	}
	for _, n := range reserved {
		seen[n] = pos{"hand-written code", 0}
	}
	for _, e := range sp.enums {
		if err := add(e.pos, e.name, e.name+"Enum", "Parse"+e.name); err != nil {
			return err
		}
		for _, v := range e.values {
			if err := add(v.pos, e.prefix+v.goName); err != nil {
				return err
			}
		}
	}
	for _, s := range sp.structs {
		g := camel(s.name)
		if err := add(s.pos, g, g+"Size", g+"Struct", "As"+g); err != nil {
			return err
		}
		methods := map[string]bool{}
		for _, f := range s.fields {
			m := camel(f.name)
			if f.count == 0 {
				if err := add(f.pos, g+m+"Offset"); err != nil {
					return err
				}
				continue
			}
			if methods[m] || methods["Set"+m] {
				return refuse(f.pos, kindDuplicate, "%s.%s: method %s exists already", s.name, f.name, m)
			}
			methods[m] = true
			if f.sub == "" {
				methods["Set"+m] = true
			}
		}
	}
	return nil
}

// reserved are the exported identifiers of the hand-written part of prm.
var reserved = []string{"Field", "Struct", "Enum", "EnumValue", "Command", "Commands", "Ref", "Writer", "Write",
	"Value", "Decoded", "Decode", "Dump", "Encode", "Option", "WidthError", "StructByName", "Structs",
	"CommandByOpcode", "CommandByName", "RegisterStruct", "CapStruct", "RegisterByName", "Select", "All",
	"Get", "Put", "PathError", "LengthError"}
