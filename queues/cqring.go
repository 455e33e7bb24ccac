package queues

import (
	"encoding/binary"
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
	at    uint32      // index of the next entry; len(lines) stands for 0 of the next pass
	turn  uint32      // running index of entry 0 of this pass
	want  uint64      // what plain keeps of an entry that the hot loops take
	sq    *SendQueue  // of the queue pair that completed last
	rec   record
	last  *peer // the queue pair that completed last

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

// plain are the bits of the last word of an entry that tell whether the hot loops
// take it: opcode 0 and format 0, solicited or not, the owner bit of this pass, and
// the number of the queue pair that completed last. One comparison with what is
// wanted is for all: the difference has none of them, and its low 32 bits are then
// the send opcode alone.
const plain = 0xfd<<56 | 0xffffff00

// ownBit is the owner bit in the last word.
const ownBit = 1 << 56

// ci counts the entries that were polled. It runs freely; the device sees 24 bits.
func (r *CQRing) ci() uint32 { return r.turn + r.at }

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
	if err := checkAligned("CQ "+c.Name, c.Ring, c.Record); err != nil {
		return err
	}
	r.mem, r.buf, r.lines, r.mask, r.log = c.Ring, c.Ring.Bytes(), c.Ring.Lines(), uint32(size)-1, c.LogSize
	r.rec, r.cqn, r.name = newRecord(c.Record), c.CQN, c.Name
	r.bell = newDoorbell(c.UAR, r.rec, recordArm, UARCQDoorbell)
	r.follow(&nobody)
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
// error is about the CQ, a *CQError; dst[:n] is good whatever it says, and behind it
// an entry may have been begun. Poll neither allocates nor takes a lock as long as
// nothing fails.
//
// The hot paths take successes of the send queue that completed last; pollSlow has
// the rest. A list of one is polled where Poll is called, as the loop of sends does
// it, without what a loop needs.
func (r *CQRing) Poll(dst []Completion) (int, error) {
	return inlined(func() (int, error) {
		if len(dst) != 1 {
			return r.pollMany(dst)
		}
		at, lines, want := int(r.at), r.lines, r.want
		if uint(at) < uint(len(lines)) {
			e := &lines[at]
			if w := r.word(e, at) ^ want; w&plain == 0 {
				fromDevice()
				c, sq := &dst[0], r.sq
				c.success(w)
				slots, i := sq.slots, wqeIndex(w)&sq.mask
				if i < uint(len(slots)) && slots[i].end > sq.ci { // outstanding
					sq.ci = slots[i].end
					c.sent(slots[i].wrid, want<<32, byteCount(e))
					at++
					r.at = uint32(at)
					r.rec.store(recordConsumer, (r.turn+uint32(at))&ciMask)
					return 1, nil
				}
			}
		}
		return r.pollRest(dst)
	})
}

// pollMany is Poll with a list of any other length. What it calls checks the stack,
// which is enough.
//
//go:nosplit
func (r *CQRing) pollMany(dst []Completion) (int, error) {
	n, ci := r.sends(dst)
	if n < len(dst) || n == 0 {
		return r.pollSlow(dst, n, ci)
	}
	r.took(n, ci)
	return n, nil
}

// pollRest is Poll with a list of one when the entry is none the hot paths take.
// That it has not arrived is the most frequent answer of all to a caller who waits.
//
//go:noinline
func (r *CQRing) pollRest(dst []Completion) (int, error) {
	if at := int(r.at); at < len(r.lines) && !r.arrived(r.ownByte(&r.lines[at], at)) && r.quiet(at) {
		return 0, nil
	}
	return r.pollSlow(dst, 0, 0)
}

// arrived tells whether this is the byte of an entry that the device has written in
// this pass.
func (r *CQRing) arrived(own uint32) bool {
	return own&1 == uint32(r.want>>56) && own&0xf0 != 0xf0
}

// quiet tells that entry at has not arrived for the ordinary reason: nobody has
// broken the CQ, and the entry before it, which was polled, has not been written
// again since. Otherwise idle finds out.
func (r *CQRing) quiet(at int) bool {
	own := uint32(r.want >> 56)
	if at == 0 {
		at, own = len(r.lines), own^1
	}
	at--
	return uint(at) < uint(len(r.lines)) && r.ownByte(&r.lines[at], at)&1 == own && r.broken.Load() == nil
}

// byteCount is the byte count of a CQE as it lies there.
func byteCount(e *vfio.Line) uint32 { return binary.LittleEndian.Uint32(e.Bytes()[0x2c:0x30]) }

// wqeIndex is the WQE counter of a CQE, of the word with the owner bit, with other
// bits above it.
func wqeIndex(w uint64) uint { return uint(bits.ReverseBytes64(w) >> 16) }

// sends is the hot loop: it takes the successes of the send queue that completed
// last, up to the end of the ring or the first entry that is anything else. If there
// were any, ci is how far the send queue has completed. It changes nothing but dst
// (of the entry it stops at perhaps a field), and calls nothing, so that all it has
// stays in registers; took does the rest.
func (r *CQRing) sends(dst []Completion) (n int, ci uint64) {
	sq, at := r.sq, int(r.at)
	slots, rest := sq.slots, len(r.lines)-at
	if len(slots) == 0 || rest <= 0 {
		return 0, 0
	}
	lines := r.lines[at:len(r.lines):len(r.lines)]
	dst = dst[:min(len(dst), rest)]
	lines = lines[:len(dst)]
	want, who := r.want, r.want<<32
	ci = sq.ci
	for n < len(dst) {
		w := r.word(&lines[n], at+n) ^ want
		if w&plain != 0 {
			break
		}
		fromDevice()
		e := &lines[n]
		c := &dst[n]
		s := &slots[wqeIndex(w)&uint(len(slots)-1)]
		if s.end <= ci { // not outstanding
			break
		}
		ci = s.end
		c.success(w)
		c.sent(s.wrid, who, byteCount(e))
		n++
	}
	return n, ci
}

// took steps over n > 0 entries that sends has taken.
func (r *CQRing) took(n int, ci uint64) {
	r.sq.ci = ci
	r.at += uint32(n)
	r.rec.store(recordConsumer, r.ci()&ciMask)
}

// pollSlow goes on where the hot loop stopped, after n entries and with the send
// queue completed up to ci: with an entry that is anything else, with another queue
// pair, at the end of the ring, or with nothing.
//
//go:noinline
func (r *CQRing) pollSlow(dst []Completion, n int, ci uint64) (int, error) {
	if n > 0 {
		r.took(n, ci)
	}
	for n < len(dst) {
		if r.at > r.mask {
			r.at, r.turn, r.want = 0, r.turn+r.mask+1, r.want^ownBit
		}
		if !r.arrived(r.ownByte(&r.lines[r.at], int(r.at))) {
			if n > 0 {
				return n, nil
			}
			return 0, r.idle()
		}
		fromDevice()
		e := r.entry(r.ci())
		if p := r.peers.find(e.QPN()); p != r.last {
			r.follow(p)
		} else {
			if err := r.other(&dst[n], e); err != nil {
				return n, err
			}
			n++
		}
		if k, ci := r.sends(dst[n:]); k > 0 {
			r.took(k, ci)
			n += k
		}
	}
	return n, nil
}

// seek makes ci the next entry to be polled.
func (r *CQRing) seek(ci uint32) {
	r.at, r.turn = ci&r.mask, ci&^r.mask
	r.want = r.want&^ownBit | uint64(ci>>r.log&1)<<56
}

// follow makes p the queue pair whose completions the hot loops take.
func (r *CQRing) follow(p *peer) {
	r.last, r.sq = p, p.sq
	r.want = r.want&ownBit | uint64(p.who)
}

// word loads the last word of entry at: send opcode and QPN, WQE counter,
// signature, and what ownByte has. An entry that has not arrived is none of plain.
func (r *CQRing) word(e *vfio.Line, at int) uint64 {
	if raceEnabled && r.ownByte(e, at)&0xfd != uint32(r.want>>56) {
		return ^uint64(0)
	}
	return e[cqeOwn/8]
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
