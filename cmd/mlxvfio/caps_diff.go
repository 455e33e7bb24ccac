package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// capsDiff shows what differs between the capabilities of two devices or dumps.
func (a *app) capsDiff(ctx context.Context, x, y, only string) error {
	if a.record != "" {
		return usagef("--record takes one function, --diff may open two: leave it out")
	}
	left, err := a.capSide(ctx, x)
	if err != nil {
		return err
	}
	right, err := a.capSide(ctx, y)
	if err != nil {
		return err
	}
	if only != "" {
		keep := func(t prm.CapType, _ capPair) bool { return !strings.EqualFold(t.String(), only) }
		maps.DeleteFunc(left.types, keep)
		maps.DeleteFunc(right.types, keep)
		if len(left.types)+len(right.types) == 0 {
			return fmt.Errorf("%s, %s: capability type %s: %w by either", x, y, strings.ToUpper(only), vfio.ErrNotSupported)
		}
	}
	r := &capsDiffResult{A: left, B: right, Types: diffCaps(left.types, right.types)}
	r.Equal = len(r.Types) == 0
	if err := a.print("caps-diff/1", r); err != nil {
		return err
	}
	if r.Equal {
		return nil
	}
	return &capsDifferError{left.name(), right.name(), r.count()}
}

// capsDifferError says that two differ: exit code 1, as a program that compares
// gives it.
type capsDifferError struct {
	a, b string
	what string
}

func (e *capsDifferError) Error() string {
	return fmt.Sprintf("%s and %s differ in %s", e.a, e.b, e.what)
}

// capDiffType is a capability type in which two differ.
type capDiffType struct {
	Type string `json:"type"`
	ID   uint16 `json:"id"`
	// Only is "a" or "b" where the other does not have the type at all; Fields is
	// empty then.
	Only   string         `json:"only,omitempty"`
	Fields []capDiffField `json:"fields"`
}

// capDiffField is a field in which two differ, in its current value, its maximum or
// both.
type capDiffField struct {
	Field string  `json:"field"`
	A     capCell `json:"a"`
	B     capCell `json:"b"`
}

// capCell are the two values of a field.
type capCell struct {
	Current capValue `json:"current"`
	Maximum capValue `json:"maximum"`
}

// capValue is a value; its JSON is that of a decoded field.
type capValue struct{ prm.Value }

// MarshalJSON gives the value as the object of decoded fields has it.
func (v capValue) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(prm.Decoded{v.Value})
	if err != nil {
		return nil, err
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	return m[v.Path], nil
}

// diffCaps lists what differs, by type and in the order of the layouts.
func diffCaps(a, b map[prm.CapType]capPair) []capDiffType {
	out := []capDiffType{}
	all := slices.Collect(maps.Keys(a))
	for t := range b {
		if _, ok := a[t]; !ok {
			all = append(all, t)
		}
	}
	slices.Sort(all)
	for _, t := range all {
		x, inA := a[t]
		y, inB := b[t]
		d := capDiffType{Type: t.String(), ID: uint16(t), Fields: []capDiffField{}}
		switch {
		case !inB:
			d.Only = "a"
		case !inA:
			d.Only = "b"
		default:
			if d.Fields = diffFields(t, x, y); len(d.Fields) == 0 {
				continue
			}
		}
		out = append(out, d)
	}
	return out
}

func diffFields(t prm.CapType, x, y capPair) []capDiffField {
	fields := []capDiffField{}
	if bytes.Equal(x.current, y.current) && bytes.Equal(x.maximum, y.maximum) {
		return fields
	}
	cells := [4]map[string]prm.Value{}
	var paths []string
	seen := map[string]bool{}
	for i, b := range [][]byte{x.current, x.maximum, y.current, y.maximum} {
		cells[i] = map[string]prm.Value{}
		for _, v := range decodeCap(b, t) {
			cells[i][v.Path] = v
			if !seen[v.Path] {
				seen[v.Path] = true
				paths = append(paths, v.Path)
			}
		}
	}
	at := func(i int, path string) capValue {
		v, ok := cells[i][path]
		if !ok {
			v.Path = path // bits without a name, all of them zero here
		}
		return capValue{v}
	}
	for _, p := range paths {
		f := capDiffField{p, capCell{at(0, p), at(1, p)}, capCell{at(2, p), at(3, p)}}
		if !sameValue(f.A.Current, f.B.Current) || !sameValue(f.A.Maximum, f.B.Maximum) {
			fields = append(fields, f)
		}
	}
	return fields
}

// decodeCap lists the fields of a capability type; a type without a layout is a row
// of dwords that are named by their offset.
func decodeCap(b []byte, t prm.CapType) prm.Decoded {
	if s := prm.CapStruct(t); s != nil {
		return prm.Decode(b, s)
	}
	return prm.Decode(b, &prm.Struct{Name: t.String()})
}

func sameValue(a, b capValue) bool { return a.Num == b.Num && bytes.Equal(a.Bytes, b.Bytes) }

type capsDiffResult struct {
	A     *capSide      `json:"a"`
	B     *capSide      `json:"b"`
	Equal bool          `json:"equal"`
	Types []capDiffType `json:"types"`
}

// count says in how much the two differ.
func (r *capsDiffResult) count() string {
	fields, only := 0, 0
	for _, t := range r.Types {
		fields += len(t.Fields)
		if t.Only != "" {
			only++
		}
	}
	var parts []string
	if fields > 0 {
		parts = append(parts, counted(fields, "field"))
	}
	if only > 0 {
		parts = append(parts, counted(only, "type")+" that one of them lacks")
	}
	return strings.Join(parts, " and ")
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (r *capsDiffResult) text(w io.Writer) {
	fmt.Fprintf(w, "A  %s\nB  %s\n", r.A, r.B)
	if r.Equal {
		fmt.Fprintln(w, "\nno capability differs")
		return
	}
	for _, t := range r.Types {
		fmt.Fprintf(w, "\n%s (type %#x)", t.Type, t.ID)
		if t.Only != "" {
			fmt.Fprintf(w, ": only %s has it\n", strings.ToUpper(t.Only))
			continue
		}
		fmt.Fprintln(w)
		rows := [][]string{{"  FIELD", "CURRENT A", "B", "MAXIMUM A", "B"}}
		for _, f := range t.Fields {
			rows = append(rows, []string{"  " + f.Field, short(f.A.Current.Value), short(f.B.Current.Value), short(f.A.Maximum.Value), short(f.B.Maximum.Value)})
		}
		table(w, rows)
	}
}
