package queues_test

import "github.com/mlxvfio/mlxvfio/queues"

// hazards are reads and atomics that may still be under way: what they read at the
// peer, and write here.
type hazards struct{ far, near []piece }

func overlaps(l []piece, m ...piece) bool {
	for _, x := range l {
		for _, y := range m {
			if x.off < y.off+y.n && y.off < x.off+x.n {
				return true
			}
		}
	}
	return false
}

// make makes a random program for x with y as its peer. It is one whose result
// does not depend on how much overlaps: what must wait is fenced. The last WQE is
// signalled, so that the end is seen.
func (b *bed) make(x, y *realEnd) steps {
	r := b.rng
	n := 1 + r.IntN(20)
	wrong := -1
	if !b.lossy && r.IntN(5) == 0 { // a lost NAK looks like a dead peer
		wrong = r.IntN(n)
	}
	room := x.q.SQ.Free() - 16
	slots := y.is.slots
	var p steps
	var h hazards
	for i := 0; i < n && room > 0; i++ {
		s := step{wrid: b.next(), signal: r.IntN(2) == 0, verb: verb(r.IntN(int(verbs)))}
		if i == wrong {
			s.mistake = 1 + mistake(r.IntN(int(mistakes)-1))
			b.suit(&s, len(slots) > 0)
		}
		slots = b.dress(&s, x, y, slots)
		s.fence = r.IntN(8) == 0 || b.hazardous(&s, &h, y)
		if s.fence {
			h = hazards{}
		}
		if s.outbound() {
			h.near = append(h.near, s.pieces...)
			if s.verb == vRead {
				h.far = append(h.far, piece{s.remote, s.n})
			}
		}
		room -= s.blocks()
		p = append(p, s)
	}
	p[len(p)-1].signal = true
	return p
}

// suit chooses an operation that can have the mistake.
func (b *bed) suit(s *step, slots bool) {
	switch s.mistake {
	case badLocalKey:
		s.verb = vWrite
	case badRemoteKey, badRange:
		if s.verb == vNop || s.verb == vSend {
			s.verb = vWrite
		}
	case badAlignment:
		s.verb = vFA
	case badOpcode:
		s.verb = vNop
	case badRecvLength:
		if s.verb = vSend; !slots {
			s.mistake, s.verb = badOpcode, vNop
		}
	}
}

// dress gives an operation its data and answers the receive WQEs left.
func (b *bed) dress(s *step, x, y *realEnd, slots []slot) []slot {
	r := b.rng
	s.value = r.Uint32()
	switch s.verb {
	case vSend:
		if len(slots) == 0 {
			s.verb = vNop
			return slots
		}
		s.imm = r.IntN(2) == 0
		fits := slots[0].room()
		n := r.IntN(fits + 1)
		if s.mistake == badRecvLength {
			n = fits + 1 + r.IntN(600)
		}
		b.local(s, n, true)
		return slots[1:]
	case vWrite:
		s.imm = len(slots) > 0 && r.IntN(3) == 0 && s.mistake == right
		n := r.IntN(1500)
		if r.IntN(3) == 0 {
			n = 1 + r.IntN(32)
		}
		if s.mistake != right {
			n++
		}
		b.local(s, n, s.mistake != badLocalKey)
		s.remote = peerHalf + r.IntN(peerHalf-s.n)
		if s.imm {
			return slots[1:]
		}
	case vRead:
		b.local(s, r.IntN(1500)+1, false)
		s.remote = peerHalf + r.IntN(peerHalf-s.n)
	case vNop:
	default:
		b.operands(s, min(x.largest, y.largest))
	}
	return slots
}

// local chooses n bytes of local memory, in pieces or inline.
func (b *bed) local(s *step, n int, inline bool) {
	r := b.rng
	s.n = n
	if inline && n > 0 && n <= 220 && r.IntN(3) == 0 {
		s.inline = make([]byte, n)
		for i := range s.inline {
			s.inline[i] = byte(r.Uint32())
		}
		return
	}
	at := r.IntN(peerHalf - n - 200)
	for left := n; left > 0; {
		k := left
		if len(s.pieces) < 3 && r.IntN(2) == 0 {
			k = 1 + r.IntN(left)
		}
		s.pieces = append(s.pieces, piece{at, k})
		at += k + r.IntN(50)
		left -= k
	}
}

// operands chooses size, place and operands of an atomic. Few values and sparse
// masks make compares succeed.
func (b *bed) operands(s *step, largest int) {
	r := b.rng
	s.n = 8
	if s.verb == vMaskedCS || s.verb == vMaskedFA {
		most := largest
		if s.verb == vMaskedCS {
			most = min(most, queues.MaxMaskedCS)
		}
		for s.n = 4; 2*s.n <= most && r.IntN(3) > 0; s.n *= 2 {
		}
	}
	width := min(s.n, 8)
	s.remote = peerHalf + r.IntN(16)*s.n
	s.pieces = []piece{{8 * r.IntN((peerHalf-s.n)/8), s.n}}
	word := func() uint64 {
		v := r.Uint64() & (^uint64(0) >> (64 - 8*width))
		switch r.IntN(4) {
		case 0:
			return 0
		case 1:
			return ^uint64(0) >> (64 - 8*width)
		}
		return v
	}
	for range s.n / width {
		s.swap = append(s.swap, word())
		s.compare = append(s.compare, word())
		s.mask1 = append(s.mask1, word())
		m := word()
		if r.IntN(2) == 0 {
			m &= 0x0101010101010101
		}
		s.mask2 = append(s.mask2, m)
	}
	if s.mistake == badAlignment {
		s.remote += 4
	}
}

// hazardous tells whether an operation has to wait for those under way.
func (b *bed) hazardous(s *step, h *hazards, y *realEnd) bool {
	far := piece{s.remote, s.n}
	switch {
	case s.mistake != right:
		// A failure must not overtake what would still change memory.
		return len(h.near)+len(h.far) > 0
	case s.verb == vSend:
		// Its receive WQE may lie anywhere in the peer's half.
		return len(h.far) > 0 || overlaps(h.near, s.pieces...)
	case s.verb == vWrite:
		return overlaps(h.far, far) || overlaps(h.near, s.pieces...)
	case s.atomic():
		return overlaps(h.far, far)
	}
	return false
}
