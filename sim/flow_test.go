package sim

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// newFlow is a function in event mode on a manual clock.
func newFlow(t testing.TB, o Options) *raw {
	t.Helper()
	if o.Clock == nil {
		o.Clock = NewManualClock()
	}
	return newRaw(t, o).to(phaseInit)
}

// settle lets interrupted WRITEs end; no timer of a QP runs off in that time.
func (r *raw) settle() { r.chip.Advance(100 * time.Microsecond) }

// pattern fills memory with bytes that differ from their neighbours.
func pattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}

// same compares without printing kilobytes.
func same(t testing.TB, want, got []byte, about ...any) {
	t.Helper()
	if !bytes.Equal(want, got) {
		i := 0
		for i < min(len(want), len(got)) && want[i] == got[i] {
			i++
		}
		require.Fail(t, "bytes differ", append([]any{"lengths %d and %d, first difference at %d; %v", len(want), len(got), i}, about)...)
	}
}

// TestWriteAndRead: one packet, several, none at all, from several pieces, at odd
// addresses; the immediate arrives.
func TestWriteAndRead(t *testing.T) {
	for _, o := range []Options{{}, {Port: PortEth}, {Profile: "cx4"}} {
		r := newFlow(t, o)
		a, b := r.pair()
		m := r.region(1<<18, nil)
		for i, n := range []int{0, 1, 7, 8, 64, 255, 1023, 1024, 1025, 2048, 40001} {
			pattern(m.bytes()[:n+16], i)
			src, dst := 3+i, 1<<16+5*i
			clear(m.bytes()[dst-8 : dst+n+8])
			op := wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(dst)}}
			if n > 4 {
				op.segs = append(op.segs, m.ptr(src, 3), m.ptr(src+3, n-4), m.ptr(src+n-1, 1))
			} else if n > 0 {
				op.segs = append(op.segs, m.ptr(src, n))
			}
			a.post(op)
			r.settle()
			c := a.send.good(prm.CQEReq)
			require.Equal(t, prm.WQERdmaWrite, c.SWQEOpcode())
			require.Equal(t, a.n, c.QPN())
			same(t, m.bytes()[src:src+n], m.bytes()[dst:dst+n])
			require.Equal(t, make([]byte, 8), m.bytes()[dst-8:dst], "what lies before is not touched")
			require.Equal(t, make([]byte, 8), m.bytes()[dst+n:dst+n+8], "nor what lies behind")
			b.recv.none()

			back := 1<<17 + 3*i
			clear(m.bytes()[back-8 : back+n+8])
			op = wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(dst)}}
			if n > 2 {
				op.segs = append(op.segs, m.ptr(back, 2), m.ptr(back+2, n-2))
			} else if n > 0 {
				op.segs = append(op.segs, m.ptr(back, n))
			}
			a.post(op)
			c = a.send.good(prm.CQEReq)
			require.EqualValues(t, n, c.ByteCnt())
			same(t, m.bytes()[src:src+n], m.bytes()[back:back+n])
			require.Equal(t, make([]byte, 8), m.bytes()[back+n:back+n+8])

			b.postRecv()
			a.post(wqe{op: prm.WQERdmaWriteImm, imm: 0xabcd0000 + uint32(i), segs: [][]byte{m.remote(dst), inlineSeg([]byte{1, 2, 3, 4, 5})}})
			r.settle()
			a.send.good(prm.CQEReq)
			c = b.recv.good(prm.CQERespWrImm)
			require.Equal(t, 0xabcd0000+uint32(i), c.Immediate())
			require.EqualValues(t, 5, c.ByteCnt())
			require.EqualValues(t, i, c.WQECounter())
			require.Equal(t, []byte{1, 2, 3, 4, 5}, m.bytes()[dst:dst+5])
		}
		a.send.none()
		require.Empty(t, r.async(), "no event for what goes well")
	}
}

// TestSendAndReceive: scatter and gather lists of unequal pieces, immediate,
// solicited, inline; the completion of the receiver says all there is to say.
func TestSendAndReceive(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	m := r.region(1<<16, nil)
	pattern(m.bytes()[:4096], 1)
	for i, c := range []struct {
		op   prm.WQEOpcode
		want prm.CQEOpcode
		n    int
		se   bool
	}{
		{prm.WQESend, prm.CQERespSend, 100, false}, {prm.WQESendImm, prm.CQERespSendImm, 3000, true},
		{prm.WQESend, prm.CQERespSend, 0, true}, {prm.WQESendImm, prm.CQERespSendImm, 1024, false},
	} {
		clear(m.bytes()[8192 : 8192+4096])
		b.postRecv(m.ptr(8192, 10), m.ptr(8202, 1000), m.ptr(9202, 5000))
		w := wqe{op: c.op, imm: 0x1000 + uint32(i), se: c.se}
		if c.n > 20 {
			w.segs = [][]byte{inlineSeg(m.bytes()[:7]), m.ptr(7, c.n-20), m.ptr(c.n-13, 13)}
		}
		a.post(w)
		a.send.good(prm.CQEReq)
		e := b.recv.good(c.want)
		require.EqualValues(t, c.n, e.ByteCnt())
		require.Equal(t, c.se, e.Se())
		require.Equal(t, b.n, e.QPN())
		require.Equal(t, a.n, e.Rqpn())
		require.Equal(t, r.lid(), e.Slid())
		require.EqualValues(t, i, e.WQECounter())
		require.NotZero(t, e.Timestamp()+1)
		if c.op == prm.WQESendImm {
			require.Equal(t, 0x1000+uint32(i), e.Immediate())
		}
		same(t, m.bytes()[:c.n], m.bytes()[8192:8192+c.n])
		require.Equal(t, make([]byte, 16), m.bytes()[8192+c.n:8192+c.n+16])
	}
}

// TestSendInvalidate: the key is gone for everybody; one that may not be
// invalidated ends the QP.
func TestSendInvalidate(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	m := r.region(4096, nil)
	k := r.region(4096, func(m *prm.MKC) { m.SetEnRinval(true) })
	b.postRecv(m.ptr(0, 8))
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{k.remote(0), inlineSeg([]byte("x"))}},
		wqe{op: prm.WQESendInval, imm: k.key})
	r.settle()
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	c := b.recv.good(prm.CQERespSendInv)
	require.Equal(t, k.key, c.InvalRkey())
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{k.remote(0), inlineSeg([]byte("y"))}})
	a.send.bad(prm.CQEReqErr, prm.CQESyndRemoteAccessErr)
	require.Equal(t, byte('x'), k.bytes()[0])

	a, b = r.pair()
	b.postRecv(m.ptr(0, 8))
	a.post(wqe{op: prm.WQESendInval, imm: m.key})
	a.send.bad(prm.CQEReqErr, prm.CQESyndRemoteInvalReqErr)
	b.recv.bad(prm.CQERespErr, prm.CQESyndRemoteInvalReqErr)
}

// TestAtomicOpcodes: the two standard operations and the masked ones of every
// size that a WQE holds, with the old value in the order that the driver chose.
func TestAtomicOpcodes(t *testing.T) {
	r := newFlow(t, Options{})
	a, _ := r.pair()
	m := r.region(8192, nil)
	check := func(w wqe, old, now uint64) {
		t.Helper()
		a.post(w)
		c := a.send.good(prm.CQEReq)
		require.Equal(t, w.op, c.SWQEOpcode())
		require.EqualValues(t, 8, c.ByteCnt())
		require.Equal(t, old, binary.BigEndian.Uint64(m.bytes()[4096:]))
		require.Equal(t, now, m.word(8))
	}
	m.set(8, 5)
	check(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(8), operands(8, 10, 0), m.ptr(4096, 8)}}, 5, 15)
	check(wqe{op: prm.WQEAtomicCS, segs: [][]byte{m.remote(8), operands(8, 77, 15), m.ptr(4096, 8)}}, 15, 77)
	check(wqe{op: prm.WQEAtomicCS, segs: [][]byte{m.remote(8), operands(8, 99, 15), m.ptr(4096, 8)}}, 77, 77)
	check(wqe{op: prm.WQEAtomicMaskedFA, mod: 9, segs: [][]byte{m.remote(8), operands(8, 0xff, 0x80), m.ptr(4096, 8)}}, 77, 76)
	check(wqe{op: prm.WQEAtomicMaskedCS, mod: 9, segs: [][]byte{m.remote(8), operands(8, 0x1234, 0x4c, 0xff00, 0xff), m.ptr(4096, 8)}}, 76, 0x124c)

	for size, mod := 4, uint8(8); size <= 256; size, mod = size*2, mod+1 {
		n := max(1, size/8)
		word := func(i int) uint64 {
			if size == 4 {
				return uint64(binary.LittleEndian.Uint32(m.bytes()[256:]))
			}
			return m.word(256 + 8*i)
		}
		var add, bound, swap, compare, ones, want []uint64
		for i := range n {
			pattern(m.bytes()[256+8*i:264+8*i], i)
			add, bound = append(add, uint64(3*i+1)), append(bound, 0)
			want = append(want, word(i))
		}
		seg := operands(size, append(append([]uint64{}, add...), bound...)...)
		a.post(wqe{op: prm.WQEAtomicMaskedFA, mod: mod, segs: [][]byte{m.remote(256), seg, m.ptr(4096, size)}})
		require.EqualValues(t, size, a.send.good(prm.CQEReq).ByteCnt())
		for i := range n {
			require.Equal(t, want[i]+add[i], word(i), "size %d word %d", size, i)
			if size == 4 {
				require.Equal(t, uint32(want[0]), binary.BigEndian.Uint32(m.bytes()[4096:]))
			} else {
				require.Equal(t, want[i], binary.BigEndian.Uint64(m.bytes()[4096+8*i:]))
			}
			swap, compare, ones = append(swap, uint64(i)<<7), append(compare, word(i)), append(ones, ^uint64(0))
		}
		if size > 128 {
			continue // no WQE holds it
		}
		seg = operands(size, slices.Concat(swap, compare, ones, ones)...)
		a.post(wqe{op: prm.WQEAtomicMaskedCS, mod: mod, segs: [][]byte{m.remote(256), seg, m.ptr(4096, size)}})
		a.send.good(prm.CQEReq)
		for i := range n {
			require.Equal(t, swap[i], word(i), "size %d word %d", size, i)
		}
		// One bit that differs, and nothing changes.
		compare[n-1] ^= 1 << 9
		a.post(wqe{op: prm.WQEAtomicMaskedCS, mod: mod, segs: [][]byte{m.remote(256), operands(size, slices.Concat(compare, compare, ones, ones)...), m.ptr(4096, size)}})
		a.send.good(prm.CQEReq)
		for i := range n {
			require.Equal(t, swap[i], word(i), "size %d word %d", size, i)
		}
	}
}

// TestReplyOrder: with endianness mode 1 the old value of 8 bytes comes in the
// host's order, any other size stays big-endian.
func TestReplyOrder(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	in := cmd(prm.OpSetHCACap, uint16(prm.CapAtomic)<<1, prm.SetHCACapInSize)
	prm.AsAtomicCaps(in[16:]).SetAtomicReq8BEndiannessMode(1)
	r.ok(in, 16)
	r.give(prm.QueryPagesInit)
	r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
	a, _ := r.pair()
	m := r.region(4096, nil)
	m.set(0, 0x1122334455667788)
	a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 0, 0), m.ptr(64, 8)}},
		wqe{op: prm.WQEAtomicMaskedFA, mod: 9, segs: [][]byte{m.remote(0), operands(8, 0, 0), m.ptr(72, 8)}},
		wqe{op: prm.WQEAtomicMaskedFA, mod: 8, segs: [][]byte{m.remote(0), operands(4, 0, 0), m.ptr(80, 4)}},
		wqe{op: prm.WQEAtomicMaskedFA, mod: 10, segs: [][]byte{m.remote(0), operands(16, 0, 0, 0, 0), m.ptr(96, 16)}})
	for range 4 {
		a.send.good(prm.CQEReq)
	}
	require.Equal(t, uint64(0x1122334455667788), m.word(64))
	require.Equal(t, uint64(0x1122334455667788), m.word(72))
	require.Equal(t, uint32(0x55667788), binary.BigEndian.Uint32(m.bytes()[80:]))
	require.Equal(t, uint64(0x1122334455667788), binary.BigEndian.Uint64(m.bytes()[96:]))
}

// TestSignalling: unsignalled entries complete with the next one that asks, NOPs
// too, and the completion names the first block of its entry.
func TestSignalling(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	m := r.region(4096, nil)
	five := wqe{op: prm.WQEAtomicMaskedCS, mod: 9, quiet: true, segs: [][]byte{m.remote(0), operands(8, 1, 0, 1, 1), m.ptr(8, 8)}}
	a.post(wqe{op: prm.WQENop, quiet: true}, five, wqe{op: prm.WQENop}, five, wqe{op: prm.WQENop, quiet: true})
	c := a.send.good(prm.CQEReq)
	require.EqualValues(t, 3, c.WQECounter(), "the third entry, behind one of two blocks")
	require.Equal(t, prm.WQENop, c.SWQEOpcode())
	a.send.none()
	require.EqualValues(t, 1, m.word(0)&1)
	x := r.qpc(a.n)
	require.EqualValues(t, 7, x.HwSQWQEBBCounter())
	require.EqualValues(t, 7, x.SwSQWQEBBCounter())
	require.EqualValues(t, 0x123+2, x.NextSendPSN())
	require.EqualValues(t, 0x123+1, x.LastAckedPSN())
	require.EqualValues(t, 0x123+2, r.qpc(b.n).NextRcvPSN())
}

// TestSolicited: an event for solicited completions only, and for those that
// always want one.
func TestSolicited(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	r.drainEvents()
	b.recv.arm(true)
	for i := range 3 {
		b.postRecv()
		a.post(wqe{op: prm.WQESend, se: i == 1})
		require.Equal(t, i == 1, b.recv.completionEvent(), "only the second is solicited")
		b.recv.good(prm.CQERespSend)
	}
	for range 3 {
		a.send.good(prm.CQEReq)
	}
	a.send.arm(true)
	a.post(wqe{op: prm.WQENop})
	require.False(t, a.send.completionEvent())
	a.post(wqe{op: prm.WQENop, ce: prm.CompletionModeAlwaysAndEQE})
	require.True(t, a.send.completionEvent())
}

// TestWrap: entries of every size at every place of the ring, across its end too,
// also inside a segment, far around its counter.
func TestWrap(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	m := r.region(16384, nil)
	total, blocks := uint64(0), 0
	for round := 0; blocks < 70000; round++ {
		was := a.pi
		switch round % 4 {
		case 0:
			m.set(0, total)
			a.post(wqe{op: prm.WQEAtomicMaskedFA, mod: 14, segs: [][]byte{m.remote(256), operands(256, make([]uint64, 64)...), m.ptr(512, 256)}})
		case 1:
			a.post(wqe{op: prm.WQEAtomicMaskedCS, mod: 9, segs: [][]byte{m.remote(0), operands(8, total+1, total, ^uint64(0), ^uint64(0)), m.ptr(8, 8)}})
			total++
			require.Equal(t, total, m.word(0), "round %d at block %d", round, a.pi)
		case 2:
			data := make([]byte, 700)
			pattern(data, round)
			a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(4096), inlineSeg(data)}})
			r.settle()
			same(t, data, m.bytes()[4096:4796], "round %d at block %d", round, a.pi)
		case 3:
			b.postRecv(m.ptr(8192, 64))
			a.post(wqe{op: prm.WQESend, segs: [][]byte{inlineSeg([]byte{byte(round)})}})
			require.EqualValues(t, uint16(round/4), b.recv.good(prm.CQERespSend).WQECounter())
			require.Equal(t, byte(round), m.bytes()[8192])
		}
		a.send.good(prm.CQEReq)
		blocks += int(a.pi - was)
	}
}

// TestInlineCompletions: small answers and messages lie in the completion where
// the QP asks for that, and not in memory.
func TestInlineCompletions(t *testing.T) {
	r := newFlow(t, Options{})
	set := func(x *prm.QPC) {
		x.SetCsReq(prm.ScatterReqUpTo32B)
		x.SetCsRes(prm.ScatterResUpTo32B)
	}
	a, b := r.newEnd(prm.QPTypeRC, set), r.newEnd(prm.QPTypeRC, set)
	connect(a, b)
	m := r.region(4096, nil)
	pattern(m.bytes()[:64], 3)
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(1024, 20)}})
	c := a.send.good(prm.CQEReq)
	require.Equal(t, prm.CQEFormatInline32, c.Format())
	require.Equal(t, m.bytes()[:20], c[:20])
	require.Equal(t, make([]byte, 20), m.bytes()[1024:1044])
	m.set(128, 9)
	a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(128), operands(8, 1, 0), m.ptr(1024, 8)}})
	c = a.send.good(prm.CQEReq)
	require.Equal(t, prm.CQEFormatInline32, c.Format())
	require.EqualValues(t, 9, binary.BigEndian.Uint64(c[:8]))
	b.postRecv(m.ptr(2048, 64))
	b.postRecv(m.ptr(2048, 64))
	a.post(wqe{op: prm.WQESendImm, imm: 7, segs: [][]byte{m.ptr(0, 32)}}, wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 33)}})
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	c = b.recv.good(prm.CQERespSendImm)
	require.Equal(t, prm.CQEFormatInline32, c.Format())
	require.Equal(t, m.bytes()[:32], c[:32])
	require.EqualValues(t, 7, c.Immediate())
	c = b.recv.good(prm.CQERespSend)
	require.Equal(t, prm.CQEFormatNoInline, c.Format())
	same(t, m.bytes()[:33], m.bytes()[2048:2081])
}

// BenchmarkAtomic is one FETCH_ADD of 8 bytes: entry, doorbell, both sides,
// completion; through a loopback pair, and between two linked chips.
func BenchmarkAtomic(b *testing.B) {
	b.Run("loopback", func(b *testing.B) {
		r := newRaw(b, Options{}).to(phaseInit)
		x, _ := r.pair()
		m := r.region(4096, nil)
		benchOp(b, x, prm.WQEAtomicFA, append(append(m.remote(0), operands(8, 1, 0)...), m.ptr(64, 8)...))
	})
	b.Run("linked", func(b *testing.B) {
		r, s := twoHosts(b, Options{})
		x, y := r.newEnd(prm.QPTypeRC, nil), s.newEnd(prm.QPTypeRC, nil)
		connect(x, y)
		m, n := r.region(4096, nil), s.region(4096, nil)
		benchOp(b, x, prm.WQEAtomicFA, append(append(n.remote(0), operands(8, 1, 0)...), m.ptr(64, 8)...))
	})
}

// BenchmarkWrite is one WRITE of 64 bytes and of 64 KiB, which is 64 packets and
// need not be atomic.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{64, 1 << 16} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := newRaw(b, Options{}).to(phaseInit)
			x, _ := r.pair()
			m := r.region(1<<18, nil)
			b.SetBytes(int64(n))
			benchOp(b, x, prm.WQERdmaWrite, append(m.remote(0), m.ptr(1<<17, n)...))
		})
	}
}

// benchOp posts one entry after the other, each when the last has completed.
func benchOp(b *testing.B, x *end, op prm.WQEOpcode, seg []byte) {
	r := x.r
	at := func() []byte { return r.bytes(x.sqAt(x.pi), 64) }
	for range 64 {
		copy(at()[16:], seg)
		x.pi++
	}
	x.pi = 0
	ds := uint64(1 + len(seg)/16)
	var db [8]byte
	var ci uint32
	b.ReportAllocs()
	for b.Loop() {
		w := at()
		binary.BigEndian.PutUint64(w, uint64(x.pi)<<40|uint64(op)<<32|uint64(x.n)<<8|ds)
		binary.BigEndian.PutUint32(w[8:], 8)
		x.pi++
		r.mem.StoreBE32(int(x.dbr-arenaIOVA)+4, uint32(x.pi))
		copy(db[:], w)
		if r.dev.WriteRegion(vfio.RegionBAR0, uint64(r.uar)*4096+blueFlame, db[:]) != nil {
			b.Fatal("doorbell")
		}
		off := int(x.send.at-arenaIOVA) + int(ci&63)*64 + 0x3c
		c := r.mem.LoadBE32(off)
		for c>>4&0xf == 0xf || c&1 != ci>>6&1 {
			runtime.Gosched() // an interrupted WRITE
			c = r.mem.LoadBE32(off)
		}
		if c>>4&0xf != 0 {
			b.Fatal("an error")
		}
		ci++
		r.mem.StoreBE32(int(x.send.dbr-arenaIOVA), ci&counter24)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
