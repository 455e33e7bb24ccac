package sim

import (
	"bytes"
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
