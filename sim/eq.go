package sim

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	eqeBytes  = 64
	counter24 = 1<<24 - 1
	// firstEQN is the first event queue number, as on the captured ConnectX-4.
	firstEQN = 0x10
)

func init() {
	handle(prm.OpCreateEQ, onlyInit, 1, createEQ).needs(createEQMin).refuses(syndNoUAR, syndEQSize)
	handle(prm.OpDestroyEQ, onlyInit, 1, destroyEQ).refuses(syndNoEQ, syndOK)
	handle(prm.OpQueryEQ, onlyInit, 1, queryEQ).refuses(syndNoEQ, syndOK)
	handle(prm.OpGenEQE, onlyInit, 1, genEQE).refuses(syndNoEQ, syndOK)
}

// eq is an event queue: its context as created and the device's own indexes.
type eq struct {
	n        uint32
	ctx      prm.EQC
	mask     [4]uint64
	pages    []uint64
	shift    uint   // log2 of the page size
	offset   uint64 // of entry 0 in the first page
	logSize  uint
	producer uint32 // 24 bits
	consumer uint32 // 24 bits, last doorbell
	armed    bool
	uid      uint16
	cqs      int // completion queues that raise their events here
}

func (q *eq) size() uint32    { return 1 << q.logSize }
func (q *eq) pending() uint32 { return (q.producer - q.consumer) & counter24 }

// eqPages is the number of pages that a context's entries touch.
func eqPages(c *prm.EQC) uint64 {
	return queuePages(pageOffset(c.PageOffset(), c.LogPageSize()), eqeBytes<<c.LogEQSize(), 12+uint(c.LogPageSize()))
}

func createEQMin(_ *function, c *call) (in, out int) {
	n := eqPages(prm.AsCreateEQIn(c.in).EQContextEntry())
	if n > 1<<20 {
		n = 0 // refused for its size
	}
	return prm.CreateEQInSize + int(n)*8, prm.CreateEQOutSize
}

func createEQ(f *function, c *call) synd {
	in := prm.AsCreateEQIn(c.in)
	ctx := in.EQContextEntry()
	general := prm.AsCmdHCACap(f.caps.current(prm.CapGeneral))
	switch {
	case ctx.LogEQSize() > general.LogMaxEQSz():
		return syndEQSize
	case int(ctx.Intr()) >= msixVectors:
		return syndEQVector
	}
	if _, ok := f.uars.get(ctx.UARPage()); !ok {
		return syndNoUAR
	}
	q := &eq{ctx: *ctx, shift: 12 + uint(ctx.LogPageSize()), offset: pageOffset(ctx.PageOffset(), ctx.LogPageSize()),
		logSize: uint(ctx.LogEQSize()), uid: uidOf(c)}
	for i := range q.mask {
		q.mask[i] = in.EventBitmask(i)
	}
	for i := range eqPages(ctx) {
		p := binary.BigEndian.Uint64(c.in[prm.CreateEQInSize+i*8:])
		if p&(1<<q.shift-1) != 0 {
			return syndEQPage
		}
		q.pages = append(q.pages, p)
	}
	n, ok := f.eqs.add(q)
	if !ok {
		return syndOutOfEQs
	}
	q.n = n
	q.producer = ctx.ProducerCounter()
	q.consumer = ctx.ConsumerCounter()
	f.uars.objs[ctx.UARPage()].users++
	f.listen()
	prm.AsCreateEQOut(c.out).SetEQNumber(uint8(n))
	f.chip.faults.afterCreateEQ(f, q)
	return syndOK
}

func destroyEQ(f *function, c *call) synd {
	n := uint32(prm.AsDestroyEQIn(c.in).EQNumber())
	q, ok := f.eqs.get(n)
	switch {
	case !ok:
		return syndNoEQ
	case q.cqs > 0:
		return syndEQBusy
	}
	f.uars.objs[q.ctx.UARPage()].users--
	f.eqs.remove(n)
	f.listen()
	return syndOK
}

func queryEQ(f *function, c *call) synd {
	q, ok := f.eqs.get(uint32(prm.AsQueryEQIn(c.in).EQNumber()))
	if !ok {
		return syndNoEQ
	}
	out := prm.AsQueryEQOut(c.out)
	ctx := out.EQContextEntry()
	*ctx = q.ctx
	ctx.SetConsumerCounter(q.consumer)
	ctx.SetProducerCounter(q.producer)
	ctx.SetSt(prm.EQStateFired)
	if q.armed {
		ctx.SetSt(prm.EQStateArmed)
	}
	out.SetEventBitmask(q.mask[0])
	return syndOK
}

func genEQE(f *function, c *call) synd {
	in := prm.AsGenEQEIn(c.in)
	q, ok := f.eqs.get(uint32(in.EQNumber()))
	if !ok {
		return syndNoEQ
	}
	var ev prm.EQE
	copy(ev[:], in.EQE())
	f.postEQE(q, &ev)
	return syndOK
}

// eventEQ is the queue that hears of an event; nil if none does.
func (f *function) eventEQ(t prm.EventType) *eq { return f.listeners[t] }

// listen works out which queue hears of which event: the lowest-numbered one
// whose mask has it.
func (f *function) listen() {
	f.listeners = [256]*eq{}
	for _, q := range f.eqs.objs {
		for t := range f.listeners {
			if l := f.listeners[t]; q.mask[t>>6]>>(t&63)&1 != 0 && (l == nil || q.n < l.n) {
				f.listeners[t] = q
			}
		}
	}
}

// postEQE writes an entry and, if the queue is armed, raises its interrupt. A
// queue that is full or cannot be written loses the event, shows it in its
// status and in the health buffer, and goes on.
func (f *function) postEQE(q *eq, ev *prm.EQE) {
	if q.pending() >= q.size() && !q.ctx.Oi() {
		f.failEQ(q, prm.SyndAsynchronousEQBufOverrun)
		return
	}
	// In the first pass over the ring entries carry owner 0, in the next 1.
	ev.SetOwner(q.producer>>q.logSize&1 != 0)
	at := q.offset + uint64(q.producer&(q.size()-1))*eqeBytes
	addr := q.pages[at>>q.shift] + at&(1<<q.shift-1)
	f.eqe = *ev
	if !f.dmaPublish(addr, f.eqe[:]) {
		f.failEQ(q, prm.SyndIcmFetchPCIErr)
		return
	}
	f.count.Events++
	q.producer = (q.producer + 1) & counter24
	f.fire(q)
}

func (f *function) failEQ(q *eq, s prm.HealthSyndrome) {
	f.count.EventsLost++
	q.ctx.SetStatus(prm.EQStatusWriteFailure)
	f.chip.complain(s)
}

// fire raises the interrupt of an armed queue that holds entries. Arming is a
// level, not an edge: arming behind the producer raises it at once.
func (f *function) fire(q *eq) {
	if q.armed && q.pending() != 0 {
		q.armed = false
		f.interrupt(int(q.ctx.Intr()))
	}
}

// updateEQ is a doorbell: the consumer index, and whether to arm.
func (f *function) updateEQ(page uint32, v uint32, arm bool) {
	q, ok := f.eqs.get(v >> 24)
	if !ok || q.ctx.UARPage() != page {
		f.count.DoorbellsIgnored++
		return
	}
	q.consumer = v & counter24
	if arm {
		q.armed = true
		f.fire(q)
	}
}
