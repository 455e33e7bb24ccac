package iova

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNewMerges(t *testing.T) {
	a := New(Range{100, 199}, Range{0, 9}, Range{10, 20}, Range{150, 300}, Range{9, 3}, Range{^uint64(0) - 5, ^uint64(0)}, Range{^uint64(0) - 1, ^uint64(0)})
	require.Equal(t, []Range{{0, 20}, {100, 300}, {^uint64(0) - 5, ^uint64(0)}}, a.Ranges())
	require.True(t, a.Idle())
}

func TestAllocFirstFit(t *testing.T) {
	a := New(Range{1, 0xffff})
	at, err := a.Alloc(0x1000, 0x1000)
	require.NoError(t, err)
	require.Equal(t, uint64(0x1000), at, "lowest aligned address")
	at, err = a.Alloc(0x10, 8)
	require.NoError(t, err)
	require.Equal(t, uint64(8), at, "the gap below is used")
	at, err = a.Alloc(0xe000, 0x1000)
	require.NoError(t, err)
	require.Equal(t, uint64(0x2000), at, "up to the last address")
	_, err = a.Alloc(0x1000, 1)
	require.ErrorIs(t, err, ErrNoSpace)
	require.NoError(t, a.Free(0x1000, 0x1000))
	require.NoError(t, a.Free(0x2000, 0xe000))
	require.NoError(t, a.Free(8, 0x10))
	require.Equal(t, a.Ranges(), a.FreeRanges(), "everything coalesces")
}

func TestTopOfAddresses(t *testing.T) {
	a := New(Range{0, ^uint64(0)})
	at, err := a.Alloc(1<<63, 1<<63)
	require.NoError(t, err)
	require.Zero(t, at)
	at, err = a.Alloc(1<<63, 1<<63)
	require.NoError(t, err)
	require.Equal(t, uint64(1<<63), at)
	require.NoError(t, a.Free(1<<63, 1<<63))
	require.NoError(t, a.Free(0, 1<<63))
	require.True(t, a.Idle())

	a = New(Range{^uint64(0) - 0xfff, ^uint64(0)})
	_, err = a.Alloc(0x10, 0x2000)
	require.ErrorIs(t, err, ErrNoSpace, "rounding up wraps")
	require.ErrorIs(t, a.Free(^uint64(0), 2), ErrArgument, "the range wraps")
}

func TestArguments(t *testing.T) {
	a := New(Range{0, 99})
	for _, x := range [][2]uint64{{0, 1}, {1, 0}, {1, 3}, {1, 96}} {
		_, err := a.Alloc(x[0], x[1])
		require.ErrorIs(t, err, ErrArgument)
	}
	require.ErrorIs(t, a.Free(0, 0), ErrArgument)
	require.ErrorIs(t, a.Free(0, 1), ErrNotAllocated, "free already")
	require.ErrorIs(t, a.Free(100, 1), ErrNotAllocated, "never ours")
	at, err := a.Alloc(10, 1)
	require.NoError(t, err)
	require.ErrorIs(t, a.Free(at, 11), ErrNotAllocated, "more than was allocated")
	require.ErrorIs(t, a.Free(at+9, 2), ErrNotAllocated)
	require.NoError(t, a.Free(at, 10))
	require.ErrorIs(t, a.Free(at, 10), ErrNotAllocated, "twice")
}

func TestExclude(t *testing.T) {
	a := New(Range{0, 999})
	a.Exclude(0, 99)
	a.Exclude(400, 499)
	a.Exclude(990, 5000)
	a.Exclude(7, 6)
	require.Equal(t, []Range{{100, 399}, {500, 989}}, a.Ranges())
	at, err := a.Alloc(301, 1)
	require.NoError(t, err)
	require.Equal(t, uint64(500), at, "nothing spans what is excluded")
	// Excluding what is allocated: it does not come back.
	a.Exclude(550, 599)
	require.NoError(t, a.Free(500, 301))
	require.Equal(t, []Range{{100, 399}, {500, 549}, {600, 989}}, a.FreeRanges())
	require.True(t, a.Idle())
}

// check compares the allocator with a map of single addresses, over operations
// that the bytes choose.
func check(t *testing.T, ops []byte) {
	const size = 256
	a := New(Range{3, 200}, Range{210, size - 1})
	used := [size]bool{0: true, 1: true, 2: true}
	for i := 201; i < 210; i++ {
		used[i] = true
	}
	fits := func(n, align uint64) (uint64, bool) {
		for at := uint64(0); at+n <= size; at += align {
			free := true
			for i := at; i < at+n; i++ {
				free = free && !used[i]
			}
			if free {
				return at, true
			}
		}
		return 0, false
	}
	type got struct{ at, n uint64 }
	var live []got
	for i := 0; i+1 < len(ops); i += 2 {
		n, align := uint64(ops[i]%40)+1, uint64(1)<<(ops[i+1]%6)
		if ops[i+1]&0x80 != 0 && len(live) > 0 {
			k := int(ops[i]) % len(live)
			require.NoError(t, a.Free(live[k].at, live[k].n))
			for x := live[k].at; x < live[k].at+live[k].n; x++ {
				used[x] = false
			}
			live = append(live[:k], live[k+1:]...)
			continue
		}
		want, ok := fits(n, align)
		at, err := a.Alloc(n, align)
		if !ok {
			require.ErrorIs(t, err, ErrNoSpace)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, at)
		for x := at; x < at+n; x++ {
			used[x] = true
		}
		live = append(live, got{at, n})
	}
	var free []Range
	for i := range used {
		if used[i] {
			continue
		}
		if n := len(free); n > 0 && free[n-1].Last+1 == uint64(i) {
			free[n-1].Last++
			continue
		}
		free = append(free, Range{uint64(i), uint64(i)})
	}
	require.Equal(t, free, a.FreeRanges())
	for _, x := range live {
		require.NoError(t, a.Free(x.at, x.n))
	}
	require.True(t, a.Idle())
}

func TestAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		ops := make([]byte, 200)
		for i := range ops {
			ops[i] = byte(r.Uint32())
		}
		check(t, ops)
	}
}

func FuzzAllocator(f *testing.F) {
	f.Add([]byte{10, 0, 20, 1, 0, 0x80, 5, 3})
	f.Fuzz(check)
}

func BenchmarkAllocFree(b *testing.B) {
	a := New(Range{0, 1 << 30})
	b.ReportAllocs()
	for b.Loop() {
		at, err := a.Alloc(4096, 4096)
		if err != nil {
			b.Fatal(err)
		}
		if err := a.Free(at, 4096); err != nil {
			b.Fatal(err)
		}
	}
}
