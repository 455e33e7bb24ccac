package trace

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// oddRing makes a geometry, sections and blocks with every oddity the rulings
// speak of, so that a decoder meets all of them in a few hundred blocks.
func oddRing(r *rand.Rand, blocks int) (Geometry, []Section, []byte) {
	g := Geometry{TrcVer: uint8(r.IntN(4)), FirstString: uint8(r.IntN(4)), NumString: uint8(1 + r.IntN(5))}
	if r.IntN(8) == 0 {
		g.FirstString, g.NumString = 250, uint8(r.IntN(20))
	}
	sections, pointers := oddSections(r)
	o := &oddWriter{r: r, g: g, pointers: pointers, s: newReference(g, sections), t: oddTime(r)}
	var image []byte
	for range blocks {
		image = append(image, o.block()...)
	}
	return g, sections, image
}

// oddTime starts in the middle, or so that the 53 bits soon wrap.
func oddTime(r *rand.Rand) uint64 {
	if r.IntN(2) == 0 {
		return (1<<53 - uint64(r.IntN(4000))) & TimeMask
	}
	return r.Uint64() & TimeMask
}

var oddPieces = []string{
	"%x", "%d", "%u", "%i", "%X", "%c", "%08x", "%02x", "%#x", "%llx", "%lld", "%llu", "%lx", "%ld", "%lc",
	"%5d", "%-5d|", "%+d", "% d", "%05d", "%.3d", "%.0d", "%8.3x", "%-8x|", "%#010x", "%.0x", "%#.0X", "%5c", "%-5c|", "%.c", "%512d", "%.512x", "%+ -0#7d",
	"%%", "%", "%s", "%p", "%n", "%513d", "%.513x", "%99999999999999999999d", "%llc", "%llls", "%*d", "%hx", "%5%", "%lls", "%-",
	"abc ", "qp 0x", "\n", "\r\n", "\t", "\\", "\"", "\x01", "\x7f", "\xff", "=", " cmd done, status ", "a rather long literal between two values: ",
}

// oddFormat puts a few pieces together; most formats are good.
func oddFormat(r *rand.Rand) string {
	var b strings.Builder
	for range r.IntN(7) {
		n := len(oddPieces)
		if r.IntN(3) > 0 {
			n = 33 // valid conversions
		}
		b.WriteString(oddPieces[r.IntN(n)])
		if r.IntN(2) == 0 {
			b.WriteString(oddPieces[len(oddPieces)-1-r.IntN(13)])
		}
	}
	return b.String()
}

// oddSections makes sections that may overlap, be empty, end without NUL, or lie
// where 32 bits end; and pointers to strings, into them and to nowhere.
func oddSections(r *rand.Rand) ([]Section, []uint32) {
	var sections []Section
	var pointers []uint32
	base := uint64(r.IntN(1000))
	for range 1 + r.IntN(4) {
		var data []byte
		for range 1 + r.IntN(12) {
			pointers = append(pointers, uint32(base)+uint32(len(data)))
			data = append(append(data, oddFormat(r)...), 0)
		}
		switch r.IntN(6) {
		case 0:
			data = data[:len(data)-1] // no NUL at the end
		case 1:
			data = nil
		case 2:
			data = append(data, make([]byte, r.IntN(5))...)
		}
		sections = append(sections, Section{Base: base, Data: data})
		pointers = append(pointers, uint32(base), uint32(base)+uint32(len(data)), uint32(base)+uint32(max(len(data)-1, 0)))
		if len(data) > 0 {
			pointers = append(pointers, uint32(base)+uint32(r.IntN(len(data))))
		}
		switch r.IntN(4) {
		case 0: // overlap
			base += uint64(len(data)) / 2
		case 1: // the end of the pointers
			base = 1<<32 - uint64(r.IntN(60))
		case 2: // beyond any pointer
			base = 1<<32 + base
		default:
			base += uint64(len(data)) + uint64(r.IntN(3))
		}
	}
	return sections, append(pointers, 0, 0xffffffff, r.Uint32())
}

type oddWriter struct {
	r        *rand.Rand
	g        Geometry
	pointers []uint32
	s        *reference // looks strings up
	t        uint64
	tmsn     uint16
	pending  []Event // parts still to come
}

func (o *oddWriter) block() []byte {
	b := make([]byte, BlockSize)
	for i := range EventsPerBlock - 1 {
		binary.BigEndian.PutUint64(b[i*8:], uint64(o.event()))
	}
	if o.r.IntN(12) > 0 {
		binary.BigEndian.PutUint64(b[BlockSize-8:], uint64(o.timestamp()))
	} else {
		binary.BigEndian.PutUint64(b[BlockSize-8:], uint64(o.event()))
	}
	if o.r.IntN(40) == 0 {
		o.t -= uint64(o.r.IntN(2000)) // backwards
	}
	return b
}

func (o *oddWriter) timestamp() Event {
	urts := uint8(0)
	if o.r.IntN(4) == 0 {
		urts = uint8(o.r.IntN(8))
	}
	if o.r.IntN(8) == 0 {
		o.t &^= stampMask // on the edge of an epoch
	}
	return TimestampEvent(o.t&TimeMask, urts)
}

// stamp is that of the time, or any, or exactly that of the timestamp to come.
func (o *oddWriter) stamp() uint8 {
	o.t += uint64(o.r.IntN(9))
	if o.r.IntN(8) == 0 {
		return uint8(o.r.IntN(128))
	}
	return uint8(o.t) & stampMask
}

func (o *oddWriter) event() Event {
	r := o.r
	lost := r.IntN(30) == 0
	id := uint8(int(o.g.FirstString) + r.IntN(int(o.g.NumString)+1)) // one too many
	switch n := r.IntN(100); {
	case n < 3:
		return o.timestamp()
	case n < 4:
		return Event(r.Uint64())
	case n < 6:
		return 0
	case n < 82 && len(o.pending) > 0:
		i := 0
		if r.IntN(8) == 0 {
			i = r.IntN(len(o.pending))
		}
		e := o.pending[i]
		if r.IntN(40) > 0 { // else it comes twice
			o.pending = append(o.pending[:i], o.pending[i+1:]...)
		}
		if r.IntN(40) == 0 {
			e ^= Event(1+r.IntN(7)) << 32 // another place
		}
		if lost {
			e |= 1 << 63
		}
		return e
	case n >= 82 && n < 84:
		return StringEvent(lost, o.stamp(), id, uint16(r.IntN(8))|uint16(r.IntN(2))<<12, uint8(1+r.IntN(7)), r.Uint32())
	}
	o.tmsn = (o.tmsn+1)&31 | uint16(r.IntN(2))<<12 // soon again, and nearly the same
	if len(o.pending) > 20 {
		o.pending = nil
	}
	p := o.pointers[r.IntN(len(o.pointers))]
	f, known := o.s.find(p)
	if !known && r.IntN(3) > 0 { // fewer of them
		return o.event()
	}
	n, _ := refScan(f)
	if r.IntN(20) == 0 {
		n = r.IntN(8) // too few or too many
	}
	for k := range n {
		v := uint32(r.IntN(256))
		switch r.IntN(5) {
		case 0:
			v = 0
		case 1:
			v = '\n'
		case 2:
			v = r.Uint32()
		}
		o.pending = append(o.pending, StringEvent(false, uint8(r.IntN(128)), id, o.tmsn, uint8(k+1), v))
	}
	if r.IntN(10) == 0 {
		r.Shuffle(len(o.pending), func(i, j int) { o.pending[i], o.pending[j] = o.pending[j], o.pending[i] })
	}
	return StringEvent(lost, o.stamp(), id, o.tmsn, 0, p)
}

// describe gives what a message must agree in.
func describe(time, block uint64, id uint8, lost bool, k Kind, text string) string {
	return fmt.Sprintf("block %d time %d id %d lost %t %s %q", block, time, id, lost, k, text)
}
