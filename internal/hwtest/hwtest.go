// Package hwtest gives tests with the build tag hw the function of real hardware
// that they work on, and the way to it. The environment names both:
//
//	MLXVFIO_TEST_BDF             the function, such as 0000:3b:00.0, bound to vfio-pci
//	MLXVFIO_TEST_BACKEND         iommufd, type1 or noiommu; empty: as vfio.Open chooses
//	MLXVFIO_TEST_UNSAFE_NOIOMMU  not empty: a function that no IOMMU guards is accepted
package hwtest

import (
	"os"
	"testing"

	"github.com/mlxvfio/mlxvfio/internal/absent"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Function is the function under test, used by nobody else, and the way to it. It
// skips t when none is named.
func Function(t testing.TB) (bdf string, o vfio.KernelOptions) {
	t.Helper()
	if bdf = os.Getenv("MLXVFIO_TEST_BDF"); bdf == "" {
		absent.Skip(t, "real hardware", "MLXVFIO_TEST_BDF names no function, such as 0000:3b:00.0, bound to vfio-pci")
	}
	return bdf, vfio.KernelOptions{
		Backend:       os.Getenv("MLXVFIO_TEST_BACKEND"),
		UnsafeNoIOMMU: os.Getenv("MLXVFIO_TEST_UNSAFE_NOIOMMU") != "",
	}
}

// Open opens the function under test. The caller closes it.
func Open(t testing.TB) vfio.Transport {
	t.Helper()
	bdf, o := Function(t)
	tr, err := vfio.Open(bdf, o)
	if err != nil {
		t.Fatalf("open the function under test: %v", err)
	}
	return tr
}
