package tracer

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// OwnerState is where an Owner stands.
type OwnerState int32

// States. The ways between them:
//
//	None ── Acquire: written back 1, and read 1 ──────────▶ Held
//	None ── Acquire: written back 0 ── wait, ask again ───▶ None (BusyError in the end)
//	Held ── Check reads 0: another owner took it ─────────▶ Lost
//	Held, None, Lost ── Release ──────────────────────────▶ Released
//
// Nothing leads out of Lost but Release, and nothing out of Released: who gave the
// tracer back, or lost it, does not take it again behind the user's back.
const (
	OwnerNone OwnerState = iota
	OwnerHeld
	OwnerLost
	OwnerReleased
)

// String is none, held, lost or released.
func (s OwnerState) String() string {
	switch s {
	case OwnerNone:
		return "none"
	case OwnerHeld:
		return "held"
	case OwnerLost:
		return "lost"
	}
	return "released"
}

// Event is the sub-type of a tracer event (EQE 0x26).
type Event = prm.TracerEventSubtype

// OwnerOptions tune an Owner.
type OwnerOptions struct {
	// Wait is how long Acquire waits for another owner to let go: 0 asks once,
	// negative waits as long as its context lasts.
	Wait time.Duration
	// Backoff is the first pause between two questions, doubled each time up to
	// MaxBackoff; 0 is 10 ms and 1 s. An ownership event ends a pause.
	Backoff, MaxBackoff time.Duration
	// Poll is how often Hold looks whether the tracer is still ours; 0 is 1 s.
	Poll time.Duration
	// Events are the function's tracer events; nil without. Others than those of
	// ownership are taken out of the channel and ignored.
	Events <-chan Event
	// OnBusy is called when somebody else has the tracer, before each pause.
	OnBusy func(tries int, waited time.Duration)
	Logger *slog.Logger // nil is silent
}

const (
	defaultBackoff    = 10 * time.Millisecond
	defaultMaxBackoff = time.Second
	defaultOwnerPoll  = time.Second
	// releaseLimit bounds what giving back may take: it has to go on when the
	// caller's context is over.
	releaseLimit = 10 * time.Second
)

func (o *OwnerOptions) defaults() {
	if o.Backoff <= 0 {
		o.Backoff = defaultBackoff
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = defaultMaxBackoff
	}
	if o.Poll <= 0 {
		o.Poll = defaultOwnerPoll
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Owner is the ownership of the tracer as a state machine. It is for one goroutine;
// State and TakenUp may be asked by any. Release it on every way out.
type Owner struct {
	p       Port
	o       OwnerOptions
	state   atomic.Int32
	takenUp atomic.Bool
	// unsure: an acquiring write has no answer and may have been executed.
	unsure bool
}

// NewOwner makes an Owner that owns nothing.
func NewOwner(p Port, o OwnerOptions) *Owner {
	o.defaults()
	return &Owner{p: p, o: o}
}

// State is where it stands, as far as it knows.
func (o *Owner) State() OwnerState { return OwnerState(o.state.Load()) }

// TakenUp says that the function owned the tracer before Acquire asked for it: an
// earlier run was killed and left it so.
func (o *Owner) TakenUp() bool { return o.takenUp.Load() }

func (o *Owner) set(s OwnerState) {
	o.o.Logger.Debug("tracer ownership", "op", "tracer-owner", "from", o.State(), "to", s)
	o.state.Store(int32(s))
}

// Acquire takes the tracer: it writes trace_owner and believes what is read back. If
// another owner has it, it asks again with growing pauses, and at once when an
// ownership event tells of a change, as long as the options say. Errors: *BusyError,
// ErrReleased, ErrLost, or what the register answered. After an error nothing is
// owned, unless the device does not answer at all.
func (o *Owner) Acquire(ctx context.Context) (err error) {
	switch o.State() {
	case OwnerHeld:
		return nil
	case OwnerLost:
		return ErrLost
	case OwnerReleased:
		return ErrReleased
	}
	defer func() {
		if o.unsure {
			err = join(err, o.Release(ctx))
		}
	}()
	c, err := ReadCaps(ctx, o.p)
	if err != nil {
		return err
	}
	o.takenUp.Store(c.Owner)
	start, pause := time.Now(), o.o.Backoff
	for tries := 1; ; tries++ {
		own, err := o.ask(ctx)
		if err != nil {
			return err
		}
		if own {
			o.set(OwnerHeld)
			return nil
		}
		o.takenUp.Store(false)
		waited := time.Since(start)
		left := o.o.Wait - waited
		if o.o.Wait >= 0 && left <= 0 {
			return &BusyError{Waited: waited, Tries: tries}
		}
		if o.o.Wait < 0 {
			left = pause
		}
		if o.o.OnBusy != nil {
			o.o.OnBusy(tries, waited)
		}
		if err := o.pause(ctx, min(pause, left)); err != nil {
			return &BusyError{Waited: time.Since(start), Tries: tries, Err: err}
		}
		pause = min(2*pause, o.o.MaxBackoff)
	}
}

// ask writes trace_owner = 1 and reads back whether it took.
func (o *Owner) ask(ctx context.Context) (bool, error) {
	o.unsure = true // until there is an answer
	own, err := writeOwner(ctx, o.p, true)
	if err != nil {
		return false, fmt.Errorf("acquire the firmware tracer: %w", err)
	}
	if own {
		c, err := ReadCaps(ctx, o.p)
		if err != nil {
			return false, err
		}
		own = c.Owner
	}
	o.unsure = false
	return own, nil
}

// pause waits for a while, or until an event says that ownership changed.
func (o *Owner) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return nil
		case e, ok := <-o.o.Events:
			if !ok {
				o.o.Events = nil
			} else if e == prm.TracerEventOwnershipChange {
				return nil
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Check reads whether the tracer is still ours. It never asks for it. If it is not,
// the state is Lost and the error a *LostError; by says what made us look.
func (o *Owner) Check(ctx context.Context, by string) (Caps, error) {
	c, err := ReadCaps(ctx, o.p)
	if err != nil {
		return c, err
	}
	if o.State() == OwnerHeld && !c.Owner {
		o.set(OwnerLost)
	}
	if o.State() == OwnerLost {
		return c, &LostError{By: by}
	}
	return c, nil
}

// Hold keeps the tracer until ctx is over, which is no error, or until it is lost.
func (o *Owner) Hold(ctx context.Context) error {
	t := time.NewTicker(o.o.Poll)
	defer t.Stop()
	for {
		by := "poll"
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case e, ok := <-o.o.Events:
			if !ok {
				o.o.Events = nil
			}
			if !ok || e != prm.TracerEventOwnershipChange {
				continue
			}
			by = "event"
		}
		if _, err := o.Check(ctx, by); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// Release gives the tracer back, if it is ours or may be, and reads back that it is.
// It takes at most 10 s, whatever became of ctx. After it the Owner takes nothing any
// more; a second call does nothing.
func (o *Owner) Release(ctx context.Context) error {
	held := o.State() == OwnerHeld || o.unsure
	o.unsure = false
	o.set(OwnerReleased)
	if !held {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	if _, err := writeOwner(ctx, o.p, false); err != nil {
		return fmt.Errorf("give the firmware tracer back: %w", err)
	}
	c, err := ReadCaps(ctx, o.p)
	if err != nil {
		return err
	}
	if c.Owner {
		return &MismatchError{Register: prm.RegMtrcCap, Field: "trace_owner", Wrote: 0, Read: 1}
	}
	return nil
}
