package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// illness is something that is wrong with the firmware of a chip, until a reset
// that reaches far enough.
type illness struct {
	kind      string // the fault that brought it
	heal      rung
	dead      bool // no commands, no doorbells
	stopped   bool // the counter stands still
	startless bool // never leaves initializing
	ones      bool // buffer and counter read all ones
	nic       int  // what nic_interface reads; -1 is nothing of it
	torn      int  // how often the buffer is written again while it is read
	buf       *prm.HealthBuffer
	stale     time.Duration // how long the buffer's content outlives it
}

// illArgs is the argument of a health fault: WORDs joined by +.
type illArgs struct {
	synd     prm.HealthSyndrome
	needs    bool // a syndrome must be given
	rfr, crr bool
	invalid  bool // severity is not valid
	sev      prm.HealthSeverity
	irisc    uint8
	ext      uint16
	time     uint32
	exit, ra uint32
	assert   [6]uint32
	after    time.Duration // how long it waits
	stale    time.Duration
	lasts    time.Duration // peer-reset
	now      bool          // does not wait for a driver
	waits    bool          // does
	count    int           // health-torn
	heal     rung
}

// illWords explains the argument of faults that write the buffer.
const illWords = "sev=SEVERITY, novalid, rfr, norfr, crr, irisc=N, ext=N, time=N, exit=N, callra=N, assert=N/N/N/N/N/N, now, after=DURATION, heal=RUNG (reopen sw-reset flr hot-reset mfrl cold never), stale=DURATION (the content outlives it that long)"

// parseIll reads the argument of a health fault over its defaults.
func parseIll(def illArgs) func(*fault, string) error {
	return func(x *fault, arg string) error {
		x.ill = def
		if arg != "" {
			for _, w := range strings.Split(arg, "+") {
				if err := x.ill.word(w, def); err != nil {
					return err
				}
			}
		}
		if x.ill.needs && x.ill.synd == 0 {
			return &nameError{"", "health syndrome", prm.HealthSyndromeEnum}
		}
		if x.ill.crr && x.ill.heal < rungCold && !strings.Contains(arg, "heal=") {
			x.ill.heal = rungCold
		}
		return nil
	}
}

// word takes one WORD; def tells which words the fault has.
func (a *illArgs) word(w string, def illArgs) error {
	buffer := def.sev != 0 // every fault that writes the buffer has a severity
	key, val, has := strings.Cut(w, "=")
	durations := map[string]*time.Duration{"after": &a.after}
	if buffer {
		durations["stale"] = &a.stale
	}
	if def.lasts != 0 {
		durations["for"] = &a.lasts
	}
	switch d := durations[key]; {
	case has && d != nil:
		v, err := time.ParseDuration(val)
		if err != nil || v <= 0 {
			return fmt.Errorf("%q is no duration", val)
		}
		*d = v
	case w == "now" && def.waits:
		a.now = true
	case has && key == "heal" && def.heal != 0:
		i := slices.Index(rungNames, val)
		if i < 0 {
			return fmt.Errorf("%q is no reset; there are %s", val, strings.Join(rungNames, ", "))
		}
		a.heal = rung(i + 1)
	case has && key == "count" && def.count != 0:
		n, err := strconv.ParseUint(val, 0, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is no count", val)
		}
		a.count = int(n)
	case buffer && has:
		return a.field(key, val)
	case buffer:
		return a.flag(w)
	default:
		return fmt.Errorf("%q is no word of this fault", w)
	}
	return nil
}

// flag takes a WORD without a value: a bit of the buffer, or the syndrome.
func (a *illArgs) flag(w string) error {
	switch w {
	case "rfr":
		a.rfr = true
	case "norfr":
		a.rfr = false
	case "crr":
		a.crr = true
	case "novalid":
		a.invalid = true
	default:
		return a.syndrome(w)
	}
	return nil
}

// field takes a value of the buffer.
func (a *illArgs) field(key, val string) (err error) {
	number := func(val string, bits int) uint32 {
		n, e := strconv.ParseUint(val, 0, bits)
		if e != nil {
			err = fmt.Errorf("%q is no number of %d bits", val, bits)
		}
		return uint32(n)
	}
	switch key {
	case "sev":
		s, ok := prm.ParseHealthSeverity(val)
		if a.sev = s; !ok {
			if a.sev = prm.HealthSeverity(number(val, 3)); err != nil {
				err = fmt.Errorf("%q is no severity (0 to 7 or a name)", val)
			}
		}
	case "irisc":
		a.irisc = uint8(number(val, 8))
	case "ext":
		a.ext = uint16(number(val, 16))
	case "time":
		a.time = number(val, 32)
	case "exit":
		a.exit = number(val, 32)
	case "callra":
		a.ra = number(val, 32)
	case "assert":
		parts := strings.Split(val, "/")
		if len(parts) > len(a.assert) {
			return fmt.Errorf("%q has more than %d numbers", val, len(a.assert))
		}
		for i, p := range parts {
			a.assert[i] = number(p, 32)
		}
	default:
		err = fmt.Errorf("%q is no word of this fault", key+"="+val)
	}
	return err
}

func (a *illArgs) syndrome(w string) error {
	a.synd = 0
	if h, ok := prm.ParseHealthSyndrome(w); ok {
		a.synd = h
	} else if n, err := strconv.ParseUint(w, 0, 8); err == nil {
		a.synd = prm.HealthSyndrome(n)
	}
	if a.synd == 0 {
		return &nameError{w, "health syndrome", prm.HealthSyndromeEnum}
	}
	return nil
}

// buffer is the health buffer that a fault writes; nil where it has no syndrome.
func (a *illArgs) buffer(at time.Time) *prm.HealthBuffer {
	if a.synd == 0 {
		return nil
	}
	b := &prm.HealthBuffer{}
	for i, v := range a.assert {
		b.SetAssertVar(i, v)
	}
	b.SetAssertExistptr(a.exit)
	b.SetAssertCallra(a.ra)
	b.SetTime(a.time)
	if a.time == 0 {
		b.SetTime(uint32(at.Unix()))
	}
	b.SetRFR(a.rfr)
	b.SetCRR(a.crr)
	b.SetValid(!a.invalid)
	b.SetSeverity(a.sev)
	b.SetIriscIndex(a.irisc)
	b.SetSynd(a.synd)
	b.SetExtSynd(a.ext)
	return b
}

// raiseIll is how a health fault begins: at once, or where a reset would heal it
// unseen, only when a driver is at work.
func raiseIll(c *Chip, x *fault) {
	if x.ill.waits && !x.ill.now && !slices.ContainsFunc(c.funcs, func(f *function) bool { return f.queue != 0 }) {
		return // strike will
	}
	c.begin(x)
}

// strike begins the faults that waited for an INIT_HCA.
func (f *function) strike() {
	for _, x := range f.chip.faults.list {
		if x.ill.waits && !x.begun {
			f.chip.begin(x)
		}
	}
}

// begin lets a fault strike when its time has come, once.
func (c *Chip) begin(x *fault) {
	x.begun = true
	c.lazily(x.ill.after, func(at time.Time) {
		if slices.Contains(c.faults.list, x) {
			x.struck = true
			illKinds[x.kind.Name](c, x, at)
		}
	})
}

// fallIll puts an illness in force.
func (c *Chip) fallIll(i *illness, at time.Time) {
	if i.buf != nil {
		c.tracer.traceHealth(i.buf)
	}
	c.health.ills = append(c.health.ills, i)
	if i.buf != nil {
		c.clearHealth()
	}
	c.health.pulse(at)
	c.log.Info("firmware fell ill", "fault", i.kind, "healed_by", i.heal.String())
}

// forget ends the illnesses that a fault brought, but for dead firmware, which
// any reset revives then.
func (c *Chip) forget(name string) {
	h := &c.health
	h.ills = slices.DeleteFunc(h.ills, func(i *illness) bool {
		if name != "" && i.kind != name {
			return false
		}
		i.heal = min(i.heal, rungSWReset)
		i.torn = 0
		return !i.dead
	})
	now := c.sched.clock.Now()
	h.pulse(now)
	if name == "" || name == "health-rate" {
		h.setRate(now, defaultHealthRate)
	}
	if name == "" || name == "reset-slow" {
		for _, f := range c.funcs {
			f.silentUntil = time.Time{}
		}
	}
	if !h.dead() {
		c.clearHealth()
	}
}
