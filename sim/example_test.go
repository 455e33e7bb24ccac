package sim_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Make a device from the words of the command line, with a fault, and see what the
// driver makes of it.
func Example() {
	if err := refused(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// stage init-hca failed
	// firmware holds 0 pages, 0 mappings are left
}

func refused(ctx context.Context) error {
	o, err := sim.Parse("sim:cx5,port=eth,fault=status@INIT_HCA=BAD_PARAM_ERR")
	if err != nil {
		return err // *UsageError: which word, and what there is
	}
	chip, err := sim.New(o)
	if err != nil {
		return err
	}
	_, err = mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	var stage *mlxvfio.StageError
	if !errors.As(err, &stage) {
		return errors.Join(errors.New("the fault was not noticed"), err, chip.Close())
	}
	fmt.Printf("stage %s failed\n", stage.Stage)
	s := chip.State(0) // what the model holds, the other side of the story
	fmt.Printf("firmware holds %d pages, %d mappings are left\n", s.Pages, s.Mappings)
	return chip.Close()
}

// A word that does not exist is refused with what there is.
func ExampleParse() {
	_, err := sim.Parse("sim:cx9")
	fmt.Println(err)
	// Output: simulated device: unknown profile "cx9"; there are: bf3, cx4, cx5, cx6dx, cx7
}
