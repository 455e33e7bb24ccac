package tracer_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/mlxvfio/mlxvfio"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer"
	"github.com/mlxvfio/mlxvfio/tracer/capture"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// Take the firmware tracer, let firmware say something, and put it into words.
func Example() {
	if err := listen(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// function 0: the tracer is on, 4096 blocks
	// load 0
	// gaps: 0
}

func listen(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	hca, err := mlxvfio.Open(ctx, chip.Function(0), mlxvfio.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hca.Close(ctx)) }()

	c, err := hca.OpenTracer(ctx, tracer.Options{})
	if errors.Is(err, tracer.ErrBusy) {
		return fmt.Errorf("Options.Wait waits for the other owner: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }() // gives the tracer back

	if _, err := chip.EmitTrace(1, sim.TracePlain); err != nil {
		return err
	}
	c.Stop() // no more; what was written still comes
	var p capture.Player
	var r capture.Record
	for {
		if err := c.Next(ctx, &r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if err := p.Record(&r, func(m *trace.Message) { fmt.Println(m.Text()) }); err != nil {
			return err
		}
	}
	gaps, _, _ := p.Missing()
	fmt.Println("gaps:", gaps)
	return nil
}
