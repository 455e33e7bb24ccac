package mlxvfio

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// eventLoop is the goroutine that owns the EQs of one interrupt vector, or of a
// timer where there is none. Whatever others want from it (take an EQ over, let
// go of it, look now) is a request it serves between two looks.
type eventLoop struct {
	vec      *vfio.Vector  // nil: look each interval
	interval time.Duration // without vec; with vec the pause after a failing wait
	poll     func(*queues.EQ, func(*prm.EQE)) int
	log      *slog.Logger

	ask  chan func()   // served by the loop
	wake chan struct{} // wakes a loop without a vector
	stop context.CancelFunc
	gone chan struct{}

	eqs   []ownedEQ // the loop's own
	found int       // entries of the last look
	timer *time.Timer
}

// ownedEQ is an EQ with the function its entries go to, made once so that a look
// does not allocate.
type ownedEQ struct {
	q    *queues.EQ
	sink func(*prm.EQE)
}

// newEventLoop starts a loop. poll empties one EQ into a sink.
func newEventLoop(vec *vfio.Vector, interval time.Duration, log *slog.Logger, poll func(*queues.EQ, func(*prm.EQE)) int) *eventLoop {
	ctx, stop := context.WithCancel(context.Background())
	l := &eventLoop{
		vec: vec, interval: interval, poll: poll, log: log,
		ask: make(chan func(), 16), wake: make(chan struct{}, 1), stop: stop, gone: make(chan struct{}),
	}
	go l.run(ctx)
	return l
}

func (l *eventLoop) run(ctx context.Context) {
	defer close(l.gone)
	for l.wait(ctx) {
		l.found = 0
		for _, o := range l.eqs {
			l.found += l.poll(o.q, o.sink)
			if l.vec != nil {
				// Level-triggered: what arrived since the poll raises it again.
				o.q.Arm()
			} else {
				o.q.Update()
			}
		}
		l.serve()
	}
	l.serve()
}

// serve does what others asked for.
func (l *eventLoop) serve() {
	for {
		select {
		case f := <-l.ask:
			f()
		default:
			return
		}
	}
}

// wait sleeps until there may be something to do; false when the loop ends.
func (l *eventLoop) wait(ctx context.Context) bool {
	if l.vec == nil {
		return l.sleep(ctx)
	}
	err := l.vec.Wait(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, vfio.ErrClosed):
		return false
	case err != nil:
		l.log.Error("waiting for an interrupt failed, looking at the event queues by the clock", "op", "event-loop", "error", err)
		return l.sleep(ctx)
	}
	return true
}

func (l *eventLoop) sleep(ctx context.Context) bool {
	if l.timer == nil {
		l.timer = time.NewTimer(l.interval)
	} else {
		l.timer.Reset(l.interval)
	}
	select {
	case <-l.timer.C:
	case <-l.wake:
	case <-ctx.Done():
		return false
	}
	return true
}

// do has the loop run f after it has looked at its EQs, and waits for that.
// It answers false when the loop has ended: f may then not have run.
func (l *eventLoop) do(f func()) bool {
	done := make(chan struct{})
	select {
	case l.ask <- func() { f(); close(done) }:
	case <-l.gone:
		return false
	}
	l.kick()
	select {
	case <-done:
		return true
	case <-l.gone:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// kick makes the loop look.
func (l *eventLoop) kick() {
	if l.vec != nil {
		l.vec.Signal()
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// add hands an EQ to the loop, which arms it; its entries go to sink.
func (l *eventLoop) add(q *queues.EQ, sink func(*prm.EQE)) {
	l.do(func() {
		l.eqs = append(l.eqs, ownedEQ{q, sink})
		if l.vec != nil {
			q.Arm()
		}
	})
}

// remove takes an EQ from the loop after a last look. It works on a loop that
// has ended as well.
func (l *eventLoop) remove(q *queues.EQ) {
	drop := func() {
		for i, o := range l.eqs {
			if o.q == q {
				l.eqs = append(l.eqs[:i:i], l.eqs[i+1:]...)
				return
			}
		}
	}
	if !l.do(drop) {
		<-l.gone
		drop()
	}
}

// look makes the loop look at its EQs, waits until it has, and answers how many
// entries there were: what a command does before it believes that its completion
// is lost.
func (l *eventLoop) look() (n int) {
	if !l.do(func() { n = l.found }) {
		return 0
	}
	return n
}

// end stops the loop and waits for it.
func (l *eventLoop) end() {
	l.stop()
	l.kick()
	<-l.gone
}

// pollEQ polls one EQ to its end. It runs on the goroutine that owns it.
func (h *HCA) pollEQ(q *queues.EQ, sink func(*prm.EQE)) int {
	h.events.wakeups.Add(1)
	n, err := q.Poll(sink)
	if n == 0 {
		h.events.empty.Add(1)
	}
	if err != nil && h.events.overruns.Add(1) == 1 {
		h.log.Error("event queue overrun", "op", "event-loop", "eqn", q.Number(), "error", err)
	}
	return n
}
