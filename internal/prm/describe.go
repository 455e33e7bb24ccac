package prm

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// Field describes one field of a Struct. Off and Width count bits; bit 0 is
// the most significant bit of byte 0, so that the byte is Off/8 and, within
// the big-endian dword Off/32, the lowest bit is 32 - Width - Off%32.
type Field struct {
	Name  string
	Off   uint32 // bits from the start of the structure
	Width uint32 // bits of one element
	Count int    // 1 scalar, n array, 0 flexible tail
	Array bool   // indexed: an array, even of one element, or a tail
	Alias bool   // another name for bits that an earlier field has
	Enum  *Enum  // names of the values, or nil
	Sub   *Struct
}

// Struct describes one structure or union of the PRM.
type Struct struct {
	Name   string
	Size   int // bytes of the fixed part
	Union  bool
	Fields []Field
}

// Field finds a field by name; nil if there is none.
func (s *Struct) Field(name string) *Field {
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return &s.Fields[i]
		}
	}
	return nil
}

// Ref is a field found by a path, with its place in the outermost structure.
type Ref struct {
	Struct *Struct // the structure that declares the field
	Field  *Field
	Path   string
	Off    uint32 // bits from the start of the outermost structure, index included
	Whole  bool   // the path names an array or tail without an index
}

// Width is the number of bits of the element that the path names.
func (r Ref) Width() uint32 { return r.Field.Width }

// Bits is the position in the PRM's notation: "0x0c 28:24".
func (r Ref) Bits() string { return bitsAt(r.Off, r.Field) }

func bitsAt(off uint32, f *Field) string {
	switch {
	case f.Sub != nil || f.Array:
		return fmt.Sprintf("%#02x", off/8)
	case f.Width > 32:
		return fmt.Sprintf("%#02x %d:0", off/32*4, f.Width-1)
	}
	lsb := 32 - f.Width - off%32
	if f.Width == 1 {
		return fmt.Sprintf("%#02x %d", off/32*4, lsb)
	}
	return fmt.Sprintf("%#02x %d:%d", off/32*4, lsb+f.Width-1, lsb)
}

// PathError says which part of a path a structure does not have.
type PathError struct {
	Struct string
	Path   string
	Reason string
}

func (e *PathError) Error() string {
	return fmt.Sprintf("%s: field path %q: %s", e.Struct, e.Path, e.Reason)
}

// Lookup resolves a dotted path with array indexes, such as
// "eq_context_entry.log_eq_size" or "string_db_param[2].string_db_size".
// The index of a flexible tail has no upper bound here.
func (s *Struct) Lookup(path string) (Ref, error) {
	fail := func(format string, args ...any) (Ref, error) {
		return Ref{}, &PathError{s.Name, path, fmt.Sprintf(format, args...)}
	}
	ref := Ref{Path: path}
	cur := s
	rest := path
	for {
		part, tail, _ := strings.Cut(rest, ".")
		rest = tail
		name, index := part, -1
		if i := strings.IndexByte(part, '['); i >= 0 {
			if !strings.HasSuffix(part, "]") {
				return fail("%q has no closing bracket", part)
			}
			n, err := strconv.ParseUint(part[i+1:len(part)-1], 0, 24)
			if err != nil {
				return fail("%q is not an index", part[i+1:len(part)-1])
			}
			name, index = part[:i], int(n)
		}
		f := cur.Field(name)
		switch {
		case f == nil:
			return fail("%s has no field %q", cur.Name, name)
		case index >= 0 && !f.Array:
			return fail("%s.%s is not an array", cur.Name, name)
		case index >= 0 && f.Count > 0 && index >= f.Count:
			return fail("%s.%s has %d elements", cur.Name, name, f.Count)
		}
		ref.Struct, ref.Field = cur, f
		ref.Off += f.Off
		if index >= 0 {
			ref.Off += uint32(index) * f.Width
		}
		ref.Whole = f.Array && index < 0
		if rest == "" {
			if strings.HasSuffix(path, ".") {
				return fail("it ends with a dot")
			}
			return ref, nil
		}
		if f.Sub == nil {
			return fail("%s.%s has no fields", cur.Name, name)
		}
		if ref.Whole {
			return fail("%s.%s needs an index", cur.Name, name)
		}
		cur = f.Sub
	}
}

// Structs lists all structures by name. The slice is the caller's.
func Structs() []*Struct { return append([]*Struct(nil), allStructs...) }

// StructByName finds a structure by the PRM's name; nil if there is none.
func StructByName(name string) *Struct {
	i := sort.Search(len(allStructs), func(i int) bool { return allStructs[i].Name >= name })
	if i < len(allStructs) && allStructs[i].Name == name {
		return allStructs[i]
	}
	return nil
}

// EnumValue is one value of an enumeration.
type EnumValue struct {
	Value uint64
	Name  string // the PRM's name
	Text  string // an explanation, or empty
}

// Enum lists the values of an enumeration in increasing order.
type Enum struct {
	Name   string
	Values []EnumValue

	once   sync.Once
	byName map[string]uint64
}

// Value finds the entry of v.
func (e *Enum) Value(v uint64) (EnumValue, bool) {
	i := sort.Search(len(e.Values), func(i int) bool { return e.Values[i].Value >= v })
	if i < len(e.Values) && e.Values[i].Value == v {
		return e.Values[i], true
	}
	return EnumValue{}, false
}

// String is the name of v, or v in hex where it has none.
func (e *Enum) String(v uint64) string {
	if ev, ok := e.Value(v); ok {
		return ev.Name
	}
	return "0x" + strconv.FormatUint(v, 16)
}

// Text explains v; empty where there is nothing to add to the name.
func (e *Enum) Text(v uint64) string {
	ev, _ := e.Value(v)
	return ev.Text
}

// ByName finds a value by the PRM's name, in any case.
func (e *Enum) ByName(name string) (uint64, bool) {
	e.once.Do(func() {
		e.byName = make(map[string]uint64, len(e.Values))
		for _, ev := range e.Values {
			e.byName[strings.ToUpper(ev.Name)] = ev.Value
		}
	})
	v, ok := e.byName[strings.ToUpper(name)]
	return v, ok
}
