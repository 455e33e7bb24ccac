package queues

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// What is measured is real work: every WQE is in the ring, every completion is
// found, through many turns of both rings.
func TestMicrobench(t *testing.T) {
	for _, op := range MicroOps() {
		u, bar := memoryUAR(t)
		m, err := NewMicrobench(u)
		require.NoError(t, err)
		parsed, ok := ParseMicroOp(op.String())
		require.True(t, ok)
		require.Equal(t, op, parsed)
		blocks := 1
		if op == MicroMaskedCS8 {
			blocks = 2
		}
		posted := 0
		for _, batch := range []int{1, 3, MicroMaxBatch} {
			n := batch * 1100
			d, err := m.Post(op, batch, n)
			require.NoError(t, err)
			require.Positive(t, d)
			d, err = m.Calls(op, batch, n)
			require.NoError(t, err)
			require.Positive(t, d)
			posted += 2 * n * blocks
			require.Equal(t, uint64(posted), m.sq.pi)
			require.Equal(t, uint32(m.sq.pi), m.sq.rung)
			w := wqeAt(m.sq, m.sq.pi-uint64(blocks), 16)
			require.Equal(t, byte(microOpcodes[op]), w[3])
			require.Equal(t, byte(Signalled), w[11], "the last of a batch is signalled")
			require.Equal(t, w[:8], bar[UARBlueFlame:][:8], "the register")
		}
	}
	m, err := NewMicrobench(nil)
	require.NoError(t, err)
	for _, batch := range []int{1, 7, MicroMaxBatch} {
		d, n, err := m.Poll(batch, 5000)
		require.NoError(t, err)
		require.Positive(t, d)
		require.Equal(t, 8192, n)
	}
	_, err = m.PollEmpty(100)
	require.NoError(t, err)
	require.Equal(t, m.done.Size(), m.done.Free())

	_, ok := ParseMicroOp("umr")
	require.False(t, ok)
	for _, bad := range []struct {
		op       MicroOp
		batch, n int
	}{{MicroNop, 0, 1}, {MicroNop, 65, 100}, {MicroNop, 4, 3}, {microOps, 1, 1}} {
		_, err := m.Post(bad.op, bad.batch, bad.n)
		require.ErrorIs(t, err, vfio.ErrRange)
		_, err = m.Calls(bad.op, bad.batch, bad.n)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
	_, _, err = m.Poll(0, 1)
	require.ErrorIs(t, err, vfio.ErrRange)
}
