package hostmem

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pile hands out arenas of ordinary pages, and says where their huge pages lie: as
// free says, in the order in which they are taken.
type pile struct {
	t     *testing.T
	free  []uint64 // addresses in units of huge pages
	seen  map[unsafe.Pointer]uint64
	taken int
	fail  error
}

func (p *pile) take(size int) (*Arena, error) {
	if n := size / HugeSize; n > len(p.free) {
		return nil, unix.ENOSPC
	}
	a, err := memfd("mlxvfio-hm", size, false)
	require.NoError(p.t, err)
	p.seen = map[unsafe.Pointer]uint64{}
	for off := 0; off < size; off += HugeSize {
		at := p.free[off/HugeSize] * HugeSize
		p.seen[unsafe.Pointer(&a.b[off])] = at
		binary.NativeEndian.PutUint64(a.b[off:], at) // what must be found there later
	}
	p.taken = size / HugeSize
	return a, nil
}

func (p *pile) locate(page []byte) (uint64, error) {
	require.Len(p.t, page, HugeSize)
	at, ok := p.seen[unsafe.Pointer(&page[0])]
	require.True(p.t, ok)
	return at, p.fail
}

func TestContiguous(t *testing.T) {
	tests := map[string]struct {
		free  []uint64
		pages int
		want  uint64
		taken int
		order bool // the pages are those of the file in order
		err   error
	}{
		"one page":             {free: []uint64{7, 3}, pages: 1, want: 7, taken: 1, order: true},
		"in order":             {free: []uint64{4, 5, 6, 9}, pages: 3, want: 4, taken: 3, order: true},
		"backwards":            {free: []uint64{6, 5, 4}, pages: 3, want: 4, taken: 3},
		"one in between":       {free: []uint64{9, 4, 1, 5}, pages: 2, want: 4, taken: 4},
		"a run at the end":     {free: []uint64{20, 2, 30, 8, 7, 40, 50, 60}, pages: 2, want: 7, taken: 8},
		"in pieces":            {free: []uint64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33}, pages: 2, taken: 16, err: ErrFragmented},
		"in pieces, few pages": {free: []uint64{1, 3, 5}, pages: 2, taken: 2, err: ErrFragmented},
		"too few":              {free: []uint64{1, 2}, pages: 3, err: ErrNoHuge},
	}
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			p := &pile{t: t, free: x.free}
			a, base, err := contiguous(x.pages*HugeSize, p.locate, p.take)
			require.ErrorIs(t, err, x.err)
			require.Equal(t, x.taken, p.taken)
			if x.err != nil {
				require.Nil(t, a)
			} else {
				require.NoError(t, err)
				require.Equal(t, x.want*HugeSize, base)
				require.Len(t, a.Bytes(), x.pages*HugeSize)
				require.Equal(t, x.order, a.FD() >= 0, "FD tells where the bytes are in the file, or nothing")
				require.Equal(t, 1, open(t, "mlxvfio-hm"))
				for off := 0; off < len(a.b); off += HugeSize {
					require.Equal(t, base+uint64(off), binary.NativeEndian.Uint64(a.b[off:]), "page %d", off/HugeSize)
					a.b[off+HugeSize-1] = 1
				}
				// Spare pages are given back: the file holds no more than the run.
				var st unix.Stat_t
				require.NoError(t, unix.Fstat(a.fd, &st))
				require.LessOrEqual(t, st.Blocks*512, int64(len(a.b)))
				require.NoError(t, a.Close())
			}
			require.Zero(t, open(t, "mlxvfio-hm"))
			require.Zero(t, mapped(t, "mlxvfio-hm"))
		})
	}
}

// What locate answers comes out, and nothing stays; sizes are checked.
func TestContiguousRefuses(t *testing.T) {
	p := &pile{t: t, free: []uint64{1, 2}, fail: os.ErrPermission}
	_, _, err := contiguous(HugeSize, p.locate, p.take)
	require.ErrorIs(t, err, os.ErrPermission)
	require.Zero(t, open(t, "mlxvfio-hm"))
	for _, size := range []int{0, -HugeSize, 4096, HugeSize + 4096} {
		_, _, err := Contiguous("mlxvfio-hm", size, p.locate)
		require.ErrorIs(t, err, ErrSize, "%d", size)
	}
	// The real thing, on a machine that has no huge pages or has some.
	a, base, err := Contiguous("mlxvfio-hm", HugeSize, func(page []byte) (uint64, error) { return HugeSize, nil })
	if errors.Is(err, ErrNoHuge) {
		require.Zero(t, open(t, "mlxvfio-hm"))
		return
	}
	require.NoError(t, err)
	require.Equal(t, uint64(HugeSize), base)
	require.True(t, a.Huge())
	require.NoError(t, a.Close())
}
