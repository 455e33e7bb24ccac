package sim

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Links between two chips: in one process, or over a socket (link_socket.go).
// Packets go over either of them encoded.

// uplink is the way to another chip.
type uplink interface {
	// send takes the packet's content; the packet stays the caller's. The chip's
	// lock is held.
	send(p *packet)
	// full asks the sender to wait: what makes room starts its work again. The
	// chip's lock is held.
	full() bool
	// flush carries what was sent, if that is the caller's to do. No lock is held.
	flush()
}

// linkRoom is how many bytes may be on their way before a sender waits.
const linkRoom = 1 << 20

// LinkError is a link that could not be made.
type LinkError struct {
	What   string // "link two chips" or the socket's path
	Why    string
	Err    error // what the system answered; may be nil
	Remedy string
	// Final: the other end was reached and will not fit, however often it is tried.
	Final bool
}

func (e *LinkError) Error() string {
	s := fmt.Sprintf("simulated device: %s: %s", e.What, e.Why)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + "; " + e.Remedy
}

func (e *LinkError) Unwrap() error { return e.Err }

// unlock gives the chip's lock back and then carries what the chip has sent to
// another one: two locks are never held at once.
func (c *Chip) unlock() {
	l := c.fabric.link
	c.mu.Unlock()
	if l != nil {
		l.flush()
	}
}

// attach makes a chip one end of a link. Its functions get addresses of that end,
// so nobody may have read them yet.
func (c *Chip) attach(l uplink, node uint8, what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(why, remedy string) error { return &LinkError{What: what, Why: why, Remedy: remedy} }
	switch {
	case c.closed:
		return bad("the chip is closed", "make another")
	case c.fabric.link != nil:
		return bad("the chip has a link already", "a chip has one wire")
	}
	for _, f := range c.funcs {
		if f.opener != nil && node != c.fabric.node {
			return bad(fmt.Sprintf("function %d is open and its addresses would change", f.index), "link chips before they are opened")
		}
	}
	if node != c.fabric.node {
		c.fabric.node = node
		for _, f := range c.funcs {
			f.powerOn()
		}
	}
	c.fabric.link = l
	return nil
}

// detach takes a link away: what is sent to the other chip is lost from then on.
func (c *Chip) detach(l uplink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fabric.link == l {
		c.fabric.link = nil
	}
}

// take is a frame that came over the link; the chip's lock is held.
func (b *fabric) take(frame []byte) error {
	p := b.packet(pktNone)
	if err := p.decode(frame); err != nil {
		b.drop(p)
		return err
	}
	if b.chip.closed {
		b.drop(p)
		return nil
	}
	b.arrive(p)
	return nil
}

// Link puts a wire between two chips of one process, before they are opened: two
// hosts. b's functions get the addresses of the second end. Closing a chip leaves
// the other one with a wire that leads nowhere. A link that cannot be made is a
// *LinkError.
func Link(a, b *Chip) error {
	const what = "link two chips"
	switch {
	case a == b:
		return &LinkError{What: what, Why: "both are the same", Remedy: "functions of one chip reach one another without a link"}
	case a.port != b.port:
		return &LinkError{What: what, Why: fmt.Sprintf("one has an %s port, the other an %s port", a.port, b.port), Remedy: "give both the same port="}
	}
	w := &pairWire{}
	ends := [2]*pairEnd{{wire: w, side: 0}, {wire: w, side: 1}}
	w.chips = [2]*Chip{a, b}
	if err := a.attach(ends[0], 0, what); err != nil {
		return err
	}
	if err := b.attach(ends[1], 1, what); err != nil {
		a.detach(ends[0])
		return err
	}
	return nil
}

// pairWire is a link in one process. Nobody waits on it: whoever gave a chip's
// lock back carries what is there to its end.
type pairWire struct {
	chips [2]*Chip
	mu    sync.Mutex // after a chip's lock
	out   [2][]byte  // frames that side sent
	spare [2][]byte
	held  [2]bool // side waits for room
}

type pairEnd struct {
	wire *pairWire
	side int
}

func (e *pairEnd) send(p *packet) {
	w := e.wire
	w.mu.Lock()
	w.out[e.side] = appendFrame(w.out[e.side], p)
	w.mu.Unlock()
}

func (e *pairEnd) full() bool {
	w := e.wire
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[e.side] = len(w.out[e.side]) > linkRoom
	return w.held[e.side]
}

func (e *pairEnd) flush() {
	for e.wire.carry(0) || e.wire.carry(1) {
	}
}

// carry brings what a side has sent to the other one; false when there is
// nothing. Frames keep their order: they are taken under the receiver's lock.
func (w *pairWire) carry(side int) bool {
	w.mu.Lock()
	n := len(w.out[side])
	w.mu.Unlock()
	if n == 0 {
		return false
	}
	to, from := w.chips[1-side], w.chips[side]
	to.mu.Lock()
	w.mu.Lock()
	frames, held := w.out[side], w.held[side]
	w.out[side], w.spare[side], w.held[side] = w.spare[side][:0], nil, false
	w.mu.Unlock()
	for rest := frames; len(rest) > 0; {
		n := 4 + int(binary.BigEndian.Uint32(rest))
		if err := to.fabric.take(rest[4:n]); err != nil {
			to.log.Warn("a frame of the link is dropped", "error", err)
		}
		rest = rest[n:]
	}
	to.fabric.kick()
	w.mu.Lock()
	w.spare[side] = frames[:0]
	w.mu.Unlock()
	to.mu.Unlock()
	if held {
		from.mu.Lock()
		from.fabric.kick()
		from.mu.Unlock()
	}
	return true
}

// appendFrame appends a packet as it goes over a stream: its length, and it.
func appendFrame(b []byte, p *packet) []byte {
	at := len(b)
	b = p.encode(append(b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}
