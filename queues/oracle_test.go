package queues_test

import (
	"encoding/binary"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// The oracle: what a program of WQEs must leave behind, carried out one after the
// other by the rules of InfiniBand and of masked atomics, without packets, queues or
// time. It shares no code with the driver or the model.

// verb is an operation of a program.
type verb uint8

const (
	vNop verb = iota
	vSend
	vWrite
	vRead
	vCS
	vFA
	vMaskedCS
	vMaskedFA
	verbs
)

// mistake is what is wrong with an operation.
type mistake uint8

const (
	right         mistake = iota
	badLocalKey           // of the first piece, before anything is sent
	badRemoteKey          // a stale one
	badRange              // beyond the key
	badAlignment          // of an atomic
	badOpcode             // none there is
	badRecvLength         // longer than the receive WQE
	mistakes
)

// piece is local memory of an operation.
type piece struct{ off, n int }

// step is one WQE of a program.
type step struct {
	verb    verb
	wrid    uint64
	signal  bool
	fence   bool
	imm     bool
	inline  []byte // instead of pieces
	pieces  []piece
	remote  int // offset in the peer's memory
	n       int // bytes
	value   uint32
	swap    []uint64 // swap, or add
	compare []uint64
	mask1   []uint64 // swap mask, or boundary
	mask2   []uint64 // compare mask
	mistake mistake
}

// steps is a program.
type steps []step

// atomic tells the verbs that change one word or block and answer the old one.
func (s *step) atomic() bool { return s.verb >= vCS }

// outbound tells the verbs that are answered with data.
func (s *step) outbound() bool { return s.verb == vRead || s.atomic() }

// opcode is the WQE's.
func (s *step) opcode() prm.WQEOpcode {
	switch s.verb {
	case vNop:
		return 0x00
	case vSend:
		if s.imm {
			return 0x0b
		}
		return 0x0a
	case vWrite:
		if s.imm {
			return 0x09
		}
		return 0x08
	case vRead:
		return 0x10
	case vCS:
		return 0x11
	case vFA:
		return 0x12
	case vMaskedCS:
		return 0x14
	}
	return 0x15
}

// slot is a receive WQE.
type slot struct {
	wrid   uint64
	pieces []piece
}

func (s *slot) room() (n int) {
	for _, p := range s.pieces {
		n += p.n
	}
	return n
}

// want is a completion that must come.
type want struct {
	wrid     uint64
	recv     bool
	op       prm.CQEOpcode
	send     prm.WQEOpcode
	syndrome prm.CQESyndrome
	bytes    int // −1: means nothing
	imm      uint32
}

// end is one end of the connection, as it must be.
type end struct {
	mem          []byte
	slots        []slot // posted and not taken
	shared       bool   // they are a shared receive queue's: an error leaves them alone
	taken        uint16 // receive WQEs, running
	posted       uint16
	blocks       uint16 // of the send queue, running
	next, expect uint32 // PSNs
	state        prm.QPState
	counters     prm.QueryQCounterOut
	sends, recvs []want
	hostOrder    bool // 8-byte replies are in host order
	mtu          int
}

const mask24 = 1<<24 - 1

// run carries a program out on a, with b as its peer (or a itself).
func (a *end) run(b *end, program steps) {
	failed := false
	for i := range program {
		s := &program[i]
		a.blocks += uint16(s.blocks())
		if failed {
			a.sends = append(a.sends, want{wrid: s.wrid, op: prm.CQEReqErr, send: s.opcode(), syndrome: prm.CQESyndWrFlushErr, bytes: -1})
			a.counters.SetReqCQEFlushError(a.counters.ReqCQEFlushError() + 1)
			continue
		}
		if syndrome := a.step(b, s); syndrome != 0 {
			failed = true
			op := s.opcode()
			if s.mistake == badOpcode {
				op = 0x3e
			}
			a.sends = append(a.sends, want{wrid: s.wrid, op: prm.CQEReqErr, send: op, syndrome: syndrome, bytes: -1})
			a.count(syndrome)
			a.fail()
			continue
		}
		if s.signal {
			n := -1
			if s.outbound() {
				n = s.n
			}
			a.sends = append(a.sends, want{wrid: s.wrid, op: prm.CQEReq, send: s.opcode(), bytes: n})
		}
	}
}

// count is what a requester counts of its own failure.
func (a *end) count(syndrome prm.CQESyndrome) {
	c := &a.counters
	c.SetReqCQEError(c.ReqCQEError() + 1)
	switch syndrome {
	case prm.CQESyndLocalQPOpErr:
		c.SetLocalOperationError(c.LocalOperationError() + 1)
	case prm.CQESyndLocalProtErr:
		c.SetReqLocalProtection(c.ReqLocalProtection() + 1)
	case prm.CQESyndRemoteInvalReqErr:
		c.SetReqRemoteInvalidRequest(c.ReqRemoteInvalidRequest() + 1)
	case prm.CQESyndRemoteAccessErr:
		c.SetReqRemoteAccessErrors(c.ReqRemoteAccessErrors() + 1)
	}
}

// blocks is the number of 64-byte blocks of the WQE.
func (s *step) blocks() int {
	units := 1
	data := len(s.pieces)
	if s.inline != nil {
		data = (4 + len(s.inline) + 15) / 16
	}
	switch {
	case s.mistake == badOpcode:
		data = 0
	case s.verb == vSend:
	case s.verb == vWrite || s.verb == vRead:
		units++
	case s.verb == vCS || s.verb == vFA || s.verb == vMaskedFA && s.n == 4 || s.verb == vMaskedCS && s.n == 4:
		units += 2
	case s.verb == vMaskedFA:
		units += 1 + 2*s.n/16
	case s.verb == vMaskedCS:
		units += 1 + 4*s.n/16
	}
	return (units + data + 3) / 4
}

// packets is the number of packets a message takes.
func packets(n, mtu int) uint32 { return uint32(max(1, (n+mtu-1)/mtu)) }

// gather is the data of an operation.
func (a *end) gather(s *step) []byte {
	if s.inline != nil {
		return s.inline
	}
	d := []byte{}
	for _, p := range s.pieces {
		d = append(d, a.mem[p.off:p.off+p.n]...)
	}
	return d
}

// scatter writes data over pieces.
func (a *end) scatter(l []piece, d []byte) {
	for _, p := range l {
		d = d[copy(a.mem[p.off:p.off+p.n], d):]
	}
}

// step carries one operation out and answers the syndrome of its failure.
func (a *end) step(b *end, s *step) prm.CQESyndrome {
	switch s.mistake {
	case badOpcode:
		return prm.CQESyndLocalQPOpErr
	case badLocalKey:
		return prm.CQESyndLocalProtErr
	case badRemoteKey, badRange:
		b.counters.SetRespRemoteAccessErrors(b.counters.RespRemoteAccessErrors() + 1)
		b.fail()
		return prm.CQESyndRemoteAccessErr
	case badAlignment:
		b.counters.SetRespRemoteInvalidRequest(b.counters.RespRemoteInvalidRequest() + 1)
		b.fail()
		return prm.CQESyndRemoteInvalReqErr
	}
	n := uint32(0)
	switch s.verb {
	case vSend:
		d := a.gather(s)
		if !b.receive(s, d) {
			return prm.CQESyndRemoteInvalReqErr
		}
		n = packets(len(d), a.mtu)
	case vWrite:
		d := a.gather(s)
		copy(b.mem[s.remote:], d)
		b.counters.SetRxWriteRequests(b.counters.RxWriteRequests() + 1)
		if s.imm {
			t := b.take()
			b.recvs = append(b.recvs, want{wrid: t.wrid, recv: true, op: prm.CQERespWrImm, bytes: len(d), imm: s.value})
		}
		n = packets(len(d), a.mtu)
	case vRead:
		a.scatter(s.pieces, append([]byte(nil), b.mem[s.remote:s.remote+s.n]...))
		b.counters.SetRxReadRequests(b.counters.RxReadRequests() + 1)
		n = packets(s.n, a.mtu)
	case vNop:
	default:
		b.atomic(a, s)
		n = 1
	}
	a.next = (a.next + n) & mask24
	b.expect = (b.expect + n) & mask24
	return 0
}

func (a *end) take() slot {
	t := a.slots[0]
	a.slots = a.slots[1:]
	a.taken++
	return t
}

// receive puts a message into the next receive WQE; false if it does not fit: the
// packets before the one that does not are there all the same.
func (a *end) receive(s *step, d []byte) bool {
	t := a.take()
	if room := t.room(); len(d) > room {
		a.scatter(t.pieces, d[:room/a.mtu*a.mtu])
		a.recvs = append(a.recvs, want{wrid: t.wrid, recv: true, op: prm.CQERespErr, syndrome: prm.CQESyndLocalLengthErr, bytes: -1})
		c := &a.counters
		c.SetRespLocalLengthError(c.RespLocalLengthError() + 1)
		c.SetRespCQEError(c.RespCQEError() + 1)
		c.SetRespRemoteInvalidRequest(c.RespRemoteInvalidRequest() + 1)
		a.fail()
		return false
	}
	a.scatter(t.pieces, d)
	w := want{wrid: t.wrid, recv: true, op: prm.CQERespSend, bytes: len(d)}
	if s.imm {
		w.op, w.imm = prm.CQERespSendImm, s.value
	}
	a.recvs = append(a.recvs, w)
	return true
}

// fail ends a queue pair: its receive WQEs are flushed.
func (a *end) fail() {
	a.state = prm.QPStateErr
	a.flush()
}

func (a *end) flush() {
	if a.shared {
		return
	}
	for len(a.slots) > 0 {
		t := a.take()
		a.recvs = append(a.recvs, want{wrid: t.wrid, recv: true, op: prm.CQERespErr, syndrome: prm.CQESyndWrFlushErr, bytes: -1})
		a.counters.SetRespCQEFlushError(a.counters.RespCQEFlushError() + 1)
	}
}

// atomic carries an atomic out on its memory and hands the old value to the
// requester.
func (a *end) atomic(requester *end, s *step) {
	width := min(s.n, 8)
	words := s.n / width
	old, now := make([]uint64, words), make([]uint64, words)
	equal := true
	for i := range words {
		m := a.mem[s.remote+i*width:]
		if width == 4 {
			old[i] = uint64(binary.LittleEndian.Uint32(m))
		} else {
			old[i] = binary.LittleEndian.Uint64(m)
		}
		switch s.verb {
		case vCS:
			equal = equal && old[i] == s.compare[i]
			now[i] = s.swap[i]
		case vMaskedCS:
			equal = equal && old[i]&s.mask2[i] == s.compare[i]&s.mask2[i]
			now[i] = old[i]&^s.mask1[i] | s.swap[i]&s.mask1[i]
		case vFA:
			now[i] = old[i] + s.swap[i]
		case vMaskedFA:
			now[i] = addBits(old[i], s.swap[i], s.mask1[i], 8*width)
		}
	}
	var reply []byte
	for i := range words {
		m := a.mem[s.remote+i*width:]
		if equal && width == 4 {
			binary.LittleEndian.PutUint32(m, uint32(now[i]))
		} else if equal {
			binary.LittleEndian.PutUint64(m, now[i])
		}
		switch {
		case width == 4:
			reply = binary.BigEndian.AppendUint32(reply, uint32(old[i]))
		case s.n == 8 && requester.hostOrder:
			reply = binary.LittleEndian.AppendUint64(reply, old[i])
		default:
			reply = binary.BigEndian.AppendUint64(reply, old[i])
		}
	}
	requester.scatter(s.pieces, reply)
	a.counters.SetRxAtomicRequests(a.counters.RxAtomicRequests() + 1)
}

// addBits is the definition of the masked fetch-and-add, bit by bit: the carry out
// of bit i enters bit i+1 only if the boundary has no bit i.
func addBits(v, add, boundary uint64, width int) (sum uint64) {
	carry := uint64(0)
	for i := range width {
		x, y := v>>i&1, add>>i&1
		sum |= (x ^ y ^ carry) << i
		carry = (x + y + carry) >> 1 &^ (boundary >> i)
	}
	return sum
}
