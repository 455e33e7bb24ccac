package vfio_test

import (
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Open a function, read a register through a window on BAR0, and make memory that
// the device can reach.
func Example() {
	if err := lookAt(); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// BAR0: command interface revision 5
	// a page named ring at a page boundary: true
	// left behind: 0 buffers, 0 mappings
}

func lookAt() (err error) {
	// The model is a Transport; so is what the kernel's VFIO and vfio-user sockets give.
	chip, err := sim.New(sim.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()

	dev, err := vfio.NewDevice(chip.Function(0), vfio.DeviceOptions{})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, dev.Close()) // closes its address space too
		fmt.Printf("left behind: %d buffers, %d mappings\n", dev.Space().Stats().LiveBuffers, chip.State(0).Mappings)
	}()

	bar, err := dev.Window(vfio.RegionBAR0)
	if err != nil {
		return err
	}
	rev := bar.ReadBE32(0x4) >> 16
	if err := bar.Err(); err != nil { // reads do not answer errors one by one
		return err
	}
	fmt.Println("BAR0: command interface revision", rev)

	page, err := dev.Space().Alloc(4096, vfio.BufferOptions{Name: "ring"})
	if err != nil {
		return err
	}
	page.StoreBE32(0, 0x12345678) // what the device will see at page.IOVA()
	fmt.Printf("a page named %s at a page boundary: %v\n", page.Name(), page.IOVA()%4096 == 0)
	return page.Free()
}
