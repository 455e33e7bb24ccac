package queues

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// qpPlan is where things lie in a queue pair's memory.
type qpPlan struct {
	logRQ, stride, logSQ uint8
	rqBytes, sqBytes     int
}

// planQP checks the options and lays the rings out.
func (d *Dev) planQP(op string, o *QPOptions) (p qpPlan, err error) {
	if o.LogSQ == 0 {
		o.LogSQ = defaultLogSQ
	}
	if o.LogRQ == 0 {
		o.LogRQ = defaultLogRQ
	}
	if o.RecvSGEs == 0 {
		o.RecvSGEs = defaultRecvSGEs
	}
	if o.RecvCQ == nil {
		o.RecvCQ = o.SendCQ
	}
	limit := uint8(15)
	if d.Caps.LogMaxQPSize != 0 {
		limit = min(limit, d.Caps.LogMaxQPSize)
	}
	switch {
	case o.Type > UD:
		return p, refuse(op, "Type", vfio.ErrNotSupported, "%d; RC and UD are", o.Type)
	case o.LogSQ > limit:
		return p, refuse(op, "LogSQ", vfio.ErrRange, "2^%d blocks; 2^%d is the most", o.LogSQ, limit)
	case o.LogRQ > limit:
		return p, refuse(op, "LogRQ", vfio.ErrRange, "2^%d WQEs; 2^%d is the most", o.LogRQ, limit)
	case o.NoRecv && o.SRQ != nil:
		return p, refuse(op, "NoRecv", vfio.ErrRange, "it contradicts SRQ; give one of them")
	case o.PSN >= 1<<24:
		return p, refuse(op, "PSN", vfio.ErrRange, "%#x has more than 24 bits", o.PSN)
	case (o.CrossMaster || o.CrossSlave) && d.Caps.known() && !d.Caps.CrossChannel:
		return p, refuse(op, "CrossMaster", vfio.ErrNotSupported, "the device lacks the capability cd")
	}
	if err := d.planRights(op, o); err != nil {
		return p, err
	}
	p = qpPlan{logSQ: o.LogSQ, sqBytes: WQEBB << o.LogSQ}
	if o.SRQ != nil || o.NoRecv {
		return p, nil
	}
	if p.stride, err = recvStride(op, d.Caps.MaxRecvWQE, o.RecvSGEs, 0); err != nil {
		return p, err
	}
	for p.logRQ = o.LogRQ; 1<<(p.logRQ+p.stride) < WQEBB; p.logRQ++ {
	}
	p.rqBytes = 1 << (p.logRQ + p.stride)
	return p, nil
}

// planRights settles what a peer may do, and the atomic mode.
func (d *Dev) planRights(op string, o *QPOptions) error {
	switch {
	case o.Remote&^(RemoteAll|RemoteNone) != 0:
		return refuse(op, "Remote", vfio.ErrRange, "%#x has bits that are no remote rights", uint8(o.Remote))
	case o.Remote == 0:
		o.Remote = RemoteAll
		if d.Caps.AtomicMode() == prm.AtomicModeNone {
			o.Remote &^= RemoteAtomic
		}
	}
	o.Remote &= RemoteAll
	most := d.Caps.AtomicMode()
	if o.Remote&RemoteAtomic == 0 {
		if o.AtomicMode != prm.AtomicModeNone {
			return refuse(op, "AtomicMode", vfio.ErrNotSupported, "%v needs the right RemoteAtomic, and a device with atomics", o.AtomicMode)
		}
		return nil
	}
	switch {
	case most == prm.AtomicModeNone && d.Caps.known():
		return refuse(op, "Remote", vfio.ErrNotSupported, "the device has no atomics; leave RemoteAtomic out")
	case o.AtomicMode > most && d.Caps.known():
		return refuse(op, "AtomicMode", vfio.ErrNotSupported, "%v; the device has %v (atomic_operations %#x, atomic_size_qp %#x)", o.AtomicMode, most, d.Caps.AtomicOperations, d.Caps.AtomicSizes)
	case o.AtomicMode == prm.AtomicModeNone:
		o.AtomicMode = most
	}
	return nil
}

// hold counts the queue pair as a user of its objects.
func (q *QP) hold(op string) error {
	o := &q.o
	if err := o.UAR.take(q.dev, op); err != nil {
		return err
	}
	if err := o.PD.take(q.dev, op); err != nil {
		o.UAR.life.drop()
		return err
	}
	if err := o.SendCQ.take(q.dev, op, "SendCQ"); err != nil {
		o.UAR.life.drop()
		o.PD.life.drop()
		return err
	}
	if err := o.RecvCQ.take(q.dev, op, "RecvCQ"); err != nil {
		o.UAR.life.drop()
		o.PD.life.drop()
		o.SendCQ.life.drop()
		return err
	}
	if o.SRQ == nil {
		return nil
	}
	var err error
	switch {
	case o.SRQ.dev != q.dev:
		err = refuse(op, "SRQ", ErrForeign, "the %v is another device's", o.SRQ)
	case !o.SRQ.life.use():
		err = refuse(op, "SRQ", vfio.ErrClosed, "the %v was destroyed", o.SRQ)
	default:
		return nil
	}
	o.SRQ = nil
	q.drop()
	return err
}

// drop undoes hold.
func (q *QP) drop() {
	q.o.UAR.life.drop()
	q.o.PD.life.drop()
	q.o.SendCQ.life.drop()
	q.o.RecvCQ.life.drop()
	if q.o.SRQ != nil {
		q.o.SRQ.life.drop()
	}
}

// take counts a user of the CQ, which must be of device d.
func (q *CQ) take(d *Dev, op, field string) error {
	switch {
	case q == nil:
		return refuse(op, field, ErrMissing, "create one with CreateCQ")
	case q.dev != d:
		return refuse(op, field, ErrForeign, "CQN %#x is another device's", q.cqn)
	case !q.life.use():
		return refuse(op, field, vfio.ErrClosed, "the %s CQ was destroyed", q.o.Name)
	}
	return nil
}
