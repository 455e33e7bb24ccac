package sim

import (
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// What a peer does to memory: WRITEs and atomics. A WRITE that the rule makes
// atomic is one unit; any other may be interrupted.

// tornChance is how rarely a WRITE that need not be atomic is interrupted: one in
// so many, chosen by the seed.
const tornChance = 4

// tornPause is the longest interruption.
const tornPause = 50 * time.Microsecond

// unit tells whether a WRITE is carried out as one: the QP has atomic writes, and
// it lies in one aligned block of the size of the QP's largest atomic. The rule
// is a public article's alone; NVIDIA's GPUDirect code sets the bit.
func (q *qp) unit(va uint64, n uint32) bool {
	most := uint64(q.largestAtomic())
	return q.atomicWrites && most > 0 && va%most+uint64(n) <= most
}

// write takes a packet of a WRITE; false when it goes on later.
func (f *function) write(q *qp, p *packet) bool {
	fl := &q.flow
	m := fl.msg
	if p.has(flagFirst) {
		m = message{kind: pktWrite, va: p.vaddr, rkey: p.rkey, length: p.length}
		if !q.rwe || uint64(p.length) > q.maxMsg {
			f.refuse(q, p, aethInval)
			return true
		}
		if p.length > 0 {
			if _, r := f.keyFor(q.accessor(), p.rkey, needRemoteWrite, p.vaddr, uint64(p.length)); r != memOK {
				f.writeDenied(q, p)
				return true
			}
		}
		f.plan(q, &m)
	}
	last := p.has(flagLast)
	if end := m.got + uint64(p.n); end > uint64(m.length) || last != (end == uint64(m.length)) || !last && p.n != int(q.mtu) {
		f.refuse(q, p, aethInval)
		return true
	}
	if last && p.has(flagImm) {
		if st := f.takeRecv(q, p.xsrq); st != recvTaken {
			f.notPosted(q, p, st)
			return true
		}
		m.recv = true
	}
	if p.has(flagFirst) {
		q.tally(qRxWriteRequests)
	}
	fl.msg = m
	return f.putAll(q, p)
}

// plan decides where a WRITE is interrupted, if at all.
func (f *function) plan(q *qp, m *message) {
	b := f.chip.fabric
	if m.length < 2 {
		return
	}
	if q.unit(m.va, m.length) {
		m.torn = b.chip.faults.has("torn-write")
	} else {
		m.torn = b.rng.IntN(tornChance) == 0
	}
	if m.torn {
		m.cut = 1 + uint64(b.rng.Uint32N(m.length-1))
	}
}

// writeDenied refuses a WRITE whose key does not allow it. One with immediate
// tells the receiver with a completion, if it has an entry posted.
func (f *function) writeDenied(q *qp, p *packet) {
	if p.has(flagLast) && p.has(flagImm) && f.takeRecv(q, p.xsrq) == recvTaken {
		f.failRecv(q, prm.CQESyndLocalAccessErr)
		f.refuseRecv(q, p, aethAccess, true)
		return
	}
	f.refuse(q, p, aethAccess)
}

// put writes bytes from to to of a WRITE's packet.
func (f *function) put(q *qp, p *packet, from, to uint64) bool {
	m := &q.flow.msg
	r := f.copyMem(q.accessor(), m.rkey, needRemoteWrite, m.va+m.got+from, p.data[from:to], 0)
	if r == memOK {
		return true
	}
	if m.recv {
		m.recv = false
		f.failRecv(q, prm.CQESyndLocalAccessErr)
		f.refuseRecv(q, p, aethOp, true)
		return false
	}
	f.refuse(q, p, aethOp)
	return false
}

// putAll writes the data of a packet, all at once or with the interruption that
// was planned; false when it goes on later.
func (f *function) putAll(q *qp, p *packet) bool {
	b, fl := f.chip.fabric, &q.flow
	m := &fl.msg
	n := uint64(p.n)
	if !m.torn || m.cut < m.got || m.cut >= m.got+n {
		if f.put(q, p, 0, n) {
			f.written(q, p)
		}
		return true
	}
	cut := m.cut - m.got
	if !f.put(q, p, 0, cut) {
		return true
	}
	pause := time.Duration(1 + b.rng.Int64N(int64(tornPause)))
	if b.chip.faults.has("late-write") {
		// The fault: the rest lands when the peer has long gone on.
		va, key, rest := m.va+m.got+cut, m.rkey, append([]byte(nil), p.data[cut:n]...)
		f.afterward(q, pause, func() { f.copyMem(q.accessor(), key, needRemoteWrite, va, rest, 0) })
		f.written(q, p)
		return true
	}
	fl.busy = true
	f.afterward(q, pause, func() {
		fl.busy = false
		if q.receiving() && f.put(q, p, cut, n) {
			f.written(q, p)
		}
		b.drop(p)
		f.resume(q)
	})
	return false
}

// written is the end of a WRITE's packet.
func (f *function) written(q *qp, p *packet) {
	m := &q.flow.msg
	m.got += uint64(p.n)
	last := p.has(flagLast)
	if last && p.has(flagImm) {
		f.received(q, p, m.length, false)
	}
	f.accept(q, p, last)
}

// resume takes the requests that came while the QP was busy.
func (f *function) resume(q *qp) {
	fl := &q.flow
	for fl.inbox.n > 0 && !fl.busy {
		f.request(q, fl.inbox.pop())
	}
}

// runAtomic carries out an atomic at a bus address; false when it goes on later.
func (f *function) runAtomic(q *qp, p *packet, iova uint64) bool {
	b := f.chip.fabric
	a := &b.atom
	a.setArgs(p.atom, int(p.size), p.payload())
	order := orderHost
	if len(b.chip.faults.list) > 0 {
		order = b.spoil(a, p)
		if b.chip.faults.has("lost-update") {
			return f.loseUpdate(q, p, iova, order)
		}
	}
	old := &b.old
	if !f.dma(iova, a.size, true, func(m vfio.Mem, _ int) { a.run(m, order, old) }) {
		f.refuse(q, p, aethOp)
		return true
	}
	f.atomicDone(q, p, old)
	return true
}

// spoil is what faults make of an atomic: its operands, and the order of memory.
func (b *fabric) spoil(a *atomicReq, p *packet) memOrder {
	if p.atom&atomMasked != 0 {
		for i := range a.words() {
			if a.cs && b.chip.faults.has("mask-order") {
				a.swapMask[i] = reverseWord(a.swapMask[i], a.size)
				a.compareMask[i] = reverseWord(a.compareMask[i], a.size)
			}
			if !a.cs && b.chip.faults.has("no-boundary") {
				a.swapMask[i] = 0
			}
		}
	}
	if b.chip.faults.has("memory-order") {
		return orderBig
	}
	return orderHost
}

func reverseWord(v uint64, size int) uint64 {
	if size == 4 {
		return uint64(bits.ReverseBytes32(uint32(v)))
	}
	return bits.ReverseBytes64(v)
}

// loseUpdate is an atomic that is not: what it read is written back, changed, when
// others may have written in between.
func (f *function) loseUpdate(q *qp, p *packet, iova uint64, order memOrder) bool {
	b, fl := f.chip.fabric, &q.flow
	a := b.atom
	var old atomicWords
	w := a.wordBytes()
	if !f.dma(iova, a.size, true, func(m vfio.Mem, _ int) {
		for i := range a.words() {
			old[i] = order.load(m, i*w, w)
		}
	}) {
		f.refuse(q, p, aethOp)
		return true
	}
	if a.cs && !a.matches(&old) {
		f.atomicDone(q, p, &old)
		return true
	}
	fl.busy = true
	f.afterward(q, time.Duration(1+b.rng.Int64N(int64(tornPause))), func() {
		fl.busy = false
		if q.receiving() {
			f.dma(iova, a.size, true, func(m vfio.Mem, _ int) {
				for i := range a.words() {
					order.store(m, i*w, w, a.word(i, old[i]))
				}
			})
			f.atomicDone(q, p, &old)
		}
		b.drop(p)
		f.resume(q)
	})
	return false
}
