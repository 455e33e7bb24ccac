package mlxvfio

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// Stages from the doorbell page to the event queues.

// driverVectors are the interrupts the driver uses itself, if there are enough:
// command, async and page EQ.
const driverVectors = 3

// Sizes of the driver's own EQs. Linux: 32, 0x1000 and 1 entries with 0x80 to
// spare, rounded up; the ConnectX-4 whose bring-up was published (docs/sources.md)
// ran with 2^8 for the first and last.
const (
	logCommandEQ = 8
	logAsyncEQ   = 12
	logPagesEQ   = 8
)

func (h *HCA) upUAR(ctx context.Context) (string, error) {
	g := h.general()
	h.queues = &queues.Dev{
		Conn: h.conn, Space: h.space, BAR: h.bar,
		Layout:     queues.UARLayout{PageShift: 12 + uint8(g.LogUARPageSz()), FourK: g.UAR4k()},
		WideEvents: g.EventCap(),
		Caps:       queues.CapsOf(h.issi, h.currentCap(prm.CapGeneral), h.currentCap(prm.CapAtomic), h.currentCap(prm.CapRoce)),
	}
	u, err := h.queues.AllocUAR(ctx)
	if err != nil {
		return "", err
	}
	h.uar = u
	return fmt.Sprintf("UAR %#x at BAR0+%#x", u.Index(), u.Offset()), nil
}

func (h *HCA) downUAR(ctx context.Context, live bool) error {
	if live {
		return h.uar.Free(ctx)
	}
	h.uar.Release()
	if h.loose {
		return nil
	}
	return hostOnly(h.queues.ReleaseOrphans())
}

// upVectors attaches all interrupts at once and starts a loop for each of the
// driver's own. Without interrupts one loop looks by the clock.
func (h *HCA) upVectors(context.Context) (string, error) {
	n, why := 0, "polled on request"
	if !h.o.Polled {
		have, err := h.dev.MaxVectors()
		if err != nil {
			return "", err
		}
		if n = min(have, driverVectors+max(h.o.CompletionVectors, 0)); n == 0 {
			why = "the function has no MSI-X"
			h.log.Warn("no MSI-X: commands and event queues are polled", "op", "vectors")
		}
	}
	if n == 0 {
		h.loops = []*eventLoop{newEventLoop(nil, h.o.PollInterval, h.log, h.pollEQ)}
		return why, nil
	}
	vs, err := h.dev.EnableVectors(n)
	if err != nil {
		return "", err
	}
	h.vectors = vs
	for _, v := range vs[:min(n, driverVectors)] {
		h.loops = append(h.loops, newEventLoop(v, h.o.PollInterval, h.log, h.pollEQ))
	}
	return fmt.Sprintf("%d MSI-X vectors", n), nil
}

func (h *HCA) downVectors(context.Context, bool) error {
	for _, l := range h.loops {
		l.end()
	}
	h.loops = nil
	if len(h.vectors) == 0 {
		return nil
	}
	h.vectors = nil
	return hostOnly(h.dev.DisableVectors())
}

// loop is the event loop, and the vector, of the i-th of the driver's EQs: fewer
// vectors than EQs are shared.
func (h *HCA) loop(i int) (*eventLoop, uint16) {
	i = min(i, len(h.loops)-1)
	return h.loops[i], uint16(i)
}

// commandQueue is the command EQ as cmdif sees it.
type commandQueue struct{ l *eventLoop }

// Poll has the loop look now.
func (q commandQueue) Poll() int { return q.l.look() }

func (h *HCA) upCommandEQ(ctx context.Context) (string, error) {
	if len(h.vectors) == 0 {
		return "skipped: no interrupts", nil
	}
	err := h.conn.SwitchToEvents(ctx, func(ctx context.Context) (cmdif.EventQueue, error) {
		q, l, err := h.addEQ(ctx, 0, queues.EQOptions{Name: "command", LogSize: logCommandEQ, Mask: queues.MaskOf(prm.EventCmd)})
		if err != nil {
			return nil, err
		}
		h.cmdEQ = q
		return commandQueue{l}, nil
	})
	if err != nil {
		return "", err
	}
	return describeEQ(h.cmdEQ), nil
}

// addEQ creates one of the driver's EQs and hands it to its loop.
func (h *HCA) addEQ(ctx context.Context, i int, o queues.EQOptions) (*queues.EQ, *eventLoop, error) {
	l, vec := h.loop(i)
	o.Vector, o.UAR = vec, h.uar
	if limit := h.general().LogMaxEQSz(); limit != 0 {
		o.LogSize = min(o.LogSize, limit)
	}
	q, err := h.queues.CreateEQ(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	l.add(q, func(e *prm.EQE) { h.dispatch(q, e) })
	return q, l, nil
}

func describeEQ(q *queues.EQ) string {
	return fmt.Sprintf("EQN %d, %d entries, vector %d", q.Number(), 1<<q.LogSize(), q.Vector())
}

func (h *HCA) downCommandEQ(ctx context.Context, live bool) error {
	if h.cmdEQ == nil {
		return nil
	}
	if live {
		if err := h.conn.SwitchToPolling(ctx); err != nil {
			return err
		}
	}
	return h.dropEQ(ctx, 0, &h.cmdEQ, live)
}

// dropEQ takes an EQ from its loop and from firmware. It may be called again,
// with live false, after firmware has refused.
func (h *HCA) dropEQ(ctx context.Context, i int, q **queues.EQ, live bool) error {
	if *q == nil {
		return nil
	}
	l, _ := h.loop(i)
	l.remove(*q)
	var err error
	if live {
		if err = (*q).Destroy(ctx); err != nil {
			return err
		}
	} else if !h.loose {
		err = hostOnly((*q).Release())
	}
	*q = nil
	return err
}

// upEventMode sends the first commands whose completion must come by an event. A
// completion that had to be found by polling means that the interrupt did not
// arrive, and every command would take a second; on a busy host one may be late,
// so it takes three in a row to be believed.
func (h *HCA) upEventMode(ctx context.Context) (string, error) {
	if h.cmdEQ == nil {
		return "skipped: commands are polled", nil
	}
	events := h.events.commands.Load()
	for range 3 {
		before := h.conn.Stats().Recovered
		if err := h.checkEQ(ctx, h.cmdEQ); err != nil {
			return "", err
		}
		if h.conn.Stats().Recovered == before {
			return "a command completed by an event", nil
		}
	}
	return "", &InterruptError{Vector: h.cmdEQ.Vector(), EQN: h.cmdEQ.Number(), Event: h.events.commands.Load() != events}
}

// checkEQ asks firmware whether an EQ is in order.
func (h *HCA) checkEQ(ctx context.Context, q *queues.EQ) error {
	s, err := q.Query(ctx)
	if err != nil {
		return err
	}
	if s.Status != prm.EQStatusOK {
		return &EQStateError{Name: q.Name(), EQN: q.Number(), State: s}
	}
	return nil
}

// asyncMask are the device events the driver asks for (Linux eq.c,
// gather_async_events_mask).
func (h *HCA) asyncMask() queues.EventMask {
	m := queues.MaskOf(
		prm.EventPathMig, prm.EventCommEst, prm.EventSQDrained, prm.EventCQError, prm.EventWQCatasError,
		prm.EventPathMigFailed, prm.EventPortChange, prm.EventWQInvalReqError, prm.EventWQAccessError,
		prm.EventSRQCatasError, prm.EventSRQLastWQE, prm.EventSRQRQLimit)
	g := h.general()
	for _, c := range []struct {
		have  bool
		types []prm.EventType
	}{
		{g.PortType() == prm.PortTypeEthernet && g.VportGroupManager() && g.NumPorts() > 0, []prm.EventType{prm.EventNicVportChange}},
		{g.GeneralNotificationEvent(), []prm.EventType{prm.EventGeneral}},
		{g.PortModuleEvent(), []prm.EventType{prm.EventPortModule}},
		{g.Pps(), []prm.EventType{prm.EventPPS}},
		{g.Fpga(), []prm.EventType{prm.EventFpgaError, prm.EventFpgaQPError}},
		{g.DCT(), []prm.EventType{prm.EventDCTDrained, prm.EventDCTKeyViolation}},
		{g.TempWarnEvent(), []prm.EventType{prm.EventTempWarn}},
		{h.tracer, []prm.EventType{prm.EventDeviceTracer}},
		{g.MaxNumOfMonitorCounters() != 0, []prm.EventType{prm.EventMonitorCounter}},
	} {
		if c.have {
			m = m.With(c.types...)
		}
	}
	if c, ok := h.Cap(prm.CapDevEvent); ok {
		d := prm.AsDeviceEventCap(c.Current)
		for i := range m {
			m[i] |= d.UserAffiliatedEvents(i) | d.UserUnaffiliatedEvents(i)
		}
	}
	// These two have event queues of their own.
	m[0] &^= 1<<prm.EventCmd | 1<<prm.EventPageRequest | 1<<prm.EventCompletion
	return m
}

func (h *HCA) upAsyncEQ(ctx context.Context) (string, error) {
	q, _, err := h.addEQ(ctx, 1, queues.EQOptions{Name: "async", LogSize: logAsyncEQ, Mask: h.asyncMask()})
	if err != nil {
		return "", err
	}
	h.asyncEQ = q
	return describeEQ(q), nil
}

func (h *HCA) downAsyncEQ(ctx context.Context, live bool) error {
	return h.dropEQ(ctx, 1, &h.asyncEQ, live)
}

func (h *HCA) upPagesEQ(ctx context.Context) (string, error) {
	if h.general().PageRequestDisable() {
		return "skipped: the device never asks for pages", nil
	}
	q, _, err := h.addEQ(ctx, 2, queues.EQOptions{Name: "pages", LogSize: logPagesEQ, Mask: queues.MaskOf(prm.EventPageRequest)})
	if err != nil {
		return "", err
	}
	h.pagesEQ = q
	return describeEQ(q), nil
}

func (h *HCA) downPagesEQ(ctx context.Context, live bool) error {
	return h.dropEQ(ctx, 2, &h.pagesEQ, live)
}

func (h *HCA) upReady(ctx context.Context) (string, error) {
	n := 0
	var vectors []string
	for i, q := range []*queues.EQ{h.asyncEQ, h.pagesEQ} {
		if q == nil {
			continue
		}
		if err := h.checkEQ(ctx, q); err != nil {
			return "", err
		}
		n++
		note, err := h.checkInterrupt(ctx, q, i+1)
		if err != nil {
			return "", err
		}
		vectors = append(vectors, q.Name()+" "+note)
	}
	if err := h.bar.Err(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d event queues in order; interrupts: %s", n, strings.Join(vectors, ", ")), nil
}

// Lost interrupts are believed after so many tries of this length.
const (
	interruptTries = 3
	interruptWait  = time.Second
)

// checkInterrupt has firmware write an event to the i-th of the driver's EQs
// (GEN_EQE) and waits for its interrupt. The event is a completion of no
// commands, which nobody misses. The answer is "arrive", or why it could not be
// checked: no capability tells whether a device has the command.
func (h *HCA) checkInterrupt(ctx context.Context, q *queues.EQ, i int) (string, error) {
	l, _ := h.loop(i)
	first, _ := h.loop(0)
	switch {
	case l.vec == nil:
		return "not used", nil
	case l == first:
		return "shared with commands", nil
	}
	var e prm.EQE
	e.SetEventType(prm.EventCmd)
	for range interruptTries {
		if err := q.Generate(ctx, &e); err != nil {
			var ce *cmdif.CommandError
			if errors.As(err, &ce) {
				return fmt.Sprintf("not checked (GEN_EQE: %v)", ce.Status), nil
			}
			return "", err
		}
		t := time.NewTimer(interruptWait)
		select {
		case <-h.probes:
			t.Stop()
			return "arrive", nil
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "", fmt.Errorf("wait for the interrupt of the %s EQ: %w", q.Name(), context.Cause(ctx))
		}
		l.look()
		select {
		case <-h.probes:
		default:
			return "not checked (GEN_EQE wrote no event)", nil
		}
	}
	return "", &InterruptError{Vector: q.Vector(), EQN: q.Number(), Event: true}
}

// InterruptError says that an interrupt did not arrive, though the command had
// completed.
type InterruptError struct {
	Vector uint16
	EQN    uint8
	// Event tells that the entry was in the event queue. Without it firmware did
	// not write one, or not where the driver looks.
	Event bool
}

// Error names the vector and what to look at.
func (e *InterruptError) Error() string {
	if !e.Event {
		return fmt.Sprintf("commands complete, but neither an event in EQN %d nor the interrupt (MSI-X vector %d) tells so; suspect firmware, reset the function, or do without events (--polled, Options.Polled)", e.EQN, e.Vector)
	}
	return fmt.Sprintf("the interrupt of EQN %d (MSI-X vector %d) did not arrive, its event did; check interrupt remapping (dmesg: DMAR, AMD-Vi) and /proc/interrupts, or do without interrupts (--polled, Options.Polled)", e.EQN, e.Vector)
}

// EQStateError says that firmware finds an event queue broken.
type EQStateError struct {
	Name  string
	EQN   uint8
	State queues.EQState
}

// Error names the queue and its state.
func (e *EQStateError) Error() string {
	return fmt.Sprintf("the %s EQ (EQN %d) is in state %v: consumer %#x, producer %#x; close and open the device again", e.Name, e.EQN, e.State.Status, e.State.Consumer, e.State.Producer)
}
