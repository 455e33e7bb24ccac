package analyze

import (
	"math"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Options tune Stats. The zero value is ready.
type Options struct {
	// Key names the group of a message; nil: its format string as firmware has it,
	// escaped. Messages without a format have groups of their kind.
	Key func(*trace.Message) string
	// MaxFormats bounds the groups by format; 0 is 2048. Messages of further formats
	// are counted together, under the name "(other formats)".
	MaxFormats int
	// Hz is the rate of the clock where the trace has no samples of it; 0: not known.
	Hz float64
}

const maxFormats = 2048

// Names of groups that are no formats.
const (
	NameAll     = "(all messages)"
	NameOrphan  = "(parameter without a message)"
	NameUnknown = "(unknown string)"
	NameOther   = "(other formats)"
)

// Stats collects. It is for one goroutine. A message of a format that was seen before
// allocates nothing, but for a row of a histogram now and then.
type Stats struct {
	o       Options
	all     *series
	ids     [256]*series
	formats map[string]*series
	seen    map[*trace.Format]*series // a shortcut to formats
	other   *series
	tl      capture.Timeline

	stretch  uint64 // number of the stretch without a gap
	open     bool   // something was seen in it
	from, to uint64
	observed uint64
	first    uint64
	last     uint64
	begun    bool
	gaps     uint64
	missing  uint64
	atLeast  bool
}

// series is the messages of one group.
type series struct {
	name      string
	id        int // −1: not an event id's
	kind      trace.Kind
	ids       [4]uint64 // set of event ids
	count     uint64
	lost      uint64
	reordered uint64
	d         dist
	last      uint64
	stretch   uint64 // of last
	find      *finding
}

// New makes empty statistics.
func New(o Options) *Stats {
	if o.MaxFormats == 0 {
		o.MaxFormats = maxFormats
	}
	return &Stats{
		o: o, all: &series{name: NameAll, id: -1}, stretch: 1,
		formats: map[string]*series{}, seen: map[*trace.Format]*series{},
	}
}

// signed is a − b in serial arithmetic: −2^52 … 2^52−1.
func signed(a, b uint64) int64 {
	d := int64(trace.Elapsed(a, b))
	if d >= 1<<(trace.TimeBits-1) {
		d -= 1 << trace.TimeBits
	}
	return d
}

// Seen takes the time of a message that does not count: the trace was watched then.
func (s *Stats) Seen(m *trace.Message) { s.see(m.Time) }

// Message counts a message.
func (s *Stats) Message(m *trace.Message) {
	s.see(m.Time)
	id := s.ids[m.EventID]
	if id == nil {
		id = &series{id: int(m.EventID)}
		s.ids[m.EventID] = id
	}
	f := s.series(m)
	for _, g := range [...]*series{s.all, id, f} {
		g.add(m, s.stretch)
	}
	f.ids[m.EventID>>6] |= 1 << (m.EventID & 63)
}

// series is the group of a message's format.
func (s *Stats) series(m *trace.Message) *series {
	if f := s.seen[m.Format]; f != nil && m.Format != nil && s.o.Key == nil {
		return f
	}
	name := s.name(m)
	f := s.formats[name]
	switch {
	case f != nil:
	case len(s.formats) < s.o.MaxFormats:
		f = &series{name: name, id: -1, kind: m.Kind}
		s.formats[name] = f
	default:
		if s.other == nil {
			s.other = &series{name: NameOther, id: -1}
		}
		return s.other
	}
	if m.Format != nil && s.o.Key == nil {
		if len(s.seen) >= 4*maxFormats { // decoders may compile a format again and again
			clear(s.seen)
		}
		s.seen[m.Format] = f
	}
	return f
}

func (s *Stats) name(m *trace.Message) string {
	switch {
	case m.Kind == trace.KindOrphan:
		return NameOrphan
	case m.Kind == trace.KindUnknown || m.Format == nil:
		return NameUnknown
	case s.o.Key != nil:
		return s.o.Key(m)
	}
	return m.Format.Escaped()
}

func (g *series) add(m *trace.Message, stretch uint64) {
	g.count++
	if m.Lost {
		g.lost++
	}
	if g.stretch != stretch {
		g.last, g.stretch = m.Time, stretch
		return
	}
	d := signed(m.Time, g.last)
	if d < 0 {
		g.reordered++
		return
	}
	g.d.add(uint64(d))
	g.last = m.Time
}

// Record takes what else a capture has; blocks for their closing times. Messages come
// through Message.
func (s *Stats) Record(r *capture.Record) {
	switch r.Kind {
	case capture.KindBlock:
		s.Block(r.Data[:])
	case capture.KindGap:
		s.gaps++
		s.missing += r.Gap.Blocks
		s.atLeast = s.atLeast || r.Gap.AtLeast
		s.cut()
	case capture.KindDamage:
		s.cut()
	case capture.KindClock:
		s.tl.Add(&r.Clock)
	}
}

// Block takes the closing time of a block: the trace was watched until then, whether
// messages came or not.
func (s *Stats) Block(b []byte) {
	if t, ok := trace.ClosedTime(b); ok {
		s.see(t)
	}
}

// see widens the stretch that is watched.
func (s *Stats) see(t uint64) {
	if !s.begun {
		s.begun, s.first, s.last = true, t, t
	}
	if signed(t, s.last) > 0 {
		s.last = t
	}
	if !s.open {
		s.open, s.from, s.to = true, t, t
	}
	if signed(t, s.from) < 0 {
		s.from = t
		if s.stretch == 1 {
			s.first = t
		}
	}
	if signed(t, s.to) > 0 {
		s.to = t
	}
}

// cut ends a stretch: something is missing here, and no interval is taken across it.
func (s *Stats) cut() {
	if s.open {
		s.observed += trace.Elapsed(s.to, s.from)
	}
	s.open = false
	s.stretch++
}

// Group is the name of a message's group by format.
func (s *Stats) Group(m *trace.Message) string { return s.series(m).name }

// Timeline is the clock samples seen so far.
func (s *Stats) Timeline() *capture.Timeline { return &s.tl }

// clock is the calibration; nil if there is none.
func (s *Stats) clock() *Clock {
	if hz, e, ok := s.tl.Rate(); ok && !math.IsInf(e, 0) && hz > 0 {
		return &Clock{Hz: hz, Error: e, Samples: s.tl.Samples()}
	}
	if s.o.Hz > 0 {
		return &Clock{Hz: s.o.Hz}
	}
	return nil
}
