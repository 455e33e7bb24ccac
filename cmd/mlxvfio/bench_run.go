package main

import (
	"context"
	"fmt"
	"math/bits"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// bencher is a connection that is measured.
type bencher struct {
	f             *benchFlags
	from, to      *mlxvfio.DataPath
	a, b          *queues.QP
	local, target atomics.Memory
	caps          atomics.Caps
	idle          atomics.Idle
	comp          [32]queues.Completion
	polls         uint
}

// benchCase is an operation of one size, and how to post it.
type benchCase struct {
	name   string
	size   int
	inline bool
	recv   bool // the other end must have a receive WQE
	post   func(wrid uint64, f queues.Flags) error
}

// maxBlocks is the most 64-byte blocks a WQE takes.
const maxBlocks = (queues.MaxWQEBytes + queues.WQEBB - 1) / queues.WQEBB

func (p *dataSession) newBencher(ctx context.Context, f *benchFlags) (*bencher, error) {
	b := &bencher{f: f}
	var err error
	if b.caps, err = mlxvfio.SharedAtomics(p.from.HCA, p.to.HCA); err != nil {
		return nil, err
	}
	if b.from, b.to, err = p.benchData(ctx, f); err != nil {
		return nil, err
	}
	b.idle = mlxvfio.Idle(b.from)
	if p.two() {
		b.idle = mlxvfio.Idle(b.from, b.to)
	}
	logDepth := uint8(bits.Len(uint(f.depth - 1)))
	o := queues.QPOptions{LogSQ: logDepth + uint8(bits.Len(maxBlocks-1)), LogRQ: max(logDepth, 1), RecvSGEs: 1}
	if b.a, b.b, err = mlxvfio.Connect(ctx, b.from, b.to, o); err != nil {
		return nil, err
	}
	room := atomics.ReplySize
	for _, s := range append(f.sizes, 8192) {
		room = max(room, s)
	}
	if b.local, err = b.from.Memory(ctx, room, 0, queues.LocalWrite); err != nil {
		return nil, err
	}
	far := queues.LocalWrite | queues.RemoteRead | queues.RemoteWrite
	if b.caps.MaxAtomicSize() > 0 {
		far |= queues.RemoteAtomic
	}
	b.target, err = b.to.Memory(ctx, room, 0, far)
	return b, err
}

func (b *bencher) mode() string {
	if b.from.EventMode() && b.to.EventMode() {
		return "event"
	}
	return "polled"
}

// cases lists what is measured. An operation that was asked for and of which
// nothing is left is an error.
func (b *bencher) cases() ([]benchCase, error) {
	var cases []benchCase
	for _, name := range b.f.ops {
		for _, o := range benchOps {
			if o.name != name {
				continue
			}
			sizes, have, why := b.f.sizes, 0, error(nil)
			if sizes == nil {
				sizes = o.sizes
			}
			for _, size := range sizes {
				c := benchCase{name: name, size: size}
				if o.atomic {
					if why = b.atomic(&c, o.kind); why != nil {
						continue
					}
				} else {
					b.data(&c)
				}
				cases = append(cases, c)
				have++
			}
			if have == 0 {
				return nil, fmt.Errorf("measure %s: %w", name, why)
			}
		}
	}
	return cases, nil
}

// atomic makes an atomic on the first bytes of the target: a fetch-add of 1, or a
// swap under full masks.
func (b *bencher) atomic(c *benchCase, k atomics.Kind) error {
	op := atomics.Op{Kind: k, Size: c.size, Addr: b.target.Addr, Value: 1}
	if c.size > 8 {
		op.Value, op.Wide = 0, &atomics.Wide{Value: make([]uint64, c.size/8)}
		if k == atomics.CompareSwap || k == atomics.MaskedCompareSwap {
			op.Wide.Compare = make([]uint64, c.size/8)
		}
		if k == atomics.MaskedCompareSwap {
			op.Wide.CompareMask, op.Wide.SwapMask = make([]uint64, c.size/8), make([]uint64, c.size/8)
		}
	}
	if err := b.caps.Check(&op); err != nil {
		return err
	}
	var r atomics.Request
	if err := op.Encode(&r, atomics.HostOrder()); err != nil {
		return err
	}
	reply := b.local.SGE(0, r.Size)
	c.post = func(wrid uint64, f queues.Flags) error { return r.Post(b.a.SQ, wrid, f, reply, b.target.RKey) }
	return nil
}

// data makes a SEND, WRITE or READ. Writes need not be atomic here.
func (b *bencher) data(c *benchCase) {
	q, l, r := b.a.SQ, b.local.SGE(0, c.size), b.target.Remote(0)
	c.inline = c.size <= b.f.inline && c.name != "read"
	bytes := make([]byte, c.size)
	switch {
	case c.name == "read":
		c.post = func(wrid uint64, f queues.Flags) error { return q.Read(wrid, f, l, r) }
	case c.name == "send" && c.inline:
		c.post = func(wrid uint64, f queues.Flags) error { return q.SendInline(wrid, f, bytes) }
	case c.name == "send":
		c.post = func(wrid uint64, f queues.Flags) error { return q.Send(wrid, f, l) }
	case c.inline:
		c.post = func(wrid uint64, f queues.Flags) error { return q.WriteInline(wrid, f|queues.NonAtomic, bytes, r) }
	default:
		c.post = func(wrid uint64, f queues.Flags) error { return q.Write(wrid, f|queues.NonAtomic, l, r) }
	}
	c.recv = c.name == "send"
}

// benchRun is how far a measurement has come.
type benchRun struct {
	posted, done, offered, received int
}

// receive keeps the receive queue full, up to the number of messages to come.
func (b *bencher) receive(r *benchRun, size int) error {
	rang := false
	for r.offered < b.f.iters && b.b.RQ.Free() > 0 {
		if err := b.b.RQ.Post(0, b.target.SGE(0, size)); err != nil {
			return err
		}
		r.offered++
		rang = true
	}
	if rang {
		b.b.RQ.Ring()
	}
	return nil
}

// lookEvery is how many polls may pass before a signal is noticed.
const lookEvery = 64

// poll takes what has completed on both sides; it waits if there is nothing.
func (b *bencher) poll(ctx context.Context, r *benchRun) error {
	if b.polls++; b.polls%lookEvery == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	found := 0
	for i, d := range []*mlxvfio.DataPath{b.from, b.to} {
		if i == 1 && b.to == b.from {
			break
		}
		n, err := d.CQ().Poll(b.comp[:])
		for j := range b.comp[:n] {
			c := &b.comp[j]
			switch {
			case !c.OK():
				return d.CQ().Err(c)
			case c.Recv():
				r.received++
			default:
				r.done = int(c.WRID) + 1 // one completion retires all before it
			}
		}
		if err != nil {
			return err
		}
		found += n
	}
	if found > 0 {
		return nil
	}
	return b.idle(ctx)
}

// latency does the operation iters times, one at a time, and gives the time of
// each and of all.
func (b *bencher) latency(ctx context.Context, c benchCase) ([]time.Duration, time.Duration, error) {
	took := make([]time.Duration, 0, b.f.iters)
	var r benchRun
	begun := time.Now()
	for i := range b.f.iters {
		if c.recv {
			if err := b.receive(&r, c.size); err != nil {
				return nil, 0, err
			}
		}
		start := time.Now()
		if err := c.post(uint64(i), queues.Signalled); err != nil {
			return nil, 0, err
		}
		b.a.SQ.Ring()
		for r.done <= i || c.recv && r.received <= i {
			if err := b.poll(ctx, &r); err != nil {
				return nil, 0, err
			}
		}
		took = append(took, time.Since(start))
	}
	return took, time.Since(begun), nil
}

// rate does the operation iters times with up to depth of them outstanding.
func (b *bencher) rate(ctx context.Context, c benchCase, batch, signal int) (time.Duration, error) {
	var r benchRun
	begun := time.Now()
	for r.done < b.f.iters || c.recv && r.received < b.f.iters {
		if c.recv {
			if err := b.receive(&r, c.size); err != nil {
				return 0, err
			}
		}
		for r.posted < b.f.iters {
			n := min(batch, b.f.iters-r.posted)
			// A message needs a receive WQE, and what is outstanding has a limit.
			if r.posted+n-r.done > b.f.depth || c.recv && r.posted+n > r.offered {
				break
			}
			if err := b.postBatch(c, &r, n, signal); err != nil {
				return 0, err
			}
		}
		if err := b.poll(ctx, &r); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// postBatch posts n operations and rings once.
func (b *bencher) postBatch(c benchCase, r *benchRun, n, signal int) error {
	for range n {
		f := queues.Flags(0)
		if (r.posted+1)%signal == 0 || r.posted+1 == b.f.iters {
			f = queues.Signalled
		}
		if err := c.post(uint64(r.posted), f); err != nil {
			return err
		}
		r.posted++
	}
	b.a.SQ.Ring()
	return nil
}
