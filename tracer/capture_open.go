package tracer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Open takes the tracer of a function and starts to read it. ctx bounds the whole
// capture: when it is over, the capture ends as by Stop, and the tracer is given back.
// Close in any case.
//
// Errors: *OptionError, *CapabilityError, *BufferError (nothing was written to the device),
// *BusyError, *LostError, *MismatchError, and those of the registers. After an error
// nothing is left: the tracer is given back and the memory free, unless the device
// does not answer.
func Open(ctx context.Context, d Device, o Options) (_ *Capture, err error) {
	if o.Queue > MaxQueue {
		return nil, &OptionError{"Queue", fmt.Sprintf("%d records are more than %d; call Next in time instead", o.Queue, MaxQueue)}
	}
	caps, err := ReadCaps(ctx, d.Port)
	if err != nil {
		return nil, err
	}
	if !caps.ToMemory {
		return nil, &CapabilityError{Bit: "MTRC_CAP.trace_to_memory", Remedy: "this firmware traces into its own FIFO only; read that with mstfwtrace"}
	}
	o.defaults(&caps)
	if log, ok := LogSize(uint64(max(o.BufferSize, 0))); !ok || log > caps.LogMaxBuffer {
		return nil, &BufferError{[]Violation{{RuleSize, fmt.Sprintf("%d bytes; give a power of two from 4096 to %d", o.BufferSize, caps.MaxBuffer())}}}
	}
	meta := d.Meta
	c := &Capture{d: d, o: o, meta: &meta, caps: caps, start: time.Now(), ctx: ctx, cancel: func() {}, done: make(chan struct{})}
	c.stopped, c.stop = context.WithCancel(ctx)
	var quit context.Context
	quit, c.quit = context.WithCancel(context.WithoutCancel(ctx))
	ok := false
	defer func() { // an error, or a panic in what the caller gave us
		if !ok {
			c.stop()
			c.quit()
			if u := c.undo(ctx); u != nil {
				err = join(err, u)
			}
		}
	}()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	c.queue = newQueue(o.Queue)
	c.read = newReader(c.buf.Mem, c.queue, c.events != nil && !o.Polled, o.Poll, quit)
	c.sample()
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	meta.TakenUp = c.owner.TakenUp()
	meta.RingBlocks, meta.Started = blocksOf(o.BufferSize), c.start
	ok = true
	go c.read.run()
	go c.run()
	return c, nil
}

// prepare does everything up to the first write of the configuration.
func (c *Capture) prepare(ctx context.Context) error {
	buf, err := c.d.Alloc(ctx, c.o.BufferSize)
	if err != nil {
		return fmt.Errorf("memory for the firmware tracer: %w", err)
	}
	c.buf = buf
	if err := CheckBuffer(buf.IOVA, uint64(buf.Mem.Len()), buf.Key, &buf.Context, c.caps.LogMaxBuffer); err != nil {
		return err
	}
	if c.d.Subscribe != nil {
		c.events, c.cancel = c.d.Subscribe()
	}
	c.owner = NewOwner(c.d.Port, OwnerOptions{Wait: c.o.Wait, Events: c.events, OnBusy: c.o.OnBusy, Logger: c.o.Logger})
	if err := c.owner.Acquire(ctx); err != nil {
		return err
	}
	if c.owner.TakenUp() {
		c.o.Logger.Info("the firmware tracer was ours already: taken up from an earlier run", "op", "tracer")
		s, err := readCtrl(ctx, c.d.Port)
		if err != nil {
			return err
		}
		if s.status != 0 {
			// It may still write through a key of that run.
			if err := setStatus(ctx, c.d.Port, false, false); err != nil {
				return err
			}
		}
	}
	return c.readStrings(ctx, false)
}

// readStrings reads the string database, or makes an empty one.
func (c *Capture) readStrings(ctx context.Context, fresh bool) error {
	caps := c.Caps()
	db, info := &trace.DB{Geometry: caps.Geometry}, StringsInfo{}
	if !c.o.NoStrings {
		var err error
		db, info, err = ReadStrings(ctx, c.d.Port, &caps, StringsOptions{
			CacheDir: c.o.CacheDir, Firmware: c.meta.Firmware, Fresh: fresh, Chunk: c.o.Chunk, Progress: c.o.Progress, Logger: c.o.Logger,
		})
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caps, c.db, c.info = caps, db, info
	if c.first == nil {
		c.first = db
	}
	return nil
}

// begin configures the device and switches it on: the memory is zero and the ring at
// its first place.
func (c *Capture) begin(ctx context.Context) error {
	log, _ := LogSize(uint64(c.buf.Mem.Len()))
	if err := configure(ctx, c.d.Port, log, c.buf.Key); err != nil {
		return c.orLost(ctx, err)
	}
	c.on.Store(true)
	if err := setStatus(ctx, c.d.Port, true, c.read.events); err != nil {
		return c.orLost(ctx, err)
	}
	if c.armed = c.read.events; c.armed {
		c.stats.armed.Add(1)
	}
	return nil
}

// orLost makes a loss of a register that does not read back, if it is one.
func (c *Capture) orLost(ctx context.Context, err error) error {
	var m *MismatchError
	if !errors.As(err, &m) {
		return err
	}
	if _, lost := c.owner.Check(ctx, "read-back"); errors.Is(lost, ErrLost) {
		return join(lost, err)
	}
	return err
}

// undo gives back what a failing Open has taken.
func (c *Capture) undo(ctx context.Context) error {
	var errs []error
	if c.owner != nil {
		errs = append(errs, c.off(ctx), c.owner.Release(ctx))
	}
	c.cancel()
	if c.buf != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		errs = append(errs, c.buf.Free(ctx))
	}
	return join(errs...)
}

// off switches the tracer off, if it is on and ours.
func (c *Capture) off(ctx context.Context) error {
	if c.owner.State() != OwnerHeld || !c.on.Swap(false) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	return c.orLost(ctx, setStatus(ctx, c.d.Port, false, false))
}
