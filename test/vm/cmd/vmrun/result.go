package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mlxvfio/mlxvfio/test/vm/internal/wire"
)

// result is what OUT/NAME/result.json holds, and one row of the summary.
type result struct {
	Name    string  `json:"name"`
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
	Skipped int     `json:"skipped"`
	Seconds float64 `json:"seconds"`
	Note    string  `json:"note,omitempty"`
	Checks  []check `json:"checks"`
	// Kills sums up the checks after each SIGKILL, by where it hit.
	Kills []killResult `json:"kills,omitempty"`
}

// killResult is what came of one SIGKILL.
type killResult struct {
	At     string                 `json:"at"` // scenario/stage
	Checks map[string]wire.Status `json:"checks"`
	Clean  bool                   `json:"clean"` // the function was free, and the next run was clean
}

// afterKill are the checks that make a kill clean; the last ones are of the run that follows.
var afterKill = []string{"killed", "released", "interrupts-gone", "clean-run", "clean-run-released"}

// kills collects the checks "scenario/stage/..." of every stage that was killed.
func kills(checks []check) (out []killResult) {
	index := map[string]int{}
	for _, c := range checks {
		f := strings.Split(c.Name, "/")
		if len(f) != 3 {
			continue
		}
		at := f[0] + "/" + f[1]
		if f[2] == "killed" {
			index[at] = len(out)
			out = append(out, killResult{At: at, Checks: map[string]wire.Status{}})
		}
		if i, ok := index[at]; ok {
			out[i].Checks[f[2]] = c.Status
		}
	}
	for i := range out {
		out[i].Clean = !slices.ContainsFunc(afterKill, func(name string) bool { return out[i].Checks[name] != wire.Pass })
	}
	return out
}

// judge holds what was reported against the plan: a scenario that never completed has failed, and a planted failure
// has passed if it failed.
func judge(p plan, reported []check) []check {
	out := slices.Clone(reported)
	has := func(name string) bool { return slices.ContainsFunc(out, func(c check) bool { return c.Name == name }) }
	for _, s := range p.Scenarios {
		if name := s + "/complete"; !has(name) {
			out = append(out, check{Name: name, Status: wire.Fail, Detail: "was never reported"})
		}
	}
	for _, name := range p.MustFail {
		if !has(name) {
			out = append(out, check{Name: name, Status: wire.Pass}) // turned around below
		}
	}
	for i := range out {
		c := &out[i]
		if !slices.Contains(p.MustFail, c.Name) {
			continue
		}
		if c.Status == wire.Fail {
			c.Status, c.Detail = wire.Pass, "failed as it must: "+c.Detail
		} else {
			c.Status, c.Detail = wire.Fail, "should have failed: "+c.Detail
		}
	}
	return out
}

func newResult(name string, checks []check, seconds float64) result {
	r := result{Name: name, Checks: checks, Seconds: seconds, Kills: kills(checks)}
	if n := len(r.Kills); n > 0 {
		clean := 0
		for _, k := range r.Kills {
			if k.Clean {
				clean++
			}
		}
		r.Note = fmt.Sprintf("%d times killed, %d times clean after it", n, clean)
	}
	for _, c := range checks {
		switch c.Status {
		case wire.Pass:
			r.Passed++
		case wire.Skip:
			r.Skipped++
		default:
			r.Failed++
		}
	}
	return r
}

// print shows what did not pass, and with all every check.
func (r result) print(w io.Writer, all bool) {
	for _, c := range r.Checks {
		if all || c.Status != wire.Pass {
			_, _ = fmt.Fprintf(w, "  %6.2f %-4s %s  %s\n", c.At, c.Status, c.Name, oneLine(c.Detail)) // to the user's terminal
		}
	}
}

func (r result) save(dir string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "result.json"), append(b, '\n'), 0o644)
}

func summary(w io.Writer, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := fmt.Fprintln(t, "machine\tpassed\tfailed\tskipped\tseconds\t  note"); err != nil {
		return err
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.1f\t  %s\n", r.Name, r.Passed, r.Failed, r.Skipped, r.Seconds, r.Note); err != nil {
			return err
		}
	}
	return t.Flush()
}

// keepFile writes what the guest sent below dir.
func keepFile(dir, name, text string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the guest sent a file named %q", name)
	}
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	return os.WriteFile(p, []byte(text), 0o644)
}

func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", " | ")
	if len(s) > 400 {
		s = s[:400] + " ..."
	}
	return s
}

// lastLines are the last n lines of a file, for messages.
func lastLines(file string, n int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(l[max(0, len(l)-n):], " | ")
}
