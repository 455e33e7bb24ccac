package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// buffer reads the health buffer dword by dword.
func (r *raw) buffer() *prm.HealthBuffer {
	b := &prm.HealthBuffer{}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], r.read(healthBuffer+uint64(i)))
	}
	return b
}

func (r *raw) nic() prm.NICInterface { return prm.NICInterface(r.read(0x14) >> 8 & 7) }

// beats tells whether the counter moves.
func (r *raw) beats() bool {
	a := r.read(0x1010)
	r.chip.Advance(time.Second)
	return r.read(0x1010) != a
}

// answers tells whether a command completes.
func (r *raw) answers() bool {
	r.post(0, nop, 16)
	return r.done(0)
}

// life brings the function up again after a reset.
func (r *raw) life() {
	r.pages, r.next = nil, 4<<20
	r.busMaster(true)
	r.to(phaseInit)
	r.ok(nop, 16)
}

func (r *raw) swReset() {
	r.write(0x14, uint32(r.queue)|uint32(prm.NICInterfaceSwReset)<<8)
	r.chip.Advance(swResetTime)
}

func (r *raw) hotReset() {
	r.chip.mu.Lock()
	defer r.chip.unlock()
	r.chip.slotReset(rungHotReset, "test")
	r.chip.funcs[0].cfg.setCommand(cmdMemory | cmdBusMaster)
}

// healthTests has a test for each fault of health and resets.
var healthTests = map[string]func(t *testing.T, r *raw){
	"stall": func(t *testing.T, r *raw) {
		r.fault("stall", "after=2s")
		require.True(t, r.beats())
		require.True(t, r.answers())
		r.chip.Advance(2 * time.Second)
		require.False(t, r.beats())
		require.False(t, r.answers())
		require.Zero(t, r.read(0x23c), "the buffer explains nothing")
		r.swReset()
		require.True(t, r.beats())
		r.life()

		r.fault("stall", "EQ_IN_ERR+sev=NOTICE+irisc=3")
		require.False(t, r.beats())
		b := r.buffer()
		require.Equal(t, prm.SyndEQInErr, b.Synd())
		require.Equal(t, prm.SeverityNotice, b.Severity())
		require.EqualValues(t, 3, b.IriscIndex())
		require.False(t, b.RFR())
	},
	"health-torn": func(t *testing.T, r *raw) {
		r.fault("health-torn", "FFSER_ERR+assert=1/2/3")
		a, b := r.buffer(), r.buffer()
		require.Equal(t, prm.SyndFfserErr, a.Synd())
		require.NotEqual(t, a, b)
		require.True(t, r.answers())
		r.fault("health-torn", "count=2")
		for range 3 {
			r.buffer()
		}
		a, b = r.buffer(), r.buffer()
		require.Equal(t, a, b, "settled")
		require.EqualValues(t, 2, a.AssertVar(0))
		require.EqualValues(t, 2, a.ExtSynd())
	},
	"health-all-ones": func(t *testing.T, r *raw) {
		r.fault("health-all-ones", "")
		require.EqualValues(t, 0xffffffff, r.read(0x230))
		require.EqualValues(t, 0xffffffff, r.read(0x1010))
		require.NotEqual(t, uint32(0xffffffff), r.read(0))
		require.True(t, r.answers())
		require.NoError(t, r.dev.Reset())
		require.NotEqual(t, uint32(0xffffffff), r.read(0x230))
	},
	"health-counter": func(t *testing.T, r *raw) {
		r.fault("health-counter", "0xffffff")
		require.EqualValues(t, 0xffffff, r.read(0x1010))
		r.chip.Advance(10 * time.Millisecond)
		require.EqualValues(t, 1, r.read(0x1010), "round, past 0")
		r.fault("health-stuck", "")
		r.fault("health-counter", "77")
		require.False(t, r.beats())
		require.EqualValues(t, 77, r.read(0x1010))
	},
	"health-rate": func(t *testing.T, r *raw) {
		r.fault("health-rate", "1000")
		a := r.read(0x1010)
		r.chip.Advance(time.Second)
		require.EqualValues(t, 1000, r.read(0x1010)-a)
		require.NoError(t, r.chip.ClearFault("health-rate"))
		a = r.read(0x1010)
		r.chip.Advance(time.Second)
		require.EqualValues(t, 100, r.read(0x1010)-a)
	},
	"health-poll": func(t *testing.T, r *raw) {
		to := func() *prm.DefaultTimeout {
			b, y := r.reg(prm.RegDtor, nil, false)
			require.Equal(t, syndOK, y)
			return prm.AsDtorReg(b).HealthPollTO()
		}
		require.Equal(t, prm.TimeoutSeconds, to().ToMultiplier())
		require.EqualValues(t, 2, to().ToValue())
		r.fault("health-poll", "2500ms")
		require.Equal(t, prm.TimeoutMilliseconds, to().ToMultiplier())
		require.EqualValues(t, 2500, to().ToValue())
		_, err := Parse("sim:cx5,fault=health-poll@10us")
		require.ErrorContains(t, err, "no number of milliseconds")
	},
	"commands-dead": func(t *testing.T, r *raw) {
		r.fault("commands-dead", "heal=reopen")
		require.False(t, r.answers())
		require.True(t, r.beats())
		require.Zero(t, r.read(0x23c))
		r.life()
		r.fault("commands-dead", "")
		r.publish()
		require.False(t, r.answers())
		require.NoError(t, r.dev.Reset())
		r.life()
	},
	"nic-disabled": func(t *testing.T, r *raw) {
		r.fault("nic-disabled", "")
		require.Equal(t, prm.NICInterfaceDisabled, r.nic())
		require.False(t, r.answers())
		require.True(t, r.beats())
		r.life()
		r.fault("nic-disabled", "heal=flr")
		r.publish()
		require.Equal(t, prm.NICInterfaceDisabled, r.nic())
		require.NoError(t, r.dev.Reset())
		r.life()
	},
	"nic-sw-reset": func(t *testing.T, r *raw) {
		r.fault("nic-sw-reset", "")
		r.chip.Advance(time.Hour)
		require.Equal(t, prm.NICInterfaceSwReset, r.nic())
		require.False(t, r.beats())
		require.NoError(t, r.dev.Reset())
		require.Equal(t, prm.NICInterfaceFullDriver, r.nic())
	},
	"peer-reset": func(t *testing.T, r *raw) {
		r.fault("peer-reset", "for=3s")
		require.Equal(t, prm.NICInterfaceSwReset, r.nic())
		require.False(t, r.beats())
		require.False(t, r.answers())
		require.Equal(t, "off", r.chip.State(0).Phase)
		r.chip.Advance(2 * time.Second)
		require.Equal(t, prm.NICInterfaceDisabled, r.nic())
		r.life()
	},
	"swreset-unsupported": func(t *testing.T, r *raw) {
		require.NotZero(t, r.read(0x1fc)>>30&1)
		r.fault("swreset-unsupported", "")
		require.Zero(t, r.read(0x1fc)>>30&1)
		r.swReset()
		require.Equal(t, prm.NICInterfaceFullDriver, r.nic())
	},
	"swreset-ignored": func(t *testing.T, r *raw) {
		r.fault("swreset-ignored", "")
		r.swReset()
		require.Equal(t, prm.NICInterfaceFullDriver, r.nic())
	},
	"swreset-stuck": func(t *testing.T, r *raw) {
		r.fault("swreset-stuck", "")
		r.swReset()
		r.chip.Advance(time.Hour)
		require.Equal(t, prm.NICInterfaceSwReset, r.nic())
		require.NoError(t, r.dev.Reset())
		r.life()
	},
	"swreset-slow": func(t *testing.T, r *raw) {
		r.fault("swreset-slow", "5s")
		r.swReset()
		r.chip.Advance(4 * time.Second)
		require.Equal(t, prm.NICInterfaceSwReset, r.nic())
		r.write(0x14, uint32(r.queue))
		require.Equal(t, prm.NICInterfaceSwReset, r.nic(), "nobody listens")
		r.chip.Advance(time.Second)
		require.Equal(t, prm.NICInterfaceDisabled, r.nic())
	},
	"reset-slow": func(t *testing.T, r *raw) {
		r.fault("reset-slow", "1s")
		require.NoError(t, r.dev.Reset())
		require.EqualValues(t, 0xffffffff, r.read(0))
		r.chip.Advance(time.Second)
		require.NotEqual(t, uint32(0xffffffff), r.read(0))
		r.hotReset()
		require.EqualValues(t, 0xffffffff, r.read(0))
		r.chip.Advance(time.Second)
		require.NotEqual(t, uint32(0xffffffff), r.read(0))
		r.hotReset()
		require.NoError(t, r.chip.ClearFault("reset-slow"))
		require.NotEqual(t, uint32(0xffffffff), r.read(0))
	},
	"flr-dead": func(t *testing.T, r *raw) {
		r.fault("flr-dead", "")
		require.True(t, r.answers())
		for range 2 {
			require.NoError(t, r.dev.Reset())
			r.chip.Advance(time.Hour)
			require.NotZero(t, r.read(0x1fc)>>31)
			require.False(t, r.beats())
		}
		r.hotReset()
		r.life()
		require.NoError(t, r.dev.Reset())
		r.life() // once
	},
}

func init() {
	for name, test := range healthTests {
		faultTests[name] = test
	}
}

// TestIllBuffer: every field of the buffer is what the argument says.
func TestIllBuffer(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
	r.fault("fatal", "HW_FATAL_ERR+sev=1+irisc=7+ext=0xbeef+time=99+exit=0x11+callra=0x22+assert=1/2/3/4/5/0xffffffff+crr")
	b := r.buffer()
	var want prm.HealthBuffer
	for i, v := range []uint32{1, 2, 3, 4, 5, 0xffffffff} {
		want.SetAssertVar(i, v)
	}
	want.SetAssertExistptr(0x11)
	want.SetAssertCallra(0x22)
	want.SetTime(99)
	want.SetFWVersion(16<<24 | 35<<16 | 4030)
	want.SetHwID(0x20d)
	want.SetRFR(true)
	want.SetCRR(true)
	want.SetValid(true)
	want.SetSeverity(prm.SeverityAlert)
	want.SetIriscIndex(7)
	want.SetSynd(prm.SyndHwFatalErr)
	want.SetExtSynd(0xbeef)
	require.Equal(t, &want, b)

	// Cold reset required: nothing less revives.
	r.swReset()
	require.Equal(t, prm.NICInterfaceDisabled, r.nic())
	require.NoError(t, r.dev.Reset())
	r.hotReset()
	require.True(t, r.buffer().CRR())
	require.False(t, r.beats())
	r.chip.PowerCycle()
	require.Zero(t, r.read(0x23c))
	require.True(t, r.beats())
	r.life()

	r.fault("syndrome", "1+novalid+heal=flr+stale=5s")
	require.False(t, r.buffer().Valid())
	require.NoError(t, r.dev.Reset())
	require.Equal(t, prm.SyndFWInternalErr, r.buffer().Synd(), "stale")
	r.chip.Advance(5 * time.Second)
	require.Zero(t, r.buffer().Synd())
	require.NotZero(t, r.read(0x230))
}

// TestReach: a fault is healed by the reset it names and those that reach
// further, and by no lesser one.
func TestReach(t *testing.T) {
	resets := []func(r *raw){
		func(r *raw) { r.publish() },
		func(r *raw) { r.swReset() },
		func(r *raw) { require.NoError(r.t, r.dev.Reset()) },
		func(r *raw) { r.hotReset() },
	}
	for i, name := range rungNames[:len(resets)] {
		for j, reset := range resets {
			r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
			r.fault("fatal", "heal="+name)
			reset(r)
			require.Equal(t, j >= i, r.beats(), "%s by %s", name, rungNames[j])
			require.Equal(t, j < i, r.read(0x238)>>31 != 0, "%s by %s", name, rungNames[j])
			if j >= i {
				r.life()
				continue
			}
			require.NoError(t, r.chip.ClearFault(""))
			require.NotZero(t, r.read(0x23c), "clearing does not revive")
			require.NoError(t, r.dev.Reset())
			r.life()
		}
	}
	// All ones come back from where they say.
	r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
	r.fault("all-ones", "1s+heal=hot-reset")
	r.chip.Advance(time.Second)
	require.NoError(t, r.dev.Reset())
	require.EqualValues(t, 0xffffffff, r.read(0))
	r.hotReset()
	r.life()
	// A reset before they have come heals nothing.
	for arg, strike := range map[string]func(){
		"1s+heal=flr": func() { r.chip.Advance(time.Second) },
		"200+heal=flr": func() {
			for range 200 {
				r.read(0)
			}
		},
	} {
		require.NoError(t, r.chip.ClearFault("all-ones"))
		r.fault("all-ones", arg)
		require.NoError(t, r.dev.Reset())
		r.life()
		strike()
		require.EqualValues(t, 0xffffffff, r.read(0), arg)
		require.NoError(t, r.dev.Reset())
		r.life()
	}
}

// TestTwoFunctionsHealth: firmware serves all functions, so each sees what
// another one's reset does.
func TestTwoFunctionsHealth(t *testing.T) {
	a := newRaw(t, Options{Functions: 2, Clock: NewManualClock()}).to(phaseInit)
	b := &raw{t: t, chip: a.chip, dev: a.chip.Function(1), mem: a.mem, next: 32 << 20}
	require.NoError(t, b.dev.DMA().Map(vfio.Mapping{IOVA: arenaIOVA, Bytes: a.mem.Bytes(), FD: -1}))
	b.busMaster(true)
	b.to(phaseInit)

	a.fault("fatal", "")
	require.Equal(t, a.buffer(), b.buffer(), "one buffer")
	require.Equal(t, a.read(0x1010), b.read(0x1010), "one counter")
	require.False(t, b.answers())
	a.write(0x14, uint32(a.queue)|uint32(prm.NICInterfaceSwReset)<<8)
	require.Equal(t, prm.NICInterfaceSwReset, b.nic())
	b.write(0x14, uint32(b.queue)|uint32(prm.NICInterfaceSwReset)<<8) // once is enough
	a.chip.Advance(swResetTime)
	for _, r := range []*raw{a, b} {
		require.Equal(t, prm.NICInterfaceDisabled, r.nic())
		require.Zero(t, r.read(0x23c))
		require.Equal(t, "off", r.chip.State(0).Phase)
	}
	a.pages, a.next = nil, 4<<20
	a.to(phaseInit)
	require.Equal(t, prm.NICInterfaceDisabled, b.nic(), "the other one must come up by itself")
	b.pages, b.next = nil, 36<<20
	b.to(phaseInit)

	// An FLR of one function is its own affair while firmware lives, and
	// everybody's where it revives it.
	require.NoError(t, a.dev.Reset())
	b.ok(nop, 16)
	a.fault("fatal", "")
	require.NoError(t, a.dev.Reset())
	require.Equal(t, prm.NICInterfaceFullDriver, a.nic())
	require.Equal(t, prm.NICInterfaceDisabled, b.nic())
	require.NoError(t, b.dev.Close())
}

// TestFatalNow: a device that died before anybody came stays so until a reset
// that reaches far enough.
func TestFatalNow(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock(), Faults: []FaultSpec{{"fatal", "now+after=1s+heal=hot-reset"}}})
	require.True(t, r.beats())
	require.False(t, r.beats())
	require.NoError(t, r.dev.Reset())
	require.EqualValues(t, 1, r.read(0x238)>>31)
	r.hotReset()
	r.life()
}

func TestHealthWords(t *testing.T) {
	for arg, want := range map[string]string{
		"fatal@nonsense":             "no health syndrome",
		"fatal@sev=8":                `"8" is no severity`,
		"fatal@heal=prayer":          "there are reopen, sw-reset",
		"fatal@after=-1s":            "no duration",
		"fatal@irisc=256":            "no number of 8 bits",
		"fatal@assert=1/2/3/4/5/6/7": "more than 6 numbers",
		"fatal@assert=x":             "no number of 32 bits",
		"fatal@for=1s":               `"for=1s" is no word of this fault`,
		"fatal@count=2":              `"count=2" is no word of this fault`,
		"health-torn@count=0":        "no count",
		"health-stuck@now":           `"now" is no word of this fault`,
		"health-stuck@FFSER_ERR":     "is no word of this fault",
		"nic-disabled@sev=1":         "is no word of this fault",
		"health-counter@0":           "never 0",
		"health-rate@0":              "not between",
		"all-ones@heal=x":            "is no reset",
		"syndrome@sev=1":             "no health syndrome",
	} {
		_, err := Parse("sim:cx5,fault=" + arg)
		require.ErrorContains(t, err, want, arg)
	}
	_, err := Parse("sim:cx5,fault=fatal@8+sev=EMERGENCY+crr+norfr+after=20ms,fault=all-ones@2s+heal=hot-reset,fault=all-ones@heal=flr")
	require.NoError(t, err)
}
