package queues

import "math/bits"

// peer is what a CQ knows of a queue pair whose WQEs complete on it.
type peer struct {
	qpn uint32
	who uint32     // the number as the word with the opcode holds it, read as little-endian
	sq  *SendQueue // noSends if it has none here
	rq  *RecvQueue // nil if it has none here
	srq *SRQRing   // the same
	// first is the first failure that was not a flush, flushed the number of
	// flushes, since the queue pair was attached or forgotten.
	first   *CompletionError
	flushed uint32
}

// nobody stands for a queue pair that is not attached: its number is none a CQE
// can bear. It is never written.
var nobody = peer{qpn: ^uint32(0), sq: &noSends}

// noSends has no WQE under way, so that Poll need not ask whether there is a
// queue.
var noSends SendQueue

// peers finds a peer by its 24-bit number: a hash table with open addressing, at
// most half full, so that a CQ shared by many queue pairs costs a load or two
// for each completion.
type peers struct {
	slots []*peer
	shift uint8
	n     int
}

func (t *peers) slot(qpn uint32) uint32 { return qpn * 0x9e3779b1 >> t.shift }

func (t *peers) find(qpn uint32) *peer {
	if len(t.slots) == 0 {
		return &nobody
	}
	for i := t.slot(qpn); ; i++ {
		p := t.slots[i&uint32(len(t.slots)-1)]
		if p == nil {
			return &nobody
		}
		if p.qpn == qpn {
			return p
		}
	}
}

// get is find, and makes the peer if there is none.
func (t *peers) get(qpn uint32) *peer {
	if p := t.find(qpn); p != &nobody {
		return p
	}
	p := &peer{qpn: qpn, who: bits.ReverseBytes32(qpn), sq: &noSends}
	if t.n++; 2*t.n > len(t.slots) {
		t.rebuild(max(2*len(t.slots), 8), p)
	} else {
		t.put(p)
	}
	return p
}

func (t *peers) put(p *peer) {
	i := t.slot(p.qpn)
	for t.slots[i&uint32(len(t.slots)-1)] != nil {
		i++
	}
	t.slots[i&uint32(len(t.slots)-1)] = p
}

// rebuild makes a table of size slots, a power of two, of all that are there and
// one more.
func (t *peers) rebuild(size int, more *peer) {
	old := t.slots
	t.slots = make([]*peer, size)
	t.shift = 32
	for n := size; n > 1; n >>= 1 {
		t.shift--
	}
	for _, p := range old {
		if p != nil {
			t.put(p)
		}
	}
	if more != nil {
		t.put(more)
	}
}

// drop removes a peer.
func (t *peers) drop(qpn uint32) {
	for i, p := range t.slots {
		if p != nil && p.qpn == qpn {
			t.slots[i] = nil
			t.n--
			t.rebuild(len(t.slots), nil)
			return
		}
	}
}
