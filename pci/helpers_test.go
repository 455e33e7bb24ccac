package pci_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mlxvfio/mlxvfio/pci"
)

func bdf(t testing.TB, s string) pci.BDF {
	t.Helper()
	b, err := pci.ParseBDF(s)
	require.NoError(t, err)
	return b
}

// remedyOf requires an *Error with the kind, on one line, and gives its remedy.
func remedyOf(t testing.TB, err, kind error) string {
	t.Helper()
	require.ErrorIs(t, err, kind)
	var e *pci.Error
	require.ErrorAs(t, err, &e)
	require.NotContains(t, e.Error(), "\n")
	require.NotEmpty(t, e.Op)
	require.Contains(t, e.Error(), e.Remedy)
	return e.Remedy
}
