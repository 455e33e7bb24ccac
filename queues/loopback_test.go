package queues_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// linkHalf is where the memory of a link's own use ends and the peer's begins.
const linkHalf = 1 << 14

// link is two connected queue pairs with a CQ and memory each. Work is posted on
// a; b answers.
type link struct {
	*bench
	a, b       *queues.QP
	acq, bcq   *queues.CQ
	amem, bmem *vfio.Buffer
	akey, bkey *queues.MKey
	interrupts bool
}

// newLink connects two queue pairs of one function.
func newLink(b *bench, o queues.QPOptions, c queues.ConnectOptions) *link {
	b.t.Helper()
	l := &link{bench: b, acq: b.cq(8), bcq: b.cq(8), amem: b.buffer(linkHalf), bmem: b.buffer(linkHalf)}
	l.akey, l.bkey = b.mkey(l.amem, queues.AccessAll), b.mkey(l.bmem, queues.AccessAll)
	l.a, l.b = b.qp(l.acq, o), b.qp(l.bcq, o)
	if o.Type == queues.RC {
		require.NoError(b.t, queues.ConnectPair(b.t.Context(), l.a, l.b, c))
	} else {
		require.NoError(b.t, l.a.Activate(b.t.Context(), qkey))
		require.NoError(b.t, l.b.Activate(b.t.Context(), qkey))
	}
	return l
}

const qkey = 0x11223344

// patience bounds the wait for a completion; the model's own delays are far below.
const patience = 10 * time.Second

// next takes one completion, by interrupt or by polling.
func (l *link) next(q *queues.CQ) queues.Completion {
	l.t.Helper()
	var c [1]queues.Completion
	if l.interrupts {
		n, err := l.ch.Completions(ctxOf(l.t), q, c[:])
		require.NoError(l.t, err)
		require.Equal(l.t, 1, n)
		return c[0]
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
		n, err := q.Poll(c[:])
		require.NoError(l.t, err)
		if n == 1 {
			return c[0]
		}
	}
	require.FailNow(l.t, "no completion")
	return c[0]
}

// good takes one completion that must be the success of wrid.
func (l *link) good(q *queues.CQ, wrid uint64) queues.Completion {
	l.t.Helper()
	c := l.next(q)
	require.NoError(l.t, q.Err(&c))
	require.Equal(l.t, wrid, c.WRID)
	return c
}

// quiet requires that nothing more has completed.
func (l *link) quiet() {
	l.t.Helper()
	for _, q := range []*queues.CQ{l.acq, l.bcq} {
		var c [1]queues.Completion
		n, err := q.Poll(c[:])
		require.NoError(l.t, err)
		require.Zero(l.t, n, "%+v", c[0])
	}
}

// fill writes a pattern and returns it.
func fill(m *vfio.Buffer, off, n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = seed + byte(i)*7
	}
	m.CopyIn(off, p)
	return p
}

func at(m *vfio.Buffer, off, n int) []byte {
	p := make([]byte, n)
	m.CopyOut(off, p)
	return p
}

// TestLoopback: every operation of an RC queue pair arrives, on both link layers,
// waited for in both ways.
func TestLoopback(t *testing.T) {
	devices := []string{"sim:cx5,port=eth", "sim:cx4,port=ib", "sim:cx5,load=100000,seed=3"}
	for _, p := range sim.Profiles() {
		devices = append(devices, "sim:"+p)
	}
	for _, words := range devices {
		for _, interrupts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/interrupts=%t", words, interrupts), func(t *testing.T) {
				l := newLink(newBench(t, words), queues.QPOptions{}, queues.ConnectOptions{MTU: 512})
				l.interrupts = interrupts
				for _, o := range loopbackOps {
					o.run(l)
					l.quiet()
				}
				s, err := l.a.Query(t.Context())
				require.NoError(t, err)
				require.Equal(t, prm.QPStateRts, s.State)
			})
		}
	}
}

const big = 3000 // bytes: six packets of 512

var loopbackOps = []struct {
	name string
	run  func(*link)
}{
	{"nop", func(l *link) {
		require.NoError(l.t, l.a.SQ.Nop(1, queues.Signalled))
		l.a.SQ.Ring()
		require.Equal(l.t, prm.WQENop, l.good(l.acq, 1).SendOpcode)
	}},
	{"send", func(l *link) {
		p := fill(l.amem, 100, big, 1)
		require.NoError(l.t, l.b.RQ.Post(2, l.bkey.SGE(200, 1000), l.bkey.SGE(5000, big)))
		l.b.RQ.Ring()
		require.NoError(l.t, l.a.SQ.Send(1, queues.Signalled, l.akey.SGE(100, big)))
		l.a.SQ.Ring()
		require.Equal(l.t, prm.WQESend, l.good(l.acq, 1).SendOpcode)
		c := l.good(l.bcq, 2)
		require.Equal(l.t, prm.CQERespSend, c.Opcode)
		require.EqualValues(l.t, big, c.ByteLen)
		require.Equal(l.t, l.b.Number(), c.QPN)
		require.Equal(l.t, p[:1000], at(l.bmem, 200, 1000))
		require.Equal(l.t, p[1000:], at(l.bmem, 5000, big-1000))
	}},
	{"send with immediate", func(l *link) {
		require.NoError(l.t, l.b.RQ.Post(2, l.bkey.SGE(0, 64)))
		l.b.RQ.Ring()
		require.NoError(l.t, l.a.SQ.SendImm(1, queues.Signalled|queues.Solicited, 0xdeadbeef, l.akey.SGE(0, 0)))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		c := l.good(l.bcq, 2)
		require.True(l.t, c.HasImm())
		require.EqualValues(l.t, 0xdeadbeef, c.Imm)
		require.Zero(l.t, c.ByteLen)
		require.NotZero(l.t, c.Bits&queues.WasSolicited)
	}},
	{"inline send", func(l *link) {
		require.NoError(l.t, l.b.RQ.Post(2, l.bkey.SGE(0, 600)))
		l.b.RQ.Ring()
		p := bytes.Repeat([]byte("abc"), 200)
		require.NoError(l.t, l.a.SQ.SendInline(1, queues.Signalled, p))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		require.EqualValues(l.t, 600, l.good(l.bcq, 2).ByteLen)
		require.Equal(l.t, p, at(l.bmem, 0, 600))
	}},
	{"gathered send", func(l *link) {
		p := fill(l.amem, 0, 300, 9)
		require.NoError(l.t, l.b.RQ.Post(2, l.bkey.SGE(64, 300)))
		l.b.RQ.Ring()
		require.NoError(l.t, l.a.SQ.SendV(1, queues.Signalled, []queues.SGE{l.akey.SGE(0, 1), l.akey.SGE(1, 0), l.akey.SGE(1, 199), l.akey.SGE(200, 100)}))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		l.good(l.bcq, 2)
		require.Equal(l.t, p, at(l.bmem, 64, 300))
	}},
	{"write", func(l *link) {
		p := fill(l.amem, 0, big, 3)
		require.NoError(l.t, l.a.SQ.Write(1, queues.Signalled|queues.NonAtomic, l.akey.SGE(0, big), l.bkey.Remote(77)))
		l.a.SQ.Ring()
		require.Equal(l.t, prm.WQERdmaWrite, l.good(l.acq, 1).SendOpcode)
		require.Equal(l.t, p, at(l.bmem, 77, big))
	}},
	{"atomic write", func(l *link) {
		most := l.a.SQ.PeerAtomic()
		p := fill(l.amem, 0, most, 4)
		require.NoError(l.t, l.a.SQ.Write(1, queues.Signalled, l.akey.SGE(0, uint32(most)), l.bkey.Remote(uint64(4*most))))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		require.Equal(l.t, p, at(l.bmem, 4*most, most))
		require.ErrorIs(l.t, l.a.SQ.Write(1, queues.Signalled, l.akey.SGE(0, uint32(most)), l.bkey.Remote(uint64(4*most+1))), queues.ErrNotAtomicWrite)
	}},
	{"write with immediate", func(l *link) {
		p := fill(l.amem, 0, 64, 5)
		require.NoError(l.t, l.b.RQ.Post(2))
		l.b.RQ.Ring()
		require.NoError(l.t, l.a.SQ.WriteImm(1, queues.Signalled|queues.NonAtomic, 7, l.akey.SGE(0, 64), l.bkey.Remote(128)))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		c := l.good(l.bcq, 2)
		require.Equal(l.t, prm.CQERespWrImm, c.Opcode)
		require.EqualValues(l.t, 7, c.Imm)
		require.EqualValues(l.t, 64, c.ByteLen)
		require.Equal(l.t, p, at(l.bmem, 128, 64))
	}},
	{"inline write", func(l *link) {
		p := []byte("one two three")
		require.NoError(l.t, l.a.SQ.WriteInline(1, queues.Signalled|queues.NonAtomic, p, l.bkey.Remote(999)))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		require.Equal(l.t, p, at(l.bmem, 999, len(p)))
	}},
	{"read", func(l *link) {
		p := fill(l.bmem, 33, big, 6)
		require.NoError(l.t, l.a.SQ.Read(1, queues.Signalled, l.akey.SGE(10, big), l.bkey.Remote(33)))
		l.a.SQ.Ring()
		c := l.good(l.acq, 1)
		require.EqualValues(l.t, big, c.ByteLen)
		require.Equal(l.t, p, at(l.amem, 10, big))
	}},
	{"compare and swap", func(l *link) {
		l.bmem.Store64(64, 41)
		for i, c := range []struct{ compare, swap, was, is uint64 }{{41, 42, 41, 42}, {41, 43, 42, 42}} {
			require.NoError(l.t, l.a.SQ.CompareSwap(uint64(i), queues.Signalled, l.akey.SGE(8, 8), l.bkey.Remote(64), c.compare, c.swap))
			l.a.SQ.Ring()
			require.EqualValues(l.t, 8, l.good(l.acq, uint64(i)).ByteLen)
			require.Equal(l.t, c.was, l.reply(8))
			require.Equal(l.t, c.is, l.bmem.Load64(64))
		}
	}},
	{"fetch and add", func(l *link) {
		l.bmem.Store64(64, ^uint64(0))
		require.NoError(l.t, l.a.SQ.FetchAdd(1, queues.Signalled, l.akey.SGE(8, 8), l.bkey.Remote(64), 3))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		require.Equal(l.t, ^uint64(0), l.reply(8))
		require.EqualValues(l.t, 2, l.bmem.Load64(64))
	}},
	{"masked compare and swap", func(l *link) {
		l.bmem.Store32(64, 0x11223344)
		op := queues.MaskedCS{Compare: 0x33 << 8, CompareMask: 0xff << 8, Swap: 0xaa << 24, SwapMask: 0xff << 24}
		require.NoError(l.t, l.a.SQ.MaskedCompareSwap(1, queues.Signalled, l.akey.SGE(8, 4), l.bkey.Remote(64), &op))
		l.a.SQ.Ring()
		require.EqualValues(l.t, 4, l.good(l.acq, 1).ByteLen)
		require.EqualValues(l.t, 0x11223344, binary.BigEndian.Uint32(at(l.amem, 8, 4)))
		require.EqualValues(l.t, 0xaa223344, l.bmem.Load32(64))
	}},
	{"masked fetch and add", func(l *link) {
		l.bmem.Store64(64, 0x00ff_00ff_00ff_00ff)
		op := queues.MaskedFA{Add: 0x0001_0001_0001_0001, Boundary: 0x0080_0000_0080_0000}
		require.NoError(l.t, l.a.SQ.MaskedFetchAdd(1, queues.Signalled, l.akey.SGE(8, 8), l.bkey.Remote(64), &op))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		require.EqualValues(l.t, 0x00ff_00ff_00ff_00ff, l.reply(8))
		require.EqualValues(l.t, 0x0000_0100_0000_0100, l.bmem.Load64(64))
	}},
	{"wide masked atomics", func(l *link) {
		n := min(l.a.SQ.PeerAtomic(), 128) / 8
		zero, one := make([]uint64, n), make([]uint64, n)
		for i := range n {
			l.bmem.Store64(1024+8*i, uint64(i))
			one[i] = ^uint64(0)
		}
		op := queues.MaskedFAWide{Add: one, Boundary: zero}
		require.NoError(l.t, l.a.SQ.MaskedFetchAddWide(1, queues.Signalled, l.akey.SGE(1024, uint32(8*n)), l.bkey.Remote(1024), &op))
		cs := queues.MaskedCSWide{Swap: one, SwapMask: one, Compare: zero, CompareMask: zero}
		require.NoError(l.t, l.a.SQ.MaskedCompareSwapWide(2, queues.Signalled, l.akey.SGE(2048, uint32(8*n)), l.bkey.Remote(1024), &cs))
		l.a.SQ.Ring()
		l.good(l.acq, 1)
		l.good(l.acq, 2)
		for i := range n {
			// Replies are words with the most significant byte first, but for one of
			// 8 bytes in the other mode (UCX ib_mlx5dv_md.c).
			require.EqualValues(l.t, i, binary.BigEndian.Uint64(at(l.amem, 1024+8*i, 8)))
			require.Equal(l.t, uint64(i)-1, binary.BigEndian.Uint64(at(l.amem, 2048+8*i, 8)))
			require.Equal(l.t, ^uint64(0), l.bmem.Load64(1024+8*i))
		}
	}},
	{"batch of all, one completion", func(l *link) {
		l.bmem.Store64(0, 0)
		for i := range 7 {
			require.NoError(l.t, l.a.SQ.FetchAdd(uint64(i), 0, l.akey.SGE(uint64(8*i), 8), l.bkey.Remote(0), 1))
		}
		require.NoError(l.t, l.a.SQ.Read(7, queues.Signalled|queues.Fence, l.akey.SGE(512, 8), l.bkey.Remote(0)))
		require.NotZero(l.t, l.a.SQ.Pending())
		l.a.SQ.Ring()
		l.good(l.acq, 7)
		require.EqualValues(l.t, 7, l.amem.Load64(512))
		require.Equal(l.t, l.a.SQ.Size(), l.a.SQ.Free(), "the one completion retires all before it")
	}},
}

// reply is the 8-byte reply of an atomic at off, in the order the device has.
func (l *link) reply(off int) uint64 {
	if l.dev.Caps.HostOrderReplies {
		return l.amem.Load64(off)
	}
	return binary.BigEndian.Uint64(at(l.amem, off, 8))
}

// A queue pair connected to itself is its own responder.
func TestLoopbackToItself(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		t.Run(words, func(t *testing.T) { loopbackToItself(t, newBench(t, words)) })
	}
}

func loopbackToItself(t *testing.T, b *bench) {
	send, recv := b.cq(4), b.cq(4)
	q, err := b.dev.CreateQP(ctxOf(t), queues.QPOptions{Name: "self", PD: b.pd, SendCQ: send, RecvCQ: recv, UAR: b.uar})
	require.NoError(t, err)
	require.NoError(t, q.ConnectLoopback(ctxOf(t), queues.ConnectOptions{}))
	mem := b.buffer(4096)
	key := b.mkey(mem, queues.AccessAll)
	l := &link{bench: b, a: q, b: q, acq: send, bcq: recv, amem: mem, bmem: mem, akey: key, bkey: key}
	p := fill(mem, 0, 100, 1)
	require.NoError(t, q.RQ.Post(9, key.SGE(200, 100)))
	q.RQ.Ring()
	require.NoError(t, q.SQ.Send(1, queues.Signalled, key.SGE(0, 100)))
	require.NoError(t, q.SQ.Read(2, queues.Signalled|queues.Fence, key.SGE(400, 100), key.Remote(0)))
	q.SQ.Ring()
	l.good(send, 1)
	l.good(send, 2)
	l.good(recv, 9)
	require.Equal(t, p, at(mem, 200, 100))
	require.Equal(t, p, at(mem, 400, 100))
	require.NoError(t, q.Destroy(ctxOf(t)))
}

// Datagrams arrive behind a global route header's room, with their sender, and
// only where the Q_Key fits.
func TestDatagrams(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		for _, interrupts := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/interrupts=%t", words, interrupts), func(t *testing.T) {
				datagrams(t, newBench(t, words), interrupts)
			})
		}
	}
}

func datagrams(t *testing.T, b *bench, interrupts bool) {
	l := newLink(b, queues.QPOptions{Type: queues.UD}, queues.ConnectOptions{})
	l.interrupts = interrupts
	peer, err := l.b.Local(t.Context())
	require.NoError(t, err)
	to, err := l.a.AddressOf(t.Context(), peer, qkey)
	require.NoError(t, err)
	wrong, err := l.a.AddressOf(t.Context(), peer, qkey+1)
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, l.b.RQ.Post(uint64(10+i), l.bkey.SGE(uint64(1000*i), 1000)))
	}
	l.b.RQ.Ring()
	p := fill(l.amem, 0, 500, 8)
	require.NoError(t, l.a.SQ.SendTo(1, queues.Signalled, wrong, []queues.SGE{l.akey.SGE(0, 500)}))
	require.NoError(t, l.a.SQ.SendTo(2, queues.Signalled, to, []queues.SGE{l.akey.SGE(0, 500)}))
	require.NoError(t, l.a.SQ.SendImmInlineTo(3, queues.Signalled, 77, to, p[:20]))
	l.a.SQ.Ring()
	l.good(l.acq, 1) // sent is not received
	l.good(l.acq, 2)
	l.good(l.acq, 3)
	c := l.good(l.bcq, 10)
	require.EqualValues(t, 540, c.ByteLen)
	require.Equal(t, l.a.Number(), c.RemoteQPN)
	require.Equal(t, p, at(l.bmem, 40, 500))
	require.Equal(t, !peer.IB, c.Bits&queues.HasGRH != 0)
	if peer.IB {
		require.Equal(t, peer.LID, c.RemoteLID)
	} else {
		require.Equal(t, peer.GID[:], at(l.bmem, 24, 16), "the destination of the route header")
	}
	c = l.good(l.bcq, 11)
	require.EqualValues(t, 77, c.Imm)
	require.EqualValues(t, 60, c.ByteLen)
	require.Equal(t, p[:20], at(l.bmem, 1040, 20))
	l.quiet()
}

// Queue pairs that share a receive queue take its WQEs in turn, whoever asks.
func TestSharedReceiveQueue(t *testing.T) {
	for _, issi := range []uint16{1, 0} {
		t.Run(fmt.Sprintf("ISSI %d", issi), func(t *testing.T) {
			b := newBench(t, "sim:cx5")
			b.dev.Caps.ISSI = issi
			srq, err := b.dev.CreateSRQ(ctxOf(t), queues.SRQOptions{Name: "test", PD: b.pd, LogSize: 3})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, srq.Destroy(ctxOf(t))) })
			events := b.hca.Subscribe(4, queues.EventMask{})
			defer events.Close()
			l := newLink(b, queues.QPOptions{SRQ: srq}, queues.ConnectOptions{})
			m := newLink(b, queues.QPOptions{SRQ: srq}, queues.ConnectOptions{})
			posted, taken := 0, 0
			for round := range 5 {
				for srq.Post(uint64(posted), l.bkey.SGE(uint64(64*(posted%64)), 64)) == nil {
					posted++
				}
				srq.Ring()
				require.Equal(t, srq.Size(), posted-taken)
				if round == 2 {
					require.NoError(t, srq.SetLimit(ctxOf(t), 3))
				}
				for i := range 7 {
					x := l
					if i%3 == round%3 {
						x = m
					}
					p := []byte(fmt.Sprintf("message %d of round %d", i, round))
					require.NoError(t, x.a.SQ.SendInline(uint64(i), queues.Signalled, p))
					x.a.SQ.Ring()
					x.good(x.acq, uint64(i))
					c := x.next(x.bcq)
					require.NoError(t, x.bcq.Err(&c))
					require.Equal(t, x.b.Number(), c.QPN)
					require.EqualValues(t, taken, c.WRID, "WQEs are taken in the order they were posted")
					require.Equal(t, p, at(l.bmem, 64*(taken%64), len(p)))
					taken++
				}
				if round == 2 {
					e := <-events.C()
					require.Equal(t, "SRQ_RQ_LIMIT", e.Type().String())
				}
			}
			require.Empty(t, events.C())
		})
	}
}

// A CQ larger than its interrupt: many completions, one event; then none without
// an arm.
func TestArming(t *testing.T) {
	l := newLink(newBench(t, "sim:cx5"), queues.QPOptions{}, queues.ConnectOptions{})
	post := func(f queues.Flags) {
		require.NoError(t, l.b.RQ.Post(1))
		l.b.RQ.Ring()
		require.NoError(t, l.a.SQ.Send(1, f, queues.SGE{}))
		l.a.SQ.Ring()
	}
	fired := func() int {
		t.Helper()
		f, err := l.ch.Ready()
		require.NoError(t, err)
		return len(f)
	}
	drain := func(q *queues.CQ) int {
		var c [16]queues.Completion
		n, err := q.Poll(c[:])
		require.NoError(t, err)
		return n
	}
	post(0)
	require.Zero(t, fired(), "nobody asked")
	l.bcq.Arm(false)
	require.Equal(t, 1, fired(), "arming is level-triggered")
	require.Zero(t, fired())
	require.Equal(t, 1, drain(l.bcq))
	l.bcq.Arm(false)
	require.Zero(t, fired(), "nothing is left")
	post(0)
	post(0)
	require.Equal(t, 1, fired(), "one event for an arm")
	require.Equal(t, 2, drain(l.bcq))
	l.bcq.Arm(true)
	post(0)
	require.Zero(t, fired(), "not solicited")
	post(queues.Solicited)
	require.Equal(t, 1, fired())
	require.Equal(t, 2, drain(l.bcq))
}
