package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// A percentage acts on so many commands, by chance; the seed decides on which.
func TestFaultByChance(t *testing.T) {
	refused := func(seed uint64) (list []int) {
		r := newRaw(t, Options{Seed: seed, Faults: []FaultSpec{{"status", "NOP%20=BAD_OP_ERR"}}}).to(phaseISSI)
		for i := range 1000 {
			keep := r.next
			e := r.entry(0, nop, 16)
			r.ring(0)
			require.True(t, r.done(0))
			if prm.CommandStatus(e.CommandOutputInlineData()[0]) == prm.StatusBadOp {
				list = append(list, i)
			}
			r.next = keep
		}
		return list
	}
	one := refused(1)
	require.InDelta(t, 200, len(one), 60)
	require.Equal(t, one, refused(1))
	require.NotEqual(t, one, refused(2))
	for _, arg := range []string{"NOP%0", "NOP%101", "NOP%x", "%", "NOP%-1", "NOP#3%5", "NOP%5#3", "NOP%NaN"} {
		_, err := parseFault("lost", arg)
		require.Error(t, err, arg)
	}
	x, err := parseFault("late", "%0.5=3s")
	require.NoError(t, err)
	require.Equal(t, 0.5, x.percent)
	require.Equal(t, anyOp, x.op)
}
