package analyze

import (
	"cmp"
	"math"
	"slices"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// The definitions of findings, for a group with at least MinIntervals intervals.
//
// Silence and burst ask what chance would do: for messages that come independently of
// each other at the pace that the group's median interval shows, an interval is longer
// than x with probability 2^(−x/median). Of n intervals, one silence longer than
// median·log2(n/Chance), or one run of as many intervals of at most median/10 as a
// burst needs, would come in fewer than one trace of 1/Chance.
//
// An outlier asks nothing: it is an interval further outside of the quartiles than
// three times their distance, and than 1/32 of the median, so that the jitter of a
// regular message is none. Of intervals by chance, 0.9 % are outliers.
const (
	MinIntervals = 20
	Chance       = 1e-3
	burstPart    = 10 // an interval of a burst is at most this part of the median
	minBurst     = 3  // intervals
	fence        = 3
	jitter       = 32
	maxFindings  = 100 // of each kind are kept
)

// FindingKind is what was found.
type FindingKind string

// Kinds of findings.
const (
	Silence FindingKind = "silence"
	Burst   FindingKind = "burst"
	Outlier FindingKind = "outlier"
)

// Finding is one place of a trace that is unlike the rest.
type Finding struct {
	Kind  FindingKind `json:"kind"`
	Group string      `json:"group"`
	From  uint64      `json:"from"` // time of the first message, To of the last one
	To    uint64      `json:"to"`
	Ticks uint64      `json:"ticks"` // from From to To
	// Messages of a burst; 2, the ones around it, of an interval.
	Messages uint64 `json:"messages"`
	// Factor is how many medians an interval lasts; of a burst, how many times
	// faster than its median the group was.
	Factor float64 `json:"factor"`
}

// Threshold says from where on intervals of a group are findings, in ticks.
type Threshold struct {
	Silence   uint64 `json:"silence"`         // longer is one
	BurstGap  uint64 `json:"burst_interval"`  // of a burst: none longer; 0: the clock is too coarse to tell
	BurstRun  uint64 `json:"burst_intervals"` // in a row, at least
	OutlierLo uint64 `json:"outlier_below"`   // shorter is one
	OutlierHi uint64 `json:"outlier_above"`   // longer is one
}

// Thresholds of a group; ok is false if it has too few intervals.
func Thresholds(g *Group) (t Threshold, ok bool) {
	if g.Intervals < MinIntervals {
		return t, false
	}
	n, median := float64(g.Intervals), max(g.Ticks.Median, 1)
	t.Silence = uint64(median * math.Log2(n/Chance))
	t.BurstGap = uint64(g.Ticks.Median) / burstPart
	short := 1 - math.Exp2(-1.0/burstPart)
	t.BurstRun = max(uint64(math.Ceil(math.Log(n/Chance)/-math.Log(short))), minBurst)
	far := max(fence*(g.Q3-g.Q1), uint64(g.Ticks.Median)/jitter)
	t.OutlierHi = g.Q3 + far
	t.OutlierLo = g.Q1 - min(far, g.Q1)
	return t, true
}

// Findings is what a Finder found: how many of each kind, and the most severe ones.
type Findings struct {
	Bursts   uint64    `json:"bursts"`
	Silences uint64    `json:"silences"`
	Outliers uint64    `json:"outliers"`
	List     []Finding `json:"list"` // bursts, silences, outliers; each by severity
	// Judged is the number of groups with intervals enough, TooFew of the others.
	Judged int `json:"groups_judged"`
	TooFew int `json:"groups_with_too_few"`
}

// finding is a group's state in the second pass.
type finding struct {
	median  float64
	t       Threshold
	last    uint64
	stretch uint64
	from    uint64 // start of the present run of short intervals
	run     uint64
}

// Finder goes through a trace for the second time. Give it the messages, gaps and
// blocks that Stats had, then call Findings.
type Finder struct {
	s       *Stats
	all     *series
	stretch uint64
	f       Findings
	list    map[FindingKind][]Finding
}

// Finder starts the second pass; s must not change until it is over.
func (s *Stats) Finder() *Finder {
	f := &Finder{s: s, all: s.all, stretch: 1, list: map[FindingKind][]Finding{}}
	prepare := func(g *series) {
		g.find = nil
		d := g.group(&Result{})
		t, ok := Thresholds(&d)
		if !ok {
			f.f.TooFew++
			return
		}
		f.f.Judged++
		g.find = &finding{t: t, median: max(d.Ticks.Median, 1)}
	}
	prepare(s.all)
	for _, g := range s.formats {
		prepare(g)
	}
	return f
}

// Message takes the next message.
func (f *Finder) Message(m *trace.Message) {
	f.add(f.all, m.Time)
	if g := f.s.series(m); g != f.s.other {
		f.add(g, m.Time)
	}
}

// Record takes what else a capture has.
func (f *Finder) Record(r *capture.Record) {
	if r.Kind == capture.KindGap || r.Kind == capture.KindDamage {
		f.stretch++
	}
}

func (f *Finder) add(g *series, t uint64) {
	x := g.find
	if x == nil {
		return
	}
	if x.stretch != f.stretch {
		f.endRun(g)
		x.last, x.stretch = t, f.stretch
		return
	}
	d := signed(t, x.last)
	if d < 0 {
		return
	}
	v, from := uint64(d), x.last
	if x.t.BurstGap > 0 && v <= x.t.BurstGap {
		if x.run == 0 {
			x.from = from
		}
		x.run++
	} else {
		f.endRun(g)
	}
	x.last = t
	one := Finding{Group: g.name, From: from, To: t, Ticks: v, Messages: 2, Factor: float64(v) / x.median}
	if v > x.t.Silence {
		f.f.Silences++
		one.Kind = Silence
		f.keep(one)
	}
	if v > x.t.OutlierHi || v < x.t.OutlierLo {
		f.f.Outliers++
		one.Kind = Outlier
		f.keep(one)
	}
}

// endRun ends a run of short intervals, at the last message.
func (f *Finder) endRun(g *series) {
	x := g.find
	if x.run >= x.t.BurstRun {
		f.f.Bursts++
		d := trace.Elapsed(x.last, x.from)
		f.keep(Finding{
			Kind: Burst, Group: g.name, From: x.from, To: x.last, Ticks: d, Messages: x.run + 1,
			Factor: x.median * float64(x.run) / float64(max(d, 1)),
		})
	}
	x.run = 0
}

// keep adds a finding and drops the least severe ones now and then.
func (f *Finder) keep(x Finding) {
	l := append(f.list[x.Kind], x)
	if len(l) >= 4*maxFindings {
		sortFindings(l)
		l = l[:maxFindings]
	}
	f.list[x.Kind] = l
}

// sortFindings puts the most severe first: bursts by their messages, intervals by the
// factor; short outliers behind the long ones.
func sortFindings(l []Finding) {
	slices.SortStableFunc(l, func(a, b Finding) int {
		if a.Kind == Burst {
			return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(b.Factor, a.Factor))
		}
		return cmp.Compare(b.Factor, a.Factor)
	})
}

// Findings ends the second pass.
func (f *Finder) Findings() *Findings {
	for _, g := range f.s.formats {
		if g.find != nil {
			f.endRun(g)
		}
	}
	if f.all.find != nil {
		f.endRun(f.all)
	}
	f.f.List = []Finding{}
	for _, k := range []FindingKind{Burst, Silence, Outlier} {
		l := f.list[k]
		sortFindings(l)
		f.f.List = append(f.f.List, l[:min(len(l), maxFindings)]...)
	}
	return &f.f
}
