package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Recover brings a sick function back. A black box is saved first; then the rungs
// of the ladder are climbed, lowest first and never above MaxLevel, until one has
// worked: the device answers, firmware is up, the counter moves, and the function
// is open again. Rungs that cannot help against the condition are left out, with
// the reason. The report is complete whatever the error, which is a *RecoverError.
//
// One Recover at a time works on a function. A device that was well is drained and
// opened again, if RungReopen is allowed. Cancelling ctx stops at the next step; a
// reset that the kernel is doing is waited for.
func Recover(ctx context.Context, t Target, o RecoverOptions) (RecoveryReport, error) {
	r := &recovery{t: t, o: o, ctx: ctx}
	rep := &r.rep
	*rep = RecoveryReport{Schema: RecoverySchema, Device: t.Device, Started: time.Now(), MaxLevel: o.MaxLevel, Rungs: []RungReport{}}
	fail := func(err error, remedy string) (RecoveryReport, error) {
		rep.Took = time.Since(rep.Started)
		rep.Remedy = remedy
		return *rep, &RecoverError{Report: *rep, Err: err}
	}
	if t.Window == nil || t.Config == nil || t.Lifecycle == nil || t.Window.Size() < windowEnd {
		return fail(&OptionError{"Target", "Window on BAR 0, Config and Lifecycle are needed"}, "")
	}
	if o.MaxLevel > RungCold {
		return fail(&OptionError{"MaxLevel", fmt.Sprintf("%v is no rung", o.MaxLevel)}, "")
	}
	r.seg, r.smp = initseg.New(t.Window), NewSampler(t.Window)
	defer r.releaseHeld()
	r.assess()
	stopped := func(before string, err error) (RecoveryReport, error) {
		remedy := "the function is parked or closed; recover it again"
		if !rep.Touched() {
			remedy = "nothing was touched"
		}
		return fail(fmt.Errorf("stopped before %s: %w", before, err), remedy)
	}
	if err := context.Cause(ctx); err != nil {
		return stopped("the black box", err)
	}
	if o.BlackBox != nil {
		path, err := o.BlackBox(ctx)
		rep.Bundle = path
		if err != nil {
			rep.BundleError = oneLine(err)
			if !o.GoOn {
				return fail(fmt.Errorf("save a black box: %w", err), "nothing was touched; give a place it can be written to, or go on without")
			}
		}
	}
	for _, info := range rungTable[RungReopen:RungCold] {
		if err := context.Cause(ctx); err != nil {
			return stopped(fmt.Sprintf("rung %v", info.Rung), err)
		}
		if r.climb(info) {
			rep.Recovered, rep.By = true, info.Rung
			rep.Took = time.Since(rep.Started)
			return *rep, nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		return stopped("the end of the ladder", err)
	}
	remedy, err := r.end()
	return fail(err, remedy)
}

// recovery is one run of Recover.
type recovery struct {
	t   Target
	o   RecoverOptions
	ctx context.Context
	seg *initseg.Segment
	smp Sampler
	rep RecoveryReport

	cond   Condition
	before Buffer // as it was at the beginning
	// held is the software-reset semaphore while it could not be given back yet.
	held func() error
}

// assess finds the condition, unless the caller knows it.
func (r *recovery) assess() {
	r.smp.ReadBuffer(&r.before)
	switch {
	case r.before.FWVersion == allOnes:
		r.before = Buffer{} // nobody answered: it says nothing
	case r.before.Error():
		b := r.before
		r.rep.Buffer = &b
	}
	r.cond = r.o.Verdict.Condition
	if r.cond == "" || r.cond == InRecovery || r.cond == Starting {
		r.cond = r.look()
	}
	r.rep.Condition, r.rep.State = r.cond, r.cond.Info().State
}

// look is a verdict without a monitor.
func (r *recovery) look() Condition {
	var s Sample
	r.smp.Read(&s)
	switch n := s.Ones(); {
	case n == 4:
		return AllOnes
	case n > 0:
		return PCICommError
	}
	switch s.NICInterface() {
	case prm.NICInterfaceDisabled:
		return NICDisabled
	case prm.NICInterfaceSwReset:
		return NICSWReset
	}
	if r.before.Error() && r.before.RFR {
		if r.before.CRR {
			return FatalCRR
		}
		return FatalRFR
	}
	ctx, cancel := context.WithTimeout(r.ctx, aliveTries*alivePause)
	defer cancel()
	_, err := r.alive(ctx)
	switch {
	case r.ctx.Err() != nil:
		return Starting // too short a look to say anything
	case err != nil && r.before.Error():
		return SyndromeStopped
	case err != nil:
		return CounterStopped
	case r.before.Error() && r.before.CRR:
		return NonFatalCRR
	case r.before.Error():
		return SyndromeNonFatal
	}
	return OK
}

// releaseHeld gives the software-reset semaphore back as soon as the device
// answers: until then another function could not reset the chip.
func (r *recovery) releaseHeld() {
	if r.held != nil && r.answers() == nil && r.held() == nil {
		r.held = nil
	}
}

// notTriedError ends a rung before it has touched anything.
type notTriedError struct {
	outcome RungOutcome
	reason  string
}

func (e *notTriedError) Error() string { return e.reason }

func unsupported(format string, args ...any) error {
	return &notTriedError{OutcomeNotSupported, fmt.Sprintf(format, args...)}
}

func useless(format string, args ...any) error {
	return &notTriedError{OutcomeUseless, fmt.Sprintf(format, args...)}
}

func notAllowed(format string, args ...any) error {
	return &notTriedError{OutcomeNotAllowed, fmt.Sprintf(format, args...)}
}

// climber is one rung in action.
type climber struct {
	*recovery
	rung Rung
	ctx  context.Context
	rep  RungReport
	vsc  *VSC // of rung sw-reset
	slot bool // of rung mfrl: the slot can be reset
}

// rungs are the actions. precheck answers an *notTriedError where the rung is of no
// use; it reads, and writes nothing but the gateway's space. act resets, and leaves
// the function parked.
var rungs = map[Rung]struct {
	precheck func(*climber) error
	act      func(*climber) error
}{
	RungReopen:   {(*climber).checkReopen, (*climber).reopen},
	RungSWReset:  {(*climber).checkSWReset, (*climber).swReset},
	RungFLR:      {(*climber).checkFLR, (*climber).flr},
	RungHotReset: {(*climber).checkHotReset, (*climber).hotReset},
	RungMFRL:     {(*climber).checkMFRL, (*climber).mfrl},
}

// climb does a rung and tells whether the function is well after it.
func (r *recovery) climb(info RungInfo) bool {
	start := time.Now()
	limit := info.Limit
	if d, ok := r.o.Limits[info.Rung]; ok && d > 0 {
		limit = d
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, limit, &rungTimeError{info.Rung, limit})
	defer cancel()
	c := &climber{recovery: r, rung: info.Rung, ctx: ctx, rep: RungReport{Rung: info.Rung}}
	err := c.surroundings()
	if err == nil {
		err = rungs[info.Rung].precheck(c)
	}
	if err == nil && info.Rung > r.o.MaxLevel {
		err = notAllowed("above the highest level allowed (%v)", r.o.MaxLevel)
	}
	if err == nil {
		err = rungs[info.Rung].act(c)
		if err == nil {
			err = c.comeBack()
		}
	}
	c.rep.Took = time.Since(start)
	c.rep.Outcome = OutcomeWorked
	var nt *notTriedError
	switch {
	case errors.As(err, &nt):
		c.rep.Outcome, c.rep.Reason = nt.outcome, nt.reason
	case err != nil:
		c.rep.Outcome, c.rep.Reason = OutcomeFailed, oneLine(err)
	}
	r.rep.Rungs = append(r.rep.Rungs, c.rep)
	return err == nil
}

// rungTimeError tells the deadline of a rung from one of the caller.
type rungTimeError struct {
	rung  Rung
	limit time.Duration
}

func (e *rungTimeError) Error() string {
	return fmt.Sprintf("rung %v was given %v", e.rung, e.limit)
}

// Is matches context.DeadlineExceeded.
func (e *rungTimeError) Is(target error) bool { return target == context.DeadlineExceeded }

// step does a piece of a rung and books it.
func (c *climber) step(name string, f func() (note string, err error)) error {
	err := context.Cause(c.ctx)
	start := time.Now()
	note := ""
	if err == nil {
		note, err = f()
	}
	s := RecoveryStep{Step: name, Took: time.Since(start), Note: note, Err: err}
	c.rep.Steps = append(c.rep.Steps, s)
	if c.o.OnStep != nil {
		c.o.OnStep(c.rung, s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// park cuts the function off before something harsh happens to it. What cannot be
// parked is reset all the same: that is what stops it.
func (c *climber) park() error {
	return c.step("park", func() (string, error) {
		cause := fmt.Errorf("recovery from %s, rung %v", c.cond, c.rung)
		if err := c.t.Lifecycle.Park(cause); err != nil {
			return "not all of it: " + oneLine(err), nil
		}
		return "", nil
	})
}

// end sums up a ladder that did not help.
func (r *recovery) end() (remedy string, err error) {
	if r.surroundings() != nil {
		return r.cond.Info().Remedy, fmt.Errorf("%w: no reset helps against %s", ErrNotRecovered, r.cond)
	}
	if r.crr() {
		r.rep.ColdReset, r.rep.Next = true, RungCold
		return "firmware asks for it (crr): power the host off and on", ErrColdReset
	}
	for _, x := range r.rep.Rungs {
		if x.Outcome != OutcomeNotAllowed {
			continue
		}
		r.rep.Next = x.Rung
		if x.Rung <= r.o.MaxLevel {
			return fmt.Sprintf("rung %v was refused: %s", x.Rung, x.Reason), ErrNotRecovered
		}
		return fmt.Sprintf("the highest level allowed was %v; the next that could help is %v, which resets %s", r.o.MaxLevel, x.Rung, rungTable[x.Rung].Hits), ErrNotRecovered
	}
	r.rep.ColdReset, r.rep.Next = true, RungCold
	return "power the device off and on, and keep the bundle for the vendor",
		fmt.Errorf("%w: every rung that could be climbed was: %w", ErrNotRecovered, ErrColdReset)
}
