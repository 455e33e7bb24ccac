package mlxvfio

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// HCA is a function that was brought up: initialized firmware, working event
// queues, and the account of the pages firmware holds. Open makes one, Close
// gives the function back. All methods are safe for concurrent use, except that
// nothing may run beside Close.
type HCA struct {
	o    Options
	log  *slog.Logger
	name string

	// What the stages make, in their order. Written by Open's goroutine before
	// anybody else sees the HCA, and by Close after everybody has left.
	t        vfio.Transport
	dev      *vfio.Device
	space    *vfio.AddressSpace
	private  bool // space is ours to close
	bar      *vfio.Window
	seg      *initseg.Segment
	pci      pciID
	firmware string
	conn     *cmdif.Conn
	issi     uint16
	ledger   *ledger
	worker   *pageWorker
	board    Board
	tracer   bool // the firmware tracer's registers exist
	queues   *queues.Dev
	uar      *queues.UAR
	vectors  []*vfio.Vector
	loops    []*eventLoop
	cmdEQ    *queues.EQ
	asyncEQ  *queues.EQ
	pagesEQ  *queues.EQ

	hub    eventHub
	probes chan struct{} // events by which interrupts are checked
	// dataPaths are those that OpenData made and nobody has closed.
	dataPaths dataPathSet
	tracing   tracing
	events    eventCounters

	// limits are the device's own, where register DTOR gives them.
	reclaimLimit, teardownLimit time.Duration
	// timeouts are all of them, Linux' defaults where the device states none.
	timeouts cmdif.Timeouts
	monitors monitorSet

	// live: the device may be asked. done: stages that are up.
	live  bool
	reset bool // the function was reset by isolate
	loose bool // isolate could not keep it from memory that others may get
	// parked: isolate has left everything as it was but bus mastering, for release.
	parked bool
	done   int
	times  []StageEvent

	mu      sync.Mutex
	caps    map[prm.CapType]*Capability
	capRows []CapRow

	closeOnce sync.Once
	closed    chan struct{} // closed when Close is through
}

// Open brings a function up, from whatever state it is in to an initialized HCA
// with working event queues. It takes t over: Close closes it, and so does a
// failing Open, after it has undone in reverse order what was done; the error
// is a *StageError then. Cancelling ctx stops the bring-up at the next step.
//
// The undo may take 30 s; if ctx was over, no longer than the device may take for
// its teardown (register DTOR, 3 s where it does not say). What has not been
// undone by then is cut off and reset.
func Open(ctx context.Context, t vfio.Transport, o Options) (*HCA, error) {
	h, err := open(ctx, t, o)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// open is Open. After an error with Options.park it answers the HCA if that is
// parked: its memory has to be released.
func open(ctx context.Context, t vfio.Transport, o Options) (*HCA, error) {
	o.defaults()
	h := &HCA{
		o: o, log: o.Logger, t: t, live: true, closed: make(chan struct{}),
		probes:        make(chan struct{}, 8),
		caps:          map[prm.CapType]*Capability{},
		reclaimLimit:  initseg.DefaultReclaimPages,
		teardownLimit: initseg.DefaultTeardown,
		timeouts:      cmdif.DefaultTimeouts(),
	}
	failed, err := h.runUp(ctx)
	if err == nil {
		h.sayUp()
		return h, nil
	}
	se := &StageError{Device: h.deviceName(), Stage: bringUp[failed].name, Err: err, Remedy: remedyFor(err)}
	for _, st := range bringUp[:failed] {
		se.Done = append(se.Done, st.name)
	}
	// The caller's context may be what ended the bring-up; undoing has its own.
	limit := undoLimit
	if ctx.Err() != nil {
		limit = min(limit, h.teardownLimit)
	}
	undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), limit, &undoTimeError{limit})
	defer cancel()
	if lost(err) {
		se.Undo = h.isolate(err)
	}
	se.Undo = append(se.Undo, h.runDown(undo)...)
	if failed == 0 && t != nil {
		// Not taken over by a Device yet, or already closed with it.
		if err := t.Close(); err != nil {
			se.Undo = append(se.Undo, err)
		}
	}
	se.Ledger = h.Ledger()
	if h.parked {
		return h, se
	}
	return nil, se
}

// sayUp logs what a function that is up has to offer; one that was brought up
// half-way has not been asked.
func (h *HCA) sayUp() {
	if h.o.upTo != "" {
		return
	}
	a := h.atomics()
	if a.MaxQP == 0 {
		h.log.Info("up", "op", "open", "firmware", h.firmware, "atomics", "not supported")
		return
	}
	h.log.Info("up", "op", "open", "firmware", h.firmware, "atomics", a.Operations, "atomic_sizes", a.SizesQP, "max_atomic_size", a.MaxQP)
}

// undoLimit bounds what a failing Open may spend on undoing while its caller has
// time.
const undoLimit = 30 * time.Second

// undoTimeError tells a deadline of the undo from one of the caller.
type undoTimeError struct{ limit time.Duration }

func (e *undoTimeError) Error() string { return fmt.Sprintf("the undo was given %v", e.limit) }

// Is matches context.DeadlineExceeded.
func (e *undoTimeError) Is(target error) bool { return target == context.DeadlineExceeded }

func (h *HCA) deviceName() string {
	if h.name == "" {
		return "device"
	}
	return h.name
}

// Conn is the command interface. Commands that create objects belong to package
// queues; raw ones may be sent by anyone who knows what they do.
func (h *HCA) Conn() *cmdif.Conn { return h.conn }

// Device is the function on its transport.
func (h *HCA) Device() *vfio.Device { return h.dev }

// Segment is the initialization segment.
func (h *HCA) Segment() *initseg.Segment { return h.seg }

// Queues is the context that doorbell pages and queues are made in.
func (h *HCA) Queues() *queues.Dev { return h.queues }

// Ledger is the account of pages firmware holds.
func (h *HCA) Ledger() PageLedger {
	if h.ledger == nil {
		return PageLedger{}
	}
	return h.ledger.snapshot()
}

// Stages are the times of the bring-up.
func (h *HCA) Stages() []StageEvent { return append([]StageEvent(nil), h.times...) }

// EventMode tells whether commands complete by events rather than by polling.
func (h *HCA) EventMode() bool { return h.conn.EventMode() }

// CompletionVectors are the interrupts beyond the driver's own, with the number
// of the first: what completion queues of package queues may use.
func (h *HCA) CompletionVectors() (first int, vs []*vfio.Vector) {
	if len(h.vectors) <= driverVectors {
		return 0, nil
	}
	return driverVectors, h.vectors[driverVectors:]
}

// Stats are the counters of the driver.
type Stats struct {
	Events   EventStats
	Commands cmdif.Stats
	Pages    PageLedger
	// PageRequests that wait for the page worker now.
	PageRequests int
	DMA          vfio.SpaceStats
}

// Stats takes a snapshot.
func (h *HCA) Stats() Stats {
	return Stats{
		Events: h.events.snapshot(), Commands: h.conn.Stats(), Pages: h.Ledger(),
		PageRequests: h.worker.pending(), DMA: h.space.Stats(),
	}
}

// pciID are the first registers of configuration space.
type pciID struct {
	Vendor, Device uint16
	Revision       uint8
}

// virtual tells whether the id is that of a virtual function (Linux main.c,
// mlx5_core_pci_table, entries with MLX5_PCI_DEV_IS_VF).
func (p pciID) virtual() bool {
	switch p.Device {
	case 0x1012, 0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3:
		return true
	}
	return false
}

func (p pciID) String() string { return fmt.Sprintf("%04x:%04x", p.Vendor, p.Device) }
