package trace

import "fmt"

// Decoder makes messages of blocks, in the order in which the device wrote them.
// Blocks, gaps and the end are for one goroutine. Nothing is allocated for an
// event: the first message of a format compiles it, the first one of an event id
// makes that id's table (32 KB), and messages whose parts are not all there take a
// slot that is used again; there are never more of those than string ids × 8192.
//
// The rules, where the sources are silent or disagree (the project's rulings):
// only a block closed by a timestamp counts; the time of a message is that of its
// header against the next timestamp event, in the middle of a block too; a message
// whose header's timestamp is unreliable is dropped and counted; complete messages
// come out at the next timestamp event of either kind, in the order in which they
// became complete.
type Decoder struct {
	g     Geometry
	cache formatCache
	c     Counters
	pages [256]*page // by event id
	slots []slot
	free  uint32 // first free slot + 1
	msg   Message
	urts  uint64 // bits of a timestamp event that make it unreliable
	first uint8
	num   uint8 // string ids from first on, none past 0xff
}

// page has the slot of each pending tmsn of one event id; 0 for none.
type page [tmsnCount]uint32

// slot is a pending message. Slot 0 is never used.
type slot struct {
	m          Message
	self       uint32
	next       uint32 // of the free list; 0 ends it
	missing    uint8  // bit n: part n is not there; 0: the slot is free
	unreliable bool   // its header's time
}

// NewDecoder makes a decoder with nothing pending. The error is one of
// Geometry.Check.
func NewDecoder(g Geometry, s *Strings) (*Decoder, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	if s == nil {
		s = NewStrings(nil)
	}
	d := &Decoder{slots: make([]slot, 1, 16)}
	d.setup(g, s)
	return d, nil
}

// Counters returns where the events so far went. Messages still pending are in
// none of the counters of messages.
func (d *Decoder) Counters() Counters { return d.c }

// Geometry returns what the decoder was made with.
func (d *Decoder) Geometry() Geometry { return d.g }

// Gap forgets the pending messages, because blocks are missing here; they count as
// incomplete.
func (d *Decoder) Gap() {
	for i := range d.slots {
		if s := &d.slots[i]; s.missing != 0 {
			d.giveUp(s)
		}
	}
}

// Flush ends the trace: what is pending now stays incomplete and is counted.
func (d *Decoder) Flush() { d.Gap() }

// Restart goes on with a new string database or geometry, as after a firmware
// event that strings were updated. What is pending is given up; the counters go on.
func (d *Decoder) Restart(g Geometry, s *Strings) error {
	if err := g.Check(); err != nil {
		return err
	}
	if s == nil {
		s = NewStrings(nil)
	}
	d.Gap()
	d.setup(g, s)
	return nil
}

func (d *Decoder) setup(g Geometry, s *Strings) {
	d.g, d.urts = g, uint64(g.urtsMask())<<45
	d.first, d.num = g.FirstString, uint8(min(int(g.NumString), 0xff-int(g.FirstString)))
	d.cache.reset(s)
}

// BlockError says that a block has the wrong size; nothing was decoded of it.
type BlockError struct{ Len int }

func (e *BlockError) Error() string {
	return fmt.Sprintf("trace: a block of %d bytes; blocks have %d", e.Len, BlockSize)
}
