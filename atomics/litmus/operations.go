package litmus

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/queues"
)

// operations tries every kind and size that the device offers, at every place of
// its word, one operation at a time and from every requester in turn, and compares
// memory around the target and the reply with the reference.
func (r *runner) operations(ctx context.Context) error {
	var all atomics.Diagnosis
	for size := 1; size <= 256; size *= 2 {
		if err := r.operationsOf(ctx, size, &all); err != nil {
			return err
		}
	}
	r.sequential = all.Fault()
	return nil
}

// guard is how many bytes on both sides of a word are watched.
const guard = 64

func (r *runner) operationsOf(ctx context.Context, size int, all *atomics.Diagnosis) error {
	const guarantee = "an operation changes its target as asked and nothing else"
	var d atomics.Diagnosis
	var kinds []atomics.Kind
	for _, k := range atomics.Kinds() {
		if size <= k.MaxSize() && r.offered(k, size) {
			kinds = append(kinds, k)
		}
	}
	subject := fmt.Sprintf("%d byte%s", size, plural(size))
	if len(kinds) == 0 {
		r.row(Row{Test: testOperations, Guarantee: guarantee, Subject: subject, Required: true, Verdict: NotOffered})
		return nil
	}
	places := []int{0}
	switch size {
	case 1:
		places = []int{0, 1, 2, 3}
		subject += " at offsets 0 to 3"
	case 2:
		places = []int{0, 1, 2}
		subject += " at offsets 0 to 2"
	}
	neighbour, example := "", ""
	for i := range r.count(10 * len(kinds) * len(places)) {
		if r.stop {
			break
		}
		k, off := kinds[i%len(kinds)], places[i/len(kinds)%len(places)]
		p := r.ports[r.rng.IntN(len(r.ports))]
		ex, nb, err := r.operation(ctx, p, k, size, off, &d)
		if err != nil {
			return err
		}
		if example == "" {
			example = ex
		}
		if neighbour == "" {
			neighbour = nb
		}
	}
	subject += fmt.Sprintf(", %d kinds", len(kinds))
	fault, broken := d.Fault(), ""
	if d.Wrong > 0 {
		broken = fmt.Sprintf("%d of %d were wrong; %s", d.Wrong, d.Runs, example)
	}
	if neighbour != "" {
		broken += neighbour
		if fault == atomics.NoFault {
			fault = atomics.FaultNeighbour
		}
	}
	all.Add(&d)
	r.judge(testOperations, guarantee, subject, fault, broken, "")
	return nil
}

// offered tells whether every requester can post the operation.
func (r *runner) offered(k atomics.Kind, size int) bool {
	for _, p := range r.ports {
		f := p.req.Profile.FormOf(&atomics.Op{Kind: k, Size: size})
		if f == nil || f.Memory > atomics.BigEndian || f.Reply > atomics.BigEndian {
			return false
		}
	}
	return true
}

// operation does one operation and compares it; it describes what went wrong.
func (r *runner) operation(ctx context.Context, p *port, k atomics.Kind, size, off int, d *atomics.Diagnosis) (example, neighbour string, err error) {
	const at = 512
	n := max(size, 8)
	before := r.fill(at-guard, guard+n+guard)
	f := p.req.Profile.FormOf(&atomics.Op{Kind: k, Size: size})
	op := atomics.Random(k, size, uint64(at+off), before[guard+off:][:size], f.Memory, r.rng)
	var req atomics.Request
	var reply []byte
	posted := false
	err = r.drive(ctx, func(q *port) (bool, error) {
		if q != p || posted {
			return false, nil
		}
		posted = true
		return true, p.atomicRaw(op, 0, func(s *slot, in atomics.Memory) error {
			req = s.req
			reply = make([]byte, (req.Size+7)&^7)
			in.Load(0, reply)
			reply = reply[:req.Size]
			return nil
		})
	}, func() bool { return posted })
	if err != nil || !posted {
		return "", "", err
	}
	after := r.target(at-guard, len(before))
	word := int(req.Addr-r.rig.Target.Addr) - (at - guard)
	was, is := before[word:word+req.Size], after[word:word+req.Size]
	if !d.Compare(&req, was, is, reply, f.Memory, f.Reply) {
		example = fmt.Sprintf("%s of %d at offset %d of %s gave %s and returned %s", k, size, off, hex.EncodeToString(was), hex.EncodeToString(is), hex.EncodeToString(reply))
	}
	copy(after[word:], was)
	if string(after) != string(before) {
		neighbour = fmt.Sprintf("; %s of %d bytes changed bytes outside its word", k, size)
	}
	return example, neighbour, nil
}

// adds lets all requesters update the fields of one word at once, by fetch-add
// and by compare-and-swap. The sums must be exact, which they are not if one
// update is lost or a carry leaves its field.
func (r *runner) adds(ctx context.Context) error {
	for _, l := range []layout{
		{"1 byte, 4 fields a word", 1, []int{0, 1, 2, 3}},
		{"2 bytes, 2 fields a word", 2, []int{0, 2}},
		{"2 bytes at offset 1", 2, []int{1}},
		{"4 bytes, 2 fields in 8 bytes", 4, []int{0, 4}},
		{"8 bytes", 8, []int{0}},
	} {
		if err := r.addsOf(ctx, l); err != nil {
			return err
		}
	}
	for size := 16; size <= 256; size *= 2 {
		if err := r.wideAdds(ctx, size); err != nil {
			return err
		}
	}
	return r.tickets(ctx)
}

// layout is variables of one size in a word.
type layout struct {
	name string
	size int
	at   []int
}

const addsGuarantee = "concurrent updates all count, and none leaves its field"

func (r *runner) addsOf(ctx context.Context, l layout) error {
	adds, swaps := r.offered(atomics.FetchAdd, l.size), r.offered(atomics.CompareSwap, l.size)
	if !adds && !swaps {
		r.row(Row{Test: testAdds, Guarantee: addsGuarantee, Subject: l.name, Required: true, Verdict: NotOffered})
		return nil
	}
	const at = 1024
	order := r.ports[0].orderOf(atomics.FetchAdd, l.size)
	if !adds {
		order = r.ports[0].orderOf(atomics.CompareSwap, l.size)
	}
	want := r.fill(at-guard, guard+8+guard)
	mask := ^uint64(0) >> (64 - 8*l.size)
	todo := r.count(1500)
	// What each port believes a field holds: what its compare-and-swap tries next.
	belief := map[[2]int]uint64{}
	sum := func(field int, v uint64) {
		b := want[guard+field:][:l.size]
		order.Store(b, order.Load(b)+v)
	}
	stored := 0
	err := r.drive(ctx, func(p *port) (bool, error) {
		if todo <= 0 {
			return false, nil
		}
		todo--
		field := l.at[r.rng.IntN(len(l.at))]
		v := r.rng.Uint64() & mask
		if r.rng.IntN(3) == 0 {
			v = mask // the most there can be to carry
		}
		if adds && (!swaps || r.rng.IntN(2) == 0) {
			stored++
			sum(field, v)
			return true, p.atomic(atomics.Op{Kind: atomics.FetchAdd, Size: l.size, Addr: uint64(at + field), Value: v}, 0,
				func(old uint64, _ bool) error {
					belief[[2]int{p.index, field}] = (old + v) & mask
					return nil
				})
		}
		key := [2]int{p.index, field}
		was := belief[key]
		return true, p.atomic(atomics.Op{Kind: atomics.CompareSwap, Size: l.size, Addr: uint64(at + field), Compare: was, Value: (was + v) & mask}, 0,
			func(old uint64, ok bool) error {
				belief[key] = old
				if ok {
					stored++
					sum(field, v)
					belief[key] = (old + v) & mask
				}
				return nil
			})
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	r.judge(testAdds, addsGuarantee, fmt.Sprintf("%s, %d queues", l.name, len(r.ports)), atomics.FaultLostUpdate,
		r.differs(at-guard, want, guard, 8), fmt.Sprintf("%d updates", stored))
	return nil
}

// differs says how the target from off on differs from want, whose middle is
// n bytes at from.
func (r *runner) differs(off int, want []byte, from, n int) string {
	got := r.target(off, len(want))
	if string(got) == string(want) {
		return ""
	}
	a, b := hex.EncodeToString(want[from:from+n]), hex.EncodeToString(got[from:from+n])
	if a != b {
		return fmt.Sprintf("memory should hold %s and holds %s", a, b)
	}
	return "bytes beside the word have changed"
}

// orderOf is the memory order of the form that carries an operation.
func (p *port) orderOf(k atomics.Kind, size int) atomics.Order {
	return p.req.Profile.FormOf(&atomics.Op{Kind: k, Size: size}).Memory
}

func (r *runner) wideAdds(ctx context.Context, size int) error {
	subject := fmt.Sprintf("%d bytes in words of 8", size)
	if !r.offered(atomics.FetchAdd, size) {
		r.row(Row{Test: testAdds, Guarantee: addsGuarantee, Subject: subject, Required: true, Verdict: NotOffered})
		return nil
	}
	const at = 1024
	order := r.ports[0].orderOf(atomics.FetchAdd, size)
	want := r.fill(at-guard, guard+size+guard)
	todo := r.count(300)
	err := r.drive(ctx, func(p *port) (bool, error) {
		if todo <= 0 {
			return false, nil
		}
		todo--
		vs := make([]uint64, size/8)
		for i := range vs {
			vs[i] = r.rng.Uint64()
			b := want[guard+8*i:][:8]
			order.Store(b, order.Load(b)+vs[i])
		}
		return true, p.wide(atomics.Op{Kind: atomics.FetchAdd, Size: size, Addr: at, Wide: &atomics.Wide{Value: vs}}, 0,
			func([]uint64, bool) error { return nil })
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	r.judge(testAdds, addsGuarantee, fmt.Sprintf("%s, %d queues", subject, len(r.ports)), atomics.FaultLostUpdate, r.differs(at-guard, want, guard, size), "")
	return nil
}

// tickets draws numbers from one counter: no two operations may get the same, and
// those of one queue must grow in the order in which they were posted.
func (r *runner) tickets(ctx context.Context) error {
	const guarantee, at = "every fetch-add of a counter gets a number of its own, ascending within a queue", 1024
	size := 8
	if !r.offered(atomics.FetchAdd, 8) {
		size = 4
	}
	if !r.offered(atomics.FetchAdd, size) {
		r.row(Row{Test: testAdds, Guarantee: guarantee, Subject: "8 bytes", Required: true, Verdict: NotOffered})
		return nil
	}
	r.rig.Target.Store(at, make([]byte, 8))
	todo, drawn := r.count(1500), 0
	n := todo
	seen := make([]bool, n)
	type queue struct{ posted, next int }
	tickets := make([]map[int]uint64, len(r.ports)) // by posting order
	qs := make([]queue, len(r.ports))
	for i := range tickets {
		tickets[i] = map[int]uint64{}
	}
	lost, order := "", ""
	last := make([]int64, len(r.ports))
	for i := range last {
		last[i] = -1
	}
	err := r.drive(ctx, func(p *port) (bool, error) {
		if todo <= 0 {
			return false, nil
		}
		todo--
		q := &qs[p.index]
		no := q.posted
		q.posted++
		return true, p.atomic(atomics.Op{Kind: atomics.FetchAdd, Size: size, Addr: at, Value: 1}, queues.Signalled, func(old uint64, _ bool) error {
			drawn++
			switch {
			case old >= uint64(n):
				lost = fmt.Sprintf("number %d of %d was given out", old, n)
			case seen[old]:
				lost = fmt.Sprintf("number %d was given out twice", old)
			default:
				seen[old] = true
			}
			tickets[p.index][no] = old
			for {
				t, ok := tickets[p.index][q.next]
				if !ok {
					return nil
				}
				if int64(t) <= last[p.index] {
					order = fmt.Sprintf("a queue got number %d after %d", t, last[p.index])
				}
				last[p.index] = int64(t)
				delete(tickets[p.index], q.next)
				q.next++
			}
		})
	}, func() bool { return todo <= 0 })
	if err != nil {
		return err
	}
	fault, broken := atomics.FaultLostUpdate, lost
	if lost == "" {
		fault, broken = atomics.FaultOrder, order
	}
	r.judge(testAdds, guarantee, fmt.Sprintf("%d bytes, %d queues", size, len(r.ports)), fault, broken, fmt.Sprintf("%d numbers", drawn))
	return nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
