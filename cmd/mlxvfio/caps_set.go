package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// capsSet is the trial: it brings the function up with the requests, shows what
// the device made of them, and gives the function back.
func (a *app) capsSet(ctx context.Context, dev string, set []assignment) error {
	requests, err := capRequests(set)
	if err != nil {
		return err
	}
	if err := mlxvfio.CheckCapRequests(requests); err != nil {
		return &usageError{err.Error()}
	}
	return a.withDevice(ctx, dev, mlxvfio.Options{Capabilities: requests}, func(_ context.Context, s *session) error {
		r := &capsSetResult{deviceHead: s.head(), Set: []mlxvfio.CapRow{}}
		var ignored []string
		for _, row := range s.CapReport() {
			if !row.Asked {
				continue
			}
			r.Set = append(r.Set, row)
			if row.After != row.Requested {
				ignored = append(ignored, fmt.Sprintf("%v.%s stays %d", row.Type, row.Field, row.After))
			}
		}
		if err := a.print("caps-set/1", r); err != nil {
			return err
		}
		if len(ignored) > 0 {
			return fmt.Errorf("%s: the device answered OK and did not do as asked: %s; what it cannot change it ignores", dev, strings.Join(ignored, ", "))
		}
		return nil
	})
}

type capsSetResult struct {
	deviceHead
	// Set are the requests, and what the device made of each.
	Set []mlxvfio.CapRow `json:"set"`
}

func (r *capsSetResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	rows := [][]string{{"  CAPABILITY", "REQUESTED", "POWER-ON", "MAXIMUM", "NOW", "RESULT"}}
	for _, c := range r.Set {
		rows = append(rows, []string{"  " + c.Type.String() + "." + c.Field, num(c.Requested), num(c.Before), num(c.Maximum), num(c.After), c.Done})
	}
	table(w, rows)
}

// capRequests turns NAME=VALUE into requests. NAME is a field of the general
// capabilities, of the only other type that has it, or TYPE.FIELD.
func capRequests(set []assignment) ([]mlxvfio.CapRequest, error) {
	var out []mlxvfio.CapRequest
	for _, s := range set {
		t, field, f, err := capField(s.field)
		if err != nil {
			return nil, err
		}
		v, err := strconv.ParseUint(s.value, 0, 64)
		if err != nil {
			ok := false
			if f.Enum != nil {
				v, ok = f.Enum.ByName(s.value)
			}
			if !ok {
				return nil, usagef("--set %s=%s: %s", s.field, s.value, valueHint(f))
			}
		}
		out = append(out, mlxvfio.CapRequest{Type: t, Field: field, Value: v})
	}
	return out, nil
}

// capField finds the capability that a name means.
func capField(name string) (prm.CapType, string, *prm.Field, error) {
	if typ, field, ok := strings.Cut(name, "."); ok {
		if n, ok := prm.CapTypeEnum.ByName(typ); ok {
			f, err := capLookup(prm.CapType(n), field)
			return prm.CapType(n), field, f, err
		}
	}
	if f, err := capLookup(prm.CapGeneral, name); err == nil {
		return prm.CapGeneral, name, f, nil
	}
	var found []prm.CapType
	var first *prm.Field
	for _, v := range prm.CapTypeEnum.Values {
		if f, err := capLookup(prm.CapType(v.Value), name); err == nil {
			found = append(found, prm.CapType(v.Value))
			first = f
		}
	}
	switch len(found) {
	case 0:
		return 0, "", nil, usagef("--set: there is no capability %q; mlxvfio caps DEV --all shows all, TYPE.FIELD names one of a type", name)
	case 1:
		return found[0], name, first, nil
	}
	var names []string
	for _, t := range found {
		names = append(names, t.String()+"."+name)
	}
	return 0, "", nil, usagef("--set: %q is a capability of several types: say %s", name, strings.Join(names, " or "))
}

// capLookup finds a number in the structure of a capability type.
func capLookup(t prm.CapType, path string) (*prm.Field, error) {
	s := prm.CapStruct(t)
	if s == nil {
		return nil, usagef("--set: capability type %v has no layout here", t)
	}
	r, err := s.Lookup(path)
	if err != nil {
		return nil, &usageError{"--set: " + err.Error()}
	}
	if r.Field.Sub != nil || r.Whole {
		return nil, usagef("--set: %v.%s is no number", t, path)
	}
	return r.Field, nil
}
