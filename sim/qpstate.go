package sim

import (
	"slices"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The states of a QP: which command is possible in which, what it takes from the
// context in its input, and what it takes only when opt_param_mask selects it.

// stateSet is a set of QP states.
type stateSet uint16

func states(l ...prm.QPState) (s stateSet) {
	for _, x := range l {
		s |= 1 << x
	}
	return s
}

func (s stateSet) has(x prm.QPState) bool { return s>>x&1 != 0 }

const anyState = ^stateSet(0)

// transition is one row of the state × command matrix. No source has a command
// that leads from RTS to SQD: the early Linux headers' 0x508 is gone from later
// ones, so SQD_RTS_QP waits for a device that has one.
type transition struct {
	op   prm.Opcode
	from stateSet
	to   prm.QPState
	// take moves the mandatory part of the input's context into the QP's.
	take func(to, from *prm.QPC)
	// optional says what the mask may select, by service type.
	optional optionalParams
}

// optionalParams are the masks of Linux mlx5_ib qp.c (opt_mask). XRC is as RC, except where
// the table has none.
type optionalParams struct{ rc, uc, ud, xrc prm.OptParam }

const (
	optAccess = prm.OptParamRRE | prm.OptParamRAE | prm.OptParamRWE
	optPlace  = prm.OptParamPkeyIndex | prm.OptParamPriPort
)

func (o optionalParams) of(t prm.QPServiceType) prm.OptParam {
	switch t {
	case prm.QPTypeRC:
		return o.rc
	case prm.QPTypeXRC:
		return o.xrc
	case prm.QPTypeUC:
		return o.uc
	}
	return o.ud
}

// withXRC is the usual row, in which XRC takes what RC takes.
func withXRC(rc, uc, ud prm.OptParam) optionalParams { return optionalParams{rc, uc, ud, rc} }

var transitions = []transition{
	{prm.OpRst2InitQP, states(prm.QPStateRst), prm.QPStateInit, takeInit, optionalParams{}},
	{prm.OpInit2InitQP, states(prm.QPStateInit), prm.QPStateInit, nil, withXRC(
		optAccess|optPlace|prm.OptParamLagTxAff,
		prm.OptParamRWE|optPlace|prm.OptParamLagTxAff,
		optPlace|prm.OptParamQKey)},
	{prm.OpInit2RtrQP, states(prm.QPStateInit), prm.QPStateRtr, takeRTR, withXRC(
		prm.OptParamAltAddrPath|optAccess|prm.OptParamPkeyIndex|prm.OptParamLagTxAff,
		prm.OptParamAltAddrPath|prm.OptParamRWE|prm.OptParamPkeyIndex|prm.OptParamLagTxAff,
		prm.OptParamPkeyIndex|prm.OptParamQKey)},
	{prm.OpRtr2RtsQP, states(prm.QPStateRtr), prm.QPStateRts, takeRTS, withXRC(
		prm.OptParamAltAddrPath|optAccess|prm.OptParamPmState|prm.OptParamRNRTimeout,
		prm.OptParamAltAddrPath|prm.OptParamRWE|prm.OptParamPmState,
		prm.OptParamQKey)},
	{prm.OpRts2RtsQP, states(prm.QPStateRts), prm.QPStateRts, nil, withXRC(
		optAccess|prm.OptParamRNRTimeout|prm.OptParamPmState|prm.OptParamAltAddrPath,
		prm.OptParamRWE|prm.OptParamPmState|prm.OptParamAltAddrPath,
		prm.OptParamQKey|prm.OptParamSRQN|prm.OptParamCQNRcv)},
	{prm.OpSqerr2RtsQP, states(prm.QPStateSqer), prm.QPStateRts, nil, withXRC(
		prm.OptParamRNRTimeout|optAccess, prm.OptParamRWE, prm.OptParamQKey)},
	{prm.OpSqdRtsQP, states(prm.QPStateSqd), prm.QPStateRts, nil, optionalParams{
		rc: prm.OptParamRNRTimeout | optAccess, uc: prm.OptParamRWE, ud: prm.OptParamQKey}},
	{prm.Op2ErrQP, anyState, prm.QPStateErr, nil, optionalParams{}},
	{prm.Op2RstQP, anyState, prm.QPStateRst, nil, optionalParams{}},
}

func transitionOf(op prm.Opcode) *transition {
	i := slices.IndexFunc(transitions, func(t transition) bool { return t.op == op })
	return &transitions[i]
}

// takeInit: who may do what here, from which port (Linux mlx5_ib qp.c). PD, CQs and
// pm_state stay as created: Linux repeats them, rdma-core's users leave them 0.
func takeInit(to, from *prm.QPC) {
	takeRRE(to, from)
	takeRWE(to, from)
	takeRAE(to, from)
	to.SetLogAckReqFreq(from.LogAckReqFreq())
	to.SetCounterSetID(from.CounterSetID())
	to.SetQKey(from.QKey())
	p, q := to.PrimaryAddressPath(), from.PrimaryAddressPath()
	p.SetVHCAPortNum(q.VHCAPortNum())
	p.SetPkeyIndex(q.PkeyIndex())
}

// takeRTR: the peer and the way to it. Port and P_Key index stay those of INIT.
func takeRTR(to, from *prm.QPC) {
	to.SetMTU(from.MTU())
	to.SetLogMsgMax(from.LogMsgMax())
	to.SetRemoteQPN(from.RemoteQPN())
	to.SetNextRcvPSN(from.NextRcvPSN())
	to.SetLogRraMax(from.LogRraMax())
	to.SetMinRNRNak(from.MinRNRNak())
	takeAtomics(to, from)
	p := to.PrimaryAddressPath()
	port, pkey := p.VHCAPortNum(), p.PkeyIndex()
	*p = *from.PrimaryAddressPath()
	p.SetVHCAPortNum(port)
	p.SetPkeyIndex(pkey)
}

// takeRTS: what the sending side needs.
func takeRTS(to, from *prm.QPC) {
	to.SetRetryCount(from.RetryCount())
	to.SetRNRRetry(from.RNRRetry())
	to.SetLogSraMax(from.LogSraMax())
	to.SetNextSendPSN(from.NextSendPSN())
	to.SetCurRetryCount(from.RetryCount())
	to.SetCurRNRRetry(from.RNRRetry())
	to.PrimaryAddressPath().SetAckTimeout(from.PrimaryAddressPath().AckTimeout())
}

func takeRRE(to, from *prm.QPC) { to.SetRre(from.Rre()) }
func takeRWE(to, from *prm.QPC) { to.SetRwe(from.Rwe()) }

func takeRAE(to, from *prm.QPC) {
	to.SetRae(from.Rae())
	takeAtomics(to, from)
}

// takeAtomics: no source says when atomic_mode and atomic_like_write_en are
// taken. Linux sends the first with RST2INIT, INIT2RTR and whenever it changes
// rae; NVIDIA's GDS sends the second together with rae.
func takeAtomics(to, from *prm.QPC) {
	to.SetAtomicMode(from.AtomicMode())
	to.SetAtomicLikeWriteEn(from.AtomicLikeWriteEn())
}

// optionalFields is what each bit of the mask takes.
var optionalFields = []struct {
	bit  prm.OptParam
	take func(to, from *prm.QPC)
}{
	{prm.OptParamAltAddrPath, func(to, from *prm.QPC) { *to.SecondaryAddressPath() = *from.SecondaryAddressPath() }},
	{prm.OptParamRRE, takeRRE},
	{prm.OptParamRAE, takeRAE},
	{prm.OptParamRWE, takeRWE},
	{prm.OptParamPkeyIndex, func(to, from *prm.QPC) {
		to.PrimaryAddressPath().SetPkeyIndex(from.PrimaryAddressPath().PkeyIndex())
	}},
	{prm.OptParamQKey, func(to, from *prm.QPC) { to.SetQKey(from.QKey()) }},
	{prm.OptParamRNRTimeout, func(to, from *prm.QPC) { to.SetMinRNRNak(from.MinRNRNak()) }},
	{prm.OptParamPmState, func(to, from *prm.QPC) { to.SetPmState(from.PmState()) }},
	{prm.OptParamLagTxAff, func(to, from *prm.QPC) { to.SetLagTxPortAffinity(from.LagTxPortAffinity()) }},
	{prm.OptParamPriPort, func(to, from *prm.QPC) {
		to.PrimaryAddressPath().SetVHCAPortNum(from.PrimaryAddressPath().VHCAPortNum())
	}},
	{prm.OptParamSRQN, func(to, from *prm.QPC) { to.SetSRQNRmpnXrqn(from.SRQNRmpnXrqn()) }},
	{prm.OptParamCQNRcv, func(to, from *prm.QPC) { to.SetCQNRcv(from.CQNRcv()) }},
	{prm.OptParamCounterSetID, func(to, from *prm.QPC) { to.SetCounterSetID(from.CounterSetID()) }},
}

// next is the context after a transition.
func (t *transition) next(now, in *prm.QPC, mask prm.OptParam) prm.QPC {
	c := *now
	if t.take != nil {
		t.take(&c, in)
	}
	for _, o := range optionalFields {
		if mask&o.bit != 0 {
			o.take(&c, in)
		}
	}
	return c
}
