package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// Faults of the firmware tracer.

// Arguments of trace-mkey.
const (
	keyRefused = iota + 1
	keyTolerated
)

// Arguments of trace-strings.
const (
	stringsGarbage = iota + 1
	stringsFormat
	stringsUnterminated
)

func tracerFaults() []faultKind {
	kind := func(name, arg, meaning string, parse func(*fault, string) error, now func(*Chip, *fault)) faultKind {
		return faultKind{Fault: Fault{name, arg, meaning}, parse: parse, now: now}
	}
	arm := func(c *Chip, x *fault) {
		delete(c.tracer.struck, x.kind.Name)
		if c.tracer.on {
			c.tracer.strikeOwner()
		}
	}
	return []faultKind{
		kind("trace-theft", "[DURATION]", "a tool takes the tracer from the function that uses it, with the event, at once or that long after it was started, and keeps it until the fault is cleared", parseOptDuration, arm),
		kind("trace-silent-theft", "[DURATION]", "the same, and no event tells: trace_owner reads 0", parseOptDuration, arm),
		kind("trace-busy", "[N]", "a tool owns the tracer until functions have asked for it N times (default: until the fault is cleared)", parseOptNumber(0), func(c *Chip, _ *fault) { c.tracer.take(false) }),
		kind("trace-kept", "", "a function that is reset or torn down while it owns the tracer still owns it afterwards", parseNothing, nil),
		kind("trace-wrap", "[N]", "whenever an event tells of new blocks, firmware goes once round the buffer and N blocks on (default 1) before anyone can read; now, if it is tracing", parseAtLeast(1), func(c *Chip, x *fault) {
			if c.tracer.on {
				c.tracer.overrun(x.n)
			}
		}),
		kind("trace-torn", "", "half a block is written as soon as it is full, over the block of the round before, whose closing timestamp stays until the rest is written", parseNothing, nil),
		kind("trace-unreliable", "[N]", "every n-th timestamp event (default each) is marked unreliable, as trc_ver says", parseAtLeast(1), nil),
		kind("trace-clock-wrap", "[TICKS]", "the tracer's clock reaches 2^53 that many ticks (default 2^24) from now", parseClockWrap, wrapClock),
		kind("trace-strings", "[garbage|format|unterminated]", "the string database reads back damaged: random bytes, conversions that nobody has, or strings without an end", parseWord("garbage", "format", "unterminated"), nil),
		kind("trace-strings-update", "[DURATION]", "the string database is replaced by another one, with the event, if the tracer is on: at once or that long after it was started", parseOptDuration, arm),
		kind("trace-pointer", "[N]", "every n-th message (default each) points outside the string database", parseAtLeast(1), nil),
		kind("trace-drop", "[N]", "firmware loses every n-th message (default each tenth) and says so with the next", parseAtLeast(10), nil),
		kind("trace-raw", "[N]", "before every n-th message (default each) come an empty event and two that are no string events", parseAtLeast(1), nil),
		kind("trace-lost-event", "[#N]", "the event that tells of new blocks is not written, or not the n-th", parseNth, nil),
		kind("trace-mkey", "refused|tolerated", "MTRC_CONF refuses a memory key that breaks a rule, or the tracer writes through it all the same", parseWord("refused", "tolerated"), nil),
		kind("trace-no-memory", "", "the device cannot trace to memory", parseNothing, nil),
		kind("trace-version", "N", "trc_ver is N", parseNumber(2), nil),
		kind("trace-awkward", "", "messages run across blocks, and timestamp events come as late as the rule allows", parseNothing, nil),
		kind("trace-edges", "", "the load of load=RATE speaks in formats on which decoders differ, too", parseNothing, nil),
	}
}

// parseNth reads [#N].
func parseNth(x *fault, arg string) error {
	if arg != "" && arg[0] != '#' {
		return fmt.Errorf("%q is no count", arg)
	}
	return parseSelector(x, arg)
}

// parseAtLeast reads a count of 1 or more.
func parseAtLeast(def int) func(*fault, string) error {
	return func(x *fault, arg string) error {
		x.n = def
		if arg == "" {
			return nil
		}
		n, err := strconv.ParseUint(arg, 10, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is no number of 1 or more", arg)
		}
		x.n = int(n)
		return nil
	}
}

// parseWord reads one of some words; the first stands for none where there are
// three.
func parseWord(words ...string) func(*fault, string) error {
	return func(x *fault, arg string) error {
		if arg == "" && len(words) > 2 {
			arg = words[0]
		}
		for i, w := range words {
			if w == arg {
				x.n = i + 1
				return nil
			}
		}
		return fmt.Errorf("%q is none of %q", arg, words)
	}
}

func parseClockWrap(x *fault, arg string) error {
	x.from = 1 << 24
	if arg == "" {
		return nil
	}
	n, err := strconv.ParseUint(arg, 0, 52)
	if err != nil {
		return fmt.Errorf("%q is no number of 52 bits", arg)
	}
	x.from = n
	return nil
}

// wrapClock moves the tracer's clock forward, as it may only go.
func wrapClock(c *Chip, x *fault) {
	s := &c.tracer.stream
	now := c.tracer.ticks()
	s.base += (traceMask + 1 - x.from - now) & traceMask
	if c.tracer.on {
		c.tracer.load.start, c.tracer.load.first = c.tracer.ticks(), c.tracer.load.next
	}
}

// strike is a fault that waits for an activation of the tracer: which one it was
// scheduled for, and whether it has struck.
type strike struct {
	gen  uint64
	done bool
}

// strikeOwner schedules what waits for a function that uses the tracer: never
// inside the command that starts it, whose answer comes first.
func (t *tracer) strikeOwner() {
	for _, x := range t.chip.faults.list {
		var do func()
		switch x.kind.Name {
		case "trace-theft":
			do = func() { t.take(false) }
		case "trace-silent-theft":
			do = func() { t.take(true) }
		case "trace-strings-update":
			do = t.updateStrings
		}
		gen, name := t.gen, x.kind.Name
		if s := t.struck[name]; do == nil || s.done || s.gen == gen {
			continue
		}
		t.struck[name] = strike{gen: gen}
		t.chip.sched.after(t.owner, x.delay, func() {
			if gen == t.gen && t.on && t.chip.faults.find(name) == x {
				t.struck[name] = strike{gen: gen, done: true}
				do()
			}
		})
	}
}

// updateStrings replaces the string database and tells every function that
// listens: each may hold a copy. No block has messages of both.
func (t *tracer) updateStrings() {
	if t.pump(); t.on && t.stream.used > 0 {
		t.close(t.ticks())
	}
	t.strings = buildStrings(t.chip.fwRev, t.strings.version+1)
	for _, f := range t.chip.funcs {
		t.tell(f, prm.TracerEventStringsDbUpdate)
	}
}

// cleared lets the tool of a fault go when no fault holds it any more.
func (t *tracer) cleared() {
	f := &t.chip.faults
	if t.tool && !t.toolAPI && !f.has("trace-theft") && !f.has("trace-silent-theft") && !f.has("trace-busy") {
		t.toolLeaves()
	}
}

// speak writes a message unless a fault keeps it, with what faults put before it.
func (t *tracer) speak(id uint8, format int, words []uint32, at uint64, about *logged) {
	about.format = format
	pointer := t.strings.pointers[format]
	for _, x := range t.chip.faults.list {
		switch x.kind.Name {
		case "trace-drop":
			if x.seen++; x.seen%x.n == 0 {
				t.count.Dropped++
				t.stream.lost = true
				return
			}
		case "trace-raw":
			if x.seen++; x.seen%x.n == 0 {
				t.raw(at)
			}
		case "trace-pointer":
			if x.seen++; x.seen%x.n == 0 {
				pointer = ^uint32(0) - 0xf
				about.unknown = true
			}
		}
	}
	t.message(id, pointer, words, at, about)
}

// raw writes events that are no messages: an empty one, one with the id behind
// the string events, one with the id before them. The empty one has no stamp.
func (t *tracer) raw(at uint64) {
	t.settle(at)
	for _, w := range []uint64{0, (traceFirst+traceIDs)<<48 | 0x1234_5678, (traceFirst-1)<<48 | 0x9abc_def0} {
		t.put(w)
	}
}

// damage is what a read of the string database makes of its bytes.
func (t *tracer) damage(section int, from uint64, b []byte) {
	x := t.chip.faults.find("trace-strings")
	if x == nil {
		return
	}
	switch x.n {
	case stringsGarbage:
		r := rand.New(rand.NewPCG(t.chip.opts.Seed+uint64(section), from))
		for i := range b {
			b[i] ^= byte(r.Uint32())
		}
	case stringsFormat:
		for i := range b {
			if bytes.IndexByte([]byte("uxXdic"), b[i]) >= 0 && i > 0 && b[i-1] == '%' {
				b[i] = "snp*"[i%4]
			}
		}
	case stringsUnterminated:
		for i := range b {
			if b[i] == 0 {
				b[i] = '.'
			}
		}
	}
}
