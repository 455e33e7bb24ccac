package queues

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// cqModel is what a CQ of many queue pairs must answer, kept as simply as can be:
// lists of what is under way and of what the device has written.
type cqModel struct {
	t       *testing.T
	rnd     *rand.Rand
	r       *CQRing
	dev     *device
	rec     []byte
	size    int
	qps     map[uint32]*modelQP
	srq     *SRQRing // of all that have sharing
	shared  []modelWQE
	pending []modelCQE // written and not polled
	polled  uint32
	wrid    uint64
	seen    map[string]int // what was polled, and by how long a list
}

// modelWQE is a WQE under way.
type modelWQE struct {
	wrid   uint64
	index  uint16
	blocks int
	bytes  []byte // as posted
}

// modelQP is a queue pair. A nil queue completes elsewhere.
type modelQP struct {
	sq      *SendQueue
	rq      *RecvQueue
	sharing bool
	sends   []modelWQE
	recvs   []modelWQE
	first   *modelCQE
	wrid    uint64 // of first
	wqe     []byte
	flushed uint32
}

// modelCQE is an entry as the device has written it.
type modelCQE struct {
	qpn      uint32
	index    uint16
	op       prm.CQEOpcode
	send     prm.WQEOpcode
	bytes    uint32
	syndrome prm.CQESyndrome
	se       bool
}

func (e *modelCQE) failed() bool { return e.op == prm.CQEReqErr || e.op == prm.CQERespErr }
func (e *modelCQE) recv() bool   { return e.op != prm.CQEReq && e.op != prm.CQEReqErr }

// Random programs on a CQ of many queue pairs are polled by lists of any length as a
// naive model says: which WQEs completed, with what, which failed and why, what is
// free again, and where the consumer index is. Rings end at every small size, indexes
// where their bits end.
func TestCQModel(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(160) {
		m := newCQModel(t, seed)
		m.seen = seen
		for range 400 {
			m.step()
		}
	}
	for _, n := range []string{"0", "1", "2", "many"} {
		for _, what := range []string{"send", "recv", "shared", "failed", "stale", "nobody", "odd", "idle", "other queue pair"} {
			if n != "0" {
				require.Greater(t, seen[n+" "+what], 20, "%s is polled by %s too rarely", what, n)
			}
		}
		require.Greater(t, seen[n+" lists"], 1000, n)
	}
	t.Log(seen)
}

func newCQModel(t *testing.T, seed uint64) *cqModel {
	m := &cqModel{t: t, rnd: rand.New(rand.NewPCG(seed, 17)), qps: map[uint32]*modelQP{}}
	log := uint8(seed % 5)
	m.r, m.dev, m.rec = newCQ(t, log, nil)
	m.size = 1 << log
	// As if so many entries had gone by: the owner bits are those of the pass before.
	m.polled = []uint32{0, 0, 1<<24 - 200, 1<<32 - 200}[seed/5%4]
	m.dev.pi = m.polled
	m.r.seek(m.polled)
	m.r.rec.store(recordConsumer, m.polled&ciMask)
	for i := range uint32(m.size) {
		m.r.entry(m.polled + i).SetOwner((m.polled+i)>>log&1 == 0)
	}
	m.srq, _ = newSRQ(t, 5, 5)
	numbers := []uint32{0, 0xffffff, 1, 0x1_0000, 0x100, 0x80_0000, m.rnd.Uint32N(1 << 24)} // some are others swapped
	m.rnd.Shuffle(len(numbers), func(i, k int) { numbers[i], numbers[k] = numbers[k], numbers[i] })
	for _, qpn := range numbers[:1+m.rnd.IntN(len(numbers))] {
		m.attach(qpn)
	}
	return m
}

// attach makes a queue pair, of any kind.
func (m *cqModel) attach(qpn uint32) {
	q := &modelQP{}
	kind := m.rnd.IntN(4)
	if kind != 0 {
		sq, _ := newSQ(m.t, uint8(m.rnd.IntN(5)), nil)
		sq.qpn8 = uint64(qpn) << 8
		start := []uint64{0, 0, 1<<16 - 20, 1<<32 - 20, 1<<62 - 20}[m.rnd.IntN(5)]
		sq.pi, sq.ci, sq.rung = start, start, uint32(start)
		q.sq = sq
		m.r.AttachSend(sq)
	}
	if kind != 1 {
		if m.rnd.IntN(2) == 0 {
			q.rq, _ = newRQ(m.t, uint8(m.rnd.IntN(5)), 5)
			m.r.AttachRecv(qpn, q.rq)
		} else {
			q.sharing = true
			m.r.AttachShared(qpn, m.srq)
		}
	}
	m.qps[qpn] = q
}

// one is any of the queue pairs there are.
func (m *cqModel) one() (uint32, *modelQP) {
	numbers := make([]uint32, 0, len(m.qps))
	for n := range m.qps {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	n := numbers[m.rnd.IntN(len(numbers))]
	return n, m.qps[n]
}

func (m *cqModel) step() {
	qpn, q := m.one()
	switch k := m.rnd.IntN(100); {
	case k < 25:
		m.postSends(q)
	case k < 35:
		m.postRecvs(q)
	case k < 62:
		for range 1 + m.rnd.IntN(8) {
			if m.rnd.IntN(3) == 0 { // alternating, else neighbours of one queue pair
				qpn, q = m.one()
			}
			m.complete(qpn, q)
		}
	case k < 64:
		m.write(modelCQE{qpn: m.stranger(), op: prm.CQEReq, index: uint16(m.rnd.Uint32())})
	case k < 65:
		m.write(modelCQE{qpn: qpn, op: 9, index: 0})
	case k < 66:
		m.reset(qpn, q)
	case k < 67:
		m.reset(qpn, q)
		m.r.Detach(qpn)
		delete(m.qps, qpn)
		m.attach(qpn)
	default:
		m.poll([]int{0, 1, 1, 1, 1, 1, 2, 2, 3, m.size, m.size + 1, m.size - 1, 9}[m.rnd.IntN(13)])
	}
}

// stranger is a number of no queue pair.
func (m *cqModel) stranger() uint32 {
	for {
		if n := m.rnd.Uint32N(1 << 24); m.qps[n] == nil {
			return n
		}
	}
}

// lost tells whether there is an entry of a WQE that is not under way: it must not
// become one of the next WQE in the same place before it is polled.
func (m *cqModel) lost() bool {
	return slices.ContainsFunc(m.pending, func(e modelCQE) bool { return m.qps[e.qpn] != nil && e.op != 9 && m.find(&e) == nil })
}

// postSends posts some WQEs of one to three blocks.
func (m *cqModel) postSends(q *modelQP) {
	if q.sq == nil || m.lost() {
		return
	}
	for range 1 + m.rnd.IntN(4) {
		m.wrid++
		w := modelWQE{wrid: m.wrid<<32 | m.wrid, index: q.sq.Index(), blocks: 1}
		from := q.sq.pi
		work := WorkRequest{WRID: w.wrid, Op: prm.WQENop, Flags: Signalled, Local: eightSGE, Remote: aRemote}
		switch m.rnd.IntN(5) {
		case 0:
			work.Op, w.blocks = prm.WQEAtomicMaskedCS, 2
		case 1:
			work.Op, work.Inline, w.blocks = prm.WQERdmaWrite, make([]byte, 100), 3
		case 2:
			work.Op = prm.WQEAtomicFA
		}
		free := q.sq.Free()
		n, err := q.sq.Post([]WorkRequest{work})
		if w.blocks > free {
			require.Equal(m.t, ErrQueueFull, err)
			require.Zero(m.t, n)
			return
		}
		require.NoError(m.t, err)
		require.Equal(m.t, 1, n)
		require.Equal(m.t, free-w.blocks, q.sq.Free())
		w.bytes = wqeAt(q.sq, from, w.blocks*WQEBB)
		q.sends = append(q.sends, w)
	}
}

func (m *cqModel) postRecvs(q *modelQP) {
	if m.lost() {
		return
	}
	for range 1 + m.rnd.IntN(4) {
		m.wrid++
		w := modelWQE{wrid: m.wrid}
		switch {
		case q.sharing:
			w.index = uint16(m.srq.head)
			if m.srq.Post(w.wrid, anSGE) == nil {
				w.bytes = append(w.bytes, m.srq.wqe(w.index)[wqeUnit:]...)
				m.shared = append(m.shared, w)
			}
		case q.rq != nil:
			w.index = uint16(q.rq.pi)
			if q.rq.Post(w.wrid, anSGE) == nil {
				w.bytes = append(w.bytes, q.rq.wqe(w.index)...)
				q.recvs = append(q.recvs, w)
			}
		}
	}
}

// complete has the device complete a WQE, mostly one that is under way, at times with
// an error, at times one that is none.
func (m *cqModel) complete(qpn uint32, q *modelQP) {
	e := modelCQE{qpn: qpn, send: prm.WQEOpcode(m.rnd.Uint32()), bytes: m.rnd.Uint32(), se: m.rnd.IntN(4) == 0}
	list, fail := q.sends, prm.CQEReqErr
	e.op = prm.CQEReq
	if len(list) == 0 || m.rnd.IntN(3) == 0 {
		list, fail, e.op = q.recvs, prm.CQERespErr, prm.CQERespWrImm+prm.CQEOpcode(m.rnd.IntN(4))
		if q.sharing {
			list = m.shared
		}
	}
	if m.rnd.IntN(25) != 0 { // else perhaps twice, or behind a later one
		list = m.fresh(list, &e, q)
	}
	if m.rnd.IntN(12) == 0 {
		e.op, e.syndrome = fail, []prm.CQESyndrome{prm.CQESyndWrFlushErr, prm.CQESyndWrFlushErr, prm.CQESyndRemoteAccessErr, 0x77}[m.rnd.IntN(4)]
	}
	switch {
	case m.rnd.IntN(40) == 0:
		e.index = uint16(m.rnd.Uint32())
		if m.find(&e) != nil || m.near(q, &e) {
			return // would be one after all
		}
	case len(list) == 0:
		return
	default:
		e.index = list[m.rnd.IntN(min(len(list), 3))].index
	}
	m.write(e)
}

// fresh are the WQEs of a list that no entry is written of yet, nor of a later one.
func (m *cqModel) fresh(list []modelWQE, like *modelCQE, q *modelQP) []modelWQE {
	shared := like.recv() && q.sharing
	list = slices.Clone(list)
	for _, e := range m.pending {
		p := m.qps[e.qpn]
		if p == nil || e.recv() != like.recv() || p != q && (!shared || !p.sharing) {
			continue
		}
		i := slices.IndexFunc(list, func(w modelWQE) bool { return w.index == e.index })
		switch {
		case i < 0:
		case shared:
			list = slices.Delete(list, i, i+1)
		default:
			list = list[i+1:]
		}
	}
	return list
}

// near tells whether only the pass makes an entry one of a WQE that is not under way:
// what is made of it depends on what was polled before (see ErrNotOutstanding).
func (m *cqModel) near(q *modelQP, e *modelCQE) bool {
	if q.sq == nil || e.recv() {
		return false
	}
	for _, w := range q.sends {
		if q.sq.index(uint64(w.index)) == q.sq.index(uint64(e.index)) {
			return true
		}
	}
	return false
}

// write has the device write an entry, if there is room.
func (m *cqModel) write(e modelCQE) {
	if len(m.pending) == m.size {
		return
	}
	m.pending = append(m.pending, e)
	m.dev.write(func(c *prm.CQE64) {
		for i := range c { // what lies in fields that mean nothing
			c[i] = byte(m.rnd.Uint32())
		}
		x := prm.AsErrCQE(c[:])
		c.SetFormat(prm.CQEFormatNoInline)
		c.SetByteCnt(e.bytes)
		c.SetSe(e.se)
		c.SetGrh(0)
		if e.failed() {
			x.SetSyndrome(e.syndrome)
			x.SetVendorErrSynd(0x81)
		}
		c.SetOpcode(e.op)
		c.SetQPN(e.qpn)
		c.SetWQECounter(e.index)
		c.SetSWQEOpcode(e.send)
	})
}

// find is the list with the WQE of an entry, if it is under way.
func (m *cqModel) find(e *modelCQE) *[]modelWQE {
	q := m.qps[e.qpn]
	list := &q.recvs
	if !e.recv() {
		list = &q.sends
	} else if q.sharing {
		list = &m.shared
	}
	if !slices.ContainsFunc(*list, func(w modelWQE) bool { return w.index == e.index }) {
		return nil
	}
	return list
}

// take completes the WQE of an entry, and those before it.
func (m *cqModel) take(e *modelCQE) (modelWQE, bool) {
	list := m.find(e)
	if list == nil {
		return modelWQE{}, false
	}
	i := slices.IndexFunc(*list, func(w modelWQE) bool { return w.index == e.index })
	w := (*list)[i]
	if e.recv() && m.qps[e.qpn].sharing { // in any order
		*list = slices.Delete(*list, i, i+1)
	} else {
		*list = (*list)[i+1:]
	}
	return w, true
}
