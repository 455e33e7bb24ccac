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
	// All events first: their words, where the timestamps are, how many are lost
	// marks. That the end of an interval is known before its events lets every
	// message be given out as soon as it is complete; the order is the same as at
	// the timestamp.
	var ev [EventsPerBlock]uint64
	var stamps, lost uint32
	for i := range ev {
		w := binary.BigEndian.Uint64(b[i*EventSize:])
		ev[i] = w
		stamps |= (uint32(w>>48&0xff) + 1) >> 8 << i
		lost |= uint32(w>>63) << i
	}
	d.c.Blocks++
	d.c.Events += EventsPerBlock
	d.c.Timestamps += uint64(bits.OnesCount32(stamps))
	d.c.LostMarks += uint64(bits.OnesCount32(lost &^ stamps))
	lo := 0
	for ; stamps != 0; stamps &= stamps - 1 {
		hi := bits.TrailingZeros32(stamps)
		d.interval(&ev, lo, hi, index, emit)
		lo = hi + 1
	}
	return nil
}

// interval decodes the events lo … hi−1, whose next timestamp event is hi.
func (d *Decoder) interval(ev *[EventsPerBlock]uint64, lo, hi int, index uint64, emit func(*Message)) {
	end := ev[hi&(EventsPerBlock-1)]
	t := Event(end).Time()
	unreliable := end&d.urts != 0
	if unreliable {
		d.c.UnreliableTimestamps++
	}
	raw := 0
	for i := lo; i < hi; {
		w := ev[i&(EventsPerBlock-1)]
		id := uint8(w >> 48)
		if id-d.first >= d.num {
			raw++
			i++
			continue
		}
		if w>>32&7 != 0 {
			d.part(w, t, index, unreliable, emit)
			i++
			continue
		}
		// A header. The common message has its parts right behind it, and never
		// touches the table.
		if p := d.pages[id]; p != nil {
			if s := p[w>>35&(tmsnCount-1)]; s != 0 {
				d.giveUp(s - 1)
			}
		}
		m := &d.msg
		*m = Message{Time: Place(t, uint8(w>>56)&stampMask), Block: index, Raw: Event(w), Pointer: uint32(w), EventID: id}
		i++
		e := d.cache.find(uint32(w))
		if e == nil {
			d.c.UnknownStrings++
			m.Kind, m.Lost = KindUnknown, w>>63 != 0
			d.give(m, 1, unreliable, emit)
			continue
		}
		m.Format = e.f
		if e.f.bad {
			m.Kind = KindBadFormat
		}
		m.NParams = uint8(e.words)
		n, k := int(e.words), 0
		lost := w
		for key := w & keyMask; k < n && i < hi; k++ {
			x := ev[i&(EventsPerBlock-1)]
			if x&keyMask != key+uint64(k+1)<<32 {
				break
			}
			m.Params[k] = uint32(x)
			lost |= x
			i++
		}
		m.Lost = lost>>63 != 0
		if k < n {
			d.pend(m, k, unreliable)
			continue
		}
		d.give(m, n+1, unreliable, emit)
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

// pend keeps a message of which the first k parts are there.
func (d *Decoder) pend(m *Message, k int, unreliable bool) {
	p := d.pages[m.EventID]
	if p == nil {
		p = new(page)
		d.pages[m.EventID] = p
	}
	var i uint32
	if d.free != 0 {
		i = d.free - 1
		d.free = d.slots[i].next
	} else {
		i = uint32(len(d.slots))
		d.slots = append(d.slots, slot{})
	}
	d.slots[i] = slot{m: *m, have: uint8(1<<(k+1) - 1), events: uint8(k + 1), unreliable: unreliable, used: true}
	p[m.Raw.TMSN()] = i + 1
}

// part takes a string event that is not a header.
func (d *Decoder) part(w, t, index uint64, unreliable bool, emit func(*Message)) {
	id, n := uint8(w>>48), uint8(w>>32)&7
	var i uint32
	if p := d.pages[id]; p != nil {
		i = p[w>>35&(tmsnCount-1)]
	}
	if i != 0 {
		s := &d.slots[i-1]
		if n <= s.m.NParams && s.have>>n&1 == 0 {
			s.have |= 1 << n
			s.events++
			s.m.Params[(n-1)&7] = uint32(w)
			s.m.Lost = s.m.Lost || w>>63 != 0
			if s.events > s.m.NParams {
				d.release(i - 1)
				d.give(&s.m, int(s.events), s.unreliable, emit)
			}
			return
		}
		d.giveUp(i - 1)
	}
	d.c.OrphanParams++
	d.msg = Message{Time: Place(t, uint8(w>>56)&stampMask), Block: index, Raw: Event(w), Kind: KindOrphan, EventID: id, Lost: w>>63 != 0}
	d.give(&d.msg, 1, unreliable, emit)
}

// giveUp ends a pending message as incomplete.
func (d *Decoder) giveUp(i uint32) {
	d.c.IncompleteMessages++
	d.release(i)
}

// release takes a message out of the table; its contents stay until the slot is
// used again.
func (d *Decoder) release(i uint32) {
	s := &d.slots[i]
	d.pages[s.m.EventID][s.m.Raw.TMSN()] = 0
	s.used, s.next = false, d.free
	d.free = i + 1
}
