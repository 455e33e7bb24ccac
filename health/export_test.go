package health

import (
	"fmt"
	"strings"
	"time"
)

// SetWall gives a Monitor that has not started another wall clock.
func (m *Monitor) SetWall(wall func() time.Time) { m.wall = wall }

// Prepare makes a Monitor ready for Tick without its goroutines.
func (m *Monitor) Prepare() {
	start := m.wall()
	m.started = start
	m.mono = func() time.Duration { return time.Since(start) }
}

// Tick takes and judges one sample.
func (m *Monitor) Tick() { m.tick() }

// ConditionsMarkdown is the table of conditions as docs/health.md holds it.
func ConditionsMarkdown() string {
	b := &strings.Builder{}
	b.WriteString("| condition | state | exit code | holds when | what is kept | remedy |\n|---|---|---|---|---|---|\n")
	for _, i := range conditionTable {
		fmt.Fprintf(b, "| %s | %v | %d | %s | %s | %s |\n", i.Condition, i.State, i.ExitCode, i.Meaning, i.Keeps, i.Remedy)
	}
	return b.String()
}
