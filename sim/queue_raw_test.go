package sim

import (
	"encoding/binary"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The raw driver's queues.

// rawCQ is a completion queue as its driver sees it.
type rawCQ struct {
	r   *raw
	n   uint32
	at  uint64 // entries
	dbr uint64
	log uint
	ci  uint32
}

// data makes what every queue needs: event queue, UAR, PD.
func (r *raw) data() {
	r.t.Helper()
	if r.eqn == 0 {
		r.eventMode(7)
	}
	if r.pd == 0 {
		r.pd = binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocPD), 16)[8:])
	}
}

// pageOfZeros gives one page of the arena.
func (r *raw) page() uint64 {
	at := r.alloc(4096, 4096)
	clear(r.bytes(at, 4096))
	return at
}

// cqInput is CREATE_CQ of 1<<log entries, at most one page of them.
func (r *raw) cqInput(log uint) (in []byte, at, dbr uint64) {
	r.t.Helper()
	r.data()
	at, dbr = r.page(), r.alloc(8, 8)
	for i := range 64 {
		r.bytes(at, 4096)[i*64+63] = 0xf0
	}
	clear(r.bytes(dbr, 8))
	in = valid(prm.OpCreateCQ)
	x := prm.AsCreateCQIn(in).CQContext()
	x.SetLogCQSize(uint8(log))
	x.SetUARPage(r.uar)
	x.SetCEQNOrApuElement(r.eqn)
	x.SetDBRAddr(dbr)
	binary.BigEndian.PutUint64(in[prm.CreateCQInSize:], at)
	return in, at, dbr
}

func (r *raw) createCQ(log uint, set func(x *prm.CQC)) *rawCQ {
	r.t.Helper()
	in, at, dbr := r.cqInput(log)
	if set != nil {
		set(prm.AsCreateCQIn(in).CQContext())
	}
	n := prm.AsCreateCQOut(r.ok(in, 16)).CQN()
	return &rawCQ{r: r, n: n, at: at, dbr: dbr, log: log}
}

// next takes the next completion; nil when there is none.
func (q *rawCQ) next() *prm.CQE64 {
	off := int(q.at-arenaIOVA) + int(q.ci&(1<<q.log-1))*64
	last := q.r.mem.LoadBE32(off + 0x3c)
	if last>>4&0xf == 0xf || last&1 != q.ci>>q.log&1 {
		return nil
	}
	q.ci++
	e := *prm.AsCQE64(q.r.mem.Slice(off, 64).Bytes())
	return &e
}

// consume tells the device what was taken.
func (q *rawCQ) consume() { q.r.mem.StoreBE32(int(q.dbr-arenaIOVA), q.ci&counter24) }

// arm asks for an event.
func (q *rawCQ) arm(solicited bool) {
	word := q.ci & counter24
	if solicited {
		word |= 1 << 24
	}
	q.r.mem.StoreBE32(int(q.dbr-arenaIOVA)+4, word)
	q.r.write64(uint64(q.r.uar)*4096+0x20, uint64(word)<<32|uint64(q.n))
}

func (r *raw) write64(off, v uint64) {
	r.t.Helper()
	require.NoError(r.t, r.dev.WriteRegion(vfio.RegionBAR0, off, binary.BigEndian.AppendUint64(nil, v)))
}

// query gives the context of an object: op's output from byte at.
func (r *raw) query(op prm.Opcode, n uint32, at int) []byte {
	r.t.Helper()
	return r.ok(number(op, n), prm.CommandByOpcode(op).MinOut+64)[at:]
}

// qpInput is CREATE_QP with four receive entries of 16 bytes and four send
// blocks, both completing on one queue.
func (r *raw) qpInput(st prm.QPServiceType) []byte {
	r.t.Helper()
	r.data()
	if r.cq == nil {
		r.cq = r.createCQ(4, nil)
	}
	in := valid(prm.OpCreateQP)
	x := prm.AsCreateQPIn(in).QPC()
	x.SetSt(st)
	x.SetPmState(prm.PMStateMigrated)
	x.SetPD(r.pd)
	x.SetUARPage(r.uar)
	x.SetLogRQSize(2)
	x.SetLogSQSize(2)
	x.SetCQNSnd(r.cq.n)
	x.SetCQNRcv(r.cq.n)
	x.SetDBRAddr(r.alloc(8, 8))
	clear(r.bytes(x.DBRAddr(), 8))
	binary.BigEndian.PutUint64(in[prm.CreateQPInSize:], r.page())
	return in
}

func (r *raw) createQP(st prm.QPServiceType, set func(x *prm.QPC)) uint32 {
	r.t.Helper()
	in := r.qpInput(st)
	if set != nil {
		set(prm.AsCreateQPIn(in).QPC())
	}
	return prm.AsCreateQPOut(r.ok(in, 16)).QPN()
}

// qpStep is a transition's input with everything in it that it must have.
func (r *raw) qpStep(op prm.Opcode, n uint32) []byte {
	in := number(op, n)
	if len(in) < prm.Rst2InitQPInSize {
		return in
	}
	x := prm.AsRst2InitQPIn(in).QPC()
	p := x.PrimaryAddressPath()
	p.SetVHCAPortNum(1)
	switch op {
	case prm.OpInit2RtrQP:
		x.SetMTU(prm.PathMTU1kBytes)
		x.SetLogMsgMax(30)
		x.SetRemoteQPN(n)
		p.SetGrh(r.chip.Port() == PortEth)
		p.SetRlid(1)
	case prm.OpRtr2RtsQP:
		x.SetRetryCount(7)
		x.SetRNRRetry(7)
		p.SetAckTimeout(14)
	}
	return in
}

// qpTo brings a QP from RST to a state by commands; SQER and SQD, to which no
// command leads, by hand.
func (r *raw) qpTo(n uint32, s prm.QPState) {
	r.t.Helper()
	if s == prm.QPStateErr {
		r.ok(number(prm.Op2ErrQP, n), 16)
		return
	}
	for _, st := range []struct {
		op prm.Opcode
		to prm.QPState
	}{{prm.OpRst2InitQP, prm.QPStateInit}, {prm.OpInit2RtrQP, prm.QPStateRtr}, {prm.OpRtr2RtsQP, prm.QPStateRts}} {
		if st.to <= s {
			r.ok(r.qpStep(st.op, n), 16)
		}
	}
	if s > prm.QPStateRts {
		r.chip.mu.Lock()
		defer r.chip.mu.Unlock()
		f := r.chip.funcs[0]
		f.setState(f.qps.objs[n], s)
	}
}

// qpc queries a QP.
func (r *raw) qpc(n uint32) *prm.QPC {
	r.t.Helper()
	x := *prm.AsQueryQPOut(r.ok(number(prm.OpQueryQP, n), prm.QueryQPOutSize)).QPC()
	return &x
}

// srqInput is the creation of a shared receive queue of 1<<log entries of 32
// bytes.
func (r *raw) srqInput(op prm.Opcode, log uint8) []byte {
	r.t.Helper()
	r.data()
	if r.cq == nil {
		r.cq = r.createCQ(4, nil)
	}
	in := valid(op)
	at, dbr := r.page(), r.alloc(8, 8)
	clear(r.bytes(dbr, 8))
	binary.BigEndian.PutUint64(in[len(in)-8:], at)
	switch op {
	case prm.OpCreateSRQ:
		x := prm.AsCreateSRQIn(in).SRQContextEntry()
		x.SetLogSRQSize(log)
		x.SetLogRQStride(1)
		x.SetPD(r.pd)
		x.SetDBRAddr(dbr)
	case prm.OpCreateXRCSRQ:
		if r.xrcd == 0 {
			r.xrcd = binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocXRCD), 16)[8:])
		}
		x := prm.AsCreateXRCSRQIn(in).XRCSRQContextEntry()
		x.SetLogXRCSRQSize(log)
		x.SetLogRQStride(1)
		x.SetPD(r.pd)
		x.SetCQN(r.cq.n)
		x.SetXRCD(r.xrcd)
		x.SetUserIndex(0x77)
		x.SetDbRecordAddrH(uint32(dbr >> 32))
		x.SetDbRecordAddrL(uint32(dbr) >> 2)
	case prm.OpCreateRMP:
		x := prm.AsCreateRMPIn(in).Ctx()
		x.SetState(prm.RMPStateRdy)
		w := x.WQ()
		w.SetLogWQSz(log)
		w.SetLogWQStride(5)
		w.SetPD(r.pd)
		w.SetDBRAddr(dbr)
	}
	return in
}

// umem registers n bytes of the arena from at on.
func (r *raw) umem(at uint64, n int) uint32 {
	r.t.Helper()
	first, last := at&^4095, (at+uint64(n)-1)&^4095
	pages := int((last-first)>>12) + 1
	in := make([]byte, prm.CreateUMEMInSize+pages*8)
	copy(in, cmd(prm.OpCreateUMEM, 0, prm.CreateUMEMInSize))
	m := prm.AsCreateUMEMIn(in).UMEM()
	m.SetNumOfMTT(uint64(pages))
	m.SetPageOffset(uint32(at & 4095))
	for i := range pages {
		binary.BigEndian.PutUint64(in[prm.CreateUMEMInSize+i*8:], (first+uint64(i)*4096)|3)
	}
	return prm.AsCreateUMEMOut(r.ok(in, 16)).UMEMID()
}
