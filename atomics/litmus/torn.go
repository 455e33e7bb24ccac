package litmus

import (
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// torn lets several queues write the same bytes at once, each write all of one
// value, while others look at them through atomics that change nothing. A look
// that finds two values has seen a write half done; two values at rest are two
// writes mixed. Neither needs any assumption about RDMA READ.
func (r *runner) torn(ctx context.Context) error {
	block := r.rig.MaxWrite
	inside := Row{
		Test: testTorn, Guarantee: "a write inside an aligned block is all or nothing", Required: true, Verdict: NotOffered,
		Subject: "writes inside the block", Detail: "the responder's queue pairs have no atomic writes",
	}
	if block == 0 {
		r.row(inside)
		block = max(8, r.rig.Caps.MaxAtomicSize())
	} else {
		t := &tearing{run: r, block: block, look: r.lookSize(block)}
		if err := t.try(ctx, t.insideRange); err != nil {
			return err
		}
		broken := t.found
		r.judge(testTorn, inside.Guarantee, fmt.Sprintf("1 to %d bytes anywhere in a block of %d, %d queues", block, block, len(r.ports)),
			atomics.FaultTornWrite, broken, fmt.Sprintf("%d writes, %d looks", t.writes, t.looks))
	}
	for _, c := range []struct {
		what   string
		choose func(t *tearing) (off, n int)
	}{
		{fmt.Sprintf("up to %d bytes across a multiple of %d", block, block), (*tearing).acrossRange},
		{fmt.Sprintf("%d to %d bytes", block+1, 2*block), (*tearing).largeRange},
	} {
		t := &tearing{run: r, block: block, look: r.lookSize(block)}
		if err := t.try(ctx, func() (int, int) { return c.choose(t) }); err != nil {
			return err
		}
		x := Row{Test: testTorn, Guarantee: "a write outside the rule is seen in pieces", Subject: c.what, Verdict: NotSeen,
			Detail: fmt.Sprintf("%d writes, %d looks", t.writes, t.looks)}
		if t.found != "" {
			x.Verdict, x.Detail = Seen, fmt.Sprintf("%d of %d times: %s", t.torn, t.looks, t.found)
		}
		r.row(x)
	}
	return nil
}

// tearing is one trial.
type tearing struct {
	run           *runner
	block, look   int
	writes, looks int
	torn          int
	found         string // the first contradiction
	value         byte
}

// tornAt is where the blocks begin; it is a multiple of any block.
const tornAt = 3072

// lookSize is the largest argument of an atomic that changes nothing, up to a
// block; 0 if there is none.
func (r *runner) lookSize(block int) int {
	for s := block; s >= 4; s /= 2 {
		if r.offered(atomics.FetchAdd, s) {
			return s
		}
	}
	return 0
}

func (t *tearing) insideRange() (off, n int) {
	n = 1 + t.run.rng.IntN(t.block)
	return t.run.rng.IntN(t.block - n + 1), n
}

func (t *tearing) acrossRange() (off, n int) {
	n = 2 + t.run.rng.IntN(t.block-1)
	return t.block - 1 - t.run.rng.IntN(n-1), n
}

func (t *tearing) largeRange() (off, n int) {
	return t.run.rng.IntN(t.block), t.block + 1 + t.run.rng.IntN(t.block)
}

// try makes episodes; in each, all write the same range.
func (t *tearing) try(ctx context.Context, choose func() (off, n int)) error {
	for range t.run.count(30) {
		if t.run.stop {
			return nil
		}
		off, n := choose()
		if err := t.episode(ctx, off, n); err != nil {
			return err
		}
	}
	return nil
}

func (t *tearing) episode(ctx context.Context, off, n int) error {
	r := t.run
	room := (3*t.block + 7) &^ 7
	before := r.fill(tornAt, room)
	first := t.next()
	for i := range n {
		before[off+i] = first
	}
	r.rig.Target.Store(tornAt, before)
	todo := 12 * len(r.ports)
	err := r.drive(ctx, func(p *port) (bool, error) {
		if todo <= 0 {
			return false, nil
		}
		todo--
		// More than half write, so that writes meet writes as well as looks.
		if t.look == 0 || r.rng.IntN(8) < 5 {
			t.writes++
			data := make([]byte, n)
			v := t.next()
			for i := range data {
				data[i] = v
			}
			f := queues.Flags(0)
			if !atomics.WriteIsAtomic(r.rig.Target.Addr+tornAt+uint64(off), n, t.block) {
				f = queues.NonAtomic
			}
			return true, p.write(tornAt+off, data, f, func() error { return nil })
		}
		return true, t.peek(p, off, n)
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	t.looks++
	after := r.target(tornAt, room)
	t.judge(after[off:off+n], "at rest")
	copy(after[off:], before[off:off+n])
	if string(after) != string(before) {
		t.see(fmt.Sprintf("a write of %d bytes at offset %d of the block changed bytes beside it", n, off))
	}
	return nil
}

func (t *tearing) next() byte {
	if t.value++; t.value == 0 {
		t.value = 1
	}
	return t.value
}

// peek looks, atomically, at an aligned piece that shares bytes with the range.
func (t *tearing) peek(p *port, off, n int) error {
	t.looks++
	firstPiece, lastPiece := off/t.look, (off+n-1)/t.look
	at := (firstPiece + t.run.rng.IntN(lastPiece-firstPiece+1)) * t.look
	lo, hi := max(off, at)-at, min(off+n, at+t.look)-at
	op := atomics.Op{Kind: atomics.FetchAdd, Size: t.look, Addr: uint64(tornAt + at)}
	seen := func(words []uint64) error {
		order := p.orderOf(atomics.FetchAdd, t.look)
		b := make([]byte, t.look)
		ws := min(t.look, 8)
		for i, w := range words {
			order.Store(b[i*ws:(i+1)*ws], w)
		}
		t.judge(b[lo:hi], "in flight")
		return nil
	}
	if t.look <= 8 {
		return p.atomic(op, 0, func(old uint64, _ bool) error { return seen([]uint64{old}) })
	}
	op.Wide = &atomics.Wide{Value: make([]uint64, t.look/8)}
	return p.wide(op, 0, func(old []uint64, _ bool) error { return seen(old) })
}

// judge looks for two values.
func (t *tearing) judge(b []byte, when string) {
	for i := range b {
		if b[i] != b[0] {
			t.see(fmt.Sprintf("%s, byte %d of %d was of another write than byte 0", when, i, len(b)))
			return
		}
	}
}

func (t *tearing) see(what string) {
	t.torn++
	if t.found == "" {
		t.found = what
	}
}
