//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	program    = "/bin/mlxvfio"
	cliLimit   = 30 * time.Second // for one run of the program, a whole bring-up included
	journalDir = "/run/mlxvfio"
)

// argv is the program under test with arguments, and with those about the way into the functions of this machine
// where the arguments are about one: elsewhere the program refuses them.
func (b *bench) argv(args ...string) []string {
	function := func(word string) bool {
		return slices.ContainsFunc(b.bdfs, func(bdf string) bool { return word == bdf || word == strings.TrimPrefix(bdf, "0000:") })
	}
	words := b.words
	if !slices.ContainsFunc(args, function) && !slices.Contains([]string{"list", "doctor", "bind", "unbind"}, args[0]) {
		words = nil
	}
	return slices.Concat([]string{program}, args, words)
}

// cli runs the program under test and keeps what it printed under the check's name.
func (b *bench) cli(name string, args ...string) outcome {
	b.step("%s", name)
	o := run(cliLimit, b.argv(args...)...)
	b.keep(name, o.transcript())
	return o
}

// works runs the program and checks that it succeeds; with --json as the last argument it returns the object printed.
func (b *bench) works(name string, args ...string) (map[string]any, bool) {
	o := b.cli(name, args...)
	if !b.check(name, o.ok(), "%v", o) {
		return nil, false
	}
	if args[len(args)-1] != "--json" {
		return nil, true
	}
	object, err := decode(o.stdout)
	return object, b.check(name+"-json", err == nil, "%v: %s", errText(err), brief(o.stdout))
}

// refuses runs the program and checks its exit status, and that it said why in one line holding want.
func (b *bench) refuses(name string, code int, want string, args ...string) {
	o := b.cli(name, args...)
	said := strings.Split(strings.TrimSpace(o.stderr), "\n")
	if b.backend == noIOMMU && strings.Contains(said[0], noIOMMUWarning) { // it was opened before it failed
		said = said[1:]
	}
	oneLine := len(said) == 1
	b.check(name, o.code == code && oneLine && strings.Contains(o.stderr, want), "want status %d and one line with %q; %v", code, want, o)
}

// decode reads the one JSON object of an output, which must name its schema.
func decode(text string) (map[string]any, error) {
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return nil, err
	}
	if s, _ := o["schema"].(string); !strings.HasPrefix(s, "mlxvfio.") {
		return nil, fmt.Errorf("object without a schema of ours: %v", o["schema"])
	}
	return o, nil
}

// jsonText is an object as compact JSON, to search in.
func jsonText(o map[string]any) string {
	b, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// onVFIO makes sure that the function belongs to vfio-pci, so that a scenario stands on its own.
func (b *bench) onVFIO(bdf string) bool {
	if driverOf(bdf) == "vfio-pci" {
		return true
	}
	err := bindByHand(bdf, "vfio-pci")
	return b.check("prepare", err == nil && driverOf(bdf) == "vfio-pci", "%s: %v, %s", bdf, errText(err), driverState(bdf))
}

// released checks that no process holds the function any more, and that none but the exempt ones holds any.
func (b *bench) released(name, bdf string, exempt ...*process) bool {
	free, users := groupFree(bdf), vfioUsers(exempt...)
	return b.check(name, free == nil && len(users) == 0, "%v; %s", errText(free), strings.Join(users, "; "))
}

// stages are the stages of the bring-up, in order, as the program names them; it is asked once in a scenario.
func (b *bench) stages() []string {
	if b.stageNames != nil {
		return b.stageNames
	}
	o := b.cli("list-stages", "selftest", "--list-stages")
	for line := range strings.Lines(o.stdout) { // the name comes first, an explanation may follow
		if f := strings.Fields(line); len(f) > 0 {
			b.stageNames = append(b.stageNames, f[0])
		}
	}
	b.check("list-stages", o.ok() && len(b.stageNames) > 5, "%d stages: %v", len(b.stageNames), o)
	return b.stageNames
}

// holdUp starts a selftest that stops when the function is up, and holds it until the caller kills it.
func (b *bench) holdUp(name, bdf string) (*process, bool) {
	stages := b.stages()
	if len(stages) == 0 {
		return nil, false
	}
	return b.stopAt(name, bdf, stages[len(stages)-1])
}

// stopAt starts a selftest that stops for good at a stage; the caller must kill it.
func (b *bench) stopAt(name, bdf, stage string) (*process, bool) {
	p, err := launch(nil, b.argv("selftest", bdf, "--stop-at", stage)...)
	if err != nil {
		return nil, b.check(name, false, "%v", err)
	}
	if p.printed("stopped at "+stage+"\n", cliLimit) && p.alive() {
		return p, true
	}
	o := p.kill()
	return nil, b.check(name, false, "did not stop there: %v", o)
}
