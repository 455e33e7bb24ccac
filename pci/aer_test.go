package pci_test

import (
	"testing"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/pci/pcitest"
	"github.com/stretchr/testify/require"
)

func TestReadErrorCounts(t *testing.T) {
	m := pcitest.New(t)
	m.Add(pcitest.Spec{BDF: "0000:3b:00.0"})
	b, err := pci.ParseBDF("0000:3b:00.0")
	require.NoError(t, err)
	c, err := pci.ReadErrorCounts(b, m.Options())
	require.NoError(t, err)
	require.Nil(t, c, "none")

	dir := pcitest.Device("0000:3b:00.0")
	m.Write(dir+"/aer_dev_correctable", "RxErr 0\nBadTLP 3\nTOTAL_ERR_COR 3\n")
	m.Write(dir+"/aer_dev_nonfatal", "Undefined 0\nCmpltTO 2\nTOTAL_ERR_NONFATAL 2\n")
	m.Write(dir+"/aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1\n")
	c, err = pci.ReadErrorCounts(b, m.Options())
	require.NoError(t, err)
	require.Equal(t, &pci.ErrorCounts{
		Correctable: map[string]uint64{"RxErr": 0, "BadTLP": 3, "TOTAL_ERR_COR": 3},
		NonFatal:    map[string]uint64{"Undefined": 0, "CmpltTO": 2, "TOTAL_ERR_NONFATAL": 2},
		Fatal:       map[string]uint64{"DLP": 1, "TOTAL_ERR_FATAL": 1},
	}, c)

	for _, bad := range []string{"RxErr\n", "RxErr x\n", "RxErr 1 2\n", "RxErr -1\n"} {
		m.Write(dir+"/aer_dev_correctable", bad)
		_, err = pci.ReadErrorCounts(b, m.Options())
		require.ErrorContains(t, err, "aer_dev_correctable", bad)
	}
	_, err = pci.ReadErrorCounts(pci.BDF{Device: 32}, m.Options())
	require.ErrorIs(t, err, pci.ErrBadBDF)
}
