package queues_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Memory of an end: the first half is what its own operations read and write, the
// second what the peer's do.
const (
	endBytes = 8 << 10
	peerHalf = endBytes / 2
)

// bed is a connection on which programs run: two ends, which may be one queue
// pair.
type bed struct {
	t     judge
	rng   *rand.Rand
	chip  *sim.Chip
	ends  [2]*realEnd
	wrid  uint64
	fresh bool // the queue pairs must be connected anew
	lossy bool // packets come twice or late: counters say so
	conn  queues.ConnectOptions
	// What the programs contained.
	verbs    [verbs]int
	mistakes [mistakes]int
	lists    [3]int // posted: of one, of more
}

// judge is the part of testing.T that a comparison needs, so that a test can watch
// one fail.
type judge interface {
	require.TestingT
	Context() context.Context
	Fatalf(format string, a ...any)
}

// realEnd is an end on the model, with what the oracle says of it.
type realEnd struct {
	*bench
	q          *queues.QP
	send, recv *queues.CQ
	srq        *queues.SRQ
	mem        *vfio.Buffer
	key        *queues.MKey
	set        uint8 // of Q counters
	is         end
	largest    int // atomic
}

// kinds of beds.
var beds = []struct {
	words     string
	functions int // 2: the ends are on two functions of a chip
	self      bool
	srq       bool
	opts      queues.QPOptions
}{
	{words: "sim:cx5"},
	{words: "sim:cx5,port=eth", opts: queues.QPOptions{RecvSGEs: 2, LogSQ: 7}},
	{words: "sim:cx5", self: true},
	{words: "sim:cx5", srq: true},
	{words: "sim:cx5", functions: 2, opts: queues.QPOptions{NoAtomicWrites: true}},
	{words: "sim:cx4,port=ib", opts: queues.QPOptions{BlueFlame: true}},
	{words: "sim:cx5,port=eth", functions: 2, srq: true},
	{words: "sim:cx5,port=eth", self: true, opts: queues.QPOptions{AtomicMode: prm.AtomicModeUpTo16B}},
}

// TestPrograms: random programs of WQEs, ten thousand of them, leave memory,
// completions and counters as the oracle says. The seed of a
// program is its number.
func TestPrograms(t *testing.T) {
	total := 10000
	if testing.Short() {
		total = 800
	}
	each := total / len(beds)
	for i := range beds {
		t.Run(fmt.Sprintf("%d/%s", i, beds[i].words), func(t *testing.T) {
			b := newBed(t, i)
			b.run(i, each)
			for v, n := range b.verbs {
				require.Greater(t, n, each/8, "operation %d is too rare", v)
			}
			if !testing.Short() {
				for m, n := range b.mistakes {
					require.Greater(t, n, each/100, "mistake %d is too rare", m)
				}
			}
			for n, lists := range b.lists[1:] {
				require.Greater(t, lists, each/8, "lists of %d are too rare", n+1)
			}
			t.Logf("%d programs: operations %v, mistakes %v, lists %v", each, b.verbs, b.mistakes, b.lists)
		})
	}
}

// run runs programs 0 to each−1 of bed i.
func (b *bed) run(i, each int) {
	for n := range each {
		b.rng = rand.New(rand.NewPCG(uint64(i), uint64(n)))
		for _, s := range b.program(n) {
			b.verbs[s.verb]++
			b.mistakes[s.mistake]++
		}
	}
}

// witness is a judge that takes note instead of failing.
type witness struct {
	*testing.T
	said string
}

func (w *witness) Errorf(format string, a ...any) { w.said += fmt.Sprintf(format, a...) }
func (w *witness) FailNow()                       { runtime.Goexit() }
func (w *witness) Fatalf(format string, a ...any) {
	w.Errorf(format, a...)
	w.FailNow()
}

// TestProgramsSeeFaults: a device with a defect is found out. What only several
// requesters at a time can see is the litmus suite's.
func TestProgramsSeeFaults(t *testing.T) {
	for _, fault := range []string{"mask-order", "no-boundary", "memory-order", "no-fence", "bad-response", "late-write"} {
		t.Run(fault, func(t *testing.T) {
			b := newBed(t, 0)
			w := &witness{T: t}
			b.t = w
			require.NoError(t, b.chip.SetFault(fault, ""))
			done := make(chan struct{})
			go func() {
				defer close(done)
				b.run(0, 400)
			}()
			<-done
			require.NotEmpty(t, w.said, "400 programs ran on a device with a defect and none saw it")
			require.NoError(t, b.chip.ClearFault(""))
			b.chip.Advance(time.Second)
		})
	}
}

// TestProgramsOnABadWire: packets that come twice or late change nothing but the
// time it takes and the counters.
func TestProgramsOnABadWire(t *testing.T) {
	for fault, arg := range map[string]string{"packet-duplicate": "", "packet-delay": "5us"} {
		t.Run(fault, func(t *testing.T) {
			for _, i := range []int{0, 1, 4} {
				b := newBed(t, i)
				b.lossy = true
				require.NoError(t, b.chip.SetFault(fault, arg))
				b.run(i, 100)
				require.NoError(t, b.chip.ClearFault(""))
			}
		})
	}
}

func newBed(t *testing.T, i int) *bed {
	k := beds[i]
	o, err := sim.Parse(k.words)
	require.NoError(t, err)
	o.Functions = max(1, k.functions)
	o.Seed = uint64(i) + 1
	o.Clock = sim.NewManualClock()
	c, err := sim.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	b := &bed{t: t, chip: c, fresh: true}
	b.ends[0] = newEnd(t, c, 0, k.srq, k.opts)
	switch {
	case k.self:
		b.ends[1] = b.ends[0]
	case k.functions == 2:
		b.ends[1] = newEnd(t, c, 1, k.srq, k.opts)
	default:
		b.ends[1] = moreEnd(b.ends[0].bench, k.srq, k.opts)
	}
	return b
}

func newEnd(t *testing.T, c *sim.Chip, i int, srq bool, o queues.QPOptions) *realEnd {
	b := &bench{t: t, chip: c}
	b.open(i, mlxvfio.Options{Polled: true, PollInterval: time.Millisecond, Memory: vfio.MemoryHeap})
	return moreEnd(b, srq, o)
}

func moreEnd(b *bench, srq bool, o queues.QPOptions) *realEnd {
	t := b.t
	e := &realEnd{bench: b, send: b.cq(7), recv: b.cq(6), mem: b.buffer(endBytes)}
	in, out := make([]byte, prm.AllocQCounterInSize), make([]byte, prm.AllocQCounterOutSize)
	prm.AsAllocQCounterIn(in).SetOpcode(prm.OpAllocQCounter)
	require.NoError(t, b.hca.Conn().Exec(t.Context(), in, out))
	e.set = prm.AsAllocQCounterOut(out).CounterSetID()
	t.Cleanup(func() {
		in, out := make([]byte, prm.DeallocQCounterInSize), make([]byte, prm.DeallocQCounterOutSize)
		prm.AsDeallocQCounterIn(in).SetOpcode(prm.OpDeallocQCounter)
		prm.AsDeallocQCounterIn(in).SetCounterSetID(e.set)
		require.NoError(t, b.hca.Conn().Exec(ctxOf(t), in, out))
	})
	e.key = b.mkey(e.mem, queues.AccessAll)
	if srq {
		q, err := b.dev.CreateSRQ(ctxOf(t), queues.SRQOptions{Name: "test", PD: b.pd, LogSize: 5})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Destroy(ctxOf(t))) })
		e.srq, o.SRQ = q, q
	}
	if o.BlueFlame {
		u, err := b.dev.AllocUAR(ctxOf(t))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, u.Free(ctxOf(t))) })
		o.UAR = u
	} else {
		o.UAR = b.uar
	}
	if o.LogSQ == 0 {
		o.LogSQ = 8
	}
	o.Name, o.PD, o.SendCQ, o.RecvCQ, o.LogRQ = "test", b.pd, e.send, e.recv, 5
	q, err := b.dev.CreateQP(ctxOf(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Destroy(ctxOf(t))) })
	e.q = q
	e.largest = queues.AtomicModeSize(q.AtomicMode())
	e.is.mem = make([]byte, endBytes)
	e.is.shared, e.is.hostOrder = srq, b.dev.Caps.HostOrderReplies
	return e
}

// connect brings both ends to RTS with their sets of counters.
func (b *bed) connect() {
	ctx := b.t.Context()
	b.conn = queues.ConnectOptions{MTU: 256 << b.rng.IntN(4), Reads: 1 << b.rng.IntN(5), AckTimeout: -1}
	if b.lossy {
		b.conn.AckTimeout = 3 // 33 µs
	}
	for _, e := range b.unique() {
		require.NoError(b.t, e.q.Reset(ctx))
		var c prm.QPC
		c.SetRre(true)
		c.SetRwe(true)
		c.SetRae(true)
		c.SetAtomicMode(e.q.AtomicMode())
		c.SetAtomicLikeWriteEn(e.q.AtomicWrites())
		c.SetCounterSetID(e.set)
		c.PrimaryAddressPath().SetVHCAPortNum(1)
		require.NoError(b.t, e.q.Modify(ctx, prm.OpRst2InitQP, &c, 0))
	}
	require.NoError(b.t, queues.ConnectPair(ctx, b.ends[0].q, b.ends[1].q, b.conn))
	for i, e := range b.ends {
		is := &e.is
		is.state, is.blocks, is.mtu = prm.QPStateRts, 0, b.conn.MTU
		is.next, is.expect = e.q.PSN(), b.ends[1-i].q.PSN()
		if !is.shared {
			is.slots, is.taken, is.posted = nil, 0, 0
		}
		if is.shared {
			is.taken = 0
		}
	}
	b.fresh = false
}

// unique lists the ends, one of them if both are the same.
func (b *bed) unique() []*realEnd {
	if b.ends[0] == b.ends[1] {
		return b.ends[:1]
	}
	return b.ends[:]
}

// program makes one, runs it on both, and compares.
func (b *bed) program(n int) steps {
	if b.fresh || b.rng.IntN(16) == 0 {
		b.connect()
	}
	way := b.rng.IntN(2)
	x, y := b.ends[way], b.ends[1-way]
	for _, e := range b.unique() {
		if n == 0 || b.rng.IntN(8) == 0 {
			for i := range e.is.mem {
				e.is.mem[i] = byte(b.rng.Uint32())
			}
			e.mem.CopyIn(0, e.is.mem)
		}
	}
	b.postReceives(y)
	p := b.make(x, y)
	b.post(x, y, p)
	x.is.run(&y.is, p)
	x.q.SQ.Ring()
	b.compare(p)
	if x.is.state != prm.QPStateRts || y.is.state != prm.QPStateRts {
		b.fresh = true
	}
	return p
}

// postReceives posts receive WQEs with room in the peer's half.
func (b *bed) postReceives(e *realEnd) {
	for range b.rng.IntN(12) {
		s := slot{wrid: b.next()}
		var l []queues.SGE
		most := 2
		at := peerHalf + b.rng.IntN(256)
		for range b.rng.IntN(most + 1) {
			n := b.rng.IntN(900)
			if n > 0 {
				s.pieces = append(s.pieces, piece{at, n})
			}
			l = append(l, e.key.SGE(uint64(at), uint32(n)))
			at += n + b.rng.IntN(300)
		}
		var err error
		if e.srq != nil {
			err = e.srq.Post(s.wrid, l...)
		} else {
			err = e.q.RQ.Post(s.wrid, l...)
		}
		if err != nil {
			require.ErrorIs(b.t, err, queues.ErrQueueFull)
			break
		}
		e.is.slots = append(e.is.slots, s)
		e.is.posted++
	}
	if e.srq != nil {
		e.srq.Ring()
	} else {
		e.q.RQ.Ring()
	}
}

func (b *bed) next() uint64 { b.wrid++; return b.wrid }

// compare waits until everything the oracle says has completed, and compares all
// there is.
func (b *bed) compare(p steps) {
	t := b.t
	for _, e := range b.unique() {
		b.completions(e.send, e, e.is.sends, p)
		b.completions(e.recv, e, e.is.recvs, p)
		e.is.sends, e.is.recvs = e.is.sends[:0], e.is.recvs[:0]
	}
	for i, e := range b.unique() {
		if got := at(e.mem, 0, endBytes); !bytes.Equal(e.is.mem, got) {
			k := 0
			for e.is.mem[k] == got[k] {
				k++
			}
			t.Fatalf("end %d: memory differs from byte %#x on: %x, the oracle has %x\n%s", i, k, got[k:min(k+16, endBytes)], e.is.mem[k:min(k+16, endBytes)], p)
		}
		s, err := e.q.Query(t.Context())
		require.NoError(t, err)
		require.Equal(t, e.is.state, s.State, "%s", p)
		require.Equal(t, e.is.blocks, s.SQHardware, "%s", p)
		require.Equal(t, e.is.blocks, s.SQSoftware, "%s", p)
		if e.srq == nil {
			require.EqualValues(t, e.is.taken, s.RQHardware, "%s", p)
			require.EqualValues(t, e.is.posted, s.RQSoftware, "%s", p)
		}
		if s.State == prm.QPStateRts && b.ends[0].is.state == b.ends[1].is.state {
			require.Equal(t, e.is.next, s.SendPSN, "%s", p)
			require.Equal(t, e.is.expect, s.RecvPSN, "%s", p)
			require.Equal(t, (e.is.next-1)&mask24, s.LastAckedPSN, "%s", p)
		}
		in, out := make([]byte, prm.QueryQCounterInSize), make([]byte, prm.QueryQCounterOutSize)
		prm.AsQueryQCounterIn(in).SetOpcode(prm.OpQueryQCounter)
		prm.AsQueryQCounterIn(in).SetCounterSetID(e.set)
		require.NoError(t, e.hca.Conn().Exec(t.Context(), in, out))
		if !b.lossy {
			require.Equal(t, e.is.counters, *prm.AsQueryQCounterOut(out), "%s", p)
		}
		require.Equal(t, e.q.SQ.Size(), e.q.SQ.Free(), "everything is retired")
	}
}

// completions takes exactly those of the list from q.
func (b *bed) completions(q *queues.CQ, e *realEnd, list []want, p steps) {
	t := b.t
	dst := make([]queues.Completion, 1+b.rng.IntN(8))
	idle := 0
	for i := 0; ; {
		n, err := q.Poll(dst)
		require.NoError(t, err, "%s", p)
		for k := range dst[:n] {
			c := &dst[k]
			require.Less(t, i, len(list), "a completion that must not be: %+v\n%s", *c, p)
			w := list[i]
			got := want{wrid: c.WRID, recv: c.Recv(), op: c.Opcode, syndrome: c.Syndrome, bytes: w.bytes}
			if !c.Recv() {
				got.send = c.SendOpcode
			}
			if w.bytes >= 0 {
				got.bytes = int(c.ByteLen)
			}
			if c.HasImm() {
				got.imm = c.Imm
			}
			require.Equal(t, w, got, "completion %d\n%s", i, p)
			require.Equal(t, e.q.Number(), c.QPN)
			i++
		}
		if n > 0 {
			continue
		}
		// What the model does later needs time to pass; in the end, once more to see
		// that nothing else comes.
		if i == len(list) && idle > 0 {
			return
		}
		if idle++; idle > 2000 {
			t.Fatalf("%d of %d completions came, of %+v\n%s", i, len(list), list, p)
		}
		b.chip.Advance(40 * time.Microsecond)
		runtime.Gosched()
	}
}

// String shows a program.
func (p steps) String() string {
	s := ""
	for i := range p {
		x := &p[i]
		s += fmt.Sprintf("%3d wrid %d %v", i, x.wrid, x.opcode())
		if x.signal {
			s += " signalled"
		}
		if x.fence {
			s += " fenced"
		}
		if x.inline != nil {
			s += fmt.Sprintf(" inline %d", len(x.inline))
		}
		s += fmt.Sprintf(" pieces %v remote %#x n %d mistake %d\n", x.pieces, x.remote, x.n, x.mistake)
	}
	return s
}
