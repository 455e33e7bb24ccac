package cmdif

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Options tune Open. The zero value is good.
type Options struct {
	// Timeout is the deadline of a command, waiting for a slot included; 0 takes
	// the device's cmd_exec_to and, where it states none, 60 s (Linux tout.c). A
	// context may shorten it for one call, ExecTimeout may set it.
	Timeout time.Duration
	// NotReady is how long a command that firmware answers with NOT_READY is
	// sent again, within its deadline: 0 takes 5 s, negative means never. Linux
	// hands such commands back to its callers as EAGAIN without a log line; the
	// time is this project's ruling.
	NotReady time.Duration
	// VerifyOutputs checks the signatures of replies from the start; see
	// Conn.VerifyOutputs.
	VerifyOutputs bool
	// PreInit and Init tune the two waits for firmware.
	PreInit, Init initseg.WaitOptions
	// History is the number of commands kept for a post-mortem: 0 takes 64,
	// negative keeps none.
	History int
	// MaxSlots bounds the commands in flight, page commands not counted: 0 is as many
	// as the device's queue holds. 1 sends one command at a time, in order, which
	// makes traces easy to read and is for finding out what a device chokes on. Page
	// commands keep the queue's last entry for themselves either way, since a command
	// may wait for pages.
	MaxSlots int
	// Trace sees every command; see TraceFunc.
	Trace TraceFunc
	// OnLate hears about each command that completed after its waiter gave up.
	// It must neither block nor send commands; it may run on the goroutine of
	// the command EQ.
	OnLate func(Late)
	// Logger hears about time-outs, recoveries and death; nil is silent.
	Logger *slog.Logger
}

// Late is a command that completed after its waiter had given up: whatever it
// did, it has done (an object exists, pages came back).
type Late struct {
	Record
	// Reply is the whole output, status included. Nil if the reply cannot be
	// trusted.
	Reply []byte
}

const (
	defaultHistory  = 64
	defaultNotReady = 5 * time.Second
)

// Conn is an open command interface. All methods are safe for concurrent use.
// The goroutine that owns the command event queue must not send commands.
type Conn struct {
	dev     *vfio.Device
	seg     *initseg.Segment
	log     *slog.Logger
	page    *vfio.Buffer
	boxes   boxPool
	slots   []slot
	timeout time.Duration
	retry   time.Duration
	onLate  func(Late)
	mmioErr error // what the window had to complain about before us

	events atomic.Pointer[EventQueue] // nil: polled mode
	verify atomic.Bool
	trace  atomic.Pointer[TraceFunc]
	end    atomic.Pointer[error] // set once the device is dead or the Conn closed
	ended  chan struct{}         // closed then

	recovered, lost, spurious atomic.Uint64

	watchers sync.WaitGroup // look

	mu           sync.Mutex // never held while waiting for the device
	all          uint32     // slots that are used at all
	free         uint32     // slots that may be granted
	quarantined  uint32     // slots whose command was given up
	reserved     uint32     // the slot of page commands
	active       int        // slots granted and neither released nor quarantined
	throttled    int        // of active and quarantined slots, throttled opcodes
	maxThrottled int
	gate         gate
	lines        [classes]line // commands that wait for a slot
	waiting      int           // of all lines
	spare        line          // waiters to be used again
	spares       int
	tickets      uint64        // the last one given to a waiter
	idle         chan struct{} // closed when active drops to 0; nil if nobody wants to know
	token        uint8         // the last one given to a command
	tokens       [4]uint64     // those of the commands in all slots that are not free
	watched      bool          // look will run
	watcher      *time.Timer
	closed       bool
	late         uint64
	foreign      uint64
	answered     uint64    // commands handed back
	answeredAt   time.Time // the last time
	ops          map[prm.Opcode]*OpStats
	history      history
}

// Open brings the command interface of a function up (Linux main.c and cmd.c):
// wait until firmware has booted, check the interface revision and the shape of
// the queue, publish one 4 KB command page, wait until firmware has taken it.
// Bus mastering must be on; when Open fails after it has published the page, it
// is off. dev and seg stay the caller's and must outlive the Conn.
//
// Errors: *initseg.NotReadyError, *initseg.RevisionError, *initseg.QueueError,
// what vfio says about memory, vfio.ErrGone, or the cause of ctx.
func Open(ctx context.Context, dev *vfio.Device, seg *initseg.Segment, o Options) (*Conn, error) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	fail := func(err error) (*Conn, error) {
		return nil, fmt.Errorf("%s: open command interface: %w", dev.Info().Name, err)
	}
	if err := seg.WaitReady(ctx, initseg.PreInit, o.PreInit); err != nil {
		return fail(err)
	}
	if err := seg.CheckRevision(); err != nil {
		return fail(err)
	}
	q, err := seg.Queue()
	if err != nil {
		return fail(err)
	}
	page, err := dev.Space().Alloc(initseg.QueuePageSize, vfio.BufferOptions{Align: initseg.QueuePageSize, Name: "command queue"})
	if err != nil {
		return fail(err)
	}
	err = seg.PublishQueue(page.IOVA())
	if err == nil {
		err = seg.WaitReady(ctx, initseg.Init, o.Init)
	}
	if err != nil {
		// The device may know the address, and firmware that starts late may use it.
		off := dev.SetBusMaster(false)
		if errors.Is(off, vfio.ErrGone) {
			off = nil
		}
		if off == nil {
			off = page.Free()
		} // else the page stays the device's, until the address space is closed
		return fail(errors.Join(err, off))
	}

	c := &Conn{
		dev: dev, seg: seg, page: page, onLate: o.OnLate,
		log:     log.With("bdf", dev.Info().Name),
		boxes:   boxPool{space: dev.Space()},
		timeout: o.Timeout,
		retry:   o.NotReady,
		mmioErr: seg.Err(),
		ended:   make(chan struct{}),
		ops:     map[prm.Opcode]*OpStats{},
	}
	if c.timeout == 0 {
		c.timeout = initseg.DefaultCommand
		if d, ok := seg.CommandTimeout(); ok {
			c.timeout = d
		}
	}
	if c.retry == 0 {
		c.retry = defaultNotReady
	}
	if o.History == 0 {
		o.History = defaultHistory
	}
	c.history.ring = make([]Record, max(o.History, 0))
	c.VerifyOutputs(o.VerifyOutputs)
	c.SetTrace(o.Trace)

	n := q.Entries()
	c.slots = make([]slot, n)
	for i := range c.slots {
		c.slots[i] = slot{index: i, mem: page.Slice(i*q.Stride(), initseg.EntrySize), done: make(chan struct{}, 1)}
	}
	ordinary := 1
	if n > 1 {
		c.reserved = 1 << (n - 1)
		ordinary = n - 1
	}
	if o.MaxSlots > 0 {
		ordinary = min(ordinary, o.MaxSlots)
	}
	c.all = uint32(1<<ordinary-1) | c.reserved
	c.free = c.all
	c.maxThrottled = (ordinary + 1) / 2
	c.log.Debug("command interface open", "op", "open", "slots", n, "stride", q.Stride(), "timeout", c.timeout)
	return c, nil
}

// VerifyOutputs turns the check of reply signatures on or off. It belongs on
// only while the device signs its replies: capability cmdif_checksum is 3
// (enabled). In the initial state a ConnectX-4 was seen signing entries but not
// output mailboxes, and neither after SET_HCA_CAP had switched checksums off and
// INIT_HCA made it effective. Inputs are signed either way.
func (c *Conn) VerifyOutputs(on bool) { c.verify.Store(on) }

// Timeout is the deadline of commands that name none.
func (c *Conn) Timeout() time.Duration { return c.timeout }

// Segment is the initialization segment the Conn was opened on.
func (c *Conn) Segment() *initseg.Segment { return c.seg }

// Device is the device the Conn was opened on.
func (c *Conn) Device() *vfio.Device { return c.dev }

// Dead declares that the device will not answer any more: it is gone, or health
// found a fatal error. All waiters end at once with a *DeadError that wraps err,
// later commands are refused with one. The first reason stays. While a command waits,
// the Conn finds out by itself that the device reads all ones, or that the health
// buffer shows a fatal error (*initseg.FatalError): within 0.1 s where it polls, 1 s
// where it waits for events.
func (c *Conn) Dead(err error) {
	if err == nil {
		err = ErrDead
	}
	c.mu.Lock()
	first := c.endLocked(err)
	c.mu.Unlock()
	if first {
		c.log.Error("device does not answer commands any more", "op", "dead", "err", err)
	}
}

// endLocked ends all waiters with the reason err; false if they were ended before.
func (c *Conn) endLocked(err error) bool {
	if !c.end.CompareAndSwap(nil, &err) {
		return false
	}
	close(c.ended)
	c.dispatchLocked()
	return true
}

// Err is why no command can be sent: the reason given to Dead, ErrClosed, or nil.
func (c *Conn) Err() error {
	if e := c.end.Load(); e != nil {
		return *e
	}
	return nil
}

// Close ends all waiters and frees the command page and the mailboxes. Call it
// only when the device can no longer write to memory: after DISABLE_HCA with no
// slot in quarantine, or after bus mastering was switched off or the function
// was reset; and when whoever calls Complete has ended. A second call does nothing.
//
// Everything is freed whatever the error says. It holds an *UnansweredError if there
// are commands that the device never completed.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	r := c.reapLocked() // what came back last
	c.closed = true
	c.endLocked(ErrClosed)
	c.endWatchLocked()
	idle := c.idleLocked()
	c.unlockAndTell(r)
	c.watchers.Wait()
	<-idle // waiters leave within one poll interval
	c.mu.Lock()
	left := slices.DeleteFunc(c.unansweredLocked(), func(r Record) bool { // on a dead device, nothing was taken back
		w := c.slots[r.Slot].mem.LoadBE32(offOwner)
		return w&1 == 0 && uint8(w>>24) == r.Token
	})
	for i := range c.slots {
		c.slots[i].state.Store(slotFree) // its memory is not to be looked at any more
	}
	c.mu.Unlock()
	errs := c.boxes.release()
	if err := c.page.Free(); err != nil {
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	if len(left) > 0 {
		err = &UnansweredError{left, err}
	}
	if err != nil {
		return fmt.Errorf("%s: close command interface: %w", c.dev.Info().Name, err)
	}
	return nil
}

// idleLocked gives a channel that is closed as soon as no command is in flight.
func (c *Conn) idleLocked() <-chan struct{} {
	ch := c.idle
	if ch == nil {
		ch = make(chan struct{})
	}
	if c.active == 0 {
		close(ch)
	} else {
		c.idle = ch
	}
	return ch
}
