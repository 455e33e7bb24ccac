package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// TestAccessAtTheEnds: addresses that a guest makes up, at the top of the address
// space above all, reach nothing and break nothing.
func TestAccessAtTheEnds(t *testing.T) {
	d := &domain{}
	touched := 0
	touch := func(m vfio.Mem, _ int) { touched += m.Len() }
	for _, mapped := range []bool{false, true} {
		if mapped {
			require.NoError(t, d.Map(vfio.Mapping{IOVA: 1<<48 - 4096, Bytes: make([]byte, 4096), FD: -1}))
		}
		for _, iova := range []uint64{1<<64 - 1, 1<<64 - 8, 1<<64 - 4096, 1 << 63, 1 << 48, 1<<48 - 8} {
			for _, n := range []int{9, 16, 4096, 8192} {
				require.False(t, d.access(iova, n, true, touch), "%#x+%d", iova, n)
			}
		}
	}
	require.Zero(t, touched)
	require.True(t, d.access(1<<48-8, 8, true, touch))
	require.Equal(t, 8, touched)
}
