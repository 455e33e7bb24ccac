package health

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Bounds and defaults of Options.
const (
	DefaultPeriod      = 2 * time.Second // Linux' poll interval
	MinPeriod          = 10 * time.Millisecond
	MaxPeriod          = 24 * time.Hour
	DefaultProbePeriod = 30 * time.Second
	DefaultProbeLimit  = 5 * time.Second
	DefaultHistory     = 1024
	DefaultEvents      = 64
	MaxHistory         = 1 << 20 // samples
	MaxEvents          = 1 << 16
)

// Options tune a Monitor. Window is required; with it alone, a function that some
// other driver uses can be watched (sysfs).
type Options struct {
	// Window is a view of BAR 0.
	Window *vfio.Window
	// Device names the function in reports and logs.
	Device string
	// Period is the time between samples: 0 is 2 s, at least 10 ms, at most a day.
	Period time.Duration
	// HealthPoll is the time in which the device says that its counter must have
	// advanced (DTOR.health_poll_to, cmdif.Timeouts.HealthPoll); 0 is Linux' 2 s.
	HealthPoll time.Duration
	// Owner: the watcher brought the function up. Then a disabled interface is
	// fatal from the first look on, and a function that was lost stays so until
	// EndRecovery. Without it the function is looked at from outside.
	Owner bool
	// AfterReset: the function was reset just before; an error that the health
	// buffer shows at the first look is not held against this run.
	AfterReset bool
	// Commands, if set, is watched for overdue, late and lost completions.
	Commands Watchdog
	// Registers, if set, is asked for temperature and PCIe link, by commands, on
	// the prober's goroutine, within ProbeLimit.
	Registers RegisterReader
	// Host, if set, reads the host's view of the PCIe link and its error counters.
	// It runs on the prober's goroutine and should end with its context.
	Host func(context.Context) (HostPCI, error)
	// ProbePeriod is the time between two readings of the environment (Registers,
	// Host), 0 is 30 s; ProbeLimit bounds one, 0 is 5 s.
	ProbePeriod, ProbeLimit time.Duration
	// History is the number of samples kept, 0 is 1024, negative keeps none. Events
	// is the room of the channel of events, 0 is 64. Both are taken from memory at
	// once: more than MaxHistory and MaxEvents are refused.
	History, Events int
	// OnSample sees every sample and the verdict after it, on the monitor's
	// goroutine: a black box keeps itself up to date by it. It must not block, and
	// not call the Monitor but for Verdict and Report.
	OnSample func(Sample, Verdict)
	// OnVerdict sees every new verdict, on the monitor's goroutine and before its
	// event is offered, under the rules of OnSample; it may call cmdif.Conn.Dead. What
	// stops or tells the Monitor (Stop, Close of its function, Recover) waits for
	// this goroutine: call it from another one, for example where Events is read.
	OnVerdict func(Verdict)
	// Logger hears about verdicts; nil is silent.
	Logger *slog.Logger
}

// OptionError refuses Options.
type OptionError struct{ Option, Rule string }

// Error names the option and the rule.
func (e *OptionError) Error() string { return fmt.Sprintf("health monitor: %s: %s", e.Option, e.Rule) }

// defaults checks the options and fills in what is left out.
func (o *Options) defaults() error {
	switch {
	case o.Window == nil:
		return &OptionError{"Window", "a window on BAR 0 is needed"}
	case o.Window.Size() < windowEnd:
		return &OptionError{"Window", fmt.Sprintf("%d bytes do not reach the health counter at 0x1010; this is not BAR 0 of a ConnectX", o.Window.Size())}
	case o.Period != 0 && o.Period < MinPeriod:
		return &OptionError{"Period", fmt.Sprintf("%v is below %v", o.Period, MinPeriod)}
	case o.Period > MaxPeriod:
		return &OptionError{"Period", fmt.Sprintf("%v is above %v", o.Period, MaxPeriod)}
	case o.History > MaxHistory:
		return &OptionError{"History", fmt.Sprintf("%d samples are more than %d; store what has to be kept longer as OnSample sees it", o.History, MaxHistory)}
	case o.Events > MaxEvents:
		return &OptionError{"Events", fmt.Sprintf("room for %d is more than %d; read the channel more often", o.Events, MaxEvents)}
	case o.Events < 0:
		return &OptionError{"Events", fmt.Sprintf("the channel has no room for %d", o.Events)}
	case o.HealthPoll < 0 || o.ProbePeriod < 0 || o.ProbeLimit < 0:
		return &OptionError{"HealthPoll, ProbePeriod, ProbeLimit", "a duration is negative"}
	}
	set(&o.Period, DefaultPeriod)
	set(&o.HealthPoll, initseg.DefaultHealthPoll)
	set(&o.ProbePeriod, DefaultProbePeriod)
	set(&o.ProbeLimit, DefaultProbeLimit)
	set(&o.History, DefaultHistory)
	set(&o.Events, DefaultEvents)
	o.History = max(o.History, 0)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Device != "" {
		o.Logger = o.Logger.With("bdf", o.Device)
	}
	return nil
}

func set[T comparable](v *T, def T) {
	if zero := *new(T); *v == zero {
		*v = def
	}
}

// Monitor watches one function. Its methods are safe for concurrent use. It reads
// registers, and nothing but registers: no command of the device can hold it up.
type Monitor struct {
	o   Options
	smp Sampler
	// The clocks: wall for people, mono, since start, for everything else. Tests
	// replace them.
	wall func() time.Time
	mono func() time.Duration

	mu       sync.Mutex
	j        *judge
	v        Verdict
	last     Sample
	sampled  bool
	history  ring[Sample]
	verdicts ring[Verdict]
	evidence *Buffer // read when the counter was found stopped
	running  initseg.Version
	started  time.Time
	dropped  uint64 // events nobody took
	seq      uint64
	skew     time.Duration // wall clock against monotonic time
	probe    probeState

	events  chan Event
	control chan func()
	kick    chan struct{} // asks the prober for an early look
	known   chan struct{} // closed when it is known how the function is
	isKnown bool

	begin  sync.Once
	cancel context.CancelFunc
	done   chan struct{} // closed when both goroutines have ended
}

// New makes a Monitor that has not started. The error is an *OptionError.
func New(o Options) (*Monitor, error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	j := newJudge(newLimits(o.Period, o.HealthPoll), o.Owner, o.AfterReset)
	j.cmds.w = o.Commands
	return &Monitor{
		o: o, smp: NewSampler(o.Window), wall: time.Now, j: j,
		v:       verdictOf(Starting, "the monitor has not started", time.Time{}),
		history: newRing[Sample](o.History), verdicts: newRing[Verdict](DefaultEvents),
		events: make(chan Event, o.Events), control: make(chan func()), kick: make(chan struct{}, 1),
		known: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

func verdictOf(c Condition, explanation string, since time.Time) Verdict {
	i := c.Info()
	return Verdict{State: i.State, Condition: c, Since: since, Explanation: explanation, Remedy: i.Remedy, ExitCode: i.ExitCode}
}

// Start begins to watch, until ctx is over or Stop. It answers an error if the
// Monitor was started or stopped before.
func (m *Monitor) Start(ctx context.Context) error {
	first := false
	m.begin.Do(func() { first = true; m.start(ctx) })
	if !first {
		return &OptionError{"Start", "a monitor starts once; make a new one"}
	}
	return nil
}

func (m *Monitor) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	start := m.wall()
	if m.mono == nil {
		m.mono = func() time.Duration { return time.Since(start) }
	}
	m.mu.Lock()
	m.cancel = cancel
	m.started = start
	m.v.Explanation, m.v.Since = "the counter has not been seen moving yet", start
	m.running = initseg.New(m.o.Window).FirmwareVersion()
	m.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { m.run(ctx) })
	if m.o.Registers != nil || m.o.Host != nil {
		wg.Go(func() { m.probeLoop(ctx) })
	}
	go func() {
		wg.Wait()
		cancel()
		close(m.events)
		close(m.done)
	}()
}

// Done is closed when the monitor has ended and holds nothing any more.
func (m *Monitor) Done() <-chan struct{} { return m.done }

// Stop ends the watch and waits for the goroutines. A register that is just being
// read is waited for, up to ProbeLimit: giving the command up would cost the device
// a slot. The channel of events is closed then; Report and History keep their last
// content. A second call waits too.
func (m *Monitor) Stop() {
	m.begin.Do(func() { // never started
		close(m.events)
		close(m.done)
	})
	m.mu.Lock()
	cancel := m.cancel
	m.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	<-m.done
}
