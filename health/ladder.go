package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Rung is a step of the recovery ladder. A higher one is harsher: it loses more,
// and hits more functions.
type Rung uint8

// Rungs, in the order in which they are climbed.
const (
	RungNone     Rung = iota // touch nothing
	RungReopen               // give the function back in good order, or wait for a reset that somebody else does, and open it again
	RungSWReset              // firmware reset through nic_interface, under the software-reset semaphore
	RungFLR                  // reset of the function alone
	RungHotReset             // reset of the slot, with everything in it
	RungMFRL                 // firmware reset by register MFRL with a reset of the link
	RungCold                 // a power cycle: nobody but a person can do it
)

// RungInfo describes a rung.
type RungInfo struct {
	Rung  Rung   `json:"rung"`
	Doc   string `json:"doc"`
	Hits  string `json:"hits"`  // what loses its state
	Proof string `json:"proof"` // where it has been seen to work
	// Limit is how long the rung may take where RecoverOptions.Limits does not say.
	Limit time.Duration `json:"limit_ns"`
}

var rungTable = []RungInfo{
	{RungNone, "touch nothing", "nothing", "", 0},
	{RungReopen, "drain the function and open it again; where another function resets the chip, wait for the end of that first", "the function", "model, over all transports", 90 * time.Second},
	{RungSWReset, "nic_interface = 7 under the software-reset semaphore of the vendor-specific capability", "every function of the chip", "model, also through real vfio-pci", 150 * time.Second},
	{RungFLR, "function-level reset (VFIO_DEVICE_RESET)", "the function", "model, and real vfio-pci on the model", 90 * time.Second},
	{RungHotReset, "reset of the slot or bus (VFIO_DEVICE_PCI_HOT_RESET)", "every function of the slot, whoever uses it", "model; the ioctls of a real kernel on the model, which the reset reaches as one of the function", 90 * time.Second},
	{RungMFRL, "register MFRL: firmware negotiates with the drivers of the chip, then resets with the link", "every function of the chip", "model only", 150 * time.Second},
	{RungCold, "power the device off and on; nothing here can do it", "the host", "", 0},
}

// Rungs is the ladder, lowest first. The caller owns the slice.
func Rungs() []RungInfo { return slices.Clone(rungTable) }

var rungNames = [...]string{"none", "reopen", "sw-reset", "flr", "hot-reset", "mfrl", "cold"}

// String is the word used on the command line and in reports.
func (r Rung) String() string {
	if int(r) < len(rungNames) {
		return rungNames[r]
	}
	return fmt.Sprintf("rung(%d)", uint8(r))
}

// ParseRung reads a word.
func ParseRung(s string) (Rung, error) {
	if i := slices.Index(rungNames[:], s); i >= 0 {
		return Rung(i), nil
	}
	return 0, fmt.Errorf("%q is no rung of the recovery ladder; use one of %s", s, strings.Join(rungNames[:], ", "))
}

// MarshalText gives the word.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the word.
func (r *Rung) UnmarshalText(b []byte) (err error) {
	*r, err = ParseRung(string(b))
	return err
}

// Lifecycle is what recovery asks of whoever owns the function. Calls come one at
// a time. Memory that the device may still write must stay mapped from Park until
// Reopen: only then has the device been reset, or has it let go.
type Lifecycle interface {
	// Drain gives the function back in good order: objects destroyed, pages taken
	// back, bus mastering off. After an error the function is parked. Without an
	// open function it does nothing.
	Drain(ctx context.Context) error
	// Park ends the conversation with the device: waiting commands end with cause,
	// bus mastering goes off as far as the device lets it, memory stays. It must not
	// wait for the device. A second call, or one without an open function, does
	// nothing.
	Park(cause error) error
	// Reopen frees what Park has kept and brings the function up as it is, without
	// a reset. After an error the function is parked, or closed.
	Reopen(ctx context.Context) error
}

// RegisterAccess reads and writes device registers by commands: *cmdif.Conn.
type RegisterAccess interface {
	RegisterReader
	WriteRegister(ctx context.Context, id prm.RegisterID, image []byte) error
}

var _ RegisterAccess = (*cmdif.Conn)(nil)

// Target is a function to recover. What is nil, the rung that needs it records as
// not supported.
type Target struct {
	// Device names the function in reports.
	Device string
	// Window is a view of BAR 0, Config configuration space. Both outlive the
	// closing of the function by Lifecycle; both are required.
	Window *vfio.Window
	Config ConfigSpace
	// Virtual functions never reset the chip.
	Virtual bool
	// Lifecycle is required.
	Lifecycle Lifecycle
	// Reset is a function-level reset.
	Reset func() error
	// HotResetInfo and HotReset reset the slot; see vfio.HotResetter.
	HotResetInfo func() ([]vfio.HotResetFunction, error)
	HotReset     func() error
	// LinkToggle takes the link to the device down and up again through the bridge
	// above it.
	LinkToggle func(context.Context) error
	// Registers gives a working command interface, by bringing the function up half
	// way if need be.
	Registers func(context.Context) (RegisterAccess, error)
	// Timeouts are the device's own; zero fields are Linux' defaults.
	Timeouts cmdif.Timeouts
}

// RecoverOptions tune Recover.
type RecoverOptions struct {
	// MaxLevel is the highest rung that may be climbed. The zero value allows none:
	// the report then says what would be done.
	MaxLevel Rung
	// Verdict is why. The zero value looks at the device: its sensors, and then its
	// counter for Alive.
	Verdict Verdict
	// BlackBox saves a bundle before anything is touched and answers where. If it
	// fails, nothing is recovered, unless GoOn is set. Nil keeps nothing.
	BlackBox func(context.Context) (path string, err error)
	GoOn     bool
	// Consent is asked before functions beside this one are reset by the slot or
	// link; an error refuses the rung. Nil refuses whenever there are others.
	Consent func([]vfio.HotResetFunction) error
	// Limits bound rungs; see RungInfo.Limit.
	Limits map[Rung]time.Duration
	// OnStep hears of each step as it ends, on the caller's goroutine.
	OnStep func(Rung, RecoveryStep)
}

// RecoverySchema names the JSON form of a RecoveryReport and its version.
const RecoverySchema = "mlxvfio.recovery/1"

// RecoveryReport is what Recover did.
type RecoveryReport struct {
	Schema    string        `json:"schema"`
	Device    string        `json:"device"`
	Started   time.Time     `json:"started"`
	Took      time.Duration `json:"took_ns"`
	MaxLevel  Rung          `json:"max_level"`
	Condition Condition     `json:"condition"`
	State     State         `json:"state"`
	// Buffer is the health buffer before anything was touched, if it showed an
	// error.
	Buffer *Buffer `json:"buffer,omitempty"`
	// Bundle is where the black box was saved.
	Bundle      string       `json:"bundle,omitempty"`
	BundleError string       `json:"bundle_error,omitempty"`
	Rungs       []RungReport `json:"rungs"`
	// Recovered says that the function is open and well; By is the rung that did it.
	Recovered bool `json:"recovered"`
	By        Rung `json:"by"`
	// ColdReset says that only a power cycle can help.
	ColdReset bool `json:"cold_reset"`
	// Next is the lowest rung that could help and was not allowed, by MaxLevel or
	// for want of consent; RungCold if a power cycle is all that is left, RungNone
	// after a success.
	Next   Rung   `json:"next"`
	Remedy string `json:"remedy,omitempty"`
}

// Touched tells whether anything was done to the function: a rung was climbed, with
// or without success.
func (r *RecoveryReport) Touched() bool {
	return slices.ContainsFunc(r.Rungs, func(x RungReport) bool {
		return x.Outcome == OutcomeWorked || x.Outcome == OutcomeFailed
	})
}

// WasReset tells whether the function came back from a reset, by a rung or by
// another function: an error that its health buffer shows at the first look may be
// one of before. After a recovery that failed the answer is no: nothing says that
// what the buffer shows is over.
func (r *RecoveryReport) WasReset() bool {
	return r.Recovered && (r.By > RungReopen || wasAway(r.Condition))
}

// RungOutcome is how a rung ended.
type RungOutcome string

// Outcomes of rungs.
const (
	OutcomeWorked       RungOutcome = "worked"
	OutcomeFailed       RungOutcome = "failed"
	OutcomeNotSupported RungOutcome = "not-supported" // the device, transport or caller cannot
	OutcomeUseless      RungOutcome = "useless"       // it cannot help against this condition
	OutcomeNotAllowed   RungOutcome = "not-allowed"   // above MaxLevel, or refused by Consent
)

// RungReport is one rung.
type RungReport struct {
	Rung    Rung        `json:"rung"`
	Outcome RungOutcome `json:"outcome"`
	// Reason says why it did not work or was not tried.
	Reason string         `json:"reason,omitempty"`
	Took   time.Duration  `json:"took_ns"`
	Steps  []RecoveryStep `json:"steps,omitempty"`
	// Hits are the functions of the slot that a hot reset hits.
	Hits []vfio.HotResetFunction `json:"hits,omitempty"`
}

// RecoveryStep is a piece of a rung.
type RecoveryStep struct {
	Step string
	Took time.Duration
	Note string
	Err  error
}

// MarshalJSON gives the error as text.
func (s RecoveryStep) MarshalJSON() ([]byte, error) {
	x := struct {
		Step  string        `json:"step"`
		Took  time.Duration `json:"took_ns"`
		Note  string        `json:"note,omitempty"`
		Error string        `json:"error,omitempty"`
	}{Step: s.Step, Took: s.Took, Note: s.Note}
	if s.Err != nil {
		x.Error = oneLine(s.Err)
	}
	return json.Marshal(x)
}

// RecoverError says that the function is not well after Recover.
type RecoverError struct {
	Report RecoveryReport
	Err    error // ErrNotRecovered, ErrColdReset, or what kept Recover from trying
}

// Error is one line: what was tried, what came of it, what to do.
func (e *RecoverError) Error() string {
	// Rungs that failed for one reason are named together. Where none was tried, and
	// one above those allowed would be, the reason is that of the allowed ones.
	idle := !e.Report.Touched() && e.Report.Next != RungNone && !e.Report.ColdReset
	var names, reasons []string
	for _, r := range e.Report.Rungs {
		if r.Outcome != OutcomeFailed && (!idle || r.Outcome == OutcomeNotAllowed || r.Rung > e.Report.MaxLevel) {
			continue
		}
		why := r.brief()
		if i := slices.Index(reasons, why); i >= 0 {
			names[i] += ", " + r.Rung.String()
			continue
		}
		names, reasons = append(names, r.Rung.String()), append(reasons, why)
	}
	var tried []string
	for i := range names {
		tried = append(tried, names[i]+": "+reasons[i])
	}
	from := "from " + string(e.Report.Condition)
	if e.Report.State == Healthy {
		from = "of a function whose registers look well" // but nobody can bring it up
	}
	s := fmt.Sprintf("%s: recovery %s: %s", e.Report.Device, from, oneLine(e.Err))
	if e.Report.Device == "" {
		s = s[2:]
	}
	if len(tried) > 0 {
		s += " (" + strings.Join(tried, "; ") + ")"
	}
	if e.Report.Remedy != "" {
		s += "; " + e.Report.Remedy
	}
	return s
}

// brief is Reason; for a command that was not answered without the remedy of its
// error, since the report has one.
func (r *RungReport) brief() string {
	if n := len(r.Steps); n > 0 {
		s := &r.Steps[n-1]
		var te *cmdif.TimeoutError
		if errors.As(s.Err, &te) && te.Slot >= 0 {
			return fmt.Sprintf("%s: %v(0x%x) was not answered", s.Step, te.Opcode, uint16(te.Opcode))
		}
	}
	return r.Reason
}

// Unwrap gives Err, then what the steps answered.
func (e *RecoverError) Unwrap() []error {
	errs := []error{e.Err}
	for _, r := range e.Report.Rungs {
		for _, s := range r.Steps {
			if s.Err != nil {
				errs = append(errs, s.Err)
			}
		}
	}
	return errs
}
