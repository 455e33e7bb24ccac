package sim

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Where the health buffer lies in the initialization segment.
const (
	healthBuffer    = 0x200
	healthBufferEnd = healthBuffer + prm.HealthBufferSize
)

// health is what a chip's firmware says of itself. All functions show the same:
// one firmware serves them (Linux health.c: the buffer is shared and a reset by
// one function clears it for all). The chip's lock guards it.
type health struct {
	buf    prm.HealthBuffer
	ills   []*illness
	frozen uint32    // the counter while it stands still; 0 while it moves
	base   uint32    // counter value at since
	since  time.Time // moment from which the counter runs with rate
	rate   uint64    // increments a second

	resetting bool   // a firmware reset runs
	resets    uint64 // of the firmware; a reset that was overtaken ends nothing
	reads     int    // dwords of the buffer read, for health-torn
}

// defaultHealthRate is a choice: no source states the rate of a real device;
// Linux and rdma-core only want the counter to move.
const defaultHealthRate = uint64(time.Second / healthTick)

// counter is the health counter at a moment. It is never 0, so the first value
// a driver sees differs from the 0 it starts with.
func (h *health) counter(at time.Time) uint32 {
	if h.frozen != 0 {
		return h.frozen
	}
	n := uint64(max(0, at.Sub(h.since))) / (uint64(time.Second) / h.rate)
	return uint32((uint64(h.base)-1+n)%0xffffff) + 1
}

// setRate goes on counting from here with another rate.
func (h *health) setRate(at time.Time, rate uint64) {
	h.base, h.since, h.rate = h.counter(at), at, rate
}

// clearHealth writes the buffer anew: empty but for what names firmware and
// chip, or with what an illness still shows.
func (c *Chip) clearHealth() {
	h := &c.health
	h.buf = prm.HealthBuffer{}
	for _, i := range h.ills {
		if i.buf != nil {
			h.buf = *i.buf
		}
	}
	c.nameHealth(&h.buf)
}

// nameHealth puts in what the buffer of a healthy device has too.
func (c *Chip) nameHealth(b *prm.HealthBuffer) {
	v := c.fwRev
	b.SetFWVersion(uint32(v.Major)<<24 | uint32(v.Minor)<<16 | uint32(v.Sub))
	b.SetHwID(c.prof.hwID)
}

// complain shows a syndrome that firmware came upon by itself and that needs no
// recovery, where the buffer is empty.
func (c *Chip) complain(s prm.HealthSyndrome) {
	b := &c.health.buf
	if b.Synd() != 0 {
		return
	}
	b.SetSynd(s)
	b.SetTime(uint32(c.sched.clock.Now().Unix()))
	b.SetValid(true)
	b.SetSeverity(prm.SeverityWarning)
	c.tracer.traceHealth(b)
}

// readHealth reads one dword of the buffer.
func (c *Chip) readHealth(off uint64) uint32 {
	h := &c.health
	if h.any(func(i *illness) bool { return i.ones }) {
		return 0xffffffff
	}
	for _, i := range h.ills {
		if i.torn == 0 || i.buf == nil {
			continue
		}
		if h.reads++; h.reads%tornReads == 0 {
			// Firmware writes while the host reads: another version from here on.
			for k := range 6 {
				h.buf.SetAssertVar(k, h.buf.AssertVar(k)+1)
			}
			h.buf.SetTime(h.buf.Time() + 1)
			h.buf.SetExtSynd(h.buf.ExtSynd() + 1)
			*i.buf = h.buf
			i.torn--
		}
	}
	return binary.BigEndian.Uint32(h.buf[off-healthBuffer:])
}

// tornReads is how many dwords are read between two writes of the firmware: no
// two readings of the sixteen in a row agree.
const tornReads = 5

// healthWord is the dword with the counter: syndrome and 24 bits.
func (c *Chip) healthWord() uint32 {
	h := &c.health
	if h.any(func(i *illness) bool { return i.ones }) {
		return 0xffffffff
	}
	return uint32(h.buf.Synd())<<24 | h.counter(c.sched.clock.Now())
}

func (h *health) any(is func(*illness) bool) bool { return slices.ContainsFunc(h.ills, is) }

// dead tells whether firmware answers no commands and no doorbells.
func (h *health) dead() bool { return h.any(func(i *illness) bool { return i.dead }) }

// startless tells whether firmware never leaves initializing.
func (h *health) startless() bool { return h.any(func(i *illness) bool { return i.startless }) }

// pulse stops or starts the counter, as illnesses and resets have it.
func (h *health) pulse(at time.Time) {
	stop := h.resetting || h.any(func(i *illness) bool { return i.stopped })
	switch {
	case stop && h.frozen == 0:
		h.frozen = h.counter(at)
	case !stop:
		h.frozen = 0
	}
}

// nic is what the function's nic_interface reads.
func (f *function) nic() prm.NICInterface {
	h := &f.chip.health
	for _, i := range h.ills {
		if i.nic >= 0 {
			return prm.NICInterface(i.nic)
		}
	}
	if h.resetting {
		return prm.NICInterfaceSwReset
	}
	return f.nicInterface
}

// lateEffect happens when somebody looks at the chip after its moment: nothing
// waits for it.
type lateEffect struct {
	at time.Time
	do func(at time.Time)
}

// lazily lets something happen in d.
func (c *Chip) lazily(d time.Duration, do func(at time.Time)) {
	at := c.sched.clock.Now().Add(d)
	if d <= 0 {
		do(at)
		return
	}
	i, _ := slices.BinarySearchFunc(c.late, at, func(e lateEffect, at time.Time) int {
		if e.at.After(at) {
			return 1
		}
		return -1 // equal moments: in the order they were asked for
	})
	c.late = slices.Insert(c.late, i, lateEffect{at, do})
}

// settle lets happen what is due. Whoever looks at the chip calls it first, with
// the lock held.
func (c *Chip) settle() {
	for len(c.late) > 0 && !c.late[0].at.After(c.sched.clock.Now()) {
		e := c.late[0]
		c.late = slices.Delete(c.late, 0, 1)
		e.do(e.at)
	}
}
