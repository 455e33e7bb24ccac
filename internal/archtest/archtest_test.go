// Package archtest holds the import rules of the house as a test, so that a
// wrong import fails before a reviewer has to see it. docs/theory.md explains
// the rooms; .golangci.yml repeats the rules for editors.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/mlxvfio/mlxvfio"

// pkg is what `go list -json` tells about a package.
type pkg struct {
	ImportPath   string
	Name         string
	Dir          string
	Imports      []string
	TestImports  []string
	XTestImports []string
	CgoFiles     []string
}

// room is the package path inside the module; the root is "mlxvfio".
func (p pkg) room() string { return roomOf(p.ImportPath) }

func roomOf(path string) string {
	if path == module {
		return "mlxvfio"
	}
	return strings.TrimPrefix(path, module+"/")
}

// list loads every package of the module, as it builds with cgo off.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Imports,TestImports,XTestImports,CgoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			t.Fatalf("go list: %v\n%s", err, ee.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var ps []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		ps = append(ps, p)
	}
	require.NotEmpty(t, ps)
	return ps
}

// allowed names, for each room, the rooms of this module it may import. A room
// that is not named here is an error: add it with its place in the house.
var allowed = map[string][]string{
	"internal/prm":      {},
	"internal/prmgen":   {},
	"internal/mmio":     {},
	"internal/hostmem":  {},
	"internal/iova":     {},
	"internal/tempfile": {},
	"internal/vfioabi":  {},
	"vfio":              {"internal/mmio", "internal/hostmem", "internal/iova", "internal/vfioabi"},
	"vfio/vfiotest":     {"vfio", "internal/hostmem"},
	"pci":               {},
	"pci/pcitest":       {"pci"},
	"initseg":           {"vfio", "internal/prm"},
	"cmdif":             {"initseg", "vfio", "internal/prm", "internal/mmio"},
	"queues":            {"cmdif", "vfio", "internal/prm", "internal/mmio"},
	"atomics":           {"queues", "cmdif", "vfio", "internal/prm"},
	"atomics/litmus":    {"atomics", "queues", "vfio", "internal/prm"},
	"tracer/trace":      {},
	"tracer/capture":    {"tracer/trace"},
	"tracer/analyze":    {"tracer/capture", "tracer/trace"},
	"tracer/export":     {"tracer/analyze", "tracer/capture", "tracer/trace"},
	"tracer":            {"internal/tempfile", "tracer/capture", "tracer/trace", "cmdif", "vfio", "internal/prm", "internal/mmio"},
	"health":            {"health/blackbox", "initseg", "cmdif", "vfio", "internal/prm"},
	"health/blackbox":   {"internal/tempfile"},
	"mlxvfio":           {"atomics", "tracer", "tracer/capture", "tracer/trace", "health", "health/blackbox", "queues", "cmdif", "initseg", "vfio", "internal/prm"},
	"sim":               {"vfio", "internal/prm"},
	"internal/vfiouser": {
		"vfio",
	},
	"internal/drivertest": {"mlxvfio", "queues", "cmdif", "initseg", "vfio", "internal/prm"},
	"internal/archtest":   {},
	"internal/hwtest":     {"vfio", "internal/absent"},
	"internal/absent":     {},
	"internal/faultdoc":   {},
	"cmd/mlxvfio":         nil, // anything
	"test/vm/cmd/vmrun":   nil,
	"test/vm/guest":       nil,
	"test/vm/internal/*":  nil,
	"test/vm/probe":       nil,
}

func ruleFor(room string) ([]string, bool) {
	if r, ok := allowed[room]; ok {
		return r, true
	}
	for k, r := range allowed {
		if prefix, ok := strings.CutSuffix(k, "*"); ok && strings.HasPrefix(room, prefix) {
			return r, true
		}
	}
	return nil, false
}

// TestImportsGoDown checks every import inside the module against the table.
func TestImportsGoDown(t *testing.T) {
	for _, p := range list(t) {
		rule, known := ruleFor(p.room())
		if !known {
			t.Errorf("%s: this room is not in the table of archtest; give it a place", p.room())
			continue
		}
		if rule == nil {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module) && !slices.Contains(rule, roomOf(imp)) {
				t.Errorf("%s imports %s; it may import only %v", p.room(), roomOf(imp), rule)
			}
		}
	}
}

// TestModelIsNotInTheDriver: driver rooms never reach the model or the vfio-user
// code, not even from their internal tests; external tests (package x_test) may.
func TestModelIsNotInTheDriver(t *testing.T) {
	for _, p := range list(t) {
		r := p.room()
		if strings.HasPrefix(r, "cmd/") || strings.HasPrefix(r, "test/") || r == "sim" || r == "internal/vfiouser" {
			continue
		}
		for _, imp := range slices.Concat(p.Imports, p.TestImports) {
			if imp == module+"/sim" || imp == module+"/internal/vfiouser" {
				t.Errorf("%s imports %s outside an external test", r, roomOf(imp))
			}
		}
	}
}

// TestSharedBySimAndDriver: what the model shares with the driver is internal/prm
// and vfio, so that one mistake cannot hide in both.
func TestSharedBySimAndDriver(t *testing.T) {
	for _, p := range list(t) {
		if p.room() != "sim" {
			continue
		}
		for _, imp := range p.TestImports {
			if strings.HasPrefix(imp, module) {
				// internal/absent knows of no device: it says what a machine lacks.
				require.Contains(t, []string{"internal/prm", "vfio", "vfio/vfiotest", "internal/absent"}, roomOf(imp), "sim's tests")
			}
		}
	}
}

// places lists where a dangerous or third-party import may stand.
var places = map[string]func(room string) bool{
	"unsafe": in("vfio", "internal/mmio", "internal/hostmem", "internal/vfioabi"),
	"golang.org/x/sys/unix": func(r string) bool {
		return in("vfio", "pci", "internal/hostmem", "internal/vfiouser")(r) ||
			strings.HasPrefix(r, "cmd/") || strings.HasPrefix(r, "test/")
	},
	"github.com/u-root/u-root/pkg/pci": in("pci"),
}

func in(rooms ...string) func(string) bool {
	return func(r string) bool { return slices.Contains(rooms, r) }
}

// TestPlaces checks unsafe, x/sys and third-party modules.
func TestPlaces(t *testing.T) {
	std := stdlib(t)
	for _, p := range list(t) {
		r := p.room()
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module) {
				continue
			}
			if ok, named := places[imp]; named {
				if !ok(r) {
					t.Errorf("%s imports %s, which has its place elsewhere", r, imp)
				}
				continue
			}
			if std[imp] || strings.HasPrefix(r, "cmd/") {
				continue
			}
			if strings.HasPrefix(imp, "github.com/stretchr/testify/") && slices.Contains([]string{"vfio/vfiotest", "pci/pcitest", "internal/drivertest"}, r) {
				continue // test kits
			}
			t.Errorf("%s imports %s; third-party libraries beyond the three named ones stay under cmd/", r, imp)
		}
		require.Empty(t, p.CgoFiles, "%s has cgo files", r)
	}
}

func stdlib(t *testing.T) map[string]bool {
	t.Helper()
	out, err := exec.Command("go", "list", "std").Output()
	require.NoError(t, err)
	m := map[string]bool{"unsafe": true, "C": false}
	for _, l := range strings.Fields(string(out)) {
		m[l] = true
	}
	return m
}

// TestTheTableIsCurrent fails on rooms the table names that no longer exist, so
// that the table keeps describing the house.
func TestTheTableIsCurrent(t *testing.T) {
	have := map[string]bool{}
	for _, p := range list(t) {
		have[p.room()] = true
	}
	var gone []string
	for k := range allowed {
		if !strings.HasSuffix(k, "*") && !have[k] {
			gone = append(gone, k)
		}
	}
	sort.Strings(gone)
	require.Empty(t, gone, "rooms in the table that do not exist")
}
