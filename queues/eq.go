package queues

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// EventMask says which device events an EQ takes: bit n%64 of word n/64 stands
// for event type n. Completion EQs take none.
type EventMask [4]uint64

// MaskOf is the mask with the given types.
func MaskOf(types ...prm.EventType) EventMask {
	var m EventMask
	for _, t := range types {
		m[uint8(t)/64] |= 1 << (uint8(t) % 64)
	}
	return m
}

// With is m and the given types.
func (m EventMask) With(types ...prm.EventType) EventMask {
	for i, w := range MaskOf(types...) {
		m[i] |= w
	}
	return m
}

// Has tells whether type t is in the mask.
func (m EventMask) Has(t prm.EventType) bool {
	return m[uint8(t)/64]>>(uint8(t)%64)&1 != 0
}

// Types lists the types of the mask, ascending.
func (m EventMask) Types() []prm.EventType {
	var ts []prm.EventType
	for i, w := range m {
		for ; w != 0; w &= w - 1 {
			ts = append(ts, prm.EventType(i*64+bits.TrailingZeros64(w)))
		}
	}
	return ts
}

// EQOptions describe an event queue to be created.
type EQOptions struct {
	// Name appears in messages and names the memory: "command", "async".
	Name string
	// LogSize is log2 of the number of 64-byte entries. Leave spare entries:
	// the consumer index is told to the device every UpdateEvery entries at the
	// latest, so at least that many more than can be outstanding.
	LogSize uint8
	// Vector is the MSI-X vector that is raised when the EQ is armed and not
	// empty. It is written to the EQ context even where nobody listens to it.
	Vector uint16
	// Mask are the device events that arrive here.
	Mask EventMask
	// UAR carries the consumer index doorbell. It cannot be freed before the EQ is
	// destroyed.
	UAR *UAR
}

// EQ is an event queue: a ring of 64-byte entries (EQEs) the device writes and
// one goroutine reads. Arming is level-triggered (Linux eq.c polls, then arms, and
// never looks again): an arm whose consumer index is behind the producer raises the interrupt at
// once, so poll, arm, wait loses nothing.
//
// All methods but Number, Name, Vector, LogSize and Mask belong to the owning
// goroutine; Query and Generate may be called by any, as long as the EQ exists.
type EQ struct {
	ring
	dev  *Dev
	uar  *UAR
	buf  *vfio.Buffer
	o    EQOptions
	eqn  uint8
	told uint32 // consumer index the device knows
	life refs
}

// UpdateEvery is the number of entries after which Poll tells the device the
// consumer index, so that it does not take a long batch for an overrun (Linux
// eq.h updates at most every 0x80).
const UpdateEvery = 64

// eqeSize is the size of an entry in bytes.
const eqeSize = prm.EQESize

// CreateEQ allocates the ring and hands it to firmware (opcode 0x301). The new
// EQ is not armed. The ring is contiguous for the device and aligned to its
// size, so one page address describes it.
func (d *Dev) CreateEQ(ctx context.Context, o EQOptions) (*EQ, error) {
	what := fmt.Sprintf("create the %s EQ (%d entries, vector %d)", o.Name, 1<<o.LogSize, o.Vector)
	if o.LogSize > 22 {
		return nil, fmt.Errorf("%s: log size %d: %w; 22 is the most a 24-bit consumer index allows", what, o.LogSize, vfio.ErrRange)
	}
	if o.Mask[1]|o.Mask[2]|o.Mask[3] != 0 && !d.WideEvents {
		return nil, fmt.Errorf("%s: event types above 63 need capability event_cap: %w", what, vfio.ErrNotSupported)
	}
	if err := o.UAR.take(d, what); err != nil {
		return nil, err
	}
	q := &EQ{dev: d, uar: o.UAR, o: o}
	if err := q.create(ctx, what); err != nil {
		o.UAR.life.drop()
		return nil, err
	}
	d.born(q)
	return q, nil
}

func (q *EQ) create(ctx context.Context, what string) error {
	d, size := q.dev, max(eqeSize<<q.o.LogSize, 1<<adapterPageShift)
	buf, err := d.Space.Alloc(size, vfio.BufferOptions{Align: size, Name: q.o.Name + " EQ"})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	q.buf = buf
	q.ring.init(buf.Mem, q.o.LogSize)

	in, out := createEQInput(&q.o, buf.IOVA(), size), make([]byte, prm.CreateEQOutSize)
	if err := d.exec(ctx, what, in, out); err != nil {
		if answered(err) {
			return errors.Join(err, buf.Free())
		}
		d.orphan(buf)
		return err
	}
	q.eqn = prm.AsCreateEQOut(out).EQNumber()
	return nil
}

// createEQInput is the CREATE_EQ of a ring of size bytes at one address.
func createEQInput(o *EQOptions, iova uint64, size int) []byte {
	in := make([]byte, prm.CreateEQInSize+8)
	cmd := prm.AsCreateEQIn(in)
	cmd.SetOpcode(prm.OpCreateEQ)
	c := cmd.EQContextEntry()
	c.SetLogEQSize(o.LogSize)
	c.SetUARPage(o.UAR.index)
	c.SetIntr(o.Vector)
	c.SetLogPageSize(uint8(bits.Len(uint(size)) - 1 - adapterPageShift))
	for i, w := range o.Mask {
		cmd.SetEventBitmask(i, w)
	}
	binary.BigEndian.PutUint64(in[prm.CreateEQInPasOffset:], iova)
	return in
}

// Number is the EQN that firmware gave.
func (q *EQ) Number() uint8 { return q.eqn }

// Name is the name it was created with.
func (q *EQ) Name() string { return q.o.Name }

// Vector is the MSI-X vector it raises.
func (q *EQ) Vector() uint16 { return q.o.Vector }

// LogSize is log2 of its number of entries.
func (q *EQ) LogSize() uint8 { return q.o.LogSize }

// Mask are the events it takes.
func (q *EQ) Mask() EventMask { return q.o.Mask }

// Poll hands every entry that has arrived to fn, in order, and returns how many
// there were. The entry is a copy that is valid until fn returns: firmware may
// reuse the slot meanwhile. fn must not call methods of q. Call Arm or Update
// after it. An *OverrunError says that the device has overwritten entries nobody
// had read; entries handed over before it are good. Poll does not allocate.
func (q *EQ) Poll(fn func(*prm.EQE)) (int, error) {
	n := 0
	for q.next() {
		n++
		if (q.ci-q.told)&ciMask >= UpdateEvery {
			q.Update()
		}
		fn(&q.entry)
	}
	if q.overrun() {
		return n, &OverrunError{EQ: q.o.Name, EQN: q.eqn, Consumer: q.ci}
	}
	return n, nil
}

// Arm tells the device the consumer index and asks for one interrupt as soon as
// there is an entry beyond it.
func (q *EQ) Arm() { q.ringDoorbell(UAREQArm) }

// Update tells the device the consumer index, if it does not know it yet, and
// asks for nothing.
func (q *EQ) Update() {
	if q.told != q.ci {
		q.ringDoorbell(UAREQUpdate)
	}
}

func (q *EQ) ringDoorbell(off uint64) {
	if q.uar == nil {
		return
	}
	q.told = q.ci
	q.uar.Write32(off, q.ci&ciMask|uint32(q.eqn)<<24)
}

// EQState is what firmware says about an EQ (QUERY_EQ).
type EQState struct {
	Status   prm.EQStatus
	State    prm.EQState
	Consumer uint32
	Producer uint32
	Mask     uint64 // the first 64 event types
}

// Query reads the context from firmware (opcode 0x303). An EQ that overran or
// whose memory could not be written shows it in Status.
func (q *EQ) Query(ctx context.Context) (EQState, error) {
	op := fmt.Sprintf("query the %s EQ (EQN %d)", q.o.Name, q.eqn)
	if !q.life.alive() {
		return EQState{}, refuse(op, "", vfio.ErrClosed, "it was destroyed")
	}
	in, out := make([]byte, prm.QueryEQInSize), make([]byte, prm.QueryEQOutSize)
	cmd := prm.AsQueryEQIn(in)
	cmd.SetOpcode(prm.OpQueryEQ)
	cmd.SetEQNumber(q.eqn)
	if err := q.dev.exec(ctx, op, in, out); err != nil {
		return EQState{}, err
	}
	a := prm.AsQueryEQOut(out)
	c := a.EQContextEntry()
	return EQState{
		Status: c.Status(), State: c.St(),
		Consumer: c.ConsumerCounter(), Producer: c.ProducerCounter(),
		Mask: a.EventBitmask(),
	}, nil
}

// Generate has firmware write an entry to the EQ as if its event had happened
// (opcode 0x304; Linux mlx5_ifc.h, gen_eqe_in): a way to see the interrupt
// arrive. Device and firmware may refuse it. It may be called by any goroutine.
func (q *EQ) Generate(ctx context.Context, e *prm.EQE) error {
	in, out := make([]byte, prm.GenEQEInSize), make([]byte, 16)
	cmd := prm.AsGenEQEIn(in)
	cmd.SetOpcode(prm.OpGenEQE)
	cmd.SetEQNumber(q.eqn)
	copy(cmd.EQE(), e[:])
	return q.dev.exec(ctx, fmt.Sprintf("write an event to the %s EQ (EQN %d)", q.o.Name, q.eqn), in, out)
}

// Destroy takes the EQ from firmware (opcode 0x302) and frees the ring. CQs that
// report to it must be destroyed before: ErrInUse. If firmware refuses, the ring stays: the device may write it until it is reset;
// Release frees it then.
func (q *EQ) Destroy(ctx context.Context) error {
	op := fmt.Sprintf("destroy the %s EQ (EQN %d)", q.o.Name, q.eqn)
	err := q.life.destroy(q.dev, op, func() error {
		in, out := make([]byte, prm.DestroyEQInSize), make([]byte, prm.DestroyEQOutSize)
		cmd := prm.AsDestroyEQIn(in)
		cmd.SetOpcode(prm.OpDestroyEQ)
		cmd.SetEQNumber(q.eqn)
		return q.dev.exec(ctx, op, in, out)
	})
	if err != nil {
		return err
	}
	q.close()
	return q.buf.Free()
}

// Release frees the ring without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (q *EQ) Release() error {
	_, err := q.abandon(true)
	return err
}

// close takes the ring away: Poll finds nothing from now on, and Arm and Update do
// nothing, so that neither touches memory or a queue of the same number that
// comes later.
func (q *EQ) close() {
	q.dev.died(q)
	q.ring.init(vfio.MemOf(make([]byte, eqeSize)), 0)
	q.uar, q.told = nil, 0
	q.o.UAR.life.drop()
}
