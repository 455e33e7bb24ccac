package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/internal/prm"
)

// selfChecks are what selftest does with a function that is up.
var selfChecks = []struct {
	name string
	run  func(ctx context.Context, s *session) (note string, err error)
}{
	{"event-mode", checkEvents},
	{"command-burst", checkBurst},
	{"capabilities", checkCaps},
	{"atomics-preflight", checkPreflight},
	{"data-path", checkDataPath},
	{"nop", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Nops(ctx) }},
	{"send", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Sends(ctx) }},
	{"write", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Writes(ctx) }},
	{"read", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Reads(ctx) }},
	{"atomics-probe", checkProbe},
	{"atomics", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Atomics(ctx) }},
	{"datagrams", func(ctx context.Context, s *session) (string, error) { return s.exerciser.Datagrams(ctx) }},
	{"cross-channel", func(ctx context.Context, s *session) (string, error) { return s.exerciser.CrossChannel(ctx) }},
	{"opcodes", checkOpcodes},
	{"health", checkHealth},
}

// eventRounds bounds the commands of checkEvents. The entry of a command that
// follows another at once may be found by the look that the one before caused, and
// then needs no wake-up of its own; not all of them can be.
const eventRounds = 16

// checkEvents sends commands, one after the other, and counts how their
// completions were noticed.
func checkEvents(ctx context.Context, s *session) (string, error) {
	if !s.EventMode() {
		return "skipped: commands are polled", s.Conn().NOP(ctx)
	}
	before := s.Stats()
	for n := range uint64(eventRounds) {
		if err := s.Conn().NOP(ctx); err != nil {
			return "", err
		}
		after := s.Stats()
		events, wakeups := after.Events.Commands-before.Events.Commands, after.Events.Wakeups-before.Events.Wakeups
		switch sent := n + 1; {
		case after.Commands.Recovered != before.Commands.Recovered:
			return "", errors.New("the completion was found by polling, its interrupt did not arrive; check interrupt remapping (dmesg) and /proc/interrupts")
		case events < sent:
			return "", fmt.Errorf("%d commands completed with %d events; want one for each", sent, events)
		case wakeups > 0:
			return fmt.Sprintf("%d command%s, %d completion event%s, %d wake-up%s", sent, plural(int(sent)),
				events, plural(int(events)), wakeups, plural(int(wakeups))), nil
		}
	}
	return "", fmt.Errorf("%d commands completed without one wake-up of an event loop", eventRounds)
}

// burstRounds is how many commands each caller sends in the burst.
const burstRounds = 16

// checkBurst sends commands that do nothing from as many callers as there are
// slots. How many slots are in use at a time depends on how fast the device is.
func checkBurst(ctx context.Context, s *session) (string, error) {
	var mu sync.Mutex
	slots := map[int]bool{}
	took := make([]time.Duration, 0, s.Conn().Stats().Slots*burstRounds)
	s.Conn().SetTrace(func(e cmdif.TraceEvent) {
		mu.Lock()
		defer mu.Unlock()
		slots[e.Slot] = true
	})
	defer s.Conn().SetTrace(nil)
	var wg sync.WaitGroup
	errs := make([]error, s.Conn().Stats().Slots)
	start := time.Now()
	for i := range errs {
		wg.Go(func() {
			for range burstRounds {
				t := time.Now()
				if errs[i] = s.Conn().NOP(ctx); errs[i] != nil {
					return
				}
				mu.Lock()
				took = append(took, time.Since(t))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	total := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}
	if want := len(errs) * burstRounds; len(took) != want {
		return "", fmt.Errorf("%d of %d commands came back", len(took), want)
	}
	if err := lostCompletions(s.Conn().Stats()); err != nil {
		return "", err
	}
	slices.Sort(took)
	return fmt.Sprintf("%d commands from %d callers in %d of %d slots, median %v, %.0f a second", len(took), len(errs),
		len(slots), len(errs), took[len(took)/2].Round(100*time.Nanosecond), float64(len(took))/total.Seconds()), nil
}

// lostCompletions fails if, since the function came up, a completion had to be
// found by polling: its interrupt or its event was lost, and its caller waited.
func lostCompletions(st cmdif.Stats) error {
	if st.Recovered == 0 {
		return nil
	}
	why := "no event was in the queue; look at the health buffer and the firmware version"
	if st.LostInterrupts > 0 {
		why = "an interrupt did not arrive, its event was in the queue; check interrupt remapping (dmesg) and /proc/interrupts"
	}
	return fmt.Errorf("%d completion%s recovered by polling, about a second late: %s", st.Recovered, plural(int(st.Recovered)), why)
}

// checkCaps sums up what the device can do; it must be able to do something.
func checkCaps(_ context.Context, s *session) (string, error) {
	i := s.Info()
	if i.Limits.LogQPs == 0 || i.Limits.EQs == 0 || i.Ports == 0 {
		return "", fmt.Errorf("the device claims 2^%d QPs, %d EQs and %d ports", i.Limits.LogQPs, i.Limits.EQs, i.Ports)
	}
	clamped := 0
	for _, r := range s.CapReport() {
		if r.Done == "ignored" {
			return "", fmt.Errorf("firmware ignored SET_HCA_CAP %s=%d: it reads %d", r.Field, r.Sent, r.After)
		}
		if r.Done == "clamped" {
			clamped++
		}
	}
	return fmt.Sprintf("%d types, %d fields clamped; %s, %d port%s; atomics: %s", len(s.Caps()), clamped, i.PortType, i.Ports, plural(i.Ports), atomicsText(i.Atomics)), nil
}

// The health counter must move within three looks of Linux' health poll (Linux
// health.c: every 2 s, three misses); here it is looked at more often.
const (
	healthLimit = 6 * time.Second
	healthLook  = 5 * time.Millisecond
)

// checkHealth waits for the health counter to move, and looks for what firmware
// says is wrong.
func checkHealth(ctx context.Context, s *session) (string, error) {
	seg, start := s.Segment(), time.Now()
	first := seg.Health()
	look := time.NewTicker(healthLook)
	defer look.Stop()
	for {
		if err := healthy(seg); err != nil {
			return "", err
		}
		if h := seg.Health(); h.Counter != first.Counter {
			return fmt.Sprintf("counter %d, then %d after %v; no syndrome", first.Counter, h.Counter, time.Since(start).Round(100*time.Microsecond)), nil
		}
		if time.Since(start) > healthLimit {
			return "", fmt.Errorf("the health counter stands still at %d for %v: firmware hangs; reset the function, or the machine if that does not help", first.Counter, healthLimit)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the health counter to move from %d: %w", first.Counter, context.Cause(ctx))
		}
	}
}

// healthy tells what Linux takes for a fatal error (health.c: the bus, the
// interface, the buffer's request for recovery), and any other syndrome.
func healthy(seg *initseg.Segment) error {
	if err := seg.Alive(); err != nil {
		return err
	}
	var raw [initseg.HealthBufferSize]byte
	seg.HealthBuffer(&raw)
	b, word := prm.AsHealthBuffer(raw[:]), seg.Health()
	switch nic := seg.NICInterface(); {
	case b.Synd() != 0 && b.RFR():
		return fmt.Errorf("fatal: the device reports %v (severity %v) and asks for recovery; reset the function", b.Synd(), b.Severity())
	case b.Synd() != 0:
		return fmt.Errorf("the device reports %v (severity %v); compare with the vendor's list for this firmware", b.Synd(), b.Severity())
	case word.Syndrome != 0:
		return fmt.Errorf("the device reports %v (health word %#x)", word.Syndrome, word.Raw)
	case nic != prm.NICInterfaceFullDriver:
		return fmt.Errorf("fatal: nic_interface reads %v while the driver is at work; reset the function", nic)
	}
	return nil
}

// checkPreflight judges masks and sizes before anything is posted.
func checkPreflight(_ context.Context, s *session) (string, error) {
	c, err := s.AtomicCaps()
	if err != nil {
		return "", err
	}
	if c.MaxAtomicSize() == 0 {
		return "skipped: no atomics", nil
	}
	p := c.Preflight()
	if err := p.Err(); err != nil {
		return "", err
	}
	offered := 0
	for _, o := range p.Offers {
		if o.OK {
			offered++
		}
	}
	return fmt.Sprintf("max_atomic_size %d, atomic_mode %s; %d of %d operations and sizes offered, masks right in both byte orders", p.MaxAtomicSize, p.AtomicMode, offered, len(p.Offers)), nil
}

// exerciseSeed decides places and data of the checks that move data.
const exerciseSeed = 1

// checkDataPath makes what the next checks need: it is given back with the
// function.
func checkDataPath(ctx context.Context, s *session) (string, error) {
	d, err := s.OpenData(ctx, mlxvfio.DataOptions{Name: "selftest"})
	if err != nil {
		return "", err
	}
	if s.exerciser, err = mlxvfio.NewExerciser(ctx, d, d, exerciseSeed); err != nil {
		return "", err
	}
	a, b := s.exerciser.QPs()
	how := "polled"
	if d.EventMode() {
		how = "by interrupt"
	}
	return fmt.Sprintf("QP %#x ↔ QP %#x by loopback, completions %s; %s%s", a.Number(), b.Number(), how, writesText(a.SQ.PeerAtomic()), ifText(a.Link().Note != "", "; "+a.Link().Note)), nil
}

// checkProbe finds the byte orders of atomics.
func checkProbe(ctx context.Context, s *session) (string, error) {
	if s.exerciser.Caps().MaxAtomicSize() == 0 {
		return "skipped: no atomics", nil
	}
	p, err := s.exerciser.Probe(ctx)
	if err != nil {
		return "", err
	}
	runs := 0
	for _, f := range p.Forms {
		runs += f.Runs
	}
	return fmt.Sprintf("%d WQE forms, words %v in memory; %d random operations as the reference", len(p.Forms), p.Order(), runs), nil
}

// checkOpcodes wants every operation done, or the capability named that is missing:
// none may be left out in silence.
func checkOpcodes(_ context.Context, s *session) (string, error) {
	done, lacking := 0, 0
	for _, o := range s.exerciser.Opcodes() {
		switch {
		case o.Note != "":
			lacking++
		case o.Done == 0:
			return "", fmt.Errorf("%s on %s is offered by the device, and no check has done it", o.Opcode, o.Service)
		default:
			done++
		}
	}
	return fmt.Sprintf("%d of %d operations done by loopback%s", done, done+lacking,
		ifText(lacking > 0, fmt.Sprintf(", %d not supported by this device", lacking))), nil
}
