package faultdoc

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// T is the part of testing.TB that is needed.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Failed() bool
}

// Table collects the rows of one section. It is safe for concurrent use.
type Table struct {
	section string
	by      string   // the test that fills it
	order   []string // the stages, in the order in which they happen

	mu   sync.Mutex
	rows []*Row
}

// Row is one fault at one stage.
type Row struct {
	table                 *Table
	fault, variant, stage string
	raised                bool
	result, after         string
}

// New makes the table of a section of docs/testing.md, filled by the test of that
// name. Stages are the columns' words in their order; rows may name others, which
// come last.
func New(section, test string, stages ...string) *Table {
	return &Table{section: section, by: test, order: stages}
}

// Row announces a row. Variant distinguishes kinds that a line may sum up, as the
// errno with which a call fails; it may be empty. A row that is not raised and
// observed by the time of Check fails it.
func (d *Table) Row(fault, variant, stage string) *Row {
	r := &Row{table: d, fault: fault, variant: variant, stage: stage}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows = append(d.rows, r)
	return r
}

// Raised marks that the fault really happened.
func (r *Row) Raised() {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.raised = true
}

// Saw notes what was observed: words made from the errors and states that the test
// has in hand, never from what it expects. Of two calls the last counts.
func (r *Row) Saw(format string, args ...any) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.result = fmt.Sprintf(format, args...)
}

// Then notes what was found afterwards: what is left, whether the next open works.
// Where all rows of a table agree it is said once.
func (r *Row) Then(format string, args ...any) {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.after = fmt.Sprintf(format, args...)
}

// Kinds is the number of different faults, variants counted.
func (d *Table) Kinds() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[[2]string]bool{}
	for _, r := range d.rows {
		seen[[2]string{r.fault, r.variant}] = true
	}
	return len(seen)
}

// missing names the rows that prove nothing.
func (d *Table) missing() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	if len(d.rows) == 0 {
		out = append(out, "the table has no rows")
	}
	for _, r := range d.rows {
		name := strings.Trim(r.fault+" "+r.variant, " ") + " at " + r.stage
		switch {
		case !r.raised:
			out = append(out, name+": the fault was never raised")
		case r.result == "":
			out = append(out, name+": nothing was observed")
		}
	}
	return out
}

// Check fails the test if a row was not raised or not observed, or if the section
// of docs/testing.md says anything else than the rows. Where only some subtests
// were asked for (-run with a slash), or a row has failed already, there is nothing
// to compare.
func (d *Table) Check(t T) {
	t.Helper()
	if partial() {
		t.Logf("faults of %s: only some rows ran, docs/testing.md was not compared", d.section)
		return
	}
	if t.Failed() {
		return
	}
	missing := d.missing()
	for _, m := range missing {
		t.Errorf("faults of %s: %s", d.section, m)
	}
	if len(missing) > 0 {
		return
	}
	path, err := document()
	if err != nil {
		t.Errorf("%v", err)
		return
	}
	if err := d.sync(path, os.Getenv("MLXVFIO_UPDATE") != ""); err != nil {
		t.Errorf("%v", err)
	}
}

// partial tells whether the test binary was asked for some subtests only.
func partial() bool {
	for _, name := range []string{"test.run", "test.skip"} {
		if f := flag.Lookup(name); f != nil && strings.Contains(f.Value.String(), "/") {
			return true
		}
	}
	return false
}

// rank is the place of a stage in the order.
func (d *Table) rank(stage string) int {
	if i := slices.Index(d.order, stage); i >= 0 {
		return i
	}
	return len(d.order)
}
