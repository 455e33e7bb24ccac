package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	// giveBatch bounds the pages given by one MANAGE_PAGES command. A real
	// ConnectX-4 took 12,868 in one; smaller batches keep the mailbox chain short.
	giveBatch = 4096
	// reclaimAtMost clamps a single reclaim event, as Linux does.
	reclaimAtMost = 50000
	// reclaimPause is how long to wait before asking again for pages that
	// firmware did not give back yet.
	reclaimPause = 10 * time.Millisecond
	// sparePages are kept allocated for the next request.
	sparePages = 512
)

// pageRequest is what an EQE of type 0x0b asks for.
type pageRequest struct {
	fn         Function
	pages      int // > 0 give, < 0 take back
	releaseAll bool
	// returned are pages that came back with a late answer.
	returned []uint64
}

// pageJob is work for the page worker: a request of firmware, or a piece of
// bring-up and teardown that somebody waits for.
type pageJob struct {
	req  pageRequest
	do   func() error // instead of req
	done chan error   // receives the result; nil for requests of firmware
}

// pageWorker is the only goroutine that gives and reclaims pages. Requests of
// firmware queue up without bound (firmware bounds them), so that the goroutine
// of the page EQ never waits.
type pageWorker struct {
	conn   pageConn
	ledger *ledger
	log    *slog.Logger
	// reclaimLimit ends a reclaim without progress (register DTOR, reclaim_pages_to).
	reclaimLimit func() time.Duration

	// ctx ends the waiting of the command in progress; it is cancelled only when
	// the device is beyond asking.
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	queue  []pageJob
	closed bool
	wake   chan struct{}
	gone   chan struct{}
}

// pageConn are the page commands of cmdif.Conn.
type pageConn interface {
	QueryPages(ctx context.Context, stage prm.QueryPagesOpMod) (cmdif.PageRequest, error)
	GivePages(ctx context.Context, f Function, pages []uint64) (int, error)
	ReclaimPages(ctx context.Context, f Function, most int) ([]uint64, error)
	CannotGive(ctx context.Context, f Function) error
}

func newPageWorker(conn pageConn, l *ledger, log *slog.Logger, limit func() time.Duration) *pageWorker {
	w := &pageWorker{conn: conn, ledger: l, log: log, reclaimLimit: limit, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go w.run()
	return w
}

// post queues a request of firmware. It never blocks.
func (w *pageWorker) post(r pageRequest) { w.push(pageJob{req: r}) }

// do runs f on the worker's goroutine and waits for it. If ctx is over before f
// has begun, because the worker is at something else, f never runs; once it has
// begun, it minds ctx itself.
func (w *pageWorker) do(ctx context.Context, f func() error) error {
	var taken atomic.Bool // by the worker, or by us
	done := make(chan error, 1)
	run := func() error {
		if !taken.CompareAndSwap(false, true) {
			return nil // nobody waits any more
		}
		return f()
	}
	if !w.push(pageJob{do: run, done: done}) {
		return fmt.Errorf("page worker: %w", ErrClosed)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if taken.CompareAndSwap(false, true) {
			return fmt.Errorf("wait for the page worker: %w", context.Cause(ctx))
		}
	}
	return <-done
}

func (w *pageWorker) push(j pageJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.queue = append(w.queue, j)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return true
}

// stop lets the worker finish what it has begun, drops requests of firmware that
// nobody waits for, and waits until it is gone. With now the command in progress
// is not waited for: the device is beyond asking.
func (w *pageWorker) stop(now bool) {
	if now {
		w.cancel()
	}
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.wake)
	}
	w.mu.Unlock()
	<-w.gone
	w.cancel()
}

func (w *pageWorker) run() {
	defer close(w.gone)
	for range w.wake {
		for {
			w.mu.Lock()
			if len(w.queue) == 0 {
				w.queue = nil
				w.mu.Unlock()
				break
			}
			j := w.queue[0]
			w.queue = w.queue[1:]
			drop := w.closed && j.done == nil
			w.mu.Unlock()
			switch {
			case drop:
			case j.do != nil:
				j.done <- j.do()
			default:
				w.serve(j.req)
			}
		}
	}
}

// pending is the number of requests that wait.
func (w *pageWorker) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.queue)
}

// serve answers one request of firmware.
func (w *pageWorker) serve(r pageRequest) {
	log := w.log.With("op", "page-request", "function", functionName(r.fn), "pages", r.pages)
	var err error
	switch {
	case r.returned != nil:
		err = w.ledger.returned(r.fn, r.returned)
	case r.releaseAll:
		log.Info("firmware released all pages", "count", w.ledger.drop(r.fn))
	case r.pages > 0:
		w.ledger.count(func(s *PageLedger) { s.Requests++ })
		err = w.give(w.ctx, r.fn, r.pages)
		var ng *cannotGiveError
		if errors.As(err, &ng) {
			w.ledger.count(func(s *PageLedger) { s.Refused++ })
			err = errors.Join(err, w.conn.CannotGive(w.ctx, r.fn))
		}
	case r.pages < 0:
		w.ledger.count(func(s *PageLedger) { s.Reclaims++ })
		var n int
		n, err = w.take(w.ctx, r.fn, min(-r.pages, reclaimAtMost))
		if err == nil && n < -r.pages {
			log.Info("firmware gave back fewer pages than it announced", "count", n)
		}
		err = errors.Join(err, w.ledger.trim(sparePages))
	}
	if err != nil {
		log.Error("page request not served", "error", err)
	}
}

// cannotGiveError says that the host has no memory for a request: nothing was given.
type cannotGiveError struct{ err error }

func (e *cannotGiveError) Error() string { return e.err.Error() }
func (e *cannotGiveError) Unwrap() error { return e.err }

// give hands n pages to f in batches. All memory is found before the first
// command, so that a request is served or refused as a whole.
func (w *pageWorker) give(ctx context.Context, f Function, n int) error {
	if err := w.ledger.ensure(ctx, n); err != nil {
		// What was found is of no use: the host is short of memory.
		err = errors.Join(err, w.ledger.trim(sparePages))
		if ctx.Err() != nil {
			return err
		}
		return &cannotGiveError{err}
	}
	pas := make([]uint64, min(n, giveBatch))
	for n > 0 {
		pas = pas[:min(n, giveBatch)]
		w.ledger.take(f, pas)
		if given, err := w.conn.GivePages(ctx, f, pas); err != nil {
			if !cmdif.Unanswered(err) {
				// Refused, or never sent: firmware holds none of them.
				w.ledger.untake(f, pas[given:])
			}
			// Without an answer firmware may have taken them: they stay booked
			// until it returns them or is reset.
			return err
		}
		n -= len(pas)
	}
	return nil
}

// take asks f for n pages back, in batches, and answers how many came. It ends
// early when firmware has no more to give.
func (w *pageWorker) take(ctx context.Context, f Function, n int) (int, error) {
	got := 0
	for got < n {
		pas, err := w.conn.ReclaimPages(ctx, f, min(n-got, cmdif.ReclaimBatch))
		if err != nil {
			return got, err
		}
		if err := w.ledger.returned(f, pas); err != nil {
			return got, err
		}
		got += len(pas)
		if len(pas) == 0 {
			break
		}
	}
	return got, nil
}

// reclaim takes everything back from everybody. It gives up when nothing has
// come for the reclaim limit.
func (w *pageWorker) reclaim(ctx context.Context) error {
	limit := w.reclaimLimit()
	last := time.Now()
	for {
		progress := false
		fs := w.ledger.functions()
		if len(fs) == 0 {
			return nil
		}
		for _, f := range fs {
			n, err := w.take(ctx, f.Function, f.Pages)
			if err != nil {
				return err
			}
			progress = progress || n > 0
		}
		if progress {
			last = time.Now()
			continue
		}
		if time.Since(last) >= limit {
			return &LedgerError{w.ledger.snapshot()}
		}
		t := time.NewTimer(min(reclaimPause, limit))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("take back firmware pages: %w", context.Cause(ctx))
		}
	}
}
