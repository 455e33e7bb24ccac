package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// rawSRQ is a shared receive queue as its driver sees it.
type rawSRQ struct {
	r     *raw
	n     uint32
	at    uint64
	dbr   uint64
	log   uint8
	pi    uint16
	links bool // entries begin with a next segment
}

const srqStride = 32

func (r *raw) newSRQ(op prm.Opcode, log uint8, set func(in []byte)) *rawSRQ {
	in := r.srqInput(op, log)
	if set != nil {
		set(in)
	}
	s := &rawSRQ{r: r, log: log, links: op != prm.OpCreateRMP, at: binary.BigEndian.Uint64(in[len(in)-8:])}
	switch op {
	case prm.OpCreateSRQ:
		s.dbr = prm.AsCreateSRQIn(in).SRQContextEntry().DBRAddr()
	case prm.OpCreateXRCSRQ:
		x := prm.AsCreateXRCSRQIn(in).XRCSRQContextEntry()
		s.dbr = uint64(x.DbRecordAddrH())<<32 | uint64(x.DbRecordAddrL())<<2
	case prm.OpCreateRMP:
		s.dbr = prm.AsCreateRMPIn(in).Ctx().WQ().DBRAddr()
	}
	s.n = binary.BigEndian.Uint32(r.ok(in, 16)[8:])
	// Every entry names the next one, as drivers set them up.
	for i := range uint16(1) << log {
		binary.BigEndian.PutUint16(s.entry(i)[2:], (i+1)&(1<<log-1))
	}
	return s
}

func (s *rawSRQ) entry(i uint16) []byte { return s.r.bytes(s.at+uint64(i)*srqStride, srqStride) }

// post puts one piece into entry i, which the driver knows to be next.
func (s *rawSRQ) post(i uint16, seg []byte) {
	b := s.entry(i)
	if s.links {
		copy(b[16:], seg)
	} else {
		copy(b, seg)
		clear(b[16:])
		binary.BigEndian.PutUint32(b[20:], terminateMKey)
	}
	s.pi++
	s.r.mem.StoreBE32(int(s.dbr-arenaIOVA), uint32(s.pi))
}

// TestSharedReceive: two QPs receive from one queue, linked or cyclic, in the order
// of arrival; the completion names the entry; the limit is one event.
func TestSharedReceive(t *testing.T) {
	for _, op := range []prm.Opcode{prm.OpCreateSRQ, prm.OpCreateRMP} {
		r := newFlow(t, Options{})
		r.allEvents()
		s := r.newSRQ(op, 2, func(in []byte) {
			if op == prm.OpCreateRMP {
				prm.AsCreateRMPIn(in).Ctx().WQ().SetWQType(prm.WQTypeCyclic)
			}
		})
		on := func(x *prm.QPC) {
			x.SetRQType(prm.RQTypeSRQ)
			x.SetSRQNRmpnXrqn(s.n)
			x.SetUserIndex(0x99)
		}
		a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
		c, d := r.newEnd(prm.QPTypeRC, on), r.newEnd(prm.QPTypeRC, on)
		connect(a, c)
		connect(b, d)
		m := r.region(4096, nil)
		r.async()
		order := []uint16{0, 1, 2, 3, 0, 1}
		if s.links {
			// The driver may hand the entries out in any order.
			for i, n := range map[uint16]uint16{0: 2, 2: 1, 1: 3, 3: 0} {
				binary.BigEndian.PutUint16(s.entry(i)[2:], n)
			}
			order = []uint16{0, 2, 1, 3, 0, 2}
		}
		for i, at := range order {
			s.post(at, m.ptr(64*i, 32))
			from, to := a, c
			if i%2 == 1 {
				from, to = b, d
			}
			from.post(wqe{op: prm.WQESend, segs: [][]byte{inlineSeg([]byte{byte(i), 7})}})
			from.send.good(prm.CQEReq)
			e := to.recv.good(prm.CQERespSend)
			require.Equal(t, at, e.WQECounter())
			require.EqualValues(t, 2, e.ByteCnt())
			require.Equal(t, to.n, e.QPN())
			require.Equal(t, []byte{byte(i), 7}, m.bytes()[64*i:64*i+2])
		}
		require.Empty(t, r.async())

		// Limit: armed at two, with three entries left, then one.
		if op == prm.OpCreateSRQ {
			next := []uint16{1, 3, 0}
			for i, at := range next {
				s.post(at, m.ptr(64*i, 32))
			}
			in := number(prm.OpArmRQ, s.n)
			in[7] = armSRQ
			prm.AsArmRQIn(in).SetLwm(2)
			r.ok(in, 16)
			for i, want := range []bool{false, true, false} {
				a.post(wqe{op: prm.WQESend})
				a.send.good(prm.CQEReq)
				c.recv.good(prm.CQERespSend)
				l := r.async()
				require.Equal(t, want, len(l) == 1 && l[0] == prm.EventSRQRQLimit, "message %d: %v", i, l)
			}
		}
		// A QP of the queue that goes to error tells that it takes no more.
		r.ok(number(prm.Op2ErrQP, c.n), 16)
		require.Equal(t, []prm.EventType{prm.EventSRQLastWQE}, r.async())
		c.recv.none()
		b.post(wqe{op: prm.WQESend})
		b.send.none() // RNR: the queue is empty
		s.post(0, m.ptr(0, 32))
		r.chip.Advance(time.Millisecond)
		b.send.good(prm.CQEReq)
	}
}

// TestBrokenSharedReceive: an entry that points out of the queue is the end of it.
func TestBrokenSharedReceive(t *testing.T) {
	r := newFlow(t, Options{})
	r.allEvents()
	s := r.newSRQ(prm.OpCreateSRQ, 2, nil)
	a := r.newEnd(prm.QPTypeRC, nil)
	c := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) {
		x.SetRQType(prm.RQTypeSRQ)
		x.SetSRQNRmpnXrqn(s.n)
	})
	connect(a, c)
	r.async()
	m := r.region(4096, nil)
	s.post(0, m.ptr(0, 32))
	s.post(1, m.ptr(0, 32))
	binary.BigEndian.PutUint16(s.entry(0)[2:], 77)
	a.post(wqe{op: prm.WQESend}, wqe{op: prm.WQESend})
	a.send.good(prm.CQEReq)
	c.recv.good(prm.CQERespSend)
	a.send.bad(prm.CQEReqErr, sROp)
	require.Equal(t, []prm.EventType{prm.EventSRQCatasError, prm.EventWQCatasError, prm.EventSRQLastWQE}, r.async())
}

// TestXRCReceive: an XRC QP's SENDs choose the receive queue, which completes where
// it says.
func TestXRCReceive(t *testing.T) {
	r := newFlow(t, Options{})
	s := r.newSRQ(prm.OpCreateXRCSRQ, 2, nil)
	set := func(x *prm.QPC) {
		x.SetRQType(prm.RQTypeZeroLength)
		x.SetXRCD(r.xrcd)
	}
	a, b := r.newEnd(prm.QPTypeXRC, set), r.newEnd(prm.QPTypeXRC, set)
	connect(a, b)
	m := r.region(4096, nil)
	s.post(0, m.ptr(0, 32))
	xrc := make([]byte, 16)
	binary.BigEndian.PutUint32(xrc, s.n)
	a.post(wqe{op: prm.WQESendImm, imm: 3, segs: [][]byte{xrc, inlineSeg([]byte("to you"))}},
		wqe{op: prm.WQEAtomicFA, segs: [][]byte{xrc, m.remote(64), operands(8, 4, 0), m.ptr(128, 8)}})
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	require.Equal(t, "to you", string(m.bytes()[:6]))
	require.EqualValues(t, 4, m.word(64))
	c := r.cq.good(prm.CQERespSendImm)
	want := s.n
	if r.chip.funcs[0].general().CQEVersion() == 1 {
		want = 0x77 // its user index
	}
	require.Equal(t, want, c.SRQN())
	binary.BigEndian.PutUint32(xrc, s.n+5)
	a.post(wqe{op: prm.WQESend, segs: [][]byte{xrc}})
	a.send.bad(prm.CQEReqErr, sROp)
}

// av is an address vector to a QP of the same function.
func (e *end) av(to *end, qkey uint32, grh bool) []byte {
	var v prm.Av
	b := v.Base()
	b.SetQkey(qkey)
	b.SetDqpDCT(to.n)
	b.SetExt(true)
	b.SetRlid(to.r.lid())
	b.SetSl(3)
	b.SetMlid(5)
	if grh {
		v.SetGrh(true)
		v.SetTclass(0x42)
		v.SetHopLimit(64)
		v.SetFlowLabel(0x12345)
		g := to.r.chip.funcs[0].gidAt(0)
		copy(v.Rgid(), g[:])
	}
	return v[:]
}

func (r *raw) udPair() (a, b *end) {
	a, b = r.newEnd(prm.QPTypeUD, nil), r.newEnd(prm.QPTypeUD, nil)
	connect(a, b)
	return a, b
}

// TestDatagrams: 40 bytes of room before the data, with the header in them where
// there is one; who sent is in the completion.
func TestDatagrams(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.udPair()
	m := r.region(16384, nil)
	pattern(m.bytes()[:2048], 9)
	for i, n := range []int{0, 5, 1024} {
		for _, grh := range []bool{false, true} {
			for j := range 4096 {
				m.bytes()[4096+j] = 0xee
			}
			b.postRecv(m.ptr(4096, 30), m.ptr(5000, 3000))
			w := wqe{op: prm.WQESendImm, imm: uint32(i), se: true, segs: [][]byte{a.av(b, 0x1111, grh)}}
			if n > 0 {
				w.segs = append(w.segs, m.ptr(0, n))
			}
			a.post(w)
			a.send.good(prm.CQEReq)
			c := b.recv.good(prm.CQERespSendImm)
			require.EqualValues(t, 40+n, c.ByteCnt())
			require.EqualValues(t, i, c.Immediate())
			require.Equal(t, a.n, c.Rqpn())
			require.Equal(t, r.lid(), c.Slid())
			require.EqualValues(t, 3, c.Sl())
			require.EqualValues(t, 5, c.MlPath())
			require.Equal(t, grh, c.Grh() != 0)
			require.True(t, c.Se())
			head := append(append([]byte{}, m.bytes()[4096:4126]...), m.bytes()[5000:5010]...)
			if grh {
				require.EqualValues(t, 0x64212345, binary.BigEndian.Uint32(head))
				require.EqualValues(t, 28+(n+3)/4*4, binary.BigEndian.Uint16(head[4:]), "BTH, DETH, immediate, padded data, ICRC")
				g := r.chip.funcs[0].gidAt(0)
				same(t, g[:], head[8:24])
				same(t, g[:], head[24:40])
			} else {
				require.EqualValues(t, 0xeeeeeeee, binary.BigEndian.Uint32(head), "nothing is written there")
			}
			same(t, m.bytes()[:n], m.bytes()[5010:5010+n])
			require.EqualValues(t, 0xee, m.bytes()[5010+n])
		}
	}
	// The QP's own key where the top bit says so; another one finds nobody.
	b.postRecv(m.ptr(4096, 100))
	a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x2222, false)}})
	a.send.good(prm.CQEReq)
	b.recv.none()
	a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x80000000, false)}})
	a.send.good(prm.CQEReq)
	b.recv.good(prm.CQERespSend)
	// Nothing posted: it is lost, and nobody hears.
	a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, false)}})
	a.send.good(prm.CQEReq)
	r.chip.Advance(time.Second)
	b.recv.none()
	require.Equal(t, prm.QPStateRts, b.state())
}

// TestDatagramErrors: an error of the sender stops its send queue only; a message
// too long for its entry ends the receiver.
func TestDatagramErrors(t *testing.T) {
	for name, c := range map[string]struct {
		w func(a, b *end, m *region) wqe
		s prm.CQESyndrome
	}{
		"longer than a packet": {func(a, b *end, m *region) wqe {
			return wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, false), m.ptr(0, 1025)}}
		}, sLen},
		"no address": {func(a, b *end, m *region) wqe { return wqe{op: prm.WQESend} }, sOp},
		"READ": {func(a, b *end, m *region) wqe {
			return wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(0, 8)}}
		}, sOp},
		"invalidate": {func(a, b *end, m *region) wqe {
			return wqe{op: prm.WQESendInval, segs: [][]byte{a.av(b, 0x1111, false)}}
		}, sOp},
		"no key": {func(a, b *end, m *region) wqe {
			k := *m
			k.key ^= 1
			return wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, false), k.ptr(0, 8)}}
		}, sProt},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFlow(t, Options{})
			a, b := r.udPair()
			m := r.region(4096, nil)
			a.post(c.w(a, b, m), wqe{op: prm.WQENop})
			a.send.bad(prm.CQEReqErr, c.s)
			a.send.bad(prm.CQEReqErr, sFlush)
			require.Equal(t, prm.QPStateSqer, a.state())
			a.post(wqe{op: prm.WQENop})
			a.send.bad(prm.CQEReqErr, sFlush)
			// It still receives, and sends again after SQERR2RTS.
			a.postRecv(m.ptr(0, 100))
			b.post(wqe{op: prm.WQESend, segs: [][]byte{b.av(a, 0x1111, false)}})
			a.recv.good(prm.CQERespSend)
			r.ok(r.qpStep(prm.OpSqerr2RtsQP, a.n), 16)
			b.postRecv(m.ptr(0, 100))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, false)}})
			a.send.good(prm.CQEReq)
			b.recv.good(prm.CQERespSend)
		})
	}
	r := newFlow(t, Options{})
	a, b := r.udPair()
	m := r.region(4096, nil)
	b.postRecv(m.ptr(0, 47))
	b.postRecv(m.ptr(0, 48))
	a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, false), m.ptr(64, 8)}})
	a.send.good(prm.CQEReq)
	b.recv.bad(prm.CQERespErr, sLen)
	b.recv.bad(prm.CQERespErr, sFlush)
	require.Equal(t, prm.QPStateErr, b.state())
}

// TestUnreliableConnection: SEND and WRITE without acknowledgement; a lost packet
// takes its message with it, and its receive entry serves the next.
func TestUnreliableConnection(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeUC, nil), r.newEnd(prm.QPTypeUC, nil)
	connect(a, b)
	m := r.region(1<<15, nil)
	pattern(m.bytes()[:4096], 2)
	for i := range 4 {
		b.postRecv(m.ptr(8192, 4096))
		if i == 1 {
			r.fault("packet-drop", "#2") // the second packet of three
		}
		a.post(wqe{op: prm.WQESendImm, imm: uint32(i), segs: [][]byte{m.ptr(0, 3000)}})
		a.send.good(prm.CQEReq)
		require.NoError(t, r.chip.ClearFault(""))
		if i == 1 {
			b.recv.none()
			continue
		}
		c := b.recv.good(prm.CQERespSendImm)
		require.EqualValues(t, i, c.Immediate())
		require.EqualValues(t, []int{0, 0, 1, 2}[i], c.WQECounter(), "the entry of the lost message is used again")
		same(t, m.bytes()[:3000], m.bytes()[8192:11192])
	}
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(16384), m.ptr(0, 2500)}})
	a.send.good(prm.CQEReq)
	r.settle()
	same(t, m.bytes()[:2500], m.bytes()[16384:18884])
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(1 << 20), m.ptr(0, 8)}},
		wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(20000), m.ptr(0, 8)}})
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	r.settle()
	same(t, m.bytes()[:8], m.bytes()[20000:20008])
	require.Equal(t, prm.QPStateRts, b.state(), "a refused WRITE is only lost")
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(0, 8)}})
	a.send.bad(prm.CQEReqErr, sOp)
	require.Equal(t, prm.QPStateSqer, a.state())
}

// TestCrossChannel: WAIT holds a queue until a completion queue has had so many
// entries, SEND_EN and RECV_EN let a slave go on.
func TestCrossChannel(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	w, _ := r.pair()
	wait := func(n uint32, count uint32) wqe {
		return wqe{op: prm.WQEWait, segs: [][]byte{operands(4, 0, 0, uint64(count), uint64(n))}}
	}
	m := r.region(4096, nil)
	w.post(wait(a.send.n, 2), wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), inlineSeg([]byte{1, 2, 3})}})
	w.send.none()
	a.post(wqe{op: prm.WQENop})
	a.send.good(prm.CQEReq)
	w.send.none()
	require.Zero(t, m.bytes()[0])
	a.post(wqe{op: prm.WQENop})
	require.Equal(t, prm.WQEWait, w.send.good(prm.CQEReq).SWQEOpcode())
	w.send.good(prm.CQEReq)
	require.EqualValues(t, 1, m.bytes()[0])
	a.send.good(prm.CQEReq)
	w.post(wait(a.send.n, 1)) // long there
	w.send.good(prm.CQEReq)

	enable := func(op prm.WQEOpcode, n, count uint32) wqe {
		return wqe{op: op, segs: [][]byte{operands(4, 0, 0, uint64(count), uint64(n))}}
	}
	master := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) { x.SetCdMaster(true) })
	slave := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) { x.SetCdSlaveSend(true) })
	sink := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) { x.SetCdSlaveReceive(true) })
	connect(master, master)
	connect(slave, sink)
	for i := range 3 {
		sink.postRecv(m.ptr(64*i, 64))
		slave.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 4)}})
	}
	slave.send.none()
	master.post(enable(prm.WQESendEn, slave.n, 2))
	master.send.good(prm.CQEReq)
	r.chip.Advance(time.Millisecond)
	slave.send.none() // the receive queue is not enabled
	sink.recv.none()
	master.post(enable(prm.WQERecvEn, sink.n, 3))
	r.chip.Advance(time.Millisecond)
	sink.recv.good(prm.CQERespSend)
	sink.recv.good(prm.CQERespSend)
	sink.recv.none()
	slave.send.good(prm.CQEReq)
	slave.send.good(prm.CQEReq)
	slave.send.none()
	master.post(enable(prm.WQESendEn, slave.n, 3))
	sink.recv.good(prm.CQERespSend)

	b.post(enable(prm.WQESendEn, slave.n, 4))
	b.send.bad(prm.CQEReqErr, sOp) // no master
	master.send.good(prm.CQEReq)
	master.send.good(prm.CQEReq)
	master.post(enable(prm.WQESendEn, sink.n, 4))
	master.send.bad(prm.CQEReqErr, sOp) // no slave
	w.post(wait(0x777777, 1))
	w.send.bad(prm.CQEReqErr, sOp)
}

// TestWaitGone: a queue that waits can be destroyed, reset and flushed.
func TestWaitGone(t *testing.T) {
	r := newFlow(t, Options{})
	a, _ := r.pair()
	for _, end := range []prm.Opcode{prm.OpDestroyQP, prm.Op2RstQP, prm.Op2ErrQP} {
		w, _ := r.pair()
		w.post(wqe{op: prm.WQEWait, segs: [][]byte{operands(4, 0, 0, 1000, uint64(a.send.n))}})
		require.Len(t, r.chip.fabric.waiters, 1)
		r.ok(number(end, w.n), 16)
		require.Empty(t, r.chip.fabric.waiters)
		if end == prm.Op2ErrQP {
			w.send.bad(prm.CQEReqErr, sFlush)
		}
	}
	w, _ := r.pair()
	w.post(wqe{op: prm.WQEWait, segs: [][]byte{operands(4, 0, 0, 1000, uint64(a.send.n))}})
	require.NoError(t, r.dev.Reset())
	require.Empty(t, r.chip.fabric.waiters)
}
