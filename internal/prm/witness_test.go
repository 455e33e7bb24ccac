package prm

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type row struct {
	field             string
	off, width, count int
}

func (r row) end() int { return r.off + r.width*r.count }

func readCSV(t *testing.T, name string) [][]string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	all, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	require.NoError(t, err)
	require.Greater(t, len(all), 1, "%s is empty", name)
	return all[1:]
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

// facts reads layout files into rows by structure.
func facts(t *testing.T, names ...string) map[string][]row {
	t.Helper()
	out := map[string][]row{}
	for _, name := range names {
		for _, r := range readCSV(t, name) {
			out[r[0]] = append(out[r[0]], row{r[1], atoi(t, r[2]), atoi(t, r[3]), atoi(t, r[4])})
		}
	}
	return out
}

func sizes(t *testing.T, names ...string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, name := range names {
		for _, r := range readCSV(t, name) {
			out[r[0]] = atoi(t, r[1])
		}
	}
	return out
}

var ifcFiles = []string{"layouts.csv", "layouts-more.csv", "caps-extra.csv"}

// used counts the exemptions that were needed, so that a stale one fails.
type exemptions struct {
	reasons map[string]string
	used    map[string]bool
}

func exempt(m map[string]string) *exemptions { return &exemptions{m, map[string]bool{}} }

func (e *exemptions) has(key string) bool {
	if _, ok := e.reasons[key]; !ok {
		return false
	}
	e.used[key] = true
	return true
}

func (e *exemptions) allUsed(t *testing.T) {
	t.Helper()
	for k, reason := range e.reasons {
		require.True(t, e.used[k], "exemption %q (%s) is not needed any more", k, reason)
	}
}

// TestFactsAreInTables: every row of a structure that the tables hold has its
// field there, with the same place.
func TestFactsAreInTables(t *testing.T) {
	ex := exempt(factExemptions)
	checked := 0
	for name, rows := range facts(t, ifcFiles...) {
		s := StructByName(name)
		if s == nil {
			continue
		}
		for _, r := range rows {
			key := name + "." + r.field
			if ex.has(key) {
				continue
			}
			if p, ok := leftOut(r.field); ok && (name == "hca_cap_union" || strings.HasPrefix(r.field, "capability.")) {
				require.Contains(t, leftOutCaps, p)
				continue
			}
			ref, err := s.Lookup(r.field)
			require.NoError(t, err, "the facts have %s, the table has not", key)
			got := row{r.field, int(ref.Off), int(ref.Field.Width), ref.Field.Count}
			if r.count == 0 && r.width == 0 {
				got.width = 0 // the header gives no element type
			}
			if r.width > 64 && ref.Field.Sub == nil { // one wide number is an array here
				got.width, got.count = got.width*got.count, 1
			}
			require.Equal(t, r, got, key)
			checked++
		}
	}
	require.Greater(t, checked, 4000)
	ex.allUsed(t)
}

func leftOut(field string) (string, bool) {
	last := field[strings.LastIndexByte(field, '.')+1:]
	_, ok := leftOutCaps[last]
	return last, ok
}

// TestTableFieldsAreFacts: no field of a table is without a row of its own
// name, unless it is listed with its reason.
func TestTableFieldsAreFacts(t *testing.T) {
	ifc := facts(t, ifcFiles...)
	ex := exempt(tableExemptions)
	exStruct := exempt(structExemptions)
	checked := 0
	for _, s := range Structs() {
		if cStructs[s.Name] != nil && ifc[s.Name] == nil {
			continue // TestCStructures
		}
		rows, ok := ifc[s.Name]
		if !ok {
			require.True(t, exStruct.has(s.Name), "no facts about %s", s.Name)
			continue
		}
		names := map[string]bool{}
		for _, r := range rows {
			names[r.field] = true
			if top, _, dotted := strings.Cut(r.field, "."); dotted {
				names[top] = true // an unnamed union: its members are checked as rows
			}
		}
		for i := range s.Fields {
			if key := s.Name + "." + s.Fields[i].Name; !names[s.Fields[i].Name] {
				require.True(t, ex.has(key), "the table has %s, the facts have not", key)
			}
			checked++
		}
	}
	require.Greater(t, checked, 2500)
	ex.allUsed(t)
	exStruct.allUsed(t)
}

// TestSizes: every structure has the size of the facts.
func TestSizes(t *testing.T) {
	ifc := sizes(t, "layouts-sizes.csv", "layouts-more-sizes.csv")
	c := sizes(t, "layouts-extra-sizes.csv")
	checked := 0
	for _, s := range Structs() {
		if bits, ok := ifc[s.Name]; ok {
			require.Equal(t, bits, s.Size*8, s.Name)
			checked++
			continue
		}
		m := cStructs[s.Name]
		if m == nil {
			require.Contains(t, structExemptions, s.Name)
			continue
		}
		bits, ok := c[m.name]
		require.True(t, ok, "no size of %s", m.name)
		require.Equal(t, (bits+31)/32*4, s.Size, "%s: the C structure has %d bits", s.Name, bits)
		checked++
	}
	require.Greater(t, checked, 300)
}

// TestCStructures: the C structures of Linux and UCX give whole bytes and
// words; the tables cut them into bits. Each piece must lie inside its word
// and the pieces must not overlap; bits of a word that no piece has are listed.
func TestCStructures(t *testing.T) {
	all := facts(t, "layouts-extra.csv")
	for name, m := range cStructs {
		s := StructByName(name)
		require.NotNil(t, s, name)
		rows := all[m.name]
		require.NotEmpty(t, rows, m.name)
		covered := map[string]bool{}
		for _, r := range rows {
			if _, left := m.leftOut[r.field]; left {
				continue
			}
			pieces := m.pieces[r.field]
			if pieces == nil {
				pieces = []string{strings.ReplaceAll(r.field, ".", "_")}
			}
			free := map[int]bool{}
			for b := r.off; b < r.end(); b++ {
				free[b] = true
			}
			for _, p := range pieces {
				ref, err := s.Lookup(p)
				require.NoError(t, err, "%s.%s", m.name, r.field)
				covered[strings.SplitN(p, ".", 2)[0]] = true
				if r.count == 0 {
					if _, other := m.spans[p]; other {
						r.width = int(ref.Field.Width)
					}
					require.Equal(t, row{r.field, int(ref.Off), int(ref.Field.Width), ref.Field.Count}, r)
					continue
				}
				for b := int(ref.Off); b < int(ref.Off)+int(ref.Field.Width)*ref.Field.Count; b++ {
					if b < r.off || b >= r.end() {
						require.Contains(t, m.spans, p, "%s.%s leaves %s.%s", name, p, m.name, r.field)
						continue
					}
					require.True(t, free[b], "%s.%s: bit %d twice in %s.%s", name, p, b, m.name, r.field)
					delete(free, b)
				}
			}
			if r.count != 0 {
				require.Len(t, free, m.gaps[r.field], "%s.%s: bits without a name", m.name, r.field)
			}
		}
		if m.partial {
			continue
		}
		for i := range s.Fields {
			f := &s.Fields[i]
			if !covered[f.Name] {
				require.Contains(t, m.extra, f.Name, "%s.%s is not in %s", name, f.Name, m.name)
			}
		}
	}
}

// TestOpcodes: the opcode list is the facts', in both directions.
func TestOpcodes(t *testing.T) {
	markers := map[string]bool{"GENERAL_START": true, "GENERAL_END": true} // limits of a range, not commands
	seen := map[Opcode]bool{}
	for _, r := range readCSV(t, "opcodes.csv") {
		if markers[r[1]] {
			continue
		}
		v, err := strconv.ParseUint(r[0], 0, 16)
		require.NoError(t, err)
		require.Equal(t, r[1], Opcode(v).String())
		c := CommandByOpcode(Opcode(v))
		require.NotNil(t, c)
		require.Equal(t, r[1], c.Name)
		require.Same(t, c, CommandByName(strings.ToLower(r[1])))
		op, ok := ParseOpcode(r[1])
		require.True(t, ok)
		require.Equal(t, Opcode(v), op)
		seen[op] = true
	}
	require.Len(t, Commands(), len(seen))
	require.Equal(t, "0xfff", Opcode(0xfff).String())
	require.Nil(t, CommandByOpcode(0xfff))
	require.Nil(t, CommandByName("NO_SUCH_COMMAND"))
}

// TestCommandHeaders: every input begins with opcode and op_mod, every output
// with status and syndrome, at the places of the generic headers.
func TestCommandHeaders(t *testing.T) {
	at := func(s *Struct, path string) string {
		r, err := s.Lookup(path)
		require.NoError(t, err, s.Name)
		return fmt.Sprint(r.Off, r.Field.Width)
	}
	n := 0
	for _, c := range Commands() {
		if c.In == nil {
			require.Nil(t, c.Out, c.Name)
			continue
		}
		n++
		require.Equal(t, "0 16", at(c.In, "opcode"), c.Name)
		require.Equal(t, "0 8", at(c.Out, "status"), c.Name)
		require.Equal(t, "32 32", at(c.Out, "syndrome"), c.Name)
		if c.In.Field("obj_type") == nil { // general objects have a type there
			require.Equal(t, "48 16", at(c.In, "op_mod"), c.Name)
		}
		require.LessOrEqual(t, c.MinIn, c.In.Size, c.Name)
		require.LessOrEqual(t, c.MinOut, c.Out.Size, c.Name)
	}
	require.Greater(t, n, 80)
}

// TestEnumsAreFacts: the enumerations for which there are facts have exactly
// their values and names.
func TestEnumsAreFacts(t *testing.T) {
	enums := map[string]*Enum{
		"EventType": EventTypeEnum, "WQEOpcode": WQEOpcodeEnum, "CQEOpcode": CQEOpcodeEnum, "CQESyndrome": CQESyndromeEnum,
		"CommandStatus": CommandStatusEnum, "DeliveryStatus": DeliveryStatusEnum, "HealthSyndrome": HealthSyndromeEnum,
		"NICInterface": NICInterfaceEnum, "FenceMode": FenceModeEnum, "CapType": CapTypeEnum, "RegisterID": RegisterIDEnum,
		"GeneralObjectType": GeneralObjectTypeEnum,
	}
	extra := map[string]string{
		"HealthSyndrome OK": "0: no error; the ifc has no name for it",
		"WQEOpcode SEND_EN": "DPDK's public header",
		"WQEOpcode RECV_EN": "DPDK's public header",
	}
	seen := map[string]bool{}
	for _, r := range readCSV(t, "enums.csv") {
		v, err := strconv.ParseUint(r[1], 0, 64)
		require.NoError(t, err)
		require.NotNil(t, enums[r[0]], r[0])
		require.Equal(t, r[2], enums[r[0]].String(v), "%s %s", r[0], r[1])
		seen[r[0]+" "+r[2]] = true
	}
	for name, e := range enums {
		for _, v := range e.Values {
			if key := name + " " + v.Name; !seen[key] {
				require.Contains(t, extra, key)
			}
		}
	}
}
