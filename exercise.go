package mlxvfio

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// SharedAtomics are the atomic capabilities that a requester and a responder have
// in common: operations and sizes of both, byte orders of the requester.
func SharedAtomics(requester, responder *HCA) (atomics.Caps, error) {
	c, err := requester.AtomicCaps()
	if err != nil || requester == responder {
		return c, err
	}
	r, err := responder.AtomicCaps()
	return c.And(r), err
}

// Exerciser moves data from one DataPath to another, or to itself, and compares
// all memory on both sides, byte for byte, with what it must hold after each
// operation. It belongs to one caller at a time.
type Exerciser struct {
	from, to *DataPath
	a, b     *queues.QP
	idle     atomics.Idle
	rng      *rand.Rand
	// near and far are memory of the two sides, wantNear and wantFar what must be
	// in it; scratch is for replies, target for atomics.
	near, far         atomics.Memory
	wantNear, wantFar []byte
	scratch           atomics.Memory
	caps              atomics.Caps
	profile           *atomics.Profile

	wrid uint64
	comp [16]queues.Completion
	// early are completions that came before anybody asked for them, by their wrid.
	early map[uint64]queues.Completion
	done  map[opcodeKey]int
	// datagrams sends to receiver, once Datagrams has made them.
	datagrams, receiver *queues.QP
}

const (
	exerciseRoom = 16 << 10
	// recvMark tells receive WQEs from send WQEs on a CQ that both share.
	recvMark = 1 << 63
)

// exerciseSizes are message sizes: around an inline block, a cache line, and a
// packet of 1024 and of 4096 bytes.
var exerciseSizes = []int{1, 3, 8, 28, 29, 64, 100, 1000, 1024, 1025, 4096, 5000}

// inlineSizes are those of them that are sent from the WQE.
var inlineSizes = []int{1, 3, 8, 28, 29, 64, 100}

// NewExerciser makes memory and a connected pair of queue pairs. Seed decides
// places and data.
func NewExerciser(ctx context.Context, from, to *DataPath, seed uint64) (*Exerciser, error) {
	x := &Exerciser{from: from, to: to, idle: Idle(from), rng: rand.New(rand.NewPCG(seed, 0x64617461)),
		early: map[uint64]queues.Completion{}, done: map[opcodeKey]int{}}
	if from != to {
		x.idle = Idle(from, to)
	}
	var err error
	if x.caps, err = SharedAtomics(from.hca, to.hca); err != nil {
		return nil, err
	}
	far := queues.LocalWrite | queues.RemoteRead | queues.RemoteWrite
	if x.caps.MaxAtomicSize() > 0 {
		far |= queues.RemoteAtomic
	}
	if x.near, err = from.Memory(ctx, exerciseRoom, 0, queues.LocalWrite); err != nil {
		return nil, err
	}
	if x.scratch, err = from.Memory(ctx, 3*atomics.ReplySize, 0, queues.LocalWrite); err != nil {
		return nil, err
	}
	if x.far, err = to.Memory(ctx, exerciseRoom, 0, far); err != nil {
		return nil, err
	}
	if x.a, x.b, err = Connect(ctx, from, to, queues.QPOptions{}); err != nil {
		return nil, err
	}
	x.wantNear, x.wantFar = make([]byte, exerciseRoom), make([]byte, exerciseRoom)
	x.refill()
	return x, nil
}

// refill writes random bytes everywhere.
func (x *Exerciser) refill() {
	for _, side := range []struct {
		m    atomics.Memory
		want []byte
	}{{x.near, x.wantNear}, {x.far, x.wantFar}} {
		for i := range side.want {
			side.want[i] = byte(x.rng.Uint32())
		}
		side.m.Store(0, side.want)
	}
}

// place is a random place for n bytes.
func (x *Exerciser) place(n int) int { return x.rng.IntN(exerciseRoom - n + 1) }

// DataError says that an operation put other bytes into memory than it should.
type DataError struct {
	Op   string // what was done: "RDMA WRITE of 100 bytes to offset 17"
	Side string // "local" or "remote": whose memory is wrong
	At   int    // offset of the first wrong byte
	// Want and Got are bytes from there on.
	Want, Got []byte
}

// Error shows the first bytes that are wrong.
func (e *DataError) Error() string {
	return fmt.Sprintf("%s: %s memory is wrong at offset %d: want %s, found %s; suspect the device's firmware, or the IOMMU's mappings", e.Op, e.Side, e.At, hex.EncodeToString(e.Want), hex.EncodeToString(e.Got))
}

// compare looks at all memory of both sides.
func (x *Exerciser) compare(op string) error {
	got := make([]byte, exerciseRoom)
	for _, side := range []struct {
		name string
		m    atomics.Memory
		want []byte
	}{{"local", x.near, x.wantNear}, {"remote", x.far, x.wantFar}} {
		side.m.Load(0, got)
		for i := range got {
			if got[i] != side.want[i] {
				end := min(i+16, exerciseRoom)
				return &DataError{Op: op, Side: side.name, At: i, Want: side.want[i:end], Got: got[i:end]}
			}
		}
	}
	return nil
}

// do posts one operation and waits for its completion, and, with recv, for that
// of the message at the other side, which it returns.
func (x *Exerciser) do(ctx context.Context, recv bool, post func(wrid uint64) error) (got queues.Completion, err error) {
	return x.doOn(ctx, x.a, recv, post)
}

// doOn is do on another queue pair of the near side.
func (x *Exerciser) doOn(ctx context.Context, q *queues.QP, recv bool, post func(wrid uint64) error) (got queues.Completion, err error) {
	x.wrid++
	sent := x.wrid
	if err := post(sent); err != nil {
		return got, err
	}
	q.SQ.Ring()
	if _, err := x.await(ctx, sent); err != nil || !recv {
		return got, err
	}
	return x.await(ctx, sent|recvMark)
}

// await waits for one completion, which may have come already.
func (x *Exerciser) await(ctx context.Context, wrid uint64) (queues.Completion, error) {
	for {
		if c, ok := x.early[wrid]; ok {
			delete(x.early, wrid)
			return c, nil
		}
		n, err := x.poll()
		if err != nil {
			return queues.Completion{}, err
		}
		if n == 0 {
			if err := x.idle(ctx); err != nil {
				return queues.Completion{}, fmt.Errorf("wait for a completion: %w", err)
			}
		}
	}
}

// poll takes what has completed on either side. A failure is an error, whatever it
// belongs to.
func (x *Exerciser) poll() (total int, err error) {
	paths := []*DataPath{x.from, x.to}
	if x.from == x.to {
		paths = paths[:1]
	}
	for _, d := range paths {
		n, err := d.cq.Poll(x.comp[:])
		for i := range x.comp[:n] {
			c := &x.comp[i]
			if !c.OK() {
				return total, d.cq.Err(c)
			}
			x.count(c)
			x.early[c.WRID] = *c
		}
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// take posts a receive WQE for the next message: n bytes at off of the far side.
func (x *Exerciser) take(off, n int) error { return x.takeOn(x.b, off, n) }

func (x *Exerciser) takeOn(q *queues.QP, off, n int) error {
	if err := q.RQ.Post((x.wrid+1)|recvMark, x.far.SGE(off, n)); err != nil {
		return err
	}
	q.RQ.Ring()
	return nil
}

// tally counts what was done.
type tally struct{ ops, bytes int }

func (t *tally) String() string {
	return fmt.Sprintf("%d operations, %d bytes moved, all memory compared after each", t.ops, t.bytes)
}

func (t *tally) add(n int) { t.ops++; t.bytes += n }

// QPs are the queue pairs: requests go from a to b.
func (x *Exerciser) QPs() (a, b *queues.QP) { return x.a, x.b }

// Caps are the atomic capabilities that both sides have.
func (x *Exerciser) Caps() atomics.Caps { return x.caps }

// Probe finds the byte orders of atomics on the device (atomics.Probe). The first
// fault of a form is its error.
func (x *Exerciser) Probe(ctx context.Context) (atomics.Profile, error) {
	p, err := Probe(ctx, x.from, x.to, x.a, x.scratch, x.far.Slice(0, atomics.ReplySize), x.rng.Uint64())
	if err != nil {
		return p, err
	}
	x.profile = &p
	x.far.Load(0, x.wantFar) // it used the target
	return p, p.Err()
}

// Probe is atomics.Probe on a queue pair of from that is connected to to. Local
// is memory of 3·atomics.ReplySize bytes with the right LocalWrite, target of
// atomics.ReplySize with all rights.
func Probe(ctx context.Context, from, to *DataPath, q *queues.QP, local, target atomics.Memory, seed uint64) (atomics.Profile, error) {
	caps, err := SharedAtomics(from.hca, to.hca)
	if err != nil {
		return atomics.Profile{}, err
	}
	return atomics.Probe(ctx, atomics.ProbeOptions{
		Conn: from.Conn(q), Caps: caps, Local: local, Target: target, Idle: Idle(from), Seed: seed,
	})
}

// Atomics does every kind of atomic operation that both sides offer, in every size
// and at every place in a word, several times, with the byte orders that Probe
// found.
func (x *Exerciser) Atomics(ctx context.Context) (string, error) {
	if x.caps.MaxAtomicSize() == 0 {
		return "skipped: no atomics", nil
	}
	if x.profile == nil {
		if _, err := x.Probe(ctx); err != nil {
			return "", err
		}
	}
	c, err := atomics.NewClient(atomics.ClientOptions{Conn: x.from.Conn(x.a), Profile: *x.profile, Reply: x.scratch, RKey: x.far.RKey, Idle: Idle(x.from)})
	if err != nil {
		return "", err
	}
	var t tally
	kinds := 0
	for _, k := range atomics.Kinds() {
		offered := false
		for size := 1; size <= k.MaxSize(); size *= 2 {
			f := x.profile.FormOf(&atomics.Op{Kind: k, Size: size})
			if f == nil {
				continue
			}
			offered = true
			if err := x.atomicsOf(ctx, c, k, size, f.Memory, &t); err != nil {
				return "", err
			}
		}
		if offered {
			kinds++
		}
	}
	return fmt.Sprintf("%d kinds, %v", kinds, &t), nil
}

// exerciseEach is how often an operation of one kind and size is done at a place.
const exerciseEach = 4

func (x *Exerciser) atomicsOf(ctx context.Context, c *atomics.Client, k atomics.Kind, size int, order atomics.Order, t *tally) error {
	last := 0
	if size < 4 {
		last = 4 - size
	}
	for off := range last + 1 {
		for range exerciseEach {
			// A place that no other operation is near to, in a block of its own.
			at := x.rng.IntN(exerciseRoom/atomics.ReplySize)*atomics.ReplySize + off
			op := atomics.Random(k, size, x.far.Addr+uint64(at), x.wantFar[at:at+size], order, x.rng)
			what := fmt.Sprintf("%v of %d bytes at offset %d", k, size, at)
			got, err := c.Do(ctx, &op)
			if err != nil {
				return err
			}
			x.done[opcodeKey{queues.RC, x.profile.FormOf(&op).Opcode}]++
			want, err := atomics.Apply(x.wantFar, x.far.Addr, &op, order)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if err := x.compare(what); err != nil {
				return err
			}
			if got.Old != want.Old || fmt.Sprint(got.OldWide) != fmt.Sprint(want.OldWide) || got.Stored != want.Stored {
				return fmt.Errorf("%s: memory is right, but it returned %#x %#x (stored %t) instead of %#x %#x (stored %t)", what, got.Old, got.OldWide, got.Stored, want.Old, want.OldWide, want.Stored)
			}
			t.add(size)
		}
	}
	return nil
}
