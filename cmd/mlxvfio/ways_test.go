package main

import (
	"os"
	"testing"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/mlxvfio/mlxvfio/vfio"
	"github.com/stretchr/testify/require"
)

// TestDoctorForetellsTheWay: on fake machines an open goes the way that the
// doctor says. Their nodes are ordinary files, which open and then fail the first
// system call of VFIO: which file that was is the way.
func TestDoctorForetellsTheWay(t *testing.T) {
	tried := map[string]int{}
	for _, c := range pcitest.Cases() {
		m, where := c.Build(t)
		d, err := pci.Diagnose(mustBDF(t, pcitest.Patient), where)
		require.NoError(t, err)
		if !d.Ready() || d.Way.Backend == "" || d.Function.VFIO == nil {
			continue
		}
		if _, err := os.Stat(m.Path("deny")); err == nil {
			continue // these files open all the same: nobody denies them to the test
		}
		if v := d.Function.VFIO; v.Cdev != nil && v.Cdev.Missing && !v.IOMMUFD.Missing {
			continue // found to be missing after a system call on the other file
		}
		backend := where.Backend
		if backend == "auto" {
			backend = ""
		}
		_, err = vfio.Open(pcitest.Patient, vfio.KernelOptions{Sysfs: where.SysRoot, DevRoot: where.DevRoot, Proc: where.ProcRoot,
			Backend: backend, UnsafeNoIOMMU: where.UnsafeNoIOMMU})
		var e *vfio.Error
		require.ErrorAs(t, err, &e, c.Name)
		file := map[string]string{pci.BackendIOMMUFD: "dev/iommu", pci.BackendType1: "dev/vfio/vfio", pci.BackendNoIOMMU: "dev/vfio/vfio"}[d.Way.Backend]
		require.Equal(t, m.Path(file), e.Target, "%s: %s (%s), and then: %v", c.Name, d.Way.Backend, d.Way.Reason, err)
		tried[d.Way.Backend]++
	}
	for _, backend := range []string{pci.BackendIOMMUFD, pci.BackendType1, pci.BackendNoIOMMU} {
		require.Greater(t, tried[backend], 3, backend)
	}
	require.Equal(t, []string{vfio.BackendIOMMUFD, vfio.BackendType1, vfio.BackendNoIOMMU},
		[]string{pci.BackendIOMMUFD, pci.BackendType1, pci.BackendNoIOMMU}, "one set of names")
}

func mustBDF(t *testing.T, s string) pci.BDF {
	t.Helper()
	b, err := pci.ParseBDF(s)
	require.NoError(t, err)
	return b
}
