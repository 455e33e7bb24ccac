package litmus

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// linear records what concurrent operations of all kinds and sizes on one object
// return, and looks for an order of them that explains it.
func (r *runner) linear(ctx context.Context) error {
	for _, size := range []int{8, 16, 32} {
		if err := r.linearOf(ctx, size, false); err != nil {
			return err
		}
	}
	return r.linearOf(ctx, 8, true)
}

// linAt is where the object lies: at the beginning of a block of any size.
const linAt = 1024

// history is a history being recorded.
type history struct {
	run    *runner
	size   int
	reads  bool
	kinds  [][2]int // kind and size of the operations that take part
	writes bool
	belief []byte // what the object held, as far as somebody has seen
	events []Event
}

func (r *runner) linearOf(ctx context.Context, size int, reads bool) error {
	h := &history{run: r, size: size, reads: reads, writes: r.rig.MaxWrite >= size}
	wide := false
	for s := 1; s <= size; s *= 2 {
		for _, k := range atomics.Kinds() {
			// In small objects all sizes take part; in large ones the large
			// operations and those of one word.
			if s <= k.MaxSize() && (size == 8 || s >= 8) && r.offered(k, s) {
				h.kinds = append(h.kinds, [2]int{int(k), s})
				wide = wide || s == size
			}
		}
	}
	row := Row{
		Test: testLinear, Guarantee: "one order explains every result of concurrent operations", Required: !reads, Verdict: NotOffered,
		Subject: fmt.Sprintf("an object of %d bytes", size),
	}
	if !wide {
		r.row(row)
		return nil
	}
	histories, events, undecided, stuck := 0, 0, 0, ""
	for range r.count(40) {
		if r.stop {
			break
		}
		a, err := h.record(ctx)
		if err != nil {
			return err
		}
		histories++
		events += len(h.events)
		if a.Undecided {
			undecided++
		} else if !a.Linearizable && stuck == "" {
			stuck = a.Stuck
		}
	}
	with := "atomics"
	if h.writes {
		with += " and WRITEs"
	}
	if reads {
		with += " and READs"
	}
	row.Subject += ", " + with
	note := fmt.Sprintf("%d histories of %d operations on average", histories, events/max(1, histories))
	if undecided > 0 {
		note += fmt.Sprintf("; %d were too large to decide", undecided)
	}
	switch {
	case reads:
		row.Guarantee, row.Verdict, row.Detail = "a READ of 8 aligned bytes contradicts that order", NotSeen, note
		if stuck != "" {
			row.Verdict, row.Detail = Seen, stuck
		}
		r.row(row)
	case undecided == histories && histories > 0:
		row.Verdict, row.Detail = NoTime, note
		r.row(row)
	default:
		r.judge(row.Test, row.Guarantee, row.Subject, atomics.FaultNotLinearizable, stuck, note)
	}
	return nil
}

// record makes one history and checks it.
func (h *history) record(ctx context.Context) (Answer, error) {
	r := h.run
	h.events = h.events[:0]
	h.belief = r.fill(linAt, h.size)
	init := slices.Clone(h.belief)
	todo := 12 * len(r.ports)
	err := r.drive(ctx, func(p *port) (bool, error) {
		// Few at a time: an order of many concurrent operations is almost always
		// to be found, and tells little.
		if todo <= 0 || p.busyBeyond(1) {
			return false, nil
		}
		todo--
		return true, h.post(p)
	}, func() bool { return todo <= 0 })
	if err != nil {
		return Answer{}, err
	}
	// What is left is one more event, after all others.
	final := r.target(linAt, h.size)
	now := r.tick()
	h.events = append(h.events, Event{
		Name: "memory " + hex.EncodeToString(final) + " at rest", Call: now, Return: r.tick(),
		Do: func(state []byte) bool { return bytes.Equal(state, final) },
	})
	return Linearize(init, h.events, 0), nil
}

func (h *history) post(p *port) error {
	switch c := h.run.rng.IntN(8); {
	case h.writes && c == 0:
		return h.write(p)
	case h.reads && c <= 2:
		return h.read(p)
	}
	return h.atomic(p)
}

// add begins an event; the function it gives ends it.
func (h *history) add() func(name string, do func(state []byte) bool) {
	i := len(h.events)
	h.events = append(h.events, Event{Call: h.run.clock})
	return func(name string, do func(state []byte) bool) {
		e := &h.events[i]
		e.Name, e.Return, e.Do = name, h.run.clock, do
	}
}

func (h *history) write(p *port) error {
	n := 1 + h.run.rng.IntN(h.size)
	off := h.run.rng.IntN(h.size - n + 1)
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(h.run.rng.Uint32())
	}
	var end func(string, func([]byte) bool)
	err := p.write(linAt+off, data, 0, func() error {
		copy(h.belief[off:], data)
		end(fmt.Sprintf("WRITE %x at %d", data, off), func(state []byte) bool {
			copy(state[off:], data)
			return true
		})
		return nil
	})
	end = h.add()
	return err
}

func (h *history) read(p *port) error {
	var end func(string, func([]byte) bool)
	err := p.read(linAt, h.size, 0, func(b []byte) error {
		copy(h.belief, b)
		end(fmt.Sprintf("READ %x", b), func(state []byte) bool { return bytes.Equal(state, b) })
		return nil
	})
	end = h.add()
	return err
}

func (h *history) atomic(p *port) error {
	c := h.kinds[h.run.rng.IntN(len(h.kinds))]
	k, size := atomics.Kind(c[0]), c[1]
	off := h.run.rng.IntN(h.size/size) * size
	if size == 2 && h.run.rng.IntN(3) == 0 {
		off = off&^3 + 1
	}
	order := p.orderOf(k, size)
	op := atomics.Random(k, size, uint64(linAt+off), h.belief[off:off+size], order, h.run.rng)
	var end func(string, func([]byte) bool)
	if size <= 8 {
		err := p.atomic(op, 0, func(old uint64, _ bool) error {
			order.Store(h.belief[off:off+size], old)
			if _, err := atomics.Apply(h.belief, linAt, &op, order); err != nil {
				return err
			}
			end(fmt.Sprintf("%s of %d at %d returned 0x%x", k, size, off, old), func(state []byte) bool {
				res, err := atomics.Apply(state, linAt, &op, order)
				return err == nil && res.Old == old
			})
			return nil
		})
		end = h.add()
		return err
	}
	err := p.wide(op, 0, func(old []uint64, _ bool) error {
		for i, w := range old {
			order.Store(h.belief[off+8*i:off+8*i+8], w)
		}
		if _, err := atomics.Apply(h.belief, linAt, &op, order); err != nil {
			return err
		}
		end(fmt.Sprintf("%s of %d at %d returned %x", k, size, off, old), func(state []byte) bool {
			res, err := atomics.Apply(state, linAt, &op, order)
			return err == nil && slices.Equal(res.OldWide, old)
		})
		return nil
	})
	end = h.add()
	return err
}
