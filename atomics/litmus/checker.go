package litmus

import (
	"fmt"
	"sort"
	"strings"
)

// Event is one operation of a history: it was called at Call, returned at Return,
// two moments of one clock, and what it does and must have observed is Do.
type Event struct {
	Name         string
	Call, Return int
	// Do changes the state as the operation does and tells whether what the
	// operation returned is what it finds. It must depend on nothing but state.
	Do func(state []byte) bool
}

// Answer is what a check of a history found.
type Answer struct {
	// Linearizable: an order of the events exists that explains all results and
	// contradicts no event that returned before another was called.
	Linearizable bool
	// Undecided: the search was given up after so many states.
	Undecided bool
	States    int
	// Stuck describes, if it is not linearizable, the longest explained beginning
	// and the events that could come next and do not fit.
	Stuck string
}

// Linearize looks for an order of the events that explains them, beginning with
// state init (Wing and Gong's search, with Lowe's memory of the sets of events and
// states that led nowhere). Answers are exact unless Undecided; limit bounds the
// number of states, 0 is a million.
func Linearize(init []byte, events []Event, limit int) Answer {
	if limit <= 0 {
		limit = 1 << 20
	}
	s := newSearch(init, events, limit)
	ok := s.run()
	a := Answer{Linearizable: ok, States: len(s.seen), Undecided: !ok && s.full}
	if !ok && !s.full {
		a.Stuck = s.describe()
	}
	return a
}

// node is a call or a return in the order of time; calls point to their returns.
type node struct {
	event      int
	ret        *node // of a call: its return; of a return: nil
	prev, next *node
}

type search struct {
	events []Event
	limit  int
	full   bool
	head   node // sentinel in front of the list of calls and returns
	state  []byte
	done   []uint64 // set of events in the order so far
	count  int
	seen   map[string]struct{}
	// best is the longest beginning found, and the events that could follow it.
	best      int
	bestNext  []int
	bestOrder []int
	order     []frame
	key       []byte
}

// frame is one event of the order so far, with what it takes to undo it.
type frame struct {
	call  *node
	state []byte
}

func newSearch(init []byte, events []Event, limit int) *search {
	s := &search{events: events, limit: limit, state: append([]byte(nil), init...), done: make([]uint64, (len(events)+63)/64), seen: map[string]struct{}{}}
	type moment struct {
		at   int
		call bool
		n    *node
	}
	var ms []moment
	for i, e := range events {
		ret := &node{event: i}
		call := &node{event: i, ret: ret}
		ms = append(ms, moment{e.Call, true, call}, moment{e.Return, false, ret})
	}
	// At equal moments calls come first: the events then overlap, which only
	// allows more orders.
	sort.SliceStable(ms, func(i, j int) bool {
		if ms[i].at != ms[j].at {
			return ms[i].at < ms[j].at
		}
		return ms[i].call && !ms[j].call
	})
	at := &s.head
	for _, m := range ms {
		m.n.prev = at
		at.next = m.n
		at = m.n
	}
	return s
}

func remove(n *node) {
	n.prev.next = n.next
	if n.next != nil {
		n.next.prev = n.prev
	}
}

func restore(n *node) {
	n.prev.next = n
	if n.next != nil {
		n.next.prev = n
	}
}

// run tries, again and again, the next call in front of the first return; when it
// meets that return, the event before was chosen wrongly.
func (s *search) run() bool {
	at := s.head.next
	for at != nil {
		if at.ret == nil {
			s.remember(at)
			if len(s.order) == 0 {
				return false
			}
			at = s.undo().next
			continue
		}
		if s.take(at) {
			at = s.head.next
			continue
		}
		if s.full {
			return false
		}
		at = at.next
	}
	return s.count == len(s.events)
}

// take puts the event of a call into the order, if it fits and leads to something
// new.
func (s *search) take(c *node) bool {
	was := append([]byte(nil), s.state...)
	if !s.events[c.event].Do(s.state) {
		copy(s.state, was)
		return false
	}
	s.done[c.event/64] |= 1 << (c.event % 64)
	if !s.fresh() {
		s.done[c.event/64] &^= 1 << (c.event % 64)
		copy(s.state, was)
		return false
	}
	s.order = append(s.order, frame{c, was})
	s.count++
	remove(c)
	remove(c.ret)
	return true
}

// undo takes the last event out of the order and gives its call.
func (s *search) undo() *node {
	f := s.order[len(s.order)-1]
	s.order = s.order[:len(s.order)-1]
	s.count--
	copy(s.state, f.state)
	s.done[f.call.event/64] &^= 1 << (f.call.event % 64)
	restore(f.call.ret)
	restore(f.call)
	return f.call
}

// fresh tells whether this set of events with this state is new.
func (s *search) fresh() bool {
	k := s.key[:0]
	for _, w := range s.done {
		for i := 0; i < 64; i += 8 {
			k = append(k, byte(w>>i))
		}
	}
	k = append(k, s.state...)
	s.key = k
	if _, ok := s.seen[string(k)]; ok {
		return false
	}
	if len(s.seen) >= s.limit {
		s.full = true
		return false
	}
	s.seen[string(k)] = struct{}{}
	return true
}

// remember keeps the longest beginning and what could have followed it.
func (s *search) remember(first *node) {
	if s.bestNext != nil && s.count <= s.best {
		return
	}
	s.best, s.bestNext, s.bestOrder = s.count, s.bestNext[:0], s.bestOrder[:0]
	for n := s.head.next; n != first; n = n.next {
		if n.ret != nil {
			s.bestNext = append(s.bestNext, n.event)
		}
	}
	for _, f := range s.order {
		s.bestOrder = append(s.bestOrder, f.call.event)
	}
}

func (s *search) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "of %d operations %d can be explained", len(s.events), s.best)
	if n := len(s.bestOrder); n > 0 {
		fmt.Fprintf(&b, ", the last of them: %s", s.events[s.bestOrder[n-1]].Name)
	}
	b.WriteString("; no next one fits: ")
	for i, e := range s.bestNext {
		if i == 4 {
			fmt.Fprintf(&b, " and %d more", len(s.bestNext)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s.events[e].Name)
	}
	return b.String()
}
