package analyze

import (
	"cmp"
	"slices"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Result is what Stats saw.
type Result struct {
	Messages uint64 `json:"messages"`
	// First and Last are the times between which the trace lies, Observed how many
	// ticks of that it was watched: the time of gaps is not in it.
	First    uint64 `json:"first"`
	Last     uint64 `json:"last"`
	Observed uint64 `json:"observed_ticks"`
	// Gaps and Missing are the gaps and the blocks that they lack; AtLeast if there
	// may be more of these.
	Gaps    uint64 `json:"gaps"`
	Missing uint64 `json:"missing_blocks"`
	AtLeast bool   `json:"missing_at_least,omitempty"`
	// Clock is the device's clock against the host's; nil: not calibrated, and there
	// are no times but in ticks.
	Clock   *Clock  `json:"clock"`
	All     Group   `json:"all"`
	IDs     []Group `json:"event_ids"` // in their order
	Formats []Group `json:"formats"`   // the most frequent first
}

// Clock is the rate of the device's clock.
type Clock struct {
	Hz float64 `json:"hz"`
	// Error is how far Hz may be off, from the clock samples; 0 with no Samples, when
	// the rate was given by the user.
	Error   float64 `json:"hz_error"`
	Samples int     `json:"samples"`
}

// Relative is how far a length of time may be off, as a part of it.
func (c *Clock) Relative() float64 { return c.Error / c.Hz }

// Seconds is the length of so many ticks, and how far it may be off.
func (c *Clock) Seconds(ticks float64) (s, err float64) {
	s = ticks / c.Hz
	return s, s * c.Relative()
}

// Group is the figures of an event id or of a format.
type Group struct {
	Name    string `json:"name"`
	EventID *int   `json:"event_id,omitempty"`  // of a group by event id
	IDs     []int  `json:"event_ids,omitempty"` // that the messages of a format had
	Kind    string `json:"kind,omitempty"`
	Count   uint64 `json:"count"`
	Lost    uint64 `json:"lost"` // messages that say that events before them were lost
	// Rate is Count by the time watched, a second; PerMtick by a million ticks.
	Rate      float64 `json:"rate_per_s,omitempty"`
	RateError float64 `json:"rate_error,omitempty"`
	PerMtick  float64 `json:"per_mtick"`
	// Reordered messages are earlier than one before them; they make no interval.
	Reordered uint64 `json:"reordered"`
	// Intervals is the number of intervals: from each message to the next one of the
	// group, none across a gap.
	Intervals uint64  `json:"intervals"`
	Exact     bool    `json:"exact"` // quantiles are exact, not within QuantileError
	Ticks     Spread  `json:"ticks"`
	Time      *Spread `json:"ns,omitempty"`
	TimeError *Spread `json:"ns_error,omitempty"` // by the clock's error

	Hist   []Bar  `json:"-"`
	Q1, Q3 uint64 `json:"-"`
}

// Spread describes intervals, in ticks or in nanoseconds.
type Spread struct {
	Min    float64 `json:"min"`
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

func (s Spread) scale(f float64) *Spread {
	return &Spread{s.Min * f, s.Mean * f, s.Median * f, s.P99 * f, s.Max * f}
}

// Result gives the figures so far; more may be added afterwards.
func (s *Stats) Result() *Result {
	r := &Result{
		Messages: s.all.count, First: s.first, Last: s.last, Observed: s.observed,
		Gaps: s.gaps, Missing: s.missing, AtLeast: s.atLeast, Clock: s.clock(),
		IDs: []Group{}, Formats: []Group{},
	}
	if s.open {
		r.Observed += trace.Elapsed(s.to, s.from)
	}
	r.All = s.all.group(r)
	for _, g := range s.ids {
		if g != nil {
			r.IDs = append(r.IDs, g.group(r))
		}
	}
	for _, g := range s.formats {
		r.Formats = append(r.Formats, g.group(r))
	}
	slices.SortFunc(r.Formats, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	if s.other != nil {
		r.Formats = append(r.Formats, s.other.group(r))
	}
	return r
}

func (g *series) group(r *Result) Group {
	q := g.d.quantiles(0.25, 0.5, 0.75, 0.99)
	o := Group{
		Name: g.name, Count: g.count, Lost: g.lost, Reordered: g.reordered,
		Intervals: g.d.n, Exact: g.d.isExact(),
		Ticks: Spread{float64(g.d.min), g.d.mean(), float64(q[1]), float64(q[3]), float64(g.d.max)},
		Hist:  g.d.bars(), Q1: q[0], Q3: q[2],
	}
	if g.id >= 0 {
		o.Name, o.EventID = idName(g.id), &g.id
	}
	for id := range 256 {
		if g.ids[id>>6]>>(id&63)&1 != 0 {
			o.IDs = append(o.IDs, id)
		}
	}
	if g.kind != trace.KindString {
		o.Kind = g.kind.String()
	}
	if r.Observed > 0 {
		o.PerMtick = float64(g.count) / float64(r.Observed) * 1e6
	}
	if c := r.Clock; c != nil {
		o.Rate = o.PerMtick / 1e6 * c.Hz
		o.RateError = o.Rate * c.Relative()
		ns := 1e9 / c.Hz
		o.Time, o.TimeError = o.Ticks.scale(ns), o.Ticks.scale(ns*c.Relative())
	}
	return o
}

func idName(id int) string {
	const digits = "0123456789abcdef"
	return "0x" + string(digits[id>>4]) + string(digits[id&15])
}
