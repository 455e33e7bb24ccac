package pci_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/vfio"
)

// Decode a configuration space. The bytes may come from sysfs (ReadConfig), from a hex
// dump, or, as here, from a device that was opened.
func Example() {
	if err := decode(); err != nil {
		fmt.Println("failed:", err)
	}
	// Output:
	// 15b3:1017 is a ConnectX-5
	// MSI-X with 64 vectors
	// PCIe, function-level reset: true
}

func decode() (err error) {
	chip, err := sim.New(sim.Options{Profile: "cx5"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, chip.Close()) }()
	dev, err := vfio.NewDevice(chip.Function(0), vfio.DeviceOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()

	raw := make([]byte, 256)
	if err := dev.ReadConfig(0, raw); err != nil {
		return err
	}
	c, err := pci.ParseConfig(raw)
	if err != nil {
		return err
	}
	fmt.Printf("%04x:%04x is a %s\n", c.VendorID, c.DeviceID, pci.Lookup(c.VendorID, c.DeviceID).Name)
	if c.MSIX != nil {
		fmt.Println("MSI-X with", c.MSIX.Vectors, "vectors")
	}
	if c.PCIe != nil {
		fmt.Println("PCIe, function-level reset:", c.PCIe.FLR)
	}
	return nil
}

// Find the functions of a machine, and every reason why one cannot be opened.
func ExampleDiagnoseAll() {
	// The zero Options mean the running system; this one has no PCI bus.
	diagnoses, err := pci.DiagnoseAll(context.Background(), pci.Options{SysRoot: "/nonexistent"})
	var where *pci.Error
	if errors.As(err, &where) {
		fmt.Println(errors.Is(err, pci.ErrNotFound), where.Remedy)
	}
	for _, d := range diagnoses {
		fmt.Println(d.Function.BDF, d.Verdict())
		for _, f := range d.Findings {
			fmt.Println(" ", f.ID, "-", f.Remedy)
		}
	}
	// Output: true mount -t sysfs sysfs /sys
}

// An address is written with or without its domain.
func ExampleParseBDF() {
	b, err := pci.ParseBDF("3b:00.1")
	fmt.Println(b, err)
	_, err = pci.ParseBDF("3b:20.0")
	fmt.Println(errors.Is(err, pci.ErrBadBDF))
	// Output:
	// 0000:3b:00.1 <nil>
	// true
}
