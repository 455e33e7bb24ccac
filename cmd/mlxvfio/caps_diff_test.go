package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/stretchr/testify/require"
)

// dumpOf writes what caps --json says of a device into a file.
func dumpOf(t *testing.T, dev string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "dump.json")
	require.NoError(t, os.WriteFile(name, []byte(works(t, "caps", dev, "--json")), 0o600))
	return name
}

// differs runs caps --diff on two that differ and gives the fields by name, and the
// types that one of them lacks.
func differs(t *testing.T, a, b string, more ...string) (fields map[string]any, only map[string]string) {
	t.Helper()
	o := cli(t, append([]string{"caps", "--diff", a, b, "--json"}, more...)...)
	require.Equal(t, exitFailed, o.code, o.err)
	require.Contains(t, o.err, " differ in ")
	r := decodeOne(t, "caps-diff/1", o.out)
	require.Equal(t, false, r["equal"])
	fields, only = map[string]any{}, map[string]string{}
	for _, typ := range rowsOf(t, r, "types") {
		if side, ok := typ["only"].(string); ok {
			only[typ["type"].(string)] = side
			require.Empty(t, typ["fields"])
		}
		for _, f := range rowsOf(t, typ, "fields") {
			fields[typ["type"].(string)+"."+f["field"].(string)] = []any{
				f["a"].(map[string]any)["current"], f["b"].(map[string]any)["current"],
				f["a"].(map[string]any)["maximum"], f["b"].(map[string]any)["maximum"],
			}
		}
	}
	return fields, only
}

func TestCapsDiff(t *testing.T) {
	dump := dumpOf(t, "sim:cx5")

	// Equal: a device and itself, a dump and its device, a dump and itself.
	for _, pair := range [][2]string{{"sim:cx5", "sim:cx5,seed=9"}, {dump, "sim:cx5"}, {"sim:cx5", dump}, {dump, dump}} {
		require.Contains(t, works(t, "caps", "--diff", pair[0], pair[1]), "no capability differs")
		require.Equal(t, true, object(t, "caps-diff/1", "caps", "--diff", pair[0], pair[1])["equal"])
	}

	// Different, from models and from dumps alike.
	want := map[string]any{
		"GENERAL.log_max_qp":           []any{18., 17., 23., 17.},
		"GENERAL.log_max_pd":           []any{24., 23., 24., 23.},
		"GENERAL.max_qp_mcg":           []any{48., 240., 48., 240.},
		"GENERAL.log_max_rqt":          []any{16., 19., 16., 19.},
		"GENERAL.log_max_rqt_size":     []any{9., 11., 9., 11.},
		"GENERAL.device_frequency_mhz": []any{156., 1000., 156., 1000.},
		"GENERAL.device_frequency_khz": []any{156250., 1000000., 156250., 1000000.},
	}
	for _, a := range []string{"sim:cx5", dump} {
		fields, only := differs(t, a, "sim:cx7")
		require.Equal(t, want, fields)
		require.Empty(t, only)
	}
	back, _ := differs(t, "sim:cx7", dump)
	require.Equal(t, []any{17., 18., 17., 23.}, back["GENERAL.log_max_qp"], "the sides follow the words")

	// A link layer is types too.
	fields, only := differs(t, dump, "sim:cx5,port=eth")
	require.Equal(t, map[string]string{"ETHERNET_OFFLOADS": "b", "ROCE": "b", "FLOW_TABLE": "b", "ESWITCH_FLOW_TABLE": "b", "ESWITCH": "b"}, only)
	require.Equal(t, []any{map[string]any{"name": "IB", "value": 0.}, map[string]any{"name": "ETHERNET", "value": 1.}}, fields["GENERAL.port_type"].([]any)[:2])

	// One type only.
	require.Contains(t, works(t, "caps", "--diff", dump, "sim:cx7", "--type", "atomic"), "no capability differs")
	fields, _ = differs(t, dump, "sim:cx4,port=ib", "--type", "ATOMIC")
	for f := range fields {
		require.True(t, strings.HasPrefix(f, "ATOMIC."), f)
	}
	require.Contains(t, fields, "ATOMIC.atomic_size_qp")
	refuses(t, cli(t, "caps", "--diff", dump, "sim", "--type", "TLS"), exitUnsupported, "TLS")

	text := cli(t, "caps", "--diff", dump, "sim:cx6dx")
	require.Equal(t, exitFailed, text.code)
	require.Regexp(t, `(?m)^A  \S*dump\.json: dump of sim:cx5 \(sim\), firmware 16\.35\.4030\nB  sim:cx6dx \(sim\), firmware 22\.36\.1010$`, text.out)
	require.Regexp(t, `(?m)^  log_max_qp +18 +17 +23 +17$`, text.out)
	require.Regexp(t, `(?m)^ROCE \(type 0x4\): only B has it$`, text.out)
	require.NotRegexp(t, `(?m)^  log_max_cq `, text.out, "what is equal is left out")
	require.Regexp(t, `differ in 15 fields and 5 types that one of them lacks`, text.err)
}

func TestCapsDiffRefuses(t *testing.T) {
	dump := dumpOf(t, "sim")
	text, err := os.ReadFile(dump)
	require.NoError(t, err)
	bad := func(name, from, to string) string {
		t.Helper()
		require.Contains(t, string(text), from)
		f := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(f, []byte(strings.Replace(string(text), from, to, 1)), 0o600))
		return f
	}
	list := filepath.Join(t.TempDir(), "list.json")
	require.NoError(t, os.WriteFile(list, []byte("[]"), 0o600))
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"--diff sim", exitUsage, []string{"two"}},
		{"--diff sim sim sim", exitUsage, []string{"two"}},
		{"--diff sim /nonexistent/dump", exitUsage, []string{"no device", "no file"}},
		{"--diff sim .", exitUsage, []string{"read the dump"}},
		{"--diff sim:nosuch sim", exitUsage, []string{"nosuch", "cx7"}},
		{"--diff sysfs:x sim", exitUsage, []string{"sysfs:x"}},
		{"--diff sim vfio-user:/nonexistent/socket", exitUnavailable, []string{"/nonexistent/socket"}},
		{"--diff --all sim sim", exitUsage, []string{"--all"}},
		{"--diff sim sim --set dct=1", exitUsage, []string{"one of them"}},
		{"--diff sim sim --record /nonexistent/x", exitUsage, []string{"--record"}},
		{"sim sim", exitUsage, []string{"--diff"}},
		{"--diff sim " + bad("schema", "mlxvfio.caps/1", "mlxvfio.info/1"), exitUsage, []string{"mlxvfio.info/1"}},
		{"--diff sim " + bad("json", `{"schema"`, `{schema`), exitUsage, []string{"no dump"}},
		{"--diff sim " + list, exitUsage, []string{"list.json is no dump", "a JSON array, not an object"}},
		{"--diff sim " + bad("type", `"id":0`, `"id":"0"`), exitUsage, []string{"no dump", "types.id is a JSON string at byte "}},
		{"--diff sim " + bad("hex", `"current_hex":"0`, `"current_hex":"x`), exitUsage, []string{"current_hex of capability type GENERAL"}},
		{"--diff sim " + bad("short", `"maximum_hex":"00`, `"maximum_hex":"`), exitUsage, []string{"4095 bytes, not 4096"}},
		{"--diff sim " + bad("id", `"id":0,`, ``), exitUsage, []string{"no id"}},
		{"--diff sim " + bad("twice", `"id":3`, `"id":0`), exitUsage, []string{"twice"}},
		{"--diff sim " + bad("empty", `"types":[`, `"types":[],"old":[`), exitUsage, []string{"no capability type"}},
	} {
		refuses(t, cli(t, append([]string{"caps"}, strings.Fields(c.args)...)...), c.code, c.says...)
	}
}

// A type without a layout is compared by dwords, and bits without a name by theirs.
func TestDiffCapsBytes(t *testing.T) {
	blank := func() []byte { return make([]byte, mlxvfio.CapSize) }
	const unknown = prm.CapType(0x7f)
	require.Nil(t, prm.CapStruct(unknown))
	x := map[prm.CapType]capPair{unknown: {blank(), blank()}, prm.CapGeneral: {blank(), blank()}}
	y := map[prm.CapType]capPair{unknown: {blank(), blank()}, prm.CapGeneral: {blank(), blank()}}
	require.Empty(t, diffCaps(x, y))
	y[unknown].current[0x12] = 5
	y[prm.CapGeneral].maximum[0xfff] = 1
	x[prm.CapGeneral].maximum[0xffe] = 1
	d := diffCaps(x, y)
	require.Len(t, d, 2)
	require.Equal(t, "reserved_at_0xffc", d[0].Fields[0].Field)
	require.EqualValues(t, 0x100, d[0].Fields[0].A.Maximum.Num)
	require.EqualValues(t, 1, d[0].Fields[0].B.Maximum.Num)
	require.Equal(t, "reserved_at_0x10", d[1].Fields[0].Field)
	b, err := json.Marshal(d[1].Fields[0])
	require.NoError(t, err)
	require.JSONEq(t, `{"field":"reserved_at_0x10","a":{"current":0,"maximum":0},"b":{"current":1280,"maximum":0}}`, string(b))
}

// FuzzCapsDump: whatever a file holds, it is a dump whose every type has its bytes,
// and equal to itself, or it is refused.
func FuzzCapsDump(f *testing.F) {
	zeros := strings.Repeat("00", mlxvfio.CapSize)
	f.Add([]byte(`{"schema":"mlxvfio.caps/1","device":"d","types":[{"type":"GENERAL","id":0,"current_hex":"` + zeros + `","maximum_hex":"` + zeros + `"}]}`))
	f.Add([]byte(`{"schema":"mlxvfio.caps/1","types":[{"id":65535,"current_hex":"","maximum_hex":""}]}`))
	f.Add([]byte(`{"schema":"mlxvfio.caps/1","types":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseCapsDump(text)
		if err != nil {
			return
		}
		require.NotEmpty(t, s.types)
		for _, p := range s.types {
			require.Len(t, p.current, mlxvfio.CapSize)
			require.Len(t, p.maximum, mlxvfio.CapSize)
		}
		require.Empty(t, diffCaps(s.types, s.types))
	})
}
