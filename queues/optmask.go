package queues

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// optRow is what a transition lets opt_param_mask select, by service type.
type optRow struct{ rc, uc, ud, xrc prm.OptParam }

const (
	optRights = prm.OptParamRRE | prm.OptParamRAE | prm.OptParamRWE
	optRTR    = prm.OptParamAltAddrPath | optRights | prm.OptParamPkeyIndex | prm.OptParamLagTxAff
	optRTS    = prm.OptParamAltAddrPath | optRights | prm.OptParamPmState | prm.OptParamRNRTimeout
	optInit   = optRights | prm.OptParamPkeyIndex | prm.OptParamPriPort | prm.OptParamLagTxAff
	optBack   = prm.OptParamRNRTimeout | optRights
)

// optTable is the table opt_mask of Linux qp.c with the bits of qp.h: the
// optional parameters of each transition. What is not optional is taken from the
// context without a bit; RST2INIT, 2ERR and 2RST have nothing optional.
var optTable = map[prm.Opcode]optRow{
	prm.OpInit2InitQP: {
		rc:  optInit,
		uc:  prm.OptParamRWE | prm.OptParamPkeyIndex | prm.OptParamPriPort | prm.OptParamLagTxAff,
		ud:  prm.OptParamPkeyIndex | prm.OptParamQKey | prm.OptParamPriPort,
		xrc: optInit,
	},
	prm.OpInit2RtrQP: {
		rc:  optRTR,
		uc:  prm.OptParamAltAddrPath | prm.OptParamRWE | prm.OptParamPkeyIndex | prm.OptParamLagTxAff,
		ud:  prm.OptParamPkeyIndex | prm.OptParamQKey,
		xrc: optRTR,
	},
	prm.OpRtr2RtsQP: {
		rc:  optRTS,
		uc:  prm.OptParamAltAddrPath | prm.OptParamRWE | prm.OptParamPmState,
		ud:  prm.OptParamQKey,
		xrc: optRTS,
	},
	prm.OpRts2RtsQP: {
		rc:  optRTS,
		uc:  prm.OptParamRWE | prm.OptParamPmState | prm.OptParamAltAddrPath,
		ud:  prm.OptParamQKey | prm.OptParamSRQN | prm.OptParamCQNRcv,
		xrc: optRTS,
	},
	prm.OpSqerr2RtsQP: {rc: optBack, uc: prm.OptParamRWE, ud: prm.OptParamQKey, xrc: optBack},
	prm.OpSqdRtsQP:    {rc: optBack, uc: prm.OptParamRWE, ud: prm.OptParamQKey},
}

// AllowedOptParams is what opt_param_mask may select in this transition of a
// queue pair of this service type.
func AllowedOptParams(op prm.Opcode, st prm.QPServiceType) prm.OptParam {
	r := optTable[op]
	switch st {
	case prm.QPTypeRC:
		return r.rc
	case prm.QPTypeUC:
		return r.uc
	case prm.QPTypeUD:
		return r.ud
	case prm.QPTypeXRC:
		return r.xrc
	}
	return 0
}

// OptMaskError says that a transition was not sent because opt_param_mask
// selects parameters that it does not take.
type OptMaskError struct {
	QPN     uint32
	Opcode  prm.Opcode
	Type    prm.QPServiceType
	Bits    prm.OptParam // the ones at fault
	Allowed prm.OptParam
}

// Error names the bits, and those that would be taken.
func (e *OptMaskError) Error() string {
	allowed := "none is"
	if e.Allowed != 0 {
		allowed = optNames(e.Allowed) + " are"
	}
	return fmt.Sprintf("%v of QP %#x was not sent: opt_param_mask selects %s, which this transition does not take from a queue pair of type %v; %s possible",
		e.Opcode, e.QPN, optNames(e.Bits), e.Type, allowed)
}

// optNames lists the bits of a mask.
func optNames(m prm.OptParam) string {
	var l []string
	for ; m != 0; m &= m - 1 {
		l = append(l, prm.OptParam(1<<bits.TrailingZeros32(uint32(m))).String())
	}
	return strings.Join(l, " ")
}
