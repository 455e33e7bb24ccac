package main

import (
	"context"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/spf13/cobra"
)

func (a *app) unbindVerb() *cobra.Command {
	var force bool
	c := a.verb("unbind BDF", "give a function back to the driver it had before bind", 1, 1, func(ctx context.Context, args []string) error {
		b, err := parseBDF(args[0])
		if err != nil {
			return err
		}
		o := a.pciOptions()
		o.Force = force
		return a.rebind(pci.Unbind(ctx, b, o))
	})
	c.Long = `unbind restores the driver that bind wrote down. It also completes what a bind left behind that was killed half-way.`
	c.Example = examples(
		"mlxvfio unbind 0000:3b:00.0", "back to the driver it had before bind")
	c.Flags().BoolVar(&force, "force", false, "go on although a process has the function open: the kernel waits for it")
	return c
}
