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
	var said deaths
	for _, p := range partsOf(err) {
		if text := p.beside(&said); text != "" {
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
func (p *joint) beside(said *deaths) string {
	var ce *mlxvfio.CloseError
	if !errors.As(p.err, &ce) || p.err.Error() != ce.Error() {
		d := deathIn(p.err)
		if said.has(d) || isLeft(p.err) && said.of(deviceOf(p.err)) {
			return ""
		}
		said.add(d)
		return p.err.Error()
	}
	// They are all about one device: what is left follows from its own death alone.
	rest := *ce
	within := func(err error) death {
		d := deathIn(err)
		d.device = ce.Device
		return d
	}
	dead := slices.ContainsFunc(ce.Errs, func(err error) bool { return within(err).text != "" })
	again := slices.ContainsFunc(ce.Errs, func(err error) bool { return said.has(within(err)) })
	rest.Errs = nil
	for _, err := range ce.Errs {
		d := within(err)
		if d.text != "" && (again || said.has(d)) || d.text == "" && dead && isLeft(err) {
			continue
		}
		rest.Errs = append(rest.Errs, err)
		said.add(d)
	}
	if len(rest.Errs) == 0 {
		return ce.Device + ": " + ce.Outcome()
	}
	return rest.Error()
}

// death is what a device died of; text is empty for none. device is empty where no
// error on the way says which one it is: target is what could not be reached then.
type death struct{ device, target, text string }

// deaths are those that were said.
type deaths []death

// has tells whether d was said: the same words, and not of another device.
func (s *deaths) has(d death) bool {
	return d.text != "" && slices.ContainsFunc(*s, func(x death) bool {
		return x.text == d.text && (x.device == d.device || x.device == "" || d.device == "")
	})
}

// of tells whether a death of this device was said. What has no name has not died.
func (s *deaths) of(device string) bool {
	return device != "" && slices.ContainsFunc(*s, func(x death) bool {
		return x.device == device || x.device == "" && x.target == device
	})
}

func (s *deaths) add(d death) {
	if d.text != "" {
		*s = append(*s, d)
	}
}

// isLeft tells whether err says that something has not been given back.
func isLeft(err error) bool {
	var left *mlxvfio.LeftError
	return errors.Is(err, queues.ErrInUse) || errors.As(err, &left)
}

// deviceOf is the device that an error of something left is about; empty where none is
// named.
func deviceOf(err error) string {
	var (
		se *mlxvfio.StageError
		oe *queues.ObjectError
		ve *vfio.Error
	)
	switch {
	case errors.As(err, &se):
		return se.Device
	case errors.As(err, &oe):
		return oe.Device
	case errors.As(err, &ve):
		return ve.Target
	}
	return ""
}

// deathIn is what a device died of, by the innermost error that names it, whatever
// operation met it; that of an error of a device that lives has no text.
func deathIn(err error) death {
	var (
		d  death
		de *cmdif.DeadError
		fe *initseg.FatalError
		ve *vfio.Error
	)
	switch {
	case errors.As(err, &de):
		d.device, err = de.Device, de.Err
	case errors.As(err, &fe):
		err = fe
	case !errors.Is(err, vfio.ErrGone):
		return d
	}
	d.text = err.Error()
	for errors.As(err, &ve) && errors.Is(ve, vfio.ErrGone) {
		d.target, d.text, err = ve.Target, ve.Target+": "+ve.Err.Error(), ve.Err
	}
	return d
}
