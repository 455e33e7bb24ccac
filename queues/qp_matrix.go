package queues

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// QPTransitions are the commands that change a queue pair's state, in the order
// of the columns of the matrix.
var QPTransitions = [...]prm.Opcode{
	prm.OpRst2InitQP, prm.OpInit2InitQP, prm.OpInit2RtrQP, prm.OpRtr2RtsQP, prm.OpRts2RtsQP,
	prm.OpSqerr2RtsQP, prm.OpSqdRtsQP, prm.Op2ErrQP, prm.Op2RstQP,
}

// QPStates are the states, in the order of the rows of the matrix.
var QPStates = [...]prm.QPState{
	prm.QPStateRst, prm.QPStateInit, prm.QPStateRtr, prm.QPStateRts,
	prm.QPStateSqer, prm.QPStateSqd, prm.QPStateErr, prm.QPStateSuspended,
}

// cell is a state and a command: where the command leads, or why it must not be
// sent.
type cell struct {
	to  prm.QPState
	why string
}

func goes(to prm.QPState) cell { return cell{to: to} }
func never(why string) cell    { return cell{why: why} }

// Reasons that several cells share.
const (
	whyUsed     = "it left RESET already; 2RST_QP first"
	whyNotSQER  = "only a send queue in error has anything to recover from"
	whyNotSQD   = "its send queue is not drained, so there is nothing to go on with"
	whyNoPeer   = "it has no peer and no path yet; INIT2RTR_QP first"
	whyPeerSet  = "its peer and path are set; INIT attributes change no more"
	whyErr      = "it is in error and flushes; only 2RST_QP leads out"
	whySuspend  = "it is suspended, for a migration; only 2ERR_QP and 2RST_QP are known to lead out"
	whyNoSend   = "it cannot send yet; RTR2RTS_QP first"
	whySQErr    = "its send queue is in error; SQERR2RTS_QP first"
	whyDrained  = "its send queue is drained; SQD_RTS_QP first"
	whySends    = "it sends already; RTS2RTS_QP changes attributes"
	whyNoAttr   = "it has no port, P_Key and rights yet; RST2INIT_QP first"
	whyReceives = "it receives already; its peer and path are set"
)

// qpMatrix says for every state and command what happens (InfiniBand section
// 10.3.1; the commands are those of Linux qp.c, optab). No
// published command leads to SQD: a queue pair comes there by itself, or by
// firmware's doing.
var qpMatrix = [len(QPStates)][len(QPTransitions)]cell{
	{ // RST
		goes(prm.QPStateInit), never(whyNoAttr), never(whyNoAttr), never(whyNoPeer), never(whyNoPeer),
		never(whyNotSQER), never(whyNotSQD), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // INIT
		never(whyUsed), goes(prm.QPStateInit), goes(prm.QPStateRtr), never(whyNoPeer), never(whyNoPeer),
		never(whyNotSQER), never(whyNotSQD), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // RTR
		never(whyUsed), never(whyPeerSet), never(whyReceives), goes(prm.QPStateRts), never(whyNoSend),
		never(whyNotSQER), never(whyNotSQD), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // RTS
		never(whyUsed), never(whyPeerSet), never(whyReceives), never(whySends), goes(prm.QPStateRts),
		never(whyNotSQER), never(whyNotSQD), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // SQER
		never(whyUsed), never(whyPeerSet), never(whyReceives), never(whySQErr), never(whySQErr),
		goes(prm.QPStateRts), never(whyNotSQD), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // SQD
		never(whyUsed), never(whyPeerSet), never(whyReceives), never(whyDrained), never(whyDrained),
		never(whyNotSQER), goes(prm.QPStateRts), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // ERR
		never(whyErr), never(whyErr), never(whyErr), never(whyErr), never(whyErr),
		never(whyErr), never(whyErr), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
	{ // SUSPENDED
		never(whySuspend), never(whySuspend), never(whySuspend), never(whySuspend), never(whySuspend),
		never(whySuspend), never(whySuspend), goes(prm.QPStateErr), goes(prm.QPStateRst),
	},
}

// QPTransition says where a command leads a queue pair from a state, or, with ok
// false, why it must not be sent.
func QPTransition(from prm.QPState, op prm.Opcode) (to prm.QPState, why string, ok bool) {
	for i, s := range QPStates {
		if s != from {
			continue
		}
		for j, c := range QPTransitions {
			if c == op {
				m := qpMatrix[i][j]
				return m.to, m.why, m.why == ""
			}
		}
		return 0, "it is no transition of a queue pair", false
	}
	return 0, "the state is none this driver knows", false
}

// StateError says that a transition was not sent because it is not possible in
// the state of the queue pair. errors.Is finds cmdif.Status(BAD_QP_STATE_ERR) in
// it, as in the answer firmware would give.
type StateError struct {
	QPN    uint32
	Opcode prm.Opcode
	State  prm.QPState
	Why    string
}

// Error names state, command and reason.
func (e *StateError) Error() string {
	return fmt.Sprintf("%v of QP %#x in state %v was not sent: %s", e.Opcode, e.QPN, e.State, e.Why)
}

// Is matches the status that firmware would answer.
func (e *StateError) Is(target error) bool {
	return target == cmdif.Status(prm.StatusBadQPState)
}
