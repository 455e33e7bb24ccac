package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// The kinds of failure. Each *Error of this package wraps exactly one of them;
// test with errors.Is. An error of the operating system, where there was one,
// stays in the chain too.
var (
	// ErrBadBDF: the text is not a PCI address.
	ErrBadBDF = errors.New("not a PCI address")
	// ErrNotFound: the machine has no function at that address.
	ErrNotFound = errors.New("no such PCI function")
	// ErrPermission: the kernel refused access to sysfs or to the journal.
	ErrPermission = errors.New("permission denied")
	// ErrBusy: someone uses the function (netdev up, a route, VFs enabled, a
	// process with the VFIO group open, another bind at work).
	ErrBusy = errors.New("function is in use")
	// ErrNotMellanox: not a function that mlx5 drives; mlx4 cards, bridges and
	// management functions of the same vendor included.
	ErrNotMellanox = errors.New("not an mlx5 function")
	// ErrFlashRecovery: the chip runs no firmware, only its flash is reachable.
	ErrFlashRecovery = errors.New("device is in flash-recovery mode")
	// ErrNoIOMMU: no IOMMU protects the function.
	ErrNoIOMMU = errors.New("function is in no IOMMU group")
	// ErrGroupNotViable: another function of the IOMMU group has a host driver.
	ErrGroupNotViable = errors.New("IOMMU group is not viable")
	// ErrNoDriver: the driver needed is not loaded.
	ErrNoDriver = errors.New("driver is not loaded")
	// ErrProbe: the kernel did not bind the driver that was asked for.
	ErrProbe = errors.New("driver did not bind")
	// ErrPending: the context ended while the kernel was still in a sysfs
	// write; errors.As with *PendingError gives the handle to wait on.
	ErrPending = errors.New("kernel has not finished")
	// ErrInterrupted: the context ended between two writes.
	ErrInterrupted = errors.New("interrupted")
	// ErrJournal: the journal of a function cannot be read or written.
	ErrJournal = errors.New("journal")
	// ErrBadConfig: a configuration space is too short or contradicts itself.
	ErrBadConfig = errors.New("bad PCI configuration space")
	// ErrIO: the kernel failed a sysfs access in another way.
	ErrIO = errors.New("sysfs access failed")
)

// Error is the typed error of this package.
type Error struct {
	// Op is what was attempted: "inspect", "bind", "unbind", "config", …
	Op string
	// BDF is the function concerned, "" when there is none.
	BDF string
	// Err wraps one of the sentinels above and says what was found.
	Err error
	// Remedy is a command line that helps, or a short advice where no command
	// can; "" when there is none.
	Remedy string
}

// Error gives one line: function, operation, cause and remedy.
func (e *Error) Error() string {
	var b strings.Builder
	if e.BDF != "" {
		b.WriteString(e.BDF + ": ")
	}
	b.WriteString(e.Op + ": " + strings.ReplaceAll(e.Err.Error(), "\n", "; "))
	if e.Remedy != "" {
		b.WriteString("; try: " + e.Remedy)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// PendingError tells that a sysfs write had not returned when the context
// ended. The write cannot be taken back: the kernel finishes it whenever the
// driver lets it. Whoever receives this error owns the goroutine that sits in
// the write and waits for it with Wait, or exits the process. The function
// stays locked against other binds until the write has returned, and its
// journal stays, so that a later Unbind restores the original state.
type PendingError struct {
	Path  string // the sysfs file
	Value string // what is being written
	done  chan struct{}
	err   error // valid once done is closed
}

func (e *PendingError) Error() string {
	return fmt.Sprintf("%v: writing %q to %s", ErrPending, e.Value, e.Path)
}

// Is makes errors.Is(err, ErrPending) hold.
func (e *PendingError) Is(target error) bool { return target == ErrPending }

// Done is closed when the write has returned.
func (e *PendingError) Done() <-chan struct{} { return e.done }

// Wait blocks until the write has returned and gives its error.
func (e *PendingError) Wait() error {
	<-e.done
	return e.err
}

// fail builds an *Error; kind is a sentinel, detail may be nil.
func fail(op string, b BDF, kind error, detail error, remedy string) *Error {
	err := kind
	if detail != nil {
		err = fmt.Errorf("%w: %w", kind, detail)
	}
	return &Error{Op: op, BDF: b.String(), Err: err, Remedy: remedy}
}

// failf is fail with a formatted detail.
func failf(op string, b BDF, kind error, remedy, format string, args ...any) *Error {
	return fail(op, b, kind, fmt.Errorf(format, args...), remedy)
}

// sysfsError classifies what the operating system answered to an access of
// path and adds the remedy that fits.
func sysfsError(op string, b BDF, verb, path string, err error) *Error {
	var typed *Error
	if errors.As(err, &typed) {
		return typed
	}
	cause := err
	var pe *fs.PathError
	if errors.As(err, &pe) {
		cause = pe.Err // the path is in our own text
	}
	detail := fmt.Errorf("%s %s: %w", verb, path, cause)
	switch {
	case errors.Is(err, syscall.EROFS):
		return fail(op, b, ErrPermission, detail, "mount -o remount,rw /sys (in a container: run it privileged, with the host's /sys)")
	case errors.Is(err, fs.ErrPermission):
		return fail(op, b, ErrPermission, detail, rootRemedy(op, b))
	case errors.Is(err, syscall.EBUSY):
		return fail(op, b, ErrBusy, detail, "")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV):
		return fail(op, b, ErrNotFound, detail, "mlxvfio list")
	}
	return fail(op, b, ErrIO, detail, "dmesg | tail")
}

func rootRemedy(op string, b BDF) string {
	switch op {
	case "bind", "unbind":
		return "sudo mlxvfio " + op + " " + b.String()
	}
	return "run as root"
}
