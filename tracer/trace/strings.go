package trace

import "bytes"

// Section is one piece of the string database: NUL-terminated printf formats at
// the addresses Base, Base+1, … that headers point to.
type Section struct {
	Base uint64
	Data []byte
}

// Strings is a string database. It does not change and is safe for concurrent
// use; the sections' bytes must not change either.
type Strings struct{ sections []Section }

// NewStrings takes the sections in the order of the register: where two overlap,
// the first one wins. The data are not copied.
func NewStrings(sections []Section) *Strings {
	return &Strings{sections: append([]Section(nil), sections...)}
}

// Sections returns the sections; they are shared and must not be changed.
func (s *Strings) Sections() []Section { return s.sections }

// At returns the string that begins at a pointer, without its NUL: up to the NUL
// or to the end of the section, so that a pointer into a string gives its tail.
// A section holds base ≤ pointer < base + size.
func (s *Strings) At(pointer uint32) ([]byte, bool) {
	for i := range s.sections {
		sec := &s.sections[i]
		if p := uint64(pointer); p >= sec.Base && p-sec.Base < uint64(len(sec.Data)) {
			d := sec.Data[p-sec.Base:]
			if n := bytes.IndexByte(d, 0); n >= 0 {
				d = d[:n]
			}
			return d, true
		}
	}
	return nil, false
}

// Format compiles the string at a pointer; nil if it is in no section. Decoders
// keep what they have compiled, so this is for looking at a database.
func (s *Strings) Format(pointer uint32) *Format {
	d, ok := s.At(pointer)
	if !ok {
		return nil
	}
	return NewFormat(d)
}
