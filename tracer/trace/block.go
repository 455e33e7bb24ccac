package trace

import (
	"encoding/binary"
	"math/bits"
)

// keyMask covers id, tmsn and tdsn of a string event: the header's with n in
// place of tdsn are those of its part n.
const keyMask = 0x00ffffff00000000

// Block decodes one block. index is the caller's number of the block, which comes
// back in the messages whose header is in it. emit gets the messages that this
// block completes, in order; it may be nil, and must not call the decoder. A block
// that is not closed by a timestamp is skipped whole and counted; what is pending
// survives it. The error is a BlockError, for a b that is not 256 bytes long.
func (d *Decoder) Block(index uint64, b []byte, emit func(*Message)) error {
	if len(b) != BlockSize {
		return &BlockError{Len: len(b)}
	}
	if b[BlockSize-EventSize+1] != TimestampID {
		d.c.SkippedBlocks++
		return nil
	}
	var v view
	v.load((*[BlockSize]byte)(b))
	d.c.Blocks++
	d.c.Events += EventsPerBlock
	d.c.Timestamps += uint64(bits.OnesCount32(v.stamps))
	d.c.LostMarks += uint64(bits.OnesCount32(v.lost &^ v.stamps))
	lo := 0
	for s := v.stamps; s != 0; s &= s - 1 {
		hi := bits.TrailingZeros32(s)
		d.interval(&v, lo, hi, index, emit)
		lo = hi + 1
	}
	return nil
}

// view is a block made ready: what can be said of all its events without asking
// one after the other. That the end of an interval is known before its events lets
// every message be given out as soon as it is complete; the order is the same as at
// the timestamp.
type view struct {
	ev     [EventsPerBlock + MaxParams + 1]uint64 // more than the block, so that seven words can be taken anywhere
	stamps uint32                                 // bit n: event n is a timestamp
	lost   uint32                                 // bit n: event n has the lost bit
	next   uint32                                 // bit n: event n+1 is the part after event n of the same message
}

// load goes from the last event to the first, so that a bit shifted in at the bottom
// ends at its event's number. There is no branch.
func (v *view) load(b *[BlockSize]byte) {
	var stamps, lost, next uint64
	after := ^uint64(0)
	for i := EventsPerBlock - 1; i >= 0; i-- {
		w := binary.BigEndian.Uint64(b[i*EventSize:])
		v.ev[i] = w
		key := w & keyMask
		follows := uint64(0)
		if key+1<<32 == after {
			follows = 1
		}
		next = next*2 + follows
		stamps = stamps*2 + (key+1<<48)>>56 // the id is 0xff: the sum carries
		lost = lost*2 + w>>63
		after = key
	}
	v.stamps, v.lost, v.next = uint32(stamps), uint32(lost), uint32(next)
}

// wordMask has, by their number, what keeps the words that are parameters.
var wordMask = func() (t [MaxParams + 1][MaxParams]uint32) {
	for n := range t {
		for i := range n {
			t[n][i] = 0xffffffff
		}
	}
	return t
}()

// interval decodes the events lo … hi−1, whose next timestamp event is hi.
func (d *Decoder) interval(v *view, lo, hi int, index uint64, emit func(*Message)) {
	end := v.ev[hi&(EventsPerBlock-1)]
	t := Event(end).Time()
	unreliable := end&d.urts != 0
	if unreliable {
		d.c.UnreliableTimestamps++
	}
	raw := 0
	for i := lo; i < hi; {
		at := i & (EventsPerBlock - 1)
		w := v.ev[at]
		id := uint8(w >> 48)
		if id-d.first >= d.num {
			raw++
			i++
			continue
		}
		if n := w >> 32 & 7; n != 0 { // a parameter
			i++
			var s *slot
			if p := d.pages[id]; p != nil {
				s = &d.slots[p[w>>35&(tmsnCount-1)]]
			}
			if s == nil || s.missing>>n&1 == 0 {
				d.orphan(s, w, t, index, unreliable, emit)
				continue
			}
			s.m.Params[n-1] = uint32(w)
			s.m.Lost = s.m.Lost || w>>63 != 0
			if s.missing ^= 1 << n; s.missing == 0 {
				d.release(s)
				d.give(&s.m, int(s.m.NParams)+1, s.unreliable, emit)
			}
			continue
		}
		// A header. The common message has its parts right behind it, and never
		// touches the table.
		if p := d.pages[id]; p != nil {
			if s := p[w>>35&(tmsnCount-1)]; s != 0 {
				d.giveUp(&d.slots[s])
			}
		}
		var f *Format
		kind, words := KindUnknown, 0
		e := d.cache.place(uint32(w))
		if e.f == nil {
			e = d.cache.compile(uint32(w))
		}
		if e != nil {
			f, kind, words = e.f, e.kind, int(e.words)
		} else {
			d.c.UnknownStrings++
		}
		k := min(bits.TrailingZeros32(^(v.next >> at)), words)
		m := &d.msg
		if k < words {
			m = d.pend(id, w, k, words, unreliable)
		}
		m.Time = Place(t, uint8(w>>56)&stampMask)
		m.Block = index
		m.Raw = Event(w)
		m.Format = f
		m.Pointer = uint32(w)
		m.NParams = uint8(words)
		m.Kind = kind
		m.EventID = id
		m.Lost = v.lost>>at<<(31-k) != 0
		keep, from := &wordMask[k], (*[MaxParams]uint64)(v.ev[at+1:])
		m.Params[0] = uint32(from[0]) & keep[0]
		m.Params[1] = uint32(from[1]) & keep[1]
		m.Params[2] = uint32(from[2]) & keep[2]
		m.Params[3] = uint32(from[3]) & keep[3]
		m.Params[4] = uint32(from[4]) & keep[4]
		m.Params[5] = uint32(from[5]) & keep[5]
		m.Params[6] = uint32(from[6]) & keep[6]
		i += 1 + k
		if k == words {
			d.give(m, k+1, unreliable, emit)
		}
	}
	d.c.RawEvents += uint64(raw)
	d.c.StringEvents += uint64(hi - lo - raw)
}

// give gives a complete message out, unless its header's time is unreliable.
func (d *Decoder) give(m *Message, events int, unreliable bool, emit func(*Message)) {
	if unreliable {
		d.c.UnreliableEventsDropped += uint64(events)
		return
	}
	d.c.Messages++
	if m.Kind == KindBadFormat {
		d.c.BadFormats++
	}
	if emit != nil {
		emit(m)
	}
}

// pend gives a slot to a message whose parts from k+1 on are missing; the caller
// fills it.
func (d *Decoder) pend(id uint8, w uint64, k, words int, unreliable bool) *Message {
	p := d.pages[id]
	if p == nil {
		p = new(page)
		d.pages[id] = p
	}
	i := d.free
	if i != 0 {
		d.free = d.slots[i].next
	} else {
		i = uint32(len(d.slots))
		d.slots = append(d.slots, slot{})
	}
	p[w>>35&(tmsnCount-1)] = i
	s := &d.slots[i]
	s.self, s.missing, s.unreliable = i, uint8(2<<words-2<<k), unreliable
	return &s.m
}

// orphan takes a string event that is not a header and belongs to no message: s is
// the one of its number that has no place for it, if there is one, which ends here.
func (d *Decoder) orphan(s *slot, w, t, index uint64, unreliable bool, emit func(*Message)) {
	if s != nil && s.missing != 0 {
		d.giveUp(s)
	}
	d.c.OrphanParams++
	d.msg = Message{Time: Place(t, uint8(w>>56)&stampMask), Block: index, Raw: Event(w), Kind: KindOrphan, EventID: uint8(w >> 48), Lost: w>>63 != 0}
	d.give(&d.msg, 1, unreliable, emit)
}

// giveUp ends a pending message as incomplete.
func (d *Decoder) giveUp(s *slot) {
	d.c.IncompleteMessages++
	s.missing = 0
	d.release(s)
}

// release takes a message out of the table; its contents stay until the slot is
// used again.
func (d *Decoder) release(s *slot) {
	d.pages[s.m.EventID][s.m.Raw.TMSN()] = 0
	s.next, d.free = d.free, s.self
}
