package tracer

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// reader is the goroutine that empties the ring. It sends no command: those take
// long, and the device would come around meanwhile. What is to be said to the device
// goes through the control goroutine.
type reader struct {
	ring   *ring
	feed   *feeder
	events bool          // the device tells of new blocks
	poll   time.Duration // how often to look in any case

	wake    chan struct{}      // there may be new blocks
	ask     chan readerRequest // of the control goroutine
	quiet   chan bool          // to it: nothing is left, arm again; true: blocks were there of which no event told
	quit    context.Context    // over: whoever takes the records has gone
	done    chan struct{}
	failure error // after done: a panic
	stats   counters
}

// readerRequest asks the reader for something between two looks; it closes done when
// that is over.
type readerRequest struct {
	kind requestKind
	done chan struct{}
}

type requestKind uint8

const (
	// requestDrain: the device has stopped. Read what is left, as far as there is
	// room, and do nothing more until the next request.
	requestDrain requestKind = iota
	// requestRestart: the memory was zeroed, the device begins at the first place.
	requestRestart
	// requestEnd: read what is left, waiting for room, and end.
	requestEnd
)

const (
	// burst bounds the blocks between two looks at requests.
	burst = 4096
	// spins is how many empty looks the reader makes before it sleeps: at high
	// rates the next block is there before a sleep would even begin.
	spins = 200
)

func newReader(mem vfio.Mem, q *queue, events bool, poll time.Duration, quit context.Context) *reader {
	r := &reader{
		feed: &feeder{q: q}, events: events, poll: poll, quit: quit,
		wake: make(chan struct{}, 1), ask: make(chan readerRequest), quiet: make(chan bool, 1), done: make(chan struct{}),
	}
	r.ring = newRing(mem, r.feed)
	return r
}

// request has the reader do something and waits for it, but for requestEnd, which
// takes as long as whoever takes the records; false if it has ended.
func (r *reader) request(k requestKind) bool {
	q := readerRequest{k, make(chan struct{})}
	select {
	case r.ask <- q:
	case <-r.done:
		return false
	}
	if k == requestEnd {
		return true
	}
	select {
	case <-q.done:
		return true
	case <-r.done:
		return false
	}
}

func (r *reader) run() {
	defer close(r.done)
	defer r.feed.q.close()
	defer func() {
		if p := recover(); p != nil {
			r.failure = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	timer := time.NewTimer(r.poll)
	defer timer.Stop()
	empty, told := 0, true
	for {
		if n := r.ring.drain(burst); n > 0 {
			r.stats.looks.Add(1)
			if !told {
				r.stats.foundByPoll.Add(1)
				r.tell(true)
				told = true
			}
			r.publish()
			empty = 0
			select {
			case q := <-r.ask:
				if r.serve(q) {
					return
				}
			default:
			}
			continue
		}
		r.feed.idle()
		if empty++; empty <= spins {
			runtime.Gosched()
			continue
		}
		if r.ring.lost() {
			r.stats.moved.Add(1)
			continue
		}
		r.tell(false)
		timer.Reset(r.poll)
		select {
		case <-r.wake:
			told = true
		case <-timer.C:
			told = !r.events
		case q := <-r.ask:
			if r.serve(q) {
				return
			}
			told = true
		}
		r.ring.rested()
		empty = spins // one look, then sleep again if there is nothing
	}
}

// tell lets the control goroutine know that nothing is left.
func (r *reader) tell(late bool) {
	if !r.events {
		return
	}
	select {
	case r.quiet <- late:
	default:
	}
}

// serve does what was asked for; true when the reader is to end.
func (r *reader) serve(q readerRequest) (end bool) {
	for {
		switch q.kind {
		case requestDrain:
			for r.feed.room() && r.ring.drain(1) > 0 {
			}
			r.feed.idle()
		case requestRestart:
			r.ring.restart()
			close(q.done)
			return false
		case requestEnd:
			r.finish()
			r.publish()
			return true
		}
		r.publish()
		close(q.done)
		q = <-r.ask // the device has stopped: there is nothing to do until then
	}
}

// finish reads what is left, for one who takes it in his own time: the device has
// stopped, so nothing is lost by waiting. If he has gone, the rest counts as missing.
func (r *reader) finish() {
	q := r.feed.q
	for {
		if !r.feed.room() && r.quit.Err() == nil {
			q.wantsSpace.Store(true)
			if !r.feed.room() {
				select {
				case <-q.taken:
				case <-r.quit.Done():
				}
			}
			q.wantsSpace.Store(false)
			continue
		}
		if r.ring.drain(1) == 0 {
			r.feed.idle()
			return
		}
	}
}

// publish makes the ring's statistics visible to others.
func (r *reader) publish() {
	s := &r.ring.stats
	r.stats.unclosed.Store(s.unclosed)
	r.stats.torn.Store(s.torn)
	r.stats.laps.Store(s.laps)
}
