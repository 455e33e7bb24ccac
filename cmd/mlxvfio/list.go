package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/spf13/cobra"
)

func (a *app) listVerb() *cobra.Command {
	var all bool
	c := a.verb("list", "show the ConnectX functions of this machine", 0, 0, func(ctx context.Context, _ []string) error {
		return a.list(ctx, all)
	})
	c.Long = `list shows the ConnectX functions of this machine: the driver, IOMMU group, link and interfaces of each, and in OPEN
whether this user can open it as it is and what it would need else, as mlxvfio doctor explains. It only reads.`
	c.Example = examples(
		"mlxvfio list", "which there are, and which can be opened",
		"mlxvfio list --all --json", "everything of the vendor's, with all that is known")
	c.Flags().BoolVar(&all, "all", false, "show the vendor's other functions too: bridges, older cards")
	return c
}

func (a *app) list(ctx context.Context, all bool) error {
	ds, err := pci.DiagnoseAll(ctx, a.pciOptions())
	if err != nil && len(ds) == 0 {
		return err
	}
	r := &listResult{Functions: []listed{}}
	states := map[pci.BDF]pci.JournalEntry{}
	js, jerr := pci.Journals(a.pciOptions())
	for _, j := range js {
		states[j.BDF] = j
	}
	for _, d := range ds {
		f := d.Function
		if !shown(f, all) {
			continue
		}
		l := listed{Function: f, Ready: d.Ready(), Verdict: d.Verdict(), Backend: d.Way.Backend, BackendReason: d.Way.Reason, Findings: []pci.FindingID{}}
		for _, x := range d.Findings {
			l.Findings = append(l.Findings, x.ID)
		}
		if j, ok := states[f.BDF]; ok {
			l.Journal = &j
		}
		r.Functions = append(r.Functions, l)
	}
	if perr := a.print("list/1", r); perr != nil {
		return perr
	}
	if err == nil {
		err = jerr
	}
	return err
}

// listed is a function with what the doctor says of it, and with the journal of
// its bind if there is one.
type listed struct {
	*pci.Function
	Ready   bool   `json:"ready"`
	Verdict string `json:"verdict"`
	// Backend is how an open goes, or would go when nothing blocks it; "" is not.
	Backend       string            `json:"backend"`
	BackendReason string            `json:"backend_reason,omitempty"`
	Findings      []pci.FindingID   `json:"findings"`
	Journal       *pci.JournalEntry `json:"journal,omitempty"`
}

type listResult struct {
	Functions []listed `json:"functions"`
}

func (r *listResult) text(w io.Writer) {
	if len(r.Functions) == 0 {
		fmt.Fprintln(w, "no ConnectX function on this machine")
		return
	}
	rows := [][]string{{"FUNCTION", "DEVICE", "KIND", "OPEN", "WAY", "DRIVER", "GROUP", "NUMA", "LINK", "INTERFACES", "NOTES"}}
	for _, f := range r.Functions {
		rows = append(rows, []string{f.BDF.String(), f.ID.Name, f.kind(), f.Verdict, dash(f.Backend), dash(f.Driver), f.group(), number(f.NUMANode), f.link(), f.interfaces(), f.notes()})
	}
	table(w, rows)
}

func (l listed) kind() string {
	switch {
	case l.ID.Kind != pci.KindHCA:
		return string(l.ID.Kind)
	case l.IsVF:
		return "VF"
	}
	return "PF"
}

func (l listed) group() string {
	if l.IOMMU == nil {
		return "-"
	}
	return strconv.Itoa(l.IOMMU.Number)
}

func (l listed) link() string {
	if l.Link.CurrentSpeed == "" || l.Link.CurrentWidth == 0 {
		return "-"
	}
	return fmt.Sprintf("%s x%d", strings.TrimSuffix(l.Link.CurrentSpeed, " PCIe"), l.Link.CurrentWidth)
}

func (l listed) interfaces() string {
	var names []string
	for _, n := range l.Netdevs {
		state := "down"
		if n.Up {
			state = "up"
		}
		names = append(names, n.Name+" ("+state+")")
	}
	return dash(strings.Join(append(names, l.Infiniband...), ", "))
}

// notes are what somebody who wants to use the function should know.
func (l listed) notes() string {
	var notes []string
	if l.Link.Degraded() {
		notes = append(notes, fmt.Sprintf("link below its %s x%d", strings.TrimSuffix(l.Link.MaxSpeed, " PCIe"), l.Link.MaxWidth))
	}
	if j := l.Journal; j != nil {
		switch {
		case j.State == pci.JournalBound:
			notes = append(notes, "bound by mlxvfio, unbind restores "+driverName(j.Driver))
		case j.Interrupted():
			notes = append(notes, "a bind was cut off: run mlxvfio unbind "+l.BDF.String())
		default:
			notes = append(notes, "journal "+string(j.State))
		}
	}
	if len(l.Unreadable) > 0 {
		notes = append(notes, "unreadable: "+strings.Join(l.Unreadable, ", "))
	}
	return strings.Join(notes, "; ")
}

// pciOptions are where the machine's functions are, with the log.
func (a *app) pciOptions() pci.Options {
	o := a.pci
	o.Logger = a.logger()
	o.Backend, o.UnsafeNoIOMMU = a.backend, a.unsafe
	return o
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// number is n, or a dash where the kernel does not know it.
func number(n int) string {
	if n < 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func driverName(s string) string {
	if s == "" {
		return "no driver"
	}
	return s
}
