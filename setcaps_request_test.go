package mlxvfio_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// asked are the rows of a capability report that the caller wanted, by field.
func asked(h *mlxvfio.HCA) map[string]mlxvfio.CapRow {
	m := map[string]mlxvfio.CapRow{}
	for _, r := range h.CapReport() {
		if r.Asked {
			m[r.Field] = r
		}
	}
	return m
}

// What the caller asks for replaces what the driver wants, and the report says
// what the device made of it.
func TestCapRequests(t *testing.T) {
	h, c := opened(t, "sim:cx5", mlxvfio.Options{Capabilities: []mlxvfio.CapRequest{
		{Type: prm.CapGeneral, Field: "log_max_qp", Value: 15},
		{Type: prm.CapGeneral, Field: "release_all_pages", Value: 0},
		{Type: prm.CapGeneral, Field: "log_max_cq", Value: 20},
		{Type: prm.CapAtomic, Field: "atomic_req_8B_endianness_mode", Value: 0},
	}})
	rows := asked(h)
	require.Len(t, rows, 4)
	r := rows["log_max_qp"]
	require.Equal(t, []any{uint64(15), uint64(14), uint64(23), uint64(15), uint64(15), "set"}, []any{r.Requested, r.Before, r.Maximum, r.Sent, r.After, r.Done})
	require.Equal(t, "already", rows["release_all_pages"].Done)
	require.Equal(t, "ignored", rows["log_max_cq"].Done, "the device changes only what can be written")
	require.EqualValues(t, 24, rows["log_max_cq"].After)
	require.Equal(t, "already", rows["atomic_req_8B_endianness_mode"].Done)
	seen := map[string]int{}
	for _, r := range h.CapReport() {
		seen[r.Field]++
	}
	for f := range rows {
		require.Equal(t, 1, seen[f], "%s: the driver's own wish gives way", f)
	}
	require.Equal(t, 1, seen["pkey_table_size"], "its other wishes stay")
	g, ok := h.Cap(prm.CapGeneral)
	require.True(t, ok)
	v, err := g.Get("log_max_qp")
	require.NoError(t, err)
	require.EqualValues(t, 15, v)
	require.Zero(t, prm.AsAtomicCaps(mustCap(t, h, prm.CapAtomic).Current).AtomicReq8BEndiannessMode())
	closed(t, h, c)

	// A type that no driver sets is read for the request, and keeps its values.
	h, c = opened(t, "sim:cx4", mlxvfio.Options{Capabilities: []mlxvfio.CapRequest{{Type: prm.CapEthernetOffloads, Field: "csum_cap", Value: 0}}})
	require.Equal(t, "ignored", asked(h)["csum_cap"].Done)
	require.NotNil(t, mustCap(t, h, prm.CapEthernetOffloads).PowerOn)
	closed(t, h, c)
}

func mustCap(t *testing.T, h *mlxvfio.HCA, typ prm.CapType) *mlxvfio.Capability {
	t.Helper()
	c, ok := h.Cap(typ)
	require.True(t, ok)
	return c
}

// An impossible request is refused before any capability is set, whatever stands
// beside it, and the function is given back.
func TestCapRequestsRefused(t *testing.T) {
	good := mlxvfio.CapRequest{Type: prm.CapGeneral, Field: "log_max_qp", Value: 15}
	general := func(f string, v uint64) mlxvfio.CapRequest {
		return mlxvfio.CapRequest{Type: prm.CapGeneral, Field: f, Value: v}
	}
	for _, x := range []struct {
		words, stage string
		bad          mlxvfio.CapRequest
		err          error
		says         string
	}{
		{"sim", "open", general("frob", 1), mlxvfio.ErrCapUnknown, "frob"},
		{"sim", "open", mlxvfio.CapRequest{Type: 0x7f, Field: "x"}, mlxvfio.ErrCapUnknown, "no layout"},
		{"sim", "open", general("log_max_qp_sz", 256), mlxvfio.ErrCapValue, "8 bits"},
		{"sim", "open", general("log_uar_page_sz", 4), mlxvfio.ErrCapOwned, "doorbells"},
		{"sim", "open", general("cmdif_checksum", 3), mlxvfio.ErrCapOwned, "VerifyChecksums"},
		{"sim", "open", good, mlxvfio.ErrCapTwice, ""},
		{"sim", "set-caps", general("dct", 1), mlxvfio.ErrCapAboveMax, "the maximum is 0"},
		{"sim", "set-caps", general("log_max_mkey", 25), mlxvfio.ErrCapAboveMax, "the maximum is 24"},
		{"sim", "set-caps", mlxvfio.CapRequest{Type: prm.CapRoce, Field: "sw_r_roce_src_udp_port", Value: 1}, mlxvfio.ErrCapMissing, "no capabilities of type ROCE"},
		{"sim:cx4", "set-caps", general("roce", 0), mlxvfio.ErrCapMissing, "roce_rw_supported"},
		{"sim:cx4", "set-caps", mlxvfio.CapRequest{Type: prm.CapAtomic, Field: "atomic_req_8B_endianness_mode", Value: 1}, mlxvfio.ErrCapAboveMax, "the maximum is 0"},
	} {
		t.Run(x.bad.String(), func(t *testing.T) {
			c := chip(t, x.words)
			sets := 0
			_, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{
				Capabilities: []mlxvfio.CapRequest{good, x.bad},
				Trace: func(r cmdif.TraceEvent) {
					if r.Opcode == prm.OpSetHCACap {
						sets++
					}
				},
			})
			var se *mlxvfio.StageError
			require.ErrorAs(t, err, &se)
			require.Equal(t, x.stage, se.Stage)
			require.NotEmpty(t, se.Remedy)
			var re *mlxvfio.CapRequestError
			require.ErrorAs(t, err, &re)
			require.Equal(t, x.bad, re.Request)
			require.ErrorIs(t, err, x.err)
			require.ErrorContains(t, err, x.says)
			require.ErrorContains(t, err, "nothing was set")
			require.Zero(t, sets)
			require.Zero(t, se.Ledger.Outstanding)
			s := c.State(0)
			require.Zero(t, s.Handles+s.Mappings+s.Vectors)
			if x.stage == "open" {
				require.ErrorIs(t, mlxvfio.CheckCapRequests([]mlxvfio.CapRequest{good, x.bad}), x.err)
			}
		})
	}
	require.NoError(t, mlxvfio.CheckCapRequests([]mlxvfio.CapRequest{good, general("dct", 1)}), "only the device can say")
}
