package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Idle is what to call while there is nothing to poll on any of the DataPaths: it
// waits for a completion event, or polls on where one of them is polled. It ends
// with an error when ctx does, when a device died (a *cmdif.DeadError, see
// cmdif.Conn.CheckAlive), and when nothing completes on any of them for as long as the
// options say (a *StuckError). Without a DataPath, or with one that is nil, it answers
// a *vfio.Error.
func Idle(ds ...*DataPath) atomics.Idle {
	if len(ds) == 0 || slices.Contains(ds, nil) {
		err := &vfio.Error{Op: "wait for completions", Err: errors.New("a data path is missing"),
			Remedy: "give Idle every DataPath that is polled, as OpenData made them"}
		return func(context.Context) error { return err }
	}
	events := true
	for _, d := range ds {
		events = events && d.EventMode()
	}
	return func(ctx context.Context) error {
		if err := stuck(ds, events); err != nil {
			return err
		}
		if !events {
			return atomics.Yield(ctx)
		}
		for _, d := range ds {
			d.cq.Arm(false)
		}
		return waitAny(ctx, ds)
	}
}

// waitAny waits until one of the channels has an event, at most lookAfter.
func waitAny(outer context.Context, ds []*DataPath) error {
	ctx, cancel := context.WithTimeout(outer, lookAfter)
	defer cancel()
	errs := make([]error, len(ds))
	wait := func(i int) { _, errs[i] = ds[i].channel.Wait(ctx) }
	if len(ds) == 1 {
		wait(0)
	} else {
		var wg sync.WaitGroup
		for i := range ds {
			wg.Go(func() {
				wait(i)
				cancel() // one is enough
			})
		}
		wg.Wait()
	}
	for _, err := range errs {
		if err != nil && ctx.Err() == nil || err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	if outer.Err() != nil {
		return context.Cause(outer)
	}
	return nil
}

// lookAfter bounds a wait for an interrupt, so that a device that has died
// silently is noticed.
const lookAfter = 100 * time.Millisecond

// polledLooks is how many times Idle polls on before it looks at the clock.
const polledLooks = 1 << 10

// stuck looks, now and then, whether the devices live and something completes.
func stuck(ds []*DataPath, events bool) error {
	first := ds[0]
	if first.spins++; !events && first.spins%polledLooks != 0 {
		return nil
	}
	now := time.Now()
	moved := now.Sub(first.asked) > time.Second // the caller was busy elsewhere
	first.asked = now
	for _, d := range ds {
		if n := d.cq.Consumer(); n != d.seen {
			d.seen, moved = n, true
		}
	}
	if moved || first.since.IsZero() {
		first.since = now
		return nil
	}
	if now.Sub(first.since) < lookAfter {
		return nil
	}
	for _, d := range ds {
		if err := d.hca.conn.CheckAlive(); err != nil {
			return fmt.Errorf("data path %s: %w", d.o.Name, err)
		}
	}
	if quiet := now.Sub(first.since); quiet > first.o.Stuck {
		return &StuckError{Name: first.o.Name, After: quiet.Round(10 * time.Millisecond)}
	}
	return nil
}

// StuckError says that outstanding work does not complete.
type StuckError struct {
	Name  string // of the DataPath
	After time.Duration
}

// Error says for how long, and what to look at.
func (e *StuckError) Error() string {
	return fmt.Sprintf("data path %s: work is outstanding and nothing has completed for %v; look at the port, the peer and the states of the queue pairs (QUERY_QP)", e.Name, e.After)
}
