package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestCompletionOverrun: a completion queue that is full loses nothing that is in
// it, is lost itself, and takes the QPs that complete there with it.
func TestCompletionOverrun(t *testing.T) {
	r := newFlow(t, Options{})
	r.allEvents()
	small := r.createCQ(2, nil)
	on := func(x *prm.QPC) { x.SetCQNSnd(small.n) }
	a, b := r.newEnd(prm.QPTypeRC, on), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a)
	other := r.newEnd(prm.QPTypeRC, on)
	connect(a, b)
	connect(other, other)
	r.async()
	for range 4 {
		a.post(wqe{op: prm.WQENop})
	}
	require.Empty(t, r.async())
	a.post(wqe{op: prm.WQENop}, wqe{op: prm.WQENop})
	require.Equal(t, []prm.EventType{prm.EventCQError, prm.EventWQCatasError, prm.EventWQCatasError}, r.async())
	require.Equal(t, prm.QPStateErr, a.state())
	require.Equal(t, prm.QPStateErr, other.state())
	require.Equal(t, prm.QPStateRts, b.state())
	require.EqualValues(t, 1, a.counter(qCQOverflow))
	for i := range 4 {
		require.EqualValues(t, i, small.good(prm.CQEReq).WQECounter())
	}
	small.none()
}

// TestFlush: everything posted completes in order with the flush syndrome, sends
// and receives, the partly arrived message too; and what is posted to a QP in error
// later.
func TestFlush(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a, b)
	connect(a, b)
	m := r.region(1<<15, nil)
	for i := range 5 {
		b.postRecv(m.ptr(4096*i, 4096))
	}
	r.fault("packet-drop", "#3")
	a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 3000)}}) // its third packet is lost
	a.fill(wqe{op: prm.WQENop, quiet: true})
	a.fill(wqe{op: prm.WQEAtomicMaskedCS, mod: 9, segs: [][]byte{m.remote(0), operands(8, 1, 2, 3, 4), m.ptr(8, 8)}})
	a.fill(wqe{op: prm.WQENop, ce: prm.CompletionModeOnFirstError})
	a.fill(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
	r.ok(number(prm.Op2ErrQP, b.n), 16)
	for i := range 5 {
		require.EqualValues(t, i, b.recv.bad(prm.CQERespErr, sFlush).WQECounter())
	}
	b.recv.none()
	a.send.none()
	a.ring()
	r.ok(number(prm.Op2ErrQP, a.n), 16)
	for _, want := range []uint16{0, 1, 2, 5} { // entry 4 asked for the first error only
		require.Equal(t, want, a.send.bad(prm.CQEReqErr, sFlush).WQECounter())
	}
	a.send.none()
	require.EqualValues(t, 4, a.counter(qReqCQEFlush))
	require.EqualValues(t, 5, b.counter(qRespCQEFlush))

	a.post(wqe{op: prm.WQENop})
	a.send.bad(prm.CQEReqErr, sFlush)
	b.postRecv(m.ptr(0, 64)) // no doorbell tells
	r.chip.Advance(flushLookMost)
	b.recv.bad(prm.CQERespErr, sFlush)
	r.chip.Advance(time.Minute)
	b.postRecv(m.ptr(0, 64))
	r.chip.Advance(flushLookMost)
	b.recv.bad(prm.CQERespErr, sFlush)

	// Reset and connected again, both work from the beginning of their rings.
	for _, e := range []*end{a, b} {
		r.ok(number(prm.Op2RstQP, e.n), 16)
		e.pi, e.ri = 0, 0
		clear(r.bytes(e.dbr, 8))
	}
	require.NoError(t, r.chip.ClearFault(""))
	connect(a, b)
	b.postRecv(m.ptr(64, 64))
	a.post(wqe{op: prm.WQESend, segs: [][]byte{inlineSeg([]byte("again"))}})
	a.send.good(prm.CQEReq)
	require.EqualValues(t, 0, b.recv.good(prm.CQERespSend).WQECounter())
	require.Equal(t, "again", string(m.bytes()[64:69]))
}

// TestLoopToItself: a QP that is its own peer hears of its error before it is
// flushed.
func TestLoopToItself(t *testing.T) {
	r := newFlow(t, Options{})
	a := r.newEnd(prm.QPTypeRC, nil)
	connect(a, a)
	m := r.region(4096, nil)
	a.postRecv(m.ptr(512, 64))
	a.postRecv(m.ptr(512, 64))
	a.post(wqe{op: prm.WQESendImm, imm: 1, segs: [][]byte{inlineSeg([]byte("me"))}})
	a.send.good(prm.CQEReq)
	a.recv.good(prm.CQERespSendImm)
	k := *m
	k.key ^= 0x00ff0000
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{k.remote(0), m.ptr(0, 64)}}, wqe{op: prm.WQENop})
	require.EqualValues(t, 1, a.send.bad(prm.CQEReqErr, sRAccess).WQECounter())
	a.send.bad(prm.CQEReqErr, sFlush)
	a.recv.bad(prm.CQERespErr, sFlush)
	require.Equal(t, prm.QPStateErr, a.state())
}

// TestQPEvents: the first packet in RTR, and a send queue that has drained.
func TestQPEvents(t *testing.T) {
	r := newFlow(t, Options{})
	r.allEvents()
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	for _, op := range []prm.Opcode{prm.OpRst2InitQP, prm.OpInit2RtrQP} {
		a.step(op, b)
		b.step(op, a)
	}
	a.step(prm.OpRtr2RtsQP, b)
	m := r.region(4096, nil)
	for range 3 {
		a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(8, 8)}})
		a.send.good(prm.CQEReq)
	}
	require.Equal(t, []prm.EventType{prm.EventCommEst}, r.async(), "once")
	// A doorbell before RTS waits for it.
	b.post(wqe{op: prm.WQENop})
	b.send.none()
	b.step(prm.OpRtr2RtsQP, a)
	b.send.good(prm.CQEReq)
	r.async()

	// SQD: what is outstanding ends, nothing new begins.
	f := r.chip.funcs[0]
	r.fault("packet-delay", "10us")
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}})
	move := func(s prm.QPState) {
		r.chip.mu.Lock()
		defer r.chip.mu.Unlock()
		f.setState(f.qps.objs[a.n], s)
	}
	move(prm.QPStateSqd)
	a.post(wqe{op: prm.WQENop})
	require.Empty(t, r.async())
	r.chip.Advance(20 * time.Microsecond)
	require.Equal(t, []prm.EventType{prm.EventSQDrained}, r.async())
	a.send.good(prm.CQEReq)
	a.send.none()
	r.ok(r.qpStep(prm.OpSqdRtsQP, a.n), 16)
	a.send.good(prm.CQEReq)
}

// TestBrokenQueues: rings and records that cannot be read or make no sense end the
// QP with an event.
func TestBrokenQueues(t *testing.T) {
	r := newFlow(t, Options{})
	r.allEvents()
	m := r.region(4096, nil)
	for name, c := range map[string]func(a, b *end){
		"send ring": func(a, b *end) {
			r.chip.funcs[0].qps.objs[a.n].sq.buf.pages[0] = 0x9_0000_0000
			a.post(wqe{op: prm.WQENop})
		},
		"record": func(a, b *end) {
			r.chip.funcs[0].qps.objs[a.n].dbr = 0x9_0000_0000
			a.post(wqe{op: prm.WQENop})
		},
		"more posted than there is room": func(a, b *end) {
			a.fill(wqe{op: prm.WQENop})
			a.pi = 1<<endLogSQ + 1
			a.ring()
		},
		"receive ring": func(a, b *end) {
			r.chip.funcs[0].qps.objs[a.n].rq.buf.pages[0] = 0x9_0000_0000
			a.postRecv(m.ptr(0, 64))
			b.post(wqe{op: prm.WQESend})
			b.send.bad(prm.CQEReqErr, sROp)
		},
		"more receives posted than there is room": func(a, b *end) {
			a.ri = 1 << endLogRQ
			a.postRecv(m.ptr(0, 64))
			b.post(wqe{op: prm.WQESend})
			b.send.bad(prm.CQEReqErr, sROp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := r.pair()
			r.async()
			c(a, b)
			require.Equal(t, []prm.EventType{prm.EventWQCatasError}, r.async())
			require.Equal(t, prm.QPStateErr, a.state())
		})
	}
}

// TestKeys: every mode of a key, and the rules for its range.
func TestKeys(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) { x.SetRlky(true) }), r.newEnd(prm.QPTypeRC, nil)
	connect(a, b)
	r.alloc(0, 1<<16)
	base := r.region(1<<16, nil)
	for i := range 1 << 16 / 8 {
		base.set(8*i, uint64(i))
	}
	// read gives the word that a READ under a key finds at an address.
	read := func(key uint32, va uint64) uint64 {
		t.Helper()
		k := &region{r, va, 0, key}
		a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{k.remote(0), base.ptr(8, 8)}})
		a.send.good(prm.CQEReq)
		v := base.word(8)
		base.set(8, 1)
		return v
	}
	key := func(entries [][2]uint64, set func(m *prm.MKC)) uint32 {
		in := r.keyInput(base.at, 4096, set)[:prm.CreateMKeyInSize]
		octs := uint32(len(entries))
		x := prm.AsCreateMKeyIn(in)
		x.SetTranslationsOctwordActualSize(octs)
		x.MemoryKeyMKeyEntry().SetTranslationsOctwordSize(octs)
		for _, e := range entries {
			in = binary.BigEndian.AppendUint64(in, e[0])
			in = binary.BigEndian.AppendUint64(in, e[1])
		}
		return r.createKey(in)
	}
	at := func(page int) uint64 { return base.at + uint64(page)*4096 }
	word := func(page, off int) uint64 { return uint64(page*512 + off/8) }

	// Pages in any order, the start in the middle of the first one; the address on
	// the wire is another one than the bus address, but for the low bits.
	scattered := key([][2]uint64{{at(7) | 3, at(2) | 3}, {at(5), 0}}, func(m *prm.MKC) {
		m.SetStartAddr(0x7f00_0000_0100)
		m.SetLen(3*4096 - 0x100)
	})
	require.Equal(t, word(7, 0x100), read(scattered, 0x7f00_0000_0100))
	require.Equal(t, word(2, 0), read(scattered, 0x7f00_0000_1000))
	require.Equal(t, word(5, 4088), read(scattered, 0x7f00_0000_2ff8))

	// Larger pages.
	large := key([][2]uint64{{at(8), at(0)}}, func(m *prm.MKC) {
		m.SetLogPageSize(14)
		m.SetStartAddr(0x10000)
		m.SetLen(0x8000)
	})
	require.Equal(t, word(9, 8), read(large, 0x11008))
	require.Equal(t, word(1, 8), read(large, 0x15008))

	// Bus addresses.
	pa := func(all bool) uint32 {
		return key(nil, func(m *prm.MKC) {
			m.SetAccessMode1_0(modePA)
			m.SetLength64(all)
			m.SetStartAddr(at(1))
			m.SetLen(4096)
		})
	}
	require.Equal(t, word(1, 16), read(pa(false), at(1)+16))
	require.Equal(t, word(6, 16), read(pa(true), at(6)+16))
	reserved := &region{r, base.at, base.n, reservedLKey}
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{base.remote(16), reserved.ptr(4096, 8)}})
	r.settle()
	a.send.good(prm.CQEReq)
	require.Equal(t, word(1, 0), base.word(16))

	// Keys of keys: pieces of any length, and blocks of one.
	klms := key([][2]uint64{{10<<32 | uint64(base.key), at(1) + 6}, {4096<<32 | uint64(base.key), at(4)}}, func(m *prm.MKC) {
		m.SetAccessMode1_0(modeKLMs)
		m.SetStartAddr(0x5000)
		m.SetLen(10 + 4096)
	})
	require.Equal(t, word(4, 8), read(klms, 0x5000+10+8))
	first := read(klms, 0x5000+2) // eight bytes of the first piece
	require.Equal(t, word(1, 8), first)
	across := read(klms, 0x5000+6)
	require.Equal(t, word(1, 8)>>32|word(4, 0)<<32, across)
	ksm := key([][2]uint64{{uint64(base.key), at(3)}, {uint64(klms), 0x5000 + 10}}, func(m *prm.MKC) {
		m.SetAccessMode1_0(modeKSM)
		m.SetLogPageSize(12)
		m.SetStartAddr(0x8000)
		m.SetLen(8192)
	})
	require.Equal(t, word(3, 64), read(ksm, 0x8040))
	require.Equal(t, word(4, 64), read(ksm, 0x9040))
	// An atomic through two of them.
	k := &region{r, 0x9000, 0, ksm}
	a.post(wqe{op: prm.WQEAtomicFA, segs: [][]byte{k.remote(128), operands(8, 1000, 0), base.ptr(8, 8)}})
	a.send.good(prm.CQEReq)
	require.Equal(t, word(4, 128)+1000, base.word(4*4096+128))
	// A key that is its own piece ends somewhere.
	loop := key([][2]uint64{{uint64(klms), 0}}, func(m *prm.MKC) {
		m.SetAccessMode1_0(modeKSM)
		m.SetLogPageSize(12)
		m.SetStartAddr(0)
		m.SetLen(4096)
	})
	r.chip.funcs[0].mkeys.objs[loop>>8].klms[0].key = loop
	k = &region{r, 0, 0, loop}
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{k.remote(0), base.ptr(8, 8)}})
	a.send.bad(prm.CQEReqErr, sRAccess)
}

// TestSignedEntries: with wq_signature every byte of an entry counts.
func TestSignedEntries(t *testing.T) {
	r := newFlow(t, Options{})
	if !r.chip.funcs[0].general().WQSignature() {
		t.Skip("the profile has no WQE signatures")
	}
	a := r.newEnd(prm.QPTypeRC, func(x *prm.QPC) { x.SetWQSignature(true) })
	connect(a, a)
	sign := func() {
		w := r.bytes(a.sqAt(a.pi-1), 64)
		w[8] = 0
		w[8] = ^xor(w[:int(w[7])*16])
	}
	a.fill(wqe{op: prm.WQENop})
	sign()
	a.ring()
	a.send.good(prm.CQEReq)
	a.fill(wqe{op: prm.WQENop})
	sign()
	r.bytes(a.sqAt(a.pi-1), 64)[15] ^= 4
	a.ring()
	a.send.bad(prm.CQEReqErr, sOp)
}

// TestWideCompletions: entries of 128 bytes carry up to 64 bytes of data before
// the completion.
func TestWideCompletions(t *testing.T) {
	r := newFlow(t, Options{})
	wide := r.createCQ(4, func(x *prm.CQC) { x.SetCQESz(1) })
	set := func(x *prm.QPC) {
		x.SetCsReq(prm.ScatterReqUpTo64B)
		x.SetCsRes(prm.ScatterResUpTo64B)
		x.SetCQNSnd(wide.n)
		x.SetCQNRcv(wide.n)
	}
	a := r.newEnd(prm.QPTypeRC, set)
	connect(a, a)
	m := r.region(4096, nil)
	pattern(m.bytes()[:128], 6)
	entry := func(i int) []byte { return r.bytes(wide.at+uint64(i)*128, 128) }
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(1024, 64)}})
	c := prm.AsCQE64(entry(0)[64:])
	require.Equal(t, prm.CQEReq, c.Opcode())
	require.Equal(t, prm.CQEFormatInline64, c.Format())
	same(t, m.bytes()[:64], entry(0)[:64])
	require.Zero(t, m.bytes()[1024+1])
	a.postRecv(m.ptr(2048, 64))
	a.post(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(0, 50)}})
	for i := 1; i <= 2; i++ {
		if c = prm.AsCQE64(entry(i)[64:]); c.Opcode() == prm.CQERespSend {
			require.Equal(t, prm.CQEFormatInline64, c.Format())
			same(t, m.bytes()[:50], entry(i)[:50])
		} else {
			require.Equal(t, prm.CQEReq, c.Opcode())
		}
	}
}
