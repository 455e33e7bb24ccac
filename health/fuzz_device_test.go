package health

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// What the parts may cost in accesses, whatever the device answers. They follow from
// the number of tries (vscTries, bufferReads, …) and nothing else, so that a loop
// that only the device ends goes over them.
const (
	costHold   = 4*vscTries + 8 // take the gateway and give it back
	costSelect = 4
	costAccess = vscTries + 5 // one dword of a space
	costLock   = vscTries + 1 + 3*costAccess
	costBuffer = bufferReads * BufferSize / 4
	costLook   = 2*4 + 2*costBuffer // of the monitor: twice four dwords, the buffer, the buffer as evidence

	fuzzDump  = 256 // bytes of a dump at most
	fuzzWords = fuzzDump / 4

	// A recovery is bounded by the time of its rungs: a look at the semaphore each 20
	// ms, which may take as many tickets of 0 as there are tries, twice; tries of the
	// gateway, so many a millisecond; a semaphore given back, and once more later.
	fuzzRung     = 2 * time.Second
	costRecovery = int(fuzzRung/presentPause)*(3*vscTries+256) + 5*int(fuzzRung/vscPause)*vscSpin +
		2*3*(costHold+costSelect+2*costAccess) + 8192
)

// hostileCase is one way in.
type hostileCase struct {
	limit int
	run   func(t *testing.T, h *hostileHW, flags byte)
}

var hostileCases = []hostileCase{
	{64 + costHold + 15*costSelect + fuzzWords*costAccess + 4*(costHold+costSelect+costAccess), hostileGateway},
	{64 + costHold + costSelect + costLock + 3*(costHold+costSelect+2*costAccess), hostileSemaphore},
	{64 + costHold + 2*costSelect + costLock + fuzzWords*costAccess + 3*(costSelect+2*costAccess), hostileDump},
	{4000, hostileSegment},
	{8 + 2*42*costLook + 3*42, hostileMonitor},
	{costRecovery, hostileRecovery},
}

// typedGateway: what the gateway answers says where it failed.
func typedGateway(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var e *VSCError
		require.ErrorAs(t, err, &e)
		require.NotEmpty(t, e.Op)
		require.Error(t, e.Err)
		require.Less(t, len(err.Error()), 4096)
	}
}

func openHostile(t *testing.T, h *hostileHW) *VSC {
	v, err := OpenVSC(h)
	typedGateway(t, err)
	if err != nil {
		require.Nil(t, v)
		return nil
	}
	require.GreaterOrEqual(t, v.Offset(), 0x40)
	require.LessOrEqual(t, v.Offset()+vscLength, 256)
	require.Equal(t, h.capOff, v.Offset())
	return v
}

func hostileGateway(t *testing.T, h *hostileHW, flags byte) {
	v := openHostile(t, h)
	if v == nil {
		return
	}
	have, err := v.Spaces(t.Context())
	typedGateway(t, err)
	require.LessOrEqual(t, len(have), len(KnownSpaces()))
	s := KnownSpaces()[int(flags)%len(KnownSpaces())]
	_, err = v.Read(t.Context(), s, 4*uint32(flags))
	typedGateway(t, err)
	typedGateway(t, v.Write(t.Context(), s, 4*uint32(flags), 0x1234))
	holes, err := v.ReadBlock(t.Context(), SpaceScanCR, uint32(flags)&^3, make([]uint32, fuzzWords))
	typedGateway(t, err)
	require.GreaterOrEqual(t, holes, 0)
	require.LessOrEqual(t, holes, fuzzWords)
	_, err = v.Read(t.Context(), SpaceCR, vscAddrMask+1)
	typedGateway(t, err)
	require.Error(t, err)
}

func hostileSemaphore(t *testing.T, h *hostileHW, _ byte) {
	v := openHostile(t, h)
	if v == nil {
		return
	}
	release, err := v.LockSWReset(t.Context())
	typedGateway(t, err)
	require.Equal(t, err == nil, release != nil)
	if release != nil {
		typedGateway(t, release())
	}
}

func hostileDump(t *testing.T, h *hostileHW, flags byte) {
	v := openHostile(t, h)
	if v == nil {
		return
	}
	start, limit := time.Now(), time.Duration(1+int(flags))*time.Millisecond
	d, err := v.DumpCR(t.Context(), CRDumpOptions{Limit: limit, MaxBytes: fuzzDump})
	typedGateway(t, err)
	require.LessOrEqual(t, time.Since(start), limit+unlockLimit)
	require.Equal(t, err == nil, d != nil)
	if d == nil {
		return
	}
	require.LessOrEqual(t, d.Size, uint32(fuzzDump))
	require.LessOrEqual(t, d.Words, fuzzWords)
	n, end := 0, uint32(0)
	for i, s := range d.Spans {
		require.NotEmpty(t, s.Words)
		require.True(t, i == 0 || s.Addr > end, "spans are apart and in order")
		n, end = n+len(s.Words), s.Addr+4*uint32(len(s.Words))
	}
	require.Equal(t, d.Words, n)
	require.LessOrEqual(t, end, d.Size)
	b, err := d.AppendBinary(nil)
	require.NoError(t, err)
	require.Len(t, b, 4+8*len(d.Spans)+4*n)
}

// hostileSegment reads everything that BAR 0 tells without a command.
func hostileSegment(t *testing.T, h *hostileHW, _ byte) {
	smp := NewSampler(h.window)
	var s Sample
	smp.Read(&s)
	require.Equal(t, 4, h.bar)
	require.LessOrEqual(t, s.Ones(), 4)
	var b Buffer
	smp.ReadBuffer(&b)
	require.LessOrEqual(t, h.bar, 4+costBuffer)
	require.LessOrEqual(t, b.Reads, bufferReads)
	again := DecodeBuffer(b.Raw)
	again.Torn, again.Reads = b.Torn, b.Reads
	require.Equal(t, b, again)
	require.NotEmpty(t, b.sentence())
	for _, f := range ReadFields(h.window) {
		require.Zero(t, uint64(f.Value)>>f.Width(), f.Name)
	}
	seg := initseg.New(h.window)
	seg.State()
	seg.Health()
	seg.TimeoutsSupported()
	seg.CommandTimeout()
	seg.InitTimeout()
	seg.InternalTimer()
	seg.RealTime()
	if q, err := seg.Queue(); err == nil {
		require.LessOrEqual(t, q.Entries()*q.Stride(), initseg.QueuePageSize)
	}
	var raw [initseg.HealthBufferSize]byte
	seg.HealthBuffer(&raw)
	for _, err := range []error{seg.Alive(), seg.Fatal(), seg.CheckRevision()} {
		require.True(t, err == nil || err.Error() != "")
	}
	err := seg.WaitReady(t.Context(), initseg.PreInit, initseg.WaitOptions{Limit: time.Second})
	var late *initseg.NotReadyError
	require.True(t, err == nil || errors.As(err, &late) || errors.Is(err, vfio.ErrGone), "%v", err)
}

// hostileMonitor watches the device for twenty periods and asks it for registers.
func hostileMonitor(t *testing.T, h *hostileHW, flags byte) {
	o := Options{
		Window: h.window, Device: "hostile", Period: time.Second, ProbePeriod: time.Second, History: 8, Events: 4,
		Owner: flags&1 != 0, AfterReset: flags&2 != 0, Registers: hostileRegisters{h},
	}
	m, err := New(o)
	require.NoError(t, err)
	require.NoError(t, m.Start(t.Context()))
	time.Sleep(10 * time.Second)
	if flags&4 != 0 && m.BeginRecovery() {
		time.Sleep(time.Second)
		m.EndRecovery(RecoveryEnd{Reset: flags&8 != 0})
	}
	time.Sleep(10 * time.Second)
	stopping := time.Now()
	m.Stop()
	require.LessOrEqual(t, time.Since(stopping), DefaultProbeLimit)
	r := m.Report()
	require.LessOrEqual(t, r.Counts.Samples, uint64(42))
	require.LessOrEqual(t, h.bar, 8+int(r.Counts.Samples)*costLook)
	require.LessOrEqual(t, h.regs, 3*22)
	require.LessOrEqual(t, len(m.History()), 8)
	require.Equal(t, r.Verdict.Condition.Info().State, r.Verdict.State)
	require.NotEmpty(t, r.Verdict.Explanation)
	for _, c := range r.Verdict.Explanation {
		require.GreaterOrEqual(t, c, ' ', "an explanation is one line: %q", r.Verdict.Explanation)
	}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Less(t, len(text), 64<<10)
	n := 0
	for range m.Events() {
		n++
	}
	require.LessOrEqual(t, n, 4)
}

// hostileRecovery climbs the whole ladder on it.
func hostileRecovery(t *testing.T, h *hostileHW, flags byte) {
	conditions := []Condition{"", AllOnes, FatalRFR, CounterStopped, NICSWReset, SyndromeNonFatal, CommandsDead, FatalCRR}
	limits := map[Rung]time.Duration{}
	for _, i := range Rungs() {
		limits[i.Rung] = fuzzRung
	}
	x := h.target(t)
	x.Window, x.Config = h.window, h
	x.Registers = func(context.Context) (RegisterAccess, error) { return hostileRegisters{h}, nil }
	x.LinkToggle = func(context.Context) error { h.done("toggle"); h.reset(RungMFRL); return nil }
	start := time.Now()
	rep, err := Recover(t.Context(), x, RecoverOptions{
		MaxLevel: RungCold, Limits: limits, Consent: agree, Verdict: Verdict{Condition: conditions[flags>>4&7]},
	})
	// The look before, five rungs, and what giving a semaphore back may take, twice.
	require.LessOrEqual(t, time.Since(start), aliveTries*alivePause+5*fuzzRung+3*unlockLimit)
	require.Equal(t, err == nil, rep.Recovered)
	if err != nil {
		var e *RecoverError
		require.ErrorAs(t, err, &e)
		require.Error(t, e.Err)
	}
	require.LessOrEqual(t, len(rep.Rungs), 5)
	text, err := json.Marshal(rep)
	require.NoError(t, err)
	require.Less(t, len(text), 64<<10)
}

// allocated is how many bytes this process has allocated so far.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// FuzzDevice is a device that answers by a script: capability, semaphore, space,
// flag, counter and data of the gateway, BAR 0, and registers MCAM, MTMP, MPEIN and
// MFRL. The first byte chooses what is done to it, the second how, and whether the
// script begins again when it is over; see hostileHW for what its bytes mean.
func FuzzDevice(f *testing.F) {
	for c := range hostileCases {
		c := byte(c)
		f.Add([]byte{c, 0})                                     // honest
		f.Add([]byte{c, 0x20, 0, 0, 0, 0, 0, 0, 2})             // all ones from the seventh access on
		f.Add([]byte{c, 0x05, 0x80, 2})                         // all ones
		f.Add([]byte{c, 0x80, 3})                               // zeros
		f.Add([]byte{c, 0x9f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfc}) // a bit now and then
		f.Add([]byte{c, 0x8e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0x0f})
		f.Add([]byte{c, 0x93, 0, 0, 0, 0, 6}) // what was answered before
		f.Add([]byte{c, 0xb1, 0, 0, 0, 5, 1, 2, 3, 4, 0, 0, 5, 0x80, 0, 0, 0})
	}
	// The semaphore reads another ticket, the counter 0, the flag never comes.
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9})
	f.Add([]byte{1, 0x80, 0, 0, 0, 0, 0, 3})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfc, 0xfc, 0xfc, 0xfc})
	// A space of 1 GiB, one of no size, a next address that goes back.
	f.Add([]byte{2, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0x3f, 0xff, 0xff, 0xff})
	f.Add([]byte{2, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0x80, 0, 0, 4})
	// The capability somewhere else; a list in a circle.
	f.Add([]byte{0, 0, 0, 5, 0x00, 0x18, 0x40, 0x09})
	f.Add([]byte{0, 0x80, 0, 5, 0, 0, 0x60, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) < 2 || len(script) > 4096 {
			return
		}
		c, flags := hostileCases[int(script[0])%len(hostileCases)], script[1]
		synctest.Test(t, func(t *testing.T) {
			h := newHostile(t, script[2:], flags&0x80 != 0, c.limit)
			h.mfrl = &fakeMFRL{levels: 8, types: 1, method: flags >> 3 & 1, answer: prm.MFRLResetInProgress}
			before := allocated()
			c.run(t, h, flags)
			require.Less(t, allocated()-before, uint64(8<<20+1024*h.accesses()))
			require.Empty(t, h.wrong)
			require.False(t, h.owed, "the gateway was ours when it was last looked at, and was not given back")
		})
	})
}
