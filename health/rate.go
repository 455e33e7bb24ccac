package health

import (
	"fmt"
	"math"
	"time"
)

// ClaimedRate is the rate at which a public article says that firmware increments
// the health counter: one per 10 ms. No source that the drivers come from states a
// rate, so it is compared with what is measured and nothing is built on it.
const ClaimedRate = 100.0

// Bounds of the comparison with ClaimedRate.
const (
	rateTolerance = 0.05        // part of the claimed rate
	rateEnough    = time.Second // measured for less, no statement is made
	rateRecent    = 16          // intervals
)

// Rate is what was measured of the health counter while it moved. Intervals without
// a usable start (before the first sample, across a gap, a reset or a device that read
// all ones) are left out; so is a pause of the stall limit or longer, with the
// intervals in which it began and ended, of which nobody knows when. A shorter pause
// is one between two increments, and counts as soon as it is over.
type Rate struct {
	// PerSecond are increments per second over all measured time; Least and Most of
	// single intervals. Recent is over the last 16 intervals whether the counter moved
	// or not: 0 for one that has stopped.
	PerSecond float64 `json:"per_second"`
	Recent    float64 `json:"recent_per_second"`
	Least     float64 `json:"least_per_second"`
	Most      float64 `json:"most_per_second"`
	// Increments were seen in Measured, the sum of Intervals.
	Increments uint64        `json:"increments"`
	Measured   time.Duration `json:"measured_ns"`
	Intervals  uint64        `json:"intervals"`
	// StoppedSince is the last look that found the counter moved, or the first one of
	// all, where it has stood for the stall limit since; zero where it has not.
	StoppedSince time.Time `json:"stopped_since,omitzero"`
	// Claimed is ClaimedRate; Matches tells whether PerSecond is within 5 % of it,
	// nil where too little was measured. Statement says it in words.
	Claimed   float64 `json:"claimed_per_second"`
	Matches   *bool   `json:"matches_claim,omitempty"`
	Statement string  `json:"statement"`
}

type interval struct {
	n uint32
	d time.Duration
}

// span sums intervals.
type span struct {
	sum         uint64
	time        time.Duration
	n           uint64
	least, most float64
}

func (s *span) add(i interval) {
	r := float64(i.n) / i.d.Seconds()
	if s.n == 0 || r < s.least {
		s.least = r
	}
	s.most = max(s.most, r)
	s.n++
	s.sum += uint64(i.n)
	s.time += i.d
}

// join adds what another one has.
func (s *span) join(o span) {
	if o.n == 0 {
		return
	}
	if s.n == 0 || o.least < s.least {
		s.least = o.least
	}
	s.most = max(s.most, o.most)
	s.n, s.sum, s.time = s.n+o.n, s.sum+o.sum, s.time+o.time
}

// rateMeter measures the counter. An interval counts for good once the counter has
// been seen moving after it: before, the counter may have stopped within it.
type rateMeter struct {
	done    span // followed by another movement
	last    span // the interval in which it moved last: one, or none
	pause   span // intervals since then in which it did not
	recent  [rateRecent]interval
	looks   uint64
	stopped bool // the pause has reached the stall limit
}

// add takes n increments seen in d.
func (m *rateMeter) add(n uint32, d time.Duration) {
	if d <= 0 {
		return
	}
	m.recent[m.looks%rateRecent] = interval{n, d}
	m.looks++
	switch {
	case n == 0:
		m.pause.add(interval{n, d})
		return
	case m.stopped:
		// The counter goes on: neither the pause nor its ends are time in which it moved.
		m.last = span{}
	default:
		m.done.join(m.last)
		m.done.join(m.pause)
		m.last = span{}
		m.last.add(interval{n, d})
	}
	m.pause, m.stopped = span{}, false
}

// cut ends what is measured in one go: what comes next does not follow it.
func (m *rateMeter) cut() {
	if m.pause.n == 0 && !m.stopped {
		m.done.join(m.last) // it moved up to the cut
	}
	m.last, m.pause, m.stopped = span{}, span{}, false
}

// stop says that the counter has stood for the stall limit.
func (m *rateMeter) stop() { m.stopped = true }

// report says what was measured; since is when the counter stopped.
func (m *rateMeter) report(since time.Time) Rate {
	all := m.done
	r := Rate{Claimed: ClaimedRate}
	if m.stopped {
		r.StoppedSince = since
	} else {
		all.join(m.last)
	}
	var n uint64
	var d time.Duration
	for _, i := range m.recent {
		n, d = n+uint64(i.n), d+i.d
	}
	if d > 0 {
		r.Recent = float64(n) / d.Seconds()
	}
	r.Least, r.Most, r.Increments, r.Measured, r.Intervals = all.least, all.most, all.sum, all.time, all.n
	if all.time > 0 {
		r.PerSecond = float64(all.sum) / all.time.Seconds()
		if all.time >= rateEnough {
			match := math.Abs(r.PerSecond-ClaimedRate) <= rateTolerance*ClaimedRate
			r.Matches = &match
		}
	}
	r.Statement = r.words()
	return r
}

// words is the statement.
func (r *Rate) words() string {
	var s string
	switch {
	case r.Measured == 0 && !r.StoppedSince.IsZero():
		s = "no rate was measured"
	case r.Measured == 0:
		s = "nothing measured yet"
	default:
		s = fmt.Sprintf("%.1f increments a second, measured for %v", r.PerSecond, r.Measured.Round(time.Millisecond))
	}
	switch {
	case r.Matches != nil && *r.Matches:
		s += fmt.Sprintf(", as the %g in circulation (unproven)", ClaimedRate)
	case r.Matches != nil:
		s += fmt.Sprintf(", not the %g in circulation (unproven)", ClaimedRate)
	case r.Measured > 0:
		s += " (too short to compare)"
	}
	if !r.StoppedSince.IsZero() {
		s += "; stopped since " + r.StoppedSince.UTC().Format("15:04:05.000Z")
	}
	return s
}
