package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// QPType is the transport service of a queue pair.
type QPType uint8

// Services.
const (
	// RC is reliable connected: one peer, everything is possible.
	RC QPType = iota
	// UD is unreliable datagram: any number of peers, sends only.
	UD
)

// String names it as InfiniBand does.
func (t QPType) String() string { return t.service().String() }

func (t QPType) service() prm.QPServiceType {
	if t == UD {
		return prm.QPTypeUD
	}
	return prm.QPTypeRC
}

// QPOptions describe a queue pair to be created.
type QPOptions struct {
	// Name appears in messages and names the memory.
	Name string
	Type QPType
	// PD is the protection domain whose memory keys it may use.
	PD *PD
	// SendCQ and RecvCQ take its completions; a nil RecvCQ is SendCQ.
	SendCQ, RecvCQ *CQ
	// UAR carries its doorbell. It cannot be freed before the queue pair is destroyed.
	UAR *UAR
	// LogSQ is log2 of the 64-byte blocks of the send queue, up to 15; 0 is 6.
	LogSQ uint8
	// LogRQ is log2 of the WQEs of the receive queue, up to 15; 0 is 6. It is
	// raised until the queue fills 64 bytes, since the send queue begins there.
	// RecvSGEs is the number of pieces of a receive WQE; 0 is 4.
	LogRQ    uint8
	RecvSGEs int
	// NoRecv makes it without a receive queue.
	NoRecv bool
	// SRQ, if set, is where it takes receive WQEs from, instead of a queue of its
	// own.
	SRQ *SRQ
	// Remote are the operations a peer may request, RC only; 0 is all of them,
	// RemoteNone none. Memory keys decide about the memory.
	Remote Access
	// AtomicMode is the largest atomic the queue pair takes as a responder; 0 is
	// the one Linux would choose from the capabilities.
	AtomicMode prm.AtomicMode
	// NoAtomicWrites leaves atomic_like_write_en off. Without it, RDMA WRITEs
	// that arrive at an RC queue pair are carried out atomically up to the size
	// of AtomicMode, wherever writes and atomics are allowed and the device has
	// atomics.
	NoAtomicWrites bool
	// PSN is the first packet sequence number it sends, 24 bits; 0 is a random
	// one.
	PSN uint32
	// CrossMaster and CrossSlave let it enable others by SEND_EN, and wait to be
	// enabled (cd_master, cd_slave_send).
	CrossMaster, CrossSlave bool
	// BlueFlame writes short WQEs to the doorbell page; the UAR must be this
	// queue pair's alone (see SendQueueConfig).
	BlueFlame bool
}

// RemoteNone is no remote right at all, where 0 would be all of them.
const RemoteNone Access = 1 << 7

const (
	defaultLogSQ    = 6
	defaultLogRQ    = 6
	defaultRecvSGEs = 4
)

// QP is a queue pair: a send queue and a receive queue. It belongs to one caller at a time,
// together with its CQs and its SRQ; Query may be called by any.
type QP struct {
	// SQ is the send queue.
	SQ *SendQueue
	// RQ is the receive queue; nil with an SRQ or without receives.
	RQ *RecvQueue

	dev    *Dev
	o      QPOptions
	number uint32
	mem    queueMemory
	state  atomic.Uint32 // low byte: prm.QPState, as far as commands tell; above: transitions
	remote Access
	mode   prm.AtomicMode
	writes bool // atomic_like_write_en
	link   Link
	life   refs
}

// CreateQP allocates the rings, receive queue first, and the doorbell record, and
// hands them to firmware (opcode 0x500). The queue pair is in state RESET. It
// reads the context back (QUERY_QP) and answers a *ContextError, with nothing
// left behind, if the device did not take atomic_like_write_en or atomic_mode.
func (d *Dev) CreateQP(ctx context.Context, o QPOptions) (*QP, error) {
	op := fmt.Sprintf("create the %v queue pair %s", o.Type, o.Name)
	p, err := d.planQP(op, &o)
	if err != nil {
		return nil, err
	}
	q := &QP{dev: d, o: o}
	if o.Type == RC {
		q.remote = o.Remote
		if o.Remote&RemoteAtomic != 0 {
			q.mode = o.AtomicMode
		}
		q.writes = q.mode != prm.AtomicModeNone && o.Remote&RemoteWrite != 0 && !o.NoAtomicWrites
	}
	if err := q.hold(op); err != nil {
		return nil, err
	}
	if err := q.create(ctx, op, p); err != nil {
		q.drop()
		return nil, err
	}
	if err := q.confirm(ctx); err != nil {
		return nil, errors.Join(err, q.undo(ctx))
	}
	return q, nil
}

// undo destroys a queue pair whose creation cannot be finished. If even that
// gets no answer, the memory stays until the device is reset.
func (q *QP) undo(ctx context.Context) error {
	// The caller's context may be why the creation failed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonLimit)
	defer cancel()
	err := q.Destroy(ctx)
	if err != nil && q.life.end() {
		q.dev.orphan(q.mem.ring)
		q.dev.orphan(q.mem.record)
		q.detach((*CQRing).Detach)
	}
	return err
}

func (q *QP) create(ctx context.Context, op string, p qpPlan) error {
	d := q.dev
	mem, err := d.allocQueue(q.o.Name+" QP", p.rqBytes+p.sqBytes)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	q.mem = mem
	if err := q.makeRings(p); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", op, err), mem.free())
	}
	in, out := q.createInput(p), make([]byte, prm.CreateQPOutSize)
	if err := d.exec(ctx, op, in, out); err != nil {
		return d.undo(err, mem)
	}
	q.number = prm.AsCreateQPOut(out).QPN()
	if q.o.PSN == 0 {
		q.o.PSN = rand.Uint32N(1 << 24)
	}
	q.attach()
	d.born(q)
	return nil
}

// makeRings makes the software side of the queues, before the number is known.
func (q *QP) makeRings(p qpPlan) (err error) {
	if p.rqBytes > 0 {
		q.RQ, err = NewRecvQueue(RecvQueueConfig{
			Ring: q.mem.ring.Mem.Slice(0, p.rqBytes), Record: q.mem.record.Mem, LogSize: p.logRQ, LogStride: p.stride,
		})
		if err != nil {
			return err
		}
	}
	q.SQ, err = NewSendQueue(SendQueueConfig{
		Ring: q.mem.ring.Mem.Slice(p.rqBytes, p.sqBytes), Record: q.mem.record.Mem,
		LogWQEBB: p.logSQ, MaxWQE: int(q.dev.Caps.MaxSendWQE), UAR: q.o.UAR,
		BlueFlame: q.o.BlueFlame, BlueFlameSize: q.dev.Caps.BlueFlameSize,
	})
	return err
}

// attach gives the queues their number and makes them complete on their CQs.
func (q *QP) attach() {
	q.SQ.qpn8 = uint64(q.number) << 8
	q.o.SendCQ.AttachSend(q.SQ)
	if q.RQ != nil {
		q.RQ.qpn = q.number
		q.o.RecvCQ.AttachRecv(q.number, q.RQ)
	}
	if q.o.SRQ != nil {
		q.o.RecvCQ.AttachShared(q.number, &q.o.SRQ.SRQRing)
	}
}

func (q *QP) createInput(p qpPlan) []byte {
	shift, pas := q.mem.pages()
	in := withPages(prm.CreateQPInSize, pas)
	cmd := prm.AsCreateQPIn(in)
	cmd.SetOpcode(prm.OpCreateQP)
	c := cmd.QPC()
	c.SetSt(q.o.Type.service())
	c.SetPmState(prm.PMStateMigrated)
	c.SetPD(q.o.PD.number)
	c.SetLogSQSize(p.logSQ)
	switch {
	case q.o.SRQ != nil:
		c.SetRQType(prm.RQTypeSRQ)
		c.SetSRQNRmpnXrqn(q.o.SRQ.number)
	case q.o.NoRecv:
		c.SetRQType(prm.RQTypeZeroLength)
	default:
		c.SetRQType(prm.RQTypeRQ)
		c.SetLogRQSize(p.logRQ)
		c.SetLogRQStride(p.stride - 4)
	}
	if q.dev.Caps.TimeStamps {
		c.SetTsFormat(prm.TSFormatDefault)
	}
	if q.dev.Caps.CQEVersion > 0 {
		c.SetUserIndex(noUserIndex)
	}
	c.SetUARPage(q.o.UAR.index)
	c.SetLogPageSize(shift - adapterPageShift)
	c.SetCQNSnd(q.o.SendCQ.cqn)
	c.SetCQNRcv(q.o.RecvCQ.cqn)
	c.SetDBRAddr(q.mem.record.IOVA())
	c.SetCdMaster(q.o.CrossMaster)
	c.SetCdSlaveSend(q.o.CrossSlave)
	q.setAtomics(c)
	return in
}

// noUserIndex is the cookie of a queue pair that is found by its number (Linux
// MLX5_IB_DEFAULT_UIDX).
const noUserIndex = 0xffffff

// setAtomics writes what makes atomics and atomic writes work. No source says
// with which command a device takes these fields: Linux writes atomic_mode with
// every transition that carries rae, NVIDIA's GPU libraries set
// atomic_like_write_en together with rae. So they are in each of these commands.
func (q *QP) setAtomics(c *prm.QPC) {
	c.SetAtomicMode(q.mode)
	c.SetAtomicLikeWriteEn(q.writes)
}

// Number is the QPN that firmware gave, 24 bits.
func (q *QP) Number() uint32 { return q.number }

// Name is the name it was created with.
func (q *QP) Name() string { return q.o.Name }

// Type is its service.
func (q *QP) Type() QPType { return q.o.Type }

// SendCQ and RecvCQ are where it completes, SRQ where it takes receive WQEs from.
func (q *QP) SendCQ() *CQ { return q.o.SendCQ }

// RecvCQ is where its receives complete.
func (q *QP) RecvCQ() *CQ { return q.o.RecvCQ }

// SRQ is the shared receive queue, nil without one.
func (q *QP) SRQ() *SRQ { return q.o.SRQ }

// AtomicMode is the largest atomic it takes as a responder.
func (q *QP) AtomicMode() prm.AtomicMode { return q.mode }

// AtomicWrites tells whether writes that arrive are carried out atomically.
func (q *QP) AtomicWrites() bool { return q.writes }

// PSN is the first packet sequence number it sends.
func (q *QP) PSN() uint32 { return q.o.PSN }

// State is the state that the last command or Query found. The device may have
// moved it to an error state since. It is safe for concurrent use.
func (q *QP) State() prm.QPState { return prm.QPState(q.state.Load() & 0xff) }

// Destroy takes the queue pair from firmware (opcode 0x501), drops its completions
// that nobody has polled, and frees its memory. If firmware refuses, the memory
// stays: the device may use it until it is reset; Release frees it then. A second
// call answers ErrDestroyed.
func (q *QP) Destroy(ctx context.Context) error {
	op := fmt.Sprintf("destroy the queue pair %s (QPN %#x)", q.o.Name, q.number)
	err := q.life.destroy(q.dev, op, func() error {
		in, out := make([]byte, prm.DestroyQPInSize), make([]byte, prm.DestroyQPOutSize)
		cmd := prm.AsDestroyQPIn(in)
		cmd.SetOpcode(prm.OpDestroyQP)
		cmd.SetQPN(q.number)
		return q.dev.exec(ctx, op, in, out)
	})
	if err != nil {
		return err
	}
	q.detach((*CQRing).Detach)
	return q.mem.free()
}

// Destroyed tells whether firmware has given the queue pair back, or Release was
// called. It is safe for concurrent use.
func (q *QP) Destroyed() bool { return !q.life.alive() }

// Release frees the memory without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (q *QP) Release() error {
	_, err := q.abandon(true)
	return err
}

// detach takes the queues from their CQs and closes them.
func (q *QP) detach(from func(*CQRing, uint32)) {
	from(&q.o.SendCQ.CQRing, q.number)
	from(&q.o.RecvCQ.CQRing, q.number)
	q.SQ.close()
	if q.RQ != nil {
		q.RQ.close()
	}
	q.drop()
	q.dev.died(q)
}
