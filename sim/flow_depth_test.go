package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestResponderDepth: a responder takes exactly as many READs as it has room for
// before it has answered one; the request that is one too many is refused, be it a READ
// or an atomic.
func TestResponderDepth(t *testing.T) {
	for _, c := range []struct {
		log     uint8
		reads   int
		atomic  bool
		refused bool
	}{
		{0, 1, false, false}, {0, 2, false, true}, {2, 4, false, false}, {2, 5, false, true},
		{0, 0, true, false}, {0, 1, true, true}, {2, 3, true, false}, {2, 4, true, true},
	} {
		r := newFlow(t, Options{})
		a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
		b.tune = func(_ prm.Opcode, x *prm.QPC) { x.SetLogRraMax(c.log) }
		connect(a, b)
		m := r.region(4096, nil)
		func() {
			r.chip.mu.Lock()
			defer r.chip.mu.Unlock()
			f := r.chip.funcs[0]
			q := f.qps.objs[b.n]
			// Requests that come all at once, before the engine has answered any.
			request := func(k packetKind) *packet {
				p := f.chip.fabric.packet(k)
				p.psn, p.slid, p.vaddr, p.rkey = q.flow.expected, q.ctx.PrimaryAddressPath().Rlid(), m.at, m.key
				return p
			}
			for range c.reads {
				p := request(pktRead)
				p.length = 8
				f.request(q, p)
			}
			if c.atomic {
				p := request(pktAtomic)
				p.size, p.n = 8, 8 // a fetch-and-add
				f.request(q, p)
			}
			require.Equal(t, c.refused, q.flow.stopping, "%+v", c)
		}()
	}
}

// TestDuplicateReadRights: a READ that comes again is answered again, but not when the
// QP has lost the right to be read from meanwhile.
func TestDuplicateReadRights(t *testing.T) {
	r := newFlow(t, Options{})
	a, b := r.newEnd(prm.QPTypeRC, nil), r.newEnd(prm.QPTypeRC, nil)
	connect(a, b)
	m := r.region(4096, nil)
	r.chip.mu.Lock()
	defer r.chip.mu.Unlock()
	f := r.chip.funcs[0]
	q := f.qps.objs[b.n]
	first := q.flow.expected
	read := func() int {
		p := f.chip.fabric.packet(pktRead)
		p.psn, p.slid, p.vaddr, p.rkey, p.length = first, q.ctx.PrimaryAddressPath().Rlid(), m.at, m.key, 8
		f.request(q, p)
		n := q.flow.answers.len()
		f.dropAnswers(q)
		return n
	}
	require.Equal(t, 1, read())
	require.Equal(t, first+1, q.flow.expected)
	require.Equal(t, 1, read(), "again")
	q.rre = false
	require.Zero(t, read())
	require.False(t, q.flow.stopping, "a duplicate is no reason to end the QP")
	q.rre = true
	require.Equal(t, 1, read())
}
