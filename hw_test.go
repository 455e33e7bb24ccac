//go:build hw

package mlxvfio_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestHardware runs the driver's suite on a real function that is bound to
// vfio-pci and named by MLXVFIO_TEST_BDF. It resets the function.
func TestHardware(t *testing.T) {
	bdf := os.Getenv("MLXVFIO_TEST_BDF")
	if bdf == "" {
		t.Skip("MLXVFIO_TEST_BDF names no function, such as 0000:3b:00.0, bound to vfio-pci")
	}
	drivertest.Run(t, func(t testing.TB) vfio.Transport {
		tr, err := vfio.OpenGroup(bdf, vfio.KernelOptions{})
		require.NoError(t, err)
		return tr
	}, drivertest.Options{Sparse: true})
}
