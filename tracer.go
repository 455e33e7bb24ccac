package mlxvfio

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// tracing is what a function holds of its firmware tracer.
type tracing struct {
	mu      sync.Mutex
	capture *tracer.Capture // the last that was opened
	buffers []*traceBuffer  // that exist: one, or left by an Open that failed on a dead device
	holds   []*tracerHold
	opening bool
}

// tracerHold is an Owner that OpenTracer did not make.
type tracerHold struct {
	owner  *tracer.Owner
	cancel func()
}

// ErrTracerOpen: this HCA has the tracer open already.
var ErrTracerOpen = errors.New("the firmware tracer is open already in this HCA; close it first")

// checkTracer refuses a device whose tracer registers do not exist.
func (h *HCA) checkTracer() error {
	switch {
	case !h.general().McamReg():
		return &tracer.CapabilityError{Bit: "mcam_reg", Remedy: "it has no register that tells of the tracer's; a newer firmware may have"}
	case !h.tracer:
		return &tracer.CapabilityError{Bit: "MCAM.tracer_registers", Remedy: "a newer firmware may have them; virtual functions often do not"}
	}
	return nil
}

// TracerCaps reads the tracer's capabilities and whether this function owns it. The
// error is a *tracer.CapabilityError for a device without the registers.
func (h *HCA) TracerCaps(ctx context.Context) (tracer.Caps, error) {
	if err := h.checkTracer(); err != nil {
		return tracer.Caps{}, err
	}
	return tracer.ReadCaps(ctx, h.conn)
}

// TracerOwner acquires the firmware tracer and nothing more, for holding it. The
// Owner's events are the function's. Release it; HCA.Close does so too. Errors: those
// of tracer.Owner.Acquire, *tracer.CapabilityError.
func (h *HCA) TracerOwner(ctx context.Context, o tracer.OwnerOptions) (*tracer.Owner, error) {
	if err := h.checkTracer(); err != nil {
		return nil, err
	}
	if err := h.tracing.begin(); err != nil {
		return nil, err
	}
	defer h.tracing.over()
	if o.Logger == nil {
		o.Logger = h.log
	}
	events, cancel := h.tracerEvents()
	o.Events = events
	owner := tracer.NewOwner(h.conn, o)
	if err := owner.Acquire(ctx); err != nil {
		cancel()
		return nil, err
	}
	h.tracing.mu.Lock()
	defer h.tracing.mu.Unlock()
	h.tracing.holds = append(h.tracing.holds, &tracerHold{owner, cancel})
	return owner, nil
}

// OpenTracer takes the firmware tracer, has the device write its traces into memory
// and reads them: see tracer.Open, whose errors these are, and *tracer.CapabilityError
// and ErrTracerOpen. ctx bounds the whole capture. Close it; HCA.Close stops and
// releases one that is still open.
func (h *HCA) OpenTracer(ctx context.Context, o tracer.Options) (*tracer.Capture, error) {
	if err := h.checkTracer(); err != nil {
		return nil, err
	}
	if err := h.tracing.begin(); err != nil {
		return nil, err
	}
	defer h.tracing.over()
	if o.Logger == nil {
		o.Logger = h.log
	}
	c, err := tracer.Open(ctx, h.traceDevice(), o)
	if err != nil {
		return nil, err
	}
	h.tracing.mu.Lock()
	defer h.tracing.mu.Unlock()
	h.tracing.capture = c
	return c, nil
}

// traceDevice is the function as package tracer needs it.
func (h *HCA) traceDevice() tracer.Device {
	return tracer.Device{
		Port: h.conn,
		Meta: capture.Meta{
			Device: h.deviceName(), PCIID: h.pci.String(), Firmware: h.firmware, PSID: h.board.PSID,
			ClockKHz: h.general().DeviceFrequencyKhz(), Tool: driverVersion,
		},
		Alloc:     h.allocTrace,
		Subscribe: h.tracerEvents,
		Timer:     h.seg.InternalTimer,
		RealTime:  h.seg.RealTime,
	}
}

// begin keeps a second tracer out.
func (t *tracing) begin() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds = slices.DeleteFunc(t.holds, func(o *tracerHold) bool {
		gone := o.owner.State() == tracer.OwnerReleased
		if gone {
			o.cancel()
		}
		return gone
	})
	if t.opening || len(t.buffers) > 0 || len(t.holds) > 0 {
		return ErrTracerOpen
	}
	t.opening = true
	return nil
}

func (t *tracing) over() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opening = false
}

// tracerEventBuffer is how many tracer events may wait. What finds no room is found by
// the clock.
const tracerEventBuffer = 64

// tracerEvents delivers the sub-types of the function's tracer events.
func (h *HCA) tracerEvents() (<-chan tracer.Event, func()) {
	sub := h.Subscribe(tracerEventBuffer, queues.MaskOf(prm.EventDeviceTracer))
	out, gone := make(chan tracer.Event, tracerEventBuffer), make(chan struct{})
	go func() {
		defer close(gone)
		defer close(out)
		for e := range sub.C() {
			select {
			case out <- tracer.Event(e.SubType()):
			default:
			}
		}
	}()
	return out, func() {
		sub.Close()
		<-gone
	}
}

// traceBuffer is memory for traces, its key and the key's protection domain.
type traceBuffer struct {
	h   *HCA
	pd  *queues.PD
	mem *vfio.Buffer
	key *queues.MKey
}

// tracePages is the largest buffer whose key has a page of 4096 bytes for each entry,
// as Linux has it. Larger ones take larger pages, to keep the command short.
const tracePages = 4 << 20

func (h *HCA) allocTrace(ctx context.Context, size int) (b *tracer.Buffer, err error) {
	t := &traceBuffer{h: h}
	h.tracing.mu.Lock()
	h.tracing.buffers = append(h.tracing.buffers, t)
	h.tracing.mu.Unlock()
	defer func() {
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonData)
			defer cancel()
			err = errors.Join(err, t.free(ctx))
		}
	}()
	if t.pd, err = h.queues.AllocPD(ctx); err != nil {
		return nil, err
	}
	if t.mem, err = h.space.Alloc(size, vfio.BufferOptions{Align: fwPageSize, Name: "firmware traces"}); err != nil {
		return nil, err
	}
	o := queues.MKeyOptions{PD: t.pd, Buffer: t.mem, Access: queues.LocalWrite, FourKAligned: true}
	if size <= tracePages {
		o.LogPageSize = 12
	}
	if t.key, err = h.queues.CreateMKey(ctx, o); err != nil {
		return nil, err
	}
	mkc, err := t.key.QueryContext(ctx)
	if err != nil {
		return nil, err
	}
	return &tracer.Buffer{Mem: t.mem.Mem, IOVA: t.mem.IOVA(), Key: t.key.Key(), Context: mkc, Free: t.free, Release: t.release}, nil
}

// free gives back what there is, the key first. After an error it may be called again.
func (t *traceBuffer) free(ctx context.Context) error {
	if t.key != nil {
		if err := t.key.Destroy(ctx); err != nil {
			return err
		}
		t.key = nil
	}
	if t.mem != nil {
		err := t.mem.Free()
		if errors.Is(err, vfio.ErrInUse) {
			// No answer to the key's creation: it may exist.
			t.h.queues.Orphan(t.mem)
			err = nil
		}
		if err != nil {
			return err
		}
		t.mem = nil
	}
	if t.pd != nil {
		if err := t.pd.Free(ctx); err != nil {
			return err
		}
		t.pd = nil
	}
	t.h.tracing.forget(t)
	return nil
}

// release frees the host's part alone. A device that is loose keeps the memory.
func (t *traceBuffer) release() error {
	t.h.tracing.forget(t)
	if t.h.loose {
		return nil
	}
	if t.key != nil {
		t.key.Release()
	}
	var err error
	if t.mem != nil {
		if err = t.mem.Free(); errors.Is(err, vfio.ErrInUse) {
			t.h.queues.Orphan(t.mem)
			err = nil
		}
	}
	if t.pd != nil {
		t.pd.Release()
	}
	t.key, t.mem, t.pd = nil, nil, nil
	return err
}

func (t *tracing) forget(b *traceBuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buffers = slices.DeleteFunc(t.buffers, func(o *traceBuffer) bool { return o == b })
}

// downTracer stops a tracer that is still open when the function is closed, gives it
// back and frees its memory; of a dead device only the memory.
func (h *HCA) downTracer(ctx context.Context, live bool) error {
	t := &h.tracing
	t.mu.Lock()
	c, holds := t.capture, t.holds
	t.mu.Unlock()
	var errs []error
	for len(holds) > 0 {
		if live {
			if err := holds[0].owner.Release(ctx); err != nil {
				return err
			}
		}
		holds[0].cancel()
		holds = holds[1:]
		t.mu.Lock()
		t.holds = holds
		t.mu.Unlock()
	}
	if c != nil {
		if !live {
			errs = append(errs, hostOnly(c.Release()))
		} else if err := c.Close(ctx); err != nil {
			return err
		}
	}
	t.mu.Lock()
	left := slices.Clone(t.buffers)
	t.mu.Unlock()
	for _, b := range left {
		if !live {
			errs = append(errs, hostOnly(b.release()))
		} else if err := b.free(ctx); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// downReady undoes what users of the function made: its tracer, its data paths.
func (h *HCA) downReady(ctx context.Context, live bool) error {
	if err := h.downTracer(ctx, live); err != nil {
		return err
	}
	return h.downData(ctx, live)
}
