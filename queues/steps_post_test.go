package queues_test

import (
	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

// post hands a program to the driver: step by step, or in lists of any length.
func (b *bed) post(x, y *realEnd, p steps) {
	var list []queues.WorkRequest
	lists := b.rng.IntN(2) == 0
	flush := func() {
		n, err := x.q.SQ.Post(list)
		require.NoError(b.t, err, "%s", p)
		require.Equal(b.t, len(list), n)
		b.lists[min(n, 2)]++
		list = list[:0]
	}
	for i := range p {
		s := &p[i]
		o := b.posting(x, y, s)
		if lists && s.listed() {
			if list = append(list, o.request(s)); b.rng.IntN(3) == 0 {
				flush()
			}
			continue
		}
		if len(list) > 0 {
			flush()
		}
		require.NoError(b.t, o.post(x.q.SQ, s), "%s", p)
		if b.rng.IntN(4) == 0 {
			x.q.SQ.Ring()
		}
	}
	if len(list) > 0 {
		flush()
	}
}

// listed tells whether a list can hold the step.
func (s *step) listed() bool {
	return s.mistake != badAlignment && s.mistake != badOpcode && (!s.atomic() || s.n <= 8)
}

// posting is what a step is posted with.
type posting struct {
	flags  queues.Flags
	local  []queues.SGE
	remote queues.Remote
}

func (b *bed) posting(x, y *realEnd, s *step) posting {
	o := posting{flags: queues.NonAtomic, remote: y.key.Remote(uint64(s.remote))}
	if s.signal {
		o.flags |= queues.Signalled
	}
	if s.fence {
		o.flags |= []queues.Flags{queues.Fence, queues.FenceReads, queues.StrongOrder}[b.rng.IntN(3)]
	}
	if b.rng.IntN(2) == 0 {
		o.flags |= queues.Solicited
	}
	for _, p := range s.pieces {
		o.local = append(o.local, x.key.SGE(uint64(p.off), uint32(p.n)))
	}
	switch s.mistake {
	case badLocalKey:
		o.local[0].LKey ^= 0x55
	case badRemoteKey:
		o.remote.RKey ^= 0x55
	case badRange:
		o.remote.Addr = y.key.Start() + endBytes - uint64(s.n) + uint64(s.n&-s.n)
		if s.atomic() {
			o.remote.Addr = y.key.Start() + endBytes
		}
	}
	return o
}

// request is the step as a list has it.
func (o posting) request(s *step) queues.WorkRequest {
	w := queues.WorkRequest{WRID: s.wrid, Op: s.opcode(), Flags: o.flags, Imm: s.value, Remote: o.remote, Inline: s.inline}
	if len(o.local) > 0 {
		w.Local, w.More = o.local[0], o.local[1:]
	}
	if s.atomic() {
		w.Swap = s.swap[0]
		switch s.verb {
		case vCS:
			w.Compare = s.compare[0]
		case vMaskedCS:
			w.Compare, w.SwapMask, w.CompareMask = s.compare[0], s.mask1[0], s.mask2[0]
		case vMaskedFA:
			w.SwapMask = s.mask1[0]
		}
	}
	return w
}

// post posts a step by the method for it.
func (o posting) post(q *queues.SendQueue, s *step) error {
	f, l, remote := o.flags, o.local, o.remote
	switch s.mistake {
	case badAlignment:
		return q.Raw(s.wrid, rawWithFlags(rawFetchAdd(l[0], remote), f))
	case badOpcode:
		w := make([]byte, 16)
		w[3], w[7] = 0x3e, 1
		return q.Raw(s.wrid, rawWithFlags(w, f))
	}
	first := queues.SGE{}
	if len(l) == 1 {
		first = l[0]
	}
	switch s.verb {
	case vNop:
		return q.Nop(s.wrid, f)
	case vSend:
		return postSend(q, s, f, l)
	case vWrite:
		return postWrite(q, s, f, l, remote)
	case vRead:
		if len(l) == 1 {
			return q.Read(s.wrid, f, first, remote)
		}
		return q.ReadV(s.wrid, f, l, remote)
	case vCS:
		return q.CompareSwap(s.wrid, f, first, remote, s.compare[0], s.swap[0])
	case vFA:
		return q.FetchAdd(s.wrid, f, first, remote, s.swap[0])
	case vMaskedCS:
		if s.n <= 8 {
			return q.MaskedCompareSwap(s.wrid, f, first, remote, &queues.MaskedCS{Swap: s.swap[0], Compare: s.compare[0], SwapMask: s.mask1[0], CompareMask: s.mask2[0]})
		}
		return q.MaskedCompareSwapWide(s.wrid, f, first, remote, &queues.MaskedCSWide{Swap: s.swap, Compare: s.compare, SwapMask: s.mask1, CompareMask: s.mask2})
	}
	if s.n <= 8 {
		return q.MaskedFetchAdd(s.wrid, f, first, remote, &queues.MaskedFA{Add: s.swap[0], Boundary: s.mask1[0]})
	}
	return q.MaskedFetchAddWide(s.wrid, f, first, remote, &queues.MaskedFAWide{Add: s.swap, Boundary: s.mask1})
}

// rawWithFlags puts flags into the control segment of a raw WQE.
func rawWithFlags(w []byte, f queues.Flags) []byte {
	prm.AsWQECtrlSeg(w)
	w[11] = byte(f)
	return w
}

func postSend(q *queues.SendQueue, s *step, f queues.Flags, l []queues.SGE) error {
	switch {
	case s.inline != nil && s.imm:
		return q.SendImmInline(s.wrid, f, s.value, s.inline)
	case s.inline != nil:
		return q.SendInline(s.wrid, f, s.inline)
	case s.imm && len(l) == 1:
		return q.SendImm(s.wrid, f, s.value, l[0])
	case s.imm:
		return q.SendImmV(s.wrid, f, s.value, l)
	case len(l) == 1:
		return q.Send(s.wrid, f, l[0])
	}
	return q.SendV(s.wrid, f, l)
}

func postWrite(q *queues.SendQueue, s *step, f queues.Flags, l []queues.SGE, to queues.Remote) error {
	switch {
	case s.inline != nil && s.imm:
		return q.WriteImmInline(s.wrid, f, s.value, s.inline, to)
	case s.inline != nil:
		return q.WriteInline(s.wrid, f, s.inline, to)
	case s.imm && len(l) == 1:
		return q.WriteImm(s.wrid, f, s.value, l[0], to)
	case s.imm:
		return q.WriteImmV(s.wrid, f, s.value, l, to)
	case len(l) == 1:
		return q.Write(s.wrid, f, l[0], to)
	}
	return q.WriteV(s.wrid, f, l, to)
}
