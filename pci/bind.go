package pci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bind moves a function to vfio-pci. The Result is never nil and lists every
// step; with an error it tells also what was undone.
//
// Bind refuses, before it writes anything: a function that is none of mlx5
// (ErrNotMellanox) or runs no firmware (ErrFlashRecovery), one without IOMMU
// (ErrNoIOMMU; Options.UnsafeNoIOMMU accepts it), a kernel without the vfio-pci driver (ErrNoDriver), a group
// with other functions on host drivers (ErrGroupNotViable) and a function in
// use (ErrBusy); Options.Force overrides the last two.
//
// A function that a VFIO driver has already is left alone (Result.Already). A
// bind that an earlier process did not finish is completed, with the original
// driver from that process's journal. On any failure, and when ctx ends between
// two writes, everything is undone and the journal removed. When ctx ends
// while the kernel sits in a write, Bind returns ErrPending (see PendingError)
// and the journal stays; when the undoing fails the journal stays too.
//
// Bind may be called from several goroutines and processes at once: one
// function is locked, the others get ErrBusy.
func Bind(ctx context.Context, b BDF, opt Options) (*Result, error) {
	o := opt.withDefaults()
	t := newTxn("bind", b, o)
	switch o.Driver {
	case "", "vfio-pci", "vfio_pci":
	default:
		return t.res, failf("bind", b, ErrNoDriver, "mlxvfio bind "+b.String(), "driver %q is none that user space can use: only vfio-pci is", o.Driver)
	}
	// A first look without lock, so that the cases that change nothing need no
	// permission.
	f, err := t.look()
	if err != nil {
		return t.res, err
	}
	if done, err := t.alreadyBound(f); done || err != nil {
		return t.res, t.reopenSwitch(ctx, f, err)
	}
	if err := t.acquire(); err != nil {
		return t.res, err
	}
	defer t.release()
	if f, err = t.look(); err != nil {
		return t.res, err
	}
	if done, err := t.alreadyBound(f); done || err != nil { // someone was faster
		return t.res, t.reopenSwitch(ctx, f, err)
	}
	if err := t.checkBind(f); err != nil {
		return t.res, err
	}
	j, err := t.openJournal(f)
	if err != nil {
		return t.res, err
	}
	if err := t.moveToVFIO(ctx, f); err != nil {
		err = t.rollBack(ctx, j, err)
		t.finish()
		return t.res, err
	}
	t.finish()
	o.Logger.Info("bound to vfio-pci", "bdf", b.String(), "op", "bind", "previous", t.res.Previous, "group", t.res.Group)
	return t.res, nil
}

// look reads the function and refuses what is no running mlx5 function.
func (t *txn) look() (*Function, error) {
	f, err := inspect(t.op, t.b, t.o)
	if err != nil {
		return nil, err
	}
	t.fill(f)
	t.res.Previous = f.Driver
	switch f.ID.Kind {
	case KindHCA:
	case KindRecovery:
		return nil, failf(t.op, t.b, ErrFlashRecovery, "mstflint -d "+t.b.String()+" query full", "%s: no firmware runs, so there is nothing to drive", f.ID.Name)
	case KindMLX4:
		return nil, failf(t.op, t.b, ErrNotMellanox, "mlxvfio list", "%s is an mlx4 device, not mlx5", f.ID.Name)
	default:
		return nil, failf(t.op, t.b, ErrNotMellanox, "mlxvfio list", "%04x:%04x (%s)", f.Vendor, f.Device, f.ID.Name)
	}
	for _, bad := range f.Unreadable {
		if strings.HasPrefix(bad, "driver_override:") {
			return nil, failf(t.op, t.b, ErrIO, "dmesg | tail", "cannot read %s", bad)
		}
	}
	return f, nil
}

// alreadyBound ends Bind when a VFIO driver has the function and no unbind was
// cut off half-way.
func (t *txn) alreadyBound(f *Function) (bool, error) {
	if !IsVFIO(f.Driver) {
		return false, nil
	}
	j, err := readJournal(t.op, t.b, t.o)
	if err != nil {
		if !errors.Is(err, ErrPermission) {
			return false, err
		}
		t.note("the journal shows only to root: who bound the function is not known")
		t.res.Already = true
		return true, nil
	}
	if j != nil && j.mismatch(f) == "" {
		if f.DriverOverride != j.Target {
			return false, nil
		}
	} else {
		t.note("bound to %s by someone else: there is no journal, so unbind will let the kernel choose the driver", f.Driver)
	}
	t.res.Already = true
	return true, nil
}

// checkBind holds every condition that must be met before the first write.
func (t *txn) checkBind(f *Function) error {
	o, b := t.o, t.b
	if _, err := o.FS.Stat(o.driverDir(vfioDriver)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return failf(t.op, b, ErrNoDriver, "modprobe vfio-pci", "%s (module vfio_pci) does not exist", o.driverDir(vfioDriver))
		}
		return sysfsError(t.op, b, "stat", o.driverDir(vfioDriver), err)
	}
	if !f.guarded() {
		if err := t.checkNoIOMMU(); err != nil {
			return err
		}
	} else if err := t.checkGroup(f); err != nil {
		return err
	}
	return t.refuse(ErrBusy, f.InUse(o))
}

// checkGroup: VFIO opens a group only when no member has a host driver.
func (t *txn) checkGroup(f *Function) error {
	var uses []Use
	for _, m := range f.IOMMU.Siblings(t.b) {
		if m.Blocks() {
			uses = append(uses, Use{
				Reason: fmt.Sprintf("%s of IOMMU group %d is bound to %s", m.BDF, f.IOMMU.Number, m.Driver),
				Remedy: fmt.Sprintf("echo %s > %s", m.BDF, shellWord(filepath.Join(t.o.driverDir(m.Driver), "unbind"))),
				Kind:   GroupNotViable,
			})
		}
	}
	return t.refuse(ErrGroupNotViable, uses)
}

// openJournal writes the journal, or takes the one of an interrupted bind over:
// half-way states must never be recorded as the original.
func (t *txn) openJournal(f *Function) (*Journal, error) {
	j, err := readJournal(t.op, t.b, t.o)
	if err != nil {
		return nil, err
	}
	if j != nil && j.mismatch(f) == "" && (f.Driver == "" || IsVFIO(f.Driver) || f.Driver == j.Driver) {
		t.note("completing the bind that process %d began at %s", j.PID, j.Time.Format(time.RFC3339))
		t.res.Previous = j.Driver
		return j, nil
	}
	fresh := &Journal{Schema: journalSchema, BDF: t.b, Vendor: f.Vendor, Device: f.Device, Driver: f.Driver,
		Override: f.DriverOverride, Target: vfioDriver, Time: time.Now().UTC().Truncate(time.Second), PID: os.Getpid()}
	if j != nil && f.DriverOverride == j.Target {
		// Another driver took the function since, but the override is still ours.
		fresh.Override = j.Override
	}
	if err := t.writeJournal(fresh); err != nil {
		t.discardJournal()
		return nil, err
	}
	return fresh, nil
}

// discardJournal cleans up after a journal that could not be made durable:
// nothing has been changed yet, so no trace may stay. What remains after a
// failure here is harmless: a temporary file that the next bind overwrites, or
// a journal equal to the state.
func (t *txn) discardJournal() {
	for _, p := range []string{t.o.journalTemp(t.b), t.o.journalPath(t.b)} {
		if err := t.o.FS.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.note("%s stays: %v", p, err)
		}
	}
}

// moveToVFIO does the sysfs writes from wherever the function is.
func (t *txn) moveToVFIO(ctx context.Context, f *Function) error {
	if f.DriverOverride != vfioDriver {
		if err := t.setOverride(ctx, vfioDriver); err != nil {
			return err
		}
	}
	if !IsVFIO(f.Driver) {
		if f.Driver != "" {
			if err := t.unbindFrom(ctx, f.Driver); err != nil {
				return err
			}
		}
		if t.unguarded {
			if err := t.switchOn(ctx); err != nil {
				return err
			}
		}
		if err := t.probe(ctx); err != nil {
			return err
		}
	}
	got, ok := t.awaitDriver(ctx, func(d string) bool { return d == vfioDriver })
	if !ok {
		if err := ctx.Err(); err != nil {
			return failf(t.op, t.b, ErrInterrupted, "", "while waiting for %s: %w", vfioDriver, context.Cause(ctx))
		}
		return failf(t.op, t.b, ErrProbe, "dmesg | grep -i vfio", "asked for %s, the function has %s", vfioDriver, nameOrNone(got))
	}
	t.unlockSwitch()
	return nil
}

// reopenSwitch turns no-IOMMU mode on for a function that vfio-pci has in that
// mode already, and that could not be opened because somebody turned it off. err
// is why there is nothing else to do, or nil.
func (t *txn) reopenSwitch(ctx context.Context, f *Function, err error) error {
	if err != nil || f.IOMMU == nil || !f.IOMMU.NoIOMMU || !t.o.UnsafeNoIOMMU {
		return err
	}
	if on, err := t.switchIsOn(); on || err != nil {
		return err
	}
	if err := t.checkNoIOMMU(); err != nil {
		return err
	}
	if t.lock == nil {
		if err := t.acquire(); err != nil {
			return err
		}
		defer t.release()
	}
	t.res.Already = false
	defer t.unlockSwitch()
	return t.switchOn(ctx)
}

// rollBack undoes a failed bind without the caller's context, which may be
// what ended it, and returns the error for the caller.
func (t *txn) rollBack(ctx context.Context, j *Journal, cause error) error {
	if errors.Is(cause, ErrPending) {
		t.note("not undone: the kernel is still at it; the journal %s stays", t.o.journalPath(t.b))
		return cause
	}
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.o.RestoreTimeout)
	defer cancel()
	t.undo = true
	defer func() { t.undo = false }()
	if err := t.restore(rctx, j); err != nil {
		t.note("the undo failed; the journal %s stays", t.o.journalPath(t.b))
		var c *Error
		first := cause
		if errors.As(cause, &c) {
			first = c.Err
		}
		var u *Error
		second := err
		if errors.As(err, &u) {
			second = u.Err
		}
		return &Error{Op: t.op, BDF: t.b.String(), Err: fmt.Errorf("%w; and undoing it failed: %w", first, second),
			Remedy: "mlxvfio unbind " + t.b.String()}
	}
	t.res.RolledBack = true
	return cause
}

func nameOrNone(driver string) string {
	if driver == "" {
		return "no driver"
	}
	return driver
}
