package sim

import (
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The raw driver's data path: queues of QPs, keys, and entries put together by
// hand.

const (
	endLogSQ  = 6 // 64 blocks
	endLogRQ  = 4 // 16 entries
	endStride = 6 // of 64 bytes: four pieces
)

// end is a QP as its driver sees it.
type end struct {
	r      *raw
	n      uint32
	buf    uint64 // receive queue, then send queue
	dbr    uint64
	pi     uint16 // send blocks posted
	ri     uint16 // receive entries posted
	send   *rawCQ
	recv   *rawCQ
	access byte // of the QP: read 4, write 2, atomic 1
	mode   prm.AtomicMode
	psn    uint32
	tune   func(op prm.Opcode, x *prm.QPC) // last word on every transition
	srq    bool
	rnr    uint8
	retry  uint8
	last   uint64 // doorbell of the last entry
}

// newEnd makes a QP with completion queues of its own.
func (r *raw) newEnd(st prm.QPServiceType, set func(x *prm.QPC)) *end {
	r.t.Helper()
	r.data()
	e := &end{r: r, send: r.createCQ(6, nil), recv: r.createCQ(6, nil), access: 7, mode: prm.AtomicModeUpTo256B,
		psn: 0x123, rnr: 7, retry: 7}
	if r.chip.Profile() == "cx4" {
		e.mode = prm.AtomicModeUpTo32B
	}
	in := valid(prm.OpCreateQP)
	x := prm.AsCreateQPIn(in).QPC()
	x.SetSt(st)
	x.SetPmState(prm.PMStateMigrated)
	x.SetPD(r.pd)
	x.SetUARPage(r.uar)
	x.SetLogRQSize(endLogRQ)
	x.SetLogRQStride(endStride - 4)
	x.SetLogSQSize(endLogSQ)
	x.SetLogPageSize(1)
	x.SetCQNSnd(e.send.n)
	x.SetCQNRcv(e.recv.n)
	e.dbr = r.alloc(8, 8)
	clear(r.bytes(e.dbr, 8))
	x.SetDBRAddr(e.dbr)
	if set != nil {
		set(x)
	}
	e.buf = r.alloc(8192, 8192)
	clear(r.bytes(e.buf, 8192))
	binary.BigEndian.PutUint64(in[prm.CreateQPInSize:], e.buf)
	e.n = prm.AsCreateQPOut(r.ok(in, 16)).QPN()
	e.srq = x.RQType() != prm.RQTypeRQ
	return e
}

// sqAt is where send block i lies.
func (e *end) sqAt(i uint16) uint64 {
	at := e.buf + uint64(i&(1<<endLogSQ-1))*wqeBlock
	if !e.srq {
		at += 1 << endLogRQ << endStride
	}
	return at
}

// step brings the QP over one transition, towards peer.
func (e *end) step(op prm.Opcode, peer *end) {
	e.r.t.Helper()
	in := e.r.qpStep(op, e.n)
	x := prm.AsRst2InitQPIn(in).QPC()
	switch op {
	case prm.OpRst2InitQP:
		x.SetRre(e.access&4 != 0)
		x.SetRwe(e.access&2 != 0)
		x.SetRae(e.access&1 != 0)
		x.SetAtomicMode(e.mode)
		x.SetAtomicLikeWriteEn(true)
		x.SetQKey(0x1111)
	case prm.OpInit2RtrQP:
		x.SetRre(e.access&4 != 0)
		x.SetRwe(e.access&2 != 0)
		x.SetRae(e.access&1 != 0)
		x.SetAtomicMode(e.mode)
		x.SetAtomicLikeWriteEn(true)
		x.SetRemoteQPN(peer.n)
		x.SetNextRcvPSN(peer.psn)
		x.SetLogRraMax(3)
		x.SetMinRNRNak(1)
		x.PrimaryAddressPath().SetRlid(peer.r.lid())
	case prm.OpRtr2RtsQP:
		x.SetLogSraMax(3)
		x.SetNextSendPSN(e.psn)
		x.SetRetryCount(e.retry)
		x.SetRNRRetry(e.rnr)
		x.PrimaryAddressPath().SetAckTimeout(8) // 1.05 ms
	}
	if e.tune != nil {
		e.tune(op, x)
	}
	e.r.ok(in, 16)
}

func (r *raw) lid() uint16 { return r.chip.funcs[0].port.lid }

// connect brings two QPs to RTS; a may be b.
func connect(a, b *end) {
	for _, op := range []prm.Opcode{prm.OpRst2InitQP, prm.OpInit2RtrQP, prm.OpRtr2RtsQP} {
		a.step(op, b)
		if a != b {
			b.step(op, a)
		}
	}
}

// pair is two connected QPs of one function.
func (r *raw) pair() (a, b *end) {
	r.t.Helper()
	a, b = r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	connect(a, b)
	return a, b
}

// region is memory with a key of all rights.
type region struct {
	r   *raw
	at  uint64
	n   int
	key uint32
}

// keyInput is CREATE_MKEY of n bytes from at on: pages of 4096, all rights.
func (r *raw) keyInput(at uint64, n int, set func(m *prm.MKC)) []byte {
	r.data()
	pages := int((at+uint64(n)-1)>>12-at>>12) + 1
	octs := (pages + 1) / 2
	in := make([]byte, prm.CreateMKeyInSize+octs*octword)
	copy(in, cmd(prm.OpCreateMKey, 0, prm.CreateMKeyInSize))
	x := prm.AsCreateMKeyIn(in)
	x.SetTranslationsOctwordActualSize(uint32(octs))
	m := x.MemoryKeyMKeyEntry()
	m.SetAccessMode1_0(modeMTT)
	m.SetLr(true)
	m.SetLw(true)
	m.SetRr(true)
	m.SetRw(true)
	m.SetA(true)
	m.SetQPN(anyQP)
	m.SetMKey7_0(0x5a)
	m.SetPD(r.pd)
	m.SetStartAddr(at)
	m.SetLen(uint64(n))
	m.SetLogPageSize(12)
	m.SetTranslationsOctwordSize(uint32(octs))
	for i := range pages {
		binary.BigEndian.PutUint64(in[prm.CreateMKeyInSize+i*8:], at&^4095+uint64(i)*4096)
	}
	if set != nil {
		set(m)
	}
	return in
}

func (r *raw) createKey(in []byte) uint32 {
	r.t.Helper()
	variant := prm.AsCreateMKeyIn(in).MemoryKeyMKeyEntry().MKey7_0()
	return prm.AsCreateMKeyOut(r.ok(in, 16)).MKeyIndex()<<8 | uint32(variant)
}

// region makes n bytes with a key; set may change the key.
func (r *raw) region(n int, set func(m *prm.MKC)) *region {
	r.t.Helper()
	at := r.alloc((n+4095)&^4095, 4096)
	clear(r.bytes(at, n))
	return &region{r, at, n, r.createKey(r.keyInput(at, n, set))}
}

func (m *region) bytes() []byte         { return m.r.bytes(m.at, m.n) }
func (m *region) word(off int) uint64   { return binary.LittleEndian.Uint64(m.bytes()[off:]) }
func (m *region) set(off int, v uint64) { binary.LittleEndian.PutUint64(m.bytes()[off:], v) }

// ptr, remote, inline and operands are segments.
func (m *region) ptr(off, n int) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(n))
	b = binary.BigEndian.AppendUint32(b, m.key)
	return binary.BigEndian.AppendUint64(b, m.at+uint64(off))
}

func (m *region) remote(off int) []byte {
	b := binary.BigEndian.AppendUint64(nil, m.at+uint64(off))
	return binary.BigEndian.AppendUint64(b, uint64(m.key)<<32)
}

func inlineSeg(data []byte) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, inlineBit|uint32(len(data))), data...)
	return append(b, make([]byte, -len(b)&15)...)
}

func operands(size int, v ...uint64) (b []byte) {
	for _, x := range v {
		if size == 4 {
			b = binary.BigEndian.AppendUint32(b, uint32(x))
		} else {
			b = binary.BigEndian.AppendUint64(b, x)
		}
	}
	return append(b, make([]byte, -len(b)&15)...)
}

// wqe is one entry to post.
type wqe struct {
	op    prm.WQEOpcode
	mod   uint8
	imm   uint32
	fm    prm.FenceMode
	ce    prm.CompletionMode // zero is always; quiet asks for errors only
	quiet bool
	se    bool
	segs  [][]byte
}

// fill writes an entry into the ring without telling the device.
func (e *end) fill(w wqe) {
	e.r.t.Helper()
	body := append([]byte(nil), make([]byte, wqeUnit)...)
	for _, s := range w.segs {
		body = append(body, s...)
	}
	require.Zero(e.r.t, len(body)%wqeUnit, "segments fill units of 16 bytes")
	ds := len(body) / wqeUnit
	if !w.quiet && w.ce == 0 {
		w.ce = prm.CompletionModeAlways
	}
	be := binary.BigEndian
	be.PutUint32(body, uint32(w.mod)<<24|uint32(e.pi)<<8|uint32(w.op))
	be.PutUint32(body[4:], e.n<<8|uint32(ds&0x3f))
	flags := uint32(w.fm)<<5 | uint32(w.ce)<<2
	if w.se {
		flags |= 2
	}
	be.PutUint32(body[8:], flags)
	be.PutUint32(body[12:], w.imm)
	e.last = be.Uint64(body)
	for i := 0; i < len(body); i += wqeBlock {
		copy(e.r.bytes(e.sqAt(e.pi), wqeBlock), body[i:min(i+wqeBlock, len(body))])
		e.pi++
	}
}

func (e *end) ring() {
	e.r.t.Helper()
	e.r.mem.StoreBE32(int(e.dbr-arenaIOVA)+4, uint32(e.pi))
	e.r.write64(uint64(e.r.uar)*4096+blueFlame, e.last)
}

func (e *end) post(w ...wqe) {
	e.r.t.Helper()
	for _, x := range w {
		e.fill(x)
	}
	e.ring()
}

// postRecv posts a receive entry.
func (e *end) postRecv(segs ...[]byte) {
	e.r.t.Helper()
	at := e.buf + uint64(e.ri&(1<<endLogRQ-1))<<endStride
	b := e.r.bytes(at, 1<<endStride)
	clear(b)
	i := 0
	for _, s := range segs {
		i += copy(b[i:], s)
	}
	if i < len(b) {
		binary.BigEndian.PutUint32(b[i+4:], terminateMKey)
	}
	e.ri++
	e.r.mem.StoreBE32(int(e.dbr-arenaIOVA), uint32(e.ri))
}

// take is the next completion, which must be there.
func (q *rawCQ) take() *prm.CQE64 {
	q.r.t.Helper()
	c := q.next()
	require.NotNil(q.r.t, c, "a completion")
	q.consume()
	return c
}

// good is the next completion, which must be no error.
func (q *rawCQ) good(op prm.CQEOpcode) *prm.CQE64 {
	q.r.t.Helper()
	c := q.take()
	require.Equal(q.r.t, op, c.Opcode(), "%s", show(c))
	return c
}

// bad is the next completion, which must be this error.
func (q *rawCQ) bad(op prm.CQEOpcode, s prm.CQESyndrome) *prm.ErrCQE {
	q.r.t.Helper()
	c := q.take()
	require.Equal(q.r.t, op, c.Opcode(), "%s", show(c))
	x := prm.AsErrCQE(c[:])
	require.Equal(q.r.t, s, x.Syndrome(), "%s", show(c))
	return x
}

func (q *rawCQ) none() {
	q.r.t.Helper()
	if c := q.next(); c != nil {
		require.Fail(q.r.t, "a completion nobody expects", "%s", show(c))
	}
}

func show(c *prm.CQE64) string {
	return fmt.Sprintf("opcode %s, syndrome %s, entry %d of QP %#x", c.Opcode(), prm.AsErrCQE(c[:]).Syndrome(), c.WQECounter(), c.QPN())
}

func (e *end) state() prm.QPState { return e.r.qpc(e.n).State() }

// async takes the events but completions of commands and CQs.
func (r *raw) async() (l []prm.EventType) {
	for {
		e := r.event()
		if e == nil {
			r.arm()
			return l
		}
		if t := e.EventType(); t != prm.EventCmd && t != prm.EventCompletion {
			l = append(l, t)
		}
	}
}

// allEvents makes an event queue of every asynchronous event the engine raises.
func (r *raw) allEvents() {
	r.t.Helper()
	const mask = 1<<prm.EventCommEst | 1<<prm.EventSQDrained | 1<<prm.EventCQError | 1<<prm.EventWQCatasError |
		1<<prm.EventWQInvalReqError | 1<<prm.EventWQAccessError | 1<<prm.EventSRQCatasError |
		1<<prm.EventSRQLastWQE | 1<<prm.EventSRQRQLimit
	r.data()
	eqn, at := r.createEQ(7, 2, mask)
	r.eqLog, r.eqn, r.eqAt, r.ci = 7, eqn, at, 0
}
