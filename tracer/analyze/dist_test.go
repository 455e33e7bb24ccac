package analyze

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCells: every value is in the cell that says so, cells do not overlap, and none is
// wider than QuantileError allows.
func TestCells(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100000 {
		v := rng.Uint64() >> rng.UintN(64)
		r, c := cellOf(v)
		lo, width := cellAt(r, c)
		require.LessOrEqual(t, lo, v)
		require.Less(t, v-lo, width)
		require.LessOrEqual(t, float64(width-1)/2, float64(lo)*QuantileError)
		bl, bh := barOf(r, c)
		require.LessOrEqual(t, bl, v)
		if bh > bl { // the last bar ends at 2^64
			require.Less(t, v, bh)
		}
	}
}

// TestQuantiles compares with a sorted copy: equal up to ExactIntervals, near beyond.
func TestQuantiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	qs := []float64{0, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1}
	for _, n := range []int{1, 2, 3, 10, 99, 100, 101, ExactIntervals, ExactIntervals + 1, 50000} {
		var d dist
		var all []uint64
		for range n {
			v := uint64(math.Exp(rng.NormFloat64()*3 + 12)) // five orders of magnitude
			d.add(v)
			all = append(all, v)
		}
		slices.Sort(all)
		require.Equal(t, n <= ExactIntervals, d.isExact())
		require.Equal(t, all[0], d.min)
		require.Equal(t, all[n-1], d.max)
		for i, got := range d.quantiles(qs...) {
			want := all[max(int(math.Ceil(qs[i]*float64(n)-1e-9)), 1)-1]
			if d.isExact() {
				require.Equal(t, want, got, "%v of %d", qs[i], n)
			} else {
				require.InDelta(t, float64(want), float64(got), float64(want)*QuantileError, "%v of %d", qs[i], n)
			}
		}
	}
	var none dist
	require.Equal(t, []uint64{0, 0}, none.quantiles(0.5, 0.99))
	require.Zero(t, none.mean())
	require.Empty(t, none.bars())
}

// TestBars: the bars hold every value, without holes or overlaps.
func TestBars(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var d dist
	for range 5000 {
		d.add(rng.Uint64() >> (20 + rng.UintN(44)))
	}
	bars := d.bars()
	var n uint64
	for i, b := range bars {
		n += b.N
		require.Less(t, b.Lo, b.Hi)
		if i > 0 {
			require.Equal(t, bars[i-1].Hi, b.Lo)
		}
	}
	require.EqualValues(t, 5000, n)
	require.NotZero(t, bars[0].N)
	require.NotZero(t, bars[len(bars)-1].N)
	require.LessOrEqual(t, bars[0].Lo, d.min)
	require.Greater(t, bars[len(bars)-1].Hi, d.max)
}
