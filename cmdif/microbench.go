package cmdif

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// MicroOptions say what a Microbench measures.
type MicroOptions struct {
	// MaxSlots is Options.MaxSlots.
	MaxSlots int
	// In and Out are the lengths of the messages in bytes, 8 or more.
	In, Out int
	// Latency is the time from the doorbell to the completion, as well as the host
	// can sleep; 0 completes within the doorbell.
	Latency time.Duration
	// Events completes by events rather than by polling.
	Events bool
}

// Microbench measures the command engine in ordinary memory: no device and no bus,
// but a responder that hands every entry back, with a reply of zeros.
type Microbench struct {
	o    MicroOptions
	dev  *vfio.Device
	conn *Conn
	r    *responder
}

// NewMicrobench opens an engine on a responder. Close it.
func NewMicrobench(o MicroOptions) (*Microbench, error) {
	if o.In < prm.CmdInSize || o.Out < minOut || o.Latency < 0 || o.MaxSlots < 0 {
		return nil, fmt.Errorf("measure commands of %d bytes in, %d out, in %d slots, of %v: %w; messages have at least 8 bytes",
			o.In, o.Out, o.MaxSlots, o.Latency, vfio.ErrRange)
	}
	r := newResponder(o.Latency)
	dev, err := vfio.NewDevice(r, vfio.DeviceOptions{Memory: vfio.MemoryHeap})
	if err != nil {
		return nil, err
	}
	m := &Microbench{o: o, dev: dev, r: r}
	if err := m.open(); err != nil {
		_ = m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Microbench) open() error {
	w, err := m.dev.Window(vfio.RegionBAR0)
	if err != nil {
		return err
	}
	if m.conn, err = Open(context.Background(), m.dev, initseg.New(w), Options{MaxSlots: m.o.MaxSlots, History: -1}); err != nil {
		return err
	}
	if !m.o.Events {
		return nil
	}
	complete := m.conn.Complete
	return m.conn.SwitchToEvents(context.Background(), func(context.Context) (EventQueue, error) {
		m.r.events.Store(&complete)
		return noEvents{}, nil
	})
}

// noEvents is the queue of a responder, which tells of completions at once.
type noEvents struct{}

func (noEvents) Poll() int { return 0 }

// Slots is the number of commands that may be in flight, page commands not counted.
func (m *Microbench) Slots() int { return m.conn.Stats().Slots - 1 }

// MicroRun is what a run came to.
type MicroRun struct {
	Sent   int
	Took   time.Duration
	Allocs uint64 // of the whole process
}

// Run sends n commands from so many callers, or fewer if the time most is over.
func (m *Microbench) Run(ctx context.Context, callers, n int, most time.Duration) (MicroRun, error) {
	var (
		wg    sync.WaitGroup
		left  atomic.Int64
		done  atomic.Int64
		first atomic.Pointer[error]
		start time.Time
		mem   runtime.MemStats
	)
	left.Store(int64(n))
	begin := make(chan struct{})
	for range callers {
		in, out := make([]byte, m.o.In), make([]byte, m.o.Out)
		prm.AsCmdIn(in).SetOpcode(prm.OpNop)
		wg.Go(func() {
			<-begin
			for left.Add(-1) >= 0 {
				if err := m.conn.Exec(ctx, in, out); err != nil {
					failed := err // lest every command allocates
					first.CompareAndSwap(nil, &failed)
					return
				}
				if n := done.Add(1); (m.o.Latency > 0 || n%16 == 0) && time.Since(start) > most {
					left.Store(0)
				}
			}
		})
	}
	runtime.ReadMemStats(&mem)
	before := mem.Mallocs
	start = time.Now()
	close(begin)
	wg.Wait()
	r := MicroRun{Sent: int(done.Load()), Took: time.Since(start)}
	runtime.ReadMemStats(&mem)
	r.Allocs = mem.Mallocs - before
	if e := first.Load(); e != nil {
		return r, *e
	}
	return r, nil
}

// Close frees everything. No Run may be going on.
func (m *Microbench) Close() error {
	m.r.stop()
	var err error
	if m.conn != nil {
		err = m.conn.Close()
	}
	if cerr := m.dev.Close(); err == nil {
		err = cerr
	}
	return err
}

// responder is a transport without a device: an initialization segment and a command
// queue whose entries it hands back.
type responder struct {
	latency time.Duration
	events  atomic.Pointer[func(uint32)]

	mu      sync.Mutex
	bar     [0x2000]byte
	maps    []vfio.Mapping
	entries []vfio.Mem
	ring    [responderEntries]rung // doorbells rung and not answered, the next one first
	rungs   int
	work    chan struct{}
	ended   chan struct{} // nil without a goroutine
	over    bool
}

// rung is a doorbell: its slots, and when they complete.
type rung struct {
	due   time.Time
	slots uint32
}

const responderEntries = 32

func newResponder(latency time.Duration) *responder {
	r := &responder{latency: latency, work: make(chan struct{}, 1)}
	binary.BigEndian.PutUint32(r.bar[4:], initseg.CommandInterfaceRev<<16)
	binary.BigEndian.PutUint32(r.bar[0x14:], initseg.MaxLogQueueSize<<4|6)
	if latency > 0 {
		r.ended = make(chan struct{})
		go r.run()
	}
	return r
}

func (r *responder) stop() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.poke()
	if r.ended != nil {
		<-r.ended
	}
}

func (r *responder) poke() {
	select {
	case r.work <- struct{}{}:
	default:
	}
}

// run completes commands when their time has come.
func (r *responder) run() {
	defer close(r.ended)
	for {
		r.mu.Lock()
		over := r.over
		var slots uint32
		now, wait := time.Now(), time.Duration(-1)
		n := 0
		for ; n < r.rungs; n++ {
			if wait = r.ring[n].due.Sub(now); wait > 0 {
				break
			}
			slots |= r.ring[n].slots
			wait = -1
		}
		r.rungs = copy(r.ring[:], r.ring[n:r.rungs])
		r.mu.Unlock()
		switch {
		case over:
			return
		case slots != 0:
			r.complete(slots)
		case wait > 0:
			time.Sleep(wait)
		default:
			<-r.work
		}
	}
}

// complete hands entries back.
func (r *responder) complete(slots uint32) {
	for i := range responderEntries {
		if slots>>i&1 != 0 {
			e := r.entries[i]
			clear(e.Bytes()[0x20:0x30])
			e.StoreBE32(offOwner, e.LoadBE32(offOwner)&^1)
		}
	}
	if tell := r.events.Load(); tell != nil {
		(*tell)(slots)
	}
}

// doorbell takes commands over.
func (r *responder) doorbell(slots uint32) {
	if r.latency == 0 {
		r.complete(slots)
		return
	}
	r.mu.Lock()
	// No more doorbells than slots: each slot is rung once before it is answered.
	r.ring[r.rungs] = rung{time.Now().Add(r.latency), slots}
	r.rungs++
	r.mu.Unlock()
	r.poke()
}

// queue finds the entries in the mapped memory.
func (r *responder) queue() error {
	lo := binary.BigEndian.Uint32(r.bar[0x14:])
	at := uint64(binary.BigEndian.Uint32(r.bar[0x10:]))<<32 | uint64(lo&^0xfff)
	for _, m := range r.maps {
		if at >= m.IOVA && at+initseg.QueuePageSize <= m.IOVA+uint64(len(m.Bytes)) {
			page := vfio.MemOf(m.Bytes).Slice(int(at-m.IOVA), initseg.QueuePageSize)
			for i := range responderEntries {
				r.entries = append(r.entries, page.Slice(i<<(lo&15), initseg.EntrySize))
			}
			return nil
		}
	}
	return fmt.Errorf("command queue at 0x%x, which is not mapped: %w", at, vfio.ErrRange)
}

// The verbs of vfio.Transport.

func (r *responder) Info() (vfio.DeviceInfo, error) {
	return vfio.DeviceInfo{Name: "microbench", Backend: "memory", Regions: vfio.NumRegions}, nil
}

func (r *responder) RegionInfo(i int) (vfio.RegionInfo, error) {
	if i != vfio.RegionBAR0 {
		return vfio.RegionInfo{}, nil
	}
	return vfio.RegionInfo{Size: uint64(len(r.bar)), Read: true, Write: true}, nil
}

func (r *responder) ReadRegion(i int, off uint64, p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(p)
	if i == vfio.RegionBAR0 {
		copy(p, r.bar[off:])
	}
	return nil
}

func (r *responder) WriteRegion(i int, off uint64, p []byte) error {
	const doorbell, queueHi, queueLo = 0x18, 0x10, 0x14
	if i != vfio.RegionBAR0 {
		return nil
	}
	switch off {
	case doorbell:
		r.doorbell(binary.BigEndian.Uint32(p))
	case queueHi, queueLo:
		r.mu.Lock()
		defer r.mu.Unlock()
		low := r.bar[queueLo+3] // size and stride are the device's
		copy(r.bar[off:], p)
		r.bar[queueLo+3] = low
		if off == queueLo {
			return r.queue()
		}
	}
	return nil
}

func (r *responder) MapRegion(int) ([]vfio.Area, error)     { return nil, nil }
func (r *responder) IRQInfo(int) (vfio.IRQInfo, error)      { return vfio.IRQInfo{}, nil }
func (r *responder) NewVector() (*vfio.Vector, error)       { return vfio.NewChanVector(), nil }
func (r *responder) SetIRQs(int, int, []*vfio.Vector) error { return nil }
func (r *responder) DMA() vfio.Mapper                       { return r }
func (r *responder) Reset() error                           { return nil }
func (r *responder) Close() error                           { return nil }

func (r *responder) Limits() (vfio.DMALimits, error) {
	return vfio.DMALimits{Ranges: []vfio.IOVARange{{First: 0, Last: 1<<48 - 1}}, PageSizes: 4096}, nil
}

func (r *responder) Map(m vfio.Mapping) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.maps = append(r.maps, m)
	return nil
}

func (r *responder) Unmap(uint64, uint64) error { return nil }
