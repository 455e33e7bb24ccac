package health

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/vfio"
)

var agree = func([]vfio.HotResetFunction) error { return nil }

// outcomes of the rungs, by name.
func outcomes(r RecoveryReport) map[string]RungOutcome {
	m := map[string]RungOutcome{}
	for _, x := range r.Rungs {
		m[x.Rung.String()] = x.Outcome
	}
	return m
}

// TestLadder: which rungs are climbed against which condition, in which order, and
// where the ladder ends.
func TestLadder(t *testing.T) {
	u, f, w, n := OutcomeUseless, OutcomeFailed, OutcomeWorked, OutcomeNotAllowed
	tests := map[string]struct {
		cond  Condition
		heal  Rung
		max   Rung
		prep  func(*fakeHW)
		log   []string
		rungs map[string]RungOutcome
		by    Rung
		next  Rung
		cold  bool
	}{
		"healthy, reopened":            {cond: OK, max: RungCold, log: []string{"drain", "reopen"}, rungs: map[string]RungOutcome{"reopen": w}, by: RungReopen},
		"disabled by another":          {cond: NICDisabled, max: RungReopen, heal: RungReopen, log: []string{"park", "reopen"}, rungs: map[string]RungOutcome{"reopen": w}, by: RungReopen},
		"syndrome, not fatal":          {cond: SyndromeNonFatal, max: RungReopen, heal: RungCold, log: []string{"drain", "reopen"}, rungs: map[string]RungOutcome{"reopen": w}, by: RungReopen},
		"fatal, sw reset":              {cond: FatalRFR, max: RungCold, heal: RungSWReset, log: []string{"park", "sw-reset", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": w}, by: RungSWReset},
		"fatal, not allowed":           {cond: FatalRFR, max: RungReopen, heal: RungSWReset, log: nil, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": n, "flr": n, "hot-reset": n, "mfrl": n}, next: RungSWReset},
		"fatal, nothing":               {cond: FatalRFR, max: RungNone, heal: RungSWReset, log: nil, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": n, "flr": n, "hot-reset": n, "mfrl": n}, next: RungSWReset},
		"fatal, flr":                   {cond: FatalRFR, max: RungFLR, heal: RungFLR, log: []string{"park", "sw-reset", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": w}, by: RungFLR},
		"fatal, stops at flr":          {cond: FatalRFR, max: RungFLR, heal: RungHotReset, log: []string{"park", "sw-reset", "flr"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": f, "hot-reset": n, "mfrl": n}, next: RungHotReset},
		"fatal, hot reset":             {cond: FatalRFR, max: RungHotReset, heal: RungHotReset, log: []string{"park", "sw-reset", "flr", "hot-reset", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": f, "hot-reset": w}, by: RungHotReset},
		"fatal, cold":                  {cond: FatalRFR, max: RungCold, heal: RungCold, log: []string{"park", "sw-reset", "flr", "hot-reset"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": f, "hot-reset": f, "mfrl": f}, next: RungCold, cold: true},
		"crr":                          {cond: FatalCRR, max: RungCold, heal: RungCold, log: nil, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": u, "flr": u, "hot-reset": u, "mfrl": u}, next: RungCold, cold: true},
		"crr, not fatal":               {cond: NonFatalCRR, max: RungCold, heal: RungCold, log: nil, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": u, "flr": u, "hot-reset": u, "mfrl": u}, next: RungCold, cold: true},
		"stopped":                      {cond: CounterStopped, max: RungSWReset, heal: RungSWReset, prep: func(h *fakeHW) { h.drainErr = errors.New("no answer") }, log: []string{"drain", "sw-reset", "reopen"}, rungs: map[string]RungOutcome{"reopen": f, "sw-reset": w}, by: RungSWReset},
		"stopped, reopen":              {cond: CounterStopped, max: RungCold, heal: RungReopen, log: []string{"drain", "reopen"}, rungs: map[string]RungOutcome{"reopen": w}, by: RungReopen},
		"no sw reset on it":            {cond: FatalRFR, max: RungFLR, heal: RungFLR, prep: func(h *fakeHW) { h.dword1fc = 0 }, log: []string{"park", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": OutcomeNotSupported, "flr": w}, by: RungFLR},
		"no gateway":                   {cond: FatalRFR, max: RungFLR, heal: RungFLR, prep: func(h *fakeHW) { h.cfg[0x9d] = 0 }, log: []string{"park", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": OutcomeNotSupported, "flr": w}, by: RungFLR},
		"gone for good":                {cond: AllOnes, max: RungReopen, heal: RungCold, log: []string{"park"}, rungs: map[string]RungOutcome{"reopen": f, "sw-reset": u, "flr": n, "hot-reset": n, "mfrl": u}, next: RungFLR},
		"sw reset takes the link down": {cond: FatalRFR, max: RungSWReset, heal: RungSWReset, prep: func(h *fakeHW) { h.awayFor = 5 * time.Second }, log: []string{"park", "sw-reset", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": w}, by: RungSWReset},
		"reset never ends":             {cond: NICSWReset, max: RungFLR, heal: RungFLR, log: []string{"park", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": f, "sw-reset": u, "flr": w}, by: RungFLR},
		"sw reset never ends":          {cond: FatalRFR, max: RungFLR, heal: RungSWReset, prep: func(h *fakeHW) { h.swNever = true }, log: []string{"park", "sw-reset", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": w}, by: RungFLR},
		"slow after the reset":         {cond: FatalRFR, max: RungFLR, heal: RungFLR, prep: func(h *fakeHW) { h.awayFor = 3 * time.Second }, log: []string{"park", "sw-reset", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": w}, by: RungFLR},
		"opens at the second rung only": {cond: FatalRFR, max: RungFLR, heal: RungSWReset, prep: func(h *fakeHW) { h.openErrs = []error{errors.New("INIT_HCA refused")} },
			log: []string{"park", "sw-reset", "reopen", "flr", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": w}, by: RungFLR},
		"boots for long": {cond: FatalRFR, max: RungSWReset, heal: RungSWReset, prep: func(h *fakeHW) { h.boot = time.Now().Add(30 * time.Second) }, log: []string{"park", "sw-reset", "reopen"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": w}, by: RungSWReset},
		"boots for ever": {cond: FatalRFR, max: RungSWReset, heal: RungSWReset, prep: func(h *fakeHW) { h.boot = time.Now().Add(30 * time.Hour) }, log: []string{"park", "sw-reset"}, rungs: map[string]RungOutcome{"reopen": u, "sw-reset": f, "flr": n, "hot-reset": n, "mfrl": n}, next: RungFLR},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHW(t)
				time.Sleep(time.Second) // a counter of 0 is none
				h.sickWith(tt.cond, tt.heal)
				if tt.prep != nil {
					tt.prep(h)
				}
				rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: tt.max, Consent: agree})
				require.Equal(t, tt.cond, rep.Condition, "found without a monitor")
				require.Equal(t, tt.log, h.log)
				require.Equal(t, tt.rungs, outcomes(rep))
				require.Equal(t, tt.by, rep.By)
				require.Equal(t, tt.next, rep.Next)
				require.Equal(t, tt.cold, rep.ColdReset)
				gw, sw := h.semaphores()
				require.Zero(t, gw, "gateway")
				require.Zero(t, sw, "software-reset semaphore")
				if tt.by != RungNone {
					require.NoError(t, err)
					require.True(t, rep.Recovered)
					require.True(t, h.open && h.mastering && !h.parked)
				} else {
					var re *RecoverError
					require.ErrorAs(t, err, &re)
					require.False(t, rep.Recovered)
					require.NotEmpty(t, rep.Remedy)
					if tt.cold {
						require.ErrorIs(t, err, ErrColdReset)
					} else {
						require.ErrorIs(t, err, ErrNotRecovered)
					}
				}
				b, err := json.Marshal(rep)
				require.NoError(t, err)
				require.Contains(t, string(b), RecoverySchema)
				for _, x := range rep.Rungs {
					require.Equal(t, x.Outcome != OutcomeWorked, x.Reason != "", "%v gives a reason unless it worked", x.Rung)
				}
			})
		})
	}
}

// TestNoResetAboveMaxLevel goes through all levels: nothing harsher is ever done.
func TestNoResetAboveMaxLevel(t *testing.T) {
	level := map[string]Rung{"drain": RungReopen, "park": RungReopen, "reopen": RungReopen, "sw-reset": RungSWReset, "flr": RungFLR, "hot-reset": RungHotReset}
	for _, cond := range []Condition{FatalRFR, CounterStopped, NICSWReset, NICDisabled, AllOnes, SyndromeNonFatal, OK} {
		for limit := RungNone; limit <= RungCold; limit++ {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHW(t)
				time.Sleep(time.Second)
				h.sickWith(cond, RungCold)
				rep, _ := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: limit, Consent: agree})
				for _, done := range h.log {
					if limit < RungSWReset || done == "flr" || done == "hot-reset" || done == "sw-reset" {
						require.LessOrEqual(t, level[done], max(limit, RungNone), "%s at level %v", done, limit)
					}
				}
				require.LessOrEqual(t, rep.By, limit)
			})
		}
	}
}

// TestReopenWaits: another function resets; ours waits for the end, and sends no
// reset of its own.
func TestReopenWaits(t *testing.T) {
	for _, cond := range []Condition{NICSWReset, AllOnes} {
		synctest.Test(t, func(t *testing.T) {
			h := newFakeHW(t)
			time.Sleep(time.Second)
			h.sickWith(cond, RungReopen)
			go func() {
				time.Sleep(7 * time.Second)
				h.set(func() { h.ones, h.nic = false, 1 })
			}()
			start := time.Now()
			rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungCold, Consent: agree})
			require.NoError(t, err)
			require.Equal(t, RungReopen, rep.By)
			require.GreaterOrEqual(t, time.Since(start), 7*time.Second)
			require.Equal(t, []string{"park", "reopen"}, h.log)
		})
	}
}

// TestSemaphoreOfAnother: its owner resets the chip, or gives it back, or neither.
func TestSemaphoreOfAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		after func(*fakeHW)
		asked int
		works bool
	}{
		"it resets": {after: func(h *fakeHW) {
			h.set(func() { h.nic = 7 })
			time.Sleep(time.Second)
			h.reset(RungSWReset)
			h.set(func() { h.nic = 1 })
		}, asked: 0, works: true},
		"it gives it back": {after: func(h *fakeHW) {
			h.fakeVSC.mu.Lock()
			h.spaces[0xa].words[swResetSemaphore] = 0
			h.fakeVSC.mu.Unlock()
		}, asked: 1, works: true},
		"it is dead": {after: func(*fakeHW) {}, asked: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHW(t)
				time.Sleep(time.Second)
				h.sickWith(FatalRFR, RungSWReset)
				h.spaces[0xa].words[swResetSemaphore] = 0x4711
				go func() { time.Sleep(2 * time.Second); tt.after(h) }()
				rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungSWReset})
				require.Equal(t, tt.asked, h.swAsked)
				require.Equal(t, tt.works, rep.Recovered, "%v", err)
				_, sw := h.semaphores()
				if tt.asked == 0 {
					require.Equal(t, uint32(0x4711), sw, "not ours to free")
					if !tt.works {
						require.ErrorIs(t, err, ErrSemaphoreHeld)
					}
				} else {
					require.Zero(t, sw)
				}
			})
		})
	}
}

// TestConsent: nobody else is reset who was not asked for.
func TestConsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungHotReset)
		h.dword1fc = 0
		rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungHotReset})
		require.ErrorIs(t, err, ErrNotRecovered)
		require.NotErrorIs(t, err, ErrColdReset, "a refusal is not the end of the means")
		require.Equal(t, OutcomeNotAllowed, outcomes(rep)["hot-reset"])
		require.NotContains(t, h.log, "hot-reset")
		require.Contains(t, err.Error(), "other")
		require.Len(t, rep.Rungs[3].Hits, 2, "who would be hit is listed all the same")

		asked := 0
		_, err = Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungHotReset, Consent: func(l []vfio.HotResetFunction) error {
			asked++
			require.Len(t, l, 2)
			return errors.New("it carries traffic")
		}})
		require.ErrorContains(t, err, "it carries traffic")
		require.Equal(t, 1, asked)
		require.NotContains(t, h.log, "hot-reset")

		// A slot with nobody else in it needs no consent.
		alone := h.target(t)
		alone.HotResetInfo = func() ([]vfio.HotResetFunction, error) {
			return []vfio.HotResetFunction{{Name: "fake", Self: true}}, nil
		}
		rep, err = Recover(t.Context(), alone, RecoverOptions{MaxLevel: RungHotReset})
		require.NoError(t, err)
		require.Equal(t, RungHotReset, rep.By)
	})
}

func TestMFRL(t *testing.T) {
	for name, tt := range map[string]struct {
		m       fakeMFRL
		toggle  bool
		noSlot  bool
		works   bool
		started bool
		says    string
	}{
		"hot reset":        {m: fakeMFRL{levels: 0x49, types: 1, method: 1, answer: prm.MFRLResetInProgress}, works: true, started: true},
		"toggle":           {m: fakeMFRL{levels: 8, types: 1, method: 0, answer: prm.MFRLResetInProgress}, toggle: true, works: true, started: true},
		"no way at all":    {m: fakeMFRL{levels: 8, types: 1, method: 1}, noSlot: true},
		"no slot here":     {m: fakeMFRL{levels: 8, types: 1, method: 1}, noSlot: true, toggle: true, says: "method 1"},
		"no toggle here":   {m: fakeMFRL{levels: 8, types: 1, method: 0}, says: "method 0"},
		"level 6 only":     {m: fakeMFRL{levels: 0x41, types: 1, method: 1}, says: "level 6"},
		"no level":         {m: fakeMFRL{levels: 1, types: 1, method: 1}, says: "level 3"},
		"no type":          {m: fakeMFRL{levels: 8, method: 1}, says: "reset type"},
		"another's reset":  {m: fakeMFRL{levels: 8, types: 1, method: 1, state: prm.MFRLResetInNegotiation}, says: "another reset"},
		"refused":          {m: fakeMFRL{levels: 8, types: 1, method: 1, answer: prm.MFRLResetNack}, started: true, says: "gave up"},
		"nobody goes on":   {m: fakeMFRL{levels: 8, types: 1, method: 1, answer: prm.MFRLResetInNegotiation}, started: true, says: "drivers of the chip"},
		"unload timed out": {m: fakeMFRL{levels: 8, types: 1, method: 1, answer: prm.MFRLResetUnloadTimeout}, started: true, says: "gave up"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newFakeHW(t)
				time.Sleep(time.Second)
				h.sickWith(FatalRFR, RungMFRL)
				h.mfrl = &tt.m
				x := h.target(t)
				if tt.toggle {
					x.LinkToggle = func(context.Context) error { h.done("toggle"); h.reset(RungMFRL); h.mfrl.state = 0; return nil }
				}
				if tt.noSlot {
					x.HotResetInfo = func() ([]vfio.HotResetFunction, error) { return nil, vfio.ErrNotSupported }
				}
				rep, err := Recover(t.Context(), x, RecoverOptions{MaxLevel: RungMFRL, Consent: agree})
				require.Equal(t, tt.works, rep.Recovered, "%v", err)
				require.Equal(t, tt.started, h.mfrl.started)
				if tt.works {
					require.Equal(t, RungMFRL, rep.By)
					require.Equal(t, 1, h.mfrl.acks)
					return
				}
				require.ErrorContains(t, err, tt.says)
				require.ErrorIs(t, err, ErrColdReset, "nothing is left to climb")
			})
		})
	}
}

// TestRelapse: an error that is new after the rung is not a recovery, one that
// stands there unchanged is stale.
func TestRelapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungFLR)
		x := h.target(t)
		x.Reset = func() error {
			h.done("flr")
			h.set(func() { h.stopped = false }) // the buffer stays as it was
			return nil
		}
		h.dword1fc = 0
		rep, err := Recover(t.Context(), x, RecoverOptions{MaxLevel: RungFLR})
		require.NoError(t, err)
		steps := rep.Rungs[2].Steps
		require.Contains(t, steps[len(steps)-1].Note, "stale")

		h.sickWith(FatalRFR, RungFLR)
		x.Reset = func() error {
			h.set(func() { h.stopped = false; h.buffer[0x3d] = 0x09 })
			return nil
		}
		_, err = Recover(t.Context(), x, RecoverOptions{MaxLevel: RungFLR})
		require.ErrorIs(t, err, ErrFatal)
		require.ErrorContains(t, err, "FW_CRC_ERR")
	})
}

// TestBlackBoxFirst: the bundle comes before anything is touched, and its failure
// ends the recovery unless the caller goes on without.
func TestBlackBoxFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungSWReset)
		full := errors.New("disk is full")
		o := RecoverOptions{MaxLevel: RungSWReset, BlackBox: func(context.Context) (string, error) {
			require.Empty(t, h.log)
			require.Zero(t, h.fakeVSC.writes)
			return "", full
		}}
		rep, err := Recover(t.Context(), h.target(t), o)
		require.ErrorIs(t, err, full)
		require.Empty(t, h.log)
		require.Empty(t, rep.Rungs)
		o.GoOn = true
		rep, err = Recover(t.Context(), h.target(t), o)
		require.NoError(t, err)
		require.Contains(t, rep.BundleError, "disk is full")
	})
}

func TestRecoverCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(NICSWReset, RungFLR)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		rep, err := Recover(ctx, h.target(t), RecoverOptions{MaxLevel: RungFLR})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 3, time.Since(start).Seconds(), 0.1)
		require.NotContains(t, h.log, "flr", "nothing harsher because of a hurry")
		require.False(t, rep.Recovered)
	})
}

// TestRungLimit: the deadline of a rung ends it, and the next is climbed.
func TestRungLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(NICSWReset, RungFLR)
		start := time.Now()
		rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungFLR, Limits: map[Rung]time.Duration{RungReopen: 2 * time.Second}})
		require.NoError(t, err)
		require.Equal(t, RungFLR, rep.By)
		require.Less(t, time.Since(start), 5*time.Second)
		require.Contains(t, rep.Rungs[0].Reason, "was given 2s")
	})
}

func TestRecoverBadTarget(t *testing.T) {
	_, err := Recover(t.Context(), Target{}, RecoverOptions{})
	var oe *OptionError
	require.ErrorAs(t, err, &oe)
	h := newFakeHW(t)
	_, err = Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungCold + 1})
	require.ErrorAs(t, err, &oe)
	require.Empty(t, h.log)
}

func TestRungNames(t *testing.T) {
	for i, r := range Rungs() {
		require.Equal(t, Rung(i), r.Rung)
		b, err := r.Rung.MarshalText()
		require.NoError(t, err)
		var got Rung
		require.NoError(t, got.UnmarshalText(b))
		require.Equal(t, r.Rung, got)
	}
	_, err := ParseRung("reboot")
	require.ErrorContains(t, err, "hot-reset")
}

// TestSemaphoreGivenBackLater: the gateway is taken by another just when the
// software-reset semaphore should be given back; it is, as soon as that can be.
func TestSemaphoreGivenBackLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		time.Sleep(time.Second)
		h.sickWith(FatalRFR, RungFLR)
		foreign := func(ticket uint32) {
			h.fakeVSC.mu.Lock()
			defer h.fakeVSC.mu.Unlock()
			h.sem = ticket
		}
		x := h.target(t)
		reset := x.Reset
		x.Reset = func() error {
			foreign(0)
			return reset()
		}
		go func() {
			time.Sleep(50 * time.Millisecond) // between the request and its end
			foreign(0x999)
		}()
		rep, err := Recover(t.Context(), x, RecoverOptions{MaxLevel: RungFLR})
		require.NoError(t, err)
		require.Equal(t, RungFLR, rep.By)
		said := false
		for _, s := range rep.Rungs[1].Steps {
			said = said || errors.Is(s.Err, ErrGatewayHeld)
		}
		require.True(t, said, "the report says what could not be done")
		gw, sw := h.semaphores()
		require.Zero(t, gw)
		require.Zero(t, sw)
	})
}

// TestAliveNeedsTwoCounts: all ones and then a counter that stands is no life.
func TestAliveNeedsTwoCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newFakeHW(t)
		x := h.target(t)
		r := &recovery{t: x, ctx: t.Context()}
		h.ones, h.stopped = true, true
		go func() { time.Sleep(3 * alivePause); h.set(func() { h.ones = false }) }()
		_, err := r.alive(t.Context())
		require.ErrorIs(t, err, ErrStalled)
		h.set(func() { h.stopped = false })
		note, err := r.alive(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, note)
	})
}

// TestRecoverSurroundings: what is outside the function no rung changes, and none
// is climbed; the remedy is that of the condition, and no cold reset.
func TestRecoverSurroundings(t *testing.T) {
	for _, cond := range []Condition{HighTemperature, InsufficientPower, PCIeErrors} {
		synctest.Test(t, func(t *testing.T) {
			h := newFakeHW(t)
			time.Sleep(time.Second)
			rep, err := Recover(t.Context(), h.target(t), RecoverOptions{MaxLevel: RungCold, Consent: agree, Verdict: Verdict{Condition: cond, State: Degraded}})
			require.ErrorIs(t, err, ErrNotRecovered)
			require.NotErrorIs(t, err, ErrColdReset)
			require.ErrorContains(t, err, cond.Info().Remedy)
			u := OutcomeUseless
			require.Equal(t, map[string]RungOutcome{"reopen": u, "sw-reset": u, "flr": u, "hot-reset": u, "mfrl": u}, outcomes(rep))
			require.Empty(t, h.log, "nothing was touched")
			require.False(t, rep.Recovered || rep.ColdReset || rep.Touched())
			require.Equal(t, RungNone, rep.Next)
			require.Equal(t, cond, rep.Condition)
		})
	}
}
