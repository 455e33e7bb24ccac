package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// complete makes the device write a completion.
func (q *rawCQ) complete(op prm.CQEOpcode, solicited bool) bool {
	q.r.chip.mu.Lock()
	defer q.r.chip.mu.Unlock()
	f := q.r.chip.funcs[0]
	e := &prm.CQE64{}
	e.SetOpcode(op)
	e.SetQPN(0x1234)
	return f.postCQE(f.cqs.objs[q.n], e, solicited)
}

func (q *rawCQ) context() *prm.CQC {
	x := *prm.AsQueryCQOut(q.r.ok(number(prm.OpQueryCQ, q.n), prm.QueryCQOutSize)).CQContext()
	return &x
}

// completionEvent takes the next event, which must be this queue's.
func (q *rawCQ) completionEvent() bool {
	e := q.r.event()
	for e != nil && e.EventType() == prm.EventCmd {
		e = q.r.event()
	}
	if e == nil {
		return false
	}
	require.Equal(q.r.t, prm.EventCompletion, e.EventType())
	require.Equal(q.r.t, q.n, e.EventData().CompEvent().CQNumber())
	return true
}

// TestCQArming: level-triggered; solicited or any; once.
func TestCQArming(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	q := r.createCQ(3, nil)
	require.True(t, q.complete(prm.CQEReq, false))
	require.False(t, q.completionEvent(), "a new queue is not armed")
	q.arm(false) // behind the producer
	require.True(t, q.completionEvent())
	require.Equal(t, prm.CQStateFired, q.context().St())
	require.True(t, q.complete(prm.CQEReq, false))
	require.False(t, q.completionEvent(), "one event for one arming")
	for q.next() != nil {
	}
	q.arm(false)
	require.False(t, q.completionEvent(), "armed and empty")
	require.Equal(t, prm.CQStateArmed, q.context().St())
	require.True(t, q.complete(prm.CQERespSend, false))
	require.True(t, q.completionEvent())
	require.NotNil(t, q.next())

	q.arm(true)
	require.Equal(t, prm.CQStateSolicitedArmed, q.context().St())
	require.True(t, q.complete(prm.CQERespSend, false))
	require.False(t, q.completionEvent(), "not solicited")
	require.True(t, q.complete(prm.CQERespSend, true))
	require.True(t, q.completionEvent())
	q.arm(true) // the solicited one is not consumed yet
	require.True(t, q.completionEvent())
	for q.next() != nil {
	}
	q.arm(true)
	require.False(t, q.completionEvent())
	q.consume()
	require.True(t, q.complete(prm.CQEReqErr, false))
	require.True(t, q.completionEvent(), "an error always counts as solicited")

	// The doorbell in two halves, as hosts without 8-byte stores write it, and
	// what is no doorbell.
	for q.next() != nil {
	}
	before := r.chip.Counters(0).DoorbellsIgnored
	r.write(uint64(r.uar)*4096+0x20, q.ci)
	require.Equal(t, prm.CQStateFired, q.context().St())
	r.write(uint64(r.uar)*4096+0x24, q.n)
	require.Equal(t, prm.CQStateArmed, q.context().St())
	require.Equal(t, before, r.chip.Counters(0).DoorbellsIgnored)
	r.write(uint64(r.uar)*4096+0x24, q.n) // a second half alone
	other := prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	r.write64(uint64(other)*4096+0x20, uint64(q.n)) // another UAR's
	r.write64(uint64(r.uar)*4096+0x20, 0x777)       // no such queue
	require.Equal(t, before+3, r.chip.Counters(0).DoorbellsIgnored)
}

// TestCQOverrun: the entry that does not fit is lost, the queue is dead and an
// event tells; with overrun ignore it is overwritten instead.
func TestCQOverrun(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.data()
	eqn, eqAt := r.createEQ(4, 2, 1<<prm.EventCQError)
	q := r.createCQ(2, nil)
	for range 4 {
		require.True(t, q.complete(prm.CQEReq, false))
	}
	require.NotNil(t, q.next())
	q.consume() // only the record says so: the model looks before it gives up
	require.True(t, q.complete(prm.CQEReq, false))
	require.False(t, q.complete(prm.CQEReq, false))
	require.False(t, q.complete(prm.CQEReq, false))
	require.Equal(t, prm.CQStatusOverflow, q.context().Status())
	require.EqualValues(t, 1, r.chip.Counters(0).CQErrors)
	e := prm.AsEQE(r.bytes(eqAt, 64))
	require.Equal(t, prm.EventCQError, e.EventType())
	require.Equal(t, q.n, e.EventData().CQError().CQN())
	require.Equal(t, prm.CQErrorOverrun, e.EventData().CQError().Syndrome())
	for range 4 {
		require.NotNil(t, q.next(), "what was written stays")
	}
	require.Nil(t, q.next())
	r.ok(number(prm.OpDestroyCQ, q.n), 16)
	r.ok(number(prm.OpDestroyEQ, eqn), 16)

	free := r.createCQ(1, func(x *prm.CQC) { x.SetOi(true) })
	for range 5 {
		require.True(t, free.complete(prm.CQEReq, false))
	}
	require.Equal(t, prm.CQStatusOK, free.context().Status())

	// Memory that went away.
	eqn, eqAt = r.createEQ(4, 2, 1<<prm.EventCQError)
	lost := r.createCQ(2, nil)
	in, _, _ := r.cqInput(2)
	binary.BigEndian.PutUint64(in[prm.CreateCQInSize:], 0x7000_0000) // nothing is mapped there
	lost.n = prm.AsCreateCQOut(r.ok(in, 16)).CQN()
	require.False(t, lost.complete(prm.CQEReq, false))
	require.Equal(t, prm.CQStatusWriteFail, lost.context().Status())
	e = prm.AsEQE(r.bytes(eqAt, 64))
	require.Equal(t, prm.CQErrorAccessViolation, e.EventData().CQError().Syndrome())
	require.NotZero(t, eqn)
}

// TestCQEntries: owner bits over several rounds; 128-byte entries carry the
// completion in their second half; collapsed queues have one entry.
func TestCQEntries(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	q := r.createCQ(2, nil)
	for i := range 11 {
		require.True(t, q.complete(prm.CQEReq, false))
		e := q.next()
		require.NotNil(t, e, "completion %d", i)
		require.Equal(t, i>>2&1 != 0, e.Owner())
		require.EqualValues(t, 0x1234, e.QPN())
		q.consume()
	}
	x := q.context()
	require.EqualValues(t, 11, x.ProducerCounter())
	require.EqualValues(t, 11, x.ConsumerCounter())

	big := r.createCQ(2, func(x *prm.CQC) { x.SetCQESz(prm.CQESize128Bytes) })
	require.True(t, big.complete(prm.CQEReq, false))
	require.EqualValues(t, 0xf0, r.bytes(big.at, 64)[63], "the first half is not touched")
	require.EqualValues(t, 0x1234, prm.AsCQE64(r.bytes(big.at+64, 64)).QPN())

	one := r.createCQ(2, func(x *prm.CQC) { x.SetCc(true) })
	require.True(t, one.complete(prm.CQEReq, false))
	require.True(t, one.complete(prm.CQERespSend, false))
	require.Equal(t, prm.CQERespSend, prm.AsCQE64(r.bytes(one.at, 64)).Opcode())
	require.EqualValues(t, 0xf0, r.bytes(one.at+64, 64)[63])
}

// TestCQCommands: what was asked for comes back; what the device lacks is
// refused.
func TestCQCommands(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	q := r.createCQ(5, func(x *prm.CQC) { x.SetCQPeriod(100); x.SetCQMaxCount(7); x.SetPageOffset(32) })
	out := r.ok(number(prm.OpQueryCQ, q.n), prm.QueryCQOutSize+8)
	x := prm.AsQueryCQOut(out).CQContext()
	require.EqualValues(t, 5, x.LogCQSize())
	require.EqualValues(t, 100, x.CQPeriod())
	require.EqualValues(t, r.eqn, x.CEQNOrApuElement())
	require.Equal(t, q.dbr, x.DBRAddr())
	require.Equal(t, q.at, binary.BigEndian.Uint64(out[prm.QueryCQOutSize:]))
	require.True(t, q.complete(prm.CQEReq, false))
	require.EqualValues(t, 0x1234, prm.AsCQE64(r.bytes(q.at+2048, 64)).QPN(), "the offset counts sixty-fourths of a page")

	for want, set := range map[synd]func(in []byte, x *prm.CQC){
		syndCQSize:    func(_ []byte, x *prm.CQC) { x.SetLogCQSize(23) },
		syndCQEntry:   func(_ []byte, x *prm.CQC) { x.SetCQECompEn(true) },
		syndNoEQ:      func(_ []byte, x *prm.CQC) { x.SetCEQNOrApuElement(0x999) },
		syndNoUAR:     func(_ []byte, x *prm.CQC) { x.SetUARPage(0x999) },
		syndRecord:    func(_ []byte, x *prm.CQC) { x.SetDBRAddr(x.DBRAddr() + 4) },
		syndQueuePage: func(in []byte, _ *prm.CQC) { in[len(in)-1] = 1 },
		syndNoUMEM: func(in []byte, _ *prm.CQC) {
			prm.AsCreateCQIn(in).SetCQUMEMValid(true)
			binary.BigEndian.PutUint32(in[0x58:], 0x999)
		},
	} {
		in, _, _ := r.cqInput(4)
		set(in, prm.AsCreateCQIn(in).CQContext())
		_, y := r.status(in, 16)
		require.Equal(t, want, y, SyndromeText(uint32(y)))
	}

	in := number(prm.OpModifyCQ, q.n)
	m := prm.AsModifyCQIn(in)
	m.CQContext().SetCQPeriod(16)
	m.CQContext().SetCQMaxCount(4)
	m.CQContext().SetOi(true)
	sel := m.ModifyFieldSelectResizeFieldSelect().ModifyFieldSelect()
	sel.SetModifyFieldSelect(1<<0 | 1<<2)
	r.ok(in, 16)
	c := q.context()
	require.EqualValues(t, 16, c.CQPeriod())
	require.EqualValues(t, 7, c.CQMaxCount(), "not selected")
	require.True(t, c.Oi())
	sel.SetModifyFieldSelect(1 << 5)
	_, y := r.status(in, 16)
	require.Equal(t, syndCQField, y)
}

// TestCQResize: the old buffer ends with RESIZE_CQ and the next completion is
// the next in the new one.
func TestCQResize(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	q := r.createCQ(2, nil)
	for range 6 {
		require.True(t, q.complete(prm.CQEReq, false))
		require.NotNil(t, q.next())
		q.consume()
	}
	require.True(t, q.complete(prm.CQEReq, false))
	at := r.page()
	in := cmd(prm.OpModifyCQ, cqResize, prm.ModifyCQInSize+8)
	m := prm.AsModifyCQIn(in)
	m.SetCQN(q.n)
	m.CQContext().SetLogCQSize(4)
	m.ModifyFieldSelectResizeFieldSelect().ResizeFieldSelect().SetResizeFieldSelect(7)
	binary.BigEndian.PutUint64(in[prm.ModifyCQInSize:], at)
	r.ok(in, 16)
	require.Equal(t, prm.CQEReq, q.next().Opcode())
	require.Equal(t, prm.CQEResizeCQ, q.next().Opcode())
	require.Nil(t, q.next())
	require.EqualValues(t, 4, q.context().LogCQSize())
	q.at, q.log = at, 4
	require.True(t, q.complete(prm.CQERespSend, false))
	e := q.next()
	require.Equal(t, prm.CQERespSend, e.Opcode())
	require.EqualValues(t, 9, q.ci)

	// Three completions do not fit two entries.
	for range 2 {
		require.True(t, q.complete(prm.CQEReq, false))
	}
	m.CQContext().SetLogCQSize(1)
	s, y := r.status(in, 16)
	require.Equal(t, prm.StatusBadSizeOutsCQEs, s)
	require.Equal(t, syndCQShrink, y)
}

// TestSendDoorbells: the first eight bytes of each BlueFlame buffer, whole or in
// halves, ring; the rest of an entry written there does not.
func TestSendDoorbells(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	n := r.createQP(prm.QPTypeRC, nil)
	rings := &ringCounter{engine: engine{r.chip.funcs[0]}}
	r.chip.mu.Lock()
	r.chip.funcs[0].engine = rings
	r.chip.mu.Unlock()
	page := uint64(r.uar) * 4096
	db := uint64(0x0000_0108)<<32 | uint64(n)<<8 | 3
	for i, off := range []uint64{0x800, 0x900, 0xa00, 0xf00} {
		r.write64(page+off, db)
		require.Len(t, rings.seen, i+1)
		require.Equal(t, db, rings.seen[i])
	}
	for off := uint64(0x808); off < 0x840; off += 8 {
		r.write64(page+off, 0x1111)
	}
	require.Len(t, rings.seen, 4)
	r.write(page+0x900, uint32(db>>32))
	r.write(page+0x904, uint32(db))
	require.Len(t, rings.seen, 5)
	before := r.chip.Counters(0).DoorbellsIgnored
	r.write64(page+0x800, 0x777<<8) // no such QP
	other := prm.AsAllocUAROut(r.ok(cmd(prm.OpAllocUAR, 0, 16), 16)).UAR()
	r.write64(uint64(other)*4096+0x800, db) // not its UAR
	require.NoError(t, r.dev.WriteRegion(vfio.RegionBAR0, page+0x800, []byte{1, 2}))
	require.Len(t, rings.seen, 5)
	require.Equal(t, before+3, r.chip.Counters(0).DoorbellsIgnored)
}

type ringCounter struct {
	engine
	seen []uint64
}

func (c *ringCounter) ringSend(_ *qp, first8 uint64) { c.seen = append(c.seen, first8) }
