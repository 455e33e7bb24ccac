package queues

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// MicroOp is an operation a Microbench can post.
type MicroOp uint8

// The operations that are measured.
const (
	MicroNop MicroOp = iota
	MicroSend
	MicroWrite
	MicroInlineWrite16
	MicroWriteInRule    // MicroWrite while the write rule holds
	MicroInline16InRule // MicroInlineWrite16 while it holds
	MicroRead
	MicroAtomicFA
	MicroMaskedCS4
	MicroMaskedCS8
	microOps
)

var microOpcodes = [microOps]prm.WQEOpcode{
	prm.WQENop, prm.WQESend, prm.WQERdmaWrite, prm.WQERdmaWrite, prm.WQERdmaWrite, prm.WQERdmaWrite, prm.WQERdmaRead,
	prm.WQEAtomicFA, prm.WQEAtomicMaskedCS, prm.WQEAtomicMaskedCS,
}

var microNames = [microOps]string{"nop", "send", "rdma_write", "inline_write16", "rdma_write_rule", "inline_write16_rule", "rdma_read", "atomic_fa8", "masked_cs4", "masked_cs8"}

// String is the name of the operation.
func (o MicroOp) String() string {
	if o < microOps {
		return microNames[o]
	}
	return fmt.Sprintf("MicroOp(%d)", uint8(o))
}

// MicroOps lists the operations that are measured.
func MicroOps() []MicroOp {
	ops := make([]MicroOp, microOps)
	for i := range ops {
		ops[i] = MicroOp(i)
	}
	return ops
}

// ParseMicroOp finds an operation by its name.
func ParseMicroOp(name string) (MicroOp, bool) {
	for i, n := range microNames {
		if n == name {
			return MicroOp(i), true
		}
	}
	return 0, false
}

// Geometry and numbers of the C reference, so that both write the same bytes.
const (
	microLogSQ = 10
	microLogCQ = 12
	microQPN   = 0x1234
	microLKey  = 0x00a1b2c3
	microRKey  = 0x00d4e5f6
	microRAddr = 0x00007f0011220000
	microLAddr = 0x00007f00aabb0000
	// microRule is the limit of the write rule of those that obey it.
	microRule = 256
	// MicroMaxBatch is the largest batch that is measured.
	MicroMaxBatch = 64
)

// Microbench measures the software path of posting and polling on ordinary
// memory: no device, no bus, only the instructions of this package. It belongs
// to one caller at a time.
type Microbench struct {
	sq   *SendQueue // takes the posts
	cq   *CQRing
	done *SendQueue // completes on cq; as many blocks as cq has entries
	work [MicroMaxBatch]WorkRequest
	wc   [MicroMaxBatch]Completion
	pi   uint32 // producer index of the CQEs
}

// NewMicrobench makes the rings. Nil puts a page of ordinary memory in place of
// the doorbell page.
func NewMicrobench(u *UAR) (*Microbench, error) {
	m := &Microbench{}
	var err error
	if m.sq, err = NewSendQueue(microSQ(u, microQPN, microLogSQ)); err != nil {
		return nil, err
	}
	if m.done, err = NewSendQueue(microSQ(u, microQPN+1, microLogCQ)); err != nil {
		return nil, err
	}
	m.cq, err = NewCQRing(CQRingConfig{
		Name: "microbench", UAR: u, LogSize: microLogCQ,
		Ring: ordinary(cqeSize << microLogCQ), Record: ordinary(RecordSize),
	})
	if err != nil {
		return nil, err
	}
	m.cq.AttachSend(m.done)
	return m, nil
}

func microSQ(u *UAR, qpn uint32, log uint8) SendQueueConfig {
	return SendQueueConfig{QPN: qpn, UAR: u, LogWQEBB: log, Ring: ordinary(WQEBB << log), Record: ordinary(RecordSize)}
}

// ordinary is memory for rings without a device. Its own page, so that rings do
// not share cache lines with anything.
func ordinary(n int) vfio.Mem { return vfio.MemOf(make([]byte, max(n, 1<<adapterPageShift))[:n]) }

// Post posts n WQEs as lists of the given size (1 … MicroMaxBatch), each rung
// once and taken as completed. Only the last of a list is signalled. It returns
// the time they took; divide by n.
func (m *Microbench) Post(op MicroOp, batch, n int) (time.Duration, error) {
	work, err := m.prepare(op, batch, n)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = postLists(m.sq, work, (n+batch-1)/batch)
	return time.Since(start), err
}

// postLists is what Post measures, and nothing else: a loop whose state fits the
// registers.
//
//go:noinline
func postLists(q *SendQueue, work []WorkRequest, n int) error {
	for range n {
		if _, err := q.Post(work); err != nil {
			return err
		}
		q.RetireAll()
	}
	return nil
}

// Calls is Post with one method call for each WQE and one for the doorbell.
func (m *Microbench) Calls(op MicroOp, batch, n int) (time.Duration, error) {
	work, err := m.prepare(op, batch, n)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for done := 0; done < n; done += batch {
		if err := call(m.sq, work); err != nil {
			return 0, err
		}
		m.sq.Ring()
		m.sq.RetireAll()
	}
	return time.Since(start), nil
}

// prepare makes the work requests of one batch.
func (m *Microbench) prepare(op MicroOp, batch, n int) ([]WorkRequest, error) {
	if batch < 1 || batch > MicroMaxBatch || n < batch || op >= microOps {
		return nil, fmt.Errorf("measure %d posts of %s in batches of %d: %w; batches of 1 to %d are possible", n, op, batch, vfio.ErrRange, MicroMaxBatch)
	}
	limit := 0
	if op == MicroWriteInRule || op == MicroInline16InRule {
		limit = microRule
	}
	m.sq.SetPeerAtomic(limit)
	work := m.work[:batch]
	for i := range work {
		x := uint64(i)
		work[i] = WorkRequest{
			WRID: x, Op: microOpcodes[op],
			Local:  SGE{Addr: microLAddr + x*64, Len: 64, LKey: microLKey},
			Remote: Remote{Addr: microRAddr + x*64, RKey: microRKey},
			Swap:   x, Compare: x + 1, SwapMask: 0xffff, CompareMask: 0xff,
		}
		switch op {
		case MicroInlineWrite16, MicroInline16InRule:
			work[i].Inline = make([]byte, 16)
		case MicroMaskedCS4:
			work[i].Local.Len = 4
		case MicroAtomicFA, MicroMaskedCS8:
			work[i].Local.Len = 8
		}
	}
	work[batch-1].Flags = Signalled
	return work, nil
}

// call writes one batch, each operation decided at run time.
func call(q *SendQueue, work []WorkRequest) error {
	for i := range work {
		w := &work[i]
		var err error
		switch w.Op {
		case prm.WQENop:
			err = q.Nop(w.WRID, w.Flags)
		case prm.WQESend:
			err = q.Send(w.WRID, w.Flags, w.Local)
		case prm.WQERdmaWrite:
			if w.Inline != nil {
				err = q.WriteInline(w.WRID, w.Flags, w.Inline, w.Remote)
			} else {
				err = q.Write(w.WRID, w.Flags, w.Local, w.Remote)
			}
		case prm.WQERdmaRead:
			err = q.Read(w.WRID, w.Flags, w.Local, w.Remote)
		case prm.WQEAtomicFA:
			err = q.FetchAdd(w.WRID, w.Flags, w.Local, w.Remote, w.Swap)
		case prm.WQEAtomicMaskedCS:
			err = q.MaskedCompareSwap(w.WRID, w.Flags, w.Local, w.Remote,
				&MaskedCS{Swap: w.Swap, Compare: w.Compare, SwapMask: w.SwapMask, CompareMask: w.CompareMask})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Poll polls n completions of WRITEs in batches of the given size and returns the
// time it took; divide by the number of completions, which is n rounded up to
// whole rings of 4096. Writing the CQEs is not measured.
func (m *Microbench) Poll(batch, n int) (time.Duration, int, error) {
	if batch < 1 || batch > MicroMaxBatch || n < 1 {
		return 0, 0, fmt.Errorf("measure %d polls in batches of %d: %w; batches of 1 to %d are possible", n, batch, vfio.ErrRange, MicroMaxBatch)
	}
	var t time.Duration
	total := 0
	for total < n {
		if err := m.fill(); err != nil {
			return 0, 0, err
		}
		start := time.Now()
		if left, err := pollAll(m.cq, m.wc[:batch], m.cq.Entries()); err != nil || left > 0 {
			return 0, 0, fmt.Errorf("measure polls: a ring of %d completions ended %d before its end: %w", m.cq.Entries(), left, err)
		}
		t += time.Since(start)
		total += m.cq.Entries()
	}
	return t, total, nil
}

// pollAll is what Poll measures, and nothing else.
//
//go:noinline
func pollAll(r *CQRing, wc []Completion, n int) (left int, err error) {
	for left = n; left > 0; {
		k, err := r.Poll(wc)
		if k == 0 || err != nil {
			return left, err
		}
		left -= k
	}
	return left, nil
}

// PollEmpty polls an empty CQ n times and returns the time it took.
func (m *Microbench) PollEmpty(n int) (time.Duration, error) {
	start := time.Now()
	for range n {
		if k, err := m.cq.Poll(m.wc[:1]); k != 0 || err != nil {
			return 0, fmt.Errorf("measure polls of an empty CQ: %d completions, %w", k, err)
		}
	}
	return time.Since(start), nil
}

// fill posts as many WQEs as the CQ has entries, and completes them as the
// device does.
func (m *Microbench) fill() error {
	for range m.cq.Entries() {
		index := m.done.Index()
		if err := m.done.Nop(uint64(m.pi)*3, Signalled); err != nil {
			return err
		}
		off := int(m.pi&m.cq.mask) * cqeSize
		e := m.cq.buf[off : off+cqeSize]
		binary.BigEndian.PutUint32(e[0x2c:], 64)
		binary.BigEndian.PutUint64(e[0x30:], uint64(m.pi)*100)
		binary.BigEndian.PutUint32(e[0x38:], uint32(prm.WQERdmaWrite)<<24|m.done.QPN())
		m.cq.mem.StoreBE32(off+cqeOwn, uint32(index)<<16|m.pi>>m.cq.log&1)
		m.pi++
	}
	m.done.Ring()
	return nil
}
