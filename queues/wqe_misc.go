package queues

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Nop posts a WQE that does nothing but complete in its turn (opcode 0x00).
func (q *SendQueue) Nop(wrid uint64, f Flags) error {
	pi := q.pi
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 := q.ctrl0(pi) | c0Nop | 1
	putCtrl(w, c0, f, 0)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// Wait holds this queue until the device has written completion number index of
// CQ cqn (opcode 0x0f; DPDK's public header). The queue must be a master
// (qpc.cd_master).
func (q *SendQueue) Wait(wrid uint64, f Flags, cqn, index uint32) error {
	return q.cross(prm.WQEWait, wrid, f, cqn, index)
}

// SendEnable lets the send queue qpn run up to WQE index (opcode 0x17; DPDK's
// public header). That queue must be a slave (qpc.cd_slave_send), this one a
// master.
func (q *SendQueue) SendEnable(wrid uint64, f Flags, qpn, index uint32) error {
	return q.cross(prm.WQESendEn, wrid, f, qpn, index)
}

// ReceiveEnable lets the receive queue of qpn run up to WQE index (opcode 0x16).
// That queue must be a slave (qpc.cd_slave_receive), this one a master.
func (q *SendQueue) ReceiveEnable(wrid uint64, f Flags, qpn, index uint32) error {
	return q.cross(prm.WQERecvEn, wrid, f, qpn, index)
}

func (q *SendQueue) cross(op prm.WQEOpcode, wrid uint64, f Flags, number, index uint32) error {
	if number >= 1<<24 {
		return q.refuse(op, ErrOperand, "queue number %#x has more than 24 bits", number)
	}
	b, err := q.begin(op, 2)
	if err != nil {
		return err
	}
	b.unit(1, 0, uint64(index)<<32|uint64(number))
	b.finish(0, f, 0, wrid)
	return nil
}

// rawFilled is the part of the first control word that Raw fills in: WQE index and
// queue number.
const rawFilled = 0x00ffff00_ffffff00

// Raw posts a WQE as it is, for operations that have no builder and for tests of
// the device: a multiple of 16 bytes, at least 16. Only the WQE index and the
// queue number are filled in; opcode, ds, flags and all else are the caller's.
// The queue moves on by the blocks of len(wqe), the device by those of its ds:
// where they differ, what follows is lost.
func (q *SendQueue) Raw(wrid uint64, wqe []byte) error {
	if len(wqe) < wqeUnit || len(wqe)%wqeUnit != 0 {
		return q.refuse(prm.WQENop, ErrOperand, "a raw WQE of %d bytes; it must be a multiple of %d", len(wqe), wqeUnit)
	}
	ctrl := (*[wqeUnit]byte)(wqe)
	op := prm.WQEOpcode(ctrl[3])
	b, err := q.begin(op, len(wqe)/wqeUnit)
	if err != nil {
		return err
	}
	for i := 1; i < b.ds; i++ {
		*b.at(i) = [wqeUnit]byte(wqe[i*wqeUnit:])
	}
	c0 := binary.BigEndian.Uint64(ctrl[0:8])&^rawFilled | q.ctrl0(b.pi)
	b.unit(0, c0, binary.BigEndian.Uint64(ctrl[8:16]))
	b.commit(c0, wrid)
	return nil
}
