package mlxvfio_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/queues"
)

// A DataPath leaves nothing behind, whether it is closed by itself or with the
// function.
func TestDataPathGivesBack(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth", "sim:cx4,port=ib"} {
		for _, vectors := range []int{0, 1} {
			for _, by := range []string{"itself", "function"} {
				h, c := opened(t, words, mlxvfio.Options{CompletionVectors: vectors})
				before := h.Stats().DMA.LiveBuffers
				d, err := h.OpenData(t.Context(), mlxvfio.DataOptions{})
				require.NoError(t, err)
				require.Equal(t, vectors == 1, d.EventMode())
				m, err := d.Memory(t.Context(), 5000, 0, queues.AccessAll)
				require.NoError(t, err)
				require.Equal(t, 5000, m.Mem.Len())
				require.Zero(t, m.Addr%4096)
				a, b, err := mlxvfio.Connect(t.Context(), d, d, queues.QPOptions{})
				require.NoError(t, err)
				require.NotEqual(t, a.Number(), b.Number())
				require.Equal(t, 2, c.State(0).QPs)
				if by == "itself" {
					require.NoError(t, d.Close(t.Context()))
					require.Zero(t, c.State(0).QPs)
					require.Equal(t, before, h.Stats().DMA.LiveBuffers)
					require.NoError(t, d.Close(t.Context()), "a second time")
				}
				closed(t, h, c)
			}
		}
	}
}
