package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// illKinds is what a health fault does when it strikes.
var illKinds map[string]func(c *Chip, x *fault, at time.Time)

func init() {
	ill := func(of illness) func(*Chip, *fault, time.Time) {
		return func(c *Chip, x *fault, at time.Time) {
			i := of
			i.kind, i.heal, i.buf, i.stale, i.torn = x.kind.Name, x.ill.heal, x.ill.buffer(at), x.ill.stale, x.ill.count
			c.fallIll(&i, at)
		}
	}
	illKinds = map[string]func(*Chip, *fault, time.Time){
		"fatal":           ill(illness{dead: true, stopped: true, nic: -1}),
		"stall":           ill(illness{dead: true, stopped: true, nic: -1}),
		"syndrome":        ill(illness{nic: -1}),
		"health-torn":     ill(illness{nic: -1}),
		"health-stuck":    ill(illness{stopped: true, nic: -1}),
		"health-all-ones": ill(illness{ones: true, nic: -1}),
		"commands-dead":   ill(illness{dead: true, nic: -1}),
		"nic-sw-reset":    ill(illness{dead: true, stopped: true, nic: int(prm.NICInterfaceSwReset)}),
		"nic-disabled":    disableNIC,
		"peer-reset":      func(c *Chip, x *fault, _ time.Time) { c.firmwareReset(x.ill.lasts, true) },
		"flr-dead":        func(*Chip, *fault, time.Time) {}, // the FLR does it
	}
}

// disableNIC is what another function's DISABLED or finished reset looks like.
func disableNIC(c *Chip, x *fault, at time.Time) {
	for _, f := range c.funcs {
		f.stopFirmware()
		f.nicInterface = prm.NICInterfaceDisabled
	}
	if x.ill.heal > rungReopen {
		c.fallIll(&illness{kind: x.kind.Name, heal: x.ill.heal, nic: int(prm.NICInterfaceDisabled)}, at)
	}
}

// healthFaults are what firmware says of itself, and does not.
func healthFaults() []faultKind {
	kind := func(name, arg, meaning string, def illArgs) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parseIll(def), now: raiseIll}
	}
	const when = "[now][+after=DURATION][+heal=RUNG]"
	const words = "[+WORD]…"
	const waits = "; it strikes where a command queue is published, else after the next INIT_HCA (now: at once); the least reset that revives it is heal"
	return []faultKind{
		kind("fatal", "[SYNDROME]"+words, "the health buffer shows a fatal syndrome (default FW_INTERNAL_ERR), counter and commands stop"+waits+" (default sw-reset, with crr cold); WORD: "+illWords,
			illArgs{synd: prm.SyndFWInternalErr, rfr: true, sev: prm.SeverityCritical, waits: true, heal: rungSWReset}),
		kind("stall", "[SYNDROME]"+words, "counter and commands stop, without a syndrome or with one that asks for no recovery"+waits+" (default sw-reset)",
			illArgs{sev: prm.SeverityError, waits: true, heal: rungSWReset}),
		kind("syndrome", "SYNDROME"+words, "the health buffer shows a syndrome (name or number) from which no recovery is needed, after resets too (default heal: never)",
			illArgs{needs: true, sev: prm.SeverityWarning, heal: rungNever}),
		kind("health-torn", "[SYNDROME]"+words, "as syndrome (default DEAD_IRISC), and firmware writes the buffer again after every few dwords that are read, for ever or count=N times",
			illArgs{synd: prm.SyndDeadIrisc, sev: prm.SeverityWarning, count: math.MaxInt, heal: rungNever}),
		kind("health-stuck", "[after=DURATION][+heal=RUNG]", "the health counter stands still, after resets too (default heal: never); commands work",
			illArgs{heal: rungNever}),
		kind("health-all-ones", when, "health buffer and counter read all ones, everything else works"+waits+" (default flr)",
			illArgs{waits: true, heal: rungFLR}),
		{Fault: Fault{"health-counter", "N", "the counter goes on from N (24 bits, not 0)"}, parse: parseCounterValue, now: setCounter},
		{Fault: Fault{"health-rate", "N", "the counter moves N times a second (1 to 1000000)"}, parse: parseCounterRate, now: setCounterRate},
		{Fault: Fault{"health-poll", "DURATION", "DTOR says that the counter advances within that long (health_poll_to, ms or whole seconds; default 2s)"}, parse: parsePoll},
		kind("commands-dead", when, "no command is answered, the counter moves and the link is up"+waits+" (default flr)",
			illArgs{waits: true, heal: rungFLR}),
		kind("nic-disabled", when, "another function disabled the interface: nic_interface reads DISABLED and firmware has forgotten this one"+waits+" (default reopen)",
			illArgs{waits: true, heal: rungReopen}),
		kind("nic-sw-reset", when, "nic_interface reads SW_RESET for ever, counter and commands stop"+waits+" (default flr)",
			illArgs{waits: true, heal: rungFLR}),
		kind("peer-reset", "[for=DURATION][+now][+after=DURATION]", "another function of the chip resets the firmware, which takes that long (default "+swResetTime.String()+"): nic_interface reads SW_RESET, then DISABLED; the fault strikes where a command queue is published, else after the next INIT_HCA",
			illArgs{waits: true, lasts: swResetTime}),
	}
}

func parsePoll(x *fault, arg string) error {
	if err := parseDuration(x, arg); err != nil {
		return err
	}
	if x.delay < time.Millisecond || x.delay > 1000*time.Second || x.delay%time.Millisecond != 0 {
		return fmt.Errorf("%q is no number of milliseconds up to 1000s", arg)
	}
	return nil
}

func parseCounterValue(x *fault, arg string) error {
	if err := parseNumber(24)(x, arg); err != nil {
		return err
	}
	if x.n == 0 {
		return fmt.Errorf("the counter is never 0")
	}
	return nil
}

func setCounter(c *Chip, x *fault) {
	h := &c.health
	h.base, h.since = uint32(x.n), c.sched.clock.Now()
	if h.frozen != 0 {
		h.frozen = h.base
	}
}

func parseCounterRate(x *fault, arg string) error {
	if err := parseNumber(20)(x, arg); err != nil {
		return err
	}
	if x.n < 1 || x.n > 1e6 {
		return fmt.Errorf("%q is not between 1 and 1000000", arg)
	}
	return nil
}

func setCounterRate(c *Chip, x *fault) { c.health.setRate(c.sched.clock.Now(), uint64(x.n)) }
