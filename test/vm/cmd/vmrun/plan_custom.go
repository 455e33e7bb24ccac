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
}
