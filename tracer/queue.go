package tracer

import (
	"math/bits"
	"sync/atomic"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// queue hands records from the reader of the ring to the one who takes them. It is
// bounded, and neither side ever waits for the other in it. One goroutine pushes,
// one pops.
type queue struct {
	slots      []queued
	mask       uint64
	head       atomic.Uint64 // next to pop; the popper's
	tail       atomic.Uint64 // next to push; the pusher's
	closed     atomic.Bool   // nothing more is pushed
	filled     chan struct{} // something was pushed, or it was closed
	taken      chan struct{} // something was popped
	wantsSpace atomic.Bool   // the pusher waits for taken
	high       atomic.Uint64 // most that waited at a time; the pusher's
}

// queued is a record in waiting. Blocks and gaps lie in it, so that they take no
// allocation.
type queued struct {
	kind  capture.Kind
	index uint64
	data  [trace.BlockSize]byte
	gap   capture.Gap
	rec   *capture.Record // of other kinds
}

// newQueue makes a queue for at least n records.
func newQueue(n int) *queue {
	n = 1 << bits.Len(uint(max(n, 4)-1))
	return &queue{slots: make([]queued, n), mask: uint64(n - 1), filled: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
}

// space is the number of records that may be pushed. For the pusher.
func (q *queue) space() int { return len(q.slots) - int(q.tail.Load()-q.head.Load()) }

// ready is the number of records that may be popped.
func (q *queue) ready() int { return int(q.tail.Load() - q.head.Load()) }

// at is the slot to fill before commit; there must be space.
func (q *queue) at() *queued { return &q.slots[q.tail.Load()&q.mask] }

func (q *queue) commit() {
	n := q.tail.Add(1)
	if waiting := n - q.head.Load(); waiting > q.high.Load() {
		q.high.Store(waiting)
	}
	poke(q.filled)
}

func (q *queue) pushGap(g *capture.Gap) {
	s := q.at()
	s.kind, s.gap, s.rec = capture.KindGap, *g, nil
	q.commit()
}

func (q *queue) pushRecord(r *capture.Record) {
	s := q.at()
	s.kind, s.rec = r.Kind, r
	q.commit()
}

// close says that nothing more is pushed.
func (q *queue) close() {
	q.closed.Store(true)
	poke(q.filled)
}

// pop fills r with the next record; false if there is none.
func (q *queue) pop(r *capture.Record) bool {
	h := q.head.Load()
	if h == q.tail.Load() {
		return false
	}
	s := &q.slots[h&q.mask]
	switch s.kind {
	case capture.KindBlock:
		r.Kind, r.Index, r.Data = s.kind, s.index, s.data
	case capture.KindGap:
		r.Kind, r.Gap = s.kind, s.gap
	default:
		*r = *s.rec
		s.rec = nil
	}
	r.Offset = -1
	q.head.Store(h + 1)
	if q.wantsSpace.Load() {
		poke(q.taken)
	}
	return true
}

// poke leaves a hint in a channel of capacity 1, if there is none.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
