package health

import (
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// State sums up how a function is. Higher is worse, as a metric wants it.
type State uint8

// States. The zero value says that nothing is known yet.
const (
	// Unknown: the counter has not been seen moving yet, and nothing is wrong so
	// far.
	Unknown State = iota
	// Healthy: the counter moves and firmware reports nothing.
	Healthy
	// Degraded: the function works, and something is wrong.
	Degraded
	// Recovering: somebody is bringing the function back (BeginRecovery).
	Recovering
	// Stalled: firmware does not answer; nothing says that it asks for a reset.
	Stalled
	// Fatal: a fatal sensor is set; the function must be reset.
	Fatal
	// Gone: every register reads all ones.
	Gone
)

var stateNames = [...]string{"unknown", "healthy", "degraded", "recovering", "stalled", "fatal", "gone"}

// String is the word used in reports, logs and metrics.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// MarshalText gives the word.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word.
func (s *State) UnmarshalText(b []byte) error {
	for i, n := range stateNames {
		if n == string(b) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no health state (%v)", b, stateNames)
}

// States lists the states, best first.
func States() []State {
	return []State{Unknown, Healthy, Degraded, Recovering, Stalled, Fatal, Gone}
}

// Verdict is what the monitor says about the function.
type Verdict struct {
	State     State     `json:"state"`
	Condition Condition `json:"condition"`
	// Since is when this condition became the verdict.
	Since time.Time `json:"since"`
	// Explanation says in one line what was seen, with numbers; Remedy what to do.
	Explanation string `json:"explanation"`
	Remedy      string `json:"remedy,omitempty"`
	// ExitCode is what a command line should end with.
	ExitCode int `json:"exit_code"`
}

// Lost tells whether the function cannot be used any more before it was reset.
func (v Verdict) Lost() bool { return v.State == Fatal || v.State == Gone }

// VerdictError is a Verdict as the error of what waited for the function. It
// matches vfio.ErrGone where the state is Gone.
type VerdictError struct {
	Device  string
	Verdict Verdict
}

// Error is one line: what was found, and what to do.
func (e *VerdictError) Error() string {
	v := e.Verdict
	s := fmt.Sprintf("%s: health is %v (%s): %s", e.Device, v.State, v.Condition, v.Explanation)
	if e.Device == "" {
		s = s[2:]
	}
	if v.Remedy != "" {
		s += "; " + v.Remedy
	}
	return s
}

// Unwrap gives vfio.ErrGone for a device that is gone, else ErrFatal or
// ErrStalled, or nil.
func (e *VerdictError) Unwrap() error {
	switch e.Verdict.State {
	case Gone:
		return vfio.ErrGone
	case Fatal:
		return ErrFatal
	case Stalled:
		return ErrStalled
	}
	return nil
}

// Sentinels that a VerdictError matches.
var (
	ErrFatal   = errors.New("firmware needs a reset")
	ErrStalled = errors.New("firmware does not answer")
)
