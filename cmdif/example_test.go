package cmdif_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/cmdif"
	"github.com/mlxvfio/mlxvfio/initseg"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Open the command interface of a function and send commands: one that has a method,
// and one as bytes.
func Example() {
	if err := commands(context.Background()); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// ISSI 1 is offered: true
	// firmware refused: BAD_OP_ERR
	// commands that nobody got an answer to: 0
}

func commands(ctx context.Context) (err error) {
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
	if err := dev.SetBusMaster(true); err != nil { // the queue lies in host memory
		return err
	}

	conn, err := cmdif.Open(ctx, dev, initseg.New(bar), cmdif.Options{})
	if err != nil {
		return err
	}
	// Deferred calls run backwards: the device may no longer write when the memory of
	// the queue is given back.
	defer func() { err = errors.Join(err, dev.SetBusMaster(false), conn.Close()) }()

	if err := conn.EnableHCA(ctx, cmdif.Function{}); err != nil {
		return err
	}
	issi, err := conn.QueryISSI(ctx)
	if err != nil {
		return err
	}
	fmt.Println("ISSI 1 is offered:", issi.Has(1))

	in, out := make([]byte, 16), make([]byte, 16)
	binary.BigEndian.PutUint16(in, 0xfff) // no such command
	err = conn.Exec(ctx, in, out)
	var refused *cmdif.CommandError
	if !errors.As(err, &refused) {
		return fmt.Errorf("an opcode that does not exist: %w", err)
	}
	fmt.Println("firmware refused:", refused.Status)

	fmt.Println("commands that nobody got an answer to:", len(conn.Unanswered()))
	return nil
}
