package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// take makes the device take entries of a shared receive queue.
func (r *raw) take1(n uint32) {
	r.chip.mu.Lock()
	defer r.chip.mu.Unlock()
	f := r.chip.funcs[0]
	s := f.srqs.objs[n]
	s.taken++
	f.checkLimit(s)
}

// TestSRQNumbers: SRQ, RMP and XRC SRQ share one number space, and a command of
// one kind does not reach a queue of another.
func TestSRQNumbers(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	seen := map[uint32]prm.Opcode{}
	kinds := []struct{ create, query, destroy prm.Opcode }{
		{prm.OpCreateSRQ, prm.OpQuerySRQ, prm.OpDestroySRQ},
		{prm.OpCreateRMP, prm.OpQueryRMP, prm.OpDestroyRMP},
		{prm.OpCreateXRCSRQ, prm.OpQueryXRCSRQ, prm.OpDestroyXRCSRQ},
	}
	for range 3 {
		for _, k := range kinds {
			n := binary.BigEndian.Uint32(r.ok(r.srqInput(k.create, 3), 16)[8:])
			require.NotContains(t, seen, n)
			seen[n] = k.create
		}
	}
	require.Equal(t, 9, r.chip.State(0).SRQs)
	for n, created := range seen {
		for _, k := range kinds {
			if k.create == created {
				r.query(k.query, n, 0)
				continue
			}
			for _, op := range []prm.Opcode{k.query, k.destroy} {
				s, y := r.status(number(op, n), 0x200)
				require.Equal(t, prm.StatusBadRes, s, op)
				require.Equal(t, syndSRQKind, y, op)
			}
		}
	}
	for n, created := range seen {
		for _, k := range kinds {
			if k.create == created {
				r.ok(number(k.destroy, n), 16)
			}
		}
	}
	require.Zero(t, r.chip.State(0).SRQs)
}

// TestSRQContexts: queries give back what was set.
func TestSRQContexts(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	in := r.srqInput(prm.OpCreateSRQ, 3)
	want := *prm.AsCreateSRQIn(in).SRQContextEntry()
	n := prm.AsCreateSRQOut(r.ok(in, 16)).SRQN()
	r.take1(n)
	out := r.query(prm.OpQuerySRQ, n, 0)
	got := *prm.AsQuerySRQOut(out).SRQContextEntry()
	want.SetWQECnt(1)
	require.Equal(t, want, got)
	require.Equal(t, binary.BigEndian.Uint64(in[prm.CreateSRQInSize:]), binary.BigEndian.Uint64(out[prm.QuerySRQOutSize:]))

	in = r.srqInput(prm.OpCreateRMP, 3)
	rmp := *prm.AsCreateRMPIn(in).Ctx()
	n = prm.AsCreateRMPOut(r.ok(in, 16)).Rmpn()
	require.Equal(t, rmp, *prm.AsQueryRMPOut(r.query(prm.OpQueryRMP, n, 0)).RMPContext())

	in = r.srqInput(prm.OpCreateXRCSRQ, 3)
	xrc := *prm.AsCreateXRCSRQIn(in).XRCSRQContextEntry()
	n = prm.AsCreateXRCSRQOut(r.ok(in, 16)).XRCSRQN()
	require.Equal(t, xrc, *prm.AsQueryXRCSRQOut(r.query(prm.OpQueryXRCSRQ, n, 0)).XRCSRQContextEntry())

	// Entries lie where the context says, behind an offset in sixty-fourths.
	in = r.srqInput(prm.OpCreateSRQ, 3)
	prm.AsCreateSRQIn(in).SRQContextEntry().SetPageOffset(3)
	n = prm.AsCreateSRQOut(r.ok(in, 16)).SRQN()
	r.chip.mu.Lock()
	s := r.chip.funcs[0].srqs.objs[n]
	require.Equal(t, binary.BigEndian.Uint64(in[prm.CreateSRQInSize:])+3*64+32, s.wq.buf.addr(s.wq.at(1)))
	require.True(t, s.linked)
	r.chip.mu.Unlock()
}

// TestSRQLimit: the limit event comes once, when fewer entries are left, and at
// once when that is so already.
func TestSRQLimit(t *testing.T) {
	for _, k := range []struct{ create, arm prm.Opcode }{
		{prm.OpCreateSRQ, prm.OpArmRQ}, {prm.OpCreateRMP, prm.OpModifyRMP}, {prm.OpCreateXRCSRQ, prm.OpArmXRCSRQ},
	} {
		r := newRaw(t, Options{}).to(phaseInit)
		r.data()
		_, eqAt := r.createEQ(4, 2, 1<<prm.EventSRQRQLimit)
		events := 0
		event := func(n uint32) bool {
			e := prm.AsEQE(r.bytes(eqAt+uint64(events)*64, 64))
			if e.Owner() {
				return false
			}
			events++
			require.Equal(t, prm.EventSRQRQLimit, e.EventType())
			require.Equal(t, n, e.EventData().QPEvents().QPNRqnSqn())
			return true
		}
		in := r.srqInput(k.create, 3)
		n := binary.BigEndian.Uint32(r.ok(in, 16)[8:])
		r.chip.mu.Lock()
		dbr := r.chip.funcs[0].srqs.objs[n].dbr
		r.chip.mu.Unlock()
		r.mem.StoreBE32(int(dbr-arenaIOVA), 4) // four posted
		arm := func(limit uint16) {
			in := number(k.arm, n)
			switch k.arm {
			case prm.OpModifyRMP:
				m := prm.AsModifyRMPIn(in)
				m.SetRMPState(uint8(prm.RMPStateRdy))
				m.Bitmask().SetLwm(true)
				m.Ctx().WQ().SetLwm(limit)
			default:
				prm.AsArmRQIn(in).SetLwm(limit)
			}
			r.ok(in, 16)
		}
		arm(3)
		r.take1(n)
		require.False(t, event(n), "three are left")
		r.take1(n)
		require.True(t, event(n))
		r.take1(n)
		require.False(t, event(n), "once")
		arm(2) // one is left
		require.True(t, event(n))
		arm(2)
		require.True(t, event(n))
		arm(0)
		r.take1(n)
		require.False(t, event(n))
	}
}

// TestSRQRefusals: what creation refuses.
func TestSRQRefusals(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	refused := func(want synd, in []byte) {
		t.Helper()
		_, y := r.status(in, 16)
		require.Equal(t, want, y, SyndromeText(uint32(y)))
	}
	srq := func(set func(x *prm.SRQC)) []byte {
		in := r.srqInput(prm.OpCreateSRQ, 2)
		set(prm.AsCreateSRQIn(in).SRQContextEntry())
		return in
	}
	refused(syndNoPD, srq(func(x *prm.SRQC) { x.SetPD(0x999) }))
	refused(syndNoCQ, srq(func(x *prm.SRQC) { x.SetCQN(0x999) }))
	refused(syndSRQLimit, srq(func(x *prm.SRQC) { x.SetLwm(4) }))
	refused(syndRecord, srq(func(x *prm.SRQC) { x.SetDBRAddr(0x1004) }))
	refused(syndQueuePage, srq(func(x *prm.SRQC) { x.SetLogPageSize(31) }))
	refused(syndQueuePage, srq(func(x *prm.SRQC) { x.SetLogPageSize(63) }))
	refused(syndInputShort, srq(func(*prm.SRQC) {})[:prm.CreateSRQInSize])
	xrc := func(set func(in *prm.CreateXRCSRQIn)) []byte {
		in := r.srqInput(prm.OpCreateXRCSRQ, 2)
		set(prm.AsCreateXRCSRQIn(in))
		return in
	}
	refused(syndNoCQ, xrc(func(in *prm.CreateXRCSRQIn) { in.XRCSRQContextEntry().SetCQN(0) }))
	refused(syndSRQUMEM, xrc(func(in *prm.CreateXRCSRQIn) { in.SetXRCSRQUMEMValid(true) }))
	rmp := func(set func(x *prm.RMPC)) []byte {
		in := r.srqInput(prm.OpCreateRMP, 2)
		set(prm.AsCreateRMPIn(in).Ctx())
		return in
	}
	refused(syndRMPState, rmp(func(x *prm.RMPC) { x.SetState(0) }))
	refused(syndRMPState, rmp(func(x *prm.RMPC) { x.WQ().SetWQType(prm.WQTypeCyclicStriding) }))
	refused(syndSRQSize, rmp(func(x *prm.RMPC) { x.WQ().SetLogWQStride(3) }))
	require.Zero(t, r.chip.State(0).SRQs)
}
