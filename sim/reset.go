package sim

import (
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// rung is how much of the device a reset reaches. An illness names the lowest
// that heals it; every higher one does too.
type rung uint8

const (
	rungReopen   rung = iota + 1 // the command queue is published anew
	rungSWReset                  // firmware reset through nic_interface
	rungFLR                      // function-level reset
	rungHotReset                 // hot reset of the slot
	rungMFRL                     // firmware reset of register MFRL, which a hot reset carries out
	rungCold                     // power
	rungNever                    // until the fault is cleared
)

var rungNames = []string{"reopen", "sw-reset", "flr", "hot-reset", "mfrl", "cold", "never"}

func (r rung) String() string { return rungNames[r-1] }

// swResetTime is how long a firmware reset takes: a choice within what Linux
// waits for (2 s).
const swResetTime = 100 * time.Millisecond

// heal ends the illnesses that a reset of this reach heals.
func (c *Chip) heal(reach rung, at time.Time) (healed bool) {
	h := &c.health
	var stale []*illness
	h.ills = slices.DeleteFunc(h.ills, func(i *illness) bool {
		if i.heal > reach {
			return false
		}
		healed = true
		if i.stale > 0 && i.buf != nil {
			stale = append(stale, i)
		}
		return true
	})
	for _, i := range stale {
		c.leaveStale(i)
	}
	for _, x := range c.faults.list {
		if x.kind.Name == "all-ones" && x.ill.heal != 0 && x.ill.heal <= reach && slices.ContainsFunc(c.funcs, x.out) {
			x.healed = true
		}
	}
	h.pulse(at)
	return healed
}

// leaveStale keeps what an illness wrote in the buffer for a while after it was
// healed.
func (c *Chip) leaveStale(i *illness) {
	old := &illness{kind: i.kind, buf: i.buf, nic: -1, heal: rungNever}
	c.health.ills = append(c.health.ills, old)
	c.lazily(i.stale, func(time.Time) {
		c.health.ills = slices.DeleteFunc(c.health.ills, func(j *illness) bool { return j == old })
		c.clearHealth()
	})
}

// revive is what a reset does to the firmware beyond the function by that was
// reset: it heals what it can and empties the buffer. Firmware that comes back
// to life has forgotten the other functions, which read DISABLED then.
func (c *Chip) revive(reach rung, by *function) {
	h, now := &c.health, c.sched.clock.Now()
	was := h.dead() || h.resetting
	if reach >= rungFLR && h.resetting {
		h.resetting = false // overtaken
		h.resets++
	}
	c.heal(reach, now)
	c.clearHealth()
	h.pulse(now)
	if !was || h.dead() {
		return
	}
	for _, g := range c.funcs {
		if g != by {
			g.stopFirmware()
			g.nicInterface = prm.NICInterfaceDisabled
		}
	}
}

// reopened is what a command queue that is published anew does to firmware that
// is ill: where it heals dead firmware, that has forgotten this function too.
func (c *Chip) reopened(f *function) {
	if !c.health.any(func(i *illness) bool { return i.heal <= rungReopen }) {
		return // a healthy device keeps what it knows
	}
	if c.health.dead() {
		f.stopFirmware()
	}
	c.revive(rungReopen, f)
}

// firmwareReset is the reset through nic_interface, whoever asked: every
// function of the chip reads SW_RESET while it runs and DISABLED with a clean
// buffer after it, until its queue is published again.
func (c *Chip) firmwareReset(d time.Duration, ends bool) {
	h, now := &c.health, c.sched.clock.Now()
	h.resetting = true
	h.resets++
	mine := h.resets
	h.pulse(now)
	for _, f := range c.funcs {
		f.stopFirmware()
	}
	c.log.Info("firmware reset", "takes", d, "ends", ends)
	if !ends {
		return
	}
	c.lazily(d, func(at time.Time) {
		if h.resets != mine {
			return
		}
		h.resetting = false
		for _, f := range c.funcs {
			f.nicInterface = prm.NICInterfaceDisabled
			f.startFirmware()
		}
		c.heal(rungSWReset, at)
		c.clearHealth()
	})
}

// swReset is what a driver's write of SW_RESET does.
func (c *Chip) swReset() {
	switch {
	case !c.swResetSupported(), c.health.resetting, c.faults.has("swreset-ignored"):
		return
	}
	d := swResetTime
	if x := c.faults.find("swreset-slow"); x != nil {
		d = x.delay
	}
	c.firmwareReset(d, !c.faults.has("swreset-stuck"))
}

func (c *Chip) swResetSupported() bool {
	return c.prof.swReset && !c.faults.has("swreset-unsupported")
}

// silence is the time after a reset in which the function does not answer.
func (f *function) silence() {
	if x := f.chip.faults.find("reset-slow"); x != nil {
		f.silentUntil = f.chip.sched.clock.Now().Add(x.delay)
	}
}

// flr is a function-level reset as hardware does it: configuration space too.
func (f *function) flr(why string) {
	c := f.chip
	c.log.Info("function-level reset", "fn", f.index, "by", why)
	f.count.Resets++
	c.tracer.say(traceCore, msgReset, uint32(f.index))
	f.powerOn()
	c.revive(rungFLR, f)
	f.silence()
	if x := c.faults.find("flr-dead"); x != nil && x.struck && !x.healed {
		x.healed = true // once
		c.fallIll(&illness{kind: x.kind.Name, startless: true, stopped: true, dead: true, nic: -1, heal: x.ill.heal}, c.sched.clock.Now())
	}
}

// slotReset resets every function of the chip and what they share, as a hot
// reset does and, reaching further, the loss of power.
func (c *Chip) slotReset(reach rung, why string) {
	h := &c.health
	c.log.Info("reset of the slot", "by", why)
	for _, f := range c.funcs {
		f.count.Resets++
		f.powerOn()
		f.silence()
	}
	c.sems = [semaphores]uint32{}
	c.reset = fwReset{round: c.reset.round + 1}
	h.resetting = false
	h.resets++
	c.heal(reach, c.sched.clock.Now())
	c.clearHealth()
}

// PowerCycle takes the power away and gives it back: every function starts over
// with configuration space as at power-on, and only a fault that no reset heals
// is still there.
func (c *Chip) PowerCycle() {
	c.mu.Lock()
	defer c.unlock()
	c.settle()
	c.slotReset(rungCold, "power")
	for _, f := range c.funcs {
		if f.opener != nil {
			f.cfg.setCommand(cmdMemory)
		}
	}
}

// ResetFunction resets function i behind the back of who has it open: an FLR around
// which configuration space is saved and restored, as an administrator's who writes
// to its reset file in sysfs.
func (c *Chip) ResetFunction(i int) {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return
	}
	c.settle()
	c.funcs[i].resetKept()
}

// resetKept is an FLR that configuration space survives.
func (f *function) resetKept() {
	saved := f.cfg
	f.flr("reset")
	f.cfg = saved
}

// resetFaults are the ways in which resets go wrong.
func resetFaults() []faultKind {
	kind := func(name, arg, meaning string, parse func(*fault, string) error, now func(*Chip, *fault)) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse, now: now}
	}
	return []faultKind{
		kind("swreset-unsupported", "", "the device says that it has no firmware reset through nic_interface (0x1fc bit 30)", parseNothing, nil),
		kind("swreset-ignored", "", "a firmware reset is asked for and does not happen", parseNothing, nil),
		kind("swreset-stuck", "", "a firmware reset never ends: nic_interface stays SW_RESET until an FLR", parseNothing, nil),
		kind("swreset-slow", "DURATION", "a firmware reset takes that long instead of "+swResetTime.String(), parseDuration, nil),
		kind("reset-slow", "DURATION", "after an FLR or a hot reset every read gives all ones for that long", parseDuration, nil),
		kind("hot-reset-refused", "", "a function of the slot is not this process's: hot resets are refused", parseNothing, nil),
		kind("mfrl-fails", "STATE", "the negotiation of a firmware reset through MFRL ends in a state: NACK, NEG_TIMEOUT or UNLOAD_TIMEOUT", parseMFRLState, nil),
		kind("flr-dead", "[now][+after=DURATION][+heal=RUNG]", "the next FLR after an INIT_HCA leaves firmware initializing for ever, until a reset of that reach (default hot-reset)", parseIll(illArgs{heal: rungHotReset, waits: true}), raiseIll),
	}
}
