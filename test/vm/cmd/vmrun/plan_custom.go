package main

import "time"

// customPlans are the machines that run the bench's own kernel (test/vm/kernel), which has every way into VFIO. Without
// that kernel the bench does not start: none of them is ever left out in silence.
var customPlans = []plan{
	{
		Name:      "bench-custom", // the bench's own kernel, without the program under test
		Scenarios: []string{"mechanics"},
		Devices:   []string{"nvme,serial=stand-in,bus={bus}"},
		Release:   custom,
		HugePages: 8,
		Limit:     time.Minute,
	},
	{
		Name:      "iommufd", // a whole visit by the function's character device, and who comes by the group meanwhile
		Scenarios: []string{"list", "bind", "ways", "info", "verbs", "selftest", "flr", "busy", "interrupt", "kill-any", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		Limit:     7 * time.Minute,
	},
	{
		Name:      "iommufd-nodes", // files below /dev that a container does not have
		Scenarios: []string{"bind", "ways-hidden", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		Limit:     4 * time.Minute,
	},
	{
		Name:       "iommufd-hardware", // the hardware tests of the rooms
		Scenarios:  contracts(),
		Models:     []string{connectX5},
		Release:    custom,
		Backend:    "iommufd",
		LosesPages: true,
		MovesData:  true,
		Limit:      8 * time.Minute,
	},
	{
		Name:      "iommufd-data",
		Scenarios: []string{"data", "data-kill", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		MovesData: true,
		KillsData: true,
		Limit:     7 * time.Minute,
	},
	{
		Name:      "iommufd-pair", // two functions of two processes, apart, and of one, in one address space
		Scenarios: []string{"pair", "pair-apart", "pair-shared", "unbind"},
		Models:    []string{connectX5, connectX5 + ",fw=16.35.1012"},
		Release:   custom,
		Backend:   "iommufd",
		HugePages: 64,
		Limit:     4 * time.Minute,
	},
	{
		Name:      "iommufd-two-hosts", // two functions of one process
		Scenarios: []string{"hosts", "unbind"},
		Models:    []string{connectX5, connectX5 + ",seed=2"},
		Release:   custom,
		Backend:   "iommufd",
		Linked:    true,
		MovesData: true,
		Limit:     6 * time.Minute,
	},
	{
		Name:      "iommufd-health", // the hot reset of a slot asks for no group
		Scenarios: []string{"bind", "pci-state", "slot", "health-killed", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		Ports:     ",x-speed=5",
		MovesData: true,
		Limit:     3 * time.Minute,
	},
	{
		Name:      "iommufd-slot", // of a slot that another function is in too
		Scenarios: []string{"slot-shared"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		Beside:    "pci-serial,bus={bus},addr=0x0.0x1",
		Ports:     ",x-speed=5",
		MovesData: true,
		Limit:     2 * time.Minute,
	},
	{
		Name:      "iommufd-no-remapping", // an IOMMU that cannot isolate interrupts, asked in every way
		Scenarios: []string{"refused-ways"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		IOMMU:     []string{"-device", "intel-iommu,intremap=off,caching-mode=on"},
		Limit:     2 * time.Minute,
	},
	{
		Name:      "virtio-iommu", // the usual one of a virtual machine, which never remaps interrupts
		Scenarios: []string{"refused-ways"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "iommufd",
		IOMMU:     []string{"-device", "virtio-iommu-pci"},
		Limit:     2 * time.Minute,
	},
	{
		Name:      "noiommu", // no IOMMU at all: only for those who say that they know
		Scenarios: []string{"noiommu-bind", "noiommu-loud", "list", "info", "verbs", "selftest", "flr", "busy", "interrupt", "kill-any", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "noiommu",
		IOMMU:     []string{},
		HugePages: 64,
		Limit:     7 * time.Minute,
	},
	{
		Name:      "noiommu-hardware", // no memory can be taken away from a device that reaches all of it
		Scenarios: append([]string{"noiommu-bind"}, contracts()...),
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "noiommu",
		IOMMU:     []string{},
		HugePages: 64,
		MovesData: true,
		Limit:     8 * time.Minute,
	},
	{
		Name:      "noiommu-data",
		Scenarios: []string{"noiommu-bind", "data", "noiommu-moved", "data-kill", "unbind"},
		Models:    []string{connectX5},
		Release:   custom,
		Backend:   "noiommu",
		IOMMU:     []string{},
		HugePages: 64,
		MovesData: true,
		KillsData: true,
		Limit:     7 * time.Minute,
	},
}
