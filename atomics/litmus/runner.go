package litmus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

const (
	// slots are the operations a requester may have in flight; each has memory
	// for what it sends and for what comes back.
	slots    = 8
	slotOut  = 0
	slotIn   = 512
	slotSize = 1024
	// recvs are the messages a receiving end can take ahead.
	recvs    = 8
	recvSize = 64
	// minSQ is the smallest send queue in blocks: one operation of the largest
	// kind takes 9.
	minSQ     = 16
	wqeBlocks = 10
	maxPorts  = 64
)

// runner drives the requesters of a Rig.
type runner struct {
	rig   *Rig
	o     Options
	rng   *rand.Rand
	card  *Card
	ports []*port
	cqs   []cqUser
	comp  [32]queues.Completion
	clock int // of events: posts and completions
	ops   int // posted by the current test
	end   time.Time
	stop  bool // the current test's time is over
	// sequential is the fault that single operations have.
	sequential atomics.Fault
}

// cqUser is a CQ and the ports that complete on it, by queue pair number.
type cqUser struct {
	cq     atomics.CompletionQueue
	sends  map[uint32]*port
	accept map[uint32]*port
}

// port is a requester with its operations in flight.
type port struct {
	run   *runner
	req   *Requester
	index int
	free  []int
	slots [slots]slot
	// received hears of messages that arrived at the other end.
	received func(payload []byte) error
}

// slot is one operation in flight.
type slot struct {
	req   atomics.Request
	reply atomics.Order
	done  func(s *slot, in atomics.Memory) error
}

func newRunner(rig *Rig, o Options, card *Card) *runner {
	r := &runner{rig: rig, o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x6c69746d7573)), card: card, end: time.Now().Add(o.Budget)}
	if r.rig.Idle == nil {
		r.rig.Idle = atomics.Yield
	}
	for i := range rig.Requesters {
		q := &rig.Requesters[i]
		p := &port{run: r, req: q, index: i}
		for s := range slots {
			p.free = append(p.free, s)
		}
		r.ports = append(r.ports, p)
		r.user(q.Conn.CQ).sends[q.Conn.SQ.QPN()] = p
		if q.Accept.RQ != nil {
			r.user(q.Accept.CQ).accept[q.Accept.QPN] = p
		}
	}
	return r
}

func (r *runner) user(cq atomics.CompletionQueue) *cqUser {
	for i := range r.cqs {
		if r.cqs[i].cq == cq {
			return &r.cqs[i]
		}
	}
	r.cqs = append(r.cqs, cqUser{cq: cq, sends: map[uint32]*port{}, accept: map[uint32]*port{}})
	return &r.cqs[len(r.cqs)-1]
}

func (r *runner) tick() int { r.clock++; return r.clock }

// count is n operations scaled by the options.
func (r *runner) count(n int) int { return max(1, int(float64(n)*r.o.Scale)) }

// room tells whether the port can take another operation.
func (p *port) room() bool {
	return len(p.free) > 0 && p.req.Conn.SQ.Free() >= wqeBlocks
}

func (p *port) take(done func(s *slot, in atomics.Memory) error) (int, *slot) {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	s := &p.slots[i]
	s.done = done
	p.run.ops++
	p.run.tick()
	return i, s
}

func (p *port) out(i int) atomics.Memory { return p.req.Local.Slice(i*slotSize+slotOut, 512) }
func (p *port) in(i int) atomics.Memory  { return p.req.Local.Slice(i*slotSize+slotIn, 512) }

// atomic posts an operation on the target; op.Addr counts from the target's
// beginning. done gets the old value, and tells whether it was stored.
func (p *port) atomic(op atomics.Op, f queues.Flags, done func(old uint64, stored bool) error) error {
	return p.atomicRaw(op, f, func(s *slot, in atomics.Memory) error {
		var b [256]byte
		in.Load(0, b[:(s.req.Size+7)&^7])
		return done(s.req.Extract(b[:], s.reply), s.req.Matched(b[:], s.reply))
	})
}

// wide is atomic for the old words of a larger argument.
func (p *port) wide(op atomics.Op, f queues.Flags, done func(old []uint64, stored bool) error) error {
	return p.atomicRaw(op, f, func(s *slot, in atomics.Memory) error {
		var b [256]byte
		in.Load(0, b[:s.req.Size])
		old := make([]uint64, op.Size/8)
		s.req.ExtractWide(old, b[:], s.reply)
		return done(old, s.req.Matched(b[:], s.reply))
	})
}

func (p *port) atomicRaw(op atomics.Op, f queues.Flags, done func(s *slot, in atomics.Memory) error) error {
	op.Addr += p.run.rig.Target.Addr
	i, s := p.take(done)
	var err error
	if s.reply, err = p.req.Profile.Encode(&s.req, &op); err != nil {
		return err
	}
	return s.req.Post(p.req.Conn.SQ, uint64(i), f|queues.Signalled, p.in(i).SGE(0, s.req.Size), p.run.rig.Target.RKey)
}

// write posts an RDMA WRITE of data to byte off of the target.
func (p *port) write(off int, data []byte, f queues.Flags, done func() error) error {
	i, _ := p.take(func(*slot, atomics.Memory) error { return done() })
	padded := make([]byte, (len(data)+7)&^7)
	copy(padded, data)
	p.out(i).Store(0, padded)
	return p.req.Conn.SQ.Write(uint64(i), f|queues.Signalled, p.out(i).SGE(0, len(data)), p.run.rig.Target.Remote(off))
}

// read posts an RDMA READ of n bytes, a multiple of 8, at off of the target.
func (p *port) read(off, n int, f queues.Flags, done func(b []byte) error) error {
	i, _ := p.take(func(_ *slot, in atomics.Memory) error {
		b := make([]byte, n)
		in.Load(0, b)
		return done(b)
	})
	return p.req.Conn.SQ.Read(uint64(i), f|queues.Signalled, p.in(i).SGE(0, n), p.run.rig.Target.Remote(off))
}

// send posts a message of up to recvSize bytes.
func (p *port) send(data []byte, f queues.Flags, done func() error) error {
	i, _ := p.take(func(*slot, atomics.Memory) error { return done() })
	padded := make([]byte, (len(data)+7)&^7)
	copy(padded, data)
	p.out(i).Store(0, padded)
	return p.req.Conn.SQ.Send(uint64(i), f|queues.Signalled, p.out(i).SGE(0, len(data)))
}

// postRecv gives receive buffer i to the other end.
func (p *port) postRecv(i int) error {
	a := &p.req.Accept
	if err := a.RQ.Post(uint64(i), a.Local.SGE(i*recvSize, recvSize)); err != nil {
		return err
	}
	a.RQ.Ring()
	return nil
}

// poll takes what has completed and tells the ports.
func (r *runner) poll() (int, error) {
	total := 0
	for i := range r.cqs {
		u := &r.cqs[i]
		n, err := u.cq.Poll(r.comp[:])
		for j := range r.comp[:n] {
			if err := r.complete(u, &r.comp[j]); err != nil {
				return total, err
			}
		}
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (r *runner) complete(u *cqUser, c *queues.Completion) error {
	r.tick()
	if !c.OK() {
		return u.cq.Err(c)
	}
	if c.Recv() {
		p := u.accept[c.QPN]
		if p == nil {
			return fmt.Errorf("a message arrived on queue pair 0x%x, which no requester sends to", c.QPN)
		}
		i := int(c.WRID)
		b := make([]byte, recvSize)
		p.req.Accept.Local.Load(i*recvSize, b)
		if p.received == nil {
			return fmt.Errorf("a message arrived on queue pair 0x%x that no test sent", c.QPN)
		}
		if err := p.received(b[:min(int(c.ByteLen), recvSize)]); err != nil {
			return err
		}
		return p.postRecv(i)
	}
	p := u.sends[c.QPN]
	if p == nil || c.WRID >= slots {
		return fmt.Errorf("a completion of queue pair 0x%x, number %d, belongs to nothing posted", c.QPN, c.WRID)
	}
	s := &p.slots[c.WRID]
	if s.done == nil {
		return fmt.Errorf("operation %d of queue pair 0x%x completed twice", c.WRID, c.QPN)
	}
	done := s.done
	s.done = nil
	err := done(s, p.in(int(c.WRID)))
	p.free = append(p.free, int(c.WRID))
	return err
}

// busyBeyond tells whether the port has more than n operations in flight.
func (p *port) busyBeyond(n int) bool { return slots-len(p.free) > n }

func (r *runner) inFlight() int {
	n := 0
	for _, p := range r.ports {
		n += slots - len(p.free)
	}
	return n
}

// drive issues operations until there are no more: post is asked, port by port in
// random order, to post something and tells whether it did; it is not asked any
// more once it says done. Doorbells ring for several operations or one, as chance
// has it. It returns when everything posted has completed.
func (r *runner) drive(ctx context.Context, post func(p *port) (posted bool, err error), done func() bool) error {
	last := time.Now()
	for round := 0; ; round++ {
		posted := false
		finished := done() || r.stop
		for _, i := range r.rng.Perm(len(r.ports)) {
			p := r.ports[i]
			for burst := r.rng.IntN(3); !finished && burst >= 0 && p.room(); burst-- {
				ok, err := post(p)
				if err != nil {
					return err
				}
				posted = posted || ok
			}
		}
		for _, i := range r.rng.Perm(len(r.ports)) {
			if finished || !posted || r.rng.IntN(4) != 0 {
				r.ports[i].req.Conn.SQ.Ring()
			}
		}
		n, err := r.poll()
		if err != nil {
			return err
		}
		if n > 0 {
			last = time.Now()
		}
		if (done() || r.stop) && r.inFlight() == 0 {
			return nil
		}
		if n == 0 && !posted {
			if err := r.rig.Idle(ctx); err != nil {
				return fmt.Errorf("wait for %d operations in flight: %w", r.inFlight(), err)
			}
			if time.Since(last) > r.o.Stuck {
				return fmt.Errorf("%d operations in flight and no completion for %v: look at the queue pairs' states and the health of the function", r.inFlight(), r.o.Stuck)
			}
		}
		if round&63 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			r.stop = r.stop || time.Now().After(r.end)
		}
	}
}

// row adds a line to the card.
func (r *runner) row(x Row) {
	x.Ops = r.ops
	r.ops = 0
	r.card.Rows = append(r.card.Rows, x)
	if r.o.Progress != nil {
		r.o.Progress(x)
	}
}

// judge is a row of a required guarantee: held unless there is a detail.
func (r *runner) judge(test, guarantee, subject string, fault atomics.Fault, broken string, note string) {
	x := Row{Test: test, Guarantee: guarantee, Subject: subject, Required: true, Verdict: Holds, Detail: note}
	if broken != "" {
		x.Verdict, x.Fault, x.Detail = Broken, fault, broken
	}
	r.row(x)
}

// fill writes random bytes to the target from off to off+n, multiples of 8, and
// returns them.
func (r *runner) fill(off, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
	r.rig.Target.Store(off, b)
	return b
}

// target reads the target from off to off+n, multiples of 8.
func (r *runner) target(off, n int) []byte {
	b := make([]byte, n)
	r.rig.Target.Load(off, b)
	return b
}
