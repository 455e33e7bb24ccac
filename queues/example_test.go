package queues_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/queues"
	"github.com/mlxvfio/mlxvfio/sim"
)

// Write eight bytes into the memory of a connected queue pair, and wait for the
// completion.
func Example() {
	if err := write(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output: WQE 7 completed, the target holds "8 bytes!"
}

func write(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	hca, err := mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hca.Close(ctx)) }() // gives back what follows, too

	// A DataPath is the objects that most users want: PD, UAR, EQ and CQ.
	data, err := hca.OpenData(ctx, mlxvfio.DataOptions{})
	if err != nil {
		return err
	}
	source, err := data.Memory(ctx, 64, 64, queues.LocalWrite)
	if err != nil {
		return err
	}
	target, err := data.Memory(ctx, 64, 64, queues.LocalWrite|queues.RemoteWrite)
	if err != nil {
		return err
	}
	qp, _, err := mlxvfio.Connect(ctx, data, data, queues.QPOptions{})
	if err != nil {
		return err
	}

	source.Mem.CopyIn(0, []byte("8 bytes!"))
	if err := qp.SQ.Write(7, queues.Signalled, source.SGE(0, 8), target.Remote(0)); err != nil {
		return err // *PostError: nothing was posted
	}
	qp.SQ.Ring()

	idle := mlxvfio.Idle(data)
	for done := make([]queues.Completion, 1); ; {
		n, err := data.CQ().Poll(done)
		if err != nil {
			return err // about the CQ
		}
		if n > 0 && !done[0].OK() {
			return data.CQ().Err(&done[0]) // the WQE that failed and the reason
		}
		if n > 0 {
			got := make([]byte, 8)
			target.Mem.CopyOut(0, got)
			fmt.Printf("WQE %d completed, the target holds %q\n", done[0].WRID, got)
			return nil
		}
		if err := idle(ctx); err != nil {
			return err
		}
	}
}
