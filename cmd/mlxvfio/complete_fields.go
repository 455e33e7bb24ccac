package main

import (
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/spf13/cobra"
)

// completeRegister completes REG: the registers that have a layout, and those that
// need --len because they have none.
func completeRegister(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	for _, v := range prm.RegisterIDEnum.Values {
		about := fmt.Sprintf("%#x, no layout here: needs --len", v.Value)
		if s := prm.RegisterStruct(prm.RegisterID(v.Value)); s != nil {
			about = fmt.Sprintf("%#x, %s, %d bytes", v.Value, s.Name, s.Size)
		}
		o.add(v.Name, about)
	}
	return o.list, thatsAll
}

// completeOpcode completes OPCODE.
func completeOpcode(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	for _, c := range prm.Commands() {
		o.add(c.Name, fmt.Sprintf("%#x", uint16(c.Opcode)))
	}
	return o.list, thatsAll
}

// completeRegisterField completes FIELD=VALUE behind DEV and REG.
func completeRegisterField(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) < 2 {
		return nil, thatsAll
	}
	id, ok := prm.RegisterByName(args[1])
	if !ok {
		return nil, thatsAll
	}
	return completeField("", prm.RegisterStruct(id), typed)
}

// completeInputField completes a field of the command that exec is to send.
func completeInputField(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) < 2 {
		return nil, thatsAll
	}
	_, c, err := parseOpcode(args[1])
	if err != nil || c == nil {
		return nil, thatsAll
	}
	return completeField("", c.In, typed)
}

// completeCapability completes NAME=VALUE of caps --set: fields of the general
// capabilities, then TYPE.FIELD.
func completeCapability(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if typ, _, ok := strings.Cut(typed, "."); ok {
		if n, ok := prm.CapTypeEnum.ByName(typ); ok {
			return completeField(typ+".", prm.CapStruct(prm.CapType(n)), typed)
		}
	}
	list, _ := completeField("", prm.CapStruct(prm.CapGeneral), typed)
	o := offers{typed: typed, list: list}
	for _, v := range prm.CapTypeEnum.Values {
		if prm.CapStruct(prm.CapType(v.Value)) != nil {
			o.add(v.Name+".", "fields of this capability type")
		}
	}
	return o.list, goesOn
}

// completeCapType completes the name of a capability type.
func completeCapType(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	for _, v := range prm.CapTypeEnum.Values {
		o.add(v.Name, v.Text)
	}
	return o.list, thatsAll
}

// completeField completes FIELD=VALUE of a structure: the path of a field part by
// part, then the names of its values where it has any.
func completeField(head string, s *prm.Struct, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if s == nil {
		return nil, thatsAll
	}
	path := strings.TrimPrefix(typed, head)
	o := offers{typed: typed}
	if field, _, ok := strings.Cut(path, "="); ok {
		r, err := s.Lookup(field)
		if err != nil || r.Field.Enum == nil {
			return nil, thatsAll
		}
		for _, v := range r.Field.Enum.Values {
			o.add(head+field+"="+v.Name, firstOf(v.Text, fmt.Sprintf("%#x", v.Value)))
		}
		return o.list, thatsAll
	}
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		r, err := s.Lookup(path[:i])
		if err != nil || r.Field.Sub == nil || r.Whole {
			return nil, thatsAll
		}
		s, head = r.Field.Sub, head+path[:i+1]
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		if strings.HasPrefix(f.Name, "reserved") {
			continue
		}
		name, about := f.Name, fmt.Sprintf("%d bit%s", f.Width, plural(int(f.Width)))
		if f.Array {
			name += "[0]"
			about = fmt.Sprintf("%d elements", f.Count)
			if f.Count == 0 {
				about = "any number of elements"
			}
		}
		if f.Sub != nil {
			o.add(head+name+".", about)
			continue
		}
		o.add(head+name+"=", about)
	}
	return o.list, goesOn
}

// completeTell completes the words for a served model.
func completeTell(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	if len(args) < 2 {
		for _, w := range controlWords {
			word, _, _ := strings.Cut(w.Word, " ")
			o.add(word, w.Meaning)
		}
		return o.list, thatsAll
	}
	// What follows a word is what its grammar says.
	for _, w := range controlWords {
		words := strings.Fields(w.Word)
		if words[0] != args[1] || len(args) > len(words) {
			continue
		}
		switch strings.Trim(words[len(args)-1], "[]") {
		case "NAME@ARG", "NAME[@ARG":
			completeFault(&o, "", typed)
			return o.list, goesOn
		case "NAME":
			for _, f := range sim.Faults() {
				o.add(f.Name, f.Meaning)
			}
		case "KIND":
			for _, k := range traceKinds {
				o.add(string(k), "")
			}
		case "DIR":
			return nil, orAFolder
		}
	}
	return o.list, thatsAll
}

// completeSection completes the name of a section, where the black box it is in
// was named before.
func completeSection(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, thatsAll
	}
	if st, err := os.Stat(args[0]); err != nil || !st.Mode().IsRegular() {
		return nil, thatsAll
	}
	b, err := blackbox.Read(args[0])
	if err != nil {
		return nil, thatsAll
	}
	o := offers{typed: typed}
	for _, s := range b.Sections {
		o.add(s.Name, fmt.Sprintf("%d bytes", len(s.Data)))
	}
	return o.list, thatsAll
}

// completeInput completes --in: hex digits cannot be known, files can.
func completeInput(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if typed == "" {
		return []cobra.Completion{cobra.CompletionWithDesc("@", "the bytes of a file")}, goesOn
	}
	if !strings.HasPrefix(typed, "@") {
		return nil, thatsAll
	}
	return paths("@", typed, func(m fs.FileMode) string { return ifText(m.IsRegular(), "file") })
}

// completeRung completes the rungs of the recovery ladder that can be climbed here.
func completeRung(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	for _, r := range climbable() {
		o.add(r.Rung.String(), r.Doc)
	}
	return o.list, thatsAll
}
