package queues

import (
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// SendQueueConfig is what a send queue is made of.
type SendQueueConfig struct {
	// QPN is the number of the queue pair, 24 bits.
	QPN uint32
	// Ring is 64 << LogWQEBB bytes that the device reads WQEs from.
	Ring vfio.Mem
	// Record is the 8-byte doorbell record of the queue pair; the queue writes
	// its second word.
	Record vfio.Mem
	// LogWQEBB is log2 of the number of 64-byte blocks, 0 … 15.
	LogWQEBB uint8
	// MaxWQE is the largest WQE in bytes (capability max_wqe_sz_sq), at least
	// MinWQEBytes; 0 and anything above MaxWQEBytes mean MaxWQEBytes.
	MaxWQE int
	// UAR is the page whose register is rung. Nil puts a page of ordinary memory
	// in its place: the queue then works without a device.
	UAR *UAR
	// BlueFlame writes a WQE that is posted alone, and fits one buffer, to the
	// register instead of its first 8 bytes. It pays off on a write-combining
	// mapping only (docs/ordering.md), and the UAR must be this queue's alone.
	BlueFlame bool
	// BlueFlameSize is the size of one of the two buffers in bytes
	// (2^(log_bf_reg_size−1)); 0 is DefaultBlueFlameSize.
	BlueFlameSize int
}

// SendQueue is the ring of send WQEs of a queue pair. Its methods write WQEs into
// the ring; Ring tells the device about all that were written since the last
// one. Neither takes a lock or allocates, unless it refuses.
//
// Every WQE bears a number of the caller's, wrid, which comes back in its
// Completion. Only Signalled WQEs complete visibly; each retires all before it.
//
// A SendQueue belongs to one caller at a time, together with the CQ it completes
// on.
type SendQueue struct {
	// What Post reads and writes for every list comes first, in two cache lines.

	slots []sqSlot // the ring, block by block
	// pi and ci count blocks: written by us, and retired. They never wrap; the
	// device sees the low 16 bits of pi, and a slot is found by masking.
	pi, ci uint64
	rung   uint32 // pi of the last doorbell, its low bits
	// plainWrite is the longest write that needs no closer look: 0 while the write
	// rule holds.
	plainWrite uint32
	mask       uint   // one less than the number of slots
	qpn8       uint64 // QPN << 8
	first8     uint64 // the first 8 bytes of the newest WQE as they lie in the ring: what the register gets
	bell       vfio.Doorbell

	atomicMax uint64     // limit of the write rule; 0 = none
	blue      *blueFlame // nil without BlueFlame
	buf       []byte     // the ring as bytes
	rec       record
	maxDS     int
	dead      bool
}

// sqSlot is a block of the ring, and what is kept of the WQE that it is the first
// block of. One table of both is one index and one check for a WQE.
type sqSlot struct {
	line *vfio.Line // its memory
	wrid uint64
	end  uint64 // pi behind the last block of the WQE: beyond ci while it is outstanding
}

// NewSendQueue makes the software side of a send queue. Ring and Record must
// live as long as the queue is used.
func NewSendQueue(c SendQueueConfig) (*SendQueue, error) {
	if c.LogWQEBB > 15 {
		return nil, fmt.Errorf("make a send queue of 2^%d blocks: %w; 15 is the most that 16-bit counters allow", c.LogWQEBB, vfio.ErrRange)
	}
	size := 1 << c.LogWQEBB
	if c.Ring.Len() != size*WQEBB || c.Record.Len() < RecordSize {
		return nil, fmt.Errorf("make a send queue of %d blocks: %w: the ring has %d bytes and needs %d, the record has %d and needs %d",
			size, vfio.ErrRange, c.Ring.Len(), size*WQEBB, c.Record.Len(), RecordSize)
	}
	if err := checkAligned("send queue", c.Ring, c.Record); err != nil {
		return nil, err
	}
	if c.QPN>>24 != 0 {
		return nil, fmt.Errorf("make a send queue of queue pair %#x: %w; a number has 24 bits", c.QPN, vfio.ErrRange)
	}
	if c.MaxWQE == 0 || c.MaxWQE > MaxWQEBytes {
		c.MaxWQE = MaxWQEBytes
	}
	if c.MaxWQE < MinWQEBytes {
		return nil, fmt.Errorf("make a send queue for WQEs of at most %d bytes: %w; some forms have %d in any case", c.MaxWQE, vfio.ErrRange, MinWQEBytes)
	}
	rec := newRecord(c.Record)
	bell := newDoorbell(c.UAR, rec, recordSend, UARBlueFlame)
	var blue *blueFlame
	if c.BlueFlame {
		var err error
		if blue, err = newBlueFlame(c.UAR, rec, c.BlueFlameSize); err != nil {
			return nil, err
		}
		bell = bell.Indirect() // ring decides
	}
	lines, slots := c.Ring.Lines(), make([]sqSlot, size)
	for i := range slots {
		slots[i].line = &lines[i]
	}
	return &SendQueue{
		buf: c.Ring.Bytes(), slots: slots, mask: uint(size) - 1, qpn8: uint64(c.QPN) << 8, maxDS: c.MaxWQE / wqeUnit,
		rec: rec, plainWrite: maxLen, bell: bell, blue: blue,
	}, nil
}

// QPN is the number of the queue pair.
func (q *SendQueue) QPN() uint32 { return uint32(q.qpn8 >> 8) }

// Size is the number of 64-byte blocks of the ring.
func (q *SendQueue) Size() int { return len(q.slots) }

// Free is the number of blocks that can be written before the queue is full.
func (q *SendQueue) Free() int { return len(q.slots) - int(q.pi-q.ci) }

// Pending is the number of blocks written since the last doorbell.
func (q *SendQueue) Pending() int { return int(uint32(q.pi) - q.rung) }

// Index is the WQE index the next WQE will have: the low 16 bits of the count of
// blocks written so far. Wait and SendEnable name WQEs of other queues by it.
func (q *SendQueue) Index() uint16 { return uint16(q.pi) }

// SetPeerAtomic tells the queue up to how many bytes, a power of two, the peer
// carries out a write atomically (its atomic_mode, if it has atomic writes
// enabled). From then on a write with (address mod limit) + length > limit is
// refused with ErrNotAtomicWrite unless it bears NonAtomic. 0 lifts the rule. A
// limit that is no power of two panics, as a slice bound would: Connect has
// refused it when it comes from a peer.
func (q *SendQueue) SetPeerAtomic(limit int) {
	if limit < 0 || limit&(limit-1) != 0 {
		panic(fmt.Sprintf("queues: SetPeerAtomic(%d): not a power of two", limit))
	}
	q.atomicMax, q.plainWrite = uint64(limit), maxLen
	if limit != 0 {
		q.plainWrite = 0
	}
}

// PeerAtomic is the limit of the write rule, 0 for none.
func (q *SendQueue) PeerAtomic() int { return int(q.atomicMax) }

// Ring tells the device about every WQE written since the last call: WQEs, then
// the doorbell record, then the register (docs/ordering.md). With nothing new it
// does nothing.
func (q *SendQueue) Ring() {
	if uint32(q.pi) != q.rung {
		q.ring()
	}
}

// ring is the doorbell in any case.
//
//go:noinline
func (q *SendQueue) ring() {
	pi, from := q.pi, q.rung
	q.rung = uint32(pi)
	if q.blue != nil {
		q.blue.ring(q, from)
		return
	}
	q.bell.Ring(wireCount(pi), q.first8)
}

// wireCount is the number of blocks as the doorbell record has it: 16 bits,
// big-endian.
func wireCount(pi uint64) uint32 { return bits.ReverseBytes32(uint32(uint16(pi))) }

// Reset forgets every WQE: for a queue pair that is back in state RESET.
func (q *SendQueue) Reset() {
	q.pi, q.ci, q.rung = 0, 0, 0
	for i := range q.slots {
		q.slots[i].end = 0 // else beyond ci again
	}
	q.rec.store(recordSend, 0)
}

// RetireAll counts every WQE as completed, as if a completion of the newest had
// been polled: for measurements without a device.
func (q *SendQueue) RetireAll() { q.ci = q.pi }

// close makes every later post answer vfio.ErrClosed; the memory of ring and
// record may then go.
func (q *SendQueue) close() {
	q.dead, q.ci, q.pi, q.rung = true, 0, 0, 0
	q.buf, q.slots, q.mask = nil, nil, 0
	q.rec.close()
	q.bell, q.blue = newDoorbell(nil, q.rec, recordSend, UARBlueFlame), nil
}

// full is why there is no room.
//
//go:noinline
func (q *SendQueue) full() error {
	if q.dead {
		return vfio.ErrClosed
	}
	return ErrQueueFull
}

// refuse is the error of a WQE that must not be posted.
//
//go:noinline
func (q *SendQueue) refuse(op prm.WQEOpcode, err error, format string, a ...any) error {
	return &PostError{QPN: q.QPN(), Opcode: op, Detail: fmt.Sprintf(format, a...), Err: err}
}

// room tells whether a WQE of n blocks has room. It compares with the length of
// slots, so that the compiler knows of a masked index that it is inside, and
// checks no bounds again.
func (q *SendQueue) room(n uint64) bool { return uint(q.pi-q.ci+n-1) < uint(len(q.slots)) }

// index is the place in the ring of the block with this running number.
func (q *SendQueue) index(pi uint64) int { return int(pi) & (len(q.slots) - 1) }

// block is the ring memory of the block with this running number.
func (q *SendQueue) block(pi uint64) *[WQEBB]byte {
	return (*[WQEBB]byte)(q.buf[q.index(pi)*WQEBB:])
}

// place is the block with this running number as words, and its slot. room or one
// like it must have been asked before: then the compiler knows that there is a
// slot, and that the masked index is inside.
func (q *SendQueue) place(pi uint64) (*vfio.Line, *sqSlot) {
	s := &q.slots[uint(pi)&uint(len(q.slots)-1)]
	return s.line, s
}

// commit makes a WQE of n blocks part of the queue. c0 is its first control word.
func (q *SendQueue) commit(s *sqSlot, pi, n uint64, c0, wrid uint64) {
	s.wrid, s.end = wrid, pi+n
	q.pi, q.first8 = pi+n, bits.ReverseBytes64(c0)
}

// outstanding tells whether a WQE with this index is under way, and where it
// ends. Of a slot inside a WQE of several blocks the end is an old one.
func (q *SendQueue) outstanding(index uint16) (s *sqSlot, ok bool) {
	slots := q.slots
	if uint64(index-uint16(q.ci)) >= q.pi-q.ci || len(slots) == 0 {
		return nil, false
	}
	s = &slots[int(index)&(len(slots)-1)]
	return s, s.end > q.ci
}

// retire takes every WQE up to the one with this index as completed and gives
// the number of that one. It is false if no such WQE is outstanding.
func (q *SendQueue) retire(index uint16) (wrid uint64, ok bool) {
	s, ok := q.outstanding(index)
	if !ok {
		return 0, false
	}
	q.ci = s.end
	return s.wrid, true
}

// snapshot is a copy of the WQE with this index, nil if it is not outstanding.
func (q *SendQueue) snapshot(index uint16) []byte {
	s, ok := q.outstanding(index)
	if !ok {
		return nil
	}
	var b []byte
	for pi := s.end - uint64(uint16(s.end)-index); pi != s.end; pi++ {
		b = append(b, q.block(pi)[:]...)
	}
	if n := int(b[7]&maxDS) * wqeUnit; n > 0 && n < len(b) {
		b = b[:n]
	}
	return b
}
