package analyze

import (
	"cmp"
	"math"
	"slices"
)

// Rules of Compare. A difference is significant if equal rates would show it in fewer
// than one comparison of 1/Significance, the number of messages compared taken into
// account (Bonferroni), and if it is large: a rate that changed by less than the part
// MinChange is not, however many messages say so, because real messages come less
// evenly than chance.
const (
	Significance = 1e-3
	MinChange    = 0.25
)

// Change is the kind of a difference.
type Change string

// Changes.
const (
	ChangeNew  Change = "new"  // not in the first trace
	ChangeGone Change = "gone" // not in the second one
	ChangeRate Change = "rate"
	ChangeNone Change = "same"
)

// Difference is a message in two traces.
type Difference struct {
	Name        string  `json:"name"`
	Kind        string  `json:"kind,omitempty"`
	Change      Change  `json:"change"`
	Significant bool    `json:"significant"`
	CountA      uint64  `json:"count_a"`
	CountB      uint64  `json:"count_b"`
	RateA       float64 `json:"rate_a"` // in Diff.Unit
	RateB       float64 `json:"rate_b"`
	Ratio       float64 `json:"ratio,omitempty"` // RateB/RateA; 0 where one is 0
	// P is the probability of counts at least so far apart, were the rates equal.
	P       float64 `json:"p"`
	MedianA float64 `json:"median_a_ticks,omitempty"`
	MedianB float64 `json:"median_b_ticks,omitempty"`
}

// Diff is what differs between two traces.
type Diff struct {
	Unit string `json:"rate_unit"` // "per s"; "per Mtick" where a trace is not calibrated
	// WatchedA and WatchedB are the lengths that rates are of, in s or Mticks.
	WatchedA float64 `json:"watched_a"`
	WatchedB float64 `json:"watched_b"`
	// Significant counts the differences that are.
	Significant int          `json:"significant"`
	New         int          `json:"new"`
	Gone        int          `json:"gone"`
	Rate        int          `json:"rate_changed"`
	Same        int          `json:"same"`
	List        []Difference `json:"list"` // new, gone, rate changed, each with the significant and frequent first; not the same ones
}

// Compare compares two traces message by message. A message is its format string (or
// the name that Options.Key gave it), so that addresses, which every firmware has
// anew, do not matter.
func Compare(a, b *Result) *Diff {
	d := &Diff{Unit: "per s", List: []Difference{}}
	d.WatchedA, d.WatchedB = float64(a.Observed)/1e6, float64(b.Observed)/1e6
	if a.Clock != nil && b.Clock != nil {
		d.WatchedA, _ = a.Clock.Seconds(float64(a.Observed))
		d.WatchedB, _ = b.Clock.Seconds(float64(b.Observed))
	} else {
		d.Unit = "per Mtick"
	}
	in := map[string]*Group{}
	for i := range a.Formats {
		in[a.Formats[i].Name] = &a.Formats[i]
	}
	var pairs [][2]*Group
	for i := range b.Formats {
		g := &b.Formats[i]
		pairs = append(pairs, [2]*Group{in[g.Name], g})
		delete(in, g.Name)
	}
	for i := range a.Formats {
		if g := &a.Formats[i]; in[g.Name] != nil {
			pairs = append(pairs, [2]*Group{g, nil})
		}
	}
	for _, p := range pairs {
		x := d.compare(p[0], p[1], len(pairs))
		switch x.Change {
		case ChangeNew:
			d.New++
		case ChangeGone:
			d.Gone++
		case ChangeRate:
			d.Rate++
		default:
			d.Same++
			continue
		}
		if x.Significant {
			d.Significant++
		}
		d.List = append(d.List, x)
	}
	order := map[Change]int{ChangeNew: 0, ChangeGone: 1, ChangeRate: 2}
	slices.SortStableFunc(d.List, func(x, y Difference) int {
		return cmp.Or(cmp.Compare(order[x.Change], order[y.Change]), -cmpBool(x.Significant, y.Significant),
			cmp.Compare(x.P, y.P), cmp.Compare(y.CountA+y.CountB, x.CountA+x.CountB), cmp.Compare(x.Name, y.Name))
	})
	return d
}

func cmpBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func (d *Diff) compare(a, b *Group, tests int) Difference {
	x := Difference{Change: ChangeNone}
	if a != nil {
		x.Name, x.Kind, x.CountA, x.MedianA = a.Name, a.Kind, a.Count, a.Ticks.Median
	}
	if b != nil {
		x.Name, x.Kind, x.CountB, x.MedianB = b.Name, b.Kind, b.Count, b.Ticks.Median
	}
	rate := func(n uint64, watched float64) float64 {
		if watched <= 0 {
			return 0
		}
		return float64(n) / watched
	}
	x.RateA, x.RateB = rate(x.CountA, d.WatchedA), rate(x.CountB, d.WatchedB)
	x.P = equalRates(x.CountA, x.CountB, d.WatchedA, d.WatchedB)
	sure := x.P < Significance/float64(tests)
	switch {
	case x.CountA == 0:
		x.Change, x.Significant = ChangeNew, sure
	case x.CountB == 0:
		x.Change, x.Significant = ChangeGone, sure
	case x.RateA > 0:
		x.Ratio = x.RateB / x.RateA
		if sure && (x.Ratio >= 1+MinChange || x.Ratio <= 1/(1+MinChange)) {
			x.Change, x.Significant = ChangeRate, true
		}
	}
	return x
}

// equalRates is the two-sided exact conditional test of two Poisson rates: given a+b
// messages in all, b of them are in the second trace by a binomial law with the share
// of its length. It is 1 where a length is 0.
func equalRates(a, b uint64, ta, tb float64) float64 {
	if ta <= 0 || tb <= 0 || a+b == 0 {
		return 1
	}
	p := tb / (ta + tb)
	n := float64(a + b)
	more, fewer := 1.0, 1.0
	if b > 0 { // P(X ≥ b)
		more = betaInc(float64(b), n-float64(b)+1, p)
	}
	if a > 0 { // P(X ≤ b)
		fewer = betaInc(float64(a), float64(b)+1, 1-p)
	}
	return min(1, 2*min(more, fewer))
}

// betaInc is the regularised incomplete beta function I_x(a, b), by its continued
// fraction (modified Lentz), accurate to about 1e-10 and better than enough where it
// is far below the level of significance.
func betaInc(a, b, x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - betaInc(b, a, 1-x)
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab-la-lb+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	c, d := 1.0, 1-(a+b)*x/(a+1)
	if math.Abs(d) < tiny {
		d = tiny
	}
	d = 1 / d
	h := d
	for m := 1.0; m < 1e6; m++ {
		for _, k := range [2]float64{
			m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)),
			-(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1)),
		} {
			if d = 1 + k*d; math.Abs(d) < tiny {
				d = tiny
			}
			if c = 1 + k/c; math.Abs(c) < tiny {
				c = tiny
			}
			d = 1 / d
			h *= d * c
		}
		if math.Abs(d*c-1) < 1e-12 {
			break
		}
	}
	return min(max(front*h, 0), 1)
}
