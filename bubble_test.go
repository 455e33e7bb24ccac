package mlxvfio_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
)

// inBubble runs a test in virtual time: deadlines pass at once, and a goroutine
// that is left behind fails it.
func inBubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func sleep(seconds int) { time.Sleep(time.Duration(seconds) * time.Second) }

// lateAfterNOP sends a command, which makes the engine look at the slots it has
// given up, and answers how many more came back.
func lateAfterNOP(t *testing.T, h *mlxvfio.HCA) uint64 {
	t.Helper()
	before := h.Conn().Stats().Late
	require.NoError(t, h.Conn().NOP(t.Context()))
	return h.Conn().Stats().Late - before
}
