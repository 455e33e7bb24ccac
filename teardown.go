package mlxvfio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Close gives the function back: it stops the monitors and event loops, destroys what the
// driver made, takes firmware down by Options.Teardown, gets every page back,
// switches bus mastering off, and frees the host's memory, mappings, interrupts
// and the transport, in that order. Queues and memory keys the caller made should be
// gone; those that are not end with the function (*LeftError): posts and polls of
// them answer ErrClosed.
//
// A device that does not answer is isolated instead: bus mastering off, then a
// reset where it has one; after that it can reach no memory, and the rest is
// freed. The error is a *CloseError; whatever it says, the host holds nothing of
// the function any more and it can be opened again, with one exception: a device
// that could neither be kept off the bus nor be reset keeps the memory it may
// reach, if the address space is shared (CloseError.Loose). Cancelling ctx
// isolates the device too: Close then returns as soon as the reset is over.
//
// A second call does nothing but wait for the first one, or for its own ctx.
func (h *HCA) Close(ctx context.Context) error {
	first := false
	h.closeOnce.Do(func() { first = true })
	if !first {
		select {
		case <-h.closed:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%s: wait for the close that is going on: %w", h.deviceName(), context.Cause(ctx))
		}
	}
	defer close(h.closed)
	h.monitors.stop()
	ce := &CloseError{Device: h.deviceName(), Kind: h.o.Teardown}
	if err := h.conn.Err(); err != nil {
		// Found dead while it was in use.
		ce.Errs = append(ce.Errs, err)
		ce.Errs = append(ce.Errs, h.isolate(err)...)
	} else if h.o.Teardown != TeardownRegular {
		if err := h.letGo(ctx); err != nil {
			h.log.Warn("falling back to a regular teardown", "op", "close", "wanted", h.o.Teardown.String(), "error", err)
			if lost(err) {
				ce.Errs = append(ce.Errs, err)
				ce.Errs = append(ce.Errs, h.isolate(err)...)
			}
		}
	}
	ce.Errs = append(ce.Errs, h.runDown(ctx)...)
	h.hub.close()
	ce.Ledger, ce.Reset, ce.Loose, ce.Parked = h.Ledger(), h.reset, h.loose, h.parked
	if ce.Ledger.Outstanding != 0 && !hasLedgerError(ce.Errs) && !h.parked {
		ce.Errs = append(ce.Errs, &LedgerError{ce.Ledger})
	}
	if len(ce.Errs) == 0 {
		h.log.Info("closed", "op", "close", "given", ce.Ledger.Given, "returned", ce.Ledger.Returned, "dropped", ce.Ledger.Dropped)
		return nil
	}
	return ce
}

func hasLedgerError(errs []error) bool {
	var le *LedgerError
	return errors.As(errors.Join(errs...), &le)
}

// letGo asks firmware to drop its claim to all host memory at once. When it has,
// nothing but host resources is left to free. A refusal leaves everything as it
// was.
func (h *HCA) letGo(ctx context.Context) error {
	g := h.general()
	fast := h.o.Teardown == TeardownFast
	profile, have := prm.TeardownForce, g.ForceTeardown()
	if fast {
		profile, have = prm.TeardownPrepareFast, g.FastTeardown()
	}
	if !have {
		return fmt.Errorf("%v teardown: the device has no such capability: %w", h.o.Teardown, vfio.ErrNotSupported)
	}
	// Firmware is not asked for its tracer any more after this.
	if err := h.downTracer(ctx, true); err != nil {
		return err
	}
	if err := h.conn.TeardownHCA(ctx, profile); err != nil {
		return err
	}
	if fast {
		if err := h.switchOff(ctx); err != nil {
			return err
		}
	}
	// No command may follow (Linux fw.c: the driver goes to its error state).
	h.conn.Dead(fmt.Errorf("firmware was taken down (%v teardown)", h.o.Teardown))
	h.live = false
	h.worker.stop(true)
	err := h.dev.SetBusMaster(false)
	h.ledger.dropAll()
	if errors.Is(err, vfio.ErrGone) {
		return nil
	}
	return err
}

// switchOff writes nic_interface = DISABLED and waits until the device confirms
// it (Linux fw.c, mlx5_cmd_fast_teardown_hca). The error is a *SwitchOffError.
func (h *HCA) switchOff(ctx context.Context) error {
	fail := func(cause error) error {
		return &SwitchOffError{Limit: h.teardownLimit, State: h.seg.NICInterface(), Err: cause}
	}
	if err := h.seg.SetNICInterface(prm.NICInterfaceDisabled); err != nil {
		return fail(err)
	}
	deadline := time.Now().Add(h.teardownLimit)
	for h.seg.NICInterface() != prm.NICInterfaceDisabled {
		if err := h.seg.Alive(); err != nil {
			return fail(err)
		}
		if time.Now().After(deadline) {
			return fail(context.DeadlineExceeded)
		}
		t := time.NewTimer(time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fail(context.Cause(ctx))
		}
	}
	return nil
}

// SwitchOffError says that the device did not confirm that its interface is off.
type SwitchOffError struct {
	Limit time.Duration
	State prm.NICInterface
	Err   error // why the wait ended
}

// Error shows what the interface reads.
func (e *SwitchOffError) Error() string {
	return fmt.Sprintf("wait up to %v for the interface to switch off: %v (nic_interface reads %v); reset the function", e.Limit, e.Err, e.State)
}

// Unwrap gives why the wait ended.
func (e *SwitchOffError) Unwrap() error { return e.Err }

// isolate cuts off a device that cannot be asked any more: waiting commands end,
// DMA stops, and a reset makes it forget the host's memory. From here on only
// host resources are freed. If the device withstands both it is loose: in a
// shared address space memory that it may know of is then never freed, in a
// private one unmapping protects the host. It answers what went wrong beyond the
// cause.
func (h *HCA) isolate(cause error) []error {
	h.live = false
	if h.dev == nil {
		return nil
	}
	var errs []error
	if h.conn != nil {
		h.conn.Dead(cause)
	}
	if h.worker != nil {
		h.worker.stop(true)
	}
	if h.o.park {
		return h.leaveParked(cause)
	}
	off := h.dev.SetBusMaster(false)
	gone := errors.Is(off, vfio.ErrGone)
	contained := off == nil || gone || h.private
	if off != nil && !gone {
		errs = append(errs, off)
	}
	if h.dev.Info().CanReset {
		if err := h.dev.Reset(); err == nil {
			h.reset, contained = true, true
		} else if !gone && !errors.Is(err, vfio.ErrGone) && !errors.Is(cause, vfio.ErrGone) {
			errs = append(errs, fmt.Errorf("reset: %w", err))
		}
		// A reset may restore the command register as it finds it (Linux saves
		// and restores configuration space around it).
		if h.reset {
			_ = h.dev.SetBusMaster(false)
		}
	}
	h.loose = !contained
	if h.ledger != nil && contained {
		h.ledger.dropAll()
	}
	h.log.Warn("device isolated", "op", "isolate", "reset", h.reset, "cause", cause)
	return errs
}

// quarantined answers the number of commands the device has not completed and
// whose memory it may still write.
func (h *HCA) quarantined() int {
	if h.conn == nil {
		return 0
	}
	return h.conn.Stats().Quarantined
}

// lateCommand hears about a command that completed after its caller had given
// up. Pages that came back that way are booked; anything else is firmware's
// until it is torn down or reset.
func (h *HCA) lateCommand(l cmdif.Late) {
	if l.Opcode != prm.OpManagePages || prm.ManagePagesOpMod(l.OpMod) != prm.ManagePagesTake || l.Reply == nil || l.Status != prm.StatusOK {
		return
	}
	in := prm.AsManagePagesIn(l.In[:])
	f := Function{ID: in.FunctionID(), EmbeddedCPU: in.EmbeddedCpuFunction()}
	out := l.Reply[prm.ManagePagesOutPasOffset:]
	n := min(int(prm.AsManagePagesOut(l.Reply).OutputNumEntries()), len(out)/8)
	pas := make([]uint64, n)
	for i := range pas {
		pas[i] = binary.BigEndian.Uint64(out[8*i:])
	}
	h.worker.post(pageRequest{fn: f, returned: pas})
}
