package queues_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// raw sends a transition as it is, past the driver's checks.
func (b *bench) raw(op prm.Opcode, qpn uint32, c *prm.QPC, mask prm.OptParam) error {
	in, out := make([]byte, prm.Rst2InitQPInSize), make([]byte, prm.Rst2InitQPOutSize)
	m := prm.AsRst2InitQPIn(in)
	m.SetOpcode(op)
	m.SetQPN(qpn)
	m.SetOptParamMask(uint32(mask))
	*m.QPC() = *c
	return b.hca.Conn().Exec(b.t.Context(), in, out)
}

// goodContext has what every transition needs.
func goodContext() *prm.QPC {
	c := new(prm.QPC)
	c.SetMTU(prm.PathMTU1kBytes)
	c.SetLogMsgMax(12)
	c.PrimaryAddressPath().SetVHCAPortNum(1)
	c.PrimaryAddressPath().SetRlid(1)
	return c
}

// to brings a queue pair to a state by commands.
func (b *bench) to(q *queues.QP, s prm.QPState) {
	b.t.Helper()
	ctx := b.t.Context()
	require.NoError(b.t, q.Reset(ctx))
	for _, step := range []struct {
		to prm.QPState
		do func() error
	}{
		{prm.QPStateInit, func() error { return q.ToInit(ctx, queues.InitAttr{}) }},
		{prm.QPStateRtr, func() error { return q.ToRTR(ctx, queues.RTRAttr{MTU: 1024, Path: queues.Path{LID: 1}}) }},
		{prm.QPStateRts, func() error { return q.ToRTS(ctx, queues.RTSAttr{}) }},
	} {
		if q.State() == s {
			return
		}
		if s == prm.QPStateErr {
			break
		}
		require.NoError(b.t, step.do())
		require.Equal(b.t, step.to, q.State())
	}
	if s == prm.QPStateErr {
		require.NoError(b.t, q.ToErr(ctx))
	}
	require.Equal(b.t, s, q.State())
}

// The whole matrix, for both services: a command that it forbids is refused
// before it is sent, and the device would have refused it as well; a command that
// it allows arrives where it says.
func TestQPMatrix(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq := b.cq(4)
	reachable := map[prm.QPState]bool{prm.QPStateRst: true, prm.QPStateInit: true, prm.QPStateRtr: true, prm.QPStateRts: true, prm.QPStateErr: true}
	cells, refused := 0, 0
	for _, typ := range []queues.QPType{queues.RC, queues.UD} {
		q := b.qp(cq, queues.QPOptions{Type: typ})
		for _, from := range queues.QPStates {
			for _, op := range queues.QPTransitions {
				to, why, ok := queues.QPTransition(from, op)
				cells++
				if !ok {
					require.NotEmpty(t, why)
				}
				if !reachable[from] {
					continue
				}
				name := fmt.Sprintf("%v: %v in %v", typ, op, from)
				b.to(q, from)
				if ok {
					require.NoError(t, q.Modify(ctx, op, goodContext(), 0), name)
					require.Equal(t, to, q.State(), name)
					s, err := q.Query(ctx)
					require.NoError(t, err)
					require.Equal(t, to, s.State, name)
					continue
				}
				refused++
				sent := b.sent(op)
				err := q.Modify(ctx, op, goodContext(), 0)
				var se *queues.StateError
				require.ErrorAs(t, err, &se, name)
				require.Equal(t, queues.StateError{QPN: q.Number(), Opcode: op, State: from, Why: why}, *se)
				require.ErrorIs(t, err, cmdif.Status(prm.StatusBadQPState))
				require.Equal(t, sent, b.sent(op), "%s was sent", name)
				require.ErrorIs(t, b.raw(op, q.Number(), goodContext(), 0), cmdif.Status(prm.StatusBadQPState), name)
				s, err := q.Query(ctx)
				require.NoError(t, err)
				require.Equal(t, from, s.State, "%s: the refusal changed the state", name)
			}
		}
	}
	require.Equal(t, 2*len(queues.QPStates)*len(queues.QPTransitions), cells)
	// Five states are reachable; in each, 9 commands less those allowed: RST 3 (to
	// INIT, ERR, RST), INIT 4, RTR 3, RTS 3, ERR 2.
	require.Equal(t, 2*(5*9-3-4-3-3-2), refused)

	for _, op := range []prm.Opcode{prm.OpCreateQP, prm.OpQueryQP} {
		_, why, ok := queues.QPTransition(prm.QPStateRts, op)
		require.False(t, ok)
		require.NotEmpty(t, why)
	}
	_, _, ok := queues.QPTransition(15, prm.Op2RstQP)
	require.False(t, ok)
}

// sent is how often a command was handed to the device.
func (b *bench) sent(op prm.Opcode) uint64 {
	for _, o := range b.hca.Conn().Stats().Ops {
		if o.Opcode == op {
			return o.Count
		}
	}
	return 0
}

// A queue pair that moved without this driver's doing is asked before a command is
// refused, and its state explains one that firmware refused.
func TestQPMovedByItself(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	q := b.qp(b.cq(4), queues.QPOptions{})
	b.to(q, prm.QPStateRts)
	require.NoError(t, b.raw(prm.Op2RstQP, q.Number(), goodContext(), 0))
	require.NoError(t, q.ToInit(ctx, queues.InitAttr{}), "it was reset behind our back")

	b.to(q, prm.QPStateInit)
	require.NoError(t, b.raw(prm.Op2ErrQP, q.Number(), goodContext(), 0))
	err := q.ToRTR(ctx, queues.RTRAttr{MTU: 1024, Path: queues.Path{LID: 1}})
	require.ErrorIs(t, err, cmdif.Status(prm.StatusBadQPState))
	require.ErrorContains(t, err, "the device had moved it to ERR")
	require.Equal(t, prm.QPStateErr, q.State())
}

// Every bit of opt_param_mask in every transition of both services: what the
// driver's table refuses the device refuses too, and what it allows is taken.
func TestOptParamMask(t *testing.T) {
	b := newBench(t, "sim:cx5")
	ctx := t.Context()
	cq := b.cq(4)
	before := map[prm.Opcode]prm.QPState{
		prm.OpRst2InitQP: prm.QPStateRst, prm.OpInit2InitQP: prm.QPStateInit, prm.OpInit2RtrQP: prm.QPStateInit,
		prm.OpRtr2RtsQP: prm.QPStateRtr, prm.OpRts2RtsQP: prm.QPStateRts,
	}
	for typ, st := range map[queues.QPType]prm.QPServiceType{queues.RC: prm.QPTypeRC, queues.UD: prm.QPTypeUD} {
		q := b.qp(cq, queues.QPOptions{Type: typ})
		for op, from := range before {
			allowed := queues.AllowedOptParams(op, st)
			for bit := range 32 {
				m := prm.OptParam(1) << bit
				name := fmt.Sprintf("%v: %v with bit %d (%v)", typ, op, bit, m)
				b.to(q, from)
				c := goodContext()
				c.SetCQNRcv(cq.Number())
				err := q.Modify(ctx, op, c, m)
				if m&allowed != 0 {
					require.NoError(t, err, name)
					continue
				}
				var oe *queues.OptMaskError
				require.ErrorAs(t, err, &oe, name)
				require.Equal(t, queues.OptMaskError{QPN: q.Number(), Opcode: op, Type: st, Bits: m, Allowed: allowed}, *oe)
				require.ErrorContains(t, err, m.String())
				if op == prm.OpRts2RtsQP && m == prm.OptParamCounterSetID {
					continue // the device takes it beyond the table
				}
				require.ErrorIs(t, b.raw(op, q.Number(), c, m), cmdif.Status(prm.StatusBadParam), name)
			}
		}
	}
}

// The bits of the table by number, so that a name cannot hide a wrong one
// (Linux qp.h, MLX5_QP_OPTPAR_*).
func TestOptParamNumbers(t *testing.T) {
	const alt, rre, rae, rwe, pkey, qkey, rnr, pm, lag, port, srqn, cqn = 0, 1, 2, 3, 4, 5, 6, 10, 15, 16, 18, 19
	set := func(bits ...int) (m prm.OptParam) {
		for _, x := range bits {
			m |= 1 << x
		}
		return m
	}
	for _, c := range []struct {
		op              prm.Opcode
		rc, uc, ud, xrc prm.OptParam
	}{
		{0x502, 0, 0, 0, 0},
		{0x50e, set(rre, rae, rwe, pkey, port, lag), set(rwe, pkey, port, lag), set(pkey, qkey, port), set(rre, rae, rwe, pkey, port, lag)},
		{0x503, set(alt, rre, rae, rwe, pkey, lag), set(alt, rwe, pkey, lag), set(pkey, qkey), set(alt, rre, rae, rwe, pkey, lag)},
		{0x504, set(alt, rre, rae, rwe, pm, rnr), set(alt, rwe, pm), set(qkey), set(alt, rre, rae, rwe, pm, rnr)},
		{0x505, set(alt, rre, rae, rwe, pm, rnr), set(alt, rwe, pm), set(qkey, srqn, cqn), set(alt, rre, rae, rwe, pm, rnr)},
		{0x506, set(rnr, rwe, rae, rre), set(rwe), set(qkey), set(rnr, rwe, rae, rre)},
		{0x50c, set(rnr, rwe, rae, rre), set(rwe), set(qkey), 0},
		{0x507, 0, 0, 0, 0},
		{0x50a, 0, 0, 0, 0},
	} {
		for st, want := range []prm.OptParam{c.rc, c.uc, c.ud, c.xrc} {
			require.Equal(t, want, queues.AllowedOptParams(c.op, prm.QPServiceType(st)), "%v of service %d", c.op, st)
		}
		require.Zero(t, queues.AllowedOptParams(c.op, prm.QPTypeDCI))
	}
}

// Modify puts opcode, number, mask and context where the layouts say.
func TestModifyBytes(t *testing.T) {
	b := newBench(t, "sim:cx5")
	q := b.qp(b.cq(4), queues.QPOptions{})
	b.to(q, prm.QPStateRts)
	c := goodContext()
	c.SetMinRNRNak(17)
	require.NoError(t, q.Modify(t.Context(), prm.OpRts2RtsQP, c, prm.OptParamRNRTimeout))
	h := b.hca.Conn().History()
	last := h[len(h)-1]
	require.Equal(t, prm.OpRts2RtsQP, last.Opcode)
	s, err := q.Query(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 17, s.MinRNR)
	require.EqualValues(t, 17, binary.BigEndian.Uint32(s.Context[0x94:])>>24)
}
