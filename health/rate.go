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

// Rate is what was measured of the health counter. Intervals without a usable
// start (before the first sample, across a gap, a reset or a device that read all
// ones) are left out.
type Rate struct {
	// PerSecond are increments per second over all measured time, Recent over the
	// last 16 intervals; Least and Most of single intervals.
	PerSecond float64 `json:"per_second"`
	Recent    float64 `json:"recent_per_second"`
	Least     float64 `json:"least_per_second"`
	Most      float64 `json:"most_per_second"`
	// Increments were seen in Measured, the sum of Intervals.
	Increments uint64        `json:"increments"`
	Measured   time.Duration `json:"measured_ns"`
	Intervals  uint64        `json:"intervals"`
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

// rateMeter measures the counter.
type rateMeter struct {
	sum         uint64
	time        time.Duration
	intervals   uint64
	least, most float64
	recent      [rateRecent]interval
}

// add takes n increments seen in d.
func (m *rateMeter) add(n uint32, d time.Duration) {
	if d <= 0 {
		return
	}
	r := float64(n) / d.Seconds()
	if m.intervals == 0 || r < m.least {
		m.least = r
	}
	m.most = max(m.most, r)
	m.recent[m.intervals%rateRecent] = interval{n, d}
	m.intervals++
	m.sum += uint64(n)
	m.time += d
}

func (m *rateMeter) report() Rate {
	r := Rate{Least: m.least, Most: m.most, Increments: m.sum, Measured: m.time, Intervals: m.intervals, Claimed: ClaimedRate}
	if m.time == 0 {
		r.Statement = "nothing measured yet"
		return r
	}
	r.PerSecond = float64(m.sum) / m.time.Seconds()
	var n uint64
	var d time.Duration
	for _, i := range m.recent {
		n, d = n+uint64(i.n), d+i.d
	}
	r.Recent = float64(n) / d.Seconds()
	if m.time < rateEnough {
		r.Statement = fmt.Sprintf("%.1f increments a second, measured for %v: too short to compare", r.PerSecond, m.time.Round(time.Millisecond))
		return r
	}
	match := math.Abs(r.PerSecond-ClaimedRate) <= rateTolerance*ClaimedRate
	r.Matches = &match
	how := "does not match"
	if match {
		how = "matches"
	}
	r.Statement = fmt.Sprintf("%.1f increments a second, measured for %v: that %s the %g a second in circulation, which no driver's source states (unproven)",
		r.PerSecond, m.time.Round(time.Millisecond), how, ClaimedRate)
	return r
}
