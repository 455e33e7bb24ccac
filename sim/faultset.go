package sim

import (
	"math/rand/v2"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// faultSet is the faults in force. The chip's lock guards it.
type faultSet struct{ list []*fault }

// SetFault raises a fault by name. A fault on commands adds to those in force;
// any other replaces the one of its name. Names and arguments are those of
// Faults; others are a *UsageError.
func (c *Chip) SetFault(name, arg string) error {
	x, err := parseFault(name, arg)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if !x.kind.command && c.faults.has(name) {
		c.faults.remove(name)
		c.forget(name)
	}
	c.faults.list = append(c.faults.list, x)
	c.log.Info("fault raised", "fault", FaultSpec{name, arg}.String())
	if x.kind.now != nil {
		x.kind.now(c, x)
	}
	return nil
}

// ClearFault ends a fault; with an empty name, all of them. Health returns to
// normal where firmware is still alive; what is lost stays lost until a reset.
// A name that does not exist is a *UsageError.
func (c *Chip) ClearFault(name string) error {
	if name != "" {
		known := false
		for i := range faultTable {
			known = known || faultTable[i].Name == name
		}
		if !known {
			return &UsageError{Word: name, What: "fault", Known: faultNames()}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	c.faults.remove(name)
	c.forget(name)
	c.tracer.cleared()
	c.log.Info("fault cleared", "fault", name)
	return nil
}

func (s *faultSet) remove(name string) {
	kept := s.list[:0]
	for _, x := range s.list {
		if name != "" && x.kind.Name != name {
			kept = append(kept, x)
		}
	}
	clear(s.list[len(kept):])
	s.list = kept
}

func (s *faultSet) find(name string) *fault {
	for _, x := range s.list {
		if x.kind.Name == name {
			return x
		}
	}
	return nil
}

func (s *faultSet) has(name string) bool { return s.find(name) != nil }

func (s *faultSet) names() []string {
	n := []string{}
	for _, x := range s.list {
		n = append(n, FaultSpec{x.kind.Name, x.arg}.String())
	}
	return n
}

// commandPlan is what faults make of one command.
type commandPlan struct {
	lost, loseEvent, duplicate bool
	token, signature           bool
	delay                      time.Duration
	delivery                   prm.DeliveryStatus
	status                     prm.CommandStatus
	syndrome                   uint32
}

func (p *commandPlan) events() int {
	if p.duplicate {
		return 2
	}
	return 1
}

// command decides the fate of the next command with this opcode; r decides what is
// left to chance.
func (s *faultSet) command(op prm.Opcode, r *rand.Rand) commandPlan {
	var p commandPlan
	for _, x := range s.list {
		if !x.kind.command || x.op != anyOp && x.op != op {
			continue
		}
		x.seen++
		if x.nth != 0 && x.seen != x.nth || x.percent != 0 && r.Float64()*100 >= x.percent {
			continue
		}
		switch x.kind.Name {
		case "late":
			p.delay += x.delay
		case "lost":
			p.lost = true
		case "duplicate":
			p.duplicate = true
		case "lost-event":
			p.loseEvent = true
		case "token":
			p.token = true
		case "signature":
			p.signature = true
		case "delivery":
			p.delivery = x.delivery
		case "status":
			p.status, p.syndrome = x.status, x.syndrome
		}
	}
	return p
}

func (s *faultSet) reorder() bool    { return s.has("reorder") }
func (s *faultSet) neverReady() bool { return s.has("init-never") }
func (s *faultSet) starving() bool   { return s.has("page-starvation") }

func (s *faultSet) startDelay() time.Duration {
	if x := s.find("init-slow"); x != nil {
		return x.delay
	}
	return 0
}

func (s *faultSet) interfaceRev(rev int) uint16 {
	if x := s.find("cmdif-rev"); x != nil {
		rev = x.n
	}
	return uint16(rev)
}

func (s *faultSet) supportedISSI(mask uint32) uint32 {
	if x := s.find("issi"); x != nil {
		return uint32(x.n)
	}
	return mask
}

func (s *faultSet) starvation() int {
	if x := s.find("page-starvation"); x != nil {
		return x.n
	}
	return 0
}

// kept reduces the pages that may be returned.
func (s *faultSet) kept(free int) int {
	if x := s.find("pages-kept"); x != nil {
		return max(0, free-x.n)
	}
	return free
}

func (s *faultSet) loseInterrupt(vector int) bool {
	x := s.find("lost-irq")
	if x == nil || x.vector >= 0 && x.vector != vector {
		return false
	}
	x.seen++
	return x.nth == 0 || x.seen == x.nth
}

// allOnes tells whether the function is as good as unplugged.
func (f *function) allOnes() bool {
	x := f.chip.faults.find("all-ones")
	switch {
	case !f.silentUntil.IsZero() && f.chip.sched.clock.Now().Before(f.silentUntil):
		return true
	case x == nil || x.healed:
		return false
	}
	return x.out(f)
}

// out tells whether the n-th access of an all-ones fault has come, or its time.
// A reset before that heals nothing.
func (x *fault) out(f *function) bool {
	switch {
	case x.hasN:
		return f.accesses >= x.from+uint64(x.n)
	case x.delay > 0:
		return f.chip.now() >= x.at+x.delay
	}
	return true
}

func startAllOnes(c *Chip, x *fault) {
	x.at = c.now()
	// Counted per function from now on; the first is the one that counts.
	x.from = c.funcs[0].accesses
}

// morePages makes the page faults act on functions that are up.
func morePages(sign int) func(*Chip, *fault) {
	return func(c *Chip, x *fault) {
		for _, f := range c.funcs {
			f.pageFault(x, sign)
		}
	}
}

// pageFault asks for or offers pages once an event queue can tell.
func (f *function) pageFault(x *fault, sign int) {
	if !x.done[f] && f.fw.phase == phaseInit && f.eventEQ(prm.EventPageRequest) != nil {
		x.done[f] = true
		f.requestPages(sign * x.n)
	}
}

// afterCreateEQ lets page faults that waited for a listener act. The event comes
// after the completion of the command.
func (s *faultSet) afterCreateEQ(f *function, q *eq) {
	if q.mask[0]>>prm.EventPageRequest&1 == 0 {
		return
	}
	for _, n := range []struct {
		name string
		sign int
	}{{"pages-more", 1}, {"pages-negative", -1}} {
		if x := s.find(n.name); x != nil && !x.done[f] {
			f.later = append(f.later, func() { f.pageFault(x, n.sign) })
		}
	}
}

// afterReset re-applies what outlives a reset: a fault in force, not its effects
// on the pages.
func (s *faultSet) afterReset(f *function) {
	for _, x := range s.list {
		delete(x.done, f)
	}
}
