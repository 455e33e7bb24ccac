package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// ErrClosed is answered by an HCA that was closed.
var ErrClosed = vfio.ErrClosed

// StageError is what Open answers when a stage of the bring-up failed. Stages
// done before it have been undone in reverse order, and the transport is closed.
type StageError struct {
	Device string
	Stage  string
	Err    error
	Remedy string
	// Undo are the failures met while undoing; they do not hide Err.
	Undo []error
	// Ledger is the page ledger after the undo: Outstanding is 0 unless the
	// function could neither be asked for its pages nor be reset.
	Ledger PageLedger
	// Done are the stages that had succeeded, in order.
	Done []string
}

// Error is one line: what failed, what was answered, what to do.
func (e *StageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: bring-up stage %s: %s", e.Device, e.Stage, oneLine(e.Err))
	if undo := distinct(e.Err, e.Undo); undo != "" {
		fmt.Fprintf(&b, "; undoing it also failed: %s", undo)
	}
	if e.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

// Unwrap gives the cause first, then the failures of the undo.
func (e *StageError) Unwrap() []error { return append([]error{e.Err}, e.Undo...) }

// CloseError is what Close answers when giving the function back did not go as
// asked. Host memory, mappings and file descriptors are free all the same.
type CloseError struct {
	Device string
	Kind   TeardownKind
	Errs   []error
	// Reset says that the function was reset because firmware could not be
	// asked to let go any more.
	Reset bool
	// Loose says that the device could neither be kept off the bus nor be reset,
	// and that the address space is shared: the memory that it may still reach
	// stays allocated there.
	Loose bool
	// Parked says that the function belongs to a Recoverable: it was cut off without
	// a reset, and its memory stays mapped until the Recoverable has reset it.
	Parked bool
	Ledger PageLedger
}

// Error is one line.
func (e *CloseError) Error() string {
	return fmt.Sprintf("%s: %v teardown: %s; %s", e.Device, e.Kind, distinct(nil, e.Errs), e.Outcome())
}

// Outcome says how the function was left, and what to do about it: the end of the
// line, for one who has said the rest.
func (e *CloseError) Outcome() string {
	switch {
	case e.Parked:
		return "it is off the bus, and its memory stays mapped until a reset; recover it, or close its Recoverable"
	case e.Loose:
		return "the device may still reach the memory it was given, which stays allocated in the shared address space; close every function of it, then the space, before the device is opened again"
	case e.Reset:
		return "the function was reset and the memory is free; the device can be opened again"
	}
	return "the memory is free; the device can be opened again"
}

// Unwrap gives all failures.
func (e *CloseError) Unwrap() []error { return e.Errs }

// LedgerError says that pages given to firmware did not come back.
type LedgerError struct{ Ledger PageLedger }

// Error names the counts.
func (e *LedgerError) Error() string {
	l := e.Ledger
	return fmt.Sprintf("firmware pages do not balance: %d given, %d returned, %d dropped, %d outstanding%s; reset the function before it is used again",
		l.Given, l.Returned, l.Dropped, l.Outstanding, perFunction(l.Functions))
}

// LeftError says that queues or memory keys existed when the function was closed.
// They are gone with it: what is still done with them answers ErrClosed.
type LeftError struct{ Objects []string } // newest first

// Error names some of them.
func (e *LeftError) Error() string {
	const most = 8
	l, more := e.Objects, ""
	if len(l) > most {
		l, more = l[:most], ", …"
	}
	return fmt.Sprintf("%d objects were not destroyed before the close: %s%s; they are gone with the function, destroy them first", len(e.Objects), strings.Join(l, ", "), more)
}

func perFunction(fs []FunctionPages) string {
	var parts []string
	for _, f := range fs {
		if f.Pages != 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", functionName(f.Function), f.Pages))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// distinct puts errs in one line and leaves out what only repeats first, or one
// before it: the same words, and that a device or server is gone.
func distinct(first error, errs []error) string {
	said, gone := "", false
	if first != nil {
		said, gone = oneLine(first), errors.Is(first, vfio.ErrGone)
	}
	var parts []string
	for _, err := range errs {
		text := oneLine(err)
		if strings.Contains(said, text) || gone && errors.Is(err, vfio.ErrGone) {
			continue
		}
		gone = gone || errors.Is(err, vfio.ErrGone)
		said += "; " + text
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func oneLine(err error) string {
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

// lost tells whether the device cannot be asked for anything any more after err:
// it is gone, or a command is out that it never answered.
func lost(err error) bool {
	var so *SwitchOffError
	switch {
	case errors.Is(err, vfio.ErrGone), errors.Is(err, cmdif.ErrDead), errors.Is(err, cmdif.ErrQuarantined):
		return true
	case errors.As(err, &so):
		return true
	}
	return cmdif.Unanswered(err) // one that was never sent leaves the device as it was
}

// remedyFor says what to do about the failure of a stage whose own text does
// not.
func remedyFor(err error) string {
	var ce *CapRequestError
	switch {
	case errors.As(err, &ce):
		return "ask for what the device offers, as Capability.Current and Maximum say (mlxvfio caps)"
	case errors.Is(err, context.Canceled):
		return "the function was given back; open it again"
	case errors.Is(err, context.DeadlineExceeded) && !lost(err):
		return "the time given for the bring-up was too short; give more"
	}
	return ""
}

// hostOnly marks the failure of freeing a host resource, which says nothing
// about the device.
func hostOnly(err error) error {
	if err == nil {
		return nil
	}
	return &hostError{err}
}

type hostError struct{ err error }

func (e *hostError) Error() string { return e.err.Error() }
func (e *hostError) Unwrap() error { return e.err }

func isHostOnly(err error) bool {
	var he *hostError
	return errors.As(err, &he)
}
