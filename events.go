package mlxvfio

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// Event is something the device reported: a port that came up, a queue in error,
// a sensor over its limit. Completions of commands and page requests are the
// driver's own business and do not appear.
type Event struct {
	Time time.Time
	// EQN is the event queue it arrived on.
	EQN uint8
	// Entry is the event queue entry, for decoders.
	Entry prm.EQE
}

// Type is the event type.
func (e *Event) Type() prm.EventType { return e.Entry.EventType() }

// SubType is the event sub-type.
func (e *Event) SubType() uint8 { return e.Entry.EventSubType() }

// Known tells whether type and sub-type have names.
func (e *Event) Known() bool { return queues.Known(&e.Entry) }

// String puts the event into words.
func (e *Event) String() string { return queues.Describe(&e.Entry) }

// EventStats count what arrived.
type EventStats struct {
	Commands  uint64 `json:"commands"`  // entries with command completions
	Pages     uint64 `json:"pages"`     // page requests
	Delivered uint64 `json:"delivered"` // device events handed to subscribers or to nobody
	Unknown   uint64 `json:"unknown"`   // of these, without a name
	Dropped   uint64 `json:"dropped"`   // not taken by a subscriber in time
	Overruns  uint64 `json:"overruns"`  // event queues that lost entries
	Wakeups   uint64 `json:"wakeups"`   // times an event loop looked
	Empty     uint64 `json:"empty"`     // of these, without finding anything
}

type eventCounters struct {
	commands, pages, delivered, unknown, dropped, overruns, wakeups, empty atomic.Uint64
}

func (c *eventCounters) snapshot() EventStats {
	return EventStats{
		Commands: c.commands.Load(), Pages: c.pages.Load(), Delivered: c.delivered.Load(),
		Unknown: c.unknown.Load(), Dropped: c.dropped.Load(), Overruns: c.overruns.Load(),
		Wakeups: c.wakeups.Load(), Empty: c.empty.Load(),
	}
}

// Subscription delivers device events to one reader.
type Subscription struct {
	hub     *eventHub
	c       chan Event
	mask    queues.EventMask
	dropped atomic.Uint64
	once    sync.Once
}

// C is where events arrive. It is closed by Close and when the HCA is closed.
func (s *Subscription) C() <-chan Event { return s.c }

// Dropped counts the events that found the channel full: the driver does not
// wait for a slow reader.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription.
func (s *Subscription) Close() { s.hub.remove(s) }

// eventHub hands events to subscribers.
type eventHub struct {
	mu     sync.Mutex
	subs   []*Subscription
	closed bool
}

func (b *eventHub) add(buffer int, mask queues.EventMask) *Subscription {
	s := &Subscription{hub: b, c: make(chan Event, max(buffer, 1)), mask: mask}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		s.end()
		return s
	}
	b.subs = append(b.subs, s)
	return s
}

func (s *Subscription) end() { s.once.Do(func() { close(s.c) }) }

func (b *eventHub) remove(s *Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range b.subs {
		if o == s {
			b.subs = append(b.subs[:i:i], b.subs[i+1:]...)
			break
		}
	}
	s.end()
}

func (b *eventHub) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.subs {
		s.end()
	}
	b.subs = nil
}

// publish never blocks; it answers how many subscribers missed the event.
func (b *eventHub) publish(e *Event) (missed int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		if s.mask != (queues.EventMask{}) && !s.mask.Has(e.Type()) {
			continue
		}
		select {
		case s.c <- *e:
		default:
			s.dropped.Add(1)
			missed++
		}
	}
	return missed
}

// Subscribe delivers device events of the types in mask (the zero mask is all of
// them) to a channel of the given capacity. Events that find it full are counted
// and dropped. Safe for concurrent use.
func (h *HCA) Subscribe(buffer int, mask queues.EventMask) *Subscription {
	return h.hub.add(buffer, mask)
}

// dispatch handles one entry on the goroutine that owns the EQ. It neither
// blocks nor issues commands.
func (h *HCA) dispatch(q *queues.EQ, e *prm.EQE) {
	switch e.EventType() {
	case prm.EventCmd:
		if !q.Mask().Has(prm.EventCmd) {
			// Not firmware's own: the entry by which the interrupt is checked.
			select {
			case h.probes <- struct{}{}:
			default:
			}
			return
		}
		h.events.commands.Add(1)
		h.conn.Complete(e.EventData().CmdInterCompEvent().CommandCompletionVector())
	case prm.EventPageRequest:
		h.events.pages.Add(1)
		p := e.EventData().PagesReqEvent()
		h.worker.post(pageRequest{
			fn:         Function{ID: p.FunctionID(), EmbeddedCPU: p.EmbeddedCpuFunction()},
			pages:      int(int32(p.NumPages())),
			releaseAll: p.ReleaseAll(),
		})
	default:
		h.deliver(q, e)
	}
}

func (h *HCA) deliver(q *queues.EQ, e *prm.EQE) {
	ev := Event{Time: time.Now(), EQN: q.Number(), Entry: *e}
	h.events.delivered.Add(1)
	h.queues.HandleEvent(e)
	if !ev.Known() {
		h.events.unknown.Add(1)
		h.log.Warn("event without a name", "op", "event", "eqn", q.Number(), "type", uint8(ev.Type()), "subtype", ev.SubType(), "entry", ev.String())
	} else {
		h.log.Debug("event", "op", "event", "eqn", q.Number(), "entry", &ev)
	}
	if n := h.hub.publish(&ev); n > 0 {
		h.events.dropped.Add(uint64(n))
	}
}
