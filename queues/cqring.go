package queues

import (
	"fmt"
	"math/bits"
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
	// What Poll reads and writes for every list comes first, in a cache line or two.

	lines []vfio.Line // the entries
	at    int         // index of the next entry; len(lines) stands for 0 of the next pass
	turn  uint32      // running index of entry 0 of this pass
	pass  uint32      // the owner bit of an entry of this pass that has arrived
	last  *peer       // the queue pair of the newest completion
	rec   record

	mem   vfio.Mem
	buf   []byte
	mask  uint32
	log   uint8
	peers peers
	bell  vfio.Doorbell
	cqn   uint32
	name  string

	sn     atomic.Uint32 // completion events seen: the arm sequence number
	broken atomic.Pointer[CQError]
}

// ci counts the entries that were polled. It runs freely; the device sees 24 bits.
func (r *CQRing) ci() uint32 { return r.turn + uint32(r.at) }

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
	r.mem, r.buf, r.lines, r.mask, r.log = c.Ring, c.Ring.Bytes(), c.Ring.Lines(), uint32(size)-1, c.LogSize
	r.rec, r.cqn, r.name = newRecord(c.Record), c.CQN, c.Name
	r.bell = newDoorbell(c.UAR, r.rec, recordArm)
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
//
// The hot paths take successes of the send queue that completed last; pollSlow has
// the rest.
func (r *CQRing) Poll(dst []Completion) (int, error) {
	if len(dst) != 1 {
		return r.pollList(dst)
	}
	// One completion: as the loop of sends, without what a loop needs, and with
	// every load before the first store.
	p, at := r.last, r.at
	sq := p.sq
	if uint(at) >= uint(len(r.lines)) || len(sq.slots) == 0 {
		return r.pollSlow(dst, 0)
	}
	e := &r.lines[at]
	if r.ownByte(e, at)&0xfd != r.pass {
		return r.pollSlow(dst, 0)
	}
	fromDevice()
	w, size := e[cqeOwn/8], uint32(e[5]>>32)
	s := &sq.slots[wqeIndex(w)&(len(sq.slots)-1)]
	wrid, end, pi := s.wrid, s.end, sq.pi
	if uint32(w)&0xffffff00 != p.who || pi-end >= pi-sq.ci {
		return r.pollSlow(dst, 0)
	}
	sq.ci = end
	at++
	r.at = at
	c := &dst[0]
	c.WRID, c.QPN, c.ByteLen = wrid, p.qpn, bits.ReverseBytes32(size)
	c.Opcode, c.Syndrome, c.SendOpcode = prm.CQEReq, 0, prm.WQEOpcode(w)
	r.rec.store(recordConsumer, (r.turn+uint32(at))&ciMask)
	return 1, nil
}

// pollList is Poll of any number.
//
//go:noinline
func (r *CQRing) pollList(dst []Completion) (int, error) {
	n := r.sends(dst)
	if n < len(dst) {
		return r.pollSlow(dst, n)
	}
	return n, nil
}

// wqeIndex is the WQE counter of a CQE, of the word with the owner bit.
func wqeIndex(w uint64) int { return int(bits.ReverseBytes16(uint16(w >> 32))) }

// sends is the hot loop: it takes the successes of the send queue that completed
// last, up to the end of the ring or the first entry that is anything else.
func (r *CQRing) sends(dst []Completion) (n int) {
	p, at := r.last, r.at
	slots := p.sq.slots
	if at >= len(r.lines) || len(slots) == 0 {
		return 0
	}
	lines := r.lines[:len(r.lines):len(r.lines)][at:]
	dst = dst[:min(len(dst), len(lines))]
	pi, pass := p.sq.pi, r.pass
	left := pi - p.sq.ci
	for n < len(dst) && n < len(lines) {
		e := &lines[n]
		if r.ownByte(e, at+n)&0xfd != pass { // opcode 0, format 0, the owner bit of this pass; solicited or not
			break
		}
		fromDevice()
		w := e[cqeOwn/8] // send opcode and QPN, WQE counter, signature, owner
		s := &slots[wqeIndex(w)&(len(slots)-1)]
		wrid, rest, size := s.wrid, pi-s.end, uint32(e[5]>>32)
		if uint32(w)&0xffffff00 != p.who || rest >= left { // another queue, or not outstanding
			break
		}
		left = rest
		c := &dst[n]
		c.WRID, c.QPN, c.ByteLen = wrid, p.qpn, bits.ReverseBytes32(size)
		c.Opcode, c.Syndrome, c.SendOpcode = prm.CQEReq, 0, prm.WQEOpcode(w)
		n++
	}
	if n > 0 {
		p.sq.ci = pi - left
		r.at += n
		r.rec.store(recordConsumer, r.ci()&ciMask)
	}
	return n
}

// pollSlow goes on where the hot loop stopped: with an entry that is anything
// else, with another queue pair, at the end of the ring, or with nothing.
//
//go:noinline
func (r *CQRing) pollSlow(dst []Completion, n int) (int, error) {
	for n < len(dst) {
		if r.at == len(r.lines) {
			r.at, r.turn, r.pass = 0, r.turn+r.mask+1, r.pass^1
		}
		own := r.ownByte(&r.lines[r.at], r.at)
		if own&1 != r.pass || own&0xf0 == 0xf0 {
			if n > 0 {
				return n, nil
			}
			return 0, r.idle()
		}
		fromDevice()
		e := r.entry(r.ci())
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
	r.at, r.turn, r.pass = int(ci&r.mask), ci&^r.mask, ci>>r.log&1
}

// ownByte loads the byte with opcode, format and owner bit of entry at. Without the
// race detector that is a plain aligned load of its word, as doorbell records are
// plain stores (race_off.go): what the entry guards is loaded behind the branch on
// it, and fromDevice orders the two for the CPU.
func (r *CQRing) ownByte(e *vfio.Line, at int) uint32 {
	if raceEnabled {
		return r.mem.LoadBE32(at*cqeSize+cqeOwn) & 0xff
	}
	return uint32(e[cqeOwn/8] >> 56)
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
