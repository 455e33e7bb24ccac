package cmdif

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// hostile is a device that answers one command as the fuzzer says. The bytes are a
// program: runs of stores of (where, offset, length, bytes) into the entry, the
// mailboxes of the input, those of the output, and events. It can also give the entry
// back with the right token, so that the parser behind that check is reached.
type hostile struct {
	prog  []byte
	c     *call
	b     *bench
	later func() // answers a command whose caller has left
}

func (h *hostile) next() int {
	if len(h.prog) == 0 {
		return 0
	}
	v := h.prog[0]
	h.prog = h.prog[1:]
	return int(v)
}

// Stores of the program, by the low bits of their first byte.
const (
	hostEntry   = iota // anywhere in the entry but the ownership dword
	hostOut            // anywhere in an output mailbox
	hostIn             // anywhere in an input mailbox
	hostTrailer        // the control part of an output mailbox: next pointer, number, token, signatures
	hostHeader         // status and syndrome
	hostSign           // make the signatures right again
	hostEvent          // a completion event, of any slots
	hostVerbs
)

// run executes the program, and hands the entry back at its end.
func (h *hostile) run() {
	c := h.c
	e := c.entry.Bytes()
	for len(h.prog) > 0 {
		switch verb := h.next() % hostVerbs; verb {
		case hostEntry:
			h.store(e[:offOwner])
		case hostOut, hostTrailer, hostIn:
			boxes := c.out
			at := 0
			if verb == hostIn {
				boxes = h.inBoxes()
			}
			if verb == hostTrailer {
				at = 0x230
			}
			if len(boxes) > 0 {
				h.store(boxes[h.next()%len(boxes)].Bytes()[at:])
			} else {
				h.next()
			}
		case hostHeader:
			h.store(e[0x20:0x28])
		case hostSign:
			for _, m := range c.out {
				d := m.Bytes()
				d[0x23e] = ^xorOf(d[0x200:0x23e])
				d[0x23f] = ^xorOf(d[:0x23f])
			}
		case hostEvent:
			h.b.conn.Complete(uint32(h.next()) << (h.next() % 32))
		}
	}
}

func (h *hostile) inBoxes() (ms []vfio.Mem) {
	for _, at := range h.c.inBox {
		ms = append(ms, h.b.dma(at, 576))
	}
	return ms
}

func (h *hostile) store(dst []byte) {
	off := (h.next() | h.next()<<8) % len(dst)
	n := h.next() % 65
	for i := range min(n, len(dst)-off) {
		dst[off+i] = byte(h.next())
	}
}

// FuzzReply lets a hostile device answer one command with any bytes, while another
// one is under way. Never a panic (an access out of the reply's memory is one), never a
// reply that the memory of this very command does not say and its checks do not allow, never a
// word of it in the other command's reply; a slot that was not answered properly stays
// quarantined until its own answer comes, and then everything is free again.
func FuzzReply(f *testing.F) {
	f.Add(uint16(16), uint16(16), true, false, uint32(0), []byte{})
	f.Add(uint16(600), uint16(1200), false, false, uint32(0), []byte{hostTrailer, 0, 8, 0, 4, 1, 2, 3, 4})
	f.Add(uint16(600), uint16(1200), true, false, uint32(0), []byte{hostOut, 1, 9, 1, 3, 9, 9, 9, hostSign})
	f.Add(uint16(16), uint16(4112), false, false, uint32(0), []byte{hostTrailer, 3, 13, 0, 1, 0xaa})
	f.Add(uint16(16), uint16(40), false, false, uint32(2), []byte{hostHeader, 0, 0, 0, 8, 3, 0, 0, 0, 1, 2, 3, 4})
	f.Add(uint16(16), uint16(16), false, false, uint32(0x55<<24), []byte{hostEntry, 0, 0, 60, 1, 2, 3, hostEvent, 3, 0})
	f.Add(uint16(1040), uint16(20), false, false, uint32(1), []byte{hostIn, 1, 0x30, 2, 8, 255, 255, 255, 255, 255, 255, 255, 255})
	f.Add(uint16(16), uint16(520), true, false, uint32(0xff0000), []byte{hostHeader, 0, 0, 0, 1, 0xa})
	f.Add(uint16(16), uint16(520), true, true, uint32(0), []byte{hostHeader, 0, 0, 0, 1, 0xa})
	f.Add(uint16(1040), uint16(1200), false, true, uint32(0), []byte{hostOut, 1, 9, 1, 3, 9, 9, 9})
	f.Add(uint16(16), uint16(1200), false, true, uint32(0x77000100), []byte{hostTrailer, 0, 13, 0, 1, 0xaa, hostEvent, 1, 0})
	var lates []Late
	b := openEntries(f, 2, Options{NotReady: -1, History: 4, OnLate: func(l Late) { lates = append(lates, l) }})
	f.Cleanup(b.close)
	f.Fuzz(func(t *testing.T, n, m uint16, verify, late bool, last uint32, prog []byte) {
		lates = nil
		b.fake.t = t
		b.conn.VerifyOutputs(verify)
		in := inputOf(7, prm.OpNop, 16+int(n)%3000)
		out := slices.Repeat([]byte{0xa5}, 8+int(m)%3000)
		untouched := slices.Clone(out)
		h := &hostile{prog: prog, b: b}
		var reply []byte    // what the memory says when the entry is handed back
		var wordLast uint32 // and the last word of the entry
		var boxErr error
		other := make(chan error)
		otherIn, otherOut := inputOf(8, prm.OpQueryAdapter, 700), make([]byte, 900)
		// Two commands: the other one is sent first and answered last.
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		b.onCommand(func(first *call) {
			answer := func(c *call) {
				h.run()
				wordLast = last &^ 1
				if last&1<<8 == 0 { // else any token
					wordLast = wordLast&0xffffff | uint32(c.token)<<24
				}
				if verify && last&1<<9 == 0 {
					sum := ^(xorOf(c.entry.Bytes()[:offOwner]) ^ byte(wordLast>>24) ^ byte(wordLast>>8) ^ byte(wordLast) ^ 1)
					wordLast = wordLast&^0xff0000 | uint32(sum)<<16
				}
				reply, boxErr = expected(c, verify, wordLast)
				c.entry.StoreBE32(offOwner, wordLast)
			}
			b.onCommand(func(c *call) {
				h.c = c
				if late {
					h.later = func() { answer(c) }
					leave()
				} else {
					answer(c)
				}
				first.reply(replyOf(8, first.outLen))
			})
			go func() { other <- nil }() // it is in its slot
		})
		errs := make(chan error, 1)
		go func() { errs <- b.conn.Exec(context.Background(), otherIn, otherOut) }()
		<-other
		err := b.conn.Exec(ctx, in, out)
		if oerr := <-errs; oerr != nil {
			t.Fatalf("the other command: %v", oerr)
		}
		checkReply(t, 8, otherOut)
		if late {
			var ce *CanceledError
			if !errors.As(err, &ce) || ce.Slot != h.c.slot || string(out) != string(untouched) {
				t.Fatalf("a caller that left: %v; its output % x", err, out)
			}
			h.later()
		} else {
			judgeReply(t, err, h.c, wordLast, boxErr, reply, out, untouched)
		}

		st := b.conn.Stats()
		ours := byte(wordLast>>24) == h.c.token
		if late && ours {
			judgeLate(t, lates, wordLast, boxErr, reply)
		}
		if !ours {
			if st.Quarantined != 1 {
				t.Fatalf("%d slots in quarantine after %v", st.Quarantined, err)
			}
			if len(lates) > 0 {
				t.Fatalf("a foreign answer reported as late: %+v", lates)
			}
			h.c.reply(nil)
			st = b.conn.Stats()
		}
		if st.Quarantined != 0 || st.MailboxesInUse != 0 || st.Free != st.Slots {
			t.Fatalf("left behind: %+v after %v", st, err)
		}
		// The same slots and mailboxes serve the next command.
		b.onCommand(func(c *call) { c.reply(replyOf(9, c.outLen)) })
		again := make([]byte, 1500)
		b.conn.VerifyOutputs(true)
		require.NoError(t, b.conn.Exec(context.Background(), inputOf(9, prm.OpNop, 900), again))
		checkReply(t, 9, again)
	})
}

// expected is what the memory of a command says: its reply, or why it is none.
func expected(c *call, verify bool, last uint32) (reply []byte, err error) {
	e := c.entry.Bytes()
	reply = slices.Clone(e[0x20:0x30])
	sum := byte(0)
	for _, x := range e[:offOwner] {
		sum ^= x
	}
	for s := last | 1; s != 0; s >>= 8 {
		sum ^= byte(s)
	}
	if verify && sum != 0xff {
		err = ErrSignature
	}
	for i, m := range c.out {
		d := m.Bytes()
		if verify && (xorOf(d[0x200:0x23f]) != 0xff || xorOf(d) != 0xff) && err == nil {
			err = ErrSignature
		}
		if d[0x23d] != c.token || binary.BigEndian.Uint32(d[0x238:]) != uint32(i) {
			err = ErrNotOurs // which is looked at first
		}
		reply = append(reply, d[:512]...)
	}
	return reply[:min(len(reply), max(c.outLen, 0))], err
}

// judgeLate compares what is reported of a late answer with what the device wrote.
func judgeLate(t *testing.T, lates []Late, last uint32, bad error, reply []byte) {
	if len(lates) != 1 || lates[0].Outcome != OutcomeLate {
		t.Fatalf("late answers: %+v", lates)
	}
	l := &lates[0]
	switch {
	case last>>1&0x7f != 0:
		if l.Reply != nil || uint32(l.Delivery) != last>>1&0x7f {
			t.Fatalf("delivery status %x: %+v", last>>1&0x7f, l)
		}
	case bad != nil:
		if l.Reply != nil {
			t.Fatalf("a late reply that fails its checks (%v): %+v", bad, l)
		}
	case byte(l.Status) != reply[0] || l.Syndrome != binary.BigEndian.Uint32(reply[4:]):
		t.Fatalf("status %x, syndrome %x: %+v", reply[0], reply[4:8], l)
	case l.Status != prm.StatusNotReady && string(l.Reply) != string(reply):
		t.Fatalf("late reply % x, the device wrote % x", l.Reply, reply)
	}
}

// judgeReply compares the answer to a caller with what the device wrote.
func judgeReply(t *testing.T, err error, c *call, last uint32, bad error, reply, out, untouched []byte) {
	var (
		re *ReplyError
		de *DeliveryError
		ce *CommandError
	)
	wantUntouched := true
	switch {
	case byte(last>>24) != c.token:
		if !errors.As(err, &re) || !errors.Is(err, ErrNotOurs) || re.Mailbox != -1 || re.Got != last>>24 || re.Want != uint32(c.token) {
			t.Fatalf("token %x for a command with %x: %v", last>>24, c.token, err)
		}
	case last>>1&0x7f != 0:
		if !errors.As(err, &de) || uint32(de.Status) != last>>1&0x7f {
			t.Fatalf("delivery status %x: %v", last>>1&0x7f, err)
		}
	case bad != nil:
		if !errors.As(err, &re) || !errors.Is(err, bad) {
			t.Fatalf("a reply that fails its checks (%v): %v", bad, err)
		}
	case reply[0] != 0:
		wantUntouched = false
		if !errors.As(err, &ce) || byte(ce.Status) != reply[0] || ce.Syndrome != binary.BigEndian.Uint32(reply[4:]) {
			t.Fatalf("status %x, syndrome %x: %v", reply[0], reply[4:8], err)
		}
		if ce.Status != prm.StatusNotReady && string(out) != string(reply) {
			t.Fatalf("the reply of a refusal: % x, the device wrote % x", out, reply)
		}
	default:
		wantUntouched = false
		if err != nil || string(out) != string(reply) {
			t.Fatalf("%v; the reply is % x, the device wrote % x", err, out, reply)
		}
	}
	if wantUntouched && string(out) != string(untouched) {
		t.Fatalf("the output was written, although %v", err)
	}
}

// FuzzTyped gives any reply to the commands with a method of their own.
func FuzzTyped(f *testing.F) {
	for i := range byte(12) {
		f.Add(i, uint16(3), []byte{})
		f.Add(i, uint16(700), make([]byte, 5000))
	}
	f.Add(byte(2), uint16(2), []byte{0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	b := openEntries(f, 2, Options{NotReady: -1, History: 4})
	f.Cleanup(b.close)
	f.Fuzz(func(t *testing.T, which byte, n uint16, reply []byte) {
		b.fake.t = t
		b.onCommand(func(c *call) { c.reply(reply) })
		ctx, c := context.Background(), b.conn
		least := 8
		var err error
		switch which % 12 {
		case 0:
			err = c.EnableHCA(ctx, Function{ID: n})
		case 1:
			var r PageRequest
			r, err = c.QueryPages(ctx, prm.QueryPagesRegular)
			if want := make([]byte, 16); err == nil {
				copy(want, reply)
				require.Equal(t, int(int32(binary.BigEndian.Uint32(want[12:]))), r.Pages)
			}
		case 2:
			most := 1 + int(n)%1000
			var pages []uint64
			pages, err = c.ReclaimPages(ctx, Function{}, most)
			require.LessOrEqual(t, len(pages), most)
			if err == nil {
				full := make([]byte, 16+8*most)
				copy(full, reply)
				require.Equal(t, int(binary.BigEndian.Uint32(full[8:])), len(pages))
				for i, p := range pages {
					require.Equal(t, binary.BigEndian.Uint64(full[16+8*i:]), p)
				}
			} else if errors.Is(err, ErrNotOurs) {
				return // more than was asked for
			}
		case 3:
			_, err = c.QueryISSI(ctx)
		case 4:
			_, err = c.QueryHCACap(ctx, prm.CapGeneral, CapMode(n&1))
		case 5:
			_, err = c.QueryAdapter(ctx)
		case 6:
			err = c.ReadRegister(ctx, prm.RegDtor, make([]byte, 4*(int(n)%300)))
		case 7:
			_, err = c.QueryTimeouts(ctx)
		case 8:
			err = c.TeardownHCA(ctx, prm.TeardownForce)
			var te *TeardownError
			if errors.As(err, &te) {
				return
			}
		case 9:
			err = c.NOP(ctx)
		case 10:
			_, err = c.GivePages(ctx, Function{}, make([]uint64, int(n)%700))
			if n%700 == 0 {
				return // nothing to send
			}
		case 11:
			err = c.SetDriverVersion(ctx, "x")
		}
		var ce *CommandError
		full := make([]byte, max(least, len(reply)))
		copy(full, reply)
		if full[0] == 0 {
			require.NoError(t, err)
		} else if !errors.As(err, &ce) || byte(ce.Status) != full[0] {
			t.Fatalf("status %x: %v", full[0], err)
		}
	})
}
