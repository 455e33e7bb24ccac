package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Completion queues: the object, its entries and its events. The commands are in
// fw_cq.go. The chip's lock guards all of it.

const (
	cqeBytes   = 64
	counterCQ  = counter24
	cqArmSN    = 28      // sequence number in an arm word
	cqSolicit  = 1 << 24 // arm word: solicited completions only
	cqRecordCI = 0       // consumer index in the doorbell record
)

// armState is what a completion queue waits for.
type armState uint8

const (
	cqFired armState = iota // no event until the next arm
	cqArmed                 // any completion
	cqArmedSolicited
)

// cq is a completion queue.
type cq struct {
	n        uint32
	uid      uint16
	ctx      prm.CQC // as created or modified; QUERY_CQ adds what lives
	eq       *eq     // hears of completions
	buf      buffer
	mem, rec *umem  // user memory of buffer and doorbell record; nil: by address
	dbr      uint64 // bus address of the doorbell record
	logSize  uint
	entry    uint64 // bytes of one entry: 64 or 128
	producer uint32 // 24 bits
	consumer uint32 // 24 bits: as last read from the record or an arm doorbell
	armed    armState
	sn       uint32 // of the last arm
	notified uint32 // producer when the last event was raised
	solicit  uint32 // index after the last solicited or failed completion
	solicits bool   // there has been one
	failed   bool   // overrun or unwritable: nothing is written any more
	users    int    // work queues that complete here
}

func (q *cq) size() uint32 { return 1 << q.logSize }

// postCQE completes something: it writes e, with the queue's owner bit in it,
// and raises the event that the queue was armed for. Solicited is the request's
// wish for an event; a completion with an error always counts as solicited. It
// answers false when the queue has overrun or cannot be written: the queue is
// lost then, and the event says so. The work queues that complete here are the
// engine's to stop.
func (f *function) postCQE(q *cq, e *prm.CQE64, solicited bool) bool {
	if q.failed {
		return false
	}
	if (q.producer-q.consumer)&counterCQ >= q.size() && !q.ctx.Oi() {
		// What the record says is looked up only when it matters.
		ci, ok := f.readRecord(q.dbr + cqRecordCI)
		if !ok {
			f.failCQ(q, prm.CQErrorAccessViolation)
			return false
		}
		q.consumer = ci & counterCQ
		if (q.producer-q.consumer)&counterCQ >= q.size() {
			f.failCQ(q, prm.CQErrorOverrun)
			return false
		}
	}
	at := uint64(q.producer&(q.size()-1)) * q.entry
	if q.ctx.Cc() {
		at = 0
	}
	// A 128-byte entry carries these 64 bytes in its second half.
	at += q.entry - cqeBytes
	e.SetOwner(q.producer>>q.logSize&1 != 0)
	f.cqe = *e
	if !f.dmaPublish(q.buf.addr(at), f.cqe[:]) {
		f.failCQ(q, prm.CQErrorAccessViolation)
		return false
	}
	f.count.Completions++
	q.producer = (q.producer + 1) & counterCQ
	if op := e.Opcode(); solicited || op == prm.CQEReqErr || op == prm.CQERespErr {
		q.solicit, q.solicits = q.producer, true
	}
	f.fireCQ(q)
	return true
}

// fireCQ raises the completion event of an armed queue that holds what it waits
// for. Like that of event queues, arming is a level: mlx5_ib's arm does not look at
// the ring, so it relies on an event for what is there already.
func (f *function) fireCQ(q *cq) {
	switch q.armed {
	case cqArmed:
		if q.producer == q.consumer {
			return
		}
	case cqArmedSolicited:
		// Serial arithmetic: the last solicited one lies behind the consumer.
		if !q.solicits || (q.solicit-q.consumer-1)&counterCQ >= 1<<23 {
			return
		}
	default:
		return
	}
	q.armed = cqFired
	q.notified = q.producer
	ev := &f.scratchEQE
	*ev = prm.EQE{}
	ev.SetEventType(prm.EventCompletion)
	ev.EventData().CompEvent().SetCQNumber(q.n)
	f.postEQE(q.eq, ev)
}

// failCQ ends a queue: its status says why and CQ_ERROR tells of it.
func (f *function) failCQ(q *cq, why prm.CQErrorSyndrome) {
	q.failed = true
	q.ctx.SetStatus(prm.CQStatusOverflow)
	if why == prm.CQErrorAccessViolation {
		q.ctx.SetStatus(prm.CQStatusWriteFail)
	}
	f.count.CQErrors++
	ev := &f.scratchEQE
	*ev = prm.EQE{}
	ev.SetEventType(prm.EventCQError)
	d := ev.EventData().CQError()
	d.SetCQN(q.n)
	d.SetSyndrome(why)
	f.async(ev)
}

// armCQ is the doorbell at UAR 0x20: the arm word, then the queue's number.
func (f *function) armCQ(page uint32, v uint64) {
	word := uint32(v >> 32)
	q, ok := f.cqs.get(uint32(v) & counter24)
	if !ok || q.ctx.UARPage() != page || q.failed {
		f.count.DoorbellsIgnored++
		return
	}
	q.consumer = word & counterCQ
	q.sn = word >> cqArmSN & 3
	q.armed = cqArmed
	if word&cqSolicit != 0 {
		q.armed = cqArmedSolicited
	}
	f.fireCQ(q)
}

// async gives an event to the queue that hears of its type; without one it is
// lost and counted.
func (f *function) async(ev *prm.EQE) {
	q := f.eventEQ(ev.EventType())
	if q == nil {
		f.count.EventsLost++
		return
	}
	f.postEQE(q, ev)
}

// Resource kinds of QP events (Linux device.h, MLX5_EVENT_QUEUE_TYPE_*).
const (
	eventOfQP = 0
	eventOfRQ = 1
)

// qpEvent raises an asynchronous event of a QP: types 0x01 to 0x07, 0x10, 0x11
// and 0x13.
func (f *function) qpEvent(q *qp, t prm.EventType) { f.queueEvent(t, eventOfQP, q.n) }

// srqEvent raises an asynchronous event of a shared receive queue: types 0x12
// and 0x14.
func (f *function) srqEvent(s *srq, t prm.EventType) { f.queueEvent(t, eventOfRQ, s.n) }

func (f *function) queueEvent(t prm.EventType, kind uint8, n uint32) {
	ev := &f.scratchEQE
	*ev = prm.EQE{}
	ev.SetEventType(t)
	d := ev.EventData().QPEvents()
	d.SetType(kind)
	d.SetQPNRqnSqn(n)
	f.async(ev)
}

// dbrOf places a doorbell record: at an address, or in a user memory.
func (f *function) dbrOf(inUMEM bool, id uint32, addr uint64) (dbr uint64, u *umem, s synd) {
	if !inUMEM {
		if addr%8 != 0 {
			return 0, nil, syndRecord
		}
		return addr, nil, syndOK
	}
	u, ok := f.umems.get(id)
	if !ok {
		return 0, nil, syndNoUMEM
	}
	b, ok := u.buffer(addr, 8)
	if !ok || b.addr(0)%8 != 0 {
		return 0, nil, syndRecord
	}
	return b.addr(0), u, syndOK
}

// Fields of user memory that Linux's layouts lack: rdma-core's mlx5_ifc.h has
// them.
func cqcRecordUMEM(c *prm.CQC) uint32 { return binary.BigEndian.Uint32(c[0x04:]) }
func qpcRecordUMEM(c *prm.QPC) uint32 { return binary.BigEndian.Uint32(c[0xe4:]) }
