package queues

import (
	"encoding/binary"
	"fmt"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// terminator is the memory key that ends the list of pieces of a receive WQE
// shorter than its stride (Linux MLX5_INVALID_LKEY; ruling W10).
const terminator = 0x100

// RecvQueueConfig is what a receive queue is made of.
type RecvQueueConfig struct {
	// QPN is the number of the queue pair; it appears in messages only.
	QPN uint32
	// Ring is the memory of the WQEs, 1 << (LogSize + LogStride) bytes.
	Ring vfio.Mem
	// Record is the doorbell record; the queue writes its first word.
	Record vfio.Mem
	// LogSize is log2 of the number of WQEs, 0 … 15.
	LogSize uint8
	// LogStride is log2 of the bytes of a WQE, 4 … 10: a WQE of one piece takes
	// 16 bytes, so 4 + qpc.log_rq_stride.
	LogStride uint8
}

// RecvQueue is the ring of receive WQEs of a queue pair. Messages take them in
// the order they were posted. What SendQueue says about ownership, allocation
// and wrid holds here too.
type RecvQueue struct {
	buf        []byte
	ids        []uint64
	pi, ci     uint32 // WQEs, running freely
	size, mask uint32
	rung       uint32
	shift      uint8
	dead       bool
	qpn        uint32
	rec        record
}

// NewRecvQueue makes the software side of a receive queue. Ring and Record must
// live as long as the queue is used.
func NewRecvQueue(c RecvQueueConfig) (*RecvQueue, error) {
	if err := checkRecv("receive queue", c.LogSize, 0, c.LogStride, 4, c.Ring, c.Record); err != nil {
		return nil, err
	}
	size := 1 << c.LogSize
	return &RecvQueue{
		buf: c.Ring.Bytes(), ids: make([]uint64, size), size: uint32(size), mask: uint32(size) - 1,
		shift: c.LogStride, qpn: c.QPN, rec: newRecord(c.Record),
	}, nil
}

func checkRecv(what string, logSize, minSize, logStride, minStride uint8, ring, rec vfio.Mem) error {
	if logSize < minSize || logSize > 15 || logStride < minStride || logStride > 10 {
		return fmt.Errorf("make a %s of 2^%d WQEs of 2^%d bytes: %w; 2^%d to 2^15 of 2^%d to 2^10 are possible", what, logSize, logStride, vfio.ErrRange, minSize, minStride)
	}
	if need := 1 << (logSize + logStride); ring.Len() != need || rec.Len() < RecordSize {
		return fmt.Errorf("make a %s: %w: the ring has %d bytes and needs %d, the record has %d and needs %d",
			what, vfio.ErrRange, ring.Len(), need, rec.Len(), RecordSize)
	}
	return checkAligned(what, ring, rec)
}

// Size is the number of WQEs of the ring.
func (q *RecvQueue) Size() int { return int(q.size) }

// Free is the number of WQEs that can be posted before the queue is full.
func (q *RecvQueue) Free() int { return int(q.size - (q.pi - q.ci)) }

// MaxSGE is the number of pieces a WQE can have.
func (q *RecvQueue) MaxSGE() int { return 1 << q.shift / wqeUnit }

// Post writes a receive WQE that scatters one message over the pieces, in order;
// empty ones are left out. Ring makes it known to the device.
func (q *RecvQueue) Post(wrid uint64, l ...SGE) error {
	pi := q.pi
	if pi-q.ci >= q.size {
		return q.full()
	}
	at := int(pi&q.mask) << q.shift
	if !putScatter(q.buf[at:at+1<<q.shift], l) {
		return refuseRecv(q.qpn, q.MaxSGE(), l)
	}
	q.ids[pi&q.mask] = wrid
	q.pi = pi + 1
	return nil
}

// Ring stores the count of posted WQEs in the doorbell record; a receive queue
// has no register.
func (q *RecvQueue) Ring() {
	if q.pi == q.rung {
		return
	}
	toDevice()
	q.rec.store(recordRecv, q.pi&0xffff)
	q.rung = q.pi
}

// Reset forgets every WQE: for a queue pair that is back in state RESET.
func (q *RecvQueue) Reset() {
	q.pi, q.ci, q.rung = 0, 0, 0
	q.rec.store(recordRecv, 0)
}

func (q *RecvQueue) close() {
	q.dead, q.size, q.pi, q.ci, q.rung = true, 0, 0, 0, 0
	q.buf = nil
	q.rec.close()
}

//go:noinline
func (q *RecvQueue) full() error {
	if q.dead {
		return vfio.ErrClosed
	}
	return ErrQueueFull
}

// retire takes the WQE with this counter, and all before it, as done.
func (q *RecvQueue) retire(index uint16) (wrid uint64, ok bool) {
	d := uint32(index - uint16(q.ci))
	if d >= q.pi-q.ci {
		return 0, false
	}
	q.ci += d + 1
	return q.ids[uint32(index)&q.mask], true
}

// wqe is the memory of the WQE with this counter.
func (q *RecvQueue) wqe(index uint16) []byte {
	at := int(uint32(index)&q.mask) << q.shift
	return q.buf[at : at+1<<q.shift]
}

// putScatter writes the pieces and, if there is room, the terminator. It is
// false, and w half written, if they do not fit.
func putScatter(w []byte, l []SGE) bool {
	at := 0
	for i := range l {
		s := &l[i]
		if s.Len == 0 {
			continue
		}
		if s.Len > maxLen || at == len(w) {
			return false
		}
		u := (*[wqeUnit]byte)(w[at:])
		binary.BigEndian.PutUint64(u[0:8], uint64(s.Len)<<32|uint64(s.LKey))
		binary.BigEndian.PutUint64(u[8:16], s.Addr)
		at += wqeUnit
	}
	if at < len(w) {
		u := (*[wqeUnit]byte)(w[at:])
		binary.BigEndian.PutUint64(u[0:8], terminator)
		binary.BigEndian.PutUint64(u[8:16], 0)
	}
	return true
}

// refuseRecv says why putScatter did not take the pieces.
//
//go:noinline
func refuseRecv(qpn uint32, most int, l []SGE) error {
	// Only copied numbers go into the error, so that l stays on its caller's stack.
	n := 0
	for i := range l {
		if l[i].Len > maxLen {
			return &PostError{QPN: qpn, Recv: true, Err: ErrTooLong, Detail: fmt.Sprintf("piece %d has %d bytes, the limit is %d", i, l[i].Len, maxLen)}
		}
		if l[i].Len != 0 {
			n++
		}
	}
	return &PostError{QPN: qpn, Recv: true, Err: ErrTooLong, Detail: fmt.Sprintf("%d pieces, the limit is %d", n, most)}
}

// snapshot is a copy of the WQE with this counter, nil if it is not outstanding.
func (q *RecvQueue) snapshot(index uint16) []byte {
	if uint32(index-uint16(q.ci)) >= q.pi-q.ci {
		return nil
	}
	return append([]byte(nil), q.wqe(index)...)
}
