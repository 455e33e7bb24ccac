package main

import "time"

// plan is one virtual machine: what is plugged in and what runs.
type plan struct {
	Name      string
	Scenarios []string // of the guest, in order
	Models    []string // words of "mlxvfio serve", one function each
	Devices   []string // QEMU's own devices, for machines that check the bench itself
	IOMMU     []string // QEMU arguments; nil: an intel-iommu that remaps interrupts
	HugePages int      // 2 MiB pages reserved in the guest
	Limit     time.Duration
	MustFail  []string // planted failures: these checks must be there and must fail
}

const connectX5 = "sim:cx5,port=ib"

// plans are what "make vm" runs, in order.
var plans = []plan{
	{
		// the bench itself, without the program under test
		Name:      "bench",
		Scenarios: []string{"mechanics", "control-fail", "control-limit", "control-panic", "control-hang"},
		Devices:   []string{"nvme,serial=stand-in,bus={bus}"},
		HugePages: 8,
		Limit:     time.Minute,
		MustFail:  []string{"control-fail/planted", "control-panic/complete", "control-hang/complete"},
	},
}

// programs says whether the machine needs the program under test.
func (p plan) programs() bool { return len(p.Models) > 0 }
