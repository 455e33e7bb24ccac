package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCapsSet(t *testing.T) {
	text := works(t, "caps", "sim", "--set", "log_max_qp=0xf", "release_all_pages=0")
	require.Regexp(t, `(?m)^  CAPABILITY +REQUESTED +POWER-ON +MAXIMUM +NOW +RESULT$`, text)
	require.Regexp(t, `(?m)^  GENERAL\.log_max_qp +15 +14 +23 +15 +set$`, text)
	require.Regexp(t, `(?m)^  GENERAL\.release_all_pages +0 +0 +1 +0 +already$`, text)
	require.NotContains(t, text, "pkey_table_size", "only what was asked for")

	o := object(t, "caps-set/1", "caps", "sim", "--set", "log_max_qp=17", "--set", "ATOMIC.atomic_req_8B_endianness_mode=1")
	rows := rowsOf(t, o, "set")
	require.Len(t, rows, 2)
	for i, want := range []map[string]any{
		{"field": "log_max_qp", "requested": 17., "before": 14., "maximum": 23., "sent": 17., "after": 17., "done": "set"},
		{"field": "atomic_req_8B_endianness_mode", "requested": 1., "before": 0., "maximum": 1., "sent": 1., "after": 1., "done": "set"},
	} {
		for k, v := range want {
			require.Equal(t, v, rows[i][k], "%d %s", i, k)
		}
	}

	// What the device cannot change it ignores: that is a failure, and the table says so.
	out := cli(t, "caps", "sim", "--set", "log_max_cq=20")
	refuses(t, outcome{out.code, "", out.err}, exitFailed, "GENERAL.log_max_cq stays 24")
	require.Regexp(t, `(?m)^  GENERAL\.log_max_cq +20 +24 +24 +24 +ignored$`, out.out)
}

func TestCapsSetRefuses(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"sim --set frob=1", exitUsage, []string{"frob", "--all"}},
		{"sim --set ATOMIC.frob=1", exitUsage, []string{"frob"}},
		{"sim --set log_max_qp", exitUsage, []string{"FIELD=VALUE"}},
		{"sim --set log_max_qp=many", exitUsage, []string{"number of 5 bits"}},
		{"sim --set log_max_qp=32", exitUsage, []string{"does not fit in 5 bits"}},
		{"sim --set csum_cap=1", exitUsage, []string{"ETHERNET_OFFLOADS.csum_cap or IPOIB_OFFLOADS.csum_cap"}},
		{"sim --set log_max_qp=1 --set log_max_qp=2", exitUsage, []string{"twice"}},
		{"sim --set uar_4k=1", exitUsage, []string{"doorbells"}},
		{"sim --set dct=1", exitUnsupported, []string{"stage set-caps", "maximum is 0", "nothing was set"}},
		{"sim --set log_max_qp=15 dct=1", exitUnsupported, []string{"GENERAL.dct=1"}},
		{"sim --set ROCE.sw_r_roce_src_udp_port=1", exitUnsupported, []string{"no capabilities of type ROCE"}},
		{"sim --set dct=0 --type GENERAL", exitUsage, []string{"--type"}},
		{"sim --set dct=0 sim", exitUsage, []string{"FIELD=VALUE"}},
		{"sim,fault=status@SET_HCA_CAP=BAD_PARAM_ERR --set log_max_qp=15", exitFailed, []string{"SET_HCA_CAP", "BAD_PARAM_ERR"}},
	} {
		refuses(t, cli(t, append([]string{"caps"}, strings.Fields(c.args)...)...), c.code, c.says...)
	}
}

// A trial leaves nothing behind, whether it is taken or refused.
func TestCapsSetGivesBack(t *testing.T) {
	sock, ctl := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "c")
	p := start(t, "serve", "sim:cx7", "--socket", sock, "--control", ctl)
	p.says("ready")
	dev := "vfio-user:" + sock
	before := object(t, "caps/1", "caps", dev)
	works(t, "caps", dev, "--set", "log_max_qp=12")
	refuses(t, cli(t, "caps", dev, "--set", "log_max_qp=18"), exitUnsupported, "the maximum is 17")
	raw, err := json.Marshal(object(t, "tell/1", "tell", ctl, "state")["answer"])
	require.NoError(t, err)
	var st chipState
	require.NoError(t, json.Unmarshal(raw, &st))
	require.Equal(t, "off", st.Functions[0].State.Phase)
	require.Zero(t, st.Functions[0].State.Pages+st.Functions[0].State.Mappings)
	require.Equal(t, before["types"], object(t, "caps/1", "caps", dev)["types"], "the next bring-up finds the function as it was")
}
