//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	program    = "/bin/mlxvfio"
	cliLimit   = 30 * time.Second // for one run of the program, a whole bring-up included
	journalDir = "/run/mlxvfio"
)

// cli runs the program under test and keeps what it printed under the check's name.
func (b *bench) cli(name string, args ...string) outcome {
	b.step("%s", name)
	o := run(cliLimit, append([]string{program}, args...)...)
	b.keep(name, o.transcript())
	return o
}

// works runs the program and checks that it succeeds; with --json among the arguments it returns the objects printed.
func (b *bench) works(name string, args ...string) ([]map[string]any, bool) {
	o := b.cli(name, args...)
	if !b.check(name, o.ok(), "%v", o) {
		return nil, false
	}
	if args[len(args)-1] != "--json" {
		return nil, true
	}
	objects, err := decode(o.stdout)
	return objects, b.check(name+"-json", err == nil, "%v: %s", errText(err), brief(o.stdout))
}

// refuses runs the program and checks its exit status, and that it said why in one line holding want.
func (b *bench) refuses(name string, code int, want string, args ...string) {
	o := b.cli(name, args...)
	oneLine := len(strings.Split(strings.TrimSpace(o.stderr), "\n")) == 1
	b.check(name, o.code == code && oneLine && strings.Contains(o.stderr, want), "want status %d and one line with %q; %v", code, want, o)
}

// decode reads one or more JSON objects, each of which must name its schema.
func decode(text string) ([]map[string]any, error) {
	var out []map[string]any
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if s, _ := o["schema"].(string); !strings.HasPrefix(s, "mlxvfio.") {
			return nil, fmt.Errorf("object without a schema of ours: %v", o["schema"])
		}
		out = append(out, o)
	}
	if len(out) == 0 {
		return nil, errors.New("no JSON object")
	}
	return out, nil
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

// released checks that no process holds the function any more.
func (b *bench) released(name, bdf string) bool {
	free, users := groupFree(bdf), vfioUsers()
	return b.check(name, free == nil && len(users) == 0, "%v; %s", errText(free), strings.Join(users, "; "))
}

// selftest checks that the program brings the function up, with interrupts, and gives it back.
func (b *bench) selftest(name, bdf string) bool {
	objects, ok := b.works(name, "selftest", bdf, "--json")
	if !ok {
		return false
	}
	err := judgeSelftest(objects)
	return b.check(name+"-stages", err == nil, "%v", errText(err)) && b.released(name+"-released", bdf)
}

// stages are the stages of the bring-up and teardown, in order, as the program names them.
func (b *bench) stages() []string {
	o := b.cli("list-stages", "selftest", "--list-stages")
	var list []string
	for line := range strings.Lines(o.stdout) { // the name comes first, an explanation may follow
		if f := strings.Fields(line); len(f) > 0 {
			list = append(list, f[0])
		}
	}
	b.check("list-stages", o.ok() && len(list) > 5, "%d stages: %v", len(list), o)
	return list
}

// stopAt starts a selftest that stops for good at a stage; the caller must kill it.
func (b *bench) stopAt(name, bdf, stage string) (*process, bool) {
	p, err := launch(nil, program, "selftest", bdf, "--stop-at", stage)
	if err != nil {
		return nil, b.check(name, false, "%v", err)
	}
	if p.printed("stopped at "+stage, cliLimit) && p.alive() {
		return p, true
	}
	o := p.kill()
	return nil, b.check(name, false, "did not stop there: %v", o)
}

// judgeSelftest reads the report of "selftest --json": every stage the program lists is there, none has failed, and the
// event queues were driven by interrupts.
func judgeSelftest(objects []map[string]any) error {
	if len(objects) != 1 {
		return fmt.Errorf("%d objects, want one", len(objects))
	}
	stages, ok := objects[0]["stages"].([]any)
	if !ok || len(stages) == 0 {
		return errors.New("no stages in the report")
	}
	for _, s := range stages {
		stage, ok := s.(map[string]any)
		if !ok {
			return fmt.Errorf("stage %v is no object", s)
		}
		if e, ok := stage["error"]; ok && e != "" {
			return fmt.Errorf("stage %v: %v", stage["stage"], e)
		}
	}
	return nil
}
