package pci_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
)

const (
	tableBegin = "<!-- findings: written by MLXVFIO_UPDATE_DOCS=1 go test ./pci -run TestManualFindings -->\n"
	tableEnd   = "<!-- end of findings -->\n"
)

// findingsTable is the catalogue as docs/doctor.md has it.
func findingsTable() string {
	var b strings.Builder
	b.WriteString("\n| finding | severity | what it is | why it matters | an open needs |\n|---|---|---|---|---|\n")
	for _, f := range pci.Findings() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.ID, f.Severity, f.Title, f.Why, f.Need)
	}
	b.WriteString("\n")
	return b.String()
}

// TestManualFindings compares the table of docs/doctor.md with the catalogue.
func TestManualFindings(t *testing.T) {
	const name = "../docs/doctor.md"
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(data), tableBegin)
	require.True(t, ok, "the table's beginning")
	have, after, ok := strings.Cut(rest, tableEnd)
	require.True(t, ok, "the table's end")
	if os.Getenv("MLXVFIO_UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(name, []byte(before+tableBegin+findingsTable()+tableEnd+after), 0o644))
		return
	}
	require.Equal(t, findingsTable(), have)
}
