package tracer

import (
	"sync"
	"sync/atomic"

	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// feeder puts what the ring gives into the queue, and counts what finds no room
// there. The reader's goroutine owns it; add may be called by others.
type feeder struct {
	q       *queue
	scratch [trace.BlockSize]byte
	full    bool // the block goes to scratch
	before  int  // records in front of the block

	gap      capture.Gap // missing since the last block, if Blocks is not 0
	last     uint64      // closing time of the last block in the queue
	haveLast bool

	mu     sync.Mutex
	others []*capture.Record // strings, clocks, notes, waiting for room
	nOther atomic.Int32

	blocks, gaps                     atomic.Uint64
	overwritten, backPressure, order atomic.Uint64 // blocks missing
}

// maxOthers bounds clocks and notes that wait: beyond it they are dropped. String
// databases never are.
const maxOthers = 256

// add queues a record that is neither block nor gap.
func (f *feeder) add(r *capture.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.others) >= maxOthers && r.Kind != capture.KindStrings {
		return
	}
	f.others = append(f.others, r)
	f.nOther.Store(int32(len(f.others)))
}

// take takes the oldest n records of add out.
func (f *feeder) push(n int) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.others[:n] {
		f.q.pushRecord(r)
	}
	f.others = append(f.others[:0], f.others[n:]...)
	f.nOther.Store(int32(len(f.others)))
}

// idle puts what others added into the queue, as far as there is room.
func (f *feeder) idle() {
	if n := int(f.nOther.Load()); n > 0 {
		f.push(min(n, f.q.space()))
	}
}

// room tells whether a block could be queued now.
func (f *feeder) room() bool { return f.q.space() > f.inFront() }

// inFront is the number of records that come before the next block.
func (f *feeder) inFront() int {
	n := int(f.nOther.Load())
	if f.gap.Blocks > 0 {
		n++
	}
	return n
}

func (f *feeder) target() *[trace.BlockSize]byte {
	f.before = int(f.nOther.Load())
	n := f.before
	if f.gap.Blocks > 0 {
		n++
	}
	if f.full = f.q.space() <= n; f.full {
		return &f.scratch
	}
	return &f.q.slots[(f.q.tail.Load()+uint64(n))&f.q.mask].data
}

func (f *feeder) block(n, t uint64, closed bool, _ *[trace.BlockSize]byte) {
	if f.full {
		f.lose(n, 1, false, capture.CauseBackPressure)
		return
	}
	if f.gap.Blocks > 0 {
		f.gap.To, f.gap.HaveTo = t, closed
		f.q.pushGap(&f.gap)
		f.gaps.Add(1)
		f.gap = capture.Gap{}
	}
	f.push(f.before)
	s := f.q.at()
	s.kind, s.index, s.rec = capture.KindBlock, n, nil
	f.q.commit()
	f.blocks.Add(1)
	if closed {
		f.last, f.haveLast = t, true
	}
}

func (f *feeder) lose(first, n uint64, atLeast bool, why capture.Cause) {
	g := &f.gap
	if g.Blocks == 0 {
		*g = capture.Gap{First: first, From: f.last, HaveFrom: f.haveLast}
	}
	g.Blocks += n
	g.AtLeast = g.AtLeast || atLeast
	g.Cause |= why
	switch why {
	case capture.CauseBackPressure:
		f.backPressure.Add(n)
	case capture.CauseOrder:
		f.order.Add(n)
	default:
		f.overwritten.Add(n)
	}
}

// rest is what was not queued when everything is over: a gap at the end, and the
// records of add that found no room.
func (f *feeder) rest() (l []*capture.Record) {
	if f.gap.Blocks > 0 {
		l = append(l, &capture.Record{Kind: capture.KindGap, Gap: f.gap})
		f.gaps.Add(1)
		f.gap = capture.Gap{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l = append(l, f.others...)
	f.others = nil
	f.nOther.Store(0)
	return l
}
