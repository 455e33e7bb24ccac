package litmus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// fakeDevice is a device in a few lines: it reads the WQEs that the queues write,
// carries them out step by step in an order that chance decides, and writes CQEs.
// Faults can be planted in it. Its atomics are written bit by bit, on their own, so
// that a mistake of package atomics does not cancel out.
type fakeDevice struct {
	rng      *rand.Rand
	qps      []*fakeQP
	keys     map[uint32]*fakeKey
	caps     atomics.Caps
	memory   atomics.Order
	maxWrite int
	fault    atomics.Fault
	// lateReads lets an unfenced READ fetch its data after what is behind it.
	lateReads bool
	steps     int
	// The lose-th change of memory is answered and not made; 0 is none.
	lose, changes int
}

type fakeKey struct {
	base uint64
	mem  vfio.Mem
}

type fakeQP struct {
	dev    *fakeDevice
	qpn    uint32
	ring   vfio.Mem
	record vfio.Mem
	log    uint8
	ci     uint16 // blocks fetched
	cq     *fakeCQ
	peer   *fakeQP
	jobs   []*job
	rq     vfio.Mem
	rqLog  uint8
	rqNext uint16
	broken bool
	sq     *queues.SendQueue
	rqSoft *queues.RecvQueue
	softCQ *queues.CQRing
}

type fakeCQ struct {
	ring vfio.Mem
	log  uint8
	pi   uint32
}

// job is a WQE in execution.
type job struct {
	wqe     []byte
	op      prm.WQEOpcode
	index   uint16
	signal  bool
	fence   bool
	started bool
	done    bool
	at      int    // bytes of a WRITE or READ moved
	data    []byte // of a WRITE, gathered at the start
	old     []byte // of an atomic in two steps
	status  prm.CQESyndrome
}

func (j *job) ctrl() *prm.WQECtrlSeg   { return prm.AsWQECtrlSeg(j.wqe) }
func (j *job) raddr() *prm.WQERaddrSeg { return prm.AsWQERaddrSeg(j.wqe[16:]) }

// sge is the last unit of the WQE: what all operations here have.
func (j *job) sge() *prm.WQEDataSeg { return prm.AsWQEDataSeg(j.wqe[len(j.wqe)-16:]) }

// bytes is the memory behind a key; nil if the key does not open it.
func (d *fakeDevice) bytes(key uint32, addr uint64, n int) []byte {
	k := d.keys[key]
	if k == nil || addr < k.base || addr-k.base+uint64(n) > uint64(k.mem.Len()) {
		return nil
	}
	return k.mem.Bytes()[addr-k.base:][:n]
}

// idle is the Idle of a Rig on the device.
func (d *fakeDevice) idle(ctx context.Context) error {
	for range 1 + d.rng.IntN(12) {
		d.step()
	}
	return ctx.Err()
}

// step lets one queue pair do one thing.
func (d *fakeDevice) step() {
	d.steps++
	for _, i := range d.rng.Perm(len(d.qps)) {
		if q := d.qps[i]; !q.broken && q.step() {
			return
		}
	}
}

func (q *fakeQP) step() bool {
	q.fetch()
	var able []*job
	for i, j := range q.jobs {
		if !j.done && q.able(i) {
			able = append(able, j)
		}
	}
	if len(able) == 0 {
		return false
	}
	j := able[q.dev.rng.IntN(len(able))]
	j.started = true
	q.run(j)
	for len(q.jobs) > 0 && q.jobs[0].done {
		q.complete(q.jobs[0])
		q.jobs = q.jobs[1:]
	}
	return true
}

// able tells whether job i may go on: everything before it is done, except that
// READs without a fence behind them may take their time.
func (q *fakeQP) able(i int) bool {
	j := q.jobs[i]
	for _, before := range q.jobs[:i] {
		switch {
		case before.done:
		case before.op == prm.WQERdmaRead && before.started && q.dev.lateReads && (!j.fence || q.dev.fault == atomics.FaultNoFence):
		case q.dev.fault == atomics.FaultLateWrite && before.op == prm.WQERdmaWrite && j.op == prm.WQESend:
		default:
			return false
		}
	}
	return j.op != prm.WQESend || q.peer.canReceive()
}

// fetch takes over the WQEs that the doorbell record announces.
func (q *fakeQP) fetch() {
	pi := uint16(q.record.LoadBE32(4))
	for q.ci != pi && len(q.jobs) < 8 {
		at := func(off int) byte {
			return q.ring.Bytes()[(int(q.ci)*64+off)&(64<<q.log-1)]
		}
		n := int(at(7)&63) * 16
		j := &job{wqe: make([]byte, n), index: q.ci}
		for i := range j.wqe {
			j.wqe[i] = at(i)
		}
		c := j.ctrl()
		j.op, j.signal, j.fence = c.Opcode(), c.Ce() == prm.CompletionModeAlways, c.Fm() != 0
		if c.WQEIndex() != q.ci || c.QPN() != q.qpn {
			panic("a WQE of another queue or another turn")
		}
		q.ci += uint16((n + 63) / 64)
		q.jobs = append(q.jobs, j)
	}
}

func (q *fakeQP) fail(j *job, s prm.CQESyndrome) { j.status, j.done = s, true }

func (q *fakeQP) run(j *job) {
	d := q.dev
	sge := j.sge()
	n := int(sge.ByteCount())
	local := d.bytes(sge.Lkey(), sge.Addr(), n)
	if local == nil {
		q.fail(j, prm.CQESyndLocalProtErr)
		return
	}
	if j.op == prm.WQESend {
		q.send(j, local)
		return
	}
	remote := d.bytes(j.raddr().Rkey(), j.raddr().Raddr(), n)
	if remote == nil {
		q.fail(j, prm.CQESyndRemoteAccessErr)
		return
	}
	switch j.op {
	case prm.WQERdmaWrite:
		if j.data == nil {
			j.data = append([]byte(nil), local...)
		}
		q.write(j, remote)
	case prm.WQERdmaRead:
		// One word a step, beginning some time after the start.
		if j.at == 0 && d.lateReads && d.rng.IntN(4) != 0 {
			return
		}
		j.at += copy(local[j.at:min(n, j.at+8)], remote[j.at:])
		j.done = j.at == n
	case prm.WQEAtomicCS, prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedFA:
		if j.raddr().Raddr()%uint64(n) != 0 {
			q.fail(j, prm.CQESyndRemoteInvalReqErr)
			return
		}
		q.atomic(j, local, remote)
	default:
		panic(fmt.Sprintf("the fake device has no %v", j.op))
	}
}

func (q *fakeQP) write(j *job, remote []byte) {
	whole := atomics.WriteIsAtomic(j.raddr().Raddr(), len(j.data), q.dev.maxWrite)
	piece := len(j.data)
	if !whole || q.dev.fault == atomics.FaultTornWrite {
		piece = max(1, min(8, piece/2))
	}
	if j.at == 0 && q.dev.loses() {
		j.done = true
		return
	}
	j.at += copy(remote[j.at:min(len(remote), j.at+piece)], j.data[j.at:])
	j.done = j.at == len(j.data)
}

// loses counts a change of memory, and tells whether it is the one that is lost.
func (d *fakeDevice) loses() bool {
	d.changes++
	return d.changes == d.lose
}

// atomic carries out an atomic, bit by bit.
func (q *fakeQP) atomic(j *job, local, remote []byte) {
	d := q.dev
	if j.old == nil {
		j.old = append([]byte(nil), remote...)
		if d.fault == atomics.FaultLostUpdate && d.rng.IntN(4) == 0 {
			return // others come in between
		}
	}
	size := len(remote)
	ws := min(size, 8)
	args := j.wqe[32 : len(j.wqe)-16]
	operand := func(i int) []byte { return args[i*size : (i+1)*size] }
	zeros, ones := make([]byte, size), make([]byte, size)
	for i := range ones {
		ones[i] = 0xff
	}
	var now []byte
	switch j.op {
	case prm.WQEAtomicCS:
		now = q.swap(j.old, operand(0), operand(1), ones, ones, ws)
	case prm.WQEAtomicMaskedCS:
		sm, cm := operand(2), operand(3)
		if d.fault == atomics.FaultMaskOrder {
			sm, cm = cm, sm
		}
		now = q.swap(j.old, operand(0), operand(1), sm, cm, ws)
	case prm.WQEAtomicFA:
		now = q.add(j.old, operand(0), zeros, ws)
	case prm.WQEAtomicMaskedFA:
		b := operand(1)
		if d.fault == atomics.FaultNoBoundary {
			b = zeros
		}
		now = q.add(j.old, operand(0), b, ws)
	}
	if !d.loses() {
		copy(remote, now)
	}
	for i := 0; i < size; i += ws {
		v := d.memory.Load(j.old[i : i+ws])
		atomics.ReplyOrder(size, d.caps.Mode).Store(local[i:i+ws], v)
	}
	j.done = true
}

// bit is bit n of word w of memory.
func (d *fakeDevice) bit(b []byte, w, n, ws int) (*byte, uint) {
	if d.memory == atomics.BigEndian {
		return &b[w+ws-1-n/8], uint(n % 8)
	}
	return &b[w+n/8], uint(n % 8)
}

// argBit is bit n of word w of an operand, which is big-endian.
func argBit(b []byte, w, n, ws int) byte { return b[w+ws-1-n/8] >> (n % 8) & 1 }

func (q *fakeQP) swap(old, swap, compare, swapMask, compareMask []byte, ws int) []byte {
	now := append([]byte(nil), old...)
	for w := 0; w < len(old); w += ws {
		for n := range 8 * ws {
			p, i := q.dev.bit(now, w, n, ws)
			if argBit(compareMask, w, n, ws) == 1 && *p>>i&1 != argBit(compare, w, n, ws) {
				return old
			}
		}
	}
	for w := 0; w < len(old); w += ws {
		for n := range 8 * ws {
			if p, i := q.dev.bit(now, w, n, ws); argBit(swapMask, w, n, ws) == 1 {
				*p = *p&^(1<<i) | argBit(swap, w, n, ws)<<i
			}
		}
	}
	return now
}

func (q *fakeQP) add(old, add, boundary []byte, ws int) []byte {
	now := append([]byte(nil), old...)
	for w := 0; w < len(old); w += ws {
		carry := byte(0)
		for n := range 8 * ws {
			p, i := q.dev.bit(now, w, n, ws)
			sum := *p>>i&1 + argBit(add, w, n, ws) + carry
			*p = *p&^(1<<i) | sum&1<<i
			if carry = sum >> 1; argBit(boundary, w, n, ws) == 1 {
				carry = 0
			}
		}
	}
	return now
}

func (q *fakeQP) canReceive() bool { return uint16(q.record.LoadBE32(0)) != q.rqNext }

func (q *fakeQP) send(j *job, payload []byte) {
	p := q.peer
	at := int(p.rqNext&(1<<p.rqLog-1)) * 16
	seg := prm.AsWQEDataSeg(p.rq.Bytes()[at:])
	to := q.dev.bytes(seg.Lkey(), seg.Addr(), int(seg.ByteCount()))
	copy(to, payload)
	var e prm.CQE64
	e.SetByteCnt(uint32(len(payload)))
	e.SetQPN(p.qpn)
	p.cq.put(&e, p.rqNext, prm.CQERespSend)
	p.rqNext++
	j.done = true
}

func (q *fakeQP) complete(j *job) {
	var e prm.CQE64
	e.SetSWQEOpcode(j.op)
	e.SetQPN(q.qpn)
	e.SetByteCnt(j.sge().ByteCount())
	if j.status != 0 {
		q.broken = true
		prm.AsErrCQE(e[:]).SetSyndrome(j.status)
		q.cq.put(&e, j.index, prm.CQEReqErr)
		return
	}
	if j.signal {
		q.cq.put(&e, j.index, prm.CQEReq)
	}
}

func (c *fakeCQ) put(e *prm.CQE64, counter uint16, op prm.CQEOpcode) {
	at := int(c.pi&(1<<c.log-1)) * 64
	copy(c.ring.Bytes()[at:], e[:0x3c])
	c.ring.StoreBE32(at+0x3c, uint32(counter)<<16|uint32(op)<<4|c.pi>>c.log&1)
	c.pi++
}

// words is zeroed memory; what Go allocates in this size is aligned to 8.
func words(n int) vfio.Mem { return vfio.MemOf(make([]byte, n)) }

// fakeOptions say what the device is like. The zero value is a good one.
type fakeOptions struct {
	queues   int
	caps     atomics.Caps
	memory   atomics.Order
	maxWrite int
	fault    atomics.Fault
	late     bool
	shareCQ  bool
	seed     uint64
}

// newFake makes a device with queue pairs of two hosts, all connected to the
// responder's, and the Rig on it.
func newFake(t testing.TB, o fakeOptions) (*fakeDevice, *Rig) {
	t.Helper()
	if o.queues == 0 {
		o.queues = 4
	}
	if o.caps.Operations == 0 {
		o.caps = atomics.Caps{Operations: 0xf, SizesQP: 0x3c}
	}
	d := &fakeDevice{
		rng: rand.New(rand.NewPCG(o.seed, 99)), keys: map[uint32]*fakeKey{}, caps: o.caps, memory: o.memory,
		maxWrite: o.maxWrite, fault: o.fault, lateReads: o.late,
	}
	register := func(key uint32, base uint64, n int) atomics.Memory {
		m := words(n)
		d.keys[key] = &fakeKey{base: base, mem: m}
		return atomics.Memory{Mem: m, Addr: base, LKey: key, RKey: key}
	}
	rig := &Rig{Name: "fake", Target: register(0x100, 0x7000_0000, TargetSize), Caps: o.caps, MaxWrite: o.maxWrite, Idle: d.idle}
	var shared *fakeQP
	for i := range o.queues {
		a, b := d.newQP(t, uint32(0x10+i)), d.newQP(t, uint32(0x80+i))
		if o.shareCQ {
			if shared == nil {
				shared = a
			}
			a.cq, a.softCQ = shared.cq, shared.softCQ
			b.cq, b.softCQ = shared.cq, shared.softCQ
		}
		a.softCQ.AttachSend(a.sq)
		b.softCQ.AttachRecv(b.qpn, b.rqSoft)
		a.peer, b.peer = b, a
		host := "a"
		if i%2 == 1 {
			host = "b"
		}
		rig.Requesters = append(rig.Requesters, Requester{
			Host: host, Conn: atomics.Conn{SQ: a.sq, CQ: a.softCQ}, Profile: atomics.Assume(o.caps),
			Local: register(uint32(0x200+i), 0x9000_0000+uint64(i)*0x10000, LocalSize),
			Accept: Accept{
				RQ: b.rqSoft, CQ: b.softCQ, QPN: b.qpn,
				Local: register(uint32(0x300+i), 0xa000_0000+uint64(i)*0x10000, AcceptSize),
			},
		})
	}
	return d, rig
}

func (d *fakeDevice) newQP(t testing.TB, qpn uint32) *fakeQP {
	t.Helper()
	const log, rqLog, cqLog = 5, 3, 6
	q := &fakeQP{dev: d, qpn: qpn, ring: words(64 << log), record: words(8), log: log, rq: words(16 << rqLog), rqLog: rqLog}
	q.cq = &fakeCQ{ring: words(64 << cqLog), log: cqLog}
	var err error
	q.sq, err = queues.NewSendQueue(queues.SendQueueConfig{QPN: qpn, Ring: q.ring, Record: q.record, LogWQEBB: log})
	require.NoError(t, err)
	q.rqSoft, err = queues.NewRecvQueue(queues.RecvQueueConfig{QPN: qpn, Ring: q.rq, Record: q.record, LogSize: rqLog, LogStride: 4})
	require.NoError(t, err)
	q.softCQ, err = queues.NewCQRing(queues.CQRingConfig{Name: "fake", CQN: qpn, Ring: q.cq.ring, Record: words(8), LogSize: cqLog})
	require.NoError(t, err)
	d.qps = append(d.qps, q)
	return q
}

// probe fills in the profiles of the Rig's requesters.
func probe(t testing.TB, rig *Rig) {
	t.Helper()
	for i := range rig.Requesters {
		q := &rig.Requesters[i]
		p, err := atomics.Probe(context.Background(), atomics.ProbeOptions{
			Conn: q.Conn, Caps: rig.Caps, Local: q.Local, Target: rig.Target, Idle: rig.Idle, Seed: uint64(i),
		})
		require.NoError(t, err)
		q.Profile = p
	}
}
