package queues

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// QPStatus is what firmware says about a queue pair (QUERY_QP).
type QPStatus struct {
	State        prm.QPState
	Type         prm.QPServiceType
	PD           uint32
	SendCQ       uint32
	RecvCQ       uint32
	SRQ          uint32 // 0 without one
	UAR          uint32
	LogSQ, LogRQ uint8
	RecvStride   int // bytes, 0 without a receive queue
	Record       uint64
	MTU          int
	LogMessage   uint8
	RemoteQPN    uint32
	QKey         uint32
	PKeyIndex    uint16
	Path         Path
	Remote       Access
	AtomicMode   prm.AtomicMode
	AtomicWrites bool
	LogReads     uint8
	LogReadsIn   uint8
	Retries      uint8
	RNRRetries   uint8
	MinRNR       uint8
	AckTimeout   uint8
	SendPSN      uint32 // of the next packet
	RecvPSN      uint32
	LastAckedPSN uint32
	CrossMaster  bool
	CrossSlave   bool
	// Counters of the queues: what hardware has worked off, and what software has
	// posted as far as hardware knows.
	SQHardware, SQSoftware uint16
	RQHardware, RQSoftware uint32
	// Context is all of it, for decoders.
	Context prm.QPC
}

// Query reads the context from firmware (opcode 0x50b) and takes note of the
// state. It is safe for concurrent use, also beside a transition.
func (q *QP) Query(ctx context.Context) (QPStatus, error) {
	op := fmt.Sprintf("query QP %#x", q.number)
	if !q.life.alive() {
		return QPStatus{}, refuse(op, "", vfio.ErrClosed, "the queue pair was destroyed")
	}
	was := q.state.Load()
	in, out := make([]byte, prm.QueryQPInSize), make([]byte, prm.QueryQPOutSize)
	cmd := prm.AsQueryQPIn(in)
	cmd.SetOpcode(prm.OpQueryQP)
	cmd.SetQPN(q.number)
	if err := q.dev.exec(ctx, op, in, out); err != nil {
		return QPStatus{}, err
	}
	c := prm.AsQueryQPOut(out).QPC()
	// What a transition wrote while this answer was on its way is newer.
	q.state.CompareAndSwap(was, was&^0xff|uint32(c.State()))
	s := QPStatus{
		State: c.State(), Type: c.St(), PD: c.PD(), SendCQ: c.CQNSnd(), RecvCQ: c.CQNRcv(), UAR: c.UARPage(),
		LogSQ: c.LogSQSize(), LogRQ: c.LogRQSize(), Record: c.DBRAddr(),
		MTU: mtuBytes(c.MTU()), LogMessage: c.LogMsgMax(), RemoteQPN: c.RemoteQPN(), QKey: c.QKey(),
		PKeyIndex: c.PrimaryAddressPath().PkeyIndex(), Path: pathOf(c.PrimaryAddressPath(), q.dev.Caps.Ethernet),
		AtomicMode: c.AtomicMode(), AtomicWrites: c.AtomicLikeWriteEn(),
		LogReads: c.LogSraMax(), LogReadsIn: c.LogRraMax(), Retries: c.RetryCount(), RNRRetries: c.RNRRetry(),
		MinRNR: c.MinRNRNak(), AckTimeout: c.PrimaryAddressPath().AckTimeout(),
		SendPSN: c.NextSendPSN(), RecvPSN: c.NextRcvPSN(), LastAckedPSN: c.LastAckedPSN(),
		CrossMaster: c.CdMaster(), CrossSlave: c.CdSlaveSend(),
		SQHardware: c.HwSQWQEBBCounter(), SQSoftware: c.SwSQWQEBBCounter(), RQHardware: c.HwRQCounter(), RQSoftware: c.SwRQCounter(),
		Context: *c,
	}
	for i, have := range []bool{c.Rre(), c.Rwe(), c.Rae()} {
		if have {
			s.Remote |= RemoteRead << i
		}
	}
	switch c.RQType() {
	case prm.RQTypeSRQ:
		s.SRQ = c.SRQNRmpnXrqn()
	case prm.RQTypeRQ:
		s.RecvStride = wqeUnit << c.LogRQStride()
	}
	return s, nil
}
