package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// sign is what a host sees of a sick device, by its registers alone.
type sign struct {
	moves, answers, ones bool
	nic                  prm.NICInterface
	synd                 prm.HealthSyndrome
	rfr, crr             bool
}

func (r *raw) sign() sign {
	s := sign{ones: r.read(0x230) == 0xffffffff}
	s.moves = r.beats()
	if s.ones {
		return s
	}
	s.answers = r.answers()
	b := r.buffer()
	s.nic, s.synd, s.rfr, s.crr = r.nic(), b.Synd(), b.RFR(), b.CRR()
	return s
}

// well: the device does what a healthy one does, up to a command that completes.
func (r *raw) well() bool {
	if r.read(0) == 0xffffffff || r.read(0x230) == 0xffffffff || r.read(0x1fc)>>31 != 0 || r.buffer().Synd() != 0 || !r.beats() {
		return false
	}
	r.publish()
	if r.nic() != prm.NICInterfaceFullDriver || r.buffer().RFR() {
		return false
	}
	r.post(0, cmd(prm.OpEnableHCA, 0, 16), 16)
	if !r.done(0) {
		return false
	}
	r.ok(cmd(prm.OpDisableHCA, 0, 16), 16)
	return true
}

// ladder resets further and further until the device is well, and names the rung.
func (r *raw) ladder() string {
	rungs := []func(){
		func() { r.publish() },
		func() { r.swReset() },
		func() { require.NoError(r.t, r.dev.Reset()) },
		func() { require.NoError(r.t, r.dev.(vfio.HotResetter).HotReset()) },
		func() {
			in := cmd(prm.OpAccessReg, regWrite, 16+prm.MfrlRegSize)
			prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegMfrl)
			prm.AsMfrlReg(in[16:]).SetResetLevel(mfrlToggle)
			r.pages, r.next = nil, 4<<20
			if r.answers() || r.enabled() {
				r.to(phaseISSI)
				r.ok(in, 16+prm.MfrlRegSize)
			}
			require.NoError(r.t, r.dev.(vfio.HotResetter).HotReset())
		},
		func() { r.chip.PowerCycle(); r.busMaster(true) },
	}
	for i, f := range rungs {
		f()
		r.chip.Advance(10 * time.Second) // what takes time ends
		if r.well() {
			return rung(i + 1).String()
		}
	}
	return rungNever.String()
}

// enabled tells whether firmware takes commands at all.
func (r *raw) enabled() bool {
	r.publish()
	r.post(0, cmd(prm.OpEnableHCA, 0, 16), 16)
	if !r.done(0) {
		return false
	}
	r.ok(cmd(prm.OpDisableHCA, 0, 16), 16)
	return true
}

// healthVariants are health faults with the signs they show and the least reset
// that revives the device.
var healthVariants = []struct {
	name, arg string
	with      []FaultSpec // on top, for what goes wrong on the way back
	want      sign
	rung      string
}{
	{name: "fatal", want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "DEAD_IRISC+irisc=2", want: sign{synd: prm.SyndDeadIrisc, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "HW_FATAL_ERR+heal=reopen", want: sign{synd: prm.SyndHwFatalErr, rfr: true}, rung: "reopen"},
	{name: "fatal", arg: "FW_CRC_ERR+heal=flr", want: sign{synd: prm.SyndFWCrcErr, rfr: true}, rung: "flr"},
	{name: "fatal", arg: "ICM_FETCH_PCI_ERR+heal=hot-reset", want: sign{synd: prm.SyndIcmFetchPCIErr, rfr: true}, rung: "hot-reset"},
	{name: "fatal", arg: "ICM_PAGE_ERR+ext=2", want: sign{synd: prm.SyndIcmPageErr, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "ICM_PCI_POISONED_ERR+crr", want: sign{synd: prm.SyndIcmPCIPoisonedErr, rfr: true, crr: true}, rung: "cold"},
	{name: "fatal", arg: "TRUST_LOCKDOWN_ERR+norfr+crr", want: sign{synd: prm.SyndTrustLockdownErr, crr: true}, rung: "cold"},
	{name: "fatal", arg: "0x11+sev=EMERGENCY", want: sign{synd: 0x11, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "FFSER_ERR+novalid", want: sign{synd: prm.SyndFfserErr, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "stale=3s", want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "sw-reset"},
	{name: "fatal", arg: "heal=never", want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "never"},
	{name: "fatal", with: []FaultSpec{{"swreset-unsupported", ""}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "flr"},
	{name: "fatal", with: []FaultSpec{{"swreset-ignored", ""}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "flr"},
	{name: "fatal", with: []FaultSpec{{"swreset-stuck", ""}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "flr"},
	{name: "fatal", with: []FaultSpec{{"swreset-slow", "5s"}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "sw-reset"},
	{name: "fatal", with: []FaultSpec{{"swreset-unsupported", ""}, {"flr-dead", "now"}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "hot-reset"},
	{name: "fatal", arg: "heal=flr", with: []FaultSpec{{"reset-slow", "1s"}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "flr"},
	{name: "fatal", with: []FaultSpec{{"swreset-held", "2s"}}, want: sign{synd: prm.SyndFWInternalErr, rfr: true}, rung: "sw-reset"},
	{name: "stall", want: sign{}, rung: "sw-reset"},
	{name: "stall", arg: "heal=flr", want: sign{}, rung: "flr"},
	{name: "stall", arg: "ASYNCHRONOUS_EQ_BUF_OVERRUN", want: sign{synd: prm.SyndAsynchronousEQBufOverrun}, rung: "sw-reset"},
	{name: "stall", arg: "EQ_INV+rfr", want: sign{synd: prm.SyndEQInv, rfr: true}, rung: "sw-reset"},
	{name: "syndrome", arg: "HIGH_TEMP_ERR+heal=sw-reset", want: sign{moves: true, answers: true, synd: prm.SyndHighTempErr}, rung: "sw-reset"},
	{name: "syndrome", arg: "EQ_IN_ERR+crr+heal=cold", want: sign{moves: true, answers: true, synd: prm.SyndEQInErr, crr: true}, rung: "cold"},
	{name: "syndrome", arg: "EQ_INV+heal=mfrl", want: sign{moves: true, answers: true, synd: prm.SyndEQInv}, rung: "mfrl"},
	{name: "health-torn", arg: "heal=flr", want: sign{moves: true, answers: true, synd: prm.SyndDeadIrisc}, rung: "flr"},
	{name: "health-stuck", arg: "heal=sw-reset", want: sign{answers: true}, rung: "sw-reset"},
	{name: "health-stuck", arg: "heal=mfrl", want: sign{answers: true}, rung: "mfrl"},
	{name: "health-all-ones", want: sign{ones: true}, rung: "flr"},
	{name: "health-all-ones", arg: "heal=hot-reset", want: sign{ones: true}, rung: "hot-reset"},
	{name: "commands-dead", want: sign{moves: true}, rung: "flr"},
	{name: "commands-dead", arg: "heal=sw-reset", want: sign{moves: true}, rung: "sw-reset"},
	{name: "commands-dead", arg: "heal=reopen", want: sign{moves: true}, rung: "reopen"},
	{name: "nic-disabled", want: sign{moves: true, nic: prm.NICInterfaceDisabled}, rung: "reopen"},
	{name: "nic-disabled", arg: "heal=flr", want: sign{moves: true, nic: prm.NICInterfaceDisabled}, rung: "flr"},
	{name: "nic-sw-reset", want: sign{nic: prm.NICInterfaceSwReset}, rung: "flr"},
	{name: "nic-sw-reset", arg: "heal=hot-reset", want: sign{nic: prm.NICInterfaceSwReset}, rung: "hot-reset"},
	{name: "peer-reset", arg: "for=3s", want: sign{nic: prm.NICInterfaceSwReset}, rung: "reopen"},
	{name: "all-ones", arg: "heal=flr", want: sign{ones: true}, rung: "flr"},
	{name: "all-ones", arg: "heal=hot-reset", want: sign{ones: true}, rung: "hot-reset"},
	{name: "all-ones", arg: "heal=cold", want: sign{ones: true}, rung: "cold"},
}

// TestHealthVariants: each fault shows its signs, is revived by the reset it
// names, and leaves nothing behind.
func TestHealthVariants(t *testing.T) {
	require.Greater(t, len(healthVariants), 30)
	for _, v := range healthVariants {
		name := FaultSpec{v.name, v.arg}.String()
		for _, w := range v.with {
			name += "," + w.String()
		}
		t.Run(name, func(t *testing.T) {
			r := newRaw(t, Options{Clock: NewManualClock()}).to(phaseInit)
			for _, w := range v.with {
				r.fault(w.Name, w.Arg)
			}
			r.fault(v.name, v.arg)
			require.Equal(t, v.want, r.sign())
			require.Equal(t, v.rung, r.ladder())
			require.NoError(t, r.chip.ClearFault(""))
			require.NoError(t, r.dev.Reset())
			r.life()
			require.Equal(t, 1030, r.chip.State(0).Pages)
			require.Zero(t, r.chip.Counters(0).PagesUnmapped)
		})
	}
}
