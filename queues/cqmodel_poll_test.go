package queues

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// reset forgets what a queue pair has under way.
func (m *cqModel) reset(qpn uint32, q *modelQP) {
	for _, e := range m.pending {
		if e.qpn == qpn && q.sharing && e.op != prm.CQEReq && e.op != prm.CQEReqErr && m.find(&e) != nil {
			m.take(&e)
		}
	}
	before := len(m.pending)
	m.pending = slices.DeleteFunc(m.pending, func(e modelCQE) bool { return e.qpn == qpn })
	m.polled += uint32(before - len(m.pending))
	m.r.Forget(qpn)
	q.sends, q.recvs, q.first, q.flushed = nil, nil, nil, 0
	if q.sq != nil {
		q.sq.Reset()
	}
	if q.rq != nil {
		q.rq.Reset()
	}
	m.same()
}

// poll polls with a list of n and compares.
func (m *cqModel) poll(n int) {
	t := m.t
	dst := make([]Completion, n)
	for i := range dst {
		dst[i] = Completion{WRID: 77, QPN: 77, Syndrome: 77, Vendor: 77, Opcode: 77, SendOpcode: 77, ByteLen: 77}
	}
	clean := slices.Clone(dst)
	length := fmt.Sprint(n)
	if n > 2 {
		length = "many"
	}
	see := func(what string) { m.seen[length+" "+what]++ }
	see("lists")
	was := m.r.last.qpn
	got, err := m.r.Poll(dst)
	at := 0
	for ; at < n && len(m.pending) > 0; at++ {
		e := m.pending[0]
		m.pending = m.pending[1:]
		m.polled++
		q := m.qps[e.qpn]
		if q != nil && e.qpn != was {
			see("other queue pair")
		}
		was = e.qpn
		var want error
		var w modelWQE
		switch {
		case q == nil:
			see("nobody")
			want = ErrUnknownQueue
		case e.op == 9:
			see("odd")
			want = ErrCQE
		default:
			var ok bool
			if w, ok = m.take(&e); !ok {
				see("stale")
				want = ErrNotOutstanding
			}
		}
		if want != nil {
			require.ErrorIs(t, err, want)
			var ce *CQError
			require.ErrorAs(t, err, &ce)
			require.Equal(t, m.polled-1, ce.Consumer)
			err = nil
			break
		}
		require.Less(t, at, got)
		m.compare(&dst[at], &e, q, &w, see)
	}
	require.NoError(t, err)
	require.Equal(t, at, got)
	if at == 0 && n > 0 && len(m.pending) == 0 {
		see("idle")
	}
	if at+1 < n {
		require.Equal(t, clean[at+1:], dst[at+1:], "what lies behind the first that did not come")
	}
	m.same()
}

// compare compares a completion with its entry.
func (m *cqModel) compare(c *Completion, e *modelCQE, q *modelQP, w *modelWQE, see func(string)) {
	t := m.t
	require.Equal(t, w.wrid, c.WRID)
	require.Equal(t, e.qpn, c.QPN)
	require.Equal(t, e.op, c.Opcode)
	require.Equal(t, e.recv(), c.Recv())
	require.Equal(t, !e.failed(), c.OK())
	if !e.recv() {
		require.Equal(t, e.send, c.SendOpcode)
	}
	if !e.failed() {
		require.Equal(t, e.bytes, c.ByteLen)
		require.Zero(t, c.Syndrome)
		require.Zero(t, c.Vendor)
		switch {
		case !e.recv():
			see("send")
		case q.sharing:
			require.Equal(t, e.se, c.Bits&WasSolicited != 0)
			see("shared")
		default:
			require.Equal(t, e.se, c.Bits&WasSolicited != 0)
			see("recv")
		}
		return
	}
	see("failed")
	require.Equal(t, e.syndrome, c.Syndrome)
	require.Equal(t, uint8(0x81), c.Vendor)
	if c.Flushed() {
		q.flushed++
	} else if q.first == nil {
		x := *e
		q.first, q.wrid, q.wqe = &x, w.wrid, w.bytes
	}
}

// same compares what can be seen of the queues.
func (m *cqModel) same() {
	t := m.t
	require.Equal(t, m.polled, m.r.Consumer())
	require.Equal(t, m.polled&0xffffff, binary.BigEndian.Uint32(m.rec))
	for qpn, q := range m.qps {
		if q.sq != nil {
			free := q.sq.Size()
			if len(q.sends) > 0 {
				free = q.sq.Size() - int(q.sq.Index()-q.sends[0].index)
			}
			require.Equal(t, free, q.sq.Free(), "QP %#x", qpn)
		}
		if q.rq != nil {
			require.Equal(t, q.rq.Size()-len(q.recvs), q.rq.Free(), "QP %#x", qpn)
		}
		p := m.r.peers.find(qpn)
		require.Equal(t, q.flushed, p.flushed)
		require.Equal(t, q.first != nil, p.first != nil)
		if q.first != nil {
			require.Equal(t, q.wrid, p.first.WRID)
			require.Equal(t, q.first.syndrome, p.first.Syndrome)
			require.Equal(t, q.first.index, p.first.Index)
			require.Equal(t, q.wqe[:len(p.first.WQE)], p.first.WQE)
			require.NotEmpty(t, p.first.WQE)
		}
	}
}
