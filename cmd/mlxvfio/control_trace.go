package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mlxvfio/mlxvfio/sim"
	"github.com/mlxvfio/mlxvfio/tracer/trace"
)

// mostMessages bounds one trace word: more would hold the model for minutes.
const mostMessages = 100_000_000

// traceKinds are the kinds of messages that trace writes.
var traceKinds = []sim.TraceKind{sim.TracePlain, sim.TraceEdge}

// traced is the answer to trace.
type traced struct {
	Messages int    `json:"messages"`
	First    uint64 `json:"first"` // number of the first one
}

func emitTrace(m *server, args []string) (string, error) {
	const want = "want: trace N [plain|edge]"
	if len(args) < 1 || len(args) > 2 {
		return "", errors.New(want)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > mostMessages {
		return "", fmt.Errorf("%s: %q is no number from 1 to %d", want, args[0], mostMessages)
	}
	kind := sim.TracePlain
	if len(args) == 2 {
		kind = sim.TraceKind(args[1])
	}
	if !slices.Contains(traceKinds, kind) {
		return "", fmt.Errorf("%s: %q is no kind", want, args[1])
	}
	first, err := m.chip.EmitTrace(n, kind)
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(traced{n, first})
	return string(b), err
}

// Files that trace-memory writes; the sections of the string database lie beside.
const (
	ringFile     = "ring.bin"
	stringsFile  = "db.json"
	traceDirMode = 0o755
)

// traceMemory writes what a decoder needs of the function that traces.
func traceMemory(m *server, args []string) error {
	if len(args) != 1 || !filepath.IsAbs(args[0]) {
		return errors.New("want: trace-memory DIR, an absolute path: the folder of the program that serves is not yours")
	}
	t, err := m.chip.TraceMemory()
	if err != nil {
		return err
	}
	db := &trace.DB{Geometry: trace.Geometry{TrcVer: t.Version, FirstString: t.FirstString, NumString: t.NumString}}
	for _, s := range t.Sections {
		db.Sections = append(db.Sections, trace.Section{Base: uint64(s.Base), Data: s.Data})
	}
	if err := os.MkdirAll(args[0], traceDirMode); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(args[0], ringFile), t.Ring, 0o644); err != nil {
		return err
	}
	return db.Write(filepath.Join(args[0], stringsFile))
}
