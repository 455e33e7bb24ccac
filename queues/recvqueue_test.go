package queues

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func newRQ(tb testing.TB, log, stride uint8) (*RecvQueue, []byte) {
	rec := make([]byte, RecordSize)
	q, err := NewRecvQueue(RecvQueueConfig{QPN: 0x77, LogSize: log, LogStride: stride, Ring: vfio.MemOf(make([]byte, 1<<(log+stride))), Record: vfio.MemOf(rec)})
	require.NoError(tb, err)
	return q, rec
}

func newSRQ(tb testing.TB, log, stride uint8) (*SRQRing, []byte) {
	rec := make([]byte, RecordSize)
	q, err := NewSRQRing(SRQRingConfig{SRQN: 0x88, LogSize: log, LogStride: stride, Ring: vfio.MemOf(make([]byte, 1<<(log+stride))), Record: vfio.MemOf(rec)})
	require.NoError(tb, err)
	return q, rec
}

const (
	aPiece = "00000099aabbccdd1122334455667788"
	anEnd  = "00000000000001000000000000000000"
)

// Pieces, then one terminator if there is room (ruling W10), at every place.
func TestRecvBytes(t *testing.T) {
	q, rec := newRQ(t, 2, 6)
	require.Equal(t, 4, q.MaxSGE())
	for i := range q.buf {
		q.buf[i] = 0xa5
	}
	for round := range 9 {
		n := round % 5
		l := []SGE{{}, anSGE, anSGE, {}, anSGE, anSGE}[:[]int{1, 2, 3, 5, 6}[n]]
		require.NoError(t, q.Post(uint64(round), l...))
		want := strings.Repeat(aPiece, n)
		if n < 4 {
			want += anEnd
		}
		got := hex.EncodeToString(q.wqe(uint16(round)))
		require.Equal(t, want, got[:len(want)])
		q.Ring()
		require.Equal(t, uint32(round+1), binary.BigEndian.Uint32(rec))
		require.Zero(t, binary.BigEndian.Uint32(rec[4:]), "the send count is not ours")
		wrid, ok := q.retire(uint16(round))
		require.True(t, ok)
		require.Equal(t, uint64(round), wrid)
	}
	_, ok := q.retire(8)
	require.False(t, ok, "twice")
	_, ok = q.retire(9)
	require.False(t, ok, "not posted")
}

func TestRecvFull(t *testing.T) {
	for log := range uint8(6) {
		q, _ := newRQ(t, log, 4)
		for i := range q.Size() {
			require.Equal(t, q.Size()-i, q.Free())
			require.NoError(t, q.Post(uint64(i), anSGE))
		}
		before := append([]byte(nil), q.buf...)
		require.ErrorIs(t, q.Post(9, fourSGE), ErrQueueFull)
		require.Equal(t, before, q.buf)
		q.close()
		require.ErrorIs(t, q.Post(9, fourSGE), vfio.ErrClosed)
		q.Ring()
	}
}

// The record has the low 16 bits of a count that runs on; both may wrap.
func TestRecvCounts(t *testing.T) {
	for _, pi := range []uint32{0, 0xffff, 0x1fffe, 1<<32 - 1, 1<<32 - 2} {
		q, rec := newRQ(t, 3, 4)
		q.pi, q.ci, q.rung = pi, pi, pi
		for range 4 {
			require.NoError(t, q.Post(1, anSGE))
			q.Ring()
			require.Equal(t, uint32(uint16(q.pi)), binary.BigEndian.Uint32(rec))
			require.Zero(t, binary.BigEndian.Uint32(rec[4:]), "the send count is not ours")
		}
		require.Equal(t, 4, q.Free())

		s, rec := newSRQ(t, 3, 5)
		s.count, s.rung = pi, pi
		for range 4 {
			require.NoError(t, s.Post(1, anSGE))
			s.Ring()
			require.Equal(t, uint32(uint16(s.count)), binary.BigEndian.Uint32(rec))
		}
		require.Equal(t, pi+4, s.count)
	}
}

func TestRecvRefusals(t *testing.T) {
	q, _ := newRQ(t, 2, 5)
	var pe *PostError
	err := q.Post(1, anSGE, anSGE, anSGE)
	require.ErrorIs(t, err, ErrTooLong)
	require.ErrorAs(t, err, &pe)
	require.True(t, pe.Recv)
	require.ErrorContains(t, err, "3 pieces, the limit is 2")
	require.ErrorContains(t, q.Post(1, SGE{Len: 1 << 31}), "2147483648")
	require.Equal(t, 4, q.Free())
	ring, rec := vfio.MemOf(make([]byte, 1024)), vfio.MemOf(make([]byte, 8))
	for _, c := range []RecvQueueConfig{
		{LogSize: 16, LogStride: 4, Ring: ring, Record: rec}, {LogSize: 4, LogStride: 3, Ring: ring, Record: rec},
		{LogSize: 4, LogStride: 5, Ring: ring, Record: rec}, {LogSize: 6, LogStride: 4, Ring: ring},
	} {
		_, err := NewRecvQueue(c)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
	for _, c := range []SRQRingConfig{{LogSize: 0, LogStride: 10, Ring: ring, Record: rec}, {LogSize: 6, LogStride: 4, Ring: ring, Record: rec}} {
		_, err := NewSRQRing(c)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
}

// A shared queue's WQEs begin with the index of the next one; the list the device
// walks is the order of posting, however they complete.
func TestSRQList(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 2))
		q, rec := newSRQ(t, 4, 6)
		require.Equal(t, 15, q.Size())
		require.Equal(t, 3, q.MaxSGE())
		walk := uint16(0) // the device's place in the list
		var posted, taken []uint64
		out := map[uint16]uint64{} // taken by the device and not completed
		next := uint64(1)
		for range 2000 {
			switch r.IntN(3) {
			case 0:
				err := q.Post(next, SGE{Addr: next, Len: 1, LKey: 3})
				if len(posted)+len(out) == q.Size() {
					require.ErrorIs(t, err, ErrQueueFull)
					break
				}
				require.NoError(t, err)
				posted = append(posted, next)
				next++
				q.Ring()
				require.Equal(t, uint32(next-1)&0xffff, binary.BigEndian.Uint32(rec))
			case 1: // the device takes the next one
				if len(posted) == 0 {
					break
				}
				w := q.wqe(walk)
				require.Equal(t, posted[0], prm.AsWQEDataSeg(w[16:]).Addr(), "the list is the order of posting")
				require.Equal(t, anEnd, hex.EncodeToString(w[32:48]))
				out[walk] = posted[0]
				taken = append(taken, posted[0])
				posted = posted[1:]
				walk = prm.AsWQESRQNextSeg(w).NextWQEIndex()
			case 2: // and completes any
				for index, wrid := range out {
					require.NotNil(t, q.snapshot(index))
					got, ok := q.retire(index)
					require.True(t, ok)
					require.Equal(t, wrid, got)
					_, ok = q.retire(index)
					require.False(t, ok, "twice")
					delete(out, index)
					break
				}
			}
		}
		require.NotEmpty(t, taken)
	}
	q, rec := newSRQ(t, 1, 5)
	require.NoError(t, q.Post(1, anSGE))
	require.ErrorIs(t, q.Post(2, anSGE), ErrQueueFull)
	require.ErrorIs(t, func() error { q.Reset(); return q.Post(1, anSGE, anSGE) }(), ErrTooLong)
	q.Ring()
	require.Zero(t, binary.BigEndian.Uint32(rec))
	q.close()
	require.ErrorIs(t, q.Post(3, anSGE), vfio.ErrClosed)
	_, ok := q.retire(0)
	require.False(t, ok)
}

func TestRecvAllocs(t *testing.T) {
	q, _ := newRQ(t, 3, 6)
	s, _ := newSRQ(t, 3, 6)
	i := uint16(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if q.Post(1, anSGE, anSGE) != nil || s.Post(1, anSGE, fourSGE) != nil {
			t.Error("refused")
		}
		q.Ring()
		s.Ring()
		_, a := q.retire(i)
		_, b := s.retire(i % 8)
		if !a || !b {
			t.Error("not outstanding")
		}
		i++
	}))
}
