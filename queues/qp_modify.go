package queues

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// InitAttr is what RST2INIT takes.
type InitAttr struct {
	// PKeyIndex is the entry of the P_Key table.
	PKeyIndex uint16
	// QKey is what datagrams must bear to be received, UD only.
	QKey uint32
}

// RTRAttr is what INIT2RTR takes: the peer and the way to it. A UD queue pair
// needs nothing of it.
type RTRAttr struct {
	RemoteQPN uint32 // 24 bits
	// RecvPSN is the first packet sequence number the peer sends.
	RecvPSN uint32
	// MTU is the path MTU in bytes: 256, 512, 1024, 2048 or 4096.
	MTU int
	// LogMaxMessage is log2 of the largest message; 0 is the device's limit.
	LogMaxMessage uint8
	// LogReadsIn is log2 of the reads and atomics of the peer that are worked on
	// at once.
	LogReadsIn uint8
	// MinRNR is the RNR NAK timer code (IB table 45); 0 is 655 ms.
	MinRNR uint8
	Path   Path
}

// RTSAttr is what RTR2RTS takes. A UD queue pair needs SendPSN alone.
type RTSAttr struct {
	// SendPSN is the first packet sequence number it sends.
	SendPSN uint32
	// LogReads is log2 of its outstanding reads and atomics.
	LogReads uint8
	// Retries and RNRRetries are 0 … 7; 7 RNR retries are endless.
	Retries, RNRRetries uint8
	// AckTimeout is 4.096 µs << n, 0 for ever.
	AckTimeout uint8
}

// Change is what RTS2RTS, INIT2INIT, SQERR2RTS and SQD2RTS may change, selected by
// opt_param_mask.
type Change struct {
	Remote    Access // with RRE, RWE, RAE
	QKey      uint32 // with Q_KEY
	PKeyIndex uint16 // with PKEY_INDEX
	MinRNR    uint8  // with RNR_TIMEOUT
}

// Limits of a queue pair's fields.
const (
	logUDMessage = 12 // Linux: the largest datagram of a UD queue pair, 4 KiB
	logAnyMsg    = 30 // what devices have where they do not say
	ackReqFreq   = 8  // Linux: one acknowledgement request every 256 packets
)

// ToInit is RST2INIT (0x502): port, P_Key and what the peer may do. Afterwards
// receives can be posted.
func (q *QP) ToInit(ctx context.Context, a InitAttr) error {
	if a.QKey != 0 && q.o.Type != UD {
		return refuse(q.opName(prm.OpRst2InitQP), "QKey", vfio.ErrNotSupported, "only datagrams have Q_Keys")
	}
	var c prm.QPC
	q.fillInit(&c, &a)
	return q.Modify(ctx, prm.OpRst2InitQP, &c, 0)
}

func (q *QP) fillInit(c *prm.QPC, a *InitAttr) {
	c.SetSt(q.o.Type.service())
	c.SetPmState(prm.PMStateMigrated)
	c.SetPD(q.o.PD.number)
	c.SetCQNSnd(q.o.SendCQ.cqn)
	c.SetCQNRcv(q.o.RecvCQ.cqn)
	c.SetLogAckReqFreq(ackReqFreq)
	q.setRights(c, q.remote)
	c.SetQKey(a.QKey)
	c.PrimaryAddressPath().SetVHCAPortNum(thePort)
	c.PrimaryAddressPath().SetPkeyIndex(a.PKeyIndex)
}

// setRights writes what the peer may do, with the atomic fields that belong to it.
func (q *QP) setRights(c *prm.QPC, a Access) {
	c.SetRre(a&RemoteRead != 0)
	c.SetRwe(a&RemoteWrite != 0)
	c.SetRae(a&RemoteAtomic != 0)
	q.setAtomics(c)
}

// ToRTR is INIT2RTR (0x503): the queue pair receives from its peer. It reads the
// context back and answers a *ContextError if the device did not take the atomic
// fields.
func (q *QP) ToRTR(ctx context.Context, a RTRAttr) error {
	op := q.opName(prm.OpInit2RtrQP)
	var c prm.QPC
	if q.o.Type == UD {
		c.SetMTU(prm.PathMTU4kBytes)
		c.SetLogMsgMax(logUDMessage)
		c.PrimaryAddressPath().SetVHCAPortNum(thePort)
		return q.Modify(ctx, prm.OpInit2RtrQP, &c, 0)
	}
	if err := q.fillRTR(op, &c, &a); err != nil {
		return err
	}
	if err := q.Modify(ctx, prm.OpInit2RtrQP, &c, 0); err != nil {
		return err
	}
	s, err := q.Query(ctx)
	if err != nil {
		return err
	}
	return q.compare(prm.OpInit2RtrQP, &s)
}

func (q *QP) fillRTR(op string, c *prm.QPC, a *RTRAttr) error {
	mtu, ok := mtuCode(a.MTU)
	caps := &q.dev.Caps
	if a.LogMaxMessage == 0 {
		if a.LogMaxMessage = caps.LogMaxMessage; a.LogMaxMessage == 0 {
			a.LogMaxMessage = logAnyMsg
		}
	}
	switch {
	case !ok:
		return refuse(op, "MTU", vfio.ErrRange, "%d bytes; 256, 512, 1024, 2048 and 4096 are possible", a.MTU)
	case a.RemoteQPN >= 1<<24:
		return refuse(op, "RemoteQPN", vfio.ErrRange, "%#x has more than 24 bits", a.RemoteQPN)
	case a.RecvPSN >= 1<<24:
		return refuse(op, "RecvPSN", vfio.ErrRange, "%#x has more than 24 bits", a.RecvPSN)
	case a.LogMaxMessage > 31 || over(a.LogMaxMessage, caps.LogMaxMessage):
		return refuse(op, "LogMaxMessage", vfio.ErrRange, "2^%d bytes; 2^%d is the most", a.LogMaxMessage, caps.LogMaxMessage)
	case a.LogReadsIn > maxLogReads || caps.known() && a.LogReadsIn > caps.LogReadsIn:
		return refuse(op, "LogReadsIn", vfio.ErrRange, "2^%d reads and atomics at once; 2^%d is the most", a.LogReadsIn, min(caps.LogReadsIn, maxLogReads))
	case a.MinRNR > 31:
		return refuse(op, "MinRNR", vfio.ErrRange, "%d; timer codes go to 31", a.MinRNR)
	}
	if err := a.Path.check(op); err != nil {
		return err
	}
	c.SetMTU(mtu)
	c.SetLogMsgMax(a.LogMaxMessage)
	c.SetRemoteQPN(a.RemoteQPN)
	c.SetNextRcvPSN(a.RecvPSN)
	c.SetLogRraMax(a.LogReadsIn)
	c.SetMinRNRNak(a.MinRNR)
	q.setRights(c, q.remote)
	a.Path.fill(c.PrimaryAddressPath(), caps.Ethernet)
	c.PrimaryAddressPath().SetVHCAPortNum(thePort)
	return nil
}

// maxLogReads is log2 of the most that log_sra_max and log_rra_max can say.
const maxLogReads = 7

// ToRTS is RTR2RTS (0x504): the queue pair sends.
func (q *QP) ToRTS(ctx context.Context, a RTSAttr) error {
	op := q.opName(prm.OpRtr2RtsQP)
	caps := &q.dev.Caps
	switch {
	case a.SendPSN >= 1<<24:
		return refuse(op, "SendPSN", vfio.ErrRange, "%#x has more than 24 bits", a.SendPSN)
	case a.LogReads > maxLogReads || caps.known() && a.LogReads > caps.LogReads:
		return refuse(op, "LogReads", vfio.ErrRange, "2^%d reads and atomics at once; 2^%d is the most", a.LogReads, min(caps.LogReads, maxLogReads))
	case a.Retries > 7 || a.RNRRetries > 7:
		return refuse(op, "Retries", vfio.ErrRange, "%d and %d; 7 is the most", a.Retries, a.RNRRetries)
	case a.AckTimeout > 31:
		return refuse(op, "AckTimeout", vfio.ErrRange, "%d; timer codes go to 31", a.AckTimeout)
	}
	var c prm.QPC
	c.SetNextSendPSN(a.SendPSN)
	if q.o.Type == RC {
		c.SetLogSraMax(a.LogReads)
		c.SetRetryCount(a.Retries)
		c.SetRNRRetry(a.RNRRetries)
		c.PrimaryAddressPath().SetAckTimeout(a.AckTimeout)
	}
	return q.Modify(ctx, prm.OpRtr2RtsQP, &c, 0)
}

// Change is a transition that leaves or brings the queue pair where it works and
// changes what mask selects: INIT2INIT (0x50e), RTS2RTS (0x505), SQERR2RTS (0x506)
// or SQD_RTS (0x50c).
func (q *QP) Change(ctx context.Context, op prm.Opcode, a Change, mask prm.OptParam) error {
	switch op {
	case prm.OpInit2InitQP, prm.OpRts2RtsQP, prm.OpSqerr2RtsQP, prm.OpSqdRtsQP:
	default:
		return refuse(q.opName(op), "", vfio.ErrNotSupported, "INIT2INIT_QP, RTS2RTS_QP, SQERR2RTS_QP and SQD_RTS_QP change attributes")
	}
	if a.Remote&^(RemoteAll|RemoteNone) != 0 {
		return refuse(q.opName(op), "Remote", vfio.ErrRange, "%#x has bits that are no remote rights", uint8(a.Remote))
	}
	now := q.remote
	for _, r := range []struct {
		bit prm.OptParam
		a   Access
	}{{prm.OptParamRRE, RemoteRead}, {prm.OptParamRWE, RemoteWrite}, {prm.OptParamRAE, RemoteAtomic}} {
		if mask&r.bit != 0 {
			now = now&^r.a | a.Remote&r.a
		}
	}
	if now&RemoteAtomic != 0 && q.mode == prm.AtomicModeNone {
		return refuse(q.opName(op), "Remote", vfio.ErrNotSupported, "the queue pair was created without RemoteAtomic and has no atomic mode")
	}
	var c prm.QPC
	q.setRights(&c, now)
	c.SetQKey(a.QKey)
	c.SetMinRNRNak(a.MinRNR)
	c.PrimaryAddressPath().SetPkeyIndex(a.PKeyIndex)
	c.PrimaryAddressPath().SetVHCAPortNum(thePort)
	if err := q.Modify(ctx, op, &c, mask); err != nil {
		return err
	}
	q.remote = now
	return nil
}

// ToSQD would drain the send queue. It answers vfio.ErrNotSupported: no source has
// a command that leads to SQD (Linux has none either); SQD_RTS_QP exists for
// queue pairs that firmware brought there.
func (q *QP) ToSQD(context.Context) error {
	return refuse(fmt.Sprintf("drain the send queue of QP %#x", q.number), "", vfio.ErrNotSupported,
		"no published command leads to state SQD; wait for the completions instead")
}

// ToErr is 2ERR (0x507): outstanding WQEs are flushed, each with a completion.
func (q *QP) ToErr(ctx context.Context) error { return q.Modify(ctx, prm.Op2ErrQP, nil, 0) }

// Reset is 2RST (0x50a): outstanding WQEs and completions nobody has polled are
// dropped, and the rings begin anew.
func (q *QP) Reset(ctx context.Context) error {
	if err := q.Modify(ctx, prm.Op2RstQP, nil, 0); err != nil {
		return err
	}
	q.o.SendCQ.Forget(q.number)
	q.o.RecvCQ.Forget(q.number)
	q.SQ.Reset()
	q.SQ.SetPeerAtomic(0)
	if q.RQ != nil {
		q.RQ.Reset()
	}
	q.link = Link{}
	return nil
}

func (q *QP) opName(op prm.Opcode) string { return fmt.Sprintf("%v of QP %#x", op, q.number) }

// modifyBytes is the size of the commands with a context; 2ERR and 2RST have none.
const modifyBytes = prm.Rst2InitQPInSize

// Modify sends any transition with the context c; of it the device takes what is
// mandatory in this transition, and of the optional parameters those that mask
// selects. It is the way to fields that the other methods do not offer.
//
// Refused before anything is sent: a transition that the state × command matrix
// forbids (*StateError; the device is asked for the state before, in case it moved
// by itself), mask bits that the transition does not take (*OptMaskError), a queue
// pair that is destroyed (vfio.ErrClosed).
func (q *QP) Modify(ctx context.Context, op prm.Opcode, c *prm.QPC, mask prm.OptParam) error {
	if !q.life.alive() {
		return refuse(q.opName(op), "", vfio.ErrClosed, "the queue pair was destroyed")
	}
	st := q.o.Type.service()
	if allowed := AllowedOptParams(op, st); mask&^allowed != 0 {
		return &OptMaskError{QPN: q.number, Opcode: op, Type: st, Bits: mask &^ allowed, Allowed: allowed}
	}
	to, _, ok := QPTransition(q.State(), op)
	if !ok {
		if _, err := q.Query(ctx); err != nil {
			return err
		}
		var why string
		if to, why, ok = QPTransition(q.State(), op); !ok {
			return &StateError{QPN: q.number, Opcode: op, State: q.State(), Why: why}
		}
	}
	size := modifyBytes
	if c == nil {
		size = prm.QP2ErrInSize
	}
	in, out := make([]byte, size), make([]byte, prm.Rst2InitQPOutSize)
	cmd := prm.AsQP2ErrIn(in)
	cmd.SetOpcode(op)
	cmd.SetQPN(q.number)
	if c != nil {
		m := prm.AsRst2InitQPIn(in)
		m.SetOptParamMask(uint32(mask))
		*m.QPC() = *c
	}
	if err := q.dev.exec(ctx, fmt.Sprintf("bring QP %#x from %v to %v", q.number, q.State(), to), in, out); err != nil {
		return q.refused(ctx, op, err)
	}
	q.state.Store((q.state.Load()+0x100)&^0xff | uint32(to))
	return nil
}

// refused looks at the state after a transition that failed: the queue pair may
// have moved by itself, and then that is the reason.
func (q *QP) refused(ctx context.Context, op prm.Opcode, err error) error {
	if !errors.Is(err, cmdif.Status(prm.StatusBadQPState)) {
		return err
	}
	was := q.State()
	if _, qerr := q.Query(ctx); qerr != nil {
		return err
	}
	if _, why, ok := QPTransition(q.State(), op); !ok && q.State() != was {
		return fmt.Errorf("%w: the device had moved it to %v: %s", err, q.State(), why)
	}
	return err
}
