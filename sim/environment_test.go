package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// note takes the next event that is not a command's.
func (r *raw) note() *prm.EQE {
	for e := r.event(); e != nil; e = r.event() {
		if e.EventType() != prm.EventCmd {
			return e
		}
	}
	return nil
}

func (r *raw) mtmp() *prm.MtmpReg {
	b, y := r.reg(prm.RegMtmp, nil, false)
	require.Equal(r.t, syndOK, y)
	return prm.AsMtmpReg(b)
}

func (r *raw) mpein() *prm.MpeinReg {
	b, y := r.reg(prm.RegMpein, nil, false)
	require.Equal(r.t, syndOK, y)
	return prm.AsMpeinReg(b)
}

func TestEnvironment(t *testing.T) {
	r := newRaw(t, Options{}).to(phaseInit)
	b, y := r.reg(prm.RegMtcap, nil, false)
	require.Equal(t, syndOK, y)
	require.EqualValues(t, 1, prm.AsMtcapReg(b).SensorCount())
	require.EqualValues(t, 1, prm.AsMtcapReg(b).SensorMap())

	m := r.mtmp()
	require.EqualValues(t, 45*8, m.Temperature())
	require.EqualValues(t, 105*8, m.TempThresholdHi())
	require.Equal(t, "asic", string(binary.BigEndian.AppendUint32(nil, m.SensorNameHi())))
	require.False(t, m.Mte())
	require.Zero(t, m.MaxTemperature())
	set := func(mtr bool) {
		_, y := r.reg(prm.RegMtmp, func(img []byte) { prm.AsMtmpReg(img).SetMte(true); prm.AsMtmpReg(img).SetMtr(mtr) }, true)
		require.Equal(t, syndOK, y)
	}
	set(false)
	r.fault("temperature", "90.5")
	require.EqualValues(t, 724, r.mtmp().Temperature())
	require.NoError(t, r.chip.ClearFault("temperature"))
	require.EqualValues(t, 724, r.mtmp().MaxTemperature(), "kept")
	set(true)
	require.EqualValues(t, 360, r.mtmp().MaxTemperature(), "cleared")
	r.fault("temperature", "-10")
	require.EqualValues(t, -80, int16(r.mtmp().Temperature()))
	require.EqualValues(t, 360, r.mtmp().MaxTemperature())

	module := func(n uint16) func([]byte) { return func(img []byte) { prm.AsMtmpReg(img).SetSensorIndex(n) } }
	b, y = r.reg(prm.RegMtmp, module(64), false)
	require.Equal(t, syndOK, y)
	require.Zero(t, prm.AsMtmpReg(b).Temperature(), "a cable without a sensor")
	for _, write := range []bool{false, true} {
		_, y = r.reg(prm.RegMtmp, module(1), write)
		require.Equal(t, syndRegisterIndex, y)
	}

	p := r.mpein()
	require.EqualValues(t, 16, p.LinkWidthActive())
	require.EqualValues(t, 1<<2, p.LinkSpeedActive())
	require.EqualValues(t, 7, p.LinkSpeedEnabled())
	require.EqualValues(t, 2, p.MaxReadRequestSize(), "512 bytes")
	require.EqualValues(t, 75, p.PCIPower())
	require.EqualValues(t, 1, p.PwrStatus())
	_, y = r.reg(prm.RegMpein, func(img []byte) { img[0] = 1 }, false)
	require.Equal(t, syndRegisterIndex, y)

	c := newRaw(t, Options{Profile: "cx4"}).to(phaseISSI)
	for _, id := range []prm.RegisterID{prm.RegMtcap, prm.RegMtmp, prm.RegMpein, prm.RegMfrl} {
		_, y = c.reg(id, nil, false)
		require.Equal(t, syndRegister, y, "%s: nothing announces it", id)
	}
}

func (r *raw) mfrl(fill func(m *prm.MfrlReg)) synd {
	_, y := r.reg(prm.RegMfrl, func(img []byte) { fill(prm.AsMfrlReg(img)) }, true)
	return y
}

func (r *raw) resetState() prm.MFRLResetState {
	b, y := r.reg(prm.RegMfrl, nil, false)
	require.Equal(r.t, syndOK, y)
	return prm.AsMfrlReg(b).ResetState()
}

// TestMFRLAlone: before INIT_HCA only the function that asks is asked.
func TestMFRLAlone(t *testing.T) {
	r := newRaw(t, Options{Functions: 2, Clock: NewManualClock()}).to(phaseISSI)
	require.Equal(t, syndOK, r.mfrl(mfrlStart))
	require.Equal(t, prm.MFRLResetInNegotiation, r.resetState())
	require.Equal(t, syndOK, r.mfrl(mfrlAnswer(mfrlAck)))
	require.Equal(t, prm.MFRLResetInProgress, r.resetState())
}

func (r *raw) syncNote() prm.SyncResetState {
	e := r.note()
	require.NotNil(r.t, e)
	require.Equal(r.t, prm.EventGeneral, e.EventType())
	require.EqualValues(r.t, prm.GeneralEventPCISyncForFWUpdate, e.EventSubType())
	return e.EventData().SyncFWUpdateEvent().SyncRstState()
}

func mfrlStart(m *prm.MfrlReg) { m.SetResetLevel(mfrlToggle); m.SetPCISyncForFWUpdateStart(true) }
func mfrlAnswer(a uint8) func(m *prm.MfrlReg) {
	return func(m *prm.MfrlReg) { m.SetResetLevel(mfrlToggle); m.SetPCISyncForFWUpdateResp(a) }
}

// TestMFRL: a firmware reset is negotiated with every driver, and a hot reset
// carries it out.
func TestMFRL(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
	r.eventMode(6)
	b, _ := r.reg(prm.RegMfrl, nil, false)
	require.EqualValues(t, 1<<0|1<<3|1<<6, prm.AsMfrlReg(b).ResetLevel())
	require.EqualValues(t, 1, prm.AsMfrlReg(b).ResetType())
	require.Equal(t, prm.MFRLResetIdle, r.resetState())
	require.Equal(t, syndResetLevel, r.mfrl(func(m *prm.MfrlReg) { m.SetResetLevel(2) }))
	require.Equal(t, syndResetLevel, r.mfrl(func(m *prm.MfrlReg) { m.SetResetLevel(mfrlToggle); m.SetRstTypeSel(1) }))
	require.Equal(t, syndResetBusy, r.mfrl(mfrlAnswer(mfrlAck)), "nobody asked")
	require.Equal(t, syndOK, r.mfrl(func(m *prm.MfrlReg) { m.SetResetLevel(mfrlLive) }))
	require.Equal(t, prm.MFRLResetIdle, r.resetState())

	require.Equal(t, syndOK, r.mfrl(mfrlStart))
	require.Equal(t, prm.SyncResetRequest, r.syncNote())
	require.Equal(t, prm.MFRLResetInNegotiation, r.resetState())
	require.Equal(t, syndResetBusy, r.mfrl(mfrlStart))
	require.Equal(t, syndOK, r.mfrl(mfrlAnswer(mfrlRefuse)))
	require.Equal(t, prm.SyncResetAbort, r.syncNote())
	require.Equal(t, prm.MFRLResetNack, r.resetState())

	require.Equal(t, syndOK, r.mfrl(mfrlStart))
	require.Equal(t, prm.SyncResetRequest, r.syncNote())
	r.chip.Advance(mfrlNegotiation)
	require.Equal(t, prm.SyncResetAbort, r.syncNote())
	require.Equal(t, prm.MFRLResetNegTimeout, r.resetState())

	r.fault("health-stuck", "heal=mfrl")
	require.NoError(t, r.dev.(vfio.HotResetter).HotReset())
	require.False(t, r.beats(), "a hot reset alone does not reach so far")
	r.pages, r.next, r.vectors, r.ci = nil, 4<<20, nil, 0
	r.to(phaseInit)
	r.eventMode(6)
	require.Equal(t, syndOK, r.mfrl(mfrlStart))
	require.Equal(t, prm.SyncResetRequest, r.syncNote())
	require.Equal(t, syndOK, r.mfrl(mfrlAnswer(mfrlAck)))
	require.Equal(t, prm.SyncResetNow, r.syncNote())
	require.Equal(t, prm.MFRLResetInProgress, r.resetState())
	require.Equal(t, syndResetBusy, r.mfrl(mfrlStart))
	require.NoError(t, r.dev.(vfio.HotResetter).HotReset())
	require.True(t, r.beats())
	r.life()
	require.Equal(t, prm.MFRLResetIdle, r.resetState())

	// Without the negotiation it waits for its trigger.
	r.fault("health-stuck", "heal=mfrl")
	require.Equal(t, syndOK, r.mfrl(func(m *prm.MfrlReg) { m.SetResetLevel(mfrlToggle) }))
	require.Equal(t, prm.MFRLResetWaitingForTrigger, r.resetState())
	require.NoError(t, r.dev.Reset())
	require.False(t, r.beats())
	require.NoError(t, r.dev.(vfio.HotResetter).HotReset())
	require.True(t, r.beats())
	r.life()
	r.fault("health-stuck", "heal=mfrl")
	require.Equal(t, syndOK, r.mfrl(func(m *prm.MfrlReg) { m.SetResetLevel(mfrlPower) }))
	require.NoError(t, r.dev.(vfio.HotResetter).HotReset())
	require.False(t, r.beats(), "that level waits for power")
}

// TestHotReset: the slot has all functions; it is refused where one is not this
// process's, and otherwise resets them all with configuration space restored.
func TestHotReset(t *testing.T) {
	a := newRaw(t, Options{Functions: 2, Clock: NewManualClock()}).to(phaseInit)
	h := a.dev.(vfio.HotResetter)
	l, err := h.HotResetInfo()
	require.NoError(t, err)
	require.Equal(t, []vfio.HotResetFunction{
		{Name: "sim:cx5.0", Group: 0, Self: true, Owned: true}, {Name: "sim:cx5.1", Group: 1},
	}, l)
	err = h.HotReset()
	require.ErrorIs(t, err, vfio.ErrBusy)
	require.ErrorContains(t, err, "sim:cx5.1")
	require.Equal(t, "init", a.chip.State(0).Phase, "nothing happened")

	b := a.chip.Function(1)
	require.NoError(t, h.HotReset())
	for i := range 2 {
		require.EqualValues(t, 1, a.chip.Counters(i).Resets)
		require.Equal(t, "off", a.chip.State(i).Phase)
	}
	a.life()
	require.NoError(t, b.Close())
	require.NoError(t, a.dev.Close())
	_, err = h.HotResetInfo()
	require.ErrorIs(t, err, vfio.ErrClosed)
	require.ErrorIs(t, h.HotReset(), vfio.ErrClosed)
	a.dev = nil

	s := newRaw(t, Options{Functions: 2, SharedDomain: true})
	l, err = s.dev.(vfio.HotResetter).HotResetInfo()
	require.NoError(t, err)
	require.True(t, l[1].Owned, "one group")
	require.Zero(t, l[1].Group)
	require.NoError(t, s.dev.(vfio.HotResetter).HotReset())
}

var environmentTests = map[string]func(t *testing.T, r *raw){
	"temperature": func(t *testing.T, r *raw) {
		r.fault("temperature", "104.875")
		require.Nil(t, r.note())
		r.fault("temperature", "105")
		e := r.note()
		require.NotNil(t, e)
		require.Equal(t, prm.EventTempWarn, e.EventType())
		require.EqualValues(t, 1, e.EventData().TempWarningEvent().SensorWarningLsb())
		require.EqualValues(t, 840, r.mtmp().Temperature())
	},
	"pcie-link": func(t *testing.T, r *raw) {
		r.fault("pcie-link", "1x4")
		require.NoError(t, r.dev.Reset())
		var b [2]byte
		require.NoError(t, r.dev.ReadRegion(vfio.RegionConfig, capPCIe+0x12, b[:]))
		require.EqualValues(t, 1<<12|4<<4|1, binary.LittleEndian.Uint16(b[:]))
		r.life()
		require.EqualValues(t, 4, r.mpein().LinkWidthActive())
		require.EqualValues(t, 1, r.mpein().LinkSpeedActive())
		require.EqualValues(t, 16, r.mpein().LinkWidthEnabled())
		_, err := Parse("sim:cx5,fault=pcie-link@7x3")
		require.ErrorContains(t, err, "no link")
	},
	"slot-power": func(t *testing.T, r *raw) {
		r.fault("slot-power", "27")
		e := r.note()
		require.NotNil(t, e)
		require.EqualValues(t, prm.GeneralEventPCIPowerChange, e.EventSubType())
		require.EqualValues(t, 27, r.mpein().PCIPower())
		require.EqualValues(t, 2, r.mpein().PwrStatus())
	},
	"hot-reset-refused": func(t *testing.T, r *raw) {
		r.fault("hot-reset-refused", "")
		require.ErrorIs(t, r.dev.(vfio.HotResetter).HotReset(), vfio.ErrBusy)
		l, err := r.dev.(vfio.HotResetter).HotResetInfo()
		require.NoError(t, err)
		require.Len(t, l, 2)
		require.False(t, l[1].Owned)
	},
	"mfrl-fails": func(t *testing.T, r *raw) {
		r.fault("mfrl-fails", "UNLOAD_TIMEOUT")
		require.Equal(t, syndOK, r.mfrl(mfrlStart))
		require.Equal(t, prm.SyncResetAbort, r.syncNote())
		require.Equal(t, prm.MFRLResetUnloadTimeout, r.resetState())
		r.chip.Advance(time.Minute)
		require.Equal(t, prm.MFRLResetUnloadTimeout, r.resetState())
		_, err := Parse("sim:cx5,fault=mfrl-fails@IDLE")
		require.ErrorContains(t, err, "no state in which it fails")
	},
}

func init() {
	for name, test := range environmentTests {
		faultTests[name] = test
	}
}
