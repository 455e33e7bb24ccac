package cmdif

import (
	"encoding/binary"
	"time"

	"github.com/mlxvfio/mlxvfio/internal/mmio"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// finish takes the reply of an entry that the device handed back, and ends the
// command.
func (c *Conn) finish(s *slot, out []byte) error {
	mmio.FromDevice()
	op, opMod := s.rec.Opcode, s.rec.OpMod
	owner := s.mem.LoadBE32(offOwner)
	for uint8(owner>>24) != s.rec.Token {
		// This is the answer to an earlier command. Ours may still be running:
		// give the entry back, and keep it until its own answer arrives.
		want := uint32(s.rec.Token)<<24 | 1
		if s.mem.CompareAndSwap32(offOwner, native(owner), native(want)) {
			err := &ReplyError{Opcode: op, OpMod: opMod, Slot: s.index, Mailbox: -1, Got: owner >> 24, Want: want >> 24, Err: ErrNotOurs}
			c.mu.Lock()
			c.foreign++
			c.mu.Unlock()
			c.quarantine(s, OutcomeBadReply)
			return err
		}
		if owner = s.mem.LoadBE32(offOwner); owner&1 != 0 {
			// Rewritten under our hands: nothing here can be trusted.
			c.quarantine(s, OutcomeBadReply)
			return &ReplyError{Opcode: op, OpMod: opMod, Slot: s.index, Mailbox: -1, Got: owner, Want: want, Err: ErrNotOurs}
		}
	}
	s.rec.Latency = time.Since(s.rec.Posted)
	if t := c.trace.Load(); t != nil {
		c.traceSlot(*t, s, true)
	}
	err := c.read(s, &s.rec, owner, out)
	c.release(s)
	return err
}

// read checks a reply, notes it in r and copies it to out.
func (c *Conn) read(s *slot, r *Record, owner uint32, out []byte) error {
	r.Outcome = OutcomeRefused
	if r.Delivery = prm.DeliveryStatus(owner >> 1 & 0x7f); r.Delivery != prm.DeliveryOK {
		return &DeliveryError{Opcode: r.Opcode, OpMod: r.OpMod, Slot: s.index, Status: r.Delivery}
	}
	if err := c.check(s, r); err != nil {
		r.Outcome = OutcomeBadReply
		return err
	}
	inline := prm.AsCmdQueueEntry(s.mem.Bytes()).CommandOutputInlineData()
	copy(r.Out[:], inline)
	h := (*prm.CmdOut)(r.Out[:prm.CmdOutSize])
	r.Status, r.Syndrome = h.Status(), h.Syndrome()
	if r.Status != prm.StatusNotReady { // that may be sent again: see notReady
		n := copy(out, r.Out[:]) // what is judged here, whatever becomes of the entry
		unlink(s.out, out[n:])
	}
	if r.Status != prm.StatusOK {
		return &CommandError{Opcode: r.Opcode, OpMod: r.OpMod, Status: r.Status, Syndrome: r.Syndrome}
	}
	r.Outcome = OutcomeDone
	return nil
}

// check verifies that a reply belongs to this command, and its signatures while
// the device signs.
func (c *Conn) check(s *slot, r *Record) error {
	fail := func(mailbox int, got, want uint32, err error) error {
		return &ReplyError{Opcode: r.Opcode, OpMod: r.OpMod, Slot: s.index, Mailbox: mailbox, Got: got, Want: want, Err: err}
	}
	for i, b := range s.out {
		if t := b.view().Token(); t != r.Token {
			return fail(i, uint32(t), uint32(r.Token), ErrNotOurs)
		}
		if n := b.view().BlockNumber(); n != uint32(i) {
			return fail(i, n, uint32(i), ErrNotOurs)
		}
	}
	if !c.verify.Load() {
		return nil
	}
	// A device signs the entry as if it still owned it and then clears the bit
	// (seen on a ConnectX-4).
	const sum = 0xff
	if x := xor8(s.mem.Bytes()) | 1; x != sum {
		return fail(-1, uint32(x), sum, ErrSignature)
	}
	for i, b := range s.out {
		if x := xor8(b.mem[ctrlFrom:bodyTo]); x != sum {
			return fail(i, uint32(x), sum, ErrSignature)
		}
		if x := xor8(b.mem); x != sum {
			return fail(i, uint32(x), sum, ErrSignature)
		}
	}
	return nil
}

// lateLocked reads the reply of a quarantined slot that the device has handed
// back after all.
func (c *Conn) lateLocked(s *slot, owner uint32) Late {
	mmio.FromDevice()
	l := Late{Record: s.rec}
	l.Latency = time.Since(s.rec.Posted)
	reply := make([]byte, s.rec.OutLen)
	// A refusal is a reply too; one that fails its checks is none.
	if _ = c.read(s, &l.Record, owner, reply); l.Outcome != OutcomeBadReply && l.Delivery == prm.DeliveryOK {
		l.Reply = reply
	}
	l.Outcome = OutcomeLate
	return l
}

// native turns the value of a big-endian word into its value in host order.
func native(be uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], be)
	return binary.NativeEndian.Uint32(b[:])
}
