package vfio

import (
	"errors"
	"strings"
)

// Sentinels, found with errors.Is inside *Error.
var (
	// ErrClosed: the handle was closed.
	ErrClosed = errors.New("handle is closed")
	// ErrGone: the device reads all ones: unplugged, in D3, or behind a dead link.
	ErrGone = errors.New("device reads all ones")
	// ErrNotSupported: the transport or device cannot do that.
	ErrNotSupported = errors.New("not supported")
	// ErrRange: an offset, size or index outside what exists.
	ErrRange = errors.New("out of range")
	// ErrExists: the range overlaps something that is there already.
	ErrExists = errors.New("already there")
	// ErrNotFound: nothing is there.
	ErrNotFound = errors.New("not found")
	// ErrBusy: somebody else has it open.
	ErrBusy = errors.New("in use by another opener")
	// ErrInUse: other objects still use it.
	ErrInUse = errors.New("still in use")
	// ErrNoIOMMU: no IOMMU isolates the function.
	ErrNoIOMMU = errors.New("no IOMMU")
	// ErrNoSpace: no room is left: IOVA, mappings, vectors or locked memory.
	ErrNoSpace = errors.New("no space left")
)

// Error is what every verb of this package answers on failure: what was
// attempted on what, why it failed, and what to do about it.
type Error struct {
	Op     string // the verb, with its operands: "map DMA 0x10000+0x1000"
	Target string // the function or file
	Err    error  // the kernel's errno or a sentinel
	Remedy string // one line, often a command; may be empty
}

// Error gives one line: target, operation, cause and remedy.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Target != "" {
		b.WriteString(e.Target)
		b.WriteString(": ")
	}
	b.WriteString(e.Op)
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if e.Remedy != "" {
		b.WriteString("; ")
		b.WriteString(e.Remedy)
	}
	return b.String()
}

// Unwrap gives the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }
