package pci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Severity says what a Finding means for an open.
type Severity string

const (
	// Blocks: an open fails as things are.
	Blocks Severity = "blocks"
	// Warning: an open works, but something later may not, or is dangerous.
	Warning Severity = "warning"
	// Note: worth knowing, nothing to do.
	Note Severity = "note"
)

func (s Severity) rank() int {
	return slices.Index([]Severity{Blocks, Warning, Note}, s)
}

// Finding is one thing that the doctor saw.
type Finding struct {
	ID       FindingID `json:"id"`
	Severity Severity  `json:"severity"`
	// Machine: it is about the machine or the calling process, not about this
	// function alone, and comes with every function.
	Machine bool `json:"machine,omitempty"`
	// Seen is what was seen and where: a value with its file.
	Seen string `json:"seen"`
	// Why says why that matters.
	Why string `json:"why"`
	// Remedy is a command line for a POSIX shell. What no command can do stands
	// behind it as a shell comment.
	Remedy string `json:"remedy"`
	// Holders are the processes of a busy finding, Siblings the functions of a
	// finding about the IOMMU group.
	Holders  []Holder `json:"holders,omitempty"`
	Siblings []Member `json:"siblings,omitempty"`
}

// Diagnosis is all that stands between a function and an open of it.
type Diagnosis struct {
	Function *Function
	// Way is how an open would go, once nothing blocks it.
	Way Way
	// Findings, those that block first, then in the order in which an open
	// would meet them.
	Findings []Finding
	// Unseen says what this process was not allowed to look at: no finding
	// about it is no proof.
	Unseen []string
}

// Diagnose looks for every reason why an open of a function would fail, for the
// calling process and as things are now. It only reads: no file is opened for
// writing, no device node at all, and no sleeping function is woken. The error
// is ErrNotFound or tells that sysfs cannot be read; what is wrong with the
// function is no error but a Finding.
func Diagnose(b BDF, opt Options) (*Diagnosis, error) {
	o := opt.withDefaults()
	f, err := inspect("diagnose", b, o)
	if err != nil {
		return nil, err
	}
	return diagnose(f, &host{o: o}), nil
}

// DiagnoseAll diagnoses every function of vendor 0x15b3. The errors are those
// of List, with whose functions it works.
func DiagnoseAll(ctx context.Context, opt Options) ([]*Diagnosis, error) {
	fns, err := List(ctx, opt)
	h := &host{o: opt.withDefaults()}
	out := make([]*Diagnosis, 0, len(fns))
	for _, f := range fns {
		out = append(out, diagnose(f, h))
	}
	return out, err
}

func diagnose(f *Function, h *host) *Diagnosis {
	d := &doctor{o: h.o, h: h, f: f, b: f.BDF, dir: h.o.deviceDir(f.BDF), res: &Diagnosis{Function: f, Findings: []Finding{}}}
	if d.kind() { // what mlx5 does not drive needs no further reasons
		d.way = f.way(h)
		d.res.Way = d.way
		d.config()
		d.power()
		d.link()
		d.payload()
		d.resets()
		d.bars()
		d.iommu()
		d.backend()
		d.unguarded()
		d.group()
		d.reserved()
		d.width()
		d.remapping()
		d.modules()
		d.journal()
		d.driver()
		d.token()
		d.nodes()
		d.holders()
		d.memlock()
	}
	d.lockdown()
	d.leftOn()
	slices.SortStableFunc(d.res.Findings, func(x, y Finding) int { return cmp.Compare(x.Severity.rank(), y.Severity.rank()) })
	return d.res
}

// doctor is one diagnosis at work. It is used by one goroutine.
type doctor struct {
	o   Options
	h   *host
	f   *Function
	b   BDF
	dir string // the function's sysfs folder
	way Way
	cfg *Config // nil when the configuration space was not read
	res *Diagnosis
}

// found adds a finding; the catalogue gives its severity and why it matters.
func (d *doctor) found(id FindingID, remedy, format string, args ...any) *Finding {
	info := catalogue[id]
	d.res.Findings = append(d.res.Findings, Finding{ID: id, Severity: info.Severity, Machine: info.Machine,
		Seen: printable(fmt.Sprintf(format, args...)), Why: info.Why, Remedy: printable(remedy)})
	return &d.res.Findings[len(d.res.Findings)-1]
}

func (d *doctor) has(id FindingID) bool {
	return slices.ContainsFunc(d.res.Findings, func(f Finding) bool { return f.ID == id })
}

func (d *doctor) unseen(format string, args ...any) {
	d.res.Unseen = append(d.res.Unseen, fmt.Sprintf(format, args...))
}

// attr names a file of the function.
func (d *doctor) attr(name string) string { return filepath.Join(d.dir, name) }

// rescan makes the kernel find the function anew.
func (d *doctor) rescan() string {
	return fmt.Sprintf("echo 1 > %s; echo 1 > %s", d.attr("remove"), filepath.Join(d.o.SysRoot, "bus/pci/rescan"))
}

// Ready reports whether nothing is in the way of an open.
func (d *Diagnosis) Ready() bool {
	return !slices.ContainsFunc(d.Findings, func(f Finding) bool { return f.Severity == Blocks })
}

// Needs are the short forms of what blocks, without repetition: "bind", "an
// IOMMU". Empty when Ready.
func (d *Diagnosis) Needs() []string {
	var out []string
	for _, f := range d.Findings {
		if n := catalogue[f.ID].Need; f.Severity == Blocks && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// Verdict is the diagnosis in a few words: "ready", "needs bind, an IOMMU", or
// "never: mlx4 card" for what no command makes an mlx5 function.
func (d *Diagnosis) Verdict() string {
	if d.Ready() {
		return "ready"
	}
	needs := d.Needs()
	for _, f := range d.Findings {
		if catalogue[f.ID].never {
			return "never: " + needs[0]
		}
	}
	return "needs " + strings.Join(needs, ", ")
}

// kind: only what mlx5 drives can be opened.
func (d *doctor) kind() bool {
	id := fmt.Sprintf("%04x:%04x (%s)", d.f.Vendor, d.f.Device, d.attr("device"))
	switch d.f.ID.Kind {
	case KindHCA:
		return true
	case KindRecovery:
		d.found(FlashRecovery, "mstflint -d "+d.b.String()+" query full  # then burn an image", "%s: %s", id, d.f.ID.Name)
	case KindMLX4:
		d.found(MLX4, "modprobe mlx4_core  # the kernel's driver for it", "%s: %s", id, d.f.ID.Name)
	default:
		d.found(NotMLX5, "mlxvfio list  # shows the functions that are", "%s: %s", id, d.f.ID.Name)
	}
	return false
}

// journal: what an earlier bind or unbind left behind.
func (d *doctor) journal() {
	path, unbind := d.o.journalPath(d.b), "mlxvfio unbind "+d.b.String()
	j, err := readJournal("diagnose", d.b, d.o)
	switch {
	case errors.Is(err, ErrPermission):
		d.unseen("the journal %s: run as root", path)
		return
	case err != nil:
		var e *Error
		remedy := "rm " + path
		if errors.As(err, &e) && e.Remedy != "" {
			remedy = e.Remedy
		}
		d.found(JournalBad, remedy, "%v", errors.Unwrap(err))
		return
	case j == nil:
		return
	}
	switch state, detail := journalState(j, d.o); state {
	case JournalInterrupted:
		seen := fmt.Sprintf("%s: process %d was moving the function from %s to %s, now it has %s and driver_override %q",
			path, j.PID, nameOrNone(j.Driver), j.Target, nameOrNone(d.f.Driver), d.f.DriverOverride)
		if IsVFIO(d.f.Driver) {
			d.found(InterruptedUnbind, unbind, "%s", seen)
		} else {
			d.found(InterruptedBind, unbind, "%s", seen)
		}
	case JournalRestored:
		d.found(JournalLeft, unbind, "%s, and the function has its original driver, %s", path, nameOrNone(d.f.Driver))
	case JournalStale:
		d.found(JournalOld, "rm "+path, "%s: %s", path, detail)
	}
}
