package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestQPRefusals: what CREATE_QP and the transitions refuse, and why.
func TestQPRefusals(t *testing.T) {
	for _, o := range []Options{{Port: PortIB}, {Port: PortEth}} {
		t.Run(o.Port.String(), func(t *testing.T) {
			r := newRaw(t, o).to(phaseInit)
			create := func(want synd, st prm.QPServiceType, set func(in *prm.CreateQPIn)) {
				t.Helper()
				in := r.qpInput(st)
				set(prm.AsCreateQPIn(in))
				_, y := r.status(in, 16)
				require.Equal(t, want, y, SyndromeText(uint32(y)))
			}
			qpc := func(set func(x *prm.QPC)) func(*prm.CreateQPIn) {
				return func(in *prm.CreateQPIn) { set(in.QPC()) }
			}
			rc := prm.QPTypeRC
			create(syndNoPD, rc, qpc(func(x *prm.QPC) { x.SetPD(0x999) }))
			create(syndNoUAR, rc, qpc(func(x *prm.QPC) { x.SetUARPage(0x999) }))
			create(syndNoCQ, rc, qpc(func(x *prm.QPC) { x.SetCQNSnd(0x999) }))
			create(syndNoCQ, rc, qpc(func(x *prm.QPC) { x.SetCQNRcv(0x999) }))
			create(syndNoSRQ, rc, qpc(func(x *prm.QPC) { x.SetRQType(prm.RQTypeSRQ); x.SetSRQNRmpnXrqn(0x999) }))
			create(syndQPQueue, rc, qpc(func(x *prm.QPC) { x.SetRQType(prm.RQTypeReserved) }))
			create(syndQPQueue, prm.QPTypeXRC, qpc(func(x *prm.QPC) {}))
			create(syndNoXRCD, prm.QPTypeXRC, qpc(func(x *prm.QPC) { x.SetRQType(prm.RQTypeZeroLength); x.SetXRCD(9) }))
			create(syndQPType, prm.QPTypeDCI, qpc(func(x *prm.QPC) {}))
			create(syndQPType, prm.QPTypeRawDatagram, qpc(func(x *prm.QPC) {}))
			create(syndQPSize, rc, qpc(func(x *prm.QPC) { x.SetLogRQStride(6) }))
			create(syndQPField, rc, qpc(func(x *prm.QPC) { x.SetTsFormat(prm.TSFormatRealTime) }))
			create(syndQPField, rc, func(in *prm.CreateQPIn) { in.SetQPCExt(true) })
			create(syndRecord, rc, qpc(func(x *prm.QPC) { x.SetDBRAddr(x.DBRAddr() + 4) }))
			create(syndQueuePage, rc, func(in *prm.CreateQPIn) { in.QPC().SetLogPageSize(31) })
			create(syndNoUMEM, rc, func(in *prm.CreateQPIn) { in.SetWQUMEMValid(true); in.SetWQUMEMID(0x999) })
			require.Zero(t, r.chip.State(0).QPs)

			step := func(want synd, op prm.Opcode, st prm.QPServiceType, set func(x *prm.QPC)) {
				t.Helper()
				n := r.createQP(st, nil)
				from := transitionOf(op).from
				for _, s := range qpStates {
					if from.has(s) {
						r.qpTo(n, s)
						break
					}
				}
				before := *r.qpc(n)
				in := r.qpStep(op, n)
				set(prm.AsRst2InitQPIn(in).QPC())
				_, y := r.status(in, 16)
				require.Equal(t, want, y, SyndromeText(uint32(y)))
				require.Equal(t, before, *r.qpc(n), "a refused transition changes nothing")
				r.ok(number(prm.OpDestroyQP, n), 16)
			}
			step(syndQPPath, prm.OpRst2InitQP, rc, func(x *prm.QPC) { x.PrimaryAddressPath().SetVHCAPortNum(0) })
			step(syndQPPath, prm.OpRst2InitQP, rc, func(x *prm.QPC) { x.PrimaryAddressPath().SetPkeyIndex(0xffff) })
			step(syndNoCounters, prm.OpRst2InitQP, rc, func(x *prm.QPC) { x.SetCounterSetID(9) })
			step(syndQPAtomic, prm.OpRst2InitQP, rc, func(x *prm.QPC) { x.SetAtomicMode(9) })
			step(syndQPMTU, prm.OpInit2RtrQP, rc, func(x *prm.QPC) { x.SetMTU(0) })
			step(syndQPMTU, prm.OpInit2RtrQP, prm.QPTypeUD, func(x *prm.QPC) { x.SetMTU(prm.PathMTURawEthernetQP) })
			step(syndQPMessage, prm.OpInit2RtrQP, rc, func(x *prm.QPC) { x.SetLogMsgMax(31) })
			step(syndQPDepth, prm.OpInit2RtrQP, rc, func(x *prm.QPC) { x.SetLogRraMax(5) })
			step(syndQPDepth, prm.OpRtr2RtsQP, rc, func(x *prm.QPC) { x.SetLogSraMax(7) })
			step(syndQPPath, prm.OpInit2RtrQP, rc, func(x *prm.QPC) { x.PrimaryAddressPath().SetStatRate(3) })
			if o.Port == PortEth {
				step(syndQPPath, prm.OpInit2RtrQP, rc, func(x *prm.QPC) { x.PrimaryAddressPath().SetGrh(false) })
			} else {
				step(syndQPPath, prm.OpInit2RtrQP, rc, func(x *prm.QPC) {
					x.PrimaryAddressPath().SetGrh(true)
					x.PrimaryAddressPath().SetSrcAddrIndex(200)
				})
			}
		})
	}
}

// TestAtomicModes: the ConnectX-4 of the capture has sizes up to 32 bytes, the
// ConnectX-5 up to 256.
func TestAtomicModes(t *testing.T) {
	for profile, most := range map[string]prm.AtomicMode{"cx4": prm.AtomicModeUpTo32B, "cx5": prm.AtomicModeUpTo256B} {
		r := newRaw(t, Options{Profile: profile}).to(phaseInit)
		n := r.createQP(prm.QPTypeRC, nil)
		for m := range prm.AtomicMode(16) {
			in := r.qpStep(prm.OpRst2InitQP, n)
			x := prm.AsRst2InitQPIn(in).QPC()
			x.SetRae(true)
			x.SetAtomicMode(m)
			s, y := r.status(in, 16)
			if m > most {
				require.Equal(t, syndQPAtomic, y, "%s: %s", profile, m)
				continue
			}
			require.Equal(t, prm.StatusOK, s, "%s: %s", profile, m)
			require.Equal(t, m, r.qpc(n).AtomicMode())
			r.ok(number(prm.Op2RstQP, n), 16)
		}
	}
}

// TestQPHolds: nothing that a QP works with can be taken away from under it.
func TestQPHolds(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.data()
	set := binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocQCounter), 16)[8:])
	srqn := binary.BigEndian.Uint32(r.ok(r.srqInput(prm.OpCreateSRQ, 2), 16)[8:])
	n := r.createQP(prm.QPTypeRC, func(x *prm.QPC) { x.SetRQType(prm.RQTypeSRQ); x.SetSRQNRmpnXrqn(srqn) })
	in := r.qpStep(prm.OpRst2InitQP, n)
	prm.AsRst2InitQPIn(in).QPC().SetCounterSetID(uint8(set))
	r.ok(in, 16)
	busy := func(op prm.Opcode, number func() []byte, want synd) {
		t.Helper()
		s, y := r.status(number(), 16)
		require.Equal(t, prm.StatusResBusy, s, op)
		require.Equal(t, want, y, op)
	}
	of := func(op prm.Opcode, n uint32) func() []byte { return func() []byte { return number(op, n) } }
	all := []struct {
		op   prm.Opcode
		n    uint32
		want synd
	}{
		{prm.OpDeallocQCounter, set, syndCountersBusy}, {prm.OpDestroySRQ, srqn, syndSRQBusy}, {prm.OpDestroyCQ, r.cq.n, syndCQBusy},
		{prm.OpDestroyEQ, r.eqn, syndEQBusy}, {prm.OpDeallocPD, r.pd, syndPDBusy}, {prm.OpDeallocUAR, r.uar, syndUARBusy},
	}
	for _, x := range all {
		busy(x.op, of(x.op, x.n), x.want)
	}
	r.ok(number(prm.Op2RstQP, n), 16)
	r.ok(number(all[0].op, all[0].n), 16) // a reset QP counts nowhere
	for _, x := range all[1:] {
		busy(x.op, of(x.op, x.n), x.want)
	}
	r.ok(number(prm.OpDestroyQP, n), 16)
	for _, x := range all[1:] {
		r.ok(number(x.op, x.n), 16)
	}
	require.Zero(t, r.chip.State(0).QPs+r.chip.State(0).SRQs+r.chip.State(0).CQs+r.chip.State(0).EQs)
}

// TestInsistedQPs: the queues that mlx5_ib wants to see, the UMR queue without a PD.
func TestInsistedQPs(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	for _, st := range []prm.QPServiceType{prm.QPTypeQP0, prm.QPTypeQP1, prm.QPTypeRegUMR} {
		n := r.createQP(st, func(x *prm.QPC) {
			if st == prm.QPTypeRegUMR {
				x.SetPD(0)
			}
		})
		r.qpTo(n, prm.QPStateRts)
		require.Equal(t, prm.QPStateRts, r.qpc(n).State())
		r.ok(number(prm.OpDestroyQP, n), 16)
	}
	r.ok(number(prm.OpDeallocPD, r.pd), 16)
}

// TestXRC: an XRC QP belongs to a domain, and so do the queues it reaches.
func TestXRC(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	in := r.srqInput(prm.OpCreateXRCSRQ, 3)
	srqn := prm.AsCreateXRCSRQOut(r.ok(in, 16)).XRCSRQN()
	n := r.createQP(prm.QPTypeXRC, func(x *prm.QPC) {
		x.SetRQType(prm.RQTypeZeroLength)
		x.SetNoSQ(true)
		x.SetXRCD(r.xrcd)
		x.SetCQNSnd(0) // without a send queue there is no CQ to name
		x.SetCQNRcv(0)
	})
	s, y := r.status(number(prm.OpDeallocXRCD, r.xrcd), 16)
	require.Equal(t, prm.StatusResBusy, s)
	require.Equal(t, syndXRCDBusy, y)
	_, y = r.status(func() []byte {
		in := r.qpInput(prm.QPTypeRC)
		prm.AsCreateQPIn(in).QPC().SetRQType(prm.RQTypeSRQ)
		prm.AsCreateQPIn(in).QPC().SetSRQNRmpnXrqn(srqn)
		return in
	}(), 16)
	require.Equal(t, syndSRQKind, y)
	r.ok(number(prm.OpDestroyQP, n), 16)
	r.ok(number(prm.OpDestroyXRCSRQ, srqn), 16)
	r.ok(number(prm.OpDeallocXRCD, r.xrcd), 16)
}

// TestQPsInUserMemory: queues and records in user memory, as DEVX users have
// them, with records that share a page; the memory stays while they do.
func TestQPsInUserMemory(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.data()
	const logRQ, logSQ = 4, 6
	buf := r.alloc(3*4096, 4096) + 64 // in the middle of a page
	rec := r.page() + 0x128
	bufID, recID := r.umem(buf, 8192), r.umem(rec, 8)
	in, _, _ := r.cqInput(6)
	in = in[:prm.CreateCQInSize] // no page list
	cqbuf, cqrec := r.umem(r.page(), 4096), r.umem(rec+8, 8)
	x := prm.AsCreateCQIn(in)
	x.SetCQUMEMValid(true)
	x.CQContext().SetDBRUMEMValid(true)
	x.CQContext().SetDBRAddr(0)
	binary.BigEndian.PutUint32(in[0x14:], cqrec)
	binary.BigEndian.PutUint32(in[0x58:], cqbuf)
	cqn := prm.AsCreateCQOut(r.ok(in, 16)).CQN()

	in = r.qpInput(prm.QPTypeRC)[:prm.CreateQPInSize]
	q := prm.AsCreateQPIn(in)
	q.SetWQUMEMValid(true)
	q.SetWQUMEMID(bufID)
	q.QPC().SetLogRQSize(logRQ)
	q.QPC().SetLogSQSize(logSQ)
	q.QPC().SetDBRUMEMValid(true)
	q.QPC().SetDBRAddr(0)
	q.QPC().SetCQNSnd(cqn)
	q.QPC().SetCQNRcv(cqn)
	binary.BigEndian.PutUint32(in[0x18+0xe4:], recID)
	n := prm.AsCreateQPOut(r.ok(in, 16)).QPN()

	r.chip.mu.Lock()
	o := r.chip.funcs[0].qps.objs[n]
	require.Equal(t, rec, o.dbr)
	require.Equal(t, buf, o.rq.buf.addr(o.rq.at(0)))
	require.Equal(t, buf+16<<logRQ, o.sq.buf.addr(o.sq.at(0)))
	require.Equal(t, buf+16<<logRQ+64<<logSQ-64, o.sq.buf.addr(o.sq.at(1<<logSQ-1)))
	require.Equal(t, o.sq.at(1), o.sq.at(1<<logSQ+1), "indexes wrap")
	require.Equal(t, rec+8, o.sendCQ.dbr)
	r.chip.mu.Unlock()

	for _, id := range []uint32{bufID, recID, cqbuf, cqrec} {
		s, y := r.status(number(prm.OpDestroyUMEM, id), 16)
		require.Equal(t, prm.StatusResBusy, s)
		require.Equal(t, syndUMEMBusy, y)
	}
	// What does not fit is refused: a buffer one byte short, a record across the end.
	small := r.umem(r.page(), 4096)
	q.SetWQUMEMID(small)
	q.SetWQUMEMOffset(64)
	_, y := r.status(in, 16)
	require.Equal(t, syndQueuePage, y)
	q.SetWQUMEMID(bufID)
	q.SetWQUMEMOffset(0)
	q.QPC().SetDBRAddr(4096)
	_, y = r.status(in, 16)
	require.Equal(t, syndRecord, y)

	r.ok(number(prm.OpDestroyQP, n), 16)
	r.ok(number(prm.OpDestroyCQ, cqn), 16)
	for _, id := range []uint32{bufID, recID, cqbuf, cqrec, small} {
		r.ok(number(prm.OpDestroyUMEM, id), 16)
	}
}

// TestQPLimit: log_max_qp in force is the number there can be.
func TestQPLimit(t *testing.T) {
	r := newRaw(t, Options{Profile: "cx4"}).to(phaseISSI)
	in := valid(prm.OpSetHCACap)
	copy(in[16:], r.ok(cmd(prm.OpQueryHCACap, 1, 16), prm.QueryHCACapOutSize)[16:])
	prm.AsCmdHCACap(in[16:]).SetLogMaxQP(2)
	r.ok(in, 16)
	r.give(prm.QueryPagesInit)
	r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
	for range 4 {
		r.createQP(prm.QPTypeRC, nil)
	}
	s, y := r.status(r.qpInput(prm.QPTypeRC), 16)
	require.Equal(t, prm.StatusNoRes, s)
	require.Equal(t, syndOutOfQPs, y)
}
