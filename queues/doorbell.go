package queues

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// Doorbell records are 8 bytes of host memory (qpc.dbr_addr; Linux doorbell.h, qp.h).
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

// checkAligned refuses memory of a queue whose words cannot be accessed whole.
func checkAligned(what string, ring, rec vfio.Mem) error {
	if ring.Aligned(8) && rec.Aligned(RecordSize) {
		return nil
	}
	return fmt.Errorf("make a %s: %w: ring and record must begin at multiples of 8 bytes of this process's memory; take them from an AddressSpace", what, vfio.ErrRange)
}

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

// newDoorbell is the doorbell that counts in the word at byte word of the record
// and rings the register at byte reg of a UAR page. Nil puts a page of ordinary
// memory in its place: the queue then works without a device.
func newDoorbell(u *UAR, r record, word int, reg uint64) vfio.Doorbell {
	count := r.mem.Slice(word, 4)
	if u == nil {
		return vfio.WindowOf("no device", make([]byte, vfio.DoorbellPage)).Doorbell(reg, count)
	}
	return u.dev.BAR.Doorbell(u.off+reg, count)
}
