package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Exit codes, the same for every verb.
const (
	exitOK          = 0
	exitFailed      = 1 // the operation or device failed, or time ran out
	exitUsage       = 2 // usage, an unknown profile or fault included
	exitUnavailable = 3 // not found, no permission, busy or taken, no IOMMU
	exitUnsupported = 4 // not supported by this device
	exitInterrupted = 130
)

// exits are the exit codes as help and manual describe them.
var exits = []struct {
	code    int
	meaning string
}{
	{exitOK, "done; healthy; equal"},
	{exitFailed, "the operation or the device failed, a check failed, a guarantee is broken, what was compared differs, or time ran out"},
	{exitUsage, "usage: no such verb, flag, device word, profile, fault, field or stage; a flag where it means nothing"},
	{exitUnavailable, "not found, no permission, busy or taken, or no IOMMU"},
	{exitUnsupported, "not supported by this device"},
	{exitInterrupted, "interrupted by a signal; the device was given back"},
}

// usageError is a mistake on the command line.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// unavailable marks an error as "not there for us": exit code 3.
type unavailable struct{ err error }

func (e *unavailable) Error() string { return e.err.Error() }
func (e *unavailable) Unwrap() error { return e.err }

// exitCode sorts an error into the table above. What the user did comes before
// what is not there, and that before what the device cannot do.
func exitCode(err error) int {
	var (
		ue *usageError
		su *sim.UsageError
		na *unavailable
	)
	var ie *illError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ie):
		return ie.code
	case errors.As(err, &ue), errors.As(err, &su), errors.Is(err, pci.ErrBadBDF), errors.Is(err, syscall.ENAMETOOLONG):
		return exitUsage
	case errors.As(err, &na), isAny(err, notForUs):
		return exitUnavailable
	case isAny(err, notHere):
		return exitUnsupported
	}
	return exitFailed
}

// notForUs: not found, no permission, busy or taken, no IOMMU.
var notForUs = []error{
	vfio.ErrNotFound, vfio.ErrBusy, vfio.ErrNoIOMMU, tracer.ErrBusy,
	pci.ErrNotFound, pci.ErrPermission, pci.ErrBusy, pci.ErrNoIOMMU, pci.ErrGroupNotViable, pci.ErrNoDriver,
	fs.ErrNotExist, fs.ErrPermission, syscall.EISDIR, syscall.ENOTDIR, syscall.EROFS,
	syscall.ENODEV, syscall.EBUSY, syscall.ECONNREFUSED, syscall.EADDRINUSE,
}

// notHere: this device, transport or card cannot do that.
var notHere = []error{
	vfio.ErrNotSupported, pci.ErrNotMellanox, pci.ErrFlashRecovery, atomics.ErrNotOffered,
	mlxvfio.ErrCapAboveMax, mlxvfio.ErrCapMissing,
}

func isAny(err error, targets []error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

// errorLine is the JSON form of an error: the line, and the parts of it that
// programs look at.
type errorLine struct {
	Error string `json:"error"`
	Exit  int    `json:"exit"`
	// Stage of the bring-up that failed, and the page ledger after its undo.
	Stage string              `json:"stage,omitempty"`
	Pages *mlxvfio.PageLedger `json:"pages,omitempty"`
	// Command that firmware refused.
	Opcode   string `json:"opcode,omitempty"`
	Status   string `json:"status,omitempty"`
	Syndrome uint32 `json:"syndrome,omitempty"`
	// Completion is the syndrome of a WQE that failed, Vendor the vendor's byte, WQE
	// its bytes.
	Completion string `json:"completion,omitempty"`
	Vendor     uint8  `json:"vendor_syndrome,omitempty"`
	WQE        string `json:"wqe,omitempty"`
	// Fault is what the device does wrong with atomics or writes.
	Fault  string `json:"fault,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

func newErrorLine(err error, code int) errorLine {
	l := errorLine{Error: oneLine(err), Exit: code}
	var (
		se *mlxvfio.StageError
		ce *cmdif.CommandError
		ve *vfio.Error
		pe *pci.Error
		we *queues.CompletionError
		fe *atomics.FaultError
		oe *atomics.OpError
		le *sim.LinkError
		ie *illError
	)
	if errors.As(err, &se) {
		l.Stage, l.Pages, l.Remedy = se.Stage, &se.Ledger, se.Remedy
	}
	if errors.As(err, &ce) {
		l.Opcode, l.Status, l.Syndrome = ce.Opcode.String(), ce.Status.String(), ce.Syndrome
	}
	if errors.As(err, &we) {
		l.Completion, l.Vendor, l.WQE = we.Syndrome.String(), we.VendorError, we.Hex()
	}
	if errors.As(err, &fe) {
		l.Fault = string(fe.Fault)
	}
	if errors.As(err, &oe) {
		l.Remedy = oe.Remedy
	}
	if errors.As(err, &le) {
		l.Remedy = le.Remedy
	}
	if errors.As(err, &ie) {
		l.Remedy = ie.remedy
		if errors.As(ie.bringUp, &se) {
			l.Stage, l.Pages = se.Stage, &se.Ledger
		}
	}
	if l.Remedy == "" && errors.As(err, &ve) {
		l.Remedy = ve.Remedy
	}
	if l.Remedy == "" && errors.As(err, &pe) {
		l.Remedy = pe.Remedy
	}
	return l
}

// fail prints the error, one line with its remedy, and returns the exit code.
// ctx is the one that signals end: whatever else went wrong, the user's wish to
// stop is the reason.
func (a *app) fail(ctx context.Context, err error) int {
	code := exitCode(err)
	var ie *illError // what was seen until a signal came
	if ctx.Err() != nil && code != exitUsage && !errors.As(err, &ie) {
		code = exitInterrupted
	}
	if a.json {
		// Standard error is the last resort: a failure to write it has no other place to go.
		_ = writeJSON(a.err, "error/1", newErrorLine(err, code))
		return code
	}
	fmt.Fprintf(a.err, "mlxvfio: %s\n", plain([]byte(oneLine(err))))
	return code
}
