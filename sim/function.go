package sim

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// function is one PCI function: what lives as long as the chip. The chip's lock
// guards it.
type function struct {
	chip    *Chip
	index   int
	name    string
	domain  *domain
	cfg     config
	opener  *transport // nil while nobody has it open
	vectors [msixVectors]*vfio.Vector
	extra   [vfio.NumIRQs]*vfio.Vector // error and request interrupts
	msix    [msixVectors * 16]byte
	count   Counters
	rogue   *rogue // of the fault of that name

	vsc          vsc
	iseg         prm.InitialSeg // what does not change by itself
	nicInterface prm.NICInterface
	queue        uint64    // address of the command page
	silentUntil  time.Time // reads give all ones until then
	accesses     uint64    // BAR accesses, for faults that count them

	later    []func() // after the completion of the command being served
	inFlight uint32   // command slots accepted and not completed
	slots    [queueSlots]prm.CmdQueueEntry

	// Scratch of the command being served, so that serving allocates nothing.
	entry             prm.CmdQueueEntry
	box               prm.CmdIfBox
	eqe, scratchEQE   prm.EQE
	cqe               prm.CQE64
	in, out           []byte
	call              call
	chainIn, chainOut []uint64

	fw    firmware
	caps  capabilities
	regs  registers
	eqs   pool[*eq]
	uars  pool[*uar]
	pds   pool[*pd]
	mkeys pool[*mkey]
	umems pool[*umem]
	uctxs pool[*uctx]
	tds   pool[*td]
	cqs   pool[*cq]
	qps   pool[*qp]
	srqs  pool[*srq] // SRQs, RMPs and XRC SRQs
	xrcds pool[*xrcd]
	sets  pool[*qCounters]
	roce  []prm.RoceAddrLayout // RoCE address table
	port  portState
	vport vport
	// listeners is the event queue that hears of each event type; nil for none.
	listeners [256]*eq
	engine    dataEngine
	delays    [msixVectors]uint16 // CONFIG_INT_MODERATION
	halves    map[uint64]uint32   // first halves of doorbells stored in two
}

func newFunction(c *Chip, i int) *function {
	f := &function{chip: c, index: i, name: fmt.Sprintf("sim:%s.%d", c.prof.name, i)}
	f.domain = &domain{name: f.name}
	f.engine = engine{f}
	return f
}

// powerOn puts the function into the state after power-on or FLR; what the host
// owns (mappings, vectors, counters) stays.
func (f *function) powerOn() {
	c := f.chip
	f.later = nil
	f.dropCommands()
	f.cfg.reset(c.prof, c.port)
	f.degradeLink()
	f.vsc = vsc{}
	clear(f.msix[:])
	for v := range msixVectors {
		f.msix[v*16+12] = 1 // masked
	}
	f.queue = 0
	f.nicInterface = prm.NICInterfaceFullDriver
	f.resetISeg()
	f.resetFirmware()
}

// dropCommands forgets the commands in flight.
func (f *function) dropCommands() {
	f.chip.sched.cancel(f)
	f.count.CommandsDropped += uint64(bits.OnesCount32(f.inFlight))
	f.inFlight = 0
}

// transport is an opened function.
type transport struct {
	f      *function
	closed atomic.Bool
	// refused: somebody else had the function open. It stays so when that one leaves.
	refused bool
}

// busy is what a second opener is told.
func (t *transport) busy() error {
	return &vfio.Error{Op: "open", Target: t.f.name, Err: vfio.ErrBusy,
		Remedy: "close the handle that is open, or share it, then open the function again"}
}

// busyDMA is the Mapper of a second opener.
type busyDMA struct{ t *transport }

func (b busyDMA) Map(vfio.Mapping) error          { return b.t.busy() }
func (b busyDMA) Unmap(uint64, uint64) error      { return b.t.busy() }
func (b busyDMA) Limits() (vfio.DMALimits, error) { return vfio.DMALimits{}, b.t.busy() }

// begin takes the chip's lock for one verb.
func (t *transport) begin(op string) error {
	t.f.chip.mu.Lock()
	if t.closed.Load() || t.f.chip.closed {
		t.f.chip.mu.Unlock()
		return &vfio.Error{Op: op, Target: t.f.name, Err: vfio.ErrClosed, Remedy: "open the function again"}
	}
	if t.refused {
		t.f.chip.mu.Unlock()
		return t.busy()
	}
	t.f.chip.settle()
	return nil
}

func (t *transport) end() { t.f.chip.unlock() }

// Info implements vfio.Transport.
func (t *transport) Info() (vfio.DeviceInfo, error) {
	if err := t.begin("device info"); err != nil {
		return vfio.DeviceInfo{}, err
	}
	defer t.end()
	return vfio.DeviceInfo{Name: t.f.name, Backend: "sim", Regions: vfio.NumRegions, IRQs: vfio.NumIRQs, CanReset: true}, nil
}

// RegionInfo implements vfio.Transport. Nothing can be mapped: every access traps.
func (t *transport) RegionInfo(index int) (vfio.RegionInfo, error) {
	if err := t.begin("region info"); err != nil {
		return vfio.RegionInfo{}, err
	}
	defer t.end()
	switch {
	case index == vfio.RegionBAR0:
		return vfio.RegionInfo{Size: barSize, Read: true, Write: true}, nil
	case index == vfio.RegionConfig:
		return vfio.RegionInfo{Size: configSize, Read: true, Write: true}, nil
	case index >= 0 && index < vfio.NumRegions:
		return vfio.RegionInfo{}, nil
	}
	return vfio.RegionInfo{}, t.f.badIndex("region", index, vfio.NumRegions)
}

func (f *function) badIndex(what string, i, n int) error {
	return &vfio.Error{Op: fmt.Sprintf("%s %d", what, i), Target: f.name, Err: vfio.ErrRange,
		Remedy: fmt.Sprintf("indexes are 0 to %d", n-1)}
}

// ReadRegion implements vfio.Transport.
func (t *transport) ReadRegion(index int, off uint64, p []byte) error {
	if err := t.begin("read region"); err != nil {
		return err
	}
	defer t.end()
	switch index {
	case vfio.RegionBAR0:
		return t.f.readBAR(off, p)
	case vfio.RegionConfig:
		return t.f.readConfig(off, p)
	}
	return t.f.noRegion("read", index)
}

// WriteRegion implements vfio.Transport.
func (t *transport) WriteRegion(index int, off uint64, p []byte) error {
	if err := t.begin("write region"); err != nil {
		return err
	}
	defer t.end()
	switch index {
	case vfio.RegionBAR0:
		return t.f.writeBAR(off, p)
	case vfio.RegionConfig:
		return t.f.writeConfig(off, p)
	}
	return t.f.noRegion("write", index)
}

func (f *function) noRegion(verb string, index int) error {
	if index < 0 || index >= vfio.NumRegions {
		return f.badIndex(verb+" region", index, vfio.NumRegions)
	}
	return &vfio.Error{Op: fmt.Sprintf("%s region %d", verb, index), Target: f.name, Err: vfio.ErrNotFound,
		Remedy: "the function has BAR 0 and configuration space only"}
}

// MapRegion implements vfio.Transport: there are no mappable areas.
func (t *transport) MapRegion(index int) ([]vfio.Area, error) {
	if err := t.begin("map region"); err != nil {
		return nil, err
	}
	defer t.end()
	if index < 0 || index >= vfio.NumRegions {
		return nil, t.f.badIndex("map region", index, vfio.NumRegions)
	}
	return nil, nil
}

// DMA implements vfio.Transport. The Mapper outlives the handle.
func (t *transport) DMA() vfio.Mapper {
	if t.refused {
		return busyDMA{t}
	}
	return t.f.domain
}

// Reset implements vfio.Transport: FLR, around which configuration space is
// saved and restored, as vfio-pci does.
func (t *transport) Reset() error {
	if err := t.begin("reset"); err != nil {
		return err
	}
	defer t.end()
	t.f.resetKept()
	return nil
}

// Close implements vfio.Transport. It turns bus mastering off, detaches the
// interrupts and resets the function.
func (t *transport) Close() error {
	if t.closed.Swap(true) || t.refused {
		return nil
	}
	f := t.f
	f.chip.mu.Lock()
	f.opener = nil
	if !f.chip.closed {
		f.vectors = [msixVectors]*vfio.Vector{}
		f.extra = [vfio.NumIRQs]*vfio.Vector{}
		f.flr("last close")
		f.misbehave(rogueBatch)
	}
	idle := true
	for _, g := range f.chip.funcs {
		idle = idle && g.opener == nil
	}
	f.chip.mu.Unlock()
	if idle {
		f.chip.sched.drain() // nothing of the chip's runs once nobody has it open
	}
	return nil
}
