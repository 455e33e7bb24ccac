package atomics

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func sendQueue(t testing.TB) (*queues.SendQueue, vfio.Mem) {
	t.Helper()
	ring := vfio.MemOf(make([]byte, 64<<5))
	q, err := queues.NewSendQueue(queues.SendQueueConfig{QPN: 0x123456, Ring: ring, Record: vfio.MemOf(make([]byte, 8)), LogWQEBB: 5})
	require.NoError(t, err)
	return q, ring
}

// The WQE in the ring is what the request says: opcode, opmod, address, operands
// as PutArgs has them, and the length of the reply; also where the ring ends in
// the middle of it.
func TestPostWritesTheRequest(t *testing.T) {
	q, ring := sendQueue(t)
	rng := rand.New(rand.NewPCG(6, 6))
	args, wqe := make([]byte, 512), make([]byte, 1024)
	for i := range 3000 {
		k := Kind(rng.IntN(int(numKinds)))
		size := 1 << rng.IntN(9)
		if size > k.MaxSize() {
			continue
		}
		addr := uint64(0x4000 + rng.IntN(4)*256)
		if size < 4 {
			addr += uint64(rng.IntN(5 - size))
		}
		op := Random(k, size, addr, make([]byte, size), BigEndian, rng)
		if rng.IntN(4) == 0 && k == FetchAdd && size == 8 {
			op.Boundary = 1 << 31
		}
		var r Request
		require.NoError(t, op.Encode(&r, BigEndian))
		first := int(q.Index()) & 31 * 64
		require.NoError(t, r.Post(q, uint64(i), queues.Signalled|queues.Fence, queues.SGE{Addr: 0x9000, Len: 999, LKey: 0x77}, 0x88))
		n := 32 + r.ArgsSize() + 16
		for j := range n {
			wqe[j] = ring.Bytes()[(first+j)&(64<<5-1)]
		}
		c := prm.AsWQECtrlSeg(wqe)
		require.Equal(t, r.Opcode, c.Opcode())
		require.Equal(t, r.Opmod, c.Opmod())
		require.EqualValues(t, n/16, c.Ds(), "%v of %d", k, size)
		require.Equal(t, prm.FenceSmallAndReads, c.Fm())
		ra := prm.AsWQERaddrSeg(wqe[16:])
		require.Equal(t, r.Addr, ra.Raddr())
		require.EqualValues(t, 0x88, ra.Rkey())
		r.PutArgs(args)
		require.Equal(t, args[:r.ArgsSize()], wqe[32:32+r.ArgsSize()], "%v of %d bytes", k, size)
		d := prm.AsWQEDataSeg(wqe[n-16:])
		require.EqualValues(t, r.Size, d.ByteCount())
		require.EqualValues(t, 0x77, d.Lkey())
		require.EqualValues(t, 0x9000, d.Addr())
		q.RetireAll()
	}
}

func TestPostAllocatesNothing(t *testing.T) {
	q, _ := sendQueue(t)
	var r Request
	for _, op := range []Op{
		{Kind: CompareSwap, Size: 1, Addr: 3}, {Kind: FetchAdd, Size: 2}, {Kind: CompareSwap, Size: 8}, {Kind: FetchAdd, Size: 8},
		{Kind: Swap, Size: 8}, {Kind: Xor, Size: 8}, sample(CompareSwap, 128, 0, nil), sample(FetchAdd, 256, 0, nil),
	} {
		failed := 0
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if op.Encode(&r, LittleEndian) != nil || r.Post(q, 1, queues.Signalled, queues.SGE{Addr: 0x9000, LKey: 1}, 2) != nil {
				failed++
			}
			q.Ring()
			q.RetireAll()
		}), "%v of %d bytes", op.Kind, op.Size)
		require.Zero(t, failed)
	}
}

// A full queue refuses, and the refusal is the queue's own.
func TestPostFull(t *testing.T) {
	q, _ := sendQueue(t)
	var r Request
	op := Op{Kind: FetchAdd, Size: 4}
	require.NoError(t, op.Encode(&r, LittleEndian))
	for range 32 {
		require.NoError(t, r.Post(q, 1, 0, queues.SGE{}, 0))
	}
	require.ErrorIs(t, r.Post(q, 1, 0, queues.SGE{}, 0), queues.ErrQueueFull)
}
