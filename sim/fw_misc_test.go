package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestQCounters: sets are counted in by the QPs that name them.
func TestQCounters(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	n := binary.BigEndian.Uint32(r.ok(valid(prm.OpAllocQCounter), 16)[8:])
	require.NotZero(t, n, "0 is no set")
	q := r.createQP(prm.QPTypeRC, nil)
	in := r.qpStep(prm.OpRst2InitQP, q)
	prm.AsRst2InitQPIn(in).QPC().SetCounterSetID(uint8(n))
	r.ok(in, 16)
	r.chip.mu.Lock()
	o := r.chip.funcs[0].qps.objs[q]
	o.tally(qOutOfBuffer)
	o.tally(qOutOfBuffer)
	o.tally(qReqCQEFlush)
	r.chip.mu.Unlock()
	query := valid(prm.OpQueryQCounter)
	prm.AsQueryQCounterIn(query).SetCounterSetID(uint8(n))
	prm.AsQueryQCounterIn(query).SetClear(true)
	out := prm.AsQueryQCounterOut(r.ok(query, prm.QueryQCounterOutSize))
	require.EqualValues(t, 2, out.OutOfBuffer())
	require.EqualValues(t, 1, out.ReqCQEFlushError())
	out = prm.AsQueryQCounterOut(r.ok(query, prm.QueryQCounterOutSize))
	require.Zero(t, out.OutOfBuffer(), "cleared")
	for range 254 {
		r.ok(valid(prm.OpAllocQCounter), 16)
	}
	s, y := r.status(valid(prm.OpAllocQCounter), 16)
	require.Equal(t, prm.StatusNoRes, s)
	require.Equal(t, syndOutOfCounters, y)
}

// TestRoceAddresses: the table holds what the versions and types allow.
func TestRoceAddresses(t *testing.T) {
	r := newRaw(t, Options{Port: PortEth}).to(phaseInit)
	set := func(i uint16, version, l3 uint8) []byte {
		in := valid(prm.OpSetRoceAddress)
		x := prm.AsSetRoceAddressIn(in)
		x.SetRoceAddressIndex(i)
		x.RoceAddress().SourceL3Address()[0] = 0xfe
		x.RoceAddress().SetRoceVersion(version)
		x.RoceAddress().SetRoceL3Type(l3)
		return in
	}
	get := func(i uint16) *prm.RoceAddrLayout {
		in := valid(prm.OpQueryRoceAddress)
		prm.AsQueryRoceAddressIn(in).SetRoceAddressIndex(i)
		return prm.AsQueryRoceAddressOut(r.ok(in, prm.QueryRoceAddressOutSize)).RoceAddress()
	}
	r.ok(set(255, 2, 1), 16)
	require.EqualValues(t, 2, get(255).RoceVersion())
	require.EqualValues(t, 0xfe, get(255).SourceL3Address()[0])
	require.Equal(t, &prm.RoceAddrLayout{}, get(0))
	for _, in := range [][]byte{set(0, 3, 1), set(0, 2, 2)} {
		_, y := r.status(in, 16)
		require.Equal(t, syndRoceAddress, y)
	}
	gone := valid(prm.OpSetRoceAddress)
	prm.AsSetRoceAddressIn(gone).SetRoceAddressIndex(255)
	r.ok(gone, 16)
	require.Equal(t, &prm.RoceAddrLayout{}, get(255))

	ib := newRaw(t, Options{Port: PortIB}).to(phaseInit)
	_, y := ib.status(set(0, 2, 1), 16)
	require.Equal(t, syndRoceOff, y)
}

// TestSubnetAgent: the port as the subnet management agent tells it.
func TestSubnetAgent(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	ask := func(method byte, attr uint16, mod uint32) (status uint16, data []byte) {
		in := cmd(prm.OpMADIfc, 3, prm.MADIfcInSize)
		x := prm.AsMADIfcIn(in)
		x.SetPort(1)
		m := x.MAD()
		m[0], m[1], m[2], m[3] = 1, 1, 1, method
		binary.BigEndian.PutUint64(m[8:], 0x1122334455667788)
		binary.BigEndian.PutUint16(m[16:], attr)
		binary.BigEndian.PutUint32(m[20:], mod)
		out := prm.AsMADIfcOut(r.ok(in, prm.MADIfcOutSize)).ResponseMADPacket()
		require.EqualValues(t, method|0x80, out[3])
		require.EqualValues(t, uint64(0x1122334455667788), binary.BigEndian.Uint64(out[8:]))
		return binary.BigEndian.Uint16(out[4:]), out[64:128]
	}
	s, d := ask(1, 0x15, 1)
	require.Zero(t, s)
	require.EqualValues(t, prm.IBPortActive, d[32]&0xf)
	require.EqualValues(t, 1, binary.BigEndian.Uint16(d[16:]), "LID")
	r.chip.SetLink(0, false)
	_, d = ask(1, 0x15, 1)
	require.EqualValues(t, prm.IBPortDown, d[32]&0xf)
	s, d = ask(1, 0x11, 0)
	require.Zero(t, s)
	require.EqualValues(t, 1, d[3], "ports")
	s, d = ask(1, 0x16, 0)
	require.Zero(t, s)
	require.EqualValues(t, 0xffff, binary.BigEndian.Uint16(d))
	s, d = ask(1, 0x14, 0)
	require.Zero(t, s)
	require.NotZero(t, binary.BigEndian.Uint64(d))
	s, _ = ask(1, 0x10, 0)
	require.Zero(t, s)
	for _, x := range []struct {
		method byte
		attr   uint16
		mod    uint32
		want   uint16
	}{{2, 0x15, 1, madNoMethod}, {1, 0x99, 0, madNoAttribute}, {1, 0x15, 2, madBadField}, {1, 0x16, 4, madBadField}, {1, 0x14, 1, madBadField}} {
		s, _ = ask(x.method, x.attr, x.mod)
		require.Equal(t, x.want, s)
	}
}

// TestInterruptModeration: kept by vector.
func TestInterruptModeration(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	in := valid(prm.OpConfigIntModeration)
	prm.AsConfigIntModerationIn(in).SetIntVector(5)
	prm.AsConfigIntModerationIn(in).SetMinDelay(0x123)
	out := prm.AsConfigIntModerationOut(r.ok(in, 16))
	require.EqualValues(t, 5, out.IntVector())
	require.EqualValues(t, 0x123, out.MinDelay())
}

// TestPortUpAgain: asking a port that is up to come up is answered with its
// state and the event.
func TestPortUpAgain(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	r.eventMode(5)
	paos := func(admin prm.PortAdminStatus, ase bool) *prm.PaosReg {
		in := cmd(prm.OpAccessReg, regWrite, prm.AccessRegisterInSize+16)
		prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegPaos)
		p := prm.AsPaosReg(in[prm.AccessRegisterInSize:])
		p.SetLocalPort(1)
		p.SetAdminStatus(admin)
		p.SetAse(ase)
		return prm.AsPaosReg(r.ok(in, prm.AccessRegisterOutSize+16)[prm.AccessRegisterOutSize:])
	}
	changed := func() (n int) {
		for e := r.event(); e != nil; e = r.event() {
			if e.EventType() == prm.EventPortChange {
				n++
			}
		}
		return n
	}
	require.Equal(t, prm.PortOperUp, paos(prm.PortAdminUp, true).OperStatus())
	require.Equal(t, 1, changed())
	p := paos(0, false) // rdma-core reads with a write
	require.Equal(t, prm.PortAdminUp, p.AdminStatus())
	require.Equal(t, prm.PortOperUp, p.OperStatus())
	require.Zero(t, changed())
	require.Equal(t, prm.PortOperDown, paos(prm.PortAdminDown, true).OperStatus())
	require.Equal(t, 1, changed())
}

// TestPortCapabilities: the mask that the query offers can be changed, and the
// subnet agent tells the same.
func TestPortCapabilities(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	query := func() *prm.HCAVportContext {
		return prm.AsQueryHCAVportContextOut(r.ok(valid(prm.OpQueryHCAVportContext), prm.QueryHCAVportContextOutSize)).HCAVportContext()
	}
	before := query()
	require.NotZero(t, before.CapMask1()&ibCapCM)
	in := valid(prm.OpModifyHCAVportContext)
	v := prm.AsModifyHCAVportContextIn(in).HCAVportContext()
	v.SetCapMask1FieldSelect(ibCapCM)
	r.ok(in, 16)
	require.Equal(t, before.CapMask1()&^ibCapCM, query().CapMask1())
	v.SetCapMask1(ibCapCM)
	r.ok(in, 16)
	require.Equal(t, before.CapMask1(), query().CapMask1())
	v.SetFieldSelect(1)
	_, y := r.status(in, 16)
	require.Equal(t, syndVportField, y)
	v.SetFieldSelect(0)
	v.SetCapMask1FieldSelect(1)
	_, y = r.status(in, 16)
	require.Equal(t, syndVportField, y)
}

// TestRawSendQueues: their states, and that QP commands do not reach them.
func TestRawSendQueues(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	n := binary.BigEndian.Uint32(r.ok(r.sqInput(), 16)[8:])
	q := r.createQP(prm.QPTypeRC, nil)
	require.NotEqual(t, n, q)
	state := func() prm.QPState {
		r.chip.mu.Lock()
		defer r.chip.mu.Unlock()
		return r.chip.funcs[0].qps.objs[n].state
	}
	for _, x := range []struct {
		from, to byte
		want     prm.QPState
	}{{sqRST, sqRDY, prm.QPStateRts}, {sqRDY, sqERR, prm.QPStateErr}, {sqERR, sqRST, prm.QPStateRst}, {sqRST, sqRDY, prm.QPStateRts}} {
		r.ok(sqStep(prm.OpModifySQ, n, x.from, x.to), 16)
		require.Equal(t, x.want, state())
	}
	_, y := r.status(sqStep(prm.OpModifySQ, n, sqRST, sqRDY), 16)
	require.Equal(t, syndSQState, y, "it is not in RST")
	_, y = r.status(number(prm.OpQueryQP, n), prm.QueryQPOutSize)
	require.Equal(t, syndNoQP, y)
	_, y = r.status(sqStep(prm.OpDestroySQ, q, 0, 0), 16)
	require.Equal(t, syndNoSQ, y)
	s, _ := r.status(number(prm.OpDestroyCQ, r.cq.n), 16)
	require.Equal(t, prm.StatusResBusy, s)
	r.ok(sqStep(prm.OpDestroySQ, n, 0, 0), 16)
	r.ok(number(prm.OpDestroyQP, q), 16)
	r.ok(number(prm.OpDestroyCQ, r.cq.n), 16)
}
