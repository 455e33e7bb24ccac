package queues

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// bench is one queue pair on one CQ, and the device behind them.
type bench struct {
	*CQRing
	dev *device
	rec []byte
	sq  *SendQueue
	rq  *RecvQueue
}

func newBench(tb testing.TB, logCQ uint8) *bench {
	b := &bench{}
	b.CQRing, b.dev, b.rec = newCQ(tb, logCQ, nil)
	b.sq, _ = newSQ(tb, 6, nil)
	b.rq, _ = newRQ(tb, 6, 5)
	b.AttachSend(b.sq)
	b.AttachRecv(microQPN, b.rq)
	return b
}

// poll takes all there is, in batches of most.
func (b *bench) poll(t *testing.T, most int) []Completion {
	t.Helper()
	var all []Completion
	for {
		dst := make([]Completion, most)
		n, err := b.Poll(dst)
		require.NoError(t, err)
		if n == 0 {
			return all
		}
		all = append(all, dst[:n]...)
	}
}

// Every entry is taken once, in order, over many passes of rings of every small
// size, whatever the batches on both sides; the record follows.
func TestCQPasses(t *testing.T) {
	for log := range uint8(6) {
		for _, start := range []uint32{0, 1<<24 - 3, 1<<32 - 40} {
			b := newBench(t, log)
			// As if so many entries had gone by: the owner bits are those of the pass
			// before.
			b.dev.pi = start
			b.seek(start)
			for i := range uint32(1 << log) {
				e := b.entry(start + i)
				e.SetOwner((start+i)>>log&1 == 0)
			}
			r := rand.New(rand.NewPCG(uint64(log), 3))
			wrid, got := uint64(0), uint64(0)
			for range 200 {
				n := min(r.IntN(1<<log)+1, 1<<log)
				for range n {
					index := b.sq.Index()
					require.NoError(t, b.sq.Nop(wrid, Signalled))
					b.dev.sent(microQPN, index, prm.WQENop)
					wrid++
				}
				for _, c := range b.poll(t, 1+r.IntN(5)) {
					require.Equal(t, got, c.WRID)
					require.Equal(t, prm.CQEReq, c.Opcode)
					require.True(t, c.OK() && !c.Recv() && !c.Flushed())
					require.Equal(t, uint32(microQPN), c.QPN)
					require.Equal(t, 0xb0+uint32(uint16(got)), c.ByteLen)
					got++
				}
				require.Equal(t, wrid, got)
				require.Equal(t, b.dev.pi&0xffffff, binary.BigEndian.Uint32(b.rec), "24 bits, not masked to the size")
				require.Equal(t, b.dev.pi, b.Consumer())
			}
			require.Equal(t, 64, b.sq.Free())
		}
	}
}

// A new ring is all invalid, whatever the memory held; so the first pass works
// though its owner bit is 0.
func TestCQInitial(t *testing.T) {
	mem := vfio.MemOf(make([]byte, 4*cqeSize))
	rec := vfio.MemOf(make([]byte, 8))
	r, err := NewCQRing(CQRingConfig{LogSize: 2, Ring: mem, Record: rec})
	require.NoError(t, err)
	for i := range 4 {
		require.Equal(t, byte(0xf0), mem.Bytes()[i*64+63])
	}
	require.Equal(t, uint32(2<<28), rec.LoadBE32(4), "Linux MLX5_CQ_INIT_CMD_SN")
	n, err := r.Poll(make([]Completion, 4))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 4, r.Entries())
	for _, c := range []CQRingConfig{{LogSize: 23, Ring: mem, Record: rec}, {LogSize: 3, Ring: mem, Record: rec}, {LogSize: 2, Ring: mem}} {
		_, err := NewCQRing(c)
		require.ErrorIs(t, err, vfio.ErrRange)
	}
}

// What a received message brings along.
func TestRecvCompletions(t *testing.T) {
	b := newBench(t, 4)
	for i := range 4 {
		require.NoError(t, b.rq.Post(uint64(100+i), anSGE))
	}
	for i, op := range []prm.CQEOpcode{prm.CQERespWrImm, prm.CQERespSend, prm.CQERespSendImm, prm.CQERespSendInv} {
		b.dev.write(func(e *prm.CQE64) {
			e.SetOpcode(op)
			e.SetQPN(microQPN)
			e.SetWQECounter(uint16(i))
			e.SetByteCnt(0x1234)
			e.SetImmediate(0xfeedface)
			e.SetRqpn(0xabcdef)
			e.SetSlid(0x4242)
			e.SetGrh(uint8(i & 1))
			e.SetSe(i > 1)
		})
	}
	got := b.poll(t, 3)
	require.Len(t, got, 4)
	for i, c := range got {
		require.Equal(t, uint64(100+i), c.WRID)
		require.True(t, c.OK() && c.Recv())
		require.Equal(t, uint32(0x1234), c.ByteLen)
		require.Equal(t, uint32(0xfeedface), c.Imm)
		require.Equal(t, uint32(0xabcdef), c.RemoteQPN)
		require.Equal(t, uint16(0x4242), c.RemoteLID)
		require.Equal(t, i == 0 || i == 2, c.HasImm())
		require.Equal(t, i == 3, c.Invalidated())
		require.Equal(t, i&1 == 1, c.Bits&HasGRH != 0)
		require.Equal(t, i > 1, c.Bits&WasSolicited != 0)
	}
	require.Equal(t, 64, b.rq.Free())
}

// Arm writes the record, then 8 bytes to the UAR (Linux cq.h, mlx5_cq_arm).
func TestArm(t *testing.T) {
	u, bar := memoryUAR(t)
	r, dev, rec := newCQ(t, 3, u)
	sq, _ := newSQ(t, 6, u)
	r.AttachSend(sq)
	for i := range 10 {
		require.NoError(t, sq.Nop(1, Signalled))
		dev.sent(microQPN, uint16(i), prm.WQENop)
		n, err := r.Poll(make([]Completion, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		solicited := i%2 == 1
		r.Arm(solicited)
		want := uint32(i%4)<<28 | uint32(i+1)
		if solicited {
			want |= 1 << 24
		}
		require.Equal(t, want, binary.BigEndian.Uint32(rec[4:]))
		require.Equal(t, want, binary.BigEndian.Uint32(bar[0x20:]))
		require.Equal(t, uint32(0x4321), binary.BigEndian.Uint32(bar[0x24:]))
		r.Notified()
	}
}

// Many queue pairs on one CQ find their queues, in any order, come and go.
func TestPeers(t *testing.T) {
	r, dev, _ := newCQ(t, 8, nil)
	rnd := rand.New(rand.NewPCG(1, 4))
	queues := map[uint32]*SendQueue{}
	numbers := []uint32{0, 1, 0xffffff, 0x800000}
	for range 60 {
		numbers = append(numbers, rnd.Uint32N(1<<24))
	}
	dst := make([]Completion, 256)
	for round := range 300 {
		qpn := numbers[rnd.IntN(len(numbers))]
		if q := queues[qpn]; q != nil && round%3 == 0 {
			r.Detach(qpn)
			delete(queues, qpn)
			dev.sent(qpn, q.Index(), prm.WQENop)
			_, err := r.Poll(dst)
			require.ErrorIs(t, err, ErrUnknownQueue)
		} else if q == nil {
			q, _ := newSQ(t, 4, nil)
			q.qpn8 = uint64(qpn) << 8
			r.AttachSend(q)
			queues[qpn] = q
		}
		var want []uint64
		for range rnd.IntN(100) {
			for _, q := range queues {
				if q.Free() > 0 {
					wrid := rnd.Uint64()
					want = append(want, wrid)
					index := q.Index()
					require.NoError(t, q.Nop(wrid, Signalled))
					dev.sent(q.QPN(), index, prm.WQENop)
				}
				break
			}
		}
		n, err := r.Poll(dst)
		require.NoError(t, err)
		require.Len(t, want, n)
		for i := range n {
			require.Equal(t, want[i], dst[i].WRID)
			require.NotNil(t, queues[dst[i].QPN])
		}
	}
}

// Queue pairs that come and go leave nothing behind.
func TestPeersComeAndGo(t *testing.T) {
	var p peers
	for qpn := range uint32(1000) {
		for i := range uint32(3) {
			require.NotSame(t, &nobody, p.get(qpn+i))
		}
		p.drop(qpn)
		require.Same(t, &nobody, p.find(qpn))
		require.NotSame(t, &nobody, p.find(qpn+1))
		require.LessOrEqual(t, len(p.slots), 8, "of two or three that are there")
	}
}

// A send queue that is attached again replaces the one of the same number, also where
// that was the last to complete; so it does with none attached in between.
func TestAttachAgain(t *testing.T) {
	for _, most := range []int{1, 4} {
		r, dev, _ := newCQ(t, 2, nil)
		dst := make([]Completion, most)
		for round := range uint64(10) {
			q, _ := newSQ(t, 3, nil)
			r.AttachSend(q)
			for i := range round % 4 {
				index := q.Index()
				require.NoError(t, q.Nop(10*round+i, Signalled))
				dev.sent(microQPN, index, prm.WQENop)
				n, err := r.Poll(dst)
				require.NoError(t, err, "round %d", round)
				require.Equal(t, 1, n)
				require.Equal(t, 10*round+i, dst[0].WRID)
				require.Equal(t, 8, q.Free())
			}
			for range 8 { // these never complete
				require.NoError(t, q.Nop(999, Signalled))
			}
		}
	}
}

// Forgetting a queue pair leaves the entries of others where Poll finds them, and
// gives shared receive WQEs back.
func TestForget(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r, dev, rec := newCQ(t, 3, nil)
		srq, _ := newSRQ(t, 4, 5)
		a, _ := newSQ(t, 6, nil)
		b, _ := newSQ(t, 6, nil)
		b.qpn8 = 0x99 << 8
		r.AttachSend(a)
		r.AttachSend(b)
		r.AttachShared(0x99, srq)
		for range srq.Size() {
			require.NoError(t, srq.Post(1, anSGE))
		}
		dst := make([]Completion, 8)
		taken := uint16(0)
		for range 30 {
			var want []uint64
			shared := 0
			for i := range rnd.IntN(9) {
				switch rnd.IntN(3) {
				case 0:
					index := a.Index()
					require.NoError(t, a.Nop(uint64(i), Signalled))
					dev.sent(microQPN, index, prm.WQENop)
					want = append(want, uint64(i))
				case 1:
					index := b.Index()
					require.NoError(t, b.Nop(77, Signalled))
					dev.sent(0x99, index, prm.WQENop)
				case 2:
					dev.write(func(e *prm.CQE64) {
						e.SetOpcode(prm.CQERespSend)
						e.SetQPN(0x99)
						e.SetWQECounter(taken)
					})
					taken = prm.AsWQESRQNextSeg(srq.wqe(taken)).NextWQEIndex()
					shared++
				}
			}
			r.Forget(0x99)
			b.Reset()
			for range shared {
				require.NoError(t, srq.Post(1, anSGE), "it was given back")
			}
			n, err := r.Poll(dst)
			require.NoError(t, err)
			require.Equal(t, len(want), n)
			for i := range n {
				require.Equal(t, want[i], dst[i].WRID)
				require.Equal(t, uint32(microQPN), dst[i].QPN)
			}
			require.Equal(t, dev.pi&0xffffff, binary.BigEndian.Uint32(rec))
		}
	}
}

// Polling allocates nothing: sends, receives, shared ones, and nothing at all.
func TestPollAllocs(t *testing.T) {
	b := newBench(t, 4)
	srq, _ := newSRQ(t, 4, 5)
	b.AttachShared(0x55, srq)
	dst := make([]Completion, 16)
	sent, received, shared := uint16(0), uint16(0), uint16(0)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if b.sq.Nop(1, Signalled) != nil || b.rq.Post(2, anSGE) != nil || srq.Post(3, anSGE) != nil {
			t.Error("refused")
		}
		b.dev.sent(microQPN, sent, prm.WQENop)
		b.dev.write(func(e *prm.CQE64) {
			e.SetOpcode(prm.CQERespSend)
			e.SetQPN(microQPN)
			e.SetWQECounter(received)
		})
		b.dev.write(func(e *prm.CQE64) {
			e.SetOpcode(prm.CQERespSendImm)
			e.SetQPN(0x55)
			e.SetWQECounter(shared)
		})
		sent, received, shared = sent+1, received+1, (shared+1)%16
		if n, err := b.Poll(dst); n != 3 || err != nil || dst[2].WRID != 3 {
			t.Error(n, err, dst[2])
		}
		if n, err := b.Poll(dst); n != 0 || err != nil {
			t.Error(n, err)
		}
		b.Arm(true)
	}))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for range 4 {
			index := b.sq.Index()
			if b.sq.Nop(1, 0) != nil {
				t.Error("refused")
			}
			b.dev.failed(prm.CQEReqErr, microQPN, index, prm.WQENop, prm.CQESyndWrFlushErr)
		}
		if n, err := b.Poll(dst); n != 4 || err != nil {
			t.Error(n, err)
		}
	}), "nor do flushes")
}

// A device that completes while the driver polls: run under the race detector,
// this is what the ownership words are for.
func TestPollWhileDeviceWrites(t *testing.T) {
	b := newBench(t, 3)
	const n = 20000
	posted := make(chan uint16, 6) // as many as may be under way: the CQ is not overrun
	var wg sync.WaitGroup
	wg.Go(func() {
		for index := range posted {
			b.dev.sent(microQPN, index, prm.WQENop)
		}
	})
	next, got := 0, 0
	dst := make([]Completion, 4)
	for got < n {
		for next < n && next-got < 7 {
			index := b.sq.Index()
			require.NoError(t, b.sq.Nop(uint64(next), Signalled))
			b.sq.Ring()
			posted <- index
			next++
		}
		k, err := b.Poll(dst)
		require.NoError(t, err)
		for i := range k {
			require.Equal(t, uint64(got), dst[i].WRID)
			require.Equal(t, 0xb0+uint32(uint16(got)), dst[i].ByteLen, "the body came with the owner bit")
			got++
		}
	}
	close(posted)
	wg.Wait()
}
