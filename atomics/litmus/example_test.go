package litmus_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/atomics/litmus"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Find out what a device guarantees. This model loses updates, which the card names.
func Example() {
	if err := prove(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// all guarantees hold: false
	// broken: lost-update
}

func prove(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{Faults: []sim.FaultSpec{{Name: "lost-update"}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	hca, err := mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hca.Close(ctx)) }()

	caps, err := hca.AtomicCaps()
	if err != nil {
		return err
	}
	bench, err := litmus.Build(ctx, litmus.BuildOptions{
		Name: "example", Responder: litmus.Host{Name: "a", Dev: hca.Queues(), Caps: caps},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bench.Close(ctx)) }()

	card, err := litmus.Run(ctx, &bench.Rig, litmus.Options{Seed: 1, Scale: 0.1})
	if err != nil {
		return err // the run could not be carried out; what is broken stands in the card
	}
	fmt.Println("all guarantees hold:", card.OK)
	for _, f := range card.Faults {
		fmt.Println("broken:", f)
	}
	return nil
}
