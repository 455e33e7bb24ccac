package sim

import (
	"encoding/binary"
	"fmt"
)

// What requester and responder tell each other: packets of at most one path MTU,
// with the fields of InfiniBand's headers (BTH, RETH, AtomicETH, AETH, DETH,
// GRH) that the model uses. Inside a chip the structure itself goes from one
// side to the other; between chips it goes encoded, so that a wire can be put
// between them.

// maxPayload is the largest path MTU.
const maxPayload = 4096

// packetKind says what a packet is.
type packetKind uint8

const (
	pktNone packetKind = iota
	pktSend
	pktWrite
	pktRead
	pktAtomic
	pktDatagram // UD
	pktAck      // ACK or NAK, see aeth
	pktReadResponse
	pktAtomicResponse
	pktStop // never leaves a function: the receiver goes to error, its answers are out
	pktKinds
)

// request tells whether the responder side of a QP takes the packet.
func (k packetKind) request() bool { return k >= pktSend && k <= pktDatagram }

// Flags of a packet.
const (
	flagFirst = 1 << iota // of a message
	flagLast
	flagImm
	flagInval
	flagSolicited
	flagAckReq
	flagGRH
)

// aeth is what an acknowledgement says (IBTA AETH syndrome).
type aeth uint8

const (
	aethAck    aeth = 0x1f // credits not counted
	aethRNR    aeth = 0x20 // and the timer code
	aethSeq    aeth = 0x60
	aethInval  aeth = 0x61
	aethAccess aeth = 0x62
	aethOp     aeth = 0x63
)

func (a aeth) rnr() bool { return a&0xe0 == aethRNR }

// Operations of an atomic request.
const (
	atomCS = 1 << iota // compare and swap, else fetch and add
	atomMasked
)

// gid is an InfiniBand or RoCE address.
type gid [16]byte

// packet is one packet. A sender takes it from the fabric's pool; who consumes
// it puts it back.
type packet struct {
	kind  packetKind
	flags uint8
	aeth  aeth
	atom  uint8  // of an atomic request
	size  uint16 // of an atomic operand in bytes

	dqpn, sqpn uint32
	psn, msn   uint32
	vaddr      uint64 // RETH and AtomicETH
	rkey       uint32
	length     uint32 // RETH: of the whole message
	imm        uint32 // immediate, or key to invalidate
	qkey       uint32
	xsrq       uint32 // XRC: the receive queue

	dlid, slid uint16
	sl, path   uint8
	l3         uint8  // RoCE packet type: 0 GRH, 1 IPv6, 2 IPv4
	dmac, smac uint64 // RoCE
	sgid, dgid gid    // with flagGRH
	tclass     uint8
	hops       uint8
	flow       uint32 // flow label

	n    int // bytes of data
	data [maxPayload]byte

	to   *function // receiver, when it is of this chip
	next *packet   // in the pool
}

func (p *packet) has(f uint8) bool { return p.flags&f != 0 }

// payload is the data.
func (p *packet) payload() []byte { return p.data[:p.n] }

// Frames on a wire: a length of four bytes, and so many bytes of packet.
const (
	wireVersion = 1
	wireHeader  = 0x70
	maxFrame    = wireHeader + maxPayload
)

// encode appends the packet, as it goes over a wire, to b.
func (p *packet) encode(b []byte) []byte {
	var h [wireHeader]byte
	be := binary.BigEndian
	h[0x00], h[0x01], h[0x02], h[0x03] = wireVersion, byte(p.kind), p.flags, byte(p.aeth)
	h[0x04], h[0x05], h[0x06], h[0x07] = p.atom, p.sl, p.path, p.l3
	be.PutUint16(h[0x08:], p.size)
	h[0x0a], h[0x0b] = p.tclass, p.hops
	be.PutUint32(h[0x0c:], p.dqpn)
	be.PutUint32(h[0x10:], p.sqpn)
	be.PutUint32(h[0x14:], p.psn)
	be.PutUint32(h[0x18:], p.msn)
	be.PutUint32(h[0x1c:], p.rkey)
	be.PutUint64(h[0x20:], p.vaddr)
	be.PutUint32(h[0x28:], p.length)
	be.PutUint32(h[0x2c:], p.imm)
	be.PutUint32(h[0x30:], p.qkey)
	be.PutUint32(h[0x34:], p.xsrq)
	be.PutUint16(h[0x38:], p.dlid)
	be.PutUint16(h[0x3a:], p.slid)
	be.PutUint32(h[0x3c:], p.flow)
	be.PutUint64(h[0x40:], p.dmac)
	be.PutUint64(h[0x48:], p.smac)
	copy(h[0x50:], p.sgid[:])
	copy(h[0x60:], p.dgid[:])
	return append(append(b, h[:]...), p.data[:p.n]...)
}

// decode fills the packet from what encode made. It refuses what no sender of
// this version makes; a packet it accepts can be handled without further checks
// of its form.
func (p *packet) decode(b []byte) error {
	switch {
	case len(b) < wireHeader || len(b) > maxFrame:
		return fmt.Errorf("a packet of %d bytes: there are %d to %d", len(b), wireHeader, maxFrame)
	case b[0] != wireVersion:
		return fmt.Errorf("a packet of version %d: this is version %d", b[0], wireVersion)
	case b[1] == byte(pktNone) || b[1] >= byte(pktStop):
		return fmt.Errorf("a packet of unknown kind %d", b[1])
	}
	be := binary.BigEndian
	p.kind, p.flags, p.aeth = packetKind(b[1]), b[2], aeth(b[3])
	p.atom, p.sl, p.path, p.l3 = b[4], b[5], b[6], b[7]
	p.size = be.Uint16(b[0x08:])
	p.tclass, p.hops = b[0x0a], b[0x0b]
	p.dqpn = be.Uint32(b[0x0c:]) & counter24
	p.sqpn = be.Uint32(b[0x10:]) & counter24
	p.psn = be.Uint32(b[0x14:]) & counter24
	p.msn = be.Uint32(b[0x18:]) & counter24
	p.rkey = be.Uint32(b[0x1c:])
	p.vaddr = be.Uint64(b[0x20:])
	p.length = be.Uint32(b[0x28:])
	p.imm = be.Uint32(b[0x2c:])
	p.qkey = be.Uint32(b[0x30:])
	p.xsrq = be.Uint32(b[0x34:]) & counter24
	p.dlid = be.Uint16(b[0x38:])
	p.slid = be.Uint16(b[0x3a:])
	p.flow = be.Uint32(b[0x3c:])
	p.dmac = be.Uint64(b[0x40:])
	p.smac = be.Uint64(b[0x48:])
	p.sgid, p.dgid = gid(b[0x50:0x60]), gid(b[0x60:0x70])
	p.n = copy(p.data[:], b[wireHeader:])
	return p.checkForm()
}

// checkForm refuses lengths that do not fit the kind.
func (p *packet) checkForm() error {
	bad := false
	switch p.kind {
	case pktRead, pktAck:
		bad = p.n != 0
	case pktAtomic:
		s := int(p.size)
		bad = s < 4 || s > maxAtomic || s&(s-1) != 0 || p.n != atomicArgs(p.atom, s)
	case pktAtomicResponse:
		bad = p.n < 4 || p.n > maxAtomic
	}
	if bad {
		return fmt.Errorf("a packet of kind %d with %d bytes of data", p.kind, p.n)
	}
	return nil
}

// psnDiff is a − b in the serial arithmetic of 24 bits.
func psnDiff(a, b uint32) int32 { return int32((a-b)<<8) >> 8 }
