package health

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels of the gateway and of recovery, found with errors.Is.
var (
	// ErrNoVSC: the function has no vendor-specific capability: a VF, an old
	// device, or an emulated one.
	ErrNoVSC = errors.New("the function has no vendor-specific capability")
	// ErrSpaceUnsupported: the gateway does not offer the address space.
	ErrSpaceUnsupported = errors.New("the device does not offer this address space")
	// ErrGatewayHeld: somebody else holds the gateway's semaphore.
	ErrGatewayHeld = errors.New("the gateway is held by another owner")
	// ErrSemaphoreHeld: another function or tool holds the software-reset
	// semaphore.
	ErrSemaphoreHeld = errors.New("the software-reset semaphore is held by another owner")
	// ErrGatewayTimeout: the device did not answer a gateway access.
	ErrGatewayTimeout = errors.New("the gateway did not answer")
	// ErrGatewayRefused: the device answered an access with its syndrome bit.
	ErrGatewayRefused = errors.New("the gateway refused the access")
	// ErrGatewayLost: the semaphore changed hands while it was held.
	ErrGatewayLost = errors.New("the gateway was taken away")
	// ErrNotRecovered: every rung that was allowed was climbed, and the device is
	// not well.
	ErrNotRecovered = errors.New("the device did not recover")
	// ErrColdReset: only a power cycle of the device can help.
	ErrColdReset = errors.New("the device needs a cold reset")
)

// VSCError is what the gateway answers on failure.
type VSCError struct {
	Op     string // "read", "write", "lock", …
	Space  Space
	Addr   uint32 // of read and write
	HasAt  bool   // Space and Addr mean something
	Detail string // what the registers showed; may be empty
	Err    error
	Remedy string
}

// Error is one line.
func (e *VSCError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "vendor-specific capability: %s", e.Op)
	if e.HasAt {
		fmt.Fprintf(&b, " at %#x of space %v", e.Addr, e.Space)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, " (%s)", e.Detail)
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *VSCError) Unwrap() error { return e.Err }
