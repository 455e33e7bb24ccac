package sim

import (
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/vfio"
)

// The fault "rogue" is a device whose DMA does not end where it must: it remembers
// every page it has used, across resets and the last close, and once it should be
// silent it tries each of them again and again. What stops it is what would stop
// a real one: the bus-master bit, which a device whose hardware is sound cannot
// get around ("deaf" stands for one that can), and the I/O address space. The
// driver's tests use it to show that nothing of the host can be reached after a
// Close, and that the attempts are really made.

const (
	rogueEvery = 100 * time.Microsecond
	rogueBatch = 32      // pages a turn
	rogueMost  = 1 << 16 // pages remembered
	rogueByte  = 0x5a    // each byte written
)

// rogue is what one function remembers.
type rogue struct {
	known map[uint64]struct{}
	pages []uint64
	next  int
}

// learn remembers the pages of an access.
func (g *rogue) learn(iova uint64, n int) {
	for p := iova &^ (pageSize - 1); p < iova+uint64(n) && len(g.pages) < rogueMost; p += pageSize {
		if _, ok := g.known[p]; !ok {
			g.known[p] = struct{}{}
			g.pages = append(g.pages, p)
		}
	}
}

func parseRogue(x *fault, arg string) error {
	if arg != "" && arg != "deaf" {
		return fmt.Errorf("%q is not deaf", arg)
	}
	x.hasN = arg == "deaf"
	return nil
}

// startRogue begins to remember, and to try.
func startRogue(c *Chip, x *fault) {
	for _, f := range c.funcs {
		if f.rogue == nil {
			f.rogue = &rogue{known: map[uint64]struct{}{}}
		}
	}
	var turn func()
	turn = func() {
		if c.faults.find("rogue") != x {
			return
		}
		for _, f := range c.funcs {
			f.misbehave(rogueBatch)
		}
		c.sched.after(nil, rogueEvery, turn) // of no function: a reset does not end it
	}
	c.sched.after(nil, rogueEvery, turn)
}

// misbehave tries n of the pages that the function has used, if it should be
// silent: bus mastering is off, or nobody has it open.
func (f *function) misbehave(n int) {
	x := f.chip.faults.find("rogue")
	if x == nil || f.opener != nil && f.cfg.busMaster() {
		return
	}
	g := f.rogue
	for range min(n, len(g.pages)) {
		p := g.pages[g.next%len(g.pages)]
		g.next++
		f.rogueAccess(p, x.hasN)
	}
}

// rogueAccess writes one word of a page, through the gate of every access or, deaf,
// around its first half.
func (f *function) rogueAccess(p uint64, deaf bool) {
	f.count.RogueTries++
	var word [8]byte
	for i := range word {
		word[i] = rogueByte
	}
	switch {
	case !deaf:
		if f.dmaWrite(p, word[:]) {
			f.count.RogueLanded++
		}
	case f.domain.access(p, len(word), true, func(m vfio.Mem, done int) { m.CopyIn(0, word[done:done+m.Len()]) }):
		f.count.RogueLanded++
		f.count.DMAWrites++
	default:
		f.fault(p)
	}
}

// rogueUnmapped tries what has just been unmapped, at the moment in which the host
// believes that it is its own again.
func (f *function) rogueUnmapped(iova, end uint64) {
	x := f.chip.faults.find("rogue")
	if x == nil || f.opener != nil && f.cfg.busMaster() {
		return
	}
	tries := rogueBatch
	for _, p := range f.rogue.pages {
		if p >= iova && p < end && tries > 0 {
			tries--
			f.rogueAccess(p, x.hasN)
		}
	}
}
