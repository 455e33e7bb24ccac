package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

var qpStates = []prm.QPState{prm.QPStateRst, prm.QPStateInit, prm.QPStateRtr, prm.QPStateRts,
	prm.QPStateSqer, prm.QPStateErr, prm.QPStateSqd}

// TestQPMatrix: every command in every state, through the command queue. What
// is not possible is refused with BAD_QP_STATE and leaves the QP where it was.
func TestQPMatrix(t *testing.T) {
	const no = prm.QPState(0xff)
	rst, ini, rtr, rts, sqer, err, sqd := prm.QPStateRst, prm.QPStateInit, prm.QPStateRtr, prm.QPStateRts,
		prm.QPStateSqer, prm.QPStateErr, prm.QPStateSqd
	// Columns: RST, INIT, RTR, RTS, SQER, ERR, SQD; the state after the command.
	matrix := map[prm.Opcode][7]prm.QPState{
		prm.OpRst2InitQP:  {ini, no, no, no, no, no, no},
		prm.OpInit2InitQP: {no, ini, no, no, no, no, no},
		prm.OpInit2RtrQP:  {no, rtr, no, no, no, no, no},
		prm.OpRtr2RtsQP:   {no, no, rts, no, no, no, no},
		prm.OpRts2RtsQP:   {no, no, no, rts, no, no, no},
		prm.OpSqerr2RtsQP: {no, no, no, no, rts, no, no},
		prm.OpSqdRtsQP:    {no, no, no, no, no, no, rts},
		prm.Op2ErrQP:      {err, err, err, err, err, err, err},
		prm.Op2RstQP:      {rst, rst, rst, rst, rst, rst, rst},
		prm.OpQueryQP:     {rst, ini, rtr, rts, sqer, err, sqd},
	}
	r := newRaw(t, Options{}).to(phaseInit)
	refused := 0
	for op, row := range matrix {
		for i, from := range qpStates {
			n := r.createQP(prm.QPTypeUC, nil)
			r.qpTo(n, from)
			require.Equal(t, from, r.qpc(n).State())
			in := r.qpStep(op, n)
			if row[i] == no {
				s, y := r.status(in, 16)
				require.Equal(t, prm.StatusBadQPState, s, "%s in %s", op, from)
				require.Equal(t, syndQPState, y)
				require.Equal(t, from, r.qpc(n).State(), "%s in %s", op, from)
				refused++
			} else {
				r.ok(in, prm.CommandByOpcode(op).MinOut)
				require.Equal(t, row[i], r.qpc(n).State(), "%s in %s", op, from)
			}
			r.ok(number(prm.OpDestroyQP, n), 16)
		}
	}
	require.Equal(t, 7*6, refused)
	require.Zero(t, r.chip.State(0).QPs)
}

// TestOptionalParameters: each bit of the mask takes its field and no other, and
// a bit that the transition does not take for the service type is refused.
func TestOptionalParameters(t *testing.T) {
	// What each bit takes, as a value to look for.
	look := map[prm.OptParam]func(x *prm.QPC) uint32{
		prm.OptParamAltAddrPath: func(x *prm.QPC) uint32 { return uint32(x.SecondaryAddressPath().Rlid()) },
		prm.OptParamRRE:         func(x *prm.QPC) uint32 { return bit(x.Rre()) },
		prm.OptParamRAE:         func(x *prm.QPC) uint32 { return bit(x.Rae()) },
		prm.OptParamRWE:         func(x *prm.QPC) uint32 { return bit(x.Rwe()) },
		prm.OptParamPkeyIndex:   func(x *prm.QPC) uint32 { return uint32(x.PrimaryAddressPath().PkeyIndex()) },
		prm.OptParamQKey:        func(x *prm.QPC) uint32 { return x.QKey() },
		prm.OptParamRNRTimeout:  func(x *prm.QPC) uint32 { return uint32(x.MinRNRNak()) },
		prm.OptParamPmState:     func(x *prm.QPC) uint32 { return uint32(x.PmState()) },
		prm.OptParamLagTxAff:    func(x *prm.QPC) uint32 { return uint32(x.LagTxPortAffinity()) },
		prm.OptParamPriPort:     func(x *prm.QPC) uint32 { return uint32(x.PrimaryAddressPath().VHCAPortNum()) },
		prm.OptParamSRQN:        func(x *prm.QPC) uint32 { return x.SRQNRmpnXrqn() },
		prm.OptParamCQNRcv:      func(x *prm.QPC) uint32 { return x.CQNRcv() },
	}
	access := prm.OptParamRRE | prm.OptParamRAE | prm.OptParamRWE
	allowed := map[prm.Opcode]map[prm.QPServiceType]prm.OptParam{
		prm.OpRst2InitQP: {prm.QPTypeRC: 0, prm.QPTypeUC: 0, prm.QPTypeUD: 0},
		prm.OpInit2InitQP: {
			prm.QPTypeRC: access | prm.OptParamPkeyIndex | prm.OptParamPriPort | prm.OptParamLagTxAff,
			prm.QPTypeUC: prm.OptParamRWE | prm.OptParamPkeyIndex | prm.OptParamPriPort | prm.OptParamLagTxAff,
			prm.QPTypeUD: prm.OptParamPkeyIndex | prm.OptParamQKey | prm.OptParamPriPort},
		prm.OpInit2RtrQP: {
			prm.QPTypeRC: prm.OptParamAltAddrPath | access | prm.OptParamPkeyIndex | prm.OptParamLagTxAff,
			prm.QPTypeUC: prm.OptParamAltAddrPath | prm.OptParamRWE | prm.OptParamPkeyIndex | prm.OptParamLagTxAff,
			prm.QPTypeUD: prm.OptParamPkeyIndex | prm.OptParamQKey},
		prm.OpRtr2RtsQP: {
			prm.QPTypeRC: prm.OptParamAltAddrPath | access | prm.OptParamPmState | prm.OptParamRNRTimeout,
			prm.QPTypeUC: prm.OptParamAltAddrPath | prm.OptParamRWE | prm.OptParamPmState,
			prm.QPTypeUD: prm.OptParamQKey},
		prm.OpRts2RtsQP: {
			prm.QPTypeRC: access | prm.OptParamRNRTimeout | prm.OptParamPmState | prm.OptParamAltAddrPath,
			prm.QPTypeUC: prm.OptParamRWE | prm.OptParamPmState | prm.OptParamAltAddrPath,
			prm.QPTypeUD: prm.OptParamQKey | prm.OptParamSRQN | prm.OptParamCQNRcv},
		prm.OpSqerr2RtsQP: {
			prm.QPTypeRC: prm.OptParamRNRTimeout | access, prm.QPTypeUC: prm.OptParamRWE, prm.QPTypeUD: prm.OptParamQKey},
		prm.OpSqdRtsQP: {
			prm.QPTypeRC: prm.OptParamRNRTimeout | access, prm.QPTypeUC: prm.OptParamRWE, prm.QPTypeUD: prm.OptParamQKey},
	}
	start := map[prm.Opcode]prm.QPState{prm.OpRst2InitQP: prm.QPStateRst, prm.OpInit2InitQP: prm.QPStateInit,
		prm.OpInit2RtrQP: prm.QPStateInit, prm.OpRtr2RtsQP: prm.QPStateRtr, prm.OpRts2RtsQP: prm.QPStateRts,
		prm.OpSqerr2RtsQP: prm.QPStateSqer, prm.OpSqdRtsQP: prm.QPStateSqd}
	r := newRaw(t, Options{}).to(phaseInit)
	r.data()
	srqs := [2]uint32{}
	for i := range srqs {
		srqs[i] = binary.BigEndian.Uint32(r.ok(r.srqInput(prm.OpCreateSRQ, 2), 16)[8:])
	}
	other := r.createCQ(3, nil)
	taken := 0
	for op, types := range allowed {
		for st, mask := range types {
			for b := range 32 {
				opt := prm.OptParam(1) << b
				n := r.createQP(st, func(x *prm.QPC) {
					if st == prm.QPTypeUD {
						x.SetRQType(prm.RQTypeSRQ)
						x.SetSRQNRmpnXrqn(srqs[0])
					}
				})
				r.qpTo(n, start[op])
				before := r.qpc(n)
				in := r.qpStep(op, n)
				fillOptional(prm.AsRst2InitQPIn(in).QPC(), other.n, srqs[1])
				if op == prm.OpInit2RtrQP { // mandatory there, and not a choice of the mask
					prm.AsRst2InitQPIn(in).QPC().SetMinRNRNak(before.MinRNRNak())
				}
				prm.AsRst2InitQPIn(in).SetOptParamMask(uint32(opt))
				if mask&opt == 0 {
					_, y := r.status(in, 16)
					require.Equal(t, syndQPOptional, y, "%s %s bit %d", op, st, b)
				} else {
					r.ok(in, 16)
					after := r.qpc(n)
					for o, get := range look {
						if op == prm.OpInit2RtrQP && o == prm.OptParamRNRTimeout {
							continue
						}
						want := get(before)
						if o == opt {
							want = get(prm.AsRst2InitQPIn(in).QPC())
							require.True(t, want != get(before) || o == prm.OptParamPriPort, "%s: nothing to see for %s", op, o)
							taken++
						}
						require.Equal(t, want, get(after), "%s %s: mask %s, field of %s", op, st, opt, o)
					}
				}
				r.ok(number(prm.OpDestroyQP, n), 16)
			}
		}
	}
	require.Equal(t, 59, taken, "every bit of every row was seen to work")
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// fillOptional sets every field that a mask may take to something new.
func fillOptional(x *prm.QPC, cqn, srqn uint32) {
	x.SecondaryAddressPath().SetRlid(0x4321)
	x.SetRre(true)
	x.SetRae(true)
	x.SetRwe(true)
	x.SetAtomicMode(prm.AtomicModeUpTo8B)
	x.PrimaryAddressPath().SetPkeyIndex(5)
	x.SetQKey(0x1234567)
	x.SetMinRNRNak(17)
	x.SetPmState(prm.PMStateArmed)
	x.SetLagTxPortAffinity(2)
	x.SetSRQNRmpnXrqn(srqn)
	x.SetCQNRcv(cqn)
}

// TestQPFields: what each transition takes comes back from QUERY_QP, the fields
// of others stay, and 2RST goes back to what was created.
func TestQPFields(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	n := r.createQP(prm.QPTypeRC, func(x *prm.QPC) { x.SetUserIndex(0xabcdef) })
	created := r.qpc(n)

	in := r.qpStep(prm.OpRst2InitQP, n)
	x := prm.AsRst2InitQPIn(in).QPC()
	x.SetRwe(true)
	x.SetAtomicMode(prm.AtomicModeUpTo256B)
	x.SetAtomicLikeWriteEn(true)
	x.SetLogAckReqFreq(8)
	x.PrimaryAddressPath().SetPkeyIndex(3)
	x.SetPD(0x777) // of CREATE_QP
	x.SetCQNSnd(0x777)
	r.ok(in, 16)
	c := r.qpc(n)
	require.True(t, c.Rwe() && !c.Rre() && c.AtomicLikeWriteEn())
	require.Equal(t, prm.AtomicModeUpTo256B, c.AtomicMode())
	require.EqualValues(t, 8, c.LogAckReqFreq())
	require.EqualValues(t, 3, c.PrimaryAddressPath().PkeyIndex())
	require.Equal(t, created.PD(), c.PD())
	require.Equal(t, created.CQNSnd(), c.CQNSnd())
	require.EqualValues(t, 0xabcdef, c.UserIndex())

	in = r.qpStep(prm.OpInit2RtrQP, n)
	x = prm.AsRst2InitQPIn(in).QPC()
	x.SetRemoteQPN(0x424242)
	x.SetNextRcvPSN(0x111111)
	x.SetLogRraMax(3)
	x.SetMinRNRNak(12)
	x.SetRwe(false) // optional, and not selected
	x.SetRetryCount(5)
	x.SetAtomicMode(prm.AtomicModeUpTo8B)
	x.PrimaryAddressPath().SetRlid(0x55)
	x.PrimaryAddressPath().SetPkeyIndex(9) // optional, and not selected
	r.ok(in, 16)
	c = r.qpc(n)
	require.EqualValues(t, 0x424242, c.RemoteQPN())
	require.EqualValues(t, 0x111111, c.NextRcvPSN())
	require.EqualValues(t, 3, c.LogRraMax())
	require.EqualValues(t, 12, c.MinRNRNak())
	require.True(t, c.Rwe())
	require.Zero(t, c.RetryCount())
	require.Equal(t, prm.AtomicModeUpTo8B, c.AtomicMode())
	require.False(t, c.AtomicLikeWriteEn())
	require.EqualValues(t, 0x55, c.PrimaryAddressPath().Rlid())
	require.EqualValues(t, 3, c.PrimaryAddressPath().PkeyIndex())

	in = r.qpStep(prm.OpRtr2RtsQP, n)
	x = prm.AsRst2InitQPIn(in).QPC()
	x.SetLogSraMax(2)
	x.SetNextSendPSN(0x222222)
	x.SetRNRRetry(6)
	x.SetRemoteQPN(1)
	x.PrimaryAddressPath().SetRlid(0x66)
	r.ok(in, 16)
	c = r.qpc(n)
	require.EqualValues(t, 2, c.LogSraMax())
	require.EqualValues(t, 0x222222, c.NextSendPSN())
	require.EqualValues(t, 7, c.RetryCount())
	require.EqualValues(t, 6, c.RNRRetry())
	require.EqualValues(t, 0x424242, c.RemoteQPN())
	require.EqualValues(t, 0x55, c.PrimaryAddressPath().Rlid())
	require.EqualValues(t, 14, c.PrimaryAddressPath().AckTimeout())

	r.ok(number(prm.Op2RstQP, n), 16)
	require.Equal(t, created, r.qpc(n))
}
