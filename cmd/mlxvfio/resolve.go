package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/vfiouser"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// devKind is what a DEV argument names.
type devKind int

const (
	devKernel devKind = iota // BDF: the kernel's VFIO
	devSysfs                 // sysfs:BDF: BAR0 read-only
	devSocket                // vfio-user:PATH
	devSim                   // sim[:…]
)

// devArg is a parsed DEV argument. Parsing touches no device.
type devArg struct {
	kind devKind
	text string      // as given
	bdf  pci.BDF     // devKernel, devSysfs
	path string      // devSocket
	sim  sim.Options // devSim
	chip *sim.Chip   // devSim: a model that was made before, to be opened and closed
	also string      // what is put to the name of the device, to tell it from another one
}

// parseDev reads a DEV argument; every mistake is a usage error of one line.
func parseDev(s string) (devArg, error) {
	d := devArg{text: s}
	var err error
	switch {
	case s == "sim" || strings.HasPrefix(s, "sim:") || strings.HasPrefix(s, "sim,"):
		d.kind = devSim
		if d.sim, err = sim.Parse(s); err != nil {
			return d, simUsage(err)
		}
		return d, nil
	case strings.HasPrefix(s, "vfio-user:"):
		d.kind = devSocket
		if d.path = strings.TrimPrefix(s, "vfio-user:"); d.path == "" {
			return d, usagef("%q names no socket: vfio-user:PATH", s)
		}
		if err := vfiouser.CheckPath(d.path); err != nil {
			return d, usagef("%q: %v; use a shorter path", s, err)
		}
		return d, nil
	case strings.HasPrefix(s, "sysfs:"):
		d.kind = devSysfs
		if d.bdf, err = pci.ParseBDF(strings.TrimPrefix(s, "sysfs:")); err != nil {
			return d, usagef("%q: %v", s, err)
		}
		return d, nil
	}
	if d.bdf, err = pci.ParseBDF(s); err != nil {
		return d, usagef("%q is no device: want a BDF such as 0000:3b:00.0, vfio-user:PATH, sysfs:BDF or sim[:PROFILE][,WORD…]", s)
	}
	return d, nil
}

// opened is a transport with what must be closed after it.
type opened struct {
	vfio.Transport
	arg  devArg
	chip *sim.Chip // devSim only
	undo []func() error
}

// Close closes the transport, then what carries it.
func (o *opened) Close() error {
	err := o.Transport.Close()
	for i := len(o.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, o.undo[i]())
	}
	o.undo = nil
	return err
}

// Info is the transport's, by a name that no other device of this process has.
func (o *opened) Info() (vfio.DeviceInfo, error) {
	i, err := o.Transport.Info()
	i.Name += o.arg.also
	return i, err
}

// open turns a DEV argument into a transport, with the recorder in front of it
// when --record was given.
func (a *app) open(ctx context.Context, arg devArg) (*opened, error) {
	o := &opened{arg: arg}
	var err error
	switch arg.kind {
	case devSim:
		if o.chip = arg.chip; o.chip == nil {
			if o.chip, err = a.newChip(arg); err != nil {
				return nil, err
			}
		}
		o.Transport = o.chip.Function(0)
		o.undo = append(o.undo, o.chip.Close)
	case devSocket:
		o.Transport, err = vfiouser.Dial(ctx, arg.path, vfiouser.Options{Logger: a.logger()})
	case devSysfs:
		if err = a.checkFunction(arg.bdf, false); err == nil {
			o.Transport, err = vfio.OpenSysfs(arg.bdf.String(), vfio.KernelOptions{Sysfs: a.pci.SysRoot})
		}
	case devKernel:
		if err = a.checkFunction(arg.bdf, true); err == nil {
			o.Transport, err = a.openKernel(arg.bdf)
		}
	}
	if err != nil {
		return nil, unavailableUnless(err)
	}
	return o, a.recordInto(o)
}

// openKernel opens a function of this machine. Who asked for one without an IOMMU
// is told each time what that means.
func (a *app) openKernel(b pci.BDF) (vfio.Transport, error) {
	o := vfio.KernelOptions{Sysfs: a.pci.SysRoot, DevRoot: a.pci.DevRoot, Proc: a.pci.ProcRoot, UnsafeNoIOMMU: a.unsafe, Logger: a.logger()}
	if a.backend != backendWords[0] {
		o.Backend = a.backend
	}
	t, err := vfio.Open(b.String(), o)
	if err != nil {
		return nil, err
	}
	info, err := t.Info()
	if err == nil && info.Backend == vfio.BackendNoIOMMU {
		err = a.warning(fmt.Sprintf("unsafe: no IOMMU guards %v: what it reads and writes by mistake can be any memory of this machine", b))
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// newChip makes the model of a DEV argument.
func (a *app) newChip(arg devArg) (*sim.Chip, error) {
	arg.sim.Logger = a.logger()
	c, err := sim.New(arg.sim)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg.text, err)
	}
	return c, nil
}

// unavailableUnless makes an error of opening one of exit code 3, except where
// the device cannot do what is asked or the user stopped waiting.
func unavailableUnless(err error) error {
	if errors.Is(err, vfio.ErrNotSupported) || errors.Is(err, pci.ErrNotMellanox) || errors.Is(err, pci.ErrFlashRecovery) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &unavailable{err}
}

// recordInto puts the recorder in front of an opened device.
func (a *app) recordInto(o *opened) error {
	if a.record == "" {
		return nil
	}
	f, err := os.Create(a.record)
	if err != nil {
		return errors.Join(usagef("--record: %v; name a file in a folder that exists and that you may write to", err), o.Close())
	}
	rec := vfio.NewRecorder(o.Transport, f)
	o.Transport = rec
	o.undo = append(o.undo, func() error {
		if err := errors.Join(rec.Err(), f.Close()); err != nil {
			a.recording = &recordingError{a.record, rec.Dropped(), err}
		}
		return nil // the device was given back all the same
	})
	return nil
}

// recordingError says that the recording has a hole, and nothing else went wrong.
type recordingError struct {
	file    string
	dropped uint64
	err     error
}

func (e *recordingError) Error() string {
	return fmt.Sprintf("the recording %s is not complete, %d accesses are missing: %s; the device is not concerned; record to where there is room", e.file, e.dropped, oneLine(e.err))
}

func (e *recordingError) Unwrap() error { return e.err }

// checkFunction refuses a BDF that is not there, is no ConnectX or, where VFIO
// is wanted, has another driver, so that the message names the real reason.
func (a *app) checkFunction(b pci.BDF, wantVFIO bool) error {
	f, err := pci.Inspect(b, a.pciOptions())
	if err != nil {
		return err
	}
	fail := func(err error, remedy string) error {
		return &pci.Error{Op: "open", BDF: b.String(), Err: err, Remedy: remedy}
	}
	switch {
	case f.ID.Kind == pci.KindRecovery:
		return fail(pci.ErrFlashRecovery, "burn firmware with flint")
	case !f.IsMLX5():
		return fail(fmt.Errorf("%w: %s (%04x:%04x)", pci.ErrNotMellanox, f.ID.Name, f.Vendor, f.Device), "mlxvfio list")
	case wantVFIO && !pci.IsVFIO(f.Driver):
		return fail(fmt.Errorf("%w to vfio-pci, it is with %s", errNotBound, driverName(f.Driver)), "mlxvfio bind "+b.String())
	}
	return nil
}

var errNotBound = errors.New("the function is not bound")
