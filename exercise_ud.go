package mlxvfio

import (
	"bytes"
	"context"
	"fmt"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
)

const (
	// datagramHead is what a datagram's receive buffer begins with: room for a
	// global route header (IBTA 11.4.1.1).
	datagramHead = 40
	// datagramMost is the largest datagram here: one packet at the smallest MTU
	// that every port has.
	datagramMost = 1024
	exerciseQKey = 0x0badcafe
)

// datagramForms are the ways to send one.
var datagramForms = []string{"UD SEND", "UD SEND with immediate", "UD SEND of two pieces", "inline UD SEND", "inline UD SEND with immediate"}

// datagramPath is where datagrams go, and what the receiver must learn of them.
type datagramPath struct {
	name     string
	to       *queues.Address
	grh      bool
	from, at queues.PeerInfo
}

// Datagrams sends datagrams between two UD queue pairs, in many sizes and forms,
// with a global route header and, on InfiniBand, without: the header must name
// sender and receiver. One with a wrong Q_Key must be lost.
func (x *Exerciser) Datagrams(ctx context.Context) (string, error) {
	if note := x.lacks(opcodeKey{queues.UD, prm.WQESend}); note != "" {
		return note, nil
	}
	paths, err := x.datagramPaths(ctx)
	if err != nil {
		return "", err
	}
	var t tally
	for _, p := range paths {
		if err := x.wrongKey(ctx, &p); err != nil {
			return "", fmt.Errorf("%s: a datagram with a wrong Q_Key: %w", p.name, err)
		}
		for _, form := range datagramForms {
			sizes := exerciseSizes
			if form == "inline UD SEND" || form == "inline UD SEND with immediate" {
				sizes = inlineSizes
			}
			for _, n := range sizes {
				if n > datagramMost {
					continue
				}
				if err := x.datagram(ctx, &p, form, n); err != nil {
					return "", err
				}
				t.add(n)
			}
		}
	}
	how := "route headers right"
	if len(paths) > 1 {
		how = "with route headers, which are right, and without"
	}
	return how + "; " + t.String(), nil
}

// datagramPaths makes the queue pairs, and the addresses to send to.
func (x *Exerciser) datagramPaths(ctx context.Context) (out []datagramPath, err error) {
	if x.datagrams, err = x.from.QP(ctx, queues.QPOptions{Name: "datagrams", Type: queues.UD}); err != nil {
		return nil, err
	}
	if x.receiver, err = x.to.QP(ctx, queues.QPOptions{Name: "receiver", Type: queues.UD}); err != nil {
		return nil, err
	}
	for _, q := range []*queues.QP{x.datagrams, x.receiver} {
		if err := q.Activate(ctx, exerciseQKey); err != nil {
			return nil, err
		}
	}
	from, err := x.datagrams.Local(ctx)
	if err != nil {
		return nil, err
	}
	at, err := x.receiver.Local(ctx)
	if err != nil {
		return nil, err
	}
	for _, grh := range []bool{false, true} {
		o, err := x.datagrams.AddressTo(ctx, at, exerciseQKey)
		if err != nil {
			return nil, err
		}
		if o.Ethernet && !grh {
			continue // there is no such thing
		}
		o.GRH = grh
		a, err := queues.NewAddress(o)
		if err != nil {
			return nil, err
		}
		name := "without route header"
		if grh {
			name = "with route header"
		}
		out = append(out, datagramPath{name: name, to: a, grh: grh, from: from, at: at})
	}
	return out, nil
}

// wrongKey sends a datagram that must be lost; the next one takes the WQE that
// waits.
func (x *Exerciser) wrongKey(ctx context.Context, p *datagramPath) error {
	o, err := x.datagrams.AddressTo(ctx, p.at, exerciseQKey+1)
	if err != nil {
		return err
	}
	o.GRH = p.grh
	a, err := queues.NewAddress(o)
	if err != nil {
		return err
	}
	const n = 16
	if err := x.takeOn(x.receiver, 0, datagramHead+n); err != nil {
		return err
	}
	_, err = x.doOn(ctx, x.datagrams, false, func(wrid uint64) error {
		return x.datagrams.SQ.SendTo(wrid, queues.Signalled, a, []queues.SGE{x.near.SGE(0, n)})
	})
	if err != nil {
		return err
	}
	waiting := x.wrid | recvMark
	_, err = x.doOn(ctx, x.datagrams, false, func(wrid uint64) error {
		return x.datagrams.SQ.SendTo(wrid, queues.Signalled, p.to, []queues.SGE{x.near.SGE(n, n)})
	})
	if err != nil {
		return err
	}
	if _, err := x.await(ctx, waiting); err != nil {
		return err
	}
	x.far.Load(0, x.wantFar[:datagramHead]) // judged by those that follow
	copy(x.wantFar[datagramHead:], x.wantNear[n:2*n])
	return x.compare("UD SEND behind one whose Q_Key was wrong")
}

func (x *Exerciser) datagram(ctx context.Context, p *datagramPath, form string, n int) error {
	src, dst := x.place(n), x.place(datagramHead+n+64) // room that must stay as it is
	op := fmt.Sprintf("%s of %d bytes to offset %d, %s", form, n, dst, p.name)
	imm, sq := x.rng.Uint32(), x.datagrams.SQ
	data := append([]byte(nil), x.wantNear[src:src+n]...)
	if err := x.takeOn(x.receiver, dst, datagramHead+n+64); err != nil {
		return err
	}
	withImm := form == "UD SEND with immediate" || form == "inline UD SEND with immediate"
	c, err := x.doOn(ctx, x.datagrams, true, func(wrid uint64) error {
		switch form {
		case "UD SEND with immediate":
			return sq.SendImmTo(wrid, queues.Signalled, imm, p.to, []queues.SGE{x.near.SGE(src, n)})
		case "UD SEND of two pieces":
			k := n / 3
			return sq.SendTo(wrid, queues.Signalled, p.to, []queues.SGE{x.near.SGE(src, k), x.near.SGE(src+k, n-k)})
		case "inline UD SEND":
			return sq.SendInlineTo(wrid, queues.Signalled, p.to, data)
		case "inline UD SEND with immediate":
			return sq.SendImmInlineTo(wrid, queues.Signalled, imm, p.to, data)
		}
		return sq.SendTo(wrid, queues.Signalled, p.to, []queues.SGE{x.near.SGE(src, n)})
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", op, err)
	case int(c.ByteLen) != datagramHead+n:
		return fmt.Errorf("%s: its receive completion says %d bytes; %d of route header and %d were sent", op, c.ByteLen, datagramHead, n)
	case c.HasImm() != withImm || withImm && c.Imm != imm:
		return fmt.Errorf("%s: immediate data %#x was sent (%t), the receive completion has %t %#x", op, imm, withImm, c.HasImm(), c.Imm)
	}
	around := make([]byte, 8+datagramHead)
	x.far.Load(dst&^7, around) // whole words
	head := around[dst&7:][:datagramHead]
	if err := p.judge(&c, head); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	copy(x.wantFar[dst:], head)
	copy(x.wantFar[dst+datagramHead:], data)
	return x.compare(op)
}

// judge compares what the receiver is told of the sender with the truth. Without a
// route header the first 40 bytes mean nothing.
func (p *datagramPath) judge(c *queues.Completion, head []byte) error {
	switch {
	case c.RemoteQPN != p.from.QPN:
		return fmt.Errorf("it came from QP %#x, the receive completion says %#x", p.from.QPN, c.RemoteQPN)
	case p.from.IB && c.RemoteLID != p.from.LID:
		return fmt.Errorf("it came from LID %#x, the receive completion says %#x", p.from.LID, c.RemoteLID)
	case p.grh != (c.Bits&queues.HasGRH != 0):
		return fmt.Errorf("it was sent %s, the receive completion says %t", p.name, !p.grh)
	case !p.grh:
		return nil
	}
	return routeHeader(head, p.from, p.at)
}

// Bytes of an IPv6 header, which a global route header is (IBTA 8.3), and of an
// IPv4 one, which lies in the last 20 of the 40 bytes (RoCE version 2).
const (
	ipv6Next, ipv6From, ipv6To       = 6, 8, 24
	ipv4Head, ipv4Next               = 20, 9
	ipv4From, ipv4To                 = 12, 16
	nextTransport, nextUDP     uint8 = 0x1b, 17
)

// routeHeader judges the header of a datagram.
func routeHeader(h []byte, from, to queues.PeerInfo) error {
	version, next, src, dst := h[0]>>4, h[ipv6Next], h[ipv6From:ipv6From+16], h[ipv6To:ipv6To+16]
	wantVersion, wantSrc, wantDst := uint8(6), from.GID[:], to.GID[:]
	if from.GID.IPv4() {
		v4 := h[ipv4Head:]
		version, next, src, dst = v4[0]>>4, v4[ipv4Next], v4[ipv4From:ipv4From+4], v4[ipv4To:ipv4To+4]
		wantVersion, wantSrc, wantDst = 4, from.GID[12:], to.GID[12:]
	}
	switch {
	case version != wantVersion:
		return fmt.Errorf("the route header has IP version %d, want %d: % x", version, wantVersion, h)
	case next != nextUDP && (next != nextTransport || wantVersion == 4):
		return fmt.Errorf("the route header announces protocol %#x, want %#x (InfiniBand) or %d (UDP): % x", next, nextTransport, nextUDP, h)
	case !bytes.Equal(src, wantSrc):
		return fmt.Errorf("the route header's source is % x, the sender has % x", src, wantSrc)
	case !bytes.Equal(dst, wantDst):
		return fmt.Errorf("the route header's destination is % x, the receiver has % x", dst, wantDst)
	}
	return nil
}
