//go:build hw

package mlxvfio_test

import (
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/hwtest"
)

// TestHardware runs the driver's suite on a real function that is bound to
// vfio-pci (see internal/hwtest for how to name it). It resets the function.
func TestHardware(t *testing.T) {
	hwtest.Function(t) // skips where there is none
	drivertest.Run(t, hwtest.Open, drivertest.Options{Sparse: true})
}
