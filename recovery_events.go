package mlxvfio

import (
	"encoding/binary"
	"sync"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// eventTailSize is how many device events are kept for a black box.
const eventTailSize = 256

// eventTail keeps the last events of a function, over its lives.
type eventTail struct {
	mu   sync.Mutex
	ring []health.EventRecord
	next int
}

func (t *eventTail) add(e *Event) {
	rec := health.EventRecordOf(e.Time, e.EQN, &e.Entry, e.String())
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) < eventTailSize {
		t.ring = append(t.ring, rec)
		return
	}
	t.ring[t.next] = rec
	t.next = (t.next + 1) % eventTailSize
}

// list is what is kept, oldest first.
func (t *eventTail) list() []health.EventRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]health.EventRecord, 0, len(t.ring))
	return append(append(out, t.ring[t.next:]...), t.ring[:t.next]...)
}

// keepEvents takes the events of a life down until it ends.
func (r *Recoverable) keepEvents(h *HCA) {
	all := queues.EventMask{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
	sub := h.Subscribe(64, all)
	r.keepers.Go(func() {
		for e := range sub.C() {
			r.events.add(&e)
		}
	})
}

// readPCIID reads the first registers of configuration space.
func readPCIID(dev *vfio.Device) (pciID, error) {
	var cfg [12]byte
	if err := dev.ReadConfig(0, cfg[:]); err != nil {
		return pciID{}, err
	}
	return pciID{Vendor: binary.LittleEndian.Uint16(cfg[0:]), Device: binary.LittleEndian.Uint16(cfg[2:]), Revision: cfg[8]}, nil
}
