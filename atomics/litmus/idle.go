package litmus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// How long an interrupt is waited for at a time: shortly where there are several
// functions, which take turns.
const (
	longSlice  = 100 * time.Millisecond
	shortSlice = 2 * time.Millisecond
)

// lookAfter is how long nothing completes before the functions are looked at: one that
// has died completes nothing, and no command is under way that would find out.
const lookAfter = 100 * time.Millisecond

// look ends a wait in which a function has died, instead of calling it stuck later.
func (b *Bench) look() error {
	now := time.Now()
	for _, s := range b.order {
		if s.cq == nil {
			continue
		}
		if n := s.cq.Consumer(); n != s.polled {
			s.polled, b.quiet = n, now
		}
	}
	if now.Sub(b.quiet) < lookAfter {
		return nil
	}
	b.quiet = now
	for _, s := range b.order {
		if err := s.host.Dev.Conn.CheckAlive(); err != nil {
			return fmt.Errorf("host %s: %w", s.host.Name, err)
		}
	}
	return nil
}

// idle waits for an interrupt of one of the functions, where there are any: it
// arms the CQs, and the next time, if nothing had come until then, it waits. A function
// that has died ends it.
func (b *Bench) idle(ctx context.Context) error {
	if err := b.look(); err != nil {
		return err
	}
	waited, slice := false, longSlice
	if len(b.order) > 1 {
		slice = shortSlice
	}
	for _, s := range b.order {
		if s.host.Vector == nil {
			continue
		}
		waited = true
		s.cq.Arm(false)
		if n := s.cq.Consumer(); n != s.seen {
			s.seen = n
			// Poll once more behind the arming. What an earlier arming has raised is
			// taken all the same: nobody else does, and the event queue would fill up.
			if _, err := s.channel.Ready(); err != nil {
				return err
			}
			continue
		}
		turn, cancel := context.WithTimeout(ctx, slice)
		_, err := s.channel.Wait(turn)
		cancel()
		if err != nil && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
	}
	if !waited {
		return atomics.Yield(ctx)
	}
	return nil
}
