package analyze

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBetaInc compares with sums of the binomial law: P(X ≥ k) = I_p(k, n−k+1).
func TestBetaInc(t *testing.T) {
	for _, n := range []int{1, 2, 5, 30, 200} {
		for _, p := range []float64{0.001, 0.1, 0.5, 0.73, 0.999} {
			tail := 0.0
			for k := n; k >= 1; k-- {
				lc := lgamma(n+1) - lgamma(k+1) - lgamma(n-k+1)
				tail += math.Exp(lc + float64(k)*math.Log(p) + float64(n-k)*math.Log1p(-p))
				require.InDelta(t, tail, betaInc(float64(k), float64(n-k+1), p), 1e-9*tail+1e-14, "n %d p %v k %d", n, p, k)
			}
		}
	}
	require.Zero(t, betaInc(2, 3, 0))
	require.Equal(t, 1.0, betaInc(2, 3, 1))
}

func lgamma(n int) float64 { v, _ := math.Lgamma(float64(n)); return v }

// TestEqualRates: known p-values, and no p where nothing was watched.
func TestEqualRates(t *testing.T) {
	require.Equal(t, 1.0, equalRates(5, 5, 1, 1))
	require.InDelta(t, 2*math.Exp2(-10), equalRates(10, 0, 1, 1), 1e-12)
	require.InDelta(t, 2*math.Exp2(-10), equalRates(0, 10, 1, 1), 1e-12)
	require.Equal(t, 1.0, equalRates(10, 0, 0, 1))
	require.Equal(t, 1.0, equalRates(0, 0, 1, 1))
	require.InDelta(t, 1, equalRates(100, 1000, 1, 10), 0.1, "ten times as long")
	require.Less(t, equalRates(1e6, 1.01e6, 1, 1), 1e-10)
	// Under equal rates, p-values are not smaller than they say.
	rng := rand.New(rand.NewPCG(1, 1))
	small := 0
	for range 4000 {
		var a, b uint64
		for range 60 {
			if rng.Float64() < 0.25 {
				a++
			} else {
				b++
			}
		}
		if equalRates(a, b, 1, 3) < 0.05 {
			small++
		}
	}
	require.LessOrEqual(t, small, 4000*5/100)
	require.Greater(t, small, 40)
}

func result(observed uint64, counts map[string]uint64) *Result {
	r := &Result{Observed: observed}
	for n, c := range counts {
		r.Formats = append(r.Formats, Group{Name: n, Count: c})
	}
	return r
}

func TestCompare(t *testing.T) {
	a := result(1e6, map[string]uint64{"same": 1000, "gone": 100, "rare gone": 2, "faster": 1000, "little": 100000})
	b := result(2e6, map[string]uint64{"same": 2010, "new": 50, "rare new": 1, "faster": 4000, "little": 210000})
	d := Compare(a, b)
	require.Equal(t, "per Mtick", d.Unit)
	require.Equal(t, []int{2, 2, 1, 2, 3}, []int{d.New, d.Gone, d.Rate, d.Same, d.Significant})
	var names []string
	for _, x := range d.List {
		names = append(names, string(x.Change)+" "+x.Name)
		require.Equal(t, x.Name == "gone" || x.Name == "new" || x.Name == "faster", x.Significant, x.Name)
	}
	require.Equal(t, []string{"new new", "new rare new", "gone gone", "gone rare gone", "rate faster"}, names)
	require.InEpsilon(t, 2, d.List[4].Ratio, 1e-9)
	require.Less(t, equalRates(100000, 210000, 1, 2), Significance/7, "5 %% more is no chance, but too small a change")
	require.Empty(t, Compare(a, a).List)
	require.Equal(t, 5, Compare(a, a).Same)

	a.Clock, b.Clock = &Clock{Hz: 1e6}, &Clock{Hz: 2e6} // now both were watched for 1 s
	d = Compare(a, b)
	require.Equal(t, "per s", d.Unit)
	require.Equal(t, 1.0, d.WatchedB)
	require.InEpsilon(t, 4, d.List[len(d.List)-1].Ratio, 1) // sorted by p
	require.Equal(t, 3, d.Rate, "the counts of same, faster and little rose")
}
