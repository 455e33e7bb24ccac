package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/spf13/cobra"
)

func (a *app) capsVerb() *cobra.Command {
	var (
		all, diff bool
		only      string
		set       []string
	)
	c := a.verb("caps DEV [NAME=VALUE…] | caps --diff DEV|FILE DEV|FILE", "show every capability: at power-on, current, maximum; compare two; try a value", 1, -1, func(ctx context.Context, args []string) error {
		if only != "" {
			if _, ok := prm.CapTypeEnum.ByName(only); !ok {
				return usagef("--type %s: %s", only, valueHint(&prm.Field{Enum: prm.CapTypeEnum}))
			}
		}
		trial := len(set) > 0
		switch {
		case diff && trial:
			return usagef("--diff compares and --set tries: one of them at a time")
		case diff && len(args) != 2:
			return usagef("caps --diff wants two of DEV or FILE, not %d", len(args))
		case diff && all:
			return usagef("--diff shows what differs: --all has no meaning with it")
		case diff:
			return a.capsDiff(ctx, args[0], args[1], only)
		case trial && (all || only != ""):
			return usagef("--set shows what was asked for: --all and --type have no meaning with it")
		case trial:
			as, err := parseAssignments(append(set, args[1:]...))
			if err != nil {
				return err
			}
			return a.capsSet(ctx, args[0], as)
		case len(args) != 1:
			return usagef("caps shows one DEV, not %d; --diff compares two", len(args))
		}
		return a.caps(ctx, args[0], only, all)
	})
	c.Long = `caps brings the function up and shows every capability field by field.

With --diff it compares two of them: devices, models (sim:cx5) and dumps, files with what caps --json printed. Only
what differs is shown. Exit code 0 says that all is equal, 1 that something differs.

With --set NAME=VALUE [NAME=VALUE…] it is a trial: the function comes up with the values asked for in SET_HCA_CAP,
the table shows what was asked, allowed and taken, and the function is given back. NAME is a field of the general
capabilities, or TYPE.FIELD. What cannot be asked is refused before anything is set.`
	c.Example = examples(
		"mlxvfio caps sim --type ATOMIC", "one type, field by field",
		"mlxvfio caps sim --set log_max_qp=15", "ask for fewer queue pairs and see what comes of it",
		"mlxvfio caps --diff sim:cx5 sim:cx7", "what a ConnectX-7 can do that a ConnectX-5 cannot; exit code 1: they differ")
	c.Flags().BoolVar(&all, "all", false, "show the fields that are zero too")
	c.Flags().StringVar(&only, "type", "", "show one capability `TYPE` only, e.g. GENERAL or ATOMIC")
	c.Flags().BoolVar(&diff, "diff", false, "compare two devices, models or dumps (files of caps --json)")
	c.Flags().StringArrayVar(&set, "set", nil, "bring the function up with `NAME=VALUE` and show what it took; may be repeated")
	completes(c, "type", completeCapType)
	completes(c, "set", completeCapability)
	c.ValidArgsFunction = func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch {
		case c.Flags().Changed("set") && len(args) > 0:
			return completeCapability(c, args, typed)
		case len(args) > 1 || len(args) == 1 && !diff:
			return nil, thatsAll
		}
		list, directive := a.completeDevice(c, args, typed)
		if diff {
			directive &^= cobra.ShellCompDirectiveNoFileComp
		}
		return list, directive
	}
	return c
}

func (a *app) caps(ctx context.Context, dev, only string, all bool) error {
	return a.withDevice(ctx, dev, mlxvfio.Options{}, func(_ context.Context, s *session) error {
		r := &capsResult{deviceHead: s.head(), Types: []capEntry{}, Set: []mlxvfio.CapRow{}, all: all}
		wanted := func(t prm.CapType) bool { return only == "" || strings.EqualFold(t.String(), only) }
		for _, c := range s.Caps() {
			if wanted(c.Type) {
				r.Types = append(r.Types, newCapEntry(c, s.sources(c.Type)))
			}
		}
		for _, row := range s.CapReport() {
			if wanted(row.Type) {
				r.Set = append(r.Set, row)
			}
		}
		if len(r.Types) == 0 {
			return fmt.Errorf("%s: capability type %s: %w by this device", dev, strings.ToUpper(only), vfio.ErrNotSupported)
		}
		return a.print("caps/1", r)
	})
}

// capEntry is one capability type.
type capEntry struct {
	Type string `json:"type"`
	ID   uint16 `json:"id"`
	// Layout is the structure the fields are decoded with; empty where there is
	// none, and then there are only raw bytes.
	Layout     string      `json:"layout,omitempty"`
	PowerOn    prm.Decoded `json:"power_on,omitempty"`
	Current    prm.Decoded `json:"current"`
	Maximum    prm.Decoded `json:"maximum"`
	PowerOnHex string      `json:"power_on_hex,omitempty"`
	CurrentHex string      `json:"current_hex"`
	MaximumHex string      `json:"maximum_hex"`
	// Source tells for each field of a model that is not zero where it comes from.
	Source map[string]capSource `json:"source,omitempty"`
}

func newCapEntry(c *mlxvfio.Capability, source map[string]capSource) capEntry {
	e := capEntry{
		Type: c.Type.String(), ID: uint16(c.Type), Source: source,
		CurrentHex: hex.EncodeToString(c.Current), MaximumHex: hex.EncodeToString(c.Maximum), PowerOnHex: hex.EncodeToString(c.PowerOn),
	}
	layout := prm.CapStruct(c.Type)
	if layout == nil {
		return e
	}
	e.Layout = layout.Name
	e.Current, e.Maximum = prm.Decode(c.Current, layout), prm.Decode(c.Maximum, layout)
	if c.PowerOn != nil {
		e.PowerOn = prm.Decode(c.PowerOn, layout)
	}
	return e
}

type capsResult struct {
	deviceHead
	Types []capEntry `json:"types"`
	// Set is what the driver asked for with SET_HCA_CAP and what came of it.
	Set []mlxvfio.CapRow `json:"set"`

	all bool
}

func (r *capsResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	for i := range r.Types {
		fmt.Fprintln(w)
		r.Types[i].text(w, r.all)
	}
	if len(r.Set) == 0 {
		return
	}
	fmt.Fprintln(w, "\nset by the driver")
	rows := [][]string{{"  FIELD", "WANTED", "POWER-ON", "MAXIMUM", "SENT", "NOW", "RESULT", "WHY"}}
	for _, c := range r.Set {
		rows = append(rows, []string{"  " + c.Field, num(c.Requested), num(c.Before), num(c.Maximum), num(c.Sent), num(c.After), c.Done, c.Why})
	}
	table(w, rows)
}

func (e *capEntry) text(w io.Writer, all bool) {
	fmt.Fprintf(w, "%s (type %#x)\n", e.Type, e.ID)
	if e.Layout == "" {
		fmt.Fprintln(w, "  no layout for this type here; --json has the bytes")
		return
	}
	head := []string{"  FIELD", "CURRENT", "MAXIMUM"}
	if e.PowerOn != nil {
		head = []string{"  FIELD", "POWER-ON", "CURRENT", "MAXIMUM"}
	}
	if e.Source != nil {
		head = append(head, "SOURCE")
	}
	rows := [][]string{head}
	for _, path := range e.paths(all) {
		row := []string{"  " + path}
		if e.PowerOn != nil {
			row = append(row, at(e.PowerOn, path))
		}
		row = append(row, at(e.Current, path), at(e.Maximum, path))
		if e.Source != nil {
			row = append(row, dash(e.Source[path].Tag))
		}
		rows = append(rows, row)
	}
	if len(rows) == 1 {
		fmt.Fprintln(w, "  all fields are zero")
		return
	}
	table(w, rows)
}

// paths are the fields to show, in the order of the layout; bits without a name
// last, wherever they are set.
func (e *capEntry) paths(all bool) []string {
	var out []string
	seen := map[string]bool{}
	for _, d := range []prm.Decoded{e.Maximum, e.Current, e.PowerOn} {
		for i := range d {
			p := d[i].Path
			if !seen[p] && (all || !zeroAt(e.PowerOn, p) || !zeroAt(e.Current, p) || !zeroAt(e.Maximum, p)) {
				out = append(out, p)
			}
			seen[p] = true
		}
	}
	return out
}

func zeroAt(d prm.Decoded, path string) bool {
	v, ok := d.Find(path)
	return !ok || v.Zero()
}

func at(d prm.Decoded, path string) string {
	v, ok := d.Find(path)
	if !ok {
		return "0"
	}
	return short(v)
}

// short is a value in a column: a name, a decimal number, with hex where the
// number is a mask or large.
func short(v prm.Value) string {
	if v.Bytes == nil && v.Enum == nil {
		return num(v.Num)
	}
	return v.String()
}

func num(v uint64) string {
	if v > 9999 {
		return fmt.Sprintf("%#x", v)
	}
	return fmt.Sprint(v)
}

// capSource tells where the model has a value from.
type capSource struct {
	Tag    string `json:"tag"` // real, derived or chosen
	Source string `json:"source"`
}

// sources are those of a capability type's fields, by path; nil for a device
// that is no model of this process.
func (s *session) sources(t prm.CapType) map[string]capSource {
	if s.dev.chip == nil {
		return nil
	}
	m := map[string]capSource{}
	for _, v := range s.dev.chip.Values() {
		if typ, ok := strings.CutPrefix(v.Where, "cap "); ok && strings.HasPrefix(typ, t.String()+" ") {
			m[v.Name] = capSource{string(v.Tag), v.Source}
		}
	}
	return m
}
