package prm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Value is one decoded field. A number is in Num; a byte array, a tail of
// bytes or a union without a chosen member is in Bytes.
type Value struct {
	Path  string
	Off   uint32 // bits from the start of the buffer
	Width uint32
	Num   uint64
	Bytes []byte // a copy; nil for numbers
	Enum  *Enum  // names of Num, or nil
	// Reserved: the bits of this dword or byte that no field has, and are set.
	Reserved bool
	bits     string
}

// Zero tells whether the field holds nothing but zero bits.
func (v *Value) Zero() bool {
	if v.Bytes == nil {
		return v.Num == 0
	}
	return len(bytes.Trim(v.Bytes, "\x00")) == 0
}

// String is the value as Dump prints it.
func (v *Value) String() string {
	switch {
	case v.Bytes != nil:
		return hex.EncodeToString(v.Bytes)
	case v.Enum != nil:
		if ev, ok := v.Enum.Value(v.Num); ok {
			return fmt.Sprintf("%#x %s", v.Num, ev.Name)
		}
	}
	return fmt.Sprintf("%#x", v.Num)
}

// Decoded is a structure as a list of its fields in table order. As JSON it
// is one object in that order.
type Decoded []Value

// Option changes what Decode and Dump show.
type Option func(*options)

type options struct {
	member map[string]string
	all    bool
}

// Select chooses the member with which the union at path is decoded; the path
// of the outermost structure is "". Without it a union is shown as bytes.
func Select(path, member string) Option {
	return func(o *options) {
		if o.member == nil {
			o.member = map[string]string{}
		}
		o.member[path] = member
	}
}

// All makes Dump show fields that are zero too.
func All() Option { return func(o *options) { o.all = true } }

// Decode lists every field of s that buf holds whole, zero or not. Bits that
// are set and belong to no listed field follow as reserved values, so that
// Encode gives the same bytes back. buf may be shorter or longer than s; it is
// not kept.
func Decode(buf []byte, s *Struct, opts ...Option) Decoded {
	d := decoder{buf: buf, seen: make([]byte, len(buf))}
	for _, o := range opts {
		o(&d.opt)
	}
	if s.Union {
		d.union(s, "", 0, s.Size)
	} else {
		d.fields(s, "", 0)
	}
	d.rest()
	return d.out
}

type decoder struct {
	buf, seen []byte
	opt       options
	out       Decoded
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

func (d *decoder) fields(s *Struct, prefix string, base uint32) {
	for i := range s.Fields {
		if f := &s.Fields[i]; !f.Alias {
			d.field(f, join(prefix, f.Name), base+f.Off)
		}
	}
}

func (d *decoder) field(f *Field, path string, off uint32) {
	count := f.Count
	if count == 0 {
		if int(off/8) >= len(d.buf) {
			return
		}
		count = (len(d.buf)*8 - int(off)) / int(f.Width)
	}
	switch {
	case f.Sub == nil && f.Array && f.Width == 8:
		d.raw(path, off, count)
	case !f.Array:
		d.element(f, path, off)
	default:
		for i := range count {
			d.element(f, path+"["+strconv.Itoa(i)+"]", off+uint32(i)*f.Width)
		}
	}
}

func (d *decoder) element(f *Field, path string, off uint32) {
	switch {
	case f.Sub != nil && f.Sub.Union:
		d.union(f.Sub, path, off, f.Sub.Size)
	case f.Sub != nil:
		d.fields(f.Sub, path, off)
	case int(off+f.Width) <= len(d.buf)*8:
		d.out = append(d.out, Value{Path: path, Off: off, Width: f.Width, Num: getBits(d.buf, off, f.Width), Enum: f.Enum, bits: bitsAt(off, f)})
		putBits(d.seen, off, f.Width, ^uint64(0))
	}
}

// union decodes the chosen member, or shows the bytes.
func (d *decoder) union(s *Struct, path string, off uint32, size int) {
	if name, ok := d.opt.member[path]; ok {
		if f := s.Field(name); f != nil {
			d.field(f, join(path, f.Name), off+f.Off)
			return
		}
	}
	if path == "" {
		path = s.Name
	}
	d.raw(path, off, size)
}

// raw takes n bytes, or as many as there are.
func (d *decoder) raw(path string, off uint32, n int) {
	lo := int(off) / 8
	hi := min(lo+n, len(d.buf))
	if lo >= hi {
		return
	}
	d.out = append(d.out, Value{Path: path, Off: off, Width: uint32(hi-lo) * 8, Bytes: bytes.Clone(d.buf[lo:hi]), bits: fmt.Sprintf("%#02x", lo)})
	for i := lo; i < hi; i++ {
		d.seen[i] = 0xff
	}
}

// rest lists set bits that no field has, a dword at a time.
func (d *decoder) rest() {
	for lo := 0; lo < len(d.buf); lo += 4 {
		hi := min(lo+4, len(d.buf))
		var v uint64
		for i := lo; i < hi; i++ {
			v = v<<8 | uint64(d.buf[i]&^d.seen[i])
		}
		if v != 0 {
			d.out = append(d.out, Value{Path: fmt.Sprintf("reserved_at_%#x", lo), Off: uint32(lo) * 8, Width: uint32(hi-lo) * 8, Num: v, Reserved: true, bits: fmt.Sprintf("%#02x", lo)})
		}
	}
}

// Encode writes decoded values into buf: fields replace what is there,
// reserved bits are added. Encode of Decode into a zeroed buffer of the same
// length gives the original bytes.
func (d Decoded) Encode(buf []byte) error {
	for i := range d {
		v := &d[i]
		if end := int(v.Off+v.Width+7) / 8; end > len(buf) {
			return &LengthError{"value", v.Path, end, len(buf)}
		}
		switch {
		case v.Bytes != nil:
			if len(v.Bytes) != int(v.Width/8) {
				return &LengthError{"value", v.Path, int(v.Width / 8), len(v.Bytes)}
			}
			copy(buf[v.Off/8:], v.Bytes)
		case v.Num > maxOf(v.Width):
			return &WidthError{"value", v.Path, v.Path, v.Num, v.Width}
		case v.Reserved:
			putBits(buf, v.Off, v.Width, v.Num|getBits(buf, v.Off, v.Width))
		default:
			putBits(buf, v.Off, v.Width, v.Num)
		}
	}
	return nil
}

// Find returns the value at path.
func (d Decoded) Find(path string) (Value, bool) {
	for i := range d {
		if d[i].Path == path {
			return d[i], true
		}
	}
	return Value{}, false
}

// NonZero keeps the values that are not zero.
func (d Decoded) NonZero() Decoded {
	var out Decoded
	for i := range d {
		if !d[i].Zero() {
			out = append(out, d[i])
		}
	}
	return out
}

// maxExact is the largest integer that every JSON reader keeps.
const maxExact = 1<<53 - 1

// MarshalJSON gives one object in table order: numbers as numbers, numbers
// above 2^53-1 and bytes as hex strings, enumerations as
// {"value": n, "name": "…"}.
func (d Decoded) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i := range d {
		v := &d[i]
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(v.Path)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		num := strconv.FormatUint(v.Num, 10)
		if v.Num > maxExact {
			num = fmt.Sprintf(`"%#x"`, v.Num)
		}
		switch {
		case v.Bytes != nil:
			fmt.Fprintf(&b, "%q", hex.EncodeToString(v.Bytes))
		case v.Enum != nil:
			fmt.Fprintf(&b, `{"value":%s,"name":%q}`, num, v.Enum.String(v.Num))
		default:
			b.WriteString(num)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Dump prints one line a field: where it is, its path, its value. Fields that
// are zero are left out unless All is given.
func Dump(w io.Writer, buf []byte, s *Struct, opts ...Option) error {
	var o options
	for _, f := range opts {
		f(&o)
	}
	d := Decode(buf, s, opts...)
	if !o.all {
		d = d.NonZero()
	}
	var b strings.Builder
	for i := range d {
		fmt.Fprintf(&b, "%-12s %s = %s\n", d[i].bits, d[i].Path, d[i].String())
	}
	_, err := io.WriteString(w, b.String())
	return err
}
