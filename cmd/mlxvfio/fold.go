package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// A device that dies makes all fail that is still asked of it: the operation, what
// gives its objects back, the teardown. The errors are joined as they come, and stay so
// for errors.Is and errors.As. The line that is printed says the death once, with its
// remedy, where it is met first; what follows from it is left out, but for how the
// function was left.

// oneLine is an error on one line.
func oneLine(err error) string {
	var texts []string
	said := map[string]bool{} // the deaths
	for _, p := range partsOf(err) {
		if text := p.beside(said); text != "" {
			texts = append(texts, p.prefix+text)
		}
	}
	return strings.ReplaceAll(strings.Join(texts, "; "), "\n", "; ")
}

// joint is one of several errors that were joined; prefix is what was wrapped around
// them all.
type joint struct {
	prefix string
	err    error
}

// partsOf takes apart what errors.Join made, or one that joins in a line, below what it
// was wrapped in, too.
func partsOf(err error) []joint {
	var parts []joint
	switch u := err.(type) { //nolint:errorlint // the tree is walked here, node by node
	case interface{ Unwrap() []error }:
		var texts []string
		for _, e := range u.Unwrap() {
			parts, texts = append(parts, partsOf(e)...), append(texts, e.Error())
		}
		if t := err.Error(); t != strings.Join(texts, "\n") && t != strings.Join(texts, "; ") {
			return []joint{{err: err}} // it says more than its parts, or less
		}
	case interface{ Unwrap() error }:
		inner := u.Unwrap()
		if inner == nil {
			return []joint{{err: err}}
		}
		parts = partsOf(inner)
		prefix, wrapped := strings.CutSuffix(err.Error(), inner.Error())
		if len(parts) == 1 || !wrapped {
			return []joint{{err: err}}
		}
		parts[0].prefix = prefix + parts[0].prefix
	default:
		return []joint{{err: err}}
	}
	return parts
}

// beside is the text of an error where said was said before, which it adds to; empty
// for one that is no news.
func (p *joint) beside(said map[string]bool) string {
	var ce *mlxvfio.CloseError
	if !errors.As(p.err, &ce) || p.err.Error() != ce.Error() {
		if followsFrom(p.err, said) {
			return ""
		}
		if d := deathIn(p.err); d != "" {
			said[d] = true
		}
		return p.err.Error()
	}
	// They are all about one device: what is left follows from its own death alone.
	rest := *ce
	dead := slices.ContainsFunc(ce.Errs, func(err error) bool { return deathIn(err) != "" })
	again := slices.ContainsFunc(ce.Errs, func(err error) bool { return said[deathIn(err)] })
	rest.Errs = nil
	for _, err := range ce.Errs {
		d := deathIn(err)
		if d != "" && (again || said[d]) || d == "" && dead && isLeft(err) {
			continue
		}
		rest.Errs = append(rest.Errs, err)
		if d != "" {
			said[d] = true
		}
	}
	if len(rest.Errs) == 0 {
		return ce.Device + ": " + ce.Outcome()
	}
	return rest.Error()
}

// followsFrom tells whether err says nothing but that a device is dead of which that
// was said, or that something has not been given back to such a one.
func followsFrom(err error, said map[string]bool) bool {
	return isLeft(err) && len(said) > 0 || said[deathIn(err)]
}

// isLeft tells whether err says that something has not been given back.
func isLeft(err error) bool {
	var left *mlxvfio.LeftError
	return errors.Is(err, queues.ErrInUse) || errors.As(err, &left)
}

// deathIn is what a device died of, by the innermost error that names it, whatever
// operation met it; empty for an error of a device that lives.
func deathIn(err error) string {
	var (
		de *cmdif.DeadError
		fe *initseg.FatalError
		ve *vfio.Error
	)
	switch {
	case errors.As(err, &de):
		err = de.Err
	case errors.As(err, &fe):
		return fe.Error()
	case !errors.Is(err, vfio.ErrGone):
		return ""
	}
	text := err.Error()
	for errors.As(err, &ve) && errors.Is(ve, vfio.ErrGone) {
		text, err = ve.Target+": "+ve.Err.Error(), ve.Err
	}
	return text
}
