package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// reg accesses a register: read unless set is given.
func (r *raw) reg(id prm.RegisterID, index func(img []byte), write bool) ([]byte, synd) {
	r.t.Helper()
	size := prm.RegisterStruct(id).Size
	mod := uint16(regRead)
	if write {
		mod = regWrite
	}
	in := cmd(prm.OpAccessReg, mod, 16+size)
	prm.AsAccessRegisterIn(in).SetRegisterID(id)
	if index != nil {
		index(in[16:])
	}
	d, out := r.send(in, 16+size)
	require.Equal(r.t, prm.DeliveryOK, d)
	return out[16:], synd(binary.BigEndian.Uint32(out[4:]))
}

func port1(img []byte) { img[1] = 1 }

// TestRegisters: the ones drivers read at bring-up, and the masks that announce them.
func TestRegisters(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseISSI)
	_, y := r.reg(prm.RegHostEndianness, func(img []byte) { img[0] = 0x80 }, true)
	require.Equal(t, syndOK, y)
	b, _ := r.reg(prm.RegHostEndianness, nil, false)
	require.True(t, prm.AsRegisterHostEndianness(b).He())

	b, y = r.reg(prm.RegDtor, nil, false)
	require.Equal(t, syndOK, y)
	require.EqualValues(t, 120, prm.AsDtorReg(b).ReclaimVfsPagesTO().ToValue())
	require.Equal(t, prm.TimeoutSeconds, prm.AsDtorReg(b).ReclaimVfsPagesTO().ToMultiplier())
	_, y = r.reg(prm.RegDtor, nil, true)
	require.Equal(t, syndRegisterReadOnly, y)

	b, y = r.reg(prm.RegMcam, nil, false)
	require.Equal(t, syndOK, y)
	mask := (*prm.McamAccessReg)(prm.AsMcamReg(b).MngAccessRegCapMask()[:])
	require.True(t, mask.Mrtc())
	require.True(t, mask.Mfrl())
	require.True(t, mask.Mtmp())
	require.EqualValues(t, 0xf, mask.TracerRegisters())
	_, y = r.reg(prm.RegMcam, func(img []byte) { img[3] = 4 }, false)
	require.Equal(t, syndRegisterIndex, y)
	b, _ = r.reg(prm.RegPcam, nil, false)
	require.EqualValues(t, 1<<1|1<<2|1<<3|1<<4|1<<6, (*prm.PcamRegs5000To507f)(prm.AsPcamReg(b).PortAccessRegCapMask()[:])[15],
		"PCAP, PMLP, PMTU, PTYS, PAOS")

	b, _ = r.reg(prm.RegMgir, nil, false)
	require.EqualValues(t, 0x1017, prm.AsMgirReg(b).HwInfo().DeviceID())
	require.Equal(t, "MT_0000000008", string(prm.AsMgirReg(b).FWInfo().Psid()[:13]))
	require.EqualValues(t, 4030, prm.AsMgirReg(b).FWInfo().ExtendedSubMinor())

	// Longer images than the register are fine, shorter are not.
	in := cmd(prm.OpAccessReg, regRead, 16+0x80)
	prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegHostEndianness)
	r.ok(in, 16+0x80)
	_, y = r.status(in[:24], 16+0x80)
	require.Equal(t, syndRegisterShort, y)
	_, y = r.status(in, 24)
	require.Equal(t, syndOutputShort, y)

	c := newRaw(t, Options{Profile: "cx4"}).to(phaseISSI)
	for _, id := range []prm.RegisterID{prm.RegDtor, prm.RegMcam, prm.RegPcam} {
		_, y = c.reg(id, nil, false)
		require.Equal(t, syndRegister, y, "%s: the ConnectX-4 of the capture does not announce it", id)
	}
}

// TestPort: the port registers agree with each other, with the vport and with
// the events.
func TestPort(t *testing.T) {
	for _, p := range []PortType{PortIB, PortEth} {
		r := newRaw(t, Options{Port: p}).to(phaseInit)
		r.eventMode(4)
		b, y := r.reg(prm.RegPtys, port1, false)
		require.Equal(t, syndOK, y)
		ptys := prm.AsPtysReg(b)
		require.Equal(t, p == PortIB, ptys.IBProtoOper() == ibEDR)
		require.Equal(t, p == PortEth, ptys.EthProtoOper() != 0)
		b, _ = r.reg(prm.RegPmtu, port1, false)
		require.Equal(t, p == PortIB, prm.AsPmtuReg(b).MaxMTU() == 4096, "bytes")
		b, _ = r.reg(prm.RegPvlc, port1, false)
		require.Contains(t, []uint8{1, 2, 4, 8, 15}, prm.AsPvlcReg(b).VlHwCap())
		for _, id := range []prm.RegisterID{prm.RegPtys, prm.RegPmtu, prm.RegPvlc, prm.RegPaos, prm.RegPcap, prm.RegPmlp} {
			_, y = r.reg(id, func(img []byte) { img[1] = 2 }, false)
			require.Equal(t, syndRegisterIndex, y, "%s of port 2", id)
		}
		up := func() (oper, vport bool) {
			b, _ := r.reg(prm.RegPaos, port1, false)
			st := prm.AsQueryVportStateOut(r.ok(valid(prm.OpQueryVportState), 16)).State()
			return prm.AsPaosReg(b).OperStatus() == prm.PortOperUp, st == vportUp
		}
		a, v := up()
		require.True(t, a && v)
		r.drainEvents()
		r.chip.SetLink(0, false)
		e := r.event()
		require.Equal(t, prm.EventPortChange, e.EventType())
		require.EqualValues(t, prm.PortChangeDown, e.EventSubType())
		require.EqualValues(t, 1, e.EventData().PortStateChangeEvent().PortNum())
		a, v = up()
		require.False(t, a || v)
		r.drainEvents()
		r.chip.SetLink(0, true)
		require.EqualValues(t, prm.PortChangeActive, r.event().EventSubType())

		// Administrative down, by register: the event follows the completion.
		r.drainEvents()
		_, y = r.reg(prm.RegPaos, func(img []byte) {
			port1(img)
			prm.AsPaosReg(img).SetAse(true)
			prm.AsPaosReg(img).SetAdminStatus(prm.PortAdminDown)
		}, true)
		require.Equal(t, syndOK, y)
		require.Equal(t, prm.EventCmd, r.event().EventType())
		require.Equal(t, prm.EventPortChange, r.event().EventType())
		a, v = up()
		require.False(t, a || v)
	}
}

// TestHCAVport: what rdma-core and mlx5_ib want to know of an InfiniBand port.
func TestHCAVport(t *testing.T) {
	r := newRaw(t, Options{Functions: 2}).to(phaseInit)
	v := prm.AsQueryHCAVportContextOut(r.ok(number(prm.OpQueryHCAVportContext, 1<<16), prm.QueryHCAVportContextOutSize)).HCAVportContext()
	require.Equal(t, prm.IBPortActive, v.PortState())
	require.EqualValues(t, 5, v.PortPhysicalState())
	require.NotZero(t, v.LID())
	require.NotZero(t, v.CapMask1FieldSelect()&0x10000)
	require.Equal(t, v.NodeGUID(), v.PortGUID())
	require.EqualValues(t, 0x026d6cfffe780000, v.PortGUID(), "EUI-64 of the address")

	in := valid(prm.OpQueryHCAVportGID)
	g := r.ok(in, 32)
	require.EqualValues(t, 1, prm.AsQueryHCAVportGIDOut(g).GidsNum())
	require.EqualValues(t, uint64(0xfe80)<<48, binary.BigEndian.Uint64(g[16:]))
	require.Equal(t, v.PortGUID(), binary.BigEndian.Uint64(g[24:]))
	prm.AsQueryHCAVportGIDIn(in).SetGIDIndex(allIndexes)
	require.EqualValues(t, 8, prm.AsQueryHCAVportGIDOut(r.ok(in, 16+8*16)).GidsNum())
	in = valid(prm.OpQueryHCAVportPkey)
	prm.AsQueryHCAVportPkeyIn(in).SetPkeyIndex(allIndexes)
	out := r.ok(in, 16+128*4)
	require.Equal(t, []byte{0, 0, 0xff, 0xff, 0, 0, 0, 0}, out[16:24])

	n := cmd(prm.OpModifyNicVportContext, 0, prm.ModifyNicVportContextInSize)
	m := prm.AsModifyNicVportContextIn(n)
	m.FieldSelect().SetRoceEn(true)
	m.NicVportContext().SetRoceEn(true)
	m.NicVportContext().SetMTU(9000) // not selected
	r.ok(n, 16)
	c := prm.AsQueryNicVportContextOut(r.ok(valid(prm.OpQueryNicVportContext), prm.QueryNicVportContextOutSize)).NicVportContext()
	require.True(t, c.RoceEn())
	require.EqualValues(t, 1522, c.MTU())
	require.EqualValues(t, 0x026d, c.PermanentAddress().MACAddr47_32())
	m.FieldSelect().SetAddressesList(true)
	_, y := r.status(n, 16)
	require.Equal(t, syndVportField, y)
}
