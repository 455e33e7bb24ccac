package queues

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// CQOptions describe a completion queue to be created.
type CQOptions struct {
	// Name appears in messages and names the memory.
	Name string
	// LogSize is log2 of the number of 64-byte entries; 0 is 8, for 256. Make it
	// as large as all WQEs that can be outstanding together ask for completions:
	// an overrun ends the queue.
	LogSize uint8
	// EQ hears of completions once the CQ is armed. It cannot be destroyed before the
	// CQ; an EventChannel has one.
	EQ *EQ
	// UAR carries the arm doorbell. It cannot be freed before the CQ is destroyed.
	UAR *UAR
	// OverrunIgnore lets the device lap the consumer, for measurements in which
	// nobody polls.
	OverrunIgnore bool
}

// defaultLogCQ is log2 of the entries of a CQ whose options do not say.
const defaultLogCQ = 8

// CQ is a completion queue: a ring of 64-byte entries (CQEs) that the device
// writes. Poll and Arm are CQRing's. It belongs to one caller at a time together
// with the queues that complete on it; Query may be called by any.
type CQ struct {
	CQRing
	dev  *Dev
	eq   *EQ
	mem  queueMemory
	o    CQOptions
	life refs
}

// CreateCQ allocates ring and doorbell record and hands them to firmware (opcode
// 0x400). The new CQ is not armed.
func (d *Dev) CreateCQ(ctx context.Context, o CQOptions) (*CQ, error) {
	if o.LogSize == 0 {
		o.LogSize = defaultLogCQ
	}
	op := fmt.Sprintf("create the %s CQ (%d entries)", o.Name, uint64(1)<<min(o.LogSize, 63))
	if err := d.holdCQ(op, &o); err != nil {
		return nil, err
	}
	q := &CQ{dev: d, eq: o.EQ, o: o}
	if err := q.create(ctx, op); err != nil {
		q.drop()
		return nil, err
	}
	d.born(q)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cqs == nil {
		d.cqs = map[uint32]*CQ{}
	}
	d.cqs[q.cqn] = q
	return q, nil
}

func (q *CQ) create(ctx context.Context, op string) error {
	d, o, size := q.dev, &q.o, cqeSize<<q.o.LogSize
	mem, err := d.allocQueue(o.Name+" CQ", size)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	q.mem = mem
	err = q.CQRing.init(CQRingConfig{Name: o.Name, Ring: mem.ring.Mem.Slice(0, size), Record: mem.record.Mem, LogSize: o.LogSize, UAR: o.UAR})
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", op, err), mem.free())
	}
	in, out := createCQInput(o, &mem), make([]byte, prm.CreateCQOutSize)
	if err := d.exec(ctx, op, in, out); err != nil {
		return d.undo(err, mem)
	}
	q.cqn = prm.AsCreateCQOut(out).CQN()
	return nil
}

// holdCQ checks the options and counts the CQ as a user of its objects.
func (d *Dev) holdCQ(op string, o *CQOptions) error {
	switch {
	case o.LogSize > 22 || over(o.LogSize, d.Caps.LogMaxCQSize):
		return refuse(op, "LogSize", vfio.ErrRange, "2^%d entries; 2^%d is the most", o.LogSize, min(max(d.Caps.LogMaxCQSize, 1), 22))
	case o.OverrunIgnore && d.Caps.known() && !d.Caps.OverrunIgnore:
		return refuse(op, "OverrunIgnore", vfio.ErrNotSupported, "the device lacks the capability cq_oi")
	}
	switch {
	case o.EQ == nil:
		return refuse(op, "EQ", ErrMissing, "make one with CreateEQ or NewEventChannel")
	case o.EQ.dev != d:
		return refuse(op, "EQ", ErrForeign, "EQN %d is another device's", o.EQ.eqn)
	case !o.EQ.life.alive():
		return refuse(op, "EQ", vfio.ErrClosed, "EQN %d was destroyed", o.EQ.eqn)
	}
	if err := o.UAR.take(d, op); err != nil {
		return err
	}
	if !o.EQ.life.use() {
		o.UAR.life.drop()
		return refuse(op, "EQ", vfio.ErrClosed, "EQN %d is being destroyed", o.EQ.eqn)
	}
	return nil
}

// drop undoes holdCQ.
func (q *CQ) drop() {
	q.o.UAR.life.drop()
	q.eq.life.drop()
}

func createCQInput(o *CQOptions, mem *queueMemory) []byte {
	shift, pas := mem.pages()
	in := withPages(prm.CreateCQInSize, pas)
	cmd := prm.AsCreateCQIn(in)
	cmd.SetOpcode(prm.OpCreateCQ)
	c := cmd.CQContext()
	c.SetCQESz(prm.CQESize64Bytes)
	c.SetOi(o.OverrunIgnore)
	c.SetLogCQSize(o.LogSize)
	c.SetUARPage(o.UAR.index)
	c.SetCEQNOrApuElement(uint32(o.EQ.eqn))
	c.SetLogPageSize(shift - adapterPageShift)
	c.SetDBRAddr(mem.record.IOVA())
	return in
}

// Number is the CQN that firmware gave, 24 bits.
func (q *CQ) Number() uint32 { return q.cqn }

// Name is the name it was created with.
func (q *CQ) Name() string { return q.o.Name }

// EQ is the event queue that hears of its completions.
func (q *CQ) EQ() *EQ { return q.eq }

// CQState is what firmware says about a CQ (QUERY_CQ).
type CQState struct {
	Status        prm.CQStatus
	State         prm.CQState
	EQN           uint32
	UAR           uint32
	LogSize       uint8
	Record        uint64 // bus address of the doorbell record
	OverrunIgnore bool
	Consumer      uint32
	Producer      uint32
	LastNotified  uint32 // producer at the last completion event
	LastSolicited uint32
	// PeriodMicros and MaxCount moderate completion events; 0 is no moderation.
	PeriodMicros, MaxCount uint16
}

// Query reads the context from firmware (opcode 0x402). A queue that overran or
// whose memory could not be written shows it in Status.
func (q *CQ) Query(ctx context.Context) (CQState, error) {
	op := fmt.Sprintf("query the %s CQ (CQN %#x)", q.o.Name, q.cqn)
	if !q.life.alive() {
		return CQState{}, refuse(op, "", vfio.ErrClosed, "it was destroyed")
	}
	in, out := make([]byte, prm.QueryCQInSize), make([]byte, prm.QueryCQOutSize)
	cmd := prm.AsQueryCQIn(in)
	cmd.SetOpcode(prm.OpQueryCQ)
	cmd.SetCQN(q.cqn)
	if err := q.dev.exec(ctx, op, in, out); err != nil {
		return CQState{}, err
	}
	c := prm.AsQueryCQOut(out).CQContext()
	return CQState{
		Status: c.Status(), State: c.St(), EQN: c.CEQNOrApuElement(), UAR: c.UARPage(), LogSize: c.LogCQSize(),
		Record: c.DBRAddr(), OverrunIgnore: c.Oi(), Consumer: c.ConsumerCounter(), Producer: c.ProducerCounter(),
		LastNotified: c.LastNotifiedIndex(), LastSolicited: c.LastSolicitIndex(),
		PeriodMicros: c.CQPeriod(), MaxCount: c.CQMaxCount(),
	}, nil
}

// Destroy takes the CQ from firmware (opcode 0x401) and frees its memory. Queue
// pairs that complete on it must be destroyed before: ErrInUse. If firmware
// refuses, the memory stays: the device may write it until it is reset; Release
// frees it then. A second call answers vfio.ErrClosed.
func (q *CQ) Destroy(ctx context.Context) error {
	op := fmt.Sprintf("destroy the %s CQ (CQN %#x)", q.o.Name, q.cqn)
	err := q.life.destroy(q.dev, op, func() error {
		in, out := make([]byte, prm.DestroyCQInSize), make([]byte, prm.DestroyCQOutSize)
		cmd := prm.AsDestroyCQIn(in)
		cmd.SetOpcode(prm.OpDestroyCQ)
		cmd.SetCQN(q.cqn)
		return q.dev.exec(ctx, op, in, out)
	})
	if err != nil {
		return err
	}
	q.close()
	return q.mem.free()
}

// Release frees the memory without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (q *CQ) Release() error {
	_, err := q.abandon(true)
	return err
}

// close takes the CQ from the books and its ring away; the memory may then go.
func (q *CQ) close() {
	q.dev.died(q)
	q.dev.mu.Lock()
	if q.dev.cqs[q.cqn] == q {
		delete(q.dev.cqs, q.cqn)
	}
	q.dev.failed = slices.DeleteFunc(q.dev.failed, func(o *CQ) bool { return o == q })
	q.dev.mu.Unlock()
	q.CQRing.close()
	q.drop()
}

// unknow is Detach without a look at the ring.
func (r *CQRing) unknow(qpn uint32) {
	r.peers.drop(qpn)
	if r.last.qpn == qpn {
		r.follow(&nobody)
	}
}

// cq finds a completion queue by its number; nil if there is none.
func (d *Dev) cq(cqn uint32) *CQ {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cqs[cqn]
}

// HandleEvent takes note of a device event that concerns a queue: after CQ_ERROR,
// Poll of that CQ answers why it stopped, once its ring is empty, and an
// EventChannel that waits for it wakes up. Whoever owns the EQ of device events
// calls it; other events do nothing. It is safe for concurrent use.
func (d *Dev) HandleEvent(e *prm.EQE) {
	if e.EventType() != prm.EventCQError {
		return
	}
	x := e.EventData().CQError()
	q := d.cq(x.CQN())
	if q == nil {
		return
	}
	if s := x.Syndrome(); s == prm.CQErrorOverrun {
		q.Break(ErrCQOverrun, "the device reported it; make the CQ as large as all WQEs that can be outstanding, and create it again")
	} else {
		q.Break(ErrCQUnwritable, fmt.Sprintf("the device reported %v; its memory must stay mapped as long as it exists", s))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.waiters[q.eq.eqn]; ok {
		d.failed = append(d.failed, q)
		if v != nil {
			v.Signal()
		}
	}
}

// ErrCQUnwritable: the device could not write entries.
var ErrCQUnwritable = errors.New("completions are lost: the device cannot write the CQ")
