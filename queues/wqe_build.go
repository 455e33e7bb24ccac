package queues

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// inlineBit marks a segment that holds data instead of pointing to them (Linux
// MLX5_INLINE_SEG).
const inlineBit = 1 << 31

// builder writes a WQE of any length unit by unit. A ring is a whole number of
// 16-byte units, so a unit never wraps, while any segment larger than one may
// (ruling W5). WQEs of one block never wrap; their builders write the block
// directly.
type builder struct {
	q  *SendQueue
	pi uint64
	ds int
	op prm.WQEOpcode
}

// begin checks that a WQE of ds units is allowed and has room. Nothing counts
// until finish.
func (q *SendQueue) begin(op prm.WQEOpcode, ds int) (builder, error) {
	if ds > q.maxDS && !q.dead {
		return builder{}, q.refuse(op, ErrTooLong, "%d bytes, the limit is %d; use fewer pieces or less inline data", ds*wqeUnit, q.maxDS*wqeUnit)
	}
	if !q.room(blocksOf(ds)) {
		return builder{}, q.full()
	}
	return builder{q, q.pi, ds, op}, nil
}

// blocksOf is the number of blocks of a WQE of ds units.
func blocksOf(ds int) uint64 { return uint64(ds*wqeUnit+WQEBB-1) / WQEBB }

// at is the ring memory of unit i of the WQE.
func (b *builder) at(i int) *[wqeUnit]byte {
	blk := b.q.block(b.pi + uint64(i)/4)
	return (*[wqeUnit]byte)(blk[i%4*wqeUnit:])
}

// unit writes unit i as two big-endian quadwords.
func (b *builder) unit(i int, hi, lo uint64) {
	u := b.at(i)
	binary.BigEndian.PutUint64(u[0:8], hi)
	binary.BigEndian.PutUint64(u[8:16], lo)
}

// sges writes data segments from unit i on, empty ones left out (ruling W3).
func (b *builder) sges(i int, first SGE, more []SGE) {
	if first.Len != 0 {
		b.unit(i, uint64(first.Len)<<32|uint64(first.LKey), first.Addr)
		i++
	}
	for j := range more {
		if s := &more[j]; s.Len != 0 {
			b.unit(i, uint64(s.Len)<<32|uint64(s.LKey), s.Addr)
			i++
		}
	}
}

// inline writes an inline segment from unit i on, padded with zeros (ruling W2).
// Without data there is none.
func (b *builder) inline(i int, p []byte) {
	if len(p) == 0 {
		return
	}
	u := b.at(i)
	binary.BigEndian.PutUint32(u[0:4], inlineBit|uint32(len(p)))
	n := copy(u[4:], p)
	clear(u[4+n:])
	for p = p[n:]; len(p) > 0; p = p[n:] {
		i++
		u = b.at(i)
		n = copy(u[:], p)
		clear(u[n:])
	}
}

// inlineUnits is the number of units an inline segment of n bytes takes.
func inlineUnits(n int) int {
	if n == 0 {
		return 0
	}
	return (4 + n + wqeUnit - 1) / wqeUnit
}

// finish writes the control segment and makes the WQE part of the queue.
func (b *builder) finish(opmod uint8, f Flags, imm uint32, wrid uint64) {
	c0 := b.q.ctrl0(b.pi) | uint64(opmod)<<56 | uint64(b.op)<<32 | uint64(b.ds)
	w, s := b.q.place(b.pi)
	putCtrl(w, c0, f, imm)
	b.q.commit(s, b.pi, blocksOf(b.ds), c0, wrid)
}

func (b *builder) commit(c0, wrid uint64) {
	_, s := b.q.place(b.pi)
	b.q.commit(s, b.pi, blocksOf(b.ds), c0, wrid)
}

// countSGEs is the number of pieces that are not empty.
func (q *SendQueue) countSGEs(op prm.WQEOpcode, first SGE, more []SGE) (int, error) {
	n := 0
	for i := -1; i < len(more); i++ {
		size := first.Len
		if i >= 0 {
			size = more[i].Len
		}
		if size > maxLen {
			return 0, q.refuse(op, ErrTooLong, "a piece of %d bytes, the limit is %d", size, maxLen)
		}
		if size != 0 {
			n++
		}
	}
	return n, nil
}
