package pci_test

import (
	"testing"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/stretchr/testify/require"
)

// TestNames finds the vendor's functions in the order of their addresses, whatever
// else of them cannot be read, and nothing on a machine without a PCI bus.
func TestNames(t *testing.T) {
	m := pcitest.New(t)
	m.Add(pcitest.Spec{BDF: "0000:3b:00.1", Group: 8})
	m.Add(pcitest.Spec{BDF: "0000:3b:00.0", Group: 7, Driver: "mlx5_core"})
	m.Add(pcitest.Spec{BDF: "0000:01:00.0", Device: 0x1003})
	m.Write(pcitest.Device("0000:3b:00.1")+"/resource", "no resources\n")
	var got []string
	for _, n := range pci.Names(m.Options()) {
		got = append(got, n.BDF.String()+" "+n.ID.Name+" "+string(n.ID.Kind)+" "+n.Driver)
	}
	require.Equal(t, []string{
		"0000:01:00.0 ConnectX-3 mlx4 ",
		"0000:3b:00.0 ConnectX-5 hca mlx5_core",
		"0000:3b:00.1 ConnectX-5 hca ",
	}, got)
	require.Empty(t, pci.Names(pci.Options{SysRoot: t.TempDir()}))
}
