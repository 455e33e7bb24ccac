//go:build linux

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// as "mlxvfio litmus --json" prints it, with most fields and rows left out
const goodCard = `{"schema":"mlxvfio.litmus/1","device":"0000:01:00.0","backend":"type1","firmware":"16.35.4030","mode":"event",
"peer":{"device":"0000:02:00.0","backend":"type1"},"runs":1,"total_ops":34605,"hosts":2,"queues":4,"max_atomic_size":256,"rows":[
{"test":"probe","subject":"15 forms","required":true,"verdict":"holds","ops":480},
{"test":"operations","subject":"8 bytes","required":true,"verdict":"holds","ops":80},
{"test":"adds","subject":"4 bytes","required":true,"verdict":"holds","ops":1500},
{"test":"mutex","subject":"1 byte; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"mutex","subject":"1 byte, by WRITE; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"mutex","subject":"2 bytes; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"mutex","subject":"2 bytes, by WRITE; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"mutex","subject":"4 bytes; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"mutex","subject":"4 bytes, by WRITE; 4 queues, 2 hosts","required":true,"verdict":"holds","ops":1},
{"test":"linear","subject":"32 bytes","required":true,"verdict":"holds","ops":1},
{"test":"torn","subject":"inside","required":true,"verdict":"holds","ops":1},
{"test":"torn","subject":"across","required":false,"verdict":"seen","ops":1},
{"test":"order","subject":"8 bytes","required":true,"verdict":"holds","ops":1}],"ok":true}`

func judgeCard(text string) error {
	var r cardReport
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	b := &bench{backend: "type1", firmware: map[string]string{"0000:01:00.0": "16.35.4030"}}
	if err := b.head(r.dataHead, "litmus/1", byInterrupt, []string{"0000:01:00.0", "0000:02:00.0"}); err != nil {
		return err
	}
	return r.judge(2)
}

func TestJudgeCard(t *testing.T) {
	require.NoError(t, judgeCard(goodCard))
	for _, c := range []struct{ from, to, complaint string }{
		{`litmus/1`, `bench/1`, "mlxvfio.bench/1"},
		{`"mode":"event"`, `"mode":"polled"`, "polled mode"},
		{`"device":"0000:01:00.0"`, `"device":"sim"`, "sim over type1"},
		{`"peer":`, `"other":`, "peer <nil>"},
		{`0000:02:00.0`, `0000:03:00.0`, "want 0000:02:00.0"},
		{`16.35.4030`, `16.35.4031`, "firmware"},
		{`"ok":true`, `"ok":false`, "ok is false"},
		{`"ok":true`, `"faults":["torn-write"],"ok":true`, "torn-write"},
		{`"hosts":2`, `"hosts":1`, "1 hosts"},
		{`"queues":4`, `"queues":1`, "1 queues"},
		{`34605`, `3460`, "3460 operations"},
		{`"max_atomic_size":256`, `"max_atomic_size":8`, "max_atomic_size 8"},
		{`"required":true,"verdict":"holds","ops":1500`, `"required":true,"verdict":"broken","ops":1500`, "broken"},
		{`"required":true,"verdict":"holds","ops":1500`, `"required":true,"verdict":"no time","ops":0`, "was not tried"},
		{`"ops":1500`, `"ops":0`, "no row of adds"},
		{`"verdict":"seen"`, `"verdict":"not seen"`, "blind"},
		{`"verdict":"seen"`, `"verdict":"not offered"`, "was not tried"},
		{`4 bytes, by WRITE; 4 queues, 2 hosts`, `4 bytes, by WRITE; 4 queues, 1 host`, "5 rows about locks"},
	} {
		require.Equal(t, 1, strings.Count(goodCard, c.from), c.from)
		require.ErrorContains(t, judgeCard(strings.Replace(goodCard, c.from, c.to, 1)), c.complaint, "%s → %s", c.from, c.to)
	}
}

func TestJudgeBench(t *testing.T) {
	var good benchReport
	for _, op := range strings.Split(benchOps, ",") {
		good.Latency = append(good.Latency, latencyRow{op, benchIters, 1, 2, 3})
		good.Rate = append(good.Rate, rateRow{op, benchIters, 1, 1e5}, rateRow{op, 208, 16, 1e6})
	}
	require.NoError(t, good.judge())
	require.Contains(t, good.String(), "write 2 µs, send 2 µs")
	for _, spoil := range []func(r *benchReport){
		func(r *benchReport) { r.Latency = r.Latency[1:] },
		func(r *benchReport) { r.Rate = r.Rate[1:] },
		func(r *benchReport) { r.Latency[0].Op = "nop" },
		func(r *benchReport) { r.Latency[1].Iterations-- },
		func(r *benchReport) { r.Latency[2].Min = 0 },
		func(r *benchReport) { r.Latency[3].Typical = 0.5 },
		func(r *benchReport) { r.Latency[4].Max = 1 },
		func(r *benchReport) { r.Rate[0].Rate = 0 },
		func(r *benchReport) { r.Rate[1].Batch = 4 },
		func(r *benchReport) { r.Rate[2].Iterations = 1 },
	} {
		bad := benchReport{Latency: append([]latencyRow{}, good.Latency...), Rate: append([]rateRow{}, good.Rate...)}
		spoil(&bad)
		require.Error(t, bad.judge())
	}
}
