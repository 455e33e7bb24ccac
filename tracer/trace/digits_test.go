package trace

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDigits compares every way to make digits with strconv, at the edges of every
// length and at random.
func TestDigits(t *testing.T) {
	values := []uint64{0, math.MaxUint32, math.MaxUint64, math.MaxInt32, math.MaxInt64}
	for p := uint64(10); p < math.MaxUint64/10; p *= 10 {
		values = append(values, p-1, p, p+1)
	}
	for s := range 64 {
		values = append(values, 1<<s-1, 1<<s, 1<<s+1)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		values = append(values, r.Uint64()>>r.IntN(64))
	}
	var b [40]byte
	for _, v := range values {
		require.Equal(t, strconv.FormatUint(v, 10), string(b[:putUint(b[:], v)]))
		require.Equal(t, strconv.FormatUint(v, 16), string(appendHex(nil, v)))
		require.Equal(t, fmt.Sprintf("0x%016x", v), string(appendRaw(nil, v)))
		u := uint32(v)
		require.Equal(t, strconv.FormatUint(uint64(u), 10), string(b[:putDec(b[:], u)]))
		for least := 1; least <= 8; least++ {
			require.Equal(t, fmt.Sprintf("%0*x", least, u), string(b[:putHex(b[:], u, least)]))
		}
	}
}
