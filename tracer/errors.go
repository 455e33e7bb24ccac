package tracer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Sentinels, found with errors.Is.
var (
	// ErrBusy: another owner has the tracer; inside a *BusyError.
	ErrBusy = errors.New("another owner has the firmware tracer")
	// ErrLost: another owner took the tracer; inside a *LostError.
	ErrLost = errors.New("another owner took the firmware tracer")
	// ErrReleased: this Owner gave the tracer back and does not take it again.
	ErrReleased = errors.New("the firmware tracer was given back; open it anew")
)

// CapabilityError says which bit the device lacks. It matches vfio.ErrNotSupported.
type CapabilityError struct {
	Bit    string // "mcam_reg", "MCAM.tracer_registers", "MTRC_CAP.trace_to_memory"
	Remedy string
}

func (e *CapabilityError) Error() string {
	return fmt.Sprintf("firmware tracer: the device does not have %s; %s", e.Bit, e.Remedy)
}

// Unwrap gives vfio.ErrNotSupported.
func (e *CapabilityError) Unwrap() error { return vfio.ErrNotSupported }

// OptionError refuses Options, before the device is asked anything.
type OptionError struct{ Option, Rule string }

// Error names the option and the rule.
func (e *OptionError) Error() string {
	return fmt.Sprintf("firmware tracer: %s: %s", e.Option, e.Rule)
}

// BusyError says that another function or a tool kept the tracer. It matches ErrBusy.
type BusyError struct {
	Waited time.Duration
	Tries  int
	Err    error // why the wait ended, if not because its time was over
}

func (e *BusyError) Error() string {
	asked := "once"
	if e.Tries != 1 {
		asked = fmt.Sprintf("%d times", e.Tries)
	}
	s := fmt.Sprintf("acquire the firmware tracer: %v (asked %s in %v)", ErrBusy, asked, e.Waited.Round(time.Millisecond))
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	return s + "; it is a driver of another function of this chip (mlx5_core takes it), or a tool (mstfwtrace): end that, or wait longer (--wait, Options.Wait)"
}

// Unwrap gives ErrBusy and why the wait ended.
func (e *BusyError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrBusy}
	}
	return []error{ErrBusy, e.Err}
}

// LostError says that the tracer is not ours any more. It matches ErrLost.
type LostError struct {
	By string // how it was noticed: "event", "poll", "read-back"
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%v (noticed by %s); what was read until then is good; open it again when the other owner is done", ErrLost, e.By)
}

// Unwrap gives ErrLost.
func (e *LostError) Unwrap() error { return ErrLost }

// MismatchError says that a register does not read back what was written.
type MismatchError struct {
	Register    prm.RegisterID
	Field       string
	Wrote, Read uint64
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("register %v (%#x): wrote %s %#x, it reads %#x; the device did not take it", e.Register, uint16(e.Register), e.Field, e.Wrote, e.Read)
}

// Violation is a condition that a trace buffer does not keep.
type Violation struct{ Rule, Detail string }

// BufferError lists every condition that a trace buffer and its memory key do not
// keep. Nothing was written to the device.
type BufferError struct{ Violations []Violation }

func (e *BufferError) Error() string {
	l := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		l[i] = v.Rule + ": " + v.Detail
	}
	return "trace buffer refused before anything was written: " + strings.Join(l, "; ")
}

// Violates tells whether a rule is among them.
func (e *BufferError) Violates(rule string) bool {
	for _, v := range e.Violations {
		if v.Rule == rule {
			return true
		}
	}
	return false
}

// PanicError is a panic inside the capture's own goroutines: the tracer was given
// back all the same.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("firmware tracer: internal error: %v; please report it with this trace:\n%s", e.Value, e.Stack)
}

// joined are several errors in one line.
type joined []error

// join is errors.Join, in one line.
func join(errs ...error) error {
	var j joined
	for _, err := range errs {
		if err != nil {
			j = append(j, err)
		}
	}
	switch len(j) {
	case 0:
		return nil
	case 1:
		return j[0]
	}
	return j
}

// Error separates the texts by semicolons.
func (j joined) Error() string {
	texts := make([]string, len(j))
	for i, err := range j {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap gives all of them.
func (j joined) Unwrap() []error { return j }
