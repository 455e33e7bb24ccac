package litmus

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// What a device answers rightly and does not do shows in memory alone, if nobody looks
// there any more: memory at rest is part of every history.
func TestMemoryAtRestIsPartOfTheHistory(t *testing.T) {
	d, rig := newFake(t, fakeOptions{maxWrite: 32})
	probe(t, rig)
	o := Options{Seed: 1}
	o.defaults()
	r := newRunner(rig, o, &Card{})
	for _, size := range []int{8, 32} {
		h := &history{run: r, size: size, writes: true}
		for _, k := range []int{1, 2, 4, 8} {
			h.kinds = append(h.kinds, [2]int{int(atomics.Swap), k})
		}
		for _, lost := range []bool{false, true} {
			const rounds = 20
			found := 0
			for range rounds {
				d.changes, d.lose = 0, 0
				if lost {
					d.lose = 12 * len(rig.Requesters) // the last one
				}
				a, err := h.record(context.Background())
				require.NoError(t, err)
				require.False(t, a.Undecided)
				require.Equal(t, 12*len(rig.Requesters), d.changes)
				if !a.Linearizable {
					require.Contains(t, a.Stuck, "at rest")
					found++
				}
			}
			if !lost {
				require.Zero(t, found)
			} else {
				require.Greater(t, found, rounds/2, "the last change was lost in each")
			}
		}
	}
}
