package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// guestTest is a test binary that runs in the guest over a real function.
type guestTest struct {
	Name    string // /bin/NAME.test in the guest; the scenario is contract-NAME
	Package string
}

// guestTests is the one list of rooms whose hardware tests (build tag hw, MLXVFIO_TEST_BDF) run in the guest.
var guestTests = []guestTest{
	{"vfio", "./vfio"},
	{"driver", "."},
	{"queues", "./queues"},
}

// builder makes the static programs that go into the guest, in a folder of its own.
type builder struct{ root, dir string }

// goTool runs the go command in the repository, without cgo: nothing in the guest could load a shared library.
func (b builder) goTool(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

func (b builder) program(ctx context.Context, name, pkg string) (string, error) {
	out := filepath.Join(b.dir, name)
	return out, b.goTool(ctx, "build", "-trimpath", "-ldflags=-s -w", "-o", out, pkg)
}

func (b builder) test(ctx context.Context, t guestTest) (string, error) {
	out := filepath.Join(b.dir, t.Name+".test")
	return out, b.goTool(ctx, "test", "-c", "-trimpath", "-ldflags=-s -w", "-tags", "hw", "-o", out, t.Package)
}

// repositoryRoot is the folder of the module that the working folder belongs to.
func repositoryRoot() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w: start the bench inside the repository", err)
	}
	return strings.TrimSpace(string(out)), nil
}
