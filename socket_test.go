package mlxvfio_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
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
	first, err := vfiouser.Dial(t.Context(), path, vfiouser.Options{}) // then the server has all its goroutines
	require.NoError(t, err)
	require.NoError(t, first.Close())
	return path
}

// TestDriverOverSocket runs the suite through the vfio-user client and server:
// memory travels as files, interrupts as eventfds, every register access as a
// message.
func TestDriverOverSocket(t *testing.T) {
	for _, words := range profiles() {
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

// TestRecoverOverSocket: the ladder through a socket: opened again after another
// function's reset and after an error that asks for none, a software reset, a
// function-level reset, and a reset of the slot, which vfio-user does not have.
func TestRecoverOverSocket(t *testing.T) {
	for _, tt := range []struct {
		fault, arg string
		by         health.Rung
	}{{"nic-disabled", "now", health.RungReopen}, {"syndrome", "HIGH_TEMP_ERR", health.RungReopen}, {"fatal", "now", health.RungSWReset}, {"fatal", "now+heal=flr", health.RungFLR}, {"fatal", "now+heal=hot-reset", health.RungNone}} {
		c := chip(t, "sim:cx5")
		path := serve(t, c)
		tr, err := vfiouser.Dial(context.Background(), path, vfiouser.Options{})
		require.NoError(t, err)
		w := drivertest.Watch(tr)
		r, err := mlxvfio.NewRecoverable(w, mlxvfio.Options{CommandTimeout: time.Second})
		require.NoError(t, err)
		_, err = r.Open(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.SetFault(tt.fault, tt.arg))
		limits := map[health.Rung]time.Duration{health.RungSWReset: time.Second, health.RungFLR: time.Second}
		delete(limits, tt.by) // only those that fail may be hurried
		rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungHotReset, Consent: agree, Limits: limits})
		require.Equal(t, tt.by, rep.By, "%v", err)
		if tt.by == health.RungNone {
			require.Equal(t, health.OutcomeNotSupported, rep.Rungs[3].Outcome)
			require.ErrorIs(t, err, health.ErrNotRecovered)
		} else {
			require.NoError(t, r.HCA().Conn().NOP(t.Context()))
		}
		require.NoError(t, r.Close(t.Context()))
		for _, l := range r.Ledgers() {
			drivertest.Balanced(t, l)
		}
		w.Check(t)
		n := c.Counters(0)
		require.Zero(t, n.DMAFaults)
		require.Zero(t, n.PagesUnmapped)
	}
}
