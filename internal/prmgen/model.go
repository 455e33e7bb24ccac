package main

import "fmt"

// pos is where a declaration stands, so that every refusal names its line.
type pos struct {
	file string
	line int
}

func (p pos) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// specError is a refusal: the table says something that cannot be a layout.
type specError struct {
	pos  pos
	kind string
	msg  string
}

func (e *specError) Error() string { return fmt.Sprintf("%s: %s: %s", e.pos, e.kind, e.msg) }

// Kinds of refusals. Tests match on them.
const (
	kindSyntax    = "syntax"
	kindOverlap   = "overlap"
	kindCross     = "crosses a dword"
	kindSize      = "out of size"
	kindDuplicate = "duplicate name"
	kindUnknown   = "unknown type"
	kindAlign     = "misaligned"
	kindEnum      = "enum"
	kindAlias     = "alias"
	kindTail      = "tail"
)

// field is one line of a structure. Offsets and widths count bits from the
// most significant bit of byte 0, as the facts do.
type field struct {
	pos    pos
	name   string
	off    int
	width  int    // of one element; of nested structures it is filled in by check
	count  int    // 1 scalar, n array, 0 flexible tail
	isArr  bool   // written as an array, even of one element
	sub    string // nested structure
	enum   string
	alias  bool
	subRef *structure
}

func (f *field) bits() int { return f.width * f.count }

type structure struct {
	pos    pos
	name   string
	size   int // bytes
	union  bool
	fields []*field
	table  string // base name of the table file
}

type enumValue struct {
	pos    pos
	value  uint64
	name   string // PRM name
	goName string // suffix of the Go constant
	text   string
}

type enum struct {
	pos    pos
	name   string
	base   int // 8, 16, 32, 64
	prefix string
	values []enumValue
}

type command struct {
	pos           pos
	value         uint64
	name          string
	in, out       string
	minIn, minOut int // -1: the structure's size
}

// link ties a register or capability type to its structure.
type link struct {
	pos    pos
	value  uint64
	name   string
	layout string
}

type spec struct {
	structs   []*structure
	enums     []*enum
	commands  []*command
	registers []link
	caps      []link

	structByName map[string]*structure
	enumByName   map[string]*enum
}
