package queues

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

const (
	// cqeSize is the size of an entry in bytes.
	cqeSize = prm.CQE64Size
	// cqeOwn is the dword of a CQE that holds WQE counter, opcode, format and
	// owner bit.
	cqeOwn = 0x3c
	// cqeNever is the last byte of an entry the device has not written yet:
	// opcode 0xf (Linux cq.c).
	cqeNever = uint8(prm.CQEInvalid) << 4
)

// CQRingConfig is what the ring of a completion queue is made of.
type CQRingConfig struct {
	// Name appears in messages.
	Name string
	// CQN is the number of the queue.
	CQN uint32
	// Ring is 64 << LogSize bytes that the device writes CQEs to.
	Ring vfio.Mem
	// Record is the 8-byte doorbell record.
	Record vfio.Mem
	// LogSize is log2 of the number of entries, 0 … 22.
	LogSize uint8
	// UAR is the page whose register arms the queue; nil puts a page of ordinary
	// memory in its place.
	UAR *UAR
}

// CQRing is the ring of completions of a CQ. Queues whose WQEs complete here are
// attached; Poll finds the queue of each CQE, retires its WQEs and returns the
// wrid.
//
// It belongs to one caller at a time, together with the attached queues; only
// Notified and Break may be called by others.
type CQRing struct {
	mem   vfio.Mem
	buf   []byte
	mask  uint32
	log   uint8
	ci    uint32 // entries polled, running freely; the device sees 24 bits
	last  *peer  // the queue of the newest completion
	peers peers
	rec   record
	db    doorbell
	cqn   uint32
	name  string

	sn     atomic.Uint32 // completion events seen: the arm sequence number
	broken atomic.Pointer[CQError]
}

// NewCQRing makes the software side of a completion queue, marks every entry as
// not written and prepares the record. It must be done before the device hears of
// the ring.
func NewCQRing(c CQRingConfig) (*CQRing, error) {
	r := new(CQRing)
	return r, r.init(c)
}

func (r *CQRing) init(c CQRingConfig) error {
	if c.LogSize > 22 {
		return fmt.Errorf("make CQ %s of 2^%d entries: %w; 22 is the most a 24-bit consumer index allows", c.Name, c.LogSize, vfio.ErrRange)
	}
	size := 1 << c.LogSize
	if c.Ring.Len() != size*cqeSize || c.Record.Len() < RecordSize {
		return fmt.Errorf("make CQ %s of %d entries: %w: the ring has %d bytes and needs %d, the record has %d and needs %d",
			c.Name, size, vfio.ErrRange, c.Ring.Len(), size*cqeSize, c.Record.Len(), RecordSize)
	}
	r.mem, r.buf, r.mask, r.log = c.Ring, c.Ring.Bytes(), uint32(size)-1, c.LogSize
	r.rec, r.db, r.cqn, r.name = newRecord(c.Record), newDoorbell(c.UAR), c.CQN, c.Name
	r.last = &nobody
	for i := range size {
		r.mem.StoreBE32(i*cqeSize+cqeOwn, uint32(cqeNever))
	}
	r.rec.store(recordConsumer, 0)
	r.rec.store(recordArm, armInitial)
	return nil
}

// Poll takes up to len(dst) completions and returns how many there were. Failed
// WQEs are completions like others: look at OK, and have Err explain them. The
// error is about the CQ, a *CQError; dst[:n] is good whatever it says. Poll
// neither allocates nor takes a lock as long as nothing fails.
func (r *CQRing) Poll(dst []Completion) (n int, err error) {
	ci := r.ci
	p := r.last
	for n < len(dst) {
		own := r.own(ci)
		if own&1 != ci>>r.log&1 || own&0xf0 == 0xf0 {
			break
		}
		fromDevice()
		e := (*[cqeSize]byte)(r.buf[int(ci&r.mask)*cqeSize:])
		who := binary.BigEndian.Uint32(e[0x38:0x3c])
		if who&0xffffff != p.qpn {
			p = r.peers.find(who & 0xffffff)
		}
		c := &dst[n]
		if own&0xfc == 0 && p.sq != nil {
			wrid, ok := p.sq.retire(uint16(own >> 16))
			if ok {
				ci++
				n++
				*c = Completion{
					WRID: wrid, QPN: who & 0xffffff, SendOpcode: prm.WQEOpcode(who >> 24),
					ByteLen: binary.BigEndian.Uint32(e[0x2c:0x30]),
				}
				continue
			}
		}
		took, e2 := r.other(c, (*prm.CQE64)(e), p, ci)
		if e2 != nil {
			err = e2
			ci += took
			break
		}
		ci++
		n++
	}
	if ci != r.ci {
		r.ci, r.last = ci, p
		r.rec.store(recordConsumer, ci&ciMask)
	} else if err == nil && len(dst) > 0 {
		err = r.idle()
	}
	return n, err
}

// own loads the dword with the owner bit of entry ci.
func (r *CQRing) own(ci uint32) uint32 {
	return r.mem.LoadBE32(int(ci&r.mask)*cqeSize + cqeOwn)
}

// ready tells whether entry ci has arrived.
func (r *CQRing) ready(ci uint32) bool {
	own := r.own(ci)
	return own&1 == ci>>r.log&1 && own&0xf0 != 0xf0
}
