// Package absent is how a test says that this machine lacks what the test needs to be
// heard: a compiler, a kernel header, a browser, the bytes of a real device, the device
// itself. A test that skips for that reason does so here, so that the end of .ci/run
// names it; internal/archtest asks for it. The file that the environment variable
// MLXVFIO_SKIPPED names collects them, a line each; without it they are in the log of
// the test alone. Its functions may be called by several goroutines and processes at a
// time.
package absent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Variable names the file that collects what was not heard.
const Variable = "MLXVFIO_SKIPPED"

// Skip skips the test or benchmark: the witness is not here, for this reason.
func Skip(tb testing.TB, witness, why string) {
	tb.Helper()
	tb.Skip(tell(tb, witness, why))
}

// Note tells of a witness that is not here while the test goes on with others.
func Note(tb testing.TB, witness, why string) {
	tb.Helper()
	tb.Log(tell(tb, witness, why))
}

func tell(tb testing.TB, witness, why string) string {
	tb.Helper()
	if err := List(os.Getenv(Variable), witness, why); err != nil {
		tb.Fatalf("%s: %s; that cannot be listed: %v", witness, why, err)
	}
	return "not heard: " + witness + ": " + why
}

// List adds a line to the file that collects what was not heard; empty for none.
func List(file, witness, why string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	// In one piece: other processes write lines of their own.
	_, err = f.WriteString(strings.ReplaceAll(fmt.Sprintf("%s: %s", witness, why), "\n", "; ") + "\n")
	return errors.Join(err, f.Close())
}
