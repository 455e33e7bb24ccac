package sim

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The oracle of random programs: it carries one entry out after the other on its
// own memory, bit by bit where atomics are concerned, and knows nothing of packets,
// keys or rings. What it expects of completions it writes down in its own words.

// expectation is a completion.
type expectation struct {
	op    prm.CQEOpcode
	synd  prm.CQESyndrome
	entry uint16
	n     uint32 // byte count
	imm   uint32
	sop   prm.WQEOpcode
}

func (x expectation) String() string {
	return fmt.Sprintf("%s/%s entry %d, %d bytes, immediate %#x, of %s", x.op, x.synd, x.entry, x.n, x.imm, x.sop)
}

// seen says the same of a completion that the device wrote.
func seen(c *prm.CQE64) expectation {
	x := expectation{op: c.Opcode(), entry: c.WQECounter(), sop: c.SWQEOpcode()}
	if x.op == prm.CQEReqErr || x.op == prm.CQERespErr {
		x.synd = prm.AsErrCQE(c[:]).Syndrome()
		return x
	}
	x.n, x.imm = c.ByteCnt(), c.Immediate()
	return x
}

// oracle is one direction of a pair.
type oracle struct {
	mem        []byte
	send, recv []expectation
	posted     []int // receive entries: where they lie, 512 bytes each
	next       uint16
	failed     bool
	calm       bool // no errors but those of the wire
	writes     uint32
	reads      uint32
	atomics    uint32
}

const randomRoom = 512 // of a receive entry

// program makes n entries, posts them to a and tells the oracle.
func (o *oracle) program(rng *rand.Rand, a, b *end, m *region, n int) {
	for range n {
		first := a.pi
		w := wqe{quiet: rng.IntN(3) == 0, fm: prm.FenceSmallAndReads, se: rng.IntN(2) == 0}
		size := rng.IntN(300)
		if rng.IntN(8) == 0 {
			size = rng.IntN(2500)
		}
		src, dst := rng.IntN(5600), 8192+rng.IntN(5600) // what is read and what is written do not overlap
		switch k := rng.IntN(16); {
		case k < 1:
			w.op = prm.WQENop
			o.done(w, first, 0)
		case k < 4:
			o.write(rng, &w, m, first, src, dst, size)
		case k < 6:
			w.op = prm.WQERdmaRead
			w.segs = append([][]byte{m.remote(src)}, pieces(rng, m, dst, size)...)
			if !o.failed {
				o.reads++
				copy(o.mem[dst:], append([]byte(nil), o.mem[src:src+size]...))
			}
			o.done(w, first, uint32(size))
		case k < 9:
			o.sendTo(rng, &w, b, m, first, src, min(size, randomRoom))
		case k < 15:
			o.atomic(rng, &w, m, first, src&^255, dst&^255)
		default:
			if o.calm || rng.IntN(6) > 0 {
				w.op = prm.WQENop
				o.done(w, first, 0)
				break
			}
			// An error, and everything behind it is flushed.
			bad := *m
			bad.key ^= 0x3000
			w.op, w.segs = prm.WQERdmaWrite, [][]byte{bad.remote(dst), m.ptr(src, 8)}
			if o.failed {
				o.done(w, first, 0)
				break
			}
			o.failed = true
			o.send = append(o.send, expectation{op: prm.CQEReqErr, synd: sRAccess, entry: first, sop: w.op})
		}
		a.fill(w)
	}
	a.ring()
}

// done is an entry that succeeds, or is flushed because one before failed.
func (o *oracle) done(w wqe, entry uint16, n uint32) {
	switch {
	case o.failed:
		o.send = append(o.send, expectation{op: prm.CQEReqErr, synd: sFlush, entry: entry, sop: w.op})
	case !w.quiet:
		o.send = append(o.send, expectation{op: prm.CQEReq, entry: entry, n: n, sop: w.op})
	}
}

// pieces splits memory into a list of up to three.
func pieces(rng *rand.Rand, m *region, at, n int) (l [][]byte) {
	for i := 0; n > 0; i++ {
		k := n
		if i < 2 {
			k = 1 + rng.IntN(n)
		}
		l = append(l, m.ptr(at, k))
		at, n = at+k, n-k
	}
	return l
}

// payload is data to send, from memory or in the entry.
func (o *oracle) payload(rng *rand.Rand, m *region, src, n int) (segs [][]byte, data []byte) {
	if n > 0 && n < 200 && rng.IntN(2) == 0 {
		data = make([]byte, n)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		return [][]byte{inlineSeg(data)}, data
	}
	return pieces(rng, m, src, n), append([]byte(nil), o.mem[src:src+n]...)
}

func (o *oracle) write(rng *rand.Rand, w *wqe, m *region, first uint16, src, dst, n int) {
	w.op = prm.WQERdmaWrite
	segs, data := o.payload(rng, m, src, n)
	if len(o.posted) > 0 && !o.failed && rng.IntN(3) == 0 {
		w.op, w.imm = prm.WQERdmaWriteImm, rng.Uint32()
		o.recv = append(o.recv, expectation{op: prm.CQERespWrImm, entry: o.next, n: uint32(n), imm: w.imm})
		o.posted, o.next = o.posted[1:], o.next+1
	}
	w.segs = append([][]byte{m.remote(dst)}, segs...)
	if !o.failed {
		o.writes++
		copy(o.mem[dst:], data)
	}
	o.done(*w, first, 0)
}

func (o *oracle) sendTo(rng *rand.Rand, w *wqe, b *end, m *region, first uint16, src, n int) {
	w.op = prm.WQESend
	x := expectation{op: prm.CQERespSend, entry: o.next, n: uint32(n)}
	if rng.IntN(2) == 0 {
		w.op, w.imm = prm.WQESendImm, rng.Uint32()
		x.op, x.imm = prm.CQERespSendImm, w.imm
	}
	if len(o.posted) == 0 && !o.failed {
		w.op, w.imm = prm.WQENop, 0
		o.done(*w, first, 0)
		return
	}
	var data []byte
	w.segs, data = o.payload(rng, m, src, n)
	if !o.failed {
		copy(o.mem[o.posted[0]:], data)
		o.posted, o.next = o.posted[1:], o.next+1
		o.recv = append(o.recv, x)
	}
	o.done(*w, first, 0)
}

func (o *oracle) atomic(rng *rand.Rand, w *wqe, m *region, first uint16, at, back int) {
	size := 4 << min(rng.IntN(7), rng.IntN(7))
	at += rng.IntN(256/size) * size
	back += rng.IntN(256)
	old := oracleReply(o.mem[at:at+size], size, orderHost)
	random := func() []byte {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rng.Uint32() & rng.Uint32())
		}
		return b
	}
	ones, zeros := make([]byte, size), make([]byte, size)
	for i := range ones {
		ones[i] = 0xff
	}
	masked := size != 8 || rng.IntN(2) == 0
	cs := size <= 128 && rng.IntN(2) == 0
	w.mod = 8 | uint8(bits.TrailingZeros(uint(size))-2)
	var args [][]byte
	if cs {
		swap, compare, sm, cm := random(), old, random(), random()
		if rng.IntN(2) == 0 {
			compare = random()
		}
		w.op, args = prm.WQEAtomicMaskedCS, [][]byte{swap, compare, sm, cm}
		if !masked {
			w.op, w.mod, sm, cm, args = prm.WQEAtomicCS, 0, ones, ones, args[:2]
		}
		if !o.failed {
			oracleCS(o.mem[at:at+size], size, orderHost, swap, compare, sm, cm)
		}
	} else {
		add, boundary := random(), random()
		w.op, args = prm.WQEAtomicMaskedFA, [][]byte{add, boundary}
		if !masked {
			w.op, w.mod, boundary, args = prm.WQEAtomicFA, 0, zeros, args[:1]
		}
		if !o.failed {
			oracleFA(o.mem[at:at+size], size, orderHost, add, boundary)
		}
	}
	var seg []byte
	for _, x := range args {
		seg = append(seg, x...)
	}
	seg = append(seg, make([]byte, -len(seg)&15)...)
	w.segs = [][]byte{m.remote(at), seg, m.ptr(back, size)}
	if !o.failed {
		o.atomics++
		copy(o.mem[back:], old)
	}
	o.done(*w, first, uint32(size))
}

// TestRandomPrograms: ten thousand random programs of entries of every kind, in
// batches, with every choice of the engine seeded, leave memory, completions and
// counters as the oracle says; so do fewer of them over a wire that loses packets,
// or brings them twice and late.
func TestRandomPrograms(t *testing.T) {
	programs := 10000
	if raceDetector {
		programs = 1000
	}
	t.Run("healthy", func(t *testing.T) { randomPrograms(t, programs) })
	t.Run("loss", func(t *testing.T) { randomPrograms(t, programs/5, FaultSpec{"packet-loss", "15"}) })
	t.Run("twice and late", func(t *testing.T) {
		randomPrograms(t, programs/5, FaultSpec{"packet-duplicate", ""}, FaultSpec{"packet-delay", "3us"})
	})
	t.Run("all of it", func(t *testing.T) {
		randomPrograms(t, programs/5, FaultSpec{"packet-duplicate", "response"}, FaultSpec{"packet-delay", "7us"}, FaultSpec{"packet-loss", "25"})
	})
}

func randomPrograms(t *testing.T, programs int, faults ...FaultSpec) {
	r := newFlow(t, Options{})
	m := r.region(16384+16*randomRoom, nil)
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	counted(r, a, b)
	connect(a, b)
	rng := rand.New(rand.NewPCG(42, 43))
	o := &oracle{mem: append([]byte(nil), m.bytes()...), calm: len(faults) > 0}
	for _, f := range faults {
		r.fault(f.Name, f.Arg)
	}
	errors := 0
	for i := range programs {
		r.reseed(uint64(i))
		for range rng.IntN(4) {
			if slot := int(b.ri) % 16; len(o.posted) < 16 {
				at := 16384 + slot*randomRoom
				b.postRecv(pieces(rng, m, at, randomRoom)...)
				o.posted = append(o.posted, at)
			}
		}
		before := r.chip.Counters(0).Completions
		o.program(rng, a, b, m, 1+rng.IntN(6))
		r.settle()
		if o.calm {
			r.chip.Advance(100 * time.Millisecond)
		}
		if o.failed {
			errors++
			for range o.posted {
				o.recv = append(o.recv, expectation{op: prm.CQERespErr, synd: sFlush, entry: o.next})
				o.next++
			}
			o.posted = nil
		}
		var send, recv []expectation
		for c := a.send.next(); c != nil; c = a.send.next() {
			send = append(send, seen(c))
		}
		for c := b.recv.next(); c != nil; c = b.recv.next() {
			recv = append(recv, seen(c))
		}
		a.send.consume()
		b.recv.consume()
		require.Equal(t, o.send, send, "program %d", i)
		require.Equal(t, o.recv, recv, "program %d", i)
		require.EqualValues(t, len(send)+len(recv), r.chip.Counters(0).Completions-before)
		same(t, o.mem, m.bytes(), "program", i)
		require.Equal(t, []uint32{o.writes, o.reads, o.atomics},
			[]uint32{b.counter(qRxWriteRequests), b.counter(qRxReadRequests), b.counter(qRxAtomicRequests)}, "program %d", i)
		o.send, o.recv = nil, nil
		if o.failed {
			for _, e := range []*end{a, b} {
				require.Equal(t, prm.QPStateErr, e.state())
				r.ok(number(prm.Op2RstQP, e.n), 16)
				e.pi, e.ri = 0, 0
				binary.BigEndian.PutUint64(r.bytes(e.dbr, 8), 0)
			}
			connect(a, b)
			o.failed, o.next = false, 0
		}
	}
	require.Equal(t, o.calm, errors == 0)
	require.Greater(t, o.atomics, uint32(programs/2))
	if o.calm {
		require.NotZero(t, a.counter(qLocalAckTimeoutErr)+a.counter(qPacketSeqErr)+b.counter(qDuplicateRequest))
	}
}
