package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/spf13/cobra"
)

// backendWords are the values of --backend; the first one leaves the choice to the
// kernel's offers.
var backendWords = []string{"auto", "iommufd", "type1", "noiommu"}

func (a *app) doctorVerb() *cobra.Command {
	var all bool
	c := a.verb("doctor [BDF]", "say why a function cannot be opened, and what helps", 0, 1, func(ctx context.Context, args []string) error {
		return a.doctor(ctx, args, all, a.pciOptions())
	})
	c.Long = `doctor looks for every reason why an open of a function, or of each ConnectX function of this machine,
would fail for the user who runs it. It only reads. Each reason comes with what was seen, why it matters, and a
command that helps; docs/doctor.md lists them. It also says by which way an open goes: iommufd (the function's own
file and /dev/iommu), type1 (its IOMMU group) or noiommu. Exit code 0: nothing is in the way; 1: something is; 3: no such function.`
	c.Example = examples(
		"mlxvfio doctor", "every ConnectX function of this machine",
		"mlxvfio doctor 0000:3b:00.0", "one of them")
	c.Flags().BoolVar(&all, "all", false, "look at the vendor's other functions too: bridges, older cards")
	return c
}

func (a *app) doctor(ctx context.Context, args []string, all bool, o pci.Options) error {
	var ds []*pci.Diagnosis
	var listErr error
	if len(args) == 1 {
		b, err := parseBDF(args[0])
		if err != nil {
			return err
		}
		d, err := pci.Diagnose(b, o)
		if err != nil {
			return err
		}
		ds = append(ds, d)
	} else {
		ds, listErr = pci.DiagnoseAll(ctx, o)
		ds = slices.DeleteFunc(ds, func(d *pci.Diagnosis) bool { return !shown(d.Function, all) })
		if len(ds) == 0 {
			if listErr != nil {
				return listErr
			}
			return &pci.Error{Op: "doctor", Err: fmt.Errorf("%w: this machine shows no ConnectX function", pci.ErrNotFound),
				Remedy: "lspci -d 15b3:"}
		}
	}
	r := &doctorResult{Ready: listErr == nil, Functions: []examined{}}
	for _, d := range ds {
		x := examined{BDF: d.Function.BDF, Name: d.Function.ID.Name, Driver: d.Function.Driver, Ready: d.Ready(), Verdict: d.Verdict(),
			Backend: d.Way.Backend, BackendReason: d.Way.Reason, Users: d.Function.Users(), Findings: d.Findings, Unseen: d.Unseen}
		r.Ready = r.Ready && x.Ready
		r.Functions = append(r.Functions, x)
	}
	if err := a.print("doctor/1", r); err != nil {
		return err
	}
	if listErr == nil && !r.Ready {
		return r.blockedError()
	}
	return listErr
}

// blockedError tells, after the result, what is in the way of the first function.
func (r *doctorResult) blockedError() error {
	var first *examined
	n := 0
	for i := range r.Functions {
		if f := &r.Functions[i]; !f.Ready {
			n++
			if first == nil {
				first = f
			}
		}
	}
	verdict := fmt.Sprintf("cannot be opened: %s", first.Verdict)
	if len(r.Functions) > 1 {
		verdict += fmt.Sprintf(" (%d of %d functions cannot)", n, len(r.Functions))
	}
	return &pci.Error{Op: "doctor", BDF: first.BDF.String(), Err: errors.New(verdict), Remedy: first.firstRemedy()}
}

// beforeBind are the findings that bind refuses, or fails, over.
var beforeBind = []pci.FindingID{pci.NetdevUp, pci.NetdevMember, pci.NetdevRoutes, pci.VFsEnabled, pci.BindPermission, pci.SysfsReadOnly}

// firstRemedy is what to do first: where all that is missing is a bind, what stands
// in its way.
func (x *examined) firstRemedy() string {
	if x.Findings[0].ID == pci.NotBound {
		for _, f := range x.Findings {
			if slices.Contains(beforeBind, f.ID) {
				return f.Remedy
			}
		}
	}
	return x.Findings[0].Remedy
}

// shown: list and doctor leave the vendor's other functions out unless asked.
func shown(f *pci.Function, all bool) bool {
	return all || f.ID.Kind == pci.KindHCA || f.ID.Kind == pci.KindRecovery
}

// examined is a function with what the doctor found.
type examined struct {
	BDF     pci.BDF `json:"bdf"`
	Name    string  `json:"name"`
	Driver  string  `json:"driver"`
	Ready   bool    `json:"ready"`
	Verdict string  `json:"verdict"`
	// Backend is how an open goes, or would go when nothing blocks it; "" is not.
	Backend       string        `json:"backend"`
	BackendReason string        `json:"backend_reason,omitempty"`
	Users         string        `json:"users,omitempty"` // who can use it as it is
	Findings      []pci.Finding `json:"findings"`
	Unseen        []string      `json:"unseen,omitempty"`
}

type doctorResult struct {
	Ready     bool       `json:"ready"`
	Functions []examined `json:"functions"`
}

// text shows what is about the machine once, then each function.
func (r *doctorResult) text(w io.Writer) {
	var machine []pci.Finding
	var unseen []string
	for _, f := range r.Functions {
		for _, x := range f.Findings {
			if x.Machine && !slices.ContainsFunc(machine, func(y pci.Finding) bool { return x.ID == y.ID }) {
				machine = append(machine, x)
			}
		}
		for _, u := range f.Unseen {
			if !slices.Contains(unseen, u) {
				unseen = append(unseen, u)
			}
		}
	}
	if len(machine) > 0 {
		fmt.Fprintln(w, "this machine")
		writeFindings(w, machine)
	}
	for _, f := range r.Functions {
		fmt.Fprintf(w, "%s %s: %s\n", f.BDF, f.Name, f.Verdict)
		if f.BackendReason != "" {
			fmt.Fprintf(w, "  way      %s: %s\n", orNone(f.Backend), f.BackendReason)
		}
		if f.Users != "" {
			fmt.Fprintf(w, "  users    %s\n", f.Users)
		}
		writeFindings(w, slices.DeleteFunc(slices.Clone(f.Findings), func(x pci.Finding) bool { return x.Machine }))
	}
	for _, u := range unseen {
		fmt.Fprintf(w, "not seen: %s\n", u)
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func writeFindings(w io.Writer, list []pci.Finding) {
	for _, x := range list {
		fmt.Fprintf(w, "  %-7s  %s: %s\n", x.Severity, x.ID, x.Seen)
		fmt.Fprintf(w, "           why: %s\n", x.Why)
		fmt.Fprintf(w, "           try: %s\n", x.Remedy)
	}
}
