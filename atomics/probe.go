package atomics

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// ProbeOptions say on what a Probe works.
type ProbeOptions struct {
	// Conn is a queue pair connected to the responder, idle and used by nobody
	// else meanwhile.
	Conn Conn
	// Caps are the requester's and, as far as they differ, the smaller of both.
	Caps Caps
	// Local is scratch memory of 3·ReplySize bytes for replies and, where the
	// target is not this process's, for reading and writing it.
	Local Memory
	// Target is ReplySize bytes of the responder's memory, aligned to ReplySize,
	// with remote read, write and atomic rights. Without Mem it is reached by RDMA
	// READ and WRITE only.
	Target Memory
	// Idle is called while there is nothing to poll; nil is Yield.
	Idle Idle
	// Seed of the random operations, and how many are compared with the reference
	// in each form; 0 is 32.
	Seed   uint64
	Rounds int
	// Stuck is how long one operation may take; 0 is 10 seconds. A probe that ends
	// with ErrStuck leaves an operation behind that may still happen.
	Stuck time.Duration
}

// Probe finds out on the device itself, form by form, in which order it reads
// words in memory and returns them: it stores patterns of distinct bytes and sees
// where each byte lands. Then it compares random operations with the reference.
// What is wrong with a form stands in its Fault; the error is for what kept Probe
// from working. The target's content is lost.
func Probe(ctx context.Context, o ProbeOptions) (Profile, error) {
	if o.Idle == nil {
		o.Idle = Yield
	}
	if o.Rounds == 0 {
		o.Rounds = 32
	}
	if o.Stuck <= 0 {
		o.Stuck = 10 * time.Second
	}
	if o.Local.Mem.Len() < 3*ReplySize || o.Local.Addr&7 != 0 || o.Target.Addr&(ReplySize-1) != 0 {
		return Profile{}, fmt.Errorf("probe atomics: local memory of %d bytes at 0x%x, target at 0x%x: it needs %d bytes aligned to 8, and a target aligned to %d",
			o.Local.Mem.Len(), o.Local.Addr, o.Target.Addr, 3*ReplySize, ReplySize)
	}
	p := &prober{o: o, w: waiter{conn: o.Conn, idle: o.Idle, stuck: o.Stuck}, rng: rand.New(rand.NewPCG(o.Seed, 0x70726f6265))}
	prof := Profile{Probed: true, MaxAtomicSize: o.Caps.MaxAtomicSize()}
	for f := range o.Caps.forms() {
		if err := p.form(ctx, &f); err != nil {
			return prof, fmt.Errorf("probe %s with %d bytes: %w", f.Name, f.Size, err)
		}
		prof.Forms = append(prof.Forms, f)
	}
	return prof, nil
}

type prober struct {
	o   ProbeOptions
	w   waiter
	rng *rand.Rand
}

// Places in the scratch memory.
const (
	localReply = 0
	localIn    = ReplySize
	localOut   = 2 * ReplySize
)

// poke writes the first bytes of the target, a multiple of 8.
func (p *prober) poke(ctx context.Context, b []byte) error {
	if p.o.Target.Mem.Len() != 0 {
		p.o.Target.Store(0, b)
		return nil
	}
	p.o.Local.Store(localOut, b)
	return p.w.do(ctx, func(wrid uint64) error {
		return p.o.Conn.SQ.Write(wrid, queues.Signalled|queues.NonAtomic, p.o.Local.SGE(localOut, len(b)), p.o.Target.Remote(0))
	})
}

// peek reads the first bytes of the target, a multiple of 8.
func (p *prober) peek(ctx context.Context, b []byte) error {
	if p.o.Target.Mem.Len() != 0 {
		p.o.Target.Load(0, b)
		return nil
	}
	err := p.w.do(ctx, func(wrid uint64) error {
		return p.o.Conn.SQ.Read(wrid, queues.Signalled, p.o.Local.SGE(localIn, len(b)), p.o.Target.Remote(0))
	})
	p.o.Local.Load(localIn, b)
	return err
}

// run puts before into the target, does the request, and gives what the target
// and the reply are then.
func (p *prober) run(ctx context.Context, r *Request, before []byte) (after, reply []byte, err error) {
	n := (r.Size + 7) &^ 7
	after, reply = make([]byte, n), make([]byte, n)
	if err := p.poke(ctx, before); err != nil {
		return nil, nil, err
	}
	// A reply that does not come must not look like the one before.
	fill := make([]byte, n)
	for i := range fill {
		fill[i] = 0xcc
	}
	p.o.Local.Store(localReply, fill)
	err = p.w.do(ctx, func(wrid uint64) error {
		return r.Post(p.o.Conn.SQ, wrid, queues.Signalled, p.o.Local.SGE(localReply, r.Size), p.o.Target.RKey)
	})
	if err != nil {
		return nil, nil, err
	}
	p.o.Local.Load(localReply, reply)
	return after, reply[:r.Size], p.peek(ctx, after)
}

// form fills in what can be found about one form.
func (p *prober) form(ctx context.Context, f *Form) error {
	find := p.findSwap
	if f.Opcode == prm.WQEAtomicFA || f.Opcode == prm.WQEAtomicMaskedFA {
		find = p.findAdd
	}
	f.Memory, f.Reply = Unknown, Unknown
	if err := find(ctx, f); err != nil || f.Fault != NoFault {
		return err
	}
	return p.verify(ctx, f)
}

// pattern is n distinct bytes from first on.
func pattern(n int, first byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// numbers are the words of b, read in this order.
func numbers(b []byte, size int, order Order) []uint64 {
	ws := wordSize(size)
	out := make([]uint64, 0, len(b)/ws)
	for i := 0; i < size; i += ws {
		out = append(out, order.load(b[i:i+ws]))
	}
	return out
}

// orderOf tells in which order the words are stored in b.
func orderOf(words []uint64, b []byte, size int) Order {
	ws := wordSize(size)
	for _, o := range []Order{LittleEndian, BigEndian} {
		same := true
		for i, w := range words {
			same = same && o.load(b[i*ws:(i+1)*ws]) == w
		}
		if same {
			return o
		}
	}
	return Unknown
}

// op makes the operation of a form from words.
func (f *Form) op(addr uint64, compare, value []uint64) *Op {
	o := &Op{Size: f.Size, Addr: addr}
	fillMask := func() []uint64 {
		m := make([]uint64, len(value))
		for i := range m {
			m[i] = fieldMask(wordSize(f.Size))
		}
		return m
	}
	switch f.Opcode {
	case prm.WQEAtomicCS:
		o.Kind, o.Compare, o.Value = CompareSwap, compare[0], value[0]
		return o
	case prm.WQEAtomicFA:
		o.Kind, o.Value = FetchAdd, value[0]
		return o
	case prm.WQEAtomicMaskedCS:
		o.Kind = MaskedCompareSwap
	default:
		o.Kind = MaskedFetchAdd
	}
	if f.Size > 8 {
		o.Wide = &Wide{Value: value}
		if o.Kind == MaskedCompareSwap {
			o.Wide.Compare, o.Wide.CompareMask, o.Wide.SwapMask = make([]uint64, len(value)), make([]uint64, len(value)), fillMask()
		}
		return o
	}
	o.Value = value[0]
	if o.Kind == MaskedCompareSwap {
		o.SwapMask = fillMask()[0]
	}
	return o
}

// findSwap finds the orders of a compare-and-swap: it swaps everything, whatever
// was there; the plain one, which always compares, has to guess the order of what
// is there.
func (p *prober) findSwap(ctx context.Context, f *Form) error {
	before, now := pattern((f.Size+7)&^7, 1), pattern(f.Size, 0x81)
	value := numbers(now, f.Size, LittleEndian)
	var after, reply []byte
	for _, guess := range []Order{HostOrder(), 1 - HostOrder()} {
		var r Request
		o := f.op(p.o.Target.Addr, numbers(before, f.Size, guess), value)
		if err := o.Encode(&r, LittleEndian); err != nil {
			return err
		}
		var err error
		if after, reply, err = p.run(ctx, &r, before); err != nil {
			return err
		}
		if string(after) != string(before) {
			break
		}
	}
	if string(after) == string(before) {
		f.Fault, f.Detail = FaultUnknown, fmt.Sprintf("memory %s did not change when it was to be swapped whatever it was; the reply was %s", hex.EncodeToString(before[:f.Size]), hex.EncodeToString(reply))
		return p.findExchanged(ctx, f, before, value)
	}
	f.Memory = orderOf(value, after, f.Size)
	if f.Memory == Unknown {
		f.Fault, f.Detail = FaultUnknown, fmt.Sprintf("the words %x were stored as %s", value, hex.EncodeToString(after[:f.Size]))
		return nil
	}
	old := numbers(before, f.Size, f.Memory)
	f.replyOrder(old, reply)
	return nil
}

// findExchanged tells whether a device that does not swap when everything is to be
// swapped does so with the two masks in each other's place.
func (p *prober) findExchanged(ctx context.Context, f *Form, before []byte, value []uint64) error {
	if f.Opcode != prm.WQEAtomicMaskedCS {
		return nil
	}
	o := f.op(p.o.Target.Addr, nil, value)
	o.CompareMask, o.SwapMask = o.SwapMask, o.CompareMask
	if w := o.Wide; w != nil {
		w.CompareMask, w.SwapMask = w.SwapMask, w.CompareMask
	}
	var r Request
	if err := o.Encode(&r, LittleEndian); err != nil {
		return err
	}
	after, reply, err := p.run(ctx, &r, before)
	if err != nil {
		return err
	}
	if order := orderOf(value, after, f.Size); order != Unknown {
		f.Memory = order
		f.replyOrder(numbers(before, f.Size, order), reply)
		f.Fault, f.Detail = FaultMaskOrder, "it swapped everything when compare_mask was all ones and swap_mask zero: the device takes one for the other"
	}
	return nil
}

// findAdd finds the orders of a fetch-add: it adds distinct bytes to zeros, and
// then nothing to what has become of them.
func (p *prober) findAdd(ctx context.Context, f *Form) error {
	zeros, value := make([]byte, (f.Size+7)&^7), numbers(pattern(f.Size, 1), f.Size, LittleEndian)
	var r Request
	if err := f.op(p.o.Target.Addr, nil, value).Encode(&r, LittleEndian); err != nil {
		return err
	}
	after, _, err := p.run(ctx, &r, zeros)
	if err != nil {
		return err
	}
	f.Memory = orderOf(value, after, f.Size)
	if f.Memory == Unknown {
		f.Fault, f.Detail = FaultUnknown, fmt.Sprintf("the words %x added to zeros gave %s", value, hex.EncodeToString(after[:f.Size]))
		return nil
	}
	if err := f.op(p.o.Target.Addr, nil, make([]uint64, len(value))).Encode(&r, LittleEndian); err != nil {
		return err
	}
	before := pattern((f.Size+7)&^7, 1)
	after, reply, err := p.run(ctx, &r, before)
	if err != nil {
		return err
	}
	if string(after) != string(before) {
		f.Fault, f.Detail = FaultUnknown, fmt.Sprintf("adding nothing changed %s to %s", hex.EncodeToString(before[:f.Size]), hex.EncodeToString(after[:f.Size]))
		return nil
	}
	f.replyOrder(numbers(before, f.Size, f.Memory), reply)
	return nil
}

func (f *Form) replyOrder(old []uint64, reply []byte) {
	f.Reply = orderOf(old, reply, f.Size)
	if f.Reply == Unknown {
		f.Fault, f.Detail = FaultReply, fmt.Sprintf("the words %x were returned as %s", old, hex.EncodeToString(reply))
	}
}

// verify compares random operations of the form with the reference; on 4-byte
// words also those of 1 and 2 bytes at every offset.
func (p *prober) verify(ctx context.Context, f *Form) error {
	var d Diagnosis
	var example string
	for i := range p.o.Rounds {
		before := make([]byte, (f.Size+7)&^7)
		for i := range before {
			before[i] = byte(p.rng.Uint32())
		}
		o := p.random(f, i, before)
		var r Request
		if err := o.Encode(&r, f.Memory); err != nil {
			return err
		}
		after, reply, err := p.run(ctx, &r, before)
		if err != nil {
			return err
		}
		ok := d.Compare(&r, before[:f.Size], after[:f.Size], reply, f.Memory, f.Reply)
		if f.Size == 4 && string(before[4:]) != string(after[4:]) {
			f.Fault, f.Detail = FaultNeighbour, fmt.Sprintf("%s at offset %d changed the word behind it", o.Kind, o.Addr&3)
		}
		if !ok && example == "" {
			example = fmt.Sprintf("%s of %d bytes at offset %d of %s gave %s and returned %s", o.Kind, o.Size, o.Addr-r.Addr,
				hex.EncodeToString(before[:f.Size]), hex.EncodeToString(after[:f.Size]), hex.EncodeToString(reply))
		}
	}
	f.Runs, f.Wrong = d.Runs, d.Wrong
	if d.Wrong > 0 {
		f.Fault, f.Detail = d.Fault(), example
	}
	return nil
}

// random is the i-th operation to verify a form with.
func (p *prober) random(f *Form, i int, mem []byte) Op {
	size, off := f.Size, 0
	if f.Size == 4 && i%2 == 0 {
		places := [...][2]int{{1, 0}, {1, 1}, {1, 2}, {1, 3}, {2, 0}, {2, 1}, {2, 2}}
		at := places[i/2%len(places)]
		size, off = at[0], at[1]
	}
	kinds := []Kind{MaskedCompareSwap, CompareSwap, Swap, And, Or}
	switch f.Opcode {
	case prm.WQEAtomicCS:
		kinds = []Kind{CompareSwap}
	case prm.WQEAtomicFA:
		kinds = []Kind{FetchAdd}
	case prm.WQEAtomicMaskedFA:
		kinds = []Kind{MaskedFetchAdd, FetchAdd, Xor}
	}
	k := kinds[p.rng.IntN(len(kinds))]
	if f.Size == 8 && (k == CompareSwap || k == FetchAdd) && f.Opcode != prm.WQEAtomicCS && f.Opcode != prm.WQEAtomicFA {
		k = kinds[0] // the others of 8 bytes go out as plain ones
	}
	return Random(k, size, p.o.Target.Addr+uint64(off), mem[off:off+size], f.Memory, p.rng)
}
