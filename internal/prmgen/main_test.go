package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// build runs one table through everything but the writing.
func build(text string) (map[string][]byte, error) {
	sp := newSpec()
	if err := sp.parse("t.prm", text); err != nil {
		return nil, err
	}
	if err := sp.check(); err != nil {
		return nil, err
	}
	return sp.generate()
}

// TestRefusals: what cannot be a layout is refused with its line and kind.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		kind string
		line int
	}{
		"two fields share a bit":        {"struct s 4\n0x0 31:16 a\n0x0 16:8 b", kindOverlap, 3},
		"field inside an array":         {"struct s 16\n0x0 4x32 a\n0x8 3:0 b", kindOverlap, 3},
		"field inside a structure":      {"struct s 8\n0x0 {p} a\n0x4 0 b\nstruct p 8\n0x0 1 x", kindOverlap, 3},
		"64-bit field over another":     {"struct s 8\n0x0 63:0 a\n0x4 0 b", kindOverlap, 3},
		"bits across two dwords":        {"struct s 8\n0x0 35:28 a", kindCross, 2},
		"bit beyond 63":                 {"struct s 16\n0x0 64:0 a", kindCross, 2},
		"dword not aligned":             {"struct s 8\n0x2 7:0 a", kindAlign, 2},
		"words not aligned":             {"struct s 16\n0x2 2x32 a", kindAlign, 2},
		"half-words not aligned":        {"struct s 16\n0x1 2x16 a", kindAlign, 2},
		"structure not aligned":         {"struct s 16\n0x2 {p} a\nstruct p 4\n0x0 0 x", kindAlign, 2},
		"field beyond the end":          {"struct s 4\n0x4 0 a", kindSize, 2},
		"64-bit field beyond the end":   {"struct s 4\n0x0 63:0 a", kindSize, 2},
		"array beyond the end":          {"struct s 8\n0x0 3x32 a", kindSize, 2},
		"structure beyond the end":      {"struct s 8\n0x4 {p} a\nstruct p 8\n0x0 0 x", kindSize, 2},
		"union member beyond the end":   {"union s 4\n0x0 63:0 a", kindSize, 2},
		"structure inside itself":       {"struct s 8\n0x0 {p} a\nstruct p 8\n0x0 {s} x", kindSize, 1},
		"size not in dwords":            {"struct s 6", kindSize, 1},
		"no size":                       {"struct s 0", kindSize, 1},
		"offset absurd":                 {"struct s 4\n0x7fffffff0 0 a", kindSize, 2},
		"structure twice":               {"struct s 4\nstruct s 4", kindDuplicate, 2},
		"field twice":                   {"struct s 4\n0x0 1 a\n0x0 2 a", kindDuplicate, 3},
		"two names, one method":         {"struct s 4\n0x0 1 log_a\n0x0 2 loga\n0x0 3 log__a", kindDuplicate, 4},
		"method of a setter":            {"struct s 8\n0x0 1 a\n0x0 2 set_a", kindDuplicate, 3},
		"two names, one type":           {"struct a_b 4\nstruct a__b 4", kindDuplicate, 2},
		"name of hand-written code":     {"struct field 4", kindDuplicate, 1},
		"structure and enum":            {"enum Abc uint8 X\n0 A\nstruct abc 4", kindDuplicate, 3},
		"enum twice":                    {"enum E uint8 A\n0 A\nenum E uint8 B\n0 A", kindDuplicate, 3},
		"enum value twice":              {"enum E uint8 A\n0 A\n1 A", kindDuplicate, 3},
		"two enums, one constant":       {"enum E uint8 A\n0 A\nenum F uint8 A\n0 A", kindDuplicate, 4},
		"opcode name twice":             {"command 1 A - -\ncommand 2 A - -", kindDuplicate, 2},
		"derived enum declared":         {"enum Opcode uint16 X\n0 A\ncommand 1 A - -", kindDuplicate, 1},
		"unknown structure":             {"struct s 8\n0x0 {p} a", kindUnknown, 2},
		"unknown enum":                  {"struct s 8\n0x0 3:0 a Nope", kindUnknown, 2},
		"unknown enum base":             {"enum E int A", kindUnknown, 1},
		"unknown command structure":     {"command 1 A x_in -", kindUnknown, 1},
		"unknown register structure":    {"register 1 A x", kindUnknown, 1},
		"unknown capability structure":  {"capability 1 A x", kindUnknown, 1},
		"enum too narrow":               {"enum E uint8 A\n0 A\nstruct s 4\n0x0 11:0 a E", kindEnum, 4},
		"enum of a structure":           {"enum E uint8 A\n0 A\nstruct s 4\n0x0 {p} a E\nstruct p 4", kindEnum, 4},
		"enum value too big":            {"enum E uint8 A\n0x100 A", kindEnum, 2},
		"enum value with two names":     {"enum E uint8 A\n1 A\n1 B", kindEnum, 3},
		"opcode with two names":         {"command 1 A - -\ncommand 1 B - -", kindEnum, 2},
		"enum without values":           {"enum E uint8 A", kindEnum, 1},
		"alias of nothing":              {"struct s 4\n0x0 3:0 a\n0x0 7:4 b alias", kindAlias, 3},
		"tail before the end":           {"struct s 8\n0x4 *x32 a", kindTail, 2},
		"tail after the end":            {"struct s 8\n0xc *x32 a", kindTail, 2},
		"two tails":                     {"struct s 8\n0x8 *x32 a\n0x8 *x8 b", kindTail, 3},
		"tail of a union":               {"union s 8\n0x8 *x32 a", kindTail, 2},
		"bits upside down":              {"struct s 4\n0x0 3:7 a", kindSyntax, 2},
		"elements of 12 bits":           {"struct s 8\n0x0 2x12 a", kindSyntax, 2},
		"array of nothing":              {"struct s 8\n0x0 0x32 a", kindSyntax, 2},
		"neither bits nor array":        {"struct s 8\n0x0 many a", kindSyntax, 2},
		"not an offset":                 {"struct s 8\nzero 0 a", kindSyntax, 2},
		"name with a dot":               {"struct s 8\n0x0 0 a.b", kindSyntax, 2},
		"a word too many":               {"struct s 8\n0x0 0 a alias alias", kindSyntax, 2},
		"a word too few":                {"struct s 8\n0x0 0", kindSyntax, 2},
		"line outside of a declaration": {"0x0 0 a", kindSyntax, 1},
		"text without end":              {"enum E uint8 A\n0 A \"x", kindSyntax, 2},
		"command option":                {"command 1 A - - max_in=3", kindSyntax, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(c.text)
			var se *specError
			require.True(t, errors.As(err, &se), "got %v", err)
			require.Equal(t, c.kind, se.kind, "%v", err)
			require.Equal(t, pos{"t.prm", c.line}, se.pos, "%v", err)
		})
	}
}

// TestAccepted: the edges of what is refused.
func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"a whole 64-bit word":       "struct s 8\n0x0 63:0 a",
		"64 bits at an odd dword":   "struct s 12\n0x4 63:0 a",
		"48 bits of a 64-bit word":  "struct s 8\n0x0 31:16 a\n0x0 47:0 b",
		"an alias":                  "struct s 4\n0x0 31:0 a\n0x0 15:0 b alias",
		"members of a union":        "union s 8\n0x0 31:0 a\n0x0 63:0 b",
		"a tail":                    "struct s 8\n0x8 *x64 a",
		"a structure without names": "struct s 8",
		"comments":                  "# x\nstruct s 4 # y\n\n0x0 0 a # z",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := build(text)
			require.NoError(t, err)
		})
	}
}

func TestCamel(t *testing.T) {
	for in, want := range map[string]string{
		"eqc": "EQC", "cmd_hca_cap": "CmdHCACap", "create_eq_in": "CreateEQIn", "log_eq_size": "LogEQSize",
		"cmdq_phy_addr_63_32": "CmdqPhyAddr63_32", "mkey_7_0": "MKey7_0", "num_of_uars_per_page": "NumOfUARsPerPage",
		"cmd_exec_to": "CmdExecTO", "regs_31_to_11": "Regs31To11", "qp_2err_in": "QP2ErrIn", "init2rtr_qp_in": "Init2RtrQPIn",
		"cqe64": "CQE64", "op_mod": "OpMod", "log2_hds_buf_size": "Log2HdsBufSize", "DPNv": "DPNv",
	} {
		require.Equal(t, want, camel(in), in)
	}
}

// TestPlace: the smallest aligned unit that holds a field.
func TestPlace(t *testing.T) {
	for _, c := range []struct {
		off, width int
		want       unit
	}{
		{0, 4, unit{0, 1, 4}},
		{7, 1, unit{0, 1, 0}},
		{8, 8, unit{1, 1, 0}},
		{4, 8, unit{0, 2, 4}},
		{16, 16, unit{2, 2, 0}},
		{12, 8, unit{0, 4, 12}},
		{8, 24, unit{0, 4, 0}},
		{32, 32, unit{4, 4, 0}},
		{32, 64, unit{4, 8, 0}},
		{16, 48, unit{0, 8, 0}},
	} {
		require.Equal(t, c.want, place(&field{off: c.off, width: c.width, count: 1}), "%d+%d", c.off, c.width)
	}
}

// TestCommittedFilesAreCurrent: go generate leaves no difference, twice over.
func TestCommittedFilesAreCurrent(t *testing.T) {
	sp, err := load("../prm/tables")
	require.NoError(t, err)
	files, err := sp.generate()
	require.NoError(t, err)
	again, err := sp.generate()
	require.NoError(t, err)
	for name, text := range files {
		require.Equal(t, text, again[name], name)
		require.Less(t, len(text), maxFile, name)
		have, err := os.ReadFile(filepath.Join("../prm", name))
		require.NoError(t, err)
		require.Equal(t, string(have), string(text), "%s is stale: run go generate ./internal/prm", name)
	}
	have, err := filepath.Glob("../prm/*_gen*.go")
	require.NoError(t, err)
	require.Len(t, have, len(files), "a generated file without a table")
}

func TestRunWritesAndRemoves(t *testing.T) {
	tables, out := t.TempDir(), t.TempDir()
	require.ErrorContains(t, run(tables, out), "no .prm tables")
	table := filepath.Join(tables, "a.prm")
	text := "struct s 8\n0x0 31:28 st E\nenum E uint8 E\n0x9 ARMED\ncommand 1 NOP - -\nregister 2 R s\ncapability 0 G s\n"
	require.NoError(t, os.WriteFile(table, []byte(text), 0o644))
	stale := filepath.Join(out, "old_gen.go")
	require.NoError(t, os.WriteFile(stale, nil, 0o644))
	require.NoError(t, run(tables, out))
	require.NoFileExists(t, stale)
	require.FileExists(t, filepath.Join(out, "a_gen.go"))

	require.NoError(t, os.WriteFile(table, []byte(text+"struct s 8\n"), 0o644))
	require.Error(t, run(tables, out))
	require.FileExists(t, filepath.Join(out, "a_gen.go"), "a refused table changes nothing")
}
