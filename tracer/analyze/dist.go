package analyze

import (
	"math"
	"math/bits"
	"slices"
)

// ExactIntervals is the number of intervals of a group up to which quantiles are
// exact: all of them are kept. Beyond, they come from a histogram with 128 cells an
// octave, in whose middle a quantile is at most QuantileError (relative) off.
const (
	ExactIntervals = 2048
	QuantileError  = 1.0 / 256
)

const (
	cellBits = 7
	cells    = 1 << cellBits
	rows     = 64 - cellBits + 1
)

// dist is the distribution of any number of values. A row of the histogram, an
// octave, exists once a value falls into it; values below 128 have a cell each.
type dist struct {
	n        uint64
	sum      float64
	min, max uint64
	exact    []uint64 // in order of arrival; not added to beyond ExactIntervals
	row      [rows]*[cells]uint64
}

func (d *dist) add(v uint64) {
	if d.n == 0 || v < d.min {
		d.min = v
	}
	d.max = max(d.max, v)
	d.n++
	d.sum += float64(v)
	if d.n <= ExactIntervals {
		d.exact = append(d.exact, v)
	}
	r, c := cellOf(v)
	if d.row[r] == nil {
		d.row[r] = new([cells]uint64)
	}
	d.row[r][c]++
}

// cellOf finds the cell of a value.
func cellOf(v uint64) (row, cell int) {
	if v < cells {
		return 0, int(v)
	}
	e := bits.Len64(v) - cellBits - 1
	return e + 1, int(v>>e) - cells
}

// cellAt is the inverse: the smallest value of a cell and how many it has.
func cellAt(row, cell int) (lo, width uint64) {
	if row == 0 {
		return uint64(cell), 1
	}
	return uint64(cells+cell) << (row - 1), 1 << (row - 1)
}

func (d *dist) isExact() bool { return d.n <= ExactIntervals }

func (d *dist) mean() float64 {
	if d.n == 0 {
		return 0
	}
	return d.sum / float64(d.n)
}

// quantiles are the nearest ranks: the smallest value that at least q·n values do not
// exceed. qs is in rising order.
func (d *dist) quantiles(qs ...float64) []uint64 {
	out := make([]uint64, len(qs))
	if d.n == 0 {
		return out
	}
	rank := func(q float64) uint64 {
		return min(max(uint64(math.Ceil(q*float64(d.n)-1e-9)), 1), d.n)
	}
	if d.isExact() {
		v := slices.Clone(d.exact)
		slices.Sort(v)
		for i, q := range qs {
			out[i] = v[rank(q)-1]
		}
		return out
	}
	i, below := 0, uint64(0)
	for r := range d.row {
		if d.row[r] == nil {
			continue
		}
		for c, n := range d.row[r] {
			below += n
			for i < len(qs) && below >= rank(qs[i]) {
				lo, width := cellAt(r, c)
				out[i] = min(max(lo+(width-1)/2, d.min), d.max)
				i++
			}
		}
	}
	return out
}

// Bar is a bar of a histogram of intervals: N of them are in [Lo, Hi), in ticks.
type Bar struct {
	Lo, Hi uint64
	N      uint64
}

// barsPerOctave is the resolution of a Group's histogram.
const barsPerOctave = 4

// bars gives the histogram from the first to the last bar that is not empty.
func (d *dist) bars() []Bar {
	var out []Bar
	put := func(lo, hi, n uint64) {
		if l := len(out); l > 0 && out[l-1].Lo == lo {
			out[l-1].N += n
		} else if l > 0 || n > 0 {
			out = append(out, Bar{lo, hi, n})
		}
	}
	last, _ := cellOf(d.max)
	for r := range last + 1 {
		for c := range cells {
			var n uint64
			if d.row[r] != nil {
				n = d.row[r][c]
			}
			lo, hi := barOf(r, c)
			put(lo, hi, n)
		}
	}
	for len(out) > 0 && out[len(out)-1].N == 0 {
		out = out[:len(out)-1]
	}
	return out
}

// barOf is the bar that a cell belongs to. Small values have bars of octaves too,
// none narrower than 1.
func barOf(row, cell int) (lo, hi uint64) {
	if row > 0 {
		const wide = cells / barsPerOctave
		first, width := cellAt(row, cell/wide*wide)
		return first, first + wide*width
	}
	v := uint64(cell)
	if v < barsPerOctave {
		return v, v + 1
	}
	width := uint64(1) << (bits.Len64(v) - 1) / barsPerOctave
	lo = v / width * width
	return lo, lo + width
}
