package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// maxFunctions of one chip: physical functions 0 to 7 of one slot.
const maxFunctions = 8

// Chip is one simulated device with one or more functions. Its methods are safe
// for concurrent use.
type Chip struct {
	opts  Options
	prof  *profile
	port  PortType
	fwRev Version
	log   *slog.Logger

	mu     sync.Mutex // guards everything below and the state of all functions
	sched  *scheduler
	rng    *rand.Rand
	fabric *fabric
	funcs  []*function
	faults faultSet
	tracer tracer
	born   time.Time // power-on: timers count from here
	health health
	late   []lateEffect
	reset  fwReset
	// Of the vendor-specific capabilities of all functions.
	tickets uint32
	sems    [semaphores]uint32
	closed  bool
}

// New builds a chip. An unknown profile, port or fault is a *UsageError.
func New(o Options) (*Chip, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p, err := profileByName(o.profileName())
	if err != nil {
		return nil, err
	}
	c := &Chip{opts: o, prof: p, port: o.Port, fwRev: p.firmware, log: o.Logger}
	if c.port == PortDefault {
		c.port = p.port
	}
	if o.Firmware != (Version{}) {
		c.fwRev = o.Firmware
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.rng = rand.New(rand.NewPCG(o.Seed, 0x6d6c78)) // any fixed stream
	c.sched = newScheduler(c, o.Clock)
	c.born = c.sched.clock.Now()
	c.health = health{base: 1, since: c.born, rate: defaultHealthRate}
	c.fabric = newFabric(c)
	c.tracer.init(c)
	var shared *domain
	for i := range max(1, o.Functions) {
		f := newFunction(c, i)
		if o.SharedDomain {
			if shared == nil {
				shared = f.domain
			}
			f.domain = shared
		}
		c.funcs = append(c.funcs, f)
	}
	for _, f := range c.funcs {
		f.domain.unmapped = func(iova, end uint64) { c.unmapped(f.domain, iova, end) }
		f.powerOn()
	}
	c.clearHealth()
	for _, s := range o.Faults {
		if err := c.SetFault(s.Name, s.Arg); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Functions is the number of functions.
func (c *Chip) Functions() int { return len(c.funcs) }

// Profile is the name of the device; Port its link layer; Firmware its version.
func (c *Chip) Profile() string   { return c.prof.name }
func (c *Chip) Port() PortType    { return c.port }
func (c *Chip) Firmware() Version { return c.fwRev }

// Function opens function i, as opening /dev/vfio does: memory decoding is on,
// bus mastering off. Closing it takes bus mastering away and resets it, as vfio-pci
// does. A function has one opener at a time: while it is open the methods of what
// others get answer vfio.ErrBusy, and Open of it fails with that and changes
// nothing. It panics where there is no function i, as an index does.
func (c *Chip) Function(i int) vfio.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.funcs[i]
	t := &transport{f: f}
	if c.closed {
		t.closed.Store(true)
		return t
	}
	if f.opener != nil {
		t.refused = true
		return t
	}
	f.opener = t
	f.cfg.setCommand(cmdMemory)
	return t
}

// Close ends the chip: pending events are dropped, and it waits for its
// goroutine. Handles of its functions answer ErrClosed from then on.
func (c *Chip) Close() error {
	c.mu.Lock()
	c.closed = true
	c.sched.closed = true
	c.late = nil
	c.sched.cancel(nil)
	for _, f := range c.funcs {
		f.opener = nil
		f.vectors = [msixVectors]*vfio.Vector{}
	}
	c.mu.Unlock()
	c.sched.drain()
	return nil
}

// unmapped is called when host memory goes away: pages there that firmware may
// still use are a driver's mistake, and counted. After TEARDOWN_HCA it uses none.
func (c *Chip) unmapped(d *domain, iova, end uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.funcs {
		if f.domain != d {
			continue
		}
		f.rogueUnmapped(iova, end)
		if f.fw.phase == phaseTornDown {
			continue
		}
		f.count.PagesUnmapped += uint64(f.fw.ledger.within(iova, end))
	}
}

// Counters are what a function has seen since the chip was made. Resets do not
// clear them.
type Counters struct {
	DMAReads         uint64 `json:"dma_reads"`
	DMAWrites        uint64 `json:"dma_writes"`
	DMAFaults        uint64 `json:"dma_faults"`      // not mapped, or mapped read-only
	DMAAfterClose    uint64 `json:"dma_after_close"` // those of them in memory that was mapped before: taken away too early
	DMABlocked       uint64 `json:"dma_blocked"`     // bus mastering off
	LastFaultIOVA    uint64 `json:"last_fault_iova"`
	Interrupts       uint64 `json:"interrupts"`
	InterruptsLost   uint64 `json:"interrupts_lost"` // vector not attached, or a fault
	Commands         uint64 `json:"commands"`
	CommandsFailed   uint64 `json:"commands_failed"`  // answered with a status other than OK
	CommandsDropped  uint64 `json:"commands_dropped"` // in flight when a reset or the last close came
	DeliveryErrors   uint64 `json:"delivery_errors"`
	DoorbellsIgnored uint64 `json:"doorbells_ignored"` // slot not owned by the device, in flight, or no queue
	Events           uint64 `json:"events"`
	EventsLost       uint64 `json:"events_lost"`     // EQ full or unwritable, or no EQ for a command
	Completions      uint64 `json:"completions"`     // entries of completion queues
	Packets          uint64 `json:"packets"`         // sent by the data engine, lost ones too
	CQErrors         uint64 `json:"cq_errors"`       // completion queues overrun or not writable
	PagesUnmapped    uint64 `json:"pages_unmapped"`  // host unmapped pages that firmware could still use
	PagesDropped     uint64 `json:"pages_dropped"`   // pages that firmware forgot instead of returning
	BARUnsupported   uint64 `json:"bar_unsupported"` // access with memory decoding off or not in D0
	Resets           uint64 `json:"resets"`
	RogueTries       uint64 `json:"rogue_tries"`  // of the fault rogue: accesses that should not be
	RogueLanded      uint64 `json:"rogue_landed"` // those that nothing stopped
}

// Counters gives the counters of function i.
func (c *Chip) Counters(i int) Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	return c.funcs[i].count
}

// State is what firmware and queues of a function hold now.
type State struct {
	Phase        string   `json:"phase"` // off, enabled, issi, init, torn-down
	NICInterface string   `json:"nic_interface"`
	ISSI         int      `json:"issi"`
	Pages        int      `json:"pages"`        // pages that firmware holds
	PagesWanted  int      `json:"pages_wanted"` // outstanding request: > 0 wants, < 0 offers
	InFlight     int      `json:"in_flight"`    // commands accepted and not completed
	EQs          int      `json:"eqs"`
	UARs         int      `json:"uars"`
	PDs          int      `json:"pds"`
	MKeys        int      `json:"mkeys"`
	UMEMs        int      `json:"umems"`
	UCTXs        int      `json:"uctxs"`
	CQs          int      `json:"cqs"`
	QPs          int      `json:"qps"`
	SRQs         int      `json:"srqs"` // SRQs, RMPs and XRC SRQs
	XRCDs        int      `json:"xrcds"`
	Counters     int      `json:"q_counters"`   // Q counters
	TracerOwned  int      `json:"tracer_owned"` // 1: the function owns the firmware tracer
	Mappings     int      `json:"mappings"`     // of the function's I/O address space
	MapCalls     uint64   `json:"map_calls"`
	Vectors      int      `json:"vectors"` // attached
	Handles      int      `json:"handles"` // open transports: 0 or 1
	Faults       []string `json:"faults"`
}

// State gives the state of function i.
func (c *Chip) State(i int) State {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	f := c.funcs[i]
	s := State{
		Phase: f.fw.phase.String(), NICInterface: f.nic().String(), ISSI: f.fw.issi,
		Pages: f.fw.ledger.len(), PagesWanted: f.fw.wanted(), EQs: f.eqs.len(), UARs: f.uars.len(), PDs: f.pds.len(),
		MKeys: f.mkeys.len(), UMEMs: f.umems.len(), UCTXs: f.uctxs.len(), CQs: f.cqs.len(), QPs: f.qps.len(),
		SRQs: f.srqs.len(), XRCDs: f.xrcds.len(), Counters: f.sets.len(), Mappings: f.domain.count(),
		Faults: c.faults.names(),
	}
	if f.opener != nil {
		s.Handles = 1
	}
	f.domain.mu.RLock()
	s.MapCalls = f.domain.mapCalls
	f.domain.mu.RUnlock()
	if c.tracer.owner == f {
		s.TracerOwned = 1
	}
	for b := f.inFlight; b != 0; b &= b - 1 {
		s.InFlight++
	}
	for _, v := range f.vectors {
		if v != nil {
			s.Vectors++
		}
	}
	return s
}

// now is the chip's time since power-on.
func (c *Chip) now() time.Duration { return c.sched.clock.Now().Sub(c.born) }

// trace logs a command that was answered.
func (f *function) trace(op prm.Opcode, opMod uint16, reg string, d prm.DeliveryStatus, s prm.CommandStatus, synd uint32) {
	if !f.chip.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	f.chip.log.Debug("command", "fn", f.index, "op", op.String(), "op_mod", fmt.Sprintf("%#x", opMod), "reg", reg,
		"delivery", d.String(), "status", s.String(), "syndrome", fmt.Sprintf("%#x", synd))
}
