package sim

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// reseed gives the engine another stream of choices.
func (r *raw) reseed(seed uint64) {
	r.chip.fabric.rng = rand.New(rand.NewPCG(seed, 1))
}

const seeds = 60

// count runs do with as many streams of choices and counts those in which it says
// yes.
func (r *raw) count(do func() bool) (n int) {
	for s := range uint64(seeds) {
		r.reseed(s)
		if do() {
			n++
		}
	}
	return n
}

// stale posts a READ and, in the same batch, a WRITE of what it reads, with the
// fence given, and tells whether the WRITE sent what was there before.
func stale(a *end, m *region, fm prm.FenceMode) bool {
	r := a.r
	m.set(0, 0x1111)
	m.set(64, 0xdead)
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}},
		wqe{op: prm.WQERdmaWrite, fm: fm, segs: [][]byte{m.remote(128), m.ptr(64, 8)}})
	r.settle()
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	require.EqualValues(r.t, 0x1111, m.word(64))
	return m.word(128) != 0x1111
}

// overtakes posts a READ and an atomic on the same word in one batch, and tells
// whether the READ saw what the atomic did after it.
func overtakes(a *end, m *region, fm prm.FenceMode) bool {
	m.set(0, 5)
	a.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(0), m.ptr(64, 8)}},
		wqe{op: prm.WQEAtomicFA, fm: fm, segs: [][]byte{m.remote(0), operands(8, 1, 0), m.ptr(128, 8)}})
	a.send.good(prm.CQEReq)
	a.send.good(prm.CQEReq)
	require.EqualValues(a.r.t, 5, binary.BigEndian.Uint64(m.bytes()[128:]))
	return m.word(64) == 6
}

// TestFences: without a fence an operation may overtake a READ before it, and some
// seed shows it; with one, none does, unless the device ignores fences.
func TestFences(t *testing.T) {
	r := newFlow(t, Options{})
	a, _ := r.pair()
	m := r.region(4096, nil)
	for fm, want := range map[prm.FenceMode]bool{prm.FenceNone: true, prm.FenceInitiatorSmall: true,
		prm.FenceReads: false, prm.FenceStrongOrdering: false, prm.FenceSmallAndReads: false} {
		n := r.count(func() bool { return stale(a, m, fm) })
		require.Equal(t, want, n > 0, "%s: stale data in %d of %d", fm, n, seeds)
		require.Less(t, n, seeds, "not always")
		n = r.count(func() bool { return overtakes(a, m, fm) })
		require.Equal(t, want, n > 0, "%s: overtaken in %d of %d", fm, n, seeds)
	}
	r.fault("no-fence", "")
	require.NotZero(t, r.count(func() bool { return stale(a, m, prm.FenceStrongOrdering) }))
}

// TestOrder: whatever the seed, WRITE before atomic before SEND stay in order, and
// completions come in the order of posting.
func TestOrder(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.pair()
	m := r.region(16384, nil)
	sent, received := 0, 0
	r.count(func() bool {
		for i := range 8 {
			b.postRecv(m.ptr(8192+64*i, 64))
		}
		for i := range 8 {
			a.fill(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), inlineSeg([]byte{byte(i), 0, 0, 0, 0, 0, 0, 0})}})
			a.fill(wqe{op: prm.WQEAtomicFA, segs: [][]byte{m.remote(0), operands(8, 0x100, 0), m.ptr(1024+8*i, 8)}})
			a.fill(wqe{op: prm.WQESend, segs: [][]byte{m.ptr(4096, 3)}})
		}
		a.ring()
		r.settle()
		for range 24 {
			require.EqualValues(t, uint16(sent), a.send.good(prm.CQEReq).WQECounter())
			sent++
		}
		for i := range 8 {
			require.EqualValues(t, uint16(received), b.recv.good(prm.CQERespSend).WQECounter())
			received++
			require.EqualValues(t, i, binary.BigEndian.Uint64(m.bytes()[1024+8*i:]), "the atomic sees the WRITE before it")
		}
		require.EqualValues(t, 0x107, m.word(0))
		return true
	})
}

// torn posts a WRITE of n bytes at off on one QP, and reads what is there through
// another; it tells whether that was neither the old nor the new value. The WRITE
// must be whole in the end.
func torn(a, c *end, m *region, off, n int) bool {
	t := a.r.t
	for i := range n {
		m.bytes()[off+i], m.bytes()[8192+i] = 0x11, 0x22
	}
	a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(off), m.ptr(8192, n)}})
	c.post(wqe{op: prm.WQERdmaRead, segs: [][]byte{m.remote(off), m.ptr(4096, n)}})
	c.send.good(prm.CQEReq)
	seen := map[byte]bool{}
	for _, x := range m.bytes()[4096 : 4096+n] {
		seen[x] = true
	}
	if len(seen) > 1 {
		a.send.none()
	}
	a.r.settle()
	a.send.good(prm.CQEReq)
	same(t, m.bytes()[8192:8192+n], m.bytes()[off:off+n])
	require.True(t, len(seen) == 1 || seen[0x11] && seen[0x22])
	return len(seen) > 1
}

// TestSplitWrites: a WRITE inside the block of the largest atomic is one; across
// its boundary, longer than it, or on a QP without the bit or without atomics it is
// torn by some seed.
func TestSplitWrites(t *testing.T) {
	noBit := func(e *end) {
		e.tune = func(_ prm.Opcode, x *prm.QPC) { x.SetAtomicLikeWriteEn(false) }
	}
	mode := func(m prm.AtomicMode) func(*end) { return func(e *end) { e.mode = m } }
	for _, c := range []struct {
		name   string
		off, n int
		fault  string
		set    func(*end)
		torn   bool
	}{
		{"8 aligned", 64, 8, "", nil, false},
		{"256 aligned", 256, 256, "", nil, false},
		{"odd inside", 259, 77, "", nil, false},
		{"up to the end of the block", 511 - 8, 9, "", nil, false},
		{"across the boundary", 256 - 4, 8, "", nil, true},
		{"longer than the block", 256, 257, "", nil, true},
		{"several packets", 1024, 3000, "", nil, true},
		{"mode 3 inside", 64, 8, "", mode(prm.AtomicModeUpTo8B), false},
		{"mode 3 across", 68, 8, "", mode(prm.AtomicModeUpTo8B), true},
		{"mode 3 longer", 64, 16, "", mode(prm.AtomicModeUpTo8B), true},
		{"mode 4", 64, 16, "", mode(prm.AtomicModeUpTo16B), false},
		{"mode 1 inside", 64, 8, "", mode(prm.AtomicModeIBSpec), false},
		{"no atomics", 64, 8, "", mode(prm.AtomicModeNone), true},
		{"without the bit", 64, 8, "", noBit, true},
		{"one byte without the bit", 64, 1, "", noBit, false},
		{"torn-write", 64, 8, "torn-write", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newFlow(t, Options{})
			if c.fault != "" {
				r.fault(c.fault, "")
			}
			a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
			if c.set != nil {
				c.set(b)
			}
			connect(a, b)
			d, _ := r.pair()
			m := r.region(16384, nil)
			n := r.count(func() bool { return torn(a, d, m, c.off, c.n) })
			require.Equal(t, c.torn, n > 0, "torn in %d of %d", n, seeds)
			if c.fault == "" {
				require.Less(t, n, seeds/2, "not always")
			}
		})
	}
}

// TestTornThenMore: what follows an interrupted WRITE on the same QP waits for it;
// with the fault late-write the SEND behind it overtakes.
func TestTornThenMore(t *testing.T) {
	for _, fault := range []string{"", "late-write"} {
		r := newFlow(t, Options{})
		if fault != "" {
			r.fault(fault, "")
		}
		a, b := r.pair()
		m := r.region(16384, nil)
		for i := range 600 {
			m.bytes()[4096+i] = 0x22
		}
		early := 0
		torn := r.count(func() bool {
			clear(m.bytes()[:600])
			b.postRecv(m.ptr(12288, 64))
			a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), m.ptr(4096, 600)}},
				wqe{op: prm.WQESend})
			whole := m.bytes()[599] == 0x22
			if b.recv.next() == nil {
				r.settle()
				b.recv.good(prm.CQERespSend)
			} else if !whole {
				early++
			}
			b.recv.consume()
			r.settle()
			a.send.good(prm.CQEReq)
			a.send.good(prm.CQEReq)
			same(t, m.bytes()[4096:4696], m.bytes()[:600])
			return !whole
		})
		require.NotZero(t, torn)
		if fault == "" {
			require.Zero(t, early, "the SEND does not overtake the WRITE")
		} else {
			require.NotZero(t, early)
		}
	}
}

// TestTornAndGone: the rest of a WRITE does not land when its QP was reset or
// destroyed, or everything was torn down.
func TestTornAndGone(t *testing.T) {
	for _, op := range []prm.Opcode{prm.Op2RstQP, prm.OpDestroyQP, prm.Op2ErrQP, prm.OpTeardownHCA} {
		cut := 0
		for s := uint64(0); s < seeds && cut == 0; s++ {
			r := newFlow(t, Options{Seed: s})
			a, b := r.pair()
			m := r.region(16384, nil)
			pattern(m.bytes()[8192:], 1)
			a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), m.ptr(8192, 1000)}})
			if m.bytes()[999] != 0 {
				continue
			}
			cut++
			if op == prm.OpTeardownHCA {
				r.ok(cmd(op, 0, 16), 16)
			} else {
				r.ok(number(op, b.n), 16)
			}
			r.chip.Advance(time.Millisecond)
			require.Zero(t, m.bytes()[999], "%s", op)
		}
		require.NotZero(t, cut)
	}
}

// TestPauseIsTime: an interruption ends by itself on the wall clock too.
func TestPauseIsTime(t *testing.T) {
	r := newRaw(t, Options{Seed: 1}).to(phaseInit)
	a, _ := r.pair()
	m := r.region(1<<16, nil)
	for range 30 {
		a.post(wqe{op: prm.WQERdmaWrite, segs: [][]byte{m.remote(0), m.ptr(8192, 4000)}})
		var c *prm.CQE64
		for limit := time.Now().Add(5 * time.Second); c == nil && time.Now().Before(limit); {
			c = a.send.next()
		}
		require.NotNil(t, c)
		require.Equal(t, prm.CQEReq, c.Opcode())
		a.send.consume()
	}
}
