package mlxvfio_test

import (
	"bytes"
	"log/slog"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Every type whose gate is set is read, current and maximum, and what is kept is
// what the device answers.
func TestCapTypes(t *testing.T) {
	for words, want := range map[string][]prm.CapType{
		"sim:cx5":   {prm.CapGeneral, prm.CapAtomic},
		"sim:cx6dx": {prm.CapGeneral, prm.CapEthernetOffloads, prm.CapAtomic, prm.CapRoce, prm.CapFlowTable},
		"sim:cx7":   {prm.CapGeneral, prm.CapAtomic},
		"sim:bf3":   {prm.CapGeneral, prm.CapAtomic},
		// What Linux read of a real ConnectX-4 (golden seq 24 to 43).
		"sim:cx4": {prm.CapGeneral, prm.CapEthernetOffloads, prm.CapAtomic, prm.CapRoce, prm.CapFlowTable},
	} {
		h, c := opened(t, words, mlxvfio.Options{})
		for _, typ := range want {
			have, ok := h.Cap(typ)
			require.True(t, ok, "%s: %v", words, typ)
			for mode, kept := range map[cmdif.CapMode][]byte{cmdif.CapCurrent: have.Current, cmdif.CapMaximum: have.Maximum} {
				asked, err := h.Conn().QueryHCACap(t.Context(), typ, mode)
				require.NoError(t, err)
				require.Equal(t, asked, kept)
			}
		}
		for i, kept := range h.Caps() {
			if i > 0 {
				require.Less(t, h.Caps()[i-1].Type, kept.Type)
			}
		}
		closed(t, h, c)
	}
}

// TestMaxAtomicSize: HCA, Info and the log say what package atomics makes of the
// capabilities, not merely the largest bit of their bitmap.
func TestMaxAtomicSize(t *testing.T) {
	var said bytes.Buffer
	h, c := opened(t, "sim:cx5", mlxvfio.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	require.Regexp(t, `level=INFO msg=up .*atomic_sizes="\[4 8 16 32 64 128 256\]" max_atomic_size=256\n`, said.String())
	a, ok := h.Cap(prm.CapAtomic)
	require.True(t, ok)
	for operations, want := range map[uint16]int{0xf: 256, 3: 8, 1: 0, 0: 0} {
		prm.AsAtomicCaps(a.Current).SetAtomicOperations(operations)
		require.Equal(t, want, h.MaxAtomicSize(), "%#x", operations)
		require.Equal(t, want, h.Info().Atomics.MaxQP, "%#x", operations)
	}
	closed(t, h, c)
}

// A type that firmware refuses although its gate is set is left out; the
// function comes up without it.
func TestCapTypeRefused(t *testing.T) {
	h, c := opened(t, "sim:cx4", mlxvfio.Options{})
	all := len(h.Caps())
	queries := 0
	for _, op := range h.Conn().Stats().Ops {
		if op.Opcode == prm.OpQueryHCACap {
			queries = int(op.Count)
		}
	}
	closed(t, h, c)

	// The last pair of queries is the last type; its maximum is asked first.
	o := mlxvfio.Options{}
	c = chip(t, "sim:cx4")
	o.BeforeStage = func(s string) error {
		if s == "query-caps-again" {
			return c.SetFault("status", "QUERY_HCA_CAP#"+strconv.Itoa(queries-2*3-1)+"=BAD_PARAM_ERR")
		}
		return nil
	}
	h, err := mlxvfio.Open(t.Context(), c.Function(0), o)
	require.NoError(t, err)
	require.Len(t, h.Caps(), all-1)
	closed(t, h, c)
}
