package sim

import (
	"errors"
	"math"
	"time"
)

// TraceKind is a choice of messages for the load.
type TraceKind string

// Kinds of load.
const (
	// TracePlain are messages on which decoders agree, that of Linux included.
	TracePlain TraceKind = "plain"
	// TraceEdge adds those on which they differ: strings at the base of a section
	// and pointers into strings, 64-bit and refused conversions, flags, widths,
	// escapes, long texts.
	TraceEdge TraceKind = "edge"
)

// ErrNotTracing is the answer of a chip whose tracer is off.
var ErrNotTracing = errors.New("no function traces to memory: let one acquire the tracer and start it")

const (
	// traceBatch and, where time passes meanwhile, traceTurn bound how long the load
	// keeps the chip for itself; traceLook is how many messages pass between looks at
	// the clock.
	traceBatch = 4096
	traceTurn  = 500 * time.Microsecond
	traceLook  = 64
	// traceTick is how often a load that is faster than that is caught up with.
	traceTick = time.Millisecond
	// traceYield is the least time for which a load that cannot keep up leaves the chip
	// to others. It leaves it for as long as it had it.
	traceYield = 50 * time.Microsecond
)

// traceLoad is the generator of messages of known content: message n says n.
type traceLoad struct {
	rate  float64 // messages a second; 0 is none
	start uint64  // ticks at which message first was due
	first uint64  // number of that message
	next  uint64  // number of the next message
	timer bool
	rests time.Time // a load that could not keep up writes nothing until then
}

// LoadMessage is message n of the load: its event id and text.
func LoadMessage(kind TraceKind, n uint64) (id uint8, text string) {
	var words [traceWords]uint32
	id, f := loadMessage(kind == TraceEdge, n, &words)
	return id, traceFormats[f].render(words[:traceSizes[f]])
}

const traceWords = 7 // of a message, at most

func loadMessage(edge bool, n uint64, words *[traceWords]uint32) (id uint8, format int) {
	kinds := uint64(len(plainLoad))
	if edge {
		kinds += uint64(len(edgeLoad))
	}
	format = msgLoad + int(n%kinds)
	words[0] = uint32(n)
	x := n
	for i := 1; i < traceSizes[format]; i++ {
		x += 0x9e3779b97f4a7c15 // splitmix64: bits that a reader can compute again
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		words[i] = uint32((z ^ z>>27) * 0x94d049bb133111eb >> 32)
	}
	return traceFirst + uint8(n%traceIDs), format
}

func (l *traceLoad) begin(t *tracer) {
	l.timer = false
	l.start, l.first = t.stream.last, l.next
}

// edges tells whether the load of a rate is of the edge kind.
func (t *tracer) edges() bool {
	return len(t.chip.faults.list) > 0 && t.chip.faults.has("trace-edges")
}

// SetTraceLoad changes how many messages a second the tracer's load writes, as
// the load= word does; 0 ends it. The load of commands stays as it is.
func (c *Chip) SetTraceLoad(rate float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tracer
	t.pump()
	t.load.rate = max(0, rate)
	if t.on {
		t.load.start, t.load.first = t.ticks(), t.load.next
		t.pump()
	}
}

// pump writes the messages of the load that are due and comes back when more
// are. A load that the model cannot keep up with slips: it is as fast as it can be in
// half of the time, and the other half belongs to commands and to whoever else waits
// for the chip.
func (t *tracer) pump() {
	l := &t.load
	if l.rate <= 0 || !t.on || t.chip.health.dead() {
		return
	}
	began := t.chip.sched.clock.Now()
	wait := l.rests.Sub(began)
	if wait <= 0 {
		wait = t.loadDue(began)
	}
	if l.timer || !t.on {
		return
	}
	l.timer = true
	gen := t.gen
	t.chip.sched.after(t.owner, wait, func() {
		if gen == t.gen {
			l.timer = false
			t.pump()
		}
	})
}

// loadDue writes what is due, within the bounds of a turn, and says when to look again.
func (t *tracer) loadDue(began time.Time) time.Duration {
	l := &t.load
	per := float64(t.chip.prof.clockKHz) * 1000 / l.rate
	now := t.stream.base + t.chip.funcs[0].internalTimer()
	if now >= l.start {
		due := l.first + uint64(math.Floor(float64(now-l.start)/per))
		edge := t.edges()
		for i := 1; l.next < due && t.on; i++ {
			t.loadOne(edge, l.start+uint64(float64(l.next+1-l.first)*per))
			if i%traceLook != 0 || l.next >= due {
				continue
			}
			end := t.chip.sched.clock.Now()
			if took := end.Sub(began); i >= traceBatch || took >= traceTurn {
				rest := max(took, traceYield)
				l.rests = end.Add(rest)
				// What it is behind by is forgotten, the time of this turn and of the rest
				// is not.
				l.start, l.first = now, l.next
				return rest
			}
		}
	}
	at := l.start + uint64(math.Ceil(float64(l.next+1-l.first)*per))
	left := int64(at - now)
	if left <= 0 {
		return traceTick
	}
	return max(traceTick, time.Duration(float64(left)/float64(t.chip.prof.clockKHz)*float64(time.Millisecond)))
}

// loadOne writes the next message of the load.
func (t *tracer) loadOne(edge bool, at uint64) {
	var words [traceWords]uint32
	n := t.load.next
	t.load.next++
	id, f := loadMessage(edge, n, &words)
	t.count.Load++
	t.speak(id, f, words[:traceSizes[f]], at, &logged{load: true, n: n})
}

// EmitTrace writes n messages of the load at once, as fast as the model can, and
// closes the block that the last one lies in. The numbers go on where the load
// stands; first is that of the first one. With the tracer off nothing is written
// and the answer is ErrNotTracing; if it is switched off meanwhile, the rest is
// not written either.
func (c *Chip) EmitTrace(n int, kind TraceKind) (first uint64, err error) {
	for begun := false; ; begun = true {
		c.mu.Lock()
		c.settle()
		t := &c.tracer
		if !t.on {
			c.mu.Unlock()
			return first, ErrNotTracing
		}
		t.pump()
		if !begun {
			first = t.load.next
		}
		n -= t.turn(n, kind == TraceEdge)
		if n <= 0 && t.on && t.stream.used > 0 {
			t.close(t.ticks())
		}
		c.unlock()
		if n <= 0 {
			return first, nil
		}
	}
}

// turn writes up to n messages, as many as may be written at a time, and says how many.
func (t *tracer) turn(n int, edge bool) int {
	clock := t.chip.sched.clock
	began := clock.Now()
	done := 0
	for done < min(n, traceBatch) && clock.Now().Sub(began) < traceTurn {
		k := min(n-done, traceLook)
		t.burst(k, edge)
		done += k
	}
	return done
}

// burst writes messages without waiting for the time to pass.
func (t *tracer) burst(n int, edge bool) {
	now := uint64(0)
	for i := 0; i < n && t.on; i++ {
		if i%16 == 0 {
			now = t.ticks()
		}
		t.loadOne(edge, now)
	}
	// What is due by rate comes after what was just written.
	t.load.start, t.load.first = t.ticks(), t.load.next
}

// overrun writes a whole buffer and some blocks more, faster than anyone reads.
func (t *tracer) overrun(more int) {
	was := t.stream.blocks
	for t.on && t.stream.blocks-was < uint64(t.blocks())+uint64(more) {
		unwritten := t.count.BlocksUnwritten
		t.burst(1, false)
		if t.count.BlocksUnwritten != unwritten {
			return
		}
	}
}
