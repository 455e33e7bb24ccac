package pci_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	uroot "github.com/u-root/u-root/pkg/pci"

	"github.com/mlxvfio/mlxvfio/pci"
)

// The pci.ids copy inside u-root was made by others: it is the witness for the
// table here.
func TestIDsAgreeWithPCIIDs(t *testing.T) {
	var known int
	for dev := 0; dev <= 0xffff; dev++ {
		id := pci.Lookup(pci.VendorMellanox, uint16(dev))
		require.Equal(t, uint16(dev), id.Device)
		_, name := uroot.Lookup(uroot.IDs, pci.VendorMellanox, uint16(dev))
		if id.Kind == pci.KindUnknown || !strings.Contains(name, " ") {
			continue // not in one of the two tables (u-root answers with the number)
		}
		known++
		if id.Chip != "" {
			require.Contains(t, name, strings.TrimSuffix(id.Chip, "A0"), "%04x", dev)
		}
		vf := strings.Contains(name, "Virtual Function") || strings.HasSuffix(name, " VF")
		require.Equal(t, vf, id.VF, "%04x %s", dev, name)
		recovery := strings.Contains(name, "Flash Recovery") || strings.Contains(name, "RMA")
		if dev != 0x191 { // a chip older than anything here
			require.Equal(t, recovery, id.Kind == pci.KindRecovery, "%04x %s", dev, name)
		}
	}
	require.Greater(t, known, 80)
}

func TestHCATable(t *testing.T) {
	hcas := pci.HCAs()
	require.Len(t, hcas, 25) // as many as mlx5_core_pci_table has in Linux 6.12
	vfs := 0
	for _, id := range hcas {
		require.Equal(t, pci.KindHCA, id.Kind)
		require.Equal(t, id, pci.Lookup(pci.VendorMellanox, id.Device))
		if id.VF {
			vfs++
			require.Zero(t, id.HWDevID)
		}
		if id.HWDevID != 0 { // the hardware id is the id in recovery mode
			require.Equal(t, pci.KindRecovery, pci.Lookup(pci.VendorMellanox, id.HWDevID).Kind, "%04x", id.Device)
		}
	}
	require.Equal(t, 8, vfs)
}

func TestLookupKinds(t *testing.T) {
	for dev, want := range map[uint16]pci.ID{
		0x1017: {Device: 0x1017, Kind: pci.KindHCA, Name: "ConnectX-5", Chip: "MT27800", HWDevID: 0x20d},
		0x101e: {Device: 0x101e, Kind: pci.KindHCA, Name: "ConnectX family mlx5Gen VF", VF: true},
		0xa2dc: {Device: 0xa2dc, Kind: pci.KindHCA, Name: "BlueField-3 integrated ConnectX-7", Chip: "MT43244", BlueField: true, HWDevID: 0x21c},
		0x020d: {Device: 0x020d, Kind: pci.KindRecovery, Name: "ConnectX-5 flash recovery", Chip: "MT28800"},
		0x1003: {Device: 0x1003, Kind: pci.KindMLX4, Name: "ConnectX-3", Chip: "MT27500"},
	} {
		require.Equal(t, want, pci.Lookup(pci.VendorMellanox, dev))
	}
	require.Equal(t, pci.KindMLX4, pci.Lookup(pci.VendorMellanox, 0x6778).Kind)
	require.Equal(t, pci.KindRelated, pci.Lookup(pci.VendorMellanox, 0xc2d5).Kind)
	require.Equal(t, pci.KindUnknown, pci.Lookup(pci.VendorMellanox, 0xbeef).Kind)
	require.Contains(t, pci.Lookup(pci.VendorMellanox, 0xbeef).Name, "beef")
	require.Equal(t, pci.KindForeign, pci.Lookup(0x8086, 0x1017).Kind)
}
