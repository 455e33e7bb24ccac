package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMicrobench(t *testing.T) {
	o := object(t, "microbench/1", "microbench", "post", "--op", "rdma_write,atomic_fa8", "--batch", "1,16", "--runs", "3", "--count", "2000")
	rows := rowsOf(t, o, "rows")
	require.Len(t, rows, 4)
	for _, r := range rows {
		require.Greater(t, r["ns_min"], 0.0)
		require.LessOrEqual(t, r["ns_min"], r["ns_median"])
		require.LessOrEqual(t, r["ns_median"], r["ns_max"])
	}
	require.Equal(t, "atomic_fa8", rows[3]["op"])
	require.EqualValues(t, 16, rows[3]["batch"])
	text := works(t, "microbench", "poll", "--runs", "1", "--count", "5000")
	require.Regexp(t, `(?m)^completion +16 +\d`, text)
	require.Regexp(t, `(?m)^empty +1 +\d`, text)
	refuses(t, cli(t, "microbench", "post", "--op", "frob"), exitUsage, "frob", "rdma_write")
	refuses(t, cli(t, "microbench", "post", "--batch", "65"), exitUsage, "65", "1 to 64")
	refuses(t, cli(t, "microbench", "poll", "--runs", "0"), exitUsage, "--runs")
	for _, what := range []string{"post", "poll"} {
		refuses(t, cli(t, "microbench", what, "--count", "999999999999999999"), exitUsage, "--count", "10000000")
	}
}
