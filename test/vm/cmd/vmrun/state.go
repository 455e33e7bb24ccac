package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// modelState is what a model says of one of its functions (the answer to "tell PATH state"), by the names of its fields,
// in lower case and without underscores. A field that is not there is no zero: it is an error.
type modelState struct{ state, counters map[string]any }

// lasting are the numbers of the state that stay when the function is idle: the server's handle, and a history.
var lasting = []string{"handles", "mapcalls", "issi"}

// tell says words to the model and returns the answer: JSON, or with the error what the program complained of.
func (m *model) tell(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, m.program, append([]string{"tell", m.control, "--json"}, words...)...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return err.Error(), fmt.Errorf("tell the model %v: %w", words, err)
	}
	return string(out), nil
}

// modelStates are those of all its functions, in order.
type modelStates []modelState

func (m modelStates) String() string {
	var out []string
	for _, s := range m {
		out = append(out, s.String())
	}
	return strings.Join(out, "; ")
}

func (m modelStates) spotless(t tolerance) error {
	var errs []error
	for i, s := range m {
		if err := s.spotless(t); err != nil {
			errs = append(errs, fmt.Errorf("function %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// state asks the model.
func (m *model) state(ctx context.Context) (modelStates, error) {
	out, err := m.tell(ctx, "state")
	if err != nil {
		return nil, err
	}
	return parseStates([]byte(out), len(m.sockets))
}

// tolerance is what must be as a machine's purpose makes it.
type tolerance struct {
	losesPages bool // a test takes away, on purpose, memory that firmware holds
	faulty     bool // the model has a fault
	movesData  bool // data must have been moved
	killsData  bool // a process was killed while data moved
	idle       bool // nobody may have opened the function
}

// settled asks until the model is spotless, for a moment only: its server needs one to notice that QEMU has gone.
func (m *model) settled(ctx context.Context, t tolerance) (s modelStates, err error) {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s, err = m.state(ctx); err != nil {
			return s, err
		}
		if err = s.spotless(t); err == nil {
			return s, nil
		}
	}
	return s, err
}

func parseStates(out []byte, functions int) (l modelStates, err error) {
	var told struct {
		Answer struct {
			Functions []struct{ State, Counters map[string]any }
		}
	}
	if err := json.Unmarshal(out, &told); err != nil {
		return nil, fmt.Errorf("the model's state: %w", err)
	}
	if n := len(told.Answer.Functions); n != functions {
		return nil, fmt.Errorf("the model tells of %d functions, want %d: %s", n, functions, out)
	}
	for _, f := range told.Answer.Functions {
		l = append(l, modelState{plainNames(f.State), plainNames(f.Counters)})
	}
	return l, nil
}

func plainNames(m map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[strings.ToLower(strings.ReplaceAll(k, "_", ""))] = v
	}
	return out
}

func (m modelState) String() string {
	c := m.counters
	return fmt.Sprintf("%v commands, %v events, %v interrupts, %v resets, %v packets, %v completions", c["commands"], c["events"], c["interrupts"], c["resets"],
		c["packets"], c["completions"])
}

// spotless says what a driver has done to the device that a good one does not, or has left in it: the device's own view,
// which no driver can embellish.
func (m modelState) spotless(t tolerance) error {
	var errs []error
	unless := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	unless(m.state["phase"] == "off", "firmware is in phase %v", m.state["phase"])
	for _, name := range []string{"pages", "inflight", "eqs", "uars", "mkeys", "mappings", "vectors"} {
		unless(m.state[name] != nil, "the state does not tell of %s", name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.state)) {
		if n, isNumber := m.state[name].(float64); isNumber && !slices.Contains(lasting, name) {
			unless(n == 0, "%v %s are left", n, name)
		}
	}
	for _, name := range []string{"dmafaults", "dmaafterclose", "deliveryerrors", "barunsupported"} {
		unless(m.counters[name] == 0.0, "%v %s were counted", m.counters[name], name)
	}
	// When a process dies, the kernel switches bus mastering off under a device at work, before it resets it: what the
	// device could not write then, and nothing else, is excused.
	blocked, _ := m.counters["dmablocked"].(float64)
	for _, name := range []string{"eventslost", "cqerrors"} {
		n, ok := m.counters[name].(float64)
		unless(ok && (n == 0 || t.killsData && n <= blocked), "%v %s were counted, %v accesses were blocked", m.counters[name], name, m.counters["dmablocked"])
	}
	unmapped, ok := m.counters["pagesunmapped"].(float64)
	unless(ok && (unmapped != 0) == t.losesPages, "%v pages were unmapped while firmware held them", m.counters["pagesunmapped"])
	used := []string{"commands", "resets", "interrupts"}
	if t.faulty {
		used = used[:2] // it may not have come as far as an interrupt
	}
	if t.movesData {
		used = append(used, "packets", "completions")
	}
	if t.idle {
		used = nil
		unless(m.counters["commands"] == 0.0, "%v commands, and nobody was to open it", m.counters["commands"])
	}
	for _, name := range used {
		n, _ := m.counters[name].(float64)
		unless(n > 0, "it was not really used: %v %s", m.counters[name], name)
	}
	return errors.Join(errs...)
}
