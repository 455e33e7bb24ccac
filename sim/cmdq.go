package sim

import (
	"encoding/binary"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

const (
	entryBytes = 64
	entryType  = 7 // PCIe transport
)

func (f *function) slotAddr(slot int) uint64 { return f.queue + uint64(slot)<<logQueueStride }

// post takes a slot over: it fetches the entry and serves it now or, under a
// load or a fault, later.
func (f *function) post(slot int) {
	e := &f.slots[slot]
	if f.queue == 0 || slot >= queueSlots || f.inFlight>>slot&1 != 0 ||
		!f.dmaRead(f.slotAddr(slot), f.entry[:]) || !f.entry.Ownership() {
		f.count.DoorbellsIgnored++
		return
	}
	*e = f.entry
	f.inFlight |= 1 << slot
	f.count.Commands++
	in := e.CommandInputInlineData()
	plan := f.chip.faults.command(prm.Opcode(binary.BigEndian.Uint16(in)), f.chip.rng)
	if plan.lost {
		return // in flight until the next reset
	}
	delay := plan.delay
	if r := f.chip.opts.Load; r > 0 {
		delay += time.Duration(f.chip.rng.ExpFloat64() / r * float64(time.Second))
	}
	if delay > 0 {
		f.chip.sched.after(f, delay, func() { f.serve(slot, plan) })
		return
	}
	f.serve(slot, plan)
}

// serve executes the command of a slot and hands the slot back.
func (f *function) serve(slot int, plan commandPlan) {
	f.inFlight &^= 1 << slot
	f.complete(slot, plan)
	for _, do := range f.later {
		do()
	}
	f.later = f.later[:0]
}

func (f *function) complete(slot int, plan commandPlan) {
	e := &f.slots[slot]
	// The EQ that creating it makes does not hear of its own creation.
	hadEQ := f.eventEQ(prm.EventCmd) != nil
	sign := f.fw.signing()
	d := plan.delivery
	if d == prm.DeliveryOK {
		d = f.deliver(e, plan)
	}
	if d != prm.DeliveryOK {
		f.count.DeliveryErrors++
		f.trace(prm.Opcode(binary.BigEndian.Uint16(e.CommandInputInlineData())), 0, "", d, 0, 0)
	}
	if plan.token {
		e.SetToken(e.Token() ^ 0xff)
	}
	if sign {
		e.SetStatus(d)
		e.SetOwnership(true)
		e.SetSignature(0)
		e.SetSignature(^xor(e[:]))
	}
	if plan.signature {
		e.SetSignature(^e.Signature())
	}
	e.SetStatus(d)
	e.SetOwnership(false)
	at := f.slotAddr(slot)
	if d == prm.DeliveryOK && !f.dmaWrite(at+0x20, e.CommandOutputInlineData()) {
		return
	}
	if !f.dmaPublish(at+0x3c, e[0x3c:]) {
		return
	}
	// The entry is the software's again before its event can be seen.
	eq := f.eventEQ(prm.EventCmd)
	if !hadEQ || eq == nil {
		return
	}
	if plan.loseEvent {
		f.count.EventsLost++
		return
	}
	for range plan.events() {
		ev := &f.scratchEQE
		*ev = prm.EQE{}
		ev.SetEventType(prm.EventCmd)
		ev.EventData().CmdInterCompEvent().SetCommandCompletionVector(1 << slot)
		f.postEQE(eq, ev)
	}
}

// deliver checks the entry and its mailboxes, executes the command and writes
// its output mailboxes. A delivery status other than OK means that the command
// was not executed.
func (f *function) deliver(e *prm.CmdQueueEntry, plan commandPlan) prm.DeliveryStatus {
	verify := f.fw.checksums()
	inPtr := binary.BigEndian.Uint64(e[0x08:])
	outPtr := binary.BigEndian.Uint64(e[0x30:])
	switch {
	case e.Type() != entryType:
		return prm.DeliveryCmdDescrErr
	case e[1]|e[2]|e[3]|e[0x3e] != 0:
		return prm.DeliveryReservedNotClearErr
	case verify && xor(e[:]) != 0xff:
		return prm.DeliverySignatureErr
	case e.InputLength() < headerBytes:
		return prm.DeliveryInLengthErr
	case e.OutputLength() < headerBytes:
		return prm.DeliveryOutLengthErr
	}
	n := int(e.InputLength())
	if n > inlineBytes+maxChain*mailboxBytes {
		return prm.DeliveryInLengthErr
	}
	f.in = resize(f.in, max(n, inlineBytes))
	copy(f.in, e.CommandInputInlineData())
	f.chainIn = f.chainIn[:0]
	if n > inlineBytes {
		var d prm.DeliveryStatus
		f.chainIn, d = f.chain(inPtr, e.InputLength(), e.Token(), verify, prm.DeliveryInLengthErr, prm.DeliveryInPtrAlignErr,
			f.chainIn, func(i int, m *prm.CmdIfBox) { copy(f.in[inlineBytes+i*mailboxBytes:], m.MailboxData()) })
		if d != prm.DeliveryOK {
			return d
		}
	}
	f.chainOut = f.chainOut[:0]
	if e.OutputLength() > inlineBytes {
		var d prm.DeliveryStatus
		f.chainOut, d = f.chain(outPtr, e.OutputLength(), e.Token(), verify, prm.DeliveryOutLengthErr, prm.DeliveryOutPtrAlignErr,
			f.chainOut, nil)
		if d != prm.DeliveryOK {
			return d
		}
	}
	out := f.execute(f.in[:n], int(e.OutputLength()), plan)
	inline := e.CommandOutputInlineData()
	clear(inline)
	k := copy(inline, out)
	for i, at := range f.chainOut {
		if k >= len(out) && !plan.token {
			break
		}
		part := out[k:min(len(out), k+mailboxBytes)]
		if !f.storeBlock(at, part, verify, plan.token) {
			return prm.DeliveryFWErr
		}
		k = min(len(out), inlineBytes+(i+1)*mailboxBytes)
	}
	return prm.DeliveryOK
}

// resize gives b a length of n and keeps its memory where it can.
func resize(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n, max(n, 8192))
	}
	return b[:n]
}
