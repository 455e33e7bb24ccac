package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/stretchr/testify/require"
)

// rowsOf gives a list of objects of a result.
func rowsOf(t *testing.T, o map[string]any, key string) []map[string]any {
	t.Helper()
	list, ok := o[key].([]any)
	require.True(t, ok, "%s: %v", key, o[key])
	var rows []map[string]any
	for _, x := range list {
		rows = append(rows, x.(map[string]any))
	}
	return rows
}

func TestAtomicTable(t *testing.T) {
	text := works(t, "atomic", "table")
	// One byte at offset 1, both orders.
	require.Regexp(t, `MASKED_CS as C&S +1B +1 +8 +c<<8 +0x0000ff00 +s<<8 +0x0000ff00 `, text)
	require.Regexp(t, `MASKED_CS as C&S +1B +1 +16 +c<<16 +0x00ff0000 +s<<16 +0x00ff0000 `, text)
	require.Regexp(t, `MASKED_FA as F&A +2B +2 +16 +— +— +a<<16 +— +0x80000000`, text)
	require.Contains(t, text, "1 (not naturally aligned)")

	o := object(t, "atomic-table/1", "atomic", "table")
	count := map[string]int{}
	for _, r := range rowsOf(t, o, "rows") {
		count[r["order"].(string)]++
		if r["order"] == "big-endian" && r["op"] == "MASKED_FA as F&A" && r["size"] == 1.0 && r["offset"] == 3.0 {
			require.Equal(t, "0x00000080", r["field_boundary"])
			require.Equal(t, "a<<0", r["swap_add"])
		}
	}
	require.Equal(t, map[string]int{"little-endian": 21, "big-endian": 21}, count)
	require.Len(t, o["derived"], 42)
	refuses(t, cli(t, "atomic", "table", "sim"), exitUsage, "usage: mlxvfio atomic table")
	refuses(t, cli(t, "atomic", "tables"), exitUsage, "tables")
}

func TestAtomicProbe(t *testing.T) {
	o := object(t, "atomic-probe/1", "atomic", "probe", "sim:cx5")
	require.EqualValues(t, 256, o["max_atomic_size"])
	require.EqualValues(t, 256, o["max_atomic_write"])
	require.Equal(t, true, o["atomic_writes"])
	require.Equal(t, "little-endian", o["word_order"])
	require.Equal(t, "event", o["mode"])
	forms := map[string]map[string]any{}
	for _, f := range rowsOf(t, o, "forms") {
		forms[fmt.Sprintf("%v/%v", f["opcode"], f["size"])] = f
		require.Zero(t, f["wrong"])
		require.NotZero(t, f["runs"])
	}
	require.Len(t, forms, 15)
	// The model's caps say endianness mode 1: 8-byte replies in host order, others not.
	require.Equal(t, "little-endian", forms["ATOMIC_FA/8"]["reply_order"])
	require.Equal(t, "big-endian", forms["ATOMIC_MASKED_CS/4"]["reply_order"])

	// A device whose words are big-endian is as good: it is found, not refused.
	o = object(t, "atomic-probe/1", "atomic", "probe", "sim:cx5,fault=memory-order")
	require.Equal(t, "big-endian", o["word_order"])

	for _, fault := range []string{"mask-order", "no-boundary"} {
		out := cli(t, "atomic", "probe", "sim:cx5,fault="+fault)
		refuses(t, out, exitFailed, "fault "+fault, "do not rely")
		require.Contains(t, out.out, fault+": ", "the table shows which form")
		out = cli(t, "atomic", "probe", "sim:cx5,fault="+fault, "--json")
		require.Equal(t, fault, decodeOne(t, "error/1", out.err)["fault"])
		decodeOne(t, "atomic-probe/1", out.out)
	}
	require.Regexp(t, `(?m)^ATOMIC_MASKED_FA +32 +little-endian +big-endian +32 +0$`, works(t, "atomic", "probe", "sim:cx4,port=eth", "--polled"))
}

// TestAtomicRun does operations whose outcome is worked out by hand: the block
// holds its offsets.
func TestAtomicRun(t *testing.T) {
	for _, c := range []struct {
		args  string
		old   string
		after string // of the bytes from the offset on
	}{
		{"--op cas --size 1 --offset 3 --compare 3 --value 0x5a", "0x3", "5a0405"},
		{"--op cas --size 1 --offset 3 --compare 4 --value 0x5a", "0x3", "0304"},
		{"--op swap --size 2 --offset 1 --value 0xbeef", "0x201", "efbe0304"},
		{"--op add --size 2 --offset 2 --value 0xfffe", "0x302", "000304"},
		{"--op add --size 1 --offset 0 --memory ff --value 2", "0xff", "010102"},
		{"--op and --size 1 --offset 7 --value 5", "0x7", "0508"},
		{"--op or --size 4 --offset 8 --value 0xf0000000", "0xb0a0908", "08090afb0c"},
		{"--op xor --size 8 --offset 16 --value 0xff", "0x1716151413121110", "ef111213"},
		{"--op masked-cas --size 4 --offset 4 --compare 0x05 --value 0xaabbccdd --compare-mask 0xff --swap-mask 0xff00", "0x7060504", "04050607"},
		{"--op masked-cas --size 4 --offset 4 --compare 0x04 --value 0xaabbccdd --compare-mask 0xff --swap-mask 0xff00", "0x7060504", "04cc0607"},
		{"--op masked-cas --size 8 --offset 8 --compare 0xff08 --value 0 --mask 0xff", "0xf0e0d0c0b0a0908", "00090a"},
		{"--op masked-add --size 4 --offset 0 --memory ff00ff00 --value 0x00010001 --mask 0x00800080", "0xff00ff", "00000000"},
	} {
		o := object(t, "atomic-run/1", append([]string{"atomic", "run", "sim"}, strings.Fields(c.args)...)...)
		require.Equal(t, []any{c.old}, rowsOf(t, o, "returned")[0]["old"], c.args)
		at := 2 * int(o["offset"].(float64))
		require.Equal(t, c.after, o["after"].(string)[at:at+len(c.after)], c.args)
		require.Len(t, o["before"], 512)
	}
	o := object(t, "atomic-run/1", "atomic", "run", "sim", "--op", "add", "--offset", "8", "--value", "1", "--count", "3")
	require.Len(t, o["returned"], 3)
	require.Equal(t, "0b090a0b0c0d0e0f", o["after"].(string)[16:32])
	wqe := o["wqe"].(map[string]any)
	require.Equal(t, "ATOMIC_FA", wqe["opcode"])
	require.Len(t, wqe["hex"], 2*64)

	o = object(t, "atomic-run/1", "atomic", "run", "sim", "--op", "swap", "--size", "16", "--offset", "32", "--value", "1,0x22")
	require.Equal(t, []any{"0x2726252423222120", "0x2f2e2d2c2b2a2928"}, rowsOf(t, o, "returned")[0]["old"])
	require.Equal(t, "01000000000000002200000000000000", o["after"].(string)[64:96])

	text := works(t, "atomic", "run", "sim", "--op", "cas", "--size", "1", "--offset", "5", "--compare", "9", "--value", "1", "--assume")
	require.Contains(t, text, "returned       0x5, no match: nothing stored")
	require.Contains(t, text, "after          00 01 02 03 04[05]06")
	require.Contains(t, text, "(assumed)")
	require.Regexp(t, `ctrl\{.*ATOMIC_MASKED_CS`, text)
}

func TestAtomicRunRefuses(t *testing.T) {
	for _, c := range []struct {
		dev, args string
		code      int
		words     []string
	}{
		{"sim", "", exitUsage, []string{"--op is missing"}},
		{"sim", "--op frob --value 1", exitUsage, []string{"frob", "masked-cas"}},
		{"sim", "--op cas --value 1", exitUsage, []string{"needs --compare"}},
		{"sim", "--op masked-cas --value 1 --compare 0", exitUsage, []string{"needs --mask, or --compare-mask and --swap-mask"}},
		{"sim", "--op masked-cas --value 1 --compare 0 --swap-mask 1", exitUsage, []string{"needs --compare-mask"}},
		{"sim", "--op masked-cas --value 1 --compare 0 --mask y", exitUsage, []string{`--mask "y" is no number`}},
		{"sim", "--op masked-cas --value 1 --compare 0 --mask 1 --swap-mask y", exitUsage, []string{`--swap-mask "y" is no number`}},
		{"sim", "--op masked-add --value 1 --mask y", exitUsage, []string{`--mask "y" is no number`}},
		{"sim", "--op add --value x", exitUsage, []string{`--value "x"`}},
		{"sim", "--op add --value 1 --mask 1", exitUsage, []string{"--mask belongs"}},
		{"sim", "--op add --value 1 --count 0", exitUsage, []string{"--count"}},
		{"sim", "--op add --value 1 --size 8 --offset 250", exitUsage, []string{"256 bytes"}},
		{"sim", "--op add --value 1 --offset 9223372036854775800", exitUsage, []string{"256 bytes"}},
		{"sim", "--op add --value 1 --offset 8 --size 9223372036854775807", exitUsage, []string{"256 bytes"}},
		{"sim", "--op add --value 1 --size 3", exitUsage, []string{"powers of two"}},
		{"sim", "--op add --value 1 --size 4 --offset 2", exitUsage, []string{"not aligned", "align the variable"}},
		{"sim", "--op swap --value 1 --size 2 --offset 3", exitUsage, []string{"crosses a 4-byte word"}},
		{"sim", "--op swap --value 256 --size 1", exitUsage, []string{"swap 0x100", "must not exceed 0xff"}},
		{"sim", "--op swap --value 1,2,3 --size 16", exitUsage, []string{"want 2"}},
		{"sim", "--op swap --value 1 --memory 0", exitUsage, []string{"--memory", "16 hex digits"}},
		{"sim:cx4", "--op swap --value 1 --size 64", exitUnsupported, []string{"atomic_size_qp"}},
	} {
		refuses(t, cli(t, append([]string{"atomic", "run", c.dev}, strings.Fields(c.args)...)...), c.code, c.words...)
	}
}

func TestLitmusHolds(t *testing.T) {
	runs := [][]string{{"sim:cx5,port=eth", "--polled"}, {"sim:cx4,port=ib"}, {"sim", "--peer", "sim"}}
	for _, p := range sim.Profiles() {
		runs = append(runs, []string{"sim:" + p})
	}
	for _, args := range runs {
		o := object(t, "litmus/1", append([]string{"litmus"}, args...)...)
		require.Equal(t, true, o["ok"], "%v", args)
		require.Nil(t, o["faults"])
		hosts := 1
		if len(args) == 3 {
			hosts = 2
		}
		require.EqualValues(t, hosts, o["hosts"])
		seen := map[string]bool{}
		for _, r := range rowsOf(t, o, "rows") {
			require.NotEqual(t, "broken", r["verdict"])
			seen[fmt.Sprint(r["test"], " ", r["verdict"])] = true
		}
		for _, want := range []string{"operations holds", "adds holds", "mutex holds", "linear holds", "torn holds", "torn seen", "order holds"} {
			require.True(t, seen[want], "%v: %s", args, want)
		}
	}
	text := works(t, "litmus", "sim", "--runs", "2", "--seed", "7")
	require.Contains(t, text, "every guarantee holds; 2 runs")
	require.Contains(t, text, "seed 8,", "the card is the last run's")
}

func TestLitmusFindsFaults(t *testing.T) {
	for _, fault := range []string{"mask-order", "no-boundary", "torn-write", "late-write", "lost-update", "no-fence"} {
		o := cli(t, "litmus", "sim:cx5,fault="+fault, "--json")
		require.Equal(t, exitFailed, o.code, fault)
		card := decodeOne(t, "litmus/1", o.out)
		require.Equal(t, false, card["ok"])
		require.Contains(t, card["faults"], fault)
		e := decodeOne(t, "error/1", o.err)
		require.Contains(t, e["error"], fault)
		require.Contains(t, card["faults"], e["fault"])
		require.EqualValues(t, exitFailed, e["exit"])
	}
	o := cli(t, "litmus", "sim:cx5,fault=no-boundary")
	refuses(t, o, exitFailed, "fault no-boundary", "do not rely on atomics")
	require.Contains(t, o.out, "broken: no-boundary")
	require.Contains(t, o.out, "a guarantee is broken: no-boundary")
}

func TestBench(t *testing.T) {
	o := object(t, "bench/1", "bench", "sim", "--iters", "64", "--op", "write,send,read,add,masked-cas", "--size", "4,8,2000", "--inline", "16", "--batch", "1,8", "--signal", "4")
	require.Equal(t, "polled", o["mode"])
	lat, rate := rowsOf(t, o, "latency"), rowsOf(t, o, "rate")
	require.Len(t, lat, 3*3+2+2, "atomics of 2000 bytes do not exist")
	require.Len(t, rate, 2*len(lat))
	for _, r := range lat {
		require.EqualValues(t, 64, r["iterations"])
		require.Equal(t, r["bytes"].(float64) <= 16 && (r["op"] == "write" || r["op"] == "send"), r["inline"])
		require.LessOrEqual(t, r["t_min_us"], r["t_typical_us"])
		require.LessOrEqual(t, r["t_typical_us"], r["t_99_us"])
		require.LessOrEqual(t, r["t_99_us"], r["t_999_us"])
		require.LessOrEqual(t, r["t_999_us"], r["t_max_us"])
		require.Greater(t, r["rate"], 0.0)
	}
	for _, r := range rate {
		require.EqualValues(t, 4, r["signal"])
		require.InDelta(t, 1e9, r["ns"].(float64)*r["rate"].(float64), 2e7, "rate and time an operation agree")
	}
	text := works(t, "bench", "sim", "--iters", "20", "--op", "add", "--latency", "--events")
	require.Regexp(t, `(?m)^OP +#bytes +#iterations +t_min +t_max +t_typical +t_avg +t_stdev +99% +99\.9% `, text)
	require.Contains(t, text, "event mode")
	require.NotContains(t, text, "outstanding")

	refuses(t, cli(t, "bench", "sim", "--op", "frob"), exitUsage, "frob", "masked-add")
	for _, sizes := range []string{"3", "512", "3,12"} {
		refuses(t, cli(t, "bench", "sim", "--op", "write,add", "--size", sizes), exitUsage, "--op add", "powers of two from 1 to 256")
	}
	refuses(t, cli(t, "bench", "sim", "--op", "cas", "--size", "256"), exitUsage, "--op cas", "the largest is 128 bytes")
	refuses(t, cli(t, "bench", "sim", "--depth", "8"), exitUsage, "--batch 16", "1 to 8")
	refuses(t, cli(t, "bench", "sim", "--depth", "16", "--signal", "16"), exitUsage, "--signal 16")
	refuses(t, cli(t, "bench", "sim:cx4", "--op", "add", "--size", "64"), exitUnsupported, "add", "atomic_size_qp")
}

func TestSelftestMovesData(t *testing.T) {
	for _, args := range [][]string{{"sim:cx5"}, {"sim:cx5,port=eth"}, {"sim:cx4,port=ib", "--polled"}} {
		o := object(t, "selftest/1", append([]string{"selftest"}, args...)...)
		notes := map[string]string{}
		for _, c := range rowsOf(t, o, "checks") {
			require.Equal(t, true, c["ok"])
			notes[c["check"].(string)] = c["note"].(string)
		}
		require.Regexp(t, `max_atomic_size (256|32), atomic_mode UP_TO_`, notes["atomics-preflight"])
		require.Contains(t, notes["data-path"], "loopback")
		for _, c := range []string{"send", "write", "read", "atomics"} {
			require.Regexp(t, `\d+ operations, \d+ bytes moved`, notes[c], c)
		}
		require.Contains(t, notes["atomics"], "8 kinds")
		require.Contains(t, notes["atomics-probe"], "little-endian")
		require.Contains(t, notes["datagrams"], "all memory compared")
		require.Contains(t, notes["cross-channel"], "WRITEs held back")
		require.Equal(t, "14 of 14 operations done by loopback", notes["opcodes"])
		for _, r := range rowsOf(t, o, "opcodes") {
			require.Greater(t, r["done"], 0.0, r)
			require.NotContains(t, r, "note")
		}
	}
	// A device that does atomics wrong does not pass.
	o := cli(t, "selftest", "sim,fault=mask-order")
	refuses(t, o, exitFailed, "check atomics-probe", "mask-order")
	require.Contains(t, o.out, "0 outstanding\nfail\n")
}

// TestSelftestOpcodes: an operation that the device lacks is shown with the reason, one
// that was left out in silence is a failure.
func TestSelftestOpcodes(t *testing.T) {
	err := onModel(t, func(ctx context.Context, s *session) error {
		s.Queues().Caps.CrossChannel = false
		_, err := checkDataPath(ctx, s)
		require.NoError(t, err)
		_, err = checkOpcodes(ctx, s)
		require.EqualError(t, err, "NOP on RC is offered by the device, and no check has done it")
		for _, c := range selfChecks {
			switch c.name {
			case "nop", "send", "write", "read", "atomics", "datagrams":
				_, err := c.run(ctx, s)
				require.NoError(t, err)
			case "cross-channel":
				note, err := c.run(ctx, s)
				require.NoError(t, err)
				require.Equal(t, "not supported by this device: capability cd is 0", note)
			}
		}
		note, err := checkOpcodes(ctx, s)
		require.NoError(t, err)
		require.Equal(t, "12 of 14 operations done by loopback, 2 not supported by this device", note)
		var out strings.Builder
		(&selftestResult{Opcodes: s.exerciser.Opcodes()}).text(&out)
		require.Regexp(t, `(?m)^WAIT +RC +0 +not supported by this device: capability cd is 0$`, out.String())
		require.Regexp(t, `(?m)^NOP +RC +\d+ *$`, out.String())
		return nil
	})
	require.NoError(t, err)
}

// servedState asks a served model what its first function holds.
func servedState(t *testing.T, ctl string) sim.State {
	t.Helper()
	raw, err := json.Marshal(object(t, "tell/1", "tell", ctl, "state")["answer"])
	require.NoError(t, err)
	var s chipState
	require.NoError(t, json.Unmarshal(raw, &s))
	return s.Functions[0].State
}

// TestDataInterrupted ends runs by a signal: the function on the other side of the
// socket holds nothing afterwards.
func TestDataInterrupted(t *testing.T) {
	dir := socketDir(t)
	sock, ctl := filepath.Join(dir, "s"), filepath.Join(dir, "c")
	start(t, "serve", "--socket", sock, "--control", ctl).says("ready")
	for _, args := range [][]string{
		{"litmus", "vfio-user:" + sock, "--for", "1h"}, {"bench", "vfio-user:" + sock, "--iters", "10000000", "--op", "add"},
	} {
		p := start(t, args...)
		require.Eventually(t, func() bool { return servedState(t, ctl).QPs > 0 }, 20*time.Second, 20*time.Millisecond)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		o := p.ends()
		refuses(t, o, exitInterrupted, "interrupted", "1030 returned, 0 outstanding", "given back")
		st := servedState(t, ctl)
		require.Equal(t, make([]int, 8), []int{st.QPs, st.CQs, st.MKeys, st.PDs, st.UARs, st.EQs, st.Mappings, st.Pages}, "%v: %+v", args, st)
	}
	// While it builds, runs, or closes: at whatever moment.
	for _, after := range []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 200 * time.Millisecond} {
		p := start(t, "litmus", "vfio-user:"+sock, "--for", "1h")
		time.Sleep(after)
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
		o := p.ends()
		require.Contains(t, []int{exitInterrupted, -1}, o.code, "%s", o.err) // −1: before the program listens to signals
		require.NotContains(t, o.err, "not freed")
	}
	refuses(t, cli(t, "litmus", "sim", "--for", "1h", "--timeout", "200ms"), exitFailed, "--timeout 200ms")
}

// TestLinkedServers puts two processes on one wire: two hosts that lock, update and
// write the same memory.
func TestLinkedServers(t *testing.T) {
	for _, port := range []string{"ib", "eth"} {
		dir := socketDir(t)
		s1, s2, wire, ctl := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "w"), filepath.Join(dir, "c")
		// The one that finds nobody listens, the other connects; either may be first.
		p1 := start(t, "serve", "cx5,port="+port, "--socket", s1, "--link", wire, "--control", ctl)
		require.Contains(t, p1.says("\n"), "end 0 of the wire "+wire+" (nobody at the other end)")
		p2 := start(t, "serve", "cx5,seed=2,port="+port, "--socket", s2, "--link", wire)
		require.Contains(t, p2.says("\n"), "end 1 of the wire "+wire+" (up)")

		require.Eventually(t, func() bool {
			return strings.Contains(works(t, "tell", ctl, "state"), "\nend 0 of the wire "+wire+" (up)\n")
		}, 20*time.Second, 10*time.Millisecond)

		o := object(t, "litmus/1", "litmus", "vfio-user:"+s1, "--peer", "vfio-user:"+s2)
		require.Equal(t, true, o["ok"])
		require.EqualValues(t, 2, o["hosts"])
		locks := 0
		for _, r := range rowsOf(t, o, "rows") {
			if r["test"] == "mutex" {
				require.Equal(t, "holds", r["verdict"])
				require.Contains(t, r["subject"], "2 hosts")
				locks++
			}
		}
		require.Equal(t, 6, locks)

		b := object(t, "bench/1", "bench", "vfio-user:"+s1, "--peer", "vfio-user:"+s2, "--iters", "20", "--op", "write,send,read,add", "--size", "8")
		require.Len(t, b["latency"], 4)
		require.Equal(t, "vfio-user:"+s2, b["peer"].(map[string]any)["device"])

		for _, p := range []*program{p1, p2} {
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
			require.Equal(t, exitOK, p.ends().code)
		}
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, "the sockets are removed")
	}
}
