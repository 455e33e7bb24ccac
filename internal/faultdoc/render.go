package faultdoc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// line is one line of the table: variants of a fault that answer alike at some
// stages.
type line struct {
	fault    string
	variants []string
	stages   string
	result   string
}

// lines sums the rows up: per fault and variant the stages by result, then the
// variants of a fault whose lines are the same.
func (d *Table) lines() []line {
	type kind struct{ fault, variant string }
	var kinds []kind
	rows := map[kind][]*Row{}
	for _, r := range d.rows {
		k := kind{r.fault, r.variant}
		if rows[k] == nil {
			kinds = append(kinds, k)
		}
		rows[k] = append(rows[k], r)
	}
	// Faults in the order of their first row, variants beside each other.
	first := map[string]int{}
	for i, k := range kinds {
		if _, ok := first[k.fault]; !ok {
			first[k.fault] = i
		}
	}
	slices.SortStableFunc(kinds, func(a, b kind) int { return first[a.fault] - first[b.fault] })
	var out []line
	for _, k := range kinds {
		for _, l := range d.byResult(k.fault, rows[k]) {
			i := slices.IndexFunc(out, func(o line) bool {
				return o.fault == l.fault && o.stages == l.stages && o.result == l.result && len(o.variants) > 0
			})
			if i < 0 || k.variant == "" {
				out = append(out, l)
				i = len(out) - 1
			}
			if k.variant != "" {
				out[i].variants = append(out[i].variants, k.variant)
			}
		}
	}
	return out
}

// byResult is a line for each result of one kind.
func (d *Table) byResult(fault string, rows []*Row) []line {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b *Row) int { return d.rank(a.stage) - d.rank(b.stage) })
	var out []line
	for _, r := range rows {
		text := d.text(r)
		if slices.ContainsFunc(out, func(l line) bool { return l.result == text }) {
			continue
		}
		out = append(out, line{fault: fault, stages: d.stages(rows, text), result: text})
	}
	return out
}

// stages names the stages with that result: runs of neighbours, among the stages
// at which the fault was raised, by their ends.
func (d *Table) stages(rows []*Row, result string) string {
	var parts []string
	for i := 0; i < len(rows); {
		if d.text(rows[i]) != result {
			i++
			continue
		}
		j := i
		for j+1 < len(rows) && d.text(rows[j+1]) == result {
			j++
		}
		switch n := j - i + 1; {
		case n > 2:
			parts = append(parts, fmt.Sprintf("%s … %s (%d)", rows[i].stage, rows[j].stage, n))
		case n == 2:
			parts = append(parts, rows[i].stage, rows[j].stage)
		default:
			parts = append(parts, rows[i].stage)
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// common is what was found after every row alike; empty if they differ.
func (d *Table) common() string {
	for _, r := range d.rows {
		if r.after != d.rows[0].after {
			return ""
		}
	}
	if len(d.rows) == 0 {
		return ""
	}
	return d.rows[0].after
}

// text is the last column of a row.
func (d *Table) text(r *Row) string {
	if r.after == "" || d.common() != "" {
		return r.result
	}
	return r.result + "; " + r.after
}

// render is the section between its markers.
func (d *Table) render() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	kinds := map[string]bool{}
	for _, r := range d.rows {
		kinds[r.fault+"\x00"+r.variant] = true
	}
	var b strings.Builder
	plural := "s"
	if len(kinds) == 1 {
		plural = ""
	}
	fmt.Fprintf(&b, "%d kind%s, %d rows, written by %s.", len(kinds), plural, len(d.rows), d.by)
	if c := d.common(); c != "" {
		fmt.Fprintf(&b, " In every row: %s.", c)
	}
	b.WriteString("\n\n")
	b.WriteString("| fault | raised at | result |\n|---|---|---|\n")
	for _, l := range d.lines() {
		name := l.fault
		if len(l.variants) > 0 {
			name += ": " + strings.Join(l.variants, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(name), cell(l.stages), cell(l.result))
	}
	return b.String()
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", `\<`).Replace(s)
}

// document finds docs/testing.md from the folder of any package.
func document() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "docs", "testing.md"), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("docs/testing.md: no go.mod above the test's folder")
		}
		dir = up
	}
}

// sync compares the section of the file with the table, or writes it.
func (d *Table) sync(path string, update bool) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := fmt.Sprintf("<!-- faults: %s -->\n", d.section), "<!-- /faults -->"
	head, rest, ok := bytes.Cut(text, []byte(begin))
	if !ok {
		return fmt.Errorf("%s has no section %q: add %q and %q", path, d.section, strings.TrimSpace(begin), end)
	}
	have, tail, ok := bytes.Cut(rest, []byte(end))
	if !ok || bytes.Contains(have, []byte("<!-- faults:")) {
		return fmt.Errorf("%s: section %q has no end %q", path, d.section, end)
	}
	want := d.render()
	if string(have) == want {
		return nil
	}
	if !update {
		return fmt.Errorf("%s, section %q, is not what %s has observed: %s; make faults writes it", path, d.section, d.by, difference(string(have), want))
	}
	out := slices.Concat(head, []byte(begin), []byte(want), []byte(end), tail)
	temp := path + ".new"
	if err := os.WriteFile(temp, out, 0o644); err != nil { //nolint:gosec // a document
		return err
	}
	return os.Rename(temp, path)
}

// difference shows the first line that differs.
func difference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range max(len(h), len(w)) {
		var a, b string
		if i < len(h) {
			a = h[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d is %q, observed is %q", i+1, a, b)
		}
	}
	return "the same lines"
}
