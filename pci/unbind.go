package pci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Unbind gives a function back: driver_override and driver become what the
// journal says, the kernel probes, the result is verified and the journal
// removed. It works from every state in which Bind or Unbind can have been cut
// off. The Result is never nil.
//
// Without a journal, a function that is on a VFIO driver (or has only the
// override left) is released and the kernel chooses its driver; Result.Notes
// says so. A function that needs nothing is left alone (Result.Already).
//
// Unbind refuses while a process has the VFIO node open or VFs are enabled
// (ErrBusy; Force overrides, and the kernel then waits for that process), and
// when the original driver is not loaded (ErrNoDriver), before it writes
// anything. After a failure the journal stays and Unbind can be repeated.
func Unbind(ctx context.Context, b BDF, opt Options) (*Result, error) {
	o := opt.withDefaults()
	t := newTxn("unbind", b, o)
	f, err := inspect(t.op, b, o)
	if err != nil {
		return t.res, err
	}
	t.fill(f)
	t.res.Previous = f.Driver
	// Not even a journal: answer without touching the journal folder.
	j, err := readJournal(t.op, b, o)
	if err != nil {
		return t.res, err
	}
	if j == nil && !heldByVFIO(f) {
		return t.res, t.nothingToDo(ctx, f)
	}
	if err := t.acquire(); err != nil {
		return t.res, err
	}
	defer t.release()
	if f, err = inspect(t.op, b, o); err != nil {
		return t.res, err
	}
	t.fill(f)
	t.res.Previous = f.Driver
	if j, err = readJournal(t.op, b, o); err != nil {
		return t.res, err
	}
	if j != nil {
		if why := j.mismatch(f); why != "" {
			t.note("journal dropped: %s", why)
			if err := t.removeJournal(); err != nil {
				return t.res, err
			}
			j = nil
		}
	}
	if j == nil && !heldByVFIO(f) {
		return t.res, t.nothingToDo(ctx, f)
	}
	if err := t.checkUnbind(f, j); err != nil {
		return t.res, err
	}
	if j == nil {
		if j, err = t.adopt(f); err != nil {
			return t.res, err
		}
	}
	err = t.restore(ctx, j)
	t.finish()
	if err != nil {
		return t.res, err
	}
	o.Logger.Info("given back", "bdf", b.String(), "op", "unbind", "driver", t.res.Driver)
	return t.res, nil
}

// heldByVFIO: something of vfio-pci is on the function, be it only the override
// of a bind that someone else left half done.
func heldByVFIO(f *Function) bool { return IsVFIO(f.Driver) || IsVFIO(f.DriverOverride) }

func (t *txn) nothingToDo(ctx context.Context, f *Function) error {
	if f.Vendor != VendorMellanox {
		return failf(t.op, t.b, ErrNotMellanox, "mlxvfio list", "%04x:%04x", f.Vendor, f.Device)
	}
	t.sweep()
	if err := t.sweepSwitch(ctx); err != nil {
		return err
	}
	t.res.Already = true
	t.note("not on vfio-pci and no journal: the function has %s, nothing to do", nameOrNone(f.Driver))
	return nil
}

// sweep removes what a bind that died before its journal was in place left in
// the journal folder. Nothing depends on it, so failures do not matter.
func (t *txn) sweep() {
	tmp := t.o.journalTemp(t.b)
	left := false
	for _, p := range []string{tmp, t.o.lockPath(t.b)} {
		if _, err := t.o.FS.Stat(p); err == nil {
			left = true
		}
	}
	if !left {
		return
	}
	if t.lock == nil {
		if err := t.acquire(); err != nil {
			return // someone is at work: then it is theirs
		}
		defer t.release()
	}
	if err := t.o.FS.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.note("%s stays: %v", tmp, err)
	}
}

// sweepSwitch turns no-IOMMU mode off that a bind turned on and that no function
// needs any more, because somebody else took the last one away.
func (t *txn) sweepSwitch(ctx context.Context) error {
	if !t.switchTraces() {
		return nil
	}
	if t.lock == nil {
		if err := t.acquire(); err != nil {
			return err
		}
		defer t.release()
	}
	return t.switchBack(ctx)
}

// checkUnbind holds every condition that must be met before the first write.
func (t *txn) checkUnbind(f *Function, j *Journal) error {
	if j == nil && f.ID.Kind != KindHCA {
		return failf(t.op, t.b, ErrNotMellanox, "mlxvfio list", "%04x:%04x (%s), and no journal says that we bound it", f.Vendor, f.Device, f.ID.Name)
	}
	if j != nil && j.Driver != "" && f.Driver != j.Driver {
		if _, err := t.o.FS.Stat(t.o.driverDir(j.Driver)); errors.Is(err, fs.ErrNotExist) {
			return failf(t.op, t.b, ErrNoDriver, "modprobe "+j.Driver, "the original driver %s is gone; the function stays on %s", j.Driver, nameOrNone(f.Driver))
		}
	}
	if !IsVFIO(f.Driver) {
		return nil
	}
	var uses []Use
	for _, h := range f.Holders(t.o) {
		uses = append(uses, Use{fmt.Sprintf("process %d (%s) has %s open", h.PID, h.Comm, h.Node), fmt.Sprintf("kill %d", h.PID), Busy})
	}
	return t.refuse(ErrBusy, append(uses, f.InUse(t.o)...))
}

// adopt writes a journal for a function that someone else bound, so that this
// unbind too can be repeated wherever it is cut off.
func (t *txn) adopt(f *Function) (*Journal, error) {
	j := &Journal{Schema: journalSchema, BDF: t.b, Vendor: f.Vendor, Device: f.Device, Unknown: true,
		Target: vfioDriver, Time: time.Now().UTC().Truncate(time.Second), PID: os.Getpid()}
	t.note("no journal: the original driver is not known, the kernel chooses one")
	if err := t.writeJournal(j); err != nil {
		t.discardJournal()
		return nil, err
	}
	return j, nil
}

// restore brings the function from whatever state to the one in the journal
// and removes the journal last. Each run looks at the state anew, so it can be
// cut off anywhere and repeated.
func (t *txn) restore(ctx context.Context, j *Journal) error {
	f, err := inspect(t.op, t.b, t.o)
	if err != nil {
		return err
	}
	if f.Driver != "" && f.Driver != j.Driver && !IsVFIO(f.Driver) {
		// A third driver has it: someone decided that after us. Only our
		// override goes.
		if !j.Unknown {
			t.note("%s has bound the function since: left to it (the journal says %s)", f.Driver, nameOrNone(j.Driver))
		}
		if IsVFIO(f.DriverOverride) && f.DriverOverride != j.Override {
			if err := t.setOverride(ctx, j.Override); err != nil {
				return err
			}
		}
		if err := t.switchBack(ctx); err != nil {
			return err
		}
		return t.removeJournal()
	}
	// An original override that names another driver would keep the original
	// driver away from the probe: it comes back only after that.
	during := j.Override
	probe := f.Driver != j.Driver && j.Driver != "" || j.Unknown
	if probe && during != "" && during != j.Driver {
		during = ""
	}
	if f.DriverOverride != during {
		if err := t.setOverride(ctx, during); err != nil {
			return err
		}
	}
	if IsVFIO(f.Driver) {
		if err := t.unbindFrom(ctx, f.Driver); err != nil {
			return err
		}
	}
	// Now that the function needs it no more, and before a probe that could end at
	// vfio-pci again while the mode is on. That it stays on is no reason to leave the
	// function without its driver: it is told at the end, and the mark stays.
	left := t.switchBack(ctx)
	if errors.Is(left, ErrPending) || errors.Is(left, ErrInterrupted) {
		return left
	}
	if probe {
		if err := t.probeOriginal(ctx, j); err != nil {
			return err
		}
	}
	if during != j.Override {
		if err := t.setOverride(ctx, j.Override); err != nil {
			return err
		}
	}
	if err := t.verifyRestored(j); err != nil {
		return err
	}
	if err := t.removeJournal(); err != nil {
		return err
	}
	return left
}

// probeOriginal lets the kernel probe and, where it chose another driver than
// the original or none, binds the original by name.
func (t *txn) probeOriginal(ctx context.Context, j *Journal) error {
	if err := t.probe(ctx); err != nil {
		return err
	}
	if j.Unknown {
		return t.acceptChoice(j)
	}
	got := t.driver()
	if got == j.Driver {
		return nil
	}
	if got != "" { // a dynamic id (new_id) made vfio-pci or another driver match first
		if err := t.unbindFrom(ctx, got); err != nil {
			return err
		}
	}
	if _, err := t.o.FS.Stat(t.o.driverDir(j.Driver)); errors.Is(err, fs.ErrNotExist) {
		return failf(t.op, t.b, ErrNoDriver, "modprobe "+j.Driver+" && mlxvfio unbind "+t.b.String(),
			"the original driver %s is not loaded; the function has no driver", j.Driver)
	}
	if err := t.bindTo(ctx, j.Driver); err != nil {
		if errors.Is(err, ErrPending) || errors.Is(err, ErrInterrupted) || errors.Is(err, ErrPermission) {
			return err
		}
		return failf(t.op, t.b, ErrProbe, "dmesg | grep "+t.b.String(), "%s refused the function: %w", j.Driver, err)
	}
	if got, ok := t.awaitDriver(ctx, func(d string) bool { return d == j.Driver }); !ok {
		return failf(t.op, t.b, ErrProbe, "dmesg | grep "+t.b.String(), "asked for %s, the function has %s", j.Driver, nameOrNone(got))
	}
	return nil
}

// acceptChoice takes whatever driver the kernel found, none included, as long
// as it is not VFIO again.
func (t *txn) acceptChoice(j *Journal) error {
	got := t.driver()
	if got == "" {
		t.note("no loaded driver claimed the function; modprobe mlx5_core would")
	}
	if IsVFIO(got) {
		return failf(t.op, t.b, ErrProbe, fmt.Sprintf("echo %04x %04x > %s/remove_id && mlxvfio unbind %s", j.Vendor, j.Device, t.o.driverDir(got), t.b),
			"%s claimed the function again: it has a dynamic id (new_id) for it", got)
	}
	return nil
}

// verifyRestored reads back both facts the journal holds.
func (t *txn) verifyRestored(j *Journal) error {
	f, err := inspect(t.op, t.b, t.o)
	if err != nil {
		return err
	}
	if f.Driver != j.Driver && !j.Unknown || f.DriverOverride != j.Override {
		return failf(t.op, t.b, ErrProbe, "mlxvfio unbind "+t.b.String(), "wanted %s with driver_override %q, the function has %s with %q",
			nameOrNone(j.Driver), j.Override, nameOrNone(f.Driver), f.DriverOverride)
	}
	return nil
}
