package atomics

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A request says the same whatever it said before.
func TestRequestsAreUsedAgain(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	var used Request
	for range 5000 {
		k, size := Kind(rng.IntN(int(numKinds))), 1<<rng.IntN(9)
		if size > k.MaxSize() {
			continue
		}
		addr := uint64(0x4000)
		if size < 4 {
			addr += uint64(rng.IntN(5 - size))
		}
		op, order := Random(k, size, addr, make([]byte, size), BigEndian, rng), Order(rng.IntN(2))
		var fresh Request
		require.NoError(t, op.Encode(&fresh, order))
		require.NoError(t, op.Encode(&used, order))
		says := func(r *Request) []any {
			args, reply := make([]byte, 512), make([]byte, 256)
			for i := range reply {
				reply[i] = byte(i*7 + 3)
			}
			n := r.PutArgs(args)
			l := []any{r.Opcode, r.Opmod, r.Addr, r.Size, r.Natural, args[:n], r.Matched(reply, order)}
			if size <= 8 {
				l = append(l, r.Extract(reply, order))
			}
			swapAdd, compare, swapMask, compareMask, boundary := r.Words()
			return append(l, swapAdd, compare, swapMask, compareMask, boundary)
		}
		require.Equal(t, says(&fresh), says(&used), "%+v", op)
	}
}

// Where nothing lies above the variable nothing has to stop the carry: the boundary
// is what was asked for (NVSHMEM, OFED: 0 is a plain add).
func TestPlainAddsHaveNoBoundary(t *testing.T) {
	for _, k := range []Kind{FetchAdd, MaskedFetchAdd} {
		for _, size := range []int{4, 8} {
			for _, b := range []uint64{0, 0x80} {
				op := Op{Kind: k, Size: size, Value: 1, Boundary: b}
				var r Request
				require.NoError(t, op.Encode(&r, LittleEndian))
				_, _, _, _, boundary := r.Words()
				if !r.Masked() {
					require.Empty(t, boundary)
					continue
				}
				require.Equal(t, []uint64{b}, boundary, "%v of %d bytes", k, size)
			}
		}
	}
}
