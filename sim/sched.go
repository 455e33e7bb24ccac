package sim

import (
	"container/heap"
	"sync"
	"time"
)

// Clock tells the time a chip lives in.
type Clock interface{ Now() time.Time }

// ManualClock is a Clock that stands still until Chip.Advance moves it: events
// of the chip then run inside Advance, on the caller's goroutine. It is safe for
// concurrent use.
type ManualClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewManualClock starts at a fixed moment, so that runs are equal.
func NewManualClock() *ManualClock {
	return &ManualClock{now: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// Now is the current moment.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *ManualClock) set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.now) {
		c.now = t
	}
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

// event is something the chip does later. owner is the function it dies with.
type event struct {
	at    time.Time
	seq   uint64 // ties are broken by the order of scheduling
	owner *function
	do    func()
	index int
}

type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}
func (h eventHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *eventHeap) Push(x any) { e := x.(*event); e.index = len(*h); *h = append(*h, e) }
func (h *eventHeap) Pop() any {
	o := *h
	e := o[len(o)-1]
	o[len(o)-1] = nil
	*h = o[:len(o)-1]
	return e
}

// scheduler keeps what the chip does later. Everything in it is guarded by the
// chip's lock, which events run under. On the wall clock one goroutine waits for
// the next event; it exists only while events are pending.
type scheduler struct {
	chip    *Chip
	clock   Clock
	manual  *ManualClock
	foreign bool // a clock that runs, but not as the wall's
	pending eventHeap
	seq     uint64
	wake    chan struct{} // tells the runner that the next event changed
	running chan struct{} // closed when the runner has gone; nil without one
	closed  bool
}

func newScheduler(c *Chip, clock Clock) *scheduler {
	s := &scheduler{chip: c, clock: clock, wake: make(chan struct{}, 1)}
	if clock == nil {
		s.clock = wallClock{}
	}
	s.manual, _ = clock.(*ManualClock)
	s.foreign = clock != nil && s.manual == nil
	return s
}

// foreignLook is how long the runner sleeps at most on a clock that is not the
// wall's: its hours may pass in a second.
const foreignLook = time.Millisecond

// after runs do under the chip's lock in d. Call with the lock held.
func (s *scheduler) after(owner *function, d time.Duration, do func()) {
	if s.closed {
		return
	}
	s.seq++
	heap.Push(&s.pending, &event{at: s.clock.Now().Add(d), seq: s.seq, owner: owner, do: do})
	if s.manual != nil {
		return
	}
	if s.running == nil {
		s.running = make(chan struct{})
		go s.run(s.running)
		return
	}
	s.poke()
}

func (s *scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// cancel drops the pending events of owner; nil drops all. Call with the lock held.
func (s *scheduler) cancel(owner *function) {
	kept := s.pending[:0]
	for _, e := range s.pending {
		if owner != nil && e.owner != owner {
			kept = append(kept, e)
		}
	}
	clear(s.pending[len(kept):])
	s.pending = kept
	heap.Init(&s.pending)
	s.poke()
}

// drain waits until the runner has gone if nothing is pending. Call without the lock.
func (s *scheduler) drain() {
	s.chip.mu.Lock()
	gone := s.running
	if len(s.pending) > 0 {
		gone = nil
	}
	s.chip.mu.Unlock()
	if gone != nil {
		<-gone
	}
}

// runDue runs what is due now. What becomes due meanwhile waits for another turn: work
// that comes back faster than it is done must not keep the lock from those who wait
// for it. Call with the lock held.
func (s *scheduler) runDue() {
	for now := s.clock.Now(); len(s.pending) > 0 && !s.pending[0].at.After(now); {
		s.chip.settle()
		if len(s.pending) == 0 {
			break // what was due took it away
		}
		heap.Pop(&s.pending).(*event).do()
	}
}

// run is the goroutine of the wall clock: it ends when nothing is pending.
func (s *scheduler) run(gone chan struct{}) {
	defer close(gone)
	for {
		s.chip.mu.Lock()
		s.runDue()
		if len(s.pending) == 0 {
			s.running = nil
			s.chip.unlock()
			return
		}
		d := s.pending[0].at.Sub(s.clock.Now())
		if s.foreign {
			d = min(d, foreignLook)
		}
		s.chip.unlock()
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-s.wake:
			t.Stop()
		}
	}
}

// Advance moves a ManualClock by d and runs what becomes due, each event at its
// own moment. On the wall clock it does nothing: time passes by itself.
func (c *Chip) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.unlock()
	s := c.sched
	if s.manual == nil {
		return
	}
	end := s.manual.Now().Add(d)
	for len(s.pending) > 0 && !s.pending[0].at.After(end) {
		s.manual.set(s.pending[0].at)
		c.settle()
		if len(s.pending) == 0 {
			break
		}
		heap.Pop(&s.pending).(*event).do()
	}
	s.manual.set(end)
	c.settle()
}
