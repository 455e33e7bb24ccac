package litmus

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

func client(t *testing.T, rig *Rig, i int) *atomics.Client {
	t.Helper()
	q := &rig.Requesters[i]
	c, err := atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Profile: q.Profile, Reply: q.Local, RKey: rig.Target.RKey, Idle: rig.Idle})
	require.NoError(t, err)
	return c
}

// Every convenience of the Client does what its name says, in both memory orders.
func TestClient(t *testing.T) {
	ctx := context.Background()
	for _, order := range []atomics.Order{atomics.LittleEndian, atomics.BigEndian} {
		t.Run(order.String(), func(t *testing.T) {
			_, rig := newFake(t, fakeOptions{memory: order, maxWrite: 32})
			probe(t, rig)
			c := client(t, rig, 0)
			at := rig.Target.Addr + 64
			mem := func(n int) uint64 { return order.Load(rig.Target.Mem.Bytes()[64:][:n]) }
			set := func(b ...byte) { copy(rig.Target.Mem.Bytes()[64:], b) }

			set(7, 0xff, 3, 4)
			b, err := c.CompareSwap8(ctx, at+1, 0xff, 9)
			require.NoError(t, err)
			require.EqualValues(t, 0xff, b)
			b, err = c.CompareSwap8(ctx, at+1, 0xff, 1)
			require.NoError(t, err)
			require.EqualValues(t, 9, b, "it did not match")
			require.Equal(t, []byte{7, 9, 3, 4}, rig.Target.Mem.Bytes()[64:68])

			b, err = c.Swap8(ctx, at+3, 0x80)
			require.NoError(t, err)
			require.EqualValues(t, 4, b)
			b, err = c.FetchAdd8(ctx, at+3, 0x81)
			require.NoError(t, err)
			require.EqualValues(t, 0x80, b)
			require.Equal(t, []byte{7, 9, 3, 1}, rig.Target.Mem.Bytes()[64:68], "the carry is lost, the neighbours stay")

			h, err := c.Swap16(ctx, at+1, 0xabcd)
			require.NoError(t, err)
			require.Equal(t, uint16(order.Load([]byte{9, 3})), h)
			h, err = c.CompareSwap16(ctx, at+1, 0xabcd, 0xfffe)
			require.NoError(t, err)
			require.EqualValues(t, 0xabcd, h)
			h, err = c.FetchAdd16(ctx, at+1, 3)
			require.NoError(t, err)
			require.EqualValues(t, 0xfffe, h)
			require.EqualValues(t, 7, rig.Target.Mem.Bytes()[64])
			require.EqualValues(t, 1, rig.Target.Mem.Bytes()[67])

			w, err := c.Swap32(ctx, at, 0xffffffff)
			require.NoError(t, err)
			require.NotZero(t, w)
			w, err = c.FetchAdd32(ctx, at, 2)
			require.NoError(t, err)
			require.EqualValues(t, 0xffffffff, w)
			w, err = c.CompareSwap32(ctx, at, 1, 5)
			require.NoError(t, err)
			require.EqualValues(t, 1, w)
			require.EqualValues(t, 5, mem(4))

			q, err := c.Swap64(ctx, at, 0x1122334455667788)
			require.NoError(t, err)
			require.NotZero(t, q)
			q, err = c.FetchAdd64(ctx, at, 1)
			require.NoError(t, err)
			require.EqualValues(t, 0x1122334455667788, q)
			q, err = c.CompareSwap64(ctx, at, 0x1122334455667789, 0xf0f0)
			require.NoError(t, err)
			require.EqualValues(t, 0x1122334455667789, q)
			q, err = c.And(ctx, at, 8, 0xff00)
			require.NoError(t, err)
			require.EqualValues(t, 0xf0f0, q)
			q, err = c.Or(ctx, at, 8, 0x0f)
			require.NoError(t, err)
			require.EqualValues(t, 0xf000, q)
			q, err = c.Xor(ctx, at, 8, 0xff)
			require.NoError(t, err)
			require.EqualValues(t, 0xf00f, q)
			require.EqualValues(t, 0xf0f0, mem(8))

			res, err := c.Do(ctx, &atomics.Op{Kind: atomics.CompareSwap, Size: 16, Addr: at, Wide: &atomics.Wide{
				Compare: []uint64{0xf0f0, order.Load(rig.Target.Mem.Bytes()[72:80])}, Value: []uint64{1, 2},
			}})
			require.NoError(t, err)
			require.True(t, res.Stored)
			require.EqualValues(t, 0xf0f0, res.OldWide[0])
			require.EqualValues(t, 1, mem(8))
		})
	}
}

func TestClientRefuses(t *testing.T) {
	ctx := context.Background()
	d, rig := newFake(t, fakeOptions{maxWrite: 32})
	c := client(t, rig, 0)
	steps := d.steps
	_, err := c.CompareSwap32(ctx, rig.Target.Addr+2, 0, 1)
	require.ErrorIs(t, err, atomics.ErrUnaligned)
	_, err = c.Swap16(ctx, rig.Target.Addr+3, 1)
	require.ErrorIs(t, err, atomics.ErrCrosses)
	_, err = c.And(ctx, rig.Target.Addr, 1, 0x100)
	require.ErrorIs(t, err, atomics.ErrOverflow)
	_, err = c.Do(ctx, &atomics.Op{Kind: atomics.FetchAdd, Size: 64, Addr: rig.Target.Addr, Wide: &atomics.Wide{Value: make([]uint64, 8)}})
	require.ErrorIs(t, err, atomics.ErrNotOffered)
	require.Equal(t, steps, d.steps, "nothing reached the device")

	// A key that opens nothing is the device's refusal.
	q := &rig.Requesters[1]
	bad, err := atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Profile: q.Profile, Reply: q.Local, RKey: 0xdead, Idle: rig.Idle})
	require.NoError(t, err)
	_, err = bad.Swap32(ctx, rig.Target.Addr, 1)
	var ce *queues.CompletionError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, prm.CQESyndRemoteAccessErr, ce.Syndrome)
	var oe *atomics.OpError
	require.ErrorAs(t, err, &oe)
	require.Equal(t, 4, oe.Size)

	_, err = bad.Do(t.Context(), nil)
	require.ErrorIs(t, err, atomics.ErrKind)
	_, err = atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Reply: q.Local.Slice(0, 8)})
	require.ErrorContains(t, err, "reply memory")
	_, err = atomics.NewClient(atomics.ClientOptions{Reply: q.Local})
	require.ErrorContains(t, err, "send queue")
	_, err = atomics.Probe(ctx, atomics.ProbeOptions{Conn: q.Conn, Local: q.Local, Target: rig.Target.Slice(8, 256)})
	require.ErrorContains(t, err, "target")
}

// A wait that was given up does not confuse the operation after it.
func TestClientCancelled(t *testing.T) {
	d, rig := newFake(t, fakeOptions{maxWrite: 32})
	q := &rig.Requesters[0]
	asleep := true
	idle := func(ctx context.Context) error {
		if !asleep {
			return d.idle(ctx)
		}
		<-ctx.Done()
		return ctx.Err()
	}
	c, err := atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Profile: q.Profile, Reply: q.Local, RKey: rig.Target.RKey, Idle: idle})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err = c.FetchAdd64(ctx, rig.Target.Addr, 5)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = c.FetchAdd64(ctx, rig.Target.Addr, 7)
	require.ErrorContains(t, err, "earlier operation")
	asleep = false
	old, err := c.FetchAdd64(context.Background(), rig.Target.Addr, 7)
	require.NoError(t, err)
	require.EqualValues(t, 5, old, "the first one was carried out, and this one behind it")
}

func TestClientAllocatesNothing(t *testing.T) {
	d, rig := newFake(t, fakeOptions{maxWrite: 32})
	q := &rig.Requesters[0]
	ring, rec, cqr := d.qps[0].ring, d.qps[0].record, d.qps[0].cq
	// A responder that only completes: the fake one allocates.
	idle := func(context.Context) error {
		f := d.qps[0]
		for f.ci != uint16(rec.LoadBE32(4)) {
			w := ring.Bytes()[int(f.ci)*64&(ring.Len()-1):]
			var e prm.CQE64
			e.SetSWQEOpcode(prm.WQEOpcode(w[3]))
			e.SetQPN(f.qpn)
			cqr.put(&e, f.ci, prm.CQEReq)
			f.ci += uint16((int(w[7]&63)*16 + 63) / 64)
		}
		return nil
	}
	c, err := atomics.NewClient(atomics.ClientOptions{Conn: q.Conn, Profile: q.Profile, Reply: q.Local, RKey: rig.Target.RKey, Idle: idle})
	require.NoError(t, err)
	ctx := context.Background()
	failed := 0
	n := testing.AllocsPerRun(200, func() {
		if _, err := c.CompareSwap8(ctx, rig.Target.Addr+1, 1, 2); err != nil {
			failed++
		}
		if _, err := c.FetchAdd64(ctx, rig.Target.Addr, 1); err != nil {
			failed++
		}
	})
	require.Zero(t, failed)
	require.Zero(t, n)
}

// The probe finds either order, the reply order of both endianness modes, and what
// is wrong.
func TestProbe(t *testing.T) {
	for _, memory := range []atomics.Order{atomics.LittleEndian, atomics.BigEndian} {
		for mode := range uint8(2) {
			_, rig := newFake(t, fakeOptions{memory: memory, caps: atomics.Caps{Operations: 0xf, SizesQP: 0x1fc, Mode: mode}})
			probe(t, rig)
			p := rig.Requesters[0].Profile
			require.True(t, p.Probed)
			require.NoError(t, p.Err())
			require.Equal(t, 256, p.MaxAtomicSize)
			require.Equal(t, memory, p.Order())
			require.Len(t, p.Forms, 15, "2 plain, 6 masked C&S, 7 masked F&A")
			for _, f := range p.Forms {
				require.Equal(t, memory, f.Memory, f.Name)
				require.Equal(t, atomics.ReplyOrder(f.Size, mode), f.Reply, f.Name)
				require.Equal(t, 32, f.Runs)
				require.Zero(t, f.Wrong)
			}
		}
	}
}

// Memory that belongs to another process is probed by RDMA alone.
func TestProbeWithoutMemory(t *testing.T) {
	_, rig := newFake(t, fakeOptions{maxWrite: 32})
	q := &rig.Requesters[0]
	target := rig.Target
	target.Mem = q.Local.Mem.Slice(0, 0)
	p, err := atomics.Probe(context.Background(), atomics.ProbeOptions{Conn: q.Conn, Caps: rig.Caps, Local: q.Local, Target: target, Idle: rig.Idle})
	require.NoError(t, err)
	require.NoError(t, p.Err())
	require.Equal(t, atomics.LittleEndian, p.Order())
}

func TestProbeNamesFaults(t *testing.T) {
	for _, f := range []atomics.Fault{atomics.FaultMaskOrder, atomics.FaultNoBoundary} {
		_, rig := newFake(t, fakeOptions{fault: f})
		probe(t, rig)
		p := rig.Requesters[0].Profile
		var fe *atomics.FaultError
		require.ErrorAs(t, p.Err(), &fe)
		require.Equal(t, f, fe.Fault)
		require.NotEmpty(t, fe.Detail)
		// The suite names it too, with what the probe could still find.
		c, err := Run(context.Background(), rig, Options{Scale: 0.1})
		require.NoError(t, err)
		require.Contains(t, c.Faults, f)
	}
}

// Hypotheses are told apart by what they explain: a fault that is planted in the
// reference is found, and a good device has none.
func TestDiagnosis(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var d atomics.Diagnosis
	word, reply := make([]byte, 8), make([]byte, 8)
	for range 200 {
		for i := range word {
			word[i] = byte(rng.Uint32())
		}
		before := append([]byte(nil), word...)
		op := atomics.Random(atomics.MaskedFetchAdd, 8, 0x100, word, atomics.LittleEndian, rng)
		var r atomics.Request
		require.NoError(t, op.Encode(&r, atomics.LittleEndian))
		// The device reads the word in the other order.
		require.NoError(t, r.Execute(word, atomics.BigEndian, reply, atomics.BigEndian))
		require.NoError(t, r.Execute(append([]byte(nil), before...), atomics.LittleEndian, reply, atomics.BigEndian))
		d.Compare(&r, before, word, reply, atomics.LittleEndian, atomics.BigEndian)
	}
	require.Equal(t, atomics.FaultByteOrder, d.Fault())
	require.Greater(t, d.Wrong, 150)

	var good, replies atomics.Diagnosis
	op := atomics.Op{Kind: atomics.Swap, Size: 4, Value: 5}
	var r atomics.Request
	require.NoError(t, op.Encode(&r, atomics.LittleEndian))
	require.True(t, good.Compare(&r, []byte{1, 2, 3, 4}, []byte{5, 0, 0, 0}, []byte{4, 3, 2, 1}, atomics.LittleEndian, atomics.BigEndian))
	require.Equal(t, atomics.NoFault, good.Fault())
	require.False(t, replies.Compare(&r, []byte{1, 2, 3, 4}, []byte{5, 0, 0, 0}, []byte{1, 2, 3, 4}, atomics.LittleEndian, atomics.BigEndian))
	require.Equal(t, atomics.FaultReply, replies.Fault())
	require.False(t, replies.Compare(&r, []byte{1, 2, 3, 4}, []byte{6, 7, 8, 9}, []byte{1, 2, 3, 4}, atomics.LittleEndian, atomics.BigEndian))
	require.Equal(t, atomics.FaultUnknown, replies.Fault())
	good.Add(&replies)
	require.Equal(t, 3, good.Runs)
	require.Equal(t, 2, good.Wrong)
}

func TestRigRefused(t *testing.T) {
	_, rig := newFake(t, fakeOptions{queues: 2})
	spoil := func(f func(r *Rig)) error {
		r := *rig
		r.Requesters = append([]Requester(nil), rig.Requesters...)
		f(&r)
		_, err := Run(context.Background(), &r, Options{})
		return err
	}
	require.ErrorContains(t, spoil(func(r *Rig) { r.Requesters = r.Requesters[:1] }), "two or more")
	require.ErrorContains(t, spoil(func(r *Rig) { r.Target = r.Target.Slice(0, 100) }), "target of 100 bytes")
	require.ErrorContains(t, spoil(func(r *Rig) { r.MaxWrite = 24 }), "power of two")
	require.ErrorContains(t, spoil(func(r *Rig) { r.Requesters[1].Conn.CQ = nil }), "requester 1")
	require.ErrorContains(t, spoil(func(r *Rig) { r.Requesters[0].Local = r.Requesters[0].Local.Slice(0, 64) }), "scratch memory")
	require.ErrorContains(t, spoil(func(r *Rig) { r.Requesters[0].Accept.Local = atomics.Memory{} }), "receiving end")
}

// A queue pair that fails, a device that stops and a caller that has enough end
// the run with an error and the rows until there.
func TestRunEnds(t *testing.T) {
	_, rig := newFake(t, fakeOptions{})
	rig.Target.RKey = 0xdead
	_, err := Run(context.Background(), rig, Options{})
	var ce *queues.CompletionError
	require.ErrorAs(t, err, &ce)
	require.ErrorContains(t, err, "litmus test operations")

	_, rig = newFake(t, fakeOptions{})
	rig.Idle = func(context.Context) error { return nil }
	q := &rig.Requesters[0]
	_, err = atomics.Probe(context.Background(), atomics.ProbeOptions{Conn: q.Conn, Caps: rig.Caps, Local: q.Local, Target: rig.Target, Idle: rig.Idle, Stuck: 20 * time.Millisecond})
	require.ErrorIs(t, err, atomics.ErrStuck)
	_, rig = newFake(t, fakeOptions{})
	rig.Idle = func(context.Context) error { return nil }
	_, err = Run(context.Background(), rig, Options{Stuck: 20 * time.Millisecond})
	require.ErrorContains(t, err, "no completion for 20ms")

	d, rig := newFake(t, fakeOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	rows := 0
	rig.Idle = d.idle
	c, err := Run(ctx, rig, Options{Progress: func(Row) {
		if rows++; rows == 3 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	require.GreaterOrEqual(t, len(c.Rows), 3)

	// Out of time is no verdict.
	_, rig = newFake(t, fakeOptions{})
	c, err = Run(context.Background(), rig, Options{Budget: time.Nanosecond})
	require.NoError(t, err)
	require.False(t, c.OK)
	require.ErrorContains(t, c.Err(), "no guarantee could be tried")
	require.True(t, errors.Is(errors.Unwrap(&atomics.OpError{Err: atomics.ErrSize}), atomics.ErrSize))
}

// Equal seeds give equal cards on a deterministic device.
func TestDeterministic(t *testing.T) {
	cards := make([]*Card, 2)
	for i := range cards {
		_, rig := newFake(t, fakeOptions{maxWrite: 32, late: true, seed: 5})
		c, err := Run(context.Background(), rig, Options{Seed: 9, Scale: 0.1})
		require.NoError(t, err)
		cards[i] = c
	}
	require.Equal(t, cards[0], cards[1])
	_, rig := newFake(t, fakeOptions{maxWrite: 32, late: true, seed: 5})
	c, err := Run(context.Background(), rig, Options{Seed: 10, Scale: 0.1})
	require.NoError(t, err)
	require.NotEqual(t, cards[0].Rows, c.Rows)
}

// Without atomic writes, without the masked operations and without a receiving end
// the card says so, and is still good.
func TestPoorDevices(t *testing.T) {
	verdict := func(c *Card, guarantee string) Verdict {
		for _, r := range c.Rows {
			if r.Guarantee == guarantee {
				return r.Verdict
			}
		}
		return "no such row"
	}
	_, rig := newFake(t, fakeOptions{maxWrite: 0})
	for i := range rig.Requesters {
		rig.Requesters[i].Accept = Accept{}
	}
	c, err := Run(context.Background(), rig, Options{Scale: 0.1})
	require.NoError(t, err)
	require.NoError(t, c.Err())
	require.Equal(t, NotOffered, verdict(c, "a write inside an aligned block is all or nothing"))
	require.Equal(t, NotOffered, verdict(c, "a WRITE is there when the SEND behind it arrives"))

	_, rig = newFake(t, fakeOptions{maxWrite: 8, caps: atomics.Caps{Operations: 0x3, SizesQP: 0x8}})
	probe(t, rig)
	c, err = Run(context.Background(), rig, Options{Scale: 0.1})
	require.NoError(t, err)
	require.NoError(t, c.Err())
	require.Equal(t, NotOffered, verdict(c, "mutual exclusion"))
	require.Equal(t, Holds, verdict(c, "an atomic behind a WRITE of the same queue sees it"))
}
