package trace

import "encoding/binary"

// Tally counts a trace without assembling messages: events by id, and the full
// time of each of them. It is the fast look at what a capture holds.
type Tally struct {
	ByID       [256]uint64 // events, timestamps (0xff) among them
	Blocks     uint64
	Skipped    uint64 // blocks not closed by a timestamp; in none of the others
	Unreliable uint64 // timestamps that give no time
	LostMarks  uint64
	Timed      uint64 // events with a time
	TimeSum    uint64 // of their times, modulo 2^64: what two decoders can compare
	First      uint64 // first and last reliable closing time; both 0 if there is none
	Last       uint64
	seen       bool
}

// Add counts whole blocks, one after the other; the error is a BlockError if b ends
// inside a block, which is not counted. It allocates nothing.
func (t *Tally) Add(g Geometry, b []byte) error {
	var lanes lanes
	urts := uint64(g.urtsMask()) << 45
	pending := 0 // events in the lanes
	for ; len(b) >= BlockSize; b = b[BlockSize:] {
		if b[BlockSize-EventSize+1] != TimestampID {
			t.Skipped++
			continue
		}
		t.block((*[BlockSize]byte)(b), urts, &lanes)
		if pending += EventsPerBlock; pending > 1<<31 {
			t.collect(&lanes)
			pending = 0
		}
	}
	t.collect(&lanes)
	if len(b) != 0 {
		return &BlockError{Len: len(b)}
	}
	return nil
}

// block counts a closed block. It takes the closing timestamp for the only one and
// no event for a lost mark; where that was wrong, and only there, the second look
// puts it right.
func (t *Tally) block(b *[BlockSize]byte, urts uint64, lanes *lanes) {
	closing := Event(binary.BigEndian.Uint64(b[BlockSize-EventSize:]))
	at := closing.Time()
	low := at & stampMask
	same := at &^ stampMask                  // the epoch of a smaller stamp
	before := (same - epochTicks) & TimeMask // and of the others
	stamps := lanes.stamps()
	var sum uint64
	var lost byte
	for i := 0; i < BlockSize-4*EventSize; i += 4 * EventSize {
		e := (*[4 * EventSize]byte)(b[i:])
		lanes[0][e[1]]++
		lanes[1][e[9]]++
		lanes[2][e[17]]++
		lanes[3][e[25]]++
		lost |= e[0] | e[8] | e[16] | e[24]
		sum += place(e[0], low, same, before) + place(e[8], low, same, before) +
			place(e[16], low, same, before) + place(e[24], low, same, before)
	}
	e := (*[4 * EventSize]byte)(b[BlockSize-4*EventSize:])
	lanes[0][e[1]]++
	lanes[1][e[9]]++
	lanes[2][e[17]]++
	lanes[3][TimestampID]++
	lost |= e[0] | e[8] | e[16]
	sum += place(e[0], low, same, before) + place(e[8], low, same, before) + place(e[16], low, same, before)
	t.Blocks++
	if lanes.stamps() != stamps+1 || lost >= 0x80 || uint64(closing)&urts != 0 {
		t.look(b, urts)
		return
	}
	t.TimeSum += sum
	t.Timed += EventsPerBlock - 1
	t.reliable(at)
}

// place is Place without its arithmetic, for events that share a timestamp.
func place(first byte, low, same, before uint64) uint64 {
	stamp, epoch := uint64(first&stampMask), same
	if stamp >= low {
		epoch = before
	}
	return epoch | stamp
}

// look finds times and marks of a block event by event, from the end, so that the
// timestamp that an event is placed by is the last one seen.
func (t *Tally) look(b *[BlockSize]byte, urts uint64) {
	var end Event
	for i := EventsPerBlock - 1; i >= 0; i-- {
		e := EventAt(b[i*EventSize:])
		switch {
		case e.IsTimestamp():
			if end = e; uint64(e)&urts != 0 {
				t.Unreliable++
			}
			continue
		case uint64(end)&urts == 0:
			t.TimeSum += Place(end.Time(), e.Stamp())
			t.Timed++
		}
		if e.Lost() {
			t.LostMarks++
		}
	}
	if at := EventAt(b[BlockSize-EventSize:]); uint64(at)&urts == 0 {
		t.reliable(at.Time())
	}
}

// reliable notes a closing time.
func (t *Tally) reliable(at uint64) {
	if !t.seen {
		t.First, t.seen = at, true
	}
	t.Last = at
}

// lanes are several tables of counts by id: the same id comes again and again, and
// a count must not wait for the store of the one before it.
type lanes [4][256]uint32

func (l *lanes) stamps() uint32 {
	return l[0][TimestampID] + l[1][TimestampID] + l[2][TimestampID] + l[3][TimestampID]
}

func (t *Tally) collect(lanes *lanes) {
	for i := range lanes {
		for id, n := range &lanes[i] {
			t.ByID[id] += uint64(n)
		}
	}
	for i := range lanes {
		clear(lanes[i][:])
	}
}

// Events is the number of events counted.
func (t *Tally) Events() uint64 { return t.Blocks * EventsPerBlock }
