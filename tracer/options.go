package tracer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Options tune Open. The zero value is good.
type Options struct {
	// BufferSize is the size of the device's ring in bytes, 4096 << n up to the
	// device's maximum; 0 is 1 MiB, or the maximum if that is less.
	BufferSize int
	// Queue is how many records may wait for Next before blocks are dropped and
	// counted; 0 is twice the blocks of the ring, from 4096 to MaxQueue. Each takes about 350
	// bytes of host memory, from the beginning; more than MaxQueue are refused.
	Queue int
	// Wait is how long to wait for another owner of the tracer: 0 asks once,
	// negative waits as long as the context lasts.
	Wait time.Duration
	// OnBusy is called when somebody else has the tracer, before each pause.
	OnBusy func(tries int, waited time.Duration)
	// Polled looks at the ring by the clock alone and does not arm events.
	Polled bool
	// Poll is how often the ring is looked at in any case; 0 is 1 ms when polled,
	// and 20 ms, against lost events, otherwise.
	Poll time.Duration
	// OwnerPoll is how often the device is asked whether the tracer is still ours,
	// and whether the strings are where they were; 0 is 1 s.
	OwnerPoll time.Duration
	// ClockPoll is how often the clocks are read; 0 is 1 s, negative is at the
	// beginning and the end only.
	ClockPoll time.Duration
	// CacheDir, Chunk and Progress are those of StringsOptions.
	CacheDir string
	Chunk    int
	Progress func(done, total uint64)
	// NoStrings leaves the string database out: messages cannot be put into words
	// then.
	NoStrings bool
	Logger    *slog.Logger // nil is silent
}

// MaxQueue is the largest Options.Queue: about 370 MB of host memory.
const MaxQueue = 1 << 20

const (
	defaultBuffer    = 1 << 20
	leastQueue       = 4096
	defaultPoll      = time.Millisecond
	defaultSafety    = 20 * time.Millisecond
	defaultClockPoll = time.Second
	// stopLimit bounds what stopping may take, whatever became of the context.
	stopLimit = 10 * time.Second
)

func (o *Options) defaults(c *Caps) {
	if o.BufferSize == 0 {
		o.BufferSize = int(min(defaultBuffer, c.MaxBuffer()))
	}
	if o.Queue <= 0 {
		o.Queue = min(max(2*int(blocksOf(o.BufferSize)), leastQueue), MaxQueue)
	}
	if o.Poll <= 0 {
		if o.Poll = defaultSafety; o.Polled {
			o.Poll = defaultPoll
		}
	}
	if o.OwnerPoll <= 0 {
		o.OwnerPoll = defaultOwnerPoll
	}
	if o.ClockPoll == 0 {
		o.ClockPoll = defaultClockPoll
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Device is a function as a capture needs it. The root package makes one.
type Device struct {
	// Port is its registers.
	Port Port
	// Meta says what it is; Open adds what it finds out.
	Meta capture.Meta
	// Alloc gives zeroed memory of size bytes under a memory key that the device
	// may write through.
	Alloc func(ctx context.Context, size int) (*Buffer, error)
	// Subscribe delivers tracer events until cancel is called; nil without events.
	Subscribe func() (events <-chan Event, cancel func())
	// Timer reads the internal timer; nil without.
	Timer func() uint64
	// RealTime reads the real-time clock; nil without.
	RealTime func() (seconds, nanoseconds uint32)
}

// Buffer is memory for traces and the memory key over it.
type Buffer struct {
	Mem  vfio.Mem
	IOVA uint64
	Key  uint32
	// Context is the key's context as firmware has it (QUERY_MKEY), for CheckBuffer.
	Context prm.MKC
	// Free destroys the key, then frees the memory. Release frees the host's part
	// alone, for a device that cannot reach memory any more.
	Free    func(ctx context.Context) error
	Release func() error
}

// counters are Stats as they are counted.
type counters struct {
	looks, foundByPoll, moved   atomic.Uint64
	unclosed, torn, laps        atomic.Uint64
	events, ownerEvents, armed  atomic.Uint64
	restarts, checks, badClocks atomic.Uint64
}

// Stats say how a capture went so far.
type Stats struct {
	Blocks       uint64 `json:"blocks"`        // handed out or in the queue
	Gaps         uint64 `json:"gaps"`          // gap records
	Overwritten  uint64 `json:"overwritten"`   // blocks missing: the device came around
	BackPressure uint64 `json:"back_pressure"` // blocks missing: Next was not called in time
	Order        uint64 `json:"order"`         // blocks missing: their time did not move on
	Unclosed     uint64 `json:"unclosed"`      // blocks without a closing timestamp
	Torn         uint64 `json:"torn"`          // copies that the device wrote into
	Laps         uint64 `json:"laps"`          // times the device was found to have come around
	Looks        uint64 `json:"looks"`         // looks at the ring that found something
	Events       uint64 `json:"events"`        // events that told of traces
	FoundByPoll  uint64 `json:"found_by_poll"` // looks by the clock that found what no event told of
	OwnerEvents  uint64 `json:"owner_events"`  // events that told of a change of ownership
	Armed        uint64 `json:"armed"`         // times an event was asked for
	Restarts     uint64 `json:"restarts"`      // for new strings
	Waiting      int    `json:"waiting"`       // records in the queue now
	Queue        int    `json:"queue"`         // records it holds
	HighWater    uint64 `json:"high_water"`    // most that waited at a time
}
