package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What somebody meant who mistyped a word.

// mostMeant is how many words are suggested.
const mostMeant = 3

// near gives the known words that the word may have been meant to be, the likeliest
// first: a few letters away, or begun or ended like it.
func near(word string, known []string) []string {
	type guess struct {
		word     string
		distance int
	}
	w := strings.ToLower(word)
	if w == "" {
		return nil
	}
	var gs []guess
	for _, k := range known {
		l := strings.ToLower(k)
		d := distance(w, l)
		switch {
		case len(w) > 1 && (strings.HasPrefix(l, w) || strings.HasPrefix(w, l) && len(l) > 2):
			d = 0
		case d <= max(1, len(w)/3):
		case len(w) > 3 && strings.Contains(l, w):
			d = 3
		default:
			continue
		}
		gs = append(gs, guess{k, d})
	}
	slices.SortStableFunc(gs, func(a, b guess) int { return a.distance - b.distance })
	var out []string
	for _, g := range gs[:min(len(gs), mostMeant)] {
		if g.distance <= gs[0].distance+1 { // not beside a much better one
			out = append(out, g.word)
		}
	}
	return out
}

// distance is the number of letters to insert, remove, replace or swap with their
// neighbour that lead from a to b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1])
			if a[i-1] != b[j-1] {
				row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// didYouMean is the part of an error that suggests a word; empty where none is near.
func didYouMean(word string, known []string) string {
	if s := near(word, known); len(s) > 0 {
		return "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return ""
}

// flagError makes a usage error of what pflag says.
func flagError(c *cobra.Command, err error) error {
	if bad := badValue(c, err); bad != nil {
		return bad
	}
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) || len(missing.GetSpecifiedName()) < 2 {
		return &usageError{fmt.Sprintf("%v (%s --help lists the flags)", err, c.CommandPath())}
	}
	var known []string
	visible := func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, "--"+f.Name)
		}
	}
	c.LocalFlags().VisitAll(visible)
	c.InheritedFlags().VisitAll(visible)
	return usagef("%s has no flag --%s%s (%s --help lists the flags)", c.CommandPath(), missing.GetSpecifiedName(),
		didYouMean("--"+missing.GetSpecifiedName(), known), c.CommandPath())
}

// mostListed is how many known words an error lists.
const mostListed = 12

// simUsage makes a usage error of what the model does not know. Where very much is
// known, it says where that is listed.
func simUsage(err error) error {
	var u *sim.UsageError
	if !errors.As(err, &u) || u.Why != "" {
		return &usageError{err.Error()}
	}
	known := u.Known
	if u.What == "word" { // those are known with their values
		for _, w := range sim.Words() {
			known = append(known, w.Name)
		}
	}
	meant := didYouMean(u.Word, known)
	if len(u.Known) <= mostListed {
		return &usageError{err.Error() + meant}
	}
	return usagef("simulated device: unknown %s %q%s (mlxvfio serve --list shows all %d)", u.What, u.Word, meant, len(u.Known))
}

// commandNames are those of the opcode table.
func commandNames() []string {
	var names []string
	for _, c := range prm.Commands() {
		names = append(names, c.Name)
	}
	return names
}

// valueNames are those of an enumeration.
func valueNames(e *prm.Enum) []string {
	var names []string
	for _, v := range e.Values {
		names = append(names, v.Name)
	}
	return names
}
