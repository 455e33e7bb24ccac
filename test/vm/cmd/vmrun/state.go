package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// modelState is what a model says of its one function (the answer to "tell PATH state").
type modelState struct {
	State struct {
		Phase                        string
		Pages, InFlight              int
		EQs, UARs, PDs, MKeys, UMEMs int
		Mappings, Vectors            int
	}
	Counters struct {
		Commands, Events, Interrupts, Resets       uint64
		DMAFaults, DMAAfterClose, PagesUnmapped    uint64
		EventsLost, DeliveryErrors, BARUnsupported uint64
	}
}

// state asks the model.
func (m *model) state(ctx context.Context) (modelState, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, m.program, "tell", m.control, "state", "--json").Output()
	if err != nil {
		return modelState{}, fmt.Errorf("ask the model for its state: %w", err)
	}
	return parseState(out)
}

// settled asks until the model is spotless, for a moment only: its server needs one to notice that QEMU has gone.
func (m *model) settled(ctx context.Context, losesPages bool) (s modelState, err error) {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s, err = m.state(ctx); err != nil {
			return s, err
		}
		if err = s.spotless(losesPages); err == nil {
			return s, nil
		}
	}
	return s, err
}

func parseState(out []byte) (modelState, error) {
	var told struct {
		Answer struct{ Functions []modelState }
	}
	if err := json.Unmarshal(out, &told); err != nil {
		return modelState{}, fmt.Errorf("the model's state: %w", err)
	}
	if n := len(told.Answer.Functions); n != 1 {
		return modelState{}, fmt.Errorf("the model tells of %d functions, want one: %s", n, out)
	}
	return told.Answer.Functions[0], nil
}

func (m modelState) String() string {
	c := m.Counters
	return fmt.Sprintf("%d commands, %d events, %d interrupts, %d resets", c.Commands, c.Events, c.Interrupts, c.Resets)
}

// spotless says what a driver has done to the device that a good one does not, or has left in it: the device's own view,
// which no driver can embellish. losesPages says that a test takes away, on purpose, memory that firmware holds.
func (m modelState) spotless(losesPages bool) error {
	s, c := m.State, m.Counters
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(s.Phase == "off" && s.Pages == 0 && s.InFlight == 0, "firmware is in phase %s with %d pages and %d commands in flight", s.Phase, s.Pages, s.InFlight)
	unless(s.EQs+s.UARs+s.PDs+s.MKeys+s.UMEMs == 0, "objects are left: %+v", s)
	unless(s.Mappings == 0 && s.Vectors == 0, "%d mappings and %d vectors are left", s.Mappings, s.Vectors)
	unless(c.DMAFaults == 0, "%d accesses to memory that was not mapped", c.DMAFaults)
	unless(c.DMAAfterClose == 0, "%d accesses to memory after it was taken away", c.DMAAfterClose)
	unless((c.PagesUnmapped != 0) == losesPages, "%d pages were unmapped while firmware held them", c.PagesUnmapped)
	unless(c.EventsLost == 0, "%d events found no room or no queue", c.EventsLost)
	unless(c.DeliveryErrors == 0, "%d commands could not be delivered", c.DeliveryErrors)
	unless(c.BARUnsupported == 0, "%d accesses to BAR0 while it was not decoded", c.BARUnsupported)
	unless(c.Commands > 0 && c.Interrupts > 0 && c.Resets > 0, "it was not really used: %v", m)
	return errors.Join(errs...)
}
