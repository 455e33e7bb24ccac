package mlxvfio

import (
	"context"
	"errors"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// A function that a Recoverable owns is taken down in two steps where the device
// does not let go: it is parked, which takes it off the bus and leaves everything
// it may know of where it is; and when a reset has made it forget that, it is
// released.

// leaveParked is isolate without the reset. Nothing is freed; the event loops end,
// since they would go on writing doorbells into a device that is being reset.
func (h *HCA) leaveParked(cause error) []error {
	h.parked = true
	for _, l := range h.loops {
		l.end()
	}
	off := h.dev.SetBusMaster(false)
	if errors.Is(off, vfio.ErrGone) {
		off = nil // a function that reads all ones does no DMA
	}
	h.log.Warn("device parked", "op", "park", "cause", cause, "bus_master", off)
	if off != nil {
		return []error{off}
	}
	return nil
}

// park parks the function unless it is closed or parked already; a close that is
// going on is waited for.
func (h *HCA) park(cause error) error {
	first := false
	h.closeOnce.Do(func() { first = true })
	if !first {
		<-h.closed
		return nil
	}
	defer close(h.closed)
	h.monitors.stop()
	errs := h.isolate(cause)
	h.hub.close()
	return errors.Join(errs...)
}

// release frees what a parked function holds: the device has been reset, or lost
// its claim otherwise. It answers what went wrong beyond objects that were left,
// which is what happens to them in a recovery.
func (h *HCA) release(ctx context.Context, reset bool) error {
	h.parked, h.live, h.reset = false, false, reset
	if h.ledger != nil && !h.loose {
		h.ledger.dropAll()
	}
	var errs []error
	for _, err := range h.runDown(ctx) {
		if !onlyLeft(err) {
			errs = append(errs, err)
		}
	}
	h.log.Info("released", "op", "release", "reset", reset, "dropped", h.Ledger().Dropped)
	return errors.Join(errs...)
}

// onlyLeft tells whether an error says nothing but that objects were left.
func onlyLeft(err error) bool {
	switch x := err.(type) { //nolint:errorlint // the tree is walked here
	case nil:
		return true
	case *LeftError:
		return true
	case interface{ Unwrap() []error }:
		for _, e := range x.Unwrap() {
			if !onlyLeft(e) {
				return false
			}
		}
		return len(x.Unwrap()) > 0
	case interface{ Unwrap() error }:
		return x.Unwrap() != nil && onlyLeft(x.Unwrap())
	}
	return false
}
