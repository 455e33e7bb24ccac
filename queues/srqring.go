package queues

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// SRQRingConfig is what the ring of a shared receive queue is made of.
type SRQRingConfig struct {
	// SRQN is the number of the queue; it appears in messages only.
	SRQN uint32
	// Ring is the memory of the WQEs, 1 << (LogSize + LogStride) bytes.
	Ring vfio.Mem
	// Record is the doorbell record; the queue writes its first word.
	Record vfio.Mem
	// LogSize is log2 of the number of WQEs, 1 … 15. One of them always stays
	// free, since it ends the list.
	LogSize uint8
	// LogStride is log2 of the bytes of a WQE, 5 … 10: 16 for the link and 16
	// for each piece.
	LogStride uint8
}

// SRQRing is the ring of a shared receive queue (SRQ, RMP or XRC SRQ). WQEs are
// a list: each begins with the index of the next one (Linux srq.c),
// because queue pairs finish them in any order. It belongs to
// one caller at a time, together with the CQs its queue pairs complete on.
type SRQRing struct {
	buf   []byte
	ids   []uint64
	out   []bool // posted and not completed
	mask  uint32
	head  uint32 // the next WQE to be posted
	tail  uint32 // the end of the free list; it is not posted before another one is freed
	count uint32 // WQEs posted, running freely
	rung  uint32
	shift uint8
	dead  bool
	srqn  uint32
	rec   record
}

// NewSRQRing makes the software side of a shared receive queue and links its
// WQEs. It must be done before the device hears of the ring.
func NewSRQRing(c SRQRingConfig) (*SRQRing, error) {
	if err := checkRecv("shared receive queue", c.LogSize, 1, c.LogStride, 5, c.Ring, c.Record); err != nil {
		return nil, err
	}
	size := 1 << c.LogSize
	q := &SRQRing{
		buf: c.Ring.Bytes(), ids: make([]uint64, size), out: make([]bool, size), mask: uint32(size) - 1,
		shift: c.LogStride, srqn: c.SRQN, rec: newRecord(c.Record),
	}
	q.relink()
	return q, nil
}

// relink makes one list of all WQEs, in order.
func (q *SRQRing) relink() {
	for i := range q.mask + 1 {
		q.link(i, (i+1)&q.mask)
		q.out[i] = false
	}
	q.head, q.tail = 0, q.mask
}

// link makes next the successor of WQE i. The rest of the segment stays zero.
func (q *SRQRing) link(i, next uint32) {
	binary.BigEndian.PutUint16(q.wqe(uint16(i))[2:4], uint16(next))
}

// Size is the number of WQEs that can be posted at a time.
func (q *SRQRing) Size() int { return int(q.mask) }

// MaxSGE is the number of pieces a WQE can have.
func (q *SRQRing) MaxSGE() int { return 1<<q.shift/wqeUnit - 1 }

// Post writes a receive WQE that scatters one message over the pieces, in order;
// empty ones are left out. Ring makes it known to the device.
func (q *SRQRing) Post(wrid uint64, l ...SGE) error {
	if q.dead {
		return vfio.ErrClosed
	}
	i := q.head
	if i == q.tail {
		return ErrQueueFull
	}
	w := q.wqe(uint16(i))
	if !putScatter(w[wqeUnit:], l) {
		return refuseRecv(q.srqn, q.MaxSGE(), l)
	}
	q.ids[i], q.out[i] = wrid, true
	q.head = uint32(binary.BigEndian.Uint16(w[2:4])) & q.mask
	q.count++
	return nil
}

// Ring stores the count of posted WQEs in the doorbell record.
func (q *SRQRing) Ring() {
	if q.count == q.rung {
		return
	}
	toDevice()
	q.rec.store(recordRecv, q.count&0xffff)
	q.rung = q.count
}

// Reset forgets every WQE, for a queue that was created anew.
func (q *SRQRing) Reset() {
	if q.dead {
		return
	}
	q.relink()
	q.count, q.rung = 0, 0
	q.rec.store(recordRecv, 0)
}

func (q *SRQRing) close() {
	q.dead, q.count, q.rung = true, 0, 0
	q.buf = nil
	q.rec.close()
}

// retire takes the WQE with this index as done and appends it to the free list.
func (q *SRQRing) retire(index uint16) (wrid uint64, ok bool) {
	i := uint32(index)
	if q.dead || i > q.mask || !q.out[i] {
		return 0, false
	}
	q.out[i] = false
	q.link(q.tail, i)
	q.tail = i
	return q.ids[i], true
}

// wqe is the memory of the WQE with this index.
func (q *SRQRing) wqe(index uint16) []byte {
	at := int(index) << q.shift
	return q.buf[at : at+1<<q.shift]
}

// snapshot is a copy of the WQE with this index without its link, nil if it is
// not outstanding.
func (q *SRQRing) snapshot(index uint16) []byte {
	if q.dead || uint32(index) > q.mask || !q.out[index] {
		return nil
	}
	return append([]byte(nil), q.wqe(index)[wqeUnit:]...)
}
