package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// verbs computes from general capabilities what mlx5_ib's main.c and qp.c make of
// them, under the names of ibv_devinfo.
func verbs(g *prm.CmdHCACap) map[string]uint64 {
	flags := uint64(0)
	for bit, on := range map[int]bool{1: g.Pkv(), 2: g.Qkv(), 4: g.Apm(), 20: g.XRC()} {
		if on {
			flags |= 1 << bit
		}
	}
	return map[string]uint64{
		"max_qp":              1 << g.LogMaxQP(),
		"max_qp_wr":           1 << g.LogMaxQPSz(),
		"max_cq":              1 << g.LogMaxCQ(),
		"max_cqe":             1<<g.LogMaxCQSz() - 1,
		"max_mr":              1 << g.LogMaxMKey(),
		"max_pd":              1 << g.LogMaxPD(),
		"max_srq":             1 << g.LogMaxSRQ(),
		"max_srq_wr":          1<<g.LogMaxSRQSz() - 1,
		"max_qp_rd_atom":      1 << g.LogMaxRaReqQP(),
		"max_res_rd_atom":     1 << (g.LogMaxRaReqQP() + g.LogMaxQP()),
		"max_qp_init_rd_atom": 1 << g.LogMaxRaResQP(),
		"max_mcast_grp":       1 << g.LogMaxMcg(),
		"max_mcast_qp_attach": uint64(g.MaxQPMcg()),
		"local_ca_ack_delay":  uint64(g.LocalCaAckDelay()),
		"max_wq_type_rq":      1 << g.LogMaxRQ(),
		"max_rwq_tables":      1 << g.LogMaxRqt(),
		"max_rwq_table_size":  1 << g.LogMaxRqtSize(),
		"max_msg_sz":          1 << g.LogMaxMsg(),
		"phys_port_cnt":       uint64(g.NumPorts()),
		"hca_core_clock":      uint64(g.DeviceFrequencyKhz()),
		"device_cap_flags":    flags,
	}
}

// TestPublishedLimits: what verbs make of a profile's maxima is what a real device
// showed. The numbers are those of the published listings, not the profile's.
func TestPublishedLimits(t *testing.T) {
	const flags = 1<<1 | 1<<2 | 1<<4 | 1<<20 // of the bits that come from capabilities alone
	for name, want := range map[string]map[string]uint64{
		"cx6dx": {
			"max_qp": 131072, "max_qp_wr": 32768, "max_cq": 16777216, "max_cqe": 4194303, "max_mr": 16777216, "max_pd": 8388608,
			"max_srq": 8388608, "max_srq_wr": 32767, "max_qp_rd_atom": 16, "max_res_rd_atom": 2097152, "max_qp_init_rd_atom": 16,
			"max_mcast_grp": 2097152, "max_mcast_qp_attach": 240, "local_ca_ack_delay": 16, "max_wq_type_rq": 8388608,
			"max_rwq_tables": 524288, "max_rwq_table_size": 2048, "max_msg_sz": 0x40000000, "phys_port_cnt": 1,
			"hca_core_clock": 1000000, "device_cap_flags": 0xed721c36 & flags,
		},
		"cx7": {"phys_port_cnt": 1},
		"bf3": {"max_qp_rd_atom": 16, "device_cap_flags": 0x21361c36 & flags},
	} {
		c, err := New(Options{Profile: name})
		require.NoError(t, err)
		got := verbs(prm.AsCmdHCACap(c.prof.caps(c.port).max[prm.CapGeneral]))
		for k, v := range want {
			require.Equal(t, v, got[k], "%s: %s", name, k)
		}
		require.NoError(t, c.Close())
	}
}

// TestProfileTags: a value that an older device lent is a choice, whatever it was
// there; real is only what names a source of this very device.
func TestProfileTags(t *testing.T) {
	for name, device := range map[string]string{"cx6dx": "ConnectX-6 Dx", "cx7": "ConnectX-7", "bf3": "BlueField-3"} {
		for _, port := range []PortType{PortIB, PortEth} {
			c, err := New(Options{Profile: name, Port: port})
			require.NoError(t, err)
			n := map[Tag]int{}
			for _, v := range c.Values() {
				n[v.Tag]++
				switch v.Name {
				case "cmd_interface_rev", "queue", "ieee_vendor_id", "vsd_vendor_id", "first UAR and first EQN", "vendor-specific capability",
					"device id", "hw_id", "port_type":
					continue // the same for every device, or of tables of all of them
				}
				if v.Tag == Real {
					require.Contains(t, v.Source, device, "%s: %+v", name, v)
					require.NotContains(t, v.Source, "as the ")
				}
			}
			require.Greater(t, n[Real], 5, name)
			require.Greater(t, n[Chosen], 50, "%s: most of it is not published", name)
			require.NoError(t, c.Close())
		}
	}
	c, err := New(Options{Profile: "cx6dx", Port: PortIB})
	require.NoError(t, err)
	for _, v := range c.Values() {
		if v.Name == "class" {
			require.Equal(t, Chosen, v.Tag)
			require.Contains(t, v.Source, "Ethernet ports only")
		}
	}
	require.NoError(t, c.Close())
}

// TestProfileIdentity: ids of the functions that exist, link and revision as
// software sees them in configuration space.
func TestProfileIdentity(t *testing.T) {
	for name, want := range map[string]struct {
		device uint16
		rev    byte
		gen    byte
	}{"cx4": {0x1013, 0, 3}, "cx5": {0x1017, 0, 3}, "cx6dx": {0x101d, 0, 4}, "cx7": {0x1021, 0, 5}, "bf3": {0xa2dc, 1, 5}} {
		r := newRaw(t, Options{Profile: name})
		cfg := make([]byte, 256)
		require.NoError(t, r.dev.ReadRegion(vfio.RegionConfig, 0, cfg))
		require.Equal(t, want.device, uint16(cfg[2])|uint16(cfg[3])<<8, name)
		require.Equal(t, want.rev, cfg[8], name)
		require.Equal(t, want.gen, cfg[capPCIe+0x0c]&0xf, "%s: link capabilities", name)
		require.Equal(t, want.gen, cfg[capPCIe+0x12]&0xf, "%s: link status", name)
		require.Equal(t, byte(1<<want.gen-1)<<1, cfg[capPCIe+0x2c], "%s: supported speeds", name)
	}
}
