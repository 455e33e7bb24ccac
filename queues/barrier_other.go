//go:build !amd64

package queues

import "github.com/mlxvfio/mlxvfio/internal/mmio"

// toDevice orders the WQE before the doorbell record, and the record before the
// doorbell.
func toDevice() { mmio.ToDevice() }

// fromDevice orders the ownership word of a CQE before the rest of it.
func fromDevice() { mmio.FromDevice() }
