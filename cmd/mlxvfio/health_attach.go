package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// patient is a function that is being watched. It needs nothing but its window on
// BAR 0; where that looks well the function is brought up beside it.
type patient struct {
	a     *app
	arg   devArg
	flags healthFlags
	info  vfio.DeviceInfo
	dev   *vfio.Device
	win   *vfio.Window
	rec   *mlxvfio.Recoverable // nil through sysfs

	started chan struct{} // closed when there is a monitor
	mon     *health.Monitor
	ready   chan struct{} // closed when attach holds: the bring-up has ended
	attach  attachment
	cancel  context.CancelCauseFunc
	done    sync.WaitGroup

	mu       sync.Mutex
	stage    string // the last that was done
	stopOpen context.CancelCauseFunc
	onReset  func() // set before Open
}

// attachment says what is watched.
type attachment struct {
	// Attached is "open" for a function that was brought up, "window" where only
	// registers are looked at; Why says why.
	Attached string `json:"attached"`
	Why      string `json:"why,omitempty"`
	// Stage and Error of a bring-up that failed; MS is how long it took.
	Stage string  `json:"stage,omitempty"`
	Error string  `json:"error,omitempty"`
	MS    float64 `json:"bring_up_ms,omitempty"`
	err   error   // what Error says
}

// attachPatient opens the way to a function and touches nothing of it.
func (a *app) attachPatient(ctx context.Context, dev string, f healthFlags) (*patient, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	arg, err := parseDev(dev)
	if err != nil {
		return nil, err
	}
	t, err := a.open(ctx, arg)
	if err != nil {
		return nil, timeUp(ctx, err)
	}
	p := &patient{a: a, arg: arg, flags: f, started: make(chan struct{}), ready: make(chan struct{})}
	if arg.kind == devSysfs {
		if p.dev, err = vfio.NewDevice(t, vfio.DeviceOptions{Logger: a.logger()}); err != nil {
			return nil, errors.Join(err, t.Close())
		}
		if p.win, err = p.dev.Window(vfio.RegionBAR0); err != nil {
			return nil, errors.Join(err, p.dev.Close())
		}
	} else {
		o := mlxvfio.Options{Logger: a.logger(), Polled: a.polled, CommandSlots: a.commandSlots, CommandTimeout: f.command, OnStage: p.onStage}
		if p.rec, err = mlxvfio.NewRecoverable(withSlot(t), o); err != nil {
			return nil, err
		}
		p.dev, p.win = p.rec.Device(), p.rec.Window()
	}
	p.info = p.dev.Info()
	return p, nil
}

// withSlot lets a reset of the slot through where the transport has one.
func withSlot(o *opened) vfio.Transport {
	if s, ok := o.Transport.(vfio.HotResetter); ok {
		return struct {
			*opened
			vfio.HotResetter
		}{o, s}
	}
	return o
}

// begin starts the watch. What it has found comes through started and ready.
func (p *patient) begin(ctx context.Context, o health.Options) error {
	o.Device, o.Window, o.Period = p.arg.text, p.win, p.flags.period
	o.Logger = p.a.logger()
	o.ProbeLimit = min(p.flags.command, health.DefaultProbeLimit)
	o.Host = p.a.hostPCI(p.arg)
	ctx, p.cancel = context.WithCancelCause(ctx)
	if p.rec == nil || p.flags.passive {
		why := "sysfs only reads"
		if p.rec != nil {
			why = "asked for by --passive"
		}
		if err := p.monitor(ctx, o, false); err != nil {
			return err
		}
		p.attached(attachment{Attached: "window", Why: why})
		return nil
	}
	// Two monitors: one that looks fast and decides whether the function may be
	// touched, and one that goes on if it may not.
	slow, err := p.rec.Monitor(context.WithoutCancel(ctx), o) // close stops it
	if err != nil {
		return err
	}
	p.done.Go(func() { p.approach(ctx, o, slow) })
	return nil
}

// approach brings the function up if it looks well.
func (p *patient) approach(ctx context.Context, o health.Options, slow *health.Monitor) {
	look, err := health.Check(ctx, health.Options{Window: p.win, Device: o.Device, Period: fastPeriod})
	if v := look.Verdict; err != nil || v.State >= health.Stalled {
		p.mon = slow
		close(p.started)
		why := fmt.Sprintf("not brought up: the first look found it %v (%s)", v.State, v.Condition)
		if err != nil {
			why = "not brought up: " + oneLine(err)
		}
		p.attached(attachment{Attached: "window", Why: why})
		return
	}
	slow.Stop()
	told := o.OnVerdict
	o.OnVerdict = func(v health.Verdict) {
		p.interrupt(v)
		if told != nil {
			told(v)
		}
	}
	p.open(ctx, o)
}

// fastPeriod is that of the look before a bring-up: 2 s decide about a stall.
const fastPeriod = 20 * time.Millisecond

func (p *patient) attached(a attachment) {
	p.attach = a
	close(p.ready)
}

// monitor starts the one that stays, until close stops it: what a caller gave up is
// still looked at.
func (p *patient) monitor(ctx context.Context, o health.Options, registers bool) (err error) {
	ctx = context.WithoutCancel(ctx)
	if registers {
		o.Registers = registersOf{p}
	}
	if p.rec != nil {
		p.mon, err = p.rec.Monitor(ctx, o)
	} else if p.mon, err = health.New(o); err == nil {
		err = p.mon.Start(ctx)
	}
	if err == nil {
		close(p.started)
	}
	return err
}

// open brings the function up. The monitor begins when the reset is over: a
// function that is being reset must not be judged.
func (p *patient) open(ctx context.Context, o health.Options) {
	begun := time.Now()
	up, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var once sync.Once
	var merr error
	watch := func() { once.Do(func() { merr = p.monitor(ctx, o, true) }) }
	p.mu.Lock()
	p.stopOpen = stop
	p.mu.Unlock()
	p.onReset = watch
	h, err := p.rec.Open(up)
	watch()
	a := attachment{Attached: "open", MS: milliseconds(time.Since(begun))}
	if merr != nil {
		a.Why = oneLine(merr)
	}
	if p.mon == nil { // stopped before it could begin
		p.attached(a)
		return
	}
	adopt := health.Adoption{Owner: true, HealthPoll: p.rec.Target().Timeouts.HealthPoll}
	if err == nil {
		adopt.Commands = h.Conn()
	} else {
		a.Attached, a.Error, a.Why, a.err = "window", oneLine(err), "the bring-up failed", err
		var se *mlxvfio.StageError
		if errors.As(err, &se) {
			a.Stage = se.Stage
		}
		// What was cut off is still ours, with the commands that it holds.
		w, parked := p.rec.Evidence(nil, "").Commands.(health.Watchdog)
		adopt.Owner = parked
		if parked {
			adopt.Commands = parkedCommands{w}
		}
	}
	p.mon.Adopt(adopt)
	p.attached(a)
}

// parkedCommands watches the command interface of a bring-up that failed: it takes
// no command any more, and the device still holds what it did not answer.
type parkedCommands struct{ health.Watchdog }

func (parkedCommands) Err() error { return nil }

// onStage follows the bring-up.
func (p *patient) onStage(e mlxvfio.StageEvent) {
	if e.Undo || e.Err != nil {
		return
	}
	p.mu.Lock()
	p.stage = e.Stage
	p.mu.Unlock()
	if e.Stage == "reset" && p.onReset != nil {
		p.onReset()
	}
}

// interrupt ends a bring-up of firmware that has died. Firmware that still boots
// may let its counter stand.
func (p *patient) interrupt(v health.Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	booting := p.stage == "" || p.stage == "open" || p.stage == "reset" || p.stage == "bus-master"
	if p.stopOpen != nil && (v.Lost() || v.State == health.Stalled && !booting) {
		p.stopOpen(&health.VerdictError{Device: p.arg.text, Verdict: v})
	}
}

// registersOf reads registers once the function is up.
type registersOf struct{ p *patient }

func (r registersOf) ReadRegister(ctx context.Context, id prm.RegisterID, image []byte) error {
	select {
	case <-r.p.ready:
	case <-ctx.Done():
		return fmt.Errorf("the function is not up: %w", context.Cause(ctx))
	}
	h := r.p.rec.HCA()
	if h == nil {
		return errNoRegisters
	}
	c, ok := h.Cap(prm.CapGeneral)
	if !ok || !prm.AsCmdHCACap(c.Current).McamReg() {
		return fmt.Errorf("%w: the device has no register MCAM", vfio.ErrNotSupported)
	}
	return h.Conn().ReadRegister(ctx, id, image)
}

// errNoRegisters is of a function that was not brought up.
var errNoRegisters = errors.New("not read, nor are temperature, link and power: the function is not up")

// probeGrace is how long a sick function waits for its first environment.
const probeGrace = 500 * time.Millisecond

// settled waits until the verdict means something: the bring-up has ended, the
// counter was seen or missed, the environment was read once, and a command that is
// overdue had its time. It answers the report; the error is that of ctx.
func (p *patient) settled(ctx context.Context) (health.Report, error) {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return p.report(), fmt.Errorf("look at the function%s: %w", p.doing(), context.Cause(ctx))
	}
	if p.mon == nil {
		return p.report(), errors.New(p.attach.Why)
	}
	if _, err := p.mon.Wait(ctx); err != nil {
		return p.report(), err
	}
	// The next look is the first one that knows of the bring-up and its commands.
	since, looks := time.Now(), p.mon.Report().Counts.Samples
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		r := p.mon.Report()
		limit := r.Limits.Stall + 2*r.Limits.Period
		probed := r.Probe == nil || r.Probe.Runs > 0 && r.Last.At.After(r.Probe.Finished)
		held := r.Commands != nil && r.Commands.Overdue > 0 && r.Verdict.State < health.Stalled
		done := probed && !held && r.Verdict.State != health.Unknown && (r.Counts.Samples > looks || p.attach.Error == "")
		// A sick function decides at once, but what the host says of it is evidence too.
		lost := r.Verdict.State >= health.Stalled && (r.Probe == nil || r.Probe.Runs > 0 || time.Since(since) > probeGrace)
		if lost || done || time.Since(since) > limit {
			return r, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return p.report(), fmt.Errorf("look at the function: %w", context.Cause(ctx))
		}
	}
}

// doing says how far a bring-up has come that goes on.
func (p *patient) doing() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ifText(p.stage != "", ", being brought up, stage "+p.stage+" was done last")
}

// report is the monitor's, or an empty one before there is any.
func (p *patient) report() health.Report {
	select {
	case <-p.started:
		return p.mon.Report()
	default:
		return health.Report{Device: p.arg.text, At: time.Now(), Verdicts: []health.Verdict{},
			Verdict: health.Verdict{State: health.Unknown, Condition: health.Starting, ExitCode: health.Starting.Info().ExitCode,
				Explanation: "the function is being brought up", Remedy: health.Starting.Info().Remedy}}
	}
}

// hca is the function while it is open.
func (p *patient) hca() *mlxvfio.HCA {
	if p.rec == nil {
		return nil
	}
	return p.rec.HCA()
}

// evidence is what a black box of this function is made of. A function that is not
// open has less.
func (p *patient) evidence(reason string) *health.Evidence {
	var m *health.Monitor
	select {
	case <-p.started:
		m = p.mon
	default:
	}
	if p.rec == nil {
		e := &health.Evidence{Device: p.arg.text, Reason: reason, Window: p.win, Monitor: m, Notes: []string{"seen through sysfs: no command can be sent"}}
		if m != nil {
			e.Environment = func() any { return m.Report().Environment }
		}
		return e
	}
	e := p.rec.Evidence(m, reason)
	e.Device = p.arg.text
	return e
}

// errWatchOver ends a bring-up that nobody waits for any more.
var errWatchOver error = watchOverError{}

type watchOverError struct{}

func (watchOverError) Error() string { return "the watch was over before" }

// Is makes it the cancellation that it is.
func (watchOverError) Is(target error) bool { return target == context.Canceled }

// close ends the watch and gives the function back, also when ctx is over.
func (p *patient) close(ctx context.Context) error {
	if p.cancel != nil {
		p.cancel(errWatchOver)
	}
	p.done.Wait()
	select {
	case <-p.started:
		p.mon.Stop()
	default:
	}
	if p.rec == nil {
		return p.dev.Close()
	}
	ctx, cancel := outlast(ctx, closeLimit, lateLimit)
	defer cancel()
	return p.rec.Close(ctx)
}

// closeAfter is close for a function whose verdict is known: one that was lost
// cannot be given back in good order, and that is no news.
func (p *patient) closeAfter(ctx context.Context, v health.Verdict) (note closeNote, err error) {
	err = p.close(ctx)
	var ce *mlxvfio.CloseError
	if err != nil && v.State >= health.Stalled && errors.As(err, &ce) {
		return newCloseNote(ce), nil
	}
	return closeNote{}, err
}
