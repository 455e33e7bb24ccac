package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/stretchr/testify/require"
)

func TestVersion(t *testing.T) {
	require.Regexp(t, `^mlxvfio \S.*go1\..*linux/`, works(t, "version"))
	require.NotEmpty(t, object(t, "version/1", "version")["go"])
}

func TestInfo(t *testing.T) {
	text := works(t, "info", "sim:cx4,fw=14.12.1220")
	for _, line := range []string{
		`function: +sim:cx4\S*, ConnectX-4 \(15b3:1013`, `firmware: +14\.12\.1220,`, `board: +PSID \S+`, `ISSI: +1\n`, `port: +\S+, 1 port\n`, `atomics: .*; 4 8 16 32 bytes on QPs, [^;]*;\s+max_atomic_size 32\n`,
		`commands: +completed by events, 32 slots`, `command EQ: +EQN \d+, \d+ entries, MSI-X vector 0: CMD`, `pages: +12874 with firmware`, `health: +counter \d+, syndrome OK`,
	} {
		require.Regexp(t, line, text)
	}
	o := object(t, "info/1", "info", "sim:cx4")
	require.Equal(t, "14.12.1220", o["firmware"])
	require.EqualValues(t, 32, o["max_atomic_size"])
	hca := o["hca"].(map[string]any)
	require.EqualValues(t, 32, hca["atomics"].(map[string]any)["max_qp"])
	require.Equal(t, true, hca["events"])
	require.Len(t, hca["eqs"], 3)
	require.EqualValues(t, 12874, hca["pages"].(map[string]any)["outstanding"])
}

func TestAtomicsText(t *testing.T) {
	require.Equal(t, "not supported", atomicsText(mlxvfio.Atomics{}))
	require.Equal(t, "CMP_SWAP; 8 bytes on QPs; max_atomic_size not supported",
		atomicsText(mlxvfio.Atomics{Supported: true, Operations: []string{"CMP_SWAP"}, SizesQP: []int{8}}))
}

func TestPortType(t *testing.T) {
	for word, want := range map[string]string{"ib": "IB", "eth": "ETHERNET"} {
		o := object(t, "info/1", "info", "sim:cx5,port="+word)
		require.Equal(t, want, o["hca"].(map[string]any)["port_type"])
	}
}

func TestFlagsAnywhere(t *testing.T) {
	for _, args := range [][]string{{"--json", "info", "sim"}, {"info", "--json", "sim"}, {"info", "sim", "--json", "--timeout", "1m"}} {
		require.Equal(t, "sim", decodeOne(t, "info/1", works(t, args...))["device"], "%v", args)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"info"}, "usage: mlxvfio info DEV"},
		{[]string{"info", "sim", "sim"}, "usage: mlxvfio info DEV"},
		{[]string{"inf", "sim"}, "info"},
		{[]string{"info", "not-a-device"}, "not-a-device"},
		{[]string{"info", "sim:nosuch"}, "nosuch"},
		{[]string{"info", "sim", "--colour"}, "--colour"},
		{[]string{"info", "sim", "--timeout", "soon"}, "soon"},
		{[]string{"info", "sim", "--timeout", "-1s"}, "negative"},
		{[]string{"info", "sim", "--log-level", "loud"}, "loud"},
		{[]string{"info", "sim", "--record", "/no/such/folder/file"}, "/no/such/folder/file: no such file or directory; name a file in a folder"},
		{[]string{"reg", "frob"}, "frob"},
		{[]string{"reg", "get", "sim"}, "usage: mlxvfio reg get DEV REG"},
		{[]string{"caps", "sim", "--type", "NOSUCH"}, "GENERAL"},
		{[]string{"selftest", "sim", "--stop-at", "nowhere"}, "nowhere"},
		{[]string{"litmus", "sim", "--peer", "sim:cx5,port=eth"}, "the same port="},
		{[]string{"litmus", "sim", "--peer", "vfio-user:/x"}, "no wire between them"},
		{[]string{"litmus", "vfio-user:/x", "--peer", "vfio-user:/x"}, "loopback"},
		{[]string{"litmus", "sim", "--peer", "nosuch"}, "nosuch"},
		{[]string{"litmus", "sim", "--peer", "sim", "--record", "/tmp/x"}, "--record"},
		{[]string{"litmus", "sim", "--runs", "-1"}, "--runs"},
		{[]string{"litmus", "sim", "--queues", "17"}, "1 to 16"},
		{[]string{"litmus", "sim", "--queues", "1"}, "of one host want 2 to 16"},
		{[]string{"serve"}, "--socket"},
		{[]string{"serve", "--socket", ""}, "--socket is empty"},
		{[]string{"serve", "--socket", "/tmp/x", "--control", ""}, "--control is empty"},
		{[]string{"serve", "--socket", "/tmp/x", "--link="}, "--link is empty"},
		{[]string{"serve", "--socket", "/tmp/x", "--link", "/tmp/x"}, "twice"},
		{[]string{"serve", "sim:nosuch", "--socket", "/tmp/x"}, "nosuch"},
		{[]string{"serve", "--socket", "/tmp/x", "--socket", "/tmp/x"}, "twice"},
		{[]string{"tell", "/tmp/x"}, "usage: mlxvfio tell PATH"},
	} {
		refuses(t, cli(t, c.args...), exitUsage, c.word)
		e := decodeOne(t, "error/1", cli(t, append(c.args, "--json")...).err)
		require.EqualValues(t, exitUsage, e["exit"], "%v", c.args)
	}
}

func TestHelpListsOnlyWhatExists(t *testing.T) {
	help := works(t, "--help")
	for _, v := range []string{"list", "doctor", "bind", "unbind", "info", "caps", "selftest", "exec", "reg", "atomic", "litmus", "bench", "microbench", "trace", "health", "serve", "tell", "version"} {
		require.Regexp(t, `(?m)^  `+v+` `, help)
	}
	for _, v := range []string{"rig", "explain"} {
		require.NotRegexp(t, `(?m)^  `+v+` `, help, "a verb of later")
	}
}

// TestCapsAgainstTheRealDevice compares the ConnectX-4 of the model with what a
// real one answered: maxima with the 13th message of the capture, power-on
// values with the 15th.
func TestCapsAgainstTheRealDevice(t *testing.T) {
	golden := goldenCaps(t)
	o := object(t, "caps/1", "caps", "sim:cx4")
	types := o["types"].([]any)
	general := types[0].(map[string]any)
	require.Equal(t, "GENERAL", general["type"])
	for seq, key := range map[int]string{13: "maximum_hex", 15: "power_on_hex"} {
		got, err := hex.DecodeString(general[key].(string))
		require.NoError(t, err)
		require.Len(t, got, mlxvfio.CapSize)
		want := golden[seq]
		require.Greater(t, len(want), 3000, "the capture holds most of the structure")
		require.Equal(t, want, got[:len(want)], "%s and message %d", key, seq)
	}
	// What the driver sets shows in the current values.
	require.EqualValues(t, 14, general["power_on"].(map[string]any)["log_max_qp"])
	require.EqualValues(t, 18, general["current"].(map[string]any)["log_max_qp"])
	require.EqualValues(t, 23, general["maximum"].(map[string]any)["log_max_qp"])
	require.Equal(t, "real", general["source"].(map[string]any)["log_max_qp"].(map[string]any)["tag"])
	for _, x := range types {
		e := x.(map[string]any)
		for _, key := range []string{"current_hex", "maximum_hex"} {
			require.Len(t, e[key], 2*mlxvfio.CapSize, "%v %s", e["type"], key)
		}
	}
}

// goldenCaps gives the captured bytes of the capability structures, by message.
func goldenCaps(t *testing.T) map[int][]byte {
	paths, err := filepath.Glob("../../../shared/golden/*.jsonl")
	require.NoError(t, err)
	if len(paths) == 0 {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	text, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	out := map[int][]byte{}
	for line := range strings.Lines(string(text)) {
		var m struct {
			Seq       int      `json:"seq"`
			Opcode    string   `json:"opcode"`
			Phase     string   `json:"phase"`
			Mailboxes []string `json:"mailboxes"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if m.Opcode != "0x100" || m.Phase != "output" {
			continue
		}
		for _, box := range m.Mailboxes { // 512 bytes of data each, then the mailbox's own
			b, err := hex.DecodeString(box)
			require.NoError(t, err)
			out[m.Seq] = append(out[m.Seq], b[:512]...)
		}
	}
	return out
}

func TestCapsText(t *testing.T) {
	text := works(t, "caps", "sim:cx4", "--type", "general")
	require.Regexp(t, `log_max_qp +14 +18 +23 +real\b`, text)
	require.Regexp(t, `log_max_qp +18 +14 +23 +18 +18 +set `, text, "the report of SET_HCA_CAP")
	require.NotContains(t, text, "ATOMIC (")
	require.NotRegexp(t, `(?m)^  dtor `, text, "zero fields are left out")
	require.Regexp(t, `(?m)^  dtor +0 +0 +0 +-`, works(t, "caps", "sim:cx4", "--type", "GENERAL", "--all"))
	refuses(t, cli(t, "caps", "sim:cx4", "--type", "TLS"), exitUnsupported, "TLS")
}

func TestSelftest(t *testing.T) {
	text := works(t, "selftest")
	require.Contains(t, text, "the embedded model, sim")
	require.True(t, strings.HasSuffix(text, "\npass\n"))

	devices := []string{"sim", "sim:cx5,port=eth", "sim,load=20000,seed=3"}
	for _, p := range sim.Profiles() {
		devices = append(devices, "sim:"+p)
	}
	for _, dev := range devices {
		o := object(t, "selftest/1", "selftest", dev)
		require.Equal(t, "pass", o["verdict"], dev)
		require.Equal(t, "event", o["mode"])
		require.EqualValues(t, 4, o["vectors"])
		require.Len(t, o["stages"], len(mlxvfio.Stages()))
		for _, s := range o["stages"].([]any) {
			require.NotContains(t, s, "error")
			require.Contains(t, s, "ms")
		}
		for _, c := range o["checks"].([]any) {
			require.Equal(t, true, c.(map[string]any)["ok"], "%v", c)
		}
		pages := o["pages"].(map[string]any)
		require.EqualValues(t, 0, pages["outstanding"])
		require.Greater(t, pages["given"], 0.0)
		require.Equal(t, pages["given"], pages["returned"])
		raw, err := json.Marshal(o)
		require.NoError(t, err)
		var typed selftestResult
		require.NoError(t, json.Unmarshal(raw, &typed))
		require.Zero(t, typed.DMA.Mappings)
		require.NotZero(t, typed.DMA.MapCalls)
		require.NotContains(t, o, "note")
	}
}

func TestSelftestFails(t *testing.T) {
	for _, c := range []struct {
		fault, word, limit string
	}{
		{"status@INIT_HCA=BAD_PARAM_ERR", "stage init-hca", "20s"},
		{"init-never", "stage wait-firmware", "200ms"},
		{"cmdif-rev@4", "revision", "20s"},
		{"status@NOP=INT_ERR", "check event-mode", "20s"},
		{"status@NOP#9=INT_ERR", "check command-burst", "20s"},
		{"lost-irq@0", "interrupt", "20s"},
		{"lost-event@NOP#4", "check command-burst: 1 completion recovered by polling, about a second late: no event was in the queue", "20s"},
		{"lost-irq@0#9", "recovered by polling, about a second late: an interrupt did not arrive", "20s"},
		{"syndrome@1", "check health: the device reports FW_INTERNAL_ERR (severity WARNING)", "20s"},
		{"health-stuck", "check health: the health counter stands still at 1 for 6s", "20s"},
		{"fatal", "the health buffer shows the fatal syndrome FW_INTERNAL_ERR (firmware internal error), severity CRITICAL", "20s"},
		{"fatal@HW_FATAL_ERR", "HW_FATAL_ERR", "20s"},
		{"all-ones@600", "all ones", "20s"},
	} {
		o := cli(t, "selftest", "sim,fault="+c.fault, "--timeout", c.limit)
		refuses(t, o, exitFailed, c.word)
		require.True(t, strings.HasSuffix(o.out, "\nfail\n"), "%s: %s", c.fault, o.out)
		require.Contains(t, o.out, "FAILED: ", c.fault)
		require.Contains(t, o.out, " 0 outstanding", c.fault)
	}
	o := cli(t, "selftest", "sim,fault=status@INIT_HCA=BAD_PARAM_ERR", "--json")
	r := decodeOne(t, "selftest/1", o.out)
	require.Equal(t, "fail", r["verdict"])
	stages := r["stages"].([]any)
	last := stages[len(stages)-1].(map[string]any)
	require.Equal(t, "init-hca", last["stage"])
	require.Contains(t, last["error"], "BAD_PARAM")
	e := decodeOne(t, "error/1", o.err)
	require.Equal(t, "init-hca", e["stage"])
	require.Equal(t, "INIT_HCA", e["opcode"])
	require.Equal(t, "BAD_PARAM_ERR", e["status"])
}

func TestListStages(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(works(t, "selftest", "--list-stages")), "\n")
	require.Len(t, lines, len(mlxvfio.Stages()))
	for i, s := range mlxvfio.Stages() {
		require.Equal(t, s.Name, strings.Fields(lines[i])[0])
	}
	require.Len(t, object(t, "stages/1", "selftest", "--list-stages")["stages"], len(lines))
}

// TestInterrupted ends runs by signals: the device is given back, and the exit
// code says why.
func TestInterrupted(t *testing.T) {
	for _, stage := range []string{"open", "command-queue", "init-pages", "command-eq", "ready"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			p := start(t, "selftest", "sim", "--stop-at", stage)
			p.says("stopped at " + stage + "\n")
			require.NoError(t, p.cmd.Process.Signal(sig))
			o := p.ends()
			refuses(t, o, exitInterrupted, "interrupted after stage "+stage, " 0 outstanding", "the function was given back")
		}
	}
}

// TestReaderLeaves closes the other end of standard output: the program is not
// killed with a device in its hands.
func TestReaderLeaves(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	var errw strings.Builder
	c := exec.Command(os.Args[0], "info", "sim", "--log-level", "info")
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), asProgram+"=1"), w, &errw
	require.Error(t, c.Run())
	require.NoError(t, w.Close())
	require.Equal(t, exitFailed, c.ProcessState.ExitCode(), errw.String())
	require.Contains(t, errw.String(), "broken pipe")
	require.Contains(t, errw.String(), "op=close", "the device was given back")
}

func TestTimeout(t *testing.T) {
	o := cli(t, "info", "sim,fault=init-never", "--timeout", "50ms")
	refuses(t, o, exitFailed, "not done within --timeout 50ms")
}

func TestExec(t *testing.T) {
	text := works(t, "exec", "sim", "query_adapter")
	require.Contains(t, text, "QUERY_ADAPTER (opcode 0x101), 272 bytes of answer")
	require.Regexp(t, `ieee_vendor_id +0x2c9`, text)

	o := object(t, "exec/1", "exec", "sim:cx4", "0x100", "--set", "op_mod=1")
	require.EqualValues(t, 0x100, o["opcode"])
	require.Equal(t, "QUERY_HCA_CAP", o["command"])
	require.Len(t, o["out_hex"], 2*4112)
	require.True(t, strings.HasPrefix(o["in_hex"].(string), "0100000000000001"))

	// The same, byte by byte, and with a shorter answer.
	o = object(t, "exec/1", "exec", "sim:cx4", "QUERY_HCA_CAP", "--in", "0100 0000 0000 0001 0000000000000000", "--out-len", "64")
	require.Len(t, o["out_hex"], 2*64)
	file := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(file, make([]byte, 16), 0o600))
	require.Equal(t, "NOP", object(t, "exec/1", "exec", "sim", "NOP", "--in", "@"+file)["command"])
}

func TestExecRefused(t *testing.T) {
	o := cli(t, "exec", "sim", "0xcff")
	refuses(t, o, exitFailed, "BAD_OP", "0xcff")
	require.Contains(t, o.out, "unnamed command (opcode 0xcff)", "the answer is shown")
	e := decodeOne(t, "error/1", cli(t, "exec", "sim", "0xcff", "--json").err)
	require.Equal(t, "BAD_OP_ERR", e["status"])
	for _, c := range []struct {
		args []string
		word string
	}{
		{[]string{"FROB"}, "FROB"},
		{[]string{"0x10000"}, "0x10000"},
		{[]string{"NOP", "--in", "0x80"}, "1 bytes"},
		{[]string{"NOP", "--in", "xyz"}, "hex"},
		{[]string{"NOP", "--in", "@/no/such/file"}, "/no/such/file"},
		{[]string{"NOP", "--in", "@/dev/zero"}, "the file has more than the 1048576 bytes"},
		{[]string{"NOP", "--in", "0104000000000000 0000000000000000"}, "opcode 0x104"},
		{[]string{"NOP", "--in", strings.Repeat("00", 4096)}, "the input of NOP has"},
		{[]string{"QUERY_ADAPTER", "--out-len", "4"}, "--out-len 4"},
		{[]string{"NOP", "--set", "op_mod"}, "FIELD=VALUE"},
		{[]string{"NOP", "--set", "nosuch=1"}, "nosuch"},
		{[]string{"NOP", "--set", "op_mod=65536"}, "op_mod"},
		{[]string{"0xcff", "--set", "op_mod=1"}, "no layout"},
	} {
		refuses(t, cli(t, append([]string{"exec", "sim"}, c.args...)...), exitUsage, c.word)
	}
}

func TestReg(t *testing.T) {
	text := works(t, "reg", "get", "sim", "paos")
	require.Contains(t, text, "register PAOS (0x5006), 16 bytes")
	require.Regexp(t, `local_port +0x1\n`, text)
	require.Regexp(t, `oper_status +0x1 UP`, text)
	o := object(t, "reg/1", "reg", "get", "sim", "0x5006", "local_port=1")
	require.Equal(t, "PAOS", o["register"])
	require.EqualValues(t, 1, o["fields"].(map[string]any)["local_port"])
	require.Len(t, o["hex"], 32)

	o = object(t, "reg/1", "reg", "set", "sim", "PAOS", "admin_status=DOWN", "ase=1")
	require.Equal(t, "UP", o["before"].(map[string]any)["admin_status"].(map[string]any)["name"])
	require.Equal(t, "DOWN", o["fields"].(map[string]any)["admin_status"].(map[string]any)["name"])

	refuses(t, cli(t, "reg", "get", "sim", "PAOS", "local_port=9"), exitFailed, "PAOS")
	refuses(t, cli(t, "reg", "get", "sim", "0xffee", "--len", "16"), exitFailed, "0xffee")
	refuses(t, cli(t, "reg", "get", "sim", "0xffee"), exitUsage, "--len")
	refuses(t, cli(t, "reg", "get", "sim", "NOSUCH"), exitUsage, "NOSUCH")
	refuses(t, cli(t, "reg", "get", "sim", "PAOS", "colour=1"), exitUsage, "colour")
	refuses(t, cli(t, "reg", "get", "sim", "PAOS", "admin_status=SIDEWAYS"), exitUsage, "SIDEWAYS", "UP")
	refuses(t, cli(t, "reg", "get", "sim", "PAOS", "--len", "7"), exitUsage, "--len 7")
}

// TestRecord reads a record back: every access to the device is in it.
func TestRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "record")
	works(t, "info", "sim", "--record", file)
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	verbs := map[vfio.Verb]int{}
	for e, err := range vfio.ReadRecord(f) {
		require.NoError(t, err)
		verbs[e.Verb]++
	}
	for _, v := range []vfio.Verb{vfio.VerbRead, vfio.VerbWrite, vfio.VerbMapDMA, vfio.VerbUnmapDMA, vfio.VerbClose} {
		require.NotZero(t, verbs[v], "%v in %v", v, verbs)
	}
}

func TestLogLevel(t *testing.T) {
	o := cli(t, "info", "sim", "--log-level", "debug")
	require.Equal(t, exitOK, o.code)
	require.Contains(t, o.err, "op=init-hca")
	o = cli(t, "info", "sim", "--log-level", "debug", "--json")
	for line := range strings.Lines(o.err) {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Empty(t, cli(t, "info", "sim").err, "silent by default")
}

// TestPolled: --polled brings the function up without interrupts, and says so.
func TestPolled(t *testing.T) {
	r := object(t, "selftest/1", "selftest", "sim", "--polled")
	require.Equal(t, "polled", r["mode"])
	require.Zero(t, r["vectors"])
	require.Equal(t, "pass", r["verdict"])
}
