package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/spf13/cobra"
)

func (a *app) regVerb() *cobra.Command {
	var length int
	get := a.verb("get DEV REG [FIELD=VALUE…]", "read a register and decode it", 2, -1, func(ctx context.Context, args []string) error {
		return a.reg(ctx, args[0], args[1], args[2:], length, false)
	})
	get.Long = `reg get reads a management register (ACCESS_REG). REG is a name (PAOS) or a number (0x5006). FIELD=VALUE chooses
what to read where a register exists more than once; local_port is 1 unless given.`
	get.Example = examples(
		"mlxvfio reg get sim PAOS", "the state of the port",
		"mlxvfio reg get sim 0x5006 local_port=1", "the same by number",
		"mlxvfio reg get 0000:3b:00.0 0x9029 --len 32", "one that has no layout here: bytes")
	set := a.verb("set DEV REG FIELD=VALUE…", "read a register, change fields, write it, read it again", 3, -1, func(ctx context.Context, args []string) error {
		return a.reg(ctx, args[0], args[1], args[2:], length, true)
	})
	set.Long = `reg set reads a management register (ACCESS_REG), changes the fields, writes it, reads it again, and shows each field
before and after. A field that chooses which register is meant (local_port) goes into all three. VALUE is a number
or, where the field's values have names, one of those.`
	set.Example = examples(
		"mlxvfio reg set sim PAOS admin_status=DOWN", "take the model's port down",
		"mlxvfio reg set sim PAOS ase=1 admin_status=UP", "two fields at once")
	for _, v := range []*cobra.Command{get, set} {
		v.Flags().IntVar(&length, "len", 0, "`BYTES` of the register (default: the size of its layout)")
	}
	return folder("reg", "read and write management registers", get, set)
}

// register is a register the command line names.
type register struct {
	id     prm.RegisterID
	layout *prm.Struct // nil: only bytes
	length int
}

// mostRegister is the longest register a command can carry here, in bytes.
const mostRegister = 4096

func parseRegister(s string, length int) (register, error) {
	id, ok := prm.RegisterByName(s)
	if !ok {
		n, err := strconv.ParseUint(s, 0, 16)
		if err != nil {
			return register{}, usagef("there is no register %q: want a name such as PAOS or a number up to 0xffff%s", s, didYouMean(s, valueNames(prm.RegisterIDEnum)))
		}
		id = prm.RegisterID(n)
	}
	r := register{id: id, layout: prm.RegisterStruct(id), length: length}
	switch {
	case length == 0 && r.layout == nil:
		return r, usagef("register %s has no layout here: give its length with --len", s)
	case length == 0:
		r.length = (r.layout.Size + 3) &^ 3
	case length < 4 || length%4 != 0 || length > mostRegister:
		return r, usagef("--len %d: want a multiple of 4 up to %d", length, mostRegister)
	}
	return r, nil
}

// fill writes the index fields and values of the command line.
func (r register) fill(image []byte, set []assignment) error {
	if len(set) == 0 {
		return nil
	}
	if r.layout == nil {
		return usagef("register %v has no layout here: its fields cannot be named", r.id)
	}
	return assign(image, r.layout, set)
}

func (a *app) reg(ctx context.Context, dev, name string, fields []string, length int, write bool) error {
	r, err := parseRegister(name, length)
	if err != nil {
		return err
	}
	set, err := parseAssignments(fields)
	if err != nil {
		return err
	}
	index := make([]byte, r.length)
	if r.layout != nil {
		if f := r.layout.Field(localPort); f != nil && !names(set, localPort) && r.layout.Size <= len(index) {
			set = append(set, assignment{localPort, "1"})
		}
	}
	if err := r.fill(index, set); err != nil {
		return err
	}
	return a.withDevice(ctx, dev, mlxvfio.Options{}, func(ctx context.Context, s *session) error {
		res := &regResult{deviceHead: s.head(), ID: uint16(r.id), Register: r.id.String()}
		image := append([]byte(nil), index...)
		if err := s.Conn().ReadRegister(ctx, r.id, image); err != nil {
			return err
		}
		if write {
			res.Before, _ = r.decode(image)
			if err := r.fill(image, set); err != nil {
				return err
			}
			if err := s.Conn().WriteRegister(ctx, r.id, image); err != nil {
				return err
			}
			copy(image, index)
			if err := s.Conn().ReadRegister(ctx, r.id, image); err != nil {
				return err
			}
		}
		res.Fields, res.Layout = r.decode(image)
		res.Hex, res.image = hex.EncodeToString(image), image
		return a.print("reg/1", res)
	})
}

// localPort is the index field of registers that exist once a port. A function
// sees one port, number 1.
const localPort = "local_port"

func names(set []assignment, field string) bool {
	for _, s := range set {
		if s.field == field {
			return true
		}
	}
	return false
}

func (r register) decode(image []byte) (prm.Decoded, string) {
	if r.layout == nil {
		return nil, ""
	}
	return prm.Decode(image, r.layout), r.layout.Name
}

type regResult struct {
	deviceHead
	Register string `json:"register"`
	ID       uint16 `json:"id"`
	Layout   string `json:"layout,omitempty"`
	// Before is what a write changed.
	Before prm.Decoded `json:"before,omitempty"`
	Fields prm.Decoded `json:"fields"`
	Hex    string      `json:"hex"`
	image  []byte
}

// showAll is up to how many fields a register shows zeros too.
const showAll = 16

func (r *regResult) text(w io.Writer) {
	fmt.Fprintln(w, r.deviceHead)
	fmt.Fprintf(w, "register %s (%#x), %d bytes\n", r.Register, r.ID, len(r.image))
	hexdump(w, r.image)
	if r.Layout == "" {
		return
	}
	fmt.Fprintln(w, r.Layout)
	if r.Before == nil && len(r.Fields) > showAll {
		dump(w, r.Fields)
		fmt.Fprintln(w, "  the other fields are zero")
		return
	}
	if r.Before == nil {
		rows := [][]string{}
		for _, v := range r.Fields {
			rows = append(rows, []string{"  " + v.Path, v.String()})
		}
		table(w, rows)
		return
	}
	rows := [][]string{{"  FIELD", "BEFORE", "NOW"}}
	for _, v := range r.Fields {
		rows = append(rows, []string{"  " + v.Path, at(r.Before, v.Path), short(v)})
	}
	table(w, rows)
}
