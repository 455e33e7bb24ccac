package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Structures of the PRM as users see and write them: hex, and fields by name.

// assignment is FIELD=VALUE of the command line.
type assignment struct {
	field string
	value string
}

func parseAssignments(args []string) ([]assignment, error) {
	var as []assignment
	for _, s := range args {
		f, v, ok := strings.Cut(s, "=")
		if !ok || f == "" || v == "" {
			return nil, usagef("%q: want FIELD=VALUE, such as local_port=1", s)
		}
		as = append(as, assignment{f, v})
	}
	return as, nil
}

// assign writes the values into buf. A value is a number, or a name where the
// field is an enumeration.
func assign(buf []byte, s *prm.Struct, as []assignment) error {
	for _, a := range as {
		r, err := s.Lookup(a.field)
		if err != nil {
			return &usageError{err.Error() + didYouMean(a.field, fieldNames(s))}
		}
		v, err := strconv.ParseUint(a.value, 0, 64)
		if err != nil {
			ok := false
			if r.Field.Enum != nil {
				v, ok = r.Field.Enum.ByName(a.value)
			}
			if !ok {
				return usagef("%s=%s: %s", a.field, a.value, valueHint(r.Field))
			}
		}
		if err := s.Put(buf, a.field, v); err != nil {
			return &usageError{err.Error()}
		}
	}
	return nil
}

// fieldNames are the fields of a structure's first level.
func fieldNames(s *prm.Struct) []string {
	var names []string
	for i := range s.Fields {
		names = append(names, s.Fields[i].Name)
	}
	return names
}

func valueHint(f *prm.Field) string {
	if f.Enum == nil {
		return fmt.Sprintf("want a number of %d bits", f.Width)
	}
	return "want a number or one of " + strings.Join(valueNames(f.Enum), ", ")
}

// bytesArg reads HEX or @FILE, which may have mostMessage bytes. Hex may hold white
// space, ':' and a leading 0x.
func bytesArg(flag, s string) ([]byte, error) {
	if name, ok := strings.CutPrefix(s, "@"); ok {
		b, err := readSome(name, mostMessage+1)
		switch {
		case err != nil:
			return nil, usagef("--%s: %v", flag, err)
		case len(b) > mostMessage:
			return nil, usagef("--%s %s: the file has more than the %d bytes that can be sent", flag, s, mostMessage)
		}
		return b, nil
	}
	clean := strings.NewReplacer(" ", "", "\n", "", "\t", "", ":", "", "_", "").Replace(strings.TrimPrefix(s, "0x"))
	b, err := hex.DecodeString(clean)
	if err != nil {
		return nil, usagef("--%s %q is not hex: want an even number of hex digits, or @FILE with the bytes", flag, s)
	}
	return b, nil
}

// readSome reads a file, but no more than n bytes of it: it may have no end.
func readSome(name string, n int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, n))
	return b, errors.Join(err, f.Close())
}

// hexdump prints rows of four big-endian words, as the PRM numbers them. Rows
// of zeros after the first of them are left out.
func hexdump(w io.Writer, b []byte) {
	const row = 16
	zeros := 0
	for off := 0; off < len(b); off += row {
		part := b[off:min(off+row, len(b))]
		if allZero(part) && off > 0 && off+row < len(b) {
			if zeros++; zeros > 1 {
				if zeros == 2 {
					fmt.Fprintln(w, "  *")
				}
				continue
			}
		} else {
			zeros = 0
		}
		fmt.Fprintf(w, "  %03x:", off)
		for i := 0; i < len(part); i += 4 {
			fmt.Fprintf(w, " %x", part[i:min(i+4, len(part))])
		}
		fmt.Fprintln(w)
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// dump prints the fields that are not zero.
func dump(w io.Writer, d prm.Decoded) {
	rows := [][]string{}
	for _, v := range d {
		if v.Zero() {
			continue
		}
		rows = append(rows, []string{"  " + v.Path, v.String() + textIn(v.Bytes)})
	}
	if len(rows) == 0 {
		fmt.Fprintln(w, "  all fields are zero")
		return
	}
	table(w, rows)
}

// textIn shows the text in bytes that hold nothing else.
func textIn(b []byte) string {
	t := bytes.TrimRight(b, "\x00")
	if len(t) < 4 {
		return ""
	}
	for _, c := range t {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return fmt.Sprintf(" %q", t)
}
