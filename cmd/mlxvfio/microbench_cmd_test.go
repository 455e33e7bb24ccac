package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMicrobenchCmd(t *testing.T) {
	o := object(t, "microbench-cmd/1", "microbench", "cmd", "--message", "inline,caps", "--mode", "events,polled",
		"--latency", "0,2ms", "--slots", "1,31", "--runs", "3", "--count", "93")
	rows := rowsOf(t, o, "rows")
	require.Len(t, rows, 16)
	require.EqualValues(t, 62, o["callers"])
	for _, r := range rows {
		require.Greater(t, r["ns_min"], 0.0)
		require.LessOrEqual(t, r["ns_min"], r["ns_median"])
		require.LessOrEqual(t, r["ns_median"], r["ns_max"])
		require.InEpsilon(t, 1e9/r["ns_median"].(float64), r["per_s"], 0.02)
		switch {
		case r["slots"] == 1.0:
			require.EqualValues(t, 1, r["ratio"])
		case r["latency_ns"] == 2e6:
			// 93 commands of 2 ms in 31 slots are three turns; in one slot at least 93.
			require.Greater(t, r["ratio"], 3.0, "%v", r)
		}
		if r["latency_ns"] == 2e6 && r["slots"] == 1.0 {
			require.GreaterOrEqual(t, r["ns_min"], 2e6)
		}
	}
	require.Equal(t, "caps", rows[15]["message"])
	require.EqualValues(t, 4112, rows[15]["out_bytes"])
	require.Equal(t, "polled", rows[15]["mode"])
	text := works(t, "microbench", "cmd", "--message", "pages", "--mode", "polled", "--latency", "0s", "--slots", "4", "--runs", "1", "--count", "100", "--callers", "3")
	require.Regexp(t, `(?m)^pages +4112 +16 +polled +0s +4 +\d+ .* 1\.00 `, text)
	refuses(t, cli(t, "microbench", "cmd", "--message", "frob"), exitUsage, "frob", "inline")
	refuses(t, cli(t, "microbench", "cmd", "--mode", "frob"), exitUsage, "frob", "polled events")
	refuses(t, cli(t, "microbench", "cmd", "--slots", "32"), exitUsage, "32", "1 to 31")
	refuses(t, cli(t, "microbench", "cmd", "--slots", "0"), exitUsage, "--slots 0")
	refuses(t, cli(t, "microbench", "cmd", "--latency", "2s"), exitUsage, "--latency 2s")
	refuses(t, cli(t, "microbench", "cmd", "--runs", "0"), exitUsage, "--runs")
	refuses(t, cli(t, "microbench", "cmd", "--count", "0"), exitUsage, "--count")
	refuses(t, cli(t, "microbench", "cmd", "--callers", "0"), exitUsage, "--callers")
	refuses(t, cli(t, "microbench", "cmd", "--most", "0s"), exitUsage, "--most")
}
