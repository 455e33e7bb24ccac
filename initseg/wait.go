package initseg

import (
	"context"
	"fmt"
	"time"
)

// Phase names which of the two waits for firmware is meant.
type Phase uint8

const (
	// PreInit is the wait before the queue address is published: firmware boots.
	PreInit Phase = iota
	// Init is the wait after it: firmware takes the queue over.
	Init
)

func (p Phase) String() string {
	if p == PreInit {
		return "pre-initializing"
	}
	return "initializing"
}

// WaitOptions tune WaitReady; the zero value is what Linux does.
type WaitOptions struct {
	// Limit ends the wait; 0 takes DefaultPreInit, or for Init the device's own
	// cmd_q_init_to and without one DefaultInit.
	Limit time.Duration
	// Poll is the pause between reads; 0 takes DefaultPollInterval.
	Poll time.Duration
	// Warn, if set, is called each DefaultPreInitWarn while the wait goes on,
	// from the waiting goroutine.
	Warn func(phase Phase, waited, limit time.Duration, raw uint32)
}

// NotReadyError says that firmware did not clear the initializing bit in time.
type NotReadyError struct {
	Phase  Phase
	Limit  time.Duration
	Waited time.Duration
	Raw    uint32 // dword 0x1fc as last read
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("wait for firmware: still %s after %v (limit %v, dword 0x1fc is 0x%08x); "+
		"reset the function, and if that does not help power-cycle the host or reburn the firmware",
		e.Phase, e.Waited.Round(time.Millisecond), e.Limit, e.Raw)
}

// Timeout marks it as a deadline for net.Error-style checks.
func (e *NotReadyError) Timeout() bool { return true }

// QueueError says that the device describes a command queue no driver can serve.
type QueueError struct {
	Queue Queue
	Rule  string
}

func (e *QueueError) Error() string {
	return fmt.Sprintf("command queue of 2^%d entries, 2^%d bytes apart: %s; the device or its firmware is not one this driver knows",
		e.Queue.LogSize, e.Queue.LogStride, e.Rule)
}

// RevisionError says that the device speaks another command interface.
type RevisionError struct {
	Got      uint16
	Firmware Version
}

func (e *RevisionError) Error() string {
	return fmt.Sprintf("command interface revision %d (firmware %v), this driver speaks %d; update the firmware or the driver",
		e.Got, e.Firmware, CommandInterfaceRev)
}

// CheckRevision answers a *RevisionError unless the device speaks the command
// interface revision this driver knows.
func (s *Segment) CheckRevision() error {
	rev := s.CommandInterfaceRev()
	if rev == CommandInterfaceRev {
		return nil
	}
	if rev == ones&0xffff && s.Gone() {
		return s.gone("read the command interface revision")
	}
	return &RevisionError{Got: rev, Firmware: s.FirmwareVersion()}
}

// WaitReady waits until firmware clears the initializing bit (Linux main.c
// wait_fw_init). It answers nil, a *NotReadyError at the limit, an error that
// wraps vfio.ErrGone as soon as the device reads all ones, or the cause of ctx.
func (s *Segment) WaitReady(ctx context.Context, phase Phase, o WaitOptions) error {
	if o.Limit == 0 {
		o.Limit = DefaultPreInit
		if phase == Init {
			o.Limit = DefaultInit
			if d, ok := s.InitTimeout(); ok {
				o.Limit = d
			}
		}
	}
	if o.Poll == 0 {
		o.Poll = DefaultPollInterval
	}
	start := time.Now()
	warnAt := DefaultPreInitWarn
	var tick *time.Timer
	for {
		raw, err := s.initializing()
		if err != nil {
			return fmt.Errorf("wait for firmware (%v): %w", phase, err)
		}
		if raw>>31 == 0 {
			return nil
		}
		waited := time.Since(start)
		if waited >= o.Limit {
			return &NotReadyError{Phase: phase, Limit: o.Limit, Waited: waited, Raw: raw}
		}
		if o.Warn != nil && waited >= warnAt {
			o.Warn(phase, waited, o.Limit, raw)
			warnAt += DefaultPreInitWarn
		}
		pause := min(o.Poll, o.Limit-waited)
		if tick == nil {
			tick = time.NewTimer(pause)
			defer tick.Stop()
		} else {
			tick.Reset(pause)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for firmware (%v, dword 0x1fc is 0x%08x): %w", phase, raw, context.Cause(ctx))
		}
	}
}
