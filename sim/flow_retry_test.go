package sim

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// counter reads one of the QP's Q counters.
func (e *end) counter(c qCounter) uint32 {
	s := e.r.chip.funcs[0].qps.objs[e.n].counters
	return binary.BigEndian.Uint32(s.out[c:])
}

// counted gives both QPs sets of counters when they are connected.
func counted(r *raw, l ...*end) {
	for _, e := range l {
		set := prm.AsAllocQCounterOut(r.ok(valid(prm.OpAllocQCounter), 16)).CounterSetID()
		was := e.tune
		e.tune = func(op prm.Opcode, x *prm.QPC) {
			x.SetCounterSetID(set)
			if was != nil {
				was(op, x)
			}
		}
	}
}

// TestRNR: a SEND with nothing posted waits for the receiver's timer and succeeds
// when there is an entry by then; the count of tries is exact, 7 is forever.
func TestRNR(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a, b)
	connect(a, b) // min_rnr_nak 1: 10 µs
	m := r.region(4096, nil)
	m.set(0, 0x77)
	a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 8)}}, wqe{op: prm.WQESend, segs: [][]byte{m.ptr(8, 8)}})
	a.send.none()
	require.EqualValues(t, 1, b.counter(qOutOfBuffer))
	r.chip.Advance(10*time.Microsecond - 1)
	require.EqualValues(t, 1, b.counter(qOutOfBuffer))
	r.chip.Advance(1)
	require.EqualValues(t, 2, b.counter(qOutOfBuffer), "the second try")
	r.chip.Advance(time.Second)
	require.Greater(t, b.counter(qOutOfBuffer), uint32(1000), "7 is forever")
	b.postRecv(m.ptr(64, 8))
	b.postRecv(m.ptr(128, 8))
	r.chip.Advance(10 * time.Microsecond)
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	b.recv.good(prm.CQERespSend)
	b.recv.good(prm.CQERespSend)
	require.EqualValues(t, 0x77, m.word(64))

	// Three tries more, and no more.
	a, b = r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a, b)
	a.rnr = 3
	b.tune = withRNR(b.tune, 14) // 1.28 ms
	connect(a, b)
	a.post(wqe{op: prm.WQERdmaWriteImm, segs: [][]byte{m.remote(256), inlineSeg([]byte("xy"))}})
	r.chip.Advance(3*1280*time.Microsecond - 1)
	a.send.none()
	r.chip.Advance(1)
	a.send.bad(prm.CQEReqErr, sRNR)
	require.EqualValues(t, 4, b.counter(qOutOfBuffer))
	require.EqualValues(t, 1, a.counter(qReqRNRRetriesExceeded))
	require.Zero(t, m.bytes()[256], "the WRITE was not carried out either")
}

func withRNR(was func(prm.Opcode, *prm.QPC), code uint8) func(prm.Opcode, *prm.QPC) {
	return func(op prm.Opcode, x *prm.QPC) {
		if was != nil {
			was(op, x)
		}
		x.SetMinRNRNak(code)
	}
}

// TestTimeouts: a peer that does not answer is asked again after each ack timeout,
// retry_count times.
func TestTimeouts(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a, b)
	a.retry = 3
	connect(a, b)
	m := r.region(4096, nil)
	r.fault("packet-drop", "response")
	a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(64, 8)}})
	const tr = 4096 * time.Nanosecond << 8
	for i := range uint32(4) {
		require.EqualValues(t, i, b.counter(qDuplicateRequest))
		require.EqualValues(t, i, a.counter(qLocalAckTimeoutErr))
		r.chip.Advance(tr - 1)
		a.send.none()
		r.chip.Advance(1)
	}
	a.send.bad(prm.CQEReqErr, sRetry)
	require.EqualValues(t, 1, m.word(0), "four requests, and one atomic")
	require.EqualValues(t, 1, a.counter(qReqTransportRetries))

	// Without a timeout it waits forever.
	a, b = r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	a.tune = func(_ prm.Opcode, x *prm.QPC) { x.PrimaryAddressPath().SetAckTimeout(0) }
	connect(a, b)
	a.post(wqe{op: prm.WQESend})
	r.chip.Advance(time.Hour)
	a.send.none()
	require.Equal(t, prm.QPStateRts, a.state())
}

// TestLoss: whatever one packet is lost or comes twice, of requests or answers of
// any kind, everything arrives once and in order.
func TestLoss(t *testing.T) {
	for _, fault := range []string{"packet-drop", "packet-duplicate"} {
		for _, which := range []string{"request", "response"} {
			for nth := 1; nth <= 22; nth++ {
				r := newFlowSmall(t)
				r.lossy(FaultSpec{fault, which + "#" + string(rune('0'+nth/10)) + string(rune('0'+nth%10))})
			}
		}
	}
}

// newFlowSmall is newFlow for tests that make many.
func newFlowSmall(t *testing.T) *raw { return newFlow(t, Options{Seed: 5}) }

// lossy runs a program of every kind of operation under a fault on packets, and
// checks that nothing of it shows.
func (r *raw) lossy(f FaultSpec) {
	t := r.t
	a, b := r.pair()
	m := r.region(1<<16, nil)
	pattern(m.bytes()[:8192], 1)
	for i := range 4 {
		b.postRecv(m.ptr(40960+4096*i, 4096))
	}
	require.NoError(t, r.chip.SetFault(f.Name, f.Arg))
	a.post(
		wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 2500)}},
		wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(32768), operands(8, 5, 0), m.ptr(33000, 8)}},
		wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(16384), m.ptr(0, 5000)}},
		wqe{op: prm.WQERdmaRead, fm: prm.FenceReads, segs: [][]byte{m.remote(16384), m.ptr(24576, 4500)}},
		wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(32768), operands(8, 5, 0), m.ptr(33008, 8)}},
		wqe{op: prm.WQERdmaWriteImm, imm: 9, segs: [][]byte{m.remote(32776), m.ptr(0, 8)}},
		wqe{op: prm.WQESendImm, imm: 10, segs: [][]byte{m.ptr(0, 1)}},
	)
	r.chip.Advance(100 * time.Millisecond)
	for range 7 {
		a.send.good(prm.CQEReq)
	}
	a.send.none()
	require.EqualValues(t, 2500, b.recv.good(prm.CQERespSend).ByteCnt())
	require.EqualValues(t, 9, b.recv.good(prm.CQERespWrImm).Immediate())
	require.EqualValues(t, 10, b.recv.good(prm.CQERespSendImm).Immediate())
	b.recv.none()
	same(t, m.bytes()[:2500], m.bytes()[40960:43460])
	same(t, m.bytes()[:5000], m.bytes()[16384:21384])
	same(t, m.bytes()[:4500], m.bytes()[24576:29076])
	same(t, m.bytes()[:8], m.bytes()[32776:32784])
	require.EqualValues(t, 10, m.word(32768))
	require.EqualValues(t, 0, binary.BigEndian.Uint64(m.bytes()[33000:]))
	require.EqualValues(t, 5, binary.BigEndian.Uint64(m.bytes()[33008:]))
	require.NoError(t, r.chip.ClearFault(""))
}

// TestRandomLoss: long messages both ways over a wire that loses every sixth
// packet and delays the others.
func TestRandomLoss(t *testing.T) {
	r := newFlow(t, Options{Seed: 11})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	a.tune = func(_ prm.Opcode, x *prm.QPC) { x.PrimaryAddressPath().SetAckTimeout(6) }
	b.tune = a.tune
	connect(a, b)
	m := r.region(1<<20, nil)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range m.bytes()[:1<<18] {
		m.bytes()[i] = byte(rng.Uint32())
	}
	r.fault("packet-loss", "6")
	r.fault("packet-delay", "5us")
	sum := uint64(0)
	for i := range 40 {
		n := 1 + rng.IntN(20000)
		a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(1 << 18), m.ptr(i*100, n)}},
			wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(1 << 19), operands(8, uint64(n), 0), m.ptr(1<<19+64, 8)}},
			wqe{op: prm.WQERdmaRead, fm: prm.FenceReads, segs: [][]byte{m.remote(1 << 18), m.ptr(1<<19+4096, n)}})
		sum += uint64(n)
		for k := 0; k < 3; {
			c := a.send.next()
			if c == nil {
				r.chip.Advance(time.Millisecond)
				continue
			}
			require.Equal(t, prm.CQEReq, c.Opcode(), "%s", show(c))
			a.send.consume()
			k++
		}
		require.True(t, bytes.Equal(m.bytes()[i*100:i*100+n], m.bytes()[1<<19+4096:1<<19+4096+n]))
		require.Equal(t, sum, m.word(1<<19))
	}
}

// TestLateAnswers: answers that come after everything was sent again are good.
func TestLateAnswers(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	a.tune = func(_ prm.Opcode, x *prm.QPC) { x.PrimaryAddressPath().SetAckTimeout(1) } // 8 µs
	counted(r, a, b)
	connect(a, b)
	m := r.region(1<<16, nil)
	pattern(m.bytes()[:4096], 1)
	for s := range uint64(seeds) {
		r.reseed(s)
		require.NoError(t, r.chip.ClearFault(""))
		r.fault("packet-delay", "5us") // 10 µs both ways
		if s%2 == 1 {
			r.fault("packet-loss", "30")
		}
		clear(m.bytes()[4096:16384])
		b.postRecv(m.ptr(12288, 4096))
		a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(32768), operands(8, 1, 0), m.ptr(33000, 8)}},
			wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(4096, 3000)}},
			wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(32768), operands(8, 1, 0), m.ptr(33008, 8)}},
			wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(8192), m.ptr(0, 3000)}},
			wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 3000)}})
		r.chip.Advance(10 * time.Millisecond)
		for range 5 {
			a.send.good(prm.CQEReq)
		}
		b.recv.good(prm.CQERespSend)
		for _, at := range []int{4096, 8192, 12288} {
			same(t, m.bytes()[:3000], m.bytes()[at:at+3000])
		}
		require.EqualValues(t, 2*(s+1), m.word(32768))
	}
	require.NotZero(t, b.counter(qDuplicateRequest))
}

// TestAnswersBehindGaps: answers that are on their way when their request is about to
// be sent again are good.
func TestAnswersBehindGaps(t *testing.T) {
	r := newFlow(t, Options{})
	a, _ := r.pair()
	m := r.region(1<<16, nil)
	sum := uint64(0)
	rng := rand.New(rand.NewPCG(8, 8))
	for s := range uint64(3000) {
		r.reseed(s)
		r.fault("packet-loss", "12")
		for i := range 6 {
			switch rng.IntN(3) {
			case 0:
				a.fill(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(32768), operands(8, 1, 0), m.ptr(33000+8*i, 8)}})
				sum++
			case 1:
				a.fill(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(4096, 2500)}})
			case 2:
				a.fill(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(8192), m.ptr(0, 64)}})
			}
		}
		a.ring()
		require.NoError(t, r.chip.ClearFault(""))
		r.chip.Advance(20 * time.Millisecond)
		for range 6 {
			a.send.good(prm.CQEReq)
		}
		require.Equal(t, sum, m.word(32768))
	}
}

// TestDepth: no more reads and atomics are outstanding than the requester may
// have, and a responder with room for fewer refuses.
func TestDepth(t *testing.T) {
	for _, c := range []struct{ sra, rra uint8 }{{0, 0}, {1, 3}, {3, 3}, {3, 0}} {
		r := newFlow(t, Options{})
		a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
		a.tune = func(_ prm.Opcode, x *prm.QPC) { x.SetLogSraMax(c.sra) }
		b.tune = func(_ prm.Opcode, x *prm.QPC) { x.SetLogRraMax(c.rra) }
		connect(a, b)
		m := r.region(4096, nil)
		batch := func() {
			for range 12 {
				a.fill(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
			}
			a.ring()
		}
		out := func() uint32 { return r.chip.funcs[0].qps.objs[a.n].flow.reads }
		r.fault("packet-delay", "10us")
		batch()
		require.EqualValues(t, 1<<c.sra, out())
		for range 100 {
			r.chip.Advance(10 * time.Microsecond)
			require.LessOrEqual(t, out(), uint32(1)<<c.sra)
		}
		for range 12 {
			a.send.good(prm.CQEReq)
		}
		// At once, they pile up before the responder.
		require.NoError(t, r.chip.ClearFault(""))
		failed := false
		for s := range uint64(20) {
			r.reseed(s)
			batch()
			for e := a.send.next(); e != nil; e = a.send.next() {
				failed = failed || e.Opcode() == prm.CQEReqErr
			}
			if a.send.consume(); failed {
				break
			}
		}
		require.Equal(t, c.rra < c.sra, failed, "depth %d against %d", c.sra, c.rra)
		if failed {
			require.Equal(t, prm.QPStateErr, b.state())
		}
	}
}

// TestWindow: a message of many packets needs no more than the window, and queues
// do not grow with it.
func TestWindow(t *testing.T) {
	r := newFlow(t, Options{})
	a, _ := r.pair()
	m := r.region(24<<20, nil)
	pattern(m.bytes()[:8<<20], 4)
	r.fault("packet-delay", "1us")
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(8 << 20), m.ptr(0, 8<<20)}},
		wqe{op: prm.WQERdmaRead, fm: prm.FenceStrongOrdering, segs: [][]byte{m.remote(8 << 20), m.ptr(16<<20, 8<<20)}})
	most := 0
	for i := 0; i < 1e5 && a.send.ci < 2; i++ {
		r.chip.Advance(time.Microsecond)
		if a.send.next() != nil {
			continue
		}
		f := &r.chip.funcs[0].qps.objs[a.n].flow
		if o := f.ops.at(0); o.kind == kindMessage {
			most = max(most, int(psnDiff((o.psn+o.sent)&counter24, f.acked)))
		}
	}
	require.True(t, bytes.Equal(m.bytes()[:8<<20], m.bytes()[16<<20:24<<20]))
	require.LessOrEqual(t, len(r.chip.fabric.wire.buf), 16384)
	require.Greater(t, most, 64)
	require.LessOrEqual(t, most, maxWindow)
}
