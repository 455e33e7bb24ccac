package trace

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The words are written out by hand from the layout of the events.
func TestEventFields(t *testing.T) {
	e := EventAt([]byte{0xa5, 0x03, 0x91, 0xa5, 0x89, 0xab, 0xcd, 0xef})
	require.True(t, e.Lost())
	require.EqualValues(t, 0x25, e.Stamp())
	require.EqualValues(t, 3, e.ID())
	require.EqualValues(t, 0x1234, e.TMSN()) // 0x91a5 >> 3
	require.EqualValues(t, 5, e.TDSN())
	require.EqualValues(t, 0x89abcdef, e.Param())
	require.False(t, e.IsTimestamp())
	require.Equal(t, e, StringEvent(true, 0x25, 3, 0x1234, 5, 0x89abcdef))

	e = EventAt([]byte{0x01, 0xff, 0xb2, 0x34, 0x56, 0x78, 0x9a, 0xbc})
	require.True(t, e.IsTimestamp())
	require.EqualValues(t, 5, e.URTS())                // 0xb2 >> 5
	require.EqualValues(t, 0x123456789abc01, e.Time()) // 0x1234, 0x56789abc, 0x01
	require.Equal(t, e, TimestampEvent(0x123456789abc01, 5))
}

func TestNewerIsSerialArithmetic(t *testing.T) {
	for _, c := range []struct {
		t, last uint64
		want    bool
	}{
		{1, 0, true}, {0, 1, false}, {5, 5, false},
		{1<<52 - 1, 0, true}, {1 << 52, 0, false}, {1<<52 + 1, 0, false},
		{0, 1<<53 - 1, true}, {1<<53 - 1, 0, false}, {100, 1<<53 - 100, true},
		{1 << 52, 1, true}, {0, 1 << 52, false}, {0, 1<<52 + 1, true},
	} {
		require.Equal(t, c.want, Newer(c.t, c.last), "%#x after %#x", c.t, c.last)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		a, d := r.Uint64()&TimeMask, 1+r.Uint64N(1<<52-1)
		require.True(t, Newer((a+d)&TimeMask, a))
		require.False(t, Newer(a, (a+d)&TimeMask))
		require.Equal(t, d, Elapsed((a+d)&TimeMask, a))
	}
}

// Place: at or before the timestamp... strictly before, less than 129 ticks, and
// with the stamp as its low bits.
func TestPlaceIsWithinTheLast128Ticks(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 10000 {
		at, stamp := r.Uint64()>>r.IntN(64)&TimeMask, uint8(r.IntN(128))
		p := Place(at, stamp)
		require.EqualValues(t, stamp, p&0x7f)
		require.LessOrEqual(t, p, uint64(TimeMask))
		require.GreaterOrEqual(t, Elapsed(at, p), uint64(1))
		require.LessOrEqual(t, Elapsed(at, p), uint64(128))
	}
}

func TestClosedTime(t *testing.T) {
	at, closed := ClosedTime(blockOf(TimestampEvent(77, 1)))
	require.True(t, closed)
	require.EqualValues(t, 77, at)
	_, closed = ClosedTime(blockOf(0))
	require.False(t, closed)
}
