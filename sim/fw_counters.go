package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func init() {
	handle(prm.OpAllocQCounter, onlyInit, 1, allocQCounter)
	handle(prm.OpDeallocQCounter, onlyInit, 1, deallocQCounter).refuses(syndNoCounters, syndOK)
	handle(prm.OpQueryQCounter, onlyInit, 1, queryQCounter).refuses(syndNoCounters, syndOK)
	handle(prm.OpConfigIntModeration, onlyInit, 1, configIntModeration).refuses(syndOK, syndVector)
}

// qCounter is the place of a counter in QUERY_Q_COUNTER's output.
type qCounter int

// Q counters that the engine counts.
const (
	qRxWriteRequests         qCounter = 0x10
	qRxReadRequests          qCounter = 0x18
	qRxAtomicRequests        qCounter = 0x20
	qOutOfBuffer             qCounter = 0x30
	qOutOfSequence           qCounter = 0x38
	qDuplicateRequest        qCounter = 0x40
	qRNRNakRetryErr          qCounter = 0x48
	qPacketSeqErr            qCounter = 0x50
	qImpliedNakSeqErr        qCounter = 0x58
	qLocalAckTimeoutErr      qCounter = 0x60
	qReqRNRRetriesExceeded   qCounter = 0x70
	qRespLocalLength         qCounter = 0x78
	qReqLocalLength          qCounter = 0x7c
	qRespLocalQP             qCounter = 0x80
	qLocalOperation          qCounter = 0x84
	qRespLocalProtection     qCounter = 0x88
	qReqLocalProtection      qCounter = 0x8c
	qRespCQE                 qCounter = 0x90
	qReqCQE                  qCounter = 0x94
	qReqBadResponse          qCounter = 0x9c
	qReqRemoteInvalidRequest qCounter = 0xa0
	qRespRemoteInvalid       qCounter = 0xa4
	qReqRemoteAccess         qCounter = 0xa8
	qRespRemoteAccess        qCounter = 0xac
	qReqRemoteOperation      qCounter = 0xb0
	qReqTransportRetries     qCounter = 0xb4
	qCQOverflow              qCounter = 0xb8
	qRespCQEFlush            qCounter = 0xbc
	qReqCQEFlush             qCounter = 0xc0
)

// qCounters is a set of Q counters, as QUERY_Q_COUNTER gives it.
type qCounters struct {
	uid   uint16
	users int // QPs that count here
	out   prm.QueryQCounterOut
}

// tally adds one to a counter of the QP's set, if it counts in one.
func (q *qp) tally(c qCounter) {
	if q.counters != nil {
		at := q.counters.out[c:]
		binary.BigEndian.PutUint32(at, binary.BigEndian.Uint32(at)+1)
	}
}

func allocQCounter(f *function, c *call) synd {
	n, ok := f.sets.add(&qCounters{uid: uidOf(c)})
	if !ok {
		return syndOutOfCounters
	}
	prm.AsAllocQCounterOut(c.out).SetCounterSetID(uint8(n))
	return syndOK
}

func deallocQCounter(f *function, c *call) synd {
	n := uint32(prm.AsDeallocQCounterIn(c.in).CounterSetID())
	s, ok := f.sets.get(n)
	switch {
	case !ok:
		return syndNoCounters
	case s.users > 0:
		return syndCountersBusy
	}
	f.sets.remove(n)
	return syndOK
}

func queryQCounter(f *function, c *call) synd {
	in := prm.AsQueryQCounterIn(c.in)
	if in.OtherVport() || in.VportNumber() != 0 {
		return syndVport
	}
	s, ok := f.sets.get(uint32(in.CounterSetID()))
	if !ok {
		return syndNoCounters
	}
	copy(c.out, s.out[:])
	if in.Clear() {
		s.out = prm.QueryQCounterOut{}
	}
	return syndOK
}

// configIntModeration keeps the least time between two interrupts of a vector.
// The model does not apply it: an interrupt comes when its event does.
func configIntModeration(f *function, c *call) synd {
	in := prm.AsConfigIntModerationIn(c.in)
	if int(in.IntVector()) >= msixVectors {
		return syndVector
	}
	f.delays[in.IntVector()] = in.MinDelay()
	out := prm.AsConfigIntModerationOut(c.out)
	out.SetIntVector(in.IntVector())
	out.SetMinDelay(f.delays[in.IntVector()])
	return syndOK
}
