package queues

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// SRQOptions describe a shared receive queue to be created.
type SRQOptions struct {
	// Name appears in messages and names the memory.
	Name string
	// PD is the protection domain its receive WQEs are in.
	PD *PD
	// LogSize is log2 of the number of WQEs, 1 … 15; 0 is 8. One of them always
	// stays free.
	LogSize uint8
	// RecvSGEs is the number of pieces of a receive WQE; 0 is 3.
	RecvSGEs int
	// Limit raises the event SRQ_LIMIT once when fewer WQEs are left; 0 is off.
	Limit uint16
}

const (
	defaultLogSRQ  = 8
	defaultSRQSGEs = 3
)

// SRQ is a shared receive queue: queue pairs created with it take their receive
// WQEs from here. Post and Ring are SRQRing's. It belongs to one caller at a time
// together with the CQs its queue pairs complete on; Query and SetLimit may be
// called by any.
type SRQ struct {
	SRQRing
	dev    *Dev
	pd     *PD
	rmp    bool // an RMP: ISSI 1 and newer
	number uint32
	mem    queueMemory
	o      SRQOptions
	life   refs
}

// CreateSRQ allocates ring and doorbell record and hands them to firmware: as an
// RMP (CREATE_RMP, 0x90c) where the ISSI is 1 or more, as Linux does
// (srq_cmd.c), else as an SRQ (CREATE_SRQ, 0x700).
func (d *Dev) CreateSRQ(ctx context.Context, o SRQOptions) (*SRQ, error) {
	if o.LogSize == 0 {
		o.LogSize = defaultLogSRQ
	}
	if o.RecvSGEs == 0 {
		o.RecvSGEs = defaultSRQSGEs
	}
	op := fmt.Sprintf("create the shared receive queue %s (%d WQEs of %d pieces)", o.Name, uint64(1)<<min(o.LogSize, 63), o.RecvSGEs)
	stride, err := recvStride(op, d.Caps.MaxRecvWQE, o.RecvSGEs, 1)
	if err != nil {
		return nil, err
	}
	switch {
	case o.LogSize > 15 || over(o.LogSize, d.Caps.LogMaxSRQSize):
		return nil, refuse(op, "LogSize", vfio.ErrRange, "2^%d WQEs; 2^%d is the most", o.LogSize, min(max(d.Caps.LogMaxSRQSize, 1), 15))
	case int(o.Limit) >= 1<<o.LogSize:
		return nil, refuse(op, "Limit", vfio.ErrRange, "%d; it must be below the %d WQEs of the queue", o.Limit, 1<<o.LogSize)
	}
	if err := o.PD.take(d, op); err != nil {
		return nil, err
	}
	q := &SRQ{dev: d, pd: o.PD, rmp: d.Caps.ISSI > 0, o: o}
	if err := q.create(ctx, op, stride); err != nil {
		o.PD.life.drop()
		return nil, err
	}
	return q, nil
}

func (q *SRQ) create(ctx context.Context, op string, stride uint8) error {
	size := 1 << (q.o.LogSize + stride)
	mem, err := q.dev.allocQueue(q.o.Name+" SRQ", size)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	q.mem = mem
	ring, err := NewSRQRing(SRQRingConfig{Ring: mem.ring.Mem.Slice(0, size), Record: mem.record.Mem, LogSize: q.o.LogSize, LogStride: stride})
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", op, err), mem.free())
	}
	q.SRQRing = *ring
	in, out := q.createInput(stride), make([]byte, prm.CreateRMPOutSize)
	if err := q.dev.exec(ctx, op, in, out); err != nil {
		return q.dev.undo(err, mem)
	}
	// Both answers have the number in the same place.
	q.number = prm.AsCreateRMPOut(out).Rmpn()
	q.srqn = q.number
	q.dev.born(q)
	return nil
}

func (q *SRQ) createInput(stride uint8) []byte {
	shift, pas := q.mem.pages()
	if !q.rmp {
		in := withPages(prm.CreateSRQInSize, pas)
		cmd := prm.AsCreateSRQIn(in)
		cmd.SetOpcode(prm.OpCreateSRQ)
		c := cmd.SRQContextEntry()
		c.SetLogSRQSize(q.o.LogSize)
		c.SetLogRQStride(stride - 4)
		c.SetLogPageSize(shift - adapterPageShift)
		c.SetPD(q.pd.number)
		c.SetLwm(q.o.Limit)
		c.SetDBRAddr(q.mem.record.IOVA())
		return in
	}
	in := withPages(prm.CreateRMPInSize, pas)
	cmd := prm.AsCreateRMPIn(in)
	cmd.SetOpcode(prm.OpCreateRMP)
	c := cmd.Ctx()
	c.SetState(prm.RMPStateRdy)
	w := c.WQ()
	w.SetWQType(prm.WQTypeLinkedList)
	w.SetLwm(q.o.Limit)
	w.SetPD(q.pd.number)
	w.SetDBRAddr(q.mem.record.IOVA())
	w.SetLogWQStride(stride)
	w.SetLogWQPgSz(shift - adapterPageShift)
	w.SetLogWQSz(q.o.LogSize)
	return in
}

// recvStride is log2 of the bytes of a receive WQE with so many pieces and, before
// them, so many other segments of 16 bytes. most is the device's limit in bytes.
func recvStride(op string, most uint16, sges, before int) (uint8, error) {
	if sges < 1 {
		return 0, refuse(op, "RecvSGEs", vfio.ErrRange, "%d; a receive WQE has at least one piece", sges)
	}
	limit := maxRecvWQE
	if most != 0 {
		limit = min(limit, int(most))
	}
	stride := uint8(bits.Len(uint((sges+before)*wqeUnit - 1)))
	if sges > limit/wqeUnit || 1<<stride > limit {
		return 0, refuse(op, "RecvSGEs", vfio.ErrRange, "%d pieces; %d bytes are the most a receive WQE may have", sges, limit)
	}
	return stride, nil
}

// maxRecvWQE is the largest stride of a receive queue in bytes.
const maxRecvWQE = 1 << 10

// Number is the number firmware gave: of the SRQ, or of the RMP.
func (q *SRQ) Number() uint32 { return q.number }

// Name is the name it was created with.
func (q *SRQ) Name() string { return q.o.Name }

func (q *SRQ) String() string {
	if q.rmp {
		return fmt.Sprintf("shared receive queue %s (RMPN %#x)", q.o.Name, q.number)
	}
	return fmt.Sprintf("shared receive queue %s (SRQN %#x)", q.o.Name, q.number)
}

// SRQState is what firmware says about a shared receive queue (QUERY_SRQ or
// QUERY_RMP).
type SRQState struct {
	RMP       bool // what it is in firmware
	Error     bool // it failed and hands out nothing any more
	PD        uint32
	LogSize   uint8
	LogStride uint8
	Limit     uint16
	Record    uint64 // bus address of the doorbell record
	// Hardware and Software count WQEs taken and posted, as far as firmware
	// tells: of an SRQ, Hardware alone is the number of WQEs it holds.
	Hardware, Software uint32
}

// Query reads the context from firmware (opcode 0x702 or 0x90f).
func (q *SRQ) Query(ctx context.Context) (SRQState, error) {
	op := "query the " + q.String()
	if !q.life.alive() {
		return SRQState{}, refuse(op, "", vfio.ErrClosed, "it was destroyed")
	}
	if q.rmp {
		in, out := make([]byte, prm.QueryRMPInSize), make([]byte, prm.QueryRMPOutSize)
		cmd := prm.AsQueryRMPIn(in)
		cmd.SetOpcode(prm.OpQueryRMP)
		cmd.SetRmpn(q.number)
		if err := q.dev.exec(ctx, op, in, out); err != nil {
			return SRQState{}, err
		}
		c := prm.AsQueryRMPOut(out).RMPContext()
		w := c.WQ()
		return SRQState{
			RMP: true, Error: c.State() == prm.RMPStateErr, PD: w.PD(), LogSize: w.LogWQSz(), LogStride: w.LogWQStride(),
			Limit: w.Lwm(), Record: w.DBRAddr(), Hardware: w.HwCounter(), Software: w.SwCounter(),
		}, nil
	}
	in, out := make([]byte, prm.QuerySRQInSize), make([]byte, prm.QuerySRQOutSize)
	cmd := prm.AsQuerySRQIn(in)
	cmd.SetOpcode(prm.OpQuerySRQ)
	cmd.SetSRQN(q.number)
	if err := q.dev.exec(ctx, op, in, out); err != nil {
		return SRQState{}, err
	}
	c := prm.AsQuerySRQOut(out).SRQContextEntry()
	return SRQState{
		Error: c.State() == prm.SRQStateError, PD: c.PD(), LogSize: c.LogSRQSize(), LogStride: c.LogRQStride() + 4,
		Limit: c.Lwm(), Record: c.DBRAddr(), Hardware: uint32(c.WQECnt()),
	}, nil
}

// armSRQ is the op_mod of ARM_RQ for an SRQ (Linux mlx5_ifc.h,
// MLX5_ARM_RQ_IN_OP_MOD_SRQ).
const armSRQ = 1

// SetLimit arms the event SRQ_LIMIT: it comes once, when fewer than limit WQEs
// are left. The command is MODIFY_RMP (0x90d) or ARM_RQ (0x703).
func (q *SRQ) SetLimit(ctx context.Context, limit uint16) error {
	op := fmt.Sprintf("set the limit of the %v to %d", q, limit)
	switch {
	case !q.life.alive():
		return refuse(op, "", vfio.ErrClosed, "it was destroyed")
	case int(limit) >= 1<<q.o.LogSize:
		return refuse(op, "limit", vfio.ErrRange, "it must be below the %d WQEs of the queue", 1<<q.o.LogSize)
	}
	if !q.rmp {
		in, out := make([]byte, prm.ArmRQInSize), make([]byte, prm.ArmRQOutSize)
		cmd := prm.AsArmRQIn(in)
		cmd.SetOpcode(prm.OpArmRQ)
		cmd.SetOpMod(armSRQ)
		cmd.SetSRQNumber(q.number)
		cmd.SetLwm(limit)
		return q.dev.exec(ctx, op, in, out)
	}
	in, out := make([]byte, prm.ModifyRMPInSize), make([]byte, prm.ModifyRMPOutSize)
	cmd := prm.AsModifyRMPIn(in)
	cmd.SetOpcode(prm.OpModifyRMP)
	cmd.SetRMPState(uint8(prm.RMPStateRdy))
	cmd.SetRmpn(q.number)
	cmd.Bitmask().SetLwm(true)
	cmd.Ctx().SetState(prm.RMPStateRdy)
	cmd.Ctx().WQ().SetLwm(limit)
	return q.dev.exec(ctx, op, in, out)
}

// Destroy takes the queue from firmware (opcode 0x701 or 0x90e) and frees its
// memory. Queue pairs that receive from it must be destroyed before: ErrInUse. If
// firmware refuses, the memory stays; Release frees it. A second call answers
// vfio.ErrClosed.
func (q *SRQ) Destroy(ctx context.Context) error {
	op := "destroy the " + q.String()
	err := q.life.destroy(q.dev, op, func() error {
		in, out := make([]byte, prm.DestroySRQInSize), make([]byte, prm.DestroySRQOutSize)
		// The number is in the same place in both commands.
		cmd := prm.AsDestroySRQIn(in)
		cmd.SetOpcode(prm.OpDestroySRQ)
		if q.rmp {
			cmd.SetOpcode(prm.OpDestroyRMP)
		}
		cmd.SetSRQN(q.number)
		return q.dev.exec(ctx, op, in, out)
	})
	if err != nil {
		return err
	}
	q.close()
	return q.mem.free()
}

// Release frees the memory without telling firmware: only for a device that was
// reset, is disabled, or cannot reach memory any more. A second call does nothing.
func (q *SRQ) Release() error {
	_, err := q.abandon(true)
	return err
}

// close takes the queue from the books and its ring away; the memory may then go.
func (q *SRQ) close() {
	q.dev.died(q)
	q.SRQRing.close()
	q.pd.life.drop()
}
