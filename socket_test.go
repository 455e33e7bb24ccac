package mlxvfio_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// serve offers a function of the model on a socket for the time of the test.
func serve(t *testing.T, c *sim.Chip) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := vfiouser.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	tr := c.Function(0)
	go func() { done <- vfiouser.Serve(ctx, l, tr, vfiouser.Options{}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, tr.Close())
	})
	return path
}

// TestDriverOverSocket runs the suite through the vfio-user client and server:
// memory travels as files, interrupts as eventfds, every register access as a
// message.
func TestDriverOverSocket(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx4"} {
		t.Run(words, func(t *testing.T) {
			path := serve(t, chip(t, words))
			drivertest.Run(t, func(t testing.TB) vfio.Transport {
				tr, err := vfiouser.Dial(context.Background(), path, vfiouser.Options{})
				require.NoError(t, err)
				return tr
			}, drivertest.Options{Sparse: true})
		})
	}
}
