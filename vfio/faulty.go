package vfio

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Fault says what goes wrong with some calls of one verb. Delay comes first;
// then, of AllOnes, Drop, Short and Err, what is set.
type Fault struct {
	Verb Verb
	// Match narrows the verb to some operands; nil matches every call.
	Match func(Call) bool
	// Nth is the first matching call that fails, counted from 1 since the fault
	// was added; 0 means 1. Times is how many fail from there on; 0 means one, and
	// −1 all.
	Nth, Times int

	// Delay passes before the call.
	Delay time.Duration
	// Err is the answer, in an *Error. The verb is not done, unless After is set:
	// then it is done, and fails all the same.
	Err   error
	After bool
	// Drop answers success without doing the verb: a lost doorbell, an interrupt
	// that is never attached. Verbs that answer something cannot be dropped.
	Drop bool
	// Short, of a read, fills only so many bytes and answers io.ErrUnexpectedEOF.
	Short int
	// AllOnes unplugs the device from this call on, as Faulty.Unplug does.
	AllOnes bool
}

// Plan is a list of faults; the first that matches a call counts.
type Plan []Fault

// Faulty is a Transport that fails as planned, over any other: a model or real
// hardware. Regions are not mapped through it, so that every access counts. A
// Close that fails has closed all the same. It is safe for concurrent use.
type Faulty struct {
	*hooked

	mu     sync.Mutex
	faults []*armedFault
	calls  map[Verb]int
	dead   bool
}

type armedFault struct {
	Fault
	seen, hits int
}

// NewFaulty puts a plan over t, which it owns: Close closes t.
func NewFaulty(t Transport, plan Plan) *Faulty {
	f := &Faulty{calls: map[Verb]int{}}
	for _, x := range plan {
		f.Add(x)
	}
	f.hooked = newHooked(t, f.call)
	return f
}

// Unplugged is t as a driver sees it after the device was pulled: reads give all
// ones, writes vanish, reset fails. What the host does alone (DMA mappings,
// interrupts, close) still works.
func Unplugged(t Transport) *Faulty {
	f := NewFaulty(t, nil)
	f.Unplug()
	return f
}

// Add puts one more fault at the end of the plan.
func (f *Faulty) Add(x Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.Nth == 0 {
		x.Nth = 1
	}
	if x.Times == 0 {
		x.Times = 1
	}
	f.faults = append(f.faults, &armedFault{Fault: x})
}

// Clear drops the plan; an unplugged device stays unplugged.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Unplug makes the device read all ones from now on; Replug ends that.
func (f *Faulty) Unplug() { f.setDead(true) }

// Replug ends what Unplug began.
func (f *Faulty) Replug() { f.setDead(false) }

func (f *Faulty) setDead(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = on
}

// Calls is the number of calls of a verb so far, failed ones included.
func (f *Faulty) Calls(v Verb) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[v]
}

// Unmet is the number of planned faults that no call has met so far.
func (f *Faulty) Unmet() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, a := range f.faults {
		if a.hits == 0 {
			n++
		}
	}
	return n
}

// pick counts the call and finds its fault.
func (f *Faulty) pick(c Call) (x Fault, hit, dead bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[c.Verb]++
	for _, a := range f.faults {
		if a.Verb != c.Verb || a.Match != nil && !a.Match(c) {
			continue
		}
		a.seen++
		if !hit && a.seen >= a.Nth && (a.Times < 0 || a.seen < a.Nth+a.Times) {
			x, hit = a.Fault, true
			a.hits++
			f.dead = f.dead || a.AllOnes
		}
	}
	return x, hit, f.dead
}

// call is around every verb.
func (f *Faulty) call(c Call, p []byte, do func() error) error {
	x, hit, dead := f.pick(c)
	if hit && x.Delay > 0 {
		time.Sleep(x.Delay)
	}
	if dead {
		do = f.dying(c, p, do)
	}
	if !hit {
		return do()
	}
	fail := func(err error) error { return &Error{Op: c.String(), Target: "injected fault", Err: err} }
	switch {
	case x.Drop && c.Verb.droppable():
		return nil
	case x.Short > 0 && c.Verb == VerbRead && x.Short < len(p):
		whole := append([]byte(nil), p...)
		if err := do(); err != nil {
			return err
		}
		copy(p[x.Short:], whole[x.Short:])
		return fail(fmt.Errorf("%d of %d bytes: %w", x.Short, len(p), io.ErrUnexpectedEOF))
	case x.Err != nil:
		if x.After || c.Verb == VerbClose {
			if err := do(); err != nil {
				return err
			}
		}
		return fail(x.Err)
	}
	return do()
}

// dying is what a verb does to a device that is not there: an access is checked
// as always, and touches nothing.
func (f *Faulty) dying(c Call, p []byte, do func() error) func() error {
	op := func(err error) error {
		return &Error{Op: c.String(), Target: "unplugged device", Err: err, Remedy: "check the slot and the power state; rescan the bus"}
	}
	switch c.Verb {
	case VerbRead, VerbWrite:
		return func() error {
			info, err := f.t.RegionInfo(c.Index)
			if err != nil {
				return err
			}
			if err := checkAccess(info, c.Index, c.Off, len(p), c.Verb == VerbWrite); err != nil {
				return op(err)
			}
			if c.Verb == VerbRead {
				for i := range p {
					p[i] = 0xff
				}
			}
			return nil
		}
	case VerbReset, VerbHotReset:
		return func() error {
			if _, err := f.t.Info(); err != nil {
				return err
			}
			return op(ErrGone)
		}
	}
	return do
}

// String names the call with its operands.
func (c Call) String() string {
	switch c.Verb {
	case VerbRead, VerbWrite:
		return fmt.Sprintf("%s %d bytes at %#x of region %d", c.Verb, c.Len, c.Off, c.Index)
	case VerbMapDMA, VerbUnmapDMA:
		return fmt.Sprintf("%s %#x+%#x", c.Verb, c.Off, c.Len)
	case VerbSetIRQs:
		return fmt.Sprintf("%s index %d, %d from %d", c.Verb, c.Index, c.Len, c.Start)
	case VerbRegionInfo, VerbMapRegion, VerbIRQInfo:
		return fmt.Sprintf("%s %d", c.Verb, c.Index)
	}
	return string(c.Verb)
}
