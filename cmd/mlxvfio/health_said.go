package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// What a dead device makes fail (a bring-up, a teardown) fails with the verdict on it,
// or with the silence that the verdict is about. Where the verdict is shown that is
// said in a few words, so that what the device answered and what to do about it stand
// there once. JSON has the errors in full.

// silent tells whether err is nothing but a device that a verdict is about: ended by
// one, not answered, or gone.
func silent(err error) bool {
	var (
		ve *health.VerdictError
		te *cmdif.TimeoutError
		de *cmdif.DeadError
	)
	return errors.As(err, &ve) || errors.As(err, &te) || errors.As(err, &de) || errors.Is(err, vfio.ErrGone)
}

// unanswered says which command a silent error is about; empty for none.
func unanswered(err error) string {
	var (
		ce *cmdif.CanceledError
		te *cmdif.TimeoutError
		de *cmdif.DeadError
	)
	name := func(o fmt.Stringer, opcode uint16) string { return fmt.Sprintf("%v(0x%x)", o, opcode) }
	switch {
	case errors.As(err, &ce) && ce.Slot >= 0:
		if ce.Age < time.Millisecond {
			return name(ce.Opcode, uint16(ce.Opcode)) + " was given up at once"
		}
		return fmt.Sprintf("%s was given up after %v", name(ce.Opcode, uint16(ce.Opcode)), ce.Age.Round(time.Millisecond))
	case errors.As(err, &te) && te.Slot >= 0:
		return fmt.Sprintf("%s was not answered within %v", name(te.Opcode, uint16(te.Opcode)), te.Age.Round(time.Millisecond))
	case errors.As(err, &de) && de.Slot >= 0:
		return name(de.Opcode, uint16(de.Opcode)) + " was abandoned"
	}
	return ""
}

// failure says what a bring-up that failed was at. brief tells that it does not say
// all: the rest is what v says, in other words.
func (a *attachment) failure(v health.Verdict) (said string, brief bool) {
	var se *mlxvfio.StageError
	if v.State < health.Stalled || !errors.As(a.err, &se) || !silent(se.Err) || slices.ContainsFunc(se.Undo, func(err error) bool { return !silent(err) }) {
		return a.Error, false
	}
	said = "stage " + se.Stage
	if c := unanswered(se.Err); c != "" && v.Condition != health.CommandsDead { // which names it
		said += ": " + c
	}
	return said, true
}

// said is why a function is not open, beside the verdict v.
func (a *attachment) said(v health.Verdict) string {
	if a.Error == "" {
		return a.Why
	}
	f, brief := a.failure(v)
	if brief {
		return a.Why + " in " + f
	}
	return a.Why + ": " + f
}

// sick is the error of a verdict that is not healthy, and of a bring-up that failed:
// one where they are the same.
func (p *patient) sick(v health.Verdict) error {
	said, brief := p.attach.failure(v)
	if !brief || v.ExitCode == exitOK {
		return errors.Join(ill(p.arg.text, v), p.notUp())
	}
	err := fmt.Errorf("%s: bring-up %s: %w", p.arg.text, said, &health.VerdictError{Verdict: v})
	return &illError{v.ExitCode, v.Remedy, err, p.attach.err}
}

// notUp is the error of a bring-up that failed though the registers look well.
func (p *patient) notUp() error {
	if p.attach.Error == "" {
		return nil
	}
	remedy := ""
	var se *mlxvfio.StageError
	if errors.As(p.attach.err, &se) {
		remedy = se.Remedy
	}
	return &illError{exitFailed, remedy, errors.New(p.attach.Error), p.attach.err}
}

// closeNote is why a function could not be given back in good order: in full, and
// beside the verdict on it.
type closeNote struct{ full, brief string }

func newCloseNote(ce *mlxvfio.CloseError) closeNote {
	n := closeNote{full: oneLine(ce)}
	b := *ce
	b.Errs = nil
	for _, err := range ce.Errs {
		if !silent(err) {
			b.Errs = append(b.Errs, err)
		} else if c := unanswered(err); c != "" {
			b.Errs = append(b.Errs, errors.New(c))
		}
	}
	if len(b.Errs) == 0 {
		b.Errs = []error{errors.New("it was cut off, firmware was not asked")}
	}
	n.brief = oneLine(&b)
	return n
}
