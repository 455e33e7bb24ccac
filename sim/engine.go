package sim

import (
	"math/rand/v2"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The data engine: what carries out the entries of work queues.
//
//	doorbell ── requester.go ── packet ── engine_route.go ── responder*.go ── host memory
//	               │           (wire.go)        │                 (memaccess.go, atomicunit.go)
//	         engine_cqe.go                  link*.go: another chip
//
// Three kinds of work wait in lists of the fabric: packets on their way, QPs with
// something to send, QPs with answers to give. One step of work takes from a list
// that has some; where more than one has, the seed chooses, so that operations
// overlap as they may on a wire. A doorbell works until nothing is left: on a
// healthy device without load it returns when everything it started is complete.
// What waits for time (RNR, timeouts, the rest of a torn write) is an event of
// the scheduler. The chip's lock guards all of it.

// fabric is what the functions of a chip share of the engine: the switch between
// them and the work that waits.
type fabric struct {
	chip    *Chip
	rng     *rand.Rand
	wire    ring[packet] // packets on their way to a function of this chip
	ready   ring[qp]     // QPs that may have something to send
	answers ring[qp]     // QPs with answers to give
	idle    ring[qp]     // QPs to look at when nothing is left to do
	running bool
	planned bool // a run is an event of the scheduler
	lostCQs []*cq
	waiters []*qp // QPs held by a WAIT
	pool    *packet
	ops     *sendOp
	link    uplink // to another chip; nil: none
	node    uint8  // which end of the link: part of every address

	// Scratch of the atomic being carried out.
	atom atomicReq
	old  atomicWords
}

func newFabric(c *Chip) *fabric {
	return &fabric{chip: c, rng: rand.New(rand.NewPCG(c.opts.Seed, 0x77697265))}
}

// packet takes a packet from the pool. Its fields other than the payload are
// zero.
func (b *fabric) packet(k packetKind) *packet {
	p := b.pool
	if p == nil {
		return &packet{kind: k}
	}
	b.pool, p.next = p.next, nil
	p.kind = k
	return p
}

// drop puts a packet back.
func (b *fabric) drop(p *packet) {
	p.kind, p.flags, p.aeth, p.atom, p.size = 0, 0, 0, 0, 0
	p.sqpn, p.msn, p.vaddr, p.rkey, p.length, p.imm, p.qkey, p.xsrq = 0, 0, 0, 0, 0, 0, 0, 0
	p.slid, p.dlid, p.sl, p.path, p.l3, p.n, p.to = 0, 0, 0, 0, 0, 0, nil
	p.next, b.pool = b.pool, p
}

func (b *fabric) op() *sendOp {
	o := b.ops
	if o == nil {
		return new(sendOp)
	}
	b.ops, o.next = o.next, nil
	return o
}

func (b *fabric) dropOp(o *sendOp) { o.next, b.ops = b.ops, o }

// kick does the work that waits: at once, or under a load in a while.
func (b *fabric) kick() {
	if b.running || b.planned {
		return
	}
	if b.chip.opts.Load > 0 {
		b.planned = true
		d := time.Duration(b.rng.ExpFloat64() / b.chip.opts.Load * float64(time.Second))
		b.chip.sched.after(nil, d, func() {
			b.planned = false
			b.run()
		})
		return
	}
	b.run()
}

// run works until nothing is left to do. A step may lead back here; the
// outermost call does the work.
func (b *fabric) run() {
	if b.running {
		return
	}
	b.running = true
	for b.step() {
	}
	for b.idle.n > 0 {
		q := b.idle.pop()
		q.flow.inIdle = false
		if !q.flow.gone {
			q.flow.f.idled(q)
		}
	}
	b.running = false
}

// step does one piece of work; false when there is none, or none that the link
// has room for.
func (b *fabric) step() bool {
	if len(b.lostCQs) > 0 {
		c := b.lostCQs[0]
		b.lostCQs = b.lostCQs[1:]
		b.stopUsers(c)
		return true
	}
	send, answer := b.ready.n > 0, b.answers.n > 0
	if b.link != nil && (send || answer) && b.link.full() {
		send, answer = false, false // its reader starts the work again
	}
	pick := 0
	switch {
	case b.wire.n > 0 && !send && !answer:
	case b.wire.n == 0 && !send && !answer:
		return false
	case b.wire.n == 0 && send != answer:
		pick = 1
		if answer {
			pick = 2
		}
	default:
		pick = b.choose(b.wire.n > 0, send, answer)
	}
	switch pick {
	case 0:
		b.deliver(b.wire.pop())
	case 1:
		q := b.ready.pop()
		q.flow.inReady = false
		if !q.flow.gone && q.flow.f.sendStep(q) {
			b.wakeSender(q)
		}
	case 2:
		q := b.answers.pop()
		q.flow.inAnswers = false
		if !q.flow.gone && q.flow.f.answerStep(q) {
			b.wakeAnswers(q)
		}
	}
	return true
}

// choose picks a list among those that have work.
func (b *fabric) choose(have ...bool) int {
	n := 0
	for _, h := range have {
		if h {
			n++
		}
	}
	k := b.rng.IntN(n)
	for i, h := range have {
		if h {
			if k == 0 {
				return i
			}
			k--
		}
	}
	return 0
}

func (b *fabric) wakeSender(q *qp) {
	if !q.flow.inReady {
		q.flow.inReady = true
		b.ready.push(q)
	}
}

func (b *fabric) wakeAnswers(q *qp) {
	if !q.flow.inAnswers {
		q.flow.inAnswers = true
		b.answers.push(q)
	}
}

// watch asks for a look at the QP when nothing is left to do: timers start there.
func (b *fabric) watch(q *qp) {
	if !q.flow.inIdle {
		q.flow.inIdle = true
		b.idle.push(q)
	}
}

// deliver hands a packet to its QP. One that finds none is lost, as on a wire.
func (b *fabric) deliver(p *packet) {
	f := p.to
	q, ok := f.qps.get(p.dqpn)
	if !ok {
		b.drop(p)
		return
	}
	q.flow.f = f
	switch {
	case p.kind == pktStop:
		f.stopped(q)
	case !p.kind.request():
		f.response(q, p)
	case q.flow.busy || q.flow.inbox.n > 0:
		q.flow.inbox.push(p)
		return
	default:
		f.request(q, p)
		return
	}
	b.drop(p)
}

// engine is the data engine of one function.
type engine struct{ f *function }

var _ dataEngine = engine{}

func (e engine) fabric() *fabric { return e.f.chip.fabric }

// ringSend implements dataEngine.
func (e engine) ringSend(q *qp, _ uint64) {
	f, fl := e.f, &q.flow
	fl.f = f
	if q.state == prm.QPStateRst {
		f.count.DoorbellsIgnored++
		return
	}
	posted, ok := f.postedSend(q)
	if !ok || uint32(posted-fl.head) > q.sq.entries() {
		f.catastrophe(q)
		e.fabric().kick()
		return
	}
	fl.posted = posted
	switch q.state {
	case prm.QPStateRts:
		e.fabric().wakeSender(q)
	case prm.QPStateErr, prm.QPStateSqer:
		f.flushSend(q)
	}
	e.fabric().kick()
}

// moved implements dataEngine.
func (e engine) moved(q *qp, from prm.QPState) {
	f, fl := e.f, &q.flow
	fl.f = f
	switch q.state {
	case prm.QPStateRst:
		f.forget(q)
	case prm.QPStateRtr:
		fl.expected = q.ctx.NextRcvPSN()
		fl.receives = true
	case prm.QPStateRts:
		if from == prm.QPStateRtr {
			fl.next, fl.acked = q.ctx.NextSendPSN(), q.ctx.NextSendPSN()
			fl.sends = true
		}
		fl.draining = false
		e.fabric().wakeSender(q)
	case prm.QPStateSqd:
		fl.draining = true
		f.drained(q)
	case prm.QPStateSqer:
		f.flushSend(q)
	case prm.QPStateErr:
		f.dropRequests(q)
		f.flushSend(q)
		f.flushRecv(q)
		if q.srq != nil {
			f.qpEvent(q, prm.EventSRQLastWQE)
		}
		if q.rq.some {
			f.watchFlush(q, flushLookFirst)
		}
	}
	e.fabric().kick()
}

// removed implements dataEngine.
func (e engine) removed(q *qp) {
	e.f.forget(q)
	q.flow.gone = true
}

// reset implements dataEngine: queues of the function that stand in lists are
// passed over, packets to it find no QP.
func (e engine) reset() {
	b := e.fabric()
	if b == nil {
		return // the chip is being built
	}
	for _, l := range []*ring[qp]{&b.ready, &b.answers, &b.idle} {
		for i := range l.n {
			if q := l.at(i); q.flow.f == e.f {
				q.flow.gone = true
			}
		}
	}
	kept := b.waiters[:0]
	for _, q := range b.waiters {
		if q.flow.f != e.f {
			kept = append(kept, q)
		}
	}
	clear(b.waiters[len(kept):])
	b.waiters = kept
}

// fill implements dataEngine.
func (e engine) fill(q *qp, c *prm.QPC) {
	f, fl := e.f, &q.flow
	c.SetHwSQWQEBBCounter(fl.head)
	c.SetSwSQWQEBBCounter(fl.posted)
	c.SetHwRQCounter(uint32(fl.taken))
	if n, ok := f.postedRecv(q); ok && q.rq.some {
		c.SetSwRQCounter(uint32(n))
	}
	if fl.sends {
		c.SetNextSendPSN(fl.next)
		c.SetLastAckedPSN((fl.acked - 1) & counter24)
		c.SetSsn(fl.ssn)
	}
	if fl.receives {
		c.SetNextRcvPSN(fl.expected)
	}
	c.SetCurRetryCount(fl.retries)
	c.SetCurRNRRetry(fl.rnrs)
}
