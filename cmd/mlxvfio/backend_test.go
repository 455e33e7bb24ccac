package main

import (
	"testing"

	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/stretchr/testify/require"
)

// Which way into a function may be taken, and what is said where there is none.
func TestBackend(t *testing.T) {
	refuses(t, cli(t, "info", "sim", "--backend", "nosuch"), exitUsage, "nosuch", "auto, iommufd, type1, noiommu")
	refuses(t, cli(t, "info", "sim", "--backend", "iommufd"), exitUsage, "--backend iommufd", "not for sim")
	works(t, "info", "sim", "--backend", "auto")

	_, where := machine(t)
	require.Equal(t, exitOK, cliOn(t, where, "bind", testBDF).code)
	refuses(t, cliOn(t, where, "info", testBDF, "--backend", "noiommu", "--unsafe-noiommu"), exitUnavailable, "an IOMMU guards it", "noiommu")
	refuses(t, cliOn(t, where, "info", testBDF, "--backend", "iommufd"), exitUnavailable, "the kernel makes no such files", "VFIO_DEVICE_CDEV")
}

// A function that no IOMMU guards is opened only by who says so; here there is no
// kernel behind the files, so that the last step fails.
func TestOpenNoIOMMU(t *testing.T) {
	m := pcitest.New(t)
	m.Add(pcitest.Spec{BDF: testBDF, Driver: "mlx5_core"})
	where := m.Options()
	require.Equal(t, exitOK, cliOn(t, where, "bind", testBDF, "--unsafe-noiommu").code)
	for _, verb := range [][]string{{"info"}, {"selftest"}, {"caps"}, {"exec"}} {
		args := append(verb, testBDF)
		if verb[0] == "exec" {
			args = append(args, "NOP")
		}
		refuses(t, cliOn(t, where, args...), exitUnavailable, "no IOMMU guards it", "--unsafe-noiommu")
	}
	for _, backend := range []string{"type1", "iommufd"} {
		refuses(t, cliOn(t, where, "info", testBDF, "--unsafe-noiommu", "--backend", backend), exitUnavailable, "no IOMMU guards it", "backend "+backend)
	}
	refuses(t, cliOn(t, where, "info", testBDF, "--backend", "noiommu"), exitUnavailable, "no IOMMU guards it", "--unsafe-noiommu")
	o := cliOn(t, where, "info", testBDF, "--unsafe-noiommu")
	require.Equal(t, exitUnavailable, o.code, "%s", o.err)
	require.NotContains(t, o.err, "guards it", "it was accepted")
	e := decodeOne(t, "error/1", cliOn(t, where, "info", testBDF, "--json").err)
	require.EqualValues(t, exitUnavailable, e["exit"])
	require.Contains(t, e["remedy"], "--unsafe-noiommu")
}
