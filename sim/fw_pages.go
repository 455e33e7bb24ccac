package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

func init() {
	handle(prm.OpQueryPages, withPages, 1<<prm.QueryPagesBoot|1<<prm.QueryPagesInit|1<<prm.QueryPagesRegular, queryPages).refuses(syndOK, syndFunctionID)
	handle(prm.OpManagePages, withPages, 1<<prm.ManagePagesCantGive|1<<prm.ManagePagesGive|1<<prm.ManagePagesTake, managePages).refuses(syndOK, syndFunctionID)
}

// ledger is every page that firmware holds.
type ledger struct {
	pages []uint64
	place map[uint64]int
}

func (l *ledger) reset()   { *l = ledger{place: map[uint64]int{}} }
func (l *ledger) len() int { return len(l.pages) }

func (l *ledger) holds(p uint64) bool {
	_, ok := l.place[p]
	return ok
}

func (l *ledger) add(p uint64) {
	l.place[p] = len(l.pages)
	l.pages = append(l.pages, p)
}

// remove takes the page at index i out; the last one moves into its place.
func (l *ledger) remove(i int) uint64 {
	p, last := l.pages[i], l.pages[len(l.pages)-1]
	l.pages[i] = last
	l.place[last] = i
	l.pages = l.pages[:len(l.pages)-1]
	delete(l.place, p)
	return p
}

// within counts held pages in [from, to).
func (l *ledger) within(from, to uint64) int {
	n := 0
	for _, p := range l.pages {
		if from <= p && p < to {
			n++
		}
	}
	return n
}

// wanted is the outstanding run-time request: > 0 wants pages, < 0 offers some.
func (w *firmware) wanted() int { return w.extra }

func queryPages(f *function, c *call) synd {
	in := prm.AsQueryPagesIn(c.in)
	if s := self(in.FunctionID()); s != syndOK {
		return s
	}
	p, held, n := f.chip.prof, f.fw.ledger.len(), 0
	switch prm.QueryPagesOpMod(c.opMod) {
	case prm.QueryPagesBoot:
		n = max(0, p.bootPages-held)
	case prm.QueryPagesInit:
		n = max(0, p.bootPages+p.initPages-held)
		n += f.chip.faults.starvation()
	case prm.QueryPagesRegular:
		n = f.fw.extra
	}
	out := prm.AsQueryPagesOut(c.out)
	out.SetNumPages(uint32(int32(n)))
	return syndOK
}

func managePages(f *function, c *call) synd {
	in := prm.AsManagePagesIn(c.in)
	if s := self(in.FunctionID()); s != syndOK {
		return s
	}
	n := uint64(in.InputNumEntries())
	switch prm.ManagePagesOpMod(c.opMod) {
	case prm.ManagePagesCantGive:
		f.fw.extra = min(f.fw.extra, 0)
		return syndOK
	case prm.ManagePagesGive:
		return f.givePages(c.in[prm.ManagePagesInSize:], n)
	}
	return f.takePages(c, n)
}

// givePages takes pages over, all or none of them.
func (f *function) givePages(list []byte, n uint64) synd {
	if uint64(len(list))/8 < n {
		return syndPageCount
	}
	l := &f.fw.ledger
	start := l.len()
	for i := range n {
		var bad synd
		p := binary.BigEndian.Uint64(list[i*8:])
		switch {
		case p%pageSize != 0:
			bad = syndPageAlign
		case l.holds(p):
			bad = syndPageTwice
		case !f.cfg.busMaster() || !f.domain.mapped(p, pageSize):
			f.fault(p)
			bad = syndPageUnmapped
		default:
			l.add(p)
			continue
		}
		for l.len() > start {
			l.remove(l.len() - 1)
		}
		return bad
	}
	if f.fw.extra > 0 {
		f.fw.extra = max(0, f.fw.extra-int(n))
	}
	return syndOK
}

// takePages gives pages back: any in any order before INIT_HCA and after
// TEARDOWN_HCA, and what firmware offered in between.
func (f *function) takePages(c *call, most uint64) synd {
	if uint64(c.room-prm.ManagePagesOutSize)/8 < most {
		return syndOutputShort
	}
	l := &f.fw.ledger
	free := l.len()
	if f.fw.phase == phaseInit {
		free = min(free, max(0, -f.fw.extra))
	}
	free = f.chip.faults.kept(free)
	n := int(min(most, uint64(free)))
	for i := range n {
		binary.BigEndian.PutUint64(c.out[prm.ManagePagesOutSize+i*8:], l.remove(f.chip.rng.IntN(l.len())))
	}
	if f.fw.phase == phaseInit {
		f.fw.extra += n
	}
	out := prm.AsManagePagesOut(c.out)
	out.SetOutputNumEntries(uint32(n))
	c.n = prm.ManagePagesOutSize + n*8
	return syndOK
}

// RequestPages makes firmware of function i ask for n more pages, or offer −n
// back, as it does at run time: an event where an event queue listens, and the
// answer of QUERY_PAGES regular. Before INIT_HCA nothing happens and it answers
// false.
func (c *Chip) RequestPages(i, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.funcs[i].requestPages(n)
}

func (f *function) requestPages(n int) bool {
	if f.fw.phase != phaseInit {
		return false
	}
	f.fw.extra += n
	f.chip.tracer.say(tracePages, msgPages, uint32(f.index), uint32(int32(n)))
	return f.pageEvent(n, false)
}

// ReleaseAllPages makes firmware of function i forget every page it holds and
// say so with an event, as it does where the release_all_pages capability is set.
func (c *Chip) ReleaseAllPages(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.funcs[i]
	if f.fw.phase != phaseInit {
		return false
	}
	n := f.fw.ledger.len()
	f.count.PagesDropped += uint64(n)
	f.fw.ledger.reset()
	f.fw.extra = 0
	return f.pageEvent(0, true)
}

func (f *function) pageEvent(n int, releaseAll bool) bool {
	eq := f.eventEQ(prm.EventPageRequest)
	if eq == nil {
		return false
	}
	var ev prm.EQE
	ev.SetEventType(prm.EventPageRequest)
	p := ev.EventData().PagesReqEvent()
	p.SetNumPages(uint32(int32(n)))
	p.SetReleaseAll(releaseAll)
	f.postEQE(eq, &ev)
	return true
}
