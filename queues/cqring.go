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
	at    int    // where the next entry lies in buf; len(buf) stands for 0 of the next pass
	pass  uint32 // the owner bit of an entry at at that has arrived
	last  *peer  // the queue pair of the newest completion
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
	r.seek(0)
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
	if n = r.sends(dst); n == len(dst) {
		return n, nil
	}
	return r.pollSlow(dst, n)
}

// sends is the hot loop: it takes the successes of the send queue that completed
// last, up to the end of the ring or the first entry that is anything else.
func (r *CQRing) sends(dst []Completion) (n int) {
	p := r.last
	sq, slots := p.sq, p.sq.slots
	buf, pass := r.buf[r.at:], r.pass
	left := sq.pi - sq.ci
	if len(slots) == 0 {
		return 0
	}
	dst = dst[:min(len(dst), len(buf)/cqeSize)]
	for n < len(dst) {
		at := n * cqeSize
		e := (*[cqeSize]byte)(buf[at : at+cqeSize : at+cqeSize])
		own := r.ownOf(e, at)
		if own&0xfd != pass { // opcode 0, format 0, the owner bit of this pass; solicited or not
			break
		}
		fromDevice()
		who := binary.LittleEndian.Uint32(e[0x38:0x3c])
		s := &slots[int(own>>16)&(len(slots)-1)]
		rest := sq.pi - s.end
		if who&0xffffff00 != p.who || rest >= left { // another queue, or not outstanding
			break
		}
		left = rest
		c := &dst[n]
		c.WRID, c.QPN, c.ByteLen = s.wrid, p.qpn, binary.BigEndian.Uint32(e[0x2c:0x30])
		c.Opcode, c.Syndrome, c.SendOpcode = prm.CQEReq, 0, prm.WQEOpcode(who)
		n++
	}
	if n > 0 {
		sq.ci = sq.pi - left
		r.at += n * cqeSize
		r.ci += uint32(n)
		r.rec.store(recordConsumer, r.ci&ciMask)
	}
	return n
}

// pollSlow goes on where the hot loop stopped: with an entry that is anything
// else, with another queue pair, at the end of the ring, or with nothing.
//
//go:noinline
func (r *CQRing) pollSlow(dst []Completion, n int) (int, error) {
	for n < len(dst) {
		if r.at == len(r.buf) {
			r.at, r.pass = 0, r.pass^1
		}
		e := prm.AsCQE64(r.buf[r.at:])
		own := r.ownOf((*[cqeSize]byte)(e), 0)
		if own&1 != r.pass || own&0xf0 == 0xf0 {
			if n > 0 {
				return n, nil
			}
			return 0, r.idle()
		}
		fromDevice()
		if p := r.peers.find(e.QPN()); p != r.last {
			r.last = p
		} else {
			if err := r.other(&dst[n], e); err != nil {
				return n, err
			}
			n++
		}
		n += r.sends(dst[n:])
	}
	return n, nil
}

// seek makes ci the next entry to be polled.
func (r *CQRing) seek(ci uint32) {
	r.ci, r.at, r.pass = ci, int(ci&r.mask)*cqeSize, ci>>r.log&1
}

// ownOf loads the dword with the owner bit of an entry, which lies off bytes
// behind r.at. Without the race detector it is a plain aligned load, as doorbell
// records are plain stores (race_off.go): what the entry guards is loaded behind
// the branch on it, and fromDevice orders the two for the CPU.
func (r *CQRing) ownOf(e *[cqeSize]byte, off int) uint32 {
	if raceEnabled {
		return r.mem.LoadBE32(r.at + off + cqeOwn)
	}
	return binary.BigEndian.Uint32(e[cqeOwn : cqeOwn+4])
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
