package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlxvfio/mlxvfio/internal/prm"
	"github.com/mlxvfio/mlxvfio/pci"
	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/spf13/cobra"
)

// The prefixes of a DEV argument.
const (
	simWord     = "sim"
	socketWord  = "vfio-user:"
	sysfsWord   = "sysfs:"
	mostEntries = 2000 // of a folder that is looked at
)

// readsSysfs marks the verbs that take sysfs:BDF.
const readsSysfs = "mlxvfio.sysfs"

// takesSysfs says that a verb works with a device that can only be read.
func takesSysfs(c *cobra.Command) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[readsSysfs] = "yes"
}

// completeDevice completes DEV.
func (a *app) completeDevice(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	sysfs := c.Annotations[readsSysfs] != ""
	switch {
	case strings.HasPrefix(typed, simWord+":"), strings.HasPrefix(typed, simWord+","):
		return completeSim(c, args, typed)
	case strings.HasPrefix(typed, socketWord):
		return sockets(socketWord, typed)
	case strings.HasPrefix(typed, sysfsWord):
		if !sysfs {
			return nil, thatsAll
		}
		return a.functions(sysfsWord, typed)
	}
	o := offers{typed: typed}
	o.list, _ = a.functions("", typed)
	o.add(simWord, "the embedded model, "+sim.DefaultProfile)
	for _, p := range sim.Profiles() {
		o.add(simWord+":"+p, "the embedded model, "+profileName(p))
	}
	o.add(socketWord, "a function that is served on a socket")
	if sysfs {
		o.add(sysfsWord, "BAR0 read-only, whatever driver owns the function")
	}
	return o.list, goesOn
}

// completeBDF completes BDF.
func (a *app) completeBDF(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	list, _ := a.functions("", typed)
	return list, thatsAll
}

// functions offers the machine's functions, in the short form where that is what
// was begun.
func (a *app) functions(prefix, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	for _, n := range pci.Names(a.pciOptions()) {
		if n.ID.Kind != pci.KindHCA && n.ID.Kind != pci.KindRecovery {
			continue
		}
		about := n.ID.Name + ", " + driverName(n.Driver)
		before := len(o.list)
		o.add(prefix+n.BDF.String(), about)
		if short, ok := strings.CutPrefix(n.BDF.String(), "0000:"); ok && len(o.list) == before {
			o.add(prefix+short, about)
		}
	}
	return o.list, thatsAll
}

// paths offers what stands in a folder: the folders that lead on, and whatever of
// the rest has a name for its kind.
func paths(prefix, typed string, kind func(fs.FileMode) string) ([]cobra.Completion, cobra.ShellCompDirective) {
	dir, begun := filepath.Split(strings.TrimPrefix(typed, prefix))
	d, err := os.Open(firstOf(dir, "."))
	if err != nil {
		return nil, thatsAll
	}
	entries, _ := d.ReadDir(mostEntries) // what could be read is offered
	_ = d.Close()                        // it was only read
	o := offers{typed: typed}
	directive := thatsAll
	for _, e := range entries {
		name, mode := e.Name(), e.Type()
		if strings.HasPrefix(name, ".") && !strings.HasPrefix(begun, ".") {
			continue
		}
		if mode&fs.ModeSymlink != 0 {
			if st, err := os.Stat(filepath.Join(dir, name)); err == nil {
				mode = st.Mode()
			}
		}
		if mode.IsDir() {
			o.add(prefix+dir+name+"/", "folder")
			directive = goesOn
		} else if k := kind(mode); k != "" {
			o.add(prefix+dir+name, k)
		}
	}
	slices.Sort(o.list)
	return o.list, directive
}

// sockets offers sockets and the folders on the way to one.
func sockets(prefix, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return paths(prefix, typed, func(m fs.FileMode) string { return ifText(m&fs.ModeSocket != 0, "socket") })
}

// completeSocket completes the path of a socket.
func completeSocket(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return sockets("", typed)
}

// completeSim completes a model: its profile, then its words. The leading sim: may
// be missing where a model is the only thing that can be meant.
func completeSim(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	o := offers{typed: typed}
	i := strings.LastIndexByte(typed, ',')
	if i < 0 {
		head := ""
		if strings.HasPrefix(typed, simWord+":") {
			head = simWord + ":"
		}
		for _, p := range sim.Profiles() {
			o.add(head+p, profileName(p))
		}
		return o.list, goesOn
	}
	head := typed[:i+1]
	name, value, valued := strings.Cut(typed[i+1:], "=")
	for _, w := range sim.Words() {
		given := strings.Contains(head, ","+w.Name+"=")
		switch {
		case given && !w.Repeat:
		case !valued:
			o.add(head+w.Name+"=", w.Meaning)
		case name != w.Name:
		case w.Name == faultWord:
			completeFault(&o, head+w.Name+"=", value)
		case strings.ToLower(w.Value) == w.Value: // alternatives, not a description
			for _, v := range strings.Split(w.Value, "|") {
				o.add(head+w.Name+"="+v, "")
			}
		}
	}
	return o.list, goesOn
}

// faultWord is the word whose values are the faults.
const faultWord = "fault"

// completeFault offers the faults, then the commands that one is to hit.
func completeFault(o *offers, head, typed string) {
	name, _, at := strings.Cut(typed, "@")
	for _, f := range sim.Faults() {
		switch {
		case !at && needsArg(f.Arg):
			o.add(head+f.Name+"@", f.Arg+": "+f.Meaning)
		case !at:
			o.add(head+f.Name, ifText(f.Arg != "", "@"+f.Arg+" may follow: ")+f.Meaning)
		case f.Name == name && strings.HasPrefix(f.Arg, "[OPCODE]"):
			for _, c := range prm.Commands() {
				o.add(head+f.Name+"@"+c.Name, "")
			}
		}
	}
}

// needsArg tells whether there is something in an argument's grammar that is not in
// brackets.
func needsArg(grammar string) bool {
	depth := 0
	for _, r := range strings.ReplaceAll(grammar, "…", "") {
		switch {
		case r == '[':
			depth++
		case r == ']':
			depth--
		case depth == 0:
			return true
		}
	}
	return false
}

// profileName is the device that a profile is a model of.
func profileName(profile string) string {
	id, _ := sim.ProfileDevice(profile)
	return pci.Lookup(pci.VendorMellanox, id).Name
}
