package mlxvfio

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A Recoverable is a health.Lifecycle: Recover calls these, one at a time. Other
// callers use Open, Recover and Close.
var _ health.Lifecycle = (*Recoverable)(nil)

// Drain implements health.Lifecycle.
func (r *Recoverable) Drain(ctx context.Context) error {
	r.settle()
	h := r.HCA()
	if h == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.wreck != nil {
			return fmt.Errorf("%s was cut off and not reset since: %w", r.dev.Info().Name, vfio.ErrInUse)
		}
		return nil
	}
	err := h.Close(ctx)
	<-h.closed
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endedLocked(false)
	if onlyLeft(err) {
		return nil
	}
	return err
}

// Park implements health.Lifecycle.
func (r *Recoverable) Park(cause error) error {
	r.settle()
	h := r.HCA()
	if h == nil {
		return nil
	}
	err := h.park(cause)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endedLocked(false)
	return err
}

// Reopen implements health.Lifecycle: what was parked is released, and the function
// brought up without a reset.
func (r *Recoverable) Reopen(ctx context.Context) error {
	if err := r.release(ctx); err != nil {
		return err
	}
	o := r.o
	o.SkipReset = true
	_, err := r.open(ctx, o)
	return err
}

// release frees what was parked. Bus mastering is off, or it stays parked: a reset
// of the slot, or a device that came back, may have left it on.
func (r *Recoverable) release(ctx context.Context) error {
	r.mu.Lock()
	h := r.wreck
	r.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := r.dev.SetBusMaster(false); err != nil {
		return err
	}
	return r.releaseNow(ctx, h)
}

func (r *Recoverable) releaseNow(ctx context.Context, h *HCA) error {
	r.mu.Lock()
	reset := r.reset
	r.mu.Unlock()
	err := h.release(ctx, reset)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wreck, r.reset = nil, false
	r.lives = append(r.lives, h.Ledger())
	if err != nil {
		err = fmt.Errorf("free what the life before left: %w", err)
	}
	return err
}
