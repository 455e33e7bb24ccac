package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/spf13/cobra"
)

func (a *app) bindVerb() *cobra.Command {
	var force bool
	c := a.verb("bind BDF", "move a function from its host driver to vfio-pci", 1, 1, func(ctx context.Context, args []string) error {
		b, err := parseBDF(args[0])
		if err != nil {
			return err
		}
		o := a.pciOptions()
		o.Force = force
		return a.rebind(pci.Bind(ctx, b, o))
	})
	c.Long = `bind moves a function to vfio-pci and writes down, before it changes anything, what unbind must restore.
It refuses a function whose network interface is up, holds a route or has virtual functions, and one that no IOMMU
guards. With --unsafe-noiommu it takes the latter too: it turns the kernel's no-IOMMU mode on, and the unbind
after which no function needs that turns it off. The device can then overwrite any memory of this machine.`
	c.Example = examples(
		"mlxvfio bind 0000:3b:00.0", "from its host driver to vfio-pci",
		"mlxvfio unbind 0000:3b:00.0", "and back")
	c.Flags().BoolVar(&force, "force", false, "take the function away although it is in use")
	return c
}

// rebind reports what bind or unbind did.
func (a *app) rebind(r *pci.Result, err error) error {
	if err != nil {
		if r != nil && r.RolledBack {
			err = fmt.Errorf("%w; the original state is back", err)
		}
		return err
	}
	for _, w := range r.Warnings {
		if werr := a.warning(w); werr != nil {
			return werr
		}
	}
	return a.print(r.Op+"/1", &rebound{r})
}

// warning tells on standard error what can go wrong from here on.
func (a *app) warning(text string) error {
	if a.json {
		return writeJSON(a.err, "warning/1", struct {
			Warning string `json:"warning"`
		}{text})
	}
	_, err := fmt.Fprintf(a.err, "mlxvfio: warning: %s\n", text)
	return err
}

// rebound is a result of bind or unbind.
type rebound struct{ *pci.Result }

func (r *rebound) text(w io.Writer) {
	name := r.BDF.String()
	if r.Name != "" {
		name += " " + r.Name
	}
	switch {
	case r.Already:
		fmt.Fprintf(w, "%s: is with %s, nothing to do", name, driverName(r.Driver))
	default:
		fmt.Fprintf(w, "%s: %s → %s", name, driverName(r.Previous), driverName(r.Driver))
	}
	for _, node := range []string{r.VFIOCdev, r.VFIONode} {
		if node != "" {
			fmt.Fprintf(w, ", %s", node)
		}
	}
	fmt.Fprintln(w)
	if len(r.Overrode) > 0 {
		fmt.Fprintf(w, "  in spite of: %s\n", strings.Join(r.Overrode, "; "))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
}

func parseBDF(s string) (pci.BDF, error) {
	b, err := pci.ParseBDF(s)
	if err != nil {
		return b, usagef("%q is no PCI address: want 0000:3b:00.0 or 3b:00.0", s)
	}
	return b, nil
}
