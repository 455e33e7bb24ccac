//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseRecord(t *testing.T) {
	r, ok := parseRecord("4,339,5140900,-;vfio-pci 0000:01:00.0: enabling device\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
	require.True(t, ok)
	require.Equal(t, record{4, 5140900, "vfio-pci 0000:01:00.0: enabling device"}, r)
	for _, s := range []string{
		"12,339,5140900,-;written by a program, facility 1",
		"no semicolon",
		"x,1,2,-;text",
		"4,1;text",
	} {
		_, ok := parseRecord(s)
		require.False(t, ok, s)
	}
}

func TestComplaints(t *testing.T) {
	log := []record{
		{6, 0, "vfio-pci 0000:01:00.0: resetting"},
		{3, 0, "DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x1000"},
		{6, 0, "DMAR: DRHD: handling fault status reg 2"},
		{4, 0, "vfio-pci 0000:01:00.0: timed out waiting for pending transaction"},
		{4, 0, "WARNING: CPU: 1 PID: 77 at drivers/iommu/iommu.c:1"},
		{4, 0, "random: unseeded"},
		{4, 0, "mlx5_core 0000:01:00.0: PTM is not supported by PCIe"},
		{6, 0, "mlx5_core 0000:01:00.0: firmware version: 16.35.4030"},
		{7, 0, "mlx5_core: debugging a fault"},
	}
	require.Equal(t, []string{
		"<3> DMAR: [DMA Read NO_PASID] Request device [01:00.0] fault addr 0x1000",
		"<6> DMAR: DRHD: handling fault status reg 2",
		"<4> vfio-pci 0000:01:00.0: timed out waiting for pending transaction",
		"<4> WARNING: CPU: 1 PID: 77 at drivers/iommu/iommu.c:1",
	}, complaints(log))
}

func TestProgramKeepsItsLimit(t *testing.T) {
	o := run(5*time.Second, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
	require.Equal(t, 7, o.code)
	require.False(t, o.ok())
	require.Equal(t, "out", o.stdout)
	require.Equal(t, "err", o.stderr)

	o = run(200*time.Millisecond, "/bin/sh", "-c", "exec sleep 60")
	require.Equal(t, -1, o.code)
	require.ErrorContains(t, o.failure, "killed after its limit")

	p, err := launch(nil, "/bin/sh", "-c", "echo stopped at X; exec sleep 60")
	require.NoError(t, err)
	require.True(t, p.printed("stopped at X", 5*time.Second))
	require.True(t, p.alive())
	require.Equal(t, -1, p.kill().code)
	require.False(t, p.alive())
}
