package mlxvfio_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Bring a function up, see what it is, and give it back.
func Example() {
	if err := bringUp(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// firmware 28.40.1000, 32 command slots
	// the last stage was ready
	// pages given 1030, returned 1030, outstanding 0
}

// bringUp opens the model. A real function comes from package vfio instead, and the
// rest stays as it is.
func bringUp(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{Profile: "cx7"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()

	hca, err := mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	if err != nil {
		var stage *mlxvfio.StageError
		if errors.As(err, &stage) { // everything was undone already
			fmt.Println("the bring-up ended at", stage.Stage)
		}
		return err
	}
	queue, err := hca.Segment().Queue()
	if err != nil {
		return errors.Join(err, hca.Close(ctx))
	}
	fmt.Printf("firmware %v, %d command slots\n", hca.Segment().FirmwareVersion(), queue.Entries())
	last := hca.Stages()[len(hca.Stages())-1]
	fmt.Println("the last stage was", last.Stage)

	// Close takes the function down and gives the transport back; an error says what
	// the device kept.
	if err := hca.Close(ctx); err != nil {
		return err
	}
	l := hca.Ledger()
	fmt.Printf("pages given %d, returned %d, outstanding %d\n", l.Given, l.Returned, l.Outstanding)
	return nil
}
