package queues

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// DefaultBlueFlameSize is the size in bytes of one BlueFlame buffer where the
// device says nothing else: log_bf_reg_size 9 is a register of 512 bytes, which
// is two buffers.
const DefaultBlueFlameSize = 256

// blueFlame are the two buffers of a BlueFlame register, which take turns (rdma-core
// qp.c, post_send_db): while the processor still combines the stores to one, the
// next post goes to the other. Without BlueFlame nothing is combined, and one
// register does, as in Linux's Ethernet driver (en/txrx.h, mlx5e_notify_hw).
type blueFlame struct {
	bells [2]vfio.Doorbell
	turn  int
	size  int // of one buffer in bytes
}

// newBlueFlame finds the buffers, which lie behind each other in the upper half of
// the page.
func newBlueFlame(u *UAR, r record, size int) (*blueFlame, error) {
	if size <= 0 {
		size = DefaultBlueFlameSize
	}
	if size&(size-1) != 0 || size < WQEBB || size > UARBlueFlame/2 {
		return nil, fmt.Errorf("make a send queue with BlueFlame buffers of %d bytes: %w; powers of two from %d to %d are possible, or post without BlueFlame",
			size, vfio.ErrRange, WQEBB, UARBlueFlame/2)
	}
	b := &blueFlame{size: size}
	for i := range b.bells {
		b.bells[i] = newDoorbell(u, r, recordSend, uint64(UARBlueFlame+i*size))
	}
	return b, nil
}

// ring tells the device about the blocks from the running number from on: a WQE
// that is alone, fits and does not wrap goes into the buffer as it is.
func (b *blueFlame) ring(q *SendQueue, from uint32) {
	bell := &b.bells[b.turn]
	b.turn ^= 1
	first, n := q.index(uint64(from)), int(uint32(q.pi)-from)
	if q.slots[first].end != q.pi || n*WQEBB > b.size || first+n > len(q.slots) {
		bell.Ring(wireCount(q.pi), q.first8)
		return
	}
	toDevice()
	q.rec.store(recordSend, uint32(uint16(q.pi)))
	toDevice()
	bell.CopyWC(q.buf[first*WQEBB : (first+n)*WQEBB])
	mmio.FlushWC()
}
