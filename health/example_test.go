package health_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Ask how a function is. Only registers of BAR0 are read, so this works beside
// whatever driver has the function, and on one that does not answer commands.
func Example() {
	for _, fault := range []string{"", "fatal"} {
		if err := check(context.Background(), fault); err != nil {
			fmt.Println("failed:", err)
		}
	}
	// Output:
	// healthy (ok)
	// fatal (fatal-rfr)
}

func check(ctx context.Context, fault string) (err error) {
	chip, err := sim.New(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	dev, err := vfio.NewDevice(chip.Function(0), vfio.DeviceOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	bar, err := dev.Window(vfio.RegionBAR0)
	if err != nil {
		return err
	}
	if fault != "" {
		if err := chip.SetFault(fault, "now"); err != nil {
			return err
		}
	}

	report, err := health.Check(ctx, health.Options{Window: bar, Device: "model", Period: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	fmt.Printf("%v (%s)\n", report.Verdict.State, report.Verdict.Condition)
	return nil
}
