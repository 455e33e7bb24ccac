package main

import (
	"context"

	"github.com/mlxvfio/mlxvfio/health"
	"github.com/mlxvfio/mlxvfio/pci"
)

// hostPCI reads the host's view of the link and its error counters from sysfs; nil
// for what is no function of this machine.
func (a *app) hostPCI(arg devArg) func(context.Context) (health.HostPCI, error) {
	if arg.kind != devSysfs && arg.kind != devKernel {
		return nil
	}
	return func(context.Context) (health.HostPCI, error) {
		f, err := pci.Inspect(arg.bdf, a.pciOptions())
		if err != nil {
			return health.HostPCI{}, err
		}
		h := health.HostPCI{Speed: f.Link.CurrentSpeed, Width: f.Link.CurrentWidth, MaxSpeed: f.Link.MaxSpeed, MaxWidth: f.Link.MaxWidth}
		c, err := pci.ReadErrorCounts(arg.bdf, a.pciOptions())
		if err != nil {
			return health.HostPCI{}, err
		}
		if c != nil {
			h.AER = &health.AER{Correctable: c.Correctable, NonFatal: c.NonFatal, Fatal: c.Fatal}
		}
		return h, nil
	}
}
