package sim

import "fmt"

// TraceStats are what the tracer has done since the chip was made.
type TraceStats struct {
	Owner           string `json:"owner"` // "nobody", "tool" or "function N"
	On              bool   `json:"on"`
	Messages        uint64 `json:"messages"`      // firmware's own and the load's, dropped ones not counted
	Load            uint64 `json:"load_messages"` // of the load, dropped ones counted
	Events          uint64 `json:"events"`        // 8-byte events of all kinds, padding included
	Stamps          uint64 `json:"timestamps"`    // of them timestamp events
	Unreliable      uint64 `json:"unreliable_timestamps"`
	Blocks          uint64 `json:"blocks"`           // written to the owner's memory
	BlocksUnwritten uint64 `json:"blocks_unwritten"` // the memory key or the memory did not let them
	Dropped         uint64 `json:"dropped"`          // messages that firmware itself lost, for a fault
}

// TraceStats gives the tracer's counters.
func (c *Chip) TraceStats() TraceStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tracer
	s := t.count
	s.On = t.on
	switch {
	case t.tool:
		s.Owner = "tool"
	case t.owner == nil:
		s.Owner = "nobody"
	default:
		s.Owner = fmt.Sprintf("function %d", t.owner.index)
	}
	return s
}

// TraceBlock is a block that was written.
type TraceBlock struct {
	N        uint64 // running number since MTRC_CONF, from 0
	Slot     int    // place in the buffer, in blocks
	Time     uint64 // closing timestamp, 53 bits
	Reliable bool   // of that timestamp
}

// TraceMessage is a message that was written, as a reader who loses nothing has
// to give it.
type TraceMessage struct {
	Block    uint64 // number of the block of its header
	Time     uint64 // 53 bits
	Reliable bool   // the timestamp event that dates it is; otherwise readers drop the message
	EventID  uint8
	Lost     bool   // its lost mark
	Load     bool   // it is the load's…
	Number   uint64 // …and this is its number
	Text     string
}

// TraceTruth is what the tracer wrote, in order.
type TraceTruth struct {
	Blocks   []TraceBlock
	Messages []TraceMessage
}

// KeepTrace makes the chip remember the last so many blocks that it writes from
// now on, and their messages; 0 forgets and ends it. What could not be written,
// and what is in the open block, is not among them.
func (c *Chip) KeepTrace(blocks int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracer.log = traceLog{limit: max(0, blocks)}
}

// KeptTrace gives what KeepTrace made the chip remember.
func (c *Chip) KeptTrace() TraceTruth {
	c.mu.Lock()
	l := c.tracer.log
	from := max(0, len(l.blocks)-l.limit)
	first := len(l.messages)
	if from < len(l.blocks) {
		first = l.firsts[from]
	}
	r := TraceTruth{Blocks: append([]TraceBlock(nil), l.blocks[from:]...)}
	kept := append([]logged(nil), l.messages[min(first, len(l.messages)):]...)
	c.mu.Unlock()
	for i := range kept {
		r.Messages = append(r.Messages, kept[i].message())
	}
	return r
}

// logged is a message as it is remembered.
type logged struct {
	event      uint64 // its first event
	at, block  uint64
	n          uint64
	format     int
	words      [traceWords]uint32
	load       bool
	unknown    bool // its string pointer is: this is one event, shown raw
	unreliable bool
}

func (g *logged) message() TraceMessage {
	m := TraceMessage{
		Block: g.block, Time: g.at & traceMask, Reliable: !g.unreliable, EventID: uint8(g.event >> 48),
		Lost: g.event&traceLost != 0, Load: g.load, Number: g.n,
	}
	if g.unknown {
		m.Text = fmt.Sprintf("0x%016x", g.event)
	} else {
		f := &traceFormats[g.format]
		m.Text = f.render(g.words[:traceSizes[g.format]])
	}
	return m
}

// traceLog remembers twice as many blocks as asked for, so that forgetting is
// rare.
type traceLog struct {
	limit    int
	open     []logged // of the open block
	dated    int      // of those, the ones that have a timestamp
	blocks   []TraceBlock
	firsts   []int // index of each block's first message
	messages []logged
}

func (l *traceLog) message(about *logged, words []uint32) {
	if l.limit == 0 {
		return
	}
	l.open = append(l.open, *about)
	copy(l.open[len(l.open)-1].words[:], words)
}

// stamped is a timestamp event after what was said.
func (l *traceLog) stamped(w uint64) {
	for ; l.dated < len(l.open); l.dated++ {
		l.open[l.dated].unreliable = w>>45&7 != 0
	}
}

func (l *traceLog) drop() { l.open, l.dated = l.open[:0], 0 }

// block moves what is open into the block that was written; w closes it.
func (l *traceLog) block(n uint64, slot uint32, at, w uint64) {
	if l.limit == 0 {
		return
	}
	if len(l.blocks) >= 2*l.limit {
		k := len(l.blocks) - l.limit
		first := l.firsts[k]
		l.blocks = l.blocks[:copy(l.blocks, l.blocks[k:])]
		l.firsts = l.firsts[:copy(l.firsts, l.firsts[k:])]
		l.messages = l.messages[:copy(l.messages, l.messages[first:])]
		for i := range l.firsts {
			l.firsts[i] -= first
		}
	}
	l.blocks = append(l.blocks, TraceBlock{N: n, Slot: int(slot), Time: at & traceMask, Reliable: w>>45&7 == 0})
	l.firsts = append(l.firsts, len(l.messages))
	for i := range l.open {
		l.open[i].block = n
	}
	l.messages = append(l.messages, l.open...)
	l.drop()
}

// TraceSection is a section of the string database.
type TraceSection struct {
	Base uint32
	Data []byte
}

// TraceMemory is all that a decoder of the owner's buffer needs.
type TraceMemory struct {
	Version     uint8 // trc_ver
	FirstString uint8
	NumString   uint8
	Sections    []TraceSection // undamaged, whatever faults are raised
	Ring        []byte         // the buffer as the owner sees it now
}

// TraceMemory copies the buffer of the function that traces, out of its memory,
// with the string database. Without one the answer is ErrNotTracing; a buffer that
// cannot be read, as when its key is gone, is another error.
func (c *Chip) TraceMemory() (*TraceMemory, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tracer
	if !t.on {
		return nil, ErrNotTracing
	}
	m := &TraceMemory{Version: t.version(), FirstString: traceFirst, NumString: traceIDs}
	for _, s := range t.strings.sections {
		m.Sections = append(m.Sections, TraceSection{s.base, append([]byte(nil), s.data...)})
	}
	k, ok := t.keyOf(t.owner, &t.conf)
	if !ok {
		return nil, fmt.Errorf("function %d traces through memory key %#x, which is gone or breaks a rule: there is no buffer", t.owner.index, t.conf.TraceMKey())
	}
	m.Ring = make([]byte, uint64(t.blocks())*traceBlock)
	for off := 0; off < len(m.Ring); off += pageSize {
		iova, run, ok := k.page(k.start + uint64(off))
		if !ok || run < pageSize || !t.owner.dmaData(iova, m.Ring[off:off+pageSize], false) {
			return nil, fmt.Errorf("function %d: the trace buffer cannot be read at byte %#x: it is not mapped, or bus mastering is off", t.owner.index, off)
		}
	}
	return m, nil
}
