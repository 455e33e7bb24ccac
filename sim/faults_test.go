package sim

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// post lays a command into a slot and rings.
func (r *raw) post(slot int, in []byte, outLen int) *prm.CmdQueueEntry {
	e := r.entry(slot, in, outLen)
	r.ring(slot)
	return e
}

func (r *raw) fault(name, arg string) {
	r.t.Helper()
	require.NoError(r.t, r.chip.SetFault(name, arg))
}

func (r *raw) drainEvents() int {
	n := 0
	for r.event() != nil {
		n++
	}
	r.arm()
	for _, v := range r.vectors {
		v.TryWait()
	}
	return n
}

var nop = cmd(prm.OpNop, 0, 16)

// faultTests has a test for each fault: r is up to INIT_HCA in event mode, on a
// manual clock, and the last line of each leaves the chip as it is.
var faultTests = map[string]func(t *testing.T, r *raw){
	"late": func(t *testing.T, r *raw) {
		r.fault("late", "NOP#2=50ms")
		r.post(0, nop, 16)
		require.True(t, r.done(0), "only the second")
		r.post(1, nop, 16)
		require.False(t, r.done(1))
		require.Equal(t, 1, r.chip.State(0).InFlight)
		r.ring(1)
		require.Equal(t, 1, r.chip.State(0).InFlight, "a slot in flight is not taken twice")
		r.chip.Advance(49 * time.Millisecond)
		require.False(t, r.done(1))
		r.chip.Advance(time.Millisecond)
		require.True(t, r.done(1))
		require.Equal(t, 2, r.drainEvents())
	},
	"rogue": func(t *testing.T, r *raw) {
		r.fault("rogue", "")
		r.ok(nop, 16) // it has used the command page
		before := r.chip.Counters(0)
		r.chip.Advance(time.Second)
		require.Equal(t, before, r.chip.Counters(0), "nothing while it may use the bus")
		r.busMaster(false)
		r.chip.Advance(time.Second)
		n := r.chip.Counters(0)
		require.Greater(t, n.RogueTries, uint64(9999))
		require.Equal(t, n.RogueTries, n.DMABlocked)
		require.Zero(t, n.RogueLanded)
		r.fault("rogue", "deaf")
		clear(r.bytes(r.queue, 8))
		r.chip.Advance(time.Second)
		n = r.chip.Counters(0)
		require.Greater(t, n.RogueLanded, uint64(9999), "only the address space stops it")
		require.Equal(t, bytes.Repeat([]byte{0x5a}, 8), r.bytes(r.queue, 8))
		r.busMaster(true)
		r.publish()
		require.NoError(t, r.chip.ClearFault("rogue"))
		r.busMaster(false)
		r.chip.Advance(time.Second)
		require.Equal(t, n, r.chip.Counters(0), "cleared")
		r.busMaster(true)
		require.Error(t, r.chip.SetFault("rogue", "loud"))
	},
	"lost": func(t *testing.T, r *raw) {
		r.fault("lost", "NOP#1")
		r.post(0, nop, 16)
		r.chip.Advance(time.Hour)
		require.False(t, r.done(0))
		r.post(1, nop, 16)
		require.True(t, r.done(1))
		require.NoError(t, r.dev.Reset())
		require.Zero(t, r.chip.State(0).InFlight)
		require.EqualValues(t, 1, r.chip.Counters(0).CommandsDropped)
	},
	"duplicate": func(t *testing.T, r *raw) {
		r.fault("duplicate", "#1")
		r.ok(nop, 16)
		r.ok(nop, 16)
		require.Equal(t, 3, r.drainEvents())
	},
	"lost-event": func(t *testing.T, r *raw) {
		r.fault("lost-event", "0x80d")
		r.ok(nop, 16)
		require.Zero(t, r.drainEvents())
		r.ok(cmd(prm.OpQueryPages, 3, 16), 16)
		require.Equal(t, 1, r.drainEvents())
		require.EqualValues(t, 1, r.chip.Counters(0).EventsLost)
	},
	"token": func(t *testing.T, r *raw) {
		r.fault("token", "QUERY_HCA_CAP")
		e := r.post(0, cmd(prm.OpQueryHCACap, 0, 16), 0x1010)
		require.Equal(t, r.token^0xff, e.Token())
		box := prm.AsCmdIfBox(r.bytes(uint64(e.OutputMailboxPointer63_32())<<32|uint64(e.OutputMailboxPointer31_9())<<9, prm.CmdIfBoxSize))
		require.Equal(t, r.token^0xff, box.Token())
	},
	"signature": func(t *testing.T, r *raw) {
		e := r.post(0, nop, 16)
		require.EqualValues(t, 0xfe, xor(e[:]), "an answer without output keeps the driver's signature")
		r.fault("signature", "")
		e = r.post(0, nop, 16)
		require.EqualValues(t, 0x01, xor(e[:]))
	},
	"delivery": func(t *testing.T, r *raw) {
		r.fault("delivery", "NOP#1=TOK_ERR")
		e := r.post(0, nop, 16)
		require.Equal(t, prm.DeliveryTokenErr, e.Status())
		e = r.post(0, nop, 16)
		require.Equal(t, prm.DeliveryOK, e.Status())
	},
	"status": func(t *testing.T, r *raw) {
		r.fault("status", "NOP#2=LIM_ERR/0xabcd")
		r.ok(nop, 16)
		s, y := r.status(nop, 16)
		require.Equal(t, prm.StatusLimit, s)
		require.EqualValues(t, 0xabcd, y)
		r.ok(nop, 16)
		r.fault("status", "NOP#4=BAD_PARAM_ERR")
		r.fault("status", "ALLOC_PD=5")
		s, y = r.status(cmd(prm.OpAllocPD, 0, 16), 16)
		require.Equal(t, prm.StatusBadRes, s)
		require.Equal(t, syndInjected, y)
		require.Zero(t, r.chip.State(0).PDs, "not executed")
		for range 3 {
			r.ok(nop, 16)
		}
		s, _ = r.status(nop, 16)
		require.Equal(t, prm.StatusBadParam, s)
		require.Len(t, r.chip.State(0).Faults, 3)
	},
	"reorder": func(t *testing.T, r *raw) {
		r.fault("reorder", "")
		for s := range 16 {
			r.entry(s, nop, 16)
		}
		r.write(0x18, 0xffff)
		var order []uint32
		for e := r.event(); e != nil; e = r.event() {
			order = append(order, e.EventData().CmdInterCompEvent().CommandCompletionVector())
		}
		require.Len(t, order, 16)
		sorted := true
		for i := 1; i < len(order); i++ {
			sorted = sorted && order[i] > order[i-1]
		}
		require.False(t, sorted, "%#x", order)
	},
	"lost-irq": func(t *testing.T, r *raw) {
		r.fault("lost-irq", "1#1")
		r.arm()
		r.ok(nop, 16)
		require.False(t, r.vectors[1].TryWait())
		require.NotNil(t, r.event(), "the entry is there")
		r.arm()
		r.ok(nop, 16)
		require.True(t, r.vectors[1].TryWait(), "only the first")
		require.EqualValues(t, 1, r.chip.Counters(0).InterruptsLost)
	},
	"init-never": func(t *testing.T, r *raw) {
		r.fault("init-never", "")
		r.chip.Advance(time.Hour)
		require.NotZero(t, r.read(0x1fc)>>31)
		r.post(0, nop, 16)
		require.False(t, r.done(0))
		require.NoError(t, r.chip.ClearFault("init-never"))
		require.Zero(t, r.read(0x1fc)>>31)
	},
	"init-slow": func(t *testing.T, r *raw) {
		r.fault("init-slow", "3s")
		require.Zero(t, r.read(0x1fc)>>31, "firmware is up")
		require.NoError(t, r.dev.Reset())
		require.NotZero(t, r.read(0x1fc)>>31)
		r.chip.Advance(3 * time.Second)
		require.Zero(t, r.read(0x1fc)>>31)
		r.publish()
		require.NotZero(t, r.read(0x1fc)>>31)
		r.chip.Advance(3 * time.Second)
		r.enable()
	},
	"cmdif-rev": func(t *testing.T, r *raw) {
		r.fault("cmdif-rev", "6")
		require.EqualValues(t, 6, r.read(4)>>16)
	},
	"issi": func(t *testing.T, r *raw) {
		r.fault("issi", "0")
		require.NoError(t, r.dev.Reset())
		r.publish()
		r.enable()
		out := r.ok(cmd(prm.OpQueryISSI, 0, 16), 0x70)
		require.Zero(t, prm.AsQueryISSIOut(out).SupportedISSIDw0())
		in := cmd(prm.OpSetISSI, 0, 16)
		prm.AsSetISSIIn(in).SetCurrentISSI(1)
		_, y := r.status(in, 16)
		require.Equal(t, syndISSI, y)
	},
	"page-starvation": func(t *testing.T, r *raw) {
		r.fault("page-starvation", "")
		require.NoError(t, r.dev.Reset())
		r.to(phaseISSI)
		require.Equal(t, 1024+64, r.give(prm.QueryPagesInit))
		require.Equal(t, 64, r.give(prm.QueryPagesInit), "however many it was given")
		s, y := r.status(cmd(prm.OpInitHCA, 0, 16), 16)
		require.Equal(t, prm.StatusNoRes, s)
		require.Equal(t, syndPageStarvation, y)
	},
	"pages-kept": func(t *testing.T, r *raw) {
		r.fault("pages-kept", "3")
		r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16)
		require.Len(t, r.take(2000), 1030-3)
		require.Empty(t, r.take(2000))
		require.NoError(t, r.chip.ClearFault("pages-kept"))
		require.Len(t, r.take(2000), 3)
	},
	"pages-more": func(t *testing.T, r *raw) {
		r.fault("pages-more", "5")
		e := r.event()
		require.Equal(t, prm.EventPageRequest, e.EventType())
		require.EqualValues(t, 5, e.EventData().PagesReqEvent().NumPages())
		require.Equal(t, 5, r.give(prm.QueryPagesRegular))
		require.Zero(t, r.give(prm.QueryPagesRegular))
		require.Equal(t, 1035, r.chip.State(0).Pages)
	},
	"pages-negative": func(t *testing.T, r *raw) {
		r.fault("pages-negative", "7")
		e := r.event()
		require.EqualValues(t, -7, int32(e.EventData().PagesReqEvent().NumPages()))
		require.Equal(t, -7, r.give(prm.QueryPagesRegular))
		require.Len(t, r.take(5), 5)
		require.Len(t, r.take(5), 2, "no more than was offered")
		require.Empty(t, r.take(5))
	},
	"all-ones": func(t *testing.T, r *raw) {
		r.fault("all-ones", "2s")
		require.NotEqual(t, uint32(0xffffffff), r.read(0))
		r.chip.Advance(2 * time.Second)
		require.Equal(t, uint32(0xffffffff), r.read(0))
		r.post(0, nop, 16)
		require.False(t, r.done(0), "writes vanish")
		r.fault("all-ones", "3")
		for range 2 {
			require.NotEqual(t, uint32(0xffffffff), r.read(0))
		}
		require.Equal(t, uint32(0xffffffff), r.read(0), "the third access")
		r.fault("all-ones", "")
		b := make([]byte, 2)
		require.NoError(t, r.dev.ReadRegion(7, 0, b))
		require.Equal(t, []byte{0xff, 0xff}, b)
	},
	"health-stuck": func(t *testing.T, r *raw) {
		a := r.read(0x1010)
		r.chip.Advance(time.Second)
		require.NotEqual(t, a, r.read(0x1010))
		r.fault("health-stuck", "")
		a = r.read(0x1010)
		r.chip.Advance(time.Hour)
		require.Equal(t, a, r.read(0x1010))
		for name, reset := range resets {
			reset(t, r)
			a = r.read(0x1010)
			r.chip.Advance(time.Hour)
			require.Equal(t, a, r.read(0x1010), "after %s", name)
		}
		require.NoError(t, r.chip.ClearFault("health-stuck"))
		require.NotEqual(t, a, r.read(0x1010))
	},
	"syndrome": func(t *testing.T, r *raw) {
		r.fault("syndrome", "HIGH_TEMP_ERR")
		require.EqualValues(t, prm.SyndHighTempErr, r.read(0x23c)>>16&0xff)
		require.EqualValues(t, prm.SyndHighTempErr, r.read(0x1010)>>24)
		require.Zero(t, r.read(0x238)>>31)
		r.ok(nop, 16)
		for name, reset := range resets {
			reset(t, r)
			require.EqualValues(t, prm.SyndHighTempErr, r.read(0x23c)>>16&0xff, "after %s", name)
			require.EqualValues(t, prm.SyndHighTempErr, r.read(0x1010)>>24, "after %s", name)
			require.Zero(t, r.read(0x238)>>31, "after %s", name)
		}
		require.NoError(t, r.chip.ClearFault(""))
		require.Zero(t, r.read(0x23c))
		require.NotZero(t, r.read(0x230), "the firmware version stays")
	},
	"fatal": func(t *testing.T, r *raw) {
		r.fault("fatal", "")
		require.EqualValues(t, prm.SyndFWInternalErr, r.read(0x23c)>>16&0xff)
		require.EqualValues(t, 1, r.read(0x238)>>31, "recovery flow required")
		a := r.read(0x1010)
		r.chip.Advance(time.Minute)
		require.Equal(t, a, r.read(0x1010))
		r.post(0, nop, 16)
		require.False(t, r.done(0))
		require.NoError(t, r.chip.ClearFault(""))
		require.NotZero(t, r.read(0x23c), "clearing does not revive firmware")
		// A reset through nic_interface does.
		r.write(0x14, uint32(r.queue)|uint32(prm.NICInterfaceSwReset)<<8)
		require.EqualValues(t, prm.NICInterfaceSwReset, r.read(0x14)>>8&7)
		require.NotZero(t, r.read(0x1fc)>>31, "initializing")
		r.chip.Advance(swResetTime)
		require.EqualValues(t, prm.NICInterfaceDisabled, r.read(0x14)>>8&7)
		require.Zero(t, r.read(0x1fc)>>31)
		require.Zero(t, r.read(0x23c))
		require.NotEqual(t, a, r.read(0x1010))
		r.publish()
		r.enable()
	},
}

// resets are the three ways in which firmware starts over.
var resets = map[string]func(t *testing.T, r *raw){
	"a function-level reset": func(t *testing.T, r *raw) { require.NoError(t, r.dev.Reset()) },
	"a firmware reset": func(_ *testing.T, r *raw) {
		r.write(0x14, uint32(r.queue)|uint32(prm.NICInterfaceSwReset)<<8)
		r.chip.Advance(swResetTime)
	},
	"disabling the interface": func(_ *testing.T, r *raw) {
		r.write(0x14, uint32(r.queue)|uint32(prm.NICInterfaceDisabled)<<8)
	},
}

// TestFatalWaits: raised before a driver is at work, the error comes after
// INIT_HCA, when the driver can see it; a reset heals it for good.
func TestFatalWaits(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock(), Faults: []FaultSpec{{"fatal", "HW_FATAL_ERR"}}})
	require.NoError(t, r.dev.Reset())
	r.to(phaseISSI)
	require.Zero(t, r.read(0x23c))
	r.give(prm.QueryPagesInit)
	r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
	require.EqualValues(t, prm.SyndHwFatalErr, r.read(0x23c)>>16&0xff)
	require.EqualValues(t, 1, r.read(0x238)>>31, "recovery flow required")
	r.post(0, nop, 16)
	require.False(t, r.done(0))

	require.NoError(t, r.dev.Reset())
	require.Zero(t, r.read(0x23c))
	r.pages, r.next = nil, 4<<20
	r.to(phaseInit)
	require.Zero(t, r.read(0x23c))
	r.ok(nop, 16)
}

// TestISSIZero: firmware that does not offer ISSI 1, or has no QUERY_ISSI, works
// with ISSI 0 and without SET_ISSI, which Linux's mlx5_core_set_issi leaves out
// then.
func TestISSIZero(t *testing.T) {
	for _, f := range []FaultSpec{{"issi", "0"}, {"issi", "1"}, {"status", "QUERY_ISSI=BAD_OP_ERR"}} {
		r := newRaw(t, Options{Faults: []FaultSpec{f}})
		r.publish()
		r.enable()
		pages := cmd(prm.OpQueryPages, uint16(prm.QueryPagesBoot), 16)
		_, y := r.status(pages, 16)
		require.Equal(t, syndNoISSI, y, "%v: the driver has not asked", f)
		r.status(cmd(prm.OpQueryISSI, 0, 16), 0x70)
		r.give(prm.QueryPagesBoot)
		in := cmd(prm.OpSetISSI, 0, 16)
		_, y = r.status(in, 16)
		require.Equal(t, syndISSISet, y, "%v: too late", f)
		r.give(prm.QueryPagesInit)
		r.ok(cmd(prm.OpInitHCA, 0, 16), 16)
		r.ok(nop, 16)
		require.Zero(t, r.chip.State(0).ISSI)
		require.Equal(t, "init", r.chip.State(0).Phase)

		// The next life begins anew.
		r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16)
		r.enable()
		_, y = r.status(pages, 16)
		require.Equal(t, syndNoISSI, y, "%v", f)
	}
	// An offer without 0 and 1 can still be taken.
	r := newRaw(t, Options{Faults: []FaultSpec{{"issi", "0x80000004"}}})
	r.publish()
	r.enable()
	r.ok(cmd(prm.OpQueryISSI, 0, 16), 0x70)
	in := cmd(prm.OpSetISSI, 0, 16)
	prm.AsSetISSIIn(in).SetCurrentISSI(31)
	r.ok(in, 16)
	require.Equal(t, 31, r.chip.State(0).ISSI)
	// Where ISSI 1 is offered, SET_ISSI must come.
	r = newRaw(t, Options{})
	r.publish()
	r.enable()
	r.ok(cmd(prm.OpQueryISSI, 0, 16), 0x70)
	_, y := r.status(cmd(prm.OpQueryPages, uint16(prm.QueryPagesBoot), 16), 16)
	require.Equal(t, syndNoISSI, y)
}

// TestFaults: each fault of firmware does what its table says.
func TestFaults(t *testing.T) {
	data := map[string]bool{}                                   // tested with the data engine…
	for _, k := range append(dataFaults(), tracerFaults()...) { // and with the tracer
		data[k.Name] = true
	}
	require.Len(t, faultTests, len(Faults())-len(data))
	for _, f := range Faults() {
		if data[f.Name] {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			require.NotEmpty(t, f.Meaning)
			require.Contains(t, faultTests, f.Name)
			r := newRaw(t, Options{Clock: NewManualClock(), Seed: 3}).to(phaseInit)
			r.eventMode(6)
			faultTests[f.Name](t, r)
			require.NoError(t, r.chip.ClearFault(""))
			require.Empty(t, r.chip.State(0).Faults)

			// Whatever it was: after a reset the device comes up.
			require.NoError(t, r.dev.Reset())
			r.pages = nil
			r.next = 4 << 20
			r.to(phaseInit)
			require.Equal(t, "init", r.chip.State(0).Phase)
		})
	}
}

// TestFaultWaits: page faults raised before there is a listener act when one
// comes, after its completion; once.
func TestFaultWaits(t *testing.T) {
	r := newRaw(t, Options{Faults: []FaultSpec{{"pages-more", "3"}}}).to(phaseInit)
	r.eventMode(4)
	e := r.event()
	require.NotNil(t, e)
	require.Equal(t, prm.EventPageRequest, e.EventType())
	r.ok(number(prm.OpDestroyEQ, r.eqn), 16)
	r.eqn, r.eqAt = r.createEQ(4, 1, 1<<prm.EventPageRequest)
	r.ci = 0
	require.Nil(t, r.event(), "not again in this life")
}

// TestWallClock: without a clock of its own the chip lives in real time, which
// synctest fakes; its goroutine is there only while something is pending.
func TestWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRaw(t, Options{Load: 100, Seed: 7})
		r.publish()
		start := time.Now()
		for s := range 32 {
			r.entry(s, cmd(prm.OpEnableHCA, 0, 16), 16)
		}
		r.write(0x18, 0xffff_ffff)
		require.Equal(t, 32, r.chip.State(0).InFlight)
		for r.chip.State(0).InFlight > 0 {
			time.Sleep(time.Millisecond)
		}
		took := time.Since(start)
		require.Greater(t, took, 10*time.Millisecond)
		require.Less(t, took, time.Second)
		r.post(0, nop, 16)
		require.NoError(t, r.dev.Reset(), "what was pending is gone")
		time.Sleep(time.Second)
		require.False(t, r.done(0))
	})
}

// TestSeed: a seed decides the order of completions.
func TestSeed(t *testing.T) {
	order := func(seed uint64) (o []int) {
		r := newRaw(t, Options{Load: 1000, Seed: seed, Clock: NewManualClock()})
		r.publish()
		for s := range 16 {
			r.entry(s, nop, 16)
		}
		r.write(0x18, 0xffff)
		seen := map[int]bool{}
		for len(o) < 16 {
			r.chip.Advance(time.Microsecond)
			for s := range 16 {
				if r.done(s) && !seen[s] {
					seen[s] = true
					o = append(o, s)
				}
			}
		}
		return o
	}
	a := order(1)
	require.Equal(t, a, order(1))
	require.NotEqual(t, a, order(2))
	require.NotEqual(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, a)
}

// TestLateAfterUnmap: a late completion whose memory is gone touches nothing and
// is counted.
func TestLateAfterUnmap(t *testing.T) {
	r := newRaw(t, Options{Clock: NewManualClock(), Faults: []FaultSpec{{"late", "NOP=1s"}}}).to(phaseInit)
	r.eventMode(4)
	e := r.post(3, nop, 16)
	was := *e
	require.NoError(t, r.dev.DMA().Unmap(arenaIOVA, arenaSize))
	r.chip.Advance(time.Second)
	require.Equal(t, was, *e)
	require.EqualValues(t, 1, r.chip.Counters(0).DMAFaults)
	require.EqualValues(t, 1, r.chip.Counters(0).DMAAfterClose, "it was mapped before")
	require.Zero(t, r.chip.State(0).InFlight)
}
