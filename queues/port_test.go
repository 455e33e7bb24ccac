package queues_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// The GID that a MAC address stands for, by the example of RFC 4291 appendix A
// (34-56-78-9A-BC-DE has the interface identifier 36-56-78-FF-FE-9A-BC-DE).
func TestAddressText(t *testing.T) {
	var m queues.MAC
	require.NoError(t, m.UnmarshalText([]byte("34:56:78:9a:bc:de")))
	require.Equal(t, queues.MAC{0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde}, m)
	require.Equal(t, "34:56:78:9a:bc:de", m.String())
	require.Error(t, m.UnmarshalText([]byte("34:56")))
	require.ErrorIs(t, m.UnmarshalText([]byte("02:00:5e:10:00:00:00:01")), vfio.ErrRange)
	var g queues.GID
	require.NoError(t, g.UnmarshalText([]byte("fe80::3656:78ff:fe9a:bcde")))
	require.Equal(t, queues.GID{0xfe, 0x80, 8: 0x36, 0x56, 0x78, 0xff, 0xfe, 0x9a, 0xbc, 0xde}, g)
	require.Equal(t, "fe80::3656:78ff:fe9a:bcde", g.String())
	require.False(t, g.IPv4())
	require.NoError(t, g.UnmarshalText([]byte("::ffff:10.1.2.3")))
	require.True(t, g.IPv4())
	require.Error(t, g.UnmarshalText([]byte("fe80:")))
	require.True(t, queues.GID{}.IsZero())
}

// What one end tells the other survives JSON.
func TestPeerInfoJSON(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		b := newBench(t, words)
		q := b.qp(b.cq(4), queues.QPOptions{})
		p, err := q.Local(t.Context())
		require.NoError(t, err)
		require.Equal(t, words == "sim:cx5", p.IB)
		require.Equal(t, 256, p.MaxAtomicSize)
		require.True(t, p.AtomicWrites)
		require.Equal(t, q.Number(), p.QPN)
		require.Equal(t, q.PSN(), p.PSN)
		text, err := json.Marshal(p)
		require.NoError(t, err)
		var back queues.PeerInfo
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, p, back, "%s", text)
	}
}

// A port's addresses are those of the device's own registers.
func TestQueryPort(t *testing.T) {
	b := newBench(t, "sim:cx5")
	a, err := b.dev.QueryPort(t.Context())
	require.NoError(t, err)
	require.False(t, a.Ethernet)
	require.True(t, a.Active)
	require.NotZero(t, a.LID)
	require.Equal(t, byte(0xfe), a.GID[0])
	require.NotEqual(t, [8]byte{}, [8]byte(a.GID[8:]), "the port GUID")

	e := newBench(t, "sim:cx5,port=eth")
	a, err = e.dev.QueryPort(t.Context())
	require.NoError(t, err)
	require.True(t, a.Ethernet)
	require.Zero(t, a.LID)
	require.NotEqual(t, queues.MAC{}, a.MAC)
	require.Equal(t, a.MAC[0]^2, a.GID[8])
	require.Positive(t, a.MTU)
}

// roceAddress reads an entry of the address table from the device, and whether
// RoCE is on.
func (b *bench) roceAddress(i uint16) (prm.RoceAddrLayout, bool) {
	in, out := make([]byte, prm.QueryRoceAddressInSize), make([]byte, prm.QueryRoceAddressOutSize)
	q := prm.AsQueryRoceAddressIn(in)
	q.SetOpcode(prm.OpQueryRoceAddress)
	q.SetRoceAddressIndex(i)
	q.SetVHCAPortNum(1)
	require.NoError(b.t, b.hca.Conn().Exec(b.t.Context(), in, out))
	l := *prm.AsQueryRoceAddressOut(out).RoceAddress()
	in, out = make([]byte, prm.QueryNicVportContextInSize), make([]byte, prm.QueryNicVportContextOutSize)
	prm.AsQueryNicVportContextIn(in).SetOpcode(prm.OpQueryNicVportContext)
	require.NoError(b.t, b.hca.Conn().Exec(b.t.Context(), in, out))
	return l, prm.AsQueryNicVportContextOut(out).NicVportContext().RoceEn()
}

func TestRoCE(t *testing.T) {
	b := newBench(t, "sim:cx5,port=eth")
	ctx := t.Context()
	require.NoError(t, b.dev.DisableRoCE(ctx), "nothing to do")
	port, err := b.dev.QueryPort(ctx)
	require.NoError(t, err)
	a, err := b.dev.EnableRoCE(ctx, queues.RoCEAddress{})
	require.NoError(t, err)
	require.Equal(t, queues.RoCEAddress{GID: port.GID, MAC: port.MAC, Version: 2}, a)
	got, ok := b.dev.RoCE()
	require.True(t, ok)
	require.Equal(t, a, got)
	l, on := b.roceAddress(0)
	require.True(t, on)
	require.Equal(t, a.GID[:], l.SourceL3Address())
	require.EqualValues(t, 2, l.RoceVersion())
	require.EqualValues(t, 1, l.RoceL3Type())
	require.Equal(t, fmt.Sprintf("%012x", a.MAC[:]), fmt.Sprintf("%04x%08x", l.SourceMAC47_32(), l.SourceMAC31_0()))
	require.False(t, l.VlanValid())
	require.NoError(t, b.dev.DisableRoCE(ctx))
	l, on = b.roceAddress(0)
	require.False(t, on)
	require.Equal(t, prm.RoceAddrLayout{}, l)
	_, ok = b.dev.RoCE()
	require.False(t, ok)

	four := queues.RoCEAddress{Index: 3, Version: 1, VLAN: 77, MAC: queues.MAC{2, 4, 6, 8, 10, 12}}
	require.NoError(t, four.GID.UnmarshalText([]byte("::ffff:192.168.1.2")))
	_, err = b.dev.EnableRoCE(ctx, four)
	require.NoError(t, err)
	l, _ = b.roceAddress(3)
	require.EqualValues(t, 0, l.RoceVersion())
	require.EqualValues(t, 0, l.RoceL3Type(), "IPv4")
	require.True(t, l.VlanValid())
	require.EqualValues(t, 77, l.VlanID())
	require.NoError(t, b.dev.DisableRoCE(ctx))

	// A failure half way takes back the first half.
	require.NoError(t, b.chip.SetFault("status", "MODIFY_NIC_VPORT_CONTEXT=INT_ERR"))
	_, err = b.dev.EnableRoCE(ctx, queues.RoCEAddress{})
	require.ErrorIs(t, err, cmdif.Status(prm.StatusInternal))
	require.NoError(t, b.chip.ClearFault(""))
	l, _ = b.roceAddress(0)
	require.Equal(t, prm.RoceAddrLayout{}, l)

	for field, a := range map[string]queues.RoCEAddress{"Index": {Index: 0xffff}, "VLAN": {VLAN: 4096}} {
		b.refused(field, vfio.ErrRange, func() error { _, err := b.dev.EnableRoCE(ctx, a); return err })
	}
	b.refused("Version", vfio.ErrNotSupported, func() error {
		_, err := b.dev.EnableRoCE(ctx, queues.RoCEAddress{Version: 3})
		return err
	})
	ib := newBench(t, "sim:cx5")
	ib.refused("", vfio.ErrNotSupported, func() error { _, err := ib.dev.EnableRoCE(ctx, queues.RoCEAddress{}); return err })
}

// Connecting fills both contexts by what the ends told each other.
func TestConnect(t *testing.T) {
	for _, words := range []string{"sim:cx5", "sim:cx5,port=eth"} {
		t.Run(words, func(t *testing.T) {
			b := newBench(t, words)
			ctx := t.Context()
			cq := b.cq(4)
			x := b.qp(cq, queues.QPOptions{PSN: 0x111111})
			y := b.qp(cq, queues.QPOptions{PSN: 0x222222, AtomicMode: prm.AtomicModeUpTo16B})
			require.NoError(t, queues.ConnectPair(ctx, x, y, queues.ConnectOptions{MTU: 512, Reads: 3, ReadsIn: 9, SL: 3}))
			px, err := x.Local(ctx)
			require.NoError(t, err)
			for _, c := range []struct {
				q, peer *queues.QP
				max     int
			}{{x, y, 16}, {y, x, 256}} {
				s, err := c.q.Query(ctx)
				require.NoError(t, err)
				require.Equal(t, prm.QPStateRts, s.State)
				require.Equal(t, c.peer.Number(), s.RemoteQPN)
				require.Equal(t, c.peer.PSN(), s.RecvPSN)
				require.Equal(t, c.q.PSN(), s.SendPSN)
				require.Equal(t, 512, s.MTU)
				require.EqualValues(t, []uint8{1, 3, 7, 7, 14, 12}, []uint8{s.LogReads, s.LogReadsIn, s.Retries, s.RNRRetries, s.AckTimeout, s.MinRNR})
				require.EqualValues(t, 3, s.Path.SL)
				require.Equal(t, c.max, c.q.SQ.PeerAtomic(), "the responder's mode counts")
				require.Equal(t, c.peer.Number(), c.q.Link().Peer.QPN)
				if words == "sim:cx5" {
					require.Equal(t, px.LID, s.Path.LID)
					require.False(t, s.Path.GRH)
				} else {
					require.Equal(t, px.GID, s.Path.GID)
					require.Equal(t, px.MAC, s.Path.MAC)
					require.EqualValues(t, 64, s.Path.HopLimit)
					require.GreaterOrEqual(t, s.Path.UDPSport, uint16(0xc000))
				}
			}
			// A second connection needs a reset first.
			var se *queues.StateError
			require.ErrorAs(t, x.ConnectLoopback(ctx, queues.ConnectOptions{}), &se)
			require.Equal(t, prm.QPStateRts, se.State)
			require.NoError(t, x.Reset(ctx))
			require.Zero(t, x.SQ.PeerAtomic())
			require.NoError(t, x.ConnectLoopback(ctx, queues.ConnectOptions{Retries: -1, RNRRetries: -1, AckTimeout: -1}))
			s, err := x.Query(ctx)
			require.NoError(t, err)
			require.EqualValues(t, []uint8{0, 0, 0}, []uint8{s.Retries, s.RNRRetries, s.AckTimeout})
			require.Equal(t, 1024, s.MTU)
		})
	}
}

// A port without a LID has no way to itself: loopback is forced where the
// capabilities allow, and tried without where they do not; what was done is told.
func TestForcedLoopback(t *testing.T) {
	b, l := lyingBench(t)
	ctx := t.Context()
	cq := b.cq(4)
	// The LID is at byte 0x60 of the context, which begins at byte 0x10.
	l.lies = map[prm.Opcode]func([]byte){prm.OpQueryHCAVportContext: func(m []byte) { m[0x60], m[0x61] = 0, 0 }}

	b.dev.Caps.LoopbackRoCEOff = true
	q := b.qp(cq, queues.QPOptions{})
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	s, err := q.Query(ctx)
	require.NoError(t, err)
	require.True(t, s.Path.ForceLoopback)
	require.True(t, q.Link().ForceLoopback)
	require.Contains(t, q.Link().Note, "LID 0")

	b.dev.Caps.LoopbackRoCEOff = false
	q = b.qp(cq, queues.QPOptions{})
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.False(t, q.Link().ForceLoopback)
	require.Contains(t, q.Link().Note, "does not offer")

	// A device that refuses it is tried without, and its answer told.
	b.dev.Caps.LoopbackRoCEOff = true
	q = b.qp(cq, queues.QPOptions{})
	require.NoError(t, b.chip.SetFault("status", "INIT2RTR_QP#1=BAD_PARAM_ERR/0xabc"))
	require.NoError(t, q.ConnectLoopback(ctx, queues.ConnectOptions{}))
	require.False(t, q.Link().ForceLoopback)
	require.Contains(t, q.Link().Note, "syndrome 0xabc")
	require.NoError(t, b.chip.ClearFault(""))
}
