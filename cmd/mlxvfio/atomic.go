package main

import "github.com/spf13/cobra"

func (a *app) atomicVerb() *cobra.Command {
	c := &cobra.Command{
		Use:   "atomic",
		Short: "masks of small atomics; probe a device's byte orders; do one atomic and show everything",
		Args:  noVerb,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.atomicTableVerb(), a.atomicProbeVerb(), a.atomicRunVerb())
	return c
}
