package mlxvfio

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// plan runs the planner on made-up capabilities and answers the rows by field.
func plan(t *testing.T, h host, cur, maximum func(*prm.CmdHCACap)) (map[string]CapRow, *prm.CmdHCACap) {
	t.Helper()
	var c, m [CapSize]byte
	cur(prm.AsCmdHCACap(c[:]))
	maximum(prm.AsCmdHCACap(m[:]))
	next := c
	rows, err := planGeneral(h, c[:], m[:], next[:])
	require.NoError(t, err)
	by := map[string]CapRow{}
	for _, r := range rows {
		by[r.Field] = r
	}
	return by, prm.AsCmdHCACap(next[:])
}

func TestCapsAreClamped(t *testing.T) {
	rows, next := plan(t, host{pageShift: 12, cacheLine: 64},
		func(c *prm.CmdHCACap) {
			c.SetLogMaxQP(8)
			c.SetPkeyTableSize(3)
			c.SetCmdifChecksum(prm.ChecksumInitial)
			c.SetLogMaxCQ(7)
		},
		func(m *prm.CmdHCACap) {
			m.SetLogMaxQP(12)
			m.SetPkeyTableSize(5)
			m.SetCmdifChecksum(3)
			m.SetDCT(true)
		})
	require.Equal(t, CapRow{Type: prm.CapGeneral, Field: "log_max_qp", Requested: 18, Before: 8, Maximum: 12, Sent: 12, Done: "clamped", Why: rows["log_max_qp"].Why}, rows["log_max_qp"])
	require.Equal(t, uint8(12), next.LogMaxQP())
	require.Equal(t, "set", rows["pkey_table_size"].Done)
	require.Zero(t, next.PkeyTableSize())
	require.Equal(t, prm.ChecksumDisabled, next.CmdifChecksum())
	require.True(t, next.DCT())
	require.Equal(t, "not offered", rows["release_all_pages"].Done)
	require.Equal(t, uint8(7), next.LogMaxCQ(), "what the driver does not want stays as it is")
	require.NotContains(t, rows, "uar_4k", "a host with 4 KiB pages has no use for it")
	for _, r := range rows {
		require.NotEmpty(t, r.Why, r.Field)
	}
}

// A host with 64 KiB pages asks for 4 KiB doorbell pages where it can have them.
func TestCapsOfALargePageHost(t *testing.T) {
	none := func(*prm.CmdHCACap) {}
	rows, next := plan(t, host{pageShift: 16, cacheLine: 128}, none, func(m *prm.CmdHCACap) { m.SetUAR4k(true); m.SetCacheLine128byte(true) })
	require.True(t, next.UAR4k())
	require.Equal(t, uint16(4), next.LogUARPageSz())
	require.Equal(t, uint32(16), next.NumOfUARsPerPage())
	require.True(t, next.CacheLine128byte())
	require.Equal(t, "set", rows["log_uar_page_sz"].Done)

	rows, next = plan(t, host{pageShift: 16, cacheLine: 64}, none, none)
	require.False(t, next.UAR4k())
	require.Equal(t, "not offered", rows["uar_4k"].Done)
	require.Equal(t, uint16(4), next.LogUARPageSz())
	require.Zero(t, next.NumOfUARsPerPage())
}

// Checksums are asked for on request; a device that cannot sign is left as it is.
func TestCapsChecksums(t *testing.T) {
	cur := func(c *prm.CmdHCACap) { c.SetCmdifChecksum(prm.ChecksumInitial) }
	_, next := plan(t, host{pageShift: 12, verify: true}, cur, func(m *prm.CmdHCACap) { m.SetCmdifChecksum(3) })
	require.Equal(t, prm.ChecksumEnabled, next.CmdifChecksum())
	rows, next := plan(t, host{pageShift: 12, verify: true}, cur, cur)
	require.Equal(t, prm.ChecksumInitial, next.CmdifChecksum())
	require.Equal(t, "not offered", rows["cmdif_checksum"].Done)
}

// On the capabilities of a real ConnectX-4 the plan changes what Linux changed,
// and nothing else: log_max_qp, which Linux raised to 17 and we to 18.
func TestCapsOfARealDevice(t *testing.T) {
	const path = "../shared/golden/cx4-fw14.12.1220-bringup.jsonl"
	f, err := os.Open(path)
	if err != nil {
		absent.Skip(t, "captured commands of a real ConnectX-4", "none in ../shared/golden")
	}
	defer f.Close()
	caps := map[int][]byte{}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var r struct {
			Seq       int
			Entry     string
			Mailboxes []string
		}
		require.NoError(t, json.Unmarshal(sc.Bytes(), &r))
		if r.Seq != 13 && r.Seq != 15 {
			continue
		}
		var payload []byte
		for _, m := range r.Mailboxes {
			box, err := hex.DecodeString(m)
			require.NoError(t, err)
			payload = append(payload, box[:512]...)
		}
		caps[r.Seq] = append(payload, make([]byte, CapSize-len(payload))...)
	}
	require.NoError(t, sc.Err())
	next := append([]byte(nil), caps[15]...)
	rows, err := planGeneral(host{pageShift: 12, cacheLine: 64}, caps[15], caps[13], next)
	require.NoError(t, err)
	var changed []string
	for _, r := range rows {
		if r.Sent != r.Before {
			changed = append(changed, r.Field)
		}
	}
	require.Equal(t, []string{"log_max_qp"}, changed)
	require.Equal(t, uint8(14), prm.AsCmdHCACap(caps[15]).LogMaxQP())
	require.Equal(t, uint8(18), prm.AsCmdHCACap(next).LogMaxQP())
	for i := range next {
		if i != 0x13 { // the byte of log_max_qp
			require.Equal(t, caps[15][i], next[i], "byte %#x", i)
		}
	}
}

// Virtual functions do not set the host's byte order.
func TestVirtualFunctions(t *testing.T) {
	for id, vf := range map[uint16]bool{0x1013: false, 0x1014: true, 0x101e: true, 0x101f: false, 0xa2d3: true, 0xa2dc: false} {
		require.Equal(t, vf, pciID{Vendor: 0x15b3, Device: id}.virtual(), "%04x", id)
	}
}
