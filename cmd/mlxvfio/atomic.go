package main

import "github.com/spf13/cobra"

func (a *app) atomicVerb() *cobra.Command {
	return folder("atomic", "masks of small atomics; probe a device's byte orders; do one atomic and show everything",
		a.atomicTableVerb(), a.atomicProbeVerb(), a.atomicRunVerb())
}
