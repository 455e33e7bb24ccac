package drivertest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Reporter is the part of testing.TB that checks need, so that a test can watch a
// check fail.
type Reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// Baseline is what the process held at one moment.
type Baseline struct {
	goroutines int
	fds        map[string]string // number → what it points at
}

// Now takes the baseline. Do it after a first open and close: the runtime keeps
// some descriptors for itself.
func Now() Baseline { return Baseline{goroutines: runtime.NumGoroutine(), fds: openFDs()} }

// settle is how long goroutines that are about to end may take.
const settle = 2 * time.Second

// Check reports goroutines and file descriptors that were not there at the
// baseline.
func (b Baseline) Check(r Reporter) {
	r.Helper()
	var now Baseline
	for end := time.Now().Add(settle); ; time.Sleep(5 * time.Millisecond) {
		now = Now()
		if now.goroutines <= b.goroutines && len(now.fds) <= len(b.fds) || time.Now().After(end) {
			break
		}
	}
	if now.goroutines > b.goroutines {
		r.Errorf("%d goroutines were left behind:\n%s", now.goroutines-b.goroutines, stacks())
	}
	if len(now.fds) > len(b.fds) {
		r.Errorf("%d file descriptors were left behind: %s", len(now.fds)-len(b.fds), newFDs(b.fds, now.fds))
	}
}

func openFDs() map[string]string {
	fds := map[string]string{}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fds
	}
	for _, n := range names {
		// The descriptor of this very listing is gone by now.
		if to, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil {
			fds[n.Name()] = to
		}
	}
	return fds
}

func newFDs(was, is map[string]string) string {
	var l []string
	for n, to := range is {
		if was[n] != to {
			l = append(l, fmt.Sprintf("%s → %s", n, to))
		}
	}
	return strings.Join(l, ", ")
}

// stacks are the goroutines of the driver.
func stacks() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var l []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if strings.Contains(g, "mlxvfio") && !strings.Contains(g, "testing.tRunner") {
			l = append(l, g)
		}
	}
	return strings.Join(l, "\n\n")
}
