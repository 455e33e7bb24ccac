package tracer

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// ring reads the blocks that the device writes into memory, around and around. It
// belongs to one goroutine, starts none, and allocates nothing.
//
// The device closes blocks in order of their places; the last word of a block is its
// closing timestamp, written last. A copy of the block at a place is whole if, after
// it was made, the place in front still holds the closing word of the block read
// there: the device comes to that place first, so it has not come to this one again.
// That also holds for the very first block, since the memory was zero.
//
// Blocks have numbers: all that the device wrote since the capture began, read or
// not. Number n lies at place (n + shift) mod blocks.
type ring struct {
	mem    vfio.Mem
	blocks uint64 // a power of two
	mask   uint64
	out    sink

	next  uint64 // number of the block to read
	shift uint64
	prev  uint64 // what the place in front of it must hold
	first bool   // none was read since the device began
	last  uint64 // closing time of the one read last

	// The newest block that was known to be there at some time, and its closing
	// word: as long as that is unchanged, the device has not come around more than
	// once since. Without it nobody knows how often.
	witness     uint64 // place
	witnessWord uint64
	witnessGood bool
	since       int    // blocks read since it was looked for
	margin      uint64 // blocks to leave out when the device has come around
	calm        uint64 // number from which on it may shrink again

	words []uint64 // room for every closing word
	old   []uint64 // by place: the closing word that was there before the device came, or comes, to it this time
	stats ringStats
}

// ringStats count what happened to the ring.
type ringStats struct {
	read     uint64 // blocks taken whole
	unclosed uint64 // among them: passed over by the device without a timestamp
	torn     uint64 // copies that the device overtook
	laps     uint64 // times that the device was found to have come around
}

// sink takes blocks and learns of missing ones. It must not wait.
type sink interface {
	// target is where to copy a block to, before block is called with it.
	target() *[trace.BlockSize]byte
	// block is number n, closed at time t; closed is false for one that has none.
	block(n, t uint64, closed bool, data *[trace.BlockSize]byte)
	// lose says that n blocks from number first on are missing.
	lose(first, n uint64, atLeast bool, why capture.Cause)
}

const closingWord = trace.BlockSize - trace.EventSize

func newRing(mem vfio.Mem, out sink) *ring {
	n := uint64(mem.Len() / trace.BlockSize)
	r := &ring{mem: mem, blocks: n, mask: n - 1, out: out, words: make([]uint64, n), old: make([]uint64, n)}
	r.restart()
	return r
}

// restart begins at the first place of zeroed memory; numbers go on.
func (r *ring) restart() {
	r.shift = -r.next & r.mask
	r.prev, r.first, r.margin, r.since = 0, true, 0, 0
	r.witness, r.witnessWord, r.witnessGood = r.mask, 0, true
	clear(r.old)
}

func (r *ring) place(n uint64) uint64 { return (n + r.shift) & r.mask }

// word is the closing word of a place.
func (r *ring) word(place uint64) uint64 {
	return r.mem.LoadBE64(int(place)*trace.BlockSize + closingWord)
}

// fresh tells whether a closing word is of a block that comes after the last one read.
func (r *ring) fresh(w uint64) bool {
	e := trace.Event(w)
	return e.IsTimestamp() && (r.first || trace.Newer(e.Time(), r.last))
}

// witnessEvery is how many blocks are read before the newest one is looked for again.
const witnessEvery = 64

// drain reads what is there, at most limit blocks, and answers how many numbers it
// went on.
func (r *ring) drain(limit int) (n int) {
	from := r.next
	for range limit {
		if !r.step() {
			break
		}
	}
	return int(r.next - from)
}

// step handles the next block; false if it is not there yet.
func (r *ring) step() bool {
	at := r.place(r.next)
	w := r.word(at)
	if !r.fresh(w) {
		return r.passed(at)
	}
	if r.word((at-1)&r.mask) != r.prev {
		r.lapped()
		return true
	}
	if r.since%witnessEvery == 0 {
		r.look()
	}
	r.since++
	data, whole := r.copy(at, w)
	if !whole {
		return true
	}
	r.advance(at, w)
	r.stats.read++
	r.out.block(r.next-1, r.last, true, data)
	return true
}

// advance goes on to the next block: this one, at a place, closed with w.
func (r *ring) advance(at, w uint64) {
	r.prev, r.next, r.old[at] = w, r.next+1, w
	if e := trace.Event(w); e.IsTimestamp() {
		r.last, r.first = e.Time(), false
	}
	if r.margin > 0 && r.next >= r.calm {
		r.margin, r.calm = r.margin/2, r.next+r.blocks
	}
}

// copy copies the block at a place into the sink's hands, in words as the device
// wrote them: it may be writing them now. It is whole if the closing words here and in
// front are what they were before. If the device has come around, ring goes on
// elsewhere; if this block alone was written again, the next step looks at it anew.
func (r *ring) copy(at, w uint64) (data *[trace.BlockSize]byte, whole bool) {
	data = r.out.target()
	base := int(at) * trace.BlockSize
	mmio.FromDevice()
	for i := 0; i < trace.BlockSize; i += trace.EventSize {
		binary.NativeEndian.PutUint64(data[i:], r.mem.Load64(base+i))
	}
	mmio.FromDevice()
	overtaken := r.word((at-1)&r.mask) != r.prev
	if !overtaken && r.word(at) == w {
		return data, true
	}
	r.stats.torn++
	if overtaken {
		r.lapped()
	}
	return data, false
}

// passed handles a place that holds nothing new. If the closing word of the place
// behind it is another than before, whatever it is, the device has passed this one:
// without closing it, or with a time that does not move on. It is handed out as it is
// in the first case, and is missing in the second. So a clock that stands still or was
// set back, or a single time far ahead, is seen in what is missing.
func (r *ring) passed(at uint64) bool {
	behind := (at + 1) & r.mask
	if v := r.word(behind); r.first || v == r.old[behind] && !r.fresh(v) {
		return false
	}
	w := r.word(at)
	if r.fresh(w) {
		return true // it came meanwhile
	}
	if r.word((at-1)&r.mask) != r.prev {
		r.lapped()
		return true
	}
	if trace.Event(w).IsTimestamp() {
		r.out.lose(r.next, 1, false, capture.CauseOrder)
		r.prev, r.next, r.old[at] = w, r.next+1, w
		return true
	}
	data, whole := r.copy(at, w)
	if !whole {
		return true
	}
	r.advance(at, w)
	r.stats.read++
	r.stats.unclosed++
	r.out.block(r.next-1, 0, false, data)
	return true
}

// look finds the newest block that follows the next one without a break, for a
// witness. The places from the next block on hold newer blocks up to where the device
// is, and older ones behind that.
func (r *ring) look() {
	at := r.place(r.next)
	lo, hi := uint64(0), r.blocks-1 // place at+lo is fresh; at+hi may be
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if r.fresh(r.word((at + mid) & r.mask)) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	r.witness = (at + lo) & r.mask
	r.witnessWord = r.word(r.witness)
	// It is of this time around only if the device has not come around meanwhile.
	r.witnessGood = r.word((at-1)&r.mask) == r.prev
}

// lapped goes on where blocks can be read again after the device has come around.
// The oldest block of the ring is the one it writes over now, so what is behind that
// is the first that can be whole.
func (r *ring) lapped() {
	if r.lost() {
		return
	}
	oldest, front, steady := uint64(0), uint64(0), false
	for range scans {
		oldest = r.scan()
		front = (oldest + r.margin) & r.mask
		// The device went on during the scan. If it has passed the front before that was
		// read, the front is later than what was read in front of the oldest.
		a, b := trace.Event(r.words[front]), trace.Event(r.words[(oldest-1)&r.mask])
		steady = a.IsTimestamp() && b.IsTimestamp() && trace.Newer(b.Time(), a.Time()) && r.word(front) == r.words[front]
		if steady {
			break
		}
	}
	// Asked after the words were read: it may have come around in between.
	once := steady && r.witnessGood && r.word(r.witness) == r.witnessWord
	// The start is at least margin + 1 blocks on; modulo the ring its place is known.
	start := (front + 1) & r.mask
	n := (start-r.place(r.next)-1-r.margin)&r.mask + 1 + r.margin
	r.out.lose(r.next, n, !once, capture.CauseOverwritten)
	r.stats.laps++
	r.next += n
	r.prev = r.words[front]
	if e := trace.Event(r.prev); e.IsTimestamp() {
		r.last, r.first = e.Time(), false
	}
	copy(r.old, r.words) // what was written since then differs
	newest := (oldest - 1) & r.mask
	r.witness, r.witnessWord, r.witnessGood, r.since = newest, r.words[newest], steady, 0
	// Whoever is overtaken again at once leaves out more the next time.
	r.margin = min(max(2*r.margin, 1), r.blocks/2)
	r.calm = r.next + r.blocks
}

// scans bounds how often the ring is looked over for one that stands still for so
// long.
const scans = 4

// scan reads every closing word and finds the place of the oldest block.
func (r *ring) scan() (oldest uint64) {
	for i := range r.words {
		r.words[i] = r.word(uint64(i))
	}
	var before uint64
	have := false
	for i, w := range r.words {
		e := trace.Event(w)
		if !e.IsTimestamp() {
			continue
		}
		if have && trace.Elapsed(e.Time(), before) >= 1<<(trace.TimeBits-1) {
			return uint64(i)
		}
		before, have = e.Time(), true
	}
	return 0
}

// lost looks for a device that did not begin at the first place: a changed
// configuration can make it forget where it was. Only before the first block, as long
// as the device has not been everywhere.
func (r *ring) lost() bool {
	if !r.first {
		return false
	}
	for i := range r.blocks {
		at := (r.place(r.next) + i) & r.mask
		if !r.closed(at) || r.closed((at-1)&r.mask) {
			continue
		}
		if i == 0 {
			return false // as it should be
		}
		r.shift = (at - r.next) & r.mask
		r.prev = r.word((at - 1) & r.mask)
		return true
	}
	return false
}

func (r *ring) closed(place uint64) bool { return trace.Event(r.word(place)).IsTimestamp() }

// rested is called after a pause: much may have come.
func (r *ring) rested() { r.since = 0 }
