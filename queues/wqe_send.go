package queues

import "github.com/mlxvfio/mlxvfio/internal/prm"

// Send posts a SEND of one piece of memory (opcode 0x0a).
func (q *SendQueue) Send(wrid uint64, f Flags, l SGE) error {
	return q.sendOne(prm.WQESend, c0Send, wrid, f, 0, l)
}

// SendImm is Send with immediate data (opcode 0x0b).
func (q *SendQueue) SendImm(wrid uint64, f Flags, imm uint32, l SGE) error {
	return q.sendOne(prm.WQESendImm, c0SendImm, wrid, f, imm, l)
}

// SendInvalidate is Send, and has the peer invalidate its memory key rkey
// (opcode 0x01).
func (q *SendQueue) SendInvalidate(wrid uint64, f Flags, rkey uint32, l SGE) error {
	return q.sendOne(prm.WQESendInval, c0SendInval, wrid, f, rkey, l)
}

func (q *SendQueue) sendOne(op prm.WQEOpcode, c0 uint64, wrid uint64, f Flags, imm uint32, l SGE) error {
	if l.Len-1 >= maxLen { // empty, or too long
		return q.send(op, wrid, f, imm, nil, l, nil)
	}
	pi := q.pi
	if !q.room(1) {
		return q.full()
	}
	w, s := q.place(pi)
	c0 |= q.ctrl0(pi) | 2
	putCtrl(w, c0, f, imm)
	putSGE(w, 2, l)
	q.commit(s, pi, 1, c0, wrid)
	return nil
}

// SendV is Send of several pieces, gathered in order.
func (q *SendQueue) SendV(wrid uint64, f Flags, l []SGE) error {
	return q.send(prm.WQESend, wrid, f, 0, nil, SGE{}, l)
}

// SendImmV is SendImm of several pieces.
func (q *SendQueue) SendImmV(wrid uint64, f Flags, imm uint32, l []SGE) error {
	return q.send(prm.WQESendImm, wrid, f, imm, nil, SGE{}, l)
}

// SendInvalidateV is SendInvalidate of several pieces.
func (q *SendQueue) SendInvalidateV(wrid uint64, f Flags, rkey uint32, l []SGE) error {
	return q.send(prm.WQESendInval, wrid, f, rkey, nil, SGE{}, l)
}

// SendInline is a SEND whose data travel inside the WQE: p is copied.
func (q *SendQueue) SendInline(wrid uint64, f Flags, p []byte) error {
	return q.sendInline(prm.WQESend, wrid, f, 0, nil, p)
}

// SendImmInline is SendInline with immediate data.
func (q *SendQueue) SendImmInline(wrid uint64, f Flags, imm uint32, p []byte) error {
	return q.sendInline(prm.WQESendImm, wrid, f, imm, nil, p)
}

// SendTo posts a SEND of a datagram queue to one address.
func (q *SendQueue) SendTo(wrid uint64, f Flags, to *Address, l []SGE) error {
	return q.send(prm.WQESend, wrid, f, 0, to, SGE{}, l)
}

// SendImmTo is SendTo with immediate data.
func (q *SendQueue) SendImmTo(wrid uint64, f Flags, imm uint32, to *Address, l []SGE) error {
	return q.send(prm.WQESendImm, wrid, f, imm, to, SGE{}, l)
}

// SendInlineTo is SendTo whose data travel inside the WQE.
func (q *SendQueue) SendInlineTo(wrid uint64, f Flags, to *Address, p []byte) error {
	return q.sendInline(prm.WQESend, wrid, f, 0, to, p)
}

// SendImmInlineTo is SendInlineTo with immediate data.
func (q *SendQueue) SendImmInlineTo(wrid uint64, f Flags, imm uint32, to *Address, p []byte) error {
	return q.sendInline(prm.WQESendImm, wrid, f, imm, to, p)
}

// send is the general form: any number of pieces, and a datagram segment if the
// message has an address of its own.
func (q *SendQueue) send(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, to *Address, first SGE, more []SGE) error {
	n, err := q.countSGEs(op, first, more)
	if err != nil {
		return err
	}
	at := 1
	if to != nil {
		at += datagramUnits
	}
	b, err := q.begin(op, at+n)
	if err != nil {
		return err
	}
	b.address(to)
	b.sges(at, first, more)
	b.finish(0, f, imm, wrid)
	return nil
}

func (q *SendQueue) sendInline(op prm.WQEOpcode, wrid uint64, f Flags, imm uint32, to *Address, p []byte) error {
	at := 1
	if to != nil {
		at += datagramUnits
	}
	b, err := q.begin(op, at+inlineUnits(len(p)))
	if err != nil {
		return err
	}
	b.address(to)
	b.inline(at, p)
	b.finish(0, f, imm, wrid)
	return nil
}
