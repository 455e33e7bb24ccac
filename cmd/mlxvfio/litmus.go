package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/spf13/cobra"
)

// litmusFlags are the flags of litmus.
type litmusFlags struct {
	peer        string
	length      time.Duration
	runs        int
	seed        uint64
	queues      int
	plainWrites bool
}

func (a *app) litmusVerb() *cobra.Command {
	var f litmusFlags
	c := a.verb("litmus DEV", "prove what the device guarantees about atomics and writes; the result is a guarantee card", 1, 1, func(ctx context.Context, args []string) error {
		return a.litmus(ctx, args[0], &f)
	})
	c.Long = `litmus lets several queue pairs work on the same memory at once and judges by what memory and replies say: each kind
of atomic against its meaning, concurrent updates (none lost, no neighbour touched), semaphores of 1, 2 and 4 bytes at
every offset, linearizable histories, torn writes inside and across the boundary, order of WRITE, READ, SEND and
atomics. The target memory is DEV's. With --peer, DEV and the peer both work on it: two hosts.
A guarantee that is broken is named, with the fault that shows, and the exit code is 1.`
	c.Example = examples(
		"mlxvfio litmus sim", "the guarantee card of the model",
		"mlxvfio litmus sim --plain-writes --for 1s", "without atomic writes",
		"mlxvfio litmus sim,fault=lost-update", "a model that loses updates is found out; exit code 1")
	a.peerFlag(c, &f.peer)
	c.Flags().IntVar(&f.runs, "runs", 0, "do `N` runs, each with the next seed; the first that finds something is the last (default 1)")
	c.Flags().DurationVar(&f.length, "for", 0, "go on with further runs for this `TIME`, and bound each by it (default: one run of at most 50s)")
	c.Flags().Uint64Var(&f.seed, "seed", 1, "`NUMBER` that decides operations and places")
	c.Flags().IntVar(&f.queues, "queues", 0, "use `N` queue pairs of each host (default 4, with a peer 2)")
	positive(c, "runs", "for", "queues")
	c.Flags().BoolVar(&f.plainWrites, "plain-writes", false, "switch atomic writes off in the responder, to see the difference")
	return c
}

func (a *app) litmus(ctx context.Context, dev string, f *litmusFlags) error {
	switch {
	case f.runs < 0:
		return usagef("--runs %d: want 1 or more", f.runs)
	case f.length < 0:
		return usagef("--for %v: want more than nothing", f.length)
	case f.queues < 0 || f.queues > 16:
		return usagef("--queues %d: want 1 to 16", f.queues)
	case f.queues == 1 && f.peer == "":
		return usagef("--queues 1: of one host want 2 to 16, or nothing happens at once")
	}
	return a.withPair(ctx, dev, f.peer, func(ctx context.Context, p *dataSession) error {
		r := &litmusResult{pairHead: p.head()}
		build, err := p.litmusBuild(f)
		if err != nil {
			return err
		}
		bar := progress{w: a.err, on: terminal(a.err) && !a.json, total: f.runs}
		begun, longest := time.Now(), time.Duration(0)
		for n := 0; f.another(n, time.Since(begun)+longest); n++ {
			start := time.Now()
			card, err := litmusOnce(ctx, build, litmus.Options{
				Seed: f.seed + uint64(n), Budget: f.length,
				Progress: func(x litmus.Row) { bar.show(n+1, x.Test+": "+x.Subject) },
			})
			bar.clear()
			longest = max(longest, time.Since(start))
			if card != nil {
				r.Runs, r.TotalOps, r.Card = n+1, r.TotalOps+card.Ops, *card
			}
			if err != nil {
				return fmt.Errorf("%s: %w", dev, err)
			}
			if !card.OK {
				break
			}
		}
		return errors.Join(a.print("litmus/1", r), brokenGuarantees(dev, &r.Card))
	})
}

// guaranteeError says that guarantees are broken; the card has all of them.
type guaranteeError struct {
	dev    string
	card   *litmus.Card
	broken int
	first  *atomics.FaultError
}

// brokenGuarantees is nil if the card is good.
func brokenGuarantees(dev string, c *litmus.Card) error {
	err := c.Err()
	e := &guaranteeError{dev: dev, card: c}
	if err == nil || !errors.As(err, &e.first) {
		return err
	}
	for _, r := range c.Rows {
		if r.Verdict == litmus.Broken {
			e.broken++
		}
	}
	return e
}

func (e *guaranteeError) Error() string {
	return fmt.Sprintf("%s: %d broken guarantee%s, fault%s %s; first: %v", e.dev, e.broken, plural(e.broken),
		plural(len(e.card.Faults)), faultNames(e.card.Faults), e.first)
}

func (e *guaranteeError) Unwrap() error { return e.first }

func faultNames(faults []atomics.Fault) string {
	var names []string
	for _, f := range faults {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}

// another tells whether there is a run after n, if it would be over then.
func (f *litmusFlags) another(n int, over time.Duration) bool {
	switch {
	case n == 0:
		return true
	case f.length == 0:
		return n < f.runs
	}
	return over <= f.length && (f.runs == 0 || n < f.runs)
}

// litmusBuild says which queue pairs the suite runs on.
func (p *dataSession) litmusBuild(f *litmusFlags) (litmus.BuildOptions, error) {
	o := litmus.BuildOptions{Name: p.from.arg.text, Queues: f.queues, NoAtomicWrites: f.plainWrites}
	var err error
	if o.Responder, err = p.from.host("a"); err != nil || !p.two() {
		return o, err
	}
	peer, err := p.to.host("b")
	o.Name += " and " + p.to.arg.text
	o.Requesters = []litmus.Host{o.Responder, peer}
	return o, err
}

// litmusOnce is one run on queue pairs of its own: a run that breaks some leaves
// none behind.
func litmusOnce(ctx context.Context, build litmus.BuildOptions, o litmus.Options) (*litmus.Card, error) {
	b, err := litmus.Build(ctx, build)
	if err != nil {
		return nil, err
	}
	card, err := litmus.Run(ctx, &b.Rig, o)
	end, cancel := outlast(ctx, closeLimit, lateLimit)
	defer cancel()
	return card, errors.Join(err, b.Close(end))
}

// litmusResult is the card of the last run.
type litmusResult struct {
	pairHead
	Runs int `json:"runs"`
	// TotalOps counts the operations of all runs, the card's those of the last.
	TotalOps int `json:"total_ops"`
	litmus.Card
}

// shortDetail is how much of a detail the text shows; JSON has all.
const shortDetail = 160

// cutOff cuts a long text off.
func cutOff(s string) string {
	if r := []rune(s); len(r) > shortDetail {
		return string(r[:shortDetail]) + "…"
	}
	return s
}

func (r *litmusResult) text(w io.Writer) {
	fmt.Fprintln(w, r.pairHead)
	fmt.Fprintf(w, "seed %d, %d queue pairs of %d host%s; max_atomic_size %d, %s\n\n", r.Seed, r.Queues, r.Hosts, plural(r.Hosts), r.MaxAtomicSize, writesText(r.MaxWrite))
	group := ""
	var rows [][]string
	for _, x := range r.Rows {
		if g := x.Test + ": " + x.Guarantee; g != group {
			table(w, rows)
			paragraph(w, g, 2, widthTable)
			group, rows = g, nil
		}
		verdict := string(x.Verdict)
		if x.Fault != atomics.NoFault {
			verdict += ": " + string(x.Fault)
		}
		rows = append(rows, []string{"  " + verdict, fmt.Sprintf("%d ops", x.Ops), x.Subject + ifText(x.Detail != "", "; "+cutOff(x.Detail))})
	}
	table(w, rows)
	verdict := "every guarantee holds"
	if !r.OK {
		verdict = "a guarantee is broken" + ifText(len(r.Faults) > 0, ": "+faultNames(r.Faults))
	}
	fmt.Fprintln(w)
	paragraph(w, fmt.Sprintf("%s; %d run%s, %d operations", verdict, r.Runs, plural(r.Runs), r.TotalOps), 2, widthTable)
}
