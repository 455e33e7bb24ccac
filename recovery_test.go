package mlxvfio_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/health/blackbox"
	"github.com/mlxvfio/mlxvfio/internal/drivertest"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

func agree([]vfio.HotResetFunction) error { return nil }

// recoverable opens function 0 of a model under a Recoverable.
func recoverable(t *testing.T, c *sim.Chip, o mlxvfio.Options) *mlxvfio.Recoverable {
	t.Helper()
	r, err := mlxvfio.NewRecoverable(c.Function(0), o)
	require.NoError(t, err)
	_, err = r.Open(t.Context())
	require.NoError(t, err)
	return r
}

// balancedAll checks the accounts of all lives, and what the model saw.
func balancedAll(t *testing.T, c *sim.Chip, r *mlxvfio.Recoverable) {
	t.Helper()
	for _, l := range r.Ledgers() {
		drivertest.Balanced(t, l)
	}
	spotless(c, 0)(t)
}

// withSlot adds the reset of a slot to a transport that hides it.
type withSlot struct {
	vfio.Transport
	vfio.HotResetter
}

// TestParkedMemoryStays: from the moment the device is cut off until a reset has
// worked, it is off the bus and everything it may know of stays mapped.
func TestParkedMemoryStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		before := c.State(0).Mappings
		require.Positive(t, before)
		require.NoError(t, c.SetFault("fatal", "now+heal=hot-reset"))
		seen := map[string]int{}
		_, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungHotReset, OnStep: func(g health.Rung, s health.RecoveryStep) {
			if s.Step == "open" || s.Step == "well" {
				return
			}
			seen[g.String()]++
			require.Equal(t, before, c.State(0).Mappings, "%v: %s", g, s.Step)
			var cmd [2]byte
			require.NoError(t, r.Device().ReadConfig(4, cmd[:]))
			require.Zero(t, cmd[0]&4, "bus master at %v: %s", g, s.Step)
		}})
		require.NoError(t, err)
		require.Len(t, seen, 3, "sw-reset, flr, hot-reset")
		require.NoError(t, r.Close(t.Context()))
		balancedAll(t, c, r)
		require.Len(t, r.Ledgers(), 2)
		require.Positive(t, r.Ledgers()[0].Dropped, "the reset ended the claims of the first life")
	})
}

// TestReopenNeverResets: a device that does not let go is not reset by a ladder
// that ends at reopen; Close does it then.
func TestReopenNeverResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		resets, mapped := c.Counters(0).Resets, c.State(0).Mappings
		require.NoError(t, c.SetFault("stall", "now"))
		rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungReopen})
		require.ErrorIs(t, err, health.ErrNotRecovered)
		require.Equal(t, health.RungSWReset, rep.Next)
		require.Contains(t, err.Error(), "sw-reset")
		require.Equal(t, resets, c.Counters(0).Resets)
		require.Nil(t, r.HCA())
		require.Equal(t, mapped, c.State(0).Mappings)
		_, err = r.Open(t.Context())
		require.ErrorIs(t, err, vfio.ErrInUse)
		require.ErrorContains(t, err, "recover it")

		// A second try, with more allowed, goes on from there.
		rep, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset})
		require.NoError(t, err)
		require.Equal(t, health.RungSWReset, rep.By)
		require.NoError(t, r.HCA().Conn().NOP(t.Context()))

		require.NoError(t, c.SetFault("stall", "now"))
		_, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungReopen})
		require.Error(t, err)
		require.NoError(t, r.Close(t.Context()))
		require.Greater(t, c.Counters(0).Resets, resets)
		balancedAll(t, c, r)
		require.Len(t, r.Ledgers(), 2)
	})
}

// TestRecoverWhatNeverCameUp: the first bring-up fails, and the ladder helps.
func TestRecoverWhatNeverCameUp(t *testing.T) {
	for _, tt := range []struct {
		fault, arg string
		by         health.Rung
	}{
		{"nic-sw-reset", "now", health.RungFLR},
		{"fatal", "now+heal=hot-reset", health.RungHotReset},
		{"all-ones", "5s", health.RungNone},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := chip(t, "sim:cx5")
			r, err := mlxvfio.NewRecoverable(c.Function(0), mlxvfio.Options{SkipReset: true, CommandTimeout: time.Second})
			require.NoError(t, err)
			if tt.fault == "all-ones" {
				require.NoError(t, c.SetFault(tt.fault, "1"))
			} else {
				require.NoError(t, c.SetFault(tt.fault, tt.arg))
			}
			_, err = r.Open(t.Context())
			require.Error(t, err, tt.fault)
			require.Nil(t, r.HCA())
			if tt.by == health.RungNone {
				go func() { time.Sleep(10 * time.Second); _ = c.ClearFault("all-ones") }()
			}
			rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungHotReset, Consent: agree})
			require.NoError(t, err, tt.fault)
			if tt.by != health.RungNone {
				require.Equal(t, tt.by, rep.By)
			} else {
				require.Equal(t, health.RungReopen, rep.By, "it came back by itself and was waited for")
			}
			require.NoError(t, r.HCA().Conn().NOP(t.Context()))
			require.NoError(t, r.Close(t.Context()))
			balancedAll(t, c, r)
		})
	}
}

// TestOneResetsTheOtherNotices: two functions of a chip; the one that recovers by a
// software reset takes the other down, whose monitor says so and whose ladder sends
// no reset of its own.
func TestOneResetsTheOtherNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, err := sim.Parse("sim:cx5")
		require.NoError(t, err)
		o.Functions = 2
		c, err := sim.New(o)
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		var rs [2]*mlxvfio.Recoverable
		for i := range rs {
			rs[i], err = mlxvfio.NewRecoverable(c.Function(i), mlxvfio.Options{})
			require.NoError(t, err)
			_, err = rs[i].Open(t.Context())
			require.NoError(t, err)
		}
		m, err := rs[1].Monitor(t.Context(), health.Options{Period: 100 * time.Millisecond})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.Equal(t, health.Healthy, m.Verdict().State)

		rep, err := rs[0].Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset, Verdict: health.Verdict{Condition: health.FatalRFR}})
		require.NoError(t, err)
		require.Equal(t, health.RungSWReset, rep.By)
		time.Sleep(time.Second)
		v := m.Verdict()
		require.Equal(t, health.NICDisabled, v.Condition)
		require.Error(t, rs[1].HCA().Conn().NOP(t.Context()), "commands of the other end with the verdict")

		resets := c.Counters(0).Resets
		rep, err = rs[1].Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungCold, Consent: agree, Verdict: v})
		require.NoError(t, err)
		require.Equal(t, health.RungReopen, rep.By)
		require.Equal(t, resets, c.Counters(0).Resets)
		require.NoError(t, rs[0].HCA().Conn().NOP(t.Context()), "the first goes on")
		require.NoError(t, rs[1].HCA().Conn().NOP(t.Context()))
		time.Sleep(5 * time.Second)
		require.Equal(t, health.Healthy, m.Verdict().State, "%+v", m.Verdict())
		for _, r := range rs {
			require.NoError(t, r.Close(t.Context()))
		}
		balancedAll(t, c, rs[0])
		balancedAll(t, c, rs[1])
	})
}

// TestMonitorAndRecorderThroughRecovery: a monitor sees the failure, the recovery
// and the new life, and a recorder keeps every sample of it.
func TestMonitorAndRecorderThroughRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		path := filepath.Join(t.TempDir(), "rec")
		rec, err := blackbox.NewRecorder(path, blackbox.RecorderOptions{RecordBytes: health.SampleSize, Records: 64})
		require.NoError(t, err)
		var buf []byte
		states := map[health.State]bool{}
		m, err := r.Monitor(t.Context(), health.Options{Period: 100 * time.Millisecond, OnSample: func(s health.Sample, v health.Verdict) {
			states[v.State] = true
			buf = health.AppendSample(buf[:0], &s, v.State)
			if err := rec.Append(buf); err != nil {
				panic(err)
			}
		}, OnVerdict: func(v health.Verdict) { states[v.State] = true }})
		require.NoError(t, err)
		time.Sleep(4 * time.Second)
		require.NoError(t, c.SetFault("fatal", "HW_FATAL_ERR+now"))
		time.Sleep(300 * time.Millisecond)
		require.Equal(t, health.FatalRFR, m.Verdict().Condition)
		e := r.Evidence(m, "fatal")
		require.NoError(t, rec.Update(e.Collect(t.Context())))
		_, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset, Verdict: m.Verdict()})
		require.NoError(t, err)
		time.Sleep(4 * time.Second)
		require.Equal(t, health.Healthy, m.Verdict().State, "%+v", m.Verdict())
		after := filepath.Join(t.TempDir(), "after")
		require.NoError(t, r.SaveBlackBox(t.Context(), after, r.Evidence(m, "after")))
		box, err := blackbox.Read(after)
		require.NoError(t, err)
		told, ok := box.Section(health.SectionRecovery)
		require.True(t, ok)
		require.Contains(t, string(told.Data), `"by":"sw-reset"`)
		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, rec.Close())
		// OnSample and OnVerdict run no more.
		require.True(t, states[health.Fatal] && states[health.Recovering] && states[health.Healthy], "%v", states)
		balancedAll(t, c, r)

		box, err = blackbox.Read(path)
		require.NoError(t, err)
		require.Empty(t, box.Damage)
		require.Len(t, box.Samples, 64)
		s, st, ok := health.ParseSample(box.Samples[63])
		require.True(t, ok)
		require.Equal(t, health.Healthy, st)
		require.NotZero(t, s.Counter())
		sec, ok := box.Section(health.SectionReport)
		require.True(t, ok)
		require.Contains(t, string(sec.Data), "HW_FATAL_ERR")
	})
}

// TestRecoverableMisuse: closed twice, opened twice, closed beside it.
func TestRecoverableMisuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		_, err := r.Open(t.Context())
		require.ErrorIs(t, err, vfio.ErrExists)
		require.NoError(t, r.HCA().Close(t.Context()))
		h, err := r.Open(t.Context())
		require.NoError(t, err, "the HCA was closed by its user: a new life begins")

		// The user closes a dead one: it is parked, not reset.
		require.NoError(t, c.SetFault("stall", "now"))
		h.Conn().Dead(errPlanned)
		err = h.Close(t.Context())
		var ce *mlxvfio.CloseError
		require.ErrorAs(t, err, &ce)
		require.True(t, ce.Parked)
		require.Contains(t, err.Error(), "stays mapped until a reset")
		require.Positive(t, c.State(0).Mappings)
		rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset})
		require.NoError(t, err)
		require.Equal(t, health.RungSWReset, rep.By)

		require.NoError(t, r.Close(t.Context()))
		require.NoError(t, r.Close(t.Context()))
		_, err = r.Open(t.Context())
		require.ErrorIs(t, err, vfio.ErrClosed)
		_, err = r.Recover(t.Context(), health.RecoverOptions{})
		require.ErrorIs(t, err, vfio.ErrClosed)
		balancedAll(t, c, r)
	})
}

// TestSharedSpaceRecovery: in an address space that others use, a recovery gives
// back what the dead life held, and nothing else.
func TestSharedSpaceRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		tr := c.Function(0)
		space, err := vfio.NewAddressSpace(tr.DMA(), vfio.SpaceOptions{Memory: vfio.MemoryHeap})
		require.NoError(t, err)
		mine, err := space.Alloc(4096, vfio.BufferOptions{Name: "mine"})
		require.NoError(t, err)
		r, err := mlxvfio.NewRecoverable(tr, mlxvfio.Options{Space: space})
		require.NoError(t, err)
		_, err = r.Open(t.Context())
		require.NoError(t, err)
		live := space.Stats().LiveBuffers
		require.NoError(t, c.SetFault("fatal", "now"))
		_, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset})
		require.NoError(t, err)
		require.Equal(t, live, space.Stats().LiveBuffers)
		require.NoError(t, r.Close(t.Context()))
		require.Equal(t, 1, space.Stats().LiveBuffers)
		require.NoError(t, mine.Free())
		require.NoError(t, space.Close())
		balancedAll(t, c, r)
	})
}

// TestRegistersOfAWreck: a device that was cut off and not reset is not brought up
// half-way for a register: it may still know of the memory before.
func TestRegistersOfAWreck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		x := r.Target()
		_, err := x.Registers(t.Context())
		require.NoError(t, err, "a healthy function has a command interface")
		mapped := c.State(0).Mappings
		require.NoError(t, x.Lifecycle.Park(errPlanned))
		_, err = x.Registers(t.Context())
		require.ErrorIs(t, err, vfio.ErrInUse)
		require.Equal(t, mapped, c.State(0).Mappings)
		require.NoError(t, x.Reset())
		regs, err := x.Registers(t.Context())
		require.NoError(t, err)
		m, err := health.ReadMFRL(t.Context(), regs)
		require.NoError(t, err)
		require.NotZero(t, m.Levels)
		require.NoError(t, r.Close(t.Context()))
		balancedAll(t, c, r)
	})
}

// TestTransportFailsInRecovery: the reset itself fails, or the transport has no
// reset of the slot; Close gives everything back all the same.
func TestTransportFailsInRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		tr := c.Function(0)
		f := vfio.NewFaulty(drivertest.Watch(tr), nil) // Watched has no reset of the slot
		r, err := mlxvfio.NewRecoverable(f, mlxvfio.Options{})
		require.NoError(t, err)
		_, err = r.Open(t.Context())
		require.NoError(t, err)
		mapped := c.State(0).Mappings
		require.NoError(t, c.SetFault("fatal", "now+heal=flr"))
		f.Add(vfio.Fault{Verb: vfio.VerbReset, Times: -1, Err: syscall.EIO})
		rep, err := r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungCold, Consent: agree})
		require.ErrorIs(t, err, syscall.EIO)
		require.ErrorIs(t, err, health.ErrColdReset)
		require.Equal(t, health.OutcomeFailed, rep.Rungs[2].Outcome)
		require.Equal(t, health.OutcomeNotSupported, rep.Rungs[3].Outcome, rep.Rungs[3].Reason)
		require.Equal(t, mapped, c.State(0).Mappings, "nothing has worked: it stays mapped")
		err = r.Close(t.Context())
		require.ErrorIs(t, err, syscall.EIO)
		for _, l := range r.Ledgers() {
			drivertest.Balanced(t, l)
		}
		held(c, 0)(t)
	})
}

// TestNothingTriedNothingStale: after a recovery that tried nothing what the health
// buffer says counts as before; after one that reset the function it is stale.
func TestNothingTriedNothingStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chip(t, "sim:cx5")
		r := recoverable(t, c, mlxvfio.Options{})
		m, err := r.Monitor(t.Context(), health.Options{Period: time.Second})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.NoError(t, c.SetFault("fatal", "now+stale=1h"))
		time.Sleep(2 * time.Second)
		require.Equal(t, health.FatalRFR, m.Verdict().Condition)
		_, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungReopen, Verdict: m.Verdict()})
		require.ErrorIs(t, err, health.ErrNotRecovered)
		time.Sleep(2 * time.Second)
		require.Equal(t, health.FatalRFR, m.Verdict().Condition, "%+v", m.Verdict())
		_, err = r.Recover(t.Context(), health.RecoverOptions{MaxLevel: health.RungSWReset, Verdict: m.Verdict()})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		require.Equal(t, health.StaleError, m.Verdict().Condition, "%+v", m.Verdict())
		require.NoError(t, r.Close(t.Context()))
		balancedAll(t, c, r)
	})
}
