package prm

import "fmt"

// WidthError is the refusal of a value that its field cannot hold.
type WidthError struct {
	Struct string
	Field  string
	Path   string // the path that was given, in the outermost structure
	Value  uint64
	Width  uint32 // bits
}

func (e *WidthError) Error() string {
	unit := "bits"
	if e.Width == 1 {
		unit = "bit"
	}
	return fmt.Sprintf("%s.%s: %d does not fit in %d %s (max %d)", e.Struct, e.Field, e.Value, e.Width, unit, maxOf(e.Width))
}

// LengthError says that a buffer ends before the field does.
type LengthError struct {
	Struct string
	Path   string
	Need   int // bytes
	Have   int
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("%s.%s ends at byte %#x, the buffer at %#x: give the whole structure", e.Struct, e.Path, e.Need, e.Have)
}

func maxOf(width uint32) uint64 {
	if width >= 64 {
		return ^uint64(0)
	}
	return 1<<width - 1
}

// getBits reads width bits at off, most significant first. The caller has
// checked the length; no field is wider than 64 bits.
func getBits(buf []byte, off, width uint32) uint64 {
	var v uint64
	for width > 0 {
		n := min(8-off%8, width)
		part := buf[off/8] >> (8 - off%8 - n) & byte(1<<n-1)
		v = v<<n | uint64(part)
		off, width = off+n, width-n
	}
	return v
}

func putBits(buf []byte, off, width uint32, v uint64) {
	for width > 0 {
		n := min(8-off%8, width)
		shift := 8 - off%8 - n
		mask := byte(1<<n-1) << shift
		part := byte(v>>(width-n)) << shift
		buf[off/8] = buf[off/8]&^mask | part&mask
		off, width = off+n, width-n
	}
}

// scalar resolves a path to one number and checks that buf holds it.
func (s *Struct) scalar(buf []byte, path string) (Ref, error) {
	r, err := s.Lookup(path)
	if err != nil {
		return Ref{}, err
	}
	switch {
	case r.Field.Sub != nil:
		return Ref{}, &PathError{s.Name, path, fmt.Sprintf("it names the structure %s, not a number", r.Field.Sub.Name)}
	case r.Whole:
		return Ref{}, &PathError{s.Name, path, "it names an array; give an index"}
	}
	if end := int(r.Off+r.Field.Width+7) / 8; end > len(buf) {
		return Ref{}, &LengthError{s.Name, path, end, len(buf)}
	}
	return r, nil
}

// Get reads the number at path from buf, which begins with the structure. The
// error is a PathError or a LengthError.
func (s *Struct) Get(buf []byte, path string) (uint64, error) {
	r, err := s.scalar(buf, path)
	if err != nil {
		return 0, err
	}
	return getBits(buf, r.Off, r.Field.Width), nil
}

// Put writes v at path into buf and touches no other bit. A value that does
// not fit is refused with a WidthError, and then nothing is written.
func (s *Struct) Put(buf []byte, path string, v uint64) error {
	r, err := s.scalar(buf, path)
	if err != nil {
		return err
	}
	if v > maxOf(r.Field.Width) {
		return &WidthError{r.Struct.Name, r.Field.Name, path, v, r.Field.Width}
	}
	putBits(buf, r.Off, r.Field.Width, v)
	return nil
}

// Bytes returns the bytes of the array, tail or structure at path, in place.
// A tail runs to the end of buf.
func (s *Struct) Bytes(buf []byte, path string) ([]byte, error) {
	r, err := s.Lookup(path)
	if err != nil {
		return nil, err
	}
	if !r.Whole && r.Field.Sub == nil {
		return nil, &PathError{s.Name, path, "it names a number; use Get"}
	}
	lo, hi := int(r.Off)/8, len(buf)
	switch {
	case !r.Whole:
		hi = lo + int(r.Field.Width)/8
	case r.Field.Count > 0:
		hi = lo + int(r.Field.Width)/8*r.Field.Count
	}
	if lo > len(buf) || hi > len(buf) {
		return nil, &LengthError{s.Name, path, max(lo, hi), len(buf)}
	}
	return buf[lo:hi:hi], nil
}

// Writer fills a structure by paths and keeps the first error, so that a
// sequence of Set needs one check at its end. It belongs to one goroutine.
type Writer struct {
	buf []byte
	s   *Struct
	err error
}

// Write starts filling buf, which begins with the structure s.
func Write(buf []byte, s *Struct) *Writer { return &Writer{buf: buf, s: s} }

// Set writes v at path. After an error it does nothing.
func (w *Writer) Set(path string, v uint64) *Writer {
	if w.err == nil {
		w.err = w.s.Put(w.buf, path, v)
	}
	return w
}

// SetBool writes 1 or 0 at path.
func (w *Writer) SetBool(path string, v bool) *Writer {
	if v {
		return w.Set(path, 1)
	}
	return w.Set(path, 0)
}

// SetBytes copies p into the byte array, tail or structure at path; p may be
// shorter, not longer.
func (w *Writer) SetBytes(path string, p []byte) *Writer {
	if w.err != nil {
		return w
	}
	dst, err := w.s.Bytes(w.buf, path)
	switch {
	case err != nil:
		w.err = err
	case len(p) > len(dst):
		w.err = &LengthError{w.s.Name, path, len(p), len(dst)}
	default:
		copy(dst, p)
	}
	return w
}

// Err is the first error, or nil.
func (w *Writer) Err() error { return w.err }
