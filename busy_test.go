package mlxvfio_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestSecondOpener: who opens a function that is open learns it at once, by either way
// in, and the first one never notices.
func TestSecondOpener(t *testing.T) {
	c := chip(t, "sim:cx5")
	h, err := mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err)
	resets := c.Counters(0).Resets

	_, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.ErrorIs(t, err, vfio.ErrBusy)
	var se *mlxvfio.StageError
	require.ErrorAs(t, err, &se)
	require.Empty(t, se.Done)
	require.Empty(t, se.Undo)
	_, err = mlxvfio.NewRecoverable(c.Function(0), mlxvfio.Options{})
	require.ErrorIs(t, err, vfio.ErrBusy)

	require.Equal(t, resets, c.Counters(0).Resets)
	require.Equal(t, 1, c.State(0).Handles)
	in := make([]byte, 16)
	binary.BigEndian.PutUint16(in, uint16(prm.OpNop))
	require.NoError(t, h.Conn().Exec(t.Context(), in, make([]byte, 16)))
	require.NoError(t, h.Close(t.Context()))

	h, err = mlxvfio.Open(t.Context(), c.Function(0), mlxvfio.Options{})
	require.NoError(t, err, "free again")
	require.NoError(t, h.Close(t.Context()))
}
