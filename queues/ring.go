package queues

import (
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// ciMask: consumer indexes of EQs are 24 bits wide.
const ciMask = 1<<24 - 1

// ownerWord is the byte offset of the dword of an EQE that holds the owner bit
// (bit 0).
const ownerWord = 0x3c

// ring is the memory side of an EQ: entries, owner bits and the consumer index.
// Entry ci is ours when its owner bit equals bit log2(size) of ci: 0 in the first
// pass, 1 in the second, and so on (Linux eq.h).
type ring struct {
	mem   vfio.Mem
	log   uint8
	ci    uint32
	entry prm.EQE // copy of the entry being handled
}

// init takes the memory and marks every entry as the device's.
func (r *ring) init(mem vfio.Mem, log uint8) {
	r.mem, r.log, r.ci = mem, log, 0
	for i := range 1 << log {
		r.mem.StoreBE32(i*eqeSize+ownerWord, 1)
	}
}

// ready tells whether the entry with this running index has arrived.
func (r *ring) ready(ci uint32) bool {
	off := int(ci&(1<<r.log-1)) * eqeSize
	return r.mem.LoadBE32(off+ownerWord)&1 == ci>>r.log&1
}

// next copies the next entry to r.entry and steps over it.
func (r *ring) next() bool {
	if !r.ready(r.ci) {
		return false
	}
	mmio.FromDevice()
	r.mem.CopyOut(int(r.ci&(1<<r.log-1))*eqeSize, r.entry[:])
	r.ci++
	return true
}

// overrun tells whether the device has lapped the consumer. A lapped entry has
// the owner bit of the next pass, so it looks as if it had not arrived, while
// its successor still bears the bit of this pass: in a ring that the device
// fills in order that cannot happen otherwise. The third look excludes that both
// arrived between the first and the second. A device that stops at a full ring,
// as ours is asked to, never gets here; QUERY_EQ shows that case.
func (r *ring) overrun() bool {
	return r.log > 0 && !r.ready(r.ci) && r.ready(r.ci+1) && !r.ready(r.ci)
}

// OverrunError says that an EQ was lapped: events are lost, and which ones is
// unknown.
type OverrunError struct {
	EQ       string
	EQN      uint8
	Consumer uint32
}

// Error names the queue and the way out.
func (e *OverrunError) Error() string {
	return fmt.Sprintf("the %s EQ (EQN %d) was overrun at consumer index %#x: events are lost; close and open the device again, and make the queue larger",
		e.EQ, e.EQN, e.Consumer)
}
