package sim

import "github.com/mlxvfio/mlxvfio/internal/prm"

// Queue pairs: the object and the seam to the data engine. The commands are in
// fw_qp.go, the states in qpstate.go. The chip's lock guards all of it.

// dataEngine moves data. The firmware half (commands) owns the objects and their
// states; the engine owns what flows. Every method runs under the chip's lock,
// synchronously: a doorbell returns when what it started is done or scheduled.
type dataEngine interface {
	// ringSend is a send doorbell: the first eight bytes of the control segment
	// of the last entry posted. The doorbell record says how many there are.
	// Receive queues have no doorbell: the engine looks at the record when a
	// message arrives.
	ringSend(q *qp, first8 uint64)
	// moved tells that a command, or the engine through setState, changed the
	// state of a QP. In RST the engine forgets all it knew of the QP; in ERR it
	// flushes; from SQD to RTS, and from SQER to RTS, it goes on sending.
	moved(q *qp, from prm.QPState)
	// removed tells that the QP is gone.
	removed(q *qp)
	// fill adds what lives in the engine to the context that QUERY_QP gives:
	// hw_ and sw_ counters, next_send_psn, last_acked_psn, next_rcv_psn, ssn,
	// cur_retry_count, cur_rnr_retry, and whether the send queue still drains.
	fill(q *qp, c *prm.QPC)
	// reset tells that every object is gone at once: reset, teardown, restart.
	reset()
}

// workQueue is where the entries of a send or receive queue lie.
type workQueue struct {
	buf   buffer // entry 0 is at byte 0
	log   uint   // log2 of the number of entries (send: of 64-byte blocks)
	shift uint   // log2 of the bytes of one entry (send: 6)
	some  bool   // there is such a queue
}

// entries is the number of entries; at is the byte at which entry i begins.
func (w *workQueue) entries() uint32    { return 1 << w.log }
func (w *workQueue) at(i uint32) uint64 { return uint64(i&(1<<w.log-1)) << w.shift }

// qp is a queue pair. ctx holds what commands wrote; the fields beside it are
// the ones that the engine looks at for every operation, parsed.
type qp struct {
	n     uint32
	uid   uint16
	bare  bool // a raw send queue (fw_sq.go), which QP commands do not reach
	ctx   prm.QPC
	state prm.QPState
	// created is the context of CREATE_QP, to which 2RST goes back.
	created prm.QPC

	st           prm.QPServiceType
	pd           uint32
	uar          uint32
	sendCQ       *cq // nil where there is no such queue
	recvCQ       *cq
	xrcd         *xrcd
	srq          *srq // nil: an own receive queue, or none
	sq, rq       workQueue
	dbr          uint64     // bus address of the doorbell record: receive counter, send counter
	mem, rec     *umem      // user memory of buffer and doorbell record; nil: by address
	rlkey        bool       // the reserved lkey may be used
	signs        bool       // WQEs carry signatures
	index        uint32     // user_index, for completions where cqe_version is 1
	counters     *qCounters // nil: none
	remote       uint32     // remote_qpn
	mtu          uint32     // path MTU in bytes
	maxMsg       uint64     // 1 << log_msg_max
	qkey         uint32
	reads        uint32 // outgoing reads and atomics at once; 0 is none
	readsIn      uint32 // incoming ones
	retry        uint8  // retry_count
	rnrRetry     uint8  // 7 is forever
	minRNR       uint8  // RNR NAK timer code
	ackTimeout   uint8  // code: 4.096 µs << n, 0 is never
	rre          bool   // the peer may read, write, do atomics here
	rwe          bool
	rae          bool
	atomicMode   prm.AtomicMode
	atomicWrites bool // atomic_like_write_en

	flow qpFlow // the engine's own
}

// parse takes the fields that the engine looks at from ctx.
func (q *qp) parse() {
	c := &q.ctx
	q.remote = c.RemoteQPN()
	q.mtu = 0
	if m := c.MTU(); m >= prm.PathMTU256Bytes && m <= prm.PathMTU4kBytes {
		q.mtu = 128 << m
	}
	q.maxMsg = 1 << c.LogMsgMax()
	q.qkey = c.QKey()
	q.reads, q.readsIn = 1<<c.LogSraMax(), 1<<c.LogRraMax()
	q.retry, q.rnrRetry, q.minRNR = c.RetryCount(), c.RNRRetry(), c.MinRNRNak()
	q.ackTimeout = c.PrimaryAddressPath().AckTimeout()
	q.rre, q.rwe, q.rae = c.Rre(), c.Rwe(), c.Rae()
	q.atomicMode, q.atomicWrites = c.AtomicMode(), c.AtomicLikeWriteEn()
	q.index = c.UserIndex()
}

// setState moves a QP, by command or by the engine, and tells the engine.
func (f *function) setState(q *qp, to prm.QPState) {
	from := q.state
	if from == to {
		return
	}
	q.state = to
	f.chip.tracer.traceQueue(f, q, from, to)
	f.engine.moved(q, from)
}

// ringSend is a doorbell in a UAR page's send registers.
func (f *function) ringSend(page uint32, first8 uint64) {
	q, ok := f.qps.get(uint32(first8) >> 8)
	if !ok || q.uar != page || !q.sq.some {
		f.count.DoorbellsIgnored++
		return
	}
	f.engine.ringSend(q, first8)
}

// posted reads a QP's doorbell record: the receive counter counts entries, the
// send counter 64-byte blocks, both modulo 1 << 16.
func (f *function) postedRecv(q *qp) (uint16, bool) {
	v, ok := f.readRecord(q.dbr)
	return uint16(v), ok
}

func (f *function) postedSend(q *qp) (uint16, bool) {
	v, ok := f.readRecord(q.dbr + 4)
	return uint16(v), ok
}
