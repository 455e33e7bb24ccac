package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// TestTracerRegisters: what the registers show before anyone owns the tracer.
func TestTracerRegisters(t *testing.T) {
	r := newTracer(newFlow(t, Options{}), 0, nil)
	b, _ := r.reg(prm.RegMcam, nil, false)
	require.EqualValues(t, 0xf, (*prm.McamAccessReg)(prm.AsMcamReg(b).MngAccessRegCapMask()[:]).TracerRegisters())
	b, y := r.reg(prm.RegMtrcCap, nil, false)
	require.Equal(t, syndOK, y)
	c := prm.AsMtrcCap(b)
	require.False(t, c.TraceOwner())
	require.True(t, c.TraceToMemory())
	require.EqualValues(t, 0, c.TrcVer())
	require.EqualValues(t, 12, c.LogMaxTraceBufferSize())
	require.EqualValues(t, traceSections, c.NumStringDb())
	require.Less(t, int(c.FirstStringTrace())+int(c.NumStringTrace()), 0xff)

	// Read-only bits of a write are not looked at.
	b, y = r.reg(prm.RegMtrcCap, func(img []byte) {
		for i := range img {
			img[i] = 0xff
		}
	}, true)
	require.Equal(t, syndOK, y)
	require.EqualValues(t, 12, prm.AsMtrcCap(b).LogMaxTraceBufferSize())
	require.True(t, prm.AsMtrcCap(b).TraceOwner())

	for _, bad := range []func(c *prm.MtrcConf){
		func(c *prm.MtrcConf) { c.SetTraceMode(0) },
		func(c *prm.MtrcConf) { c.SetTraceMode(2) },
		func(c *prm.MtrcConf) { c.SetLogTraceBufferSize(13) },
	} {
		_, y = r.reg(prm.RegMtrcConf, func(img []byte) {
			prm.AsMtrcConf(img).SetTraceMode(1)
			bad(prm.AsMtrcConf(img))
		}, true)
		require.Equal(t, syndTraceConf, y)
	}
	_, y = r.reg(prm.RegMtrcCtrl, func(img []byte) {
		prm.AsMtrcCtrl(img).SetModifyFieldSelect(1)
		prm.AsMtrcCtrl(img).SetTraceStatus(2)
	}, true)
	require.Equal(t, syndTraceStatus, y)

	require.Equal(t, syndOK, r.conf())
	b, _ = r.reg(prm.RegMtrcConf, nil, false)
	require.Equal(t, r.buf.key, prm.AsMtrcConf(b).TraceMKey())
	r.ctrl(1, true)
	b, _ = r.reg(prm.RegMtrcCtrl, nil, false)
	require.EqualValues(t, 1, prm.AsMtrcCtrl(b).TraceStatus())
	require.False(t, prm.AsMtrcCtrl(b).ArmEvent(), "write only")
	require.Zero(t, prm.AsMtrcCtrl(b).ModifyFieldSelect(), "write only")

	old := newRaw(t, Options{Profile: "cx4"}).to(phaseISSI)
	for id := prm.RegMtrcCap; id <= prm.RegMtrcCtrl; id++ {
		_, y = old.reg(id, nil, false)
		require.Equal(t, syndRegister, y, "the ConnectX-4 of the capture announces no registers")
	}
	none := newRaw(t, Options{Faults: []FaultSpec{{"trace-no-memory", ""}}}).to(phaseISSI)
	b, _ = none.reg(prm.RegMtrcCap, nil, false)
	require.False(t, prm.AsMtrcCap(b).TraceToMemory())
}

// TestTracerClock: the tracer's clock is the device's.
func TestTracerClock(t *testing.T) {
	r := newTracing(t, Options{}, 0)
	now := func() uint64 {
		b, _ := r.reg(prm.RegMtrcCtrl, nil, false)
		c := prm.AsMtrcCtrl(b)
		return uint64(c.CurrentTimestamp52_32())<<32 | uint64(c.CurrentTimestamp31_0())
	}
	a := now()
	r.chip.Advance(time.Second)
	require.InDelta(t, 156_250_000, now()-a, 2000, "a tick is a device_frequency_khz tick")
	timer := uint64(r.read(0x1000))<<32 | uint64(r.read(0x1004))
	require.InDelta(t, timer, now(), 2000)
}

// TestTracerStrings: every section reads whole, by both methods; strings lie at
// the base and at the end; reads outside are refused.
func TestTracerStrings(t *testing.T) {
	r := newTracer(newFlow(t, Options{}), 0, nil)
	b, _ := r.reg(prm.RegMtrcCap, nil, false)
	c := prm.AsMtrcCap(b)
	end, long, empty := 0, 0, 0
	for i := range int(c.NumStringDb()) {
		s := r.section(i)
		require.Zero(t, len(s)%64)
		require.Equal(t, r.chip.tracer.strings.sections[i].data, s)
		if len(s) == 0 {
			empty++
			continue
		}
		require.Regexp(t, `^load %u is at `, string(s[:40]), "a string lies at the base")
		if bytes.HasSuffix(s, []byte("section\x00")) || bytes.HasSuffix(s, []byte("too\x00")) {
			end++
		}
		if len(s) > 256 && len(s)%256 != 0 {
			long++
		}
	}
	require.Equal(t, 3, end, "strings that end with their section")
	require.Positive(t, long, "a section of 256-byte reads and 64-byte ones")
	require.Equal(t, 1, empty)

	read := func(method uint16, i uint8, from, n uint32, room int) (synd, []byte) {
		in := cmd(prm.OpAccessReg, method, 16+8)
		prm.AsAccessRegisterIn(in).SetRegisterID(prm.RegMtrcStdb)
		s := prm.AsMtrcStdb(in[16:])
		s.SetStringDbIndex(i)
		s.SetStartOffset(from)
		s.SetReadSize(n)
		_, out := r.send(in, room)
		return synd(uint32(out[4])<<24 | uint32(out[5])<<16 | uint32(out[6])<<8 | uint32(out[7])), out
	}
	y, out := read(regRead, sectLoad, 64, 704, 16+8+704)
	require.Equal(t, syndOK, y)
	require.Equal(t, r.section(sectLoad)[64:768], out[24:])
	size := uint32(len(r.section(sectCore)))
	for _, bad := range []struct {
		i       uint8
		from, n uint32
	}{{traceSections, 0, 64}, {15, 0, 64}, {sectCore, 32, 64}, {sectCore, 0, 32}, {sectCore, 0, 0}, {sectCore, size, 64}, {sectCore, 0, size + 64}, {sectCore, ^uint32(0) &^ 63, 128}, {sectEmpty, 0, 64}} {
		y, _ = read(regWrite, bad.i, bad.from, bad.n, 0x4000)
		require.Equal(t, syndTraceSection, y, "%+v", bad)
	}
	y, _ = read(regWrite, sectCore, 0, 128, 16+8+64)
	require.Equal(t, syndOutputShort, y)

	other := newTracer(newFlow(t, Options{Firmware: Version{16, 35, 4031}}), 0, nil)
	require.NotEqual(t, r.section(sectCore), other.section(sectCore), "another firmware has other sections")
}

// TestTracerOwnership: two functions and a tool want the tracer.
func TestTracerOwnership(t *testing.T) {
	r0 := newFlow(t, Options{Functions: 2})
	a := newTracer(r0, 0, nil)
	b := newTracer(onFunction(t, r0.chip, 1).to(phaseInit), 0, nil)
	changed := []prm.TracerEventSubtype{prm.TracerEventOwnershipChange}

	require.True(t, a.acquire())
	require.True(t, a.acquire(), "the owner may ask again")
	require.False(t, b.acquire())
	require.True(t, a.owns())
	require.False(t, b.owns())
	require.Empty(t, a.tracerEvents())
	require.Empty(t, b.tracerEvents(), "acquiring raises no event")
	require.Equal(t, "function 0", r0.chip.TraceStats().Owner)
	require.Equal(t, 1, r0.chip.State(0).TracerOwned)
	require.Equal(t, 0, r0.chip.State(1).TracerOwned)

	// Who does not own it changes nothing.
	a.start()
	require.Equal(t, syndOK, b.conf())
	require.Zero(t, b.ctrl(0, true).TraceStatus())
	img, _ := b.reg(prm.RegMtrcConf, nil, false)
	require.Equal(t, make([]byte, len(img)), img)
	img, _ = a.reg(prm.RegMtrcConf, nil, false)
	require.Equal(t, a.buf.key, prm.AsMtrcConf(img).TraceMKey())
	b.release()
	require.True(t, a.owns())
	_, err := r0.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)

	a.release()
	require.Empty(t, a.tracerEvents(), "it knows")
	require.Equal(t, changed, b.tracerEvents())
	_, err = r0.chip.EmitTrace(1, TracePlain)
	require.ErrorIs(t, err, ErrNotTracing)
	require.True(t, b.acquire())
	b.start()

	r0.chip.TakeTracer(false)
	require.Equal(t, "tool", r0.chip.TraceStats().Owner)
	require.Equal(t, changed, a.tracerEvents())
	require.Equal(t, changed, b.tracerEvents())
	require.False(t, b.owns())
	require.False(t, b.acquire())
	r0.chip.GiveTracer()
	require.Equal(t, changed, a.tracerEvents())
	require.Equal(t, changed, b.tracerEvents())
	require.True(t, a.acquire())
	require.Equal(t, syndOK, a.conf())
	a.start()
	require.NotEmpty(t, func() []rawBlock { r0.chip.Advance(3 * time.Millisecond); return a.drain() }())

	// A silent one is seen by asking only.
	r0.chip.TakeTracer(true)
	r0.chip.GiveTracer()
	require.Empty(t, a.tracerEvents())
	require.Empty(t, b.tracerEvents())
	require.False(t, a.owns())
	require.Equal(t, "nobody", r0.chip.TraceStats().Owner)
}

// TestTracerReset: whatever ends a function's memory keys ends its ownership.
func TestTracerReset(t *testing.T) {
	ends := map[string]func(r *rawTracer){
		"FLR":      func(r *rawTracer) { require.NoError(t, r.dev.Reset()) },
		"teardown": func(r *rawTracer) { r.ok(cmd(prm.OpTeardownHCA, 0, 16), 16) },
		"disabled": func(r *rawTracer) { r.write(isegQueueLow, uint32(r.queue)|uint32(prm.NICInterfaceDisabled)<<8) },
		"firmware": func(r *rawTracer) { r.write(isegQueueLow, uint32(r.queue)|uint32(prm.NICInterfaceSwReset)<<8) },
		"close": func(r *rawTracer) {
			require.NoError(t, r.dev.Close())
			r.raw.open()
		},
	}
	for name, end := range ends {
		for _, kept := range []bool{false, true} {
			o := Options{Functions: 2}
			if kept {
				o.Faults = []FaultSpec{{"trace-kept", ""}}
			}
			r := newTracing(t, o, 0)
			other := newTracer(onFunction(t, r.chip, 1).to(phaseInit), 0, nil)
			end(r)
			if name != "firmware" {
				require.Equal(t, !kept, len(other.tracerEvents()) == 1, name)
			}
			require.Equal(t, map[bool]string{true: "function 0", false: "nobody"}[kept], r.chip.TraceStats().Owner, name)
			require.False(t, r.chip.TraceStats().On, name)
			_, err := r.chip.EmitTrace(1, TracePlain)
			require.ErrorIs(t, err, ErrNotTracing, name)
			r.chip.Advance(time.Second) // what was scheduled finds nothing to do
			if name == "firmware" {
				continue
			}
			require.Equal(t, !kept, other.acquire(), name)
		}
	}
}

// TestTracerStream: every message of a load comes with its own time and text, in
// blocks that keep the invariants, whatever the device's way and wherever the
// clock stands; Linux's rule agrees where the device is tidy.
func TestTracerStream(t *testing.T) {
	for name, faults := range map[string][]FaultSpec{
		"tidy":    nil,
		"awkward": {{"trace-awkward", ""}},
		"wrap":    {{"trace-clock-wrap", "30000"}},
		"torn":    {{"trace-torn", ""}},
		"both":    {{"trace-awkward", ""}, {"trace-clock-wrap", "70000"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTracer(newFlow(t, Options{Faults: faults}), 6, nil)
			r.chip.KeepTrace(1 << 20)
			require.True(t, r.acquire())
			r.start()
			rng := rand.New(rand.NewPCG(1, 2))
			var all []rawBlock
			n := 0
			for range 400 {
				k := rng.IntN(20)
				_, err := r.chip.EmitTrace(k, TracePlain)
				require.NoError(t, err)
				n += k
				r.chip.Advance(time.Duration(rng.IntN(5000))) // up to 781 ticks
				all = append(all, r.drain()...)
			}
			r.ctrl(0, false)
			all = append(all, r.drain()...)
			got := r.decode(all)
			r.truth(got)
			require.Len(t, got, n+1, "and the one that says that the tracer is on")
			last, early := all[0].time()-1, 0
			for _, b := range all {
				require.True(t, newer(b.time(), last&traceMask))
				last = b.time()
			}
			for _, m := range got {
				if m.at != m.linux {
					early++
				}
			}
			require.Equal(t, name == "awkward" || name == "both", early > 0, "Linux computes %d other times", early)
			if strings.Contains(name, "wrap") || name == "both" {
				require.Greater(t, all[0].time(), all[len(all)-1].time(), "the clock went round")
			}
			kept := r.chip.KeptTrace().Blocks
			require.Equal(t, len(all), len(kept))
			for i, b := range all {
				require.Equal(t, TraceBlock{uint64(i), i % (r.buf.n / traceBlock), b.time(), true}, kept[i])
			}
		})
	}
}

// TestTracerDates: between a message and the timestamp event that dates it lie 1
// to 128 ticks, for any spacing.
func TestTracerDates(t *testing.T) {
	for _, awkward := range []bool{false, true} {
		o := Options{}
		if awkward {
			o.Faults = []FaultSpec{{"trace-awkward", ""}}
		}
		r := newTracing(t, o, 8)
		x := &r.chip.tracer
		rng := rand.New(rand.NewPCG(3, 4))
		var want []uint64
		at := x.ticks() + 1
		for range 5000 {
			at = max(at+uint64(rng.IntN(300)), x.stream.last+1)
			x.message(traceFirst, x.strings.pointers[msgLoad], []uint32{7}, at, &logged{})
			want = append(want, at)
		}
		x.close(at)
		var headers []uint64
		longest := uint64(0)
		for _, b := range r.drain() {
			for _, w := range b {
				switch {
				case w>>48&0xff == traceStamp:
					for _, h := range headers {
						d := word53(w) - h
						require.True(t, d >= 1 && d <= 128, "%d ticks", d)
						longest = max(longest, d)
					}
					headers = nil
				case w>>32&7 == 0 && uint32(w) == x.strings.pointers[msgLoad]:
					require.Equal(t, want[0]&127, w>>56&127)
					headers, want = append(headers, want[0]), want[1:]
				}
			}
		}
		require.Empty(t, want)
		require.EqualValues(t, 128, longest, "the limit is reached")
	}
}

// TestTracerArm: one event for what was written since the last one.
func TestTracerArm(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	emit := func() {
		_, err := r.chip.EmitTrace(100, TracePlain)
		require.NoError(t, err)
	}
	available := []prm.TracerEventSubtype{prm.TracerEventTracesAvailable}
	emit()
	require.Empty(t, r.tracerEvents(), "not armed")
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "there were blocks already")
	emit()
	require.Empty(t, r.tracerEvents(), "one event for each arming")
	r.drain()
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "blocks that no event told of")
	r.armTrace()
	require.Empty(t, r.tracerEvents())
	emit()
	require.Equal(t, available, r.tracerEvents())
	// Arming and reading registers leaves no trace of its own.
	r.chip.Advance(5 * time.Millisecond)
	r.drain()
	r.armTrace()
	require.Equal(t, available, r.tracerEvents(), "more than one block was written")
	for range 5 {
		r.armTrace()
		r.owns()
		r.chip.Advance(5 * time.Millisecond)
		require.Empty(t, r.tracerEvents())
		require.Empty(t, r.drain())
	}
	r.fault("trace-lost-event", "")
	emit()
	require.Empty(t, r.tracerEvents())
	require.NotEmpty(t, r.drain(), "polling finds them")
}

// TestTracerKeys: a key that breaks a rule is accepted, and nothing is written.
func TestTracerKeys(t *testing.T) {
	broken := map[string]func(*prm.MKC){
		"remote read":     func(m *prm.MKC) { m.SetRr(true) },
		"remote write":    func(m *prm.MKC) { m.SetRw(true) },
		"remote atomic":   func(m *prm.MKC) { m.SetA(true) },
		"no local write":  func(m *prm.MKC) { m.SetLw(false) },
		"UMR":             func(m *prm.MKC) { m.SetUMREn(true) },
		"a QP of its own": func(m *prm.MKC) { m.SetQPN(5) },
		"too short":       func(m *prm.MKC) { m.SetLen(m.Len() - 1) },
		"free":            func(m *prm.MKC) { m.SetFree(true) },
		"indirect":        func(m *prm.MKC) { m.SetAccessMode1_0(modeKLMs) },
		"unaligned":       func(m *prm.MKC) { m.SetStartAddr(m.StartAddr() + 256); m.SetLen(m.Len() - 256) },
		"physical":        func(m *prm.MKC) { m.SetAccessMode1_0(modePA); m.SetLength64(true) },
	}
	for name, key := range broken {
		r := newTracer(newFlow(t, Options{}), 0, key)
		require.True(t, r.acquire())
		r.start()
		_, err := r.chip.EmitTrace(500, TracePlain)
		require.NoError(t, err)
		require.Equal(t, make([]byte, r.buf.n), r.buf.bytes(), name)
		s := r.chip.TraceStats()
		require.Zero(t, s.Blocks, name)
		require.Positive(t, s.BlocksUnwritten, name)
		require.Zero(t, r.chip.Counters(0).DMAFaults, name)

		// The same with a device that says so, and one that does not mind.
		r.fault("trace-mkey", "refused")
		require.Equal(t, syndTraceKey, r.conf(), name)
		r.fault("trace-mkey", "tolerated")
		require.Equal(t, syndOK, r.conf())
		_, err = r.chip.EmitTrace(10, TracePlain)
		require.NoError(t, err)
		if name != "free" && name != "indirect" && name != "physical" {
			require.Positive(t, r.chip.TraceStats().Blocks, name)
		}
	}
	// A start address of 0 is as good as the bus address.
	r := newTracer(newFlow(t, Options{}), 2, func(m *prm.MKC) { m.SetStartAddr(0) })
	require.True(t, r.acquire())
	r.start()
	_, err := r.chip.EmitTrace(100, TracePlain)
	require.NoError(t, err)
	require.Len(t, r.decode(r.drain()), 101)
}

// TestTracerLost: blocks that could not be written leave a mark, and so does
// what firmware itself lost.
func TestTracerLost(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	emit := func(n int) {
		_, err := r.chip.EmitTrace(n, TracePlain)
		require.NoError(t, err)
	}
	emit(50)
	r.busMaster(false)
	emit(50)
	r.busMaster(true)
	emit(50)
	got := r.decode(r.drain())
	r.truth(got)
	var marks []string
	for _, m := range got {
		if m.lost {
			marks = append(marks, m.text)
		}
	}
	require.Len(t, marks, 1)
	require.Contains(t, marks[0], "load 100")
	require.Positive(t, r.chip.TraceStats().BlocksUnwritten)

	r.fault("trace-drop", "5")
	emit(100)
	got = r.decode(r.drain())
	lost := 0
	for _, m := range got {
		if m.lost {
			lost++
		}
	}
	require.Len(t, got, 80)
	require.InDelta(t, 20, lost, 1)
	require.EqualValues(t, 20, r.chip.TraceStats().Dropped)
}

// TestTracerFirmware: the trace says what firmware did.
func TestTracerFirmware(t *testing.T) {
	r := newTracing(t, Options{}, 4)
	r.ok(cmd(prm.OpNop, 0, 16), 16)
	s, y := r.status(cmd(prm.OpNop, 3, 16), 16)
	require.Equal(t, prm.StatusBadOp, s)
	n := r.createQP(prm.QPTypeRC, nil)
	r.qpTo(n, prm.QPStateRts)
	r.chip.RequestPages(0, -3)
	r.chip.SetLink(0, false)
	r.fault("syndrome", "HIGH_TEMP_ERR")
	r.chip.Advance(5 * time.Millisecond)
	got := r.decode(r.drain())
	r.truth(got)
	var text []string
	for _, m := range got {
		text = append(text, m.text)
	}
	all := strings.Join(text, "\n")
	require.Equal(t, "function 0: the tracer is on, 256 blocks", text[0])
	for _, want := range []string{
		"function 0: command 0x080d op_mod 0x0 status 0x00 syndrome 0x00000000",
		fmt.Sprintf("function 0: command 0x080d op_mod 0x3 status 0x02 syndrome 0x%08x", uint32(y)),
		fmt.Sprintf("function 0: QP 0x%06x goes from state 0 to 1", n),
		fmt.Sprintf("function 0: QP 0x%06x goes from state 2 to 3", n),
		"function 0: -3 pages wanted",
		"function 0: link state 0",
		"health syndrome 0x10, extended 0x0000, severity",
	} {
		require.Contains(t, all, want)
	}
	// A fatal error is the last word.
	r.fault("fatal", "")
	got = r.decode(r.drain())
	require.Contains(t, got[len(got)-1].text, "health syndrome")
	_, err := r.chip.EmitTrace(1, TracePlain)
	require.NoError(t, err)
}

// TestTracerOther: the trace of one function tells of the others, too.
func TestTracerOther(t *testing.T) {
	r := newTracing(t, Options{Functions: 2}, 4)
	other := onFunction(t, r.chip, 1).to(phaseInit)
	require.NoError(t, other.dev.Reset())
	r.chip.Advance(5 * time.Millisecond)
	var text []string
	for _, m := range r.decode(r.drain()) {
		text = append(text, m.text)
	}
	require.Contains(t, text, "function 1: command 0x0104 op_mod 0x0 status 0x00 syndrome 0x00000000")
	require.Contains(t, text, "function 1: reset")
	require.Contains(t, strings.Join(text, "\n"), "function 1: up, ")
}
