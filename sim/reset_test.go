package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestResetDropsObjects: after a reset nothing of the earlier life is left, before
// any ENABLE_HCA could clear it away.
func TestResetDropsObjects(t *testing.T) {
	for name, reset := range resets {
		t.Run(name, func(t *testing.T) {
			r := newRaw(t, Options{}).to(phaseInit)
			r.eventMode(4)
			r.createQP(prm.QPTypeRC, nil)
			r.ok(valid(prm.OpAllocXRCD), 16)
			r.ok(r.srqInput(prm.OpCreateSRQ, 2), 16)
			before := r.chip.State(0)
			for what, n := range map[string]int{"EQs": before.EQs, "UARs": before.UARs, "PDs": before.PDs, "CQs": before.CQs,
				"QPs": before.QPs, "SRQs": before.SRQs, "XRCDs": before.XRCDs, "pages": before.Pages} {
				require.NotZero(t, n, what)
			}
			reset(t, r)
			want := State{
				Phase: "off", NICInterface: r.chip.State(0).NICInterface,
				Mappings: before.Mappings, MapCalls: before.MapCalls, Vectors: before.Vectors, Handles: before.Handles,
				Faults: []string{},
			}
			require.Equal(t, want, r.chip.State(0), "the host's mappings, vectors and handles stay, nothing of the device's")
		})
	}
}

// TestReadOnlyRoCE: roce can be written only where the device says
// roce_rw_supported; elsewhere what is sent is ignored.
func TestReadOnlyRoCE(t *testing.T) {
	r := newRaw(t, Options{Profile: "cx4", Port: PortEth}).to(phaseISSI)
	current := func() bool {
		return prm.AsCmdHCACap(r.ok(cmd(prm.OpQueryHCACap, uint16(prm.CapGeneral)<<1|1, 16), 0x1010)[16:]).Roce()
	}
	off := func() {
		in := cmd(prm.OpSetHCACap, uint16(prm.CapGeneral)<<1, 0x1010)
		copy(in[16:], r.ok(cmd(prm.OpQueryHCACap, uint16(prm.CapGeneral)<<1|1, 16), 0x1010)[16:])
		prm.AsCmdHCACap(in[16:]).SetRoce(false)
		r.ok(in, 16)
	}
	require.True(t, current())
	off()
	require.True(t, current(), "read-only")

	// The same device with the capability to.
	most := r.chip.funcs[0].caps.max.clone()
	prm.AsCmdHCACap(most[prm.CapGeneral]).SetRoceRwSupported(true)
	r.chip.funcs[0].caps.max = most
	off()
	require.False(t, current())
}
