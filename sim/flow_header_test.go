package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// ipv6Header and ipv4Header are route headers as the standards have them (RFC 8200,
// RFC 791 without checksum; IBTA 8.3), put together here by hand.
func ipv6Header(tclass uint8, flow uint32, length int, next, hops uint8, src, dst gid) []byte {
	h := binary.BigEndian.AppendUint32(nil, 6<<28|uint32(tclass)<<20|flow)
	h = binary.BigEndian.AppendUint16(h, uint16(length))
	h = append(h, next, hops)
	h = append(h, src[:]...)
	return append(h, dst[:]...)
}

func ipv4Header(tos uint8, length int, ttl uint8, src, dst gid) []byte {
	h := append(make([]byte, 20), 0x45, tos)
	h = binary.BigEndian.AppendUint16(h, uint16(length))
	h = append(h, 0, 0, 0, 0, ttl, 17, 0, 0)
	h = append(h, src[12:]...)
	return append(h, dst[12:]...)
}

// TestRouteHeaders: the header of a datagram between two addresses, byte for byte:
// which is the sender's and which the receiver's, of which entry of the sender's table,
// and every field of the address vector.
func TestRouteHeaders(t *testing.T) {
	const tclass, hops, flow, n = 0x5a, 33, 0x6789a, 6
	const behind = 12 + 8 + 8 + 4 // BTH, DETH, data padded to 8, ICRC
	v6 := func(last byte) gid { return gid{0: 0xfe, 1: 0x80, 15: last} }
	v4 := func(last byte) gid { return gid{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 2, 15: last} }
	for _, c := range []struct {
		name     string
		version  uint8
		l3       uint8
		kind     uint8 // what the completion says
		from, to gid
		want     []byte
	}{
		{"RoCE v1", 0, 0, roceGRH, v6(7), v6(8), ipv6Header(tclass, flow, behind, 0x1b, hops, v6(7), v6(8))},
		{"RoCE v2, IPv6", 2, 1, roceIPv6, v6(7), v6(8), ipv6Header(tclass, flow, 8+behind, 17, hops, v6(7), v6(8))},
		{"RoCE v2, IPv4", 2, 0, roceIPv4, v4(7), v4(8), ipv4Header(tclass, 20+8+behind, hops, v4(7), v4(8))},
	} {
		r := newFlow(t, Options{Port: PortEth})
		// Entry 0 receives, entry 3 sends.
		address := func(index uint16, g gid, mac uint64, version, l3 uint8) {
			in := cmd(prm.OpSetRoceAddress, 0, prm.SetRoceAddressInSize)
			x := prm.AsSetRoceAddressIn(in)
			x.SetRoceAddressIndex(index)
			l := x.RoceAddress()
			copy(l.SourceL3Address(), g[:])
			l.SetSourceMAC47_32(uint16(mac >> 32))
			l.SetSourceMAC31_0(uint32(mac))
			l.SetRoceVersion(version)
			l.SetRoceL3Type(l3)
			r.ok(in, 16)
		}
		address(0, c.to, 0x0200_0000_1111, 2, 1)
		address(3, c.from, 0x0200_0000_2233, c.version, c.l3)
		a, b := r.udPair()
		m := r.region(4096, nil)
		var v prm.Av
		v.Base().SetQkey(0x1111)
		v.Base().SetDqpDCT(b.n)
		v.Base().SetExt(true)
		v.SetGrh(true)
		v.SetSgidIndex(3)
		v.SetTclass(tclass)
		v.SetHopLimit(hops)
		v.SetFlowLabel(flow)
		copy(v.Rgid(), c.to[:])
		copy(v.Rmac(), []byte{2, 0, 0, 0, 0x11, 0x11})
		b.postRecv(m.ptr(0, 100))
		a.post(wqe{op: prm.WQESend, segs: [][]byte{v[:], inlineSeg([]byte("sixsix"))}})
		a.send.good(prm.CQEReq)
		e := b.recv.good(prm.CQERespSend)
		require.EqualValues(t, 40+n, e.ByteCnt())
		require.NotZero(t, e.Grh())
		require.Equal(t, c.kind, e.Sl(), c.name)
		require.EqualValues(t, 0x2233, e.Slid(), "the sender's MAC")
		require.Equal(t, c.want, m.bytes()[:40], c.name)
		require.Equal(t, "sixsix", string(m.bytes()[40:46]))
	}

	// InfiniBand, between two ports.
	x, y := twoHosts(t, Options{Clock: NewManualClock()})
	a, b := x.newEnd(prm.QPTypeUD, nil), y.newEnd(prm.QPTypeUD, nil)
	connect(a, b)
	m := y.region(4096, nil)
	src, dst := x.chip.funcs[0].gidAt(0), y.chip.funcs[0].gidAt(0)
	require.NotEqual(t, src, dst)
	b.postRecv(m.ptr(0, 100))
	a.post(wqe{op: prm.WQESend, segs: [][]byte{a.av(b, 0x1111, true), inlineSeg([]byte("sixsix"))}})
	a.send.good(prm.CQEReq)
	e := b.recv.good(prm.CQERespSend)
	require.Equal(t, x.lid(), e.Slid())
	require.Equal(t, ipv6Header(0x42, 0x12345, behind, 0x1b, 64, src, dst), m.bytes()[:40])
}
