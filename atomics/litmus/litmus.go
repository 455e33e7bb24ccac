package litmus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/atomics"
)

// Run tries what the device guarantees and returns the card. The error is for
// what kept the suite from going on: a refused Rig, a queue pair that failed, a
// device that completes nothing, a cancelled ctx; the card then holds the rows
// until there. A card that is not OK is no error of Run: see Card.Err.
func Run(ctx context.Context, rig *Rig, o Options) (*Card, error) {
	o.defaults()
	card := &Card{
		Rig: rig.Name, Seed: o.Seed, Hosts: rig.hosts(), Queues: len(rig.Requesters),
		MaxAtomicSize: rig.Caps.MaxAtomicSize(), MaxWrite: rig.MaxWrite,
	}
	if err := rig.check(); err != nil {
		return card, err
	}
	card.Profile = rig.Requesters[0].Profile
	r := newRunner(rig, o, card)
	tests := []struct {
		name string
		run  func(context.Context) error
	}{
		{testOperations, r.operations},
		{testAdds, r.adds},
		{testMutex, r.mutex},
		{testLinear, r.linear},
		{testTorn, r.torn},
		{testOrder, r.ordering},
	}
	r.probed()
	over := r.end
	for i, t := range tests {
		left := time.Until(over)
		if left <= 0 {
			r.row(Row{Test: t.name, Guarantee: "all of the group", Required: true, Verdict: NoTime, Detail: "the budget ended before; give it more"})
			continue
		}
		// Each test may use half of what is left, the last one all.
		r.stop, r.end = false, time.Now().Add(left/2)
		if i == len(tests)-1 {
			r.end = over
		}
		if err := t.run(ctx); err != nil {
			card.blame(r.sequential)
			card.finish()
			return card, r.ended(t.name, err)
		}
	}
	card.blame(r.sequential)
	card.finish()
	return card, nil
}

// ended says in which test the suite stopped, and what single operations had
// shown by then.
func (r *runner) ended(test string, err error) error {
	var fe *atomics.FaultError
	if ce := r.card.Err(); ce != nil && errors.As(ce, &fe) {
		return fmt.Errorf("litmus test %s: %w (by then: %w)", test, err, fe)
	}
	return fmt.Errorf("litmus test %s: %w", test, err)
}

// probed is the row that tells what the probe found, if there was one.
func (r *runner) probed() {
	for _, p := range r.ports {
		prof := &p.req.Profile
		if !prof.Probed {
			continue
		}
		row := Row{Test: testProbe, Guarantee: "each form has a byte order and does what the reference does", Required: true, Verdict: Holds,
			Subject: fmt.Sprintf("%d forms", len(prof.Forms)), Detail: fmt.Sprintf("words are %s in memory", prof.Order())}
		for i := range prof.Forms {
			r.ops += prof.Forms[i].Runs
		}
		if f := prof.Fault(); f != nil {
			row.Verdict, row.Fault, row.Detail = Broken, f.Fault, fmt.Sprintf("%s with %d bytes: %s", f.Name, f.Size, f.Detail)
		}
		r.row(row)
		return
	}
}
