package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Recoverable owns a function over more than one life: it keeps the transport open
// while the function is closed, reset and brought up again, which is what the
// recovery ladder of package health needs. A function that can be opened at all can
// be recovered through it, also one that never came up.
//
// But for the reset with which Open begins (Options.SkipReset), its functions are
// never reset behind the caller's back: a device that does not answer is parked,
// that is taken off the bus, and the memory it may know of stays mapped until a rung
// of the ladder, or Close, has reset it.
// Methods are safe for concurrent use; Recover, Open and Close take turns.
type Recoverable struct {
	t   vfio.Transport
	o   Options
	dev *vfio.Device // of its own, beside the HCA's: registers and resets
	bar *vfio.Window

	life chan struct{} // holds one token while something changes the life of the function

	mu       sync.Mutex
	hca      *HCA // the life that is going on, or nil
	wreck    *HCA // parked, to be released
	reset    bool // the wreck's device has been reset since
	closed   bool
	lives    []PageLedger
	timeouts cmdif.Timeouts
	pci      pciID
	events   eventTail
	keepers  sync.WaitGroup
	monitors monitorSet
	last     *health.RecoveryReport

	// watching guards who is told of a recovery: a monitor that begins to watch in
	// the middle of one is told as well.
	watching   sync.Mutex
	recovering bool
}

// NewRecoverable takes t over: Close closes it, and so does a failing
// NewRecoverable. o is used for each life of the function.
func NewRecoverable(t vfio.Transport, o Options) (*Recoverable, error) {
	if t == nil {
		return nil, errNoTransport
	}
	o.defaults()
	o.park = true
	dev, err := vfio.NewDevice(t, vfio.DeviceOptions{Space: o.Space, Memory: o.Memory, Logger: o.Logger})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	bar, err := dev.Window(vfio.RegionBAR0)
	if err == nil && bar.Size() < minBAR {
		err = &vfio.Error{Op: fmt.Sprintf("map BAR0 (%d bytes)", bar.Size()), Target: dev.Info().Name, Err: vfio.ErrRange,
			Remedy: "this is not a ConnectX function; check the address"}
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	r := &Recoverable{t: t, o: o, dev: dev, bar: bar, timeouts: cmdif.DefaultTimeouts(), life: make(chan struct{}, 1)}
	if id, err := readPCIID(dev); err == nil && id.Vendor != 0xffff {
		r.pci = id
	}
	return r, nil
}

// Device is the function beside its HCA: registers, configuration space, resets.
// It belongs to the Recoverable.
func (r *Recoverable) Device() *vfio.Device { return r.dev }

// Window is BAR 0, which stays usable while the function is closed.
func (r *Recoverable) Window() *vfio.Window { return r.bar }

// HCA is the function while it is open, else nil. Each recovery makes a new one.
func (r *Recoverable) HCA() *HCA {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hca
}

// Ledgers are the accounts of pages of the lives that have ended, oldest first.
func (r *Recoverable) Ledgers() []PageLedger {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]PageLedger(nil), r.lives...)
}

// takeLife waits for its turn.
func (r *Recoverable) takeLife(ctx context.Context, op string) error {
	select {
	case r.life <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.life <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &vfio.Error{Op: op, Target: r.dev.Info().Name, Err: fmt.Errorf("%w: it is being opened, recovered or closed: %w", vfio.ErrBusy, context.Cause(ctx)),
			Remedy: "wait for that"}
	}
}

func (r *Recoverable) giveLife() { <-r.life }

// Open brings the function up, as the function Open does. The HCA belongs to the
// Recoverable: close that instead. vfio.ErrExists: it is open. After a failure
// Recover may help.
func (r *Recoverable) Open(ctx context.Context) (*HCA, error) {
	if err := r.takeLife(ctx, "bring the function up"); err != nil {
		return nil, err
	}
	defer r.giveLife()
	r.settle()
	r.mu.Lock()
	hca, wreck, closed := r.hca, r.wreck, r.closed
	r.mu.Unlock()
	fail := func(err error, remedy string) (*HCA, error) {
		return nil, &vfio.Error{Op: "bring the function up", Target: r.dev.Info().Name, Err: err, Remedy: remedy}
	}
	switch {
	case closed:
		return fail(vfio.ErrClosed, "")
	case hca != nil:
		return fail(vfio.ErrExists, "")
	case wreck != nil:
		return fail(fmt.Errorf("%w: the device was cut off and not reset since", vfio.ErrInUse), "recover it")
	}
	return r.open(ctx, r.o)
}

// open begins a life. Called with life held and nothing open.
func (r *Recoverable) open(ctx context.Context, o Options) (*HCA, error) {
	h, err := open(ctx, &lease{r.t}, o)
	if err != nil {
		if h != nil { // parked
			r.mu.Lock()
			defer r.mu.Unlock()
			r.wreck, r.reset = h, false
		}
		return nil, err
	}
	if o.upTo == "" {
		r.keepEvents(h)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hca, r.timeouts = h, h.timeouts
	return h, nil
}

// lease is the transport as a life of the function sees it: it stays open.
type lease struct{ vfio.Transport }

// Close leaves the transport to the next life. The Device above it has detached
// its interrupts and unmapped its memory.
func (*lease) Close() error { return nil }

// settle notices that the HCA was closed by somebody else.
func (r *Recoverable) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hca == nil {
		return
	}
	select {
	case <-r.hca.closed:
		r.endedLocked(false)
	default:
	}
}

// endedLocked books the end of the life that was going on: closed, or parked.
func (r *Recoverable) endedLocked(reset bool) {
	h := r.hca
	r.hca = nil
	if h.parked {
		r.wreck, r.reset = h, reset
		return
	}
	r.lives = append(r.lives, h.Ledger())
}

// wasReset books that the device has forgotten the wreck.
func (r *Recoverable) wasReset(f func() error) func() error {
	return func() error {
		if err := f(); err != nil {
			return err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reset = true
		return nil
	}
}

// registers gives a command interface: the function's own, or one of a bring-up
// that stops before INIT_HCA.
func (r *Recoverable) registers(ctx context.Context) (health.RegisterAccess, error) {
	r.settle()
	if h := r.HCA(); h != nil {
		if err := h.conn.Err(); err != nil {
			return nil, err
		}
		return h.conn, nil
	}
	r.mu.Lock()
	parked, reset := r.wreck != nil, r.reset
	r.mu.Unlock()
	if parked && !reset {
		return nil, fmt.Errorf("the device was cut off and not reset since: %w", vfio.ErrInUse)
	}
	if err := r.release(ctx); err != nil {
		return nil, err
	}
	o := r.o
	o.SkipReset, o.upTo, o.Teardown = true, "dtor", TeardownRegular
	h, err := r.open(ctx, o)
	if err != nil {
		return nil, err
	}
	return h.conn, nil
}

// Target is the function for health.Recover. Recover uses it; callers that add
// something to it (LinkToggle) may pass it to health.Recover themselves, one at a
// time and not beside Open and Close.
func (r *Recoverable) Target() health.Target {
	r.mu.Lock()
	t := health.Target{
		Device: r.dev.Info().Name, Window: r.bar, Config: r.dev, Virtual: r.pci.virtual(),
		Lifecycle: r, Registers: r.registers, Timeouts: r.timeouts,
	}
	r.mu.Unlock()
	if r.dev.Info().CanReset {
		t.Reset = r.wasReset(r.dev.Reset)
	}
	if _, ok := r.t.(vfio.HotResetter); ok {
		t.HotResetInfo, t.HotReset = r.dev.HotResetInfo, r.wasReset(r.dev.HotReset)
	}
	return t
}

// Recover climbs the recovery ladder; see health.Recover. After a success HCA is
// the new life. A second call waits for the first, until ctx is over
// (vfio.ErrBusy); one whose verdict is older than a recovery that has worked
// meanwhile does nothing and answers the report of that: two that saw the same
// failure do not reset the function twice.
func (r *Recoverable) Recover(ctx context.Context, o health.RecoverOptions) (health.RecoveryReport, error) {
	if err := r.takeLife(ctx, "recover"); err != nil {
		return health.RecoveryReport{}, err
	}
	defer r.giveLife()
	r.settle()
	r.mu.Lock()
	closed, last, open := r.closed, r.last, r.hca != nil
	r.mu.Unlock()
	if closed {
		return health.RecoveryReport{}, &vfio.Error{Op: "recover", Target: r.dev.Info().Name, Err: vfio.ErrClosed}
	}
	if since := o.Verdict.Since; open && last != nil && last.Recovered && !since.IsZero() && since.Before(last.Started) {
		return *last, nil
	}
	r.beginWatch()
	rep, err := health.Recover(ctx, r.Target(), o)
	r.mu.Lock()
	r.last = &rep
	r.mu.Unlock()
	if h := r.HCA(); h != nil && h.o.upTo != "" {
		// A bring-up that went half the way for one register is of no use to anybody.
		if e := r.Drain(context.WithoutCancel(ctx)); e != nil {
			r.o.Logger.Warn("closing a half-open function", "bdf", r.dev.Info().Name, "op", "recover", "error", e)
		}
	}
	r.endWatch(&rep)
	return rep, err
}

// Close gives the function and the transport up: a function that is open is torn
// down; what is parked is reset, as far as the device can be, and freed. In a shared
// address space memory of a device that could neither be reset nor be kept off the
// bus stays allocated, as with HCA.Close. A second call does nothing.
func (r *Recoverable) Close(ctx context.Context) error {
	r.life <- struct{}{}
	defer r.giveLife()
	r.settle()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	h := r.hca
	r.mu.Unlock()
	r.monitors.stop()
	var errs []error
	var down *CloseError
	if h != nil {
		if err := h.Close(ctx); errors.As(err, &down) {
			own := *down
			down = &own
			errs = append(errs, down)
		} else if err != nil {
			errs = append(errs, err)
		}
		r.settle()
	}
	r.mu.Lock()
	wreck, reset := r.wreck, r.reset
	r.mu.Unlock()
	if wreck != nil {
		off := r.dev.SetBusMaster(false)
		gone := errors.Is(off, vfio.ErrGone)
		contained := off == nil || gone || wreck.private || reset
		if !reset && r.dev.Info().CanReset {
			if err := r.wasReset(r.dev.Reset)(); err == nil {
				contained = true
				_ = r.dev.SetBusMaster(false) // a reset may restore it
			} else if !gone {
				errs = append(errs, fmt.Errorf("reset: %w", err))
			}
		}
		wreck.loose = !contained
		errs = append(errs, r.releaseNow(ctx, wreck))
		if down != nil { // what Close of the HCA had to leave is done now
			down.Parked, down.Reset, down.Loose, down.Ledger = false, wreck.reset, wreck.loose, wreck.Ledger()
		}
	}
	errs = append(errs, r.dev.Close())
	r.keepers.Wait()
	return errors.Join(errs...)
}
