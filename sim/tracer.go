package sim

import (
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// tracer is the chip's firmware tracer: one for all functions, owned by one of
// them, by a tool, or by nobody. It writes what firmware does into the owner's
// memory. The chip's lock guards it.
//
//	tracer_regs.go      the four registers
//	tracer_stream.go    events, timestamps, blocks, memory, the event that tells
//	tracer_firmware.go  what firmware says about its work
//	tracer_load.go      messages of known content
//	tracer_strings.go   the string database
//	tracer_log.go       what was written, for those who check readers
//	tracer_faults.go    faults
type tracer struct {
	chip  *Chip
	owner *function
	tool  bool // a tool owns it: every function reads that it does not
	asked int  // times that functions asked for it since the tool has it
	// toolAPI says that Chip.TakeTracer took it, not a fault. silent: the tool's
	// coming and going raises no event.
	toolAPI, silent bool

	conf    prm.MtrcConf
	on      bool
	armed   bool // one event is owed to new blocks
	fresh   bool // blocks were written that no event has told of
	strings *traceStrings
	gen     uint64 // of the activation: what was scheduled for an earlier one does nothing
	struck  map[string]strike
	eqe     prm.EQE

	stream traceStream
	load   traceLoad
	log    traceLog
	count  TraceStats
}

func (t *tracer) init(c *Chip) {
	t.chip = c
	t.strings = buildStrings(c.fwRev, 0)
	t.struck = map[string]strike{}
	t.load.rate = c.opts.Load
}

// acquire is a function's wish to own the tracer.
func (t *tracer) acquire(f *function) {
	switch {
	case t.tool:
		t.asked++
		if x := t.chip.faults.find("trace-busy"); x != nil && !t.toolAPI && x.n > 0 && t.asked >= x.n {
			f.later = append(f.later, t.toolLeaves) // after this answer
		}
	case t.owner == nil:
		t.owner = f
		t.conf = prm.MtrcConf{}
	}
}

// release is the owner's own wish: what is in the open block is written first.
func (t *tracer) release(f *function) {
	if t.owner != f {
		return
	}
	t.disable(true)
	t.owner = nil
	t.announce(f)
}

// forget is the end of a function's objects, by a reset or a teardown: memory
// keys are gone, and with them what the tracer wrote through.
func (t *tracer) forget(f *function) {
	if t.owner != f {
		return
	}
	t.disable(false)
	t.conf = prm.MtrcConf{}
	if t.chip.faults.has("trace-kept") {
		return
	}
	t.owner = nil
	t.announce(f)
}

// take is a tool that comes: it wins against every function.
func (t *tracer) take(silent bool) {
	if t.tool {
		return
	}
	t.disable(false)
	t.owner, t.tool, t.silent, t.asked = nil, true, silent, 0
	t.announce(nil)
}

// toolLeaves gives the tracer back to whoever asks next.
func (t *tracer) toolLeaves() {
	if !t.tool {
		return
	}
	t.tool, t.toolAPI = false, false
	t.announce(nil)
	t.silent = false
}

// TakeTracer lets a tool take the tracer, as a debugger of the device does: the
// function that owns it loses it and what it has not read of the open block.
// Functions hear of it unless silent is set; a silent tool also leaves unheard.
func (c *Chip) TakeTracer(silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracer.take(silent)
	c.tracer.toolAPI = true
}

// GiveTracer lets the tool let go of the tracer; functions hear of it. Without a
// tool nothing happens.
func (c *Chip) GiveTracer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracer.toolLeaves()
}

// announce tells the functions that listen, but for one, that ownership changed.
func (t *tracer) announce(but *function) {
	if t.silent {
		return
	}
	for _, g := range t.chip.funcs {
		if g != but {
			t.tell(g, prm.TracerEventOwnershipChange)
		}
	}
}

// tell posts a tracer event to a function that listens.
func (t *tracer) tell(f *function, sub prm.TracerEventSubtype) {
	eq := f.eventEQ(prm.EventDeviceTracer)
	if eq == nil {
		return
	}
	t.eqe = prm.EQE{}
	t.eqe.SetEventType(prm.EventDeviceTracer)
	t.eqe.SetEventSubType(uint8(sub))
	f.postEQE(eq, &t.eqe)
}

// enable starts to trace.
func (t *tracer) enable() {
	if t.on {
		return
	}
	t.on, t.fresh = true, false
	t.gen++
	t.stream.open(t.ticks())
	t.load.begin(t)
	t.say(traceCore, msgTracerOn, uint32(t.owner.index), t.blocks())
	t.pump()
	t.strikeOwner()
}

// disable ends it. What the open block holds is written, or is lost.
func (t *tracer) disable(write bool) {
	if t.on {
		t.pump()
		if write && t.stream.used > 0 {
			t.close(t.ticks())
		}
	}
	t.on, t.armed, t.fresh = false, false, false
	t.gen++
	t.stream.drop()
	t.log.drop()
}

// arm asks for one event as soon as blocks exist that no event has told of.
func (t *tracer) arm() {
	t.armed = true
	t.raise()
}

// raise is the event that tells of new blocks, where it is owed.
func (t *tracer) raise() {
	if !t.on || !t.armed || !t.fresh {
		return
	}
	t.armed, t.fresh = false, false
	if x := t.chip.faults.find("trace-lost-event"); x != nil {
		x.seen++
		if x.nth == 0 || x.seen == x.nth {
			t.owner.count.EventsLost++
			return
		}
	}
	t.tell(t.owner, prm.TracerEventTracesAvailable)
	if x := t.chip.faults.find("trace-wrap"); x != nil {
		t.overrun(x.n)
	}
}

// ticks is the tracer's clock: the device's, not cut to 53 bits. It never runs
// behind what was written last.
func (t *tracer) ticks() uint64 {
	return max(t.stream.base+t.chip.funcs[0].internalTimer(), t.stream.last)
}

// blocks is the number of blocks of the buffer.
func (t *tracer) blocks() uint32 {
	return pageSize / traceBlock << t.conf.LogTraceBufferSize()
}
