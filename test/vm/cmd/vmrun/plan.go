package main

import (
	"slices"
	"time"
)

// plan is one virtual machine: what is plugged in and what runs.
type plan struct {
	Name      string
	Scenarios []string // of the guest, in order
	Models    []string // words of "mlxvfio serve"
	Functions int      // of each model, each in a slot and an IOMMU group of its own; 0 is one
	Devices   []string // QEMU's own devices, for machines that check the bench itself
	Beside    string   // a device of QEMU's in the slot and in the IOMMU group of the last model
	Ports     string   // further words for the root ports, each with its comma in front
	IOMMU     []string // QEMU arguments; nil: an intel-iommu that remaps interrupts
	Release   string   // of the kernel; "" is release
	Backend   string   // the way into VFIO that the program must take; "" is type1, the only one that Debian's kernels have
	Kernel    string   // further words of the kernel command line
	HugePages int      // 2 MiB pages reserved in the guest
	Limit     time.Duration
	// LosesPages: a test here pretends that the device was pulled, and the driver then takes away memory that firmware,
	// which is still there, holds. The model must have seen it on such a machine, and on no other.
	LosesPages bool
	Linked     bool     // the two models have a wire between them
	MovesData  bool     // the models must have sent packets and written completions
	Idle       bool     // the functions cannot be opened here
	KillsData  bool     // some of it by a process that is killed meanwhile
	MustFail   []string // planted failures: these checks must be there and must fail
}

const (
	connectX5    = "sim:cx5,port=ib"
	connectX5Eth = "sim:cx5,port=eth"
)

// plans are what "make vm" runs, in order.
var plans = slices.Concat(debianPlans, customPlans)

// debianPlans are the machines that run kernels as Debian ships them.
var debianPlans = []plan{
	{
		// the bench itself, without the program under test
		Name:      "bench",
		Scenarios: []string{"mechanics", "control-fail", "control-limit", "control-panic", "control-hang"},
		Devices:   []string{"nvme,serial=stand-in,bus={bus}"},
		HugePages: 8,
		Limit:     time.Minute,
		MustFail:  []string{"control-fail/planted", "control-panic/complete", "control-hang/complete"},
	},
	{
		Name:      "bench-dies", // a worker that dies must be seen, and the machine must still power off in order
		Scenarios: []string{"control-die"},
		Limit:     time.Minute,
		MustFail:  []string{"init/worker", "control-die/complete"},
	},
	{
		Name:      "function", // a whole visit, from an unbound function to an unbound function
		Scenarios: []string{"list", "bind", "info", "verbs", "selftest", "flr", "busy", "interrupt", "unbind"},
		Models:    []string{connectX5},
		Limit:     5 * time.Minute,
	},
	{
		Name:       "hardware", // the hardware tests of the rooms
		Scenarios:  contracts(),
		Models:     []string{connectX5},
		LosesPages: true, // drivertest: Unplugged
		MovesData:  true,
		Limit:      8 * time.Minute,
	},
	{
		Name:      "kill", // SIGKILL at every stage, and between
		Scenarios: []string{"bind", "kill", "kill-any", "unbind"},
		Models:    []string{connectX5},
		Limit:     7 * time.Minute,
	},
	{
		Name:      "pair", // two functions, with huge pages to be had
		Scenarios: []string{"pair", "unbind"},
		Models:    []string{connectX5, connectX5 + ",fw=16.35.1012"},
		HugePages: 64,
		Limit:     4 * time.Minute,
	},
	{
		Name:      "data", // queues, atomics and writes, by interrupt and by polling, and SIGKILL among them
		Scenarios: []string{"data", "data-kill", "unbind"},
		Models:    []string{connectX5},
		MovesData: true,
		KillsData: true,
		Limit:     7 * time.Minute,
	},
	{
		Name:      "data-eth", // the same over RoCE
		Scenarios: []string{"data", "unbind"},
		Models:    []string{connectX5Eth},
		MovesData: true,
		Limit:     6 * time.Minute,
	},
	{
		Name:      "two-hosts",
		Scenarios: []string{"hosts", "unbind"},
		Models:    []string{connectX5, connectX5 + ",seed=2"},
		Linked:    true,
		MovesData: true,
		Limit:     6 * time.Minute,
	},
	{
		Name:      "two-hosts-eth",
		Scenarios: []string{"hosts", "unbind"},
		Models:    []string{connectX5Eth, connectX5Eth + ",seed=2"},
		Linked:    true,
		MovesData: true,
		Limit:     6 * time.Minute,
	},
	{
		Name:      "broken", // devices that do not keep the guarantees
		Scenarios: []string{"broken"},
		Models: []string{
			connectX5 + ",fault=mask-order", connectX5 + ",fault=no-boundary", connectX5 + ",fault=torn-write",
			connectX5 + ",fault=lost-update", connectX5 + ",fault=no-fence",
			connectX5 + ",fault=late-write",
		},
		MovesData: true,
		Limit:     6 * time.Minute,
	},
	{
		Name:      "large", // a profile whose firmware wants thousands of pages
		Scenarios: []string{"bind", "selftest", "unbind"},
		Models:    []string{"sim:cx4,port=ib"},
		Limit:     3 * time.Minute,
	},
	{
		Name:      "faulty", // devices that break their promises
		Scenarios: []string{"faulty"},
		Models: []string{
			connectX5 + ",fault=lost-irq", connectX5 + ",fault=page-starvation", connectX5 + ",fault=token@ENABLE_HCA",
			connectX5 + ",fault=pages-more@300", connectX5 + ",fault=pages-negative@300",
		},
		Limit: 4 * time.Minute,
	},
	{
		Name:      "health", // a function falls ill under our driver, and comes back
		Scenarios: []string{"bind", "health-faults", "unbind"},
		Models:    []string{connectX5},
		MovesData: true,
		Limit:     3 * time.Minute,
	},
	{
		Name:      "health-host", // what of health is the kernel's: PCIe, the reset of a slot, the end of a process that records
		Scenarios: []string{"bind", "pci-state", "slot", "health-killed", "unbind"},
		Models:    []string{connectX5},
		// After the reset of a faster slot the kernel waits for a link that QEMU's port never reports as active.
		Ports:     ",x-speed=5",
		MovesData: true,
		Limit:     3 * time.Minute,
	},
	{
		Name:      "health-slot", // the reset of a slot that another function is in too
		Scenarios: []string{"slot-shared"},
		Models:    []string{connectX5},
		Beside:    "pci-serial,bus={bus},addr=0x0.0x1",
		Ports:     ",x-speed=5",
		MovesData: true,
		Limit:     2 * time.Minute,
	},
	{
		Name:      "health-sysfs", // the same errors by the kernel's driver and by ours, on one function
		Scenarios: []string{"health-sysfs"},
		Models:    []string{connectX5},
		Kernel:    "iomem=relaxed",
		Limit:     3 * time.Minute,
	},
	{
		Name:      "health-sysfs-7.3", // a later driver has one field more
		Scenarios: []string{"health-sysfs"},
		Models:    []string{connectX5},
		Release:   "7.3",
		Kernel:    "iomem=relaxed",
		Limit:     3 * time.Minute,
	},
	{
		Name:      "restore", // from the kernel's driver and back to it
		Scenarios: []string{"restore"},
		Models:    []string{connectX5},
		Kernel:    "iomem=relaxed", // this kernel keeps the BARs of a driver to itself otherwise
		Limit:     5 * time.Minute,
	},
	{
		Name:      "tracer", // one firmware tracer, two functions: mlx5_core has one, we the other
		Scenarios: []string{"tracer"},
		Models:    []string{connectX5 + ",load=4000"},
		Functions: 2,
		Limit:     3 * time.Minute,
	},
	{
		Name:      "no-remapping", // an IOMMU that cannot isolate interrupts
		Scenarios: []string{"doctor-remapping", "refused"},
		Models:    []string{connectX5},
		IOMMU:     []string{"-device", "intel-iommu,intremap=off,caching-mode=on"},
		Limit:     2 * time.Minute,
	},
	{
		Name:      "doctor", // why not, in a machine where much is in the way
		Scenarios: []string{"doctor", "doctor-user", "doctor-host"},
		Models:    []string{connectX5},
		Beside:    "pci-serial,bus={bus},addr=0x0.0x1", // this kernel has a driver for it built in
		Limit:     4 * time.Minute,
	},
	{
		Name:      "doctor-iommu-off", // an IOMMU that the kernel command line turns off
		Scenarios: []string{"doctor-no-iommu"},
		Models:    []string{connectX5},
		Kernel:    "intel_iommu=off",
		Idle:      true,
		Limit:     time.Minute,
	},
	{
		Name:      "doctor-no-iommu", // a virtual machine without one
		Scenarios: []string{"doctor-no-iommu"},
		Models:    []string{connectX5},
		IOMMU:     []string{},
		Idle:      true,
		Limit:     time.Minute,
	},
}

// contracts are the scenarios that run the test binaries.
func contracts() []string {
	var out []string
	for _, t := range guestTests {
		out = append(out, "contract-"+t.Name)
	}
	return out
}

// programs says whether the machine needs the program under test.
func (p plan) programs() bool { return len(p.Models) > 0 }
