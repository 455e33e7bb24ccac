package initseg_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Read what a function says of itself before any command was sent. Reading changes
// nothing, so this works beside a driver too.
func Example() {
	if err := read(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// firmware 14.12.1220
	// initializing: false
	// 32 slots of 64 bytes
	// healthy: true
}

func read(ctx context.Context) (err error) {
	chip, err := sim.New(sim.Options{Profile: "cx4"})
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

	seg := initseg.New(bar)
	if err := seg.WaitReady(ctx, initseg.PreInit, initseg.WaitOptions{}); err != nil {
		return err // *NotReadyError: it says what firmware was last seen doing
	}
	if err := seg.CheckRevision(); err != nil {
		return err
	}
	fmt.Println("firmware", seg.FirmwareVersion())
	busy, err := seg.Initializing()
	if err != nil {
		return err // the device reads all ones
	}
	fmt.Println("initializing:", busy)
	queue, err := seg.Queue()
	if err != nil {
		return err
	}
	fmt.Printf("%d slots of %d bytes\n", queue.Entries(), queue.Stride())
	fmt.Println("healthy:", seg.Fatal() == nil)
	return nil
}
