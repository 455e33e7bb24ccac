package queues

import (
	"encoding/binary"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Doorbell records are 8 bytes of host memory (PRM section Doorbell Record).
const (
	// RecordSize is the size of a doorbell record in bytes, and its alignment.
	RecordSize = 8
	// recordRecv and recordSend are the words of a queue pair's record: the
	// number of receive WQEs, and of WQEBBs, posted so far, 16 bits each.
	recordRecv = 0
	recordSend = 4
	// recordConsumer and recordArm are the words of a CQ's record.
	recordConsumer = 0
	recordArm      = 4
)

// DefaultBlueFlameSize is the size in bytes of one BlueFlame buffer where the
// device says nothing else: log_bf_reg_size 9 is a register of 512 bytes, which
// is two buffers.
const DefaultBlueFlameSize = 256

// record is a doorbell record as its queue writes it.
type record struct {
	mem vfio.Mem
	raw *[RecordSize]byte
}

func newRecord(m vfio.Mem) record { return record{m, (*[RecordSize]byte)(m.Bytes())} }

// close puts private memory in the place of the record, which may then go and be
// another queue's.
func (r *record) close() { *r = newRecord(vfio.MemOf(make([]byte, RecordSize))) }

// store writes one word in a single store (race_off.go says why not atomically).
// It swaps first: of a big-endian store of a 16-bit number the compiler would make
// three.
func (r *record) store(off int, v uint32) {
	if raceEnabled {
		r.mem.StoreBE32(off, v)
		return
	}
	binary.LittleEndian.PutUint32(r.raw[off&4:off&4+4], bits.ReverseBytes32(v))
}

// doorbell is the 8-byte register a queue rings: in a UAR page, or, for
// measurements without a device, in a page of ordinary memory.
type doorbell struct {
	win  *vfio.Window
	at   uint64 // where the UAR page begins in the window; 0 in a page of memory
	page *[1 << adapterPageShift]byte
}

func newDoorbell(u *UAR) doorbell {
	if u == nil {
		return doorbell{page: new([1 << adapterPageShift]byte)}
	}
	return doorbell{win: u.dev.BAR, at: u.off}
}

// ring stores v, big-endian, at byte off of the window.
func (d *doorbell) ring(off, v uint64) {
	if d.win != nil {
		d.win.WriteBE64(off, v)
		return
	}
	binary.LittleEndian.PutUint64(d.page[off&(1<<adapterPageShift-8):], bits.ReverseBytes64(v))
}

// copyWC writes whole 64-byte blocks at byte off of the window and pushes them out
// (BlueFlame).
func (d *doorbell) copyWC(off uint64, p []byte) {
	if d.win != nil {
		d.win.CopyWC(off, p)
	} else {
		copy(d.page[off:], p)
	}
	mmio.FlushWC()
}
