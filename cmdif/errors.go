package cmdif

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Sentinels, found with errors.Is.
var (
	// ErrClosed: the Conn was closed.
	ErrClosed = errors.New("command interface is closed")
	// ErrDead: the device no longer answers commands; inside a *DeadError.
	ErrDead = errors.New("device does not answer commands any more")
	// ErrQuarantined: every slot this command may use is held by a command that
	// the device never completed.
	ErrQuarantined = errors.New("every command slot is held by a command the device never completed")
	// ErrNotOurs: what came back does not belong to this command; inside a *ReplyError.
	ErrNotOurs = errors.New("reply does not belong to this command")
	// ErrSignature: a signature of the reply is wrong; inside a *ReplyError.
	ErrSignature = errors.New("signature of the reply is wrong")
)

// statusError makes a command status usable as a target of errors.Is.
type statusError struct{ s prm.CommandStatus }

func (e statusError) Error() string { return "command status " + e.s.String() }

// Status is the target for errors.Is that a CommandError with status s matches:
//
//	if errors.Is(err, cmdif.Status(prm.StatusBadParam)) { … }
func Status(s prm.CommandStatus) error { return statusError{s} }

// CommandError says that firmware executed a command and refused it.
type CommandError struct {
	Opcode   prm.Opcode
	OpMod    uint16
	Status   prm.CommandStatus
	Syndrome uint32 // opaque, specific to the firmware version
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s: firmware answered %s, syndrome 0x%x; %s", name(e.Opcode, e.OpMod), statusText(e.Status), e.Syndrome, statusRemedy(e.Status))
}

// Is matches Status(e.Status).
func (e *CommandError) Is(target error) bool {
	switch t := any(target).(type) {
	case statusError:
		return t.s == e.Status
	case prm.CommandStatus:
		return t == e.Status
	}
	return false
}

// Temporary tells whether sending the same command again can help.
func (e *CommandError) Temporary() bool {
	return e.Status == prm.StatusNotReady || e.Status == prm.StatusResBusy || e.Status == prm.StatusNoRes
}

func statusText(s prm.CommandStatus) string {
	if t := s.Text(); t != "" {
		return fmt.Sprintf("%s (0x%x: %s)", s, uint8(s), t)
	}
	return fmt.Sprintf("status 0x%x", uint8(s))
}

func statusRemedy(s prm.CommandStatus) string {
	switch s {
	case prm.StatusInternal:
		return "read the health buffer; reset the function if it reports an error"
	case prm.StatusBadOp:
		return "this device or firmware does not have the command or this variant of it; check the capabilities"
	case prm.StatusBadParam, prm.StatusBadIndex, prm.StatusBadPkt:
		return "compare the input with the capabilities and the limits they state"
	case prm.StatusBadSysState:
		return "the command does not belong to this stage of bring-up; see the order of commands"
	case prm.StatusBadRes, prm.StatusBadResState, prm.StatusBadQPState:
		return "check that the object exists, is of this kind and in the right state"
	case prm.StatusResBusy:
		return "destroy what still uses the object first"
	case prm.StatusNotReady:
		return "firmware was not ready for the whole time the command was retried; wait and try again, or reset the function"
	case prm.StatusLimit:
		return "stay below the device's limit, or free objects"
	case prm.StatusNoRes:
		return "free objects or give the device the pages it asks for"
	case prm.StatusBadSizeOutsCQEs:
		return "drain the CQ before making it smaller"
	case prm.StatusBadInpLen, prm.StatusBadOutpLen:
		return "the command needs a longer message than was sent"
	}
	return "the status is not in the PRM; note firmware version and syndrome for the vendor"
}

// DeliveryError says that the device could not take the message itself: nothing
// was executed.
type DeliveryError struct {
	Opcode prm.Opcode
	OpMod  uint16
	Slot   int
	Status prm.DeliveryStatus
}

func (e *DeliveryError) Error() string {
	return fmt.Sprintf("%s in slot %d: not delivered: %s (0x%x: %s); %s", name(e.Opcode, e.OpMod), e.Slot,
		e.Status, uint8(e.Status), e.Status.Text(), deliveryRemedy(e.Status))
}

func deliveryRemedy(s prm.DeliveryStatus) string {
	switch s {
	case prm.DeliveryFWErr:
		return "read the health buffer; reset the function if it reports an error"
	case prm.DeliveryInLengthErr, prm.DeliveryOutLengthErr:
		return "the message has a length the device does not take for this command"
	}
	return "the device saw another message than was built: suspect DMA (IOMMU mapping, bus mastering) and look for AER errors"
}

// TimeoutError says that a command did not complete in time. Its slot and
// memory are quarantined. Slot −1 means that it never got a slot and therefore
// never reached the device.
type TimeoutError struct {
	Opcode prm.Opcode
	OpMod  uint16
	Slot   int
	Age    time.Duration
	Limit  time.Duration
	// Late says that the caller's time was over before the command began: no slot
	// was looked for.
	Late bool
	// InFlight are the commands that held the slots it waited for.
	InFlight []Record
}

func (e *TimeoutError) Error() string {
	switch {
	case e.Late:
		return fmt.Sprintf("%s: not sent: the caller's time was over; give it more", name(e.Opcode, e.OpMod))
	case e.Slot < 0 && len(e.InFlight) > 0:
		return fmt.Sprintf("%s: not sent: no free command slot within %v; in flight: %s; see the history and the health buffer",
			name(e.Opcode, e.OpMod), e.Age.Round(time.Millisecond), inFlight(e.InFlight))
	case e.Slot < 0:
		return fmt.Sprintf("%s: not sent: no command slot within %v, though none was in flight; see the history and the health buffer",
			name(e.Opcode, e.OpMod), e.Age.Round(time.Millisecond))
	}
	return fmt.Sprintf("%s in slot %d: no completion after %v; the slot stays reserved until the device answers; read the health buffer and reset the function if it does not recover",
		name(e.Opcode, e.OpMod), e.Slot, e.Age.Round(time.Millisecond))
}

// Timeout marks it for checks in the style of net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// Is matches context.DeadlineExceeded.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// CanceledError says that the caller stopped waiting. The device was not
// stopped: unless Slot is −1 (never sent), the command may still take effect.
type CanceledError struct {
	Opcode prm.Opcode
	OpMod  uint16
	Slot   int
	Age    time.Duration
	Err    error // the cause of the context
}

func (e *CanceledError) Error() string {
	if e.Slot < 0 {
		return fmt.Sprintf("%s: cancelled before it was sent: %v", name(e.Opcode, e.OpMod), e.Err)
	}
	return fmt.Sprintf("%s in slot %d: waiting was cancelled after %v, the device may still execute it: %v",
		name(e.Opcode, e.OpMod), e.Slot, e.Age.Round(time.Microsecond), e.Err)
}

// Unwrap gives the cause of the context.
func (e *CanceledError) Unwrap() error { return e.Err }

// DeadError ends every command once the device is known not to answer. It
// matches ErrDead and wraps the reason. Slot −1 means the command never reached
// the device; otherwise it may have taken effect.
type DeadError struct {
	Device string     // its name, as vfio.DeviceInfo has it; not in the text
	Opcode prm.Opcode // 0: no command, but CheckAlive
	OpMod  uint16
	Slot   int
	Err    error
}

func (e *DeadError) Error() string {
	s := fmt.Sprintf("%v: %v", ErrDead, e.Err)
	switch {
	case e.Opcode == 0:
	case e.Slot >= 0:
		s = fmt.Sprintf("%s: abandoned in slot %d: %s", name(e.Opcode, e.OpMod), e.Slot, s)
	default:
		s = fmt.Sprintf("%s: not sent: %s", name(e.Opcode, e.OpMod), s)
	}
	if errors.Is(e.Err, vfio.ErrGone) {
		return s // which says what to do
	}
	return s + "; reset the function and open it again"
}

// Unwrap gives ErrDead and the reason.
func (e *DeadError) Unwrap() []error { return []error{ErrDead, e.Err} }

// ReplyError says that the reply cannot be trusted. It wraps ErrNotOurs or
// ErrSignature. Nothing was copied to the caller.
type ReplyError struct {
	Opcode  prm.Opcode
	OpMod   uint16
	Slot    int
	Mailbox int // number of the output mailbox, or −1 for the entry
	Got     uint32
	Want    uint32
	Err     error
}

func (e *ReplyError) Error() string {
	where := "entry"
	if e.Mailbox >= 0 {
		where = fmt.Sprintf("output mailbox %d", e.Mailbox)
	}
	return fmt.Sprintf("%s in slot %d: %v (%s: got 0x%x, want 0x%x); suspect memory corruption or firmware; reset the function",
		name(e.Opcode, e.OpMod), e.Slot, e.Err, where, e.Got, e.Want)
}

// Unwrap gives ErrNotOurs or ErrSignature.
func (e *ReplyError) Unwrap() error { return e.Err }

// UnansweredError is what Close says if there are commands that the device never
// completed.
type UnansweredError struct {
	Commands []Record // by slot
	Err      error    // what else went wrong; nil if everything was freed
}

func (e *UnansweredError) Error() string {
	what := "1 command"
	if n := len(e.Commands); n != 1 {
		what = fmt.Sprintf("%d commands", n)
	}
	s := fmt.Sprintf("%s never completed: %s; the device forgets them at the next reset", what, inFlight(slices.Clone(e.Commands)))
	if e.Err != nil {
		s += "; " + e.Err.Error()
	}
	return s
}

// Unwrap gives what else went wrong.
func (e *UnansweredError) Unwrap() error { return e.Err }

// MessageError refuses a message before anything is sent.
type MessageError struct {
	Opcode prm.Opcode
	Rule   string
}

func (e *MessageError) Error() string { return fmt.Sprintf("%s: not sent: %s", e.Opcode, e.Rule) }

// inFlightShown is how many commands a message names.
const inFlightShown = 4

// inFlight lists commands, the oldest first.
func inFlight(rs []Record) string {
	slices.SortFunc(rs, func(a, b Record) int { return a.Posted.Compare(b.Posted) })
	more := ""
	if n := len(rs) - inFlightShown; n > 0 {
		rs, more = rs[:inFlightShown], fmt.Sprintf(", and %d more", n)
	}
	var parts []string
	for i := range rs {
		r := &rs[i]
		parts = append(parts, fmt.Sprintf("%s in slot %d since %v", name(r.Opcode, r.OpMod), r.Slot, time.Since(r.Posted).Round(time.Millisecond)))
	}
	return strings.Join(parts, ", ") + more
}

// name is how a command is called in messages: Linux' name, number and op_mod.
func name(op prm.Opcode, opMod uint16) string {
	return fmt.Sprintf("%s(0x%x) op_mod 0x%x", op, uint16(op), opMod)
}

// Unanswered tells whether the device may have executed the command that ended
// with err, or may still execute it, without the caller knowing: it may hold
// addresses the command named until it was reset. It is false for nil, for
// commands that were never sent and for refused ones.
func Unanswered(err error) bool {
	var (
		te *TimeoutError
		ce *CanceledError
		de *DeadError
		re *ReplyError
	)
	switch {
	case errors.As(err, &te):
		return te.Slot >= 0
	case errors.As(err, &ce):
		return ce.Slot >= 0
	case errors.As(err, &de):
		return de.Slot >= 0
	}
	return errors.As(err, &re)
}
