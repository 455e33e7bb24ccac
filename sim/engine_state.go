package sim

import (
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// qpFlow is what the data engine knows of a QP. It is zero, but for the marks of
// the lists it stands in, until the QP leaves RST.
type qpFlow struct {
	f *function
	// In lists of the fabric, and gone from the device.
	inReady, inAnswers, inIdle, gone bool
	// epoch changes when everything below is forgotten: an event of an older one
	// has no meaning any more.
	epoch uint32

	// The sending side. Entries are fetched at head, wait as pending for a fence
	// or for depth, and are outstanding in ops until they complete; cur is the
	// one being sent.
	sends    bool   // next and acked are set
	head     uint16 // WQEBBs fetched
	posted   uint16 // WQEBBs posted, from the doorbell record
	enabled  uint16 // WQEBBs that SEND_EN allowed, of a slave
	ops      ring[sendOp]
	cur      int
	pending  *sendOp
	waits    bool   // a WAIT is not satisfied yet
	next     uint32 // PSN of the next new packet
	acked    uint32 // PSN of the oldest packet not acknowledged
	ssn      uint32
	reads    uint32 // reads and atomics outstanding
	retries  uint8
	rnrs     uint8
	rnrWait  bool // until the peer's RNR timer has run off
	asked    bool // an answer was missed and is asked for again
	failing  bool // an operation failed and waits for its turn to complete
	draining bool // SQD: the event is still to come
	timer    bool // an event of the scheduler will look at deadline
	deadline time.Duration
	peer     roceEntry // where the last packet went

	// The receiving side.
	receives bool   // expected is set
	expected uint32 // PSN
	msn      uint32
	taken    uint16 // receive entries taken
	allowed  uint16 // receive entries that RECV_EN allowed, of a slave
	told     bool   // COMM_EST was raised
	nakked   bool   // a sequence NAK is out: silence until the expected packet
	stopping bool   // an error was answered: nothing is taken any more
	busy     bool   // in the middle of a request that takes time
	inbox    ring[packet]
	msg      message
	recv     *recvWQE // in use while msg.recv
	spare    bool     // recv is taken and for the next message (UC)
	answers  answerQueue
	saved    []savedAtomic // answers of the last atomics, for duplicates
	oldest   int           // of them
}

// message is a message of several packets that is arriving.
type message struct {
	kind   packetKind // pktNone: none is
	recv   bool       // it has a receive entry
	va     uint64     // of the first byte (WRITE)
	rkey   uint32
	length uint32 // promised (WRITE)
	got    uint64 // bytes
	torn   bool   // it is interrupted
	cut    uint64 // where: before this byte
}

// answer is something the responder owes: a packet that is ready, or a READ whose
// data is read when it is sent.
type answer struct {
	pkt    *packet
	psn    uint32
	va     uint64
	rkey   uint32
	length uint32
	sent   uint32 // packets
	psns   uint32
}

// answerQueue keeps answers in the order of their requests.
type answerQueue struct {
	list []answer
	head int
}

func (a *answerQueue) len() int       { return len(a.list) - a.head }
func (a *answerQueue) first() *answer { return &a.list[a.head] }
func (a *answerQueue) push(x answer)  { a.list = append(a.list, x) }

func (a *answerQueue) pop() {
	a.list[a.head] = answer{}
	if a.head++; a.head == len(a.list) {
		a.list, a.head = a.list[:0], 0
	}
}

// readsOwed counts the READs among them.
func (a *answerQueue) readsOwed() (n uint32) {
	for i := a.head; i < len(a.list); i++ {
		if a.list[i].pkt == nil {
			n++
		}
	}
	return n
}

// savedAtomic is the answer of an atomic, kept in case the request comes again.
type savedAtomic struct {
	psn  uint32
	n    int
	data [maxAtomic]byte
}

// forget is the way to RST: everything but the lists it stands in.
func (f *function) forget(q *qp) {
	b, fl := f.chip.fabric, &q.flow
	for fl.ops.n > 0 {
		b.dropOp(fl.ops.pop())
	}
	if fl.pending != nil {
		b.dropOp(fl.pending)
	}
	f.dropRequests(q)
	f.unwait(q)
	*fl = qpFlow{
		f: f, inReady: fl.inReady, inAnswers: fl.inAnswers, inIdle: fl.inIdle, gone: fl.gone, epoch: fl.epoch + 1,
		ops: fl.ops, inbox: fl.inbox, answers: fl.answers, recv: fl.recv, saved: fl.saved[:0],
	}
}

// dropRequests forgets what the responder has not answered.
func (f *function) dropRequests(q *qp) {
	b, fl := f.chip.fabric, &q.flow
	for fl.inbox.n > 0 {
		b.drop(fl.inbox.pop())
	}
	f.dropAnswers(q)
}

func (f *function) dropAnswers(q *qp) {
	a := &q.flow.answers
	for a.len() > 0 {
		if p := a.first().pkt; p != nil {
			f.chip.fabric.drop(p)
		}
		a.pop()
	}
}

// cutAnswers forgets the answers from psn on: who asks again from there asks for
// all of them.
func (f *function) cutAnswers(q *qp, psn uint32) {
	l := &q.flow.answers
	kept := l.list[:l.head]
	for _, a := range l.list[l.head:] {
		switch {
		case a.pkt != nil && psnDiff(a.pkt.psn, psn) >= 0:
			f.chip.fabric.drop(a.pkt)
		case a.pkt == nil && psnDiff((a.psn+a.sent)&counter24, psn) >= 0:
		case a.pkt == nil && psnDiff((a.psn+a.psns)&counter24, psn) > 0:
			a.psns = (psn - a.psn) & counter24
			fallthrough
		default:
			kept = append(kept, a)
		}
	}
	clear(l.list[len(kept):])
	if l.list = kept; l.head == len(kept) {
		l.list, l.head = kept[:0], 0
	}
}

// afterward runs do in d unless the QP was reset or is gone by then.
func (f *function) afterward(q *qp, d time.Duration, do func()) {
	epoch := q.flow.epoch
	f.chip.sched.after(f, d, func() {
		if now, ok := f.qps.get(q.n); ok && now == q && q.flow.epoch == epoch {
			do()
			f.chip.fabric.kick()
		}
	})
}

// catastrophe is a queue that cannot be read or makes no sense: the event tells,
// and the QP is in error.
func (f *function) catastrophe(q *qp) {
	if q.state == prm.QPStateErr {
		return
	}
	f.qpEvent(q, prm.EventWQCatasError)
	f.setState(q, prm.QPStateErr)
}
